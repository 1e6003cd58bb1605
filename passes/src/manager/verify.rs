//! What the verifier checks of a graph or program in each phase.
//!
//! What every graph owes is checked by `ir::verify`; here stands what the passes that establish later
//! phases promise beyond that.

use ir::ops::OpClass;
use ir::program::{self, ProgramPhase};
use ir::verify::{GraphPhase, verify};
use ir::{Dtype, Graph, Op, Program, TensorType};
use smallvec::SmallVec;

use super::Phase;
use crate::allocate::check_allocation;
use crate::synchronize::check_synchronization;

/// Everything that keeps the program from being in the phase.
pub(super) fn program_faults(program: &Program, phase: Phase) -> Vec<String> {
    let expected = match phase {
        Phase::Imported | Phase::Canonical | Phase::Fused | Phase::Placed | Phase::Lowered => ProgramPhase::Lowered,
        Phase::Scheduled => ProgramPhase::Scheduled,
        Phase::Allocated => ProgramPhase::Allocated,
        Phase::Synchronized => ProgramPhase::Synchronized,
    };
    if program.phase != expected {
        return vec![format!("the program says that it is {}", program.phase)];
    }
    let mut faults = program::verify::verify(program);
    // The proofs follow operands without looking whether they exist.
    if faults.is_empty() && expected >= ProgramPhase::Allocated {
        faults.extend(check_allocation(program));
    }
    if faults.is_empty() && expected == ProgramPhase::Synchronized {
        faults.extend(check_synchronization(program));
    }
    faults.iter().map(ToString::to_string).collect()
}

/// Everything that keeps the graph from being in the phase, with the printed lines.
pub(super) fn graph_faults(graph: &Graph, phase: Phase) -> Vec<String> {
    // What the later checks read must be in range.
    if let Err(faults) = verify(graph, graph_phase(phase)) {
        return faults.iter().map(ToString::to_string).collect();
    }
    if phase >= Phase::Canonical { canonical_faults(graph) } else { Vec::new() }
}

/// The phase of a graph that a unit in `phase` is, or was before it became a program.
fn graph_phase(phase: Phase) -> GraphPhase {
    match phase {
        Phase::Imported => GraphPhase::Imported,
        Phase::Canonical => GraphPhase::Canonical,
        Phase::Fused => GraphPhase::Fused,
        Phase::Placed | Phase::Lowered | Phase::Scheduled | Phase::Allocated | Phase::Synchronized => {
            GraphPhase::Placed
        }
    }
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
