//! Faults that are put into programs, and roundings that options change, are found at their node.

use std::path::Path;

use ir::program::{ActivationFunction, InstructionKind};
use ir::reference::Value;
use ir::{Graph, Op, Program};

use super::{Contest, Divergence, Sameness, Side};
use crate::error::Error;
use crate::execute::Executable;
use crate::import::read_graph;
use crate::pipeline::{Options, Unwatched, compile};
use crate::samples::{DEFAULT_SEED, samples_for, seeded};

fn sample(name: &str) -> (Graph, Vec<Value>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/graphs").join(name);
    let graph = read_graph(&path).unwrap();
    let inputs = samples_for(&graph, &path).unwrap().inputs;
    (graph, inputs)
}

/// The simulator with a fault in every program that it is given.
fn damaged(fault: impl Fn(&mut Program) + 'static) -> Side {
    Side::running("damaged", move |graph, inputs| {
        let compiled = compile(graph, &Options::default(), &mut Unwatched)?;
        let mut program = compiled.program.expect("the pipeline runs to its end");
        fault(&mut program);
        let internal = |error: &dyn std::fmt::Display| Error::Internal(error.to_string());
        let object = codegen::kernel_object(&program).map_err(|error| internal(&error))?;
        let kernel = codegen::link(&program, &object).map_err(|error| internal(&error))?;
        let neff = codegen::package(&compiled.graph, &program, &kernel).map_err(|error| internal(&error))?;
        Executable::load(&neff)?.run_values(inputs)
    })
}

/// Programs in which one activation function is taken for another of its table set.
fn swapped(from: ActivationFunction, to: ActivationFunction) -> Side {
    damaged(move |program| {
        for instruction in &mut program.instructions {
            if let InstructionKind::Activation { function, .. } = &mut instruction.kind
                && *function == from
            {
                *function = to;
            }
        }
    })
}

fn contest(a: &str, b: Side, sameness: Sameness) -> Contest {
    Contest { a: Side::parse(a, &Options::default()).unwrap(), b, sameness }
}

fn found(contest: &Contest, graph: &Graph, inputs: &[Value]) -> Divergence {
    contest.first_divergence(graph, inputs, &mut |_| {}).unwrap().expect("the sides differ")
}

fn op_of<'a>(graph: &'a Graph, divergence: &Divergence) -> &'a Op {
    &graph.node(divergence.node).op
}

/// The small graph shows the difference again, as the command that replays it finds it.
fn shows_again(contest: &Contest, graph: &Graph, inputs: &[Value], divergence: &Divergence) -> Graph {
    let small = contest.smallest(graph, inputs, divergence, &mut |_| {}).unwrap();
    let again = ir::text::parse_graph("small.ir", &small.graph.to_string()).unwrap();
    let inputs = small.inputs.unwrap_or_else(|| seeded(&again, DEFAULT_SEED).inputs);
    assert!(contest.first_divergence(&again, &inputs, &mut |_| {}).unwrap().is_some(), "{again}");
    again
}

#[test]
fn a_wrong_instruction_in_a_bert_layer_is_found_at_its_node() {
    let (graph, inputs) = sample("bert_layer_core.inf.json");
    let contest =
        contest("reference", swapped(ActivationFunction::Gelu, ActivationFunction::GeluTanh), Sameness::Standard);
    let divergence = found(&contest, &graph, &inputs);
    assert!(matches!(op_of(&graph, &divergence), Op::Gelu(_)), "{divergence:?}");
    assert!(divergence.n_tests < 20, "{divergence:?}");
    assert_eq!((divergence.together_with.len(), &divergence.skipped), (0, &None));
    let (_, reference, damaged) = divergence.difference.worst.clone().unwrap();
    assert!((reference - damaged).abs() > 100.0 * divergence.difference.allowed, "{divergence:?}");
    let small = shows_again(&contest, &graph, &inputs, &divergence);
    assert_eq!(small.nodes().map(|(_, node)| node.op.name()).collect::<Vec<_>>(), ["gelu"]);
    assert_eq!(small.ty(small.inputs[0].value).n_elements(), 1, "{small}");
}

#[test]
fn a_fault_in_a_fused_op_is_found_at_the_node_that_completes_it() {
    let (graph, inputs) = sample("tiny_llama_core.inf.json");
    let contest = contest("reference", swapped(ActivationFunction::Silu, ActivationFunction::Mish), Sameness::Standard);
    let divergence = found(&contest, &graph, &inputs);
    // silu(x) is x * sigmoid(x) here, and sigmoid by itself is right.
    assert!(matches!(op_of(&graph, &divergence), Op::Mul(_)), "{divergence:?}");
    let operands = &graph.node(divergence.node).operands;
    let is_sigmoid = |value| matches!(graph.producer(value), Some((_, node)) if matches!(node.op, Op::Sigmoid(_)));
    assert!(operands.iter().any(|&operand| is_sigmoid(operand)), "{divergence:?}");
    let small = shows_again(&contest, &graph, &inputs, &divergence);
    assert_eq!(small.nodes().map(|(_, node)| node.op.name()).collect::<Vec<_>>(), ["sigmoid", "mul"], "{small}");
}

#[test]
fn a_fault_that_made_values_do_not_show_comes_with_the_values_that_do() {
    let text = "graph @g {
  input %0 \"x\": f32[4, 8] dynamic
  %1 = exp %0 : f32[4, 8]
  %2 = neg %1 : f32[4, 8]
  %3 = relu %2 : f32[4, 8]
  output %3 \"\"
}
";
    let graph = ir::text::parse_graph("g.ir", text).unwrap();
    // Only what is above 1000 is wrong: no made value is.
    let wrong = Side::running("wrong", |graph, inputs| {
        let mut outputs = super::evaluated(graph, inputs, ir::reference::Rounding::PerOp)?;
        for output in outputs.iter_mut().flatten() {
            *output = output.map_float(|number| if number.abs() > 1000.0 { number * 2.0 } else { number }).unwrap();
        }
        Ok(outputs)
    });
    let contest = contest("reference", wrong, Sameness::Standard);
    let inputs = vec![Value::floats(&[4, 8], (0..32).map(|at| f64::from(at) / 2.0 - 4.0).collect::<Vec<_>>())];
    // relu of negative numbers hides what is wrong before it.
    assert_eq!(contest.first_divergence(&graph, &inputs, &mut |_| {}).unwrap(), None);
    let mut shown = graph.clone();
    shown.outputs[0].value = Some(ir::ValueId(2));
    let divergence = found(&contest, &shown, &inputs);
    assert_eq!(divergence.value, ir::ValueId(1));
    let small = contest.smallest(&shown, &inputs, &divergence, &mut |_| {}).unwrap();
    assert_eq!((small.graph.n_nodes(), small.inputs.as_ref()), (1, Some(&inputs)));
    assert!(!contest.differences(&small.graph, small.inputs.as_ref().unwrap()).unwrap().is_empty());
}

#[test]
fn options_that_change_bits_are_told_apart_at_the_first_node_that_has_others() {
    let (graph, inputs) = sample("rms_norm_naive_bf16.inf.json");
    let side = |text| Side::parse(text, &Options::default()).unwrap();
    let bits = contest("mode=exact", side("mode=contract"), Sameness::Bits);
    let divergence = found(&bits, &graph, &inputs);
    assert!(!bits.differences(&graph, &inputs).unwrap().is_empty());
    let (_, exact, contract) = divergence.difference.worst.clone().unwrap();
    assert!(exact != contract, "{divergence:?}");
    shows_again(&bits, &graph, &inputs, &divergence);
    // By the standard they are both right.
    let standard = contest("mode=exact", side("mode=contract"), Sameness::Standard);
    assert_eq!(standard.first_divergence(&graph, &inputs, &mut |_| {}).unwrap(), None);
    let same = contest("mode=exact", side("numerics=exact,stop=canonicalize"), Sameness::Standard);
    assert_eq!(same.first_divergence(&graph, &inputs, &mut |_| {}).unwrap(), None);
}

#[test]
fn what_cannot_be_an_output_is_passed_over_and_told() {
    let (graph, inputs) = sample("bert_layer_core.inf.json");
    let wrong = swapped(ActivationFunction::Gelu, ActivationFunction::GeluTanh);
    // Neither of the two values before the wrong one can be asked for.
    let (gelu, node) = graph.nodes().find(|(_, node)| matches!(node.op, Op::Gelu(_))).unwrap();
    let before = graph.producer(node.operands[0]).unwrap().1.op.name();
    let picky = Side::running("picky", move |graph, inputs| {
        let producer = graph.producer(graph.outputs[0].value.unwrap());
        if graph.outputs.len() == 1 && producer.is_some_and(|(_, node)| node.op.name() == before) {
            return Err(Error::Internal(format!("no {before}")));
        }
        wrong.outputs(graph, inputs)
    });
    let divergence = found(&contest("reference", picky, Sameness::Standard), &graph, &inputs);
    assert_eq!(divergence.node, gelu);
    let (n_skipped, reason) = divergence.skipped.unwrap();
    assert!(n_skipped > 0 && reason.ends_with(&format!("as outputs: error[internal]: no {before}")), "{reason}");
}
