//! Every recorded overload by itself through the whole compiler: its output on the simulator is no
//! less accurate than PyTorch's, or it is refused with a reason.

use std::path::Path;

use compiler::execute::Executable;
use compiler::import::read_graph;
use compiler::pipeline::{Options, Unwatched, compile};
use compiler::samples::samples_for;
use compiler::verdict::Standard;
use ir::Graph;
use ir::target::TargetName;
use passes::Numerics;

/// Outputs of integer results that the device cannot compute exactly, and of indices that are not
/// known when compiling.
const N_REFUSED: usize = 16;

fn source(graph: &Graph, position: usize) -> String {
    let producer = graph.outputs[position].value.and_then(|value| graph.producer(value));
    let location = producer.and_then(|(_, node)| node.locations.first());
    location.map(|location| graph.locations[location.index()].target.clone()).unwrap_or_default()
}

fn every_overload(target: TargetName, numerics: Numerics) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/graphs/import/overloads.json");
    let graph = read_graph(&path).unwrap();
    let samples = samples_for(&graph, &path).unwrap();
    let standard = Standard::of(&graph, &samples).unwrap();
    let options = Options { target, numerics, ..Options::default() };
    let mut refused = Vec::new();
    for (position, output) in graph.outputs.iter().enumerate() {
        let mut alone = graph.clone();
        alone.outputs = vec![output.clone()];
        let compiled = match compile(&alone, &options, &mut Unwatched) {
            Ok(compiled) => compiled,
            Err(compiler::Error::Unsupported { nodes, .. }) => {
                refused.push(format!("{}: {}", source(&graph, position), nodes[0].reason));
                continue;
            }
            Err(error) => panic!("{}: {error}", source(&graph, position)),
        };
        let executable = Executable::load(compiled.neff.as_ref().unwrap()).unwrap();
        let outputs = executable.run_values(&samples.inputs).unwrap();
        let standard =
            Standard { truth: vec![standard.truth[position].clone()], eager: vec![standard.eager[position].clone()] };
        let verdict = standard.judge(&alone, &outputs);
        assert!(verdict.passes(), "{}: {}", source(&graph, position), verdict.failure().unwrap());
    }
    assert!(refused.len() <= N_REFUSED, "{refused:#?}");
}

#[test]
fn every_overload_is_right_under_contract() {
    every_overload(TargetName::Trn2, Numerics::Contract);
}

#[test]
fn every_overload_is_right_under_exact_on_the_oldest_chip() {
    every_overload(TargetName::Trn1, Numerics::Exact);
}
