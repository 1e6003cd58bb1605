//! Overloads that combine elements along axes.
//!
//! Reductions of the IR keep their axes as size 1; where PyTorch drops them, a reshape follows.

use ir::ops::{All, Any, Cumsum, Div, Mul, ReduceMax, ReduceMean, ReduceMin, ReduceSum, Sqrt, Sub};
use ir::types::{Axes, Shape};
use ir::{Dtype, Op, ValueId};

use super::call::{Built, Call, Number, Refusal};
use super::pointwise::{as_float, wide_dtype};

type Outcome = Result<Built, Refusal>;

/// `sum`: of integers and bools in i64.
pub fn sum(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let given = call.dtype(operand);
    let default = if given.is_float() { given } else { Dtype::I64 };
    let dtype = call.optional_dtype("dtype")?.unwrap_or(default);
    let operand = call.cast(operand, dtype)?;
    reduce(call, operand, |axes| ReduceSum { axes }.into())
}

/// `mean`.
pub fn mean(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let dtype = call.optional_dtype("dtype")?.unwrap_or(call.dtype(operand));
    if !dtype.is_float() {
        return Err(Refusal::Malformed(format!("the mean of {dtype} needs a float `dtype`")));
    }
    let operand = call.cast(operand, dtype)?;
    reduce(call, operand, |axes| ReduceMean { axes }.into())
}

/// `amax` and `max`.
pub fn largest(call: &mut Call<'_>) -> Outcome {
    let operand = numeric(call)?;
    reduce(call, operand, |axes| ReduceMax { axes }.into())
}

/// `amin` and `min`.
pub fn smallest(call: &mut Call<'_>) -> Outcome {
    let operand = numeric(call)?;
    reduce(call, operand, |axes| ReduceMin { axes }.into())
}

fn numeric(call: &Call<'_>) -> Result<ValueId, Refusal> {
    let operand = call.tensor("self")?;
    if call.dtype(operand) == Dtype::Bool {
        return Err(Refusal::Unsupported("an extremum of bools".to_owned()));
    }
    Ok(operand)
}

/// `any`.
pub fn any(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let operand = call.cast(operand, Dtype::Bool)?;
    reduce(call, operand, |axes| Any { axes }.into())
}

/// `all`.
pub fn all(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let operand = call.cast(operand, Dtype::Bool)?;
    reduce(call, operand, |axes| All { axes }.into())
}

fn reduce(call: &mut Call<'_>, operand: ValueId, op: impl FnOnce(Axes) -> Op) -> Outcome {
    let axes = axes(call, call.rank(operand))?;
    reduce_axes(call, operand, &axes, op).map(Built::One)
}

fn reduce_axes(
    call: &mut Call<'_>,
    operand: ValueId,
    axes: &Axes,
    op: impl FnOnce(Axes) -> Op,
) -> Result<ValueId, Refusal> {
    let kept = if axes.is_empty() { operand } else { call.apply(op(axes.clone()), &[operand])? };
    drop_axes(call, kept, axes)
}

/// Without the reduced axes, unless `keepdim` asks for them.
fn drop_axes(call: &mut Call<'_>, value: ValueId, axes: &Axes) -> Result<ValueId, Refusal> {
    if call.flag_or("keepdim", false)? {
        return Ok(value);
    }
    let shape = call.shape(value);
    let rest = shape.iter().enumerate().filter(|(axis, _)| !axes.contains(axis)).map(|(_, &dim)| dim);
    let rest: Shape = rest.collect();
    call.reshape(value, rest)
}

/// The ascending axes that `dim` names; all where it names none.
fn axes(call: &Call<'_>, rank: usize) -> Result<Axes, Refusal> {
    let dims = call.optional_ints("dim")?.unwrap_or_default();
    if dims.is_empty() || rank == 0 {
        dims.iter().try_for_each(|&dim| call.axis(dim, rank).map(|_| ()))?;
        return Ok((0..rank).collect());
    }
    let mut axes: Axes = dims.iter().map(|&dim| call.axis(dim, rank)).collect::<Result<_, _>>()?;
    axes.sort_unstable();
    if axes.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Refusal::Malformed(format!("dimensions {dims:?} name an axis twice")));
    }
    Ok(axes)
}

/// Which statistics an overload gives.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Spread {
    Variance,
    VarianceAndMean,
    Deviation,
}

/// `var`, `var_mean` and `std` with a correction: squares of the differences from the mean, over
/// n - correction.
pub fn spread(call: &mut Call<'_>, spread: Spread) -> Outcome {
    let operand = call.tensor("self")?;
    let dtype = call.dtype(operand);
    if !dtype.is_float() {
        return Err(Refusal::Malformed(format!("the variance of {dtype}")));
    }
    let axes = axes(call, call.rank(operand))?;
    let correction = call.number_or("correction", Number::Int(1))?.as_f64();
    let shape = call.shape(operand);
    let n_elements: f64 = axes.iter().map(|&axis| shape[axis] as f64).product();
    let wide = call.cast(operand, wide_dtype(dtype))?;
    let mean = call.apply(ReduceMean { axes: axes.clone() }, &[wide])?;
    let difference = call.apply(Sub, &[wide, mean])?;
    let square = call.apply(Mul, &[difference, difference])?;
    let variance = if correction == 0.0 {
        call.apply(ReduceMean { axes: axes.clone() }, &[square])?
    } else {
        let sum = call.apply(ReduceSum { axes: axes.clone() }, &[square])?;
        let divisor = call.scalar(Number::Float((n_elements - correction).max(0.0)), wide_dtype(dtype))?;
        call.apply(Div, &[sum, divisor])?
    };
    let first = if spread == Spread::Deviation { call.apply(Sqrt, &[variance])? } else { variance };
    let first = call.cast(first, dtype)?;
    let first = drop_axes(call, first, &axes)?;
    if spread != Spread::VarianceAndMean {
        return Ok(Built::One(first));
    }
    let mean = call.cast(mean, dtype)?;
    let mean = drop_axes(call, mean, &axes)?;
    Ok(Built::Many(vec![Some(first), Some(mean)]))
}

/// `cumsum`: of integers and bools in i64.
pub fn cumsum(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let given = call.dtype(operand);
    let default = if given.is_float() { given } else { Dtype::I64 };
    let dtype = call.optional_dtype("dtype")?.unwrap_or(default);
    let operand = call.cast(operand, dtype)?;
    let axis = call.axis(call.int("dim")?, call.rank(operand))?;
    if call.rank(operand) == 0 {
        return Ok(Built::One(operand));
    }
    call.apply(Cumsum { axis }, &[operand]).map(Built::One)
}

/// `_softmax` and `_log_softmax`: `half_to_float` gives f32 of a 16-bit operand.
pub fn softmax(call: &mut Call<'_>, op: impl Into<Op>) -> Outcome {
    let operand = call.tensor("self")?;
    let operand = if call.flag_or("half_to_float", false)? { call.cast(operand, Dtype::F32)? } else { operand };
    along_axis(call, operand, op.into())
}

/// `softmax` and `log_softmax` as users call them: `dtype` is that of operand and result.
pub fn softmax_as(call: &mut Call<'_>, op: impl Into<Op>) -> Outcome {
    let operand = call.tensor("self")?;
    let operand = match call.optional_dtype("dtype")? {
        Some(dtype) => call.cast(operand, dtype)?,
        None => as_float(call, operand)?,
    };
    along_axis(call, operand, op.into())
}

/// Applies an op over the last axis to the axis that `dim` names.
fn along_axis(call: &mut Call<'_>, operand: ValueId, op: Op) -> Outcome {
    let shape = call.shape(operand);
    if !call.dtype(operand).is_float() {
        return Err(Refusal::Malformed(format!("a softmax of {}", call.dtype(operand))));
    }
    let axis = call.axis(call.int("dim")?, shape.len())?;
    let operand = if shape.is_empty() { call.reshape(operand, [1])? } else { operand };
    let swapped = swapped_with_last(axis, shape.len().max(1));
    let operand = call.transpose(operand, swapped.iter().copied())?;
    let result = call.apply(op, &[operand])?;
    let result = call.transpose(result, swapped.iter().copied())?;
    call.reshape(result, shape).map(Built::One)
}

/// The permutation that swaps an axis with the last one: its own inverse.
fn swapped_with_last(axis: usize, rank: usize) -> Axes {
    let mut perm: Axes = (0..rank).collect();
    perm.swap(axis, rank - 1);
    perm
}

/// `_safe_softmax`: rows in which every element is -inf give zeros.
pub fn safe_softmax(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let operand = match call.optional_dtype("dtype")? {
        Some(dtype) => call.cast(operand, dtype)?,
        None => operand,
    };
    let rank = call.rank(operand);
    if rank == 0 || call.axis(call.int("dim")?, rank)? != rank - 1 {
        return Err(Refusal::Unsupported("a safe softmax over another axis than the last".to_owned()));
    }
    super::attention::safe_softmax_rows(call, operand).map(Built::One)
}
