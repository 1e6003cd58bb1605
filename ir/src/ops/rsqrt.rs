//! `rsqrt(x)` = 1 / sqrt(x); inf for 0, NaN below.

use super::pointwise::float_unary;

float_unary! {
    /// The reciprocal square root, element by element.
    Rsqrt = "rsqrt", |lane| 1.0 / libm::sqrt(lane);
    [(4.0, 0.5), (2.0, 0.7071067811865475), (0.0, f64::INFINITY), (-1.0, f64::NAN)]
}
