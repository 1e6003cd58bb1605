//! Matrix products: transposes become flags, batches that views merged are taken apart again.

use ir::ops::{Cast, FusedMatmul, Matmul, Reshape, Transpose};
use ir::types::{Shape, TypeError};
use ir::{Dtype, Op, ValueId};

use super::builder::{Builder, Results, RuleEntry, Term};
use super::fold;
use crate::Numerics::Exact;

/// Rules of contractions, in order.
pub(super) const RULES: &[RuleEntry] = &[
    fold::FOLD,
    fold::OVER_NOTHING,
    ("accumulate-in-f32", Exact, accumulate_in_f32),
    ("matmul-transpose", Exact, matmul_transpose),
    ("matmul-split-batch", Exact, split_batch),
    ("matmul-unit-batch", Exact, unit_batch),
    ("matmul-merge-rows", Exact, merge_rows),
];

// matmul(x, y): bf16 == cast<bf16>(matmul(x, y): f32)
fn accumulate_in_f32(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Op::Matmul(matmul) = &term.op else { return Ok(None) };
    if !matmul.dtype.is_float() || matmul.dtype.size_bytes() >= Dtype::F32.size_bytes() {
        return Ok(None);
    }
    let product = builder.value(Matmul { dtype: Dtype::F32, ..matmul.clone() }, &term.operands, &term.locations)?;
    builder.rewritten(Cast { dtype: matmul.dtype }, &[product], &term.locations)
}

/// The product with other transposition flags.
fn with_flags(op: &Op, transpose_lhs: bool, transpose_rhs: bool) -> Option<Op> {
    match op {
        Op::Matmul(matmul) => Some(Matmul { transpose_lhs, transpose_rhs, ..matmul.clone() }.into()),
        Op::FusedMatmul(matmul) => Some(FusedMatmul { transpose_lhs, transpose_rhs, ..matmul.clone() }.into()),
        _ => None,
    }
}

fn flags(op: &Op) -> Option<(bool, bool)> {
    match op {
        Op::Matmul(matmul) => Some((matmul.transpose_lhs, matmul.transpose_rhs)),
        Op::FusedMatmul(matmul) => Some((matmul.transpose_lhs, matmul.transpose_rhs)),
        _ => None,
    }
}

// matmul(x, transpose(y)) == matmul{transpose_rhs}(x, y) if that leaves the innermost axis of y innermost
fn matmul_transpose(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Some((mut lhs_flag, mut rhs_flag)) = flags(&term.op) else { return Ok(None) };
    let mut operands = term.operands.clone();
    for (position, flag) in [&mut lhs_flag, &mut rhs_flag].into_iter().enumerate() {
        let Some(Op::Transpose(transpose)) = builder.op_of(operands[position]) else { continue };
        let mut perm = transpose.perm.clone();
        let rank = perm.len();
        if rank >= 2 && perm[rank - 2] == rank - 1 {
            perm.swap(rank - 2, rank - 1);
            let source = builder.operands_of(operands[position]);
            operands[position] = builder.value(Transpose { perm }, &source, &term.locations)?;
            *flag = !*flag;
        }
    }
    if operands == term.operands {
        return Ok(None);
    }
    let Some(op) = with_flags(&term.op, lhs_flag, rhs_flag) else { return Ok(None) };
    let locations = builder.absorb(term, &term.operands[..2]);
    builder.rewritten(op, &operands, &locations)
}

/// The operand of a reshape that merges or splits leading axes and keeps the matrix.
fn before_batch_reshape(builder: &Builder<'_>, value: ValueId) -> Option<(ValueId, Shape)> {
    let Some(Op::Reshape(_)) = builder.op_of(value) else { return None };
    let source = builder.operands_of(value)[0];
    let (from, to) = (&builder.ty(source).shape, &builder.ty(value).shape);
    let keeps_matrix = from.len() > 2 && to.len() > 2 && from[from.len() - 2..] == to[to.len() - 2..];
    keeps_matrix.then(|| (source, Shape::from_slice(&from[..from.len() - 2])))
}

// matmul(reshape(x), y) == reshape(matmul(x, reshape(y))) if the reshape of x merges batch axes
fn split_batch(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Some(_) = flags(&term.op) else { return Ok(None) };
    let (lhs, rhs) = (term.operands[0], term.operands[1]);
    let merged = builder.ty(lhs).shape.clone();
    if builder.ty(rhs).rank() != merged.len() {
        return Ok(None);
    }
    let Some((_, batch)) = before_batch_reshape(builder, lhs).filter(|(_, batch)| batch.len() + 2 > merged.len())
    else {
        return Ok(None);
    };
    let mut operands = term.operands.clone();
    for operand in &mut operands[..2] {
        let matrix = &builder.ty(*operand).shape[merged.len() - 2..];
        let shape = batch.iter().chain(matrix).copied().collect();
        *operand = builder.value(Reshape { shape }, &[*operand], &term.locations)?;
    }
    let locations = builder.absorb(term, &[lhs, rhs]);
    let product = builder.value(term.op.clone(), &operands, &locations)?;
    let matrix = &builder.ty(product).shape;
    let shape = merged[..merged.len() - 2].iter().chain(&matrix[matrix.len() - 2..]).copied().collect();
    builder.rewritten(Reshape { shape }, &[product], &locations)
}

// matmul(x: [1, m, k], y: [1, k, n]) == reshape(matmul(x: [m, k], y: [k, n]))
fn unit_batch(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Some(_) = flags(&term.op) else { return Ok(None) };
    let (lhs, rhs) = (builder.ty(term.operands[0]).shape.clone(), builder.ty(term.operands[1]).shape.clone());
    let batch = &lhs[..lhs.len() - 2];
    if batch.is_empty() || batch.iter().any(|&dim| dim != 1) {
        return Ok(None);
    }
    let mut operands = term.operands.clone();
    for (operand, shape) in operands.iter_mut().zip([&lhs, &rhs]) {
        let matrix = Reshape { shape: Shape::from_slice(&shape[shape.len() - 2..]) };
        *operand = builder.value(matrix, &[*operand], &term.locations)?;
    }
    let product = builder.value(term.op.clone(), &operands, &term.locations)?;
    let shape = batch.iter().chain(&builder.ty(product).shape).copied().collect();
    builder.rewritten(Reshape { shape }, &[product], &term.locations)
}

// matmul(x: [b, m, k], y: [k, n]) == reshape(matmul(reshape(x): [b * m, k], y))
fn merge_rows(builder: &mut Builder<'_>, term: &Term) -> Result<Option<Results>, TypeError> {
    let Some((false, _)) = flags(&term.op) else { return Ok(None) };
    let (lhs, rhs) = (builder.ty(term.operands[0]).shape.clone(), builder.ty(term.operands[1]).shape.clone());
    let Some((&inner, lead)) = lhs.split_last() else { return Ok(None) };
    if lhs.len() < 3 || rhs.len() != 2 {
        return Ok(None);
    }
    let rows = Reshape { shape: [lead.iter().product(), inner].into_iter().collect() };
    let mut operands = term.operands.clone();
    operands[0] = builder.value(rows, &operands[..1], &term.locations)?;
    let product = builder.value(term.op.clone(), &operands, &term.locations)?;
    let mut shape = Shape::from_slice(lead);
    shape.push(builder.ty(product).shape[1]);
    builder.rewritten(Reshape { shape }, &[product], &term.locations)
}
