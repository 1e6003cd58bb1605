//! Importers, pipeline, options, reports and the command `neffuse`.
//!
//! * [`import`]: saved graphs to the IR.
//! * [`pipeline`]: a graph to a NEFF, pass by pass; [`cache`]: the same, once.
//! * [`execute`]: a NEFF on the simulator; [`strided`]: tensors in the caller's memory.
//! * [`samples`], [`verdict`]: values to run on, and judging what comes out.
//! * [`report`], [`metrics`], [`roofline`]: what is told about a result; [`fault`]: about a fault of the compiler.
//! * [`failure`], [`bisect`], [`divergence`], [`reduce`]: hunting a fault down.
//! * [`eager`], [`three_way`]: the same graph dispatched node by node.
//! * [`commands`]: the command line; everything in it can be called from code.

pub mod bisect;
pub mod cache;
pub mod commands;
pub mod divergence;
pub mod eager;
pub mod error;
pub mod execute;
pub mod failure;
pub mod fault;
pub mod import;
mod kept;
pub mod metrics;
pub mod naming;
pub mod npz;
pub mod pipeline;
pub mod reduce;
pub mod report;
pub mod roofline;
pub mod samples;
pub mod strided;
pub mod three_way;
pub mod traffic;
pub mod transposes;
pub mod verdict;

pub use error::Error;
pub use pipeline::{Compiled, Options, compile};
