//! `logical_or(x, y)` = x or y, with broadcasting.

use super::pointwise::logical_binary;

logical_binary! {
    /// X or y of two bool tensors, element by element.
    LogicalOr = "logical_or", |x, y| x || y;
    [false, true, true, true]
}
