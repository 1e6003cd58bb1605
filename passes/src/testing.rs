//! What tests of this crate share: small graphs built in code, and comparing what graphs compute.

use ir::graph::InputRole;
use ir::ops::Full;
use ir::random_graph::random_inputs;
use ir::reference::{Lanes, compare, evaluate};
use ir::{Dtype, Graph, Op, TensorType, ValueId};

/// A graph being drawn.
pub(crate) struct Sketch {
    graph: Graph,
}

impl Sketch {
    pub fn new() -> Self {
        Sketch { graph: Graph::new("sketch") }
    }

    pub fn input(&mut self, dtype: Dtype, shape: &[usize]) -> ValueId {
        let name = format!("in{}", self.graph.inputs.len());
        self.graph.push_input(name, TensorType::new(dtype, shape.iter().copied()), InputRole::Dynamic)
    }

    pub fn op(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> ValueId {
        let op = op.into();
        let line = format!("model.py:{}", self.graph.n_nodes() + 1);
        let location = ir::graph::Location { node: op.name().to_owned(), line, ..Default::default() };
        let location = self.graph.push_location(location);
        self.graph.push_value_of(op, operands, &[location]).expect("the sketch is well typed")
    }

    pub fn number(&mut self, value: f64, dtype: Dtype) -> ValueId {
        self.op(Full::scalar(value, dtype), &[])
    }

    pub fn finish(mut self, outputs: &[ValueId]) -> Graph {
        for &output in outputs {
            self.graph.push_output(output);
        }
        self.graph
    }
}

/// Asserts that two graphs compute the same: bit for bit, or to a relative tolerance.
pub(crate) fn assert_same_values(before: &Graph, after: &Graph, rounding: Rounding, tolerance: f64) {
    for seed in [1, 2] {
        let inputs = random_inputs(before, seed);
        let outputs = |graph: &Graph| evaluate(graph, &inputs, rounding).expect("evaluates");
        let (expected, found) = (outputs(before), outputs(after));
        assert_eq!(expected.len(), found.len());
        for (expected, found) in expected.iter().flatten().zip(found.iter().flatten()) {
            assert_eq!(expected.shape, found.shape);
            match (&expected.lanes, &found.lanes) {
                (Lanes::Float(expected), Lanes::Float(found)) => {
                    let scale =
                        expected.iter().filter(|lane| lane.is_finite()).fold(0.0f64, |max, lane| max.max(lane.abs()));
                    for (position, (&want, &got)) in expected.iter().zip(found).enumerate() {
                        let close = want.to_bits() == got.to_bits()
                            || (want.is_nan() && got.is_nan())
                            || (want - got).abs() <= tolerance * scale;
                        assert!(close, "element {position}: {got} instead of {want}");
                    }
                }
                (expected, found) => assert_eq!(expected, found),
            }
        }
    }
}

/// Asserts that what rewriting does to the error is within what another order of roundings does:
/// on outputs of a few elements eager is sometimes near the truth by luck.
pub(crate) fn assert_as_exact(before: &Graph, after: &Graph) {
    for seed in [1, 2] {
        let inputs = random_inputs(before, seed);
        let outputs = |graph: &Graph, rounding| evaluate(graph, &inputs, rounding).expect("evaluates");
        let (eager, truth) = (outputs(before, Rounding::PerOp), outputs(before, Rounding::None));
        let found = outputs(after, Rounding::PerOp);
        for (position, output) in before.outputs.iter().enumerate() {
            let Some(value) = output.value else { continue };
            let of = |values: &[Option<ir::reference::Value>]| values[position].clone().expect("outputs are defined");
            let (eager, truth, dtype) = (of(&eager), of(&truth), before.ty(value).dtype);
            let verdict = compare(&of(&found), &eager, &truth, dtype);
            let Lanes::Float(truth) = &truth.lanes else {
                assert!(verdict.passes(), "output {position}: {verdict:?}");
                continue;
            };
            let largest = truth.iter().fold(0.0f64, |largest, lane| largest.max(lane.abs()));
            let allowed = 4.0 * verdict.eager_abs_error + 2.0 * dtype.epsilon().expect("a float") * largest;
            assert!(verdict.max_abs_error <= allowed, "output {position}: {verdict:?}");
        }
    }
}

/// The ops of a graph in order, as one line.
pub(crate) fn op_names(graph: &Graph) -> String {
    let names: Vec<&str> = graph.nodes().map(|(_, node)| node.op.name()).collect();
    names.join(" ")
}

pub(crate) use ir::reference::Rounding;
