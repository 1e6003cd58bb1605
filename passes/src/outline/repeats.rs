//! Finds repeated stretches of nodes, and where to cut them.
//!
//! Layers follow each other at a fixed distance, and all but the attributes of their nodes are equal:
//! a distance at which most windows of nodes recur is a period. Attributes are left out so that one
//! layer with another constant does not hide the others; it becomes a function of its own.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use ir::{Graph, NodeId};

use super::values::Values;
use super::{MIN_INSTANCES, MIN_LAYER_NODES, MIN_SAVED_NODES};
use crate::hash::{StableHasher, StableMap, stable_hash};

/// Nodes that are compared at once when looking for distances.
const WINDOW: usize = 8;

/// Distances that are tried, the most frequent first.
const MOST_DISTANCES: usize = 6;

/// Stretches of repeats in one graph: encoder and decoder, forward and backward.
const MOST_STRETCHES: usize = 8;

/// Consecutive parts of the sequence of nodes that covers it; `None` where too little repeats.
pub(super) fn segments(graph: &Graph, values: &Values) -> Option<Vec<Range<usize>>> {
    let signatures: Vec<u64> = values.sequence.iter().map(|&node| signature(graph, node)).collect();
    let users = Users::of(graph, values);
    let mut segments = Vec::new();
    let mut n_saved = 0;
    // Parts of the sequence that may still hold repeats.
    let mut rest: Vec<Range<usize>> = std::iter::once(0..signatures.len()).collect();
    let mut n_stretches = 0;
    while let Some(range) = rest.pop() {
        let found = (n_stretches < MOST_STRETCHES).then(|| stretch(&signatures, range.clone())).flatten();
        let Some(stretch) = found else {
            segments.push(range);
            continue;
        };
        n_stretches += 1;
        let first = users.best_cut(&stretch);
        let n_instances = (stretch.range.end - first) / stretch.period;
        n_saved += (n_instances - 1) * stretch.period;
        segments.extend((0..n_instances).map(|number| {
            let start = first + number * stretch.period;
            start..start + stretch.period
        }));
        rest.push(range.start..first);
        rest.push(first + n_instances * stretch.period..range.end);
    }
    segments.retain(|range| !range.is_empty());
    segments.sort_by_key(|range| range.start);
    (n_saved >= MIN_SAVED_NODES).then_some(segments)
}

/// An op's name and types.
fn signature(graph: &Graph, node: NodeId) -> u64 {
    let node = graph.node(node);
    let mut hasher = StableHasher::default();
    node.op.name().hash(&mut hasher);
    for &value in node.operands.iter().chain(&node.results) {
        graph.ty(value).hash(&mut hasher);
    }
    hasher.finish()
}

/// A part of the sequence in which every node is like the one a period later.
struct Stretch {
    range: Range<usize>,
    period: usize,
}

impl Stretch {
    fn n_saved(&self) -> usize {
        (self.range.len() / self.period).saturating_sub(1) * self.period
    }
}

/// The stretch of a part of the sequence that saves most.
fn stretch(signatures: &[u64], range: Range<usize>) -> Option<Stretch> {
    let mut best: Option<Stretch> = None;
    for period in distances(&signatures[range.clone()]) {
        let is_like = |at: &usize| signatures[*at] == signatures[at + period];
        let mut start = range.start;
        while start + period < range.end {
            let n_like = (start..range.end - period).take_while(is_like).count();
            let found = Stretch { range: start..start + n_like + period, period };
            start += n_like + 1;
            let is_long = found.range.len() / period >= MIN_INSTANCES;
            // Of equal ones the shorter period, then the earlier stretch: what is called most.
            let is_better =
                |than: &Stretch| (found.n_saved(), Reverse(found.period)) > (than.n_saved(), Reverse(than.period));
            if is_long && best.as_ref().is_none_or(is_better) {
                best = Some(found);
            }
        }
    }
    best
}

/// Distances at which windows recur, the most frequent first.
fn distances(signatures: &[u64]) -> Vec<usize> {
    let mut latest: StableMap<u64, usize> = StableMap::default();
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for (at, window) in signatures.windows(WINDOW).enumerate() {
        if let Some(before) = latest.insert(stable_hash(&window), at)
            && at - before >= MIN_LAYER_NODES
        {
            *counts.entry(at - before).or_default() += 1;
        }
    }
    let mut distances: Vec<(usize, usize)> = counts.into_iter().collect();
    distances.sort_by_key(|&(distance, count)| (Reverse(count), distance));
    distances.truncate(MOST_DISTANCES);
    distances.into_iter().map(|(distance, _)| distance).collect()
}

/// The results of each node of the sequence that later nodes of it read.
struct Users {
    /// By position: for each result, the ascending positions of its readers, and its size.
    readers: Vec<Vec<(Vec<usize>, u64)>>,
}

impl Users {
    fn of(graph: &Graph, values: &Values) -> Users {
        let mut place: Vec<Option<(usize, usize)>> = vec![None; graph.n_values()];
        let mut readers: Vec<Vec<(Vec<usize>, u64)>> = Vec::with_capacity(values.sequence.len());
        for (position, &node) in values.sequence.iter().enumerate() {
            let node = graph.node(node);
            for &operand in &node.operands {
                if let Some((producer, result)) = place[operand.index()] {
                    readers[producer][result].0.push(position);
                }
            }
            readers.push(Vec::with_capacity(node.results.len()));
            for (number, result) in node.results.iter().enumerate() {
                place[result.index()] = Some((position, number));
                readers[position].push((Vec::new(), graph.ty(*result).size_bytes() as u64));
            }
        }
        Users { readers }
    }

    /// The first cut of a stretch: there, and every period after it, the fewest values cross from one
    /// layer to the next.
    fn best_cut(&self, stretch: &Stretch) -> usize {
        let Stretch { range, period } = stretch;
        // Layers at the ends have other neighbours.
        let middle = range.start + period * (range.len() / period / 2);
        let mut crossing: Vec<(i64, i64)> = vec![(0, 0); period + 1];
        for position in middle.saturating_sub(*period).max(range.start)..(middle + period).min(range.end) {
            for (readers, size_bytes) in &self.readers[position] {
                let near = readers.iter().take_while(|&&reader| reader < position + 2 * period);
                let Some(&last) = near.last() else { continue };
                // Cuts behind the producer, up to the last reader, less than a layer from the producer.
                let first_cut = (position + 1).max(middle);
                let end_cut = (last + 1).min(position + period + 1).min(middle + period);
                if first_cut < end_cut {
                    let size = *size_bytes as i64;
                    let (begin, end) = (first_cut - middle, end_cut - middle);
                    crossing[begin] = (crossing[begin].0 + 1, crossing[begin].1 + size);
                    crossing[end] = (crossing[end].0 - 1, crossing[end].1 - size);
                }
            }
        }
        let mut sum = (0, 0);
        let mut best = (i64::MAX, Reverse(0), i64::MAX, range.start);
        for (offset, step) in crossing[..*period].iter().enumerate() {
            sum = (sum.0 + step.0, sum.1 + step.1);
            let first = range.start + (middle + offset - range.start) % period;
            let n_instances = (range.end - first) / period;
            best = best.min((sum.0, Reverse(n_instances), sum.1, first));
        }
        best.3
    }
}
