//! Packing in the order of first positions, with one list of free gaps that moves through time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::greedy::{Fit, legal_offset};
use super::{Block, Boundaries, Packing};

/// Places every block at its first position into a gap that is free then; of blocks that start
/// together the largest first.
pub(super) fn place(blocks: &[Block], fit: Fit, boundaries: Boundaries) -> Packing {
    Sweep { fit, boundaries, capacity: u64::MAX, rest: 0, long: None }.place(blocks, &order(blocks))
}

/// The order in which blocks are placed.
pub(super) fn order(blocks: &[Block]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|&at| (blocks[at].live.first, Reverse(blocks[at].size)));
    order
}

/// A way through the blocks in their order.
#[derive(Copy, Clone)]
pub(super) struct Sweep {
    pub fit: Fit,
    pub boundaries: Boundaries,
    pub capacity: u64,
    /// Positions that blocks live longer.
    pub rest: usize,
    /// Positions from which on blocks go to the top, so that they do not lie scattered among those that
    /// come and go; boundaries are not looked at there.
    pub long: Option<usize>,
}

impl Sweep {
    /// Places all blocks in their order below the capacity; `None` when there is no gap for one.
    pub(super) fn place_all(&self, blocks: &[Block], order: &[usize]) -> Option<Packing> {
        self.run(blocks, order, &mut None)
    }

    /// The same, with blocks for which there is no gap above the capacity.
    pub(super) fn place(&self, blocks: &[Block], order: &[usize]) -> Packing {
        let above = Gaps(vec![(self.capacity, u64::MAX)]);
        self.run(blocks, order, &mut Some(above)).expect("there is no limit above the capacity")
    }

    fn run(&self, blocks: &[Block], order: &[usize], above: &mut Option<Gaps>) -> Option<Packing> {
        // Live blocks by last position.
        let mut live: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
        let mut gaps = Gaps(vec![(0, self.capacity)]);
        let mut packing = Packing { offsets: vec![0; blocks.len()], peak: 0 };
        for &at in order {
            let block = &blocks[at];
            while let Some(&Reverse((last, ended))) = live.peek() {
                if last + self.rest >= block.live.first {
                    break;
                }
                live.pop();
                let (low, high) = (packing.offsets[ended], packing.offsets[ended] + blocks[ended].size);
                match above {
                    Some(above) if low >= self.capacity => above.free(low, high),
                    Some(_) | None => gaps.free(low, high),
                }
            }
            let is_long = self.long.is_some_and(|long| block.live.last - block.live.first >= long);
            let below = if is_long { gaps.take_highest(block) } else { gaps.take(block, self.fit, self.boundaries) };
            let offset = match (below, &mut *above) {
                (None, Some(above)) => above.take(block, Fit::First, self.boundaries)?,
                (below, _) => below?,
            };
            packing.offsets[at] = offset;
            packing.peak = packing.peak.max(offset + block.size);
            live.push(Reverse((block.live.last, at)));
        }
        Some(packing)
    }
}

/// Free byte ranges, ascending.
struct Gaps(Vec<(u64, u64)>);

impl Gaps {
    fn take(&mut self, block: &Block, fit: Fit, boundaries: Boundaries) -> Option<u64> {
        let offset_in = |&(low, high): &(u64, u64)| {
            let offset = legal_offset(low, block, boundaries);
            (offset.saturating_add(block.size) <= high).then_some(offset)
        };
        let mut fitting = self.0.iter().enumerate().filter_map(|(at, gap)| Some((at, offset_in(gap)?)));
        let chosen = match fit {
            Fit::First => fitting.next(),
            Fit::Best => fitting.min_by_key(|&(at, _)| self.0[at].1 - self.0[at].0),
        };
        let (at, offset) = chosen?;
        self.cut(at, offset, block.size);
        Some(offset)
    }

    /// Takes the end of the highest gap that is large enough; boundaries are not looked at.
    fn take_highest(&mut self, block: &Block) -> Option<u64> {
        let offset_in = |&(low, high): &(u64, u64)| {
            let offset = high.checked_sub(block.size)?;
            let offset = offset - offset % block.alignment.max(1);
            (offset >= low).then_some(offset)
        };
        let (at, offset) = self.0.iter().enumerate().rev().find_map(|(at, gap)| Some((at, offset_in(gap)?)))?;
        self.cut(at, offset, block.size);
        Some(offset)
    }

    /// Takes bytes out of the gap with this number.
    fn cut(&mut self, at: usize, offset: u64, size: u64) {
        let (low, high) = self.0[at];
        let rests = [(low, offset), (offset + size, high)];
        self.0.splice(at..=at, rests.into_iter().filter(|(low, high)| low < high));
    }

    fn free(&mut self, low: u64, high: u64) {
        if low == high {
            return;
        }
        let next = self.0.partition_point(|&(start, _)| start < low);
        let joins_before = next > 0 && self.0[next - 1].1 == low;
        let joins_after = self.0.get(next).is_some_and(|&(start, _)| start == high);
        match (joins_before, joins_after) {
            (true, true) => {
                self.0[next - 1].1 = self.0[next].1;
                self.0.remove(next);
            }
            (true, false) => self.0[next - 1].1 = high,
            (false, true) => self.0[next].0 = low,
            (false, false) => self.0.insert(next, (low, high)),
        }
    }
}
