//! Overloads that replace a part of a tensor: what in-place writes to views come down to.

use std::ops::Range;

use ir::ValueId;

use super::call::{Built, Call, Refusal};
use super::movement::{axis_of, join, position_in, slice_range};

type Outcome = Result<Built, Refusal>;

/// `slice_scatter`: the tensor with a range of an axis replaced.
pub fn slice_scatter(call: &mut Call<'_>) -> Outcome {
    let (operand, source) = (call.tensor("self")?, call.tensor("src")?);
    let (axis, range, step) = slice_range(call, operand)?;
    if step == 1 {
        return replace_range(call, operand, source, axis, range).map(Built::One);
    }
    replace_steps(call, operand, source, axis, range, step).map(Built::One)
}

/// Every `step`th position of a range of an axis replaced. The range is seen as blocks of `step`
/// positions, of which each first one is replaced; what is left of the last block comes by itself.
fn replace_steps(
    call: &mut Call<'_>,
    operand: ValueId,
    source: ValueId,
    axis: usize,
    range: Range<usize>,
    step: usize,
) -> Result<ValueId, Refusal> {
    let dtype = call.dtype(operand);
    let shape = call.shape(operand);
    let n_replaced = range.len().div_ceil(step);
    let mut wanted = shape.clone();
    wanted[axis] = n_replaced;
    let source = call.expand(source, &wanted)?;
    if n_replaced == 0 {
        return Ok(operand);
    }
    let n_whole = (shape[axis] - range.start) / step;
    let n_blocks = n_whole.min(n_replaced);
    let middle = range.start + n_blocks * step;
    let mut parts = Vec::new();
    if range.start > 0 {
        parts.push(call.slice(operand, axis, 0..range.start, 1)?);
    }
    if n_blocks > 0 {
        let mut blocks = shape.clone();
        blocks[axis] = n_blocks;
        blocks.insert(axis + 1, step);
        let kept = call.slice(operand, axis, range.start..middle, 1)?;
        let kept = call.reshape(kept, blocks.clone())?;
        let kept = call.slice(kept, axis + 1, 1..step, 1)?;
        blocks[axis + 1] = 1;
        let first = call.slice(source, axis, 0..n_blocks, 1)?;
        let first = call.reshape(first, blocks)?;
        let joined = join(call, &[first, kept], dtype, axis + 1)?;
        let mut merged = shape.clone();
        merged[axis] = n_blocks * step;
        parts.push(call.reshape(joined, merged)?);
    }
    let mut rest = middle;
    if n_replaced > n_blocks {
        parts.push(call.slice(source, axis, n_blocks..n_replaced, 1)?);
        rest += 1;
    }
    if rest < shape[axis] {
        parts.push(call.slice(operand, axis, rest..shape[axis], 1)?);
    }
    join(call, &parts, dtype, axis)
}

/// `select_scatter`: the tensor with one position of an axis replaced.
pub fn select_scatter(call: &mut Call<'_>) -> Outcome {
    let (operand, source) = (call.tensor("self")?, call.tensor("src")?);
    let axis = axis_of(call, operand, call.int("dim")?)?;
    let position = position_in(call.int("index")?, call.shape(operand)[axis])?;
    let mut shape = call.shape(source);
    if axis > shape.len() {
        return Err(Refusal::Malformed("the replaced slice has another rank".to_owned()));
    }
    shape.insert(axis, 1);
    let source = call.reshape(source, shape)?;
    replace_range(call, operand, source, axis, position..position + 1).map(Built::One)
}

fn replace_range(
    call: &mut Call<'_>,
    operand: ValueId,
    source: ValueId,
    axis: usize,
    range: Range<usize>,
) -> Result<ValueId, Refusal> {
    let dtype = call.dtype(operand);
    let size = call.shape(operand)[axis];
    let mut shape = call.shape(operand);
    shape[axis] = range.len();
    let source = call.expand(source, &shape)?;
    let mut parts = Vec::new();
    if range.start > 0 {
        parts.push(call.slice(operand, axis, 0..range.start, 1)?);
    }
    parts.push(source);
    if range.end < size {
        parts.push(call.slice(operand, axis, range.end..size, 1)?);
    }
    join(call, &parts, dtype, axis)
}
