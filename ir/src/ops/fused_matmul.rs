//! `fused_matmul(lhs, rhs, bias?) {transpose_lhs, transpose_rhs, activation, dtype}` =
//! activation(lhs x rhs + bias), rounded once.
//!
//! Operands are as in `matmul`; bias is a float vector of N elements, one per column.

use smallvec::smallvec;

use super::attributes::named;
use super::matmul::{Sum, infer_product, product};
use super::operands::{Accepts, check_kind, check_last_axis_vector};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value};
use crate::types::{Dtype, TensorType, TypeError};

/// A function applied to a product on its way out.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Activation {
    None,
    Relu,
    Gelu,
    GeluTanh,
    Silu,
    Tanh,
    Sigmoid,
    Exp,
}

impl Activation {
    /// Every activation, in declaration order.
    pub const ALL: [Activation; 8] = [
        Activation::None,
        Activation::Relu,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Silu,
        Activation::Tanh,
        Activation::Sigmoid,
        Activation::Exp,
    ];

    /// Word in the text form: the name of the pointwise op, or `none`.
    pub const fn word(self) -> &'static str {
        match self {
            Activation::None => "none",
            Activation::Relu => super::Relu::NAME,
            Activation::Gelu => super::Gelu::NAME,
            Activation::GeluTanh => super::GeluTanh::NAME,
            Activation::Silu => super::Silu::NAME,
            Activation::Tanh => super::Tanh::NAME,
            Activation::Sigmoid => super::Sigmoid::NAME,
            Activation::Exp => super::Exp::NAME,
        }
    }

    /// The activation of this word.
    pub fn from_word(word: &str) -> Option<Activation> {
        Activation::ALL.into_iter().find(|activation| activation.word() == word)
    }

    /// Applies the pointwise op to every lane.
    fn apply(self, value: Value) -> Result<Value, EvalError> {
        let operands = [&value];
        let results = match self {
            Activation::None => return Ok(value),
            Activation::Relu => super::Relu.eval(&operands, &[])?,
            Activation::Gelu => super::Gelu.eval(&operands, &[])?,
            Activation::GeluTanh => super::GeluTanh.eval(&operands, &[])?,
            Activation::Silu => super::Silu.eval(&operands, &[])?,
            Activation::Tanh => super::Tanh.eval(&operands, &[])?,
            Activation::Sigmoid => super::Sigmoid.eval(&operands, &[])?,
            Activation::Exp => super::Exp.eval(&operands, &[])?,
        };
        results.into_iter().next().ok_or_else(|| EvalError::new("an activation has one result"))
    }
}

/// Product of matrices with a bias and an activation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FusedMatmul {
    /// The left operand is stored as [.., K, M].
    pub transpose_lhs: bool,
    /// The right operand is stored as [.., N, K].
    pub transpose_rhs: bool,
    pub activation: Activation,
    /// Element type of the result.
    pub dtype: Dtype,
}

impl FusedMatmul {
    fn evaluate(&self, operands: &[&Value], result: &TensorType, sum: Sum) -> Result<Value, EvalError> {
        let mut total = product(self.transpose_lhs, self.transpose_rhs, operands, result, sum)?;
        if let Some(bias) = operands.get(2) {
            total = total.zip(bias, &result.shape, |x, y| x + y, i64::wrapping_add)?;
        }
        self.activation.apply(total)
    }
}

impl OpDef for FusedMatmul {
    const NAME: &'static str = "fused_matmul";
    const ARITY: Arity = Arity::Between(2, 3);
    const CLASS: OpClass = OpClass::Contraction;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[
        ("transpose_lhs", AttrKind::Int),
        ("transpose_rhs", AttrKind::Int),
        ("activation", AttrKind::Word),
        ("dtype", AttrKind::Dtype),
    ];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        let result = infer_product::<Self>(self.transpose_lhs, self.transpose_rhs, self.dtype, operands)?;
        if let Some(bias) = operands.get(2) {
            check_kind::<Self>(Accepts::Float, bias)?;
            check_last_axis_vector::<Self>(bias, &result)?;
        }
        Ok(smallvec![result])
    }

    fn eval(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        Ok(vec![self.evaluate(operands, &results[0], Sum::Wide)?])
    }

    fn eval_eager(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        Ok(vec![self.evaluate(operands, &results[0], Sum::F32)?])
    }

    fn attrs(&self) -> Attrs {
        smallvec![
            ("transpose_lhs", Attr::Int(self.transpose_lhs.into())),
            ("transpose_rhs", Attr::Int(self.transpose_rhs.into())),
            ("activation", Attr::Word(self.activation.word().to_string())),
            ("dtype", Attr::Dtype(self.dtype))
        ]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [transpose_lhs, transpose_rhs, activation, dtype] =
            named(attrs, ["transpose_lhs", "transpose_rhs", "activation", "dtype"])?;
        Some(FusedMatmul {
            transpose_lhs: transpose_lhs.as_flag()?,
            transpose_rhs: transpose_rhs.as_flag()?,
            activation: Activation::from_word(activation.as_word()?)?,
            dtype: dtype.as_dtype()?,
        })
    }

    fn examples() -> Vec<Example> {
        let fused = |activation| {
            Example::new(FusedMatmul { transpose_lhs: false, transpose_rhs: true, activation, dtype: Dtype::F32 })
                .floats(&[1, 2], &[1.0, 2.0])
                .floats(&[2, 2], &[3.0, 4.0, -5.0, 1.0])
        };
        vec![
            fused(Activation::None).gives_floats(&[1, 2], &[11.0, -3.0]),
            fused(Activation::None).floats(&[2], &[0.5, 1.0]).gives_floats(&[1, 2], &[11.5, -2.0]),
            fused(Activation::Relu).floats(&[2], &[0.5, 1.0]).gives_floats(&[1, 2], &[11.5, 0.0]),
            fused(Activation::Exp).floats(&[2], &[-11.0, 4.0]).gives_floats(&[1, 2], &[1.0, std::f64::consts::E]),
        ]
    }
}
