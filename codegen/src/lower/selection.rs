//! Gathers along an axis, one element for each index, as comparisons with the positions of the axis.
//!
//! Rows on chip stay there: each index selects one element of its row, and a row sum brings it out.
//! Row gathers, whose index is the same for all rows, are DMAs (`indexing`).

use ir::ops::{Cast, Eq, Full, Gather, Iota, ReduceSum, Reshape, Slice, Where};
use ir::types::{Axes, Shape, TypeError};
use ir::{Dtype, Graph, Node, Op, ValueId};

use super::chunked::Expansion;

/// Indices along the axis up to which a gather is taken apart: each is a pass over the operand.
const MAX_SELECTED: usize = 64;

/// f32 holds every integer up to here.
const MAX_EXACT: usize = 1 << 24;

/// True for a gather that is taken apart: every row has an index of its own.
pub(super) fn selects(graph: &Graph, node: &Node) -> bool {
    let Op::Gather(Gather { axis }) = node.op else { return false };
    let (operand, index) = (graph.ty(node.operands[0]), graph.ty(node.operands[1]));
    let is_shared = index.shape.iter().enumerate().all(|(other, &dim)| other == axis || dim == 1);
    let is_selectable = operand.dtype.is_float() && operand.dtype != Dtype::F64 || operand.dtype == Dtype::Bool;
    !is_shared && is_selectable && index.shape[axis] <= MAX_SELECTED && operand.shape[axis] <= MAX_EXACT
}

impl Expansion<'_> {
    /// gather(x, index)[.., j, ..] = sum over p of (index[.., j, ..] = p ? x[.., p, ..] : -0).
    ///
    /// All terms but one are -0, so that the sum is that one, infinities, NaN and the sign of zero
    /// included.
    pub(super) fn selected(&mut self, axis: usize, operands: &[ValueId]) -> Result<ValueId, TypeError> {
        let index_shape = self.graph.ty(operands[1]).shape.clone();
        let ty = self.graph.ty(operands[0]).clone();
        // The compute type is explicit; nothing is rounded, whatever the operand's type.
        let summed = if ty.dtype == Dtype::Bool || ty.dtype.is_half() { Dtype::F32 } else { ty.dtype };
        let mut data = self.cast(operands[0], summed)?;
        for (other, &end) in index_shape.iter().enumerate().filter(|&(other, _)| other != axis) {
            if end < ty.shape[other] {
                data = self.op(Slice { axis: other, start: 0, end, step: 1 }, &[data])?;
            }
        }
        // Positions are exact in f32, and no other index is rounded to one of them.
        let along: Shape = (0..ty.rank()).map(|other| if other == axis { ty.shape[axis] } else { 1 }).collect();
        let places = self.op(Iota { dtype: Dtype::F32, length: ty.shape[axis], start: 0, step: 1 }, &[])?;
        let places = self.op(Reshape { shape: along }, &[places])?;
        let index = self.cast(operands[1], Dtype::F32)?;
        let nothing = self.op(Full::new(-0.0, summed, []), &[])?;
        let mut parts = Vec::new();
        for start in 0..index_shape[axis] {
            let place = self.op(Slice { axis, start, end: start + 1, step: 1 }, &[index])?;
            let is_selected = self.op(Eq, &[place, places])?;
            let terms = self.op(Where, &[is_selected, data, nothing])?;
            parts.push(self.op(ReduceSum { axes: Axes::from_elem(axis, 1) }, &[terms])?);
        }
        let joined = if let [part] = parts[..] { part } else { self.op(ir::ops::Concat { axis }, &parts)? };
        self.cast(joined, ty.dtype)
    }

    fn cast(&mut self, value: ValueId, dtype: Dtype) -> Result<ValueId, TypeError> {
        if self.graph.ty(value).dtype == dtype { Ok(value) } else { self.op(Cast { dtype }, &[value]) }
    }
}
