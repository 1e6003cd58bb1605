//! Makes functions of repeated layers, so that each distinct one is compiled once.
//!
//! The graph, as imported, becomes a sequence of calls: stretches of nodes that repeat at least
//! [`MIN_INSTANCES`] times (`repeats`) are cut where the fewest values cross, and equal ones become
//! one function (`functions`); what stands between them becomes functions that are called once. A
//! value that a call leaves to a later one lies in device memory. What no input decides (constants,
//! positions, masks) crosses no border: every function that needs it computes it itself, so that
//! rewrites see it.
//!
//! Takes time in proportion to the graph. Leaves graphs alone that are small, for a call costs about
//! 8 us of barriers and transfers on the device, and compiling few nodes costs little.

mod functions;
mod repeats;
mod values;

use ir::graph::Location;
use ir::{Graph, TensorType, ValueId};

/// Name among passes.
pub const NAME: &str = "outline";

/// Fewer equal layers than this are not worth the calls.
pub const MIN_INSTANCES: usize = 3;

/// Nodes that need not be compiled, below which calls cost more than they save.
const MIN_SAVED_NODES: usize = 256;

/// Nodes of a layer, below which its work is too little for a call.
const MIN_LAYER_NODES: usize = 16;

/// A graph as functions and calls of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// Distinct functions, in the order of their first calls.
    pub functions: Vec<Graph>,
    /// In order of execution.
    pub calls: Vec<GraphCall>,
    /// Types of the values that calls leave to later ones.
    pub between: Vec<TensorType>,
}

/// A function applied to values.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphCall {
    /// Position in [`Outline::functions`].
    pub function: usize,
    /// One per input of the function.
    pub inputs: Vec<Source>,
    /// One per output of the function. An output that updates an input in place is an output of the
    /// graph that updates the input's source.
    pub outputs: Vec<Target>,
    /// What the function's locations are in this call.
    pub locations: Vec<Location>,
}

/// Where a function's input comes from.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Position in the graph's inputs.
    Input(u32),
    /// Position in the graph's outputs: an earlier call has stored it.
    Output(u32),
    /// Position in [`Outline::between`].
    Between(u32),
    /// A constant of the graph that is too large to stand in a function.
    Constant(ValueId),
}

/// Where a function's output goes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Position in the graph's outputs.
    Output(u32),
    /// Position in [`Outline::between`].
    Between(u32),
}

/// Cuts a well-typed graph into functions; `None` where that does not pay or cannot be.
pub fn outline(graph: &Graph) -> Option<Outline> {
    if graph.n_nodes() < MIN_SAVED_NODES + MIN_LAYER_NODES {
        return None;
    }
    let values = values::Values::of(graph);
    let segments = repeats::segments(graph, &values)?;
    functions::outline(graph, &values, segments)
}

#[cfg(test)]
mod tests;
