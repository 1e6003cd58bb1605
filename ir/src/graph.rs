//! The tensor graph: an arena of nodes in topological order.
//!
//! A node has an op, operands and one or more results; every value has a [`TensorType`]. Passes do
//! not edit a graph in place, they build a new one with [`Graph::push`]. Well-formedness beyond
//! what `push` checks is the verifier's business.

use smallvec::SmallVec;

use crate::ops::Op;
use crate::types::{TensorType, TypeError};

/// Names a value of one graph.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// Names a node of one graph.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// Names an entry of [`Graph::locations`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocationId(pub u32);

impl ValueId {
    /// Position in the value arena.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    /// Position in the node arena.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl LocationId {
    /// Position in the location table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where in the user's model a node comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// Name of the FX node, for example `mul_1`.
    pub node: String,
    /// What the FX node called, for example `aten.mul.Tensor`.
    pub target: String,
    /// Path of the module, for example `encoder.layer.0.attention`; empty where unknown.
    pub module: String,
    /// The user's source line, for example `model.py:12`; empty where unknown.
    pub line: String,
}

/// One op applied to operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub op: Op,
    pub operands: SmallVec<[ValueId; 4]>,
    pub results: SmallVec<[ValueId; 1]>,
    /// Source nodes that this node stands for, sorted, without duplicates.
    pub locations: SmallVec<[LocationId; 2]>,
}

/// What defines a value.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum ValueDef {
    /// Position in [`Graph::inputs`].
    Input(u32),
    /// Result `index` of a node.
    Result { node: NodeId, index: u32 },
}

/// A value's type and definition.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueInfo {
    pub ty: TensorType,
    pub def: ValueDef,
}

/// What an input is for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum InputRole {
    /// Changes from call to call.
    Dynamic,
    /// A parameter or buffer.
    Static,
    /// An activation that the forward graph saved for this backward graph.
    Saved,
    /// The gradient of an output.
    Tangent,
}

/// A tensor that the caller gives.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphInput {
    pub value: ValueId,
    pub name: String,
    pub role: InputRole,
    /// Steps in elements that the caller's buffer has; `None` where packed row-major.
    pub strides: Option<SmallVec<[i64; 6]>>,
}

/// A tensor that the caller gets.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphOutput {
    /// `None` where the caller expects no tensor at this position.
    pub value: Option<ValueId>,
    /// Steps in elements that the caller expects; `None` where packed row-major.
    pub strides: Option<SmallVec<[i64; 6]>>,
    /// Position in [`Graph::inputs`] of the input that this output updates in place: the caller's
    /// tensor of that input holds the output after the call. Of the input's type and strides.
    pub alias: Option<u32>,
    /// What AOTAutograd says of this output, for example `PlainAOTOutput(idx=0)`; may be empty.
    pub description: String,
}

/// A tensor graph in topological order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    pub name: String,
    pub inputs: Vec<GraphInput>,
    pub outputs: Vec<GraphOutput>,
    pub locations: Vec<Location>,
    /// Where each value lies on chip, by value; empty before placement.
    pub layouts: Vec<Option<Layout>>,
    nodes: Vec<Node>,
    values: Vec<ValueInfo>,
}

/// How a tensor lies in SBUF: its dimensions, outermost first, are split into three groups.
///
/// With O, P and F the products of the outer, partition and free dimensions, element (o, p, f)
/// lies on partition `p % 128` at element `(o * ceil(P / 128) + p / 128) * F + f` of the tile's
/// partition.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Leading dimensions that lie on the free axis as blocks.
    pub n_outer: u8,
    /// Dimensions after those that lie on partitions; the rest is free.
    pub n_partition: u8,
}

impl Layout {
    /// O, P and F of this layout for a shape.
    pub fn extents(self, shape: &[usize]) -> (usize, usize, usize) {
        let outer = usize::from(self.n_outer).min(shape.len());
        let split = (outer + usize::from(self.n_partition)).min(shape.len());
        let product = |dims: &[usize]| dims.iter().product::<usize>();
        (product(&shape[..outer]), product(&shape[outer..split]), product(&shape[split..]))
    }
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Graph { name: name.into(), ..Graph::default() }
    }

    /// Adds an input and returns its value.
    pub fn push_input(&mut self, name: impl Into<String>, ty: TensorType, role: InputRole) -> ValueId {
        let position = u32::try_from(self.inputs.len()).expect("fewer than 2^32 inputs");
        let value = self.push_value(ty, ValueDef::Input(position));
        self.inputs.push(GraphInput { value, name: name.into(), role, strides: None });
        value
    }

    /// Adds a node; its result types are inferred from the operands.
    ///
    /// # Errors
    /// The op's reason for not accepting the operands.
    pub fn push(&mut self, op: Op, operands: &[ValueId], locations: &[LocationId]) -> Result<NodeId, TypeError> {
        let operand_types: SmallVec<[TensorType; 4]> =
            operands.iter().map(|&operand| self.ty(operand).clone()).collect();
        let result_types = op.infer(&operand_types)?;
        Ok(self.push_unchecked(op, operands, result_types, locations))
    }

    /// Adds a node with result types as they are given and operands that need not exist yet. The
    /// verifier finds what is wrong with such a node.
    pub fn push_unchecked(
        &mut self,
        op: Op,
        operands: &[ValueId],
        result_types: impl IntoIterator<Item = TensorType>,
        locations: &[LocationId],
    ) -> NodeId {
        let node = NodeId(u32::try_from(self.nodes.len()).expect("fewer than 2^32 nodes"));
        let mut results = SmallVec::new();
        for (index, ty) in result_types.into_iter().enumerate() {
            let index = u32::try_from(index).expect("fewer than 2^32 results");
            results.push(self.push_value(ty, ValueDef::Result { node, index }));
        }
        let mut locations: SmallVec<[LocationId; 2]> = SmallVec::from_slice(locations);
        locations.sort_unstable();
        locations.dedup();
        self.nodes.push(Node { op, operands: SmallVec::from_slice(operands), results, locations });
        node
    }

    /// Adds a node with one result and returns that.
    ///
    /// # Errors
    /// As [`Graph::push`].
    pub fn push_value_of(
        &mut self,
        op: Op,
        operands: &[ValueId],
        locations: &[LocationId],
    ) -> Result<ValueId, TypeError> {
        let node = self.push(op, operands, locations)?;
        Ok(self.nodes[node.index()].results[0])
    }

    /// Adds an output.
    pub fn push_output(&mut self, value: ValueId) {
        self.outputs.push(GraphOutput { value: Some(value), strides: None, alias: None, description: String::new() });
    }

    /// Adds a location and returns its name.
    pub fn push_location(&mut self, location: Location) -> LocationId {
        let id = LocationId(u32::try_from(self.locations.len()).expect("fewer than 2^32 locations"));
        self.locations.push(location);
        id
    }

    /// Nodes in topological order with their names.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> + ExactSizeIterator {
        self.nodes.iter().enumerate().map(|(position, node)| (NodeId(position as u32), node))
    }

    /// The node of this name.
    pub fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.index()]
    }

    /// Number of nodes.
    pub fn n_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Number of values: inputs and results.
    pub fn n_values(&self) -> usize {
        self.values.len()
    }

    /// Type of a value.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.values[value.index()].ty
    }

    /// What defines a value.
    pub fn def(&self, value: ValueId) -> ValueDef {
        self.values[value.index()].def
    }

    /// The node that computes a value; `None` for inputs.
    pub fn producer(&self, value: ValueId) -> Option<(NodeId, &Node)> {
        match self.def(value) {
            ValueDef::Input(_) => None,
            ValueDef::Result { node, index: _ } => Some((node, self.node(node))),
        }
    }

    /// How many operands and outputs read each value, by value.
    pub fn use_counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.values.len()];
        let operands = self.nodes.iter().flat_map(|node| &node.operands);
        for value in operands.copied().chain(self.outputs.iter().filter_map(|output| output.value)) {
            counts[value.index()] += 1;
        }
        counts
    }

    /// An empty graph with the same name, locations and inputs; values of inputs keep their names.
    pub fn with_same_inputs(&self) -> Graph {
        let mut graph = Graph::new(self.name.clone());
        graph.locations = self.locations.clone();
        for input in &self.inputs {
            graph.push_input(input.name.clone(), self.ty(input.value).clone(), input.role);
            let last = graph.inputs.len() - 1;
            graph.inputs[last].strides = input.strides.clone();
        }
        graph
    }

    fn push_value(&mut self, ty: TensorType, def: ValueDef) -> ValueId {
        let value = ValueId(u32::try_from(self.values.len()).expect("fewer than 2^32 values"));
        self.values.push(ValueInfo { ty, def });
        value
    }
}
