//! `eq(x, y)` = whether x = y, with broadcasting; false with a NaN.

use std::cmp::Ordering;

use super::pointwise::comparison;

comparison! {
    /// Whether x = y, element by element.
    Eq = "eq", |order| order == Some(Ordering::Equal);
    false, true, false, false
}
