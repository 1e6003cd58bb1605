//! Packing block by block in any order.

use super::occupied::Occupied;
use super::sections::Sections;
use super::{Block, Boundaries, Packing};

/// Which of the gaps that are large enough a block takes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// The lowest.
    First,
    /// The smallest, of equal ones the lowest.
    Best,
}

/// Places blocks in this order, each where it meets none of those before it.
pub(super) fn place(
    blocks: &[Block],
    sections: &Sections,
    order: &[usize],
    fit: Fit,
    boundaries: Boundaries,
) -> Packing {
    place_between(blocks, sections, &[], order, fit, boundaries)
}

/// The same between blocks that have their offsets: the first ones, as many as there are offsets.
pub(super) fn place_between(
    blocks: &[Block],
    sections: &Sections,
    fixed_offsets: &[u64],
    order: &[usize],
    fit: Fit,
    boundaries: Boundaries,
) -> Packing {
    let mut occupied = Occupied::new(sections.totals.len());
    let mut taken = Vec::new();
    let mut packing = Packing { offsets: vec![0; blocks.len()], peak: 0 };
    for (at, &offset) in fixed_offsets.iter().enumerate() {
        packing.offsets[at] = offset;
        packing.peak = packing.peak.max(offset + blocks[at].size);
        if blocks[at].size > 0 {
            occupied.take(sections.spans[at], offset, offset + blocks[at].size);
        }
    }
    for &at in order {
        let (block, span) = (&blocks[at], sections.spans[at]);
        occupied.taken(span, &mut taken);
        let offset = choose(block, &taken, fit, boundaries);
        packing.offsets[at] = offset;
        packing.peak = packing.peak.max(offset + block.size);
        if block.size > 0 {
            occupied.take(span, offset, offset + block.size);
        }
    }
    packing
}

/// Where the block goes between byte ranges that are taken, ascending by start.
fn choose(block: &Block, taken: &[(u64, u64)], fit: Fit, boundaries: Boundaries) -> u64 {
    let mut floor = 0;
    let mut best: Option<(u64, u64)> = None;
    for &(low, high) in taken {
        let offset = legal_offset(floor, block, boundaries);
        if low > floor && offset + block.size <= low {
            let gap = low - floor;
            if fit == Fit::First {
                return offset;
            }
            if best.is_none_or(|(least, _)| gap < least) {
                best = Some((gap, offset));
            }
        }
        floor = floor.max(high);
    }
    best.map_or_else(|| legal_offset(floor, block, boundaries), |(_, offset)| offset)
}

/// The first legal offset from here on.
pub(super) fn legal_offset(offset: u64, block: &Block, boundaries: Boundaries) -> u64 {
    let aligned = offset.next_multiple_of(block.alignment.max(1));
    match boundaries {
        Boundaries::Every(length) if aligned / length != (aligned + block.size.max(1) - 1) / length => {
            aligned.next_multiple_of(length)
        }
        Boundaries::None | Boundaries::Every(_) => aligned,
    }
}
