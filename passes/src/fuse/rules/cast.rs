//! Casts that keep every value.

use super::{Line, Reason, Scene, rw};
use crate::canonicalize::holds_all;

pub(super) fn rules() -> Vec<Line> {
    vec![
        rw!("cast-same"; Simplify Exact; "(cast ?x)" => "?x"),
        rw!("cast-wide-cast"; Simplify Exact; "(cast (as ?m (cast ?x)))" => "(cast@root ?x)"; if middle_holds_all),
        rw!("cast-slice"; Simplify Exact; "(cast (slice@$s ?x))" => "(slice@$s (cast@root ?x))"),
    ]
}

fn middle_holds_all(scene: &Scene<'_>) -> Result<(), Reason> {
    let (middle, source) = (scene.ty("m").dtype, scene.ty("x").dtype);
    if holds_all(middle, source) {
        return Ok(());
    }
    Err(format!("{middle} rounds values of {source}"))
}
