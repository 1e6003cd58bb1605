//! Work that is put off until something reads what it makes.
//!
//! The tiles of large results are declared at once, so that movement ops can rewrite their maps, and
//! made when the first instruction reads one of them. What reads a value in pieces so makes it in
//! pieces: a piece of an MLP's activation is projected, multiplied and read by the next projection
//! before the next piece is begun, and nothing that is needed only once has to wait in memory.

use std::rc::Rc;

use ir::graph::NodeId;
use ir::program::{DmaPlace, InstructionKind, TileId};
use smallvec::SmallVec;

use super::Lowerer;
use super::blocked::Blocked;
use super::rowwise::LazyGroup;

/// Nested demands up to which work is put off: each takes some stack.
const MAX_DEPTH: u32 = 64;

/// A part of a result, or of all results of a group, that is made at one go.
#[derive(Clone, Debug)]
pub(super) enum Unit {
    /// The tiles of one block and column or outer segment of a group's results.
    Rows { group: Rc<LazyGroup>, block: usize, segment: usize },
    /// The tiles of some rows and columns of a contraction's result.
    Contraction { blocked: Rc<Blocked>, unit: usize },
}

/// Units by number, and which unit makes a tile.
#[derive(Debug, Default)]
pub(super) struct Units {
    /// `None` once they are made.
    pending: Vec<Option<Unit>>,
    /// Nested demands that each unit may lead to.
    depth: Vec<u32>,
    /// The latest contraction unit that each unit waits for, plus 1.
    rank: Vec<u32>,
    /// By tile: number of the unit, plus 1.
    maker: Vec<u32>,
    n_pending: usize,
}

impl Units {
    /// The unit that has yet to make a tile.
    fn maker(&self, tile: TileId) -> Option<usize> {
        let number = *self.maker.get(tile.index())? as usize;
        (number > 0 && self.pending[number - 1].is_some()).then(|| number - 1)
    }

    fn depth_of(&self, tile: TileId) -> u32 {
        self.maker(tile).map_or(0, |unit| self.depth[unit])
    }

    /// Orders tiles by when the contractions that they wait for come to them: whoever reads in this
    /// order lets no product wait for others. 0 for tiles that wait for none.
    pub(super) fn rank_of(&self, tile: TileId) -> u32 {
        self.maker(tile).map_or(0, |unit| self.rank[unit])
    }
}

impl Lowerer<'_> {
    /// Nested demands that what reads these tiles may lead to.
    pub(super) fn depth_above(&self, operands: impl Iterator<Item = TileId>) -> u32 {
        1 + operands.map(|tile| self.units.depth_of(tile)).max().unwrap_or(0)
    }

    /// Puts off the making of `tiles`. Rows rank with the latest of their operands, `operand_rank`.
    pub(super) fn put_off(&mut self, unit: Unit, tiles: &[TileId], depth: u32, operand_rank: u32) {
        let number = self.units.pending.len();
        self.units.rank.push(match unit {
            Unit::Rows { .. } => operand_rank,
            Unit::Contraction { .. } => number as u32 + 1,
        });
        self.units.pending.push(Some(unit));
        self.units.depth.push(depth);
        self.units.n_pending += 1;
        for tile in tiles {
            if self.units.maker.len() <= tile.index() {
                self.units.maker.resize(tile.index() + 1, 0);
            }
            self.units.maker[tile.index()] = number as u32 + 1;
        }
        if depth >= MAX_DEPTH {
            self.make_unit(number);
        }
    }

    /// Makes what an instruction reads.
    pub(super) fn make_operands(&mut self, kind: &InstructionKind) {
        if self.units.n_pending == 0 {
            return;
        }
        let accesses = kind.accesses();
        let mut read: SmallVec<[TileId; 4]> = accesses.tile_reads.iter().map(|view| view.tile).collect();
        for side in [accesses.dma_read, accesses.dma_write].into_iter().flatten() {
            if let DmaPlace::Tile { tile, partition: _ } = side.place {
                read.push(tile);
            }
        }
        for tile in read {
            self.make_tile(tile);
        }
    }

    /// Makes a tile if that was put off.
    pub(super) fn make_tile(&mut self, tile: TileId) {
        if let Some(unit) = self.units.maker(tile) {
            self.make_unit(unit);
        }
    }

    fn make_unit(&mut self, number: usize) {
        let Some(unit) = self.units.pending[number].take() else { return };
        self.units.n_pending -= 1;
        let locations = std::mem::take(&mut self.current_locations);
        match unit {
            Unit::Rows { group, block, segment } => self.group_tile(&group, block, segment),
            Unit::Contraction { blocked, unit } => self.contraction_unit(&blocked, unit),
        }
        self.current_locations = locations;
    }

    /// Locates what is emitted next at a node.
    pub(super) fn locate(&mut self, id: NodeId) {
        self.current_locations = self.graph.node(id).locations.clone();
    }
}
