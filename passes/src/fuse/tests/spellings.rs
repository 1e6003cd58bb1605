//! Spellings of fused patterns: which are recognised, under which class, and which are not.

use ir::ops::{
    Add, Cast, Div, Erf, Exp, Gelu, LayerNorm, Log, Matmul, Mul, Neg, Pow, Reciprocal, ReduceMax, ReduceMean,
    ReduceSum, Relu, Reshape, RmsNorm, Rsqrt, Sigmoid, Softmax, Sqrt, Sub, Tanh, Transpose,
};
use ir::types::F32Bits;
use ir::{Dtype, Graph, Op, ValueId};
use smallvec::smallvec;

use super::fused;
use crate::Numerics;
use crate::fuse::FuseOptions;
use crate::testing::{Sketch, op_names};

const F32: Dtype = Dtype::F32;
const BF16: Dtype = Dtype::Bf16;

/// A graph over x: f32[4, 512] and gamma: f32[512].
fn norm(draw: impl Fn(&mut Sketch, ValueId, ValueId) -> ValueId) -> Graph {
    let mut sketch = Sketch::new();
    let (x, gamma) = (sketch.input(F32, &[4, 512]), sketch.input(F32, &[512]));
    let output = draw(&mut sketch, x, gamma);
    sketch.finish(&[output])
}

fn mean(s: &mut Sketch, x: ValueId) -> ValueId {
    s.op(ReduceMean { axes: smallvec![1] }, &[x])
}

fn sum(s: &mut Sketch, x: ValueId) -> ValueId {
    s.op(ReduceSum { axes: smallvec![1] }, &[x])
}

fn plus(s: &mut Sketch, x: ValueId, value: f64) -> ValueId {
    let number = s.number(value, F32);
    s.op(Add, &[x, number])
}

fn times(s: &mut Sketch, x: ValueId, value: f64) -> ValueId {
    let number = s.number(value, F32);
    s.op(Mul, &[x, number])
}

fn cast(s: &mut Sketch, x: ValueId, dtype: Dtype) -> ValueId {
    s.op(Cast { dtype }, &[x])
}

fn power(s: &mut Sketch, x: ValueId, exponent: f64) -> ValueId {
    let exponent = s.number(exponent, F32);
    s.op(Pow, &[x, exponent])
}

/// mean(x * x) + eps
fn mean_square(s: &mut Sketch, x: ValueId) -> ValueId {
    let square = s.op(Mul, &[x, x]);
    let mean = mean(s, square);
    plus(s, mean, 1e-6)
}

/// 1 / sqrt(mean(x * x) + eps)
fn scale(s: &mut Sketch, x: ValueId) -> ValueId {
    let sum = mean_square(s, x);
    s.op(Rsqrt, &[sum])
}

/// All spellings of RMSNorm that are one, with a name for each.
fn rms_norm_spellings() -> Vec<(&'static str, Graph)> {
    let mut spellings: Vec<(&'static str, Graph)> = Vec::new();
    let mut add = |name, draw: fn(&mut Sketch, ValueId, ValueId) -> ValueId| spellings.push((name, norm(draw)));
    add("plain", |s, x, g| {
        let r = scale(s, x);
        let y = s.op(Mul, &[x, r]);
        s.op(Mul, &[y, g])
    });
    add("operands swapped", |s, x, g| {
        let r = scale(s, x);
        let y = s.op(Mul, &[r, x]);
        s.op(Mul, &[g, y])
    });
    add("pow 2", |s, x, g| {
        let square = power(s, x, 2.0);
        let mean = mean(s, square);
        let sum = plus(s, mean, 1e-6);
        let r = s.op(Rsqrt, &[sum]);
        let y = s.op(Mul, &[x, r]);
        s.op(Mul, &[y, g])
    });
    add("pow -1/2", |s, x, g| {
        let sum = mean_square(s, x);
        let r = power(s, sum, -0.5);
        let y = s.op(Mul, &[x, r]);
        s.op(Mul, &[y, g])
    });
    add("sum / n", |s, x, g| {
        let square = s.op(Mul, &[x, x]);
        let (total, length) = (sum(s, square), s.number(512.0, F32));
        let mean = s.op(Div, &[total, length]);
        let sum = plus(s, mean, 1e-6);
        let r = s.op(Rsqrt, &[sum]);
        let y = s.op(Mul, &[x, r]);
        s.op(Mul, &[y, g])
    });
    add("sum * (1 / n)", |s, x, g| {
        let square = s.op(Mul, &[x, x]);
        let total = sum(s, square);
        let mean = times(s, total, 1.0 / 512.0);
        let sum = plus(s, mean, 1e-6);
        let r = s.op(Rsqrt, &[sum]);
        let y = s.op(Mul, &[x, r]);
        s.op(Mul, &[y, g])
    });
    add("divided by sqrt", |s, x, g| {
        let sum = mean_square(s, x);
        let root = s.op(Sqrt, &[sum]);
        let y = s.op(Div, &[x, root]);
        s.op(Mul, &[y, g])
    });
    add("1 / sqrt", |s, x, g| {
        let sum = mean_square(s, x);
        let (root, one) = (s.op(Sqrt, &[sum]), s.number(1.0, F32));
        let r = s.op(Div, &[one, root]);
        let y = s.op(Mul, &[x, r]);
        s.op(Mul, &[y, g])
    });
    add("reciprocal of sqrt", |s, x, g| {
        let sum = mean_square(s, x);
        let root = s.op(Sqrt, &[sum]);
        let r = s.op(Reciprocal, &[root]);
        let y = s.op(Mul, &[x, r]);
        s.op(Mul, &[y, g])
    });
    add("sqrt of reciprocal", |s, x, g| {
        let sum = mean_square(s, x);
        let inverse = s.op(Reciprocal, &[sum]);
        let r = s.op(Sqrt, &[inverse]);
        let y = s.op(Mul, &[x, r]);
        s.op(Mul, &[y, g])
    });
    add("gamma first", |s, x, g| {
        let (r, y) = (scale(s, x), s.op(Mul, &[x, g]));
        s.op(Mul, &[y, r])
    });
    add("gamma on the scale", |s, x, g| {
        let r = scale(s, x);
        let factor = s.op(Mul, &[r, g]);
        s.op(Mul, &[x, factor])
    });
    add("eps first", |s, x, g| {
        let square = s.op(Mul, &[x, x]);
        let (mean, eps) = (mean(s, square), s.number(1e-6, F32));
        let sum = s.op(Add, &[eps, mean]);
        let r = s.op(Rsqrt, &[sum]);
        let y = s.op(Mul, &[x, r]);
        s.op(Mul, &[y, g])
    });
    add("gamma as a row", |s, x, g| {
        let (r, row) = (scale(s, x), s.op(Reshape { shape: smallvec![1, 512] }, &[g]));
        let y = s.op(Mul, &[x, r]);
        s.op(Mul, &[y, row])
    });
    add("batched view", |s, x, g| {
        let x = s.op(Reshape { shape: smallvec![2, 2, 512] }, &[x]);
        let square = s.op(Mul, &[x, x]);
        let mean = s.op(ReduceMean { axes: smallvec![2] }, &[square]);
        let sum = plus(s, mean, 1e-6);
        let r = s.op(Rsqrt, &[sum]);
        let y = s.op(Mul, &[x, r]);
        let y = s.op(Mul, &[y, g]);
        s.op(Reshape { shape: smallvec![4, 512] }, &[y])
    });
    spellings
}

/// Spellings with roundings to 16 bits between the ops: recognised under `contract` alone.
fn rounded_spellings() -> Vec<(&'static str, Graph)> {
    let mut spellings: Vec<(&'static str, Graph)> = Vec::new();
    let mut add = |name, draw: fn(&mut Sketch, ValueId, ValueId) -> ValueId| spellings.push((name, norm(draw)));
    add("statistics rounded", |s, x, g| {
        let r = scale(s, x);
        let r = cast(s, r, BF16);
        let r = cast(s, r, F32);
        let y = s.op(Mul, &[x, r]);
        s.op(Mul, &[y, g])
    });
    add("square and mean rounded to f16", |s, x, g| {
        let square = s.op(Mul, &[x, x]);
        let square = cast(s, square, Dtype::F16);
        let square = cast(s, square, F32);
        let mean = mean(s, square);
        let mean = cast(s, mean, Dtype::F16);
        let mean = cast(s, mean, F32);
        let sum = plus(s, mean, 1e-6);
        let r = s.op(Rsqrt, &[sum]);
        let y = s.op(Mul, &[x, r]);
        s.op(Mul, &[y, g])
    });
    add("rounded before gamma", |s, x, g| {
        let r = scale(s, x);
        let y = s.op(Mul, &[x, r]);
        let y = cast(s, y, BF16);
        let y = cast(s, y, F32);
        s.op(Mul, &[g, y])
    });
    add("sum rounded, then scaled, divided by a rounded root", |s, x, g| {
        let square = s.op(Mul, &[x, x]);
        let total = sum(s, square);
        let total = cast(s, total, BF16);
        let total = cast(s, total, F32);
        let mean = times(s, total, 1.0 / 512.0);
        let sum = plus(s, mean, 1e-6);
        let root = s.op(Sqrt, &[sum]);
        let root = cast(s, root, BF16);
        let root = cast(s, root, F32);
        let y = s.op(Div, &[x, root]);
        s.op(Mul, &[y, g])
    });
    spellings
}

#[test]
fn spellings_of_rms_norm_become_one_program() {
    for (name, graph) in rms_norm_spellings() {
        let (result, report) = fused(&graph, &FuseOptions::new(Numerics::Reassoc));
        let ops = op_names(&result);
        assert!(ops == "rms_norm" || ops == "rms_norm reshape", "{name}: {ops}");
        let [fusion] = report.fusions.as_slice() else { panic!("{name}: {report:?}") };
        assert_eq!((fusion.op, fusion.class), ("rms_norm", Numerics::Reassoc), "{name}");
        assert!(fusion.rules.iter().any(|rule| rule.starts_with("rms-norm")), "{name}: {fusion:?}");
        let (result, report) = fused(&graph, &FuseOptions::new(Numerics::Exact));
        assert!(!op_names(&result).contains("rms_norm") && report.fusions.is_empty(), "{name} under `exact`");
    }
}

#[test]
fn rounded_spellings_of_rms_norm_need_contract() {
    for (name, graph) in rounded_spellings() {
        let (canonical, _) = crate::canonicalize::canonicalize(&graph, Numerics::Contract).expect("canonicalizes");
        let (result, report) = crate::fuse::fuse(&canonical, &FuseOptions::new(Numerics::Contract)).expect("fuses");
        assert_eq!(op_names(&result), "rms_norm", "{name}");
        let [fusion] = report.fusions.as_slice() else { panic!("{name}: {report:?}") };
        assert_eq!(fusion.class, Numerics::Contract, "{name}");
        assert!(fusion.rules.contains(&"drop-rounding"), "{name}: {fusion:?}");
        crate::testing::assert_same_values(&graph, &result, crate::testing::Rounding::None, 1e-6);
        let (result, _) = fused(&graph, &FuseOptions::new(Numerics::Reassoc));
        assert_ne!(op_names(&result), "rms_norm", "{name} under `reassoc`");
    }
}

#[test]
fn epsilon_outside_the_root_is_another_function() {
    let graph = norm(|s, x, g| {
        let square = s.op(Mul, &[x, x]);
        let mean = mean(s, square);
        let root = s.op(Sqrt, &[mean]);
        let sum = plus(s, root, 1e-6);
        let y = s.op(Div, &[x, sum]);
        s.op(Mul, &[y, g])
    });
    let (result, report) = fused(&graph, &FuseOptions::new(Numerics::Contract));
    assert!(report.fusions.is_empty(), "{}", op_names(&result));
}

#[test]
fn another_use_of_the_square_keeps_it_and_the_norm() {
    let mut sketch = Sketch::new();
    let x = sketch.input(F32, &[4, 512]);
    let square = sketch.op(Mul, &[x, x]);
    let mean = mean(&mut sketch, square);
    let shifted = plus(&mut sketch, mean, 1e-6);
    let root = sketch.op(Rsqrt, &[shifted]);
    let output = sketch.op(Mul, &[x, root]);
    let (result, _) = fused(&sketch.finish(&[output, square]), &FuseOptions::new(Numerics::Reassoc));
    assert_eq!(op_names(&result), "rms_norm mul");
}

/// RMSNorm in bf16 as a model writes it, and as its built-in is decomposed.
fn bf16_norms() -> (Graph, Graph) {
    let input = || {
        let mut sketch = Sketch::new();
        let (x, gamma) = (sketch.input(BF16, &[4, 512]), sketch.input(BF16, &[512]));
        (sketch, x, gamma)
    };
    let (mut s, x, gamma) = input();
    let square = s.op(Mul, &[x, x]);
    let mean_of = mean(&mut s, square);
    let wide = cast(&mut s, mean_of, F32);
    let shifted = plus(&mut s, wide, 1e-6);
    let shifted = cast(&mut s, shifted, BF16);
    let root = s.op(Rsqrt, &[shifted]);
    let scaled = s.op(Mul, &[x, root]);
    let output = s.op(Mul, &[scaled, gamma]);
    let naive = s.finish(&[output]);
    let (mut s, x, gamma) = input();
    let wide = cast(&mut s, x, F32);
    let square = power(&mut s, wide, 2.0);
    let mean_of = mean(&mut s, square);
    let shifted = plus(&mut s, mean_of, 9.999999974752427e-07);
    let root = s.op(Rsqrt, &[shifted]);
    let scaled = s.op(Mul, &[wide, root]);
    let wide_gamma = cast(&mut s, gamma, F32);
    let scaled = s.op(Mul, &[scaled, wide_gamma]);
    let output = cast(&mut s, scaled, BF16);
    (naive, s.finish(&[output]))
}

#[test]
fn naive_and_built_in_norm_are_one_program_under_contract_alone() {
    let (naive, built_in) = bf16_norms();
    let nodes = |graph: &Graph, numerics| {
        let (result, _) = fused(graph, &FuseOptions::new(numerics));
        result.nodes().map(|(_, node)| (node.op.clone(), node.operands.clone())).collect::<Vec<_>>()
    };
    let same = |numerics| nodes(&naive, numerics) == nodes(&built_in, numerics);
    assert!(same(Numerics::Contract) && same(Numerics::Approx));
    assert!(!same(Numerics::Reassoc) && !same(Numerics::Exact));
    let (result, _) = fused(&naive, &FuseOptions::new(Numerics::Contract));
    assert_eq!(op_names(&result), "cast cast rms_norm cast");
}

/// A graph over x: f32[4, 16].
fn drawn(draw: impl Fn(&mut Sketch, ValueId) -> ValueId) -> Graph {
    let mut sketch = Sketch::new();
    let x = sketch.input(F32, &[4, 16]);
    let output = draw(&mut sketch, x);
    sketch.finish(&[output])
}

/// The ops of the graph, fused under `reassoc`.
fn ops(graph: &Graph) -> String {
    op_names(&fused(graph, &FuseOptions::new(Numerics::Reassoc)).0)
}

#[test]
fn layer_norm_is_recognised_with_either_variance() {
    let centered = |s: &mut Sketch, x: ValueId| {
        let mean_of = mean(s, x);
        s.op(Sub, &[x, mean_of])
    };
    let affine = |s: &mut Sketch, y: ValueId| {
        let (gamma, beta) = (s.input(F32, &[16]), s.input(F32, &[16]));
        let scaled = s.op(Mul, &[y, gamma]);
        s.op(Add, &[scaled, beta])
    };
    let two_pass = drawn(|s, x| {
        let centered = centered(s, x);
        let r = scale(s, centered);
        let y = s.op(Mul, &[centered, r]);
        affine(s, y)
    });
    assert_eq!(ops(&two_pass), "layer_norm");
    let gamma_first = drawn(|s, x| {
        let centered = centered(s, x);
        let (r, gamma) = (scale(s, centered), s.input(F32, &[16]));
        let y = s.op(Mul, &[gamma, centered]);
        s.op(Mul, &[y, r])
    });
    assert_eq!(ops(&gamma_first), "layer_norm");
    let one_pass = drawn(|s, x| {
        let (mean_of, square) = (mean(s, x), s.op(Mul, &[x, x]));
        let (mean_square, square_mean) = (mean(s, square), s.op(Mul, &[mean_of, mean_of]));
        let variance = s.op(Sub, &[mean_square, square_mean]);
        let shifted = plus(s, variance, 1e-5);
        let root = s.op(Sqrt, &[shifted]);
        let centered = s.op(Sub, &[x, mean_of]);
        let y = s.op(Div, &[centered, root]);
        affine(s, y)
    });
    assert_eq!(ops(&one_pass), "layer_norm");
}

#[test]
fn softmax_and_its_logarithm_are_recognised_over_the_last_axis_alone() {
    let shifted = |s: &mut Sketch, x: ValueId, axis: usize| {
        let max = s.op(ReduceMax { axes: smallvec![axis] }, &[x]);
        s.op(Sub, &[x, max])
    };
    let softmax = |axis: usize| {
        drawn(move |s, x| {
            let shifted = shifted(s, x, axis);
            let exponential = s.op(Exp, &[shifted]);
            let sum = s.op(ReduceSum { axes: smallvec![axis] }, &[exponential]);
            s.op(Div, &[exponential, sum])
        })
    };
    assert_eq!(ops(&softmax(1)), "softmax");
    assert_eq!(ops(&softmax(0)), "reduce_max sub exp reduce_sum reciprocal mul");
    let logarithm = drawn(|s, x| {
        let shifted = shifted(s, x, 1);
        let exponential = s.op(Exp, &[shifted]);
        let sum = sum(s, exponential);
        let logarithm = s.op(Log, &[sum]);
        s.op(Sub, &[shifted, logarithm])
    });
    assert_eq!(ops(&logarithm), "log_softmax");
    let unshifted = drawn(|s, x| {
        let exponential = s.op(Exp, &[x]);
        let sum = sum(s, exponential);
        s.op(Div, &[exponential, sum])
    });
    assert_eq!(ops(&unshifted), "exp reduce_sum reciprocal mul");
    let (result, report) = fused(&unshifted, &FuseOptions::new(Numerics::Approx));
    assert_eq!((op_names(&result).as_str(), report.fusions[0].class), ("softmax", Numerics::Approx));
}

#[test]
fn activations_are_recognised() {
    let gelu = |s: &mut Sketch, x: ValueId| {
        let scaled = times(s, x, std::f64::consts::FRAC_1_SQRT_2);
        let erf = s.op(Erf, &[scaled]);
        plus(s, erf, 1.0)
    };
    assert_eq!(
        ops(&drawn(|s, x| {
            let (half, cdf) = (times(s, x, 0.5), gelu(s, x));
            s.op(Mul, &[half, cdf])
        })),
        "gelu"
    );
    assert_eq!(
        ops(&drawn(|s, x| {
            let root = s.number(std::f64::consts::SQRT_2, F32);
            let scaled = s.op(Div, &[x, root]);
            let erf = s.op(Erf, &[scaled]);
            let cdf = plus(s, erf, 1.0);
            let cdf = times(s, cdf, 0.5);
            s.op(Mul, &[cdf, x])
        })),
        "gelu"
    );
    let tanh = |s: &mut Sketch, x: ValueId, inner: ValueId| {
        let scaled = times(s, inner, (2.0 / std::f64::consts::PI).sqrt());
        let tanh = s.op(Tanh, &[scaled]);
        let cdf = plus(s, tanh, 1.0);
        let half = times(s, x, 0.5);
        s.op(Mul, &[half, cdf])
    };
    assert_eq!(
        ops(&drawn(|s, x| {
            let cube = power(s, x, 3.0);
            let cube = times(s, cube, 0.044715);
            let inner = s.op(Add, &[x, cube]);
            tanh(s, x, inner)
        })),
        "gelu_tanh"
    );
    assert_eq!(
        ops(&drawn(|s, x| {
            let square = s.op(Mul, &[x, x]);
            let square = times(s, square, 0.044715);
            let factor = plus(s, square, 1.0);
            let inner = s.op(Mul, &[x, factor]);
            tanh(s, x, inner)
        })),
        "gelu_tanh"
    );
    assert_eq!(
        ops(&drawn(|s, x| {
            let sigmoid = s.op(Sigmoid, &[x]);
            s.op(Mul, &[sigmoid, x])
        })),
        "silu"
    );
    assert_eq!(
        ops(&drawn(|s, x| {
            let negated = s.op(Neg, &[x]);
            let exponential = s.op(Exp, &[negated]);
            let sum = plus(s, exponential, 1.0);
            s.op(Div, &[x, sum])
        })),
        "silu"
    );
}

#[test]
fn bias_activation_and_rounding_ride_on_the_matmul() {
    let linear = |dtype: Dtype, activation: Option<Op>| {
        let mut s = Sketch::new();
        let (x, weight, bias) = (s.input(dtype, &[8, 32]), s.input(dtype, &[64, 32]), s.input(dtype, &[64]));
        let transposed = s.op(Transpose { perm: smallvec![1, 0] }, &[weight]);
        let product = s.op(Matmul { transpose_lhs: false, transpose_rhs: false, dtype }, &[x, transposed]);
        let sum = s.op(Add, &[product, bias]);
        let output = activation.map_or(sum, |activation| s.op(activation, &[sum]));
        s.finish(&[output])
    };
    assert_eq!(ops(&linear(F32, None)), "fused_matmul");
    assert_eq!(ops(&linear(F32, Some(Relu.into()))), "fused_matmul");
    assert_eq!(ops(&linear(F32, Some(Gelu.into()))), "fused_matmul");
    let (result, report) = fused(&linear(BF16, Some(Gelu.into())), &FuseOptions::new(Numerics::Contract));
    assert_eq!(op_names(&result), "fused_matmul");
    assert_eq!(report.fusions[0].class, Numerics::Contract);
    assert_eq!(*result.ty(result.outputs[0].value.expect("an output")), ir::TensorType::new(BF16, [8, 64]));
}

#[test]
fn built_in_ops_are_reported_as_the_models_own() {
    let graph = drawn(|s, x| {
        let softmax = s.op(Softmax, &[x]);
        s.op(RmsNorm { eps: F32Bits::new(1e-5) }, &[softmax])
    });
    let (_, report) = fused(&graph, &FuseOptions::new(Numerics::Contract));
    let named: Vec<_> = report.fusions.iter().map(|fusion| (fusion.op, fusion.class, fusion.rules.len())).collect();
    assert_eq!(named, [("softmax", Numerics::Exact, 0), ("rms_norm", Numerics::Exact, 0)]);
    let graph = drawn(|s, x| s.op(LayerNorm { eps: F32Bits::new(1e-5) }, &[x]));
    assert_eq!(ops(&graph), "layer_norm");
}

#[test]
fn without_the_rule_exactly_the_rms_norms_are_gone() {
    let disabled: Vec<String> = crate::fuse::rule_names()
        .map(|(name, _)| name.to_owned())
        .filter(|name| name.starts_with("rms-norm"))
        .collect();
    let options = FuseOptions { disabled_rules: disabled, ..FuseOptions::new(Numerics::Reassoc) };
    for (name, graph) in rms_norm_spellings() {
        assert!(!op_names(&fused(&graph, &options).0).contains("rms_norm"), "{name}");
    }
    let layer_norm = drawn(|s, x| {
        let mean_of = mean(s, x);
        let centered = s.op(Sub, &[x, mean_of]);
        let r = scale(s, centered);
        s.op(Mul, &[centered, r])
    });
    assert_eq!(op_names(&fused(&layer_norm, &options).0), "layer_norm");
}
