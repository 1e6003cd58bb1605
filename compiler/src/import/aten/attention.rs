//! Scaled dot-product attention, and the softmax that it is taken apart into.
//!
//! A row whose scores are all -inf gives zeros, as PyTorch's kernels do and as their core
//! decomposition spells it.

use ir::ValueId;
use ir::ops::{Any, Attention, EmptyRow, Eq, LogicalNot, Softmax, Where};
use ir::types::{Axes, F32Bits};
use smallvec::SmallVec;

use super::call::{Built, Call, Number, Refusal};

type Outcome = Result<Built, Refusal>;

/// The overloads with one result.
pub fn attention(call: &mut Call<'_>) -> Outcome {
    let (op, operands) = described(call)?;
    Ok(Built::One(call.apply(op, &operands)?))
}

/// The overloads that also give the logarithm of each row's sum of exponentials.
pub fn attention_with_logsumexp(call: &mut Call<'_>) -> Outcome {
    let (op, operands) = described(call)?;
    if !call.uses_result(1) {
        return Ok(Built::Many(vec![Some(call.apply(op, &operands)?), None]));
    }
    let results = call.apply_many(Attention { logsumexp: true, ..op }, &operands)?;
    Ok(Built::Many(results.into_iter().map(Some).collect()))
}

/// The op and its operands: query, key, value and perhaps a mask.
fn described(call: &mut Call<'_>) -> Result<(Attention, SmallVec<[ValueId; 4]>), Refusal> {
    let mut operands: SmallVec<[ValueId; 4]> = SmallVec::new();
    for name in ["query", "key", "value"] {
        operands.push(call.tensor(name)?);
    }
    let query = operands[0];
    let (dtype, rank) = (call.dtype(query), call.rank(query));
    if !dtype.is_float() || rank < 2 {
        return Err(Refusal::Malformed(format!("attention of {}", call.ty(query))));
    }
    if call.number_or("dropout_p", Number::Float(0.0))?.as_f64() != 0.0 {
        return Err(Refusal::Unsupported("attention with dropout draws random numbers".to_owned()));
    }
    let n_features = call.shape(query)[rank - 1];
    let scale = call.number_or("scale", Number::Float(1.0 / (n_features as f64).sqrt()))?.as_f64();
    operands.extend(call.optional_tensor("attn_mask")?);
    let causal = call.flag_or("is_causal", false)?.then_some(0);
    let scale = F32Bits::new(scale as f32);
    Ok((Attention { scale, causal, empty: EmptyRow::Zero, logsumexp: false, dtype }, operands))
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

fn last_axis(call: &Call<'_>, value: ValueId) -> Axes {
    Axes::from_elem(call.rank(value) - 1, 1)
}
