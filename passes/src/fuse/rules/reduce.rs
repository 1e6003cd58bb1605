//! Reductions: means and variances in one spelling.

use ir::Op;

use super::{Line, Reason, Scene, rw};

pub(super) fn rules() -> Vec<Line> {
    vec![
        rw!("scaled-sum"; Simplify Reassoc; "(mul (reduce_sum@$sum ?x) ?s:number)" => "(reduce_mean@last:?x ?x)"; if is_one_over_length),
        // mean(x * x) - mean(x)^2 == mean((x - mean(x))^2), without the cancellation
        rw!("variance-of-squares"; Simplify Reassoc;
            "(sub (reduce_mean@last (mul ?x ?x)) (mul (as ?m (reduce_mean@last ?x)) ?m))" =>
            "(reduce_mean@last:?x (mul (sub ?x ?m) (sub ?x ?m)))"),
    ]
}

fn is_one_over_length(scene: &Scene<'_>) -> Result<(), Reason> {
    let (Op::ReduceSum(sum), ty) = (scene.op("sum"), scene.ty("x")) else {
        return Err("the reduction is no sum".to_owned());
    };
    if sum.axes.as_slice() != [ty.rank() - 1] {
        return Err(format!("the sum runs over the axes {:?}, not the last", sum.axes));
    }
    let (length, scale) = (ty.shape[ty.rank() - 1], scene.number("s"));
    if scale as f32 == (1.0 / length as f64) as f32 {
        return Ok(());
    }
    Err(format!("the sum is scaled by {scale}, which is not 1 / {length}"))
}
