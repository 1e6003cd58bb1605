use proptest::prelude::{Strategy, prop_assert, prop_assert_eq};
use proptest::proptest;

use super::greedy::{self, Fit};
use super::order::{Order, Ranks};
use super::sections::Sections;
use super::{
    Block, Boundaries, LiveRange, Packing, first_overlap, infeasible_blocks, live_bound, pack_exactly, pack_low,
    pack_within, sweep,
};

fn block(first: usize, last: usize, size: u64) -> Block {
    Block { live: LiveRange { first, last }, size, alignment: 4 }
}

fn is_sound(blocks: &[Block], packing: &Packing) -> bool {
    let ends = blocks.iter().zip(&packing.offsets).map(|(block, offset)| offset + block.size);
    let is_aligned = |(block, offset): (&Block, &u64)| offset.is_multiple_of(block.alignment);
    first_overlap(blocks, &packing.offsets).is_none()
        && ends.max().unwrap_or(0) == packing.peak
        && blocks.iter().zip(&packing.offsets).all(is_aligned)
}

#[test]
fn space_is_left_unused_for_a_while_where_there_is_enough() {
    let blocks = [block(0, 1, 8), block(2, 3, 8)];
    assert_eq!(pack_within(&blocks, 16, Boundaries::None).expect("fits").offsets, vec![0, 8]);
    assert_eq!(pack_within(&blocks, 8, Boundaries::None).expect("fits").offsets, vec![0, 0]);
    assert_eq!(pack_within(&blocks, 4, Boundaries::None), None);
}

/// Where every second block goes soon and the others stay, only those that stay together leave a gap
/// that is large enough for what comes next.
#[test]
fn blocks_that_live_long_leave_no_gaps_among_themselves() {
    let mut blocks = Vec::new();
    for start in (0..50).map(|period| 3000 * period) {
        for at in (start..start + 50).step_by(2) {
            blocks.extend([block(at, start + 100, 8), block(at + 1, start + 2900, 8)]);
        }
        blocks.push(block(start + 200, start + 210, 200));
    }
    assert!(sweep::place(&blocks, Fit::First, Boundaries::None).peak > 400);
    let packing = pack_within(&blocks, 400, Boundaries::None).expect("half of the bytes are free in one piece");
    assert!(is_sound(&blocks, &packing));
}

#[test]
fn no_block_crosses_a_boundary() {
    let blocks = [block(0, 9, 1200), block(0, 9, 1200), block(0, 9, 800)];
    let packing = pack_within(&blocks, 4096, Boundaries::Every(2048)).expect("fits");
    assert_eq!(packing.offsets, vec![0, 2048, 1200]);
}

/// The example of MiniMalloc's description: five blocks that fill twelve bytes.
#[test]
fn five_blocks_fill_twelve_bytes() {
    let block = |first: usize, end: usize, size| Block { live: LiveRange { first, last: end - 1 }, size, alignment: 1 };
    let blocks = [block(0, 3, 4), block(3, 9, 4), block(0, 9, 4), block(9, 21, 4), block(0, 21, 4)];
    assert_eq!(live_bound(&blocks), 12);
    for packing in
        [pack_exactly(&blocks, 12, 1_000).packing.expect("fits"), pack_low(&blocks, Boundaries::None, 10_000)]
    {
        assert!(is_sound(&blocks, &packing));
        assert_eq!(packing.peak, 12);
    }
    assert!(pack_exactly(&blocks, 11, 1_000).is_infeasible);
}

#[test]
fn overlaps_are_found() {
    let blocks = [block(0, 4, 8), block(4, 9, 8), block(10, 12, 8)];
    assert_eq!(first_overlap(&blocks, &[0, 4, 0]), Some((0, 1)));
    assert_eq!(first_overlap(&blocks, &[0, 8, 8]), None);
}

/// No order of size, length or time reaches the bound here: only the search does.
#[test]
fn the_search_packs_what_no_order_packs() {
    let mut n_improved = 0;
    for seed in 0..400u64 {
        let blocks = scattered(seed, 12);
        let bound = live_bound(&blocks);
        let exact = pack_exactly(&blocks, bound, 200_000);
        let low = pack_low(&blocks, Boundaries::None, 10_000);
        assert!(low.peak > bound || exact.packing.is_some() || !exact.is_infeasible, "seed {seed}");
        if let Some(packing) = exact.packing {
            assert!(is_sound(&blocks, &packing) && packing.peak == bound);
            n_improved += u32::from(low.peak > bound);
            assert!(pack_within(&blocks, bound, Boundaries::None).is_some_and(|packing| is_sound(&blocks, &packing)));
        }
    }
    assert!(n_improved > 0);
}

/// Blocks from a fixed linear congruence.
fn scattered(seed: u64, n_blocks: usize) -> Vec<Block> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
    let mut below = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    let one = |_| {
        let first = below(12) as usize;
        block(first, first + below(5) as usize, 4 * (1 + below(6)))
    };
    (0..n_blocks).map(one).collect()
}

/// The lowest peak, by all orders of placement at the lowest free offset: one of them builds the
/// packing with the least sum of offsets.
fn least_peak(blocks: &[Block]) -> u64 {
    fn extend(blocks: &[Block], offsets: &mut Vec<(usize, u64)>, peak: u64, least: &mut u64) {
        if peak >= *least {
            return;
        }
        if offsets.len() == blocks.len() {
            *least = peak;
            return;
        }
        for at in 0..blocks.len() {
            if offsets.iter().any(|&(placed, _)| placed == at) {
                continue;
            }
            let live = blocks[at].live;
            let below = offsets
                .iter()
                .filter(|(other, _)| blocks[*other].live.first <= live.last && live.first <= blocks[*other].live.last);
            let height = below.map(|&(other, offset)| offset + blocks[other].size).max().unwrap_or(0);
            let offset = height.next_multiple_of(blocks[at].alignment);
            offsets.push((at, offset));
            extend(blocks, offsets, peak.max(offset + blocks[at].size), least);
            offsets.pop();
        }
    }
    let mut least = u64::MAX;
    extend(blocks, &mut Vec::new(), 0, &mut least);
    least
}

fn blocks() -> impl Strategy<Value = Vec<Block>> {
    let one =
        (0..200usize, 0..80usize, 0..50u64).prop_map(|(first, length, size)| block(first, first + length, 4 * size));
    proptest::collection::vec(one, 1..40)
}

fn few_blocks() -> impl Strategy<Value = Vec<Block>> {
    let one = (0..9usize, 0..5usize, 1..7u64, 0..3u32).prop_map(|(first, length, size, power)| {
        let alignment = 4 << power;
        Block { alignment, ..block(first, first + length, (4 * size).next_multiple_of(alignment)) }
    });
    proptest::collection::vec(one, 1..8)
}

proptest! {
    #[test]
    fn blocks_that_live_together_lie_apart(blocks in blocks(), spare in 0..4u64) {
        let bound = live_bound(&blocks);
        let at = |position: usize| blocks.iter().filter(move |block| block.live.first <= position && position <= block.live.last);
        prop_assert_eq!(Some(bound), (0..300).map(|position| at(position).map(|block| block.size).sum::<u64>()).max());
        let low = pack_low(&blocks, Boundaries::None, 10_000);
        prop_assert!(is_sound(&blocks, &low));
        let Some(packing) = pack_within(&blocks, bound * (1 + spare), Boundaries::None) else { return Ok(()) };
        prop_assert!(packing.peak <= bound * (1 + spare));
        prop_assert!(is_sound(&blocks, &packing));
        for (position, block) in blocks.iter().enumerate() {
            for (other_position, other) in blocks.iter().enumerate().take(position) {
                let together = block.live.first <= other.live.last && other.live.first <= block.live.last;
                let (low, other_low) = (packing.offsets[position], packing.offsets[other_position]);
                let n_shared = (low + block.size).min(other_low + other.size).saturating_sub(low.max(other_low));
                prop_assert!(!together || n_shared == 0);
            }
        }
    }

    #[test]
    fn every_order_and_fit_is_sound(blocks in blocks()) {
        let sections = Sections::of(&blocks);
        for boundaries in [Boundaries::None, Boundaries::Every(256)] {
            for fit in [Fit::First, Fit::Best] {
                prop_assert!(is_sound(&blocks, &sweep::place(&blocks, fit, boundaries)));
                for order in Order::ALL {
                    let order = Ranks::new(&blocks, &sections, order).order();
                    prop_assert!(is_sound(&blocks, &greedy::place(&blocks, &sections, &order, fit, boundaries)));
                }
            }
        }
    }

    #[test]
    fn the_search_finds_the_least_peak(blocks in few_blocks()) {
        let least = least_peak(&blocks);
        let exact = pack_exactly(&blocks, least, 1_000_000);
        let packing = exact.packing.expect("a packing of this height exists");
        prop_assert!(is_sound(&blocks, &packing));
        prop_assert_eq!(packing.peak, least);
        prop_assert!(pack_exactly(&blocks, least - 1, 1_000_000).is_infeasible);
    }

    #[test]
    fn an_infeasible_set_needs_each_of_its_blocks(blocks in few_blocks()) {
        let least = least_peak(&blocks);
        prop_assert_eq!(infeasible_blocks(&blocks, least, 1_000_000), None);
        let named = infeasible_blocks(&blocks, least - 1, 1_000_000).expect("one byte less is too little");
        let chosen: Vec<Block> = named.iter().map(|&at| blocks[at]).collect();
        prop_assert!(least_peak(&chosen) >= least);
        for left_out in 0..chosen.len() {
            let mut others = chosen.clone();
            others.remove(left_out);
            prop_assert!(others.is_empty() || least_peak(&others) < least);
        }
    }
}
