//! `logical_xor(x, y)` = exactly one of x and y, with broadcasting.

use super::pointwise::logical_binary;

logical_binary! {
    /// Exactly one of x and y of two bool tensors, element by element.
    LogicalXor = "logical_xor", |x, y| x != y;
    [false, true, true, false]
}
