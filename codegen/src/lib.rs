//! Graph to program lowering, linking and packaging.

mod control;
mod integers;
pub mod link;
pub mod lower;
pub mod map;
pub mod package;
pub mod place;
mod weights;

pub use control::{ControlError, kernel_semaphores};
pub use integers::input_bits;
pub use link::{LinkedKernel, kernel_object, link, link_module, module_kernel_object};
pub use lower::{LowerStats, SINE_LIMIT, expand_long_rows, lower};
pub use package::{package, package_module};
pub use place::{Unsupported, place};
