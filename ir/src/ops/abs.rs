//! `abs(x)` = |x|.

use smallvec::smallvec;

use super::operands::{Accepts, check_kind};
use super::{Arity, Attr, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value};
use crate::types::{TensorType, TypeError};

/// The absolute value of a float or integer tensor, element by element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Abs;

impl OpDef for Abs {
    const NAME: &'static str = "abs";
    const ARITY: Arity = Arity::Exactly(1);
    const CLASS: OpClass = OpClass::Pointwise;

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        check_kind::<Self>(Accepts::Numeric, &operands[0])?;
        Ok(smallvec![operands[0].clone()])
    }

    fn eval(&self, operands: &[&Value], _: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        Ok(vec![operands[0].map(f64::abs, i64::wrapping_abs)?])
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        attrs.is_empty().then_some(Abs)
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(Abs).floats(&[2], &[1.5, -2.0]).gives_floats(&[2], &[1.5, 2.0]),
            Example::new(Abs).ints(&[2], &[3, -4]).gives_ints(&[2], &[3, 4]),
        ]
    }
}
