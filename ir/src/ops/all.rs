//! `all(x) {axes}` = whether every element is true over the axes, which stay as size 1; true over no elements.

use smallvec::smallvec;

use super::attributes::{ints, named};
use super::operands::{Accepts, check_kind, reduced};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value, reduce};
use crate::types::{Axes, TensorType, TypeError};

/// Whether every element is true, over axes of a bool tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct All {
    /// Ascending.
    pub axes: Axes,
}

impl OpDef for All {
    const NAME: &'static str = "all";
    const ARITY: Arity = Arity::Exactly(1);
    const CLASS: OpClass = OpClass::Reduction;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[("axes", AttrKind::Ints)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        check_kind::<Self>(Accepts::Bool, &operands[0])?;
        Ok(smallvec![reduced::<Self>(&self.axes, &operands[0])?])
    }

    fn eval(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let operand = operands[0];
        let lanes = reduce(&operand.shape, operand.as_bools()?, &self.axes, |line| !line.contains(&false));
        Ok(vec![Value::bools(&results[0].shape, lanes)])
    }

    fn attrs(&self) -> Attrs {
        smallvec![("axes", ints(&self.axes))]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [axes] = named(attrs, ["axes"])?;
        Some(All { axes: axes.as_sizes()? })
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(All { axes: smallvec![1] })
                .bools(&[3, 2], &[true, false, false, false, true, true])
                .gives_bools(&[3, 1], &[false, false, true]),
        ]
    }
}
