//! `sign(x)` = 1 above 0, -1 below 0, else 0 (for NaN too).

use super::pointwise::float_unary;

float_unary! {
    /// The sign, element by element.
    Sign = "sign", |lane| f64::from(i8::from(lane > 0.0) - i8::from(lane < 0.0));
    [(-3.0, -1.0), (0.0, 0.0), (2.0, 1.0), (f64::NAN, 0.0)]
}
