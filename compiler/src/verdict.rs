//! Judging outputs: ours and eager's against the truth, output by output.

use ir::Graph;
use ir::ops::AttentionExtents;
use ir::reference::{Comparison, Rounding, Value, compare, evaluate};

use crate::error::Error;
use crate::samples::Samples;

/// Multiplications above which a graph is not evaluated by the reference, which would take hours.
const MAX_MULTIPLICATIONS: u64 = 1 << 38;

/// What outputs are judged by.
#[derive(Clone, Debug)]
pub struct Standard {
    /// The outputs in f64 without roundings.
    pub truth: Vec<Option<Value>>,
    /// What PyTorch gave, or the reference evaluator with one rounding per op.
    pub eager: Vec<Option<Value>>,
}

impl Standard {
    /// Evaluates a graph as it was imported.
    ///
    /// # Errors
    /// When the graph has no result for these inputs, or is too large to evaluate.
    pub fn of(graph: &Graph, samples: &Samples) -> Result<Standard, Error> {
        let n_multiplications = multiplications(graph);
        if n_multiplications > MAX_MULTIPLICATIONS {
            let message = format!("the graph's {n_multiplications} multiplications are too many to evaluate");
            return Err(Error::Input(message));
        }
        let evaluated = |rounding| {
            evaluate(graph, &samples.inputs, rounding).map_err(|error| Error::Input(format!("the graph: {error}")))
        };
        let eager = match &samples.outputs {
            Some(outputs) => outputs.clone(),
            None => evaluated(Rounding::PerOp)?,
        };
        Ok(Standard { truth: evaluated(Rounding::None)?, eager })
    }

    /// Judges outputs, by position; positions without a tensor are skipped.
    pub fn judge(&self, graph: &Graph, outputs: &[Option<Value>]) -> Verdict {
        let mut judged = Vec::new();
        for (position, output) in graph.outputs.iter().enumerate() {
            let Some(value) = output.value else { continue };
            let at = |values: &[Option<Value>]| values.get(position).cloned().flatten();
            let comparison = match (at(outputs), at(&self.eager), at(&self.truth)) {
                (Some(output), Some(eager), Some(truth)) => compare(&output, &eager, &truth, graph.ty(value).dtype),
                (_, _, _) => missing(),
            };
            judged.push(JudgedOutput { position, comparison });
        }
        Verdict { outputs: judged }
    }
}

fn missing() -> Comparison {
    Comparison {
        max_abs_error: f64::INFINITY,
        max_rel_error: f64::INFINITY,
        eager_abs_error: 0.0,
        allowed_abs_error: 0.0,
        rms_error: f64::INFINITY,
        eager_rms_error: 0.0,
        worst: None,
        failure: Some("there is no output".to_owned()),
    }
}

/// One output's comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgedOutput {
    /// Position in the graph's outputs.
    pub position: usize,
    pub comparison: Comparison,
}

/// All outputs' comparisons.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub outputs: Vec<JudgedOutput>,
}

impl Verdict {
    /// True when every output passes.
    pub fn passes(&self) -> bool {
        self.outputs.iter().all(|output| output.comparison.passes())
    }

    /// Largest of a number over all outputs; 0 without outputs.
    pub fn largest(&self, number: impl Fn(&Comparison) -> f64) -> f64 {
        self.outputs.iter().map(|output| number(&output.comparison)).fold(0.0, f64::max)
    }

    /// The first failure with its output and worst element.
    pub fn failure(&self) -> Option<String> {
        let failed = self.outputs.iter().find(|output| !output.comparison.passes())?;
        let reason = failed.comparison.failure.as_deref().unwrap_or_default();
        let mut text = format!("output {}: {reason}", failed.position);
        if let Some(worst) = &failed.comparison.worst {
            text += &format!(
                " (at {:?}: {:e}, eager {:e}, truth {:e})",
                worst.position.as_slice(),
                worst.output,
                worst.eager,
                worst.truth
            );
        }
        Some(text)
    }

    /// The errors as a table: one line per output.
    pub fn table(&self) -> String {
        let mut table = format!(
            "{:>8}  {:>12}  {:>12}  {:>12}  {:>12}  result\n",
            "output", "max error", "eager's", "rms error", "eager's"
        );
        for JudgedOutput { position, comparison } in &self.outputs {
            let Comparison { max_abs_error, eager_abs_error, rms_error, eager_rms_error, .. } = comparison;
            let result = if comparison.passes() { "ok" } else { "MISMATCH" };
            table += &format!(
                "{position:>8}  {max_abs_error:>12.3e}  {eager_abs_error:>12.3e}  {rms_error:>12.3e}  \
                 {eager_rms_error:>12.3e}  {result}\n"
            );
        }
        table
    }
}

/// Multiplications that the contractions of a graph take.
fn multiplications(graph: &Graph) -> u64 {
    let mut total = 0u64;
    for (_, node) in graph.nodes() {
        let n_results = graph.ty(node.results[0]).n_elements() as u64;
        let n_summed = match &node.op {
            ir::Op::Matmul(matmul) => summed(graph, node.operands[0], matmul.transpose_lhs),
            ir::Op::FusedMatmul(matmul) => summed(graph, node.operands[0], matmul.transpose_lhs),
            ir::Op::Attention(_) => {
                let ty = |position: usize| graph.ty(node.operands[position]);
                let extents = AttentionExtents::of(ty(0), ty(1), ty(2));
                // Each element of the result sums over keys; so many scores have a sum each, too.
                let n_products = extents.n_keys * (extents.n_features + extents.n_values);
                (n_products / extents.n_values.max(1)) as u64
            }
            _ => 1,
        };
        total = total.saturating_add(n_results.saturating_mul(n_summed));
    }
    total
}

fn summed(graph: &Graph, lhs: ir::ValueId, transpose: bool) -> u64 {
    let shape = &graph.ty(lhs).shape;
    let axis = shape.len() - if transpose { 2 } else { 1 };
    shape[axis] as u64
}
