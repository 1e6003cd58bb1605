//! `relu(x)` = x where x > 0, else 0; NaN stays NaN.

use smallvec::{SmallVec, smallvec};

use super::{Arity, Attr, OpClass, OpDef};
use crate::reference::{EvalError, Value};
use crate::types::{TensorType, TypeError};

/// Rectified linear unit, element by element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Relu;

impl OpDef for Relu {
    const NAME: &'static str = "relu";
    const ARITY: Arity = Arity::Exactly(1);
    const CLASS: OpClass = OpClass::Pointwise;

    fn infer(&self, operands: &[TensorType]) -> Result<SmallVec<[TensorType; 1]>, TypeError> {
        Ok(smallvec![operands[0].clone()])
    }

    fn eval(&self, operands: &[Value], _: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        operands[0].map_float(|lane| if lane < 0.0 { 0.0 } else { lane }).map(|value| vec![value])
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        attrs.is_empty().then_some(Relu)
    }
}
