//! Loops over the last axis that the fused ops share.

use crate::reference::{EvalError, Value};

/// The operand with `function` applied to every row along the last axis, in order.
pub(super) fn map_rows(operand: &Value, mut function: impl FnMut(&mut [f64])) -> Result<Value, EvalError> {
    let mut lanes = operand.as_floats()?.to_vec();
    let row_length = operand.shape.last().copied().unwrap_or(1);
    if row_length > 0 {
        lanes.chunks_exact_mut(row_length).for_each(&mut function);
    }
    Ok(Value::floats(&operand.shape, lanes))
}

/// Multiplies each element of a row by its column's factor, where there are factors.
pub(super) fn scale_columns(row: &mut [f64], factors: Option<&[f64]>) {
    for (lane, factor) in row.iter_mut().zip(factors.unwrap_or_default()) {
        *lane *= factor;
    }
}
