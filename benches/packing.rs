//! Offset packing on published problems: MiniMalloc's, where a capacity must be met, and tensors of
//! training graphs, where the peak counts.
//!
//! Reads `../shared/benchmarks/minimalloc`, beside the repository; says so and ends if that is not
//! there. Every packing is checked. Bytes are bytes, times are of one thread.

use std::path::Path;
use std::time::{Duration, Instant};

use passes::allocate::packing::{
    Block, Boundaries, LiveRange, Packing, first_overlap, live_bound, pack_exactly, pack_low,
};

/// Far more nodes than any of the files takes.
const MAX_NODES: u64 = 20_000_000;

/// About half a second.
const MAX_PLACEMENTS: usize = 150_000;

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/benchmarks/minimalloc");
    if !folder.is_dir() {
        println!("skipped: there is no {}", folder.display());
        return;
    }
    println!("{:<22} {:>6} {:>13} {:>13} {:>8} {:>9} {:>8}", "file", "blocks", "bound", "peak", "ratio", "nodes", "ms");
    let mut total = Duration::ZERO;
    for name in ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K"] {
        total += report(&folder, &format!("challenging/{name}.1048576.csv"), Some(1_048_576));
    }
    println!("A to K at their capacity: {:.2} s", total.as_secs_f64());
    report(&folder, "examples/input.12.csv", Some(12));
    report(&folder, "somas_tensors/resnet50.csv", None);
    report(&folder, "somas_tensors/pangu_2.6B.csv", None);
}

/// Packs one file, to fit a capacity or as low as the portfolio can, and prints its line.
fn report(folder: &Path, file: &str, capacity: Option<u64>) -> Duration {
    let text = std::fs::read_to_string(folder.join(file)).expect("the folder is complete");
    let blocks: Vec<Block> = text.lines().skip(1).map(block).collect();
    let start = Instant::now();
    let (packing, n_nodes) = match capacity {
        Some(capacity) => {
            let found = pack_exactly(&blocks, capacity, MAX_NODES);
            (found.packing, found.n_nodes)
        }
        None => (Some(pack_low(&blocks, Boundaries::None, MAX_PLACEMENTS)), 0),
    };
    let taken = start.elapsed();
    let bound = live_bound(&blocks);
    let (name, ms) = (file.rsplit('/').next().unwrap_or(file), taken.as_secs_f64() * 1e3);
    let Some(Packing { offsets, peak }) = packing else {
        println!("{name:<22} {:>6} {bound:>13} {:>13} {:>8} {n_nodes:>9} {ms:>8.1}", blocks.len(), "none found", "");
        return taken;
    };
    assert_eq!(first_overlap(&blocks, &offsets), None, "{file}: two blocks share a byte");
    let ratio = peak as f64 / bound as f64;
    println!("{name:<22} {:>6} {bound:>13} {peak:>13} {ratio:>8.5} {n_nodes:>9} {ms:>8.1}", blocks.len());
    taken
}

/// A line `id,first position,one past the last,size`.
fn block(line: &str) -> Block {
    let fields: Vec<&str> = line.split(',').collect();
    let number = |field: usize| fields[field].trim().parse::<u64>().expect("fields but the first are numbers");
    let live = LiveRange { first: number(1) as usize, last: number(2) as usize - 1 };
    Block { live, size: number(3), alignment: 1 }
}
