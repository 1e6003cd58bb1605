//! `sigmoid(x)` = 1 / (1 + e^-x).

use super::pointwise::float_unary;

float_unary! {
    /// The logistic function, element by element.
    Sigmoid = "sigmoid", |lane| 1.0 / (1.0 + libm::exp(-lane));
    [(0.0, 0.5), (1.0, 0.7310585786300049), (-3.0, 0.04742587317756678), (f64::NEG_INFINITY, 0.0)]
}
