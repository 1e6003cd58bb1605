//! `sin(x)` = the sine of x in radians.

use super::pointwise::float_unary;

float_unary! {
    /// The sine, element by element.
    Sin = "sin", libm::sin;
    [(0.0, 0.0), (1.0, 0.8414709848078965), (-2.0, -0.9092974268256817), (100.0, -0.5063656411097588)]
}
