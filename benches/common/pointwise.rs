//! The random graph of pointwise nodes with shared values.

use ir::graph::InputRole;
use ir::ops::{Add, Maximum, Mul, Op, Relu, Sigmoid, Sub, Tanh};
use ir::{Dtype, Graph, TensorType, ValueId};

/// Values that a node of the random graph chooses its operands from, and its outputs.
const WINDOW: usize = 40;

/// The sequence of numbers that random graphs are made from.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

/// Pointwise nodes on `f32[128, 256]` with shared values: each takes one or two of the values
/// before it, and those that nothing reads are outputs, as the last are.
pub fn pointwise_dag(n_nodes: usize) -> Graph {
    let mut random = Random(1);
    let mut graph = Graph::new(format!("dag_{n_nodes}"));
    let ty = TensorType { dtype: Dtype::F32, shape: [128, 256].into_iter().collect() };
    let mut values: Vec<ValueId> =
        (0..4).map(|idx| graph.push_input(format!("x{idx}"), ty.clone(), InputRole::Dynamic)).collect();
    let n_inputs = values.len();
    for _ in 0..n_nodes {
        let first = values.len().saturating_sub(WINDOW);
        let mut operand = || values[first + random.below(values.len() - first)];
        let (lhs, rhs) = (operand(), operand());
        let value = match random.below(7) {
            0 => graph.push_value_of(Op::from(Add), &[lhs, rhs], &[]),
            1 => graph.push_value_of(Op::from(Mul), &[lhs, rhs], &[]),
            2 => graph.push_value_of(Op::from(Sub), &[lhs, rhs], &[]),
            3 => graph.push_value_of(Op::from(Maximum), &[lhs, rhs], &[]),
            4 => graph.push_value_of(Op::from(Relu), &[lhs], &[]),
            5 => graph.push_value_of(Op::from(Tanh), &[lhs], &[]),
            _ => graph.push_value_of(Op::from(Sigmoid), &[lhs], &[]),
        };
        values.push(value.expect("all values have one type"));
    }
    let n_uses = graph.use_counts();
    let last = values.len() - WINDOW.min(values.len());
    for (position, &value) in values.iter().enumerate().skip(n_inputs) {
        if position >= last || n_uses[value.index()] == 0 {
            graph.push_output(value);
        }
    }
    graph
}
