//! `rms_norm(x, gamma?) {eps}` = x * rsqrt(mean(x * x) + eps) * gamma over the last axis.
//!
//! gamma is a vector as long as the last axis; without it the factor is 1.

use smallvec::smallvec;

use super::attributes::named;
use super::operands::{Accepts, check_axis, check_kind, check_last_axis_vector, check_same_dtype};
use super::rows::{map_rows, scale_columns};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value};
use crate::types::{F32Bits, TensorType, TypeError};

/// Scales rows to a root mean square of 1, then each column by its own factor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RmsNorm {
    pub eps: F32Bits,
}

impl OpDef for RmsNorm {
    const NAME: &'static str = "rms_norm";
    const ARITY: Arity = Arity::Between(1, 2);
    const CLASS: OpClass = OpClass::Fused;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[("eps", AttrKind::F32)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        check_kind::<Self>(Accepts::Float, &operands[0])?;
        check_axis::<Self>(0, &operands[0])?;
        check_same_dtype::<Self>(operands)?;
        operands[1..].iter().try_for_each(|vector| check_last_axis_vector::<Self>(vector, &operands[0]))?;
        Ok(smallvec![operands[0].clone()])
    }

    fn eval(&self, operands: &[&Value], _: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let eps = f64::from(self.eps.get());
        let gamma = operands.get(1).map(|gamma| gamma.as_floats()).transpose()?;
        let normalized = map_rows(operands[0], |row| {
            let square_sum: f64 = row.iter().map(|&lane| lane * lane).sum();
            let factor = 1.0 / libm::sqrt(square_sum / row.len() as f64 + eps);
            row.iter_mut().for_each(|lane| *lane *= factor);
            scale_columns(row, gamma);
        })?;
        Ok(vec![normalized])
    }

    fn attrs(&self) -> Attrs {
        smallvec![("eps", Attr::F32(self.eps.0))]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [eps] = named(attrs, ["eps"])?;
        Some(RmsNorm { eps: eps.as_f32()? })
    }

    fn examples() -> Vec<Example> {
        // mean(x * x) + eps = 12.5 + 3.5 = 16.
        let norm = || Example::new(RmsNorm { eps: F32Bits::new(3.5) }).floats(&[1, 2], &[3.0, 4.0]);
        vec![
            norm().gives_floats(&[1, 2], &[0.75, 1.0]),
            norm().floats(&[2], &[2.0, -1.0]).gives_floats(&[1, 2], &[1.5, -1.0]),
        ]
    }
}
