//! Published and predicted wall times of RMSNorm, bf16 [4, 512], run in three ways.
//!
//! The dispatch constant is fitted on the published totals, so what is compared is how they divide
//! into dispatches and bodies. Bodies are simulated.

use std::collections::BTreeMap;
use std::fmt::Write;

use ir::Graph;
use ir::target::host::TORCH_NEURON_TOTALS;
use serde::Serialize;

use crate::eager::profile_eager;
use crate::error::Error;
use crate::execute::Executable;
use crate::pipeline::{Options, Unwatched, compile};
use crate::report::{PredictedError, RUNTIME, microseconds, predicted_error_text};

/// Published times of the naive spelling's operators: name, calls, all calls together in
/// microseconds.
const PUBLISHED_OPERATORS: [(&str, usize, f64); 4] =
    [("mul", 3, 1164.5), ("add", 1, 434.6), ("rsqrt", 1, 415.0), ("mean", 1, 340.8)];

/// One way to run the norm, or one operator of the first way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub name: String,
    pub n_dispatches: usize,
    pub published_us: f64,
    /// What the runtime adds.
    pub constant_us: f64,
    /// Simulated device time.
    pub body_us: f64,
}

impl Row {
    /// Constant and body together.
    pub fn predicted_us(&self) -> f64 {
        self.constant_us + self.body_us
    }

    /// How far the prediction is from the publication, as a share of it.
    pub fn deviation(&self) -> f64 {
        self.predicted_us() / self.published_us - 1.0
    }
}

/// The comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThreeWay {
    /// Naive eager, the built-in operator, the naive spelling compiled.
    pub ways: [Row; 3],
    /// The operators of naive eager.
    pub operators: Vec<Row>,
    /// How far the compiled body may be off.
    pub predicted_error: Option<PredictedError>,
}

impl ThreeWay {
    /// Predicted eager time over predicted compiled time.
    pub fn predicted_ratio(&self) -> f64 {
        self.ways[0].predicted_us() / self.ways[2].predicted_us()
    }

    /// Published eager time over published compiled time.
    pub fn published_ratio(&self) -> f64 {
        self.ways[0].published_us / self.ways[2].published_us
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let mut table = format!(
            "{:<34}{:>10}{:>13}{:>13}{:>12}{:>12}{:>8}\n",
            "RMSNorm, bf16 [4, 512]", "dispatches", "published us", "predicted us", "constant us", "body us", "off by"
        );
        let mut line = |indent: &str, row: &Row| {
            let name = format!("{indent}{}", row.name);
            writeln!(
                table,
                "{name:<34}{:>10}{:>13.1}{:>13.1}{:>12.1}{:>12.1}{:>7.1}%",
                row.n_dispatches,
                row.published_us,
                row.predicted_us(),
                row.constant_us,
                row.body_us,
                row.deviation() * 100.0
            )
            .expect("strings take all text");
        };
        line("", &self.ways[0]);
        self.operators.iter().for_each(|row| line("  ", row));
        line("", &self.ways[1]);
        line("", &self.ways[2]);
        writeln!(
            table,
            "naive eager over compiled: published {:.2}, predicted {:.2}",
            self.published_ratio(),
            self.predicted_ratio()
        )
        .expect("strings take all text");
        let error = predicted_error_text(self.predicted_error.as_ref());
        writeln!(table, "body of the compiled norm: {error}").expect("strings take all text");
        table
    }
}

/// Compares the naive spelling and the built-in operator of the norm.
///
/// # Errors
/// As [`compile`].
pub fn three_way(naive: &Graph, built_in: &Graph, options: &Options) -> Result<ThreeWay, Error> {
    let eager = profile_eager(naive, options)?;
    let constant_us = microseconds(RUNTIME.dispatch().dispatch_ps);
    let published = TORCH_NEURON_TOTALS.map(|(total_ps, _)| microseconds(total_ps));
    let row = |name: &str, published_us, n_dispatches: usize, body_us| Row {
        name: name.to_owned(),
        n_dispatches,
        published_us,
        constant_us: constant_us * n_dispatches as f64,
        body_us,
    };
    let mut by_operator: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for dispatch in &eager.dispatches {
        let operator = dispatch.target.split('.').nth(1).unwrap_or_default();
        let (n_calls, body_us) = by_operator.entry(operator).or_default();
        *n_calls += 1;
        *body_us += dispatch.body_us;
    }
    let operators = PUBLISHED_OPERATORS.iter().map(|&(name, _, published_us)| {
        let (n_calls, body_us) = by_operator.get(name).copied().unwrap_or_default();
        row(name, published_us, n_calls, body_us)
    });
    let (built_in_us, _) = compiled_body_us(built_in, options)?;
    let (compiled_us, predicted_error) = compiled_body_us(naive, options)?;
    Ok(ThreeWay {
        predicted_error,
        operators: operators.collect(),
        ways: [
            row("naive, eager", published[0], eager.n_dispatches, eager.predicted_us),
            row("built-in, one NEFF", published[1], 1, built_in_us),
            row("naive, compiled", published[2], 1, compiled_us),
        ],
    })
}

fn compiled_body_us(graph: &Graph, options: &Options) -> Result<(f64, Option<PredictedError>), Error> {
    let compiled = compile(graph, options, &mut Unwatched)?;
    let neff = compiled.neff.ok_or_else(|| Error::Internal("a whole compilation gives a NEFF".to_owned()))?;
    let timeline = Executable::load(&neff)?.timeline()?;
    Ok((microseconds(timeline.body_ps), PredictedError::of(&timeline)))
}
