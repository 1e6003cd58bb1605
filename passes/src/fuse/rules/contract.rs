//! Dropped roundings of intermediate values: one rule.

use super::{Line, Reason, Scene, rw};
use crate::fuse::term::is_small_float;

pub(super) fn rules() -> Vec<Line> {
    vec![
        // cast<f32>(cast<bf16>(x: f32)) == x without the rounding to bf16
        rw!("drop-rounding"; Simplify Contract; "(cast (as ?m (cast ?x)))" => "?x"; if middle_is_small),
    ]
}

fn middle_is_small(scene: &Scene<'_>) -> Result<(), Reason> {
    let middle = scene.ty("m").dtype;
    if is_small_float(middle) && scene.ty("x").dtype.is_float() {
        return Ok(());
    }
    Err(format!("the cast to {middle} does not only round"))
}
