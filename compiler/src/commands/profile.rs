//! `neffuse profile`: predicted times of a NEFF or of a graph's NEFF, and of its nodes one by one.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use simulator::Timeline;

use super::compile::{Parameters, build_file};
use super::progress::Terminal;
use super::{CompileOptions, Outcome, ReportArgs, read_file, stem};
use crate::eager::{EagerProfile, profile_eager};
use crate::error::Error;
use crate::execute::Executable;
use crate::import::read_graph;
use crate::pipeline::Watcher;
use crate::report::{RUNTIME, Report, bytes_text, microseconds, predicted_error_text};
use crate::three_way::three_way;

/// Steps of the critical path that are printed.
const MAX_STEPS: usize = 12;

/// Predict the time of a NEFF or of a graph
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  neffuse profile model.neff
  neffuse profile model.json --eager             beside one dispatch per node
  neffuse profile model.json --report json | jq .engine_busy_us")]
pub(super) struct ProfileArgs {
    /// A .neff, or a graph to compile: .pt2, .json or .ir
    input: PathBuf,
    /// Also compile every node that is no view into a NEFF of its own and dispatch them one after
    /// another, as an eager framework does; needs a graph
    #[arg(long)]
    eager: bool,
    #[command(flatten)]
    options: CompileOptions,
    #[command(flatten)]
    report: ReportArgs,
}

/// Compare published and predicted times of RMSNorm run in three ways
///
/// Takes the norm's naive spelling and its built-in operator on bf16 [4, 512]: naive eager is one
/// dispatch per operator, the other two are one NEFF each. The dispatch constant is fitted on the
/// published totals; device bodies are simulated.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  neffuse three-way rms_norm_naive.json rms_norm_builtin.json")]
pub(super) struct ThreeWayArgs {
    /// Graph of the naive spelling
    naive: PathBuf,
    /// Graph of the built-in operator
    built_in: PathBuf,
    #[command(flatten)]
    options: CompileOptions,
    #[command(flatten)]
    report: ReportArgs,
}

/// A report with the eager run beside it.
#[derive(Serialize)]
struct ProfileReport {
    #[serde(flatten)]
    report: Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    eager: Option<EagerProfile>,
}

struct Profile {
    report: Report,
    timeline: Timeline,
    eager: Option<EagerProfile>,
}

pub(super) fn command(arguments: &ProfileArgs) -> Outcome {
    match profile(arguments) {
        Ok(profile) if arguments.report.is_json() => {
            let report = ProfileReport { report: profile.report, eager: profile.eager };
            Outcome::text(serde_json::to_string(&report).expect("a report has string keys only") + "\n")
        }
        Ok(profile) => Outcome::text(profile_text(&profile)),
        Err(error) => {
            let report = Report::failed(stem(&arguments.input), &error);
            let stdout = if arguments.report.is_json() { report.to_json() + "\n" } else { String::new() };
            Outcome { stdout, stderr: format!("{error}\n"), exit_code: error.exit_code() }
        }
    }
}

fn profile(arguments: &ProfileArgs) -> Result<Profile, Error> {
    let is_neff = arguments.input.extension().is_some_and(|extension| extension == "neff");
    let options = arguments.options.options();
    let mut terminal = Terminal::new(&format!("profiling {}", stem(&arguments.input)));
    let (mut report, neff) = if is_neff {
        let neff = read_file(&arguments.input)?;
        let mut report = Report::new(stem(&arguments.input));
        report.neff_bytes = Some(neff.len());
        (report, neff)
    } else {
        let cache = arguments.options.cache()?;
        let outcome = build_file(&arguments.input, Parameters::Inputs, &options, cache.as_ref(), &mut terminal)?;
        (outcome.built.report, outcome.built.neff)
    };
    let load = if is_neff { Executable::load_file } else { Executable::load };
    let executable = load(&neff).map_err(|error| error.in_file(&arguments.input))?;
    terminal.show("simulating");
    let timeline = executable.timeline()?;
    report.note_timeline(&executable, &timeline);
    report.ok = true;
    let eager = match (arguments.eager, is_neff) {
        (false, _) => None,
        (true, true) => return Err(Error::Usage("--eager needs the graph, not the NEFF".to_owned())),
        (true, false) => {
            terminal.show("profiling node by node");
            Some(profile_eager(&read_graph(&arguments.input)?, &options)?)
        }
    };
    Ok(Profile { report, timeline, eager })
}

fn profile_text(profile: &Profile) -> String {
    let Profile { report, timeline, eager } = profile;
    let target = report.target.as_deref().unwrap_or_default();
    let mut text = format!("{} on {target}\n{}", report.graph, report.time_summary());
    let (n_all, n_compute) =
        (report.n_instructions.unwrap_or_default(), report.n_compute_instructions.unwrap_or_default());
    text += &format!("  {:<22}{n_all}, {n_compute} of them compute\n", "instructions");
    let (read, written) = (bytes_text(timeline.hbm_read_bytes), bytes_text(timeline.hbm_write_bytes));
    text += &format!("  {:<22}{read} read, {written} written\n", "HBM");
    text += "critical path\n";
    for step in timeline.critical_path.iter().take(MAX_STEPS) {
        let (from_us, to_us) = (signed_microseconds(step.from_ps), signed_microseconds(step.to_ps));
        text += &format!("  {from_us:>10.3} to {to_us:>10.3} us  {} {}\n", step.instruction, step.what);
    }
    let n_more = timeline.critical_path.len().saturating_sub(MAX_STEPS);
    if n_more > 0 {
        text += &format!("  and {n_more} more steps\n");
    }
    if let Some(eager) = eager {
        text += &eager_text(report, eager);
    }
    text
}

fn signed_microseconds(picoseconds: i64) -> f64 {
    picoseconds as f64 / 1e6
}

fn eager_text(report: &Report, eager: &EagerProfile) -> String {
    let mut text = format!(
        "eager: {} dispatches of {} kernels\n{:>12}  {:<28}node\n",
        eager.n_dispatches, eager.n_kernels, "body us", "operator"
    );
    for dispatch in &eager.dispatches {
        text += &format!("{:>12.3}  {:<28}{}\n", dispatch.body_us, dispatch.target, dispatch.node);
    }
    for node in &eager.host_nodes {
        text += &format!("{:>12}  {:<28}{}: {}\n", "host", node.target, node.node, node.reason);
    }
    let one_dispatch_us = microseconds(RUNTIME.dispatch().dispatch_ps);
    let compiled_us = one_dispatch_us + report.predicted_us.unwrap_or_default();
    let wall_us = eager.wall_us();
    text += &format!(
        "with {} at {one_dispatch_us:.1} us per dispatch: eager {wall_us:.1} us, compiled {compiled_us:.1} us, {:.2} times\n",
        RUNTIME.name(),
        wall_us / compiled_us
    );
    text += &format!("each body {}\n", predicted_error_text(eager.predicted_error.as_ref()));
    text
}

pub(super) fn three_way_command(arguments: &ThreeWayArgs) -> Result<Outcome, Error> {
    let options = arguments.options.options();
    let (naive, built_in) = (read_graph(&arguments.naive)?, read_graph(&arguments.built_in)?);
    let comparison = three_way(&naive, &built_in, &options)?;
    if arguments.report.is_json() {
        return Ok(Outcome::text(serde_json::to_string(&comparison).expect("a report has string keys only") + "\n"));
    }
    Ok(Outcome::text(comparison.table()))
}
