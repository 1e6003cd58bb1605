//! Overloads that make tensors of numbers.

use std::sync::Arc;

use ir::Dtype;
use ir::ops::{Constant, Iota};
use smallvec::smallvec;

use super::call::{Built, Call, Number, Refusal};

type Outcome = Result<Built, Refusal>;

/// Elements of a stored range of fractions.
const MAX_STORED: usize = 1 << 14;

/// `full`.
pub fn full(call: &mut Call<'_>) -> Outcome {
    let value = call.number("fill_value")?;
    filled(call, value, value.default_dtype())
}

/// `ones`, `zeros` and `empty`, whose elements may be anything and are zero here.
pub fn constant(call: &mut Call<'_>, value: i64) -> Outcome {
    filled(call, Number::Int(value), Dtype::F32)
}

fn filled(call: &mut Call<'_>, value: Number, default: Dtype) -> Outcome {
    let shape = call.sizes("size")?;
    let dtype = call.optional_dtype("dtype")?.unwrap_or(default);
    call.full(value, dtype, &shape).map(Built::One)
}

/// `full_like`.
pub fn full_like(call: &mut Call<'_>) -> Outcome {
    let value = call.number("fill_value")?;
    filled_like(call, value)
}

/// `fill`.
pub fn fill(call: &mut Call<'_>) -> Outcome {
    let value = call.number("value")?;
    filled_like(call, value)
}

/// `ones_like`, `zeros_like` and `empty_like`.
pub fn constant_like(call: &mut Call<'_>, value: i64) -> Outcome {
    filled_like(call, Number::Int(value))
}

fn filled_like(call: &mut Call<'_>, value: Number) -> Outcome {
    let like = call.tensor("self")?;
    let dtype = call.optional_dtype("dtype")?.unwrap_or(call.dtype(like));
    let shape = call.shape(like);
    call.full(value, dtype, &shape).map(Built::One)
}

/// `new_full`.
pub fn new_full(call: &mut Call<'_>) -> Outcome {
    let value = call.number("fill_value")?;
    let default = call.tensor("self").map(|like| call.dtype(like))?;
    filled(call, value, default)
}

/// `new_ones`, `new_zeros` and `new_empty`.
pub fn new_constant(call: &mut Call<'_>, value: i64) -> Outcome {
    let default = call.tensor("self").map(|like| call.dtype(like))?;
    filled(call, Number::Int(value), default)
}

/// `scalar_tensor`: f32 unless a type is given.
pub fn scalar_tensor(call: &mut Call<'_>) -> Outcome {
    let value = call.number("s")?;
    let dtype = call.optional_dtype("dtype")?.unwrap_or(Dtype::F32);
    call.scalar(value, dtype).map(Built::One)
}

/// `arange`: integers unless a bound is a float or a type is given.
pub fn arange(call: &mut Call<'_>) -> Outcome {
    let start = call.number_or("start", Number::Int(0))?;
    let end = call.number("end")?;
    let step = call.number_or("step", Number::Int(1))?;
    let numbers = [start, end, step];
    let is_float = numbers.iter().any(|number| matches!(number, Number::Float(_)));
    let default = if is_float { Dtype::F32 } else { Dtype::I64 };
    let dtype = call.optional_dtype("dtype")?.unwrap_or(default);
    let [start, end, step] = numbers.map(Number::as_f64);
    let length = ((end - start) / step).ceil();
    if !length.is_finite() || length < 0.0 || length >= super::call::MAX_ELEMENTS as f64 {
        return Err(Refusal::Malformed(format!("a range from {start} to {end} by {step}")));
    }
    let length = length as usize;
    let is_integral = |number: f64| number.trunc() == number && number.abs() < (1u64 << 53) as f64;
    if is_integral(start) && is_integral(step) {
        return call.apply(Iota { dtype, length, start: start as i64, step: step as i64 }, &[]).map(Built::One);
    }
    if dtype != Dtype::F32 || length > MAX_STORED {
        return Err(Refusal::Unsupported(format!("a range of {length} fractions as {dtype}")));
    }
    let element = |position: usize| ((start + position as f64 * step) as f32).to_le_bytes();
    let data: Arc<[u8]> = (0..length).flat_map(element).collect();
    call.apply(Constant { dtype, shape: smallvec![length], data }, &[]).map(Built::One)
}
