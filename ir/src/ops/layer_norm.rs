//! `layer_norm(x, gamma?, beta?) {eps}` = (x - mean) * rstd * gamma + beta over the last axis.
//!
//! Three results: the normalized tensor, mean, and rstd = rsqrt(mean((x - mean)^2) + eps), the last
//! two with size 1 on the last axis. gamma and beta are vectors as long as the last axis.

use smallvec::smallvec;

use super::attributes::named;
use super::operands::{Accepts, check_axis, check_kind, check_last_axis_vector, check_same_dtype};
use super::rows::{map_rows, scale_columns};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value};
use crate::types::{F32Bits, TensorType, TypeError};

/// Shifts and scales rows to mean 0 and variance 1, then each column by its own factor and offset.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayerNorm {
    pub eps: F32Bits,
}

impl OpDef for LayerNorm {
    const NAME: &'static str = "layer_norm";
    const ARITY: Arity = Arity::Between(1, 3);
    const CLASS: OpClass = OpClass::Fused;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[("eps", AttrKind::F32)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        let operand = &operands[0];
        check_kind::<Self>(Accepts::Float, operand)?;
        check_axis::<Self>(0, operand)?;
        check_same_dtype::<Self>(operands)?;
        operands[1..].iter().try_for_each(|vector| check_last_axis_vector::<Self>(vector, operand))?;
        let mut statistic = operand.clone();
        statistic.shape[operand.rank() - 1] = 1;
        Ok([operand.clone(), statistic.clone(), statistic].into_iter().collect())
    }

    fn eval(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let eps = f64::from(self.eps.get());
        let gamma = operands.get(1).map(|gamma| gamma.as_floats()).transpose()?;
        let beta = operands.get(2).map(|beta| beta.as_floats()).transpose()?;
        let (mut means, mut rstds) = (Vec::new(), Vec::new());
        let normalized = map_rows(operands[0], |row| {
            let length = row.len() as f64;
            let mean = row.iter().sum::<f64>() / length;
            row.iter_mut().for_each(|lane| *lane -= mean);
            let variance = row.iter().map(|&lane| lane * lane).sum::<f64>() / length;
            let rstd = 1.0 / libm::sqrt(variance + eps);
            row.iter_mut().for_each(|lane| *lane *= rstd);
            scale_columns(row, gamma);
            for (lane, offset) in row.iter_mut().zip(beta.unwrap_or_default()) {
                *lane += offset;
            }
            means.push(mean);
            rstds.push(rstd);
        })?;
        // Rows without elements still have statistics: of nothing.
        means.resize(results[1].n_elements(), f64::NAN);
        rstds.resize(results[2].n_elements(), f64::NAN);
        Ok(vec![normalized, Value::floats(&results[1].shape, means), Value::floats(&results[2].shape, rstds)])
    }

    fn attrs(&self) -> Attrs {
        smallvec![("eps", Attr::F32(self.eps.0))]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [eps] = named(attrs, ["eps"])?;
        Some(LayerNorm { eps: eps.as_f32()? })
    }

    fn examples() -> Vec<Example> {
        // Mean 3, variance 1, variance + eps = 4.
        let norm = || Example::new(LayerNorm { eps: F32Bits::new(3.0) }).floats(&[1, 2], &[2.0, 4.0]);
        let statistics = |example: Example| example.gives_floats(&[1, 1], &[3.0]).gives_floats(&[1, 1], &[0.5]);
        vec![
            statistics(norm().gives_floats(&[1, 2], &[-0.5, 0.5])),
            statistics(norm().floats(&[2], &[2.0, 4.0]).gives_floats(&[1, 2], &[-1.0, 2.0])),
            statistics(
                norm().floats(&[2], &[2.0, 4.0]).floats(&[2], &[10.0, 20.0]).gives_floats(&[1, 2], &[9.0, 22.0]),
            ),
        ]
    }
}
