//! Graphs of the repository, compiled and run.

use std::path::{Path, PathBuf};

use compiler::execute::Executable;
use compiler::pipeline::{Compiled, Options, Unwatched, compile};
use compiler::samples::{DEFAULT_SEED, Samples, samples_for, seeded};
use compiler::verdict::Standard;
use ir::Graph;
use ir::graph::InputRole;
use ir::target::TargetName;
use passes::Numerics;

#[path = "../graphs/list.rs"]
mod list;
#[path = "../graphs/stacked.rs"]
pub mod stacked;

pub use list::GRAPHS;

pub fn graph_path(name: &str) -> PathBuf {
    list::graph_path(Path::new(env!("CARGO_MANIFEST_DIR")), name)
}

pub fn sample_graph(name: &str) -> Graph {
    compiler::import::read_graph(&graph_path(name)).expect("the graph imports")
}

/// A captured graph as its document; `path` is in the repository.
pub fn document(path: &str) -> serde_json::Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    serde_json::from_slice(&std::fs::read(path).expect("the file is there")).expect("the file is JSON")
}

pub fn imported(document: &serde_json::Value) -> Graph {
    compiler::import::parse_json(document.to_string().as_bytes()).unwrap_or_else(|error| panic!("{error:?}"))
}

/// The `.ir` cases by name.
pub fn cases() -> Vec<(String, Graph)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let entries = std::fs::read_dir(folder).expect("there are cases");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "ir"));
    paths.sort();
    let parsed = paths.into_iter().map(|path| {
        let name = path.file_stem().expect("cases have names").to_string_lossy().into_owned();
        let graph = compiler::import::read_graph(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, graph)
    });
    parsed.collect()
}

pub fn options(target: TargetName, numerics: Numerics) -> Options {
    Options { target, numerics, ..Options::default() }
}

pub fn compiled(graph: &Graph, options: &Options) -> Compiled {
    compile(graph, options, &mut Unwatched).unwrap_or_else(|error| panic!("{}: {error}", graph.name))
}

pub fn neff_of(graph: &Graph, options: &Options) -> Vec<u8> {
    compiled(graph, options).neff.expect("the pipeline runs to its end")
}

/// Compiles, checks and runs a graph, and judges its outputs.
///
/// # Errors
/// What is wrong, in a sentence.
pub fn judge(graph: &Graph, samples: &Samples, options: &Options) -> Result<(), String> {
    let standard = Standard::of(graph, samples).map_err(|error| error.to_string())?;
    let compiled = compile(graph, options, &mut Unwatched).map_err(|error| error.to_string())?;
    let executable = Executable::load(&compiled.neff.expect("the pipeline runs to its end"));
    let executable = executable.map_err(|error| error.to_string())?;
    let outputs = executable.run_values(&samples.inputs).map_err(|error| error.to_string())?;
    match standard.judge(graph, &outputs).failure() {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

/// Recorded values of a sample graph.
pub fn recorded(name: &str, graph: &Graph) -> Samples {
    samples_for(graph, &graph_path(name)).expect("values are recorded")
}

/// Values made for a case.
pub fn made(graph: &Graph) -> Samples {
    seeded(graph, DEFAULT_SEED)
}

/// Values made for a model: its matrices keep the size of what passes through them, so that no part of
/// the model drowns in the errors of another.
pub fn made_for_model(graph: &Graph, seed: u64) -> Samples {
    let mut samples = seeded(graph, seed);
    for (input, value) in graph.inputs.iter().zip(&mut samples.inputs) {
        let ty = graph.ty(input.value);
        if input.role == InputRole::Static && ty.rank() == 2 && ty.dtype.is_float() {
            let scale = 1.0 / (ty.shape[1] as f64).sqrt();
            *value = value.map_float(|number| number * scale).expect("they are floats").rounded(ty.dtype);
        }
    }
    samples
}
