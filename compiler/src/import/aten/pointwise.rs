//! Overloads that compute element by element.
//!
//! A Python number is not rounded to the type of a 16-bit tensor that it meets: PyTorch computes
//! in f32 and rounds the result, and so do the ops that are emitted here.

use ir::ops::{
    Add, Div, Gelu, GeluTanh, LogicalAnd, LogicalNot, LogicalOr, Maximum, Minimum, Mul, Pow, Reciprocal, Relu, Rsqrt,
    Sigmoid, Sign, Softplus, Sqrt, Sub, Tanh, Where,
};
use ir::{Dtype, Op, ValueId};

use super::call::{Built, Call, Number, Operand, Refusal};
use super::promote::result_dtype;

type Outcome = Result<Built, Refusal>;

/// A float function; integers become f32 first.
pub fn float_unary(call: &mut Call<'_>, op: impl Into<Op>) -> Outcome {
    let operand = call.tensor("self")?;
    let operand = as_float(call, operand)?;
    call.apply(op, &[operand]).map(Built::One)
}

/// A function that keeps the operand's float or integer type.
pub fn numeric_unary(call: &mut Call<'_>, op: impl Into<Op>) -> Outcome {
    let operand = call.tensor("self")?;
    refuse_bool(call.dtype(operand))?;
    call.apply(op, &[operand]).map(Built::One)
}

/// `relu`: of integers, the larger of them and 0.
pub fn relu(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let dtype = call.dtype(operand);
    refuse_bool(dtype)?;
    if dtype.is_float() {
        return call.apply(Relu, &[operand]).map(Built::One);
    }
    let zero = call.scalar(Number::Int(0), dtype)?;
    call.apply(Maximum, &[operand, zero]).map(Built::One)
}

/// `sign`: of integers through f32, where their signs are exact.
pub fn sign(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let dtype = call.dtype(operand);
    refuse_bool(dtype)?;
    let operand = as_float(call, operand)?;
    let sign = call.apply(Sign, &[operand])?;
    call.cast(sign, dtype).map(Built::One)
}

/// `gelu`, exact or through tanh.
pub fn gelu(call: &mut Call<'_>) -> Outcome {
    match call.optional_text("approximate")?.unwrap_or("none") {
        "none" => float_unary(call, Gelu),
        "tanh" => float_unary(call, GeluTanh),
        other => Err(Refusal::Malformed(format!("`approximate` is `{other}`, not none or tanh"))),
    }
}

/// `softplus` with the parameters at which it is log(1 + exp(x)) in f32.
pub fn softplus(call: &mut Call<'_>) -> Outcome {
    let beta = call.number_or("beta", Number::Int(1))?.as_f64();
    let threshold = call.number_or("threshold", Number::Int(20))?.as_f64();
    if beta != 1.0 || threshold < 20.0 {
        return Err(Refusal::Unsupported(format!("softplus with beta {beta} and threshold {threshold}")));
    }
    float_unary(call, Softplus)
}

/// `mish`: x * tanh(softplus(x)), rounded once.
pub fn mish(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let dtype = call.dtype(operand);
    let wide = call.cast(operand, wide_dtype(dtype))?;
    let softplus = call.apply(Softplus, &[wide])?;
    let tanh = call.apply(Tanh, &[softplus])?;
    let product = call.apply(Mul, &[wide, tanh])?;
    call.cast(product, dtype).map(Built::One)
}

/// `logical_not`.
pub fn logical_not(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let operand = call.cast(operand, Dtype::Bool)?;
    call.apply(LogicalNot, &[operand]).map(Built::One)
}

/// `bitwise_not` of bools.
pub fn bitwise_not(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    if call.dtype(operand) != Dtype::Bool {
        return Err(Refusal::Unsupported(format!("bitwise operation on {}", call.dtype(operand))));
    }
    logical_not(call)
}

/// `logical_and`, `logical_or`, `logical_xor`.
pub fn logical(call: &mut Call<'_>, op: impl Into<Op>) -> Outcome {
    let operands = [call.tensor("self")?, call.tensor("other")?];
    let operands = [call.cast(operands[0], Dtype::Bool)?, call.cast(operands[1], Dtype::Bool)?];
    call.apply(op, &operands).map(Built::One)
}

/// `bitwise_and`, `bitwise_or`, `bitwise_xor` of bools.
pub fn bitwise(call: &mut Call<'_>, op: impl Into<Op>) -> Outcome {
    for name in ["self", "other"] {
        let dtype = call.tensor(name).map(|value| call.dtype(value))?;
        if dtype != Dtype::Bool {
            return Err(Refusal::Unsupported(format!("bitwise operation on {dtype}")));
        }
    }
    logical(call, op)
}

/// `add` and `sub`: self ± alpha * other.
pub fn add_scaled(call: &mut Call<'_>, op: impl Into<Op>) -> Outcome {
    let (lhs, rhs) = (call.operand("self")?, call.operand("other")?);
    scaled_sum(call, op.into(), lhs, rhs)
}

/// `rsub`: other - alpha * self.
pub fn subtract_from(call: &mut Call<'_>) -> Outcome {
    let (lhs, rhs) = (call.operand("other")?, call.operand("self")?);
    scaled_sum(call, Sub.into(), lhs, rhs)
}

fn scaled_sum(call: &mut Call<'_>, op: Op, lhs: Operand, rhs: Operand) -> Outcome {
    let alpha = call.number_or("alpha", Number::Int(1))?;
    let dtype = result_dtype(call, &[lhs, rhs])?;
    if alpha.as_f64() == 1.0 {
        return arithmetic(call, op, lhs, rhs, dtype);
    }
    refuse_bool(dtype)?;
    let compute = wide_dtype(dtype);
    let lhs = materialized(call, lhs, compute)?;
    let rhs = materialized(call, rhs, compute)?;
    let alpha = call.scalar(alpha, compute)?;
    let scaled = call.apply(Mul, &[rhs, alpha])?;
    let sum = call.apply(op, &[lhs, scaled])?;
    call.cast(sum, dtype).map(Built::One)
}

/// `mul`.
pub fn multiply(call: &mut Call<'_>) -> Outcome {
    let (lhs, rhs) = (call.operand("self")?, call.operand("other")?);
    let dtype = result_dtype(call, &[lhs, rhs])?;
    arithmetic(call, Mul.into(), lhs, rhs, dtype)
}

/// `div` without rounding: of integers in f32.
pub fn divide(call: &mut Call<'_>) -> Outcome {
    if let Some(mode) = call.optional_text("rounding_mode")? {
        return Err(Refusal::Unsupported(format!("division with rounding mode `{mode}`")));
    }
    let (lhs, rhs) = (call.operand("self")?, call.operand("other")?);
    let dtype = result_dtype(call, &[lhs, rhs])?;
    let dtype = if dtype.is_float() { dtype } else { Dtype::F32 };
    arithmetic(call, Div.into(), lhs, rhs, dtype)
}

/// `maximum` and `minimum`.
pub fn extremum(call: &mut Call<'_>, op: impl Into<Op>) -> Outcome {
    let (lhs, rhs) = (call.operand("self")?, call.operand("other")?);
    let dtype = result_dtype(call, &[lhs, rhs])?;
    refuse_bool(dtype)?;
    let operands = [materialized(call, lhs, dtype)?, materialized(call, rhs, dtype)?];
    call.apply(op, &operands).map(Built::One)
}

/// Sum, difference, product or quotient of the result's type.
fn arithmetic(call: &mut Call<'_>, op: Op, lhs: Operand, rhs: Operand, dtype: Dtype) -> Outcome {
    if dtype == Dtype::Bool {
        let op: Op = match op {
            Op::Add(_) => LogicalOr.into(),
            Op::Mul(_) => LogicalAnd.into(),
            op => return Err(Refusal::Unsupported(format!("`{}` of bools", op.name()))),
        };
        let operands = [materialized(call, lhs, dtype)?, materialized(call, rhs, dtype)?];
        return call.apply(op, &operands).map(Built::One);
    }
    let as_given = |operand: Operand| matches!(operand, Operand::Tensor(value) if call.dtype(value) == dtype);
    let compute = if as_given(lhs) && as_given(rhs) { dtype } else { wide_dtype(dtype) };
    let operands = [materialized(call, lhs, compute)?, materialized(call, rhs, compute)?];
    let result = call.apply(op, &operands)?;
    call.cast(result, dtype).map(Built::One)
}

/// `eq`, `ne`, `lt`, `le`, `gt`, `ge`: numbers are rounded to the common type, as PyTorch does.
pub fn compare(call: &mut Call<'_>, op: impl Into<Op>) -> Outcome {
    let (lhs, rhs) = (call.operand("self")?, call.operand("other")?);
    let dtype = result_dtype(call, &[lhs, rhs])?;
    let operands = [materialized(call, lhs, dtype)?, materialized(call, rhs, dtype)?];
    call.apply(op, &operands).map(Built::One)
}

/// `where` with tensors or numbers.
pub fn choose(call: &mut Call<'_>) -> Outcome {
    let condition = call.tensor("condition")?;
    let condition = call.cast(condition, Dtype::Bool)?;
    let (lhs, rhs) = (call.operand("self")?, call.operand("other")?);
    let dtype = result_dtype(call, &[lhs, rhs])?;
    let operands = [condition, materialized(call, lhs, dtype)?, materialized(call, rhs, dtype)?];
    call.apply(Where, &operands).map(Built::One)
}

/// `masked_fill`.
pub fn masked_fill(call: &mut Call<'_>) -> Outcome {
    let (operand, mask, value) = (call.tensor("self")?, call.tensor("mask")?, call.operand("value")?);
    let dtype = call.dtype(operand);
    let mask = call.cast(mask, Dtype::Bool)?;
    let value = materialized(call, value, dtype)?;
    call.apply(Where, &[mask, value, operand]).map(Built::One)
}

/// `clamp` and its relatives: bounds are numbers or tensors, either may be missing, and the upper one
/// wins.
pub fn clamp(call: &mut Call<'_>) -> Outcome {
    let bound = |name| if call.has(name) { call.operand(name).map(Some) } else { Ok(None) };
    let (low, high) = (bound("min")?, bound("max")?);
    clamp_to(call, low, high)
}

/// `hardtanh`: by default between -1 and 1.
pub fn hard_tanh(call: &mut Call<'_>) -> Outcome {
    let low = call.number_or("min_val", Number::Int(-1))?;
    let high = call.number_or("max_val", Number::Int(1))?;
    clamp_between(call, [low, high])
}

/// `relu6` and `hardtanh`.
pub fn clamp_between(call: &mut Call<'_>, bounds: [Number; 2]) -> Outcome {
    let [low, high] = bounds.map(Operand::Number);
    clamp_to(call, Some(low), Some(high))
}

fn clamp_to(call: &mut Call<'_>, low: Option<Operand>, high: Option<Operand>) -> Outcome {
    let operand = Operand::Tensor(call.tensor("self")?);
    let all: Vec<Operand> = [Some(operand), low, high].into_iter().flatten().collect();
    let dtype = result_dtype(call, &all)?;
    refuse_bool(dtype)?;
    let mut result = materialized(call, operand, dtype)?;
    if let Some(low) = low {
        let low = materialized(call, low, dtype)?;
        result = call.apply(Maximum, &[result, low])?;
    }
    if let Some(high) = high {
        let high = materialized(call, high, dtype)?;
        result = call.apply(Minimum, &[result, high])?;
    }
    Ok(Built::One(result))
}

/// `hardsigmoid` and `hardswish`: min(max(x + 3, 0), 6) / 6, and x times that.
pub fn hard_gate(call: &mut Call<'_>, gate: HardGate) -> Outcome {
    let operand = call.tensor("self")?;
    let dtype = call.dtype(operand);
    let compute = wide_dtype(dtype);
    let wide = call.cast(operand, compute)?;
    let [zero, three, six] = [0, 3, 6].map(|number| call.scalar(Number::Int(number), compute));
    let (zero, three, six) = (zero?, three?, six?);
    let shifted = call.apply(Add, &[wide, three])?;
    let above = call.apply(Maximum, &[shifted, zero])?;
    let clamped = call.apply(Minimum, &[above, six])?;
    let scaled = match gate {
        HardGate::Sigmoid => clamped,
        HardGate::Swish => call.apply(Mul, &[wide, clamped])?,
    };
    let result = call.apply(Div, &[scaled, six])?;
    call.cast(result, dtype).map(Built::One)
}

/// Which of the two piecewise linear gates.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum HardGate {
    Sigmoid,
    Swish,
}

/// `pow` with a number as exponent.
pub fn power_of_tensor(call: &mut Call<'_>) -> Outcome {
    let base = call.tensor("self")?;
    let exponent = call.number("exponent")?;
    let dtype = result_dtype(call, &[Operand::Tensor(base), Operand::Number(exponent)])?;
    let power = exponent.as_f64();
    if power == 2.0 {
        let base = call.cast(base, dtype)?;
        refuse_bool(dtype)?;
        return call.apply(Mul, &[base, base]).map(Built::One);
    }
    let compute = wide_dtype(dtype);
    let base = call.cast(base, compute)?;
    let result = match special_power(call, base, power, compute)? {
        Some(result) => result,
        None if compute.is_float() => {
            let exponent = call.scalar(exponent, compute)?;
            call.apply(Pow, &[base, exponent])?
        }
        None => return Err(Refusal::Unsupported(format!("integer power {power}"))),
    };
    call.cast(result, dtype).map(Built::One)
}

/// The powers that are cheaper and more exact in other ops.
fn special_power(call: &mut Call<'_>, base: ValueId, power: f64, compute: Dtype) -> Result<Option<ValueId>, Refusal> {
    let float = compute.is_float();
    if power == 0.0 {
        let shape = call.shape(base);
        call.full(Number::Int(1), compute, &shape).map(Some)
    } else if power == 1.0 {
        Ok(Some(base))
    } else if power == 3.0 && compute != Dtype::Bool {
        let square = call.apply(Mul, &[base, base])?;
        call.apply(Mul, &[square, base]).map(Some)
    } else if power == 0.5 && float {
        call.apply(Sqrt, &[base]).map(Some)
    } else if power == -0.5 && float {
        call.apply(Rsqrt, &[base]).map(Some)
    } else if power == -1.0 && float {
        call.apply(Reciprocal, &[base]).map(Some)
    } else if power == -2.0 && float {
        let square = call.apply(Mul, &[base, base])?;
        call.apply(Reciprocal, &[square]).map(Some)
    } else {
        Ok(None)
    }
}

/// `pow` with a tensor as exponent.
pub fn power(call: &mut Call<'_>) -> Outcome {
    let (base, exponent) = (call.operand("self")?, call.operand("exponent")?);
    let dtype = result_dtype(call, &[base, exponent])?;
    if !dtype.is_float() {
        return Err(Refusal::Unsupported(format!("power of {dtype}")));
    }
    arithmetic(call, Pow.into(), base, exponent, dtype)
}

/// `square`.
pub fn square(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    refuse_bool(call.dtype(operand))?;
    call.apply(Mul, &[operand, operand]).map(Built::One)
}

/// `addcmul` and `addcdiv`: self + value * tensor1 (* or /) tensor2.
pub fn add_combined(call: &mut Call<'_>, op: impl Into<Op>) -> Outcome {
    let operands = ["self", "tensor1", "tensor2"].map(|name| call.tensor(name));
    let [operand, first, second] = operands;
    let (operand, first, second) = (operand?, first?, second?);
    let value = call.number_or("value", Number::Int(1))?;
    let dtype = result_dtype(call, &[operand, first, second].map(Operand::Tensor))?;
    if !dtype.is_float() {
        return Err(Refusal::Unsupported(format!("a fused multiplication of {dtype}")));
    }
    let compute = wide_dtype(dtype);
    let [operand, first, second] = [operand, first, second].map(|value| call.cast(value, compute));
    let (operand, mut first, second) = (operand?, first?, second?);
    if value.as_f64() != 1.0 {
        let value = call.scalar(value, compute)?;
        first = call.apply(Mul, &[first, value])?;
    }
    let term = call.apply(op, &[first, second])?;
    let sum = call.apply(Add, &[operand, term])?;
    call.cast(sum, dtype).map(Built::One)
}

/// `prims.fma`: a * b + c. PyTorch rounds once; the device has no such instruction and rounds twice.
pub fn fused_multiply_add(call: &mut Call<'_>) -> Outcome {
    let [factor, other, addend] = ["a", "b", "c"].map(|name| call.operand(name));
    let operands = [factor?, other?, addend?];
    let dtype = result_dtype(call, &operands)?;
    if !dtype.is_float() {
        return Err(Refusal::Unsupported(format!("a fused multiplication of {dtype}")));
    }
    let compute = wide_dtype(dtype);
    let [factor, other, addend] = operands.map(|operand| materialized(call, operand, compute));
    let product = call.apply(Mul, &[factor?, other?])?;
    let sum = call.apply(Add, &[product, addend?])?;
    call.cast(sum, dtype).map(Built::One)
}

/// `lerp` with a number as weight, by the formula that is exact at the nearer end.
pub fn interpolate(call: &mut Call<'_>) -> Outcome {
    let (start, end, weight) = (call.tensor("self")?, call.tensor("end")?, call.number("weight")?.as_f64());
    let dtype = result_dtype(call, &[Operand::Tensor(start), Operand::Tensor(end)])?;
    let compute = wide_dtype(dtype);
    let (start, end) = (call.cast(start, compute)?, call.cast(end, compute)?);
    let difference = call.apply(Sub, &[end, start])?;
    let near_start = weight.abs() < 0.5;
    let factor = if near_start { weight } else { 1.0 - weight };
    let factor = call.scalar(Number::Float(factor), compute)?;
    let step = call.apply(Mul, &[difference, factor])?;
    let result = if near_start { call.apply(Add, &[start, step])? } else { call.apply(Sub, &[end, step])? };
    call.cast(result, dtype).map(Built::One)
}

/// `sigmoid`-like gates of two tensors: `glu` halves an axis and gates one half by the other.
pub fn gated_half(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let axis = call.axis(call.optional_int("dim")?.unwrap_or(-1), call.rank(operand))?;
    let size = call.shape(operand).get(axis).copied().unwrap_or(1);
    if size % 2 != 0 {
        return Err(Refusal::Malformed(format!("`glu` cannot halve a dimension of size {size}")));
    }
    let dtype = call.dtype(operand);
    let half = size / 2;
    let kept = call.slice(operand, axis, 0..half, 1)?;
    let gate = call.slice(operand, axis, half..size, 1)?;
    let (kept, gate) = (call.cast(kept, wide_dtype(dtype))?, call.cast(gate, wide_dtype(dtype))?);
    let gate = call.apply(Sigmoid, &[gate])?;
    let product = call.apply(Mul, &[kept, gate])?;
    call.cast(product, dtype).map(Built::One)
}

/// An operand as a tensor of this type.
pub fn materialized(call: &mut Call<'_>, operand: Operand, dtype: Dtype) -> Result<ValueId, Refusal> {
    match operand {
        Operand::Tensor(value) => call.cast(value, dtype),
        Operand::Number(number) => call.scalar(number, dtype),
    }
}

/// f32 for the 16-bit floats, whose arithmetic PyTorch does in f32; else the type itself.
pub fn wide_dtype(dtype: Dtype) -> Dtype {
    if dtype.is_half() { Dtype::F32 } else { dtype }
}

/// Floats as they are, others as f32.
pub fn as_float(call: &mut Call<'_>, value: ValueId) -> Result<ValueId, Refusal> {
    if call.dtype(value).is_float() { Ok(value) } else { call.cast(value, Dtype::F32) }
}

fn refuse_bool(dtype: Dtype) -> Result<(), Refusal> {
    if dtype == Dtype::Bool {
        return Err(Refusal::Unsupported("arithmetic on bool".to_owned()));
    }
    Ok(())
}
