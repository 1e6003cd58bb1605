//! Exact search for a packing below a given height.
//!
//! Blocks are placed one by one, each at the lowest offset that the blocks below it leave. Of all
//! packings, only the one with the least sum of offsets is looked for: it can be built in order of
//! (offset, rank), and while it is built, no unplaced block could still slip in entirely below the
//! next offset. Both facts rule out most orders. Blocks that no unplaced block holds together are
//! independent parts: each is ranked anew by what is left of it, and one part that fails dismisses
//! the placement that all parts share.
//!
//! Three bounds end a branch. In every section some unplaced block is the next one up, so a section
//! needs a block whose lowest offset leaves room for all that the section still misses; where only
//! one block qualifies, it is the next one, and all others of the section lie above it. And what
//! lies above any offset must fit between it and the capacity.
//!
//! Sizes are in units of their common divisor. Work is limited in nodes, never in time.

use super::sections::Span;

/// What to pack, in units.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub capacity: u32,
    pub blocks: Vec<Rectangle>,
    pub n_sections: usize,
}

/// A block in units.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Rectangle {
    pub span: Span,
    pub size: u32,
    /// Of the offset; 1 if any offset will do.
    pub alignment: u32,
    /// Positions that it is live at.
    pub length: u64,
}

/// What decides between blocks that could go to the same offset, most important first; the larger
/// goes first.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// Most unplaced bytes live together at some time of the block's life.
    Crowd,
    Length,
    /// Size times length.
    Area,
}

/// An order of preference.
pub(super) type Ranking = [Key; 3];

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Offsets stand in [`Search::offsets`].
    Packed,
    /// No packing exists.
    Infeasible,
    OutOfNodes,
}

/// One search with one ranking.
pub(super) struct Search<'a> {
    instance: &'a Instance,
    ranking: Ranking,
    /// Per block, its offset in the packing found.
    pub offsets: Vec<u32>,
    pub n_nodes: u64,
    max_nodes: u64,
    /// Per block, the least size of the blocks that it meets: a block that does not rest on what is
    /// placed so far will rest on one of these.
    least_neighbour: Vec<u32>,
    has_alignments: bool,
    /// Parts whose memory is free for others.
    pool: Vec<Part>,
    scratch: Scratch,
}

/// Memory for the bounds of one part.
#[derive(Default)]
struct Scratch {
    /// Per section, the units that are left when all its unplaced blocks are stacked.
    slack: Vec<u32>,
    /// Per section, how many blocks may be the next one up, and the sum of their positions.
    n_next: Vec<u32>,
    next_sum: Vec<u32>,
    above: Vec<u32>,
    by_floor: Vec<u64>,
}

/// Unplaced blocks that must be placed together, ranked.
#[derive(Default)]
struct Part {
    ids: Vec<u32>,
    froms: Vec<u32>,
    tos: Vec<u32>,
    sizes: Vec<u32>,
    /// Where each block would lie if it were placed now.
    offsets: Vec<u32>,
    /// The least offset that each block can have in the packing looked for. A block whose floor is
    /// above its offset has to wait until others have raised it.
    floors: Vec<u32>,
    first_section: u32,
    /// Unplaced units of each section.
    missing: Vec<u32>,
    /// Unplaced blocks that are live in each section and in the next.
    n_crossing: Vec<u32>,
}

impl<'a> Search<'a> {
    pub(super) fn new(instance: &'a Instance, ranking: Ranking) -> Self {
        let blocks = &instance.blocks;
        let least_neighbour = |(position, block): (usize, &Rectangle)| {
            let others =
                blocks.iter().enumerate().filter(|&(at, other)| at != position && other.span.meets(block.span));
            others.map(|(_, other)| other.size).min().unwrap_or(0)
        };
        Search {
            instance,
            ranking,
            offsets: vec![0; blocks.len()],
            n_nodes: 0,
            max_nodes: 0,
            least_neighbour: blocks.iter().enumerate().map(least_neighbour).collect(),
            has_alignments: blocks.iter().any(|block| block.alignment > 1),
            pool: Vec::new(),
            scratch: Scratch::default(),
        }
    }

    /// Searches from the start, placing at most `max_nodes` blocks, those taken back included.
    pub(super) fn run(&mut self, max_nodes: u64) -> Outcome {
        self.max_nodes = self.n_nodes + max_nodes;
        let n_sections = self.instance.n_sections;
        let mut whole = Part { missing: vec![0; n_sections], n_crossing: vec![0; n_sections], ..Part::default() };
        for (id, block) in self.instance.blocks.iter().enumerate() {
            whole.push(u32::try_from(id).expect("instances are small"), block.span, block.size, 0, 0);
            for section in block.span.range() {
                whole.missing[section] = whole.missing[section].saturating_add(block.size);
                whole.n_crossing[section] += u32::from(section + 1 < block.span.to as usize);
            }
        }
        if whole.missing.iter().any(|&missing| missing > self.instance.capacity) {
            return Outcome::Infeasible;
        }
        self.solve_parts(whole)
    }

    /// Solves every independent part of these blocks, the smallest first.
    fn solve_parts(&mut self, whole: Part) -> Outcome {
        let mut parts = self.split(&whole);
        self.pool.push(whole);
        parts.sort_by_key(|part| part.ids.len());
        let mut outcome = Outcome::Packed;
        for mut part in parts {
            if outcome == Outcome::Packed {
                self.rank(&mut part);
                outcome = self.place_next(&part);
            }
            self.pool.push(part);
        }
        outcome
    }

    /// Cuts where no block is live on both sides.
    fn split(&mut self, whole: &Part) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut part_of_section = vec![0; whole.missing.len()];
        let mut start = 0;
        for (section, &n_crossing) in whole.n_crossing.iter().enumerate() {
            if n_crossing > 0 {
                continue;
            }
            let sections = start..section + 1;
            start = section + 1;
            if whole.missing[sections.clone()].iter().all(|&missing| missing == 0) {
                continue;
            }
            let mut part = self.pool.pop().unwrap_or_default();
            part.clear();
            part.first_section = whole.first_section + sections.start as u32;
            part.missing.extend_from_slice(&whole.missing[sections.clone()]);
            part.n_crossing.extend_from_slice(&whole.n_crossing[sections.clone()]);
            part_of_section[sections].fill(parts.len());
            parts.push(part);
        }
        for at in 0..whole.ids.len() {
            let span = Span { from: whole.froms[at], to: whole.tos[at] };
            let part = &mut parts[part_of_section[(span.from - whole.first_section) as usize]];
            part.push(whole.ids[at], span, whole.sizes[at], whole.offsets[at], whole.floors[at]);
        }
        parts
    }

    /// Sorts a part's blocks by what is unplaced now.
    fn rank(&mut self, part: &mut Part) {
        let key = |at: usize, key: Key| {
            let length = self.instance.blocks[part.ids[at] as usize].length;
            match key {
                Key::Crowd => u64::from(part.missing[part.sections(at)].iter().copied().max().unwrap_or(0)),
                Key::Length => length,
                Key::Area => length.saturating_mul(u64::from(part.sizes[at])),
            }
        };
        let keyed = (0..part.ids.len()).map(|at| (self.ranking.map(|name| key(at, name)), at));
        let mut order: Vec<([u64; 3], usize)> = keyed.collect();
        order.sort_unstable_by(|(keys, at), (other_keys, other)| {
            other_keys.cmp(keys).then_with(|| part.ids[*at].cmp(&part.ids[*other]))
        });
        for values in
            [&mut part.ids, &mut part.froms, &mut part.tos, &mut part.sizes, &mut part.offsets, &mut part.floors]
        {
            *values = order.iter().map(|&(_, at)| values[at]).collect();
        }
    }

    /// Tries every block that may come next in the order of (offset, rank).
    fn place_next(&mut self, part: &Part) -> Outcome {
        if part.ids.is_empty() {
            return Outcome::Packed;
        }
        for candidate in part.candidates() {
            let offset = part.offsets[candidate];
            let room = self.instance.capacity - offset;
            if part.missing[part.sections(candidate)].iter().any(|&missing| missing > room) {
                continue;
            }
            if self.n_nodes == self.max_nodes {
                return Outcome::OutOfNodes;
            }
            self.n_nodes += 1;
            let mut rest = self.pool.pop().unwrap_or_default();
            let splits = self.place(part, candidate, &mut rest);
            if !self.may_fit(&mut rest) {
                self.pool.push(rest);
                continue;
            }
            self.offsets[part.ids[candidate] as usize] = offset;
            let outcome = if splits {
                self.solve_parts(rest)
            } else {
                let outcome = self.place_next(&rest);
                self.pool.push(rest);
                outcome
            };
            if outcome != Outcome::Infeasible {
                return outcome;
            }
        }
        Outcome::Infeasible
    }

    /// Makes `rest` what remains of the part once the block at `chosen` is placed; true if it falls
    /// into several parts.
    fn place(&self, part: &Part, chosen: usize, rest: &mut Part) -> bool {
        let (from, to) = (part.froms[chosen], part.tos[chosen]);
        let offset = part.offsets[chosen];
        let top = offset + part.sizes[chosen];
        rest.copy_without(part, chosen);
        let spans = rest.froms.iter().zip(&rest.tos);
        for (own_offset, (&own_from, &own_to)) in rest.offsets.iter_mut().zip(spans) {
            let height = if own_from < to && from < own_to { top } else { 0 };
            *own_offset = (*own_offset).max(height);
        }
        if self.has_alignments {
            for (own_offset, &id) in rest.offsets.iter_mut().zip(&rest.ids) {
                *own_offset = own_offset.next_multiple_of(self.instance.blocks[id as usize].alignment);
            }
        }
        for at in 0..rest.ids.len() {
            let own_offset = rest.offsets[at];
            // Passed over in the order of (offset, rank), now or before: it will rest on a block
            // that is still unplaced.
            let is_passed = rest.floors[at] > own_offset || (own_offset, at) < (offset, chosen);
            rest.floors[at] = if is_passed {
                rest.floors[at].max(offset + self.least_neighbour[rest.ids[at] as usize])
            } else {
                own_offset
            };
        }
        let (first, last) = ((from - part.first_section) as usize, (to - part.first_section) as usize - 1);
        rest.missing[first..=last].iter_mut().for_each(|missing| *missing -= part.sizes[chosen]);
        rest.n_crossing[first..last].iter_mut().for_each(|n_crossing| *n_crossing -= 1);
        rest.n_crossing[first..last].contains(&0)
    }

    /// False if no packing of the part exists. Raises floors.
    fn may_fit(&mut self, part: &mut Part) -> bool {
        let capacity = self.instance.capacity;
        let scratch = &mut self.scratch;
        scratch.count_next(part, capacity);
        if scratch.n_next.iter().zip(&part.missing).any(|(&n_next, &missing)| n_next == 0 && missing > 0) {
            return false;
        }
        scratch.lift_others(part);
        scratch.fits_above(part, capacity)
    }
}

impl Scratch {
    /// Finds how many blocks may be the lowest one of each section.
    fn count_next(&mut self, part: &Part, capacity: u32) {
        self.slack.clear();
        self.slack.extend(part.missing.iter().map(|&missing| capacity - missing));
        for counts in [&mut self.n_next, &mut self.next_sum] {
            counts.clear();
            counts.resize(part.missing.len(), 0);
        }
        for (at, &floor) in part.floors.iter().enumerate() {
            let sections = part.sections(at);
            let slack = self.slack[sections.clone()].iter();
            let counts = self.n_next[sections.clone()].iter_mut().zip(&mut self.next_sum[sections]);
            for (&slack, (n_next, next_sum)) in slack.zip(counts) {
                let is_next = u32::from(floor <= slack);
                *n_next += is_next;
                *next_sum = next_sum.wrapping_add(is_next.wrapping_neg() & at as u32);
            }
        }
    }

    /// Where one block alone may be the next one up, all others of the section lie above it.
    fn lift_others(&self, part: &mut Part) {
        let n_sections = part.missing.len();
        let mut section = 0;
        while section < n_sections {
            let start = section;
            let next = self.next_sum[start];
            section += 1;
            if self.n_next[start] != 1 {
                continue;
            }
            while section < n_sections && self.n_next[section] == 1 && self.next_sum[section] == next {
                section += 1;
            }
            let (low, high) = (start as u32 + part.first_section, section as u32 + part.first_section);
            let top = part.floors[next as usize] + part.sizes[next as usize];
            let own_floor = part.floors[next as usize];
            let spans = part.froms.iter().zip(&part.tos);
            for (floor, (&from, &to)) in part.floors.iter_mut().zip(spans) {
                let height = if from < high && low < to { top } else { 0 };
                *floor = (*floor).max(height);
            }
            part.floors[next as usize] = own_floor;
        }
    }

    /// True if in every section, the blocks with floors from any offset on fit above that offset.
    fn fits_above(&mut self, part: &Part, capacity: u32) -> bool {
        self.by_floor.clear();
        let keyed = part.floors.iter().enumerate().map(|(at, &floor)| (u64::from(floor) << 32) | at as u64);
        self.by_floor.extend(keyed);
        self.by_floor.sort_unstable();
        self.above.clear();
        self.above.resize(part.missing.len(), 0);
        for &keyed in self.by_floor.iter().rev() {
            let at = (keyed & u64::from(u32::MAX)) as usize;
            let (floor, size) = (part.floors[at], part.sizes[at]);
            let mut most = 0;
            for above in &mut self.above[part.sections(at)] {
                *above += size;
                most = most.max(*above);
            }
            if floor + most > capacity {
                return false;
            }
        }
        true
    }
}

impl Part {
    fn push(&mut self, id: u32, span: Span, size: u32, offset: u32, floor: u32) {
        self.ids.push(id);
        self.froms.push(span.from);
        self.tos.push(span.to);
        self.sizes.push(size);
        self.offsets.push(offset);
        self.floors.push(floor);
    }

    fn clear(&mut self) {
        for values in [&mut self.ids, &mut self.froms, &mut self.tos, &mut self.sizes] {
            values.clear();
        }
        for values in [&mut self.offsets, &mut self.floors, &mut self.missing, &mut self.n_crossing] {
            values.clear();
        }
    }

    fn copy_without(&mut self, part: &Part, left_out: usize) {
        let copy = |values: &mut Vec<u32>, from: &[u32]| {
            values.clear();
            values.extend_from_slice(&from[..left_out]);
            values.extend_from_slice(&from[left_out + 1..]);
        };
        copy(&mut self.ids, &part.ids);
        copy(&mut self.froms, &part.froms);
        copy(&mut self.tos, &part.tos);
        copy(&mut self.sizes, &part.sizes);
        copy(&mut self.offsets, &part.offsets);
        copy(&mut self.floors, &part.floors);
        self.first_section = part.first_section;
        self.missing.clone_from(&part.missing);
        self.n_crossing.clone_from(&part.n_crossing);
    }

    /// Sections of the block at a position, counted from the part's first.
    fn sections(&self, at: usize) -> std::ops::Range<usize> {
        (self.froms[at] - self.first_section) as usize..(self.tos[at] - self.first_section) as usize
    }

    /// Positions of the blocks that may be placed now, by (offset, rank).
    fn candidates(&self) -> Vec<usize> {
        let heights = self.offsets.iter().zip(&self.sizes).map(|(offset, size)| offset + size);
        // A block that fits in below an offset lies there in the packing looked for.
        let lowest_height = heights.min().unwrap_or(0);
        let may_lie = |&at: &usize| self.floors[at] == self.offsets[at] && self.offsets[at] < lowest_height;
        let mut candidates: Vec<usize> = (0..self.ids.len()).filter(may_lie).collect();
        candidates.sort_by_key(|&at| self.offsets[at]);
        candidates
    }
}
