//! `sqrt(x)` = the square root of x; NaN below 0.

use super::pointwise::float_unary;

float_unary! {
    /// The square root, element by element.
    Sqrt = "sqrt", libm::sqrt;
    [(0.0, 0.0), (2.0, std::f64::consts::SQRT_2), (6.25, 2.5), (-1.0, f64::NAN)]
}
