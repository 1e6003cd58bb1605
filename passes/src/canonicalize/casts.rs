//! Casts, and the compute type of small floats made explicit.

use ir::ops::{Cast, OpClass};
use ir::types::TypeError;
use ir::{Dtype, Op, TensorType, ValueId};
use smallvec::SmallVec;

use super::builder::{Builder, Results, RuleEntry, Term};
use super::movement;
use crate::Numerics;

/// The rule of every op that computes with floats.
pub(super) const COMPUTE_IN_F32: RuleEntry = ("compute-in-f32", Numerics::Exact, compute_in_f32);

/// Rules of fused ops over rows.
pub(super) const FUSED_RULES: &[RuleEntry] =
    &[COMPUTE_IN_F32, ("sink-row-op-below-reshape", Numerics::Exact, movement::sink_row_op_below_reshape)];

/// A slice that takes less than one element of this many is cast on its own.
const MAX_SLICED_RATIO: usize = 4;

/// Depth to which the operands of a value are searched for what it can hold.
const MAX_DEPTH: usize = 8;

/// Floats whose arithmetic is done in f32 and rounded once.
fn is_small_float(dtype: Dtype) -> bool {
    dtype.is_float() && dtype.size_bytes() < Dtype::F32.size_bytes()
}

// op(x: bf16) == cast<bf16>(op(cast<f32>(x)))
pub(super) fn compute_in_f32(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let is_small = |operand: &ValueId| is_small_float(builder.dtype(*operand));
    if matches!(term.op, Op::Cast(_)) || !term.operands.iter().any(is_small) {
        return Ok(None);
    }
    let types: SmallVec<[TensorType; 4]> = term.operands.iter().map(|&operand| builder.ty(operand).clone()).collect();
    let narrow = term.op.infer(&types)?;
    let mut operands = term.operands.clone();
    for operand in &mut operands {
        if is_small_float(builder.dtype(*operand)) {
            *operand = builder.value(Cast { dtype: Dtype::F32 }, &[*operand], &term.locations)?;
        }
    }
    let mut results = builder.emit(term.op.clone(), &operands, &term.locations)?;
    for (result, ty) in results.iter_mut().zip(&narrow) {
        *result = builder.value(Cast { dtype: ty.dtype }, &[*result], &term.locations)?;
    }
    Ok(Some(results))
}

// cast<t>(x: t) == x
pub(super) fn cast_identity(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Op::Cast(cast) = &term.op else { return Ok(None) };
    let operand = term.operands[0];
    Ok((builder.dtype(operand) == cast.dtype).then(|| Results::from_elem(operand, 1)))
}

// cast<t2>(cast<t1>(x)) == cast<t2>(x) if t1 holds every value of x
pub(super) fn cast_cast(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Cast(outer), Some(Op::Cast(inner))) = (&term.op, builder.op_of(term.operands[0])) else { return Ok(None) };
    let (outer, middle) = (outer.dtype, inner.dtype);
    let Some(source) = builder.operand_of(term.operands[0]) else { return Ok(None) };
    if !holds_all(middle, builder.dtype(source)) && !is_held(builder, source, middle, MAX_DEPTH) {
        return Ok(None);
    }
    let locations = builder.absorb(term, &term.operands);
    builder.rewritten(Cast { dtype: outer }, &[source], &locations)
}

// cast<f32>(slice(x)) == slice(cast<f32>(x)), and of concat, where casts may meet
pub(super) fn cast_below_parts(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Cast(cast), Some(moved)) = (&term.op, builder.op_of(term.operands[0])) else { return Ok(None) };
    let (from, to) = (builder.dtype(term.operands[0]), cast.dtype);
    if !(from.is_float() && to.is_float() && holds_all(to, from)) {
        return Ok(None);
    }
    let parts = builder.operands_of(term.operands[0]);
    // Of a table only the rows that are taken should be widened.
    let keeps_most = builder.ty(parts[0]).n_elements() <= MAX_SLICED_RATIO * builder.ty(term.operands[0]).n_elements();
    let is_computed = builder.op_of(parts[0]).is_some_and(|op| op.class() != OpClass::Indexing);
    let applies = matches!(moved, Op::Concat(_)) || matches!(moved, Op::Slice(_)) && keeps_most && is_computed;
    if !applies {
        return Ok(None);
    }
    let (moved, locations) = (moved.clone(), builder.absorb(term, &term.operands));
    let mut wide: SmallVec<[ValueId; 4]> = SmallVec::new();
    for part in parts {
        wide.push(builder.value(Cast { dtype: to }, &[part], &term.locations)?);
    }
    builder.rewritten(moved, &wide, &locations)
}

/// True when every value of `narrow` is one of `wide`.
pub(crate) fn holds_all(wide: Dtype, narrow: Dtype) -> bool {
    use Dtype::{Bf16, Bool, F8E4m3, F8E5m2, F16, F32, F64, I8, I16, I32, I64, U8};
    match narrow {
        Bool => true,
        F64 => wide == F64,
        F32 => matches!(wide, F32 | F64),
        Bf16 => matches!(wide, Bf16 | F32 | F64),
        F16 => matches!(wide, F16 | F32 | F64),
        F8E4m3 => matches!(wide, F8E4m3 | Bf16 | F16 | F32 | F64),
        F8E5m2 => matches!(wide, F8E5m2 | Bf16 | F16 | F32 | F64),
        I64 => wide == I64,
        I32 => matches!(wide, I32 | I64 | F64),
        I16 => matches!(wide, I16 | I32 | I64 | F32 | F64),
        I8 => matches!(wide, I8 | I16 | I32 | I64 | Bf16 | F16 | F32 | F64),
        U8 => matches!(wide, U8 | I16 | I32 | I64 | Bf16 | F16 | F32 | F64),
    }
}

/// True when `value` can only hold numbers of `dtype`, because it only selects among such.
fn is_held(builder: &Builder<'_>, value: ValueId, dtype: Dtype, depth: usize) -> bool {
    if depth == 0 || !builder.dtype(value).is_float() {
        return false;
    }
    if let Some(number) = builder.uniform(value) {
        return ir::reference::round_float(dtype, number).to_bits() == number.to_bits();
    }
    let Some(op) = builder.op_of(value) else { return holds_all(dtype, builder.dtype(value)) };
    let operands = builder.operands_of(value);
    if matches!(op, Op::Cast(_)) {
        return holds_all(dtype, builder.dtype(operands[0]));
    }
    let selected = if matches!(op, Op::Where(_)) { &operands[1..] } else { &operands[..] };
    only_selects(op) && selected.iter().all(|&operand| is_held(builder, operand, dtype, depth - 1))
}

/// True for ops whose float results are elements of their operands up to the sign, or zero.
fn only_selects(op: &Op) -> bool {
    matches!(
        op,
        Op::Where(_)
            | Op::Neg(_)
            | Op::Abs(_)
            | Op::Relu(_)
            | Op::Maximum(_)
            | Op::Minimum(_)
            | Op::ReduceMax(_)
            | Op::ReduceMin(_)
            | Op::Reshape(_)
            | Op::Transpose(_)
            | Op::Expand(_)
            | Op::Slice(_)
            | Op::Concat(_)
            | Op::Relayout(_)
    )
}
