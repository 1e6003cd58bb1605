//! docs/numerics.md against what is computed: its accuracy table is measured here.

use std::fmt::Write as _;
use std::path::PathBuf;

use ir::ops::{
    Cos, Div, Erf, Exp, Gelu, GeluTanh, LayerNorm, Log, LogSoftmax, Op, Reciprocal, ReduceMean, ReduceSum, RmsNorm,
    Rsqrt, Sigmoid, Silu, Sin, Softmax, Softplus, Sqrt, Tanh,
};
use ir::reference::{Rounding, Value, round_float};
use ir::target::TargetName;
use ir::types::F32Bits;
use ir::{Dtype, TensorType};

use crate::numbers::{SplitMix, every_bf16, every_f16, f32_edges, floats, graph_of, reference, run, ulp, ulps};

const BEGIN: &str = "<!-- accuracy: begin -->\n";
const END: &str = "<!-- accuracy: end -->\n";

fn document_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/numerics.md")
}

fn parts(document: &str) -> (&str, &str, &str) {
    let (before, rest) = document.split_once(BEGIN).expect("the table begins with its mark");
    let (table, after) = rest.split_once(END).expect("the table ends with its mark");
    (before, table, after)
}

#[test]
fn the_accuracy_table_is_current() {
    let document = std::fs::read_to_string(document_path()).expect("docs/numerics.md lies in the repository");
    let (measured, command) = (accuracy_table(), "`cargo test --test acceptance numerics -- --ignored`");
    assert!(parts(&document).1 == measured, "the table of docs/numerics.md is stale: run {command}\n{measured}");
}

/// Not a test: writes the table.
#[test]
#[ignore = "writes docs/numerics.md"]
fn write_the_accuracy_table() {
    let document = std::fs::read_to_string(document_path()).expect("docs/numerics.md lies in the repository");
    let (before, _, after) = parts(&document);
    let written = format!("{before}{BEGIN}{}{END}{after}", accuracy_table());
    std::fs::write(document_path(), written).expect("docs/numerics.md is writable");
}

/// The largest error, and the input that has it.
#[derive(Default)]
struct Worst {
    error: f64,
    input: f64,
}

impl Worst {
    fn note(&mut self, error: f64, input: f64) {
        if error > self.error && error.is_finite() {
            *self = Worst { error, input };
        }
    }
}

fn accuracy_table() -> String {
    let unary: [(Op, &str); 14] = [
        (Exp.into(), ""),
        (Log.into(), ""),
        (Sqrt.into(), ""),
        (Rsqrt.into(), ""),
        (Reciprocal.into(), ""),
        (Sin.into(), "of 1, up to the limit"),
        (Cos.into(), "of 1, up to the limit"),
        (Tanh.into(), ""),
        (Sigmoid.into(), ""),
        (Erf.into(), ""),
        (Gelu.into(), ""),
        (GeluTanh.into(), ""),
        (Silu.into(), ""),
        (Softplus.into(), ""),
    ];
    let mut table = String::from("| op | f32 | at | bf16 | f16 | units |\n|---|---|---|---|---|---|\n");
    for (op, units) in unary {
        let of = |dtype, numbers: Vec<f64>| unary_error(&op, dtype, &numbers);
        let [f32, bf16, f16] =
            [of(Dtype::F32, f32_edges()), of(Dtype::Bf16, every_bf16()), of(Dtype::F16, every_f16())];
        let units = if units.is_empty() { "of the result" } else { units };
        line(&mut table, &format!("`{}`", op.name()), &f32, &format!("{:e}", f32.input), [&bf16, &f16], units);
    }
    let [f32, bf16, f16] = [(Dtype::F32, f32_edges()), (Dtype::Bf16, every_bf16()), (Dtype::F16, every_f16())]
        .map(|(dtype, numbers)| quotient_error(dtype, &numbers));
    line(&mut table, "`div`", &f32, &format!("divisor {:e}", f32.input), [&bf16, &f16], "of the result");
    let eps = F32Bits::new(1e-6);
    let axes: ir::types::Axes = std::iter::once(1).collect();
    let rows: [(Op, usize); 6] = [
        (ReduceSum { axes: axes.clone() }.into(), 1),
        (ReduceMean { axes }.into(), 1),
        (Softmax.into(), 1),
        (LogSoftmax.into(), 1),
        (RmsNorm { eps }.into(), 2),
        (LayerNorm { eps }.into(), 3),
    ];
    for (op, n_operands) in rows {
        let [f32, bf16, f16] = [Dtype::F32, Dtype::Bf16, Dtype::F16].map(|dtype| row_error(&op, n_operands, dtype));
        let name = format!("`{}`, rows of 1,000", op.name());
        line(&mut table, &name, &f32, &format!("row {}", f32.input), [&bf16, &f16], "of the row's largest result");
    }
    table
}

fn line(table: &mut String, name: &str, f32: &Worst, at: &str, [bf16, f16]: [&Worst; 2], units: &str) {
    let numbers = [f32, bf16, f16].map(|worst| format!("{:.2}", worst.error));
    let [f32, bf16, f16] = numbers;
    writeln!(table, "| {name} | {f32} | {at} | {bf16} | {f16} | {units} |").expect("strings take all text");
}

/// Of results that are numbers; where both are not, `ranges.rs` compares them.
fn unary_error(op: &Op, dtype: Dtype, numbers: &[f64]) -> Worst {
    let shape = [numbers.len() / 128, 128];
    let graph = graph_of(op.clone(), &[TensorType::new(dtype, shape)]);
    let inputs = [Value::floats(&shape, numbers.to_vec())];
    let truth = reference(&graph, &inputs, Rounding::None);
    let results = run(&graph, &inputs, TargetName::Trn2).expect("every number has a result");
    let is_sine = matches!(op, Op::Sin(_) | Op::Cos(_));
    let mut worst = Worst::default();
    for ((&input, &result), &truth) in numbers.iter().zip(floats(&results[0])).zip(floats(&truth)) {
        if is_sine {
            let is_covered = input.abs() <= f64::from(codegen::SINE_LIMIT);
            worst.note(if is_covered { (result - truth).abs() / ulp(1.0, dtype) } else { 0.0 }, input);
        } else {
            worst.note(ulps(result, truth, dtype), input);
        }
    }
    worst
}

fn quotient_error(dtype: Dtype, numbers: &[f64]) -> Worst {
    let n = numbers.len();
    let shape = [n / 128, 128];
    let ty = TensorType::new(dtype, shape);
    let graph = graph_of(Div, &[ty.clone(), ty]);
    let mut worst = Worst::default();
    for stride in [7, 77, 4099, 12_345] {
        let divisors: Vec<f64> = (0..n).map(|at| numbers[(at * stride + 31 * stride) % n]).collect();
        let inputs = [Value::floats(&shape, numbers.to_vec()), Value::floats(&shape, divisors.clone())];
        let results = run(&graph, &inputs, TargetName::Trn2).expect("every number has a result");
        for ((&dividend, &divisor), &result) in numbers.iter().zip(&divisors).zip(floats(&results[0])) {
            worst.note(ulps(result, dividend / divisor, dtype), divisor);
        }
    }
    worst
}

/// Of 256 rows of 1,000 numbers in -4..4.
fn row_error(op: &Op, n_operands: usize, dtype: Dtype) -> Worst {
    let (n_rows, length) = (256, 1000);
    let mut random = SplitMix(5);
    let mut tensor = |shape: &[usize]| {
        let n_elements: usize = shape.iter().product();
        let unit = |bits: u64| (bits >> 40) as f64 / (1u64 << 23) as f64 - 1.0;
        let numbers: Vec<f64> = (0..n_elements).map(|_| round_float(dtype, 4.0 * unit(random.next()))).collect();
        Value::floats(shape, numbers)
    };
    let mut inputs = vec![tensor(&[n_rows, length])];
    inputs.extend((1..n_operands).map(|_| tensor(&[length])));
    let types: Vec<TensorType> =
        inputs.iter().map(|value| TensorType::new(dtype, value.shape.iter().copied())).collect();
    let graph = graph_of(op.clone(), &types);
    let truth = reference(&graph, &inputs, Rounding::None);
    let results = run(&graph, &inputs, TargetName::Trn2).expect("every number has a result");
    let width = floats(&truth).len() / n_rows;
    let mut worst = Worst::default();
    for (row, (result, truth)) in floats(&results[0]).chunks(width).zip(floats(&truth).chunks(width)).enumerate() {
        let largest = truth.iter().fold(0f64, |largest, number| largest.max(number.abs()));
        let error = result.iter().zip(truth).map(|(result, truth)| (result - truth).abs()).fold(0.0, f64::max);
        worst.note(error / ulp(largest, dtype), row as f64);
    }
    worst
}
