//! Graph to program lowering, linking and packaging.

pub mod lower;
pub mod map;
pub mod place;

pub use lower::{LowerStats, lower};
pub use place::{Unsupported, place};
