//! Pointwise ops over pointwise ops.

use ir::ops::{Abs, Add, Eq, Expand, Mul, Ne, Neg, Reciprocal, Rsqrt, Sqrt, Sub, Where};
use ir::types::TypeError;
use ir::{Op, ValueId};

use super::constants::is_division;
use super::{pair, same};
use crate::canonicalize::builder::{Builder, Results, Term};

// neg(neg x) == x, not(not x) == x, abs(neg x) == abs(x), abs(abs x) == abs(x), relu(relu x) == relu(x)
pub(super) fn unary_unary(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let [operand] = *term.operands.as_slice() else { return Ok(None) };
    let (Some(inner_op), Some(inner)) = (builder.op_of(operand), builder.operand_of(operand)) else { return Ok(None) };
    match (&term.op, inner_op) {
        (Op::Neg(_), Op::Neg(_)) | (Op::LogicalNot(_), Op::LogicalNot(_)) => same(inner),
        (Op::Abs(_), Op::Abs(_)) | (Op::Relu(_), Op::Relu(_)) => same(operand),
        (Op::Abs(_), Op::Neg(_)) => {
            let locations = builder.absorb(term, &[operand]);
            builder.rewritten(Abs, &[inner], &locations)
        }
        (_, _) => Ok(None),
    }
}

// max(x, x) == x, min(x, x) == x, where(c, x, x) == x
pub(super) fn select_same(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let chosen = match (&term.op, term.operands.as_slice()) {
        (Op::Maximum(_) | Op::Minimum(_), &[lhs, rhs]) if lhs == rhs => lhs,
        (Op::LogicalAnd(_) | Op::LogicalOr(_), &[lhs, rhs]) if lhs == rhs => lhs,
        (Op::Where(_), &[condition, chosen, other]) if chosen == other => {
            return expanded(builder, chosen, &[condition], term);
        }
        (_, _) => return Ok(None),
    };
    same(chosen)
}

// where(not c, x, y) == where(c, y, x), where(true, x, y) == x
pub(super) fn where_condition(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Where(_), &[condition, on_true, on_false]) = (&term.op, term.operands.as_slice()) else { return Ok(None) };
    if let Some(holds) = builder.constant(condition).and_then(|constant| constant.uniform_bool()) {
        let (chosen, other) = if holds { (on_true, on_false) } else { (on_false, on_true) };
        return expanded(builder, chosen, &[condition, other], term);
    }
    let (Some(Op::LogicalNot(_)), Some(inner)) = (builder.op_of(condition), builder.operand_of(condition)) else {
        return Ok(None);
    };
    let locations = builder.absorb(term, &[condition]);
    builder.rewritten(Where, &[inner, on_false, on_true], &locations)
}

// where(c, where(c, x, y), z) == where(c, x, z), where(c, x, where(c, y, z)) == where(c, x, z)
pub(super) fn where_where(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Where(_), &[condition, on_true, on_false]) = (&term.op, term.operands.as_slice()) else { return Ok(None) };
    let under_same = |builder: &Builder<'_>, value: ValueId, branch: usize| {
        let operands = builder.operands_of(value);
        let is_same = matches!(builder.op_of(value), Some(Op::Where(_))) && operands[0] == condition;
        // A branch of a smaller shape would change the shape of the whole.
        (is_same && builder.ty(operands[branch]) == builder.ty(value)).then(|| operands[branch])
    };
    let (inner_true, inner_false) = (under_same(builder, on_true, 1), under_same(builder, on_false, 2));
    if inner_true.is_none() && inner_false.is_none() {
        return Ok(None);
    }
    let locations = builder.absorb(term, &[on_true, on_false]);
    let branches = [condition, inner_true.unwrap_or(on_true), inner_false.unwrap_or(on_false)];
    builder.rewritten(Where, &branches, &locations)
}

/// `value` in the shape that it and `others` broadcast to.
fn expanded(
    builder: &mut Builder<'_>,
    value: ValueId,
    others: &[ValueId],
    term: &Term,
) -> Result<Option<Results>, TypeError> {
    let mut shape = builder.ty(value).shape.clone();
    for &other in others {
        shape = ir::types::broadcast_shapes(&shape, &builder.ty(other).shape)?;
    }
    builder.rewritten(Expand { shape }, &[value], &term.locations)
}

// not(x == y) == (x != y), not(x != y) == (x == y)
pub(super) fn not_comparison(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Op::LogicalNot(_) = &term.op else { return Ok(None) };
    let compared = term.operands[0];
    let negated: Op = match builder.op_of(compared) {
        Some(Op::Eq(_)) => Ne.into(),
        Some(Op::Ne(_)) => Eq.into(),
        Some(_) | None => return Ok(None),
    };
    let (operands, locations) = (builder.operands_of(compared), builder.absorb(term, &[compared]));
    builder.rewritten(negated, &operands, &locations)
}

// x + neg(y) == x - y, x - neg(y) == x + y, neg(x) * neg(y) == x * y, neg(x * c) == x * -c, neg(x) * c == x * -c
pub(super) fn signs(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let negated = |builder: &Builder<'_>, value: ValueId| match builder.op_of(value) {
        Some(Op::Neg(_)) => builder.operand_of(value),
        Some(_) | None => None,
    };
    let locations = builder.absorb(term, &term.operands);
    match (&term.op, term.operands.as_slice()) {
        (Op::Add(_), &[lhs, rhs]) => match (negated(builder, lhs), negated(builder, rhs)) {
            (_, Some(rhs)) => builder.rewritten(Sub, &[lhs, rhs], &locations),
            (Some(lhs), None) => builder.rewritten(Sub, &[rhs, lhs], &locations),
            (None, None) => Ok(None),
        },
        (Op::Sub(_), &[lhs, rhs]) => match negated(builder, rhs) {
            Some(rhs) => builder.rewritten(Add, &[lhs, rhs], &locations),
            None => Ok(None),
        },
        (Op::Mul(_), &[lhs, rhs]) => match (negated(builder, lhs), negated(builder, rhs)) {
            (Some(lhs), Some(rhs)) => builder.rewritten(Mul, &[lhs, rhs], &locations),
            (Some(lhs), None) if builder.constant(rhs).is_some() => {
                let factor = builder.value(Neg, &[rhs], &locations)?;
                builder.rewritten(Mul, &[lhs, factor], &locations)
            }
            (_, _) => Ok(None),
        },
        (Op::Neg(_), &[operand]) => {
            let (Some(Op::Mul(_)), inner) = (builder.op_of(operand), builder.operands_of(operand)) else {
                return Ok(None);
            };
            if builder.constant(inner[1]).is_none() {
                return Ok(None);
            }
            let factor = builder.value(Neg, &[inner[1]], &locations)?;
            builder.rewritten(Mul, &[inner[0], factor], &locations)
        }
        (_, _) => Ok(None),
    }
}

// neg(x - y) == y - x but for the sign of zero
pub(super) fn neg_sub(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Op::Neg(_) = &term.op else { return Ok(None) };
    let difference = term.operands[0];
    let (Some(Op::Sub(_)), &[lhs, rhs]) = (builder.op_of(difference), builder.operands_of(difference).as_slice())
    else {
        return Ok(None);
    };
    let locations = builder.absorb(term, &[difference]);
    builder.rewritten(Sub, &[rhs, lhs], &locations)
}

// 1 / sqrt(x) == rsqrt(x), sqrt(1 / x) == rsqrt(x), 1 / rsqrt(x) == sqrt(x)
pub(super) fn reciprocal_sqrt(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let [operand] = *term.operands.as_slice() else { return Ok(None) };
    let (Some(inner_op), Some(inner)) = (builder.op_of(operand), builder.operand_of(operand)) else { return Ok(None) };
    let op: Op = match (&term.op, inner_op) {
        (Op::Reciprocal(_), Op::Sqrt(_)) | (Op::Sqrt(_), Op::Reciprocal(_)) => Rsqrt.into(),
        (Op::Reciprocal(_), Op::Rsqrt(_)) => Sqrt.into(),
        (_, _) => return Ok(None),
    };
    let locations = builder.absorb(term, &[operand]);
    builder.rewritten(op, &[inner], &locations)
}

// x / sqrt(y) == x * rsqrt(y), x / rsqrt(y) == x * sqrt(y)
pub(super) fn div_sqrt(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Some((lhs, rhs)) = pair(term).filter(|_| is_division(&term.op)) else { return Ok(None) };
    let op: Op = match builder.op_of(rhs) {
        Some(Op::Sqrt(_)) => Rsqrt.into(),
        Some(Op::Rsqrt(_)) => Sqrt.into(),
        Some(_) | None => return Ok(None),
    };
    let (inner, locations) = (builder.operands_of(rhs), builder.absorb(term, &[rhs]));
    let factor = builder.value(op, &inner, &locations)?;
    builder.rewritten(Mul, &[lhs, factor], &locations)
}

// x / y == x * (1 / y) if y has fewer elements than x
pub(super) fn div_broadcast(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Some((lhs, rhs)) = pair(term).filter(|_| is_division(&term.op)) else { return Ok(None) };
    let is_wider = builder.ty(rhs).n_elements() < builder.ty(lhs).n_elements();
    // Of a denormal number it is infinite.
    let is_tiny = builder.scalar(rhs).is_some_and(|divisor| !((1.0 / divisor) as f32).is_normal());
    if !is_wider || is_tiny || !builder.dtype(lhs).is_float() {
        return Ok(None);
    }
    let factor = builder.value(Reciprocal, &[rhs], &term.locations)?;
    builder.rewritten(Mul, &[lhs, factor], &term.locations)
}
