//! Brings a graph into canonical form, so that equal computations look equal.
//!
//! Linear passes, repeated until nothing changes: dead code and common subexpressions go, constants
//! are folded, views and casts that do nothing vanish, the compute type of 16-bit floats is made
//! explicit, movement sinks below pointwise ops, transposes become flags of a matmul. Operand order
//! is fixed by structure. Sums and products are not flattened beyond their constants: fused
//! patterns need the pairs that the model wrote.

mod builder;
mod casts;
mod contraction;
mod fold;
mod movement;
mod pointwise;
mod reduction;

use ir::ops::OpClass;
use ir::types::TypeError;
use ir::{Graph, Op, ValueId};
use smallvec::SmallVec;

use builder::RuleEntry;
pub(crate) use builder::{Builder, Locations, Results, merge_locations};
pub(crate) use casts::holds_all;
pub(crate) use pointwise::is_commutative;

use crate::manager::{FnPass, Fuel, Pass, PassContext, PassError, Phase, Statistics};
use crate::numerics::Numerics;

/// Name of this pass.
pub const NAME: &str = "canonicalize";

/// Rounds after which a graph that still changes is left as it is: right, but perhaps not as plain
/// as more rounds would make it.
const MAX_ROUNDS: usize = 16;

/// The statistic that says that a limit of rounds ended the work.
pub const ROUND_LIMIT: &str = "round-limit";

/// The graph in canonical form and how often each rule fired.
///
/// # Errors
/// A fault of the compiler: a rule made an ill-typed node.
pub fn canonicalize(graph: &Graph, numerics: Numerics) -> Result<(Graph, Statistics), PassError> {
    let mut context = PassContext::default();
    let graph = canonicalize_with(graph, numerics, &mut context)?;
    Ok((graph, context.statistics))
}

/// As [`canonicalize`], spending the context's fuel and counting into its statistics.
///
/// # Errors
/// As [`canonicalize`].
pub fn canonicalize_with(graph: &Graph, numerics: Numerics, context: &mut PassContext) -> Result<Graph, PassError> {
    settle(graph, numerics, context, MAX_ROUNDS)
}

/// Rewrites until nothing changes, for at most so many rounds.
fn settle(graph: &Graph, numerics: Numerics, context: &mut PassContext, max_rounds: usize) -> Result<Graph, PassError> {
    let n_nodes_before = graph.n_nodes() as u64;
    let mut current = one_round(graph, numerics, context)?;
    for n_rounds in 1.. {
        if n_rounds == max_rounds {
            context.statistics.add(ROUND_LIMIT, 1);
            break;
        }
        let (next, n_rewrites) = (one_round(&current.0, numerics, context)?, current.1);
        let settled = n_rewrites == 0 && next.1 == 0 || next.0 == current.0;
        current = next;
        if settled {
            break;
        }
    }
    context.statistics.add("nodes_before", n_nodes_before);
    context.statistics.add("nodes_after", current.0.n_nodes() as u64);
    Ok(current.0)
}

/// This pass for a pass list.
pub fn pass(numerics: Numerics) -> impl Pass<Graph> {
    FnPass {
        name: NAME,
        establishes: Phase::Canonical,
        run: move |graph: Graph, context: &mut PassContext| canonicalize_with(&graph, numerics, context),
    }
}

fn one_round(graph: &Graph, numerics: Numerics, context: &mut PassContext) -> Result<(Graph, u64), PassError> {
    let PassContext { fuel, statistics } = context;
    rebuild(graph, numerics, fuel, statistics)
        .map_err(|error| PassError::Internal { pass: NAME, message: error.message })
}

/// The graph with every node emitted anew, and the number of rewrites.
pub(crate) fn rebuild(
    graph: &Graph,
    numerics: Numerics,
    fuel: &mut Fuel,
    statistics: &mut Statistics,
) -> Result<(Graph, u64), TypeError> {
    let mut builder = Builder::new(graph, numerics, families, fuel, statistics);
    let n_uses = graph.use_counts();
    let mut renamed: Vec<Option<ValueId>> = vec![None; graph.n_values()];
    for (position, input) in graph.inputs.iter().enumerate() {
        let value = builder.input(position);
        renamed[input.value.index()] = Some(value);
        builder.add_uses(value, n_uses[input.value.index()]);
    }
    for (_, node) in graph.nodes() {
        if node.results.iter().all(|result| n_uses[result.index()] == 0) {
            continue;
        }
        let operands: SmallVec<[ValueId; 4]> =
            node.operands.iter().filter_map(|operand| renamed[operand.index()]).collect();
        let results = builder.emit(node.op.clone(), &operands, &node.locations)?;
        for (&old, &new) in node.results.iter().zip(&results) {
            builder.add_uses(new, n_uses[old.index()]);
            renamed[old.index()] = Some(new);
        }
    }
    let mut outputs = graph.outputs.clone();
    for output in &mut outputs {
        output.value = output.value.and_then(|value| renamed[value.index()]);
    }
    let n_rewrites = builder.n_rewrites();
    Ok((builder.finish(outputs)?, n_rewrites))
}

/// The rules that may apply to an op, in the order in which they are tried.
fn families(op: &Op) -> &'static [RuleEntry] {
    match op.class() {
        OpClass::Pointwise => pointwise::RULES,
        OpClass::Reduction | OpClass::Scan => reduction::RULES,
        OpClass::Movement => movement::RULES,
        OpClass::Contraction => contraction::RULES,
        OpClass::Indexing => fold::RULES,
        OpClass::Creation => fold::CREATION_RULES,
        OpClass::Fused => casts::FUSED_RULES,
    }
}

/// The one rule that nodes in canonical form still need when they are emitted anew.
pub(crate) fn operand_order_only(op: &Op) -> &'static [RuleEntry] {
    match op.class() {
        OpClass::Pointwise => &[pointwise::OPERAND_ORDER],
        OpClass::Reduction
        | OpClass::Scan
        | OpClass::Movement
        | OpClass::Contraction
        | OpClass::Indexing
        | OpClass::Creation
        | OpClass::Fused => &[],
    }
}

#[cfg(test)]
mod tests;
