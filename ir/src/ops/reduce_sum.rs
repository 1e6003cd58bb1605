//! `reduce_sum(x) {axes}` = the sum over the axes, which stay as size 1; 0 over no elements.

use smallvec::smallvec;

use super::attributes::{ints, named};
use super::operands::{Accepts, check_kind, reduced};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Lanes, Value, reduce};
use crate::types::{Axes, TensorType, TypeError};

/// The sum of a float or integer tensor over axes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReduceSum {
    /// Ascending.
    pub axes: Axes,
}

impl OpDef for ReduceSum {
    const NAME: &'static str = "reduce_sum";
    const ARITY: Arity = Arity::Exactly(1);
    const CLASS: OpClass = OpClass::Reduction;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[("axes", AttrKind::Ints)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        check_kind::<Self>(Accepts::Numeric, &operands[0])?;
        Ok(smallvec![reduced::<Self>(&self.axes, &operands[0])?])
    }

    fn eval(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let operand = operands[0];
        let lanes = match &operand.lanes {
            Lanes::Float(lanes) => Lanes::Float(reduce(&operand.shape, lanes, &self.axes, |line| {
                line.iter().fold(0.0, |sum, &lane| sum + lane)
            })),
            Lanes::Int(lanes) => Lanes::Int(reduce(&operand.shape, lanes, &self.axes, |line| {
                line.iter().fold(0, |sum: i64, &lane| sum.wrapping_add(lane))
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
        Some(ReduceSum { axes: axes.as_sizes()? })
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(ReduceSum { axes: smallvec![1] })
                .floats(&[2, 3], &[1.0, 5.0, 3.0, -4.0, 0.5, 2.0])
                .gives_floats(&[2, 1], &[9.0, -1.5]),
            Example::new(ReduceSum { axes: smallvec![0] })
                .floats(&[2, 3], &[1.0, 5.0, 3.0, -4.0, 0.5, 2.0])
                .gives_floats(&[1, 3], &[-3.0, 5.5, 5.0]),
            Example::new(ReduceSum { axes: smallvec![0, 2] })
                .ints(&[2, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8])
                .gives_ints(&[1, 2, 1], &[14, 22]),
        ]
    }
}
