//! `tanh(x)` = the hyperbolic tangent of x.

use super::pointwise::float_unary;

float_unary! {
    /// The hyperbolic tangent, element by element.
    Tanh = "tanh", libm::tanh;
    [(0.0, 0.0), (0.5, 0.46211715726000974), (-2.0, -0.9640275800758169), (f64::INFINITY, 1.0)]
}
