//! Overloads that take elements from places that a tensor names.

use ir::Dtype;
use ir::ValueId;
use ir::ops::{Gather, GatherRows, Index, ScatterRows, Where};
use ir::types::{Axes, Shape};

use super::call::{Built, Call, Refusal};

type Outcome = Result<Built, Refusal>;

/// `embedding`: padding and scaling concern its gradient alone.
pub fn embedding(call: &mut Call<'_>) -> Outcome {
    let (weight, indices) = (call.tensor("weight")?, call.tensor("indices")?);
    call.apply(GatherRows, &[weight, indices]).map(Built::One)
}

/// `index`: an index tensor or none for each leading axis.
pub fn index(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let indices = call.optional_tensors("indices")?;
    let mut axes = Axes::new();
    let mut operands = vec![operand];
    for (axis, index) in indices.iter().enumerate() {
        let Some(index) = *index else { continue };
        refuse_mask(call, index)?;
        axes.push(axis);
        operands.push(index);
    }
    if axes.is_empty() {
        return Ok(Built::One(operand));
    }
    call.apply(Index { axes }, &operands).map(Built::One)
}

/// `index_put`: values at one index tensor on one axis.
pub fn index_put(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    if call.flag_or("accumulate", false)? {
        return Err(Refusal::Unsupported("adding at indices".to_owned()));
    }
    let indices = call.optional_tensors("indices")?;
    let mut given = indices.iter().enumerate().filter_map(|(axis, index)| Some((axis, (*index)?)));
    let (Some((axis, index)), None) = (given.next(), given.next()) else {
        return Err(Refusal::Unsupported("writing at indices of several axes".to_owned()));
    };
    if matches!(call.dtype(index), Dtype::Bool | Dtype::U8) {
        return put_masked(call, operand, axis, index);
    }
    let (shape, index_shape) = (call.shape(operand), call.shape(index));
    if axis >= shape.len() {
        return Err(Refusal::Malformed(format!("an index for axis {axis} of {} axes", shape.len())));
    }
    // The index's axes stand for the indexed one in the values.
    let indexed: Shape = [&shape[..axis], &index_shape, &shape[axis + 1..]].concat().into();
    let values = call.tensor("values")?;
    let values = call.expand(values, &indexed)?;
    let length = call.ty(index).n_elements();
    put_rows(call, operand, axis, (index, length), values)
}

/// `index_put` of one element where a mask of the axes from `axis` on is true.
fn put_masked(call: &mut Call<'_>, operand: ValueId, axis: usize, mask: ValueId) -> Outcome {
    let value = call.tensor("values")?;
    if call.ty(value).n_elements() != 1 {
        return Err(Refusal::Unsupported("writing a tensor at a mask".to_owned()));
    }
    let (shape, mut mask_shape) = (call.shape(operand), call.shape(mask));
    let end = axis + mask_shape.len();
    if shape.get(axis..end) != Some(&mask_shape[..]) {
        return Err(Refusal::Malformed(format!("a mask of {} for a tensor of {}", call.ty(mask), call.ty(operand))));
    }
    mask_shape.resize(mask_shape.len() + shape.len() - end, 1);
    let mask = call.cast(mask, Dtype::Bool)?;
    let mask = call.reshape(mask, mask_shape)?;
    let value = call.reshape(value, [])?;
    call.apply(Where, &[mask, value, operand]).map(Built::One)
}

/// `index_copy`: slices of one axis.
pub fn index_copy(call: &mut Call<'_>) -> Outcome {
    let (operand, index, source) = (call.tensor("self")?, call.tensor("index")?, call.tensor("source")?);
    let rank = call.rank(operand);
    if rank == 0 || call.rank(index) > 1 {
        return Err(Refusal::Unsupported("copying into a tensor of rank 0".to_owned()));
    }
    let axis = call.axis(call.int("dim")?, rank)?;
    let length = call.ty(index).n_elements();
    put_rows(call, operand, axis, (index, length), source)
}

fn put_rows(
    call: &mut Call<'_>,
    operand: ValueId,
    axis: usize,
    (index, length): (ValueId, usize),
    values: ValueId,
) -> Outcome {
    let mut shape = call.shape(operand);
    shape[axis] = length;
    let index = call.reshape(index, [length])?;
    let values = call.reshape(values, shape)?;
    call.apply(ScatterRows { axis }, &[operand, index, values]).map(Built::One)
}

fn refuse_mask(call: &Call<'_>, index: ValueId) -> Result<(), Refusal> {
    let dtype = call.dtype(index);
    if matches!(dtype, Dtype::Bool | Dtype::U8) {
        return Err(Refusal::Unsupported("an index by a mask, whose result has no static shape".to_owned()));
    }
    Ok(())
}

/// `index_select`: positions of one axis.
pub fn index_select(call: &mut Call<'_>) -> Outcome {
    let (operand, index) = (call.tensor("self")?, call.tensor("index")?);
    let rank = call.rank(operand);
    if rank == 0 || call.rank(index) > 1 {
        return Err(Refusal::Malformed("selecting by index needs a dimension and a vector".to_owned()));
    }
    let axis = call.axis(call.int("dim")?, rank)?;
    let length = call.ty(index).n_elements();
    let index = call.reshape(index, [length])?;
    call.apply(Index { axes: Axes::from_elem(axis, 1) }, &[operand, index]).map(Built::One)
}

/// `gather`.
pub fn gather(call: &mut Call<'_>) -> Outcome {
    let (operand, index) = (call.tensor("self")?, call.tensor("index")?);
    let rank = call.rank(operand);
    if rank == 0 {
        return Err(Refusal::Unsupported("gathering from a tensor of rank 0".to_owned()));
    }
    let axis = call.axis(call.int("dim")?, rank)?;
    call.apply(Gather { axis }, &[operand, index]).map(Built::One)
}
