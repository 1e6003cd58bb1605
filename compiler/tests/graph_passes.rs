//! The graph passes on PyTorch's own graphs: values stay right, and what fuses is what should.

use std::path::{Path, PathBuf};

use compiler::import::parse_json;
use compiler::samples::samples_for;
use compiler::verdict::Standard;
use ir::Graph;
use ir::reference::{Rounding, evaluate};
use passes::fuse::{FuseOptions, FuseReport, StopReason};
use passes::manager::{Phase, Unit};
use passes::{Numerics, canonicalize, fuse};

#[path = "../../tests/graphs/list.rs"]
mod list;

use list::GRAPHS;

fn path_of(name: &str) -> PathBuf {
    list::graph_path(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), name)
}

fn imported(name: &str) -> Graph {
    parse_json(&std::fs::read(path_of(name)).expect("the sample lies beside the repository")).expect("imports")
}

fn fused(graph: &Graph, numerics: Numerics) -> (Graph, FuseReport) {
    let (canonical, _) = canonicalize::canonicalize(graph, numerics).expect("canonicalizes");
    assert_eq!(canonical.faults(Phase::Canonical), Vec::<String>::new());
    let (fused, report) = fuse::fuse(&canonical, &FuseOptions::new(numerics)).expect("fuses");
    assert_eq!(fused.faults(Phase::Fused), Vec::<String>::new());
    (fused, report)
}

fn n_ops(graph: &Graph, name: &str) -> usize {
    graph.nodes().filter(|(_, node)| node.op.name() == name).count()
}

#[test]
fn values_stay_right_under_every_class() {
    for name in GRAPHS {
        let graph = imported(name);
        let samples = samples_for(&graph, &path_of(name)).expect("the sample has values");
        let standard = Standard::of(&graph, &samples).expect("evaluates");
        let eager = evaluate(&graph, &samples.inputs, Rounding::PerOp).expect("evaluates");
        for numerics in Numerics::ALL {
            let (result, report) = fused(&graph, numerics);
            let outputs = evaluate(&result, &samples.inputs, Rounding::PerOp).expect("evaluates");
            if numerics == Numerics::Exact {
                assert_eq!(outputs, eager, "{name} under `exact`");
            }
            let verdict = standard.judge(&graph, &outputs);
            assert!(verdict.passes(), "{name} under `{numerics}`: {:?}", verdict.failure());
            let saturated = report.stop_reasons.iter().all(|(reason, _)| *reason == StopReason::Saturated);
            assert!(saturated, "{name} under `{numerics}`: {:?}", report.stop_reasons);
        }
    }
}

#[test]
fn models_fuse_into_the_ops_that_they_are_made_of() {
    let expected: [(&str, &[(&str, usize)]); 9] = [
        ("rms_norm_naive_f32_ragged", &[("rms_norm", 1)]),
        ("softmax_naive_f32", &[("softmax", 1)]),
        ("mlp", &[("fused_matmul", 3), ("layer_norm", 1), ("gelu", 0), ("relu", 0), ("matmul", 0)]),
        ("bert_layer_none", &[("fused_matmul", 6), ("layer_norm", 2), ("attention", 1), ("matmul", 0), ("gelu", 0)]),
        ("bert_layer_core", &[("fused_matmul", 6), ("layer_norm", 2), ("attention", 1), ("matmul", 0), ("gelu", 0)]),
        ("tiny_vit", &[("fused_matmul", 14), ("layer_norm", 5), ("attention", 2), ("gelu", 0)]),
        ("tiny_llama_none", &[("rms_norm", 5), ("attention", 2), ("fused_matmul", 2), ("silu", 0), ("rsqrt", 0)]),
        ("tiny_llama_core", &[("rms_norm", 5), ("attention", 2), ("fused_matmul", 2), ("silu", 0), ("rsqrt", 0)]),
        ("tiny_llama_bf16", &[("rms_norm", 5), ("attention", 2), ("softmax", 0), ("silu", 0), ("rsqrt", 0)]),
    ];
    for (name, ops) in expected {
        let (graph, _) = fused(&imported(name), Numerics::Contract);
        let found: Vec<(&str, usize)> = ops.iter().map(|(op, _)| (*op, n_ops(&graph, op))).collect();
        assert_eq!(found, ops, "{name}");
    }
}

#[test]
fn naive_and_built_in_norm_are_one_program_under_contract_alone() {
    let program = |name: &str, numerics: Numerics| {
        let (graph, _) = fused(&imported(name), numerics);
        let nodes = graph.nodes().map(|(_, node)| (node.op.clone(), node.operands.to_vec()));
        nodes.collect::<Vec<_>>()
    };
    for numerics in Numerics::ALL {
        let is_one = program("rms_norm_naive_bf16", numerics) == program("rms_norm_builtin_bf16", numerics);
        assert_eq!(is_one, numerics >= Numerics::Contract, "under `{numerics}`");
    }
}
