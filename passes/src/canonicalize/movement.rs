//! Movement ops: views that do nothing, and movement of movement.

use ir::ops::{Concat, Expand, Reshape, Slice, Transpose};
use ir::types::{Axes, Shape, TypeError};
use ir::{Op, ValueId};
use smallvec::SmallVec;

use super::builder::{Builder, Results, RuleEntry, Term};
use super::fold;
use crate::Numerics::Exact;

/// Rules of movement ops, in order.
pub(super) const RULES: &[RuleEntry] = &[
    fold::FOLD,
    ("movement-identity", Exact, identity),
    ("reshape-reshape", Exact, reshape_reshape),
    ("transpose-transpose", Exact, transpose_transpose),
    ("transpose-unit-axes", Exact, transpose_unit_axes),
    ("reshape-transpose", Exact, reshape_transpose),
    ("expand-expand", Exact, expand_expand),
    ("expand-unit-axes", Exact, expand_unit_axes),
    ("slice-slice", Exact, slice_slice),
    ("slice-concat", Exact, slice_concat),
    ("slice-expand", Exact, slice_expand),
    ("concat-concat", Exact, concat_concat),
    ("concat-slices", Exact, concat_slices),
];

fn same(value: ValueId) -> Result<Option<Results>, TypeError> {
    Ok(Some(Results::from_elem(value, 1)))
}

// reshape(x, shape of x) == x, and the like for transpose, expand, slice, concat of one and relayout
fn identity(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let [operand] = *term.operands.as_slice() else { return Ok(None) };
    let shape = &builder.ty(operand).shape;
    let is_identity = match &term.op {
        Op::Reshape(reshape) => reshape.shape == *shape,
        Op::Expand(expand) => expand.shape == *shape,
        Op::Transpose(transpose) => transpose.perm.iter().copied().eq(0..shape.len()),
        Op::Slice(slice) => slice.start == 0 && slice.step == 1 && slice.end == shape[slice.axis],
        op => matches!(op, Op::Relayout(_) | Op::Concat(_)),
    };
    if is_identity { same(operand) } else { Ok(None) }
}

// reshape(reshape(x)) == reshape(x)
fn reshape_reshape(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Reshape(_), Some(Op::Reshape(_))) = (&term.op, builder.op_of(term.operands[0])) else { return Ok(None) };
    let (source, locations) = (builder.operands_of(term.operands[0]), builder.absorb(term, &term.operands));
    builder.rewritten(term.op.clone(), &source, &locations)
}

// transpose(transpose(x, p), q) == transpose(x, q after p)
fn transpose_transpose(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Transpose(outer), Some(Op::Transpose(inner))) = (&term.op, builder.op_of(term.operands[0])) else {
        return Ok(None);
    };
    let perm: Axes = outer.perm.iter().map(|&axis| inner.perm[axis]).collect();
    let (source, locations) = (builder.operands_of(term.operands[0]), builder.absorb(term, &term.operands));
    builder.rewritten(Transpose { perm }, &source, &locations)
}

/// Axes of more than one element, in the order in which a permutation leaves them.
fn moved_axes(perm: &[usize], shape: &[usize]) -> Axes {
    perm.iter().copied().filter(|&axis| shape[axis] != 1).collect()
}

// transpose(x) == reshape(x) if only axes of size 1 move
fn transpose_unit_axes(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Op::Transpose(transpose) = &term.op else { return Ok(None) };
    let shape = &builder.ty(term.operands[0]).shape;
    if !moved_axes(&transpose.perm, shape).is_sorted() {
        return Ok(None);
    }
    let shape: Shape = transpose.perm.iter().map(|&axis| shape[axis]).collect();
    builder.rewritten(Reshape { shape }, &term.operands, &term.locations)
}

// transpose(reshape(x)) == reshape(transpose(x)) if the reshape only adds or drops axes of size 1
fn reshape_transpose(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Transpose(outer), Some(Op::Reshape(_))) = (&term.op, builder.op_of(term.operands[0])) else {
        return Ok(None);
    };
    let source = builder.operands_of(term.operands[0])[0];
    let (from, to) = (builder.ty(source).shape.clone(), builder.ty(term.operands[0]).shape.clone());
    let wide = |shape: &Shape| -> Axes { (0..shape.len()).filter(|&axis| shape[axis] != 1).collect() };
    let (wide_from, wide_to) = (wide(&from), wide(&to));
    let same_dims = wide_from.iter().map(|&axis| from[axis]).eq(wide_to.iter().map(|&axis| to[axis]));
    if !same_dims {
        return Ok(None);
    }
    let position_of = |axis: usize| wide_to.iter().position(|&wide| wide == axis);
    let mut perm: Axes = outer.perm.iter().filter_map(|&axis| position_of(axis)).map(|at| wide_from[at]).collect();
    for (axis, _) in from.iter().enumerate().filter(|&(_, &dim)| dim == 1) {
        perm.insert(axis.min(perm.len()), axis);
    }
    let shape: Shape = outer.perm.iter().map(|&axis| to[axis]).collect();
    let locations = builder.absorb(term, &term.operands);
    let transposed = builder.value(Transpose { perm }, &[source], &locations)?;
    builder.rewritten(Reshape { shape }, &[transposed], &locations)
}

// expand(expand(x)) == expand(x)
fn expand_expand(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Expand(_), Some(Op::Expand(_))) = (&term.op, builder.op_of(term.operands[0])) else { return Ok(None) };
    let (source, locations) = (builder.operands_of(term.operands[0]), builder.absorb(term, &term.operands));
    builder.rewritten(term.op.clone(), &source, &locations)
}

// expand(x) == reshape(x) if it only adds axes of size 1
fn expand_unit_axes(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Op::Expand(expand) = &term.op else { return Ok(None) };
    let n_elements: usize = expand.shape.iter().product();
    if n_elements != builder.ty(term.operands[0]).n_elements() {
        return Ok(None);
    }
    builder.rewritten(Reshape { shape: expand.shape.clone() }, &term.operands, &term.locations)
}

// slice(slice(x)) == slice(x) on one axis
fn slice_slice(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Slice(outer), Some(Op::Slice(inner))) = (&term.op, builder.op_of(term.operands[0])) else {
        return Ok(None);
    };
    if outer.axis != inner.axis {
        return Ok(None);
    }
    let n_taken = (outer.end - outer.start).div_ceil(outer.step);
    let start = inner.start + outer.start * inner.step;
    let step = inner.step * outer.step;
    let end = if n_taken == 0 { start } else { start + (n_taken - 1) * step + 1 };
    let joined = Slice { axis: outer.axis, start, end, step };
    let (source, locations) = (builder.operands_of(term.operands[0]), builder.absorb(term, &term.operands));
    builder.rewritten(joined, &source, &locations)
}

// slice(concat(x, y)) == slice(x) if it lies within x
fn slice_concat(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Slice(slice), Some(Op::Concat(concat))) = (&term.op, builder.op_of(term.operands[0])) else {
        return Ok(None);
    };
    if slice.axis != concat.axis {
        return Ok(None);
    }
    let mut first = 0;
    for part in builder.operands_of(term.operands[0]) {
        let length = builder.ty(part).shape[slice.axis];
        if slice.start >= first && slice.end <= first + length && slice.start < slice.end {
            let within = Slice { start: slice.start - first, end: slice.end - first, ..slice.clone() };
            let locations = builder.absorb(term, &term.operands);
            return builder.rewritten(within, &[part], &locations);
        }
        first += length;
    }
    Ok(None)
}

// slice(expand(x)) == expand(slice(x)), without the slice where x is repeated
fn slice_expand(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let (Op::Slice(slice), Some(Op::Expand(expand))) = (&term.op, builder.op_of(term.operands[0])) else {
        return Ok(None);
    };
    let (mut shape, mut slice) = (expand.shape.clone(), slice.clone());
    shape[slice.axis] = (slice.end - slice.start).div_ceil(slice.step);
    let source = builder.operands_of(term.operands[0])[0];
    let n_added = shape.len() - builder.ty(source).rank();
    let locations = builder.absorb(term, &term.operands);
    let is_repeated = slice.axis < n_added || builder.ty(source).shape[slice.axis - n_added] == 1;
    if is_repeated {
        return builder.rewritten(Expand { shape }, &[source], &locations);
    }
    slice.axis -= n_added;
    let sliced = builder.value(slice, &[source], &locations)?;
    builder.rewritten(Expand { shape }, &[sliced], &locations)
}

/// Parts up to which nested concats are joined: values that are concatenated with themselves again and
/// again would give more parts than any memory holds.
const MAX_PARTS: usize = 256;

// concat(concat(x, y), z) == concat(x, y, z)
fn concat_concat(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Op::Concat(concat) = &term.op else { return Ok(None) };
    let is_nested = |builder: &Builder<'_>, part: ValueId| match builder.op_of(part) {
        Some(Op::Concat(inner)) => inner.axis == concat.axis,
        Some(_) | None => false,
    };
    if !term.operands.iter().any(|&part| is_nested(builder, part)) {
        return Ok(None);
    }
    let mut parts: SmallVec<[ValueId; 4]> = SmallVec::new();
    for &part in &term.operands {
        if is_nested(builder, part) {
            parts.extend(builder.operands_of(part));
        } else {
            parts.push(part);
        }
    }
    if parts.len() > MAX_PARTS {
        return Ok(None);
    }
    let locations = builder.absorb(term, &term.operands);
    builder.rewritten(concat.clone(), &parts, &locations)
}

// concat(x[a..b], x[b..c]) == x[a..c]
fn concat_slices(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Op::Concat(Concat { axis }) = &term.op else { return Ok(None) };
    let mut parts: SmallVec<[ValueId; 4]> = SmallVec::new();
    let mut spans: SmallVec<[Option<(ValueId, usize, usize)>; 4]> = SmallVec::new();
    let mut n_joined = 0;
    for &part in &term.operands {
        let span = match builder.op_of(part) {
            Some(Op::Slice(slice)) if slice.axis == *axis && slice.step == 1 => {
                Some((builder.operands_of(part)[0], slice.start, slice.end))
            }
            Some(_) | None => None,
        };
        match (spans.last_mut(), span) {
            (Some(Some((source, _, end))), Some((next, start, next_end))) if *source == next && *end == start => {
                *end = next_end;
                n_joined += 1;
            }
            (_, span) => {
                parts.push(part);
                spans.push(span);
            }
        }
    }
    if n_joined == 0 {
        return Ok(None);
    }
    let locations = builder.absorb(term, &term.operands);
    for (part, span) in parts.iter_mut().zip(spans) {
        let Some((source, start, end)) = span else { continue };
        *part = builder.value(Slice { axis: *axis, start, end, step: 1 }, &[source], &locations)?;
    }
    builder.rewritten(Concat { axis: *axis }, &parts, &locations)
}

// softmax(reshape(x)) == reshape(softmax(x)) if the rows stay rows, and the like for the norms
pub(super) fn sink_row_op_below_reshape(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Some(Op::Reshape(_)) = builder.op_of(term.operands[0]) else { return Ok(None) };
    let source = builder.operands_of(term.operands[0])[0];
    let to = builder.ty(term.operands[0]).shape.clone();
    if builder.ty(source).shape.last() != to.last() || builder.ty(source).rank() == 0 {
        return Ok(None);
    }
    let locations = builder.absorb(term, &[term.operands[0]]);
    let mut operands = term.operands.clone();
    operands[0] = source;
    let mut results = builder.emit(term.op.clone(), &operands, &locations)?;
    for result in &mut results {
        let mut shape = to.clone();
        // Statistics have one element per row.
        if let (Some(last), Some(&length)) = (shape.last_mut(), builder.ty(*result).shape.last()) {
            *last = length;
        }
        *result = builder.value(Reshape { shape }, &[*result], &locations)?;
    }
    Ok(Some(results))
}
