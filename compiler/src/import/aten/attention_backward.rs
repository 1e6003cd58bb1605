//! Gradients of scaled dot-product attention, taken apart into products.
//!
//! The weights are computed again from the log-sum-exp that the forward gave. They are as large as
//! the scores, which a fused form would not keep.

use ir::ops::{Add, Exp, Iota, Le, Matmul, Mul, ReduceSum, Sub, Where};
use ir::types::{Axes, Shape};
use ir::{Dtype, ValueId};

use super::call::{Built, Call, Number, Refusal};
use super::pointwise::wide_dtype;

type Outcome = Result<Built, Refusal>;

/// Gradients of query, key and value of the overloads that give a log-sum-exp.
///
/// Each row's sum of weight x gradient is the sum of output x gradient of the output, which is
/// shorter; a row with nothing to attend to has weights of exp(-inf).
pub fn attention_backward(call: &mut Call<'_>) -> Outcome {
    let operands = Operands::of(call)?;
    let (gradient, output) = (call.tensor("grad_out")?, call.tensor("out")?);
    let logsumexp = call.tensor("logsumexp")?;
    if call.rank(output) != call.rank(operands.query) {
        return Err(Refusal::Malformed(format!("the gradient of attention that gives {}", call.ty(output))));
    }
    let (dtype, compute) = (operands.dtype, wide_dtype(operands.dtype));
    let scores = operands.scores(call)?;
    let scores = masked(call, scores)?;
    let logsumexp = logsumexp_column(call, logsumexp, scores)?;
    let shifted = call.apply(Sub, &[scores, logsumexp])?;
    let weights = call.apply(Exp, &[shifted])?;
    let [gradient, output] = [call.cast(gradient, compute)?, call.cast(output, compute)?];
    let [query, key, value] = [operands.query, operands.key, operands.value];
    let [query, key, value] = [call.cast(query, compute)?, call.cast(key, compute)?, call.cast(value, compute)?];
    let product = |transpose_lhs, transpose_rhs| Matmul { transpose_lhs, transpose_rhs, dtype: compute };
    let value_gradient = call.apply(product(true, false), &[weights, gradient])?;
    let weight_gradient = call.apply(product(false, true), &[gradient, value])?;
    let axes = last_axis(call, output);
    let terms = call.apply(Mul, &[gradient, output])?;
    let row_sum = call.apply(ReduceSum { axes }, &[terms])?;
    let difference = call.apply(Sub, &[weight_gradient, row_sum])?;
    let score_gradient = call.apply(Mul, &[weights, difference])?;
    let scale = call.scalar(operands.scale, compute)?;
    let score_gradient = call.apply(Mul, &[score_gradient, scale])?;
    let query_gradient = call.apply(product(false, false), &[score_gradient, key])?;
    let key_gradient = call.apply(product(true, false), &[score_gradient, query])?;
    let key_gradient = summed_heads(call, key_gradient, &operands.given_key)?;
    let value_gradient = summed_heads(call, value_gradient, &operands.given_value)?;
    let gradients = [query_gradient, key_gradient, value_gradient];
    gradients
        .into_iter()
        .map(|gradient| call.cast(gradient, dtype).map(Some))
        .collect::<Result<_, _>>()
        .map(Built::Many)
}

/// What attention is computed from: keys and values have as many heads as the query.
struct Operands {
    query: ValueId,
    key: ValueId,
    value: ValueId,
    /// Shapes of key and value as they are given.
    given_key: Shape,
    given_value: Shape,
    scale: Number,
    /// Element type of the query and of the result.
    dtype: Dtype,
}

impl Operands {
    fn of(call: &mut Call<'_>) -> Result<Operands, Refusal> {
        let (query, key, value) = (call.tensor("query")?, call.tensor("key")?, call.tensor("value")?);
        let dtype = call.dtype(query);
        let rank = call.rank(query);
        if !dtype.is_float() || rank < 2 || call.rank(key) != rank || call.rank(value) != rank {
            return Err(Refusal::Malformed(format!("attention of {}", call.ty(query))));
        }
        if call.number_or("dropout_p", Number::Float(0.0))?.as_f64() != 0.0 {
            return Err(Refusal::Unsupported("attention with dropout draws random numbers".to_owned()));
        }
        let query_shape = call.shape(query);
        let scale = call.number_or("scale", Number::Float(1.0 / (query_shape[rank - 1] as f64).sqrt()))?;
        let (given_key, given_value) = (call.shape(key), call.shape(value));
        let (key, value) = (shared_heads(call, key, &query_shape)?, shared_heads(call, value, &query_shape)?);
        Ok(Operands { query, key, value, given_key, given_value, scale, dtype })
    }

    /// The scaled products of queries and keys, in f32 for 16-bit operands.
    fn scores(&self, call: &mut Call<'_>) -> Result<ValueId, Refusal> {
        let compute = wide_dtype(self.dtype);
        let product = Matmul { transpose_lhs: false, transpose_rhs: true, dtype: compute };
        let scores = call.apply(product, &[self.query, self.key])?;
        let scale = call.scalar(self.scale, compute)?;
        call.apply(Mul, &[scores, scale])
    }
}

/// One number for each row of the scores.
///
/// PyTorch's kernel steps through the tensor by its first strides. Its own decomposition of the
/// forward gives it the weights instead, [.., rows, columns]: then it reads the first of each row.
fn logsumexp_column(call: &mut Call<'_>, logsumexp: ValueId, scores: ValueId) -> Result<ValueId, Refusal> {
    let compute = call.dtype(scores);
    let logsumexp = call.cast(logsumexp, compute)?;
    let rank = call.rank(scores);
    if call.rank(logsumexp) == rank {
        return call.slice(logsumexp, rank - 1, 0..1, 1);
    }
    let column: Shape = call.shape(logsumexp).iter().copied().chain([1]).collect();
    call.reshape(logsumexp, column)
}

/// A gradient with one part for each query head, of keys or values that groups of heads share.
fn summed_heads(call: &mut Call<'_>, gradient: ValueId, given: &Shape) -> Result<ValueId, Refusal> {
    let shape = call.shape(gradient);
    let Some(head_axis) = shape.len().checked_sub(3).filter(|&axis| shape[axis] != given[axis]) else {
        return Ok(gradient);
    };
    let mut split = shape.clone();
    split[head_axis] = given[head_axis];
    split.insert(head_axis + 1, shape[head_axis] / given[head_axis]);
    let gradient = call.reshape(gradient, split)?;
    let sum = call.apply(ReduceSum { axes: Axes::from_elem(head_axis + 1, 1) }, &[gradient])?;
    call.reshape(sum, given.iter().copied())
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

/// Scores plus the given mask, -inf above the diagonal where they are causal.
fn masked(call: &mut Call<'_>, scores: ValueId) -> Result<ValueId, Refusal> {
    let dtype = call.dtype(scores);
    let mask = call.optional_tensor("attn_mask")?;
    let scores = if call.flag_or("is_causal", false)? { causal(call, scores)? } else { scores };
    let Some(mask) = mask else { return Ok(scores) };
    let mask = if call.dtype(mask) == Dtype::Bool {
        let zero = call.scalar(Number::Float(0.0), dtype)?;
        let excluded = call.scalar(Number::Float(f64::NEG_INFINITY), dtype)?;
        call.apply(Where, &[mask, zero, excluded])?
    } else {
        call.cast(mask, dtype)?
    };
    call.apply(Add, &[scores, mask])
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

fn last_axis(call: &Call<'_>, value: ValueId) -> Axes {
    Axes::from_elem(call.rank(value) - 1, 1)
}
