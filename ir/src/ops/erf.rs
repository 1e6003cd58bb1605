//! `erf(x)` = the error function of x.

use super::pointwise::float_unary;

float_unary! {
    /// The error function, element by element.
    Erf = "erf", libm::erf;
    [(0.0, 0.0), (0.5, 0.5204998778130465), (-1.0, -0.8427007929497149), (f64::INFINITY, 1.0)]
}
