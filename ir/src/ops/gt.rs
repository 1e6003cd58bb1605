//! `gt(x, y)` = whether x > y, with broadcasting; false with a NaN.

use std::cmp::Ordering;

use super::pointwise::comparison;

comparison! {
    /// Whether x > y, element by element.
    Gt = "gt", |order| order == Some(Ordering::Greater);
    false, false, true, false
}
