//! Rounding, bytes, evaluation of graphs and the judgement of outputs against hand values.

use ir::graph::{Graph, InputRole};
use ir::ops::{Add, Cast, Exp, LayerNorm, Matmul, Mul};
use ir::random_graph::{RandomGraphOptions, random_graph, random_inputs};
use ir::reference::{Lanes, Rounding, Value, compare, evaluate, round_float};
use ir::types::{F32Bits, TensorType};
use ir::{Dtype, Op};

#[test]
fn floats_round_to_nearest_even() {
    let cases = [
        (Dtype::F32, 1.0 + 2f64.powi(-24), 1.0),
        (Dtype::F32, 1.0 + 3.0 * 2f64.powi(-24), 1.0 + 2f64.powi(-22)),
        (Dtype::F32, 3.5e38, f64::INFINITY),
        (Dtype::Bf16, 1.0 + 2f64.powi(-8), 1.0),
        (Dtype::Bf16, 1.0 + 3.0 * 2f64.powi(-8), 1.0 + 2f64.powi(-6)),
        // Just above a tie: a detour over f32 would round down.
        (Dtype::Bf16, 1.0 + 2f64.powi(-8) + 2f64.powi(-40), 1.0 + 2f64.powi(-7)),
        (Dtype::Bf16, -2f64.powi(-134), -0.0),
        (Dtype::Bf16, 1.5 * 2f64.powi(-133), 2f64.powi(-132)),
        (Dtype::Bf16, 3.4e38, f64::INFINITY),
        (Dtype::F16, 65519.0, 65504.0),
        (Dtype::F16, 65520.0, f64::INFINITY),
        (Dtype::F16, -2f64.powi(-25), -0.0),
        (Dtype::F8E4m3, 247.9, 240.0),
        (Dtype::F8E4m3, 248.0, f64::INFINITY),
        (Dtype::F8E4m3, 1.0 + 1.0 / 16.0, 1.0),
        (Dtype::F8E5m2, 61440.0, f64::INFINITY),
        (Dtype::F8E5m2, -57344.0, -57344.0),
        (Dtype::F64, 0.1, 0.1),
    ];
    for (dtype, number, expected) in cases {
        let found = round_float(dtype, number);
        assert_eq!(found.to_bits(), f64::to_bits(expected), "{number:e} as {dtype} is {found:e}");
        assert!(round_float(dtype, f64::NAN).is_nan());
    }
}

#[test]
fn narrow_floats_agree_with_the_half_crate() {
    for bits in 0..=u16::MAX {
        let bytes = bits.to_le_bytes();
        for (dtype, expected) in
            [(Dtype::Bf16, f64::from(half::bf16::from_bits(bits))), (Dtype::F16, f64::from(half::f16::from_bits(bits)))]
        {
            let value = Value::from_bytes(&TensorType::scalar(dtype), &bytes).expect("two bytes");
            let Lanes::Float(lanes) = &value.lanes else { panic!("{dtype} is a float") };
            assert_eq!(lanes[0].is_nan(), expected.is_nan());
            if !expected.is_nan() {
                assert_eq!(lanes[0].to_bits(), expected.to_bits(), "{bits:#x} as {dtype}");
                assert_eq!(round_float(dtype, expected).to_bits(), expected.to_bits());
                assert_eq!(value.to_bytes(dtype).expect("floats"), bytes, "{bits:#x} as {dtype}");
            }
        }
    }
}

#[test]
fn eight_bit_floats_have_their_published_values() {
    let read = |dtype, byte: u8| match Value::from_bytes(&TensorType::scalar(dtype), &[byte]).expect("a byte").lanes {
        Lanes::Float(lanes) => lanes[0],
        Lanes::Int(_) | Lanes::Bool(_) => panic!("{dtype} is a float"),
    };
    assert_eq!(read(Dtype::F8E4m3, 0x77), 240.0);
    assert_eq!(read(Dtype::F8E4m3, 0x78), f64::INFINITY);
    assert!(read(Dtype::F8E4m3, 0x79).is_nan());
    assert_eq!(read(Dtype::F8E4m3, 0x01), 2f64.powi(-9));
    assert_eq!(read(Dtype::F8E4m3, 0xb8), -1.0);
    assert_eq!(read(Dtype::F8E5m2, 0x7b), 57344.0);
    assert_eq!(read(Dtype::F8E5m2, 0x01), 2f64.powi(-16));
    for dtype in [Dtype::F8E4m3, Dtype::F8E5m2] {
        for byte in 0..=u8::MAX {
            let number = read(dtype, byte);
            if !number.is_nan() {
                let bytes = Value::floats(&[], [number]).to_bytes(dtype).expect("a float");
                assert_eq!(bytes, [byte], "{number} as {dtype}");
            }
        }
    }
}

#[test]
fn bytes_of_integers_and_bools_round_trip() {
    for (dtype, bytes) in [
        (Dtype::I64, vec![0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        (Dtype::I32, vec![0xfe, 0xff, 0xff, 0xff]),
        (Dtype::I16, vec![0xfe, 0xff]),
        (Dtype::I8, vec![0xfe]),
    ] {
        let value = Value::from_bytes(&TensorType::scalar(dtype), &bytes).expect("one element");
        assert_eq!(value, Value::ints(&[], [-2]));
        assert_eq!(value.to_bytes(dtype).expect("integers"), bytes);
    }
    let value = Value::from_bytes(&TensorType::new(Dtype::Bool, [2]), &[0, 1]).expect("two bytes");
    assert_eq!(value, Value::bools(&[2], [false, true]));
    assert!(Value::from_bytes(&TensorType::new(Dtype::Bool, [usize::MAX, 8]), &[0]).is_err());
}

/// (bf16(x) * bf16(x) + 1 as bf16, exp as f32).
fn square_plus_one() -> Graph {
    let mut graph = Graph::new("g");
    let x = graph.push_input("x", TensorType::new(Dtype::F32, [2]), InputRole::Dynamic);
    let half = graph.push_value_of(Cast { dtype: Dtype::Bf16 }.into(), &[x], &[]).expect("typed");
    let square = graph.push_value_of(Mul.into(), &[half, half], &[]).expect("typed");
    let sum = graph.push_value_of(Add.into(), &[square, half], &[]).expect("typed");
    let exp = graph.push_value_of(Exp.into(), &[x], &[]).expect("typed");
    graph.push_output(sum);
    graph.push_output(exp);
    graph.outputs.push(ir::graph::GraphOutput { value: None, strides: None, alias: None, description: String::new() });
    graph
}

#[test]
fn evaluation_rounds_after_every_op_or_never() {
    let graph = square_plus_one();
    let inputs = [Value::floats(&[2], [1.0 + 2f64.powi(-9), 3.0])];
    let rounded = evaluate(&graph, &inputs, Rounding::PerOp).expect("evaluates");
    assert_eq!(rounded[0], Some(Value::floats(&[2], [2.0, 12.0])));
    let exp = f64::from(libm::exp(3.0) as f32);
    let Some(Value { lanes: Lanes::Float(lanes), .. }) = &rounded[1] else { panic!("a float output") };
    assert_eq!(lanes[1], exp);
    assert_eq!(rounded[2], None);
    let truth = evaluate(&graph, &inputs, Rounding::None).expect("evaluates");
    let x = 1.0 + 2f64.powi(-9);
    assert_eq!(truth[0], Some(Value::floats(&[2], [x * x + x, 12.0])));
}

#[test]
fn evaluation_refuses_wrong_inputs_and_names_the_failing_node() {
    let graph = square_plus_one();
    for inputs in [vec![], vec![Value::floats(&[3], [0.0; 3])], vec![Value::ints(&[2], [1, 2])]] {
        assert!(evaluate(&graph, &inputs, Rounding::PerOp).is_err());
    }
    let mut graph = Graph::new("g");
    let table = graph.push_input("table", TensorType::new(Dtype::F32, [2, 1]), InputRole::Static);
    let ids = graph.push_input("ids", TensorType::new(Dtype::I64, [1]), InputRole::Dynamic);
    let rows = graph.push_value_of(ir::ops::GatherRows.into(), &[table, ids], &[]).expect("typed");
    graph.push_output(rows);
    let inputs = [Value::floats(&[2, 1], [1.0, 2.0]), Value::ints(&[1], [2])];
    let error = evaluate(&graph, &inputs, Rounding::PerOp).expect_err("id 2 of 2 rows");
    assert_eq!(error.message, "%2 = gather_rows: id 2 of a table of 2 rows");
}

#[test]
fn integers_wrap_even_in_the_truth() {
    let mut graph = Graph::new("g");
    let x = graph.push_input("x", TensorType::new(Dtype::I8, [1]), InputRole::Dynamic);
    let sum = graph.push_value_of(Add.into(), &[x, x], &[]).expect("typed");
    graph.push_output(sum);
    for rounding in [Rounding::PerOp, Rounding::None] {
        let outputs = evaluate(&graph, &[Value::ints(&[1], [100])], rounding).expect("evaluates");
        assert_eq!(outputs[0], Some(Value::ints(&[1], [-56])));
    }
}

#[test]
fn every_result_of_a_node_is_evaluated() {
    let mut graph = Graph::new("g");
    let x = graph.push_input("x", TensorType::new(Dtype::F32, [1, 2]), InputRole::Dynamic);
    let norm = graph.push(LayerNorm { eps: F32Bits::new(3.0) }.into(), &[x], &[]).expect("typed");
    let rstd = graph.node(norm).results[2];
    graph.push_output(rstd);
    let outputs = evaluate(&graph, &[Value::floats(&[1, 2], [2.0, 4.0])], Rounding::PerOp).expect("evaluates");
    assert_eq!(outputs[0], Some(Value::floats(&[1, 1], [0.5])));
}

#[test]
fn a_product_with_long_rows_has_the_value_of_the_definition() {
    let (n_rows, n_inner, n_columns) = (5, 131, 7);
    let lhs: Vec<f64> = (0..n_rows * n_inner).map(|i| f64::from((i * 37 % 19) as i32 - 9)).collect();
    let rhs: Vec<f64> = (0..n_inner * n_columns).map(|i| f64::from((i * 53 % 23) as i32 - 11)).collect();
    let op: Op = Matmul { transpose_lhs: false, transpose_rhs: false, dtype: Dtype::F32 }.into();
    let types = [TensorType::new(Dtype::F32, [n_rows, n_inner]), TensorType::new(Dtype::F32, [n_inner, n_columns])];
    let results = op.infer(&types).expect("typed");
    let values = [Value::floats(&[n_rows, n_inner], lhs.clone()), Value::floats(&[n_inner, n_columns], rhs.clone())];
    let found = op.eval(&[&values[0], &values[1]], &results).expect("evaluates");
    let mut expected = vec![0.0; n_rows * n_columns];
    for row in 0..n_rows {
        for column in 0..n_columns {
            let products = (0..n_inner).map(|inner| lhs[row * n_inner + inner] * rhs[inner * n_columns + column]);
            expected[row * n_columns + column] = products.sum();
        }
    }
    assert_eq!(found[0], Value::floats(&[n_rows, n_columns], expected));
}

#[test]
fn outputs_are_judged_by_their_distance_to_the_truth() {
    let of = |lanes: [f64; 2]| Value::floats(&[1, 2], lanes);
    let truth = of([1.0, 256.0]);
    let eager = of([1.0, 257.0]);
    let near = compare(&of([1.0, 255.5]), &eager, &truth, Dtype::Bf16);
    assert!(near.passes());
    assert_eq!((near.max_abs_error, near.eager_abs_error, near.max_rel_error), (0.5, 1.0, 0.5 / 256.0));
    let worst = near.worst.expect("an element");
    assert_eq!((worst.position.as_slice(), worst.output, worst.eager, worst.truth), (&[0, 1][..], 255.5, 257.0, 256.0));
    // Bound: 1 * 1 + 1 * (2^-7 / 2) * 256 = 2 for bf16, 2 * 1 + 2 * 2^-24 * 256 for f32.
    assert!(compare(&of([1.0, 258.0]), &eager, &truth, Dtype::Bf16).passes());
    assert!(!compare(&of([1.0, 258.1]), &eager, &truth, Dtype::Bf16).passes());
    assert!(!compare(&of([1.0, 258.1]), &eager, &truth, Dtype::F32).passes());
    let both_off = compare(&of([2.9, 257.9]), &eager, &truth, Dtype::Bf16);
    assert!(both_off.failure.expect("rms is above").starts_with("rms error"));
}

#[test]
fn specials_lie_where_those_of_eager_do() {
    let of = |lanes: [f64; 3]| Value::floats(&[3], lanes);
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let eager = of([nan, inf, 1.0]);
    let truth = of([nan, 1e300, 1.0]);
    assert!(compare(&of([nan, inf, 1.0]), &eager, &truth, Dtype::F32).passes());
    for wrong in [[nan, inf, nan], [0.0, inf, 1.0], [nan, -inf, 1.0], [nan, 1e38, 1.0], [nan, nan, 1.0]] {
        let comparison = compare(&of(wrong), &eager, &truth, Dtype::F32);
        assert!(!comparison.passes(), "{wrong:?}");
        assert!(comparison.worst.is_some());
    }
    // The truth overflows where the roundings underflowed first: eager decides.
    let comparison = compare(&of([0.0; 3]), &of([0.0; 3]), &of([nan, inf, 0.0]), Dtype::F32);
    assert!(comparison.passes());
}

#[test]
fn integers_and_bools_are_judged_exactly() {
    let of = |lanes: [i64; 2]| Value::ints(&[2], lanes);
    assert!(compare(&of([1, 2]), &of([1, 2]), &of([1, 2]), Dtype::I64).passes());
    let off = compare(&of([1, i64::MAX]), &of([1, i64::MAX - 1]), &of([1, 2]), Dtype::I64);
    assert!(!off.passes());
    assert_eq!(off.worst.expect("an element").position.as_slice(), [1]);
    let bools = |lane| Value::bools(&[1], [lane]);
    assert!(!compare(&bools(true), &bools(false), &bools(false), Dtype::Bool).passes());
    assert!(!compare(&bools(true), &of([1, 1]), &of([1, 1]), Dtype::I64).passes());
}

#[test]
fn random_graphs_evaluate_to_numbers_near_their_truth() {
    for seed in 0..150 {
        let graph = random_graph(seed, &RandomGraphOptions::default());
        let inputs = random_inputs(&graph, seed);
        let eager = evaluate(&graph, &inputs, Rounding::PerOp).expect("evaluates");
        let truth = evaluate(&graph, &inputs, Rounding::None).expect("evaluates");
        for ((output, eager), truth) in graph.outputs.iter().zip(eager).zip(truth) {
            let (eager, truth) = (eager.expect("a value"), truth.expect("a value"));
            let ty = graph.ty(output.value.expect("a value"));
            assert!(eager.is_of(ty) && truth.is_of(ty), "{graph}");
            if let Lanes::Float(lanes) = &truth.lanes {
                assert!(lanes.iter().all(|lane| lane.abs() <= 1000.0), "{graph}");
                let comparison = compare(&eager, &eager, &truth, ty.dtype);
                assert!(comparison.passes());
                let scale = lanes.iter().fold(1.0, |scale: f64, lane| scale.max(lane.abs()));
                assert!(comparison.max_abs_error <= 0.3 * scale, "{comparison:?} {graph}");
            }
        }
    }
}
