//! What commands report: one JSON object whose keys other tools rely on, and the same for people.
//!
//! Keys are never left out; what a command does not know is null.

use std::cmp::Reverse;
use std::fmt::Write;

use ir::Graph;
use ir::target::accuracy::Accuracy;
use ir::target::host::HostRuntime;
use passes::canonicalize::ROUND_LIMIT;
use passes::fuse::{RegionReport, StopReason};
use passes::manager::PassReport;
use serde::{Deserialize, Serialize};
use simulator::Timeline;

use crate::eager::eager_bytes;
use crate::error::Error;
use crate::execute::Executable;
use crate::import::UnsupportedNode;
use crate::metrics::{ProgramMetrics, compulsory_bytes, program_metrics};
use crate::pipeline::{Compiled, FusionEntry, LoopEntry, Options, Outlined};
use crate::traffic::{CauseEntry, SpillEntry, outlined_traffic, program_traffic, spills};
use crate::transposes::{TransposeEntry, transposes};
use crate::verdict::Verdict;

/// Partitions of the state buffer.
const N_PARTITIONS: u64 = 128;

/// Spills, transposes and loops that a summary lists.
const MOST_SPILLS: usize = 5;
const MOST_TRANSPOSES: usize = 3;
const MOST_LOOPS: usize = 5;

/// The runtime whose dispatch constant `host_us` uses.
pub const RUNTIME: HostRuntime = HostRuntime::TorchNeuron;

/// One command's result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub graph: String,
    pub target: Option<String>,
    pub numerics: Option<String>,
    pub neff_bytes: Option<usize>,
    /// Time until the NEFF was there, compiled or read from the cache.
    pub compile_seconds: Option<f64>,
    pub cache: Option<CacheUse>,
    pub passes: Vec<PassEntry>,
    /// Where a pass stopped at a limit of its own, as `pass: limit`: the result is right, more might
    /// have been found.
    pub limits: Vec<String>,
    /// Nodes of the fused graph.
    pub n_nodes: Option<usize>,
    /// Distinct linked kernels.
    pub n_kernels: Option<usize>,
    /// Each kernel, in the order of its place in the NEFF.
    pub kernels: Vec<KernelEntry>,
    /// Records of all streams.
    pub n_instructions: Option<usize>,
    /// Records on the data path of PE, ACT, DVE and Pool.
    pub n_compute_instructions: Option<usize>,
    /// NEFF executions.
    pub n_dispatches: Option<usize>,
    pub hbm_read_bytes: Option<u64>,
    pub hbm_write_bytes: Option<u64>,
    pub compulsory_bytes: Option<u64>,
    /// Bytes that eager's kernels move, one for each node that computes.
    pub eager_bytes: Option<u64>,
    /// Why the bytes are moved; they sum to those read and written. Empty where a compilation stopped
    /// before.
    pub hbm_causes: Vec<CauseEntry>,
    pub spill_bytes: Option<u64>,
    /// What `allocate` moved out of SBUF, most bytes first, for each distinct kernel once.
    pub spills: Vec<SpillEntry>,
    /// What is turned from rows to columns on partitions, most time first, for each distinct kernel
    /// once.
    pub transposes: Vec<TransposeEntry>,
    /// The tile loop of each node with what bounds it and what its schedule takes, for each distinct
    /// kernel once; most work first.
    pub loops: Vec<LoopEntry>,
    /// Bytes of weights that the host converts to the device's layout, once per version of a weight.
    /// The time is the host's and in no predicted time.
    pub converted_weight_bytes: Option<u64>,
    pub sbuf_peak_bytes: Option<u64>,
    /// Device body: first trigger to last completion.
    pub predicted_us: Option<f64>,
    /// How far the predicted times may be off; absent where no kernel of this chip was measured.
    pub predicted_error: Option<PredictedError>,
    /// Assumed hardware numbers that the prediction rests on.
    pub assumed_numbers: Vec<String>,
    /// What the vendor's tools call device latency.
    pub nc_us: Option<f64>,
    /// What the vendor's profiler calls total time.
    pub total_us: Option<f64>,
    /// What the runtime adds on the host, for all dispatches.
    pub host_us: Option<f64>,
    pub engine_busy_us: Option<EngineBusy>,
    /// Not known to a compilation, like everything that the simulator tells.
    #[serde(skip_deserializing)]
    pub bound: Option<&'static str>,
    pub fusions: Vec<FusionEntry>,
    /// Distinct regions of the fusion search, in order of first appearance.
    pub regions: Vec<RegionEntry>,
    /// Empty for what a cache keeps.
    #[serde(skip_deserializing)]
    pub unsupported: Vec<UnsupportedNode>,
    pub host_ops: Vec<String>,
    pub max_abs_error: Option<f64>,
    pub max_rel_error: Option<f64>,
    pub eager_abs_error: Option<f64>,
    pub ok: bool,
    /// The first line of the error; absent where the command succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One kernel and its calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelEntry {
    /// Name of its function; empty where only the NEFF is known.
    pub name: String,
    pub n_calls: usize,
    /// Records of all its streams.
    pub n_instructions: usize,
    /// Predicted time of one call after another of this kernel: the mean over its calls.
    pub predicted_us: Option<f64>,
}

/// What the compile cache had to do with a result.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheUse {
    /// An earlier compilation's result was read.
    Hit,
    /// There was none.
    Miss,
    /// The cache was not asked.
    Off,
}

/// What fusion chose for a region, all costs as sums of estimated instruction times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionEntry {
    /// Nodes of one instance before fusion.
    pub n_nodes: usize,
    /// Equal regions of the graph.
    pub n_instances: usize,
    pub n_enodes: usize,
    pub cost_ps: u64,
    /// No choice costs less.
    pub bound_ps: u64,
    /// Cost less bound; 0 where the choice is proven.
    pub gap_ps: u64,
    /// Why the search for alternatives ended.
    pub stop: String,
}

impl RegionEntry {
    fn of(region: &RegionReport) -> Self {
        RegionEntry {
            n_nodes: region.n_nodes,
            n_instances: region.n_instances,
            n_enodes: region.n_enodes,
            cost_ps: region.cost_ps,
            bound_ps: region.bound_ps,
            gap_ps: region.gap_ps(),
            stop: region.stop.name().to_owned(),
        }
    }
}

/// One pass.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PassEntry {
    pub name: String,
    pub seconds: f64,
    pub statistics: serde_json::Map<String, serde_json::Value>,
}

/// Agreement of predictions with measured kernels whose time goes into the same kind of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictedError {
    /// Nine of ten predictions were at most this far off.
    pub percent: f64,
    /// Half of them.
    pub median_percent: f64,
    /// Measured kernels.
    pub n_rows: u32,
    /// What the time goes into: `compute`, `transfers` or `latency`.
    pub work: String,
}

impl PredictedError {
    /// Of a timeline; `None` where no kernel of its chip and kind was measured.
    pub fn of(timeline: &Timeline) -> Option<PredictedError> {
        let Accuracy { n_rows, median_permille, p90_permille } = timeline.accuracy;
        (n_rows > 0).then(|| PredictedError {
            percent: f64::from(p90_permille) / 10.0,
            median_percent: f64::from(median_permille) / 10.0,
            n_rows,
            work: timeline.bound.work().name().to_owned(),
        })
    }
}

/// The expected error of a prediction in words.
pub fn predicted_error_text(error: Option<&PredictedError>) -> String {
    match error {
        Some(PredictedError { percent, n_rows, work, .. }) => {
            format!("± {percent:.0} % (9 of 10 of {n_rows} measured kernels; time goes into {work})")
        }
        None => "unknown: no kernel of this chip and kind was measured".to_owned(),
    }
}

/// Busy time of each engine; `dma` is the time in which any data moves.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineBusy {
    pub pe: f64,
    pub act: f64,
    pub dve: f64,
    pub pool: f64,
    pub sp: f64,
    pub dma: f64,
}

impl Report {
    /// A report on a graph of this name, as yet without results.
    pub fn new(graph: impl Into<String>) -> Self {
        Report { graph: graph.into(), ..Report::default() }
    }

    /// A report on a command that failed.
    pub fn failed(graph: impl Into<String>, error: &Error) -> Self {
        let mut report = Report::new(graph);
        report.note_error(error);
        report
    }

    /// Adds how the graph was compiled.
    pub fn note_options(&mut self, options: &Options) {
        self.target = Some(options.target.name().to_owned());
        self.numerics = Some(options.numerics.name().to_owned());
    }

    /// Adds what a compilation of the imported graph gave.
    pub fn note_compiled(&mut self, imported: &Graph, compiled: &Compiled) {
        self.compile_seconds = Some(compiled.seconds);
        self.passes = compiled.passes.iter().map(pass_entry).collect();
        self.limits = limits(&compiled.passes);
        self.n_nodes = Some(compiled.graph.n_nodes());
        self.compulsory_bytes = Some(compulsory_bytes(&compiled.graph));
        self.eager_bytes = Some(eager_bytes(imported));
        self.fusions = compiled.fusions.clone();
        self.regions = compiled.fuse.regions.iter().map(RegionEntry::of).collect();
        self.neff_bytes = compiled.neff.as_ref().map(Vec::len);
        self.converted_weight_bytes = Some(compiled.converted_weight_bytes);
        self.loops = compiled.loops.clone();
        self.loops.sort_by_key(|entry| Reverse(entry.bound_ps));
        if let Some(outlined) = &compiled.outlined {
            self.note_outlined(outlined);
            self.sbuf_peak_bytes = Some(peak(&compiled.passes) * N_PARTITIONS);
            return;
        }
        let Some(program) = &compiled.program else { return };
        let metrics = program_metrics(program);
        self.n_kernels = Some(1);
        self.kernels = vec![KernelEntry {
            name: program.name.clone(),
            n_calls: 1,
            n_instructions: metrics.n_instructions,
            predicted_us: None,
        }];
        self.n_dispatches = Some(1);
        self.n_instructions = Some(metrics.n_instructions);
        self.n_compute_instructions = Some(metrics.n_compute_instructions);
        self.hbm_read_bytes = Some(metrics.hbm_read_bytes);
        self.hbm_write_bytes = Some(metrics.hbm_write_bytes);
        self.hbm_causes = program_traffic(&compiled.graph, program);
        self.spill_bytes = Some(compiled.allocate.spill_bytes);
        self.spills = spills(program);
        self.transposes = transposes(program);
        self.sbuf_peak_bytes = Some(compiled.allocate.sbuf_peak_bytes_per_partition * N_PARTITIONS);
    }

    /// Adds what the kernels of a graph of repeated layers are. Bytes are those of all calls.
    fn note_outlined(&mut self, outlined: &Outlined) {
        self.n_nodes = Some(outlined.functions.iter().map(Graph::n_nodes).sum());
        if outlined.programs.is_empty() {
            return;
        }
        let mut sum = ProgramMetrics::default();
        for (number, program) in outlined.programs.iter().enumerate() {
            let metrics = program_metrics(program);
            let n_calls = outlined.n_calls(number);
            sum.n_instructions += metrics.n_instructions;
            sum.n_compute_instructions += metrics.n_compute_instructions;
            sum.hbm_read_bytes += metrics.hbm_read_bytes * n_calls as u64;
            sum.hbm_write_bytes += metrics.hbm_write_bytes * n_calls as u64;
            let (name, n_instructions) = (program.name.clone(), metrics.n_instructions);
            self.kernels.push(KernelEntry { name, n_calls, n_instructions, predicted_us: None });
        }
        self.n_kernels = Some(outlined.programs.len());
        self.n_dispatches = Some(1);
        self.n_instructions = Some(sum.n_instructions);
        self.n_compute_instructions = Some(sum.n_compute_instructions);
        self.hbm_read_bytes = Some(sum.hbm_read_bytes);
        self.hbm_write_bytes = Some(sum.hbm_write_bytes);
        self.hbm_causes = outlined_traffic(outlined);
        self.spill_bytes = Some(outlined.spill_bytes);
        self.spills = outlined.programs.iter().flat_map(spills).collect();
        self.transposes = outlined.programs.iter().flat_map(transposes).collect();
        self.transposes.sort_by_key(|entry| Reverse(entry.busy_ps));
    }

    /// Adds the kernels that a NEFF calls, and how long calls take.
    fn note_calls(&mut self, executable: &Executable, timeline: &Timeline) {
        let machine = executable.machine();
        let calls = machine.calls();
        self.n_kernels = Some(machine.kernels().count().max(1));
        if calls.is_empty() {
            self.kernels.resize(1, KernelEntry { n_calls: 1, ..KernelEntry::default() });
            self.kernels[0].n_instructions = machine.n_instructions();
            self.kernels[0].predicted_us = Some(microseconds(timeline.body_ps));
            return;
        }
        self.kernels.resize(machine.kernels().count(), KernelEntry::default());
        for (number, kernel) in machine.kernels().enumerate() {
            let of_kernel: Vec<u64> = timeline
                .calls
                .iter()
                .filter(|call| call.kernel == number)
                .map(|call| (call.end_ps - call.start_ps).unsigned_abs())
                .collect();
            let entry = &mut self.kernels[number];
            entry.n_calls = of_kernel.len();
            entry.n_instructions = kernel.n_instructions();
            let mean = of_kernel.iter().sum::<u64>().checked_div(of_kernel.len() as u64);
            entry.predicted_us = mean.map(microseconds);
        }
    }

    /// Adds predicted times.
    pub fn note_timeline(&mut self, executable: &Executable, timeline: &Timeline) {
        let counts = executable.counts();
        self.target = Some(executable.target().name().to_owned());
        self.note_calls(executable, timeline);
        self.n_dispatches = Some(1);
        self.n_instructions = Some(counts.n_instructions);
        self.n_compute_instructions = Some(counts.n_compute);
        self.hbm_read_bytes = Some(timeline.hbm_read_bytes);
        self.hbm_write_bytes = Some(timeline.hbm_write_bytes);
        self.sbuf_peak_bytes = Some(timeline.sbuf_peak_bytes * N_PARTITIONS);
        self.predicted_us = Some(microseconds(timeline.body_ps));
        self.predicted_error = PredictedError::of(timeline);
        self.assumed_numbers = timeline.assumed.iter().map(|&name| name.to_owned()).collect();
        self.nc_us = Some(microseconds(timeline.nc_ps));
        self.total_us = Some(microseconds(timeline.total_ps));
        self.host_us = Some(microseconds(RUNTIME.dispatch().dispatch_ps));
        let busy = &timeline.busy;
        self.engine_busy_us = Some(EngineBusy {
            pe: microseconds(busy.pe_ps),
            act: microseconds(busy.act_ps),
            dve: microseconds(busy.dve_ps),
            pool: microseconds(busy.pool_ps),
            sp: microseconds(busy.sp_ps),
            dma: microseconds(busy.dma_ps),
        });
        self.bound = Some(timeline.bound.name());
    }

    /// Adds errors against the truth.
    pub fn note_verdict(&mut self, verdict: &Verdict) {
        self.max_abs_error = Some(verdict.largest(|output| output.max_abs_error));
        self.max_rel_error = Some(verdict.largest(|output| output.max_rel_error));
        self.eager_abs_error = Some(verdict.largest(|output| output.eager_abs_error));
    }

    /// Adds why the command failed.
    pub fn note_error(&mut self, error: &Error) {
        self.unsupported = error.unsupported().to_vec();
        self.error = error.to_string().lines().next().map(str::to_owned);
        self.ok = false;
    }

    /// One JSON object on one line.
    pub fn to_json(&self) -> String {
        // Infinite errors have no JSON form and become null.
        serde_json::to_string(self).expect("a report has string keys only")
    }

    /// What a compilation gave, for people.
    pub fn compile_summary(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                writeln!(text, "  {name:<22}{value}").expect("strings take all text");
            }
        };
        line("target, numerics", join(&[self.target.clone(), self.numerics.clone()]));
        line("nodes", self.n_nodes.map(|count| count.to_string()));
        line("kernels", self.kernels_text());
        let compute = self.n_compute_instructions.map(|count| format!("{count} of them compute"));
        line("instructions", join(&[self.n_instructions.map(|count| count.to_string()), compute]));
        let read = self.hbm_read_bytes.map(|bytes| format!("{} read", bytes_text(bytes)));
        let written = self.hbm_write_bytes.map(|bytes| format!("{} written", bytes_text(bytes)));
        let least = self.compulsory_bytes.map(|bytes| format!("{} compulsory", bytes_text(bytes)));
        let eager = self.eager_bytes.map(|bytes| format!("{} eager", bytes_text(bytes)));
        line("HBM", join(&[read, written, least, eager]));
        for CauseEntry { cause, read_bytes, write_bytes } in &self.hbm_causes {
            let read = (*read_bytes > 0).then(|| format!("{} read", bytes_text(*read_bytes)));
            let written = (*write_bytes > 0).then(|| format!("{} written", bytes_text(*write_bytes)));
            line(&format!("  {cause}"), join(&[read, written]));
        }
        let peak = self.sbuf_peak_bytes.map(|bytes| format!("{} at most", bytes_text(bytes)));
        let spilled = self.spill_bytes.map(|bytes| format!("{} spilled", bytes_text(bytes)));
        line("SBUF", join(&[peak, spilled]));
        for spill in self.spills.iter().take(MOST_SPILLS) {
            let SpillEntry { value_of, room_for, n_tiles, write_bytes, read_bytes } = spill;
            let [write, read] = [write_bytes, read_bytes].map(|&bytes| bytes_text(bytes));
            let what = format!("{n_tiles} tiles of {value_of} for {room_for}: {write} stored, {read} read back");
            line("  spilled", Some(what));
        }
        line("  spilled", more(self.spills.len(), MOST_SPILLS));
        for transpose in self.transposes.iter().take(MOST_TRANSPOSES) {
            let TransposeEntry { by, n_instructions, bytes, busy_ps, reason, .. } = transpose;
            let time_us = microseconds(*busy_ps);
            let what = format!("{n_instructions} by {by}, {}, {time_us:.3} us: {reason}", bytes_text(*bytes));
            line("transposed", Some(what));
        }
        line("transposed", more(self.transposes.len(), MOST_TRANSPOSES));
        for LoopEntry { node, n_instructions, limit, bound_ps, taken_ps } in self.loops.iter().take(MOST_LOOPS) {
            let [bound_us, taken_us] = [*bound_ps, *taken_ps].map(microseconds);
            let percent = 100.0 * bound_us / taken_us;
            let what = format!(
                "{taken_us:.3} us for at least {bound_us:.3} us of {limit}, {percent:.0} %: {n_instructions} instructions of {node}"
            );
            line("loop", Some(what));
        }
        line("loop", more(self.loops.len(), MOST_LOOPS));
        let converted = self.converted_weight_bytes.filter(|&bytes| bytes > 0);
        line("weights", converted.map(|bytes| format!("{} converted once by the host", bytes_text(bytes))));
        line("fused ops", join(&[Some(self.fusions.len().to_string()), regions_text(&self.regions)]));
        let source = if self.cache == Some(CacheUse::Hit) { ", from the compile cache" } else { "" };
        line("compile time", self.compile_seconds.map(|seconds| format!("{:.1} ms{source}", seconds * 1e3)));
        text
    }

    /// Kernels and calls, where there is more than one call.
    fn kernels_text(&self) -> Option<String> {
        let n_calls: usize = self.kernels.iter().map(|kernel| kernel.n_calls).sum();
        (n_calls > 1).then(|| format!("{} distinct, {n_calls} calls", self.kernels.len()))
    }

    /// Predicted times, for people.
    pub fn time_summary(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: Option<f64>| {
            if let Some(value) = value {
                writeln!(text, "  {name:<22}{value:>10.3} us").expect("strings take all text");
            }
        };
        line("predicted body", self.predicted_us);
        line("device latency", self.nc_us);
        line("profiler's total", self.total_us);
        line(&format!("host ({})", RUNTIME.name()), self.host_us);
        if let Some(busy) = self.engine_busy_us {
            let EngineBusy { pe, act, dve, pool, sp, dma } = busy;
            for (name, value) in [("pe", pe), ("act", act), ("dve", dve), ("pool", pool), ("sp", sp), ("dma", dma)] {
                line(&format!("  {name} busy"), Some(value));
            }
        }
        if let Some(bound) = self.bound {
            writeln!(text, "  {:<22}{bound}", "bound by").expect("strings take all text");
            let error = predicted_error_text(self.predicted_error.as_ref());
            writeln!(text, "  {:<22}{error}", "expected error").expect("strings take all text");
        }
        for kernel in self.kernels.iter().filter(|_| self.kernels_text().is_some()) {
            let KernelEntry { name, n_calls, n_instructions, predicted_us } = kernel;
            let time_us = predicted_us.unwrap_or_default();
            let what = format!("{n_calls} calls of {n_instructions} instructions {name}");
            writeln!(text, "  {:<22}{time_us:>10.3} us each, {}", "  kernel", what.trim_end())
                .expect("strings take all text");
        }
        if !self.assumed_numbers.is_empty() {
            let names = self.assumed_numbers.join(", ");
            writeln!(text, "  {:<22}{names}: see docs/timing.md", "rests on assumed").expect("strings take all text");
        }
        text
    }
}

/// How many entries a summary leaves out.
fn more(n_entries: usize, n_listed: usize) -> Option<String> {
    let n_more = n_entries.checked_sub(n_listed).filter(|&count| count > 0)?;
    Some(format!("{n_more} more in --report json"))
}

/// How many regions were planned, what the choice costs, and how far that may be from the best.
fn regions_text(regions: &[RegionEntry]) -> Option<String> {
    if regions.is_empty() {
        return None;
    }
    let total = |part: fn(&RegionEntry) -> u64| {
        let sum = regions.iter().map(|region| part(region).saturating_mul(region.n_instances as u64));
        microseconds(sum.fold(0, u64::saturating_add))
    };
    let distinct =
        if regions.len() == 1 { "1 region".to_owned() } else { format!("{} distinct regions", regions.len()) };
    let mut text = format!("{distinct}, estimated {:.3} us", total(|region| region.cost_ps));
    let worst = regions
        .iter()
        .enumerate()
        .max_by_key(|(at, region)| (region.gap_ps.saturating_mul(region.n_instances as u64), std::cmp::Reverse(*at)));
    match worst.filter(|(_, region)| region.gap_ps > 0) {
        None => text += ", no choice is better",
        Some((at, region)) => {
            let RegionEntry { n_nodes, n_instances, .. } = region;
            text += &format!(
                ", perhaps {:.3} us above the best, {:.3} us of it in region {at} ({n_nodes} nodes, {n_instances} times)",
                total(|region| region.gap_ps),
                microseconds(region.gap_ps.saturating_mul(*n_instances as u64)),
            );
        }
    }
    Some(text)
}

fn join(parts: &[Option<String>]) -> Option<String> {
    let parts: Vec<&str> = parts.iter().flatten().map(String::as_str).collect();
    if parts.is_empty() { None } else { Some(parts.join(", ")) }
}

/// Bytes with a unit that keeps three digits.
pub fn bytes_text(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = bytes as f64;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < units.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{scaled:.1} {}", units[unit]) }
}

/// Picoseconds as microseconds.
pub fn microseconds(picoseconds: u64) -> f64 {
    picoseconds as f64 / 1e6
}

/// The limits at which passes stopped.
pub fn limits(passes: &[PassReport]) -> Vec<String> {
    let names = [ROUND_LIMIT, StopReason::NodeLimit.name(), StopReason::IterationLimit.name()];
    let reached = passes.iter().flat_map(|pass| {
        let reached = names.into_iter().filter(|name| pass.statistics.get(name) > 0);
        reached.map(|name| format!("{}: {name}", pass.name))
    });
    reached.collect()
}

/// Highest use of a partition of SBUF.
fn peak(passes: &[PassReport]) -> u64 {
    let peaks = passes.iter().map(|pass| pass.statistics.get("sbuf_peak_bytes_per_partition"));
    peaks.max().unwrap_or(0)
}

fn pass_entry(report: &PassReport) -> PassEntry {
    let statistics = report.statistics.iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    PassEntry { name: report.name.to_owned(), seconds: report.seconds, statistics }
}

#[cfg(test)]
mod tests {
    use passes::canonicalize::ROUND_LIMIT;
    use passes::manager::{PassReport, Phase, Statistics};

    use super::{Report, bytes_text, limits};
    use crate::error::Error;

    #[test]
    fn every_key_of_the_contract_is_there() {
        let report: serde_json::Value = serde_json::from_str(&Report::new("g").to_json()).unwrap();
        let keys = "graph target numerics neff_bytes compile_seconds cache passes limits n_nodes n_kernels kernels n_instructions \
            n_compute_instructions n_dispatches hbm_read_bytes hbm_write_bytes compulsory_bytes eager_bytes hbm_causes \
            spill_bytes spills transposes loops \
            converted_weight_bytes \
            sbuf_peak_bytes predicted_us predicted_error assumed_numbers nc_us total_us host_us engine_busy_us bound fusions regions unsupported host_ops \
            max_abs_error max_rel_error eager_abs_error ok";
        for key in keys.split_whitespace() {
            assert!(report.get(key).is_some(), "`{key}` is missing");
        }
    }

    #[test]
    fn failures_carry_their_first_line() {
        let report = Report::failed("g", &Error::Mismatch("output 0: too far\ndetails".to_owned()));
        assert_eq!(report.error.as_deref(), Some("error[mismatch]: output 0: too far"));
        assert!(!report.ok);
    }

    #[test]
    fn limits_are_told_with_their_pass() {
        let mut statistics = Statistics::new();
        statistics.add("nodes_after", 7);
        let pass = |statistics| PassReport { name: "canonicalize", phase: Phase::Canonical, seconds: 0.0, statistics };
        assert!(limits(&[pass(statistics.clone())]).is_empty());
        statistics.add(ROUND_LIMIT, 1);
        assert_eq!(limits(&[pass(statistics)]), ["canonicalize: round-limit"]);
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes_text(1023), "1023 B");
        assert_eq!(bytes_text(4096), "4.0 KiB");
        assert_eq!(bytes_text(3 << 29), "1.5 GiB");
    }
}
