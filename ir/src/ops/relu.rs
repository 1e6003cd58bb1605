//! `relu(x)` = x where x > 0, else 0; NaN stays NaN.

use super::pointwise::float_unary;

float_unary! {
    /// The rectified linear unit, element by element.
    Relu = "relu", |lane| if lane < 0.0 { 0.0 } else { lane };
    [(-1.0, 0.0), (0.0, 0.0), (2.5, 2.5), (f64::NAN, f64::NAN)]
}
