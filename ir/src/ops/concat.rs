//! `concat(x, ...) {axis}` = the operands one after the other on the axis.

use smallvec::smallvec;

use super::attributes::{int, named};
use super::operands::{check_axis, check_same_dtype};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Lanes, Value};
use crate::types::{TensorType, TypeError};

/// Joins tensors that differ in one axis at most.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Concat {
    pub axis: usize,
}

impl OpDef for Concat {
    const NAME: &'static str = "concat";
    const ARITY: Arity = Arity::AtLeast(1);
    const CLASS: OpClass = OpClass::Movement;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[("axis", AttrKind::Int)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        check_same_dtype::<Self>(operands)?;
        check_axis::<Self>(self.axis, &operands[0])?;
        let mut result = operands[0].clone();
        for operand in &operands[1..] {
            let mut resized = operand.clone();
            if operand.rank() == result.rank() {
                resized.shape[self.axis] = result.shape[self.axis];
            }
            if resized.shape != result.shape {
                let message = format!("`concat` on axis {} of {} and {operand}", self.axis, operands[0]);
                return Err(TypeError::new(message));
            }
            result.shape[self.axis] = result.shape[self.axis].saturating_add(operand.shape[self.axis]);
        }
        Ok(smallvec![result])
    }

    fn eval(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let shape = &results[0].shape;
        let inner: usize = shape[self.axis + 1..].iter().product();
        let widths: Vec<usize> = operands.iter().map(|operand| operand.shape[self.axis] * inner).collect();
        let lanes = match &operands[0].lanes {
            Lanes::Float(_) => Lanes::Float(interleave(&collect(operands, Value::as_floats)?, &widths)),
            Lanes::Int(_) => Lanes::Int(interleave(&collect(operands, Value::as_ints)?, &widths)),
            Lanes::Bool(_) => Lanes::Bool(interleave(&collect(operands, Value::as_bools)?, &widths)),
        };
        Ok(vec![Value { shape: shape.clone(), lanes }])
    }

    fn attrs(&self) -> Attrs {
        smallvec![("axis", int(self.axis))]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [axis] = named(attrs, ["axis"])?;
        Some(Concat { axis: axis.as_size()? })
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(Concat { axis: 1 })
                .ints(&[2, 2], &[1, 2, 3, 4])
                .ints(&[2, 1], &[5, 6])
                .gives_ints(&[2, 3], &[1, 2, 5, 3, 4, 6]),
            Example::new(Concat { axis: 0 })
                .bools(&[1], &[true])
                .bools(&[2], &[false, true])
                .bools(&[0], &[])
                .gives_bools(&[3], &[true, false, true]),
        ]
    }
}

fn collect<'a, T>(
    operands: &[&'a Value],
    lanes: impl Fn(&'a Value) -> Result<&'a [T], EvalError>,
) -> Result<Vec<&'a [T]>, EvalError> {
    operands.iter().map(|operand| lanes(operand)).collect()
}

/// `widths[0]` elements of the first operand, `widths[1]` of the second and so on, then the next of each.
fn interleave<T: Copy>(operands: &[&[T]], widths: &[usize]) -> Vec<T> {
    let n_elements = operands.iter().map(|operand| operand.len()).sum();
    let mut lanes = Vec::with_capacity(n_elements);
    let mut block = 0;
    while lanes.len() < n_elements {
        for (operand, &width) in operands.iter().zip(widths) {
            lanes.extend_from_slice(&operand[block * width..(block + 1) * width]);
        }
        block += 1;
    }
    lanes
}
