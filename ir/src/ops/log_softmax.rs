//! `log_softmax(x)` = x - m - log(sum(e^(x - m))) over the last axis, m the maximum; a row of -inf gives NaN.

use smallvec::smallvec;

use super::maximum::larger;
use super::operands::{Accepts, check_axis, check_kind};
use super::rows::map_rows;
use super::{Arity, Attr, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value};
use crate::types::{TensorType, TypeError};

/// The logarithm of `softmax`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogSoftmax;

impl OpDef for LogSoftmax {
    const NAME: &'static str = "log_softmax";
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
            let sum: f64 = row.iter().map(|&lane| libm::exp(lane - largest)).sum();
            let log_sum = libm::log(sum);
            row.iter_mut().for_each(|lane| *lane = *lane - largest - log_sum);
        })?;
        Ok(vec![lanes])
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        attrs.is_empty().then_some(LogSoftmax)
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(LogSoftmax)
                .floats(&[1, 2], &[1.0, 2.0])
                .gives_floats(&[1, 2], &[-1.3132616875182228, -0.3132616875182228]),
        ]
    }
}
