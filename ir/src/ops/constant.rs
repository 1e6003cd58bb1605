//! `constant() {dtype, shape, data}` = the tensor whose packed little-endian elements are data.

use std::sync::Arc;

use smallvec::smallvec;

use super::attributes::{ints, named};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value};
use crate::types::{Dtype, Shape, TensorType, TypeError};

/// A tensor given by its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Constant {
    pub dtype: Dtype,
    pub shape: Shape,
    /// Row-major, little-endian.
    pub data: Arc<[u8]>,
}

impl OpDef for Constant {
    const NAME: &'static str = "constant";
    const ARITY: Arity = Arity::Exactly(0);
    const CLASS: OpClass = OpClass::Creation;
    const ATTRS: &'static [(&'static str, AttrKind)] =
        &[("dtype", AttrKind::Dtype), ("shape", AttrKind::Ints), ("data", AttrKind::Bytes)];

    fn infer(&self, _: &[TensorType]) -> Result<ResultTypes, TypeError> {
        let ty = TensorType { dtype: self.dtype, shape: self.shape.clone() };
        if ty.size_bytes() != self.data.len() {
            return Err(TypeError::new(format!("`constant` of {ty} has {} bytes of data", self.data.len())));
        }
        Ok(smallvec![ty])
    }

    fn eval(&self, _: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        Ok(vec![Value::from_bytes(&results[0], &self.data)?])
    }

    fn attrs(&self) -> Attrs {
        smallvec![
            ("dtype", Attr::Dtype(self.dtype)),
            ("shape", ints(&self.shape)),
            ("data", Attr::Bytes(Arc::clone(&self.data)))
        ]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [dtype, shape, data] = named(attrs, ["dtype", "shape", "data"])?;
        Some(Constant { dtype: dtype.as_dtype()?, shape: shape.as_sizes()?, data: data.as_bytes()? })
    }

    fn examples() -> Vec<Example> {
        let constant =
            |dtype, data: &[u8]| Example::new(Constant { dtype, shape: smallvec![2], data: Arc::from(data) });
        vec![
            constant(Dtype::Bf16, &[0x80, 0x3f, 0x20, 0xc0]).gives_floats(&[2], &[1.0, -2.5]),
            constant(Dtype::I16, &[0xff, 0xff, 0x00, 0x01]).gives_ints(&[2], &[-1, 256]),
            constant(Dtype::Bool, &[0, 1]).gives_bools(&[2], &[false, true]),
        ]
    }
}
