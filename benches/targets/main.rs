//! The table of targets: what is measured, the target, our figure, met or missed, and what peers take.
//!
//! `make bench` runs three steps: `targets graphs FOLDER` writes the graphs that peers compile too,
//! `benches/peers.py` measures the peers, and `targets table` measures us and prints. Every case runs in
//! a process of its own, so that its peak memory is its own. A time is the median of five runs, with the
//! least and the greatest beside it; where the machine is in other use, the processor time tells. The table's rows go to `target/bench/targets.json` too. Words after
//! `table` choose cases by parts of their names. What is read from `../shared` is said to be missing
//! where it is.

mod cases;
mod measured;
mod peers;
mod rows;

#[path = "../common/cpu.rs"]
mod cpu;
#[path = "../common/gym.rs"]
#[expect(dead_code, reason = "figures that a benchmark of their own prints")]
mod gym;
#[path = "../common/memory.rs"]
mod memory;
#[path = "../common/packing.rs"]
#[expect(dead_code, reason = "figures that a benchmark of their own prints")]
mod packing;
#[path = "../common/perceptron.rs"]
mod perceptron;
#[path = "../common/pointwise.rs"]
mod pointwise;
#[path = "../common/product.rs"]
mod product;
#[path = "../../tests/graphs/stacked.rs"]
#[expect(dead_code, reason = "sizes of blocks that the tests use")]
mod stacked_layers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use cases::Case;
use measured::Measured;
use peers::Peers;
use rows::Verdict;

/// What one process measured, by case.
type Figures = BTreeMap<&'static str, Measured>;

fn main() -> ExitCode {
    // Cargo adds flags of its own.
    let words: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["graphs", folder] => write_graphs(Path::new(folder)),
        ["measure", name] => match cases::ALL.iter().find(|case| case.name == name) {
            Some(case) => println!("{}", serde_json::to_string(&measured::measure(case)).expect("numbers are JSON")),
            None => return ExitCode::FAILURE,
        },
        ["table", ref wanted @ ..] => print_table(wanted),
        ref wanted => print_table(wanted),
    }
    ExitCode::SUCCESS
}

/// Beside what Cargo builds.
fn results_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench")
}

/// Writes what peers compile too, as documents.
fn write_graphs(folder: &Path) {
    std::fs::create_dir_all(folder).expect("the folder can be made");
    for (name, document) in cases::for_peers() {
        let path = folder.join(format!("{name}.json"));
        std::fs::write(&path, document).expect("the folder can be written");
    }
}

fn print_table(wanted: &[&str]) {
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part));
    let peers = Peers::read(&results_folder().join("peers.json"));
    let mut figures = Figures::new();
    for case in cases::ALL.iter().filter(|case| is_wanted(case.name)) {
        if let Some(missing) = case.needs.filter(|file| !results_folder().join(file).is_file()) {
            println!("{}: there is no {}; `make bench` writes it", case.name, results_folder().join(missing).display());
            continue;
        }
        eprintln!("measuring {}", case.name);
        match in_a_process(case) {
            Ok(measured) => _ = figures.insert(case.name, measured),
            Err(error) => println!("{}: {error}", case.name),
        }
    }
    let mut rows = rows::of_compiler(&figures, &peers);
    if is_wanted("packing") {
        eprintln!("measuring packing");
        rows.extend(rows::of_packing());
    }
    if is_wanted("gym") {
        eprintln!("measuring gym");
        rows.extend(rows::of_gym());
    }
    rows.extend(rows::of_estimates(&figures));
    if !wanted.is_empty() {
        rows.retain(|row| row.verdict != Verdict::Absent);
    }
    rows::print(&rows, &peers);
    let path = results_folder().join("targets.json");
    let json = serde_json::json!({ "rows": rows, "measured": figures });
    std::fs::create_dir_all(results_folder()).expect("the folder can be made");
    std::fs::write(&path, json.to_string()).expect("the folder can be written");
    println!("\nall figures: {}", path.display());
}

/// Measures a case in a process of its own.
fn in_a_process(case: &Case) -> Result<Measured, String> {
    let executable = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(executable)
        .args(["measure", case.name])
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("not measured, {}: {}", output.status, text.lines().next().unwrap_or_default()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}
