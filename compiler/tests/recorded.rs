//! Imported graphs against what PyTorch recorded: every sample with values whose overloads are all
//! known must evaluate to its recorded outputs; the others must name exactly what they lack.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use compiler::import::{ImportError, parse_json};
use compiler::samples::samples_for;
use compiler::verdict::Standard;
use ir::Graph;
use ir::reference::{Rounding, evaluate};

/// Samples that cannot be compiled yet, with the overloads that stand in the way.
const UNSUPPORTED: [(&str, &[&str]); 16] = [
    ("adamw_step_none.inf", &["prims.fma.default"]),
    ("dlrm.inf", &["aten._embedding_bag.default", "aten.tril_indices.default"]),
    ("linear_xent_train.bw", &["aten.scatter.value"]),
    ("llama8b_decode_kvcache.inf", &["aten.index_put.default"]),
    ("lstm.inf", &["aten.mkldnn_rnn_layer.default"]),
    (
        "mixtral_block_grouped_mm.inf",
        &[
            "aten.div.Tensor_mode",
            "aten.histc.default",
            "aten.index_put.default",
            "aten.sort.default",
            "aten.topk.default",
            "transformers.grouped_mm_fallback.default",
        ],
    ),
    ("resnet50_fake.inf", &["aten.convolution.default", "aten.max_pool2d_with_indices.default"]),
    ("resnet_basicblock.inf", &["aten.convolution.default"]),
    ("resnet_basicblock_none.inf", &["aten.convolution.default"]),
    ("tiny_decode_kvcache.inf", &["aten.index_put.default"]),
    ("tiny_gpt2_dropout_train.bw", &["aten.index_put.default", "aten.scatter.value"]),
    ("tiny_gpt2_dropout_train.fw", &["aten.native_dropout.default"]),
    (
        "tiny_gpt2_train_core.bw",
        &[
            "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
            "aten.index_put.default",
            "aten.scatter.value",
        ],
    ),
    ("tiny_llama_dynamic.inf", &[]),
    (
        "tiny_llama_train.bw",
        &[
            "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
            "aten.index_put.default",
            "aten.scatter.value",
        ],
    ),
    ("tiny_mamba.inf", &["aten.convolution.default", "aten.log1p.default"]),
];

fn samples() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/graphs")
}

fn sample_paths() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(samples()).expect("the sample graphs lie beside the repository");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap()
}

fn import(path: &Path) -> Result<Graph, ImportError> {
    parse_json(&std::fs::read(path).unwrap())
}

#[test]
fn supported_samples_evaluate_to_what_pytorch_recorded() {
    let mut n_judged = 0;
    for path in sample_paths() {
        if !path.with_extension("io.npz").exists() {
            continue;
        }
        let Ok(graph) = import(&path) else { continue };
        let samples = samples_for(&graph, &path).unwrap();
        if samples.outputs.is_none() {
            continue;
        }
        let outputs = evaluate(&graph, &samples.inputs, Rounding::PerOp).unwrap();
        let verdict = Standard::of(&graph, &samples).unwrap().judge(&graph, &outputs);
        assert!(verdict.passes(), "{}: {}", stem(&path), verdict.failure().unwrap());
        n_judged += 1;
    }
    assert_eq!(n_judged, 19);
}

#[test]
fn other_samples_list_exactly_what_they_lack() {
    for path in sample_paths() {
        let listed = match import(&path) {
            Ok(_) => None,
            Err(ImportError::Unsupported(nodes)) => Some(nodes),
            Err(ImportError::Malformed(reason)) => panic!("{}: {reason}", stem(&path)),
        };
        let expected = UNSUPPORTED.iter().find(|(name, _)| *name == stem(&path));
        assert_eq!(listed.is_some(), expected.is_some(), "{}", stem(&path));
        let (Some(nodes), Some((name, expected))) = (listed, expected) else { continue };
        if *name == "tiny_llama_dynamic.inf" {
            assert!(nodes.len() > 200, "every node with a symbolic shape is listed");
            continue;
        }
        let targets: BTreeSet<&str> = nodes.iter().map(|node| node.location.target.as_str()).collect();
        assert_eq!(targets.into_iter().collect::<Vec<_>>(), expected.to_vec(), "{name}");
    }
}

#[test]
fn unsupported_nodes_carry_module_type_and_reason() {
    let Err(ImportError::Unsupported(nodes)) = import(&samples().join("tiny_mamba.inf.json")) else {
        panic!("convolutions with padding are not supported")
    };
    let node = nodes.iter().find(|node| node.location.target == "aten.log1p.default").unwrap();
    assert_eq!(node.reason, "this overload is not supported");
    assert!(node.result.starts_with("float32["), "{}", node.result);
    let convolution = nodes.iter().find(|node| node.location.target == "aten.convolution.default").unwrap();
    assert!(!convolution.location.module.is_empty() && !convolution.location.module.contains("L["));
}
