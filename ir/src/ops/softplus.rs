//! `softplus(x)` = log(1 + e^x).

use super::pointwise::float_unary;

float_unary! {
    /// The smooth rectifier, element by element.
    Softplus = "softplus", |lane| libm::fmax(lane, 0.0) + libm::log1p(libm::exp(-libm::fabs(lane)));
    [(0.0, std::f64::consts::LN_2), (1.0, 1.3132616875182228), (-1.0, 0.31326168751822286), (50.0, 50.0)]
}
