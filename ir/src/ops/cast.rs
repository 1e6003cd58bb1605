//! `cast(x) {dtype}` = x as another element type.
//!
//! Float to integer truncates toward zero and saturates, NaN becomes 0; integer to a narrower
//! integer wraps; to bool is x != 0, so that NaN becomes true; bool is 0 or 1. Float to float
//! rounds, which is the evaluator's business and left out of the truth.

use smallvec::smallvec;

use super::attributes::named;
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Lanes, Value, integer_range, wrap_integer};
use crate::types::{Dtype, TensorType, TypeError};

/// Converts every element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cast {
    pub dtype: Dtype,
}

impl OpDef for Cast {
    const NAME: &'static str = "cast";
    const ARITY: Arity = Arity::Exactly(1);
    const CLASS: OpClass = OpClass::Pointwise;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[("dtype", AttrKind::Dtype)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        Ok(smallvec![operands[0].with_dtype(self.dtype)])
    }

    fn eval(&self, operands: &[&Value], _: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let operand = operands[0];
        let lanes = match self.dtype {
            Dtype::F64 | Dtype::F32 | Dtype::Bf16 | Dtype::F16 | Dtype::F8E4m3 | Dtype::F8E5m2 => {
                Lanes::Float(to_floats(&operand.lanes))
            }
            Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 | Dtype::U8 => {
                Lanes::Int(to_ints(&operand.lanes, self.dtype))
            }
            Dtype::Bool => Lanes::Bool(to_bools(&operand.lanes)),
        };
        Ok(vec![Value { shape: operand.shape.clone(), lanes }])
    }

    fn attrs(&self) -> Attrs {
        smallvec![("dtype", Attr::Dtype(self.dtype))]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [dtype] = named(attrs, ["dtype"])?;
        Some(Cast { dtype: dtype.as_dtype()? })
    }

    fn examples() -> Vec<Example> {
        let cast = |dtype| Example::new(Cast { dtype });
        let floats = [-1.5, 0.0, 2.75, f64::NAN];
        vec![
            cast(Dtype::I32).floats(&[4], &floats).gives_ints(&[4], &[-1, 0, 2, 0]),
            cast(Dtype::I8).floats(&[3], &[300.0, -300.0, 5.9]).gives_ints(&[3], &[127, -128, 5]),
            cast(Dtype::Bool).floats(&[4], &floats).gives_bools(&[4], &[true, false, true, true]),
            cast(Dtype::U8).ints(&[3], &[-1, 256, 7]).gives_ints(&[3], &[255, 0, 7]),
            cast(Dtype::F32).ints(&[2], &[-3, 7]).gives_floats(&[2], &[-3.0, 7.0]),
            cast(Dtype::F32).bools(&[2], &[true, false]).gives_floats(&[2], &[1.0, 0.0]),
            cast(Dtype::I32).bools(&[2], &[true, false]).gives_ints(&[2], &[1, 0]),
            cast(Dtype::Bf16).floats(&[1], &[1.0]).gives_floats(&[1], &[1.0]),
        ]
    }
}

fn to_floats(lanes: &Lanes) -> Vec<f64> {
    match lanes {
        Lanes::Float(lanes) => lanes.clone(),
        Lanes::Int(lanes) => lanes.iter().map(|&lane| lane as f64).collect(),
        Lanes::Bool(lanes) => lanes.iter().map(|&lane| f64::from(u8::from(lane))).collect(),
    }
}

fn to_ints(lanes: &Lanes, dtype: Dtype) -> Vec<i64> {
    let (low, high) = integer_range(dtype).unwrap_or((i64::MIN, i64::MAX));
    match lanes {
        Lanes::Float(lanes) => lanes.iter().map(|&lane| (lane as i64).clamp(low, high)).collect(),
        Lanes::Int(lanes) => lanes.iter().map(|&lane| wrap_integer(dtype, lane)).collect(),
        Lanes::Bool(lanes) => lanes.iter().map(|&lane| i64::from(lane)).collect(),
    }
}

fn to_bools(lanes: &Lanes) -> Vec<bool> {
    match lanes {
        Lanes::Float(lanes) => lanes.iter().map(|&lane| lane != 0.0).collect(),
        Lanes::Int(lanes) => lanes.iter().map(|&lane| lane != 0).collect(),
        Lanes::Bool(lanes) => lanes.clone(),
    }
}
