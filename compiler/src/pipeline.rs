//! From a graph to a NEFF: the passes in order, each verified, timed and told to a watcher.
//!
//! A panic anywhere below becomes an internal error: no input may end the process.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use ir::graph::{Location, LocationId};
use ir::ops::Constant;
use ir::target::TargetName;
use ir::{Graph, Program, ValueId};
use passes::allocate::{AllocateStatistics, allocate};
use passes::fuse::{FuseOptions, FuseReport, Fusion, fuse_with};
use passes::manager::{
    Clock, FnPass, Fuel, Observer, Pass, PassContext, PassError, PassReport, Phase, Progress, RunOptions, Statistics,
    Unit, run,
};
use passes::schedule::{LoopReport, ScheduleOptions, schedule};
use passes::synchronize::synchronize_below;
use passes::{Numerics, canonicalize};

use crate::error::Error;
use crate::import::UnsupportedNode;
use crate::naming::main_name;

mod assembly;
mod outlined;

pub use outlined::Outlined;

/// Names of all passes, in order. Those between the first and the last run for each function.
pub const PASSES: [&str; 11] = [
    passes::outline::NAME,
    canonicalize::NAME,
    passes::fuse::NAME,
    passes::index_masks::NAME,
    EXPAND,
    PLACE,
    LOWER,
    "schedule",
    "allocate",
    "synchronize",
    PACKAGE,
];

/// Stack of the thread that compiles.
const STACK_BYTES: usize = 64 << 20;

const EXPAND: &str = "expand_long_rows";
const PLACE: &str = "place";
const LOWER: &str = "lower";
const PACKAGE: &str = "package";

/// The pass that comes after this one, or first.
pub fn pass_after(pass: Option<&str>) -> Option<&'static str> {
    let Some(pass) = pass else { return PASSES.first().copied() };
    PASSES.iter().skip_while(|&&name| name != pass).nth(1).copied()
}

/// How to compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The chip.
    pub target: TargetName,
    /// How far rewrites may change bits.
    pub numerics: Numerics,
    /// Passes after which the unit is printed; `all` stands for every pass.
    pub print_after: Vec<String>,
    /// The last pass to run.
    pub stop_after: Option<String>,
    /// Changes that passes may make in all; `None` without limit.
    pub fuel: Option<u64>,
    /// Rules of `fuse` that are not used.
    pub disabled_rules: Vec<String>,
    /// Whether repeated layers become kernels that are called.
    pub outline: Outlining,
}

/// Whether repeated layers are compiled once and called.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Outlining {
    /// Where it pays.
    #[default]
    Auto,
    /// Never: the program is one kernel.
    Off,
}

impl Outlining {
    /// Name in options.
    pub const fn name(self) -> &'static str {
        match self {
            Outlining::Auto => "auto",
            Outlining::Off => "off",
        }
    }
}

impl std::str::FromStr for Outlining {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Outlining::Auto, Outlining::Off];
        known.into_iter().find(|outlining| outlining.name() == text).ok_or_else(|| "there are auto and off".to_owned())
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            target: TargetName::Trn2,
            numerics: Numerics::Contract,
            print_after: Vec::new(),
            stop_after: None,
            fuel: None,
            disabled_rules: Vec::new(),
            outline: Outlining::Auto,
        }
    }
}

/// What a pass has left behind.
#[derive(Copy, Clone, Debug)]
pub enum Stage<'a> {
    Graph(&'a Graph),
    Program(&'a Program),
}

impl Stage<'_> {
    /// The text form.
    pub fn text(self) -> String {
        match self {
            Stage::Graph(graph) => graph.to_string(),
            Stage::Program(program) => program.to_string(),
        }
    }
}

/// Is told of every pass, on the thread that compiles.
pub trait Watcher: Send {
    /// A pass has run and its result is verified.
    fn after(&mut self, _: &PassReport, _: Stage<'_>) {}

    /// The stage after a pass that `print_after` names.
    fn print(&mut self, _: &'static str, _: Stage<'_>) {}

    /// What is being done now, for as long as it lasts.
    fn show(&mut self, _: &str) {}

    /// Something that the user should know though the compilation goes on.
    fn notice(&mut self, _: &str) {}
}

/// A watcher that ignores everything.
#[derive(Copy, Clone, Debug, Default)]
pub struct Unwatched;

impl Watcher for Unwatched {}

/// A fused op as reports show it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FusionEntry {
    /// Name of the op.
    pub op: String,
    /// Numerics class of its proof.
    pub class: String,
    /// The FX nodes it stands for, with their source lines where known.
    pub sources: Vec<String>,
    /// Rules of its proof.
    pub rules: Vec<String>,
}

/// The tile loop of a node: all instructions that came of it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LoopEntry {
    /// The node, with its module.
    pub node: String,
    pub n_instructions: usize,
    /// `pe`, `act`, `dve`, `pool`, `sp` or `dma`, whichever has most to do, or `chain` where
    /// instructions that need one another take longer.
    pub limit: String,
    /// Work of the limit: what any schedule of the loop takes.
    pub bound_ps: u64,
    /// By the schedule: from the limit's first start to its last end, less its work for other loops.
    pub taken_ps: u64,
}

impl LoopEntry {
    fn of(found: &LoopReport, locations: &[Location]) -> Self {
        let &LoopReport { locations: ref sources, n_instructions, limit, bound_ps, taken_ps } = found;
        let (node, limit) = (main_name(locations, sources), limit.name().to_owned());
        LoopEntry { node, n_instructions, limit, bound_ps, taken_ps }
    }
}

/// What a compilation has made. Later parts are missing where `stop_after` ended it.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The graph that the last graph pass left; of an outlined one the imported graph, with the steps
    /// that its inputs have on the device.
    pub graph: Graph,
    /// The program of a graph that is one kernel.
    pub program: Option<Program>,
    /// The kernels and calls of a graph that is more.
    pub outlined: Option<Outlined>,
    pub neff: Option<Vec<u8>>,
    /// In the order run.
    pub passes: Vec<PassReport>,
    pub seconds: f64,
    pub fusions: Vec<FusionEntry>,
    /// The loops of each distinct kernel, in its order.
    pub loops: Vec<LoopEntry>,
    /// What `fuse` counted.
    pub fuse: FuseReport,
    /// What `allocate` counted.
    pub allocate: AllocateStatistics,
    /// Bytes of the weights that the host hands over in another layout than the graph's; it converts
    /// each once per version.
    pub converted_weight_bytes: u64,
    /// The change that took the last unit of fuel.
    pub last_change: Option<String>,
}

/// Compiles a graph.
///
/// # Errors
/// Unknown pass names, nodes without a lowering, and faults of the compiler, panics included.
pub fn compile(graph: &Graph, options: &Options, watcher: &mut dyn Watcher) -> Result<Compiled, Error> {
    // Passes recurse along chains of nodes, which are longer than a caller's stack may allow.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("neffuse-compile".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, || guarded(|| Pipeline::new(options, watcher)?.run(graph)));
        let thread = thread.map_err(|error| Error::Internal(format!("no thread to compile in: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(Error::Internal("the compiling thread ended".to_owned())))
    })
}

/// Runs a function; a panic in it becomes an internal error.
///
/// # Errors
/// The function's, or its panic.
pub fn guarded<T>(function: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(function)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
        let message = message.unwrap_or_else(|| "without a message".to_owned());
        let place = LAST_PANIC.with_borrow_mut(Option::take).map(|place| format!(" at {place}"));
        Err(Error::Internal(format!("panic{}: {message}", place.unwrap_or_default())))
    })
}

thread_local! {
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Makes panics silent: what [`guarded`] returns tells their place and message.
pub fn silence_panics() {
    std::panic::set_hook(Box::new(|panic| {
        LAST_PANIC.set(panic.location().map(ToString::to_string));
    }));
}

/// The graph with the elements of its static inputs stored in it, which `elements` gives by
/// position. The inputs stay, unread, so that positions keep their meaning.
///
/// # Errors
/// What `elements` says, and elements that do not fill their input's type.
pub fn freeze(graph: &Graph, mut elements: impl FnMut(usize) -> Result<Vec<u8>, Error>) -> Result<Graph, Error> {
    let mut frozen = graph.with_same_inputs();
    let mut map: Vec<Option<ValueId>> = vec![None; graph.n_values()];
    for (position, input) in graph.inputs.iter().enumerate() {
        let ty = graph.ty(input.value);
        map[input.value.index()] = Some(input.value);
        let is_updated = |output: &ir::graph::GraphOutput| {
            output
                .alias
                .and_then(|alias| graph.inputs.get(alias as usize))
                .is_some_and(|found| found.value == input.value)
        };
        // What the graph itself updates differs from call to call.
        if input.role == ir::graph::InputRole::Static && !graph.outputs.iter().any(is_updated) {
            let data = elements(position)?.into();
            let op = Constant { dtype: ty.dtype, shape: ty.shape.clone(), data };
            let constant = frozen.push_value_of(op.into(), &[], &[]);
            let constant =
                constant.map_err(|error| Error::Input(format!("input `{}`: {}", input.name, error.message)))?;
            map[input.value.index()] = Some(constant);
        }
    }
    for (_, node) in graph.nodes() {
        let operands: Vec<ValueId> =
            node.operands.iter().map(|operand| map[operand.index()].expect("operands come first")).collect();
        let copy = frozen.push(node.op.clone(), &operands, &node.locations);
        let copy = copy.map_err(|error| Error::Internal(format!("freezing: {error}")))?;
        for (old, new) in node.results.iter().zip(frozen.node(copy).results.clone()) {
            map[old.index()] = Some(new);
        }
    }
    frozen.outputs = graph.outputs.clone();
    for output in &mut frozen.outputs {
        output.value = output.value.map(|value| map[value.index()].expect("outputs are defined"));
    }
    Ok(frozen)
}

struct WallClock(Instant);

impl Clock for WallClock {
    fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// Keeps the reports and forwards to the watcher.
struct Recorder<'a> {
    watcher: &'a mut dyn Watcher,
    reports: Vec<PassReport>,
}

impl Observer<Graph> for Recorder<'_> {
    fn after(&mut self, report: &PassReport, graph: &Graph) {
        self.reports.push(report.clone());
        self.watcher.after(report, Stage::Graph(graph));
    }

    fn print(&mut self, pass: &'static str, graph: &Graph) {
        self.watcher.print(pass, Stage::Graph(graph));
    }
}

impl Observer<Program> for Recorder<'_> {
    fn after(&mut self, report: &PassReport, program: &Program) {
        self.reports.push(report.clone());
        self.watcher.after(report, Stage::Program(program));
    }

    fn print(&mut self, pass: &'static str, program: &Program) {
        self.watcher.print(pass, Stage::Program(program));
    }
}

struct Pipeline<'a> {
    options: &'a Options,
    run_options: RunOptions,
    clock: WallClock,
    recorder: Recorder<'a>,
    context: PassContext,
    notes: Notes,
}

/// What passes tell beside their results.
#[derive(Default)]
struct Notes {
    /// Nodes that a pass refused, with more than the pass error can carry.
    refused: RefCell<Vec<UnsupportedNode>>,
    fuse: RefCell<FuseReport>,
    allocate: RefCell<AllocateStatistics>,
    loops: RefCell<Vec<LoopEntry>>,
    converted_weight_bytes: Cell<u64>,
}

impl<'a> Pipeline<'a> {
    fn new(options: &'a Options, watcher: &'a mut dyn Watcher) -> Result<Self, Error> {
        let run_options =
            RunOptions { print_after: options.print_after.clone(), stop_after: options.stop_after.clone() };
        run_options.check_names(&PASSES).map_err(|error| usage_error(&error))?;
        Ok(Pipeline {
            options,
            run_options,
            clock: WallClock(Instant::now()),
            recorder: Recorder { watcher, reports: Vec::new() },
            context: PassContext { fuel: Fuel::new(options.fuel), statistics: Statistics::new() },
            notes: Notes::default(),
        })
    }

    fn run(mut self, imported: &Graph) -> Result<Compiled, Error> {
        let start = self.clock.seconds();
        let outline = match self.options.outline {
            Outlining::Auto => passes::outline::outline(imported),
            Outlining::Off => None,
        };
        self.note_outline(imported, outline.as_ref(), self.clock.seconds() - start);
        if self.run_options.stop_after.as_deref() == Some(passes::outline::NAME) {
            return Ok(self.finish(imported.clone(), None, None));
        }
        let Some(outline) = outline else { return self.run_whole(imported) };
        let fuel = self.context.fuel.clone();
        match self.run_outlined(imported, &outline)? {
            Some(made) => Ok(self.finish_outlined(made)),
            None => {
                self.forget_functions(fuel);
                self.run_whole(imported)
            }
        }
    }

    fn run_whole(mut self, imported: &Graph) -> Result<Compiled, Error> {
        let (graph, progress) = self.graph_passes(imported)?;
        self.notes.converted_weight_bytes.set(converted_weight_bytes(imported, &graph));
        if progress == Progress::Stopped {
            return Ok(self.finish(graph, None, None));
        }
        let (program, progress) = self.lower(&graph)?;
        if progress == Progress::Stopped {
            return Ok(self.finish(graph, Some(program), None));
        }
        let semaphores = self.options.target.target().semaphores as usize;
        let (program, progress) = self.program_passes(program, semaphores)?;
        if progress == Progress::Stopped {
            return Ok(self.finish(graph, Some(program), None));
        }
        let neff = self.package(&graph, &program)?;
        Ok(self.finish(graph, Some(program), Some(neff)))
    }

    fn graph_passes(&mut self, imported: &Graph) -> Result<(Graph, Progress), Error> {
        let Pipeline { options, run_options, clock, recorder, context, notes } = self;
        let numerics = options.numerics;
        let canonicalize = canonicalize::pass(numerics);
        let fuse_options = FuseOptions {
            numerics,
            fuel: None,
            disabled_rules: options.disabled_rules.clone(),
            target: options.target,
        };
        let fuse = FnPass {
            name: passes::fuse::NAME,
            establishes: Phase::Fused,
            run: |graph: Graph, context: &mut PassContext| {
                let (fused, report) = fuse_with(&graph, &fuse_options, &mut context.fuel)?;
                context.statistics = report.statistics();
                notes.fuse.replace(report);
                Ok(fused)
            },
        };
        let expand = FnPass {
            name: EXPAND,
            establishes: Phase::Canonical,
            run: |graph: Graph, _: &mut PassContext| {
                let expanded = codegen::expand_long_rows(&graph);
                expanded.map_err(|error| PassError::Internal { pass: EXPAND, message: error.message })
            },
        };
        let place = FnPass {
            name: PLACE,
            establishes: Phase::Placed,
            run: |graph: Graph, _: &mut PassContext| {
                codegen::place(&graph).map_err(|nodes| notes.refuse(&graph, nodes))
            },
        };
        let index_masks = passes::index_masks::pass();
        let list: [&dyn Pass<Graph>; 5] = [&canonicalize, &fuse, &index_masks, &expand, &place];
        let result = run(&list, imported.clone(), context, run_options, clock, recorder);
        result.map_err(|error| notes.error(&imported.name, error))
    }

    fn lower(&mut self, graph: &Graph) -> Result<(Program, Progress), Error> {
        let start = self.clock.seconds();
        let (program, stats) = codegen::lower(graph, self.options.target).map_err(|nodes| {
            let error = self.notes.refuse(graph, nodes);
            self.notes.error(&graph.name, error)
        })?;
        let faults = program.faults(Phase::Lowered);
        if !faults.is_empty() {
            let error = PassError::Broken { pass: LOWER, phase: Phase::Lowered, faults };
            return Err(self.notes.error(&graph.name, error));
        }
        let mut statistics = Statistics::new();
        statistics.add("instructions", stats.n_instructions as u64);
        statistics.add("tiles", stats.n_tiles as u64);
        statistics.add("moves", stats.n_moves as u64);
        statistics.add("transposes", stats.n_transposes as u64);
        let seconds = self.clock.seconds() - start;
        let report = PassReport { name: LOWER, phase: Phase::Lowered, seconds, statistics };
        self.recorder.after(&report, &program);
        if self.run_options.print_after.iter().any(|name| name == LOWER || name == "all") {
            self.recorder.print(LOWER, &program);
        }
        let stops = self.run_options.stop_after.as_deref() == Some(LOWER);
        Ok((program, if stops { Progress::Stopped } else { Progress::Finished }))
    }

    /// `semaphores` is the number of those that the program may use.
    fn program_passes(&mut self, program: Program, semaphores: usize) -> Result<(Program, Progress), Error> {
        let Pipeline { options: _, run_options, clock, recorder, context, notes } = self;
        let schedule = FnPass {
            name: "schedule",
            establishes: Phase::Scheduled,
            run: |program: Program, context: &mut PassContext| {
                let (scheduled, stats) = schedule(program, &ScheduleOptions::default());
                context.statistics.add("instructions", stats.n_instructions as u64);
                context.statistics.add("moved", stats.n_moved as u64);
                context.statistics.add("engine_changes", stats.n_engine_changes as u64);
                context.statistics.add("table_loads", stats.n_table_loads as u64);
                context.statistics.add("estimated_ps", stats.estimated_ps);
                let entries = stats.loops.iter().map(|found| LoopEntry::of(found, &scheduled.locations));
                notes.loops.borrow_mut().extend(entries);
                Ok(scheduled)
            },
        };
        let allocate = FnPass {
            name: "allocate",
            establishes: Phase::Allocated,
            run: |program: Program, context: &mut PassContext| {
                let (allocated, stats) =
                    allocate(program).map_err(|error| PassError::Unsupported { reasons: vec![error.to_string()] })?;
                context.statistics.add("tiles", stats.n_tiles as u64);
                context.statistics.add("sbuf_peak_bytes_per_partition", stats.sbuf_peak_bytes_per_partition);
                context.statistics.add("spilled_tiles", stats.n_spilled_tiles as u64);
                context.statistics.add("spill_bytes", stats.spill_bytes);
                notes.allocate.replace(stats);
                Ok(allocated)
            },
        };
        let synchronize = FnPass {
            name: "synchronize",
            establishes: Phase::Synchronized,
            run: |program: Program, context: &mut PassContext| {
                let (synchronized, stats) = synchronize_below(program, semaphores)
                    .map_err(|error| PassError::Unsupported { reasons: vec![error.to_string()] })?;
                context.statistics.add("hazards", stats.n_hazards as u64);
                context.statistics.add("waits", stats.n_waits as u64);
                context.statistics.add("updates", stats.n_updates as u64);
                context.statistics.add("syncs", stats.n_syncs as u64);
                context.statistics.add("semaphores", stats.n_semaphores as u64);
                Ok(synchronized)
            },
        };
        let list: [&dyn Pass<Program>; 3] = [&schedule, &allocate, &synchronize];
        let name = program.name.clone();
        run(&list, program, context, run_options, clock, recorder).map_err(|error| notes.error(&name, error))
    }

    fn package(&mut self, graph: &Graph, program: &Program) -> Result<Vec<u8>, Error> {
        let start = self.clock.seconds();
        let kernel = codegen::kernel_object(program).and_then(|object| codegen::link(program, &object));
        let neff = kernel.and_then(|kernel| codegen::package(graph, program, &kernel));
        let neff = neff.map_err(|error| Error::Internal(format!("pass `{PACKAGE}`: {error}")))?;
        let mut statistics = Statistics::new();
        statistics.add("bytes", neff.len() as u64);
        let seconds = self.clock.seconds() - start;
        let report = PassReport { name: PACKAGE, phase: Phase::Synchronized, seconds, statistics };
        self.recorder.after(&report, program);
        Ok(neff)
    }

    fn finish(self, graph: Graph, program: Option<Program>, neff: Option<Vec<u8>>) -> Compiled {
        let fuse = self.notes.fuse.into_inner();
        Compiled {
            fusions: fuse.fusions.iter().map(|fusion| fusion_entry(&graph, fusion)).collect(),
            graph,
            program,
            outlined: None,
            neff,
            seconds: self.clock.seconds(),
            passes: self.recorder.reports,
            fuse,
            allocate: self.notes.allocate.into_inner(),
            loops: self.notes.loops.into_inner(),
            converted_weight_bytes: self.notes.converted_weight_bytes.get(),
            last_change: self.context.fuel.last().map(str::to_owned),
        }
    }
}

/// Bytes of inputs that have other strides in the compiled graph.
fn converted_weight_bytes(imported: &Graph, compiled: &Graph) -> u64 {
    let pairs = imported.inputs.iter().zip(&compiled.inputs);
    let converted = pairs.filter(|(before, after)| before.strides != after.strides);
    converted.map(|(_, after)| compiled.ty(after.value).size_bytes() as u64).sum()
}

impl Notes {
    /// Keeps the refused nodes and gives the pass error that stands for them.
    fn refuse(&self, graph: &Graph, nodes: Vec<codegen::Unsupported>) -> PassError {
        let refused: Vec<UnsupportedNode> = nodes.iter().map(|node| refused_node(graph, node)).collect();
        let reasons = refused.iter().map(|node| node.reason.clone()).collect();
        self.refused.replace(refused);
        PassError::Unsupported { reasons }
    }

    fn error(&self, graph: &str, error: PassError) -> Error {
        match error {
            PassError::Unsupported { reasons } => {
                let mut nodes = self.refused.take();
                if nodes.is_empty() {
                    nodes = reasons.into_iter().map(whole_graph).collect();
                }
                Error::Unsupported { graph: graph.to_owned(), nodes }
            }
            PassError::UnknownPass { .. } | PassError::UnknownRule { .. } => usage_error(&error),
            PassError::Broken { .. } | PassError::Internal { .. } => Error::Internal(error.to_string()),
        }
    }
}

/// The error of an option that names a pass or rule which does not exist.
fn usage_error(error: &PassError) -> Error {
    match error {
        PassError::UnknownPass { name, known } => {
            Error::unknown_name("--print-after, --stop-after", "pass", name, known)
        }
        PassError::UnknownRule { name } => {
            let known: Vec<&str> = passes::fuse::rule_names().map(|(name, _)| name).collect();
            Error::unknown_name("--disable-rule", "rule", name, &known)
        }
        PassError::Unsupported { .. } | PassError::Broken { .. } | PassError::Internal { .. } => {
            Error::Internal(error.to_string())
        }
    }
}

fn refused_node(graph: &Graph, refused: &codegen::Unsupported) -> UnsupportedNode {
    let Some(node) = refused.node else { return whole_graph(refused.reason.clone()) };
    let node = graph.node(node);
    let location = node.locations.first().map(|location| graph.locations[location.index()].clone());
    UnsupportedNode {
        location: location.unwrap_or_default(),
        result: graph.ty(node.results[0]).to_string(),
        reason: format!("`{}`: {}", node.op.name(), refused.reason),
    }
}

fn whole_graph(reason: String) -> UnsupportedNode {
    let location = ir::graph::Location { target: "graph".to_owned(), ..ir::graph::Location::default() };
    UnsupportedNode { location, result: String::new(), reason }
}

fn fusion_entry(graph: &Graph, fusion: &Fusion) -> FusionEntry {
    FusionEntry {
        op: fusion.op.to_owned(),
        class: fusion.class.name().to_owned(),
        sources: fusion.locations.iter().map(|&location| source_text(graph, location)).collect(),
        rules: fusion.rules.iter().map(|&rule| rule.to_owned()).collect(),
    }
}

/// A source node as people read it: `mul_1 (aten.mul.Tensor, layers.0, model.py:12)`.
pub fn source_text(graph: &Graph, location: LocationId) -> String {
    let location = &graph.locations[location.index()];
    let places = [&location.target, &location.module, &location.line];
    let places: Vec<&str> = places.into_iter().filter(|place| !place.is_empty()).map(String::as_str).collect();
    format!("{} ({})", location.node, places.join(", "))
}
