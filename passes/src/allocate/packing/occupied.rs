//! Which offsets are taken during a range of sections.
//!
//! A tree over the sections: every node spans a power of two of them and holds two unions of byte
//! ranges, one of the blocks that are live throughout the node and were added there, one of all
//! blocks that are live in some of its sections. Neighbouring ranges are merged, so that densely
//! packed blocks cost next to nothing.

use super::sections::Span;

/// The taken offsets of all sections.
pub(super) struct Occupied {
    /// Leaves, a power of two.
    n_leaves: usize,
    /// Children of node k are 2 k and 2 k + 1, the root is 1.
    nodes: Vec<Node>,
}

#[derive(Default)]
struct Node {
    /// Of blocks added to this node, live in all of its sections.
    throughout: Ranges,
    /// Of all blocks that are live in some of its sections.
    somewhere: Ranges,
}

/// Disjoint byte ranges, ascending, with gaps between them.
#[derive(Default)]
struct Ranges(Vec<(u64, u64)>);

impl Occupied {
    pub(super) fn new(n_sections: usize) -> Self {
        let n_leaves = n_sections.next_power_of_two();
        Occupied { n_leaves, nodes: std::iter::repeat_with(Node::default).take(2 * n_leaves).collect() }
    }

    /// Takes bytes `low..high` in all sections of the span.
    pub(super) fn take(&mut self, span: Span, low: u64, high: u64) {
        for node in self.cover(span) {
            self.nodes[node].throughout.add(low, high);
            self.nodes[node].somewhere.add(low, high);
        }
        let (mut first, mut last) = (self.n_leaves + span.from as usize, self.n_leaves + span.to as usize - 1);
        while first > 1 {
            (first, last) = (first / 2, last / 2);
            // Ancestors of the first and last section; what lies between is covered whole.
            self.nodes[first].somewhere.add(low, high);
            if last != first {
                self.nodes[last].somewhere.add(low, high);
            }
        }
    }

    /// Byte ranges taken in some section of the span, ascending by start; they may overlap.
    pub(super) fn taken(&self, span: Span, taken: &mut Vec<(u64, u64)>) {
        taken.clear();
        for node in self.cover(span) {
            taken.extend_from_slice(&self.nodes[node].somewhere.0);
        }
        let (mut first, mut last) = (self.n_leaves + span.from as usize, self.n_leaves + span.to as usize - 1);
        while first > 1 {
            (first, last) = (first / 2, last / 2);
            taken.extend_from_slice(&self.nodes[first].throughout.0);
            if last != first {
                taken.extend_from_slice(&self.nodes[last].throughout.0);
            }
        }
        taken.sort_unstable();
    }

    /// The fewest nodes that together span exactly these sections.
    fn cover(&self, span: Span) -> impl Iterator<Item = usize> + use<> {
        let (mut from, mut to) = (self.n_leaves + span.from as usize, self.n_leaves + span.to as usize);
        std::iter::from_fn(move || {
            // Left and right ends alternate as the search climbs.
            while from < to {
                if from % 2 == 1 {
                    from += 1;
                    return Some(from - 1);
                }
                if to % 2 == 1 {
                    to -= 1;
                    return Some(to);
                }
                (from, to) = (from / 2, to / 2);
            }
            None
        })
    }
}

impl Ranges {
    fn add(&mut self, low: u64, high: u64) {
        let ranges = &mut self.0;
        let first = ranges.partition_point(|&(_, end)| end < low);
        let n_touched = ranges[first..].partition_point(|&(start, _)| start <= high);
        if n_touched == 0 {
            ranges.insert(first, (low, high));
            return;
        }
        let last = first + n_touched - 1;
        ranges[first] = (ranges[first].0.min(low), ranges[last].1.max(high));
        ranges.drain(first + 1..=last);
    }
}
