//! `le(x, y)` = whether x <= y, with broadcasting; false with a NaN.

use std::cmp::Ordering;

use super::pointwise::comparison;

comparison! {
    /// Whether x <= y, element by element.
    Le = "le", |order| matches!(order, Some(Ordering::Less | Ordering::Equal));
    true, true, false, false
}
