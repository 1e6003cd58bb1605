//! Mends a packing that is too high in a few places.
//!
//! Around each block that sticks out, the blocks that live within a window of positions are taken
//! out and packed anew between those that reach beyond it. The cost is that of the windows, however
//! long the program.

use super::greedy::{self, Fit};
use super::order::{Order, Ranks};
use super::sections::Sections;
use super::{Block, Boundaries, LiveRange, MAX_REPAIRS, Packing};

/// Positions that a window reaches beyond the block that sticks out, tried one after the other.
const REACHES: [usize; 3] = [32, 128, 512];

/// Windows that are mended before the packing is given up.
const MAX_WINDOWS: usize = 48;

/// Blocks that are packed anew at once.
const MAX_WINDOW_BLOCKS: usize = 1_500;

/// The packing with all blocks below `capacity`; `None` where no window does it.
pub(super) fn repair(blocks: &[Block], packing: &Packing, capacity: u64) -> Option<Packing> {
    let mut offsets = packing.offsets.clone();
    let sticks_out = |offsets: &[u64], at: usize| offsets[at] + blocks[at].size > capacity;
    let mut raised: Vec<usize> = (0..blocks.len()).filter(|&at| sticks_out(&offsets, at)).collect();
    raised.sort_by_key(|&at| blocks[at].live.first);
    let mut n_windows = 0;
    for at in raised {
        if !sticks_out(&offsets, at) {
            continue;
        }
        n_windows += 1;
        if n_windows > MAX_WINDOWS || !REACHES.iter().any(|&reach| mend(blocks, &mut offsets, at, reach, capacity)) {
            return None;
        }
    }
    let ends = blocks.iter().zip(&offsets).map(|(block, offset)| offset + block.size);
    Some(Packing { peak: ends.max().unwrap_or(0), offsets })
}

/// Packs the blocks around one anew; true if all of them end below `capacity`.
fn mend(blocks: &[Block], offsets: &mut [u64], center: usize, reach: usize, capacity: u64) -> bool {
    let LiveRange { first, last } = blocks[center].live;
    let window = LiveRange { first: first.saturating_sub(reach), last: last + reach };
    let meeting = (0..blocks.len()).filter(|&at| window.meets(blocks[at].live));
    // Blocks that reach beyond the window keep their place.
    let (free, fixed): (Vec<usize>, Vec<usize>) = meeting.partition(|&at| window.contains(blocks[at].live));
    if free.len() > MAX_WINDOW_BLOCKS || fixed.iter().any(|&at| offsets[at] + blocks[at].size > capacity) {
        return false;
    }
    let members: Vec<usize> = fixed.iter().chain(&free).copied().collect();
    let local: Vec<Block> = members.iter().map(|&at| blocks[at]).collect();
    let fixed_offsets: Vec<u64> = fixed.iter().map(|&at| offsets[at]).collect();
    let sections = Sections::of(&local);
    if sections.bound() > capacity {
        return false;
    }
    for order in Order::ALL {
        let mut ranks = Ranks::new(&local, &sections, order);
        for _ in 0..=MAX_REPAIRS {
            let order: Vec<usize> = ranks.order().into_iter().filter(|&at| at >= fixed.len()).collect();
            let packing =
                greedy::place_between(&local, &sections, &fixed_offsets, &order, Fit::First, Boundaries::None);
            if packing.peak <= capacity {
                for (&at, &offset) in members.iter().zip(&packing.offsets) {
                    offsets[at] = offset;
                }
                return true;
            }
            ranks.promote(|at| packing.offsets[at] + local[at].size > capacity);
        }
    }
    false
}
