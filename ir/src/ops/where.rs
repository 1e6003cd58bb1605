//! `where(cond, a, b)` = a where cond, else b, with broadcasting of all three.

use smallvec::smallvec;

use super::operands::{Accepts, broadcast_all, check_kind, check_same_dtype};
use super::{Arity, Attr, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Lanes, Value, broadcast};
use crate::types::{TensorType, TypeError};

/// Chooses between two tensors of one element type, element by element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Where;

impl OpDef for Where {
    const NAME: &'static str = "where";
    const ARITY: Arity = Arity::Exactly(3);
    const CLASS: OpClass = OpClass::Pointwise;

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        check_kind::<Self>(Accepts::Bool, &operands[0])?;
        check_same_dtype::<Self>(&operands[1..])?;
        Ok(smallvec![operands[1].with_shape(broadcast_all::<Self>(operands)?)])
    }

    fn eval(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let shape = &results[0].shape;
        let condition = broadcast(&operands[0].shape, operands[0].as_bools()?, shape)?;
        let mut chosen = operands[1].broadcast_to(shape)?;
        let other = operands[2].broadcast_to(shape)?;
        match (&mut chosen.lanes, &other.lanes) {
            (Lanes::Float(chosen), Lanes::Float(other)) => replace_unless(&condition, chosen, other),
            (Lanes::Int(chosen), Lanes::Int(other)) => replace_unless(&condition, chosen, other),
            (Lanes::Bool(chosen), Lanes::Bool(other)) => replace_unless(&condition, chosen, other),
            (Lanes::Float(_) | Lanes::Int(_) | Lanes::Bool(_), _) => {
                return Err(EvalError::new("operands of one kind expected"));
            }
        }
        Ok(vec![chosen])
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        attrs.is_empty().then_some(Where)
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(Where)
                .bools(&[2, 1], &[true, false])
                .floats(&[3], &[1.0, 2.0, 3.0])
                .floats(&[], &[f64::NAN])
                .gives_floats(&[2, 3], &[1.0, 2.0, 3.0, f64::NAN, f64::NAN, f64::NAN]),
        ]
    }
}

fn replace_unless<T: Copy>(condition: &[bool], chosen: &mut [T], other: &[T]) {
    for ((&keep, lane), &other) in condition.iter().zip(chosen).zip(other) {
        if !keep {
            *lane = other;
        }
    }
}
