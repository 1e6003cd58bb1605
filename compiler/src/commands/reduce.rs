//! `neffuse reduce`: a small graph that shows the same fault.

use std::path::{Path, PathBuf};

use clap::Args;
use ir::Graph;

use super::compile::{Parameters, import_file};
use super::predicate::{Ending, run_command};
use super::progress::Terminal;
use super::{CompileOptions, Outcome, stem, write_atomically};
use crate::error::Error;
use crate::failure::failure_of;
use crate::pipeline::{Options, Watcher};
use crate::reduce::{Limits, Reduction, reduce};
use crate::samples::{DEFAULT_SEED, samples_for, seeded};
use crate::verdict::Standard;

/// Reduce a failing graph to a few nodes
///
/// Leaves out outputs, nodes and inputs, cuts the graph at values that become inputs, and makes sizes
/// and constants plain, as long as `check` fails in the same way: with the same code, in the same
/// pass. Values for the smaller graphs are made from a fixed seed.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  neffuse reduce model.json -o small.ir
  neffuse reduce model.json -o small.ir --numerics approx
  neffuse reduce model.json -o small.ir --command 'neffuse compile {} -o /dev/null'
  neffuse reduce model.json -o small.ir --command 'grep -q softmax {}'")]
pub(super) struct ReduceArgs {
    /// The graph, as for `neffuse compile`
    input: PathBuf,
    /// The small graph
    #[arg(short, long, value_name = "SMALL.IR")]
    output: PathBuf,
    /// Judge by the exit code of this shell command instead of `check`; {} is a graph as .ir file.
    /// What is kept is the exit code that it gives for the whole graph
    #[arg(long, value_name = "COMMAND")]
    command: Option<String>,
    /// Try at most this many graphs
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_tests)]
    max_tests: usize,
    #[command(flatten)]
    options: CompileOptions,
}

pub(super) fn command(arguments: &ReduceArgs) -> Result<Outcome, Error> {
    let options = Options { print_after: Vec::new(), ..arguments.options.options() };
    let graph = import_file(&arguments.input, Parameters::Inputs)?;
    let folder = tempfile::tempdir().map_err(|error| Error::File(format!("a folder for graphs: {error}")))?;
    let trial =
        Trial { options: &options, command: arguments.command.as_deref(), path: folder.path().join("graph.ir") };
    let name = stem(&arguments.input);
    let whole = trial.whole(&graph, &arguments.input)?;
    if whole == Ending::Passes {
        let message = format!("{name}: it passes: there is no failure to reduce");
        return Err(Error::Input(message).with_help("--command 'COMMAND {}' judges by something else"));
    }
    let mut terminal = Terminal::new(&format!("reducing {name}"));
    let mut n_tests = 0;
    let limits = Limits { max_tests: arguments.max_tests };
    let Reduction { graph: small, n_tests, is_cut_short } = reduce(&graph, limits, &mut |candidate| {
        n_tests += 1;
        terminal.show(&format!("graph {n_tests}: {} nodes", candidate.n_nodes()));
        // A graph that cannot be judged does not show the fault.
        trial.ending(candidate).is_ok_and(|ending| ending == whole)
    });
    drop(terminal);
    if small == graph || !trial.ending(&small).is_ok_and(|ending| ending == whole) {
        let message = format!("{name}: no smaller graph {whole} in the same way");
        return Err(
            Error::Input(message).with_help("recorded values may be needed for it: the graph is as small as it gets")
        );
    }
    write_atomically(&arguments.output, small.to_string().as_bytes())?;
    let mut stderr = format!(
        "{name}: {} nodes and {} inputs, {} and {} left; it still {whole}; {n_tests} graphs tried\nwrote {}\n",
        graph.n_nodes(),
        graph.inputs.len(),
        small.n_nodes(),
        small.inputs.len(),
        arguments.output.display()
    );
    if is_cut_short {
        stderr += "note: --max-tests ended the reduction; more may be possible\n";
    }
    Ok(Outcome { stdout: String::new(), stderr, exit_code: 0 })
}

struct Trial<'a> {
    options: &'a Options,
    command: Option<&'a str>,
    /// Where graphs are written for the user's command.
    path: PathBuf,
}

impl Trial<'_> {
    /// How the whole graph ends: with made values as its parts do, or else with the recorded ones.
    fn whole(&self, graph: &Graph, input: &Path) -> Result<Ending, Error> {
        let ending = self.ending(graph)?;
        if self.command.is_some() || ending != Ending::Passes {
            return Ok(ending);
        }
        let samples = samples_for(graph, input)?;
        let standard = Standard::of(graph, &samples)?;
        let failure = failure_of(graph, self.options, &samples, &standard)?;
        Ok(failure.map_or(Ending::Passes, |failure| Ending::Fails(failure.kind)))
    }

    fn ending(&self, graph: &Graph) -> Result<Ending, Error> {
        if let Some(command) = self.command {
            write_atomically(&self.path, graph.to_string().as_bytes())?;
            return run_command(command, &self.path);
        }
        let samples = seeded(graph, DEFAULT_SEED);
        let standard = Standard::of(graph, &samples)?;
        let failure = failure_of(graph, self.options, &samples, &standard)?;
        Ok(failure.map_or(Ending::Passes, |failure| Ending::Fails(failure.kind)))
    }
}
