//! Importers, pipeline, options, reports and the command `neffuse`.

pub mod error;
pub mod import;
pub mod npz;
pub mod samples;
pub mod verdict;

pub use error::Error;
