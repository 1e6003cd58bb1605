//! Pointwise ops: identities, constant operands, operand order, and movement sunk below.
//!
//! Rules of class `exact` keep every bit, also of infinities, NaN and signed zeros.

mod algebra;
mod constants;
mod sink;

use ir::ops::{Cast, Expand, Full};
use ir::types::TypeError;
use ir::{Op, TensorType, ValueId};
use smallvec::SmallVec;

use super::builder::{Builder, Results, RuleEntry, Term};
use super::{casts, fold};
use crate::Numerics::{Exact, Reassoc};

/// The rule that makes the order of operands depend on structure alone.
pub(super) const OPERAND_ORDER: RuleEntry = ("operand-order", Exact, operand_order);

/// Rules of pointwise ops, in order.
pub(super) const RULES: &[RuleEntry] = &[
    fold::FOLD,
    ("cast-identity", Exact, casts::cast_identity),
    ("cast-cast", Exact, casts::cast_cast),
    ("cast-below-parts", Exact, casts::cast_below_parts),
    casts::COMPUTE_IN_F32,
    ("broadcast-operand", Exact, broadcast_operand),
    OPERAND_ORDER,
    ("compare-constant", Exact, constants::compare_constant),
    ("unary-unary", Exact, algebra::unary_unary),
    ("select-same", Exact, algebra::select_same),
    ("where-condition", Exact, algebra::where_condition),
    ("where-where", Exact, algebra::where_where),
    ("not-comparison", Exact, algebra::not_comparison),
    ("neutral-operand", Exact, constants::neutral_operand),
    ("add-zero", Reassoc, constants::add_zero),
    ("mul-minus-one", Exact, constants::mul_minus_one),
    ("pow-two", Exact, constants::pow_two),
    ("pow-constant", Reassoc, constants::pow_constant),
    ("div-one", Exact, constants::one_over),
    ("div-power-of-two", Exact, constants::div_power_of_two),
    ("div-constant", Reassoc, constants::div_constant),
    ("sub-constant", Exact, constants::sub_constant),
    ("max-max-constant", Exact, constants::extremum_constants),
    ("chain-constants", Reassoc, constants::chain_constants),
    ("mean-of-sum", Reassoc, constants::mean_of_sum),
    ("scalar-outward", Reassoc, constants::scalar_outward),
    ("signs", Exact, algebra::signs),
    ("neg-sub", Reassoc, algebra::neg_sub),
    ("reciprocal-sqrt", Reassoc, algebra::reciprocal_sqrt),
    ("div-sqrt", Reassoc, algebra::div_sqrt),
    ("div-broadcast", Reassoc, algebra::div_broadcast),
    ("sink-below-reshape", Exact, sink::below_reshape),
    ("sink-below-transpose", Exact, sink::below_transpose),
];

/// The two operands of a binary op.
fn pair(term: &Term) -> Option<(ValueId, ValueId)> {
    let [lhs, rhs] = term.operands.as_slice() else { return None };
    Some((*lhs, *rhs))
}

/// A value as the result of a rewrite.
fn same(value: ValueId) -> Result<Option<Results>, TypeError> {
    Ok(Some(Results::from_elem(value, 1)))
}

/// A rank-0 number of the element type of `like`.
fn number(builder: &mut Builder<'_>, value: f64, like: ValueId, term: &Term) -> Result<ValueId, TypeError> {
    builder.value(Full::scalar(value, builder.dtype(like)), &[], &term.locations)
}

// op(expand(x), y) == op(x, y), expanded where the result gets smaller; so too a view that only
// adds leading axes of size 1
fn broadcast_operand(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let mut operands = term.operands.clone();
    let mut locations = term.locations.clone();
    for operand in &mut operands {
        if only_broadcasts(builder, *operand) {
            locations = builder.absorb(term, &[*operand]);
            *operand = builder.operands_of(*operand)[0];
        } else if let Some(value) = scalar_of_uniform(builder, *operand) {
            *operand = builder.value(value, &[], &term.locations)?;
        }
    }
    if operands == term.operands {
        return Ok(None);
    }
    let types_of = |builder: &Builder<'_>, operands: &[ValueId]| -> SmallVec<[TensorType; 4]> {
        operands.iter().map(|&operand| builder.ty(operand).clone()).collect()
    };
    let wanted = term.op.infer(&types_of(builder, &term.operands))?[0].clone();
    let result = builder.value(term.op.clone(), &operands, &locations)?;
    if *builder.ty(result) == wanted {
        return same(result);
    }
    builder.rewritten(Expand { shape: wanted.shape }, &[result], &term.locations)
}

/// True for an expand, and for a reshape that only adds leading axes of size 1.
fn only_broadcasts(builder: &Builder<'_>, value: ValueId) -> bool {
    let is_reshape = match builder.op_of(value) {
        Some(Op::Expand(_)) => return true,
        Some(op) => matches!(op, Op::Reshape(_)),
        None => false,
    };
    is_reshape && {
        let (from, to) = (&builder.ty(builder.operands_of(value)[0]).shape, &builder.ty(value).shape);
        to.len() > from.len() && to[to.len() - from.len()..] == **from
    }
}

/// The rank-0 form of a uniform constant of higher rank.
fn scalar_of_uniform(builder: &Builder<'_>, value: ValueId) -> Option<Full> {
    let Some(Op::Full(full)) = builder.op_of(value) else { return None };
    (!full.shape.is_empty()).then(|| Full::scalar(full.value.get(), full.dtype))
}

// op(x, y) == op(y, x)
fn operand_order(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Some((lhs, rhs)) = pair(term) else { return Ok(None) };
    if !is_commutative(&term.op) || builder.operand_rank(lhs) <= builder.operand_rank(rhs) {
        return Ok(None);
    }
    builder.rewritten(term.op.clone(), &[rhs, lhs], &term.locations)
}

/// True where exchanging the operands keeps every bit.
pub(crate) fn is_commutative(op: &Op) -> bool {
    matches!(
        op,
        Op::Add(_)
            | Op::Mul(_)
            | Op::Maximum(_)
            | Op::Minimum(_)
            | Op::Eq(_)
            | Op::Ne(_)
            | Op::LogicalAnd(_)
            | Op::LogicalOr(_)
            | Op::LogicalXor(_)
    )
}

/// True for a cast, whose result has another element type than its operand.
fn is_cast(op: &Op) -> bool {
    matches!(op, Op::Cast(Cast { dtype: _ }))
}
