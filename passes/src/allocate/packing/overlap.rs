//! Proves a packing: a sweep through time that shares no code with any of the ways to pack.

use std::collections::BTreeMap;

use super::Block;

/// Two blocks, by position, that are live at once and share a byte; `None` if there are none.
///
/// Takes n log n: the blocks live at one position are disjoint until the first overlap, so that only
/// the two neighbours of a new one can meet it.
pub fn first_overlap(blocks: &[Block], offsets: &[u64]) -> Option<(usize, usize)> {
    // Starts after ends at one position: live ranges include their last position.
    let starts = blocks.iter().enumerate().map(|(at, block)| (block.live.first, true, at));
    let ends = blocks.iter().enumerate().map(|(at, block)| (block.live.last + 1, false, at));
    let mut events: Vec<(usize, bool, usize)> = starts.chain(ends).filter(|&(_, _, at)| blocks[at].size > 0).collect();
    events.sort_unstable();
    let mut live: BTreeMap<u64, usize> = BTreeMap::new();
    for (_, is_start, at) in events {
        let (low, high) = (offsets[at], offsets[at] + blocks[at].size);
        if !is_start {
            live.remove(&low);
            continue;
        }
        // Everything live below `high`: the nearest is the only one that may reach above `low`.
        if let Some((&start, &other)) = live.range(..high).next_back()
            && start + blocks[other].size > low
        {
            return Some((other, at));
        }
        live.insert(low, at);
    }
    None
}
