//! `neffuse explain`: what was fused, by which rules, and at which price.

use std::path::PathBuf;

use clap::Args;

use super::compile::{CompileOutcome, Parameters, compile_file};
use super::progress::Terminal;
use super::{CompileOptions, Outcome, ReportArgs, pass_names, stem};
use crate::error::Error;
use crate::pipeline::Compiled;

/// Explain what was fused and why
///
/// For each fused op: the FX nodes it stands for, the rules that proved it equal, and the numerics
/// class of that proof.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  neffuse explain model.json
  neffuse explain model.json --numerics exact      what stays apart when every rounding counts")]
pub(super) struct ExplainArgs {
    /// The graph: .json (fxg-json/1) or .ir
    input: PathBuf,
    #[command(flatten)]
    options: CompileOptions,
    #[command(flatten)]
    report: ReportArgs,
}

pub(super) fn command(arguments: &ExplainArgs) -> Result<Outcome, Error> {
    let options = arguments.options.options();
    let outcome = {
        let mut terminal = Terminal::new("explaining");
        compile_file(&arguments.input, Parameters::Inputs, &options, &mut terminal)?
    };
    if arguments.report.is_json() {
        return Ok(Outcome::text(outcome.report.to_json() + "\n"));
    }
    Ok(Outcome::text(text(&stem(&arguments.input), &outcome)))
}

fn text(name: &str, CompileOutcome { imported, compiled, report }: &CompileOutcome) -> String {
    let numerics = report.numerics.as_deref().unwrap_or_default();
    let mut text = format!(
        "{name}: {} nodes imported, {} after fusion, {} fused ops ({numerics})\n",
        imported.n_nodes(),
        compiled.graph.n_nodes(),
        compiled.fusions.len()
    );
    for fusion in &compiled.fusions {
        text += &format!("\n{} [{}]\n", fusion.op, fusion.class);
        for source in &fusion.sources {
            text += &format!("  from {source}\n");
        }
        if !fusion.rules.is_empty() {
            text += &format!("  by   {}\n", fusion.rules.join(", "));
        }
    }
    text + &fuse_text(compiled)
}

fn fuse_text(compiled: &Compiled) -> String {
    let fuse = &compiled.fuse;
    let mut text = format!(
        "\n{} regions, {} of them distinct; cost {} ps before, {} ps after, no choice below {} ps\n",
        fuse.n_regions, fuse.n_distinct_regions, fuse.cost_before_ps, fuse.cost_ps, fuse.bound_ps
    );
    for (reason, count) in &fuse.stop_reasons {
        text += &format!("saturation stopped {count} times: {}\n", reason.name());
    }
    for (rule, count) in &fuse.n_applications {
        text += &format!("{count:>8}  {rule}\n");
    }
    text + &format!("passes: {}\n", pass_names())
}
