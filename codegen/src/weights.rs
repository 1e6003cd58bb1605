//! Device layouts of weights: what the host should hand over transposed.
//!
//! A linear layer keeps its weight as [out, in], and the PE wants the contraction axis, `in`, on
//! partitions. Transposing on chip costs PE and DVE time in every call; the host does it once per
//! version of a weight. The layout stands as strides in `tensor_map.json`.

use ir::graph::InputRole;
use ir::{Graph, Node, Op, ValueId};
use smallvec::smallvec;

/// Asks for the transposed layout of every static matrix that only contractions read, and all of
/// them along its columns.
pub(crate) fn request_layouts(graph: &mut Graph) {
    let mut layouts = Vec::new();
    let readers = readers(graph);
    for (position, input) in graph.inputs.iter().enumerate() {
        let shape = &graph.ty(input.value).shape;
        let [n_rows, n_columns] = shape[..] else { continue };
        let is_updated = graph.outputs.iter().any(|output| output.alias == Some(position as u32));
        let is_packed_matrix = input.strides.is_none() && n_rows > 1 && n_columns > 1;
        if input.role == InputRole::Static && is_packed_matrix && !is_updated && readers[input.value.index()] {
            layouts.push((position, n_rows as i64));
        }
    }
    for (position, n_rows) in layouts {
        graph.inputs[position].strides = Some(smallvec![1, n_rows]);
    }
}

/// By value: true where something reads it, and everything that does is a contraction along its last
/// axis, or a cast whose readers are.
fn readers(graph: &Graph) -> Vec<bool> {
    let mut is_read = vec![false; graph.n_values()];
    let mut fits = vec![true; graph.n_values()];
    for value in graph.outputs.iter().filter_map(|output| output.value) {
        fits[value.index()] = false;
    }
    // Readers come after what they read.
    let nodes: Vec<&Node> = graph.nodes().map(|(_, node)| node).collect();
    for node in nodes.into_iter().rev() {
        for (position, operand) in node.operands.iter().enumerate() {
            let contracts = match &node.op {
                Op::Cast(_) => is_read[node.results[0].index()] && fits[node.results[0].index()],
                _ => contracts_columns(graph, node, position),
            };
            fits[operand.index()] &= contracts;
            is_read[operand.index()] = true;
        }
    }
    is_read.iter().zip(&fits).map(|(is_read, fits)| *is_read && *fits).collect()
}

/// True where a node is a contraction along the columns of a matrix operand.
fn contracts_columns(graph: &Graph, node: &Node, position: usize) -> bool {
    let (transpose_lhs, transpose_rhs) = match &node.op {
        Op::Matmul(op) => (op.transpose_lhs, op.transpose_rhs),
        Op::FusedMatmul(op) => (op.transpose_lhs, op.transpose_rhs),
        _ => return false,
    };
    let is_matrix = |value: ValueId| graph.ty(value).rank() == 2;
    let columns = match position {
        0 => !transpose_lhs,
        1 => transpose_rhs,
        _ => false,
    };
    columns && is_matrix(node.operands[position])
}

#[cfg(test)]
mod tests {
    use ir::graph::InputRole;
    use ir::ops::{Cast, Matmul, Neg};
    use ir::{Dtype, Graph, TensorType, ValueId};

    use super::request_layouts;

    /// x[8, 16] times the transpose of w[32, 16], with w read through `between`.
    fn strides_of_weight(role: InputRole, between: fn(&mut Graph, ValueId) -> ValueId) -> Option<Vec<i64>> {
        let mut graph = Graph::new("linear");
        let x = graph.push_input("x", TensorType::new(Dtype::F32, [8, 16]), InputRole::Dynamic);
        let w = graph.push_input("w", TensorType::new(Dtype::Bf16, [32, 16]), role);
        let wide = between(&mut graph, w);
        let op = Matmul { transpose_lhs: false, transpose_rhs: true, dtype: Dtype::F32 };
        let product = graph.push_value_of(op.into(), &[x, wide], &[]).unwrap();
        graph.push_output(product);
        request_layouts(&mut graph);
        assert_eq!(graph.inputs[0].strides, None);
        graph.inputs[1].strides.as_ref().map(|strides| strides.to_vec())
    }

    fn cast(graph: &mut Graph, value: ValueId) -> ValueId {
        graph.push_value_of(Cast { dtype: Dtype::F32 }.into(), &[value], &[]).unwrap()
    }

    #[test]
    fn weights_of_linear_layers_come_transposed() {
        assert_eq!(strides_of_weight(InputRole::Static, cast), Some(vec![1, 32]));
        assert_eq!(strides_of_weight(InputRole::Dynamic, cast), None);
    }

    #[test]
    fn a_weight_that_something_else_reads_stays_as_it_is() {
        let also_returned = |graph: &mut Graph, value: ValueId| {
            let wide = cast(graph, value);
            let negated = graph.push_value_of(Neg.into(), &[wide], &[]).unwrap();
            graph.push_output(negated);
            wide
        };
        assert_eq!(strides_of_weight(InputRole::Static, also_returned), None);
    }
}
