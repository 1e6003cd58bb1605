//! RMSNorm is the anchor: three compute instructions between its DMAs, however it is spelled.

use ir::program::{DmaPlace, InstructionKind};
use ir::target::TargetName;
use neff::container::{Container, read};
use passes::Numerics;

use crate::support::{GRAPHS, compiled, neff_of, options, sample_graph};

const NAIVE: &str = "rms_norm_naive_bf16";
const BUILTIN: &str = "rms_norm_builtin_bf16";

/// What the device executes: streams, constants and variables.
fn executed(container: &Container) -> Vec<(&String, &Vec<u8>)> {
    let is_executed = |name: &str| name.ends_with(".bin") || name.ends_with(".npy") || name == "sg00/def.json";
    container.members.iter().filter(|(name, _)| is_executed(name)).collect()
}

fn container(name: &str, numerics: Numerics) -> Container {
    read(&neff_of(&sample_graph(name), &options(TargetName::Trn2, numerics))).expect("our own file is sound")
}

#[test]
fn three_compute_records_between_the_transfers() {
    for (target, wanted) in [(TargetName::Trn1, 4), (TargetName::Trn2, 3), (TargetName::Trn3, 3)] {
        for name in [NAIVE, BUILTIN] {
            let container = read(&neff_of(&sample_graph(name), &options(target, Numerics::Contract))).expect("sound");
            let program = neff::decoded::program(&container).expect("the streams decode");
            let n_compute = program.instructions.iter().filter(|instruction| instruction.is_compute()).count();
            assert_eq!(n_compute, wanted, "{name} on {target}");
        }
    }
}

#[test]
fn gamma_arrives_by_one_stride_0_transfer() {
    let program = neff::decoded::program(&container(NAIVE, Numerics::Contract)).expect("the streams decode");
    let mut repeated = 0;
    let mut n_loads = 0;
    for instruction in &program.instructions {
        let InstructionKind::Dma { src, .. } = &instruction.kind else { continue };
        if let DmaPlace::Hbm { .. } = src.place {
            n_loads += 1;
            repeated += usize::from(src.dims.first().is_some_and(|dim| dim.step == 0 && dim.count == 4));
        }
    }
    assert_eq!((n_loads, repeated), (2, 1), "one load of x, one of gamma repeated on 4 partitions");
}

#[test]
fn no_intermediate_has_an_address_in_hbm() {
    let container = container(NAIVE, Numerics::Contract);
    let definition: serde_json::Value =
        serde_json::from_slice(container.member("sg00/def.json").expect("present")).expect("JSON");
    let variables = definition["var"].as_object().expect("an object");
    let mut kinds: Vec<&str> = variables.values().map(|variable| variable["type"].as_str().expect("text")).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["input", "input", "output", "state-buffer"]);
    let program = neff::decoded::program(&container).expect("the streams decode");
    let mut sides = Vec::new();
    for instruction in &program.instructions {
        let InstructionKind::Dma { dst, src, .. } = &instruction.kind else { continue };
        sides.extend([("read", src.hbm()), ("written", dst.hbm())].into_iter().filter(|(_, tensor)| tensor.is_some()));
    }
    let n_read = sides.iter().filter(|(direction, _)| *direction == "read").count();
    assert_eq!((n_read, sides.len()), (2, 3), "two inputs are read, one output is written");
}

#[test]
fn naive_and_built_in_are_one_program_under_contract_only() {
    for (numerics, same) in [(Numerics::Contract, true), (Numerics::Reassoc, false), (Numerics::Exact, false)] {
        let (naive, builtin) = (container(NAIVE, numerics), container(BUILTIN, numerics));
        assert_eq!(executed(&naive) == executed(&builtin), same, "under {numerics:?}");
    }
}

#[test]
fn without_its_rule_exactly_the_rms_norm_graphs_change() {
    for name in GRAPHS {
        let graph = sample_graph(name);
        let with = compiled(&graph, &options(TargetName::Trn2, Numerics::Contract));
        let mut without = options(TargetName::Trn2, Numerics::Contract);
        without.disabled_rules = vec!["rms-norm".to_owned()];
        let without = compiled(&graph, &without);
        // A forward pass for training saves the inverse root, so that the fused op would compute it twice.
        let is_training = name.contains("_train");
        let uses =
            ["rms_norm", "tiny_llama", "tiny_decode"].iter().any(|start| name.starts_with(start)) && !is_training;
        assert_eq!(with.fusions.iter().any(|fusion| fusion.op == "rms_norm"), uses, "{name}");
        assert!(!without.fusions.iter().any(|fusion| fusion.op == "rms_norm"), "{name}");
        assert_eq!(with.neff == without.neff, !uses, "{name}");
    }
}
