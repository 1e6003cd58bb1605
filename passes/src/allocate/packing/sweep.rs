//! Packing in the order of first positions, with one list of free gaps that moves through time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::greedy::{Fit, legal_offset};
use super::{Block, Boundaries, Packing};

/// Places every block at its first position into a gap that is free then; of blocks that start
/// together the largest first.
pub(super) fn place(blocks: &[Block], fit: Fit, boundaries: Boundaries) -> Packing {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|&at| (blocks[at].live.first, Reverse(blocks[at].size)));
    // Live blocks by last position.
    let mut live: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
    let mut gaps = Gaps(vec![(0, u64::MAX)]);
    let mut packing = Packing { offsets: vec![0; blocks.len()], peak: 0 };
    for at in order {
        let block = &blocks[at];
        while let Some(&Reverse((last, ended))) = live.peek() {
            if last >= block.live.first {
                break;
            }
            live.pop();
            gaps.free(packing.offsets[ended], packing.offsets[ended] + blocks[ended].size);
        }
        let offset = gaps.take(block, fit, boundaries);
        packing.offsets[at] = offset;
        packing.peak = packing.peak.max(offset + block.size);
        live.push(Reverse((block.live.last, at)));
    }
    packing
}

/// Free byte ranges, ascending; the last one has no end.
struct Gaps(Vec<(u64, u64)>);

impl Gaps {
    fn take(&mut self, block: &Block, fit: Fit, boundaries: Boundaries) -> u64 {
        let offset_in = |&(low, high): &(u64, u64)| {
            let offset = legal_offset(low, block, boundaries);
            (offset.saturating_add(block.size) <= high).then_some(offset)
        };
        let mut fitting = self.0.iter().enumerate().filter_map(|(at, gap)| Some((at, offset_in(gap)?)));
        let chosen = match fit {
            Fit::First => fitting.next(),
            Fit::Best => fitting.min_by_key(|&(at, _)| self.0[at].1 - self.0[at].0),
        };
        let (at, offset) = chosen.expect("the last gap has no end");
        let (low, high) = self.0[at];
        let rests = [(low, offset), (offset + block.size, high)];
        self.0.splice(at..=at, rests.into_iter().filter(|(low, high)| low < high));
        offset
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
