//! Examples of ops with results worked out by hand or from an independent library.

use super::Op;
use crate::reference::{Lanes, Value};
use crate::types::{Dtype, TensorType};

/// An op applied to small operands, with its results in wide arithmetic.
#[derive(Clone, Debug)]
pub struct Example {
    pub op: Op,
    pub operands: Vec<(TensorType, Value)>,
    pub results: Vec<Value>,
}

impl Example {
    /// An example of this op without operands or results so far.
    pub fn new(op: impl Into<Op>) -> Self {
        Example { op: op.into(), operands: Vec::new(), results: Vec::new() }
    }

    /// Adds an operand of this element type.
    pub fn operand(mut self, dtype: Dtype, value: Value) -> Self {
        let ty = TensorType { dtype, shape: value.shape.clone() };
        self.operands.push((ty, value));
        self
    }

    /// Adds an f32 operand.
    pub fn floats(self, shape: &[usize], lanes: &[f64]) -> Self {
        self.operand(Dtype::F32, Value::floats(shape, lanes))
    }

    /// Adds an i32 operand.
    pub fn ints(self, shape: &[usize], lanes: &[i64]) -> Self {
        self.operand(Dtype::I32, Value::ints(shape, lanes))
    }

    /// Adds a bool operand.
    pub fn bools(self, shape: &[usize], lanes: &[bool]) -> Self {
        self.operand(Dtype::Bool, Value::bools(shape, lanes))
    }

    /// Adds an expected float result.
    pub fn gives_floats(mut self, shape: &[usize], lanes: &[f64]) -> Self {
        self.results.push(Value::floats(shape, lanes));
        self
    }

    /// Adds an expected integer result.
    pub fn gives_ints(mut self, shape: &[usize], lanes: &[i64]) -> Self {
        self.results.push(Value::ints(shape, lanes));
        self
    }

    /// Adds an expected boolean result.
    pub fn gives_bools(mut self, shape: &[usize], lanes: &[bool]) -> Self {
        self.results.push(Value::bools(shape, lanes));
        self
    }

    /// Types of the operands.
    pub fn operand_types(&self) -> Vec<TensorType> {
        self.operands.iter().map(|(ty, _)| ty.clone()).collect()
    }

    /// Whether a result agrees with the expected one: shape and kind, integers and bools exactly,
    /// floats to 1 part in 10^12, NaN where NaN is expected.
    pub fn agrees(expected: &Value, found: &Value) -> bool {
        if expected.shape != found.shape || expected.lanes.len() != found.lanes.len() {
            return false;
        }
        match (&expected.lanes, &found.lanes) {
            (Lanes::Float(expected), Lanes::Float(found)) => expected.iter().zip(found).all(|(&x, &y)| close(x, y)),
            (Lanes::Int(expected), Lanes::Int(found)) => expected == found,
            (Lanes::Bool(expected), Lanes::Bool(found)) => expected == found,
            (Lanes::Float(_) | Lanes::Int(_) | Lanes::Bool(_), _) => false,
        }
    }
}

fn close(expected: f64, found: f64) -> bool {
    if expected.is_nan() || expected.is_infinite() {
        return expected.is_nan() == found.is_nan() && (expected.is_nan() || expected == found);
    }
    (expected - found).abs() <= 1e-12 * expected.abs().max(1e-3)
}
