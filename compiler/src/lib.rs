//! Importers, pipeline, options, reports and the command `neffuse`.

pub mod import;
pub mod npz;
