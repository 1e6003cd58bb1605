//! `reciprocal(x)` = 1 / x.

use super::pointwise::float_unary;

float_unary! {
    /// The reciprocal, element by element.
    Reciprocal = "reciprocal", |lane| 1.0 / lane;
    [(4.0, 0.25), (-0.5, -2.0), (3.0, 0.3333333333333333), (0.0, f64::INFINITY)]
}
