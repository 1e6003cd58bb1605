//! `transpose(x) {perm}`: axis i of the result is axis perm[i] of x.

use smallvec::{SmallVec, smallvec};

use super::attributes::{ints, named};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, StridedDim, Value};
use crate::types::{Axes, TensorType, TypeError, packed_strides};

/// Permutes axes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transpose {
    /// Every axis of the operand once.
    pub perm: Axes,
}

impl OpDef for Transpose {
    const NAME: &'static str = "transpose";
    const ARITY: Arity = Arity::Exactly(1);
    const CLASS: OpClass = OpClass::Movement;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[("perm", AttrKind::Ints)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        let mut sorted = self.perm.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..operands[0].rank()) {
            let message = format!("`transpose` by {:?} is no permutation of the axes of {}", self.perm, operands[0]);
            return Err(TypeError::new(message));
        }
        Ok(smallvec![operands[0].with_shape(self.perm.iter().map(|&axis| operands[0].shape[axis]))])
    }

    fn eval(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let operand = operands[0];
        let strides = packed_strides(&operand.shape);
        let dims: SmallVec<[StridedDim; 6]> =
            self.perm.iter().map(|&axis| (operand.shape[axis], strides[axis])).collect();
        Ok(vec![Value { shape: results[0].shape.clone(), lanes: operand.lanes.strided(0, &dims) }])
    }

    fn attrs(&self) -> Attrs {
        smallvec![("perm", ints(&self.perm))]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [perm] = named(attrs, ["perm"])?;
        Some(Transpose { perm: perm.as_sizes()? })
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(Transpose { perm: smallvec![1, 0] })
                .ints(&[2, 3], &[1, 2, 3, 4, 5, 6])
                .gives_ints(&[3, 2], &[1, 4, 2, 5, 3, 6]),
            Example::new(Transpose { perm: smallvec![2, 0, 1] })
                .ints(&[1, 2, 3], &[1, 2, 3, 4, 5, 6])
                .gives_ints(&[3, 1, 2], &[1, 4, 2, 5, 3, 6]),
        ]
    }
}
