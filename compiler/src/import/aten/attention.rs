//! Scaled dot-product attention, taken apart into products and a softmax.
//!
//! A row whose scores are all -inf gives zeros, as PyTorch's kernels do and as their core
//! decomposition spells it. Only a mask that the graph is given can make such rows: a causal mask
//! leaves every row its first column.

use ir::ops::{Add, Any, Eq, Exp, Iota, Le, Log, LogicalNot, Matmul, Mul, ReduceMax, ReduceSum, Softmax, Sub, Where};
use ir::types::{Axes, Shape};
use ir::{Dtype, ValueId};

use super::call::{Built, Call, Number, Refusal};
use super::contract::matmul;
use super::pointwise::wide_dtype;

type Outcome = Result<Built, Refusal>;

/// The overloads with one result.
pub fn attention(call: &mut Call<'_>) -> Outcome {
    attend(call).map(|(output, _)| Built::One(output))
}

/// The overloads that also give the logarithm of each row's sum of exponentials.
pub fn attention_with_logsumexp(call: &mut Call<'_>) -> Outcome {
    let (output, scores) = attend(call)?;
    let logsumexp = if call.uses_result(1) { Some(logsumexp(call, scores)?) } else { None };
    Ok(Built::Many(vec![Some(output), logsumexp]))
}

/// The attended values and the masked scores they come from.
fn attend(call: &mut Call<'_>) -> Result<(ValueId, ValueId), Refusal> {
    let (query, key, value) = (call.tensor("query")?, call.tensor("key")?, call.tensor("value")?);
    let dtype = call.dtype(query);
    let rank = call.rank(query);
    if !dtype.is_float() || rank < 2 || call.rank(key) != rank || call.rank(value) != rank {
        return Err(Refusal::Malformed(format!("attention of {}", call.ty(query))));
    }
    if call.number_or("dropout_p", Number::Float(0.0))?.as_f64() != 0.0 {
        return Err(Refusal::Unsupported("attention with dropout draws random numbers".to_owned()));
    }
    let n_features = call.shape(query)[rank - 1];
    let scale = call.number_or("scale", Number::Float(1.0 / (n_features as f64).sqrt()))?;
    let query_shape = call.shape(query);
    let (key, value) = (shared_heads(call, key, &query_shape)?, shared_heads(call, value, &query_shape)?);
    let compute = wide_dtype(dtype);
    let product = Matmul { transpose_lhs: false, transpose_rhs: true, dtype: compute };
    let scores = call.apply(product, &[query, key])?;
    let scale = call.scalar(scale, compute)?;
    let scores = call.apply(Mul, &[scores, scale])?;
    let (scores, has_mask) = masked(call, scores)?;
    let weights = if has_mask { safe_softmax_rows(call, scores)? } else { call.apply(Softmax, &[scores])? };
    // PyTorch's kernels normalize after the product, in f32; 16-bit weights could be less exact.
    let value = call.cast(value, compute)?;
    let output = matmul(call, weights, value, compute)?;
    Ok((call.cast(output, dtype)?, scores))
}

/// Keys or values with as many heads as the query: each is shared by a group of query heads.
fn shared_heads(call: &mut Call<'_>, value: ValueId, query: &Shape) -> Result<ValueId, Refusal> {
    let shape = call.shape(value);
    let rank = shape.len();
    let head_axis = rank.checked_sub(3);
    let Some(head_axis) = head_axis.filter(|&axis| shape[axis] != query[axis]) else { return Ok(value) };
    let (n_heads, n_shared) = (query[head_axis], shape[head_axis]);
    if n_shared == 0 || n_heads % n_shared != 0 {
        return Err(Refusal::Malformed(format!("{n_heads} query heads over {n_shared} shared ones")));
    }
    let (lead, tail) = (&shape[..=head_axis], &shape[head_axis + 1..]);
    let split: Shape = lead.iter().copied().chain([1]).chain(tail.iter().copied()).collect();
    let mut repeated = split.clone();
    repeated[head_axis + 1] = n_heads / n_shared;
    let mut merged = shape.clone();
    merged[head_axis] = n_heads;
    let value = call.reshape(value, split)?;
    let value = call.expand(value, &repeated)?;
    call.reshape(value, merged)
}

/// Scores plus the given mask, or -inf above the diagonal; and whether a mask was given.
fn masked(call: &mut Call<'_>, scores: ValueId) -> Result<(ValueId, bool), Refusal> {
    let dtype = call.dtype(scores);
    let mask = call.optional_tensor("attn_mask")?;
    let scores = if call.flag_or("is_causal", false)? { causal(call, scores)? } else { scores };
    let Some(mask) = mask else { return Ok((scores, false)) };
    let mask = if call.dtype(mask) == Dtype::Bool {
        let zero = call.scalar(Number::Float(0.0), dtype)?;
        let excluded = call.scalar(Number::Float(f64::NEG_INFINITY), dtype)?;
        call.apply(Where, &[mask, zero, excluded])?
    } else {
        call.cast(mask, dtype)?
    };
    Ok((call.apply(Add, &[scores, mask])?, true))
}

fn causal(call: &mut Call<'_>, scores: ValueId) -> Result<ValueId, Refusal> {
    let shape = call.shape(scores);
    let (n_rows, n_columns) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    let rows = call.apply(Iota { dtype: Dtype::I32, length: n_rows, start: 0, step: 1 }, &[])?;
    let rows = call.reshape(rows, [n_rows, 1])?;
    let columns = call.apply(Iota { dtype: Dtype::I32, length: n_columns, start: 0, step: 1 }, &[])?;
    let allowed = call.apply(Le, &[columns, rows])?;
    let excluded = call.scalar(Number::Float(f64::NEG_INFINITY), call.dtype(scores))?;
    call.apply(Where, &[allowed, scores, excluded])
}

/// Softmax over the last axis, with zeros in rows that are -inf throughout.
pub fn safe_softmax_rows(call: &mut Call<'_>, scores: ValueId) -> Result<ValueId, Refusal> {
    let dtype = call.dtype(scores);
    let axes = last_axis(call, scores);
    let weights = call.apply(Softmax, &[scores])?;
    let excluded = call.scalar(Number::Float(f64::NEG_INFINITY), dtype)?;
    let is_excluded = call.apply(Eq, &[scores, excluded])?;
    let is_kept = call.apply(LogicalNot, &[is_excluded])?;
    let has_kept = call.apply(Any { axes }, &[is_kept])?;
    let is_empty = call.apply(LogicalNot, &[has_kept])?;
    let zero = call.scalar(Number::Int(0), dtype)?;
    call.apply(Where, &[is_empty, zero, weights])
}

fn logsumexp(call: &mut Call<'_>, scores: ValueId) -> Result<ValueId, Refusal> {
    let axes = last_axis(call, scores);
    let largest = call.apply(ReduceMax { axes: axes.clone() }, &[scores])?;
    let shifted = call.apply(Sub, &[scores, largest])?;
    let exponentials = call.apply(Exp, &[shifted])?;
    let sum = call.apply(ReduceSum { axes }, &[exponentials])?;
    let logarithm = call.apply(Log, &[sum])?;
    let result = call.apply(Add, &[logarithm, largest])?;
    // A row with nothing to attend to gives 0 in PyTorch, whose gradient takes it for a number.
    let dtype = call.dtype(scores);
    let nothing = call.scalar(Number::Float(f64::NEG_INFINITY), dtype)?;
    let is_empty = call.apply(Eq, &[largest, nothing])?;
    let zero = call.scalar(Number::Int(0), dtype)?;
    let result = call.apply(Where, &[is_empty, zero, result])?;
    let mut shape = call.shape(result);
    shape.pop();
    call.reshape(result, shape)
}

fn last_axis(call: &Call<'_>, value: ValueId) -> Axes {
    Axes::from_elem(call.rank(value) - 1, 1)
}
