//! Overloads that write or add elements at places that a tensor names.
//!
//! Rows that are added are summed by products with a selection of zeros and ones, in f32 and with
//! duplicates, before anything is written: no transfer may add two rows to one at a time. Elements
//! along an axis are compared with the positions of that axis, one index after the other.

use ir::ops::{Abs, Add, Eq, Gt, Index, Iota, LogicalNot, Lt, Matmul, Mul, ScatterRows, Where};
use ir::types::{Axes, Shape};
use ir::{Dtype, Op, ValueId};

use super::call::{Built, Call, Number, Operand, Refusal};
use super::movement::join;
use super::pointwise::wide_dtype;

type Outcome = Result<Built, Refusal>;

/// Elements that may be scattered along one axis: each is a pass over the whole tensor.
const MAX_SCATTERED: usize = 64;

/// Rows of a table up to which each is a row of the selection, however few rows are added. A product
/// with that many columns fills the bank of PSUM that the smallest one occupies.
const SMALL_TABLE: usize = 512;

/// f32 holds every integer up to here.
const MAX_EXACT: usize = 1 << 24;

/// What becomes of the elements that are there.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Scatter {
    Replace,
    Add,
}

/// `index_put`: values at index tensors on adjacent axes.
pub fn index_put(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let scatter = if call.flag_or("accumulate", false)? { Scatter::Add } else { Scatter::Replace };
    let indices = call.optional_tensors("indices")?;
    let given: Vec<(usize, ValueId)> =
        indices.iter().enumerate().filter_map(|(axis, index)| Some((axis, (*index)?))).collect();
    let Some(&(axis, first)) = given.first() else {
        return Err(Refusal::Malformed("writing at no index".to_owned()));
    };
    if given.iter().any(|&(_, index)| matches!(call.dtype(index), Dtype::Bool | Dtype::U8)) {
        if given.len() > 1 {
            return Err(Refusal::Unsupported("writing at a mask and other indices".to_owned()));
        }
        return put_masked(call, operand, (axis, first), scatter);
    }
    if given.windows(2).any(|pair| pair[1].0 != pair[0].0 + 1) {
        return Err(Refusal::Unsupported("writing at indices of axes that are not adjacent".to_owned()));
    }
    let shape = call.shape(operand);
    let end = axis + given.len();
    if end > shape.len() {
        return Err(Refusal::Malformed(format!("an index for axis {} of {} axes", end - 1, shape.len())));
    }
    let indices: Vec<ValueId> = given.into_iter().map(|(_, index)| index).collect();
    let index = merged_index(call, &indices, &shape[axis..end])?;
    // The index's axes stand for the indexed ones in the values.
    let indexed: Shape = [&shape[..axis], &call.shape(index), &shape[end..]].concat().into();
    let values = call.tensor("values")?;
    let values = call.expand(values, &indexed)?;
    let merged: Shape = shape[..axis]
        .iter()
        .copied()
        .chain([shape[axis..end].iter().product()])
        .chain(shape[end..].iter().copied())
        .collect();
    let operand = call.reshape(operand, merged)?;
    let result = put_rows(call, (operand, axis), index, values, scatter)?;
    call.reshape(result, shape).map(Built::One)
}

/// One index over the product of some axes for an index tensor on each of them.
fn merged_index(call: &mut Call<'_>, indices: &[ValueId], dims: &[usize]) -> Result<ValueId, Refusal> {
    let [first, rest @ ..] = indices else { return Err(Refusal::Malformed("no index tensor".to_owned())) };
    if rest.is_empty() {
        return Ok(*first);
    }
    let mut merged = wrapped(call, *first, dims[0])?;
    for (&index, &dim) in rest.iter().zip(&dims[1..]) {
        let index = wrapped(call, index, dim)?;
        let scale = call.scalar(Number::Int(dim as i64), Dtype::I64)?;
        let scaled = call.apply(Mul, &[merged, scale])?;
        merged = call.apply(Add, &[scaled, index])?;
    }
    Ok(merged)
}

/// An index with negative positions counted from the end of an axis.
fn wrapped(call: &mut Call<'_>, index: ValueId, dim: usize) -> Result<ValueId, Refusal> {
    let index = call.cast(index, Dtype::I64)?;
    let zero = call.scalar(Number::Int(0), Dtype::I64)?;
    let length = call.scalar(Number::Int(dim as i64), Dtype::I64)?;
    let is_negative = call.apply(Lt, &[index, zero])?;
    let shifted = call.apply(Add, &[index, length])?;
    call.apply(Where, &[is_negative, shifted, index])
}

/// `index_put` of one element where a mask of the axes from `axis` on is true.
fn put_masked(call: &mut Call<'_>, operand: ValueId, (axis, mask): (usize, ValueId), scatter: Scatter) -> Outcome {
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
    let written = match scatter {
        Scatter::Replace => value,
        Scatter::Add => call.apply(Add, &[operand, value])?,
    };
    call.apply(Where, &[mask, written, operand]).map(Built::One)
}

/// `index_copy` and `index_add`: slices of one axis.
pub fn put_slices(call: &mut Call<'_>, scatter: Scatter) -> Outcome {
    let (operand, index, source) = (call.tensor("self")?, call.tensor("index")?, call.tensor("source")?);
    let rank = call.rank(operand);
    if rank == 0 || call.rank(index) > 1 {
        return Err(Refusal::Unsupported("copying into a tensor of rank 0".to_owned()));
    }
    let axis = call.axis(call.int("dim")?, rank)?;
    let source = match call.optional_number("alpha")? {
        Some(alpha) if alpha.as_f64() != 1.0 => {
            let alpha = call.scalar(alpha, call.dtype(source))?;
            call.apply(Mul, &[source, alpha])?
        }
        Some(_) | None => source,
    };
    put_rows(call, (operand, axis), index, source, scatter).map(Built::One)
}

/// `embedding_dense_backward`: each row of the gradient added to the row of a table that it came from,
/// unless that is the padding's.
pub fn embedding_backward(call: &mut Call<'_>) -> Outcome {
    let (gradient, indices) = (call.tensor("grad_output")?, call.tensor("indices")?);
    if call.flag_or("scale_grad_by_freq", false)? {
        return Err(Refusal::Unsupported("a gradient divided by how often its row is used".to_owned()));
    }
    let dtype = call.dtype(gradient);
    let shape = call.shape(gradient);
    let Ok(n_rows) = usize::try_from(call.int("num_weights")?) else {
        return Err(Refusal::Malformed("a table of a negative number of rows".to_owned()));
    };
    let padding = call.number_or("padding_idx", Number::Int(-1))?;
    let padding = call.scalar(padding, call.dtype(indices))?;
    let is_padding = call.apply(Eq, &[indices, padding])?;
    let mask_shape: Shape = call.shape(indices).iter().copied().chain([1]).collect();
    let is_padding = call.reshape(is_padding, mask_shape)?;
    let zero = call.scalar(Number::Int(0), dtype)?;
    let gradient = call.apply(Where, &[is_padding, zero, gradient])?;
    let table = [n_rows, shape.last().copied().unwrap_or(1)];
    let table = call.full(Number::Int(0), dtype, &table)?;
    put_rows(call, (table, 0), indices, gradient, Scatter::Add).map(Built::One)
}

/// Slices at positions of an axis. The index may have any shape, which stands for the axis in the
/// values.
fn put_rows(
    call: &mut Call<'_>,
    (operand, axis): (ValueId, usize),
    index: ValueId,
    values: ValueId,
    scatter: Scatter,
) -> Result<ValueId, Refusal> {
    let length = call.ty(index).n_elements();
    let shape = call.shape(operand);
    let mut value_shape = shape.clone();
    value_shape[axis] = length;
    let index = call.reshape(index, [length])?;
    let values = call.reshape(values, value_shape)?;
    if length == 0 || call.ty(operand).n_elements() == 0 {
        return Ok(operand);
    }
    if scatter == Scatter::Replace {
        return call.apply(ScatterRows { axis }, &[operand, index, values]);
    }
    let dtype = call.dtype(operand);
    if !dtype.is_float() || dtype == Dtype::F64 {
        return Err(Refusal::Unsupported(format!("adding {dtype} at indices")));
    }
    let n_rows = shape[axis];
    if n_rows > MAX_EXACT {
        return Err(Refusal::Unsupported(format!("adding at indices of an axis of size {n_rows}")));
    }
    // The axis leads, all others are columns.
    let leading: Axes = std::iter::once(axis).chain((0..shape.len()).filter(|&other| other != axis)).collect();
    let n_columns = shape.iter().enumerate().filter(|&(other, _)| other != axis).map(|(_, &dim)| dim).product();
    let turned: Shape = leading.iter().map(|&other| shape[other]).collect();
    let table = call.transpose(operand, leading.iter().copied())?;
    let table = call.reshape(table, [n_rows, n_columns])?;
    let values = call.transpose(values, leading.iter().copied())?;
    let values = call.reshape(values, [length, n_columns])?;
    let index = wrapped(call, index, n_rows)?;
    let result = add_rows(call, table, index, values)?;
    let result = call.reshape(result, turned)?;
    let mut back: Axes = (0..shape.len()).collect();
    back.sort_by_key(|&other| leading[other]);
    call.transpose(result, back)
}

/// The table [rows, columns] with values [ids, columns] added to the rows that ids name.
///
/// A small table takes the sums as they are: one row of the selection for each of its rows. Of a
/// large one the named rows are read, the sum of all values of the same id is added, and the rows are
/// written: of equal ids every one writes the same.
fn add_rows(call: &mut Call<'_>, table: ValueId, ids: ValueId, values: ValueId) -> Result<ValueId, Refusal> {
    let dtype = call.dtype(table);
    let (n_rows, length) = (call.shape(table)[0], call.shape(values)[0]);
    let ids_f32 = call.cast(ids, Dtype::F32)?;
    let column = call.reshape(ids_f32, [length, 1])?;
    let values = call.cast(values, Dtype::F32)?;
    if n_rows <= length.max(SMALL_TABLE) {
        let rows = positions(call, n_rows, Dtype::F32)?;
        let selection = call.apply(Eq, &[column, rows])?;
        let sums = selected_sums(call, selection, values)?;
        let wide = call.cast(table, Dtype::F32)?;
        let result = call.apply(Add, &[wide, sums])?;
        return call.cast(result, dtype);
    }
    let row = call.reshape(ids_f32, [1, length])?;
    let selection = call.apply(Eq, &[column, row])?;
    let sums = selected_sums(call, selection, values)?;
    let found = call.apply(Index { axes: Axes::from_elem(0, 1) }, &[table, ids])?;
    let found = call.cast(found, Dtype::F32)?;
    let rows = call.apply(Add, &[found, sums])?;
    let rows = call.cast(rows, dtype)?;
    call.apply(ScatterRows { axis: 0 }, &[table, ids, rows])
}

/// For each column of a bool selection [ids, rows] the sum of the selected rows of values
/// [ids, columns].
///
/// Zero times an infinity is no zero: infinities and NaNs are left out of the product, and the rows
/// that select them get them afterwards.
fn selected_sums(call: &mut Call<'_>, selection: ValueId, values: ValueId) -> Result<ValueId, Refusal> {
    let dtype = call.dtype(values);
    let factors = call.cast(selection, dtype)?;
    let product = Matmul { transpose_lhs: true, transpose_rhs: false, dtype };
    let zero = call.scalar(Number::Int(0), dtype)?;
    let infinity = call.scalar(Number::Float(f64::INFINITY), dtype)?;
    let negative = call.scalar(Number::Float(f64::NEG_INFINITY), dtype)?;
    let magnitude = call.apply(Abs, &[values])?;
    let is_finite = call.apply(Lt, &[magnitude, infinity])?;
    let finite = call.apply(Where, &[is_finite, values, zero])?;
    let mut sums = call.apply(product.clone(), &[factors, finite])?;
    // NaN is neither below the one nor above the other; the sum of both infinities is NaN.
    for (bound, is_inside) in [(infinity, Op::from(Lt)), (negative, Op::from(Gt))] {
        let is_inside = call.apply(is_inside, &[values, bound])?;
        let is_outside = call.apply(LogicalNot, &[is_inside])?;
        let counted = call.cast(is_outside, dtype)?;
        let count = call.apply(product.clone(), &[factors, counted])?;
        let is_hit = call.apply(Gt, &[count, zero])?;
        let added = call.apply(Where, &[is_hit, bound, zero])?;
        sums = call.apply(Add, &[sums, added])?;
    }
    Ok(sums)
}

/// 0, 1, 2, ...
fn positions(call: &mut Call<'_>, length: usize, dtype: Dtype) -> Result<ValueId, Refusal> {
    call.apply(Iota { dtype, length, start: 0, step: 1 }, &[])
}

/// `scatter` and `scatter_add`: elements of `src`, or one number, at positions along an axis.
pub fn scatter(call: &mut Call<'_>, source: &'static str, scatter: Scatter) -> Outcome {
    let (operand, index) = (call.tensor("self")?, call.tensor("index")?);
    let (shape, index_shape) = (call.shape(operand), call.shape(index));
    if shape.is_empty() || index_shape.len() != shape.len() {
        return Err(Refusal::Unsupported(format!("scattering {} into {}", call.ty(index), call.ty(operand))));
    }
    let axis = call.axis(call.int("dim")?, shape.len())?;
    if (0..shape.len()).any(|other| other != axis && index_shape[other] > shape[other]) {
        return Err(Refusal::Malformed(format!("scattering {} into {}", call.ty(index), call.ty(operand))));
    }
    if index_shape[axis] > MAX_SCATTERED {
        let n_scattered = index_shape[axis];
        return Err(Refusal::Unsupported(format!("scattering {n_scattered} elements along an axis")));
    }
    if index_shape.contains(&0) {
        return Ok(Built::One(operand));
    }
    let dtype = call.dtype(operand);
    let source = match call.operand(source)? {
        Operand::Tensor(source) => source,
        Operand::Number(number) => {
            let number = call.scalar(number, dtype)?;
            call.expand(number, &index_shape)?
        }
    };
    let at = Scattered { axis, index, source, scatter };
    scatter_into(call, operand, &at, 0).map(Built::One)
}

/// What is scattered, and where.
struct Scattered {
    axis: usize,
    index: ValueId,
    source: ValueId,
    scatter: Scatter,
}

/// The operand with elements scattered into it. Along every other axis the index may be shorter than
/// the operand, of which the rest stays as it is.
fn scatter_into(call: &mut Call<'_>, operand: ValueId, at: &Scattered, from: usize) -> Result<ValueId, Refusal> {
    let (shape, index_shape) = (call.shape(operand), call.shape(at.index));
    let short = (from..shape.len()).find(|&other| other != at.axis && index_shape[other] < shape[other]);
    let Some(other) = short else { return scatter_along(call, operand, at) };
    let (n_written, n_all) = (index_shape[other], shape[other]);
    let part = call.slice(operand, other, 0..n_written, 1)?;
    let part = scatter_into(call, part, at, other + 1)?;
    let rest = call.slice(operand, other, n_written..n_all, 1)?;
    let dtype = call.dtype(operand);
    join(call, &[part, rest], dtype, other)
}

/// As [`scatter_into`] where the index is as long as the operand along all other axes.
fn scatter_along(call: &mut Call<'_>, operand: ValueId, at: &Scattered) -> Result<ValueId, Refusal> {
    let dtype = call.dtype(operand);
    let (rank, length) = (call.rank(operand), call.shape(operand)[at.axis]);
    let index_shape = call.shape(at.index);
    let compute = if dtype.is_float() { wide_dtype(dtype) } else { dtype };
    // One instruction compares f32 numbers, where all positions are exact and no other number is
    // rounded to one of them; integers take several.
    let compared = if length <= MAX_EXACT { Dtype::F32 } else { Dtype::I32 };
    let along: Shape = (0..rank).map(|axis| if axis == at.axis { length } else { 1 }).collect();
    let places = positions(call, length, compared)?;
    let places = call.reshape(places, along)?;
    let index = call.cast(at.index, compared)?;
    let mut source = at.source;
    for (axis, &dim) in index_shape.iter().enumerate() {
        source = call.slice(source, axis, 0..dim, 1)?;
    }
    let source = call.cast(source, compute)?;
    let mut result = call.cast(operand, compute)?;
    for step in 0..index_shape[at.axis] {
        let place = call.slice(index, at.axis, step..step + 1, 1)?;
        let is_hit = call.apply(Eq, &[place, places])?;
        let written = call.slice(source, at.axis, step..step + 1, 1)?;
        let written = match at.scatter {
            Scatter::Replace => written,
            Scatter::Add => call.apply(Add, &[result, written])?,
        };
        result = call.apply(Where, &[is_hit, written, result])?;
    }
    call.cast(result, dtype)
}
