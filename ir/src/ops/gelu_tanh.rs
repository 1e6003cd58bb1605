//! `gelu_tanh(x)` = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))).

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use super::pointwise::float_unary;

float_unary! {
    /// The tanh approximation of the Gaussian error linear unit, element by element.
    GeluTanh = "gelu_tanh", gelu_tanh;
    [(0.0, 0.0), (1.0, 0.8411919906082768), (-1.0, -0.15880800939172324), (3.0, 2.996362607918227)]
}

/// The formula for one lane.
pub(crate) fn gelu_tanh(lane: f64) -> f64 {
    let inner = FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * (lane + 0.044715 * lane * lane * lane);
    0.5 * lane * (1.0 + libm::tanh(inner))
}
