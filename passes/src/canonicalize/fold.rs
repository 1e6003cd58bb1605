//! What is known at compile time: constants, and ops over constants.
//!
//! A tensor whose elements are all equal is a `full`, integers in equal steps are an `iota`, other
//! results of up to [`MAX_FOLDED_BYTES`] become a `constant`. Evaluation is the reference
//! evaluator's, so that folding gives the same bits as computing.

use std::rc::Rc;

use ir::ops::{Constant as ConstantOp, Expand, Full, Iota, OpClass, Reshape, Slice};
use ir::reference::{Lanes, Value, round_float};
use ir::types::TypeError;
use ir::{Op, TensorType};
use smallvec::{SmallVec, smallvec};

use super::builder::{Builder, Results, Rule, RuleEntry, Term};
use crate::Numerics;

/// Largest tensor that is evaluated at compile time.
const MAX_FOLDED_BYTES: usize = 64 * 1024;

/// The rule of every op with operands.
pub(super) const FOLD: RuleEntry = ("fold-constant", Numerics::Exact, fold_constant as Rule);

/// Rules of ops whose operands are indices.
pub(super) const RULES: &[RuleEntry] = &[FOLD, ("gather-range", Numerics::Exact, gather_range)];

/// Rules of ops without operands.
pub(super) const CREATION_RULES: &[RuleEntry] = &[("plain-constant", Numerics::Exact, plain_constant)];

/// What a value is at compile time.
#[derive(Clone, Debug)]
pub(crate) enum Constant {
    /// Every element is the one of this rank-0 tensor.
    Uniform(Rc<Value>),
    /// A tensor of up to [`MAX_FOLDED_BYTES`].
    Dense(Rc<Value>),
}

impl Constant {
    /// What an op without operands computes; `None` for other ops and for big tensors.
    pub(super) fn of(op: &Op) -> Option<Constant> {
        if op.class() != OpClass::Creation {
            return None;
        }
        if let Op::Full(full) = op {
            let scalar = Op::from(Full { value: full.value, dtype: full.dtype, shape: smallvec![] });
            return Some(Constant::Uniform(Rc::new(evaluate(&scalar, &[])?)));
        }
        let ty = op.infer(&[]).ok()?.pop()?;
        (ty.size_bytes() <= MAX_FOLDED_BYTES)
            .then(|| evaluate(op, &[]))
            .flatten()
            .map(|value| Constant::Dense(Rc::new(value)))
    }

    /// What an expand of a constant computes; `None` where that is big.
    pub(super) fn expanded(&self, ty: &TensorType) -> Option<Constant> {
        match self {
            Constant::Uniform(value) => Some(Constant::Uniform(Rc::clone(value))),
            Constant::Dense(value) if ty.size_bytes() <= MAX_FOLDED_BYTES => {
                Some(Constant::Dense(Rc::new(value.broadcast_to(&ty.shape).ok()?)))
            }
            Constant::Dense(_) => None,
        }
    }

    /// The number that every float or integer element is.
    pub(crate) fn uniform_number(&self) -> Option<f64> {
        let Constant::Uniform(value) = self else { return None };
        match &value.lanes {
            Lanes::Float(lanes) => lanes.first().copied(),
            Lanes::Int(lanes) => lanes.first().map(|&lane| lane as f64),
            Lanes::Bool(_) => None,
        }
    }

    /// The truth value that every bool element is.
    pub(crate) fn uniform_bool(&self) -> Option<bool> {
        let Constant::Uniform(value) = self else { return None };
        let Lanes::Bool(lanes) = &value.lanes else { return None };
        lanes.first().copied()
    }

    fn broadcast_to(&self, ty: &TensorType) -> Option<Rc<Value>> {
        match self {
            Constant::Uniform(value) => value.broadcast_to(&ty.shape).ok().map(Rc::new),
            Constant::Dense(value) => Some(Rc::clone(value)),
        }
    }
}

/// The first result of an op over values, rounded to its type; `None` where it has none.
fn evaluate(op: &Op, operands: &[(&TensorType, &Value)]) -> Option<Value> {
    let types: SmallVec<[TensorType; 4]> = operands.iter().map(|(ty, _)| (*ty).clone()).collect();
    let results = op.infer(&types).ok()?;
    let values: SmallVec<[&Value; 4]> = operands.iter().map(|(_, value)| *value).collect();
    let value = op.eval(&values, &results).ok()?.into_iter().next()?;
    Some(value.rounded(results[0].dtype))
}

/// The rule of reductions and contractions over axes without elements.
pub(super) const OVER_NOTHING: RuleEntry = ("over-nothing", Numerics::Exact, over_nothing as Rule);

// sum(x) == 0 over no elements, and the like
fn over_nothing(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let value = match &term.op {
        Op::ReduceSum(_) | Op::Matmul(_) | Op::Any(_) => 0.0,
        Op::All(_) => 1.0,
        Op::ReduceMean(_) => f64::NAN,
        _ => return Ok(None),
    };
    if term.operands.iter().any(|&operand| builder.ty(operand).n_elements() > 0) {
        return Ok(None);
    }
    let types: SmallVec<[TensorType; 4]> = term.operands.iter().map(|&operand| builder.ty(operand).clone()).collect();
    let results = term.op.infer(&types)?;
    builder.rewritten(Full::new(value, results[0].dtype, results[0].shape.iter().copied()), &[], &term.locations)
}

// op(constants) == constant
pub(super) fn fold_constant(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let constants: Option<SmallVec<[Constant; 4]>> =
        term.operands.iter().map(|&operand| builder.constant(operand).cloned()).collect();
    let Some(constants) = constants.filter(|constants| !constants.is_empty()) else { return Ok(None) };
    let types: SmallVec<[TensorType; 4]> = term.operands.iter().map(|&operand| builder.ty(operand).clone()).collect();
    let results = term.op.infer(&types)?;
    let [result] = results.as_slice() else { return Ok(None) };
    if let Some(value) = fold_uniform(&term.op, &constants, &types) {
        return uniform(builder, &value, result, term);
    }
    // A repeated constant stays repeated, so that only one copy is stored.
    if matches!(term.op, Op::Expand(_)) {
        return Ok(None);
    }
    if result.size_bytes() > MAX_FOLDED_BYTES || types.iter().any(|ty| ty.size_bytes() > MAX_FOLDED_BYTES) {
        return Ok(None);
    }
    let values: Option<SmallVec<[Rc<Value>; 4]>> =
        constants.iter().zip(&types).map(|(constant, ty)| constant.broadcast_to(ty)).collect();
    let Some(values) = values else { return Ok(None) };
    let operands: SmallVec<[(&TensorType, &Value); 4]> =
        types.iter().zip(&values).map(|(ty, value)| (ty, value.as_ref())).collect();
    let Some(value) = evaluate(&term.op, &operands) else { return Ok(None) };
    constant(builder, &value, result, term)
}

/// The element of a result that has equal elements because its operands have.
fn fold_uniform(op: &Op, constants: &[Constant], types: &[TensorType]) -> Option<Value> {
    let uniform = |constant: &Constant| match constant {
        Constant::Uniform(value) => Some(Rc::clone(value)),
        Constant::Dense(_) => None,
    };
    let values: SmallVec<[Rc<Value>; 4]> = constants.iter().map(uniform).collect::<Option<_>>()?;
    match op.class() {
        OpClass::Pointwise => {
            let types: SmallVec<[TensorType; 4]> = types.iter().map(|ty| TensorType::scalar(ty.dtype)).collect();
            let operands: SmallVec<[(&TensorType, &Value); 4]> =
                types.iter().zip(&values).map(|(ty, value)| (ty, value.as_ref())).collect();
            evaluate(op, &operands)
        }
        OpClass::Movement => {
            let first = values.first()?;
            values.iter().all(|value| same_lanes(value, first)).then(|| Value::clone(first))
        }
        OpClass::Reduction
        | OpClass::Scan
        | OpClass::Indexing
        | OpClass::Creation
        | OpClass::Contraction
        | OpClass::Fused => None,
    }
}

// gather_rows(x, [a, a + s, ..]) == x[a..b..s]
fn gather_range(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Op::GatherRows(_) = &term.op else { return Ok(None) };
    let [table, ids] = *term.operands.as_slice() else { return Ok(None) };
    let Some(Constant::Dense(value)) = builder.constant(ids) else { return Ok(None) };
    let Lanes::Int(rows) = &value.lanes else { return Ok(None) };
    let (Some(&first), Some(&last)) = (rows.first(), rows.last()) else { return Ok(None) };
    let step = rows.get(1).map_or(1, |second| second - first);
    let n_rows = builder.ty(table).shape[0];
    let is_range =
        step > 0 && first >= 0 && (last as usize) < n_rows && rows.windows(2).all(|pair| pair[1] - pair[0] == step);
    if !is_range {
        return Ok(None);
    }
    let slice = Slice { axis: 0, start: first as usize, end: last as usize + 1, step: step as usize };
    let shape = builder.ty(ids).shape.iter().chain(&builder.ty(table).shape[1..]).copied().collect();
    let taken = builder.value(slice, &[table], &term.locations)?;
    builder.rewritten(Reshape { shape }, &[taken], &term.locations)
}

/// A constant in its plainest form.
fn constant(
    builder: &mut Builder<'_>,
    value: &Value,
    ty: &TensorType,
    term: &Term,
) -> Result<Option<Results>, TypeError> {
    if let Some(first) = uniform_element(value) {
        return uniform(builder, &first, ty, term);
    }
    if let Some(iota) = as_iota(value, ty) {
        return builder.rewritten(iota, &[], &term.locations);
    }
    if let Some(once) = without_repetition(value) {
        let small = TensorType { dtype: ty.dtype, shape: once.shape.clone() };
        let Some(small) = constant(builder, &once, &small, term)? else { return Ok(None) };
        return builder.rewritten(Expand { shape: ty.shape.clone() }, &small, &term.locations);
    }
    let data = value.to_bytes(ty.dtype).map_err(|error| TypeError::new(error.message))?;
    builder.rewritten(ConstantOp { dtype: ty.dtype, shape: ty.shape.clone(), data: data.into() }, &[], &term.locations)
}

/// The first block of a tensor whose blocks along the leading axis are equal, bit for bit.
fn without_repetition(value: &Value) -> Option<Value> {
    fn is_repeated<T, K: PartialEq>(lanes: &[T], block: usize, key: impl Fn(&T) -> K) -> bool {
        lanes.iter().skip(block).zip(lanes).all(|(later, first)| key(later) == key(first))
    }
    let axis = value.shape.iter().position(|&dim| dim != 1)?;
    let block: usize = value.shape[axis + 1..].iter().product();
    let is_same = match &value.lanes {
        Lanes::Float(lanes) => is_repeated(lanes, block, |lane| lane.to_bits()),
        Lanes::Int(lanes) => is_repeated(lanes, block, |&lane| lane),
        Lanes::Bool(lanes) => is_repeated(lanes, block, |&lane| lane),
    };
    let lanes = match &value.lanes {
        Lanes::Float(lanes) => Lanes::Float(lanes.get(..block)?.to_vec()),
        Lanes::Int(lanes) => Lanes::Int(lanes.get(..block)?.to_vec()),
        Lanes::Bool(lanes) => Lanes::Bool(lanes.get(..block)?.to_vec()),
    };
    let mut shape = value.shape.clone();
    shape[axis] = 1;
    (is_same && block > 0).then_some(Value { shape, lanes })
}

/// A tensor of equal elements.
fn uniform(
    builder: &mut Builder<'_>,
    value: &Value,
    ty: &TensorType,
    term: &Term,
) -> Result<Option<Results>, TypeError> {
    let number = match &value.lanes {
        Lanes::Float(lanes) => lanes[0],
        Lanes::Bool(lanes) => f64::from(u8::from(lanes[0])),
        Lanes::Int(lanes) if lanes[0] as f64 as i64 == lanes[0] && lanes[0] != i64::MAX => lanes[0] as f64,
        // `full` holds an f64; an integer beyond its precision stays a constant.
        Lanes::Int(_) if ty.size_bytes() <= MAX_FOLDED_BYTES => {
            let repeated = value.broadcast_to(&ty.shape).map_err(|error| TypeError::new(error.message))?;
            let data = repeated.to_bytes(ty.dtype).map_err(|error| TypeError::new(error.message))?;
            let op = ConstantOp { dtype: ty.dtype, shape: ty.shape.clone(), data: data.into() };
            return builder.rewritten(op, &[], &term.locations);
        }
        Lanes::Int(_) => return Ok(None),
    };
    builder.rewritten(Full::new(number, ty.dtype, ty.shape.iter().copied()), &[], &term.locations)
}

/// Element `at` as a rank-0 tensor.
fn element(value: &Value, at: usize) -> Option<Value> {
    let lanes = match &value.lanes {
        Lanes::Float(lanes) => Lanes::Float(vec![*lanes.get(at)?]),
        Lanes::Int(lanes) => Lanes::Int(vec![*lanes.get(at)?]),
        Lanes::Bool(lanes) => Lanes::Bool(vec![*lanes.get(at)?]),
    };
    Some(Value { shape: smallvec![], lanes })
}

/// Equal bit for bit: -0.0 differs from 0.0, and a NaN equals itself.
fn same_lanes(lhs: &Value, rhs: &Value) -> bool {
    match (&lhs.lanes, &rhs.lanes) {
        (Lanes::Float(lhs), Lanes::Float(rhs)) => {
            lhs.iter().map(|lane| lane.to_bits()).eq(rhs.iter().map(|lane| lane.to_bits()))
        }
        (Lanes::Int(lhs), Lanes::Int(rhs)) => lhs == rhs,
        (Lanes::Bool(lhs), Lanes::Bool(rhs)) => lhs == rhs,
        (Lanes::Float(_) | Lanes::Int(_) | Lanes::Bool(_), _) => false,
    }
}

/// The vector of integers as numbers in equal steps.
fn as_iota(value: &Value, ty: &TensorType) -> Option<Iota> {
    let (Lanes::Int(lanes), [length]) = (&value.lanes, ty.shape.as_slice()) else { return None };
    let [first, second, ..] = lanes.as_slice() else { return None };
    let step = second.checked_sub(*first)?;
    let regular = lanes.windows(2).all(|pair| pair[1].checked_sub(pair[0]) == Some(step));
    (regular && step != 0).then_some(Iota { dtype: ty.dtype, length: *length, start: *first, step })
}

// constant of equal elements == full; full(x) == full(x rounded to its type)
fn plain_constant(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    if let Op::Full(full) = &term.op {
        let rounded = Full::new(round_float(full.dtype, full.value.get()), full.dtype, full.shape.iter().copied());
        return if rounded == *full { Ok(None) } else { builder.rewritten(rounded, &[], &term.locations) };
    }
    let Some(Constant::Dense(value)) = Constant::of(&term.op) else { return Ok(None) };
    let ty = term.op.infer(&[])?[0].clone();
    let is_plain = if let Op::Iota(iota) = &term.op {
        iota.length != 1 && iota.step != 0
    } else {
        as_iota(&value, &ty).is_none() && uniform_element(&value).is_none()
    };
    if is_plain {
        return Ok(None);
    }
    constant(builder, &value, &ty, term)
}

/// The element that all elements equal.
fn uniform_element(value: &Value) -> Option<Value> {
    let all_equal = match &value.lanes {
        Lanes::Float(lanes) => lanes.windows(2).all(|pair| pair[0].to_bits() == pair[1].to_bits()),
        Lanes::Int(lanes) => lanes.windows(2).all(|pair| pair[0] == pair[1]),
        Lanes::Bool(lanes) => lanes.windows(2).all(|pair| pair[0] == pair[1]),
    };
    all_equal.then(|| element(value, 0)).flatten()
}
