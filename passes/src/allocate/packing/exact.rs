//! The exact search over several rankings, in units of the common divisor.

use super::search::{Instance, Key, Outcome, Ranking, Rectangle, Search};
use super::sections::{Sections, Span};
use super::{Block, Packing};

/// Rankings take turns. Each problem is easy for some of them and hopeless for others.
const RANKINGS: [Ranking; 4] = [
    [Key::Crowd, Key::Length, Key::Area],
    [Key::Area, Key::Length, Key::Crowd],
    [Key::Crowd, Key::Area, Key::Length],
    [Key::Length, Key::Area, Key::Crowd],
];

/// Nodes of the first turn; every next one has [`TURN_GROWTH`] times as many.
const FIRST_TURN_NODES: u64 = 2_500;
const TURN_GROWTH: u64 = 4;

/// Blocks of a problem: the search goes as deep as there are blocks.
const MAX_BLOCKS: usize = 1_000;

/// What an exact search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exact {
    pub packing: Option<Packing>,
    /// True if it is proved that no packing has so low a peak.
    pub is_infeasible: bool,
    /// Blocks placed, those taken back included.
    pub n_nodes: u64,
}

/// Searches for a packing below `capacity` bytes, placing about `max_nodes` blocks at most. Gives up
/// at once on more than a thousand blocks that cannot be told apart by time.
pub fn pack_exactly(blocks: &[Block], capacity: u64, max_nodes: u64) -> Exact {
    let sections = Sections::of(blocks);
    let mut packing = Packing { offsets: vec![0; blocks.len()], peak: 0 };
    let mut n_nodes = 0;
    for part in independent_parts(&sections) {
        let found = search_part(blocks, &sections, &part, capacity, max_nodes.saturating_sub(n_nodes), &mut n_nodes);
        match found {
            Found::Offsets(offsets) => {
                for (&at, offset) in part.iter().zip(offsets) {
                    packing.offsets[at] = offset;
                    packing.peak = packing.peak.max(offset + blocks[at].size);
                }
            }
            Found::Nothing { is_infeasible } => return Exact { packing: None, is_infeasible, n_nodes },
        }
    }
    Exact { packing: Some(packing), is_infeasible: false, n_nodes }
}

/// A set of blocks that fits below `capacity` in no way, though it does without any one of them;
/// `None` if it is not proved within `max_nodes` for each question that all blocks together do not
/// fit. Members that take more nodes to judge stay in the set.
pub fn infeasible_blocks(blocks: &[Block], capacity: u64, max_nodes: u64) -> Option<Vec<usize>> {
    let is_infeasible = |chosen: &[usize]| {
        let chosen: Vec<Block> = chosen.iter().map(|&at| blocks[at]).collect();
        pack_exactly(&chosen, capacity, max_nodes).is_infeasible
    };
    let mut chosen: Vec<usize> = (0..blocks.len()).collect();
    if !is_infeasible(&chosen) {
        return None;
    }
    for at in 0..blocks.len() {
        let without: Vec<usize> = chosen.iter().copied().filter(|&other| other != at).collect();
        if is_infeasible(&without) {
            chosen = without;
        }
    }
    Some(chosen)
}

enum Found {
    Offsets(Vec<u64>),
    Nothing { is_infeasible: bool },
}

/// Blocks by position, grouped so that no two of different groups are live at once.
fn independent_parts(sections: &Sections) -> Vec<Vec<usize>> {
    let mut by_start: Vec<usize> = (0..sections.spans.len()).collect();
    by_start.sort_by_key(|&at| sections.spans[at].from);
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let mut end = 0;
    for at in by_start {
        let Span { from, to } = sections.spans[at];
        match parts.last_mut() {
            Some(part) if from < end => part.push(at),
            Some(_) | None => parts.push(vec![at]),
        }
        end = end.max(to);
    }
    parts
}

fn search_part(
    blocks: &[Block],
    sections: &Sections,
    part: &[usize],
    capacity: u64,
    max_nodes: u64,
    n_nodes: &mut u64,
) -> Found {
    // Without a size, a block can lie anywhere.
    let sized: Vec<usize> = part.iter().copied().filter(|&at| blocks[at].size > 0).collect();
    let lengths = sized.iter().flat_map(|&at| [blocks[at].size, blocks[at].alignment.max(1)]);
    let unit = lengths.fold(0, greatest_common_divisor).max(1);
    if sized.iter().any(|&at| blocks[at].size > capacity) {
        return Found::Nothing { is_infeasible: true };
    }
    let Some(instance) = instance(blocks, sections, &sized, capacity / unit, unit) else {
        return Found::Nothing { is_infeasible: false };
    };
    let mut turn_nodes = FIRST_TURN_NODES;
    let mut rest = max_nodes;
    while rest > 0 {
        for ranking in RANKINGS {
            let mut search = Search::new(&instance, ranking);
            let outcome = search.run(turn_nodes.min(rest));
            *n_nodes += search.n_nodes;
            rest = rest.saturating_sub(search.n_nodes.max(1));
            match outcome {
                Outcome::Packed => {
                    let mut offsets = sized.iter().zip(&search.offsets).peekable();
                    let offset = |&at: &usize| match offsets.next_if(|&(&sized, _)| sized == at) {
                        Some((_, &offset)) => u64::from(offset) * unit,
                        None => 0,
                    };
                    return Found::Offsets(part.iter().map(offset).collect());
                }
                Outcome::Infeasible => return Found::Nothing { is_infeasible: true },
                Outcome::OutOfNodes => {}
            }
        }
        turn_nodes = turn_nodes.saturating_mul(TURN_GROWTH);
    }
    Found::Nothing { is_infeasible: false }
}

/// The problem in units, if it is small enough.
fn instance(blocks: &[Block], sections: &Sections, sized: &[usize], capacity: u64, unit: u64) -> Option<Instance> {
    if sized.len() > MAX_BLOCKS {
        return None;
    }
    // The search adds a size to an offset below the capacity, and a total of sizes to it.
    let capacity = u32::try_from(capacity).ok().filter(|&capacity| capacity < 1 << 30)?;
    let first = sized.iter().map(|&at| sections.spans[at].from).min().unwrap_or(0);
    let end = sized.iter().map(|&at| sections.spans[at].to).max().unwrap_or(0);
    let rectangle = |&at: &usize| {
        let block = &blocks[at];
        let Span { from, to } = sections.spans[at];
        Some(Rectangle {
            span: Span { from: from - first, to: to - first },
            size: u32::try_from(block.size / unit).ok()?,
            alignment: u32::try_from(block.alignment.max(1) / unit).ok().filter(|&alignment| alignment < 1 << 30)?,
            length: (block.live.last - block.live.first + 1) as u64,
        })
    };
    let rectangles = sized.iter().map(rectangle).collect::<Option<Vec<Rectangle>>>()?;
    Some(Instance { capacity, blocks: rectangles, n_sections: (end - first) as usize })
}

fn greatest_common_divisor(left: u64, right: u64) -> u64 {
    let (mut left, mut right) = (left, right);
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left
}
