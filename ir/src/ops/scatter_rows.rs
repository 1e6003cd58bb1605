//! `scatter_rows(x, ids, values) {axis}` = x with the slices at ids on the axis replaced by values.
//!
//! ids is a vector of integers; values has x's shape but for the axis, where it is as long as ids.
//! A negative id counts from the end; one out of range is an error. Of equal ids the last counts.

use smallvec::smallvec;

use super::attributes::{int, named};
use super::operands::{Accepts, check_axis, check_kind};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Lanes, Value};
use crate::types::{TensorType, TypeError};

/// Writes slices at positions that are known when the graph runs, as a key-value cache does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScatterRows {
    pub axis: usize,
}

impl OpDef for ScatterRows {
    const NAME: &'static str = "scatter_rows";
    const ARITY: Arity = Arity::Exactly(3);
    const CLASS: OpClass = OpClass::Indexing;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[("axis", AttrKind::Int)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        let [operand, ids, values] = operands else { return Err(TypeError::new("`scatter_rows` takes 3 operands")) };
        check_axis::<Self>(self.axis, operand)?;
        check_kind::<Self>(Accepts::Integer, ids)?;
        let mut expected = operand.clone();
        expected.shape[self.axis] = ids.n_elements();
        if ids.rank() != 1 || *values != expected {
            let message = format!("`scatter_rows` on axis {} of {operand} by {ids} and {values}", self.axis);
            return Err(TypeError::new(message));
        }
        Ok(smallvec![operand.clone()])
    }

    fn eval(&self, operands: &[&Value], _: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let (operand, ids, values) = (operands[0], operands[1].as_ints()?, operands[2]);
        let n_rows = operand.shape[self.axis];
        let mut rows = Vec::with_capacity(ids.len());
        for &id in ids {
            let row = if id < 0 { id + n_rows as i64 } else { id };
            let row = usize::try_from(row).ok().filter(|&row| row < n_rows);
            rows.push(row.ok_or_else(|| EvalError::new(format!("id {id} on an axis of size {n_rows}")))?);
        }
        let inner: usize = operand.shape[self.axis + 1..].iter().product();
        let lanes = match (&operand.lanes, &values.lanes) {
            (Lanes::Float(lanes), Lanes::Float(values)) => Lanes::Float(replaced(lanes, values, &rows, n_rows, inner)),
            (Lanes::Int(lanes), Lanes::Int(values)) => Lanes::Int(replaced(lanes, values, &rows, n_rows, inner)),
            (Lanes::Bool(lanes), Lanes::Bool(values)) => Lanes::Bool(replaced(lanes, values, &rows, n_rows, inner)),
            (_, _) => return Err(EvalError::new("values of another kind")),
        };
        Ok(vec![Value { shape: operand.shape.clone(), lanes }])
    }

    fn attrs(&self) -> Attrs {
        smallvec![("axis", int(self.axis))]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [axis] = named(attrs, ["axis"])?;
        Some(ScatterRows { axis: axis.as_size()? })
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(ScatterRows { axis: 0 })
                .floats(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
                .ints(&[2], &[2, 0])
                .floats(&[2, 2], &[7.0, 8.0, 9.0, 10.0])
                .gives_floats(&[3, 2], &[9.0, 10.0, 3.0, 4.0, 7.0, 8.0]),
            Example::new(ScatterRows { axis: 1 })
                .ints(&[2, 3], &[1, 2, 3, 4, 5, 6])
                .ints(&[2], &[-1, 2])
                .ints(&[2, 2], &[7, 8, 9, 10])
                .gives_ints(&[2, 3], &[1, 2, 8, 4, 5, 10]),
        ]
    }
}

/// Row `rows[i]` of each outer index, `inner` elements long, becomes row i of `values`.
fn replaced<T: Clone>(lanes: &[T], values: &[T], rows: &[usize], n_rows: usize, inner: usize) -> Vec<T> {
    let mut replaced = lanes.to_vec();
    let n_outer = lanes.len().checked_div(n_rows * inner).unwrap_or(0);
    for outer in 0..n_outer {
        for (position, &row) in rows.iter().enumerate() {
            let from = (outer * rows.len() + position) * inner;
            let to = (outer * n_rows + row) * inner;
            replaced[to..to + inner].clone_from_slice(&values[from..from + inner]);
        }
    }
    replaced
}
