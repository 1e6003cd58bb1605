//! `maximum(x, y)` = the larger of x and y with broadcasting; NaN where either is NaN.

use super::pointwise::numeric_binary;

numeric_binary! {
    /// The maximum of two tensors, element by element.
    Maximum = "maximum", float larger, int i64::max;
    [(3.0, 2.0, 3.0), (-1.0, 4.0, 4.0), (f64::NAN, 1.0, f64::NAN), (1.0, f64::NAN, f64::NAN)];
    [(3, 2, 3), (-5, 3, 3)]
}

/// The larger of two lanes, NaN where either is.
pub(crate) fn larger(x: f64, y: f64) -> f64 {
    if x.is_nan() || x > y { x } else { y }
}
