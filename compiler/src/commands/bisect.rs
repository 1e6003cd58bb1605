//! `neffuse bisect`: the one change that breaks a graph; with two sides, see `diverge`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ir::graph::NodeId;
use ir::text::node_line;
use ir::{Graph, Program};
use passes::manager::PassReport;

use super::check::blame;
use super::compile::{Parameters, import_file};
use super::diverge::{Comparison, diverge};
use super::predicate::{Ending, run_command};
use super::progress::Terminal;
use super::{CompileOptions, Outcome, default_output, stem, write_atomically};
use crate::bisect::{Bisection, bisect};
use crate::divergence::{Contest, Sameness, Side};
use crate::error::Error;
use crate::failure::{Failure, failure_of};
use crate::pipeline::{Options, Outlining, Stage, Unwatched, Watcher, compile, pass_after, source_text};
use crate::samples::{Samples, samples_for};
use crate::verdict::Standard;

/// Graphs of more nodes are only written to files.
const MAX_PRINTED_NODES: usize = 40;

/// Find the change that makes a graph fail, or the first node that two sides compute differently
///
/// With a graph alone: compiles with more and less fuel until two neighbouring amounts differ: with
/// N - 1 changes `check` does not fail as it does with all of them, with N it does. Shows change N, and
/// the graph without and with it. A failure may come and go as changes are added; the change that is
/// shown makes it come.
///
/// With two sides A and B: evaluates both on the same inputs, asks for values inside the graph as
/// outputs, and shows the first node whose values differ although its operands agree, with the worst
/// element. Then writes the smallest graph that still differs.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Sides:
  reference          the reference evaluator in f64, without roundings: the truth
  eager              the reference evaluator with PyTorch's roundings
  simulator          compiled with the options of the command line, and simulated
  numerics=CLASS, target=CHIP, fuel=N, disable=RULE
                     the same with other options, joined by commas; mode= is
                     numerics=
  stop=PASS          what a graph pass leaves, evaluated: canonicalize, fuse,
                     expand_long_rows or place; joins with the others

Examples:
  neffuse bisect model.json
  neffuse bisect model.json --numerics approx
  neffuse bisect model.json --output-dir found      keep before.ir and after.ir
  neffuse bisect model.json --command 'python3 compare.py {}'
  neffuse bisect model.json reference simulator
  neffuse bisect model.json numerics=exact numerics=reassoc -o small.ir
  neffuse bisect model.json eager stop=fuse --compare bits")]
pub(super) struct BisectArgs {
    /// The graph, as for `neffuse compile`
    input: PathBuf,
    /// One side of a comparison, see below
    #[arg(requires = "b", conflicts_with_all = ["command", "output_dir"])]
    a: Option<String>,
    /// The other side
    b: Option<String>,
    /// Judge by the exit code of this shell command instead of `check`; {} is the NEFF. What counts
    /// as failing is the exit code that it gives with all changes
    #[arg(long, value_name = "COMMAND")]
    command: Option<String>,
    /// Write the graphs before and after the change to before.ir and after.ir in this folder
    #[arg(long, value_name = "FOLDER")]
    output_dir: Option<PathBuf>,
    /// What counts as equal on two sides: `standard` judges as `check` does, `bits` wants the same bits.
    /// By default `standard` where one side alone is `reference` or `eager`, else `bits`
    #[arg(long, value_name = "standard|bits", requires = "a")]
    compare: Option<Compare>,
    /// The smallest graph that differs on two sides; by default the input's name with small.ir, in the
    /// current folder
    #[arg(short, long, value_name = "SMALL.IR", requires = "a")]
    output: Option<PathBuf>,
    #[command(flatten)]
    options: CompileOptions,
}

/// What counts as equal.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
enum Compare {
    Standard,
    Bits,
}

impl Compare {
    /// The option that asks for it.
    const fn replaying(self) -> &'static str {
        match self {
            Compare::Standard => " --compare standard",
            Compare::Bits => " --compare bits",
        }
    }
}

pub(super) fn command(arguments: &BisectArgs) -> Result<Outcome, Error> {
    let options = Options { print_after: Vec::new(), ..arguments.options.options() };
    if options.fuel.is_some() || options.stop_after.is_some() {
        return Err(Error::Usage(
            "bisect chooses --fuel itself and needs all passes: leave out --fuel and --stop-after; a side may be \
             fuel=N or stop=PASS"
                .to_owned(),
        ));
    }
    let graph = import_file(&arguments.input, Parameters::Inputs)?;
    let samples = samples_for(&graph, &arguments.input)?;
    if let (Some(a), Some(b)) = (&arguments.a, &arguments.b) {
        let (a, b) = (Side::parse(a, &options)?, Side::parse(b, &options)?);
        let sameness = match arguments.compare {
            Some(Compare::Standard) => Sameness::Standard,
            Some(Compare::Bits) => Sameness::Bits,
            None if a.is_evaluated() != b.is_evaluated() => Sameness::Standard,
            None => Sameness::Bits,
        };
        let output = arguments.output.clone().unwrap_or_else(|| default_output(&arguments.input, "small.ir"));
        let contest = Contest { a, b, sameness };
        let options = arguments.options.replaying() + arguments.compare.map_or("", Compare::replaying);
        return diverge(&Comparison { contest, graph, inputs: samples.inputs, output, options }, &arguments.input);
    }
    let trial = Trial::new(&graph, samples, &options, arguments.command.as_deref())?;
    let mut terminal = Terminal::new(&format!("bisecting {}", stem(&arguments.input)));
    let (whole, message) = trial.ending(None)?;
    let mut n_tests = 0;
    let found = bisect(&mut |fuel| {
        n_tests += 1;
        terminal
            .show(&format!("test {n_tests}: {}", fuel.map_or("all changes".to_owned(), |fuel| format!("fuel {fuel}"))));
        // What passes is no failure to look for.
        let ending = if fuel.is_none() { whole.clone() } else { trial.ending(fuel)?.0 };
        Ok::<bool, Error>(ending == whole && ending != Ending::Passes)
    })?;
    drop(terminal);
    match found {
        Bisection::Passes => {
            let help = "--command 'COMMAND {}' judges by something else";
            Err(Error::Input(format!(
                "{}: it passes with all changes: there is nothing to find",
                stem(&arguments.input)
            ))
            .with_help(help))
        }
        Bisection::FailsWithout => Ok(Outcome::text(without_changes(&trial, &whole, &message)?)),
        Bisection::Found { failing } => {
            let before = Stages::of(&graph, &options, failing - 1);
            let after = Stages::of(&graph, &options, failing);
            let mut text = format!("with all changes it {whole}\n");
            message.lines().for_each(|line| text += &format!("  {line}\n"));
            let change = after.change.as_deref().unwrap_or("not named, since the pass that makes it fails");
            text += &format!("change {failing} makes it so: {change}\n");
            text +=
                &format!("found in {n_tests} compilations; repeat with --fuel {} and --fuel {failing}\n", failing - 1);
            text += &difference(&before.graph, &after.graph);
            text += &shown(&before.graph, &after.graph);
            if let Some(folder) = &arguments.output_dir {
                std::fs::create_dir_all(folder)
                    .map_err(|error| Error::File(format!("{}: {error}", folder.display())))?;
                for (name, graph) in [("before.ir", &before.graph), ("after.ir", &after.graph)] {
                    write_atomically(&folder.join(name), graph.to_string().as_bytes())?;
                }
                text += &format!("wrote before.ir and after.ir to {}\n", folder.display());
            }
            Ok(Outcome::text(text))
        }
    }
}

/// One graph, compiled with different amounts of fuel.
struct Trial<'a> {
    graph: &'a Graph,
    options: &'a Options,
    samples: Samples,
    standard: Option<Standard>,
    command: Option<&'a str>,
    folder: tempfile::TempDir,
}

impl<'a> Trial<'a> {
    fn new(graph: &'a Graph, samples: Samples, options: &'a Options, command: Option<&'a str>) -> Result<Self, Error> {
        let standard = if command.is_none() { Some(Standard::of(graph, &samples)?) } else { None };
        let folder = tempfile::tempdir().map_err(|error| Error::File(format!("a folder for NEFFs: {error}")))?;
        Ok(Trial { graph, options, samples, standard, command, folder })
    }

    /// How it ends with this much fuel, and why.
    fn ending(&self, fuel: Option<u64>) -> Result<(Ending, String), Error> {
        // As one kernel: changes are counted and shown over the whole graph.
        let options = Options { fuel, outline: Outlining::Off, ..self.options.clone() };
        let Some(command) = self.command else {
            let standard = self.standard.as_ref().expect("a trial without a command has a standard");
            let failure = failure_of(self.graph, &options, &self.samples, standard)?;
            return Ok(failure
                .map_or((Ending::Passes, String::new()), |failure| (Ending::Fails(failure.kind), failure.message)));
        };
        let neff = match compile(self.graph, &options, &mut Unwatched) {
            Ok(compiled) => compiled.neff.unwrap_or_default(),
            Err(error) => {
                let failure = Failure::of(&error).ok_or(error)?;
                return Ok((Ending::Fails(failure.kind), failure.message));
            }
        };
        let path = self.folder.path().join("model.neff");
        write_atomically(&path, &neff)?;
        Ok((run_command(command, &path)?, String::new()))
    }
}

/// What is told of a graph that fails with no change made: the stage that is wrong.
fn without_changes(trial: &Trial<'_>, whole: &Ending, message: &str) -> Result<String, Error> {
    let mut text = format!("it {whole} with no change made (--fuel 0): no rule is to blame\n");
    message.lines().for_each(|line| text += &format!("  {line}\n"));
    let options = Options { fuel: Some(0), ..trial.options.clone() };
    if let (Ending::Fails(kind), Some(standard)) = (whole, &trial.standard)
        && kind == "mismatch"
    {
        text += &format!("{}\n", blame(standard, &trial.samples, trial.graph, &options)?);
        return Ok(text);
    }
    let stages = Stages::of(trial.graph, trial.options, 0);
    match pass_after(stages.done) {
        Some(pass) => text += &format!("pass `{pass}` fails; --print-after and --stop-after show what it gets\n"),
        None => text += "all passes succeed: look at the program and what runs it\n",
    }
    Ok(text)
}

/// The last graph of a compilation before it is placed, and the change that took the last fuel.
struct Stages {
    graph: Graph,
    /// The last pass that has ended.
    done: Option<&'static str>,
    change: Option<String>,
}

impl Stages {
    fn of(graph: &Graph, options: &Options, fuel: u64) -> Stages {
        let mut stages = Stages { graph: graph.clone(), done: None, change: None };
        // The graph of one function is not the whole one.
        let options = Options { fuel: Some(fuel), outline: Outlining::Off, ..options.clone() };
        if let Ok(compiled) = compile(graph, &options, &mut stages) {
            stages.change = compiled.last_change;
            return stages;
        }
        // A later pass fails: ask the ones that make changes.
        for pass in [passes::fuse::NAME, passes::canonicalize::NAME] {
            let options = Options { stop_after: Some(pass.to_owned()), ..options.clone() };
            if let Ok(compiled) = compile(graph, &options, &mut Unwatched) {
                stages.change = compiled.last_change;
                break;
            }
        }
        stages
    }
}

impl Watcher for Stages {
    fn after(&mut self, report: &PassReport, stage: Stage<'_>) {
        self.done = Some(report.name);
        match stage {
            Stage::Graph(graph) if report.name == passes::canonicalize::NAME || report.name == passes::fuse::NAME => {
                self.graph = graph.clone();
            }
            Stage::Graph(Graph { .. }) | Stage::Program(Program { .. }) => {}
        }
    }
}

/// Nodes that only one of the graphs has, whatever their values are numbered.
fn difference(before: &Graph, after: &Graph) -> String {
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    before.nodes().for_each(|(id, _)| *counts.entry(unnumbered(before, id)).or_default() += 1);
    after.nodes().for_each(|(id, _)| *counts.entry(unnumbered(after, id)).or_default() -= 1);
    let mut text = String::new();
    for (sign, graph, direction) in [('-', before, 1), ('+', after, -1)] {
        let mut left = counts.clone();
        for (id, node) in graph.nodes() {
            let count = left.entry(unnumbered(graph, id)).or_default();
            if *count * direction <= 0 {
                continue;
            }
            *count -= direction;
            text += &format!("{sign} {}\n", node_line(graph, id));
            for &location in &node.locations {
                text += &format!("      from {}\n", source_text(graph, location));
            }
        }
    }
    if text.is_empty() { "  (only the order of nodes or operands changes)\n".to_owned() } else { text }
}

/// A node without numbers of values: op, attributes, types and sources.
fn unnumbered(graph: &Graph, id: NodeId) -> String {
    let line = node_line(graph, id);
    line.split(' ').filter(|word| !word.starts_with('%')).collect::<Vec<&str>>().join(" ")
}

fn shown(before: &Graph, after: &Graph) -> String {
    if before.n_nodes().max(after.n_nodes()) > MAX_PRINTED_NODES {
        return String::from("--output-dir FOLDER writes both graphs\n");
    }
    format!("// before the change\n{before}// after the change\n{after}")
}
