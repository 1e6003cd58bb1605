//! What the verifier checks of a graph in each phase.
//!
//! Types, order of definitions and arity are checked for every phase; later phases add what the
//! passes that establish them promise.

use ir::ops::OpClass;
use ir::{Dtype, Graph, Op, TensorType};
use smallvec::SmallVec;

use super::Phase;

/// Everything that keeps the graph from being in the phase.
pub(super) fn graph_faults(graph: &Graph, phase: Phase) -> Vec<String> {
    let mut faults = base_faults(graph);
    if phase >= Phase::Canonical {
        faults.extend(canonical_faults(graph));
    }
    if phase >= Phase::Placed && graph.layouts.len() != graph.n_values() {
        faults.push(format!("{} values have {} layouts", graph.n_values(), graph.layouts.len()));
    }
    faults
}

/// Canonical graphs compute no small floats, and hold no dead nodes and no views that do nothing.
fn canonical_faults(graph: &Graph) -> Vec<String> {
    let mut faults = Vec::new();
    let n_uses = graph.use_counts();
    for (id, node) in graph.nodes() {
        let types: SmallVec<[&TensorType; 4]> = node.operands.iter().map(|&operand| graph.ty(operand)).collect();
        let name = node.op.name();
        if node.results.iter().all(|result| n_uses[result.index()] == 0) {
            faults.push(format!("node {} (`{name}`) has no user", id.index()));
        }
        let is_small = |ty: &&TensorType| ty.dtype.is_float() && ty.dtype.size_bytes() < Dtype::F32.size_bytes();
        let computes = match node.op.class() {
            OpClass::Pointwise => !matches!(node.op, Op::Cast(_)),
            OpClass::Reduction | OpClass::Scan | OpClass::Fused => true,
            OpClass::Movement | OpClass::Indexing | OpClass::Creation | OpClass::Contraction => false,
        };
        if let Some(ty) = types.iter().copied().find(is_small).filter(|_| computes) {
            faults.push(format!("node {} (`{name}`) computes with {ty}", id.index()));
        }
        let is_view = matches!(node.op, Op::Reshape(_) | Op::Expand(_) | Op::Cast(_));
        if is_view && *types[0] == *graph.ty(node.results[0]) {
            faults.push(format!("node {} (`{name}`) does nothing", id.index()));
        }
    }
    faults
}

/// Types agree with what each op infers, and operands are defined before they are used.
fn base_faults(graph: &Graph) -> Vec<String> {
    let mut faults = Vec::new();
    for (id, node) in graph.nodes() {
        let name = node.op.name();
        let types: SmallVec<[TensorType; 4]> = node.operands.iter().map(|&operand| graph.ty(operand).clone()).collect();
        let declared: SmallVec<[TensorType; 1]> = node.results.iter().map(|&result| graph.ty(result).clone()).collect();
        match node.op.infer(&types) {
            Err(error) => faults.push(format!("node {} (`{name}`): {error}", id.index())),
            Ok(inferred) if inferred != declared => {
                faults.push(format!("node {} (`{name}`) has results {declared:?}, not {inferred:?}", id.index()));
            }
            Ok(_) => {}
        }
        let is_late = |operand: &ir::ValueId| graph.producer(*operand).is_some_and(|(producer, _)| producer >= id);
        if let Some(operand) = node.operands.iter().find(|operand| is_late(operand)) {
            faults.push(format!("node {} (`{name}`) reads value {} before it is defined", id.index(), operand.index()));
        }
    }
    faults
}
