//! Graph to program lowering, linking and packaging.

mod integers;
pub mod link;
pub mod lower;
pub mod map;
pub mod package;
pub mod place;
mod weights;

pub use link::{LinkedKernel, kernel_object, link};
pub use lower::{LowerStats, SINE_LIMIT, expand_long_rows, lower};
pub use package::package;
pub use place::{Unsupported, place};
