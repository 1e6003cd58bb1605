//! Reductions and scans.

use ir::ops::{All, Any, Expand, Full, Mul, ReduceMax, ReduceMean, ReduceMin, ReduceSum, Reshape};
use ir::types::{Axes, TypeError};
use ir::{Dtype, Op, ValueId};

use super::builder::{Builder, Results, RuleEntry, Term};
use super::{casts, fold};
use crate::Numerics::{Exact, Reassoc};

/// Rules of reductions and scans, in order.
pub(super) const RULES: &[RuleEntry] = &[
    fold::FOLD,
    fold::OVER_NOTHING,
    casts::COMPUTE_IN_F32,
    ("reduce-unit-axes", Exact, unit_axes),
    ("reduce-reduce", Exact, reduce_reduce),
    ("sum-sum", Reassoc, sum_sum),
    ("reduce-below-reshape", Exact, below_reshape),
    ("select-of-repeated", Exact, select_of_repeated),
    ("sum-of-repeated", Reassoc, sum_of_repeated),
];

fn axes_of(op: &Op) -> Option<&Axes> {
    match op {
        Op::ReduceSum(ReduceSum { axes })
        | Op::ReduceMean(ReduceMean { axes })
        | Op::ReduceMax(ReduceMax { axes })
        | Op::ReduceMin(ReduceMin { axes })
        | Op::Any(Any { axes })
        | Op::All(All { axes }) => Some(axes),
        _ => None,
    }
}

fn with_axes(op: &Op, axes: Axes) -> Option<Op> {
    match op {
        Op::ReduceSum(_) => Some(ReduceSum { axes }.into()),
        Op::ReduceMean(_) => Some(ReduceMean { axes }.into()),
        Op::ReduceMax(_) => Some(ReduceMax { axes }.into()),
        Op::ReduceMin(_) => Some(ReduceMin { axes }.into()),
        Op::Any(_) => Some(Any { axes }.into()),
        Op::All(_) => Some(All { axes }.into()),
        _ => None,
    }
}

// sum(x, axes) == sum(x, those of more than one element), and the like; over none it is x
fn unit_axes(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Some(axes) = axes_of(&term.op) else { return Ok(None) };
    let shape = &builder.ty(term.operands[0]).shape;
    let wide: Axes = axes.iter().copied().filter(|&axis| shape[axis] != 1).collect();
    if wide.is_empty() {
        return Ok(Some(Results::from_slice(&term.operands)));
    }
    if wide.len() == axes.len() {
        return Ok(None);
    }
    let Some(op) = with_axes(&term.op, wide) else { return Ok(None) };
    builder.rewritten(op, &term.operands, &term.locations)
}

/// The reduction over the axes of both this one and the one below, which is of the same kind.
fn merged(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Some(inner_op) = builder.op_of(term.operands[0]) else { return Ok(None) };
    let (Some(outer), Some(inner)) = (axes_of(&term.op), axes_of(inner_op)) else { return Ok(None) };
    if inner_op.name() != term.op.name() {
        return Ok(None);
    }
    let mut axes: Axes = outer.iter().chain(inner).copied().collect();
    axes.sort_unstable();
    axes.dedup();
    let Some(op) = with_axes(&term.op, axes) else { return Ok(None) };
    let (source, locations) = (builder.operands_of(term.operands[0]), builder.absorb(term, &term.operands));
    builder.rewritten(op, &source, &locations)
}

// max(max(x, a), b) == max(x, a and b); also min, any, all
fn reduce_reduce(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    match &term.op {
        Op::ReduceMax(_) | Op::ReduceMin(_) | Op::Any(_) | Op::All(_) => merged(builder, term),
        _ => Ok(None),
    }
}

// sum(sum(x, a), b) == sum(x, a and b), and mean
fn sum_sum(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let has_order = builder.dtype(term.operands[0]) == Dtype::F32;
    match &term.op {
        Op::ReduceSum(_) | Op::ReduceMean(_) if has_order => merged(builder, term),
        _ => Ok(None),
    }
}

/// The operand of an expand without the axes over which it repeats and that are reduced, and how
/// often it repeats over them.
fn without_repeated(builder: &mut Builder<'_>, term: &Term) -> Result<Option<(ValueId, usize)>, TypeError> {
    let (Some(axes), Some(Op::Expand(_))) = (axes_of(&term.op).cloned(), builder.op_of(term.operands[0])) else {
        return Ok(None);
    };
    let source = builder.operands_of(term.operands[0])[0];
    let (from, mut shape) = (builder.ty(source).shape.clone(), builder.ty(term.operands[0]).shape.clone());
    let n_added = shape.len() - from.len();
    let mut n_repeats = 1;
    for &axis in &axes {
        if axis < n_added || from[axis - n_added] == 1 {
            n_repeats *= std::mem::replace(&mut shape[axis], 1);
        }
    }
    if n_repeats <= 1 {
        return Ok(None);
    }
    Ok(Some((builder.value(Expand { shape }, &[source], &term.locations)?, n_repeats)))
}

// max(expand(x)) == max(x) over axes that repeat; also min, any, all
fn select_of_repeated(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    if !matches!(term.op, Op::ReduceMax(_) | Op::ReduceMin(_) | Op::Any(_) | Op::All(_)) {
        return Ok(None);
    }
    let Some((once, _)) = without_repeated(builder, term)? else { return Ok(None) };
    let locations = builder.absorb(term, &term.operands);
    builder.rewritten(term.op.clone(), &[once], &locations)
}

// sum(expand(x)) == n * sum(x) over axes that repeat n times, mean(expand(x)) == mean(x)
fn sum_of_repeated(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    if !matches!(term.op, Op::ReduceSum(_) | Op::ReduceMean(_)) || builder.dtype(term.operands[0]) != Dtype::F32 {
        return Ok(None);
    }
    let Some((once, n_repeats)) = without_repeated(builder, term)? else { return Ok(None) };
    let locations = builder.absorb(term, &term.operands);
    let reduced = builder.value(term.op.clone(), &[once], &locations)?;
    if matches!(term.op, Op::ReduceMean(_)) {
        return Ok(Some(Results::from_elem(reduced, 1)));
    }
    let factor = builder.value(Full::scalar(n_repeats as f64, Dtype::F32), &[], &term.locations)?;
    builder.rewritten(Mul, &[reduced, factor], &locations)
}

// sum(reshape(x), last) == reshape(sum(x, last)) if the rows stay rows
fn below_reshape(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Some(axes), Some(Op::Reshape(_))) = (axes_of(&term.op), builder.op_of(term.operands[0])) else {
        return Ok(None);
    };
    let source = builder.operands_of(term.operands[0])[0];
    let (from, to) = (builder.ty(source).shape.clone(), builder.ty(term.operands[0]).shape.clone());
    if axes.as_slice() != [to.len() - 1] || from.last() != to.last() {
        return Ok(None);
    }
    let Some(op) = with_axes(&term.op, Axes::from_elem(from.len() - 1, 1)) else { return Ok(None) };
    let locations = builder.absorb(term, &term.operands);
    let result = builder.value(op, &[source], &locations)?;
    let mut shape = to;
    if let Some(last) = shape.last_mut() {
        *last = 1;
    }
    builder.rewritten(Reshape { shape }, &[result], &locations)
}
