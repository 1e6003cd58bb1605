//! Compiled graphs compute what they should, on every target.

use compiler::execute::Executable;
use ir::graph::GraphOutput;
use ir::ops::{Concat, Slice};
use ir::program::{DmaQueue, InstructionKind};
use ir::random_graph::{RandomGraphOptions, random_graph, random_inputs};
use ir::target::TargetName;
use ir::{Graph, ValueId};
use passes::Numerics;

use crate::support::{GRAPHS, cases, compiled, judge, made, neff_of, options, recorded, sample_graph};

fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn sample_graphs_pass_on_every_target() {
    let mut faults = Vec::new();
    for name in GRAPHS {
        let graph = sample_graph(name);
        let samples = recorded(name, &graph);
        for target in TargetName::ALL {
            if let Err(fault) = judge(&graph, &samples, &options(target, Numerics::Contract)) {
                faults.push(format!("{name} {target}: {fault}"));
            }
        }
    }
    assert_none(&faults);
}

/// Made values of these give numbers of 10^12 that say nothing: the log-sum-exp must be that of the
/// scores. What they consist of is judged in other graphs and in `compiler/tests/scatter.rs`.
#[test]
fn backward_graphs_of_transformers_compile_on_every_target() {
    for name in ["tiny_llama_train.bw", "tiny_gpt2_train_core.bw"] {
        let graph = sample_graph(name);
        for target in TargetName::ALL {
            let neff = neff_of(&graph, &options(target, Numerics::Contract));
            Executable::load(&neff).unwrap_or_else(|error| panic!("{name} {target}: {error}"));
        }
    }
}

#[test]
fn sample_graphs_pass_in_every_numerics_class() {
    let mut faults = Vec::new();
    for name in GRAPHS {
        let graph = sample_graph(name);
        let samples = recorded(name, &graph);
        for numerics in [Numerics::Exact, Numerics::Reassoc] {
            if let Err(fault) = judge(&graph, &samples, &options(TargetName::Trn2, numerics)) {
                faults.push(format!("{name} {numerics:?}: {fault}"));
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn cases_pass_on_every_target() {
    let mut faults = Vec::new();
    for (name, graph) in cases() {
        let samples = made(&graph);
        for target in TargetName::ALL {
            if let Err(fault) = judge(&graph, &samples, &options(target, Numerics::Contract)) {
                faults.push(format!("{name} {target}: {fault}"));
            }
        }
    }
    assert_none(&faults);
}

/// Rows of a left operand that lie along the contraction axis, in whole blocks of 16, up to 8 of 16, and
/// with a last block of the contraction axis that is short: by the DMA engines where they can, else by
/// the PE.
#[test]
fn operands_are_turned_on_the_way_or_on_chip() {
    let n_turned = |rows: usize, inner: usize, dtype: &str, target| {
        let text = format!(
            "graph @matmul {{
  input %0 \"a\": {dtype}[{rows}, {inner}] dynamic
  input %1 \"b\": {dtype}[{inner}, 64] dynamic
  %2 = matmul %0, %1 {{transpose_lhs = 0, transpose_rhs = 0, dtype = {dtype}}} : {dtype}[{rows}, 64]
  output %2 \"\"
}}"
        );
        let graph = ir::text::parse_graph("matmul", &text).expect("the text is well formed");
        let options = options(target, Numerics::Contract);
        assert_eq!(judge(&graph, &made(&graph), &options), Ok(()), "{rows} x {inner} {dtype} {target}");
        let program = compiled(&graph, &options).program.expect("the pipeline runs to its end");
        let queues = program.instructions.iter().filter_map(|instruction| match &instruction.kind {
            InstructionKind::Dma { queue, .. } => Some(*queue),
            _ => None,
        });
        queues.filter(|queue| *queue == DmaQueue::HardwareTranspose).count()
    };
    for target in TargetName::ALL {
        let can = target.target().dma_transpose;
        for (rows, inner) in [(1024, 1536), (1040, 1600), (1016, 1600)] {
            assert_eq!(n_turned(rows, inner, "bf16", target) > 0, can, "{rows} x {inner} on {target}");
            assert_eq!(n_turned(rows, inner, "f32", target), 0, "{rows} x {inner} on {target}");
        }
    }
}

/// A random graph that updates each of its inputs: by a computed value, by an input, or by parts of
/// two values, in place or rotated.
fn random_updates(seed: u64) -> Graph {
    let options = RandomGraphOptions { n_inputs: 5, max_rank: 2, ..RandomGraphOptions::default() };
    let mut graph = random_graph(seed, &options);
    let mut state = seed;
    let mut below = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    for position in 0..graph.inputs.len() {
        let ty = graph.ty(graph.inputs[position].value).clone();
        let n_values = u32::try_from(graph.n_values()).expect("few values");
        let same: Vec<ValueId> = (0..n_values).map(ValueId).filter(|&value| *graph.ty(value) == ty).collect();
        let (first, second) = (same[below(same.len())], same[below(same.len())]);
        let axis = below(ty.rank().max(1));
        let length = ty.shape.get(axis).copied().unwrap_or(1);
        let value = match below(3) {
            kind @ (0 | 1) if length > 1 => {
                let cut = 1 + below(length - 1);
                let mut part = |value: ValueId, start: usize, end: usize| {
                    graph.push_value_of(Slice { axis, start, end, step: 1 }.into(), &[value], &[]).expect("in range")
                };
                let parts = match kind {
                    0 => [part(first, 0, cut), part(second, cut, length)],
                    _ => [part(first, cut, length), part(second, 0, cut)],
                };
                graph.push_value_of(Concat { axis }.into(), &parts, &[]).expect("parts fit")
            }
            _ => first,
        };
        let alias = Some(u32::try_from(position).expect("few inputs"));
        graph.outputs.push(GraphOutput { value: Some(value), strides: None, alias, description: String::new() });
    }
    graph
}

#[test]
fn updating_inputs_gives_the_bits_that_returning_them_gives() {
    for seed in 0..150 {
        let updating = random_updates(seed);
        let mut returning = updating.clone();
        returning.outputs.iter_mut().for_each(|output| output.alias = None);
        let inputs = random_inputs(&updating, seed);
        let target = TargetName::ALL[seed as usize % 3];
        let run = |graph: &Graph| {
            let neff = neff_of(graph, &options(target, Numerics::Contract));
            let executable = Executable::load(&neff).expect("the NEFF loads");
            executable.run_values(&inputs).expect("the program runs")
        };
        assert_eq!(run(&updating), run(&returning), "seed {seed} {target}");
    }
}
