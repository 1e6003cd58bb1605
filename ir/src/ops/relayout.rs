//! `relayout(x)` = x; marks where a value changes its layout on chip.

use smallvec::smallvec;

use super::{Arity, Attr, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value};
use crate::types::{TensorType, TypeError};

/// The identity: its operand and its result have different layouts after placement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Relayout;

impl OpDef for Relayout {
    const NAME: &'static str = "relayout";
    const ARITY: Arity = Arity::Exactly(1);
    const CLASS: OpClass = OpClass::Movement;

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        Ok(smallvec![operands[0].clone()])
    }

    fn eval(&self, operands: &[&Value], _: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        Ok(vec![operands[0].clone()])
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        attrs.is_empty().then_some(Relayout)
    }

    fn examples() -> Vec<Example> {
        vec![Example::new(Relayout).floats(&[2, 1], &[1.0, -2.0]).gives_floats(&[2, 1], &[1.0, -2.0])]
    }
}
