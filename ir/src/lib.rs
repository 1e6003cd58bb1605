//! What graphs and programs are: types, the op table, instructions, the text form, the verifier,
//! the reference evaluator, target numbers and diagnostics.
//!
//! Nothing here transforms a graph or runs a program; passes, lowering and simulation live in
//! crates that depend on this one.

pub mod diagnostic;
pub mod graph;
pub mod ops;
pub mod program;
mod random;
pub mod random_graph;
pub mod random_program;
pub mod reference;
pub mod target;
pub mod text;
pub mod types;
pub mod verify;

pub use diagnostic::{Diagnostic, Diagnostics};
pub use graph::{Graph, Node, NodeId, ValueId};
pub use ops::Op;
pub use program::Program;
pub use types::{Dtype, Shape, TensorType};
