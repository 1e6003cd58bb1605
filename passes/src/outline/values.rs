//! Which values are a function's own business, and who reads a value.

use ir::graph::ValueDef;
use ir::{Graph, NodeId, Op, ValueId};

/// Constants up to this size stand in functions, where rewrites see them; larger ones are weights.
const MOST_CONSTANT_BYTES: usize = 64 << 10;

/// What is known of a graph's values.
pub(super) struct Values {
    /// By node: computed from no input and no large constant.
    is_fixed: Vec<bool>,
    /// Nodes that are neither, in order.
    pub sequence: Vec<NodeId>,
}

impl Values {
    pub fn of(graph: &Graph) -> Values {
        let mut values =
            Values { is_fixed: vec![false; graph.n_nodes()], sequence: Vec::with_capacity(graph.n_nodes()) };
        for (id, node) in graph.nodes() {
            let is_weight = matches!(&node.op, Op::Constant(constant) if constant.data.len() > MOST_CONSTANT_BYTES);
            let is_fixed =
                !is_weight && node.operands.iter().all(|&operand| values.fixed_node(graph, operand).is_some());
            values.is_fixed[id.index()] = is_fixed;
            if !is_weight && !is_fixed {
                values.sequence.push(id);
            }
        }
        values
    }

    /// The node of a value that depends on no input.
    pub fn fixed_node(&self, graph: &Graph, value: ValueId) -> Option<NodeId> {
        match graph.def(value) {
            ValueDef::Result { node, index: _ } => self.is_fixed[node.index()].then_some(node),
            ValueDef::Input(_) => None,
        }
    }
}
