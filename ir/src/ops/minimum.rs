//! `minimum(x, y)` = the smaller of x and y with broadcasting; NaN where either is NaN.

use super::pointwise::numeric_binary;

numeric_binary! {
    /// The minimum of two tensors, element by element.
    Minimum = "minimum", float smaller, int i64::min;
    [(3.0, 2.0, 2.0), (-1.0, 4.0, -1.0), (f64::NAN, 1.0, f64::NAN), (1.0, f64::NAN, f64::NAN)];
    [(3, 2, 2), (-5, 3, -5)]
}

/// The smaller of two lanes, NaN where either is.
pub(crate) fn smaller(x: f64, y: f64) -> f64 {
    if x.is_nan() || x < y { x } else { y }
}
