//! Offsets for blocks that are live over ranges of positions: no two that are live at once overlap.
//!
//! Several orders of placement are tried, each with two rules of fit, then an exact search. The sum
//! of the sizes live at one position is a lower bound of every peak and ends the search when it is
//! reached.
//!
//! Nothing here knows programs: tiles in SBUF and scratch in HBM are packed alike.

mod exact;
mod greedy;
mod occupied;
mod order;
mod overlap;
mod repair;
mod search;
mod sections;
mod sweep;
#[cfg(test)]
mod tests;

pub use super::live::LiveRange;
pub use exact::{Exact, infeasible_blocks, pack_exactly};
pub use overlap::first_overlap;

use greedy::Fit;
use order::{Order, Ranks};
use sections::Sections;
use sweep::Sweep;

/// Something that needs bytes over a live range.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub live: LiveRange,
    /// In bytes, already rounded up to the alignment.
    pub size: u64,
    /// Of the offset, in bytes.
    pub alignment: u64,
}

/// A placement of all blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// First byte of each block, in the order given.
    pub offsets: Vec<u64>,
    /// One past the highest byte used.
    pub peak: u64,
}

/// Where a block may not start or lie.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Boundaries {
    None,
    /// No block crosses a multiple of this many bytes; blocks are not longer.
    Every(u64),
}

/// Distances, in positions, that a freed block rests before its bytes are used again. Immediate
/// reuse makes the new owner wait for the old one; where there is space, there is no need to.
const REST_POSITIONS: [usize; 4] = [64, 16, 4, 0];

/// Positions from which on a life counts as long where many blocks are packed, tried one after the
/// other.
const LONG_LIVES: [usize; 2] = [2000, 500];

/// Blocks up to which all of them are packed in many orders. Of more, only those around what does
/// not fit are.
const MAX_PORTFOLIO_BLOCKS: usize = 2_000;

/// Placements of single blocks that all orders may make to fit a capacity. One takes two to ten
/// microseconds.
const MAX_PLACEMENTS: usize = 60_000;

/// Times that the blocks which stick out are moved ahead in an order.
const MAX_REPAIRS: usize = 3;

/// Nodes times blocks of the exact search within `pack_within`: some tenths of a second.
const MAX_SEARCH_WORK: u64 = 30_000_000;

/// Most bytes live at one position: no packing has a lower peak.
pub fn live_bound(blocks: &[Block]) -> u64 {
    Sections::of(blocks).bound()
}

/// Places all blocks below `capacity` bytes, with as much rest between uses of a byte as fits.
/// `None` if neither an order nor the search finds a way.
pub fn pack_within(blocks: &[Block], capacity: u64, boundaries: Boundaries) -> Option<Packing> {
    let order = sweep::order(blocks);
    for rest in REST_POSITIONS {
        let packing = if rest > 0 {
            with_rest(blocks, &order, rest, capacity, boundaries)
        } else {
            without_rest(blocks, &order, capacity, boundaries)
        };
        if let Some(packing) = packing.filter(|packing| packing.peak <= capacity) {
            return Some(packing);
        }
    }
    None
}

fn without_rest(blocks: &[Block], order: &[usize], capacity: u64, boundaries: Boundaries) -> Option<Packing> {
    let sections = Sections::of(blocks);
    if sections.bound() > capacity {
        return None;
    }
    if blocks.len() > MAX_PORTFOLIO_BLOCKS {
        let packing = swept(blocks, order, 0, capacity, boundaries);
        return packing.or_else(|| mended(blocks, order, capacity, boundaries));
    }
    let packing = portfolio(blocks, &sections, boundaries, capacity, MAX_PLACEMENTS);
    match boundaries {
        Boundaries::None if packing.peak > capacity => {
            pack_exactly(blocks, capacity, MAX_SEARCH_WORK / blocks.len() as u64).packing
        }
        Boundaries::None | Boundaries::Every(_) => Some(packing),
    }
}

/// The lowest packing that the portfolio finds with at most `max_placements` placements of single
/// blocks, summed over all orders; the first two orders are tried in any case. It ends at the
/// live-bytes bound.
pub fn pack_low(blocks: &[Block], boundaries: Boundaries, max_placements: usize) -> Packing {
    let sections = Sections::of(blocks);
    let bound = sections.bound();
    portfolio(blocks, &sections, boundaries, bound, max_placements)
}

/// Places blocks in the order of time: all from the bottom, or those that live long from the top.
fn swept(blocks: &[Block], order: &[usize], rest: usize, capacity: u64, boundaries: Boundaries) -> Option<Packing> {
    let from_bottom = Sweep { fit: Fit::First, boundaries, capacity, rest, long: None };
    from_bottom.place_all(blocks, order).or_else(|| {
        if blocks.len() <= MAX_PORTFOLIO_BLOCKS || boundaries != Boundaries::None {
            return None;
        }
        LONG_LIVES.iter().find_map(|&long| Sweep { long: Some(long), ..from_bottom }.place_all(blocks, order))
    })
}

/// Of the packings in the order of time, the one in which the fewest blocks stick out, mended.
fn mended(blocks: &[Block], order: &[usize], capacity: u64, boundaries: Boundaries) -> Option<Packing> {
    if boundaries != Boundaries::None {
        return None;
    }
    let from_bottom = Sweep { fit: Fit::First, boundaries, capacity, rest: 0, long: None };
    let sweeps = std::iter::once(from_bottom).chain(LONG_LIVES.map(|long| Sweep { long: Some(long), ..from_bottom }));
    let sticks_out = |(block, offset): &(&Block, &u64)| *offset + block.size > capacity;
    let n_raised = |packing: &Packing| blocks.iter().zip(&packing.offsets).filter(sticks_out).count();
    let packing = sweeps.map(|sweep| sweep.place(blocks, order)).min_by_key(n_raised)?;
    repair::repair(blocks, &packing, capacity)
}

/// A few cheap orders: for rest there is either space or not.
fn with_rest(blocks: &[Block], order: &[usize], rest: usize, capacity: u64, boundaries: Boundaries) -> Option<Packing> {
    let packing = swept(blocks, order, rest, capacity, boundaries);
    if packing.is_some() || blocks.len() > MAX_PORTFOLIO_BLOCKS {
        return packing;
    }
    let rested = |block: &Block| Block { live: LiveRange { last: block.live.last + rest, ..block.live }, ..*block };
    let blocks: Vec<Block> = blocks.iter().map(rested).collect();
    let sections = Sections::of(&blocks);
    if sections.bound() > capacity {
        return None;
    }
    let ranks = Ranks::new(&blocks, &sections, Order::LongestSize);
    Some(greedy::place(&blocks, &sections, &ranks.order(), Fit::First, boundaries))
}

/// Tries orders until the peak is at most `goal`; the lowest packing found.
fn portfolio(
    blocks: &[Block],
    sections: &Sections,
    boundaries: Boundaries,
    goal: u64,
    max_placements: usize,
) -> Packing {
    let mut best = sweep::place(blocks, Fit::First, boundaries);
    let mut n_placements = blocks.len();
    let mut keep = |best: &mut Packing, packing: Packing| {
        if packing.peak < best.peak {
            *best = packing;
        }
        n_placements += blocks.len();
        best.peak <= goal || n_placements >= max_placements
    };
    if best.peak <= goal || keep(&mut best, sweep::place(blocks, Fit::Best, boundaries)) {
        return best;
    }
    for order in Order::ALL {
        let mut ranks = Ranks::new(blocks, sections, order);
        if keep(&mut best, greedy::place(blocks, sections, &ranks.order(), Fit::Best, boundaries)) {
            return best;
        }
        for _ in 0..=MAX_REPAIRS {
            let packing = greedy::place(blocks, sections, &ranks.order(), Fit::First, boundaries);
            ranks.promote(|at| packing.offsets[at] + blocks[at].size > goal);
            if keep(&mut best, packing) {
                return best;
            }
        }
    }
    best
}
