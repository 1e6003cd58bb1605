//! The least HBM traffic that any choice of resident tiles causes, for the order given.
//!
//! Between two accesses of which the second reads, a tile either stays in SBUF or the bytes that
//! are read then come from HBM; of bytes that were computed, they also went there, once for all
//! gaps until they are written again. Where more is wanted than there is room for, the excess must
//! be given up. That is a covering problem; giving up tiles in part makes it a linear program, and
//! every choice of prices for its constraints gives a lower bound:
//!
//! sum over positions (price * excess) - sum over gaps (size * prices in the gap - cost, if positive)
//!
//! The prices are found position by position, each the best one given the others. Integers
//! throughout, so that the bound is exact for the prices found.

use std::collections::BTreeSet;

use ir::Program;
use ir::program::{HbmId, InstructionKind, Space};

use super::live::{TileUse, Uses};
use crate::footprint::{AccessKind, Addressing, Footprint, Memory, footprints};

/// Positions on either side that a priced position exceeds, so that not all of them are priced.
const PRICED_DISTANCE: usize = 8;

/// Rounds over all priced positions.
const N_ROUNDS: usize = 3;

/// Fraction bits of prices.
const PRICE_BITS: u32 = 16;

/// Between two accesses of a tile, the second of which reads what was there before.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Gap {
    /// Positions of the two accesses.
    from: usize,
    to: usize,
    /// Bytes per partition that the tile takes.
    size: u64,
    /// Bytes that move if the tile does not stay.
    cost: u64,
}

/// Bytes that spilling and loading again must move in all for a scheduled program, whatever is kept:
/// to judge what `allocate` has moved.
pub fn spill_bound(program: &Program) -> u64 {
    let target = program.target.target();
    let capacity = u64::from(target.sbuf_usable_bytes);
    let uses = Uses::of(program);
    let sizes: Vec<u64> = program
        .tiles
        .iter()
        .map(|tile| match tile.space {
            Space::Psum => 0,
            Space::Sbuf => {
                let alignment = u64::from(tile.alignment_bytes.max(target.tile_alignment_bytes));
                u64::from(tile.bytes_per_partition).next_multiple_of(alignment)
            }
        })
        .collect();
    let gaps = gaps(program, &uses, &sizes);
    let own = |uses: &[TileUse]| uses.iter().map(|found| sizes[found.tile.index()]).sum::<u64>();
    let rooms: Vec<u64> = uses.of_instruction.iter().map(|uses| capacity.saturating_sub(own(uses))).collect();
    priced_bound(&gaps, &rooms)
}

/// The bound for gaps, with the bytes per partition that they may keep at each position.
fn priced_bound(gaps: &[Gap], rooms: &[u64]) -> u64 {
    let positions = priced_positions(gaps, rooms);
    // Prices of positions summed over each gap.
    let mut sums = vec![0u64; gaps.len()];
    let mut prices = vec![0u64; positions.len()];
    let whole_price = |gap: &Gap| (gap.cost << PRICE_BITS) / gap.size;
    for _ in 0..N_ROUNDS {
        for (price, (excess, members)) in prices.iter_mut().zip(&positions) {
            // What the position may take from each gap before giving it up is cheaper.
            let residual = |&gap: &usize| (whole_price(&gaps[gap]).saturating_sub(sums[gap] - *price), gap);
            let mut residuals: Vec<(u64, usize)> = members.iter().map(residual).collect();
            residuals.sort_unstable();
            let mut given_up = 0;
            let dearest = residuals.iter().find(|&&(_, gap)| {
                given_up += gaps[gap].size;
                given_up >= *excess
            });
            let best = dearest.map_or(0, |&(residual, _)| residual);
            for &gap in members {
                sums[gap] = sums[gap] - *price + best;
            }
            *price = best;
        }
    }
    let paid = prices.iter().zip(&positions).map(|(price, (excess, _))| u128::from(*price) * u128::from(*excess));
    let overpaid = gaps.iter().zip(&sums).map(|(gap, sum)| {
        let price = u128::from(gap.size) * u128::from(*sum);
        price.saturating_sub(u128::from(gap.cost) << PRICE_BITS)
    });
    let bound = paid.sum::<u128>().saturating_sub(overpaid.sum());
    u64::try_from(bound >> PRICE_BITS).unwrap_or(u64::MAX)
}

/// Positions where more is wanted than there is room for, more than at those around: the excess,
/// and the gaps there.
fn priced_positions(gaps: &[Gap], rooms: &[u64]) -> Vec<(u64, Vec<usize>)> {
    let mut changes = vec![(0u64, 0u64); rooms.len() + 1];
    for gap in gaps {
        changes[gap.from + 1].0 += gap.size;
        changes[gap.to].1 += gap.size;
    }
    let mut wanted = 0;
    let excess = rooms.iter().zip(&changes).map(|(room, (started, ended))| {
        wanted = wanted + started - ended;
        u64::saturating_sub(wanted, *room)
    });
    let excess: Vec<u64> = excess.collect();
    let is_peak = |&position: &usize| {
        let around = position.saturating_sub(PRICED_DISTANCE)..(position + PRICED_DISTANCE + 1).min(excess.len());
        let before = &excess[around.start..position];
        let after = &excess[position..around.end];
        excess[position] > 0
            && before.iter().all(|other| *other < excess[position])
            && after.iter().all(|other| *other <= excess[position])
    };
    let mut by_start: Vec<usize> = (0..gaps.len()).collect();
    by_start.sort_by_key(|&gap| gaps[gap].from);
    let mut next = by_start.into_iter().peekable();
    let mut open: Vec<usize> = Vec::new();
    let peaks = (0..excess.len()).filter(is_peak);
    peaks
        .map(|position| {
            open.extend(std::iter::from_fn(|| next.next_if(|&gap| gaps[gap].from < position)));
            open.retain(|&gap| gaps[gap].to > position);
            (excess[position], open.clone())
        })
        .collect()
}

/// What is known of one tile while walking over the program.
#[derive(Clone, Default)]
struct History {
    last_access: Option<usize>,
    last_read: Option<usize>,
    /// It was loaded last, and nothing has read it since: the load can wait.
    is_unread_load: bool,
    /// Some of it came by DMA, so that it may be elsewhere too.
    was_loaded: bool,
    /// Some of what it holds now went to HBM by the program itself.
    was_stored: bool,
    /// What the last computation wrote.
    written: Option<Footprint>,
    /// Gaps since then that read only what it wrote.
    computed_gaps: Vec<usize>,
}

/// All gaps that cost something.
fn gaps(program: &Program, uses: &Uses, sizes: &[u64]) -> Vec<Gap> {
    let written_tensors: BTreeSet<HbmId> =
        program.instructions.iter().filter_map(|instruction| instruction.kind.accesses().dma_write?.hbm()).collect();
    let mut gaps = Vec::new();
    let mut histories = vec![History::default(); program.tiles.len()];
    for (position, instruction) in program.instructions.iter().enumerate() {
        let is_dma = matches!(instruction.kind, InstructionKind::Dma { .. });
        let repeats = if let InstructionKind::Dma { src, gather: None, .. } = &instruction.kind {
            src.hbm().is_some_and(|tensor| !written_tensors.contains(&tensor))
        } else {
            false
        };
        // Reads come first.
        for (kind, footprint) in footprints(program, instruction, Addressing::Virtual) {
            let Memory::Tile(tile) = footprint.memory else { continue };
            let (history, size) = (&mut histories[tile.index()], sizes[tile.index()]);
            match kind {
                AccessKind::Read => history.read(position, size, &footprint, is_dma, &mut gaps),
                AccessKind::Write if is_dma => {
                    history.is_unread_load = repeats;
                    history.was_loaded = true;
                }
                AccessKind::Write => {
                    history.close(&mut gaps);
                    history.written = Some(footprint);
                }
            }
        }
        for found in uses.of_instruction.get(position) {
            histories[found.tile.index()].last_access = Some(position);
        }
    }
    histories.iter_mut().for_each(|history| history.close(&mut gaps));
    gaps
}

impl History {
    fn read(&mut self, position: usize, size: u64, footprint: &Footprint, is_dma: bool, gaps: &mut Vec<Gap>) {
        // An instruction that reads a tile twice ends one gap.
        let from = self.last_access.filter(|&last| last + 1 < position && self.last_read != Some(position));
        if let Some(from) = from.filter(|_| size > 0 && !self.is_unread_load) {
            if self.written.as_ref().is_some_and(|written| written.covers(footprint)) {
                self.computed_gaps.push(gaps.len());
            }
            gaps.push(Gap { from, to: position, size, cost: footprint.least_bytes() });
        }
        self.last_read = Some(position);
        self.is_unread_load = false;
        self.was_stored |= is_dma;
    }

    /// Adds what storing costs to the gaps since the last computation. However many of them give the
    /// tile up, it is stored once: each bears its share.
    fn close(&mut self, gaps: &mut [Gap]) {
        let must_store = !self.was_loaded && !self.was_stored;
        let n_gaps = self.computed_gaps.len() as u64;
        for gap in self.computed_gaps.drain(..).filter(|_| must_store) {
            gaps[gap].cost += gaps[gap].cost / n_gaps;
        }
        self.is_unread_load = false;
        self.was_stored = false;
    }
}

#[cfg(test)]
mod tests {
    use super::{Gap, priced_bound};

    fn gap(from: usize, to: usize, size: u64, cost: u64) -> Gap {
        Gap { from, to, size, cost }
    }

    #[test]
    fn the_cheapest_tiles_that_make_room_are_given_up() {
        let gaps = [gap(0, 4, 10, 100), gap(0, 4, 10, 30), gap(0, 4, 10, 70)];
        assert_eq!(priced_bound(&gaps, &[30; 5]), 0);
        assert_eq!(priced_bound(&gaps, &[20; 5]), 30);
        assert_eq!(priced_bound(&gaps, &[10; 5]), 100);
        // Half of the dearest tile can stay.
        assert_eq!(priced_bound(&gaps, &[5; 5]), 150);
    }

    #[test]
    fn one_tile_given_up_makes_room_all_the_time() {
        let gaps = [gap(0, 40, 8, 50), gap(0, 12, 8, 40), gap(20, 40, 8, 40)];
        assert_eq!(priced_bound(&gaps, &[8; 41]), 50);
    }
}
