//! Activation functions that the scalar engine has tables for.

use super::{Line, rw};

pub(super) fn rules() -> Vec<Line> {
    vec![
        rw!("sigmoid"; Recognise Reassoc; "(reciprocal (add (exp (neg ?x)) 1))" => "(sigmoid ?x)"),
        rw!("sigmoid-tanh"; Recognise Reassoc;
            "(add (mul (tanh (mul ?x 0.5)) 0.5) 0.5)" => "(sigmoid ?x)"),
        rw!("silu"; Recognise Reassoc; "(mul ?x (sigmoid ?x))" => "(silu ?x)"),
        rw!("silu-div"; Recognise Reassoc; "(div ?x (add (exp (neg ?x)) 1))" => "(silu ?x)"),
        rw!("silu-scaled"; Recognise Reassoc; "(mul (mul ?x ?y) (sigmoid ?x))" => "(mul (silu ?x) ?y)"),
        rw!("silu-scaled-sigmoid"; Recognise Reassoc; "(mul (mul ?y (sigmoid ?x)) ?x)" => "(mul (silu ?x) ?y)"),
        rw!("gelu"; Recognise Reassoc;
            "(mul (mul ?x (add (erf (mul ?x ~0.7071067811865476)) 1)) 0.5)" => "(gelu ?x)"),
        rw!("gelu-half-inside"; Recognise Reassoc;
            "(mul ?x (add (mul (erf (mul ?x ~0.7071067811865476)) 0.5) 0.5))" => "(gelu ?x)"),
        rw!("cubic-factored"; Recognise Reassoc;
            "(mul ?x (add (mul (mul ?x ?x) ~0.044715) 1))" => "(add ?x (mul (mul (mul ?x ?x) ?x) 0.044715))"),
        rw!("gelu-tanh"; Recognise Reassoc;
            "(mul (mul ?x (add (tanh (mul (add ?x (mul (mul (mul ?x ?x) ?x) ~0.044715)) ~0.7978845608028654)) 1)) 0.5)" =>
            "(gelu_tanh ?x)"),
        rw!("gelu-tanh-half-inside"; Recognise Reassoc;
            "(mul ?x (add (mul (tanh (mul (add ?x (mul (mul (mul ?x ?x) ?x) ~0.044715)) ~0.7978845608028654)) 0.5) 0.5))" =>
            "(gelu_tanh ?x)"),
    ]
}
