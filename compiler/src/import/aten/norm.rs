//! Normalizations.
//!
//! Where operands are of several element types, the statistics and the scaling are computed in the
//! widest and rounded once.

use ir::ops::{Add, Div, LayerNorm, Mul, RmsNorm, Sqrt, Sub};
use ir::types::{F32Bits, Shape};
use ir::{Dtype, ValueId};
use smallvec::SmallVec;

use super::call::{Built, Call, Number, Refusal};
use super::pointwise::wide_dtype;

type Outcome = Result<Built, Refusal>;

/// `native_layer_norm` and `layer_norm`: the normalized tensor, mean and reciprocal deviation.
pub fn layer_norm(call: &mut Call<'_>) -> Result<[ValueId; 3], Refusal> {
    let operand = call.tensor("input")?;
    let (rows, kept) = as_rows(call, operand)?;
    let eps = call.number_or("eps", Number::Float(1e-5))?;
    let vectors = [call.optional_tensor("weight")?, call.optional_tensor("bias")?];
    let (shape, dtype) = (call.shape(operand), call.dtype(operand));
    let is_mixed = vectors.into_iter().flatten().any(|vector| call.dtype(vector) != dtype);
    let rows = if is_mixed { call.cast(rows, Dtype::F32)? } else { rows };
    let results = normalize_rows(call, rows, vectors, eps)?;
    let statistics: Shape = (0..shape.len()).map(|axis| if axis < kept { shape[axis] } else { 1 }).collect();
    let normalized = call.reshape(results[0], shape)?;
    let normalized = call.cast(normalized, dtype)?;
    let statistic = |call: &mut Call<'_>, value| {
        let value = call.reshape(value, statistics.iter().copied())?;
        call.cast(value, dtype)
    };
    let (mean, deviation) = (statistic(call, results[1])?, statistic(call, results[2])?);
    Ok([normalized, mean, deviation])
}

/// `native_layer_norm`: three results.
pub fn native_layer_norm(call: &mut Call<'_>) -> Outcome {
    layer_norm(call).map(|results| Built::Many(results.map(Some).to_vec()))
}

/// `layer_norm`: the normalized tensor alone.
pub fn plain_layer_norm(call: &mut Call<'_>) -> Outcome {
    layer_norm(call).map(|[normalized, _, _]| Built::One(normalized))
}

/// The IR's op over the last axis; weight without bias, or bias without weight, get their neutral
/// partner only where the op needs it.
fn normalize_rows(
    call: &mut Call<'_>,
    rows: ValueId,
    [weight, bias]: [Option<ValueId>; 2],
    eps: Number,
) -> Result<SmallVec<[ValueId; 1]>, Refusal> {
    let dtype = call.dtype(rows);
    let n_columns = call.shape(rows)[call.rank(rows) - 1];
    let mut operands = vec![rows];
    if weight.is_some() || bias.is_some() {
        operands.push(match weight {
            Some(weight) => column_vector(call, weight, dtype, n_columns)?,
            None => call.full(Number::Int(1), dtype, &[n_columns])?,
        });
    }
    if let Some(bias) = bias {
        operands.push(column_vector(call, bias, dtype, n_columns)?);
    }
    call.apply_many(LayerNorm { eps: F32Bits::new(eps.as_f64() as f32) }, &operands)
}

fn column_vector(call: &mut Call<'_>, vector: ValueId, dtype: Dtype, n_columns: usize) -> Result<ValueId, Refusal> {
    let vector = call.reshape(vector, [n_columns])?;
    call.cast(vector, dtype)
}

/// The operand with its normalized axes merged into one, and how many axes are left alone.
fn as_rows(call: &mut Call<'_>, operand: ValueId) -> Result<(ValueId, usize), Refusal> {
    let shape = call.shape(operand);
    let normalized = call.sizes("normalized_shape")?;
    let kept = shape.len().checked_sub(normalized.len());
    let kept = kept.filter(|&kept| !normalized.is_empty() && shape[kept..] == normalized[..]);
    let Some(kept) = kept else {
        return Err(Refusal::Malformed(format!("normalized shape {normalized:?} does not end {shape:?}")));
    };
    if !call.dtype(operand).is_float() {
        return Err(Refusal::Malformed(format!("a normalization of {}", call.dtype(operand))));
    }
    let merged: Shape = shape[..kept].iter().copied().chain([normalized.iter().product()]).collect();
    Ok((call.reshape(operand, merged)?, kept))
}

/// `rms_norm`: without eps, that of the operand's type.
pub fn rms_norm(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("input")?;
    let dtype = call.dtype(operand);
    let shape = call.shape(operand);
    let (rows, _) = as_rows(call, operand)?;
    let default = Number::Float(dtype.epsilon().unwrap_or(0.0));
    let eps = call.number_or("eps", default)?.as_f64() as f32;
    let weight = call.optional_tensor("weight")?;
    let n_columns = call.shape(rows)[call.rank(rows) - 1];
    let wide = match weight {
        Some(weight) if call.dtype(weight) != dtype => Dtype::F32,
        Some(_) | None => dtype,
    };
    let mut operands = vec![call.cast(rows, wide)?];
    if let Some(weight) = weight {
        operands.push(column_vector(call, weight, wide, n_columns)?);
    }
    let normalized = call.apply(RmsNorm { eps: F32Bits::new(eps) }, &operands)?;
    let normalized = call.cast(normalized, dtype)?;
    call.reshape(normalized, shape).map(Built::One)
}

/// `native_group_norm`: rows of a group's channels and positions, then a factor and an offset per
/// channel.
pub fn group_norm(call: &mut Call<'_>) -> Outcome {
    normalize_groups(call, "group").map(|results| Built::Many(results.map(Some).to_vec()))
}

/// `group_norm`: the normalized tensor alone.
pub fn plain_group_norm(call: &mut Call<'_>) -> Outcome {
    normalize_groups(call, "num_groups").map(|[normalized, _, _]| Built::One(normalized))
}

fn normalize_groups(call: &mut Call<'_>, n_groups: &'static str) -> Result<[ValueId; 3], Refusal> {
    let operand = call.tensor("input")?;
    let (shape, dtype) = (call.shape(operand), call.dtype(operand));
    let n_groups = usize::try_from(call.int(n_groups)?).unwrap_or(0);
    let eps = call.number_or("eps", Number::Float(1e-5))?;
    if shape.len() < 2 || n_groups == 0 || shape[1] % n_groups != 0 {
        return Err(Refusal::Malformed(format!("{n_groups} groups of the channels of {shape:?}")));
    }
    let row = shape[1] / n_groups * shape[2..].iter().product::<usize>();
    let rows = call.reshape(operand, [shape[0], n_groups, row])?;
    let rows = call.cast(rows, wide_dtype(dtype))?;
    let results = normalize_rows(call, rows, [None, None], eps)?;
    let mut normalized = call.reshape(results[0], shape.iter().copied())?;
    normalized = scale_channels(call, normalized, dtype)?;
    let statistic = |call: &mut Call<'_>, value| {
        let value = call.reshape(value, [shape[0], n_groups])?;
        call.cast(value, dtype)
    };
    let (mean, deviation) = (statistic(call, results[1])?, statistic(call, results[2])?);
    Ok([normalized, mean, deviation])
}

/// Times `weight`, plus `bias`, each one element per channel of axis 1; then of type `dtype`.
fn scale_channels(call: &mut Call<'_>, value: ValueId, dtype: Dtype) -> Result<ValueId, Refusal> {
    let mut value = value;
    if let Some(weight) = call.optional_tensor("weight")? {
        let weight = channel_vector(call, weight, value)?;
        value = call.apply(Mul, &[value, weight])?;
    }
    if let Some(bias) = call.optional_tensor("bias")? {
        let bias = channel_vector(call, bias, value)?;
        value = call.apply(Add, &[value, bias])?;
    }
    call.cast(value, dtype)
}

/// One element per channel, broadcast along all axes of `like` but axis 1.
fn channel_vector(call: &mut Call<'_>, vector: ValueId, like: ValueId) -> Result<ValueId, Refusal> {
    let vector = call.cast(vector, call.dtype(like))?;
    let n_channels = call.ty(vector).n_elements();
    let n_after = call.rank(like).saturating_sub(2);
    call.reshape(vector, [n_channels].into_iter().chain(std::iter::repeat_n(1, n_after)))
}

/// Batch normalization with running statistics: nothing is updated, the other results are empty.
pub fn batch_norm(call: &mut Call<'_>) -> Outcome {
    let normalized = normalize_channels(call)?;
    let empty = call.full(Number::Int(0), call.dtype(normalized), &[0])?;
    Ok(Built::Many(vec![Some(normalized), Some(empty), Some(empty)]))
}

/// `batch_norm` where it does not train: the normalized tensor alone.
pub fn plain_batch_norm(call: &mut Call<'_>) -> Outcome {
    if call.flag_or("training", false)? {
        return Err(Refusal::Unsupported("batch normalization in training: export after model.eval()".to_owned()));
    }
    normalize_channels(call).map(Built::One)
}

fn normalize_channels(call: &mut Call<'_>) -> Result<ValueId, Refusal> {
    let operand = call.tensor("input")?;
    let dtype = call.dtype(operand);
    if call.rank(operand) < 2 || !dtype.is_float() {
        return Err(Refusal::Malformed(format!("a batch normalization of {}", call.ty(operand))));
    }
    let (mean, variance) = (call.tensor("running_mean")?, call.tensor("running_var")?);
    let compute = wide_dtype(dtype);
    let wide = call.cast(operand, compute)?;
    let eps = call.number("eps")?;
    let eps = call.scalar(eps, compute)?;
    let mean = channel_vector(call, mean, wide)?;
    let variance = channel_vector(call, variance, wide)?;
    let shifted = call.apply(Add, &[variance, eps])?;
    let deviation = call.apply(Sqrt, &[shifted])?;
    let centred = call.apply(Sub, &[wide, mean])?;
    let normalized = call.apply(Div, &[centred, deviation])?;
    scale_channels(call, normalized, dtype)
}

/// Dropout where it does nothing: in evaluation, or with probability 0.
pub fn dropout(call: &mut Call<'_>) -> Result<ValueId, Refusal> {
    let operand = call.tensor("input")?;
    let probability = call.number_or("p", Number::Float(0.5))?.as_f64();
    if call.flag_or("train", true)? && probability != 0.0 {
        return Err(Refusal::Unsupported("dropout in training draws random numbers".to_owned()));
    }
    Ok(operand)
}

/// `native_dropout`: the tensor and a mask of ones.
pub fn native_dropout(call: &mut Call<'_>) -> Outcome {
    let operand = dropout(call)?;
    let shape = call.shape(operand);
    let mask = call.full(Number::Bool(true), Dtype::Bool, &shape)?;
    Ok(Built::Many(vec![Some(operand), Some(mask)]))
}

/// `dropout`.
pub fn plain_dropout(call: &mut Call<'_>) -> Outcome {
    dropout(call).map(Built::One)
}
