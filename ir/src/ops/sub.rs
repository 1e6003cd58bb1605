//! `sub(x, y)` = x - y with broadcasting.

use super::pointwise::numeric_binary;

numeric_binary! {
    /// The difference of two tensors, element by element.
    Sub = "sub", float |x, y| x - y, int i64::wrapping_sub;
    [(1.0, 2.0, -1.0), (0.5, -1.0, 1.5)];
    [(1, 2, -1), (-5, 3, -8)]
}
