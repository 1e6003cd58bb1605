//! Algebra that the canonical form leaves where a rounding stood between two ops.

use super::{Line, Reason, Scene, rw};

pub(super) fn rules() -> Vec<Line> {
    vec![
        rw!("reciprocal-of-sqrt"; Simplify Reassoc; "(reciprocal (sqrt ?x))" => "(rsqrt ?x)"),
        rw!("sqrt-of-reciprocal"; Simplify Reassoc; "(sqrt (reciprocal ?x))" => "(rsqrt ?x)"),
        rw!("div-by-sqrt"; Simplify Reassoc; "(div ?x (sqrt ?y))" => "(mul ?x (rsqrt ?y))"),
        rw!("scale-scale"; Simplify Reassoc; "(mul (mul ?x ?a:number) ?b:number)" => "(mul ?x (* ?a ?b))"),
        rw!("offset-offset"; Simplify Reassoc; "(add (add ?x ?a:number) ?b:number)" => "(add ?x (+ ?a ?b))"),
        rw!("scale-outward"; Simplify Reassoc; "(mul (mul ?x ?s:number) ?y)" => "(mul (mul ?x ?y) ?s)"; if is_full_size),
    ]
}

fn is_full_size(scene: &Scene<'_>) -> Result<(), Reason> {
    if scene.graph[scene.class("y")].data.number.is_some() {
        return Err("both factors are constants".to_owned());
    }
    if scene.ty("x").n_elements() < scene.ty("y").n_elements() {
        return Err("the scale would move to the larger operand".to_owned());
    }
    Ok(())
}
