//! Time as a list of sections: the positions that matter for packing.
//!
//! A section is a set of blocks that are all live at once and that no other such set contains. All
//! sections in the order of time are enough: two blocks are live together exactly if they share a
//! section, and no position has more live bytes than some section.

use super::Block;

/// First section of a block and one past its last.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub from: u32,
    pub to: u32,
}

impl Span {
    pub(super) fn range(self) -> std::ops::Range<usize> {
        self.from as usize..self.to as usize
    }

    pub(super) fn meets(self, other: Span) -> bool {
        self.from < other.to && other.from < self.to
    }
}

/// The sections of some blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sections {
    /// Per block, in the order given.
    pub spans: Vec<Span>,
    /// Live bytes of each section.
    pub totals: Vec<u64>,
}

impl Sections {
    pub(super) fn of(blocks: &[Block]) -> Self {
        // Ends sort before starts at one position, so that blocks that only touch share no section.
        let mut events: Vec<(usize, bool, usize)> = Vec::with_capacity(2 * blocks.len());
        for (block_idx, block) in blocks.iter().enumerate() {
            events.push((block.live.first, true, block_idx));
            events.push((block.live.last + 1, false, block_idx));
        }
        events.sort_unstable();
        let mut spans = vec![Span { from: 0, to: 0 }; blocks.len()];
        let mut totals = Vec::new();
        let mut live_bytes = 0;
        let mut has_started = false;
        for (_, starts, block_idx) in events {
            let n_sections = u32::try_from(totals.len()).expect("there are fewer sections than blocks");
            if starts {
                spans[block_idx].from = n_sections;
                live_bytes += blocks[block_idx].size;
                has_started = true;
                continue;
            }
            if has_started {
                totals.push(live_bytes);
                has_started = false;
            }
            spans[block_idx].to = u32::try_from(totals.len()).expect("there are fewer sections than blocks");
            live_bytes -= blocks[block_idx].size;
        }
        Sections { spans, totals }
    }

    /// Most bytes live at once: no packing has a lower peak.
    pub(super) fn bound(&self) -> u64 {
        self.totals.iter().copied().max().unwrap_or(0)
    }

    /// Per block, the most bytes live at once in its sections.
    pub(super) fn crowds(&self) -> Vec<u64> {
        let maxima = RangeMaxima::of(&self.totals);
        self.spans.iter().map(|span| maxima.over(span.range())).collect()
    }
}

/// Maxima of all ranges whose lengths are powers of two.
struct RangeMaxima(Vec<Vec<u64>>);

impl RangeMaxima {
    fn of(values: &[u64]) -> Self {
        let mut levels = vec![values.to_vec()];
        let mut length = 1;
        while 2 * length <= values.len() {
            let shorter = &levels[levels.len() - 1];
            let pairs = shorter.iter().zip(&shorter[length..]);
            let longer = pairs.map(|(left, right)| *left.max(right)).collect();
            levels.push(longer);
            length *= 2;
        }
        RangeMaxima(levels)
    }

    fn over(&self, range: std::ops::Range<usize>) -> u64 {
        let Some(level) = range.len().checked_ilog2() else { return 0 };
        let maxima = &self.0[level as usize];
        maxima[range.start].max(maxima[range.end - (1 << level)])
    }
}
