//! Programs that look like a fused pattern and are another function, with what sets them apart.

use std::sync::OnceLock;

use crate::fuse::pattern::{Names, Pattern, Sexp};

/// A program that is taken for a fused op.
pub(in crate::fuse) struct Miss {
    /// The op that it is taken for.
    pub op: &'static str,
    pub names: Names,
    pub pattern: Pattern,
    pub message: &'static str,
}

const MISSES: [(&str, &str, &str); 11] = [
    (
        "rms_norm",
        "(mul ?x (reciprocal (add (sqrt (reduce_mean@last (mul ?x ?x))) ?e:number)))",
        "epsilon is added outside the root, which is another function",
    ),
    (
        "rms_norm",
        "(mul ?x (rsqrt (add (reduce_mean@$m (mul ?x ?x)) ?e:number)))",
        "the mean of the squares does not run over the last axis alone",
    ),
    ("rms_norm", "(mul ?x (rsqrt (reduce_mean@last (mul ?x ?x))))", "no epsilon is added to the mean of the squares"),
    (
        "rms_norm",
        "(mul ?x (rsqrt (add (reduce_sum@last (mul ?x ?x)) ?e:number)))",
        "the squares are summed and not averaged",
    ),
    (
        "rms_norm",
        "(mul ?x (rsqrt (add (mul (reduce_sum@last (mul ?x ?x)) ?s:number) ?e:number)))",
        "the sum of the squares is not divided by the length of the row",
    ),
    (
        "layer_norm",
        "(mul (as ?d (sub ?x (reduce_mean@$a ?x))) (rsqrt (add (reduce_mean@$b (mul ?d ?d)) ?e:number)))",
        "mean and variance do not both run over the last axis alone",
    ),
    (
        "layer_norm",
        "(mul (as ?d (sub ?x (reduce_mean@last ?x))) (rsqrt (add (mul (reduce_sum@last (mul ?d ?d)) ?s:number) ?e:number)))",
        "the variance is not divided by the length of the row",
    ),
    (
        "layer_norm",
        "(mul (as ?d (sub ?x (reduce_mean@last ?x))) (reciprocal (add (sqrt (reduce_mean@last (mul ?d ?d))) ?e:number)))",
        "epsilon is added outside the root, which is another function",
    ),
    (
        "softmax",
        "(mul (as ?e (exp (sub ?x (reduce_max@$a ?x)))) (reciprocal (reduce_sum@$b ?e)))",
        "maximum and sum do not both run over the last axis alone",
    ),
    (
        "attention",
        "(matmul@$p (mul (softmax ?x) ?y) ?v)",
        "the weights are multiplied after the softmax, as dropout does",
    ),
    (
        "attention",
        "(matmul@$p (softmax (add (add (matmul@$s ?q ?k) ?m) ?b)) ?v)",
        "two tensors are added to the scores, attention takes one mask",
    ),
];

/// All misses; compiled once.
pub(in crate::fuse) fn misses() -> &'static [Miss] {
    static COMPILED: OnceLock<Vec<Miss>> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let compile = |(op, text, message)| {
            let mut names = Names::default();
            let pattern = Sexp::parse(text).and_then(|sexp| Pattern::parse(&sexp, &mut names));
            Miss { op, names, pattern: pattern.expect("the patterns are well formed"), message }
        };
        MISSES.into_iter().map(compile).collect()
    })
}
