//! `reduce_mean(x) {axes}` = the mean over the axes, which stay as size 1; NaN over no elements.

use smallvec::smallvec;

use super::attributes::{ints, named};
use super::operands::{Accepts, check_kind, reduced};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value, reduce};
use crate::types::{Axes, TensorType, TypeError};

/// The mean of a float tensor over axes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReduceMean {
    /// Ascending.
    pub axes: Axes,
}

impl OpDef for ReduceMean {
    const NAME: &'static str = "reduce_mean";
    const ARITY: Arity = Arity::Exactly(1);
    const CLASS: OpClass = OpClass::Reduction;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[("axes", AttrKind::Ints)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        check_kind::<Self>(Accepts::Float, &operands[0])?;
        Ok(smallvec![reduced::<Self>(&self.axes, &operands[0])?])
    }

    fn eval(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let operand = operands[0];
        let mean = |line: &[f64]| line.iter().sum::<f64>() / line.len() as f64;
        let lanes = reduce(&operand.shape, operand.as_floats()?, &self.axes, mean);
        Ok(vec![Value::floats(&results[0].shape, lanes)])
    }

    fn attrs(&self) -> Attrs {
        smallvec![("axes", ints(&self.axes))]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [axes] = named(attrs, ["axes"])?;
        Some(ReduceMean { axes: axes.as_sizes()? })
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(ReduceMean { axes: smallvec![1] })
                .floats(&[2, 3], &[1.0, 5.0, 3.0, -4.0, 0.5, 2.0])
                .gives_floats(&[2, 1], &[3.0, -0.5]),
            Example::new(ReduceMean { axes: smallvec![0, 1] })
                .floats(&[2, 3], &[1.0, 5.0, 3.0, -4.0, 0.5, 2.0])
                .gives_floats(&[1, 1], &[1.25]),
        ]
    }
}
