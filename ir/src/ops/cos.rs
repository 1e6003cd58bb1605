//! `cos(x)` = the cosine of x in radians.

use super::pointwise::float_unary;

float_unary! {
    /// The cosine, element by element.
    Cos = "cos", libm::cos;
    [(0.0, 1.0), (1.0, 0.5403023058681398), (-2.0, -0.4161468365471424), (100.0, 0.8623188722876839)]
}
