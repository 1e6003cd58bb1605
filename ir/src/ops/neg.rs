//! `neg(x)` = -x.

use smallvec::smallvec;

use super::operands::{Accepts, check_kind};
use super::{Arity, Attr, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value};
use crate::types::{TensorType, TypeError};

/// The negation of a float or integer tensor, element by element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Neg;

impl OpDef for Neg {
    const NAME: &'static str = "neg";
    const ARITY: Arity = Arity::Exactly(1);
    const CLASS: OpClass = OpClass::Pointwise;

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        check_kind::<Self>(Accepts::Numeric, &operands[0])?;
        Ok(smallvec![operands[0].clone()])
    }

    fn eval(&self, operands: &[&Value], _: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        Ok(vec![operands[0].map(|lane| -lane, i64::wrapping_neg)?])
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        attrs.is_empty().then_some(Neg)
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(Neg).floats(&[2], &[1.5, -2.0]).gives_floats(&[2], &[-1.5, 2.0]),
            Example::new(Neg).ints(&[2], &[3, -4]).gives_ints(&[2], &[-3, 4]),
        ]
    }
}
