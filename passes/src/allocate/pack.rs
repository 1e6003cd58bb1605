//! Offsets for blocks that are live over ranges of positions: no two that are live at once overlap.
//!
//! Several greedy orders are tried, each block going to the lowest free offset. The sum of the
//! sizes live at one position is a lower bound that ends the search when it is reached.

use std::cmp::Reverse;

use super::live::LiveRange;

/// Something that needs bytes over a live range.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub live: LiveRange,
    /// Already rounded up to the alignment.
    pub size: u64,
    pub alignment: u64,
}

/// A placement of all blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packing {
    pub offsets: Vec<u64>,
    /// One past the highest byte used.
    pub peak: u64,
}

/// Where a block may not start or lie.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Boundaries {
    None,
    /// No block crosses a multiple of this; blocks are not longer.
    Every(u64),
}

/// Distances, in positions, that a freed block rests before its bytes are used again. Immediate
/// reuse makes the new owner wait for the old one; where there is space, there is no need to.
const REST_POSITIONS: [usize; 4] = [64, 16, 4, 0];

/// Positions per bucket of [`Placed`].
const BUCKET_POSITIONS: usize = 64;

/// Most sum of sizes live at one position.
pub(super) fn live_bound(blocks: &[Block]) -> u64 {
    let mut events: Vec<(usize, bool, u64)> = Vec::with_capacity(2 * blocks.len());
    for block in blocks {
        events.push((block.live.first, true, block.size));
        events.push((block.live.last + 1, false, block.size));
    }
    // At one position, ends sort before starts.
    events.sort_unstable();
    let (mut live, mut bound) = (0u64, 0u64);
    for (_, starts, size) in events {
        live = if starts { live + size } else { live - size };
        bound = bound.max(live);
    }
    bound
}

/// Places all blocks below `capacity`, with as much rest between uses of a byte as fits; without
/// rest, the lowest peak found. `None` if no order fits.
pub(super) fn pack(blocks: &[Block], capacity: u64, boundaries: Boundaries) -> Option<Packing> {
    for rest in REST_POSITIONS {
        let rested: Vec<Block> = blocks
            .iter()
            .map(|block| Block { live: LiveRange { last: block.live.last + rest, ..block.live }, ..*block })
            .collect();
        let bound = live_bound(&rested);
        if bound > capacity {
            continue;
        }
        let mut best: Option<Packing> = None;
        // The full portfolio is for the last gap; for rest there is either space or not.
        let n_orders = if rest > 0 { 2 } else { usize::MAX };
        for order in orders(&rested).into_iter().take(n_orders) {
            let packing = place(&rested, &order, boundaries);
            if best.as_ref().is_none_or(|best| packing.peak < best.peak) {
                best = Some(packing);
            }
            if best.as_ref().is_some_and(|best| best.peak == bound || (rest > 0 && best.peak <= capacity)) {
                break;
            }
        }
        if let Some(best) = best.filter(|best| best.peak <= capacity) {
            return Some(best);
        }
    }
    None
}

/// The portfolio: lists of block positions in the order of placement.
fn orders(blocks: &[Block]) -> Vec<Vec<usize>> {
    let crowd = crowding(blocks);
    let length = |block: &Block| (block.live.last - block.live.first + 1) as u64;
    let sorted = |key: &dyn Fn(usize) -> (Reverse<u64>, Reverse<u64>, usize)| {
        let mut order: Vec<usize> = (0..blocks.len()).collect();
        order.sort_by_key(|&position| key(position));
        order
    };
    let start = |position: usize| blocks[position].live.first;
    vec![
        sorted(&|at| (Reverse(u64::MAX - start(at) as u64), Reverse(blocks[at].size), at)),
        sorted(&|at| (Reverse(blocks[at].size), Reverse(length(&blocks[at])), start(at))),
        sorted(&|at| (Reverse(blocks[at].size * length(&blocks[at])), Reverse(blocks[at].size), start(at))),
        sorted(&|at| (Reverse(length(&blocks[at])), Reverse(blocks[at].size), start(at))),
        sorted(&|at| (Reverse(crowd[at]), Reverse(blocks[at].size), start(at))),
    ]
}

/// Per block, the most bytes live at once during its live range, measured per bucket.
fn crowding(blocks: &[Block]) -> Vec<u64> {
    let n_buckets = blocks.iter().map(|block| block.live.last / BUCKET_POSITIONS + 1).max().unwrap_or(0);
    let mut sums = vec![0u64; n_buckets];
    for block in blocks {
        for sum in &mut sums[block.live.first / BUCKET_POSITIONS..=block.live.last / BUCKET_POSITIONS] {
            *sum += block.size;
        }
    }
    let most = |block: &Block| {
        let buckets = &sums[block.live.first / BUCKET_POSITIONS..=block.live.last / BUCKET_POSITIONS];
        buckets.iter().copied().max().unwrap_or(0)
    };
    blocks.iter().map(most).collect()
}

/// Places every block at the lowest free offset, in this order.
fn place(blocks: &[Block], order: &[usize], boundaries: Boundaries) -> Packing {
    let mut placed = Placed::default();
    let mut packing = Packing { offsets: vec![0; blocks.len()], peak: 0 };
    for &position in order {
        let block = &blocks[position];
        let mut offset = 0;
        for (low, high) in placed.during(block.live) {
            if fit(offset, block, boundaries) + block.size <= low {
                break;
            }
            offset = offset.max(high);
        }
        let offset = fit(offset, block, boundaries);
        packing.offsets[position] = offset;
        packing.peak = packing.peak.max(offset + block.size);
        placed.add(block.live, offset, offset + block.size);
    }
    packing
}

/// The first legal offset from here on.
fn fit(offset: u64, block: &Block, boundaries: Boundaries) -> u64 {
    let aligned = offset.next_multiple_of(block.alignment);
    match boundaries {
        Boundaries::Every(length) if aligned / length != (aligned + block.size.max(1) - 1) / length => {
            aligned.next_multiple_of(length)
        }
        Boundaries::None | Boundaries::Every(_) => aligned,
    }
}

/// Placed blocks by the time they are live.
#[derive(Default)]
struct Placed {
    buckets: Vec<Vec<(LiveRange, u64, u64)>>,
}

impl Placed {
    fn add(&mut self, live: LiveRange, low: u64, high: u64) {
        let last_bucket = live.last / BUCKET_POSITIONS;
        if self.buckets.len() <= last_bucket {
            self.buckets.resize_with(last_bucket + 1, Vec::new);
        }
        for bucket in &mut self.buckets[live.first / BUCKET_POSITIONS..=last_bucket] {
            bucket.push((live, low, high));
        }
    }

    /// Offsets taken at some time during `live`, ascending by start.
    fn during(&self, live: LiveRange) -> Vec<(u64, u64)> {
        let n_buckets = self.buckets.len();
        let (from, to) = (live.first / BUCKET_POSITIONS, live.last / BUCKET_POSITIONS + 1);
        let buckets = &self.buckets[from.min(n_buckets)..to.min(n_buckets)];
        let meets = |other: &LiveRange| other.first <= live.last && live.first <= other.last;
        let found = buckets.iter().flatten().filter(|(other, _, _)| meets(other));
        let mut taken: Vec<(u64, u64)> = found.map(|&(_, low, high)| (low, high)).collect();
        taken.sort_unstable();
        taken.dedup();
        taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Strategy, prop_assert, prop_assert_eq};
    use proptest::proptest;

    use super::{Block, Boundaries, LiveRange, live_bound, pack};

    fn block(first: usize, last: usize, size: u64) -> Block {
        Block { live: LiveRange { first, last }, size, alignment: 4 }
    }

    #[test]
    fn space_is_left_unused_for_a_while_where_there_is_enough() {
        let blocks = [block(0, 1, 8), block(2, 3, 8)];
        assert_eq!(pack(&blocks, 16, Boundaries::None).expect("fits").offsets, vec![0, 8]);
        assert_eq!(pack(&blocks, 8, Boundaries::None).expect("fits").offsets, vec![0, 0]);
        assert_eq!(pack(&blocks, 4, Boundaries::None), None);
    }

    #[test]
    fn no_block_crosses_a_boundary() {
        let blocks = [block(0, 9, 1200), block(0, 9, 1200), block(0, 9, 800)];
        let packing = pack(&blocks, 4096, Boundaries::Every(2048)).expect("fits");
        assert_eq!(packing.offsets, vec![0, 2048, 1200]);
    }

    fn blocks() -> impl Strategy<Value = Vec<Block>> {
        let one = (0..200usize, 0..80usize, 1..50u64)
            .prop_map(|(first, length, size)| block(first, first + length, 4 * size));
        proptest::collection::vec(one, 1..40)
    }

    proptest! {
        #[test]
        fn blocks_that_live_together_lie_apart(blocks in blocks(), spare in 0..4u64) {
            let bound = live_bound(&blocks);
            let at = |position: usize| blocks.iter().filter(move |block| block.live.first <= position && position <= block.live.last);
            prop_assert_eq!(Some(bound), (0..300).map(|position| at(position).map(|block| block.size).sum::<u64>()).max());
            let Some(packing) = pack(&blocks, bound * (1 + spare), Boundaries::None) else { return Ok(()) };
            prop_assert!(packing.peak <= bound * (1 + spare));
            for (position, block) in blocks.iter().enumerate() {
                prop_assert!(packing.offsets[position] + block.size <= packing.peak);
                for (other_position, other) in blocks.iter().enumerate().take(position) {
                    let together = block.live.first <= other.live.last && other.live.first <= block.live.last;
                    let (offset, other_offset) = (packing.offsets[position], packing.offsets[other_position]);
                    prop_assert!(!together || offset + block.size <= other_offset || other_offset + other.size <= offset);
                }
            }
        }
    }
}
