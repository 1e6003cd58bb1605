//! `pow(x, y)` = x to the power y with broadcasting.

use super::pointwise::numeric_binary;

numeric_binary! {
    /// The power of two float tensors, element by element.
    Pow = "pow", float libm::pow;
    [(3.0, 2.0, 9.0), (2.0, -0.5, std::f64::consts::FRAC_1_SQRT_2), (-2.0, 3.0, -8.0), (-2.0, 0.5, f64::NAN), (0.0, 0.0, 1.0)]
}
