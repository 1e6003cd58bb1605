//! `neffuse check`: compile, prove, simulate, compare.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use ir::Graph;
use ir::reference::{Rounding, evaluate, evaluation_bytes};
use passes::manager::PassReport;

use super::compile::{BuildOutcome, Parameters, build_file};
use super::progress::Terminal;
use super::{CompileOptions, Outcome, ReportArgs, stem, with_report};
use crate::cache::Cache;
use crate::error::Error;
use crate::execute::Executable;
use crate::pipeline::{Options, Outlining, Stage, Watcher, compile};
use crate::report::Report;
use crate::samples::{Samples, samples_for};
use crate::verdict::{Standard, Verdict};

/// Compile a graph, simulate it, and compare with PyTorch
///
/// Values come from the recorded IN-stem.io.npz beside the graph; without one, inputs are made from
/// a fixed seed and the reference evaluator stands for PyTorch. A .pt2 archive gives its parameters
/// itself, and its inputs are made. A float output passes when it is not
/// less accurate than eager PyTorch, both measured against the same graph in f64.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  neffuse check model.json
  neffuse check model.json --target trn1 --numerics exact --report json")]
pub(super) struct CheckArgs {
    /// The graph: .pt2 (torch.export), .json (fxg-json/1) or .ir
    input: PathBuf,
    #[command(flatten)]
    options: CompileOptions,
    /// Memory for the values of the graph while it is evaluated
    #[arg(long, value_name = "MIB", default_value_t = DEFAULT_MEMORY_BYTES >> 20)]
    memory_limit: u64,
    #[command(flatten)]
    report: ReportArgs,
}

/// Memory for the values of a graph unless a caller allows more.
pub const DEFAULT_MEMORY_BYTES: u64 = 2 << 30;

/// What to check and how.
#[derive(Clone, Debug)]
pub struct Check<'a> {
    pub input: &'a Path,
    pub options: &'a Options,
    pub cache: Option<&'a Cache>,
    /// Memory for the values of the graph while it is evaluated.
    pub memory_limit_bytes: u64,
}

/// What a check found.
#[derive(Clone, Debug)]
pub struct CheckOutcome {
    pub report: Report,
    pub verdict: Verdict,
    /// Whether the standard was recorded by PyTorch.
    pub is_recorded: bool,
    /// On a mismatch, where it comes from.
    pub blame: Option<Blame>,
}

/// Where a mismatch comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The graph is wrong after this pass and right before it.
    GraphPass(&'static str),
    /// The graph is right after every pass: lowering, a program pass or the simulator is wrong.
    AfterGraphPasses,
}

impl fmt::Display for Blame {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blame::GraphPass(pass) => write!(formatter, "the graph is wrong after pass `{pass}` and right before it"),
            Blame::AfterGraphPasses => formatter.write_str("the graph is right after every graph pass"),
        }
    }
}

/// Keeps the graph after every pass.
#[derive(Default)]
struct GraphKeeper {
    graphs: Vec<(&'static str, Graph)>,
}

impl Watcher for GraphKeeper {
    fn after(&mut self, report: &PassReport, stage: Stage<'_>) {
        match stage {
            Stage::Graph(graph) => self.graphs.push((report.name, graph.clone())),
            Stage::Program(_) => {}
        }
    }
}

/// Compiles a graph, proves the program, runs it and judges its outputs.
///
/// # Errors
/// Everything but a mismatch, which the outcome tells.
pub fn check(what: &Check<'_>, watcher: &mut dyn Watcher) -> Result<CheckOutcome, Error> {
    let BuildOutcome { imported, built } =
        build_file(what.input, Parameters::Inputs, what.options, what.cache, watcher)?;
    let mut report = built.report;
    refuse_large(evaluation_bytes(&imported), what)?;
    let samples = samples_for(&imported, what.input)?;
    watcher.show("simulating");
    let run = || {
        let executable = Executable::load(&built.neff)?;
        refuse_large(executable.machine().device_bytes(), what)?;
        let timeline = executable.timeline()?;
        let outputs = executable.run_values(&samples.inputs)?;
        Ok((executable, timeline, outputs))
    };
    let (executable, timeline, outputs) = with_report(run(), "check", &imported, what.options)?;
    report.note_timeline(&executable, &timeline);
    watcher.show("evaluating the reference");
    let standard = Standard::of(&imported, &samples)?;
    let verdict = standard.judge(&imported, &outputs);
    report.note_verdict(&verdict);
    report.ok = verdict.passes();
    let blame = if report.ok { None } else { Some(blame(&standard, &samples, &imported, what.options)?) };
    Ok(CheckOutcome { report, verdict, is_recorded: samples.outputs.is_some(), blame })
}

/// Values and device buffers are made only where they fit.
fn refuse_large(needed: u64, what: &Check<'_>) -> Result<(), Error> {
    let limit = what.memory_limit_bytes;
    if needed <= limit {
        return Ok(());
    }
    let message = format!("{}: the values of the graph take {needed} bytes; the limit is {limit}", stem(what.input));
    Err(Error::Input(message).with_help(&format!("--memory-limit {} allows it", needed.div_ceil(1 << 20))))
}

/// Compiles again, with a look at every graph on the way.
pub(super) fn blame(
    standard: &Standard,
    samples: &Samples,
    imported: &Graph,
    options: &Options,
) -> Result<Blame, Error> {
    let mut keeper = GraphKeeper::default();
    // Of a function alone nothing could be said.
    let options = Options { outline: Outlining::Off, ..options.clone() };
    compile(imported, &options, &mut keeper)?;
    let is_wrong = |graph: &Graph| {
        let outputs = evaluate(graph, &samples.inputs, Rounding::PerOp);
        !outputs.is_ok_and(|outputs| standard.judge(imported, &outputs).passes())
    };
    let wrong = keeper.graphs.iter().find(|(_, graph)| is_wrong(graph));
    Ok(wrong.map_or(Blame::AfterGraphPasses, |(pass, _)| Blame::GraphPass(pass)))
}

pub(super) fn command(arguments: &CheckArgs) -> Outcome {
    let options = arguments.options.options();
    let name = stem(&arguments.input);
    let result = {
        let mut terminal = Terminal::new(&format!("checking {name}"));
        let memory_limit_bytes = arguments.memory_limit.saturating_mul(1 << 20);
        arguments.options.cache().and_then(|cache| {
            let what = Check { input: &arguments.input, options: &options, cache: cache.as_ref(), memory_limit_bytes };
            check(&what, &mut terminal)
        })
    };
    let mut report;
    let mut stderr = String::new();
    let error = match result {
        Ok(outcome) => {
            report = outcome.report;
            let standard = if outcome.is_recorded { "PyTorch's recorded outputs" } else { "the reference evaluator" };
            stderr += &format!("{name}: errors against the truth; eager is {standard}\n{}", outcome.verdict.table());
            let blame = outcome.blame.map(|blame| format!("\n  {blame}")).unwrap_or_default();
            outcome.verdict.failure().map(|failure| {
                let file = arguments.input.display();
                let help = format!(
                    "`neffuse bisect {file}` finds the change, `neffuse reduce {file} -o small.ir` a small graph"
                );
                Error::Mismatch(format!("{name}: {failure}{blame}")).with_help(&help)
            })
        }
        Err(error) => {
            report = Report::new(&name);
            report.note_options(&options);
            Some(error)
        }
    };
    if let Some(error) = &error {
        report.note_error(error);
        stderr += &format!("{error}\n");
    }
    let stdout = if arguments.report.is_json() { report.to_json() + "\n" } else { String::new() };
    Outcome { stdout, stderr, exit_code: error.map_or(0, |error| error.exit_code()) }
}
