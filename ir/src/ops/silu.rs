//! `silu(x)` = x / (1 + e^-x).

use super::pointwise::float_unary;

float_unary! {
    /// The sigmoid linear unit, element by element.
    Silu = "silu", |lane| lane / (1.0 + libm::exp(-lane));
    [(0.0, 0.0), (1.0, 0.7310585786300049), (-1.0, -0.2689414213699951), (4.0, 3.928055160151634)]
}
