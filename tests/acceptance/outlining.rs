//! Repeated layers are compiled once and called, and that changes nothing but the program's form.

use compiler::execute::Executable;
use compiler::pipeline::{Compiled, Options, Outlining};
use compiler::samples::{DEFAULT_SEED, seeded};
use compiler::verdict::Standard;
use ir::Graph;
use ir::target::TargetName;
use neff::isa::RECORD_BYTES;
use serde_json::Value;

use crate::support::{compiled, document, imported, stacked};

/// A Llama block of hidden size 128, so many times; `change` alters nodes of layers.
fn llama(n_layers: usize, change: impl Fn(usize, &mut Value)) -> Graph {
    let block = stacked::scaled(&document("benches/graphs/llama7b_block_core.inf.json"), &stacked::SMALL_LLAMA);
    imported(&stacked::stacked(&block, n_layers, change))
}

fn unchanged(_: usize, _: &mut Value) {}

fn options(target: TargetName, outline: Outlining) -> Options {
    Options { target, outline, ..Options::default() }
}

/// Calls of each kernel.
fn n_calls(compiled: &Compiled) -> Vec<usize> {
    let outlined = compiled.outlined.as_ref().expect("the graph is outlined");
    (0..outlined.functions.len()).map(|function| outlined.n_calls(function)).collect()
}

fn loaded(compiled: &Compiled) -> Executable {
    Executable::load(compiled.neff.as_ref().expect("the pipeline runs to its end"))
        .unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn sixty_four_blocks_one_with_another_epsilon_are_two_kernels() {
    let graph = llama(64, |layer, node| {
        if layer == 40 {
            stacked::set_epsilon(node, 1e-5);
        }
    });
    let result = compiled(&graph, &options(TargetName::Trn2, Outlining::Auto));
    assert_eq!(n_calls(&result), [63, 1]);
    let executable = loaded(&result);
    assert_eq!(executable.machine().kernels().count(), 2);
    let timeline = executable.timeline().unwrap();
    assert_eq!(timeline.calls.len(), 64);
    assert!(timeline.calls.windows(2).all(|pair| pair[0].end_ps <= pair[1].start_ps), "calls overlap");
}

#[test]
fn programs_grow_with_distinct_layers() {
    let size = |n_layers: usize| {
        let result = compiled(&llama(n_layers, unchanged), &options(TargetName::Trn2, Outlining::Auto));
        assert_eq!(n_calls(&result), [n_layers]);
        (loaded(&result).machine().n_instructions(), result.neff.unwrap().len())
    };
    let ((few, small), (many, large)) = (size(4), size(64));
    // A call is at most three records on each of five engines.
    assert!(many - few <= 60 * 15, "{few} and {many} instructions");
    // Names of its weights and its source lines, compressed; no instructions.
    assert!(large - small <= 60 * 2048, "{small} and {large} bytes");
}

#[test]
fn calls_compute_what_one_kernel_does() {
    let cases = [
        (llama(6, unchanged), vec![6]),
        (
            llama(6, |layer, node| {
                if layer == 2 {
                    stacked::set_epsilon(node, 1e-5)
                }
            }),
            vec![5, 1],
        ),
        (imported(&stacked::stacked(&document("tests/graphs/bert_layer_core.inf.json"), 6, unchanged)), vec![6]),
    ];
    for target in TargetName::ALL {
        for (graph, calls) in &cases {
            let samples = seeded(graph, DEFAULT_SEED);
            let standard = Standard::of(graph, &samples).unwrap();
            let outlined = compiled(graph, &options(target, Outlining::Auto));
            let whole = compiled(graph, &options(target, Outlining::Off));
            assert_eq!(n_calls(&outlined), *calls, "{} on {target}", graph.name);
            assert!(whole.outlined.is_none() && whole.program.is_some());
            let (outlined, whole) = (loaded(&outlined), loaded(&whole));
            for executable in [&outlined, &whole] {
                let outputs = executable.run_values(&samples.inputs).unwrap();
                assert_eq!(standard.judge(graph, &outputs).failure(), None, "{} on {target}", graph.name);
            }
        }
    }
}

#[test]
fn outlined_programs_are_the_same_bytes_every_time() {
    let graph = llama(8, unchanged);
    let neff = || compiled(&graph, &options(TargetName::Trn2, Outlining::Auto)).neff.unwrap();
    assert_eq!(neff(), neff());
}

#[test]
fn small_models_stay_one_kernel() {
    for n_layers in [1, 2] {
        let result = compiled(&llama(n_layers, unchanged), &options(TargetName::Trn2, Outlining::Auto));
        assert!(result.outlined.is_none(), "{n_layers} layers");
    }
}

/// Changes the bytes of a stream.
type Damage = Box<dyn Fn(&mut [u8])>;

/// Every wait, update and clear between calls is needed: whichever is taken away or comes too early, the
/// program is refused.
#[test]
fn every_part_of_a_barrier_is_needed() {
    let result = compiled(&llama(4, unchanged), &options(TargetName::Trn2, Outlining::Auto));
    let neff = result.neff.unwrap();
    let container = neff::container::read(&neff).unwrap();
    let returns = 0x33;
    let mut n_damaged = 0;
    for member in ["PE", "Activation", "Pool", "DVE", "SP"].map(|stem| format!("sg00/{stem}.bin")) {
        let stream = container.member(&member).unwrap();
        let end = stream.chunks(RECORD_BYTES).position(|record| record[0] == returns).unwrap();
        for record in 0..end {
            let at = record * RECORD_BYTES;
            let n_waits = stream[at + 2];
            let mut damages: Vec<(&str, Damage)> = Vec::new();
            for wait in 0..usize::from(n_waits) {
                let value = at + 6 + 4 * wait;
                damages.push(("wait", Box::new(move |bytes| bytes[value..value + 2].fill(0))));
            }
            if stream[at + 3] == 1 {
                damages.push((
                    "update",
                    Box::new(move |bytes| {
                        bytes[at + 3] = 0;
                        bytes[at + 12..at + 16].fill(0);
                    }),
                ));
            }
            if stream[at] == 0x34 {
                damages.push((
                    "clear",
                    Box::new(move |bytes| {
                        let count = u32::from_le_bytes(bytes[at + 24..at + 28].try_into().unwrap());
                        bytes[at + 24..at + 28].copy_from_slice(&(count - 1).to_le_bytes());
                    }),
                ));
            }
            for (what, damage) in damages {
                let mut damaged = container.clone();
                damage(damaged.members.get_mut(&member).unwrap());
                let machine = simulator::Machine::of_container(&damaged).unwrap();
                assert!(!machine.check().is_empty(), "{what} of {member}[{record}] is not missed");
                n_damaged += 1;
            }
        }
    }
    // Three barriers: each engine but the leader says that it has arrived, each waits for the others.
    assert!(n_damaged >= 3 * (4 + 4 + 4 + 1), "{n_damaged} damages");
}
