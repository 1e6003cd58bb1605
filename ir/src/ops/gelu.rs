//! `gelu(x)` = x / 2 * (1 + erf(x / sqrt(2))): the exact form, without the tanh approximation.

use std::f64::consts::FRAC_1_SQRT_2;

use super::pointwise::float_unary;

float_unary! {
    /// The Gaussian error linear unit, element by element.
    // erfc keeps the digits that 1 + erf loses far below zero.
    Gelu = "gelu", |lane| 0.5 * lane * libm::erfc(-lane * FRAC_1_SQRT_2);
    [(0.0, 0.0), (1.0, 0.8413447460685429), (-1.0, -0.15865525393145707), (3.0, 2.99595030590511)]
}
