//! `iota() {dtype, length, start, step}` = start, start + step, ...: a vector.

use smallvec::smallvec;

use super::attributes::{int, named};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Lanes, Value, integer_range};
use crate::types::{Dtype, TensorType, TypeError};

/// A vector of equally spaced integers, as integers or floats.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Iota {
    pub dtype: Dtype,
    pub length: usize,
    pub start: i64,
    pub step: i64,
}

impl OpDef for Iota {
    const NAME: &'static str = "iota";
    const ARITY: Arity = Arity::Exactly(0);
    const CLASS: OpClass = OpClass::Creation;
    const ATTRS: &'static [(&'static str, AttrKind)] =
        &[("dtype", AttrKind::Dtype), ("length", AttrKind::Int), ("start", AttrKind::Int), ("step", AttrKind::Int)];

    fn infer(&self, _: &[TensorType]) -> Result<ResultTypes, TypeError> {
        let n_steps = i64::try_from(self.length.saturating_sub(1)).ok();
        let last = n_steps.and_then(|count| count.checked_mul(self.step)).and_then(|way| way.checked_add(self.start));
        let (low, high) = integer_range(self.dtype).unwrap_or((i64::MIN, i64::MAX));
        let in_range = |number: i64| (low..=high).contains(&number);
        if self.dtype == Dtype::Bool || !last.is_some_and(in_range) || !in_range(self.start) {
            let Iota { dtype, length, start, step } = self;
            let message = format!("`iota` of {length} numbers from {start} by {step} does not fit in {dtype}");
            return Err(TypeError::new(message));
        }
        Ok(smallvec![TensorType::new(self.dtype, [self.length])])
    }

    fn eval(&self, _: &[&Value], _: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let numbers = (0..self.length).map(|position| self.start + position as i64 * self.step);
        let lanes = if self.dtype.is_float() {
            Lanes::Float(numbers.map(|number| number as f64).collect())
        } else {
            Lanes::Int(numbers.collect())
        };
        Ok(vec![Value { shape: smallvec![self.length], lanes }])
    }

    fn attrs(&self) -> Attrs {
        smallvec![
            ("dtype", Attr::Dtype(self.dtype)),
            ("length", int(self.length)),
            ("start", Attr::Int(self.start)),
            ("step", Attr::Int(self.step))
        ]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [dtype, length, start, step] = named(attrs, ["dtype", "length", "start", "step"])?;
        Some(Iota { dtype: dtype.as_dtype()?, length: length.as_size()?, start: start.as_int()?, step: step.as_int()? })
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(Iota { dtype: Dtype::I32, length: 4, start: 3, step: -2 }).gives_ints(&[4], &[3, 1, -1, -3]),
            Example::new(Iota { dtype: Dtype::F32, length: 2, start: 0, step: 5 }).gives_floats(&[2], &[0.0, 5.0]),
        ]
    }
}
