//! `softmax(x)` = e^(x - m) / sum(e^(x - m)) over the last axis, m the maximum; a row of -inf gives NaN.

use smallvec::smallvec;

use super::maximum::larger;
use super::operands::{Accepts, check_axis, check_kind};
use super::rows::map_rows;
use super::{Arity, Attr, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value};
use crate::types::{TensorType, TypeError};

/// Exponentials of the last axis, scaled to sum 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Softmax;

impl OpDef for Softmax {
    const NAME: &'static str = "softmax";
    const ARITY: Arity = Arity::Exactly(1);
    const CLASS: OpClass = OpClass::Fused;

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        check_kind::<Self>(Accepts::Float, &operands[0])?;
        check_axis::<Self>(0, &operands[0])?;
        Ok(smallvec![operands[0].clone()])
    }

    fn eval(&self, operands: &[&Value], _: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let lanes = map_rows(operands[0], |row| {
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, larger);
            row.iter_mut().for_each(|lane| *lane = libm::exp(*lane - largest));
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|lane| *lane /= sum);
        })?;
        Ok(vec![lanes])
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        attrs.is_empty().then_some(Softmax)
    }

    fn examples() -> Vec<Example> {
        let (low, nan) = (f64::NEG_INFINITY, f64::NAN);
        vec![
            Example::new(Softmax)
                .floats(&[3, 2], &[1.0, 2.0, low, 0.0, low, low])
                .gives_floats(&[3, 2], &[0.2689414213699951, 0.7310585786300049, 0.0, 1.0, nan, nan]),
        ]
    }
}
