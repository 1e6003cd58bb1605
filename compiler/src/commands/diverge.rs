//! `neffuse bisect MODEL A B`: the first node that two sides compute differently.

use std::path::{Path, PathBuf};

use ir::reference::{Rounding, Value, evaluate};
use ir::text::node_line;
use ir::{Graph, ValueId};

use super::progress::Terminal;
use super::{Outcome, stem, write_atomically};
use crate::divergence::{Contest, Difference, Divergence, Sameness, SmallGraph};
use crate::error::Error;
use crate::npz;
use crate::pipeline::{Watcher, source_text};
use crate::samples::recorded_path;

/// What is compared, and where the small graph goes.
pub(super) struct Comparison {
    pub contest: Contest,
    pub graph: Graph,
    pub inputs: Vec<Value>,
    pub output: PathBuf,
    /// What a command line that replays it says beside file and sides.
    pub options: String,
}

pub(super) fn diverge(comparison: &Comparison, input: &Path) -> Result<Outcome, Error> {
    let Comparison { contest, graph, inputs, output, options } = comparison;
    let name = stem(input);
    let mut terminal = Terminal::new(&format!("bisecting {name}"));
    let found = contest.first_divergence(graph, inputs, &mut |text| terminal.show(text))?;
    let (a, b) = (&contest.a.name, &contest.b.name);
    let Some(divergence) = found else {
        let error = Error::Input(format!("{name}: {a} and {b} agree on all outputs: there is nothing to find"));
        return Err(match contest.sameness {
            Sameness::Standard => error.with_help("--compare bits tells the smallest difference"),
            Sameness::Bits => error,
        });
    };
    let small = contest.smallest(graph, inputs, &divergence, &mut |text| terminal.show(text))?;
    drop(terminal);
    let mut text = shown(comparison, &divergence);
    let file = output.display();
    write_atomically(output, small.graph.to_string().as_bytes())?;
    let n_nodes = small.graph.n_nodes();
    text += &format!("wrote {file}: {n_nodes} {}\n", if n_nodes == 1 { "node" } else { "nodes" });
    let recorded = recorded_path(output);
    match &small.inputs {
        Some(inputs) => {
            write_atomically(&recorded, &archive(&small, inputs)?)?;
            text += &format!("wrote {}: the values that show it\n", recorded.display());
        }
        // Values of an earlier search would be taken for this graph's.
        None if recorded.exists() => {
            let message = format!("{}: holds values that are not of {file}", recorded.display());
            return Err(Error::File(message).with_help("remove it, or name another file with -o"));
        }
        None => {}
    }
    text += &format!("  neffuse bisect {file} {a} {b}{options}\n");
    Ok(Outcome::text(text))
}

fn shown(comparison: &Comparison, divergence: &Divergence) -> String {
    let Comparison { contest, graph, .. } = comparison;
    let Divergence { node, value, difference, together_with, n_tests, skipped } = divergence;
    let names = |values: &[ValueId]| values.iter().map(|value| format!("%{}", value.0)).collect::<Vec<_>>().join(", ");
    let (a, b) = (&contest.a.name, &contest.b.name);
    let mut text = format!("first divergence of {a} and {b}: {}\n", node_line(graph, *node));
    for &location in &graph.node(*node).locations {
        text += &format!("  from {}\n", source_text(graph, location));
    }
    let computed: Vec<ValueId> =
        graph.node(*node).operands.iter().copied().filter(|&operand| graph.producer(operand).is_some()).collect();
    match computed.as_slice() {
        [] => text += "  its operands are inputs, equal on both sides\n",
        computed => text += &format!("  its operands agree: {}\n", names(computed)),
    }
    if !together_with.is_empty() {
        text += &format!("  it differs where {} are asked for too\n", names(together_with));
    }
    let Difference { worst, allowed, reason } = difference;
    text += &format!("  {reason}\n");
    if let Some((position, at_a, at_b)) = worst {
        text += &format!("  worst element {:?} of {}\n", position.as_slice(), graph.ty(*value));
        let width = a.len().max(b.len()).max("difference".len());
        text += &format!("    {a:<width$}  {at_a:e}\n    {b:<width$}  {at_b:e}\n");
        let apart = (at_a - at_b).abs();
        text += &format!("    {:<width$}  {apart:e}, allowed {allowed:e}\n", "difference");
    }
    text += &format!("found in {n_tests} comparisons of {} nodes\n", graph.n_nodes());
    if let Some((n_skipped, reason)) = skipped {
        text += &format!("note: {n_skipped} could not be made, the first of {reason}\n");
    }
    text
}

/// Recorded values as `check` and `bisect` read them, with eager's outputs.
fn archive(small: &SmallGraph, inputs: &[Value]) -> Result<Vec<u8>, Error> {
    let SmallGraph { graph, inputs: _ } = small;
    let fail = |what: &dyn std::fmt::Display| Error::Internal(format!("values of the small graph: {what}"));
    let outputs = evaluate(graph, inputs, Rounding::PerOp).map_err(|error| fail(&error))?;
    let given = graph.inputs.iter().map(|input| input.value).zip(inputs.iter().cloned()).enumerate();
    let given = given.map(|(position, pair)| (format!("in_{position}"), pair));
    let computed = graph.outputs.iter().zip(outputs).enumerate();
    let computed =
        computed.filter_map(|(position, (output, value))| Some((format!("out_{position}"), (output.value?, value?))));
    let mut arrays = Vec::new();
    for (name, (id, value)) in given.chain(computed) {
        let ty = graph.ty(id);
        arrays.push((name, ty, value.to_bytes(ty.dtype).map_err(|error| fail(&error))?));
    }
    let arrays = arrays.iter().map(|(name, ty, bytes)| (name.as_str(), *ty, bytes.as_slice()));
    npz::write(arrays).map_err(|error| fail(&error.message))
}
