//! Softmax and its logarithm over the last axis.

use super::{Line, rw};

pub(super) fn rules() -> Vec<Line> {
    vec![
        rw!("softmax"; Recognise Reassoc;
            "(mul (as ?e (exp (sub ?x (reduce_max@last ?x)))) (reciprocal (reduce_sum@last ?e)))" => "(softmax ?x)"),
        // Without the shift by the maximum large inputs overflow, so this changes results.
        rw!("softmax-unshifted"; Recognise Approx;
            "(mul (as ?e (exp ?x)) (reciprocal (reduce_sum@last ?e)))" => "(softmax ?x)"),
        rw!("log-softmax"; Recognise Reassoc;
            "(sub (as ?d (sub ?x (reduce_max@last ?x))) (log (reduce_sum@last (exp ?d))))" => "(log_softmax ?x)"),
        rw!("log-softmax-of-sum"; Recognise Reassoc;
            "(sub ?x (add (as ?m (reduce_max@last ?x)) (log (reduce_sum@last (exp (sub ?x ?m))))))" =>
            "(log_softmax ?x)"),
        // Where softmax underflows to 0 the logarithm is -inf, and log_softmax is finite.
        rw!("log-of-softmax"; Recognise Approx; "(log (softmax ?x))" => "(log_softmax ?x)"),
    ]
}
