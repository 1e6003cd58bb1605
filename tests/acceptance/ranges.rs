//! No lowered op gives an activation function an input outside its valid range, whatever the values:
//! zeros, denormal and huge numbers, infinities and NaN. The simulator stops at the first such input.

use std::collections::BTreeSet;

use ir::ops::{
    Cos, Div, Erf, Exp, Full, Gelu, GeluTanh, LayerNorm, Log, LogSoftmax, Op, Reciprocal, Relu, RmsNorm, Rsqrt,
    Sigmoid, Sign, Silu, Sin, Softmax, Softplus, Sqrt, Tanh,
};
use ir::program::{ActivationFunction, InstructionKind};
use ir::reference::{Rounding, Value, round_float};
use ir::target::TargetName;
use ir::target::activation::ValidRange;
use ir::types::F32Bits;
use ir::{Dtype, Graph, TensorType};
use passes::Numerics;

use crate::numbers::{SplitMix, every_bf16, every_f16, f32_edges, floats, graph_of, reference, run, ulps};
use crate::support::{GRAPHS, cases, compiled, options, sample_graph};

const N_COLUMNS: usize = 128;

/// Of f32 sines: a little over half a unit in the last place of 1. Near multiples of pi that may be more
/// units of a result, which are small there.
const SINE_ERROR: f64 = 0.6 / (1 << 23) as f64;

/// What README and docs/numerics.md name: results that are another than eager's on purpose.
fn is_documented(op: &Op, input: f64, result: f64) -> bool {
    let limit = f64::from(codegen::SINE_LIMIT);
    match op {
        Op::Sin(_) | Op::Cos(_) => input.is_finite() && input.abs() > limit && result.abs() <= 1.0,
        Op::Rsqrt(_) => input == 0.0 && input.is_sign_negative() && result == f64::INFINITY,
        Op::Gelu(_) | Op::GeluTanh(_) | Op::Silu(_) => input == f64::NEG_INFINITY && result == 0.0,
        _ => false,
    }
}

#[test]
fn functions_take_every_number() {
    let ops: [Op; 16] = [
        Sin.into(),
        Cos.into(),
        Log.into(),
        Sqrt.into(),
        Rsqrt.into(),
        Reciprocal.into(),
        Exp.into(),
        Tanh.into(),
        Sigmoid.into(),
        Erf.into(),
        Gelu.into(),
        GeluTanh.into(),
        Silu.into(),
        Softplus.into(),
        Sign.into(),
        Relu.into(),
    ];
    let mut faults = Vec::new();
    for (position, op) in ops.into_iter().enumerate() {
        for (dtype, numbers) in [(Dtype::Bf16, every_bf16()), (Dtype::F16, every_f16()), (Dtype::F32, f32_edges())] {
            let shape = [numbers.len() / N_COLUMNS, N_COLUMNS];
            let graph = graph_of(op.clone(), &[TensorType::new(dtype, shape)]);
            let inputs = [Value::floats(&shape, numbers.clone())];
            let eager = reference(&graph, &inputs, Rounding::PerOp);
            let truth = reference(&graph, &inputs, Rounding::None);
            let results = match run(&graph, &inputs, TargetName::ALL[position % 3]) {
                Ok(results) => results,
                Err(error) => {
                    faults.push(format!("{} {dtype}: {error}", op.name()));
                    continue;
                }
            };
            let points = numbers.iter().zip(floats(&results[0])).zip(floats(&eager).iter().zip(floats(&truth)));
            for ((&input, &result), (&eager, &truth)) in points {
                let mut is_near = ulps(result, eager, dtype).min(ulps(result, truth, dtype)) <= 1.0;
                if dtype == Dtype::F32 && matches!(op, Op::Sin(_) | Op::Cos(_)) {
                    is_near |= (result - truth).abs() <= SINE_ERROR;
                }
                let has_sign = result != 0.0 || eager != 0.0 || result.is_sign_negative() == eager.is_sign_negative();
                let is_root_of_zero = matches!(op, Op::Sqrt(_)) && input == 0.0;
                if !(is_near && (has_sign || is_root_of_zero) || is_documented(&op, input, result)) {
                    faults.push(format!("{} {dtype} of {input:e}: {result:e}, eager {eager:e}", op.name()));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults[..faults.len().min(20)].join("\n"));
}

#[test]
fn sines_of_large_numbers_are_right_up_to_the_limit() {
    let mut random = SplitMix(3);
    let mut numbers: Vec<f64> = Vec::new();
    while numbers.len() < 1 << 16 {
        let scale = 2f64.powi((random.next() % 15) as i32 + 16);
        let number = f64::from(((random.next() >> 11) as f64 / (1u64 << 53) as f64 * scale) as f32);
        if number <= f64::from(codegen::SINE_LIMIT) {
            numbers.extend([number, -number]);
        }
    }
    let shape = [numbers.len() / N_COLUMNS, N_COLUMNS];
    for op in [Op::from(Sin), Cos.into()] {
        let graph = graph_of(op.clone(), &[TensorType::new(Dtype::F32, shape)]);
        let inputs = [Value::floats(&shape, numbers.clone())];
        let truth = reference(&graph, &inputs, Rounding::None);
        let results = run(&graph, &inputs, TargetName::Trn2).unwrap();
        for ((input, result), truth) in numbers.iter().zip(floats(&results[0])).zip(floats(&truth)) {
            assert!((result - truth).abs() <= SINE_ERROR, "{} of {input:e}: {result:e}, {truth:e}", op.name());
        }
    }
}

#[test]
fn sines_beyond_the_limit_are_those_of_the_limit() {
    let limit = f64::from(codegen::SINE_LIMIT);
    let numbers = vec![limit, -limit, 2e9, -2e9, f64::from(f32::MAX), f64::from(f32::MIN)];
    let graph = |op: Op| graph_of(op, &[TensorType::new(Dtype::F32, [6])]);
    let inputs = [Value::floats(&[6], numbers)];
    let sines = run(&graph(Sin.into()), &inputs, TargetName::Trn2).unwrap();
    let cosines = run(&graph(Cos.into()), &inputs, TargetName::Trn2).unwrap();
    let (sine, cosine) = (floats(&sines[0])[0], floats(&cosines[0])[0]);
    assert!((sine - limit.sin()).abs() < 1e-7 && (cosine - limit.cos()).abs() < 1e-7);
    assert_eq!(floats(&sines[0]), [sine, -sine, sine, -sine, sine, -sine]);
    assert_eq!(floats(&cosines[0]), [cosine; 6]);
}

#[test]
fn quotients_of_numbers_of_every_size() {
    let mut worst = [0f64; 2];
    for (kind, (dtype, numbers)) in [(Dtype::Bf16, every_bf16()), (Dtype::F32, f32_edges())].into_iter().enumerate() {
        let n = numbers.len();
        let shape = [n / N_COLUMNS, N_COLUMNS];
        let ty = TensorType::new(dtype, shape);
        let graph = graph_of(Div, &[ty.clone(), ty]);
        for stride in [1, 7, 77, 4099, 12_345] {
            let divisors: Vec<f64> = (0..n).map(|at| numbers[(at * stride + 31 * stride) % n]).collect();
            let inputs = [Value::floats(&shape, numbers.clone()), Value::floats(&shape, divisors.clone())];
            let results = run(&graph, &inputs, TargetName::Trn2).unwrap();
            for ((&dividend, &divisor), &result) in numbers.iter().zip(&divisors).zip(floats(&results[0])) {
                let distance = ulps(result, dividend / divisor, dtype);
                // bf16 parts of what is close to the largest f32 are infinite: no correction.
                let is_huge = dividend.abs().max(divisor.abs()) > f64::from(f32::MAX) * 0.996;
                let limit = if is_huge { 2.0 } else { 1.0 };
                assert!(distance <= limit, "{dividend:e} / {divisor:e} = {result:e}: off by {distance} ({dtype})");
                worst[kind] = worst[kind].max(distance);
            }
        }
    }
    assert!(worst[0] <= 0.5 && worst[1] > 0.5, "bf16 is rounded right, f32 nearly: {worst:?}");
}

#[test]
fn quotients_by_constants() {
    let numbers = f32_edges();
    let shape = [numbers.len() / N_COLUMNS, N_COLUMNS];
    for divisor in [3.0, 1.7e10, 0.1, 1e-30, 1e-40, -4.0] {
        let divisor = round_float(Dtype::F32, divisor);
        let mut graph = Graph::new("g");
        let x = graph.push_input("x", TensorType::new(Dtype::F32, shape), ir::graph::InputRole::Dynamic);
        let constant = graph.push_value_of(Full::scalar(divisor, Dtype::F32).into(), &[], &[]).expect("a constant");
        let quotient = graph.push_value_of(Div.into(), &[x, constant], &[]).expect("f32 by f32");
        graph.push_output(quotient);
        let results = run(&graph, &[Value::floats(&shape, numbers.clone())], TargetName::Trn2).unwrap();
        for (&dividend, &result) in numbers.iter().zip(floats(&results[0])) {
            let exact = dividend / divisor;
            // A rule may have made it a product with the rounded reciprocal.
            let is_near = ulps(result, exact, Dtype::F32) <= 1.5 || (result - exact).abs() <= 8.0 * 2f64.powi(-149);
            assert!(is_near, "{dividend:e} / {divisor:e} = {result:e}, not {exact:e}");
        }
    }
}

/// Rows whose numbers are all of one size, for all sizes; with one larger or smaller than the others;
/// with zeros, infinities and NaN.
fn rows(dtype: Dtype, length: usize) -> Vec<Vec<f64>> {
    let mut random = SplitMix(11);
    let mut unit = move || (random.next() >> 40) as f64 / (1u64 << 23) as f64 - 1.0;
    let mut rows: Vec<Vec<f64>> = Vec::new();
    for exponent in -150..=127 {
        rows.push((0..length).map(|_| unit() * 2f64.powi(exponent)).collect());
        let mut one: Vec<f64> = (0..length).map(|_| unit()).collect();
        one[3] = 2f64.powi(exponent);
        rows.push(one);
    }
    let infinity = f64::INFINITY;
    for special in [0.0, -0.0, infinity, -infinity, f64::NAN, 3.4e38, -3.4e38, 1e-45, 1e-39, 1e15, 2e19] {
        rows.push(vec![special; length]);
        for base in [0.0, 1.0, 1e20, 1e-30] {
            let mut one = vec![base; length];
            one[length / 2] = special;
            rows.push(one.clone());
            one[1] = -special;
            rows.push(one);
        }
    }
    rows.iter().map(|row| row.iter().map(|&number| round_float(dtype, number)).collect()).collect()
}

/// Softmax and the norms over one row per partition, several rows per partition and long rows.
fn normalizations(dtype: Dtype, shape: &[usize]) -> Vec<(&'static str, Graph)> {
    let data = TensorType::new(dtype, shape.iter().copied());
    let affine = TensorType::new(dtype, [shape[shape.len() - 1]]);
    let norm = |eps: f32, n_affine: usize| -> (Op, Op, Vec<TensorType>) {
        let types = std::iter::once(data.clone()).chain(std::iter::repeat_n(affine.clone(), n_affine)).collect();
        (RmsNorm { eps: F32Bits::new(eps) }.into(), LayerNorm { eps: F32Bits::new(eps) }.into(), types)
    };
    let mut graphs = vec![
        ("softmax", graph_of(Softmax, std::slice::from_ref(&data))),
        ("log_softmax", graph_of(LogSoftmax, std::slice::from_ref(&data))),
    ];
    graphs.push(("layer_norm", graph_of(norm(1e-6, 2).1, &norm(1e-6, 2).2)));
    for eps in [1e-6, 0.0] {
        graphs.push(("rms_norm", graph_of(norm(eps, 0).0, &norm(eps, 0).2)));
        graphs.push(("rms_norm with gamma", graph_of(norm(eps, 1).0, &norm(eps, 1).2)));
    }
    graphs
}

#[test]
fn norms_and_softmax_take_rows_of_every_size() {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        for length in [40, 9000] {
            let rows = if length == 40 { rows(dtype, length) } else { rows(dtype, length).split_off(540) };
            let n_rows = rows.len() / 2 * 2;
            let numbers = rows[..n_rows].concat();
            for shape in [vec![n_rows, length], vec![2, n_rows / 2, length]] {
                for (name, graph) in normalizations(dtype, &shape) {
                    let mut inputs = vec![Value::floats(&shape, numbers.clone())];
                    let ones = Value::floats(&[length], vec![1.0; length]);
                    inputs.extend(std::iter::repeat_n(ones, graph.inputs.len() - 1));
                    let result = run(&graph, &inputs, TargetName::Trn2);
                    let uses_table = dtype != Dtype::F32 && name == "rms_norm with gamma" && length == 40;
                    match result {
                        Ok(results) => finite_where_possible(name, dtype, &numbers, floats(&results[0]), length),
                        // With an epsilon of 0 the table is not used.
                        Err(error) => assert!(uses_table && error.contains("Rsqrt"), "{name} {dtype}: {error}"),
                    }
                }
            }
        }
    }
}

/// Rows of moderate numbers give numbers.
fn finite_where_possible(name: &str, dtype: Dtype, numbers: &[f64], results: &[f64], length: usize) {
    for (row, result) in numbers.chunks(length).zip(results.chunks(length)) {
        let is_moderate = row.iter().all(|number| (1e-15..2e4).contains(&number.abs()));
        let is_finite = result.iter().all(|number| number.is_finite());
        assert!(!is_moderate || is_finite, "{name} {dtype}: {:?} gives {:?}", &row[..4], &result[..4]);
    }
}

#[test]
fn the_table_of_rms_norm_gives_an_error_outside_its_range() {
    let graph = |eps: f32| {
        let (data, gamma) = (TensorType::new(Dtype::Bf16, [2, 8]), TensorType::new(Dtype::Bf16, [8]));
        graph_of(RmsNorm { eps: F32Bits::new(eps) }, &[data, gamma])
    };
    let run = |eps: f32, number: f64| {
        let inputs = [Value::floats(&[2, 8], vec![number; 16]), Value::floats(&[8], vec![1.0; 8])];
        run(&graph(eps), &inputs, TargetName::Trn2)
    };
    // The root mean square may be 2^48.5.
    let close = 2f64.powi(48) * 1.375;
    assert!((floats(&run(1e-6, close).unwrap()[0])[0] - 1.0).abs() < 0.01);
    let error = run(1e-6, 2f64.powi(49)).unwrap_err();
    let start = "error[bad-input]: 1 activations have inputs without a valid result: activation-range: Rsqrt has no \
                 valid result for 3.1691265e29 (partition 0, element 0), one of 2 inputs: act[";
    assert!(error.starts_with(start), "{error}");
    // An epsilon below the table's range takes the way without a table.
    assert_eq!(floats(&run(0.0, 2f64.powi(60)).unwrap()[0])[0], 1.0);
}

/// Functions whose table covers a part of the numbers only come from ops that the tests above try.
#[test]
fn functions_with_a_range_come_from_known_ops() {
    let mut found: BTreeSet<(ActivationFunction, String)> = BTreeSet::new();
    let graphs = GRAPHS.into_iter().map(sample_graph).chain(cases().into_iter().map(|(_, graph)| graph));
    for graph in graphs {
        for target in TargetName::ALL {
            let compiled = compiled(&graph, &options(target, Numerics::Approx));
            let names: BTreeSet<&str> = compiled.graph.nodes().map(|(_, node)| node.op.name()).collect();
            for instruction in compiled.program.expect("the pipeline runs to its end").instructions {
                let InstructionKind::Activation { function, .. } = instruction.kind else { continue };
                if ValidRange::of(function) == ValidRange::All {
                    continue;
                }
                let known: &[&str] = match function {
                    // Sums of exponentials lie between 1/2 and the number of keys.
                    ActivationFunction::Log => &["log", "log_softmax", "attention"],
                    ActivationFunction::Sin => &["sin", "cos"],
                    ActivationFunction::Rsqrt => &["rms_norm"],
                    _ => &[],
                };
                let source = known.iter().find(|known| names.contains(**known));
                let source = source.unwrap_or_else(|| panic!("{}: {function:?} in {names:?}", graph.name));
                found.insert((function, (*source).to_owned()));
            }
        }
    }
    let functions: BTreeSet<ActivationFunction> = found.iter().map(|(function, _)| *function).collect();
    assert!(
        functions.contains(&ActivationFunction::Sin) && functions.contains(&ActivationFunction::Rsqrt),
        "{found:?}"
    );
}
