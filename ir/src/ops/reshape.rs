//! `reshape(x) {shape}` = the elements of x in row-major order under another shape.

use smallvec::smallvec;

use super::attributes::{ints, named};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value};
use crate::types::{Shape, TensorType, TypeError};

/// Renames the positions of elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reshape {
    pub shape: Shape,
}

impl OpDef for Reshape {
    const NAME: &'static str = "reshape";
    const ARITY: Arity = Arity::Exactly(1);
    const CLASS: OpClass = OpClass::Movement;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[("shape", AttrKind::Ints)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        let result = operands[0].with_shape(self.shape.iter().copied());
        if result.n_elements() != operands[0].n_elements() {
            let message = format!("`reshape` of {} to {:?} changes the number of elements", operands[0], self.shape);
            return Err(TypeError::new(message));
        }
        Ok(smallvec![result])
    }

    fn eval(&self, operands: &[&Value], _: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        Ok(vec![Value { shape: self.shape.clone(), lanes: operands[0].lanes.clone() }])
    }

    fn attrs(&self) -> Attrs {
        smallvec![("shape", ints(&self.shape))]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [shape] = named(attrs, ["shape"])?;
        Some(Reshape { shape: shape.as_sizes()? })
    }

    fn examples() -> Vec<Example> {
        let lanes = [1, 2, 3, 4, 5, 6];
        vec![Example::new(Reshape { shape: smallvec![3, 1, 2] }).ints(&[2, 3], &lanes).gives_ints(&[3, 1, 2], &lanes)]
    }
}
