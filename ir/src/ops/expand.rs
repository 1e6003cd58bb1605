//! `expand(x) {shape}` = x repeated along added leading axes and along axes of size 1.

use smallvec::smallvec;

use super::attributes::{ints, named};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value};
use crate::types::{Shape, TensorType, TypeError, broadcast_shapes};

/// Repeats elements to a shape that the operand broadcasts to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Expand {
    pub shape: Shape,
}

impl OpDef for Expand {
    const NAME: &'static str = "expand";
    const ARITY: Arity = Arity::Exactly(1);
    const CLASS: OpClass = OpClass::Movement;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[("shape", AttrKind::Ints)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        let common = broadcast_shapes(&operands[0].shape, &self.shape)?;
        if common != self.shape {
            return Err(TypeError::new(format!("`expand` of {} cannot give shape {:?}", operands[0], self.shape)));
        }
        Ok(smallvec![operands[0].with_shape(common)])
    }

    fn eval(&self, operands: &[&Value], _: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        Ok(vec![operands[0].broadcast_to(&self.shape)?])
    }

    fn attrs(&self) -> Attrs {
        smallvec![("shape", ints(&self.shape))]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [shape] = named(attrs, ["shape"])?;
        Some(Expand { shape: shape.as_sizes()? })
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(Expand { shape: smallvec![2, 2, 3] })
                .ints(&[2, 1], &[7, 8])
                .gives_ints(&[2, 2, 3], &[7, 7, 7, 8, 8, 8, 7, 7, 7, 8, 8, 8]),
        ]
    }
}
