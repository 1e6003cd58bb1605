//! The graphs of this folder, for every test that runs all of them. Included by path.

use std::path::{Path, PathBuf};

/// Graphs with recorded values, but for the larger training graphs, whose values are made.
pub const GRAPHS: [&str; 19] = [
    "rms_norm_naive_bf16",
    "rms_norm_builtin_bf16",
    "rms_norm_naive_f32_ragged",
    "softmax_naive_f32",
    "softmax_builtin_f32",
    "mlp",
    "elementwise_broadcast",
    "bert_layer_none",
    "bert_layer_core",
    "tiny_vit",
    "tiny_bert_mlm",
    "tiny_llama_none",
    "tiny_llama_core",
    "tiny_llama_bf16",
    "tiny_decode_kvcache",
    "linear_xent_train.fw",
    "linear_xent_train.bw",
    "tiny_llama_train.fw",
    "tiny_gpt2_train_core.fw",
];

/// The file of a graph; `root` is the repository. A name that does not say of what kind the graph is
/// stands for inference.
pub fn graph_path(root: &Path, name: &str) -> PathBuf {
    let kind = if name.contains('.') { "" } else { ".inf" };
    root.join(format!("tests/graphs/{name}{kind}.json"))
}
