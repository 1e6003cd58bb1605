//! Compile times of large graphs and programs, pass by pass, in one process and without a cache.
//!
//! `make bench-scale` prints for every graph the median milliseconds of each pass and of the verifier
//! after it, the number of instructions, and the largest memory that the process has had. Arguments
//! choose graphs by parts of their names: `make bench-scale SCALE="dag matmul"`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use compiler::execute::Executable;
use compiler::import::{parse_json, read_graph};
use compiler::pipeline::{Options, Outlining, Stage, Unwatched, Watcher, compile};
use ir::program::Engine;
use ir::target::TargetName;
use ir::{Graph, Program, ValueId};
use passes::manager::{PassReport, Phase, Unit};
use passes::schedule::{ScheduleOptions, schedule};
use simulator::{Machine, Timeline};

use memory::peak_bytes;
use pointwise::pointwise_dag;
use product::product;

/// Runs of each graph; the median counts.
const N_RUNS: usize = 5;

#[path = "common/memory.rs"]
mod memory;
#[path = "common/pointwise.rs"]
mod pointwise;
#[path = "common/product.rs"]
mod product;
#[path = "../tests/graphs/stacked.rs"]
mod stacked_layers;

struct Case {
    name: String,
    graph: Box<dyn Fn() -> Graph>,
}

fn main() {
    // Cargo adds flags of its own.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    for case in cases() {
        if wanted.is_empty() || wanted.iter().any(|part| case.name.contains(part.as_str())) {
            report(&case);
        }
    }
    for (name, document) in outlined_cases() {
        if wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())) {
            report_outlined(&name, &document());
        }
    }
}

type Document = Box<dyn Fn() -> String>;

/// Models of equal layers as captured: blocks of hidden size 128, and the whole of Llama-7B's layers.
fn outlined_cases() -> Vec<(String, Document)> {
    let llama = |n_tokens: u64, sizes: &[(u64, u64)], n_layers: usize| -> Document {
        let mut sizes = sizes.to_vec();
        sizes.push((2048, n_tokens));
        Box::new(move || {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/graphs/llama7b_block_core.inf.json");
            let block = serde_json::from_slice(&std::fs::read(path).expect("the file is there"));
            let block = stacked_layers::scaled(&block.expect("the file is JSON"), &sizes);
            stacked_layers::stacked(&block, n_layers, |_, _| {}).to_string()
        })
    };
    let mut cases: Vec<(String, Document)> = Vec::new();
    let small: Vec<(u64, u64)> = stacked_layers::SMALL_LLAMA.into_iter().filter(|(from, _)| *from != 2048).collect();
    for n_layers in [4, 64] {
        cases.push((format!("blocks_{n_layers}"), llama(64, &small, n_layers)));
    }
    for (n_tokens, n_layers) in [(512, 1), (512, 32), (2048, 1), (2048, 32)] {
        cases.push((format!("llama7b_{n_tokens}x{n_layers}"), llama(n_tokens, &[], n_layers)));
    }
    cases
}

/// A model as a user compiles it: times of import and of all passes, and what the NEFF holds.
fn report_outlined(name: &str, document: &str) {
    let mut rows: BTreeMap<(usize, String), Vec<f64>> = BTreeMap::new();
    let mut last = None;
    for _ in 0..N_RUNS {
        let start = Instant::now();
        let graph = parse_json(document.as_bytes()).expect("the document imports");
        let import = start.elapsed().as_secs_f64() * 1e3;
        rows.entry((0, "import".to_owned())).or_default().push(import);
        let compiled = match compile(&graph, &Options::default(), &mut Unwatched) {
            Ok(compiled) => compiled,
            Err(error) => {
                println!("\n{name}: {error}");
                return;
            }
        };
        for (position, pass) in compiled.passes.iter().enumerate() {
            rows.entry((position + 1, pass.name.to_owned())).or_default().push(pass.seconds * 1e3);
        }
        rows.entry((usize::MAX, "compile".to_owned())).or_default().push(compiled.seconds * 1e3);
        last = Some((graph.n_nodes(), compiled.neff.expect("the pipeline runs to its end")));
    }
    let (n_nodes, neff) = last.expect("there are runs");
    println!("\n{name} ({n_nodes} nodes)");
    for ((_, row), mut values) in rows {
        values.sort_by(f64::total_cmp);
        println!("  {row:24} {:10.2} ms   (least {:.2})", values[values.len() / 2], values[0]);
    }
    println!("  NEFF {} bytes, {} bytes of memory at most", neff.len(), peak_bytes());
    let start = Instant::now();
    let executable = Executable::load(&neff).expect("the program is sound");
    let load = start.elapsed().as_secs_f64() * 1e3;
    let timeline = executable.timeline().expect("a sound program ends");
    let simulated = start.elapsed().as_secs_f64() * 1e3 - load;
    let machine = executable.machine();
    println!(
        "  {} kernels, {} calls, {} instructions, predicted {:.3} us (loaded in {load:.0} ms, simulated in {simulated:.0} ms)",
        machine.kernels().count().max(1),
        machine.calls().len().max(1),
        machine.n_instructions(),
        timeline.body_ps as f64 / 1e6,
    );
}

fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = Vec::new();
    let mut add = |name: String, graph: Box<dyn Fn() -> Graph>| all.push(Case { name, graph });
    for n_nodes in [1_000, 2_000, 10_000, 100_000] {
        add(format!("dag_{n_nodes}"), Box::new(move || pointwise_dag(n_nodes)));
    }
    for (n_rows, n_inner, n_columns) in [(2048, 2048, 2048), (2048, 4096, 11008)] {
        for lhs in ["mk", "km"] {
            let name = format!("matmul_{lhs}_{n_rows}x{n_inner}x{n_columns}");
            add(name, Box::new(move || product(lhs == "km", [n_rows, n_inner, n_columns])));
        }
    }
    for n_layers in [1, 8, 24] {
        add(format!("bert_base_{n_layers}"), Box::new(move || stacked("bert_base_layer", n_layers)));
    }
    all
}

/// A layer of the sample graphs, its first dynamic input fed by the first output of the one before.
fn stacked(name: &str, n_layers: usize) -> Graph {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("benches/graphs/{name}.inf.json"));
    let layer = read_graph(&path).expect("the graph imports");
    let is_fed = |position: usize| {
        let of_type = |at: &usize| layer.ty(layer.inputs[*at].value) == layer.ty(output_of(&layer));
        (0..layer.inputs.len()).find(of_type) == Some(position)
    };
    let mut graph = Graph::new(format!("{name}_{n_layers}"));
    let mut last: Option<ValueId> = None;
    for layer_idx in 0..n_layers {
        let mut map: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        for (position, input) in layer.inputs.iter().enumerate() {
            let value = match last.filter(|_| is_fed(position)) {
                Some(last) => last,
                None => {
                    let name = format!("{}_{layer_idx}", input.name);
                    let value = graph.push_input(name, layer.ty(input.value).clone(), input.role);
                    let latest = graph.inputs.len() - 1;
                    graph.inputs[latest].strides = input.strides.clone();
                    value
                }
            };
            map.insert(input.value, value);
        }
        for (_, node) in layer.nodes() {
            let operands: Vec<ValueId> = node.operands.iter().map(|operand| map[operand]).collect();
            let copy = graph.push(node.op.clone(), &operands, &[]).expect("the layer is well typed");
            map.extend(node.results.iter().copied().zip(graph.node(copy).results.clone()));
        }
        last = Some(map[&output_of(&layer)]);
    }
    graph.push_output(last.expect("there are layers"));
    graph
}

fn output_of(layer: &Graph) -> ValueId {
    layer.outputs[0].value.expect("the layer has an output")
}

/// Keeps the time of every graph pass.
#[derive(Default)]
struct Passes {
    milliseconds: Vec<(&'static str, f64)>,
}

impl Watcher for Passes {
    fn after(&mut self, report: &PassReport, _: Stage<'_>) {
        self.milliseconds.push((report.name, report.seconds * 1e3));
    }
}

/// What one run took, in order.
#[derive(Default)]
struct Times {
    rows: Vec<(String, f64)>,
}

impl Times {
    fn add<T>(&mut self, name: &str, function: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = function();
        self.rows.push((name.to_owned(), start.elapsed().as_secs_f64() * 1e3));
        result
    }

    fn verify(&mut self, program: &Program, phase: Phase) {
        let faults = self.add(&format!("verify {phase}"), || program.faults(phase));
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}

/// Passes after placement one by one, each with its verifier; a program's bytes at the end.
fn run(graph: &Graph) -> (Times, Program, Vec<u8>, u64) {
    let mut passes = Passes::default();
    // Each pass alone takes one program.
    let options = Options { stop_after: Some("place".to_owned()), outline: Outlining::Off, ..Options::default() };
    let placed = compile(graph, &options, &mut passes).expect("the graph is placed").graph;
    let mut times = Times::default();
    times.rows.extend(passes.milliseconds.iter().map(|(name, milliseconds)| ((*name).to_owned(), *milliseconds)));
    let lowered = times.add("lower", || codegen::lower(&placed, TargetName::Trn2));
    let (program, _) = lowered.unwrap_or_else(|refused| panic!("{}", refused[0].reason));
    times.verify(&program, Phase::Lowered);
    let (program, statistics) = times.add("schedule", || schedule(program, &ScheduleOptions::default()));
    times.verify(&program, Phase::Scheduled);
    let (program, _) = times.add("allocate", || passes::allocate::allocate(program)).expect("the program fits");
    times.verify(&program, Phase::Allocated);
    let synchronized = times.add("synchronize", || passes::synchronize::synchronize(program));
    let (program, _) = synchronized.expect("there are semaphores enough");
    times.verify(&program, Phase::Synchronized);
    let object = times.add("encode", || codegen::kernel_object(&program)).expect("every record has room");
    let kernel = times.add("link", || codegen::link(&program, &object)).expect("every symbol has a value");
    let neff = times.add("package", || codegen::package(&placed, &program, &kernel)).expect("the container has room");
    (times, program, neff, statistics.estimated_ps)
}

fn report(case: &Case) {
    let graph = (case.graph)();
    let mut runs = Vec::new();
    let mut last = None;
    let mut spent = 0.0;
    for _ in 0..N_RUNS {
        let start = Instant::now();
        let (times, program, neff, estimated_ps) = run(&graph);
        spent += start.elapsed().as_secs_f64();
        runs.push(times);
        last = Some((program, neff, estimated_ps));
        if spent > 60.0 {
            break;
        }
    }
    let (program, neff, estimated_ps) = last.expect("there are runs");
    let machine = Machine::from_program(&program).expect("every tile has an address");
    let mut checks = [(); N_RUNS].map(|()| {
        let start = Instant::now();
        let findings = machine.check();
        assert!(findings.is_empty(), "{findings}");
        start.elapsed().as_secs_f64()
    });
    checks.sort_by(f64::total_cmp);
    println!("\n{} ({} nodes, {} instructions)", case.name, graph.n_nodes(), program.instructions.len());
    let (mut total, mut after_placement) = (0.0, 0.0);
    let mut is_placed = false;
    for position in 0..runs[0].rows.len() {
        let name = &runs[0].rows[position].0;
        let mut values: Vec<f64> = runs.iter().map(|times| times.rows[position].1).collect();
        values.sort_by(f64::total_cmp);
        let median = values[values.len() / 2];
        total += median;
        after_placement += if is_placed { median } else { 0.0 };
        is_placed |= name == "place";
        println!("  {name:24} {median:10.2} ms   (least {:.2})", values[0]);
    }
    println!("  {:24} {total:10.2} ms, {after_placement:.2} from the placed graph", "all");
    let rate = program.instructions.len() as f64 / checks[N_RUNS / 2] / 1e6;
    println!("  {:24} {rate:10.2} million instructions a second", "simulator's checks");
    println!("  NEFF {} bytes, {} bytes of memory at most", neff.len(), peak_bytes());
    let start = Instant::now();
    let timeline = machine.timeline().expect("a sound program ends");
    println!(
        "  predicted {:.3} us, scheduler {:.3} us (simulated in {:.0} ms)",
        timeline.body_ps as f64 / 1e6,
        estimated_ps as f64 / 1e6,
        start.elapsed().as_secs_f64() * 1e3
    );
    println!("  tensor engine: {}", tensor_engine_text(&timeline));
}

/// When the tensor engine starts and ends, and how long it stands still between.
fn tensor_engine_text(timeline: &Timeline) -> String {
    let on_pe = timeline.spans.iter().filter(|span| span.instruction.engine == Engine::Pe);
    let mut spans: Vec<(i64, i64)> = on_pe.map(|span| (span.start_ps, span.end_ps)).collect();
    spans.sort_unstable();
    let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return String::from("no work") };
    let gaps = spans.windows(2).map(|pair| (pair[1].0 - pair[0].1).max(0));
    let microseconds = |picoseconds: i64| picoseconds as f64 / 1e6;
    format!(
        "from {:.3} to {:.3} us of {:.3}, {:.3} us of gaps between, {:.3} us in gaps of more than 0.2 us",
        microseconds(first.0),
        microseconds(last.1),
        timeline.body_ps as f64 / 1e6,
        microseconds(gaps.clone().sum()),
        microseconds(gaps.filter(|&gap| gap > 200_000).sum())
    )
}
