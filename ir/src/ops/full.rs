//! `full() {value, dtype, shape}` = a tensor of one value.

use smallvec::smallvec;

use super::attributes::{ints, named};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Lanes, Value, integer_range};
use crate::types::{Dtype, F64Bits, Shape, TensorType, TypeError};

/// A tensor whose elements are all one value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Full {
    /// For integer types an integer in range, for bool 0 or 1.
    pub value: F64Bits,
    pub dtype: Dtype,
    pub shape: Shape,
}

impl Full {
    /// A tensor of `value`; of a bool type, 0.0 is false and 1.0 is true.
    pub fn new(value: f64, dtype: Dtype, shape: impl IntoIterator<Item = usize>) -> Self {
        Full { value: F64Bits::new(value), dtype, shape: shape.into_iter().collect() }
    }

    /// A rank-0 tensor of `value`.
    pub fn scalar(value: f64, dtype: Dtype) -> Self {
        Full::new(value, dtype, [])
    }
}

impl OpDef for Full {
    const NAME: &'static str = "full";
    const ARITY: Arity = Arity::Exactly(0);
    const CLASS: OpClass = OpClass::Creation;
    const ATTRS: &'static [(&'static str, AttrKind)] =
        &[("value", AttrKind::F64), ("dtype", AttrKind::Dtype), ("shape", AttrKind::Ints)];

    fn infer(&self, _: &[TensorType]) -> Result<ResultTypes, TypeError> {
        let value = self.value.get();
        let representable = match integer_range(self.dtype) {
            Some((low, high)) => value as i64 as f64 == value && (low..=high).contains(&(value as i64)),
            None => self.dtype.is_float() || value == 0.0 || value == 1.0,
        };
        if !representable {
            return Err(TypeError::new(format!("`full` of {value:?} is no element of {}", self.dtype)));
        }
        Ok(smallvec![TensorType { dtype: self.dtype, shape: self.shape.clone() }])
    }

    fn eval(&self, _: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let value = self.value.get();
        let n_elements = results[0].n_elements();
        let lanes = if self.dtype.is_float() {
            Lanes::Float(vec![value; n_elements])
        } else if self.dtype.is_integer() {
            Lanes::Int(vec![value as i64; n_elements])
        } else {
            Lanes::Bool(vec![value != 0.0; n_elements])
        };
        Ok(vec![Value { shape: self.shape.clone(), lanes }])
    }

    fn attrs(&self) -> Attrs {
        smallvec![("value", Attr::F64(self.value.0)), ("dtype", Attr::Dtype(self.dtype)), ("shape", ints(&self.shape))]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [value, dtype, shape] = named(attrs, ["value", "dtype", "shape"])?;
        Some(Full { value: value.as_f64()?, dtype: dtype.as_dtype()?, shape: shape.as_sizes()? })
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(Full::new(1.5, Dtype::F32, [2])).gives_floats(&[2], &[1.5, 1.5]),
            Example::new(Full::scalar(-7.0, Dtype::I64)).gives_ints(&[], &[-7]),
            Example::new(Full::new(1.0, Dtype::Bool, [1, 1])).gives_bools(&[1, 1], &[true]),
        ]
    }
}
