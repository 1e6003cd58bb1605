//! `div(x, y)` = x / y with broadcasting.

use super::pointwise::numeric_binary;

numeric_binary! {
    /// The quotient of two float tensors, element by element.
    Div = "div", float |x, y| x / y;
    [(3.0, 2.0, 1.5), (1.0, 3.0, 0.3333333333333333), (1.0, 0.0, f64::INFINITY), (0.0, 0.0, f64::NAN)]
}
