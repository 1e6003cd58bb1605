//! Movement sinks below pointwise ops, so that producers and consumers that compute stand next to
//! each other.

use ir::ops::{Reshape, Transpose};
use ir::types::{Axes, Shape, TypeError};
use ir::{Op, ValueId};

use super::is_cast;
use crate::canonicalize::builder::{Builder, Results, Term};

// f(reshape(x), s) == reshape(f(x, s)), also with several reshapes and rows that fit both shapes
pub(super) fn below_reshape(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let mut operands = term.operands.clone();
    let mut moved: Option<(Shape, Shape)> = None;
    for operand in &mut operands {
        if builder.ty(*operand).rank() == 0 {
            continue;
        }
        if let Some(Op::Reshape(_)) = builder.op_of(*operand) {
            let source = builder.operands_of(*operand)[0];
            let shapes = (builder.ty(source).shape.clone(), builder.ty(*operand).shape.clone());
            moved = Some(match moved {
                None => shapes,
                Some(before) => match joined(&before, &shapes) {
                    Some(joined) => joined,
                    None => return Ok(None),
                },
            });
            *operand = source;
        }
    }
    let Some((from, to)) = moved else { return Ok(None) };
    let fits = term
        .operands
        .iter()
        .zip(&operands)
        .all(|(&before, &after)| before != after || fits_both(&builder.ty(before).shape, &from, &to));
    if !fits {
        return Ok(None);
    }
    let locations = builder.absorb(term, &term.operands);
    let result = builder.value(term.op.clone(), &operands, &locations)?;
    builder.rewritten(Reshape { shape: to }, &[result], &locations)
}

/// The shapes before and after that two reshapes have in common once their values are broadcast
/// against each other: they may differ in the last dimension, which both reshapes keep.
fn joined(lhs: &(Shape, Shape), rhs: &(Shape, Shape)) -> Option<(Shape, Shape)> {
    if lhs == rhs {
        return Some(lhs.clone());
    }
    let (lhs_from, lhs_lead_from) = lhs.0.split_last()?;
    let (lhs_to, lhs_lead_to) = lhs.1.split_last()?;
    let (rhs_from, rhs_lead_from) = rhs.0.split_last()?;
    let (rhs_to, rhs_lead_to) = rhs.1.split_last()?;
    let keeps_last = lhs_from == lhs_to && rhs_from == rhs_to;
    let same_lead = lhs_lead_from == rhs_lead_from && lhs_lead_to == rhs_lead_to;
    let broadcasts = *lhs_from == 1 || *rhs_from == 1;
    let lhs_is_narrow = *lhs_from == 1;
    (keeps_last && same_lead && broadcasts).then_some(if lhs_is_narrow { rhs.clone() } else { lhs.clone() })
}

/// True for a scalar, or a vector along a last axis that both shapes have.
fn fits_both(shape: &[usize], from: &[usize], to: &[usize]) -> bool {
    match shape {
        [] => true,
        [length] => from.last() == to.last() && (*length == 1 || from.last() == Some(length)),
        _ => false,
    }
}

// f(transpose(x, p), s) == transpose(f(x, s), p), also with several transposes by the same p
pub(super) fn below_transpose(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let mut operands = term.operands.clone();
    let mut common: Option<Axes> = None;
    for operand in &mut operands {
        if builder.ty(*operand).rank() == 0 {
            continue;
        }
        let Some(Op::Transpose(transpose)) = builder.op_of(*operand) else { return Ok(None) };
        let perm = transpose.perm.clone();
        // A transpose that others read too stays, and this op reads it.
        if common.as_ref().is_some_and(|common| *common != perm) || !may_sink(builder, *operand, &term.op) {
            return Ok(None);
        }
        common = Some(perm);
        *operand = builder.operands_of(*operand)[0];
    }
    let Some(perm) = common else { return Ok(None) };
    let locations = builder.absorb(term, &term.operands);
    let result = builder.value(term.op.clone(), &operands, &locations)?;
    builder.rewritten(Transpose { perm }, &[result], &locations)
}

fn may_sink(builder: &Builder<'_>, transposed: ValueId, op: &Op) -> bool {
    builder.is_used_once(transposed) || is_cast(op)
}
