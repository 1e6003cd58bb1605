//! `add(x, y)` = x + y with broadcasting.

use smallvec::{SmallVec, smallvec};

use super::{Arity, Attr, OpClass, OpDef};
use crate::reference::{EvalError, Value};
use crate::types::{TensorType, TypeError, broadcast_shapes};

/// Sum of two tensors, element by element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Add;

impl OpDef for Add {
    const NAME: &'static str = "add";
    const ARITY: Arity = Arity::Exactly(2);
    const CLASS: OpClass = OpClass::Pointwise;

    fn infer(&self, operands: &[TensorType]) -> Result<SmallVec<[TensorType; 1]>, TypeError> {
        let [lhs, rhs] = operands else { return Err(TypeError::new("`add` takes 2 operands")) };
        if lhs.dtype != rhs.dtype {
            return Err(TypeError::new(format!("operand types of `add` differ: {lhs} and {rhs}")));
        }
        Ok(smallvec![TensorType { dtype: lhs.dtype, shape: broadcast_shapes(&lhs.shape, &rhs.shape)? }])
    }

    fn eval(&self, operands: &[Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        operands[0].zip(&operands[1], &results[0].shape, |x, y| x + y, i64::wrapping_add).map(|value| vec![value])
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        attrs.is_empty().then_some(Add)
    }
}
