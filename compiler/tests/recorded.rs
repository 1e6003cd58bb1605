//! Imported graphs against what PyTorch recorded: samples whose overloads are all known must
//! evaluate to their recorded outputs; the others must name exactly what they lack.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use compiler::import::{ImportError, parse_json};
use compiler::samples::{recorded_path, samples_for};
use compiler::verdict::Standard;
use ir::reference::{Rounding, evaluate};

/// Samples that cannot be imported, with the overloads that stand in the way.
const UNSUPPORTED: [(&str, &[&str]); 3] = [
    (
        "mixtral_block_grouped_mm.inf",
        &[
            "aten.div.Tensor_mode",
            "aten.histc.default",
            "aten.sort.default",
            "aten.topk.default",
            "transformers.grouped_mm_fallback.default",
        ],
    ),
    ("resnet_basicblock_none.inf", &["aten.convolution.default"]),
    ("tiny_mamba.inf", &["aten.convolution.default", "aten.log1p.default"]),
];

fn graphs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/graphs")
}

fn graph_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the sample graphs are part of the repository");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths
}

fn unsupported(name: &str) -> Vec<compiler::import::UnsupportedNode> {
    let text = std::fs::read(graphs().join("import").join(format!("{name}.json"))).unwrap();
    match parse_json(&text) {
        Err(ImportError::Unsupported(nodes)) => nodes,
        Ok(_) => panic!("{name} is supported"),
        Err(ImportError::Malformed(reason)) => panic!("{name}: {reason}"),
    }
}

#[test]
fn supported_samples_evaluate_to_what_pytorch_recorded() {
    let mut paths = graph_files(&graphs());
    paths.extend(graph_files(&graphs().join("import")));
    paths.retain(|path| recorded_path(path).exists());
    assert!(paths.len() >= 17);
    for path in paths {
        let graph = parse_json(&std::fs::read(&path).unwrap()).unwrap();
        let samples = samples_for(&graph, &path).unwrap();
        let outputs = evaluate(&graph, &samples.inputs, Rounding::PerOp).unwrap();
        let verdict = Standard::of(&graph, &samples).unwrap().judge(&graph, &outputs);
        assert!(verdict.passes(), "{}: {}", path.display(), verdict.failure().unwrap());
    }
}

#[test]
fn other_samples_list_exactly_what_they_lack() {
    for (name, expected) in UNSUPPORTED {
        let nodes = unsupported(name);
        let targets: BTreeSet<&str> = nodes.iter().map(|node| node.location.target.as_str()).collect();
        assert_eq!(targets.into_iter().collect::<Vec<_>>(), expected.to_vec(), "{name}");
    }
}

#[test]
fn every_node_with_a_symbolic_shape_is_listed() {
    let nodes = unsupported("tiny_llama_dynamic.inf");
    assert!(nodes.len() > 200);
    assert!(nodes.iter().any(|node| node.reason.starts_with("a symbolic shape")));
    assert!(nodes.iter().any(|node| node.result == "int64[s52, s27]"));
}

#[test]
fn unsupported_nodes_carry_module_type_and_reason() {
    let nodes = unsupported("tiny_mamba.inf");
    let node = nodes.iter().find(|node| node.location.target == "aten.log1p.default").unwrap();
    assert_eq!(node.reason, "this overload is not supported");
    assert!(node.result.starts_with("float32["), "{}", node.result);
    let convolution = nodes.iter().find(|node| node.location.target == "aten.convolution.default").unwrap();
    assert!(!convolution.location.module.is_empty() && !convolution.location.module.contains("L["));
}
