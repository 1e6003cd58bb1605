//! Small graphs of repeated layers and what becomes of them.

use ir::graph::{InputRole, Location};
use ir::ops::{Add, Full, Matmul, Mul, Op, Relu, Sigmoid, Tanh};
use ir::reference::{Rounding, Value, evaluate};
use ir::types::F64Bits;
use ir::{Dtype, Graph, TensorType, ValueId};

use super::{Outline, Source, Target, outline};

const WIDTH: usize = 4;

fn ty() -> TensorType {
    TensorType::new(Dtype::F32, [WIDTH, WIDTH])
}

/// A model in the making.
struct Model {
    graph: Graph,
    stream: ValueId,
    layer: usize,
}

impl Model {
    fn new() -> Model {
        let mut graph = Graph::new("model");
        let stream = graph.push_input("x", ty(), InputRole::Dynamic);
        Model { graph, stream, layer: 0 }
    }

    fn node(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> ValueId {
        let module = format!("layers.{}", self.layer);
        let node = format!("node{}", self.graph.n_nodes());
        let location = self.graph.push_location(Location { node, module, ..Location::default() });
        self.graph.push_value_of(op.into(), operands, &[location]).expect("the types fit")
    }

    fn weight(&mut self) -> ValueId {
        let name = format!("w{}", self.layer);
        self.graph.push_input(name, ty(), InputRole::Static)
    }

    fn scalar(&mut self, value: f64) -> ValueId {
        let op = Full { value: F64Bits(value.to_bits()), dtype: Dtype::F32, shape: [].into_iter().collect() };
        self.node(op, &[])
    }

    /// 25 nodes, and scalars, that read the stream, a weight and `shared`, and add to the stream.
    fn push_layer(&mut self, scale: f64, shared: ValueId) {
        let weight = self.weight();
        let op = Matmul { transpose_lhs: false, transpose_rhs: false, dtype: Dtype::F32 };
        let mut value = self.node(op, &[self.stream, weight]);
        for _ in 0..7 {
            let scale = self.scalar(scale);
            value = self.node(Mul, &[value, scale]);
            value = self.node(Tanh, &[value]);
            value = self.node(Relu, &[value]);
        }
        value = self.node(Mul, &[value, shared]);
        value = self.node(Sigmoid, &[value]);
        self.stream = self.node(Add, &[self.stream, value]);
        self.layer += 1;
    }

    fn finished(mut self) -> Graph {
        self.graph.push_output(self.stream);
        self.graph
    }
}

/// Layers after a value that all of them read and that the input decides.
fn model(scales: &[f64]) -> Graph {
    let mut model = Model::new();
    let shared = model.node(Tanh, &[model.stream]);
    for &scale in scales {
        model.push_layer(scale, shared);
    }
    model.finished()
}

/// The outputs of a graph, call by call.
fn run(outline: &Outline, graph: &Graph, inputs: &[Value]) -> Vec<Option<Value>> {
    let mut between: Vec<Option<Value>> = vec![None; outline.between.len()];
    let mut outputs: Vec<Option<Value>> = vec![None; graph.outputs.len()];
    for call in &outline.calls {
        let given = call.inputs.iter().map(|source| match *source {
            Source::Input(position) => inputs[position as usize].clone(),
            Source::Output(position) => outputs[position as usize].clone().expect("it is stored before"),
            Source::Between(value) => between[value as usize].clone().expect("it is stored before"),
            Source::Constant(_) => panic!("there are no large constants"),
        });
        let given: Vec<Value> = given.collect();
        let results = evaluate(&outline.functions[call.function], &given, Rounding::PerOp).expect("it runs");
        for (result, target) in results.into_iter().zip(&call.outputs) {
            match *target {
                Target::Output(position) => outputs[position as usize] = result,
                Target::Between(value) => between[value as usize] = result,
            }
        }
    }
    outputs
}

fn check(graph: &Graph) -> Outline {
    let found = outline(graph).expect("it pays");
    found.functions.iter().for_each(|function| {
        let faults = ir::verify::verify(function, ir::verify::GraphPhase::Imported);
        assert_eq!(faults, Ok(()), "{function}");
    });
    let inputs = graph.inputs.iter().enumerate().map(|(position, input)| {
        let ty = graph.ty(input.value);
        let numbers =
            (0..ty.shape.iter().product::<usize>()).map(|at| ((at * 7 + position * 3) % 11) as f64 / 8.0 - 0.5);
        Value::floats(&ty.shape, numbers.collect::<Vec<f64>>())
    });
    let inputs: Vec<Value> = inputs.collect();
    let whole = evaluate(graph, &inputs, Rounding::PerOp).expect("it runs");
    assert_eq!(run(&found, graph, &inputs), whole);
    found
}

fn functions_called(outline: &Outline) -> Vec<usize> {
    outline.calls.iter().map(|call| call.function).collect()
}

#[test]
fn equal_layers_are_one_function() {
    let found = check(&model(&[0.5; 12]));
    assert_eq!(functions_called(&found)[1..], [1; 12]);
    assert_eq!(found.functions.len(), 2);
    // The shared value and one stream after each layer but the last, which is an output.
    assert_eq!(found.between.len(), 12);
}

#[test]
fn a_layer_with_another_constant_is_a_function_of_its_own() {
    let mut scales = [0.5; 16];
    scales[9] = 0.25;
    let mut expected = [1; 16];
    expected[9] = 2;
    assert_eq!(functions_called(&check(&model(&scales)))[1..], expected);
}

#[test]
fn calls_keep_their_own_places_in_the_model() {
    let graph = model(&[0.5; 12]);
    let found = check(&graph);
    for (number, call) in found.calls.iter().enumerate().skip(1) {
        assert_eq!(call.locations.len(), found.functions[1].locations.len());
        let module = format!("layers.{}", number - 1);
        assert!(call.locations.iter().all(|location| location.module == module), "call {number}");
    }
}

#[test]
fn what_no_input_decides_is_computed_in_every_function() {
    let mut model = Model::new();
    let mask = model.scalar(2.0);
    for _ in 0..12 {
        model.push_layer(0.5, mask);
    }
    let found = check(&model.finished());
    // The stream, the weight.
    assert_eq!((found.functions.len(), found.functions[0].inputs.len()), (1, 2));
}

#[test]
fn few_layers_and_layers_that_are_not_alike_stay_one_graph() {
    assert_eq!(outline(&model(&[0.5; 2])), None);
    assert_eq!(outline(&model(&[0.5; 8])), None, "8 layers save fewer nodes than calls are worth");
    let mut alone = Model::new();
    for step in 0..400usize {
        let value = alone.node(Tanh, &[alone.stream]);
        // No distance recurs.
        alone.stream = if (step * step) % 7 < 3 { alone.node(Add, &[alone.stream, value]) } else { value };
        if step.is_power_of_two() {
            alone.stream = alone.node(Sigmoid, &[alone.stream]);
        }
    }
    let graph = alone.finished();
    if outline(&graph).is_some() {
        check(&graph);
    }
}

/// An input that one layer updates in place and another reads must be read before: layers stay together.
#[test]
fn updates_in_place_stay_with_their_readers() {
    let mut own = Model::new();
    let mut caches = Vec::new();
    for _ in 0..12 {
        let cache = own.graph.push_input("cache", ty(), InputRole::Dynamic);
        let position = own.graph.inputs.len() as u32 - 1;
        own.push_layer(0.5, cache);
        caches.push((position, own.stream));
    }
    let mut elsewhere = own.graph.clone();
    for (position, value) in caches {
        own.graph.push_output(value);
        own.graph.outputs.last_mut().unwrap().alias = Some(position);
    }
    let found = check(&own.finished());
    assert_eq!(
        found.functions.iter().filter(|function| function.outputs.iter().any(|output| output.alias.is_some())).count(),
        found.functions.len()
    );
    // The first layer's cache is updated by the last layer.
    let last = elsewhere.nodes().next_back().map(|(_, node)| node.results[0]).unwrap();
    elsewhere.push_output(last);
    elsewhere.outputs[0].alias = Some(1);
    assert_eq!(outline(&elsewhere), None);
}
