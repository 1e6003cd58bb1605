//! `log(x)` = the natural logarithm of x; -inf for 0, NaN below.

use super::pointwise::float_unary;

float_unary! {
    /// The natural logarithm, element by element.
    Log = "log", libm::log;
    [(1.0, 0.0), (10.0, std::f64::consts::LN_10), (0.25, -1.3862943611198906), (0.0, f64::NEG_INFINITY), (-1.0, f64::NAN)]
}
