//! `index(x, i, ...) {axes}` = x with one index tensor for each of the axes.
//!
//! The index tensors broadcast to one shape. Where the axes are adjacent that shape takes their
//! place, otherwise it leads the result. A negative index counts from the end; one out of range is
//! an error.

use smallvec::{SmallVec, smallvec};

use super::attributes::{ints, named};
use super::operands::{Accepts, broadcast_all, check_axes, check_kind};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, StridedDim, Value, broadcast};
use crate::types::{Axes, Shape, TensorType, TypeError, packed_strides};

/// Takes elements by index tensors at some axes, as NumPy's advanced indexing does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Index {
    /// Ascending; one index operand for each.
    pub axes: Axes,
}

impl OpDef for Index {
    const NAME: &'static str = "index";
    const ARITY: Arity = Arity::AtLeast(2);
    const CLASS: OpClass = OpClass::Indexing;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[("axes", AttrKind::Ints)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        let (operand, indices) = (&operands[0], &operands[1..]);
        check_axes::<Self>(&self.axes, operand)?;
        indices.iter().try_for_each(|index| check_kind::<Self>(Accepts::Integer, index))?;
        if indices.len() != self.axes.len() {
            let message = format!("`index` has axes {:?} and {} index tensors", self.axes, indices.len());
            return Err(TypeError::new(message));
        }
        let common = broadcast_all::<Self>(indices)?;
        let (lead, trail) = self.kept_axes(operand.rank());
        let dims_of = |axes: &[usize]| axes.iter().map(|&axis| operand.shape[axis]).collect::<Shape>();
        Ok(smallvec![operand.with_shape(dims_of(&lead).into_iter().chain(common).chain(dims_of(&trail)))])
    }

    fn eval(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let operand = operands[0];
        let strides = packed_strides(&operand.shape);
        let (lead, trail) = self.kept_axes(operand.shape.len());
        let common = &results[0].shape[lead.len()..results[0].shape.len() - trail.len()];
        let indexed = self.indexed_offsets(operand, &operands[1..], common)?;
        let offsets_of = |axes: &[usize]| {
            let dims: SmallVec<[StridedDim; 6]> =
                axes.iter().map(|&axis| (operand.shape[axis], strides[axis])).collect();
            walk_offsets(&dims)
        };
        let (lead, trail) = (offsets_of(&lead), offsets_of(&trail));
        let mut positions = Vec::with_capacity(results[0].n_elements());
        for outer in &lead {
            for middle in &indexed {
                positions.extend(trail.iter().map(|inner| outer + middle + inner));
            }
        }
        Ok(vec![Value { shape: results[0].shape.clone(), lanes: operand.lanes.select(&positions) }])
    }

    fn attrs(&self) -> Attrs {
        smallvec![("axes", ints(&self.axes))]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [axes] = named(attrs, ["axes"])?;
        Some(Index { axes: axes.as_sizes()? })
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(Index { axes: smallvec![1] })
                .ints(&[2, 3], &[1, 2, 3, 4, 5, 6])
                .ints(&[2], &[-1, 0])
                .gives_ints(&[2, 2], &[3, 1, 6, 4]),
            Example::new(Index { axes: smallvec![0, 1] })
                .ints(&[2, 3], &[1, 2, 3, 4, 5, 6])
                .ints(&[2, 1], &[0, 1])
                .ints(&[2], &[2, 0])
                .gives_ints(&[2, 2], &[3, 1, 6, 4]),
            Example::new(Index { axes: smallvec![0, 2] })
                .ints(&[2, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8])
                .ints(&[3], &[0, 1, 1])
                .ints(&[3], &[1, 0, 1])
                .gives_ints(&[3, 2], &[2, 4, 5, 7, 6, 8]),
        ]
    }
}

impl Index {
    /// Axes without an index that stand before and after the broadcast index shape in the result.
    fn kept_axes(&self, rank: usize) -> (Axes, Axes) {
        let kept = (0..rank).filter(|axis| !self.axes.contains(axis));
        let adjacent = self.axes.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let first = self.axes.first().copied().unwrap_or(0);
        kept.partition(|&axis| adjacent && axis < first)
    }

    /// For each element of the broadcast index shape, the offset in `operand` that the indices add up to.
    fn indexed_offsets(&self, operand: &Value, indices: &[&Value], common: &[usize]) -> Result<Vec<usize>, EvalError> {
        let strides = packed_strides(&operand.shape);
        let mut offsets = vec![0; common.iter().product()];
        for (&axis, index) in self.axes.iter().zip(indices) {
            let axis_size = operand.shape[axis];
            let coordinates = broadcast(&index.shape, index.as_ints()?, common)?;
            for (offset, &coordinate) in offsets.iter_mut().zip(coordinates.iter()) {
                let wrapped =
                    if coordinate < 0 { coordinate.saturating_add_unsigned(axis_size as u64) } else { coordinate };
                let Some(on_axis) = usize::try_from(wrapped).ok().filter(|&at| at < axis_size) else {
                    return Err(EvalError::new(format!("index {coordinate} on axis {axis} of size {axis_size}")));
                };
                *offset += on_axis * strides[axis];
            }
        }
        Ok(offsets)
    }
}

/// Offsets that a walk over `dims` meets, row-major.
fn walk_offsets(dims: &[StridedDim]) -> Vec<usize> {
    dims.iter().fold(vec![0], |offsets, &(count, stride)| {
        offsets.iter().flat_map(|offset| (0..count).map(move |step| offset + step * stride)).collect()
    })
}
