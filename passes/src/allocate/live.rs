//! Live ranges of tiles in program order.
//!
//! Engines and DMAs run asynchronously, so these ranges say nothing about time. They are
//! nevertheless enough: `synchronize` makes the first access of a tile wait for every access of the
//! tiles that had its bytes before.

use ir::Program;
use ir::program::{DmaPlace, InstructionKind, TileId};
use smallvec::SmallVec;

/// First and last position at which something is needed, both inclusive.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LiveRange {
    pub first: usize,
    pub last: usize,
}

impl LiveRange {
    pub(crate) fn meets(self, other: LiveRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    pub(crate) fn contains(self, other: LiveRange) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

/// Tiles that an instruction accesses, ascending.
pub(crate) fn accessed_tiles(kind: &InstructionKind) -> SmallVec<[TileId; 6]> {
    let accesses = kind.accesses();
    let views = accesses.tile_reads.iter().chain(&accesses.tile_writes).map(|view| view.tile);
    let sides = accesses.dma_read.into_iter().chain(accesses.dma_write).filter_map(|side| match side.place {
        DmaPlace::Tile { tile, .. } => Some(tile),
        DmaPlace::Hbm { .. } => None,
    });
    let mut tiles: SmallVec<[TileId; 6]> = views.chain(sides).collect();
    tiles.sort_unstable();
    tiles.dedup();
    tiles
}

/// The live range of every tile; `None` for tiles that nothing accesses.
pub(crate) fn live_ranges(program: &Program) -> Vec<Option<LiveRange>> {
    let mut ranges: Vec<Option<LiveRange>> = vec![None; program.tiles.len()];
    for (position, instruction) in program.instructions.iter().enumerate() {
        for tile in accessed_tiles(&instruction.kind) {
            let range = &mut ranges[tile.index()];
            let first = range.map_or(position, |range| range.first);
            *range = Some(LiveRange { first, last: position });
        }
    }
    ranges
}
