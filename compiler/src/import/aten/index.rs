//! Overloads that take elements from places that a tensor names.

use ir::Dtype;
use ir::ValueId;
use ir::ops::{Gather, GatherRows, Index};
use ir::types::Axes;

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
