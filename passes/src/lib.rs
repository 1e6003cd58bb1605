//! Graph to graph and program to program transformations.
//!
//! A pass is a function from one form to the next; [`manager`] runs a list of them, verifies after
//! each and tells an observer. Nothing here prints, logs, reads a clock or the environment.

pub mod allocate;
pub mod canonicalize;
mod footprint;
pub mod fuse;
mod hash;
mod hazard;
pub mod index_masks;
mod lists;
pub mod manager;
pub mod numerics;
pub mod outline;
pub mod schedule;
pub mod synchronize;

pub use manager::{Phase, Statistics};
pub use numerics::Numerics;

#[cfg(test)]
mod machine;
#[cfg(test)]
mod pipeline_tests;
#[cfg(test)]
mod testing;
