//! Compiled graphs compute what they should, on every target.

use compiler::samples::Samples;
use ir::random_graph::{RandomGraphOptions, random_graph, random_inputs};
use ir::target::TargetName;
use passes::Numerics;

use crate::support::{GRAPHS, cases, judge, made, options, recorded, sample_graph};

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

#[test]
fn random_graphs_pass() {
    let mut faults = Vec::new();
    for seed in 0..300 {
        let graph = random_graph(seed, &RandomGraphOptions::default());
        let samples = Samples { inputs: random_inputs(&graph, seed), outputs: None, recorded_in: None };
        let target = TargetName::ALL[seed as usize % 3];
        if let Err(fault) = judge(&graph, &samples, &options(target, Numerics::Contract)) {
            faults.push(format!("seed {seed} {target}: {fault}"));
        }
    }
    assert_none(&faults);
}
