//! `mul(x, y)` = x * y with broadcasting.

use super::pointwise::numeric_binary;

numeric_binary! {
    /// The product of two tensors, element by element.
    Mul = "mul", float |x, y| x * y, int i64::wrapping_mul;
    [(3.0, 2.0, 6.0), (0.5, -1.0, -0.5)];
    [(3, 2, 6), (-5, 3, -15)]
}
