//! `cumsum(x) {axis}` = the sum of each element and all before it on the axis.

use smallvec::smallvec;

use super::attributes::{int, named};
use super::operands::{Accepts, check_axis, check_kind};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Lanes, Value};
use crate::types::{TensorType, TypeError};

/// The running sum of a float or integer tensor along an axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cumsum {
    pub axis: usize,
}

impl OpDef for Cumsum {
    const NAME: &'static str = "cumsum";
    const ARITY: Arity = Arity::Exactly(1);
    const CLASS: OpClass = OpClass::Scan;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[("axis", AttrKind::Int)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        check_kind::<Self>(Accepts::Numeric, &operands[0])?;
        check_axis::<Self>(self.axis, &operands[0])?;
        Ok(smallvec![operands[0].clone()])
    }

    fn eval(&self, operands: &[&Value], _: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let mut value = operands[0].clone();
        let length = value.shape[self.axis];
        let inner: usize = value.shape[self.axis + 1..].iter().product();
        match &mut value.lanes {
            Lanes::Float(lanes) => accumulate(lanes, length, inner, |sum, lane| sum + lane),
            Lanes::Int(lanes) => accumulate(lanes, length, inner, i64::wrapping_add),
            Lanes::Bool(_) => return Err(EvalError::new("numeric lanes expected")),
        }
        Ok(vec![value])
    }

    fn attrs(&self) -> Attrs {
        smallvec![("axis", int(self.axis))]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [axis] = named(attrs, ["axis"])?;
        Some(Cumsum { axis: axis.as_size()? })
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(Cumsum { axis: 1 })
                .floats(&[2, 3], &[1.0, 2.0, 3.0, -1.0, 0.5, 4.0])
                .gives_floats(&[2, 3], &[1.0, 3.0, 6.0, -1.0, -0.5, 3.5]),
            Example::new(Cumsum { axis: 0 })
                .ints(&[3, 2], &[1, 2, 3, 4, 5, 6])
                .gives_ints(&[3, 2], &[1, 2, 4, 6, 9, 12]),
        ]
    }
}

/// Adds to every element the one `inner` places before it in its block of `length` times `inner`.
fn accumulate<T: Copy>(lanes: &mut [T], length: usize, inner: usize, add: impl Fn(T, T) -> T) {
    let block_length = length * inner;
    if block_length == 0 {
        return;
    }
    for block in lanes.chunks_exact_mut(block_length) {
        for position in inner..block_length {
            block[position] = add(block[position - inner], block[position]);
        }
    }
}
