//! Why a fused op is missing: each kind of answer, on the program that it is about.

use ir::ops::{Add, Cast, Exp, Mul, Reciprocal, ReduceMax, ReduceMean, ReduceSum, Rsqrt, Sigmoid, Sqrt, Sub};
use ir::types::Axes;
use ir::{Dtype, Graph, ValueId};

use crate::Numerics;
use crate::canonicalize::canonicalize;
use crate::fuse::{Answer, FuseOptions, WhyNot, why_not};
use crate::testing::Sketch;

const F32: Dtype = Dtype::F32;

fn why(graph: &Graph, op: &str, options: &FuseOptions) -> WhyNot {
    let (canonical, _) = canonicalize(graph, options.numerics).expect("canonicalizes");
    why_not(&canonical, op, options).expect("there are rules for the op")
}

fn drawn(draw: impl Fn(&mut Sketch, ValueId) -> ValueId) -> Graph {
    let mut sketch = Sketch::new();
    let x = sketch.input(F32, &[4, 16]);
    let output = draw(&mut sketch, x);
    sketch.finish(&[output])
}

fn axes(axis: usize) -> Axes {
    Axes::from_elem(axis, 1)
}

/// x * rsqrt(mean(x * x, axis) + eps)
fn rms_norm(axis: usize) -> Graph {
    drawn(move |s, x| {
        let square = s.op(Mul, &[x, x]);
        let (mean, eps) = (s.op(ReduceMean { axes: axes(axis) }, &[square]), s.number(1e-6, F32));
        let sum = s.op(Add, &[mean, eps]);
        let root = s.op(Rsqrt, &[sum]);
        s.op(Mul, &[x, root])
    })
}

#[test]
fn what_is_there_is_counted() {
    let found = why(&rms_norm(1), "rms_norm", &FuseOptions::new(Numerics::Contract));
    assert_eq!(found.to_string(), "`rms_norm` is recognised once");
}

#[test]
fn what_costs_more_than_it_saves_is_told_with_both_costs() {
    // The product is wanted without the bias, too: fused, it would be computed twice.
    let mut sketch = Sketch::new();
    let (x, weight) = (sketch.input(F32, &[4, 16]), sketch.input(F32, &[16, 8]));
    let product = sketch.op(ir::ops::Matmul { transpose_lhs: false, transpose_rhs: false, dtype: F32 }, &[x, weight]);
    let bias = sketch.input(F32, &[8]);
    let sum = sketch.op(Add, &[product, bias]);
    let found = why(&sketch.finish(&[product, sum]), "fused_matmul", &FuseOptions::new(Numerics::Contract));
    let Answer::LostOnCost { cost_ps, chosen_ps } = found.answer else { panic!("{found}") };
    assert!(cost_ps > chosen_ps, "{found}");
    assert!(found.to_string().starts_with("`fused_matmul` is possible and not chosen: "), "{found}");
}

#[test]
fn a_class_that_is_too_strict_is_named() {
    let found = why(&rms_norm(1), "rms_norm", &FuseOptions::new(Numerics::Exact));
    assert_eq!(
        found.to_string(),
        "`rms_norm` needs the rule `rms-norm` of class `reassoc`, and `exact` does not allow it"
    );
    assert_eq!(found.locations.len(), 5);
}

#[test]
fn a_disabled_rule_is_named() {
    let options = FuseOptions { disabled_rules: vec!["rms-norm".to_owned()], ..FuseOptions::new(Numerics::Contract) };
    let found = why(&rms_norm(1), "rms_norm", &options);
    assert_eq!(found.to_string(), "`rms_norm` needs the rule `rms-norm`, which is disabled");
}

#[test]
fn another_axis_and_epsilon_outside_the_root_are_other_functions() {
    let options = FuseOptions::new(Numerics::Contract);
    let found = why(&rms_norm(0), "rms_norm", &options);
    assert_eq!(
        found.to_string(),
        "this is not `rms_norm`: the mean of the squares does not run over the last axis alone"
    );
    let outside = drawn(|s, x| {
        let square = s.op(Mul, &[x, x]);
        let (mean, eps) = (s.op(ReduceMean { axes: axes(1) }, &[square]), s.number(1e-6, F32));
        let root = s.op(Sqrt, &[mean]);
        let sum = s.op(Add, &[root, eps]);
        let factor = s.op(Reciprocal, &[sum]);
        s.op(Mul, &[x, factor])
    });
    let found = why(&outside, "rms_norm", &options);
    assert_eq!(
        found.to_string(),
        "this is not `rms_norm`: epsilon is added outside the root, which is another function"
    );
    assert!(found.locations.len() >= 5, "{found:?}");
}

#[test]
fn every_known_miss_is_found() {
    let options = FuseOptions::new(Numerics::Contract);
    let unaveraged = drawn(|s, x| {
        let square = s.op(Mul, &[x, x]);
        let (sum, eps) = (s.op(ReduceSum { axes: axes(1) }, &[square]), s.number(1e-6, F32));
        let sum = s.op(Add, &[sum, eps]);
        let root = s.op(Rsqrt, &[sum]);
        s.op(Mul, &[x, root])
    });
    let found = why(&unaveraged, "rms_norm", &options);
    assert_eq!(found.answer, Answer::Another { reason: "the squares are summed and not averaged" });
    let columns = drawn(|s, x| {
        let max = s.op(ReduceMax { axes: axes(0) }, &[x]);
        let shifted = s.op(Sub, &[x, max]);
        let exponential = s.op(Exp, &[shifted]);
        let sum = s.op(ReduceSum { axes: axes(0) }, &[exponential]);
        s.op(ir::ops::Div, &[exponential, sum])
    });
    let found = why(&columns, "softmax", &options);
    assert_eq!(found.answer, Answer::Another { reason: "maximum and sum do not both run over the last axis alone" });
}

#[test]
fn the_sub_term_that_breaks_a_pattern_is_named() {
    let graph = drawn(|s, x| {
        let square = s.op(Mul, &[x, x]);
        let (max, eps) = (s.op(ReduceMax { axes: axes(1) }, &[square]), s.number(1e-6, F32));
        let sum = s.op(Add, &[max, eps]);
        let root = s.op(Rsqrt, &[sum]);
        s.op(Mul, &[x, root])
    });
    let found = why(&graph, "rms_norm", &FuseOptions::new(Numerics::Contract));
    assert_eq!(
        found.to_string(),
        "`rms_norm` is not recognised: 3 of 5 ops fit the rule `rms-norm`, then `reduce_mean` is expected and \
         `reduce_max` is found"
    );
    assert_eq!(found.locations.len(), 1);
}

#[test]
fn a_right_side_that_does_not_apply_gives_its_reason() {
    // The epsilon is one per row here, not a number, but gamma is no row.
    let mut sketch = Sketch::new();
    let (x, weight) = (sketch.input(F32, &[4, 16]), sketch.input(F32, &[16, 8]));
    let product = sketch.op(ir::ops::Matmul { transpose_lhs: false, transpose_rhs: false, dtype: F32 }, &[x, weight]);
    let full = sketch.input(F32, &[4, 8]);
    let sum = sketch.op(Add, &[product, full]);
    let found = why(&sketch.finish(&[sum]), "fused_matmul", &FuseOptions::new(Numerics::Contract));
    assert_eq!(
        found.to_string(),
        "`fused_matmul`: the rule `matmul-bias` matches and does not apply: `fused_matmul` takes one element per \
         column of f32[4, 8], not f32[4, 8]"
    );
}

#[test]
fn what_resembles_nothing_says_so() {
    let graph = drawn(|s, x| {
        let narrow = s.op(Cast { dtype: Dtype::Bf16 }, &[x]);
        s.op(Sigmoid, &[narrow])
    });
    let found = why(&graph, "log_softmax", &FuseOptions::new(Numerics::Contract));
    assert_eq!(found.to_string(), "nothing in the graph resembles `log_softmax`");
    let (canonical, _) = canonicalize(&graph, Numerics::Contract).expect("canonicalizes");
    assert!(why_not(&canonical, "no_such_op", &FuseOptions::new(Numerics::Contract)).is_err());
}
