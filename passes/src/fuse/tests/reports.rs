//! What the report says: sources, counts, replays, fuel, cost against its bound.

use ir::graph::LocationId;
use ir::ops::{Add, Matmul, Mul, ReduceMean, Relu, Rsqrt, Sqrt};
use ir::random_graph::{RandomGraphOptions, random_graph};
use ir::{Dtype, Graph, Op, ValueId};
use smallvec::smallvec;

use super::fused;
use crate::Numerics;
use crate::canonicalize::canonicalize;
use crate::fuse::{FuseOptions, StopReason, fuse};
use crate::manager::{Phase, Unit};
use crate::testing::{Rounding, Sketch, assert_as_exact, assert_same_values, op_names};

const F32: Dtype = Dtype::F32;

fn rms_norm(sketch: &mut Sketch, x: ValueId) -> ValueId {
    let square = sketch.op(Mul, &[x, x]);
    let mean = sketch.op(ReduceMean { axes: smallvec![1] }, &[square]);
    let eps = sketch.number(1e-6, F32);
    let sum = sketch.op(Add, &[mean, eps]);
    let root = sketch.op(Rsqrt, &[sum]);
    sketch.op(Mul, &[x, root])
}

/// A residual stream in bf16 stays in bf16 where it waits for a block's product, though its roundings
/// might be dropped: the sum is rounded once and widened for its readers. Its operands' shapes differ by a
/// leading 1, as captured models have them.
#[test]
fn residual_streams_keep_the_models_type() {
    let text = "graph @blocks {
  input %0 \"x\": bf16[1, 8, 16] dynamic
  input %1 \"v\": bf16[8, 16] dynamic
  input %2 \"w\": bf16[16, 16] dynamic
  %3 = cast %0 {dtype = f32} : f32[1, 8, 16]
  %4 = matmul %1, %2 {transpose_lhs = 0, transpose_rhs = 0, dtype = f32} : f32[8, 16]
  %5 = add %3, %4 : f32[1, 8, 16]
  %6 = cast %5 {dtype = bf16} : bf16[1, 8, 16]
  %7 = cast %6 {dtype = f32} : f32[1, 8, 16]
  %8 = tanh %7 : f32[1, 8, 16]
  %9 = mul %7, %8 : f32[1, 8, 16]
  %10 = cast %9 {dtype = bf16} : bf16[1, 8, 16]
  %11 = reshape %10 {shape = [8, 16]} : bf16[8, 16]
  %12 = matmul %11, %2 {transpose_lhs = 0, transpose_rhs = 0, dtype = f32} : f32[8, 16]
  %13 = add %7, %12 : f32[1, 8, 16]
  output %13 \"\"
}";
    let graph = ir::text::parse_graph("blocks", text).expect("the text is well formed");
    let (result, report) = fuse(&graph, &FuseOptions::new(Numerics::Contract)).expect("fuses");
    let wide_sum = result.nodes().find(|(_, node)| node.op == Op::Add(Add)).expect("the sum is there").1;
    let readers = result.nodes().filter(|(_, node)| node.operands.contains(&wide_sum.results[0]));
    let readers: Vec<&Op> = readers.map(|(_, node)| &node.op).collect();
    assert!(matches!(readers[..], [Op::Cast(_)]), "{readers:?}");
    assert_eq!(report.n_regions, 2);
}

/// Blocks of x + relu(norm(x) W).
fn blocks(n_blocks: usize) -> Graph {
    let mut sketch = Sketch::new();
    let mut x = sketch.input(F32, &[8, 16]);
    for _ in 0..n_blocks {
        let weight = sketch.input(F32, &[16, 16]);
        let normed = rms_norm(&mut sketch, x);
        let product = sketch.op(Matmul { transpose_lhs: false, transpose_rhs: false, dtype: F32 }, &[normed, weight]);
        let activated = sketch.op(Relu, &[product]);
        x = sketch.op(Add, &[x, activated]);
    }
    sketch.finish(&[x])
}

#[test]
fn equal_blocks_are_planned_once() {
    let (result, report) = fused(&blocks(6), &FuseOptions::new(Numerics::Reassoc));
    assert_eq!(report.n_regions, 6);
    assert!(report.n_distinct_regions <= 2, "{report:?}");
    assert_eq!(op_names(&result), ["rms_norm fused_matmul add"; 6].join(" "));
    assert_eq!(report.fusions.len(), 12);
    assert_eq!(report.stop_reasons, [(StopReason::Saturated, report.n_distinct_regions)]);
    assert!(report.cost_ps < report.cost_before_ps);
}

#[test]
fn a_fused_op_names_the_lines_that_it_stands_for() {
    let graph = blocks(2);
    let (result, report) = fused(&graph, &FuseOptions::new(Numerics::Reassoc));
    let lines = |locations: &[LocationId]| -> Vec<String> {
        locations.iter().map(|location| result.locations[location.index()].line.clone()).collect()
    };
    let first = &report.fusions[0];
    assert_eq!(first.op, "rms_norm");
    assert_eq!(lines(&first.locations), ["model.py:1", "model.py:2", "model.py:4", "model.py:5", "model.py:6"]);
    let last = &report.fusions[3];
    assert_eq!((last.op, last.rules.as_slice()), ("fused_matmul", ["matmul-relu"].as_slice()));
    assert_eq!(lines(&last.locations), ["model.py:16", "model.py:17"]);
}

#[test]
fn fuel_makes_the_first_changes_and_names_the_last() {
    let (canonical, _) = canonicalize(&blocks(1), Numerics::Reassoc).expect("canonicalizes");
    let with_fuel = |fuel| {
        let options = FuseOptions { fuel: Some(fuel), ..FuseOptions::new(Numerics::Reassoc) };
        fuse(&canonical, &options).expect("fuses")
    };
    let (result, report) = with_fuel(0);
    assert_eq!(op_names(&result), op_names(&canonical));
    assert_eq!((report.fuel_spent, report.last_change.as_deref()), (0, None));
    assert_eq!(report.stop_reasons[0].0, StopReason::OutOfFuel);
    let (result, report) = with_fuel(1);
    assert_eq!(op_names(&result), "rms_norm matmul relu add");
    assert_eq!(report.last_change.as_deref(), Some("rule rms-norm"));
    let (result, report) = with_fuel(2);
    assert_eq!(op_names(&result), "rms_norm fused_matmul add");
    assert_eq!(report.last_change.as_deref(), Some("rule matmul-relu"));
}

#[test]
fn an_unknown_rule_is_refused() {
    let options =
        FuseOptions { disabled_rules: vec!["no-such-rule".to_owned()], ..FuseOptions::new(Numerics::Reassoc) };
    let error = fuse(&blocks(1), &options).expect_err("there is no such rule");
    assert_eq!(error.to_string(), "no rule is named `no-such-rule`");
}

#[test]
fn two_runs_are_equal() {
    let run = || fused(&blocks(3), &FuseOptions::new(Numerics::Contract));
    assert_eq!(run(), run());
}

#[test]
fn plans_that_would_read_their_own_result_fall_back() {
    // sqrt(x) is read by a value that many nodes read, and that one by the region of sqrt(x) again.
    let mut sketch = Sketch::new();
    let x = sketch.input(F32, &[4, 16]);
    let root = sketch.op(Sqrt, &[x]);
    let shared = sketch.op(Mul, &[root, x]);
    let mut sum = sketch.op(Add, &[root, shared]);
    for _ in 0..9 {
        sum = sketch.op(Mul, &[sum, shared]);
    }
    let (result, _) = fused(&sketch.finish(&[sum]), &FuseOptions::new(Numerics::Contract));
    assert_eq!(result.n_nodes(), 12);
}

#[test]
fn random_graphs_keep_every_bit_under_exact_and_stay_near_the_truth() {
    for seed in 0..100 {
        let graph = random_graph(seed, &RandomGraphOptions::default());
        for numerics in Numerics::ALL {
            let (canonical, _) = canonicalize(&graph, numerics).expect("canonicalizes");
            let (result, report) = fuse(&canonical, &FuseOptions::new(numerics)).expect("fuses");
            assert_eq!(result.faults(Phase::Fused), Vec::<String>::new(), "seed {seed}");
            assert_eq!(report.gap_ps(), 0, "seed {seed}");
            assert_as_exact(&graph, &result);
            if numerics == Numerics::Exact {
                assert_same_values(&graph, &result, Rounding::PerOp, 0.0);
            }
        }
    }
}
