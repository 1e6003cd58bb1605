//! Products with what the read-out of PSUM can do on the way: bias, activation, rounding.

use super::{Line, Reason, Scene, Stage, rw};
use crate::Numerics;
use crate::fuse::term::is_small_float;

pub(super) fn rules() -> Vec<Line> {
    let mut rules = vec![
        rw!("matmul-bias"; Recognise Reassoc; "(add (matmul@$m ?a ?b) ?c)" => "(fused_matmul@none:$m ?a ?b ?c)"),
        rw!("matmul-bias-later"; Recognise Reassoc;
            "(add (add (matmul@$m ?a ?b) ?y) ?c)" => "(add (fused_matmul@none:$m ?a ?b ?c) ?y)"; if is_no_bias),
        rw!("matmul-cast"; Recognise Reassoc;
            "(cast (matmul@$m ?a ?b))" => "(fused_matmul@none:$m ?a ?b)"; if is_rounded),
        rw!("matmul-fused-cast"; Recognise Reassoc;
            "(cast (fused_matmul@$m ?a ?b))" => "(fused_matmul@none:$m ?a ?b)"; if is_rounded),
        rw!("matmul-fused-bias-cast"; Recognise Reassoc;
            "(cast (fused_matmul@$m ?a ?b ?c))" => "(fused_matmul@none:$m ?a ?b ?c)"; if is_rounded),
        rw!("matmul-bias-widened"; Recognise Exact;
            "(fused_matmul@$m ?a ?b (cast ?c))" => "(fused_matmul@$m ?a ?b ?c)"; if is_widened),
    ];
    for (name, bias_name, word) in ACTIVATIONS {
        rules.push(activation(name, format!("({word} (matmul@$m ?a ?b))"), format!("(fused_matmul@{word}:$m ?a ?b)")));
        let left = format!("({word} (fused_matmul@$m ?a ?b ?c))");
        rules.push(activation(bias_name, left, format!("(fused_matmul@{word}:$m ?a ?b ?c)")));
    }
    rules
}

const ACTIVATIONS: [(&str, &str, &str); 7] = [
    ("matmul-relu", "matmul-bias-relu", "relu"),
    ("matmul-gelu", "matmul-bias-gelu", "gelu"),
    ("matmul-gelu-tanh", "matmul-bias-gelu-tanh", "gelu_tanh"),
    ("matmul-silu", "matmul-bias-silu", "silu"),
    ("matmul-tanh", "matmul-bias-tanh", "tanh"),
    ("matmul-sigmoid", "matmul-bias-sigmoid", "sigmoid"),
    ("matmul-exp", "matmul-bias-exp", "exp"),
];

// f(matmul(a, b) + c) == fused_matmul{f}(a, b, c)
fn activation(name: &'static str, left: String, right: String) -> Line {
    Line { name, class: Numerics::Reassoc, stage: Stage::Recognise, left, right, condition: None }
}

fn is_rounded(scene: &Scene<'_>) -> Result<(), Reason> {
    if is_small_float(scene.root().dtype) {
        return Ok(());
    }
    Err(format!("a cast to {} is no rounding", scene.root().dtype))
}

fn is_widened(scene: &Scene<'_>) -> Result<(), Reason> {
    if is_small_float(scene.ty("c").dtype) {
        return Ok(());
    }
    Err(format!("a bias of {} is no narrow float", scene.ty("c").dtype))
}

fn is_no_bias(scene: &Scene<'_>) -> Result<(), Reason> {
    if scene.ty("y").rank() != 1 {
        return Ok(());
    }
    Err("the first summand is the bias".to_owned())
}
