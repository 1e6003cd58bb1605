//! The graphs of the table, and what is measured of each.

use std::path::Path;

use compiler::pipeline::Outlining;
use ir::text::parse_graph;
use ir::{Graph, Op};
use serde_json::{Value, json};

use crate::perceptron::perceptron;
use crate::pointwise::pointwise_dag;
use crate::product::product;
use crate::results_folder;
use crate::stacked_layers::{scaled, stacked};

/// Sizes of `llama_like_1024` and what they become in the small block: hidden size 128, 2 heads over 1,
/// 32 tokens.
const SMALL_BLOCK: [(u64, u64); 6] = [(1024, 128), (2816, 352), (512, 64), (256, 32), (16, 2), (8, 1)];

/// The captured Llama-7B in the folder of results.
const LLAMA7B: &str = "graphs/llama7b.inf.json";

/// What is compiled.
pub enum Source {
    /// A captured document; reading it is part of its compilation.
    Document(String),
    Graph(Graph),
}

/// One graph and what is measured of it.
pub struct Case {
    pub name: &'static str,
    pub source: fn() -> Source,
    /// Compilations timed.
    pub n_runs: usize,
    /// Compilations to the placed graph are timed too.
    pub is_placed: bool,
    /// The NEFF is simulated.
    pub is_simulated: bool,
    /// The simulator's checks of the program are timed.
    pub is_checked: bool,
    pub outlining: Outlining,
    /// A file in the folder of results that the source reads.
    pub needs: Option<&'static str>,
}

const COMPILED: Case = Case {
    name: "",
    source: || Source::Graph(Graph::new("")),
    n_runs: 5,
    is_placed: false,
    is_simulated: false,
    is_checked: false,
    outlining: Outlining::Auto,
    needs: None,
};

const SIMULATED: Case = Case { n_runs: 1, is_simulated: true, ..COMPILED };

/// Every case.
pub const ALL: &[Case] = &[
    Case { name: "block", source: || captured("llama_like_1024"), is_placed: true, is_simulated: true, ..COMPILED },
    Case {
        name: "llama7b_block_core",
        source: || captured("llama7b_block_core"),
        is_placed: true,
        is_simulated: true,
        is_checked: true,
        ..COMPILED
    },
    Case { name: "blocks_4", source: || small_blocks(4), ..COMPILED },
    Case { name: "blocks_64", source: || small_blocks(64), ..COMPILED },
    Case { name: "large_blocks_4", source: || large_blocks(4), ..COMPILED },
    Case { name: "large_blocks_64", source: || large_blocks(64), ..COMPILED },
    Case { name: "dag_1000", source: || Source::Graph(pointwise_dag(1_000)), ..COMPILED },
    Case { name: "dag_2000", source: || Source::Graph(pointwise_dag(2_000)), ..COMPILED },
    Case { name: "dag_10000", source: || Source::Graph(pointwise_dag(10_000)), ..COMPILED },
    Case { name: "dag_100000", source: || Source::Graph(pointwise_dag(100_000)), ..COMPILED },
    Case { name: "llama7b_layers", source: || llama7b_layers(32), ..COMPILED },
    Case { name: "llama7b", source: llama7b, needs: Some(LLAMA7B), ..COMPILED },
    Case { name: "llama3_8b_block_512", source: || captured("llama3_8b_block_core_512"), ..SIMULATED },
    Case { name: "llama3_8b_block_core", source: || captured("llama3_8b_block_core"), ..SIMULATED },
    Case { name: "llama7b_block_none", source: || captured("llama7b_block_none"), ..SIMULATED },
    Case { name: "product_km", source: || Source::Graph(product(true, [2048; 3])), ..SIMULATED },
    Case { name: "product_mk", source: || Source::Graph(product(false, [2048; 3])), ..SIMULATED },
    Case { name: "head_transposed", source: || Source::Graph(head(true)), ..SIMULATED },
    Case { name: "head", source: || Source::Graph(head(false)), ..SIMULATED },
    Case {
        name: "perceptron",
        source: || Source::Graph(perceptron()),
        n_runs: 1,
        is_checked: true,
        outlining: Outlining::Off,
        ..COMPILED
    },
];

fn text_of(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("benches/graphs/{name}.inf.json"));
    std::fs::read_to_string(path).expect("the repository has this graph")
}

fn document_of(name: &str) -> Value {
    serde_json::from_str(&text_of(name)).expect("the graph is JSON")
}

fn captured(name: &str) -> Source {
    Source::Document(text_of(name))
}

fn small_blocks(n_blocks: usize) -> Source {
    let block = scaled(&document_of("llama_like_1024"), &SMALL_BLOCK);
    Source::Document(stacked(&block, n_blocks, |_, _| {}).to_string())
}

fn large_blocks(n_blocks: usize) -> Source {
    Source::Document(stacked(&document_of("llama_like_1024"), n_blocks, |_, _| {}).to_string())
}

/// All of Llama-7B at 2,048 tokens, as `benches/capture.py` writes it.
fn llama7b() -> Source {
    Source::Document(std::fs::read_to_string(results_folder().join(LLAMA7B)).expect("the file is there"))
}

/// The decoder layers of Llama-7B at 2,048 tokens, without the embedding and the projection to logits.
fn llama7b_layers(n_layers: usize) -> Source {
    Source::Document(stacked(&document_of("llama7b_block_core"), n_layers, |_, _| {}).to_string())
}

/// One attention head of 512 queries and keys of 128 features, no mask; queries, keys and values lie as
/// [128, 512], or as [512, 128].
fn head(is_transposed: bool) -> Graph {
    let stored = if is_transposed { "128, 512" } else { "512, 128" };
    let mut text = String::from("graph @head {\n");
    for (value, name) in ["q", "k", "v"].into_iter().enumerate() {
        text += &format!("  input %{value} \"{name}\": bf16[{stored}] dynamic\n");
    }
    let mut operands = [0, 1, 2];
    if is_transposed {
        for operand in &mut operands {
            text += &format!("  %{} = transpose %{operand} {{perm = [1, 0]}} : bf16[512, 128]\n", *operand + 3);
            *operand += 3;
        }
    }
    let ([query, key, value], result) = (operands, operands[2] + 1);
    text += &format!(
        "  %{result} = attention %{query}, %{key}, %{value} {{scale = 0.088388346, causal = [], empty = zero, \
         logsumexp = 0, dtype = bf16}} : bf16[512, 128]\n  output %{result} \"\"\n}}"
    );
    parse_graph("head", &text).expect("the text is well formed")
}

/// What peers compile too, as documents.
pub fn for_peers() -> Vec<(&'static str, String)> {
    let text = |source: Source| match source {
        Source::Document(text) => text,
        Source::Graph(graph) => pointwise_document(&graph).to_string(),
    };
    let names = ["block", "blocks_64", "dag_2000", "dag_10000"];
    let cases = names.into_iter().map(|name| ALL.iter().find(|case| case.name == name).expect("it is a case"));
    cases.map(|case| (case.name, text((case.source)()))).collect()
}

/// A graph of pointwise nodes in the form that a capture has.
fn pointwise_document(graph: &Graph) -> Value {
    let out = |value| json!({ "shape": graph.ty(value).shape.to_vec(), "dtype": "float32" });
    let inputs = graph.inputs.iter();
    let inputs = inputs.map(|input| json!({ "id": input.value.0, "role": "input", "out": out(input.value) }));
    let nodes = graph.nodes().map(|(_, node)| {
        let overload = match &node.op {
            Op::Add(_) => "add.Tensor",
            Op::Mul(_) => "mul.Tensor",
            Op::Sub(_) => "sub.Tensor",
            Op::Maximum(_) => "maximum.default",
            Op::Relu(_) => "relu.default",
            Op::Tanh(_) => "tanh.default",
            Op::Sigmoid(_) => "sigmoid.default",
            op => unreachable!("the random graph has no `{}`", op.name()),
        };
        let operands: Vec<Value> = node.operands.iter().map(|operand| json!({ "ref": operand.0 })).collect();
        let result = node.results[0];
        json!({ "id": result.0, "target": format!("aten.{overload}"), "args": operands, "kwargs": {}, "out": out(result) })
    });
    let (inputs, nodes): (Vec<Value>, Vec<Value>) = (inputs.collect(), nodes.collect());
    let outputs = graph.outputs.iter().filter_map(|output| output.value).map(|value| json!({ "ref": value.0 }));
    json!({ "inputs": inputs, "nodes": nodes, "outputs": outputs.collect::<Vec<Value>>() })
}
