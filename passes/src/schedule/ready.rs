//! Ready tasks by urgency, of which the first few are looked at again and again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Tasks kept in order.
const N_SORTED: usize = 24;

/// Priority and position of a task; of equal priorities the earlier position is more urgent.
type Entry = (u64, Reverse<u32>);

/// A queue of tasks whose most urgent ones can be read without taking them out.
#[derive(Default)]
pub(super) struct Ready {
    /// The most urgent ones, ascending.
    sorted: Vec<Entry>,
    /// All others, none more urgent than those.
    rest: BinaryHeap<Entry>,
}

impl Ready {
    pub(super) fn push(&mut self, entry: Entry) {
        let is_among_first = match self.sorted.first() {
            Some(&least) => entry > least || (self.rest.is_empty() && self.sorted.len() < N_SORTED),
            None => self.rest.is_empty(),
        };
        if !is_among_first {
            self.rest.push(entry);
            return;
        }
        let at = self.sorted.partition_point(|&other| other < entry);
        self.sorted.insert(at, entry);
        if self.sorted.len() > N_SORTED {
            self.rest.push(self.sorted.remove(0));
        }
    }

    /// The position with this rank in order of urgency, from 0, at most a few. Tasks of these ranks
    /// that are over are dropped.
    pub(super) fn get(&mut self, rank: usize, is_over: impl Fn(u32) -> bool) -> Option<u32> {
        loop {
            if self.sorted.len() <= rank {
                self.refill();
            }
            let at = self.sorted.len().checked_sub(rank + 1)?;
            let (_, Reverse(position)) = self.sorted[at];
            if !is_over(position) {
                return Some(position);
            }
            self.sorted.remove(at);
        }
    }

    fn refill(&mut self) {
        if self.rest.is_empty() {
            return;
        }
        let n_missing = N_SORTED / 2 - self.sorted.len().min(N_SORTED / 2);
        let found: Vec<Entry> = (0..n_missing).map_while(|_| self.rest.pop()).collect();
        self.sorted.splice(0..0, found.into_iter().rev());
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use proptest::prelude::prop_assert_eq;
    use proptest::proptest;

    use super::Ready;

    proptest! {
        #[test]
        fn ranks_are_those_of_a_sorted_list(steps in proptest::collection::vec((0..20u64, 0..8usize), 1..200)) {
            let mut ready = Ready::default();
            let mut plain: Vec<(u64, Reverse<u32>)> = Vec::new();
            let mut over = vec![false; steps.len()];
            for (position, (priority, rank)) in (0u32..).zip(steps) {
                ready.push((priority, Reverse(position)));
                plain.push((priority, Reverse(position)));
                plain.sort_unstable();
                if position % 3 == 0 {
                    continue;
                }
                for rank in 0..=rank {
                    let wanted = plain.len().checked_sub(rank + 1).map(|at| plain[at].1.0);
                    let found = ready.get(rank, |position| over[position as usize]);
                    prop_assert_eq!(found, wanted);
                    if let Some(found) = found.filter(|found| found % 2 == 0) {
                        over[found as usize] = true;
                        plain.retain(|entry| entry.1.0 != found);
                        break;
                    }
                }
            }
        }
    }
}
