//! Which kernel replays which measurement, and what is read off the predicted timeline.
//!
//! One line a measurement: `TM0119 mlp_fused nc M=1024 K=2048 N=4096 T=f32`. Several kernels joined
//! by `+` are launched one after another. `apart` at the end keeps a row out of the fit.

use std::collections::BTreeMap;

use ir::program::Engine;
use ir::target::{Target, TargetName};
use simulator::{Span, Timeline};

use crate::expression::{Names, Value};

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    pub id: String,
    pub kernels: Vec<String>,
    pub metric: Metric,
    pub parameters: BTreeMap<String, String>,
    /// Reported, but not fitted.
    pub apart: bool,
}

/// What a measurement measures.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Metric {
    /// First trigger to last completion.
    Body,
    /// Device latency.
    Nc,
    /// The profiler's total time.
    Total,
    /// Time in which an engine executes.
    Active(Engine),
    /// Time in which any data moves.
    DmaActive,
    /// Percent of the peak rate of the tensor engine at 16 bits, over the profiler's total time; the parameter
    /// `FLOPS` is the work.
    PeakShare,
    /// Start to start at the end of a long stream.
    Interval(Engine),
    /// Start to start at the beginning of a stream.
    ColdInterval(Engine),
    /// Start of an instruction until its result is visible.
    Duration(Engine),
    /// The same of the first instruction of a stream.
    ColdDuration(Engine),
    /// The first engine's last result to the second's first start.
    Gap(Engine, Engine),
    /// Data of a transfer, divided by the parameter `PACKETS`.
    Packet,
    /// Trigger of the first transfer to its first data.
    FirstPacket,
    /// Last data of the first transfer to the start of the engine that waits.
    Resume(Engine),
    /// One of the numbers of [`Target`], by position.
    Number(usize),
}

impl Row {
    /// Reads one line.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(line: &str) -> Result<Row, String> {
        let mut words = line.split_whitespace();
        let mut next = |what: &str| words.next().ok_or(format!("{what} is missing in `{line}`"));
        let id = next("the id")?.to_string();
        let kernels = next("the kernel")?.split('+').map(str::to_string).collect();
        let metric = Metric::parse(next("the metric")?)?;
        let mut row = Row { id, kernels, metric, parameters: BTreeMap::new(), apart: false };
        for word in words {
            match word.split_once('=') {
                Some((name, value)) => {
                    row.parameters.insert(name.to_string(), value.to_string());
                }
                None if word == "apart" => row.apart = true,
                None => return Err(format!("`{word}` is no parameter")),
            }
        }
        Ok(row)
    }

    /// Parameters as kernels take them.
    ///
    /// # Errors
    /// A value that is neither an integer nor an element type.
    pub fn names(&self) -> Result<Names, String> {
        let mut names = Names::new();
        for (name, text) in &self.parameters {
            let value = match text.parse() {
                Ok(number) => Value::Integer(number),
                Err(_) => {
                    Value::Dtype(text.parse().map_err(|_| format!("`{name}={text}` is neither number nor type"))?)
                }
            };
            names.insert(name.clone(), value);
        }
        Ok(names)
    }

    fn number(&self, name: &str) -> f64 {
        self.parameters.get(name).and_then(|text| text.parse().ok()).unwrap_or(1.0)
    }

    /// The predicted value in the measurement's unit, from the timelines of the row's kernels.
    /// `None` where they do not hold what is asked for.
    pub fn predict(&self, timelines: &[&Timeline], target: &Target) -> Option<f64> {
        let mut total = 0.0;
        for timeline in timelines {
            total += self.read(timeline, target)?;
        }
        Some(match self.metric {
            Metric::PeakShare => {
                let flops_per_ps = 2.0 * 128.0 * 128.0 * target.pe_khz as f64 * 1e-9;
                100.0 * self.number("FLOPS") / flops_per_ps / total
            }
            Metric::Number(position) => target.numbers().get(position).map_or(0.0, |number| number.value as f64),
            _ => total,
        })
    }

    fn read(&self, timeline: &Timeline, target: &Target) -> Option<f64> {
        let spans_of = |engine: Engine| -> Vec<&Span> {
            timeline.spans.iter().filter(|span| span.instruction.engine == engine && span.name != "sync").collect()
        };
        let passes = self.number("PASSES");
        let transfer = || {
            let transfers = timeline.spans.iter().filter_map(|span| Some((span, span.transfer.as_ref()?)));
            transfers.min_by_key(|(span, _)| span.start_ps)
        };
        Some(match self.metric {
            Metric::Body | Metric::Number(_) => timeline.body_ps as f64,
            // Constants around the body are added here, so that a fit of theirs needs no simulation.
            Metric::Nc => (timeline.body_ps + target.nc_overhead_ps) as f64,
            // The profiler divides by its total time.
            Metric::Total | Metric::PeakShare => (timeline.body_ps + target.preamble_ps + target.epilogue_ps) as f64,
            Metric::Active(engine) => {
                let outside_ps = match engine {
                    Engine::Pe => target.profile_pe_ps,
                    Engine::Act => target.profile_act_ps,
                    Engine::Dve => target.profile_dve_ps,
                    Engine::Pool => target.profile_pool_ps,
                    Engine::Sp => target.profile_sp_ps,
                };
                (timeline.busy.of(engine) + outside_ps) as f64
            }
            Metric::DmaActive => (timeline.busy.dma_ps + target.profile_dma_ps) as f64,
            Metric::Interval(engine) | Metric::ColdInterval(engine) => {
                let spans = spans_of(engine);
                let mut intervals: Vec<i64> =
                    spans.windows(2).map(|pair| pair[1].start_ps - pair[0].start_ps).collect();
                let quarter = intervals.len().div_ceil(4);
                if matches!(self.metric, Metric::Interval(_)) {
                    intervals.drain(..intervals.len() - quarter);
                } else {
                    intervals.truncate(quarter.min(4));
                }
                intervals.sort_unstable();
                *intervals.get(intervals.len() / 2)? as f64 / passes
            }
            Metric::Duration(engine) | Metric::ColdDuration(engine) => {
                let spans = spans_of(engine);
                let span = if self.metric == Metric::Duration(engine) { spans.last() } else { spans.first() }?;
                // The result of the last pass, counted from that pass's start.
                (span.done_ps - span.start_ps) as f64 - (span.end_ps - span.start_ps) as f64 * (1.0 - 1.0 / passes)
            }
            Metric::Gap(from, to) => {
                let last_of = spans_of(from);
                // Within one engine, from its last result but one.
                let done = last_of.get(last_of.len().checked_sub(if from == to { 2 } else { 1 })?)?.done_ps;
                (spans_of(to).iter().map(|span| span.start_ps).find(|&start| start >= done)? - done) as f64
            }
            Metric::Packet => {
                let (_, data) = transfer()?;
                (data.last_data_ps - data.first_data_ps) as f64 / self.number("PACKETS")
            }
            Metric::FirstPacket => {
                let (span, data) = transfer()?;
                (data.first_data_ps - (span.done_ps - target.control_ps as i64)) as f64
            }
            Metric::Resume(engine) => {
                let (_, data) = transfer()?;
                let starts = spans_of(engine).into_iter().filter(|span| span.transfer.is_none());
                (starts.map(|span| span.start_ps).find(|&start| start >= data.last_data_ps)? - data.last_data_ps) as f64
            }
        })
    }
}

impl Metric {
    fn parse(text: &str) -> Result<Metric, String> {
        let engine = |name: &str| {
            Engine::ALL.into_iter().find(|engine| engine.name() == name).ok_or(format!("`{name}` is no engine"))
        };
        let fields: Vec<&str> = text.split(':').collect();
        Ok(match fields.as_slice() {
            ["body"] => Metric::Body,
            ["nc"] => Metric::Nc,
            ["total"] => Metric::Total,
            ["dma"] => Metric::DmaActive,
            ["mfu"] => Metric::PeakShare,
            ["packet"] => Metric::Packet,
            ["first_packet"] => Metric::FirstPacket,
            ["interval", name] => Metric::Interval(engine(name)?),
            ["cold_interval", name] => Metric::ColdInterval(engine(name)?),
            ["duration", name] => Metric::Duration(engine(name)?),
            ["cold_duration", name] => Metric::ColdDuration(engine(name)?),
            ["resume", name] => Metric::Resume(engine(name)?),
            ["gap", from, to] => Metric::Gap(engine(from)?, engine(to)?),
            ["number", name] => {
                let numbers = TargetName::Trn2.target().numbers();
                let position = numbers.iter().position(|number| number.name == *name);
                Metric::Number(position.ok_or(format!("there is no number `{name}`"))?)
            }
            [name] => Metric::Active(engine(name)?),
            _ => return Err(format!("`{text}` is no metric")),
        })
    }
}
