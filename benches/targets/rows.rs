//! The table's rows: targets, judged figures, text.

use std::time::Duration;

use serde::Serialize;

use crate::cpu::cpu_seconds;
use crate::measured::{Measured, Simulated};
use crate::peers::Peers;
use crate::{Figures, gym, packing};

/// Runs of everything that is timed here.
const N_RUNS: usize = 5;

#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Met,
    Missed,
    /// Without a target.
    Reported,
    /// The case failed or was not asked for, or its input is not here.
    Absent,
}

/// One line of the table.
#[derive(Serialize)]
pub struct Row {
    pub what: String,
    pub target: String,
    pub ours: String,
    pub verdict: Verdict,
    /// Peers in this run.
    pub peers: String,
    /// Figures known from elsewhere, with where they are from.
    pub known: &'static str,
}

impl Row {
    fn new(what: impl Into<String>, target: impl Into<String>) -> Row {
        Row {
            what: what.into(),
            target: target.into(),
            ours: "not measured".to_owned(),
            verdict: Verdict::Absent,
            peers: String::new(),
            known: "",
        }
    }

    fn ours(mut self, text: impl Into<String>, verdict: Verdict) -> Row {
        (self.ours, self.verdict) = (text.into(), verdict);
        self
    }

    fn known(mut self, known: &'static str) -> Row {
        self.known = known;
        self
    }

    fn peers(mut self, peers: String) -> Row {
        self.peers = peers;
        self
    }

    /// The time to a NEFF, and the processor time beside it.
    fn neff_seconds(self, found: Option<&Measured>, most: Option<f64>, note: &str) -> Row {
        let Some(found) = found else { return self };
        let note = format!(", CPU {}{note}", seconds_text(found.cpu_seconds));
        self.seconds(Some(&found.neff_seconds), most, &note)
    }

    /// A time of which the median counts.
    fn seconds(self, seconds: Option<&Vec<f64>>, most: Option<f64>, note: &str) -> Row {
        let Some(seconds) = seconds.filter(|seconds| !seconds.is_empty()) else { return self };
        let verdict = most.map_or(Verdict::Reported, |most| verdict(median(seconds) <= most));
        self.ours(format!("{}{note}", spread_text(seconds)), verdict)
    }
}

fn verdict(is_met: bool) -> Verdict {
    if is_met { Verdict::Met } else { Verdict::Missed }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// A time with three digits.
pub fn seconds_text(seconds: f64) -> String {
    let (value, unit) = match seconds {
        seconds if seconds < 1e-3 => (seconds * 1e6, "us"),
        seconds if seconds < 1.0 => (seconds * 1e3, "ms"),
        seconds => (seconds, "s"),
    };
    let n_decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.n_decimals$} {unit}")
}

/// The median, and in brackets the least and the greatest of how many.
fn spread_text(seconds: &[f64]) -> String {
    let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    let most = seconds.iter().copied().fold(0.0, f64::max);
    let (median, least, most) = (seconds_text(median(seconds)), seconds_text(least), seconds_text(most));
    match seconds.len() {
        1 => format!("{median} (once)"),
        n => format!("{median} ({least} to {most}, {n} runs)"),
    }
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn microseconds(ps: u64) -> f64 {
    ps as f64 / 1e6
}

/// Rows whose figures come from compiling.
pub fn of_compiler(figures: &Figures, peers: &Peers) -> Vec<Row> {
    let mut rows = of_one_block(figures, peers);
    rows.extend(of_many_blocks(figures, peers));
    rows.extend(of_pointwise(figures, peers));
    rows.extend(of_model(figures));
    rows.extend(of_bytes(figures));
    rows.extend(of_products(figures));
    rows.extend(of_heads(figures));
    rows.extend(of_rooflines(figures));
    rows.extend(of_checks(figures));
    rows
}

fn placed_seconds<'a>(figures: &'a Figures, name: &str) -> Option<&'a Vec<f64>> {
    figures.get(name).map(|found| &found.placed_seconds)
}

fn simulated<'a>(figures: &'a Figures, name: &str) -> Option<&'a Simulated> {
    figures.get(name).and_then(|found| found.simulated.as_ref())
}

fn of_one_block(figures: &Figures, peers: &Peers) -> Vec<Row> {
    let instructions = |name: &str| {
        figures.get(name).map(|found| format!(", {} instructions", found.n_instructions)).unwrap_or_default()
    };
    let n_nodes = |name: &str| figures.get(name).map_or(0, |found| found.n_nodes);
    let known = "ONNX Runtime 52 ms, OpenVINO 64 ms, XLA 188 ms, IREE 1.8 s, Inductor 4.1 s (issue)";
    let block = format!("Llama-like block f32, hidden 1,024, {} nodes", n_nodes("block"));
    let large = format!("llama7b_block_core, {} nodes", n_nodes("llama7b_block_core"));
    vec![
        Row::new(format!("{block}: to the placed graph"), "<= 25 ms")
            .seconds(placed_seconds(figures, "block"), Some(25e-3), "")
            .peers(peers.text("block"))
            .known(known),
        Row::new(format!("{block}: to the NEFF"), "").neff_seconds(figures.get("block"), None, &instructions("block")),
        Row::new(format!("{large}: to the placed graph"), "<= 60 ms").seconds(
            placed_seconds(figures, "llama7b_block_core"),
            Some(60e-3),
            "",
        ),
        Row::new(format!("{large}: to the NEFF"), "<= 300 ms").neff_seconds(
            figures.get("llama7b_block_core"),
            Some(300e-3),
            &instructions("llama7b_block_core"),
        ),
    ]
}

fn of_many_blocks(figures: &Figures, peers: &Peers) -> Vec<Row> {
    let mut rows = Vec::new();
    let widths = [("blocks", "hidden 128, 32 tokens"), ("large_blocks", "hidden 1,024, 256 tokens")];
    for (name, what) in widths {
        let (few, many) = (figures.get(&*format!("{name}_4")), figures.get(&*format!("{name}_64")));
        let n_nodes = many.map_or(0, |found| found.n_nodes);
        let what = format!("64 equal blocks, {what}, {n_nodes} nodes");
        let row = Row::new(what.clone(), "<= 0.15 s");
        let row = row.neff_seconds(many, Some(0.15), "");
        let is_the_peers = name == "blocks";
        rows.push(if is_the_peers {
            row.peers(peers.text("blocks_64"))
                .known("ONNX Runtime 0.32 s, XLA 2.0, OpenVINO 2.8, IREE 7.9, Inductor 50.6 s (issue)")
        } else {
            row
        });
        let mut row = Row::new(format!("{what}: over 4 blocks"), "<= 1.3x");
        if let (Some(few), Some(many)) = (few, many) {
            let imports = [few, many].map(|found| median(&found.import_seconds));
            let (few, many) = (median(&few.neff_seconds), median(&many.neff_seconds));
            let after_import = (many - imports[1]) / (few - imports[0]);
            let (few_text, import) = (seconds_text(few), seconds_text(imports[1]));
            let text = format!("{:.2}x of {few_text}; {after_import:.2}x without import, {import}", many / few);
            row = row.ours(text, verdict(many <= 1.3 * few));
        }
        rows.push(row);
    }
    rows
}

/// Most memory of a compiler of random graphs, in bytes.
const MAX_COMPILER_BYTES: u64 = 1_000_000_000;

fn of_pointwise(figures: &Figures, peers: &Peers) -> Vec<Row> {
    let known = ["ONNX Runtime 58 ms, XLA 4.6 s, Inductor 12.6 s (issue)", "XLA 28 s, Inductor 69 s (issue)"];
    let sizes = [("dag_2000", "2,000", 0.1, known[0]), ("dag_10000", "10,000", 0.6, known[1])];
    let mut rows: Vec<Row> = sizes
        .into_iter()
        .map(|(name, size, most, known)| {
            Row::new(format!("random DAG of {size} pointwise nodes"), format!("<= {most} s"))
                .neff_seconds(figures.get(name), Some(most), "")
                .peers(peers.text(name))
                .known(known)
        })
        .collect();
    let sizes = ["dag_1000", "dag_2000", "dag_10000", "dag_100000"].map(|name| figures.get(name));
    let mut row = Row::new("random DAG, time a node from 1,000 to 100,000", "within 20 % of linear");
    if let [Some(first), _, _, Some(last)] = sizes {
        let seconds = [first, last].map(|found| median(&found.neff_seconds));
        let n_nodes = [first, last].map(|found| found.n_nodes as f64);
        let ratio = (seconds[1] / n_nodes[1]) / (seconds[0] / n_nodes[0]);
        let exponent = (seconds[1] / seconds[0]).ln() / (n_nodes[1] / n_nodes[0]).ln();
        let each: Vec<String> = sizes
            .into_iter()
            .flatten()
            .map(|found| format!("{:.1}", median(&found.neff_seconds) * 1e6 / found.n_nodes as f64))
            .collect();
        let text = format!("{ratio:.2}x a node, exponent {exponent:.3}, {} us a node", each.join(" / "));
        row = row.ours(text, verdict((0.8..=1.2).contains(&ratio)));
    }
    rows.push(row);
    let sizes = [("dag_2000", "2,000"), ("dag_10000", "10,000"), ("dag_100000", "100,000")];
    rows.extend(sizes.into_iter().map(|(name, size)| {
        let row = Row::new(format!("random DAG of {size}: memory"), "<= 1 GB").known(match name {
            "dag_10000" => "XLA 2.2 GB, Inductor 1.8 GB; IREE runs out of 23 GB at 1,000 nodes (issue, peers.md)",
            _ => "",
        });
        let Some(found) = figures.get(name) else { return row };
        let text = format!("{:.2} GB", found.peak_bytes as f64 / 1e9);
        row.ours(text, verdict(found.peak_bytes <= MAX_COMPILER_BYTES))
    }));
    rows
}

fn of_model(figures: &Figures) -> Vec<Row> {
    let models = [("llama7b", "Llama-7B, ids to logits"), ("llama7b_layers", "Llama-7B, the 32 layers alone")];
    let one = figures.get("llama7b_block_core");
    let rows = models.into_iter().flat_map(|(name, what)| {
        let all = figures.get(name);
        let what = format!("{what}, {} nodes", all.map_or(0, |found| found.n_nodes));
        let time = Row::new(what.clone(), "<= 0.8 s").neff_seconds(all, Some(0.8), "");
        let time = time.known("vendor compiler: minutes to tens of minutes (issue)");
        let mut memory = Row::new(format!("{what}: memory"), "<= 1 GiB");
        if let Some(all) = all {
            let text = format!("{:.0} MiB", mebibytes(all.peak_bytes));
            memory = memory.ours(text, verdict(all.peak_bytes <= 1 << 30));
        }
        let mut size = Row::new(format!("{what}: NEFF over one layer's"), "<= 3x");
        if let (Some(one), Some(all)) = (one, all) {
            let ratio = all.neff_bytes as f64 / one.neff_bytes as f64;
            let text = format!("{ratio:.2}x, {} and {} bytes", all.neff_bytes, one.neff_bytes);
            size = size.ours(text, verdict(ratio <= 3.0));
        }
        [time, memory, size]
    });
    rows.collect()
}

fn of_bytes(figures: &Figures) -> Vec<Row> {
    let known = ["eager 3.1x (issue)", "eager 20.6x, region-wise plans 1.55x, joint 1.36x (issue)"];
    let lengths = [("llama3_8b_block_512", "512", 1.05, known[0]), ("llama3_8b_block_core", "2,048", 1.45, known[1])];
    let row = |(name, length, most, known)| {
        let row = Row::new(format!("HBM bytes, Llama-3-8B block, S = {length}"), format!("<= {most}x compulsory"));
        let Some(found) = simulated(figures, name) else { return row.known(known) };
        let over = |bytes: u64| bytes as f64 / found.compulsory_bytes as f64;
        let text = format!(
            "{:.3}x, {:.1} of {:.1} MiB; eager {:.1}x",
            over(found.hbm_bytes),
            mebibytes(found.hbm_bytes),
            mebibytes(found.compulsory_bytes),
            over(found.eager_bytes)
        );
        row.ours(text, verdict(over(found.hbm_bytes) <= most)).known(known)
    };
    lengths.map(row).into()
}

fn of_products(figures: &Figures) -> Vec<Row> {
    let known = [
        "body: bound 96.6 %; total: bound about 90.6, best hand kernel 90.92, vendor compiler 86.65 % (issue)",
        "body: bound 96.6 %; total: bound about 90.6, best hand kernel 89.26, vendor compiler 83.84 % (issue)",
    ];
    let stores = [("product_km", "[K, M]", 95.0, known[0]), ("product_mk", "row-major", 93.0, known[1])];
    let row = |(name, stored, least, known)| {
        let row = Row::new(format!("2048^3 bf16 product, left {stored}: PE over body"), format!(">= {least} %"));
        let Some(found) = simulated(figures, name) else { return row.known(known) };
        let percent = |ps: u64| 100.0 * found.ideal_pe_ps as f64 / ps as f64;
        let text = format!(
            "{:.2} %, body {:.2} us; MFU over total {:.2} %",
            percent(found.body_ps),
            microseconds(found.body_ps),
            percent(found.total_ps)
        );
        row.ours(text, verdict(percent(found.body_ps) >= least)).known(known)
    };
    stores.map(row).into()
}

fn of_heads(figures: &Figures) -> Vec<Row> {
    let known = "public fused NKI kernel 21.0 us measured; estimate from measured constants about 11 us (issue)";
    let stores = [("head_transposed", "[128, 512]", Some(12.0), known), ("head", "[512, 128]", None, "")];
    let row = |(name, stored, most, known): (&str, &str, Option<f64>, &'static str)| {
        let target = most.map(|most| format!("<= {most} us")).unwrap_or_default();
        let row = Row::new(format!("attention head, q, k, v {stored} bf16: body"), target);
        let Some(found) = simulated(figures, name) else { return row.known(known) };
        let body_us = microseconds(found.body_ps);
        let verdict = most.map_or(Verdict::Reported, |most| verdict(body_us <= most));
        row.ours(format!("{body_us:.2} us"), verdict).known(known)
    };
    stores.map(row).into()
}

fn of_rooflines(figures: &Figures) -> Vec<Row> {
    let row = |name: &str| {
        let row = Row::new(format!("{name}: body over roofline"), "<= 1.25x");
        let Some(found) = simulated(figures, name) else { return row };
        let ratio = found.body_ps as f64 / found.roofline_ps as f64;
        let text = format!(
            "{ratio:.3}x, body {:.0} us, {} {:.0} us ({:.3}x where masked scores do not count)",
            microseconds(found.body_ps),
            found.roofline_engine,
            microseconds(found.roofline_ps),
            found.body_ps as f64 / found.seen_roofline_ps as f64
        );
        row.ours(text, verdict(ratio <= 1.25))
    };
    ["llama7b_block_core", "llama7b_block_none", "llama3_8b_block_core"].map(row).into()
}

fn of_checks(figures: &Figures) -> Vec<Row> {
    let row = |(name, what)| {
        let row = Row::new(format!("verifier of streams, {what}"), ">= 5 M instructions/s");
        let Some(found) = figures.get(name) else { return row };
        if found.check_seconds.is_empty() {
            return row;
        }
        let rate = found.n_instructions as f64 / median(&found.check_seconds) / 1e6;
        let text =
            format!("{rate:.2} M/s, {} instructions in {}", found.n_instructions, spread_text(&found.check_seconds));
        row.ours(text, verdict(rate >= 5.0))
    };
    [("perceptron", "1,250 layers"), ("llama7b_block_core", "llama7b_block_core")].map(row).into()
}

/// Rows on published problems of offset packing.
pub fn of_packing() -> Vec<Row> {
    let known = "the published solver, google/minimalloc @9f5cf81, takes 28.4 s (issue); it is not built here";
    let all = Row::new("MiniMalloc A to K at their capacity", "all 11, <= 3 s CPU").known(known);
    let somas = [("resnet50", "resnet50"), ("pangu_2.6B", "pangu 2.6B")];
    let somas = somas.map(|(file, name)| {
        (
            file,
            Row::new(format!("somas {name}: peak over live bytes"), "<= 1.005x, <= 0.5 s")
                .known("best greedy 1.003, 1.008 (issue)"),
        )
    });
    let folder = packing::folder();
    if !folder.is_dir() {
        let missing = || format!("there is no {}", folder.display());
        let rows = [all].into_iter().chain(somas.into_iter().map(|(_, row)| row));
        return rows.map(|row| row.ours(missing(), Verdict::Absent)).collect();
    }
    let (mut seconds, mut n_packed) = (Vec::new(), 0);
    let start_cpu = cpu_seconds();
    for _ in 0..N_RUNS {
        let found = packing::CHALLENGING
            .map(|name| packing::pack(&folder, &packing::challenging(name), Some(packing::CAPACITY)));
        n_packed = found.iter().filter(|found| found.peak.is_some_and(|peak| peak <= packing::CAPACITY)).count();
        seconds.push(found.iter().map(|found| found.taken).sum::<Duration>().as_secs_f64());
    }
    let cpu = (cpu_seconds() - start_cpu) / N_RUNS as f64;
    let is_met = n_packed == packing::CHALLENGING.len() && cpu <= 3.0;
    let text = format!("{n_packed} of 11, CPU {}, {}", seconds_text(cpu), spread_text(&seconds));
    let mut rows = vec![all.ours(text, verdict(is_met))];
    for (file, row) in somas {
        let found = [(); N_RUNS].map(|()| packing::pack(&folder, &format!("somas_tensors/{file}.csv"), None));
        let seconds = found.each_ref().map(|found| found.taken.as_secs_f64());
        let Some(peak) = found[0].peak else { continue };
        let ratio = peak as f64 / found[0].bound as f64;
        let is_met = ratio <= 1.005 && median(&seconds) <= 0.5;
        let text = format!("{ratio:.5}x of {} blocks, {}", found[0].n_blocks, spread_text(&seconds));
        rows.push(row.ours(text, verdict(is_met)));
    }
    rows
}

/// The row on the e-graphs of the extraction gym.
pub fn of_gym() -> Vec<Row> {
    let row =
        Row::new("extraction gym", "never above the best, own/ optimal, <= 10 s").known("best column of its README");
    let folder = gym::folder();
    if !folder.is_dir() {
        return vec![row.ours(format!("there is no {}", folder.display()), Verdict::Absent)];
    }
    let (mut seconds, mut above, mut open, mut missing) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for run in 0..N_RUNS {
        let mut total = Duration::ZERO;
        for (name, best_known) in gym::BEST_KNOWN {
            let Some(found) = gym::extract_file(&folder, name) else {
                missing.push(name);
                continue;
            };
            total += found.taken;
            if run == 0 {
                above.extend(found.is_above(best_known).then_some(name));
                open.extend((name.starts_with("own/") && !found.is_optimal).then_some(name));
            }
        }
        seconds.push(total.as_secs_f64());
    }
    let is_met = above.is_empty() && open.is_empty() && missing.is_empty() && median(&seconds) <= 10.0;
    let named = |what: &str, names: &[&str]| match names {
        [] => String::new(),
        names => format!(", {what}: {}", names.join(" ")),
    };
    let notes = named("above", &above) + &named("own/ not proven", &open) + &named("missing", &missing);
    let n_files = gym::BEST_KNOWN.len();
    vec![row.ours(format!("{} of {n_files} above, {}{notes}", above.len(), spread_text(&seconds)), verdict(is_met))]
}

/// The scheduler's expectation against the simulator's prediction, where there is one kernel.
pub fn of_estimates(figures: &Figures) -> Vec<Row> {
    let of_case = |(name, found): (&&'static str, &Measured)| {
        let simulated = found.simulated.as_ref()?;
        let estimated_ps = simulated.estimated_ps?;
        let gap = 100.0 * (estimated_ps as f64 / simulated.body_ps as f64 - 1.0);
        let row = Row::new(format!("{name}: scheduler against simulator"), "gap <= 3 %");
        let (estimated, body) = (microseconds(estimated_ps), microseconds(simulated.body_ps));
        Some(row.ours(format!("{gap:+.1} %, {estimated:.2} and {body:.2} us"), verdict(gap.abs() <= 3.0)))
    };
    figures.iter().filter_map(of_case).collect()
}

/// Prints the rows as people read them, with peers under those that have them.
pub fn print(rows: &[Row], peers: &Peers) {
    let width = |of: fn(&Row) -> &str| rows.iter().map(|row| of(row).chars().count()).max().unwrap_or(0);
    let (what, target) = (width(|row| &row.what), width(|row| &row.target));
    println!("{:<what$}  {:<target$}  {:<8}  ours", "what", "target", "");
    for row in rows {
        let verdict = match row.verdict {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::Reported => "",
            Verdict::Absent => "absent",
        };
        println!("{:<what$}  {:<target$}  {verdict:<8}  {}", row.what, row.target, row.ours);
        if !row.peers.is_empty() {
            println!("{:<what$}  {:<target$}  {:<8}  peers, this run: {}", "", "", "", row.peers);
        }
        if !row.known.is_empty() {
            println!("{:<what$}  {:<target$}  {:<8}  known: {}", "", "", "", row.known);
        }
    }
    let count = |verdict: Verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    println!(
        "\n{} met, {} missed, {} without a target, {} absent",
        count(Verdict::Met),
        count(Verdict::Missed),
        count(Verdict::Reported),
        count(Verdict::Absent)
    );
    for line in peers.lines() {
        println!("{line}");
    }
}
