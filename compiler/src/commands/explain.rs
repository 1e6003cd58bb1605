//! `neffuse explain`: what was fused, by which rules, and at which price.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use ir::graph::{Location, LocationId};
use passes::canonicalize;
use passes::fuse::{Answer, FuseOptions, StopReason, fused_op_names, rule_names, why_not};
use passes::manager::PassError;

use super::compile::{CompileOutcome, Parameters, compile_file};
use super::progress::Terminal;
use super::{CompileOptions, Outcome, ReportArgs, stem};
use crate::error::Error;
use crate::pipeline::{Compiled, Options, Outlining};
use crate::report::{limits, microseconds};

/// Explain what was fused and why
///
/// For each fused op: the FX nodes it stands for, the rules that proved it equal, and the numerics
/// class of that proof. For each kind of fused op that is missing though something resembles it: what
/// came nearest, and the op or condition that broke it.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  neffuse explain model.json
  neffuse explain model.json --numerics exact      what stays apart when every rounding counts
  neffuse explain model.json --why-not rms_norm    answered even where nothing resembles the op")]
pub(super) struct ExplainArgs {
    /// The graph: .pt2 (torch.export), .json (fxg-json/1) or .ir
    input: PathBuf,
    /// Answer for this fused op in any case; may be repeated
    #[arg(long, value_name = "OP")]
    why_not: Vec<String>,
    #[command(flatten)]
    options: CompileOptions,
    #[command(flatten)]
    report: ReportArgs,
}

pub(super) fn command(arguments: &ExplainArgs) -> Result<Outcome, Error> {
    // Sources are shown for every layer.
    let options = Options { outline: Outlining::Off, ..arguments.options.options() };
    let outcome = {
        let mut terminal = Terminal::new("explaining");
        compile_file(&arguments.input, Parameters::Inputs, &options, &mut terminal)?
    };
    if arguments.report.is_json() {
        return Ok(Outcome::text(outcome.report.to_json() + "\n"));
    }
    let missing = missing_text(&outcome, &options, &arguments.why_not)?;
    Ok(Outcome::text(text(&stem(&arguments.input), &outcome, &missing)))
}

/// A paragraph for each kind of fused op that is asked for, or that is not in the result though
/// something resembles it.
fn missing_text(outcome: &CompileOutcome, options: &Options, asked: &[String]) -> Result<String, Error> {
    if let Some(unknown) = asked.iter().find(|op| !fused_op_names().contains(&op.as_str())) {
        return Err(Error::unknown_name("--why-not", "fused op", unknown, &fused_op_names()));
    }
    let internal = |error: PassError| Error::Internal(error.to_string());
    let (canonical, _) = canonicalize::canonicalize(&outcome.imported, options.numerics).map_err(internal)?;
    let fused: BTreeSet<LocationId> =
        outcome.compiled.fuse.fusions.iter().flat_map(|fusion| fusion.locations.iter().copied()).collect();
    let fuse_options = FuseOptions {
        numerics: options.numerics,
        fuel: None,
        disabled_rules: options.disabled_rules.clone(),
        target: options.target,
    };
    let mut text = String::new();
    for op in fused_op_names() {
        let why = why_not(&canonical, op, &fuse_options).map_err(internal)?;
        // What another fused op stands for is not missing.
        let is_elsewhere = why.locations.iter().all(|location| fused.contains(location));
        let is_close = match &why.answer {
            Answer::Recognised { .. } | Answer::Nothing => false,
            Answer::Partial { n_fitting, n_ops, .. } => 3 * n_fitting >= 2 * n_ops,
            Answer::LostOnCost { .. }
            | Answer::TooStrict { .. }
            | Answer::Disabled { .. }
            | Answer::Refused { .. }
            | Answer::Another { .. } => true,
        };
        let is_asked = asked.iter().any(|name| name == op);
        if !is_asked && (is_elsewhere || !is_close) {
            continue;
        }
        let heading = if is_asked { "asked" } else { "missing" };
        text += &format!("\n{heading}: {why}\n");
        for location in &why.locations {
            let Location { node, target, module, line } = &canonical.locations[location.index()];
            let places = [target, module, line].into_iter().filter(|place| !place.is_empty());
            let places: Vec<&str> = places.map(String::as_str).collect();
            text += &format!("  at   {node} ({})\n", places.join(", "));
        }
    }
    Ok(text)
}

fn text(name: &str, CompileOutcome { imported, compiled, report }: &CompileOutcome, missing: &str) -> String {
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
        if fusion.rules.is_empty() {
            text += "  by   the model itself\n";
        }
        for rule in &fusion.rules {
            let class = rule_names().find(|(name, _)| name == rule).map_or("", |(_, class)| class.name());
            text += &format!("  by   {rule} [{class}]\n");
        }
    }
    text + missing + &fuse_text(compiled)
}

fn fuse_text(compiled: &Compiled) -> String {
    let fuse = &compiled.fuse;
    let [before_us, after_us, bound_us] = [fuse.cost_before_ps, fuse.cost_ps, fuse.bound_ps].map(microseconds);
    let regions = if fuse.n_regions == 1 { "1 region".to_owned() } else { format!("{} regions", fuse.n_regions) };
    let mut text = format!(
        "\n{regions}, {} distinct; estimated {before_us:.3} us before, {after_us:.3} us after, no choice below \
         {bound_us:.3} us (sums of instruction costs, to compare choices; `neffuse profile` predicts times)\n",
        fuse.n_distinct_regions
    );
    if let Some((at, region)) = fuse.worst_region() {
        let [gap_us, total_us] =
            [region.gap_ps().saturating_mul(region.n_instances as u64), fuse.gap_ps()].map(microseconds);
        text += &format!(
            "at most {total_us:.3} us above the best choice, {gap_us:.3} us of it in region {at} ({} nodes, {} times)\n",
            region.n_nodes, region.n_instances
        );
    }
    for limit in limits(&compiled.passes) {
        text += &format!("stopped at a limit, {limit}: the result is right, more might have been found\n");
    }
    for (reason, count) in &fuse.stop_reasons {
        let ending = match reason {
            StopReason::Saturated => "nothing more to find",
            StopReason::NodeLimit => "too many alternatives",
            StopReason::IterationLimit => "too many rounds",
            StopReason::OutOfFuel => "the fuel is spent",
        };
        text += &format!("search ended in {count} of the distinct ones: {ending}\n");
    }
    if !fuse.n_applications.is_empty() {
        text += "rules applied\n";
    }
    for (rule, count) in &fuse.n_applications {
        text += &format!("{count:>8}  {rule}\n");
    }
    text
}
