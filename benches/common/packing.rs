//! Published problems of offset packing, one file packed and checked.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use passes::allocate::packing::{
    Block, Boundaries, LiveRange, Packing, first_overlap, live_bound, pack_exactly, pack_low,
};

/// Problems that have a capacity, in the folder `challenging`.
pub const CHALLENGING: [&str; 11] = ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K"];
pub const CAPACITY: u64 = 1_048_576;

/// Far more nodes than any of the files takes.
const MAX_NODES: u64 = 20_000_000;

/// About half a second.
const MAX_PLACEMENTS: usize = 150_000;

/// Beside the repository.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/benchmarks/minimalloc")
}

/// The file of one of [`CHALLENGING`].
pub fn challenging(name: &str) -> String {
    format!("challenging/{name}.{CAPACITY}.csv")
}

/// What packing one file gave.
pub struct Packed {
    pub n_blocks: usize,
    /// The most bytes that live at once.
    pub bound: u64,
    /// `None` where no packing was found.
    pub peak: Option<u64>,
    pub n_nodes: u64,
    pub taken: Duration,
}

/// Packs one file, to fit a capacity or as low as the portfolio can.
pub fn pack(folder: &Path, file: &str, capacity: Option<u64>) -> Packed {
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
    let peak = packing.map(|Packing { offsets, peak }| {
        assert_eq!(first_overlap(&blocks, &offsets), None, "{file}: two blocks share a byte");
        peak
    });
    Packed { n_blocks: blocks.len(), bound: live_bound(&blocks), peak, n_nodes, taken }
}

/// A line `id,first position,one past the last,size`.
fn block(line: &str) -> Block {
    let fields: Vec<&str> = line.split(',').collect();
    let number = |field: usize| fields[field].trim().parse::<u64>().expect("fields but the first are numbers");
    let live = LiveRange { first: number(1) as usize, last: number(2) as usize - 1 };
    Block { live, size: number(3), alignment: 1 }
}
