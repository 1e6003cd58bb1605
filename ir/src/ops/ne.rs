//! `ne(x, y)` = whether x differs from y, with broadcasting; true with a NaN.

use std::cmp::Ordering;

use super::pointwise::comparison;

comparison! {
    /// Whether x differs from y, element by element.
    Ne = "ne", |order| order != Some(Ordering::Equal);
    true, false, true, true
}
