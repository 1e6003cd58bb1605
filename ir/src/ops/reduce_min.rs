//! `reduce_min(x) {axes}` = the smallest element over the axes, which stay as size 1; NaN where one is NaN.

use smallvec::smallvec;

use super::attributes::{ints, named};
use super::minimum::smaller;
use super::operands::{Accepts, check_kind, reduced_non_empty};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Lanes, Value, reduce};
use crate::types::{Axes, TensorType, TypeError};

/// The minimum of a float or integer tensor over axes that are not empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReduceMin {
    /// Ascending.
    pub axes: Axes,
}

impl OpDef for ReduceMin {
    const NAME: &'static str = "reduce_min";
    const ARITY: Arity = Arity::Exactly(1);
    const CLASS: OpClass = OpClass::Reduction;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[("axes", AttrKind::Ints)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        check_kind::<Self>(Accepts::Numeric, &operands[0])?;
        Ok(smallvec![reduced_non_empty::<Self>(&self.axes, &operands[0])?])
    }

    fn eval(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let operand = operands[0];
        let lanes = match &operand.lanes {
            Lanes::Float(lanes) => Lanes::Float(reduce(&operand.shape, lanes, &self.axes, |line| {
                line.iter().copied().fold(f64::INFINITY, smaller)
            })),
            Lanes::Int(lanes) => Lanes::Int(reduce(&operand.shape, lanes, &self.axes, |line| {
                line.iter().copied().fold(i64::MAX, i64::min)
            })),
            Lanes::Bool(_) => return Err(EvalError::new("numeric lanes expected")),
        };
        Ok(vec![Value { shape: results[0].shape.clone(), lanes }])
    }

    fn attrs(&self) -> Attrs {
        smallvec![("axes", ints(&self.axes))]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [axes] = named(attrs, ["axes"])?;
        Some(ReduceMin { axes: axes.as_sizes()? })
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(ReduceMin { axes: smallvec![1] })
                .floats(&[2, 3], &[1.0, 5.0, 3.0, -4.0, 0.5, 2.0])
                .gives_floats(&[2, 1], &[1.0, -4.0]),
            Example::new(ReduceMin { axes: smallvec![0] })
                .floats(&[3], &[1.0, f64::NAN, 2.0])
                .gives_floats(&[1], &[f64::NAN]),
            Example::new(ReduceMin { axes: smallvec![0] }).ints(&[3], &[4, -2, 3]).gives_ints(&[1], &[-2]),
        ]
    }
}
