//! Measures one case: times, memory, bytes, and what the simulator says of the NEFF.

use std::borrow::Cow;
use std::time::Instant;

use compiler::eager::eager_bytes;
use compiler::execute::Executable;
use compiler::import::parse_json;
use compiler::metrics::compulsory_bytes;
use compiler::pipeline::{Compiled, Options, Unwatched, compile};
use compiler::roofline::{Roofline, Scores};
use ir::Graph;
use ir::program::Engine;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use simulator::Machine;

use crate::cases::{Case, Source};
use crate::cpu::cpu_seconds;
use crate::memory::peak_bytes;

/// No run is begun after this many seconds of one case.
const MAX_SECONDS: f64 = 60.0;

/// Runs of the checks of one program.
const N_CHECKS: usize = 5;

/// What was measured; parts that the case does not ask for are empty.
#[derive(Default, Serialize, Deserialize)]
pub struct Measured {
    /// Of the document, before import.
    pub n_nodes: usize,
    /// In all streams, kernels counted once for each call.
    pub n_instructions: usize,
    pub neff_bytes: usize,
    /// The most memory of the process after the first compilation to a NEFF.
    pub peak_bytes: u64,
    /// Of these compilations, reading the document.
    pub import_seconds: Vec<f64>,
    /// To the placed graph.
    pub placed_seconds: Vec<f64>,
    /// To the bytes of the NEFF.
    pub neff_seconds: Vec<f64>,
    /// Processor time of a compilation to the NEFF, the mean of all.
    pub cpu_seconds: f64,
    /// Of the simulator's checks.
    pub check_seconds: Vec<f64>,
    pub simulated: Option<Simulated>,
}

/// What is known of the NEFF.
#[derive(Serialize, Deserialize)]
pub struct Simulated {
    pub body_ps: u64,
    pub total_ps: u64,
    /// What the scheduler expected of the body; absent where there is more than one kernel.
    pub estimated_ps: Option<u64>,
    pub hbm_bytes: u64,
    /// Of the imported graph.
    pub compulsory_bytes: u64,
    /// What eager's kernels move.
    pub eager_bytes: u64,
    /// Of all scores that the model's products make.
    pub roofline_ps: u64,
    /// Of the scores that some query sees.
    pub seen_roofline_ps: u64,
    pub roofline_engine: String,
    /// The roofline's product part alone.
    pub ideal_pe_ps: u64,
}

/// Measures a case in this process.
pub fn measure(case: &Case) -> Measured {
    let source = (case.source)();
    let mut measured = Measured::default();
    let options = Options { outline: case.outlining, ..Options::default() };
    let (start, start_cpu) = (Instant::now(), cpu_seconds());
    let mut last = None;
    while measured.neff_seconds.len() < case.n_runs && start.elapsed().as_secs_f64() < MAX_SECONDS {
        drop(last.take());
        let (seconds, made) = timed(|| compiled(&source, &options));
        if measured.neff_seconds.is_empty() {
            measured.peak_bytes = peak_bytes();
        }
        measured.neff_seconds.push(seconds);
        last = Some(made);
    }
    measured.cpu_seconds = (cpu_seconds() - start_cpu) / measured.neff_seconds.len() as f64;
    let last = last.expect("there is a run");
    if case.is_placed {
        let options = Options { stop_after: Some("place".to_owned()), ..options };
        measured.placed_seconds = (0..case.n_runs).map(|_| timed(|| compiled(&source, &options)).0).collect();
    }
    if matches!(source, Source::Document(_)) {
        measured.import_seconds = (0..case.n_runs).map(|_| timed(|| imported(&source)).0).collect();
    }
    let imported = imported(&source);
    let neff = last.neff.as_deref().expect("the pipeline runs to its end");
    (measured.n_nodes, measured.neff_bytes) = (n_nodes(&source), neff.len());
    if case.is_checked {
        let program = last.program.as_ref().expect("the graph is one kernel");
        // A machine without a file is checked every time.
        let machine = Machine::from_program(program).expect("every tile has an address");
        measured.n_instructions = Engine::ALL.iter().map(|&engine| machine.stream(engine).len()).sum();
        measured.check_seconds = (0..N_CHECKS).map(|_| timed(|| assert!(machine.check().is_empty())).0).collect();
    }
    if case.is_simulated {
        let executable = Executable::load(neff).expect("the program is sound");
        measured.n_instructions = executable.machine().n_instructions();
        measured.simulated = Some(simulated(&executable, &last, &imported));
    }
    measured
}

fn timed<T>(function: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let result = function();
    (start.elapsed().as_secs_f64(), result)
}

fn n_nodes(source: &Source) -> usize {
    match source {
        Source::Document(text) => {
            let document: Value = serde_json::from_str(text).expect("the document is JSON");
            document["nodes"].as_array().map_or(0, Vec::len)
        }
        Source::Graph(graph) => graph.n_nodes(),
    }
}

fn imported(source: &Source) -> Cow<'_, Graph> {
    match source {
        Source::Document(text) => Cow::Owned(parse_json(text.as_bytes()).expect("the document imports")),
        Source::Graph(graph) => Cow::Borrowed(graph),
    }
}

fn compiled(source: &Source, options: &Options) -> Compiled {
    compile(&imported(source), options, &mut Unwatched).expect("the graph compiles")
}

fn simulated(executable: &Executable, compiled: &Compiled, imported: &Graph) -> Simulated {
    let timeline = executable.timeline().expect("a sound program ends");
    let compulsory_bytes = compulsory_bytes(imported);
    let target = executable.target().target();
    let roofline = |scores| Roofline::of(&compiled.graph, compulsory_bytes, target, scores);
    let (roofline, seen) = (roofline(Scores::All), roofline(Scores::Seen));
    let schedule = compiled.passes.iter().find(|pass| pass.name == "schedule");
    Simulated {
        body_ps: timeline.body_ps,
        total_ps: timeline.total_ps,
        estimated_ps: compiled.program.as_ref().and(schedule).map(|pass| pass.statistics.get("estimated_ps")),
        hbm_bytes: timeline.hbm_read_bytes + timeline.hbm_write_bytes,
        compulsory_bytes,
        eager_bytes: eager_bytes(imported),
        roofline_ps: roofline.bound_ps(),
        seen_roofline_ps: seen.bound_ps(),
        roofline_engine: roofline.bound_by().to_owned(),
        ideal_pe_ps: roofline.pe_ps,
    }
}
