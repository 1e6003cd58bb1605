//! `exp(x)` = e^x.

use super::pointwise::float_unary;

float_unary! {
    /// The exponential function, element by element.
    Exp = "exp", libm::exp;
    [(0.0, 1.0), (1.0, std::f64::consts::E), (-2.5, 0.0820849986238988), (f64::NEG_INFINITY, 0.0)]
}
