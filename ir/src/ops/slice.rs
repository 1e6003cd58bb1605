//! `slice(x) {axis, start, end, step}` = the elements at start, start + step, ... before end on the axis.

use smallvec::{SmallVec, smallvec};

use super::attributes::{int, named};
use super::operands::check_axis;
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, StridedDim, Value};
use crate::types::{TensorType, TypeError, packed_strides};

/// Takes every `step`-th element of a range of an axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    pub axis: usize,
    pub start: usize,
    /// One past the last position that may be taken; at most the size of the axis.
    pub end: usize,
    /// At least 1.
    pub step: usize,
}

impl OpDef for Slice {
    const NAME: &'static str = "slice";
    const ARITY: Arity = Arity::Exactly(1);
    const CLASS: OpClass = OpClass::Movement;
    const ATTRS: &'static [(&'static str, AttrKind)] =
        &[("axis", AttrKind::Int), ("start", AttrKind::Int), ("end", AttrKind::Int), ("step", AttrKind::Int)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        check_axis::<Self>(self.axis, &operands[0])?;
        let Slice { axis, start, end, step } = *self;
        if start > end || end > operands[0].shape[axis] || step == 0 {
            let message = format!("`slice` from {start} to {end} by {step} on axis {axis} of {}", operands[0]);
            return Err(TypeError::new(message));
        }
        let mut result = operands[0].clone();
        result.shape[axis] = (end - start).div_ceil(step);
        Ok(smallvec![result])
    }

    fn eval(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let operand = operands[0];
        let shape = &results[0].shape;
        let strides = packed_strides(&operand.shape);
        let mut dims: SmallVec<[StridedDim; 6]> = shape.iter().copied().zip(strides.iter().copied()).collect();
        dims[self.axis].1 = dims[self.axis].1.saturating_mul(self.step);
        let lanes = operand.lanes.strided(self.start * strides[self.axis], &dims);
        Ok(vec![Value { shape: shape.clone(), lanes }])
    }

    fn attrs(&self) -> Attrs {
        smallvec![
            ("axis", int(self.axis)),
            ("start", int(self.start)),
            ("end", int(self.end)),
            ("step", int(self.step))
        ]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [axis, start, end, step] = named(attrs, ["axis", "start", "end", "step"])?;
        Some(Slice { axis: axis.as_size()?, start: start.as_size()?, end: end.as_size()?, step: step.as_size()? })
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(Slice { axis: 1, start: 1, end: 4, step: 2 })
                .ints(&[2, 4], &[1, 2, 3, 4, 5, 6, 7, 8])
                .gives_ints(&[2, 2], &[2, 4, 6, 8]),
            Example::new(Slice { axis: 0, start: 1, end: 3, step: 1 })
                .ints(&[3, 2], &[1, 2, 3, 4, 5, 6])
                .gives_ints(&[2, 2], &[3, 4, 5, 6]),
        ]
    }
}
