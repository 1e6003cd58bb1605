//! `add(x, y)` = x + y with broadcasting.

use super::pointwise::numeric_binary;

numeric_binary! {
    /// The sum of two tensors, element by element.
    Add = "add", float |x, y| x + y, int i64::wrapping_add;
    [(1.0, 2.0, 3.0), (0.5, -1.0, -0.5)];
    [(1, 2, 3), (-5, 3, -2)]
}
