//! Gradients of attention against differences of its own forward, in f64; then on every chip.

use compiler::execute::Executable;
use compiler::import::parse_json;
use compiler::pipeline::{Options, Unwatched, compile};
use compiler::samples::Samples;
use compiler::verdict::Standard;
use ir::reference::{Lanes, Rounding, Value, evaluate};
use ir::target::TargetName;

const QUERY: [usize; 4] = [1, 4, 5, 6];
const KEY: [usize; 4] = [1, 2, 7, 6];
const ROWS: [usize; 3] = [1, 4, 5];
const MASK: [usize; 2] = [5, 7];

fn tensor(shape: &[usize]) -> String {
    let strides: Vec<usize> = (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect();
    format!(r#"{{"shape":{shape:?},"stride":{strides:?},"dtype":"float32","device":"cpu"}}"#)
}

/// One call of several results, all of them outputs. The last input is the mask.
fn document(target: &str, inputs: &[&[usize]], causal: bool, results: &[&[usize]]) -> String {
    let declared: Vec<String> = inputs
        .iter()
        .enumerate()
        .map(|(id, shape)| format!(r#"{{"id":{id},"name":"in{id}","role":"input","out":{}}}"#, tensor(shape)))
        .collect();
    let (mask, id) = (inputs.len() - 1, inputs.len());
    let arguments: Vec<String> = (0..mask).map(|id| format!(r#"{{"ref":{id}}}"#)).collect();
    let types: Vec<String> = results.iter().map(|shape| tensor(shape)).collect();
    let mut nodes = vec![format!(
        r#"{{"id":{id},"name":"n","target":"{target}","args":[{},0.0,{causal}],"kwargs":{{"attn_mask":{{"ref":{mask}}},"scale":0.4}},"out":{{"tuple":[{}]}}}}"#,
        arguments.join(","),
        types.join(",")
    )];
    let mut outputs = Vec::new();
    for (position, ty) in types.iter().enumerate() {
        let own = id + 1 + position;
        nodes.push(format!(
            r#"{{"id":{own},"name":"n{own}","target":"getitem","args":[{{"ref":{id}}},{position}],"kwargs":{{}},"out":{ty}}}"#
        ));
        outputs.push(format!(r#"{{"ref":{own},"desc":""}}"#));
    }
    format!(
        r#"{{"format":"fxg-json/1","name":"attend","kind":"inference","source":{{}},"inputs":[{}],"nodes":[{}],"outputs":[{}],"constants":{{}}}}"#,
        declared.join(","),
        nodes.join(","),
        outputs.join(",")
    )
}

fn numbers(shape: &[usize], factor: usize) -> Value {
    let count: usize = shape.iter().product();
    Value::floats(shape, (0..count).map(|at| ((at * factor + 5) % 61) as f64 / 32.0 - 0.9).collect::<Vec<f64>>())
}

fn floats(value: &Value) -> &[f64] {
    let Lanes::Float(lanes) = &value.lanes else { panic!("floats are expected") };
    lanes
}

fn values(text: &str, inputs: &[Value]) -> Vec<Value> {
    let graph = parse_json(text.as_bytes()).unwrap_or_else(|error| panic!("{error:?}\n{text}"));
    let results = evaluate(&graph, inputs, Rounding::None).expect("the graph has values");
    results.into_iter().map(|value| value.expect("an output")).collect()
}

#[test]
fn gradients_are_the_differences_of_the_forward() {
    const STEP: f64 = 1e-5;
    let op = "aten._scaled_dot_product_flash_attention_for_cpu";
    for causal in [false, true] {
        let forward = document(&format!("{op}.default"), &[&QUERY, &KEY, &KEY, &MASK], causal, &[&QUERY, &ROWS]);
        let shapes: [&[usize]; 7] = [&QUERY, &QUERY, &KEY, &KEY, &QUERY, &ROWS, &MASK];
        let backward = document(&format!("{op}_backward.default"), &shapes, causal, &[&QUERY, &KEY, &KEY]);
        let mut mask = numbers(&MASK, 29);
        let Lanes::Float(lanes) = &mut mask.lanes else { panic!("floats are expected") };
        // The third row attends to nothing.
        lanes[14..21].fill(f64::NEG_INFINITY);
        let operands = [numbers(&QUERY, 17), numbers(&KEY, 23), numbers(&KEY, 41), mask];
        let gradient = numbers(&QUERY, 13);
        let loss = |operands: &[Value]| -> f64 {
            let output = &values(&forward, operands)[0];
            floats(output).iter().zip(floats(&gradient)).map(|(x, y)| x * y).sum()
        };
        let attended = values(&forward, &operands);
        let [query, key, value, mask] = operands.clone();
        let inputs = [gradient.clone(), query, key, value, attended[0].clone(), attended[1].clone(), mask];
        let gradients = values(&backward, &inputs);
        for (operand, gradient) in gradients.iter().enumerate() {
            for at in (0..floats(gradient).len()).step_by(3) {
                let moved = |step: f64| {
                    let mut moved = operands.to_vec();
                    let Lanes::Float(lanes) = &mut moved[operand].lanes else { panic!("floats are expected") };
                    lanes[at] += step;
                    loss(&moved)
                };
                let difference = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                let found = floats(gradient)[at];
                assert!((difference - found).abs() < 1e-8, "{operand}, {at}: {found} and {difference}");
            }
        }
        on_every_chip(&backward, &inputs);
    }
}

fn on_every_chip(text: &str, inputs: &[Value]) {
    let graph = parse_json(text.as_bytes()).expect("the graph imports");
    let inputs = inputs.iter().map(|input| input.clone().rounded(ir::Dtype::F32)).collect();
    let samples = Samples { inputs, outputs: None, recorded_in: None };
    let standard = Standard::of(&graph, &samples).expect("the graph evaluates");
    for target in TargetName::ALL {
        let options = Options { target, ..Options::default() };
        let compiled = compile(&graph, &options, &mut Unwatched).unwrap_or_else(|error| panic!("{target}: {error}"));
        let executable = Executable::load(&compiled.neff.expect("a NEFF")).expect("the NEFF loads");
        let outputs = executable.run_values(&samples.inputs).expect("it runs");
        assert_eq!(standard.judge(&graph, &outputs).failure(), None, "{target}");
    }
}
