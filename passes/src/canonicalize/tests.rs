//! Each rule fires, keeps the values, and canonical graphs stay as they are.

use ir::ops::{
    Abs, Add, All, Any, Cast, Concat, Div, Eq, Exp, Expand, Full, Gather, GatherRows, Iota, LogicalNot, Lt, Matmul,
    Maximum, Mul, Ne, Neg, Pow, Reciprocal, ReduceMax, ReduceMean, ReduceSum, Relayout, Relu, Reshape, Rsqrt, Slice,
    Softmax, Sqrt, Sub, Transpose, Where,
};
use ir::random_graph::{RandomGraphOptions, random_graph};
use ir::types::Axes;
use ir::{Dtype, Graph, Op, ValueId};
use smallvec::smallvec;

use super::{ROUND_LIMIT, canonicalize, canonicalize_with, settle};
use crate::manager::{Fuel, PassContext, Phase, Unit};
use crate::testing::{Rounding, Sketch, assert_same_values, op_names};
use crate::{Numerics, Statistics};

const F32: Dtype = Dtype::F32;
const BF16: Dtype = Dtype::Bf16;

/// The canonical form; checks the phase, the values and that a second run changes nothing.
fn canonical(graph: &Graph, numerics: Numerics) -> (Graph, Statistics) {
    let (result, statistics) = canonicalize(graph, numerics).expect("canonicalizes");
    assert_eq!(result.faults(Phase::Canonical), Vec::<String>::new());
    let tolerance = if numerics == Numerics::Exact { 0.0 } else { 1e-5 };
    assert_same_values(graph, &result, Rounding::PerOp, tolerance);
    let (again, _) = canonicalize(&result, numerics).expect("canonicalizes");
    assert_eq!(op_names(&again), op_names(&result));
    assert_eq!(again, result);
    (result, statistics)
}

fn shape_of(shape: &[usize]) -> Axes {
    Axes::from_slice(shape)
}

/// Draws one graph over an f32[4, 6] input and gives its canonical ops under `numerics`.
fn drawn(numerics: Numerics, rule: &str, draw: impl Fn(&mut Sketch, ValueId) -> ValueId) -> String {
    let mut sketch = Sketch::new();
    let input = sketch.input(F32, &[4, 6]);
    let output = draw(&mut sketch, input);
    let (graph, statistics) = canonical(&sketch.finish(&[output]), numerics);
    assert!(statistics.get(rule) > 0, "`{rule}` did not fire: {statistics}");
    op_names(&graph)
}

#[test]
fn pointwise_identities_vanish() {
    let exact = |rule: &str, draw: fn(&mut Sketch, ValueId) -> ValueId| drawn(Numerics::Exact, rule, draw);
    let with = |sketch: &mut Sketch, op: Op, x: ValueId, value: f64| {
        let number = sketch.number(value, F32);
        sketch.op(op, &[x, number])
    };
    assert_eq!(drawn(Numerics::Exact, "neutral-operand", |s, x| with(s, Mul.into(), x, 1.0)), "");
    assert_eq!(drawn(Numerics::Exact, "neutral-operand", |s, x| with(s, Div.into(), x, 1.0)), "");
    assert_eq!(drawn(Numerics::Exact, "neutral-operand", |s, x| with(s, Sub.into(), x, 0.0)), "");
    assert_eq!(drawn(Numerics::Exact, "neutral-operand", |s, x| with(s, Pow.into(), x, 1.0)), "");
    assert_eq!(drawn(Numerics::Reassoc, "add-zero", |s, x| with(s, Add.into(), x, 0.0)), "");
    assert_eq!(drawn(Numerics::Exact, "pow-two", |s, x| with(s, Pow.into(), x, 2.0)), "mul");
    assert_eq!(drawn(Numerics::Reassoc, "pow-constant", |s, x| with(s, Pow.into(), x, 3.0)), "mul mul");
    assert_eq!(drawn(Numerics::Exact, "mul-minus-one", |s, x| with(s, Mul.into(), x, -1.0)), "neg");
    assert_eq!(drawn(Numerics::Exact, "div-power-of-two", |s, x| with(s, Div.into(), x, 8.0)), "full mul");
    assert_eq!(drawn(Numerics::Reassoc, "div-constant", |s, x| with(s, Div.into(), x, 3.0)), "full mul");
    assert_eq!(drawn(Numerics::Exact, "sub-constant", |s, x| with(s, Sub.into(), x, 3.0)), "full add");
    assert_eq!(exact("cast-identity", |s, x| s.op(Cast { dtype: F32 }, &[x])), "");
    assert_eq!(exact("select-same", |s, x| s.op(Maximum, &[x, x])), "");
    let twice = |s: &mut Sketch, first: Op, second: Op, x| {
        let once = s.op(first, &[x]);
        s.op(second, &[once])
    };
    assert_eq!(drawn(Numerics::Exact, "unary-unary", |s, x| twice(s, Neg.into(), Neg.into(), x)), "");
    assert_eq!(drawn(Numerics::Exact, "unary-unary", |s, x| twice(s, Neg.into(), Abs.into(), x)), "abs");
    assert_eq!(drawn(Numerics::Exact, "unary-unary", |s, x| twice(s, Relu.into(), Relu.into(), x)), "relu");
    assert_eq!(
        drawn(Numerics::Reassoc, "reciprocal-sqrt", |s, x| {
            let square = s.op(Mul, &[x, x]);
            twice(s, Sqrt.into(), Reciprocal.into(), square)
        }),
        "mul rsqrt"
    );
}

#[test]
fn one_over_and_division_by_roots_and_rows_become_products() {
    let square = |s: &mut Sketch, x| {
        let square = s.op(Mul, &[x, x]);
        let one = s.number(1.0, F32);
        s.op(Add, &[square, one])
    };
    assert_eq!(
        drawn(Numerics::Exact, "div-one", |s, x| {
            let (square, one) = (square(s, x), s.number(1.0, F32));
            s.op(Div, &[one, square])
        }),
        "mul full add reciprocal"
    );
    assert_eq!(
        drawn(Numerics::Reassoc, "div-sqrt", |s, x| {
            let square = square(s, x);
            let root = s.op(Sqrt, &[square]);
            s.op(Div, &[x, root])
        }),
        "mul full add rsqrt mul"
    );
    assert_eq!(
        drawn(Numerics::Reassoc, "div-broadcast", |s, x| {
            let square = square(s, x);
            let sum = s.op(ReduceSum { axes: smallvec![1] }, &[square]);
            s.op(Div, &[x, sum])
        }),
        "mul full add reduce_sum reciprocal mul"
    );
}

#[test]
fn signs_move_to_where_they_cost_nothing() {
    let mut sketch = Sketch::new();
    let (x, y) = (sketch.input(F32, &[4, 6]), sketch.input(F32, &[4, 6]));
    let negated = sketch.op(Neg, &[y]);
    let sum = sketch.op(Add, &[x, negated]);
    let difference = sketch.op(Sub, &[sum, negated]);
    let negated_x = sketch.op(Neg, &[x]);
    let product = sketch.op(Mul, &[negated_x, negated]);
    let outer = sketch.op(Neg, &[sum]);
    let graph = sketch.finish(&[sum, difference, product, outer]);
    let (result, statistics) = canonical(&graph, Numerics::Reassoc);
    assert_eq!(op_names(&result), "sub add mul sub");
    assert!(statistics.get("signs") >= 3 && statistics.get("neg-sub") == 1, "{statistics}");
}

#[test]
fn constants_of_a_chain_are_joined_and_scales_move_outward() {
    assert_eq!(
        drawn(Numerics::Reassoc, "chain-constants", |s, x| {
            let (a, b) = (s.number(0.3, F32), s.number(0.7, F32));
            let once = s.op(Mul, &[x, a]);
            s.op(Mul, &[b, once])
        }),
        "full mul"
    );
    assert_eq!(
        drawn(Numerics::Reassoc, "scalar-outward", |s, x| {
            let half = s.number(0.5, F32);
            let (scaled, exponential) = (s.op(Mul, &[half, x]), s.op(Exp, &[x]));
            s.op(Mul, &[scaled, exponential])
        }),
        "exp mul full mul"
    );
    assert_eq!(
        drawn(Numerics::Reassoc, "mean-of-sum", |s, x| {
            let (sum, six) = (s.op(ReduceSum { axes: smallvec![1] }, &[x]), s.number(6.0, F32));
            s.op(Div, &[sum, six])
        }),
        "reduce_mean"
    );
    assert_eq!(
        drawn(Numerics::Exact, "max-max-constant", |s, x| {
            let (a, b) = (s.number(0.3, F32), s.number(0.7, F32));
            let once = s.op(Maximum, &[x, a]);
            s.op(Maximum, &[once, b])
        }),
        "full maximum"
    );
}

#[test]
fn exact_keeps_the_order_of_roundings() {
    let mut sketch = Sketch::new();
    let x = sketch.input(F32, &[4, 6]);
    let (a, b, three) = (sketch.number(0.3, F32), sketch.number(0.7, F32), sketch.number(3.0, F32));
    let scaled = sketch.op(Mul, &[x, a]);
    let scaled = sketch.op(Mul, &[scaled, b]);
    let divided = sketch.op(Div, &[scaled, three]);
    let (result, _) = canonical(&sketch.finish(&[divided]), Numerics::Exact);
    assert_eq!(op_names(&result), "full mul full mul full div");
}

#[test]
fn small_floats_compute_in_f32_and_exact_round_trips_vanish() {
    let mut sketch = Sketch::new();
    let x = sketch.input(BF16, &[4, 6]);
    let negated = sketch.op(Neg, &[x]);
    let relu = sketch.op(Relu, &[negated]);
    let sum = sketch.op(Add, &[relu, x]);
    let (result, statistics) = canonical(&sketch.finish(&[sum]), Numerics::Exact);
    assert_eq!(op_names(&result), "cast neg relu add cast");
    let halves = |sketch: &mut Sketch| {
        let x = sketch.input(BF16, &[4, 6]);
        let product = sketch.op(Mul, &[x, x]);
        let low = sketch.op(Slice { axis: 1, start: 0, end: 3, step: 1 }, &[product]);
        let high = sketch.op(Slice { axis: 1, start: 3, end: 6, step: 1 }, &[product]);
        let negated = sketch.op(Neg, &[high]);
        let rotated = sketch.op(Concat { axis: 1 }, &[negated, low]);
        sketch.op(Exp, &[rotated])
    };
    let mut rotation = Sketch::new();
    let output = halves(&mut rotation);
    let (rotated, rotation_statistics) = canonical(&rotation.finish(&[output]), Numerics::Exact);
    assert_eq!(op_names(&rotated), "cast mul cast cast slice neg slice concat exp cast");
    assert!(rotation_statistics.get("cast-below-parts") > 0);
    assert!(statistics.get("compute-in-f32") > 0 && statistics.get("cast-cast") > 0);
    let mut sketch = Sketch::new();
    let x = sketch.input(BF16, &[4, 6]);
    let product = sketch.op(Mul, &[x, x]);
    let sum = sketch.op(Add, &[product, x]);
    let (result, _) = canonical(&sketch.finish(&[sum]), Numerics::Contract);
    assert_eq!(op_names(&result), "cast mul cast cast add cast", "roundings between ops stay for `fuse`");
}

#[test]
fn expanded_operands_and_full_tensors_broadcast() {
    let mut sketch = Sketch::new();
    let (x, row) = (sketch.input(F32, &[4, 6]), sketch.input(F32, &[6]));
    let expanded = sketch.op(Expand { shape: shape_of(&[4, 6]) }, &[row]);
    let full = sketch.op(Full::new(2.5, F32, [4, 6]), &[]);
    let scaled = sketch.op(Mul, &[expanded, full]);
    let sum = sketch.op(Add, &[scaled, x]);
    let (result, statistics) = canonical(&sketch.finish(&[sum]), Numerics::Exact);
    assert_eq!(op_names(&result), "full mul add");
    assert!(statistics.get("broadcast-operand") >= 2);
}

#[test]
fn movement_composes() {
    let reshape = |shape: &[usize]| Op::from(Reshape { shape: shape_of(shape) });
    let transpose = |perm: &[usize]| Op::from(Transpose { perm: shape_of(perm) });
    let chain = |rule: &str, ops: &[Op]| {
        drawn(Numerics::Exact, rule, |s, x| ops.iter().fold(x, |value, op| s.op(op.clone(), &[value])))
    };
    assert_eq!(chain("reshape-reshape", &[reshape(&[24]), reshape(&[2, 12])]), "reshape");
    assert_eq!(chain("movement-identity", &[reshape(&[24]), reshape(&[4, 6])]), "");
    assert_eq!(chain("transpose-transpose", &[transpose(&[1, 0]), transpose(&[1, 0])]), "");
    assert_eq!(chain("transpose-unit-axes", &[reshape(&[4, 1, 6]), transpose(&[1, 0, 2])]), "reshape");
    let unsqueezed = [reshape(&[4, 1, 6]), transpose(&[2, 1, 0])];
    assert_eq!(chain("reshape-transpose", &unsqueezed), "transpose reshape");
    assert_eq!(chain("expand-unit-axes", &[Op::from(Expand { shape: shape_of(&[1, 4, 6]) })]), "reshape");
    let slice = |axis, start, end, step| Op::from(Slice { axis, start, end, step });
    assert_eq!(chain("slice-slice", &[slice(1, 1, 6, 2), slice(1, 1, 3, 1)]), "slice");
    assert_eq!(chain("movement-identity", &[slice(0, 0, 4, 1), Op::from(Relayout)]), "");
    let expand = Op::from(Expand { shape: shape_of(&[2, 4, 6]) });
    assert_eq!(chain("slice-expand", &[expand.clone(), slice(0, 0, 1, 1)]), "reshape");
    assert_eq!(chain("expand-expand", &[expand, Op::from(Expand { shape: shape_of(&[3, 2, 4, 6]) })]), "expand");
}

#[test]
fn slices_and_concats_cancel() {
    let mut sketch = Sketch::new();
    let (x, y) = (sketch.input(F32, &[4, 6]), sketch.input(F32, &[4, 2]));
    let left = sketch.op(Slice { axis: 1, start: 0, end: 2, step: 1 }, &[x]);
    let right = sketch.op(Slice { axis: 1, start: 2, end: 6, step: 1 }, &[x]);
    let whole = sketch.op(Concat { axis: 1 }, &[left, right]);
    let joined = sketch.op(Concat { axis: 1 }, &[whole, y]);
    let nested = sketch.op(Concat { axis: 1 }, &[y, joined]);
    let part = sketch.op(Slice { axis: 1, start: 3, end: 5, step: 1 }, &[nested]);
    let (result, statistics) = canonical(&sketch.finish(&[part, nested]), Numerics::Exact);
    assert_eq!(op_names(&result), "slice concat");
    for rule in ["concat-slices", "concat-concat", "slice-concat"] {
        assert!(statistics.get(rule) > 0, "{rule}: {statistics}");
    }
}

#[test]
fn shared_parts_are_rewritten_once() {
    let mut sketch = Sketch::new();
    let x = sketch.input(BF16, &[4, 6]);
    let mut rotated = sketch.op(Neg, &[x]);
    let n_levels = 40;
    for _ in 0..n_levels {
        let low = sketch.op(Slice { axis: 0, start: 1, end: 4, step: 1 }, &[rotated]);
        let high = sketch.op(Slice { axis: 0, start: 0, end: 1, step: 1 }, &[rotated]);
        rotated = sketch.op(Concat { axis: 0 }, &[low, high]);
    }
    let wide = sketch.op(Cast { dtype: F32 }, &[rotated]);
    let (_, statistics) = canonical(&sketch.finish(&[wide]), Numerics::Exact);
    // Once per concat and slice, where once per path would be 2^40 times.
    assert!((n_levels..=4 * n_levels).contains(&statistics.get("cast-below-parts")), "{statistics}");
}

#[test]
fn movement_sinks_below_pointwise_ops_and_rows() {
    let mut sketch = Sketch::new();
    let (x, bias) = (sketch.input(F32, &[4, 6]), sketch.input(F32, &[6]));
    let viewed = sketch.op(Reshape { shape: shape_of(&[2, 2, 6]) }, &[x]);
    let sum = sketch.op(Add, &[viewed, bias]);
    let square = sketch.op(Mul, &[sum, sum]);
    let mean = sketch.op(ReduceMean { axes: smallvec![2] }, &[square]);
    let root = sketch.op(Rsqrt, &[mean]);
    let scaled = sketch.op(Mul, &[sum, root]);
    let softmax = sketch.op(Softmax, &[scaled]);
    let flat = sketch.op(Reshape { shape: shape_of(&[4, 6]) }, &[softmax]);
    let (result, statistics) = canonical(&sketch.finish(&[flat]), Numerics::Exact);
    assert_eq!(op_names(&result), "add mul reduce_mean rsqrt mul softmax");
    for rule in ["sink-below-reshape", "reduce-below-reshape", "sink-row-op-below-reshape"] {
        assert!(statistics.get(rule) > 0, "{rule}: {statistics}");
    }
    assert_eq!(
        drawn(Numerics::Exact, "sink-below-transpose", |s, x| {
            let transposed = s.op(Transpose { perm: shape_of(&[1, 0]) }, &[x]);
            let half = s.number(0.5, F32);
            let scaled = s.op(Mul, &[transposed, half]);
            s.op(Transpose { perm: shape_of(&[1, 0]) }, &[scaled])
        }),
        "full mul"
    );
}

#[test]
fn reductions_over_single_elements_and_of_reductions_are_simplified() {
    assert_eq!(
        drawn(Numerics::Exact, "reduce-unit-axes", |s, x| {
            let row = s.op(ReduceSum { axes: smallvec![1] }, &[x]);
            s.op(ReduceSum { axes: smallvec![1] }, &[row])
        }),
        "reduce_sum"
    );
    assert_eq!(
        drawn(Numerics::Exact, "reduce-reduce", |s, x| {
            let row = s.op(ReduceMax { axes: smallvec![1] }, &[x]);
            s.op(ReduceMax { axes: smallvec![0] }, &[row])
        }),
        "reduce_max"
    );
    assert_eq!(
        drawn(Numerics::Reassoc, "sum-sum", |s, x| {
            let row = s.op(ReduceSum { axes: smallvec![1] }, &[x]);
            s.op(ReduceSum { axes: smallvec![0] }, &[row])
        }),
        "reduce_sum"
    );
}

#[test]
fn reductions_over_nothing_are_constants() {
    let reduced = |op: Op| {
        drawn(Numerics::Exact, "over-nothing", |s, x| {
            let nothing = s.op(Slice { axis: 1, start: 6, end: 6, step: 1 }, &[x]);
            s.op(op.clone(), &[nothing])
        })
    };
    assert_eq!(reduced(ReduceSum { axes: smallvec![0, 1] }.into()), "full");
    assert_eq!(reduced(ReduceMean { axes: smallvec![1] }.into()), "full");
    let product = drawn(Numerics::Exact, "over-nothing", |s, x| {
        let nothing = s.op(Slice { axis: 1, start: 6, end: 6, step: 1 }, &[x]);
        let other = s.op(Slice { axis: 0, start: 4, end: 4, step: 1 }, &[x]);
        s.op(Matmul { transpose_lhs: false, transpose_rhs: false, dtype: F32 }, &[nothing, other])
    });
    assert_eq!(product, "full");
}

#[test]
fn masks_of_positions_are_evaluated_at_compile_time() {
    let mut sketch = Sketch::new();
    let scores = sketch.input(F32, &[2, 8, 8]);
    let positions = sketch.op(Iota { dtype: Dtype::I64, length: 8, start: 0, step: 1 }, &[]);
    let zero = sketch.number(0.0, Dtype::I64);
    let positions = sketch.op(Add, &[positions, zero]);
    let column = sketch.op(Reshape { shape: shape_of(&[8, 1]) }, &[positions]);
    let later = sketch.op(Lt, &[column, positions]);
    let (lowest, none) = (sketch.number(f64::NEG_INFINITY, F32), sketch.number(0.0, F32));
    let later = sketch.op(Expand { shape: shape_of(&[2, 8, 8]) }, &[later]);
    let mask = sketch.op(Where, &[later, lowest, none]);
    let masked = sketch.op(Add, &[scores, mask]);
    let (result, statistics) = canonical(&sketch.finish(&[masked, positions]), Numerics::Exact);
    assert_eq!(op_names(&result), "constant add iota");
    let rows = result.nodes().find(|(_, node)| node.op.name() == "constant").expect("there is a mask").1.results[0];
    assert_eq!(result.ty(rows).shape.as_slice(), [1, 8, 8]);
    assert!(statistics.get("fold-constant") > 0);
}

#[test]
fn indices_into_constants_are_folded_and_bad_ones_are_left_alone() {
    let mut sketch = Sketch::new();
    let table = sketch.op(Iota { dtype: Dtype::I64, length: 8, start: 10, step: 3 }, &[]);
    let index = sketch.op(Iota { dtype: Dtype::I64, length: 4, start: 1, step: 2 }, &[]);
    let gathered = sketch.op(Gather { axis: 0 }, &[table, index]);
    let (result, _) = canonical(&sketch.finish(&[gathered]), Numerics::Exact);
    assert_eq!(op_names(&result), "iota");
    let mut sketch = Sketch::new();
    let table = sketch.op(Iota { dtype: Dtype::I64, length: 8, start: 10, step: 3 }, &[]);
    let outside = sketch.op(Full::new(9.0, Dtype::I64, [2]), &[]);
    let gathered = sketch.op(GatherRows, &[table, outside]);
    let graph = sketch.finish(&[gathered]);
    let (result, _) = canonicalize(&graph, Numerics::Exact).expect("canonicalizes");
    assert_eq!(op_names(&result), "iota full gather_rows");
}

#[test]
fn safe_softmax_keeps_zeros_for_fully_masked_rows() {
    let mut sketch = Sketch::new();
    let scores = sketch.input(F32, &[4, 6]);
    let keep = sketch.input(Dtype::Bool, &[4, 6]);
    let lowest = sketch.number(f64::NEG_INFINITY, F32);
    let masked = sketch.op(Where, &[keep, scores, lowest]);
    let softmax = sketch.op(Softmax, &[masked]);
    let is_masked = sketch.op(Eq, &[masked, lowest]);
    let is_kept = sketch.op(LogicalNot, &[is_masked]);
    let any_kept = sketch.op(Any { axes: smallvec![1] }, &[is_kept]);
    let none_kept = sketch.op(LogicalNot, &[any_kept]);
    let zeros = sketch.op(Full::new(0.0, F32, [4, 6]), &[]);
    let safe = sketch.op(Where, &[none_kept, zeros, softmax]);
    let (result, statistics) = canonical(&sketch.finish(&[safe]), Numerics::Exact);
    assert_eq!(op_names(&result), "full where ne any softmax full where");
    assert!(statistics.get("not-comparison") > 0 && statistics.get("where-condition") > 0);
}

#[test]
fn transposes_become_flags_and_merged_batches_are_taken_apart() {
    let mut sketch = Sketch::new();
    let (query, key) = (sketch.input(F32, &[2, 3, 5, 4]), sketch.input(F32, &[2, 3, 5, 4]));
    let transposed = sketch.op(Transpose { perm: shape_of(&[0, 1, 3, 2]) }, &[key]);
    let scale = sketch.number(0.6, F32);
    let scaled = sketch.op(Mul, &[transposed, scale]);
    let expanded = sketch.op(Expand { shape: shape_of(&[2, 3, 4, 5]) }, &[scaled]);
    let (lhs, rhs) = (
        sketch.op(Reshape { shape: shape_of(&[6, 5, 4]) }, &[query]),
        sketch.op(Reshape { shape: shape_of(&[6, 4, 5]) }, &[expanded]),
    );
    let product = sketch.op(Matmul { transpose_lhs: false, transpose_rhs: false, dtype: F32 }, &[lhs, rhs]);
    let scores = sketch.op(Reshape { shape: shape_of(&[2, 3, 5, 5]) }, &[product]);
    let (result, statistics) = canonical(&sketch.finish(&[scores]), Numerics::Exact);
    assert_eq!(op_names(&result), "full mul matmul");
    assert!(statistics.get("matmul-split-batch") > 0 && statistics.get("matmul-transpose") > 0);
}

#[test]
fn rows_of_a_linear_layer_are_merged_and_small_results_accumulate_in_f32() {
    let mut sketch = Sketch::new();
    let (x, weight) = (sketch.input(BF16, &[2, 3, 4]), sketch.input(BF16, &[5, 4]));
    let transposed = sketch.op(Transpose { perm: shape_of(&[1, 0]) }, &[weight]);
    let product = sketch.op(Matmul { transpose_lhs: false, transpose_rhs: false, dtype: BF16 }, &[x, transposed]);
    let (result, statistics) = canonical(&sketch.finish(&[product]), Numerics::Exact);
    assert_eq!(op_names(&result), "reshape matmul cast reshape");
    assert!(statistics.get("matmul-merge-rows") > 0 && statistics.get("accumulate-in-f32") > 0);
    let mut sketch = Sketch::new();
    let (x, y) = (sketch.input(F32, &[1, 3, 4]), sketch.input(F32, &[1, 4, 5]));
    let product = sketch.op(Matmul { transpose_lhs: false, transpose_rhs: false, dtype: F32 }, &[x, y]);
    let (_, statistics) = canonical(&sketch.finish(&[product]), Numerics::Exact);
    assert!(statistics.get("matmul-unit-batch") > 0);
}

#[test]
fn comparisons_put_the_constant_on_the_right() {
    assert_eq!(
        drawn(Numerics::Exact, "compare-constant", |s, x| {
            let zero = s.number(0.5, F32);
            let less = s.op(Lt, &[zero, x]);
            let none = s.op(All { axes: smallvec![1] }, &[less]);
            let different = s.op(Ne, &[x, zero]);
            let some = s.op(Any { axes: smallvec![1] }, &[different]);
            s.op(ir::ops::LogicalAnd, &[none, some])
        }),
        "full gt all ne any logical_and"
    );
}

#[test]
fn operand_order_and_dead_code_do_not_tell_spellings_apart() {
    let spell = |swapped: bool| {
        let mut sketch = Sketch::new();
        let (x, y) = (sketch.input(F32, &[4, 6]), sketch.input(F32, &[6]));
        let dead = sketch.op(Exp, &[y]);
        let operands = if swapped { [y, x] } else { [x, y] };
        let product = sketch.op(Mul, &operands);
        let again = sketch.op(Mul, &[x, y]);
        let sum = sketch.op(Add, &if swapped { [again, x] } else { [x, product] });
        let _ = sketch.op(Neg, &[dead]);
        canonical(&sketch.finish(&[sum]), Numerics::Exact).0
    };
    let names =
        |graph: &Graph| graph.nodes().map(|(_, node)| (node.op.clone(), node.operands.clone())).collect::<Vec<_>>();
    assert_eq!(names(&spell(false)), names(&spell(true)));
}

#[test]
fn the_spelling_of_rms_norm_in_f32_is_one() {
    let naive = |square: fn(&mut Sketch, ValueId) -> ValueId| {
        let mut sketch = Sketch::new();
        let (x, gamma) = (sketch.input(F32, &[4, 512]), sketch.input(F32, &[512]));
        let square = square(&mut sketch, x);
        let mean = sketch.op(ReduceMean { axes: smallvec![1] }, &[square]);
        let eps = sketch.number(1e-6, F32);
        let sum = sketch.op(Add, &[mean, eps]);
        let root = sketch.op(Rsqrt, &[sum]);
        let scaled = sketch.op(Mul, &[x, root]);
        let output = sketch.op(Mul, &[scaled, gamma]);
        canonical(&sketch.finish(&[output]), Numerics::Reassoc).0
    };
    let product = naive(|s, x| s.op(Mul, &[x, x]));
    let power = naive(|s, x| {
        let two = s.number(2.0, F32);
        s.op(Pow, &[x, two])
    });
    assert_eq!(op_names(&product), "mul reduce_mean full add rsqrt mul mul");
    assert_eq!(op_names(&product), op_names(&power));
}

#[test]
fn reductions_over_repeated_elements_repeat_nothing() {
    let expand = |s: &mut Sketch, x| s.op(Expand { shape: shape_of(&[3, 4, 6]) }, &[x]);
    let max = |s: &mut Sketch, x| {
        let repeated = expand(s, x);
        s.op(ReduceMax { axes: smallvec![0, 2] }, &[repeated])
    };
    assert_eq!(drawn(Numerics::Exact, "select-of-repeated", max), "reduce_max reshape");
    let sum = |s: &mut Sketch, x| {
        let repeated = expand(s, x);
        s.op(ReduceSum { axes: smallvec![0] }, &[repeated])
    };
    assert_eq!(drawn(Numerics::Reassoc, "sum-of-repeated", sum), "full mul reshape");
    let mean = |s: &mut Sketch, x| {
        let repeated = expand(s, x);
        s.op(ReduceMean { axes: smallvec![0] }, &[repeated])
    };
    assert_eq!(drawn(Numerics::Reassoc, "sum-of-repeated", mean), "reshape");
}

#[test]
fn nested_choices_by_one_condition_are_one_choice() {
    let mut sketch = Sketch::new();
    let keep = sketch.input(Dtype::Bool, &[4, 6]);
    let [x, y, z] = [(); 3].map(|()| sketch.input(F32, &[4, 6]));
    let inner = sketch.op(Where, &[keep, x, y]);
    let outer = sketch.op(Where, &[keep, inner, z]);
    let other = sketch.op(Where, &[keep, z, inner]);
    let (result, statistics) = canonical(&sketch.finish(&[outer, other]), Numerics::Exact);
    assert_eq!(op_names(&result), "where where");
    assert!(statistics.get("where-where") >= 2);
}

#[test]
fn rows_at_constant_steps_are_a_slice() {
    let mut sketch = Sketch::new();
    let table = sketch.input(F32, &[16, 3]);
    let ids = sketch.op(Iota { dtype: Dtype::I64, length: 4, start: 2, step: 3 }, &[]);
    let ids = sketch.op(Reshape { shape: shape_of(&[2, 2]) }, &[ids]);
    let rows = sketch.op(GatherRows, &[table, ids]);
    let (result, statistics) = canonical(&sketch.finish(&[rows]), Numerics::Exact);
    assert_eq!(op_names(&result), "slice reshape");
    assert!(statistics.get("gather-range") > 0);
}

#[test]
fn random_graphs_keep_every_bit_under_exact() {
    for seed in 0..150 {
        let graph = random_graph(seed, &RandomGraphOptions::default());
        canonical(&graph, Numerics::Exact);
    }
}

/// Alternating ops whose transposes meet once they have sunk.
fn restless() -> Graph {
    let mut sketch = Sketch::new();
    let mut value = sketch.input(BF16, &[4, 6]);
    for _ in 0..6 {
        let turned = sketch.op(Transpose { perm: smallvec![1, 0] }, &[value]);
        let negative = sketch.op(Neg, &[turned]);
        let back = sketch.op(Transpose { perm: smallvec![1, 0] }, &[negative]);
        value = sketch.op(Add, &[back, value]);
    }
    sketch.finish(&[value])
}

#[test]
fn a_limit_of_rounds_keeps_what_was_found_and_is_counted() {
    for seed in 0..150 {
        let graph = random_graph(seed, &RandomGraphOptions::default());
        let mut context = PassContext::default();
        let result = settle(&graph, Numerics::Exact, &mut context, 1).expect("a limit is no error");
        assert_eq!(context.statistics.get(ROUND_LIMIT), 1);
        assert_eq!(result.faults(Phase::Canonical), Vec::<String>::new(), "seed {seed}");
        assert_same_values(&graph, &result, Rounding::PerOp, 0.0);
        let (_, statistics) = canonicalize(&graph, Numerics::Exact).expect("canonicalizes");
        assert_eq!(statistics.get(ROUND_LIMIT), 0, "seed {seed}");
    }
}

#[test]
fn every_amount_of_fuel_gives_a_canonical_graph() {
    let graph = restless();
    let mut unlimited = PassContext::default();
    canonicalize_with(&graph, Numerics::Exact, &mut unlimited).expect("canonicalizes");
    let n_changes = unlimited.fuel.spent();
    assert!(n_changes > 10, "{n_changes}");
    for fuel in 0..=n_changes {
        let mut context = PassContext { fuel: Fuel::new(Some(fuel)), ..PassContext::default() };
        let result = canonicalize_with(&graph, Numerics::Exact, &mut context).expect("canonicalizes");
        assert_eq!(result.faults(Phase::Canonical), Vec::<String>::new(), "fuel {fuel}");
        assert_same_values(&graph, &result, Rounding::PerOp, 0.0);
        assert_eq!(context.fuel.last().is_some(), fuel > 0);
    }
}
