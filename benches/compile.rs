//! Backend compile time in one process and without a cache: a document's bytes to a NEFF's bytes.
//!
//! Tracing by PyTorch is not part of it. The README's figures are this benchmark's medians.

use std::path::Path;

use compiler::import::parse_json;
use compiler::pipeline::{Options, Unwatched, compile};
use divan::Bencher;

const GRAPHS: [&str; 4] = ["rms_norm_naive_bf16", "softmax_naive_f32", "bert_layer_none", "tiny_llama_none"];

fn main() {
    divan::main();
}

#[divan::bench(args = GRAPHS, sample_count = 50, sample_size = 1)]
fn document_to_neff(bencher: Bencher<'_, '_>, name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/graphs/{name}.inf.json"));
    let document = std::fs::read(path).expect("the repository has this graph");
    bencher.bench(|| {
        let graph = parse_json(&document).expect("the graph imports");
        compile(&graph, &Options::default(), &mut Unwatched).expect("the graph compiles").neff
    });
}
