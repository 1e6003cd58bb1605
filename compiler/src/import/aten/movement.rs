//! Overloads that move or repeat elements.
//!
//! Views and copies are the same here: values have no strides and are never written.

use ir::ops::{Concat, Ge, Iota, Le, LogicalXor, Sub, Where};
use ir::types::{Axes, Shape};
use ir::{Dtype, Op, ValueId};

use super::call::{Built, Call, Number, Refusal};
use super::promote::promoted;

type Outcome = Result<Built, Refusal>;

/// Orders of differences that are taken apart.
const MAX_DIFFERENCES: i64 = 8;

/// `alias`, `clone`, `detach` and the like: the operand itself.
pub fn same(call: &mut Call<'_>) -> Outcome {
    call.tensor("self").map(Built::One)
}

/// `_to_copy` and `to`: another element type where one is given.
pub fn convert(call: &mut Call<'_>) -> Outcome {
    convert_operand(call, "self")
}

/// The same of an operand of another name.
pub fn convert_operand(call: &mut Call<'_>, name: &'static str) -> Outcome {
    let operand = call.tensor(name)?;
    let dtype = call.optional_dtype("dtype")?.unwrap_or(call.dtype(operand));
    call.cast(operand, dtype).map(Built::One)
}

/// `type_as` and `to` another tensor's type.
pub fn convert_like(call: &mut Call<'_>) -> Outcome {
    let (operand, other) = (call.tensor("self")?, call.tensor("other")?);
    call.cast(operand, call.dtype(other)).map(Built::One)
}

/// `copy`: the source with the type and shape of the tensor it is copied to.
pub fn copy(call: &mut Call<'_>) -> Outcome {
    copy_operand(call, "src")
}

/// The same of a source of another name.
pub fn copy_operand(call: &mut Call<'_>, name: &'static str) -> Outcome {
    let (target, source) = (call.tensor("self")?, call.tensor(name)?);
    let shape = call.shape(target);
    let source = call.cast(source, call.dtype(target))?;
    call.expand(source, &shape).map(Built::One)
}

/// `view`: one size may be -1.
pub fn view(call: &mut Call<'_>) -> Outcome {
    let sizes = call.ints("size")?;
    reshape_to(call, &sizes)
}

/// `reshape`: one size may be -1.
pub fn reshape(call: &mut Call<'_>) -> Outcome {
    let sizes = call.ints("shape")?;
    reshape_to(call, &sizes)
}

fn reshape_to(call: &mut Call<'_>, sizes: &[i64]) -> Outcome {
    let operand = call.tensor("self")?;
    let n_elements = call.ty(operand).n_elements();
    let shape = inferred_sizes(sizes, n_elements)?;
    call.reshape(operand, shape).map(Built::One)
}

fn inferred_sizes(sizes: &[i64], n_elements: usize) -> Result<Shape, Refusal> {
    let known = sizes.iter().filter(|&&size| size != -1);
    let known = known.fold(1usize, |product, &size| product.saturating_mul(usize::try_from(size).unwrap_or(0)));
    let inferred = n_elements.checked_div(known).unwrap_or(0);
    let n_inferred = sizes.iter().filter(|&&size| size == -1).count();
    if n_inferred > 1 || sizes.iter().any(|&size| size < -1) {
        return Err(Refusal::Malformed(format!("sizes {sizes:?} are no shape of {n_elements} elements")));
    }
    Ok(sizes.iter().map(|&size| usize::try_from(size).unwrap_or(inferred)).collect())
}

/// `expand`: -1 keeps a size.
pub fn expand(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let sizes = call.ints("size")?;
    let given = call.shape(operand);
    let Some(n_added) = sizes.len().checked_sub(given.len()) else {
        return Err(Refusal::Malformed(format!("sizes {sizes:?} are fewer than those of {given:?}")));
    };
    let mut shape = Shape::new();
    for (position, &size) in sizes.iter().enumerate() {
        let kept = position.checked_sub(n_added).map(|axis| given[axis]);
        match (usize::try_from(size), kept) {
            (Ok(size), _) => shape.push(size),
            (Err(_), Some(kept)) if size == -1 => shape.push(kept),
            (Err(_), _) => return Err(Refusal::Malformed(format!("size {size} at position {position}"))),
        }
    }
    call.expand(operand, &shape).map(Built::One)
}

/// `permute`.
pub fn permute(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let rank = call.rank(operand);
    let dims = call.ints("dims")?;
    let perm: Axes = dims.iter().map(|&dim| call.axis(dim, rank)).collect::<Result<_, _>>()?;
    let mut sorted = perm.clone();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..rank) {
        return Err(Refusal::Malformed(format!("dimensions {dims:?} are no permutation of {rank} axes")));
    }
    call.transpose(operand, perm).map(Built::One)
}

/// `transpose` of two axes.
pub fn transpose(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let rank = call.rank(operand);
    let (first, second) = (call.axis(call.int("dim0")?, rank)?, call.axis(call.int("dim1")?, rank)?);
    let mut perm: Axes = (0..rank).collect();
    if rank > 0 {
        perm.swap(first, second);
    }
    call.transpose(operand, perm).map(Built::One)
}

/// `t`: the transpose of a matrix; vectors and scalars stay.
pub fn matrix_transpose(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let rank = call.rank(operand);
    if rank > 2 {
        return Err(Refusal::Malformed(format!("`t` of a tensor of rank {rank}")));
    }
    call.transpose(operand, (0..rank).rev()).map(Built::One)
}

/// `unsqueeze`.
pub fn unsqueeze(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let mut shape = call.shape(operand);
    let axis = call.axis(call.int("dim")?, shape.len() + 1)?;
    shape.insert(axis, 1);
    call.reshape(operand, shape).map(Built::One)
}

/// `squeeze`: without the axes of size 1 that `dim` names, or all of them.
pub fn squeeze(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let shape = call.shape(operand);
    let axes = match call.optional_ints("dim")? {
        None => (0..shape.len()).collect(),
        Some(dims) => dims.iter().map(|&dim| call.axis(dim, shape.len())).collect::<Result<Vec<_>, _>>()?,
    };
    let kept = shape.iter().enumerate().filter(|&(axis, &dim)| dim != 1 || !axes.contains(&axis));
    let kept: Shape = kept.map(|(_, &dim)| dim).collect();
    call.reshape(operand, kept).map(Built::One)
}

/// `flatten`.
pub fn flatten(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let shape = call.shape(operand);
    let first = call.axis(call.optional_int("start_dim")?.unwrap_or(0), shape.len())?;
    let last = call.axis(call.optional_int("end_dim")?.unwrap_or(-1), shape.len())?;
    if shape.is_empty() {
        return call.reshape(operand, [1]).map(Built::One);
    }
    if first > last {
        return Err(Refusal::Malformed(format!("flattening from dimension {first} to {last}")));
    }
    let mut flat = Shape::from_slice(&shape[..first]);
    flat.push(shape[first..=last].iter().product());
    flat.extend_from_slice(&shape[last + 1..]);
    call.reshape(operand, flat).map(Built::One)
}

/// `slice`: ends beyond the tensor are cut, negative ones count from its end.
pub fn slice(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let (axis, range, step) = slice_range(call, operand)?;
    call.slice(operand, axis, range, step).map(Built::One)
}

pub(super) fn slice_range(
    call: &Call<'_>,
    operand: ValueId,
) -> Result<(usize, std::ops::Range<usize>, usize), Refusal> {
    let axis = axis_of(call, operand, call.optional_int("dim")?.unwrap_or(0))?;
    let size = call.shape(operand)[axis];
    let start = clamped_position(call.optional_int("start")?.unwrap_or(0), size);
    let end = clamped_position(call.optional_int("end")?.unwrap_or(i64::MAX), size);
    let step = call.optional_int("step")?.unwrap_or(1);
    let step = usize::try_from(step).ok().filter(|&step| step > 0);
    let step = step.ok_or_else(|| Refusal::Malformed("a slice's step must be positive".to_owned()))?;
    Ok((axis, start..end.max(start), step))
}

fn clamped_position(position: i64, size: usize) -> usize {
    let limit = i64::try_from(size).unwrap_or(i64::MAX);
    let from_start = if position < 0 { position.saturating_add(limit) } else { position };
    from_start.clamp(0, limit) as usize
}

/// The axis that `dim` names in a tensor of rank 1 or more.
pub(super) fn axis_of(call: &Call<'_>, operand: ValueId, dim: i64) -> Result<usize, Refusal> {
    match call.rank(operand) {
        0 => Err(Refusal::Malformed("a tensor of rank 0 has no dimensions".to_owned())),
        rank => call.axis(dim, rank),
    }
}

/// `select`: one position of an axis, which goes away.
pub fn select(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let axis = axis_of(call, operand, call.int("dim")?)?;
    let position = position_in(call.int("index")?, call.shape(operand)[axis])?;
    select_position(call, operand, axis, position).map(Built::One)
}

pub(super) fn position_in(index: i64, size: usize) -> Result<usize, Refusal> {
    let position = if index < 0 { index.saturating_add(size as i64) } else { index };
    let position = usize::try_from(position).ok().filter(|&position| position < size);
    position.ok_or_else(|| Refusal::Malformed(format!("index {index} in a dimension of size {size}")))
}

fn select_position(call: &mut Call<'_>, operand: ValueId, axis: usize, position: usize) -> Result<ValueId, Refusal> {
    let slice = call.slice(operand, axis, position..position + 1, 1)?;
    let mut shape = call.shape(slice);
    shape.remove(axis);
    call.reshape(slice, shape)
}

/// `narrow`.
pub fn narrow(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let axis = axis_of(call, operand, call.int("dim")?)?;
    let size = call.shape(operand)[axis];
    let start = clamped_position(call.int("start")?, size);
    let length = usize::try_from(call.int("length")?).ok().filter(|&length| length <= size - start);
    let length = length.ok_or_else(|| Refusal::Malformed("a narrowed range leaves the tensor".to_owned()))?;
    call.slice(operand, axis, start..start + length, 1).map(Built::One)
}

/// `unbind`: every position of an axis.
pub fn unbind(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let axis = axis_of(call, operand, call.optional_int("dim")?.unwrap_or(0))?;
    let size = call.shape(operand)[axis];
    call.check_result_count(size)?;
    let parts = (0..size).map(|position| used(call, position, |call| select_position(call, operand, axis, position)));
    parts.collect::<Result<_, _>>().map(Built::Many)
}

/// `split` by a size.
pub fn split(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let axis = axis_of(call, operand, call.optional_int("dim")?.unwrap_or(0))?;
    let part = usize::try_from(call.int("split_size")?).unwrap_or(0);
    split_evenly(call, operand, axis, part)
}

/// `chunk`: at most that many parts of one size.
pub fn chunk(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let axis = axis_of(call, operand, call.optional_int("dim")?.unwrap_or(0))?;
    let n_chunks = usize::try_from(call.int("chunks")?).unwrap_or(0);
    let size = call.shape(operand)[axis];
    let part = size.checked_add(n_chunks.saturating_sub(1)).and_then(|sum| sum.checked_div(n_chunks)).unwrap_or(0);
    split_evenly(call, operand, axis, part)
}

fn split_evenly(call: &mut Call<'_>, operand: ValueId, axis: usize, part: usize) -> Outcome {
    let size = call.shape(operand)[axis];
    if part == 0 {
        return Err(Refusal::Malformed(format!("a dimension of size {size} cannot be split into parts of 0")));
    }
    let n_parts = size.div_ceil(part).max(1);
    call.check_result_count(n_parts)?;
    let sizes: Vec<usize> = (0..n_parts).map(|position| part.min(size - position * part)).collect();
    split_into(call, operand, axis, &sizes)
}

/// `split_with_sizes`.
pub fn split_with_sizes(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let axis = axis_of(call, operand, call.optional_int("dim")?.unwrap_or(0))?;
    let sizes = call.sizes("split_sizes")?;
    call.check_result_count(sizes.len())?;
    split_into(call, operand, axis, &sizes)
}

fn split_into(call: &mut Call<'_>, operand: ValueId, axis: usize, sizes: &[usize]) -> Outcome {
    let size = call.shape(operand)[axis];
    let total = sizes.iter().fold(0usize, |total, &part| total.saturating_add(part));
    if total != size {
        return Err(Refusal::Malformed(format!("parts of {total} in a dimension of size {size}")));
    }
    let mut start = 0;
    let mut parts = Vec::new();
    for (position, &part) in sizes.iter().enumerate() {
        let range = start..start + part;
        parts.push(used(call, position, |call| call.slice(operand, axis, range, 1))?);
        start += part;
    }
    Ok(Built::Many(parts))
}

/// Builds a result only where the graph takes it.
fn used(
    call: &mut Call<'_>,
    position: usize,
    build: impl FnOnce(&mut Call<'_>) -> Result<ValueId, Refusal>,
) -> Result<Option<ValueId>, Refusal> {
    if call.uses_result(position) { build(call).map(Some) } else { Ok(None) }
}

/// `cat`: operands of one promoted type; vectors without elements may have any rank among them.
pub fn concat(call: &mut Call<'_>) -> Outcome {
    let operands = call.tensors("tensors")?;
    let dtype = common_dtype(call, &operands)?;
    let is_empty_vector = |value: &ValueId| call.ty(*value).shape.as_slice() == [0];
    let solid: Vec<ValueId> = operands.iter().copied().filter(|value| !is_empty_vector(value)).collect();
    let solid = if solid.is_empty() { vec![operands[0]] } else { solid };
    let axis = axis_of(call, solid[0], call.optional_int("dim")?.unwrap_or(0))?;
    join(call, &solid, dtype, axis).map(Built::One)
}

fn common_dtype(call: &Call<'_>, operands: &[ValueId]) -> Result<Dtype, Refusal> {
    let Some((first, rest)) = operands.split_first() else {
        return Err(Refusal::Malformed("a list of tensors is empty".to_owned()));
    };
    rest.iter().try_fold(call.dtype(*first), |common, &value| promoted(common, call.dtype(value)))
}

pub(super) fn join(call: &mut Call<'_>, operands: &[ValueId], dtype: Dtype, axis: usize) -> Result<ValueId, Refusal> {
    let operands = operands.iter().map(|&value| call.cast(value, dtype)).collect::<Result<Vec<_>, _>>()?;
    if let [operand] = operands[..] { Ok(operand) } else { call.apply(Concat { axis }, &operands) }
}

/// `stack`: a new axis, along which operands of one shape follow each other.
pub fn stack(call: &mut Call<'_>) -> Outcome {
    let operands = call.tensors("tensors")?;
    let dtype = common_dtype(call, &operands)?;
    let axis = call.axis(call.optional_int("dim")?.unwrap_or(0), call.rank(operands[0]) + 1)?;
    let mut layers = Vec::new();
    for &operand in &operands {
        let mut shape = call.shape(operand);
        if axis > shape.len() {
            return Err(Refusal::Malformed("stacked tensors differ in rank".to_owned()));
        }
        shape.insert(axis, 1);
        layers.push(call.reshape(operand, shape)?);
    }
    join(call, &layers, dtype, axis).map(Built::One)
}

/// `repeat`: each axis so many times, after new leading axes.
pub fn repeat(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let repeats = call.sizes("repeats")?;
    let shape = call.shape(operand);
    let Some(n_added) = repeats.len().checked_sub(shape.len()) else {
        return Err(Refusal::Malformed(format!("{} repeats of {} dimensions", repeats.len(), shape.len())));
    };
    let sizes = std::iter::repeat_n(1, n_added).chain(shape.iter().copied());
    let pairs: Vec<(usize, usize)> = repeats.iter().copied().zip(sizes).collect();
    let split: Shape = pairs.iter().flat_map(|&(_, size)| [1, size]).collect();
    let repeated: Shape = pairs.iter().flat_map(|&(count, size)| [count, size]).collect();
    let merged: Shape = pairs.iter().map(|&(count, size)| count.saturating_mul(size)).collect();
    let operand = call.reshape(operand, split)?;
    let operand = call.expand(operand, &repeated)?;
    call.reshape(operand, merged).map(Built::One)
}

/// `repeat_interleave` by a number: each position of an axis so many times; without an axis, each
/// element.
pub fn repeat_interleave(call: &mut Call<'_>) -> Outcome {
    let mut operand = call.tensor("self")?;
    let count = usize::try_from(call.int("repeats")?).ok();
    let count = count.ok_or_else(|| Refusal::Malformed("a negative number of repeats".to_owned()))?;
    let axis = match call.optional_int("dim")? {
        Some(dim) => axis_of(call, operand, dim)?,
        None => {
            let n_elements = call.ty(operand).n_elements();
            operand = call.reshape(operand, [n_elements])?;
            0
        }
    };
    let mut split = call.shape(operand);
    let mut merged = split.clone();
    merged[axis] = merged[axis].saturating_mul(count);
    split.insert(axis + 1, 1);
    let mut repeated = split.clone();
    repeated[axis + 1] = count;
    let operand = call.reshape(operand, split)?;
    let operand = call.expand(operand, &repeated)?;
    call.reshape(operand, merged).map(Built::One)
}

/// `diff`: each element less the one before it along an axis, `n` times over; of bools, whether
/// they differ.
pub fn difference(call: &mut Call<'_>) -> Outcome {
    let operand = call.tensor("self")?;
    let axis = axis_of(call, operand, call.optional_int("dim")?.unwrap_or(-1))?;
    let around = [call.optional_tensor("prepend")?, Some(operand), call.optional_tensor("append")?];
    let parts: Vec<ValueId> = around.into_iter().flatten().collect();
    let dtype = common_dtype(call, &parts)?;
    let mut result = join(call, &parts, dtype, axis)?;
    let count = call.optional_int("n")?.unwrap_or(1);
    if !(0..=MAX_DIFFERENCES).contains(&count) {
        return Err(Refusal::Unsupported(format!("differences of order {count}")));
    }
    for _ in 0..count {
        let size = call.shape(result)[axis];
        let later = call.slice(result, axis, size.min(1)..size, 1)?;
        let earlier = call.slice(result, axis, 0..size.saturating_sub(1), 1)?;
        let op: Op = if dtype == Dtype::Bool { LogicalXor.into() } else { Sub.into() };
        result = call.apply(op, &[later, earlier])?;
    }
    Ok(Built::One(result))
}

/// `roll` of one or more axes.
pub fn roll(call: &mut Call<'_>) -> Outcome {
    let mut operand = call.tensor("self")?;
    let shifts = call.ints("shifts")?;
    let dims = call.optional_ints("dims")?.unwrap_or_default();
    if dims.len() != shifts.len() {
        return Err(Refusal::Unsupported("rolling without dimensions".to_owned()));
    }
    for (&shift, &dim) in shifts.iter().zip(&dims) {
        let axis = axis_of(call, operand, dim)?;
        let size = call.shape(operand)[axis];
        if size == 0 {
            continue;
        }
        let cut = size - shift.rem_euclid(size as i64) as usize;
        if cut < size {
            let (tail, head) = (call.slice(operand, axis, cut..size, 1)?, call.slice(operand, axis, 0..cut, 1)?);
            operand = call.apply(Concat { axis }, &[tail, head])?;
        }
    }
    Ok(Built::One(operand))
}

/// `pad` in the mode that fills with a number.
pub fn pad_by_mode(call: &mut Call<'_>) -> Outcome {
    match call.optional_text("mode")? {
        None | Some("constant") => pad(call),
        Some(mode) => Err(Refusal::Unsupported(format!("padding in the mode `{mode}`"))),
    }
}

/// `constant_pad_nd`: pairs from the last axis outwards; negative ones cut.
pub fn pad(call: &mut Call<'_>) -> Outcome {
    let mut operand = call.tensor("self")?;
    let pads = call.ints("pad")?;
    let value = call.number_or("value", Number::Int(0))?;
    let rank = call.rank(operand);
    if pads.len() % 2 != 0 || pads.len() / 2 > rank {
        return Err(Refusal::Malformed(format!("{} paddings of {rank} dimensions", pads.len())));
    }
    for (position, pair) in pads.chunks_exact(2).enumerate() {
        operand = pad_axis(call, operand, rank - 1 - position, (pair[0], pair[1]), value)?;
    }
    Ok(Built::One(operand))
}

fn pad_axis(
    call: &mut Call<'_>,
    operand: ValueId,
    axis: usize,
    (before, after): (i64, i64),
    value: Number,
) -> Result<ValueId, Refusal> {
    let cut = |amount: i64| usize::try_from(amount.saturating_neg()).unwrap_or(0);
    let size = call.shape(operand)[axis];
    let end = size.checked_sub(cut(after)).filter(|&end| end >= cut(before));
    let end = end.ok_or_else(|| Refusal::Malformed("a negative padding cuts more than there is".to_owned()))?;
    let kept = call.slice(operand, axis, cut(before)..end, 1)?;
    let dtype = call.dtype(operand);
    let mut parts = Vec::new();
    if before > 0 {
        parts.push(filler(call, kept, axis, before as usize, value)?);
    }
    parts.push(kept);
    if after > 0 {
        parts.push(filler(call, kept, axis, after as usize, value)?);
    }
    join(call, &parts, dtype, axis)
}

fn filler(call: &mut Call<'_>, like: ValueId, axis: usize, size: usize, value: Number) -> Result<ValueId, Refusal> {
    let mut shape = call.shape(like);
    shape[axis] = size;
    call.full(value, call.dtype(like), &shape)
}

/// Which side of a diagonal stays.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Triangle {
    Lower,
    Upper,
}

/// `tril` and `triu`: zeros on the other side of a diagonal.
pub fn triangle(call: &mut Call<'_>, triangle: Triangle) -> Outcome {
    let operand = call.tensor("self")?;
    let shape = call.shape(operand);
    let [.., n_rows, n_columns] = shape[..] else {
        return Err(Refusal::Malformed("a triangle of a tensor of rank below 2".to_owned()));
    };
    let diagonal = call.optional_int("diagonal")?.unwrap_or(0);
    let diagonal = diagonal.clamp(-(1 << 30), 1 << 30);
    let rows = call.apply(Iota { dtype: Dtype::I32, length: n_rows, start: 0, step: 1 }, &[])?;
    let rows = call.reshape(rows, [n_rows, 1])?;
    let columns = call.apply(Iota { dtype: Dtype::I32, length: n_columns, start: 0, step: 1 }, &[])?;
    let offset = call.apply(Sub, &[columns, rows])?;
    let diagonal = call.scalar(Number::Int(diagonal), Dtype::I32)?;
    let kept = match triangle {
        Triangle::Lower => call.apply(Le, &[offset, diagonal])?,
        Triangle::Upper => call.apply(Ge, &[offset, diagonal])?,
    };
    let zero = call.scalar(Number::Int(0), call.dtype(operand))?;
    call.apply(Where, &[kept, operand, zero]).map(Built::One)
}
