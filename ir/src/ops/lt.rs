//! `lt(x, y)` = whether x < y, with broadcasting; false with a NaN.

use std::cmp::Ordering;

use super::pointwise::comparison;

comparison! {
    /// Whether x < y, element by element.
    Lt = "lt", |order| order == Some(Ordering::Less);
    true, false, false, false
}
