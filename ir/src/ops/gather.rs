//! `gather(x, index) {axis}` = x at each position, with its coordinate on the axis taken from index.
//!
//! The result has the shape of the index, which is nowhere larger than x apart from the axis. An
//! index outside the axis is an error.

use smallvec::smallvec;

use super::attributes::{int, named};
use super::operands::{Accepts, check_axis, check_kind};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value};
use crate::types::{TensorType, TypeError, packed_strides};

/// Takes one element along an axis for each element of an index tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    pub axis: usize,
}

impl OpDef for Gather {
    const NAME: &'static str = "gather";
    const ARITY: Arity = Arity::Exactly(2);
    const CLASS: OpClass = OpClass::Indexing;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[("axis", AttrKind::Int)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        let [operand, index] = operands else { return Err(TypeError::new("`gather` takes 2 operands")) };
        check_axis::<Self>(self.axis, operand)?;
        check_kind::<Self>(Accepts::Integer, index)?;
        let fits = |axis: usize| axis == self.axis || index.shape[axis] <= operand.shape[axis];
        if index.rank() != operand.rank() || !(0..index.rank()).all(fits) {
            return Err(TypeError::new(format!("`gather` on axis {} of {operand} by {index}", self.axis)));
        }
        Ok(smallvec![operand.with_shape(index.shape.iter().copied())])
    }

    fn eval(&self, operands: &[&Value], _: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let (operand, index) = (operands[0], operands[1]);
        let strides = packed_strides(&operand.shape);
        let axis_size = operand.shape[self.axis];
        let mut positions = Vec::with_capacity(index.lanes.len());
        for (flat, &coordinate) in index.as_ints()?.iter().enumerate() {
            let Some(on_axis) = usize::try_from(coordinate).ok().filter(|&at| at < axis_size) else {
                return Err(EvalError::new(format!("index {coordinate} on an axis of size {axis_size}")));
            };
            let mut rest = flat;
            let mut position = on_axis * strides[self.axis];
            for (axis, &dim) in index.shape.iter().enumerate().rev() {
                if axis != self.axis {
                    position += rest % dim * strides[axis];
                }
                rest /= dim;
            }
            positions.push(position);
        }
        Ok(vec![Value { shape: index.shape.clone(), lanes: operand.lanes.select(&positions) }])
    }

    fn attrs(&self) -> Attrs {
        smallvec![("axis", int(self.axis))]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [axis] = named(attrs, ["axis"])?;
        Some(Gather { axis: axis.as_size()? })
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(Gather { axis: 1 })
                .ints(&[2, 3], &[1, 2, 3, 4, 5, 6])
                .ints(&[2, 2], &[2, 0, 1, 1])
                .gives_ints(&[2, 2], &[3, 1, 5, 5]),
            Example::new(Gather { axis: 0 })
                .floats(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
                .ints(&[1, 2], &[2, 1])
                .gives_floats(&[1, 2], &[5.0, 4.0]),
        ]
    }
}
