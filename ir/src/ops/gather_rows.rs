//! `gather_rows(table, ids)` = table[ids]: one row of the table for each id.
//!
//! table[V, ...] and integer ids of any shape give ids.shape + table.shape[1..]. An id outside 0..V
//! is an error.

use smallvec::smallvec;

use super::operands::{Accepts, check_axis, check_kind};
use super::{Arity, Attr, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value};
use crate::types::{TensorType, TypeError};

/// Looks rows up, as an embedding does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GatherRows;

impl OpDef for GatherRows {
    const NAME: &'static str = "gather_rows";
    const ARITY: Arity = Arity::Exactly(2);
    const CLASS: OpClass = OpClass::Indexing;

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        let [table, ids] = operands else { return Err(TypeError::new("`gather_rows` takes 2 operands")) };
        check_axis::<Self>(0, table)?;
        check_kind::<Self>(Accepts::Integer, ids)?;
        Ok(smallvec![table.with_shape(ids.shape.iter().chain(&table.shape[1..]).copied())])
    }

    fn eval(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        let table = operands[0];
        let row_length: usize = table.shape[1..].iter().product();
        let mut positions = Vec::with_capacity(results[0].n_elements());
        for &id in operands[1].as_ints()? {
            let row = usize::try_from(id).ok().filter(|&row| row < table.shape[0]);
            let Some(row) = row else {
                return Err(EvalError::new(format!("id {id} of a table of {} rows", table.shape[0])));
            };
            positions.extend(row * row_length..(row + 1) * row_length);
        }
        Ok(vec![Value { shape: results[0].shape.clone(), lanes: table.lanes.select(&positions) }])
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        attrs.is_empty().then_some(GatherRows)
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::new(GatherRows)
                .floats(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
                .ints(&[2, 2], &[2, 0, 1, 2])
                .gives_floats(&[2, 2, 2], &[5.0, 6.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ]
    }
}
