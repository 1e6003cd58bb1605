//! `ge(x, y)` = whether x >= y, with broadcasting; false with a NaN.

use std::cmp::Ordering;

use super::pointwise::comparison;

comparison! {
    /// Whether x >= y, element by element.
    Ge = "ge", |order| matches!(order, Some(Ordering::Greater | Ordering::Equal));
    false, true, true, false
}
