//! `logical_not(x)` = not x.

use smallvec::smallvec;

use super::operands::{Accepts, check_kind};
use super::{Arity, Attr, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value};
use crate::types::{TensorType, TypeError};

/// The negation of a bool tensor, element by element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogicalNot;

impl OpDef for LogicalNot {
    const NAME: &'static str = "logical_not";
    const ARITY: Arity = Arity::Exactly(1);
    const CLASS: OpClass = OpClass::Pointwise;

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        check_kind::<Self>(Accepts::Bool, &operands[0])?;
        Ok(smallvec![operands[0].clone()])
    }

    fn eval(&self, operands: &[&Value], _: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let lanes: Vec<bool> = operands[0].as_bools()?.iter().map(|&lane| !lane).collect();
        Ok(vec![Value::bools(&operands[0].shape, lanes)])
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        attrs.is_empty().then_some(LogicalNot)
    }

    fn examples() -> Vec<Example> {
        vec![Example::new(LogicalNot).bools(&[2], &[true, false]).gives_bools(&[2], &[false, true])]
    }
}
