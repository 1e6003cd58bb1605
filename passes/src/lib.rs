//! Graph to graph and program to program transformations.
//!
//! A pass is a function from one form to the next; [`manager`] runs a list of them, verifies after
//! each and tells an observer. Nothing here prints, logs, reads a clock or the environment.

pub mod canonicalize;
pub mod fuse;
mod hash;
pub mod manager;
pub mod numerics;

pub use manager::{Phase, Statistics};
pub use numerics::Numerics;

#[cfg(test)]
mod testing;
