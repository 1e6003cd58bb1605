//! Which instructions use which tiles, and live ranges of tiles in program order.
//!
//! Engines and DMAs run asynchronously, so live ranges say nothing about time. They are
//! nevertheless enough: `synchronize` makes the first access of a tile wait for every access of the
//! tiles that had its bytes before.

use ir::Program;
use ir::program::{DmaPlace, InstructionKind, TileId};
use smallvec::SmallVec;

use crate::lists::Lists;

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

    /// Makes a range reach this position, which comes after all of it, or starts it there.
    pub(super) fn extend(range: &mut Option<LiveRange>, position: usize) {
        match range {
            Some(range) => range.last = position,
            None => *range = Some(LiveRange { first: position, last: position }),
        }
    }
}

/// What one instruction does with one tile.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct TileUse {
    pub tile: TileId,
    pub reads: bool,
    pub writes: bool,
}

/// All uses of a program's tiles.
pub(super) struct Uses {
    /// By instruction, ascending by tile.
    pub of_instruction: Lists<TileUse>,
    /// By tile, the positions of the instructions that use it, ascending.
    pub of_tile: Lists<u32>,
}

impl Uses {
    pub(super) fn of(program: &Program) -> Self {
        let mut of_instruction = Lists::with_capacity(program.instructions.len());
        for instruction in &program.instructions {
            of_instruction.push(&tile_uses(&instruction.kind));
        }
        let pairs = (0u32..).zip(of_instruction.iter());
        let pairs = pairs.flat_map(|(position, uses)| uses.iter().map(move |found| (found.tile.0, position)));
        let of_tile = Lists::collect(program.tiles.len(), pairs);
        Uses { of_instruction, of_tile }
    }

    /// The live range of every tile; `None` for tiles that nothing uses.
    pub(super) fn live_ranges(&self) -> Vec<Option<LiveRange>> {
        let range = |positions: &[u32]| {
            let (first, last) = (positions.first()?, positions.last()?);
            Some(LiveRange { first: *first as usize, last: *last as usize })
        };
        self.of_tile.iter().map(range).collect()
    }
}

/// What an instruction does with tiles, ascending by tile.
fn tile_uses(kind: &InstructionKind) -> SmallVec<[TileUse; 6]> {
    let accesses = kind.accesses();
    let mut uses: SmallVec<[TileUse; 6]> = SmallVec::new();
    let mut add = |tile: TileId, reads: bool| match uses.iter_mut().find(|known| known.tile == tile) {
        Some(known) => {
            known.reads |= reads;
            known.writes |= !reads;
        }
        None => uses.push(TileUse { tile, reads, writes: !reads }),
    };
    let sides = [(accesses.dma_read, true), (accesses.dma_write, false)];
    accesses.tile_reads.iter().for_each(|view| add(view.tile, true));
    accesses.tile_writes.iter().for_each(|view| add(view.tile, false));
    for (side, reads) in sides {
        if let Some(DmaPlace::Tile { tile, partition: _ }) = side.map(|side| side.place) {
            add(tile, reads);
        }
    }
    uses.sort_unstable_by_key(|found| found.tile);
    uses
}
