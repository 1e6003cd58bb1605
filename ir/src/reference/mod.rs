//! Reference values: what a tensor holds in wide arithmetic.
//!
//! The evaluator over a whole graph rounds to each result's element type after every op; without
//! the roundings it gives the truth that results are judged by.

use crate::types::{Shape, broadcast_shapes, packed_strides};

/// Elements of a tensor in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub enum Lanes {
    Float(Vec<f64>),
    Int(Vec<i64>),
    Bool(Vec<bool>),
}

/// A tensor in wide arithmetic.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    pub shape: Shape,
    pub lanes: Lanes,
}

/// Why an op has no result for these values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct EvalError {
    pub message: String,
}

impl EvalError {
    /// An error with this sentence.
    pub fn new(message: impl Into<String>) -> Self {
        EvalError { message: message.into() }
    }
}

impl Value {
    /// Applies a function to every float lane.
    ///
    /// # Errors
    /// When the lanes are not floats.
    pub fn map_float(&self, function: impl Fn(f64) -> f64) -> Result<Value, EvalError> {
        let Lanes::Float(lanes) = &self.lanes else { return Err(EvalError::new("float lanes expected")) };
        let lanes = lanes.iter().map(|&lane| function(lane)).collect();
        Ok(Value { shape: self.shape.clone(), lanes: Lanes::Float(lanes) })
    }

    /// Combines two broadcast operands lane by lane into `shape`.
    ///
    /// # Errors
    /// When the lanes are of different kinds or bool, or the shapes do not broadcast.
    pub fn zip(
        &self,
        other: &Value,
        shape: &[usize],
        float: impl Fn(f64, f64) -> f64,
        int: impl Fn(i64, i64) -> i64,
    ) -> Result<Value, EvalError> {
        let lanes = match (&self.lanes, &other.lanes) {
            (Lanes::Float(lhs), Lanes::Float(rhs)) => Lanes::Float(zip_lanes((self, lhs), (other, rhs), shape, float)?),
            (Lanes::Int(lhs), Lanes::Int(rhs)) => Lanes::Int(zip_lanes((self, lhs), (other, rhs), shape, int)?),
            (Lanes::Float(_) | Lanes::Int(_) | Lanes::Bool(_), _) => {
                return Err(EvalError::new("operands of one numeric kind expected"));
            }
        };
        Ok(Value { shape: Shape::from_slice(shape), lanes })
    }
}

fn zip_lanes<T: Copy, R>(
    (lhs_value, lhs): (&Value, &[T]),
    (rhs_value, rhs): (&Value, &[T]),
    shape: &[usize],
    function: impl Fn(T, T) -> R,
) -> Result<Vec<R>, EvalError> {
    let common = broadcast_shapes(&lhs_value.shape, &rhs_value.shape).map_err(|error| EvalError::new(error.message))?;
    if common.as_slice() != shape {
        return Err(EvalError::new(format!("operands broadcast to {common:?}, not to {shape:?}")));
    }
    let n_elements: usize = shape.iter().product();
    let at = |value: &Value, flat: usize| broadcast_index(&value.shape, shape, flat);
    Ok((0..n_elements).map(|flat| function(lhs[at(lhs_value, flat)], rhs[at(rhs_value, flat)])).collect())
}

/// Position in an operand of shape `from` of row-major element `flat` of a tensor of shape `to`.
pub fn broadcast_index(from: &[usize], to: &[usize], flat: usize) -> usize {
    let strides = packed_strides(from);
    let mut rest = flat;
    let mut index = 0;
    for (position, &dim) in to.iter().enumerate().rev() {
        let coordinate = rest % dim;
        rest /= dim;
        if let Some(axis) = (position + from.len()).checked_sub(to.len())
            && from[axis] != 1
        {
            index += coordinate * strides[axis];
        }
    }
    index
}
