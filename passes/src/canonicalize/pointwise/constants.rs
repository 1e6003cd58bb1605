//! Pointwise ops with a constant operand.

use ir::ops::{Add, Div, Ge, Gt, Le, Lt, Maximum, Minimum, Mul, Neg, Reciprocal, ReduceMean, Rsqrt, Sqrt};
use ir::types::TypeError;
use ir::{Dtype, Op, ValueId};

use super::{number, pair, same};
use crate::canonicalize::builder::{Builder, Results, Term};

/// The left operand and the rank-0 number on the right of a binary op.
fn with_scalar(builder: &Builder<'_>, term: &Term) -> Option<(ValueId, f64)> {
    let (lhs, rhs) = pair(term)?;
    Some((lhs, builder.scalar(rhs)?))
}

/// True for numbers whose reciprocal is exact in f32: powers of two, neither tiny nor huge.
fn is_power_of_two(number: f64) -> bool {
    let mantissa = number.to_bits() & ((1 << 52) - 1);
    mantissa == 0 && (1e-37..1e37).contains(&number.abs())
}

// c < x == x > c
pub(super) fn compare_constant(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Some((lhs, rhs)) = pair(term) else { return Ok(None) };
    if builder.constant(lhs).is_none() || builder.constant(rhs).is_some() {
        return Ok(None);
    }
    let swapped: Op = match term.op {
        Op::Lt(_) => Gt.into(),
        Op::Gt(_) => Lt.into(),
        Op::Le(_) => Ge.into(),
        Op::Ge(_) => Le.into(),
        ref other => other.clone(),
    };
    if swapped == term.op {
        return Ok(None);
    }
    builder.rewritten(swapped, &[rhs, lhs], &term.locations)
}

// x * 1 == x, x / 1 == x, x - 0 == x, x ^ 1 == x; x + 0 == x for integers and for -0.0
pub(super) fn neutral_operand(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Some((lhs, rhs)) = with_scalar(builder, term) else { return Ok(None) };
    let is_positive_zero = rhs == 0.0 && rhs.is_sign_positive();
    let is_neutral = if matches!(term.op, Op::Mul(_) | Op::Div(_) | Op::Pow(_)) {
        rhs == 1.0
    } else if matches!(term.op, Op::Sub(_)) {
        is_positive_zero
    } else if matches!(term.op, Op::Add(_)) {
        rhs == 0.0 && (builder.dtype(lhs).is_integer() || rhs.is_sign_negative())
    } else {
        false
    };
    if is_neutral { same(lhs) } else { Ok(None) }
}

// x + 0 == x but for x = -0.0
pub(super) fn add_zero(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    match (&term.op, with_scalar(builder, term)) {
        (Op::Add(_), Some((lhs, 0.0))) => same(lhs),
        (_, Some(_) | None) => Ok(None),
    }
}

// x * -1 == neg(x)
pub(super) fn mul_minus_one(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    match (&term.op, with_scalar(builder, term)) {
        (Op::Mul(_), Some((lhs, -1.0))) => builder.rewritten(Neg, &[lhs], &term.locations),
        (_, Some(_) | None) => Ok(None),
    }
}

// x ^ 2 == x * x
pub(super) fn pow_two(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    match (&term.op, with_scalar(builder, term)) {
        (Op::Pow(_), Some((lhs, 2.0))) => builder.rewritten(Mul, &[lhs, lhs], &term.locations),
        (_, Some(_) | None) => Ok(None),
    }
}

// x ^ 3 == x * x * x, x ^ 1/2 == sqrt(x), x ^ -1/2 == rsqrt(x), x ^ -1 == 1 / x, x ^ -2 == 1 / (x * x)
pub(super) fn pow_constant(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Pow(_), Some((base, exponent))) = (&term.op, with_scalar(builder, term)) else { return Ok(None) };
    let locations = &term.locations;
    if exponent == 3.0 || exponent == -2.0 {
        let square = builder.value(Mul, &[base, base], locations)?;
        let other = if exponent == 3.0 { Op::from(Mul) } else { Op::from(Reciprocal) };
        let operands: &[ValueId] = if exponent == 3.0 { &[square, base] } else { &[square] };
        return builder.rewritten(other, operands, locations);
    }
    let op: Op = if exponent == 0.5 {
        Sqrt.into()
    } else if exponent == -0.5 {
        Rsqrt.into()
    } else if exponent == -1.0 {
        Reciprocal.into()
    } else {
        return Ok(None);
    };
    builder.rewritten(op, &[base], locations)
}

// 1 / x == reciprocal(x)
pub(super) fn one_over(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Div(_), Some((lhs, rhs))) = (&term.op, pair(term)) else { return Ok(None) };
    if builder.scalar(lhs) != Some(1.0) || !builder.dtype(lhs).is_float() {
        return Ok(None);
    }
    builder.rewritten(Reciprocal, &[rhs], &term.locations)
}

// x / s == x * (1 / s) if s is a power of two
pub(super) fn div_power_of_two(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Div(_), Some((lhs, divisor))) = (&term.op, with_scalar(builder, term)) else { return Ok(None) };
    if !is_power_of_two(divisor) || !builder.dtype(lhs).is_float() {
        return Ok(None);
    }
    let factor = number(builder, 1.0 / divisor, lhs, term)?;
    builder.rewritten(Mul, &[lhs, factor], &term.locations)
}

// x / s == x * (1 / s)
pub(super) fn div_constant(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Div(_), Some((lhs, divisor))) = (&term.op, with_scalar(builder, term)) else { return Ok(None) };
    let factor = 1.0 / divisor;
    if builder.dtype(lhs) != Dtype::F32 || !(factor as f32).is_normal() {
        return Ok(None);
    }
    let factor = number(builder, factor, lhs, term)?;
    builder.rewritten(Mul, &[lhs, factor], &term.locations)
}

// x - c == x + -c
pub(super) fn sub_constant(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Sub(_), Some((lhs, rhs))) = (&term.op, pair(term)) else { return Ok(None) };
    if builder.constant(rhs).is_none() {
        return Ok(None);
    }
    let negated = builder.value(Neg, &[rhs], &term.locations)?;
    builder.rewritten(Add, &[lhs, negated], &term.locations)
}

// max(max(x, a), b) == max(x, max(a, b)), and min
pub(super) fn extremum_constants(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Some((lhs, rhs)) = pair(term) else { return Ok(None) };
    let is_nested = match (&term.op, builder.op_of(lhs)) {
        (Op::Maximum(Maximum), Some(Op::Maximum(Maximum))) | (Op::Minimum(Minimum), Some(Op::Minimum(Minimum))) => true,
        (_, Some(_) | None) => false,
    };
    if !is_nested {
        return Ok(None);
    }
    join_constants(builder, term, lhs, rhs)
}

// (x + a) + b == x + (a + b), (x * a) * b == x * (a * b)
pub(super) fn chain_constants(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Some((lhs, rhs)) = pair(term) else { return Ok(None) };
    let is_nested = match (&term.op, builder.op_of(lhs)) {
        (Op::Add(_), Some(Op::Add(_))) | (Op::Mul(_), Some(Op::Mul(_))) => true,
        (_, Some(_) | None) => false,
    };
    if !is_nested {
        return Ok(None);
    }
    join_constants(builder, term, lhs, rhs)
}

/// op(op(x, a), b) as op(x, op(a, b)) where a and b are constants and their combination is one.
fn join_constants(
    builder: &mut Builder<'_>,
    term: &Term,
    lhs: ValueId,
    rhs: ValueId,
) -> Result<Option<Results>, TypeError> {
    let inner = builder.operands_of(lhs);
    if builder.constant(rhs).is_none() || builder.constant(inner[1]).is_none() || builder.constant(inner[0]).is_some() {
        return Ok(None);
    }
    let joined = builder.value(term.op.clone(), &[inner[1], rhs], &term.locations)?;
    // A product of scales may leave the range that each of them stays in.
    if builder.uniform(joined).is_some_and(|joined| !joined.is_finite()) {
        return Ok(None);
    }
    let locations = builder.absorb(term, &[lhs]);
    builder.rewritten(term.op.clone(), &[inner[0], joined], &locations)
}

// sum(x) * (1 / n) == mean(x)
pub(super) fn mean_of_sum(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Mul(_), Some((lhs, factor))) = (&term.op, with_scalar(builder, term)) else { return Ok(None) };
    let Some(Op::ReduceSum(sum)) = builder.op_of(lhs) else { return Ok(None) };
    let (axes, operand) = (sum.axes.clone(), builder.operands_of(lhs)[0]);
    let n_elements: usize = axes.iter().map(|&axis| builder.ty(operand).shape[axis]).product();
    let reciprocal = 1.0 / n_elements as f64;
    if !builder.dtype(operand).is_float() || factor as f32 != reciprocal as f32 {
        return Ok(None);
    }
    let locations = builder.absorb(term, &[lhs]);
    builder.rewritten(ReduceMean { axes }, &[operand], &locations)
}

// (x * s) * y == (x * y) * s if x is as large as the product
pub(super) fn scalar_outward(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Mul(_), Some((lhs, rhs))) = (&term.op, pair(term)) else { return Ok(None) };
    if builder.constant(lhs).is_some() || builder.constant(rhs).is_some() || !builder.dtype(lhs).is_float() {
        return Ok(None);
    }
    for (scaled, other) in [(lhs, rhs), (rhs, lhs)] {
        let is_smaller = builder.ty(scaled).n_elements() < builder.ty(other).n_elements();
        let Some(Op::Mul(_)) = builder.op_of(scaled).filter(|_| !is_smaller) else { continue };
        let inner = builder.operands_of(scaled);
        if builder.scalar(inner[1]).is_none() {
            continue;
        }
        let locations = builder.absorb(term, &[scaled]);
        let product = builder.value(Mul, &[inner[0], other], &locations)?;
        return builder.rewritten(Mul, &[product, inner[1]], &locations);
    }
    Ok(None)
}

/// Division by something that is no constant, as the op that [`super::algebra`] builds on.
pub(super) fn is_division(op: &Op) -> bool {
    matches!(op, Op::Div(Div))
}
