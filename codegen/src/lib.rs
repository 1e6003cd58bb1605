//! Graph to program lowering, linking and packaging.

pub mod map;
