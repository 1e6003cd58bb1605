//! Orders in which blocks are placed.

use std::cmp::Reverse;

use super::Block;
use super::sections::Sections;

/// What decides which block goes first.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Blocks of the fullest sections first, so that these have no gaps; then by size.
    CriticalBySize,
    /// The same, but among blocks of the fullest sections the longest first, as in a stack.
    CriticalByLength,
    /// Size; of equal ones the earliest.
    Size,
    /// Size; of equal ones the longest.
    LongestSize,
    /// Size times length.
    Area,
    Length,
    /// Most bytes live together with the block.
    Crowd,
}

impl Order {
    pub(super) const ALL: [Order; 7] = [
        Order::CriticalBySize,
        Order::CriticalByLength,
        Order::Size,
        Order::LongestSize,
        Order::Area,
        Order::Length,
        Order::Crowd,
    ];

    /// Larger keys go first.
    fn keys(self, block: &Block, crowd: u64, bound: u64) -> [u64; 3] {
        let length = (block.live.last - block.live.first + 1) as u64;
        let early = u64::MAX - block.live.first as u64;
        // Within half a percent of the bound a gap costs nearly its own size.
        let is_critical = u128::from(crowd) * 200 > u128::from(bound) * 199;
        match self {
            Order::CriticalBySize => [u64::from(is_critical), block.size, early],
            Order::CriticalByLength => [u64::from(is_critical), if is_critical { length } else { block.size }, early],
            Order::Size => [block.size, early, length],
            Order::LongestSize => [block.size, length, early],
            Order::Area => [block.size.saturating_mul(length), block.size, early],
            Order::Length => [length, block.size, early],
            Order::Crowd => [crowd, block.size, length],
        }
    }
}

/// An order that learns: blocks that stuck out go earlier the next time.
pub(super) struct Ranks {
    keys: Vec<[u64; 3]>,
    n_promotions: Vec<u32>,
}

impl Ranks {
    pub(super) fn new(blocks: &[Block], sections: &Sections, order: Order) -> Self {
        let bound = sections.bound();
        let crowds = sections.crowds();
        let keys = blocks.iter().zip(crowds).map(|(block, crowd)| order.keys(block, crowd, bound));
        Ranks { keys: keys.collect(), n_promotions: vec![0; blocks.len()] }
    }

    /// Block positions, the first to be placed first.
    pub(super) fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.keys.len()).collect();
        order.sort_by_key(|&at| Reverse((self.n_promotions[at], self.keys[at])));
        order
    }

    /// Moves blocks ahead of all others that have not been moved as often.
    pub(super) fn promote(&mut self, sticks_out: impl Fn(usize) -> bool) {
        for (at, n_promotions) in self.n_promotions.iter_mut().enumerate() {
            *n_promotions += u32::from(sticks_out(at));
        }
    }
}
