//! Reference values: what a tensor holds in wide arithmetic.
//!
//! The evaluator over a whole graph rounds to each result's element type after every op; without
//! the roundings it gives the truth that results are judged by. All functions come from `libm`, so
//! that the same graph gives the same bits on every machine.

mod compare;
mod evaluate;
mod numbers;
mod value;

pub use compare::{Comparison, WorstElement, compare};
pub use evaluate::{Rounding, evaluate, evaluation_bytes};
pub use numbers::{integer_range, round_float, wrap_integer};
pub use value::{Lanes, Value};
pub(crate) use value::{StridedDim, broadcast, reduce, strided};

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
