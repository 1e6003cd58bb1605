//! Sample graphs become as small as their faults.

use std::path::Path;

use ir::{Graph, Op};

use super::{Limits, Reduction, reduce};
use crate::import::read_graph;

fn sample(name: &str) -> Graph {
    read_graph(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/graphs").join(name)).unwrap()
}

fn reduced(graph: &Graph, shows_fault: impl Fn(&Graph) -> bool) -> Reduction {
    assert!(shows_fault(graph), "the whole graph shows the fault");
    let reduction = reduce(graph, Limits::default(), &mut |graph| shows_fault(graph));
    assert!(shows_fault(&reduction.graph), "the result shows it");
    ir::verify::verify(&reduction.graph, ir::verify::GraphPhase::Imported).unwrap();
    reduction
}

fn contains(graph: &Graph, is_it: impl Fn(&Op) -> bool) -> bool {
    graph.nodes().any(|(_, node)| is_it(&node.op))
}

#[test]
fn a_llama_is_reduced_to_one_matmul_of_small_tensors() {
    let llama = sample("tiny_llama_none.inf.json");
    assert!(llama.n_nodes() > 150, "{} nodes", llama.n_nodes());
    let Reduction { graph, n_tests, is_cut_short } =
        reduced(&llama, |graph| contains(graph, |op| matches!(op, Op::Matmul(_))));
    assert_eq!(graph.n_nodes(), 1, "{graph}");
    assert_eq!((graph.inputs.len(), graph.outputs.len(), graph.locations.len()), (2, 1, 0));
    assert!(graph.inputs.iter().all(|input| graph.ty(input.value).n_elements() <= 4), "{graph}");
    assert!(n_tests < 200 && !is_cut_short, "{n_tests} tests");
}

#[test]
fn what_belongs_together_stays_together() {
    // The fault needs a root whose result is multiplied.
    let shows_fault = |graph: &Graph| {
        graph.nodes().any(|(_, node)| {
            matches!(node.op, Op::Mul(_))
                && node.operands.iter().any(|&operand| {
                    graph.producer(operand).is_some_and(|(_, producer)| matches!(producer.op, Op::Rsqrt(_)))
                })
        })
    };
    let Reduction { graph, .. } = reduced(&sample("tiny_llama_bf16.inf.json"), shows_fault);
    let names: Vec<&str> = graph.nodes().map(|(_, node)| node.op.name()).collect();
    assert_eq!(names, ["rsqrt", "mul"], "{graph}");
}

#[test]
fn two_faults_in_different_outputs_keep_both() {
    let shows_fault = |graph: &Graph| {
        let n_outputs = graph.outputs.len();
        n_outputs >= 2 && contains(graph, |op| matches!(op, Op::Exp(_) | Op::Softmax(_) | Op::Matmul(_)))
    };
    let mut graph = sample("tiny_llama_none.inf.json");
    let first = graph.nodes().next().map(|(_, node)| node.results[0]);
    graph.push_output(first.expect("a llama has nodes"));
    let Reduction { graph, .. } = reduced(&graph, shows_fault);
    assert_eq!(graph.outputs.len(), 2);
    assert_eq!(graph.n_nodes(), 1, "{graph}");
}

#[test]
fn reductions_are_deterministic_and_stop_at_their_limit() {
    let graph = sample("bert_layer_none.inf.json");
    let shows_fault = |graph: &Graph| contains(graph, |op| matches!(op, Op::Matmul(_)));
    assert_eq!(reduced(&graph, shows_fault).graph, reduced(&graph, shows_fault).graph);
    let limited = reduce(&graph, Limits { max_tests: 2 }, &mut |graph| shows_fault(graph));
    assert!(limited.is_cut_short && shows_fault(&limited.graph));
    assert_eq!(limited.n_tests, 2);
}

#[test]
fn where_everything_matters_nothing_changes() {
    let graph = sample("softmax_naive_f32.inf.json");
    let reduction = reduce(&graph, Limits::default(), &mut |_| false);
    assert_eq!(reduction.graph, graph);
}
