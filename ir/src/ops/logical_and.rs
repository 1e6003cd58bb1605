//! `logical_and(x, y)` = x and y, with broadcasting.

use super::pointwise::logical_binary;

logical_binary! {
    /// X and y of two bool tensors, element by element.
    LogicalAnd = "logical_and", |x, y| x && y;
    [false, false, false, true]
}
