//! Offset packing on published problems: MiniMalloc's, where a capacity must be met, and tensors of
//! training graphs, where the peak counts.
//!
//! Reads `../shared/benchmarks/minimalloc`, beside the repository; says so and ends if that is not
//! there. Every packing is checked. Bytes are bytes, times are of one thread.

use std::path::Path;
use std::time::Duration;

#[path = "common/packing.rs"]
mod packing;

use packing::{CAPACITY, CHALLENGING, Packed, pack};

fn main() {
    let folder = packing::folder();
    if !folder.is_dir() {
        println!("skipped: there is no {}", folder.display());
        return;
    }
    println!("{:<22} {:>6} {:>13} {:>13} {:>8} {:>9} {:>8}", "file", "blocks", "bound", "peak", "ratio", "nodes", "ms");
    let mut total = Duration::ZERO;
    for name in CHALLENGING {
        total += report(&folder, &packing::challenging(name), Some(CAPACITY));
    }
    println!("A to K at their capacity: {:.2} s", total.as_secs_f64());
    report(&folder, "examples/input.12.csv", Some(12));
    report(&folder, "somas_tensors/resnet50.csv", None);
    report(&folder, "somas_tensors/pangu_2.6B.csv", None);
}

/// Packs one file and prints its line.
fn report(folder: &Path, file: &str, capacity: Option<u64>) -> Duration {
    let Packed { n_blocks, bound, peak, n_nodes, taken } = pack(folder, file, capacity);
    let (name, ms) = (file.rsplit('/').next().unwrap_or(file), taken.as_secs_f64() * 1e3);
    let (peak, ratio) = match peak {
        Some(peak) => (peak.to_string(), format!("{:.5}", peak as f64 / bound as f64)),
        None => ("none found".to_owned(), String::new()),
    };
    println!("{name:<22} {n_blocks:>6} {bound:>13} {peak:>13} {ratio:>8} {n_nodes:>9} {ms:>8.1}");
    taken
}
