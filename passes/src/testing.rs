//! What tests of this crate share: small graphs built in code, random inputs, evaluation.

use ir::graph::InputRole;
use ir::ops::Full;
use ir::reference::{Lanes, Value};
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

/// Whether results are rounded to their element types.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Rounding {
    PerOp,
    /// Float casts and roundings are left out: the truth.
    None,
}

/// The outputs of a graph.
pub(crate) fn evaluate(graph: &Graph, inputs: &[Value], rounding: Rounding) -> Vec<Value> {
    let mut values: Vec<Option<Value>> = vec![None; graph.n_values()];
    for (input, value) in graph.inputs.iter().zip(inputs) {
        values[input.value.index()] = Some(value.clone());
    }
    for (_, node) in graph.nodes() {
        let operands: Vec<&Value> =
            node.operands.iter().map(|operand| values[operand.index()].as_ref().expect("defined before use")).collect();
        let types: Vec<TensorType> = node.results.iter().map(|&result| graph.ty(result).clone()).collect();
        let results = node.op.eval(&operands, &types).expect("evaluates");
        for ((result, &id), ty) in results.into_iter().zip(&node.results).zip(&types) {
            let keep = rounding == Rounding::None && ty.dtype.is_float();
            values[id.index()] = Some(if keep { result } else { result.rounded(ty.dtype) });
        }
    }
    let value_of = |id: ValueId| values[id.index()].clone().expect("outputs are defined");
    graph.outputs.iter().filter_map(|output| output.value).map(value_of).collect()
}

/// Seeded inputs of the graph: floats around 0, integers from 0 to 3.
pub(crate) fn random_inputs(graph: &Graph, seed: u64) -> Vec<Value> {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) >> 11
    };
    let unit = 1.0 / (1u64 << 53) as f64;
    let mut tensor = |ty: &TensorType| {
        let n_elements = ty.n_elements();
        let lanes = if ty.dtype.is_float() {
            Lanes::Float((0..n_elements).map(|_| (next() as f64 * unit - 0.5) * 4.0).collect())
        } else if ty.dtype.is_integer() {
            Lanes::Int((0..n_elements).map(|_| (next() % 4) as i64).collect())
        } else {
            Lanes::Bool((0..n_elements).map(|_| next() % 2 == 0).collect())
        };
        Value { shape: ty.shape.clone(), lanes }.rounded(ty.dtype)
    };
    graph.inputs.iter().map(|input| tensor(graph.ty(input.value))).collect()
}

/// Asserts that two graphs compute the same: bit for bit, or to a relative tolerance.
pub(crate) fn assert_same_values(before: &Graph, after: &Graph, rounding: Rounding, tolerance: f64) {
    for seed in [1, 2] {
        let inputs = random_inputs(before, seed);
        let (expected, found) = (evaluate(before, &inputs, rounding), evaluate(after, &inputs, rounding));
        assert_eq!(expected.len(), found.len());
        for (expected, found) in expected.iter().zip(&found) {
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

/// The ops of a graph in order, as one line.
pub(crate) fn op_names(graph: &Graph) -> String {
    let names: Vec<&str> = graph.nodes().map(|(_, node)| node.op.name()).collect();
    names.join(" ")
}
