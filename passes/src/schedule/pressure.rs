//! How full a memory would be if the rest of the program ran in its original order.
//!
//! A tile is live from its first to its last access. Starting a tile early makes it live longer;
//! [`Pressure::admits`] says whether the rest of the program still fits then. Because every
//! admitted change keeps the original order of the rest feasible, scheduling never reaches a point
//! where nothing fits, and never needs more memory than the limit or the original order.

use smallvec::SmallVec;

/// Maximum over ranges of positions, with additions to ranges, in O(log n).
struct MaxTree {
    n_leaves: usize,
    /// Maximum of the subtree, without the additions pending above it.
    max: Vec<i64>,
    pending: Vec<i64>,
}

impl MaxTree {
    fn new(n_positions: usize) -> Self {
        let n_leaves = n_positions.next_power_of_two().max(1);
        MaxTree { n_leaves, max: vec![0; 2 * n_leaves], pending: vec![0; 2 * n_leaves] }
    }

    fn add(&mut self, from: usize, to: usize, amount: i64) {
        if from < to {
            self.add_below(1, (0, self.n_leaves), (from, to), amount);
        }
    }

    fn add_below(&mut self, node: usize, (low, high): (usize, usize), (from, to): (usize, usize), amount: i64) {
        if to <= low || high <= from {
            return;
        }
        if from <= low && high <= to {
            self.max[node] += amount;
            self.pending[node] += amount;
            return;
        }
        let middle = low + (high - low) / 2;
        self.add_below(2 * node, (low, middle), (from, to), amount);
        self.add_below(2 * node + 1, (middle, high), (from, to), amount);
        self.max[node] = self.max[2 * node].max(self.max[2 * node + 1]) + self.pending[node];
    }

    fn max(&self, from: usize, to: usize) -> i64 {
        if from < to { self.max_below(1, (0, self.n_leaves), (from, to)) } else { i64::MIN }
    }

    fn max_below(&self, node: usize, (low, high): (usize, usize), (from, to): (usize, usize)) -> i64 {
        if to <= low || high <= from {
            return i64::MIN;
        }
        if from <= low && high <= to {
            return self.max[node];
        }
        let middle = low + (high - low) / 2;
        let left = self.max_below(2 * node, (low, middle), (from, to));
        let right = self.max_below(2 * node + 1, (middle, high), (from, to));
        // Positions outside the range stay at the minimum.
        left.max(right).saturating_add(self.pending[node])
    }
}

/// Tiles of one memory with their sizes and the positions that access them.
pub(super) struct Pressure {
    tree: MaxTree,
    limit: i64,
    /// Size, accessing positions not yet scheduled (ascending), and whether the tile is live.
    tiles: Vec<TileState>,
    scheduled: Vec<bool>,
    /// First position not yet scheduled.
    front: usize,
    version: u64,
}

struct TileState {
    size: i64,
    accesses: Vec<u32>,
    is_live: bool,
}

impl Pressure {
    /// `sizes[t]` of tile t, and per position the tiles it accesses.
    pub(super) fn new(limit: i64, sizes: &[i64], accessed: &[Vec<u32>]) -> Self {
        let mut tiles: Vec<TileState> =
            sizes.iter().map(|&size| TileState { size, accesses: Vec::new(), is_live: false }).collect();
        for (position, tile_idxs) in accessed.iter().enumerate() {
            let position = u32::try_from(position).expect("a program has fewer than 2^32 instructions");
            for &tile_idx in tile_idxs {
                tiles[tile_idx as usize].accesses.push(position);
            }
        }
        let mut tree = MaxTree::new(accessed.len());
        for tile in &tiles {
            if let (Some(&first), Some(&last)) = (tile.accesses.first(), tile.accesses.last()) {
                tree.add(first as usize, last as usize + 1, tile.size);
            }
        }
        Pressure { tree, limit, tiles, scheduled: vec![false; accessed.len()], front: 0, version: 0 }
    }

    /// True if scheduling an instruction with these tiles next keeps the rest within the limit.
    pub(super) fn admits(&mut self, tile_idxs: &[u32]) -> bool {
        let starting = tile_idxs.iter().filter_map(|&tile_idx| {
            let tile = &self.tiles[tile_idx as usize];
            let first = *tile.accesses.first()? as usize;
            (!tile.is_live && first > self.front).then_some((first, tile.size))
        });
        let starting: SmallVec<[(usize, i64); 4]> = starting.collect();
        let mut fits = true;
        for (started_idx, &(end, size)) in starting.iter().enumerate() {
            fits = fits && self.tree.max(self.front, end) + size <= self.limit;
            // The next one comes on top.
            if fits && started_idx + 1 < starting.len() {
                self.tree.add(self.front, end, size);
            } else {
                starting[..started_idx].iter().for_each(|&(end, size)| self.tree.add(self.front, end, -size));
                break;
            }
        }
        fits
    }

    /// Changes whenever instructions that were not admitted may have become so.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Records that the instruction at `position`, which accesses these tiles, comes next.
    pub(super) fn schedule(&mut self, position: usize, tile_idxs: &[u32]) {
        self.scheduled[position] = true;
        for &tile_idx in tile_idxs {
            let tile = &mut self.tiles[tile_idx as usize];
            let (Some(&first), Some(&last)) = (tile.accesses.first(), tile.accesses.last()) else { continue };
            if !tile.is_live {
                tile.is_live = true;
                self.tree.add(self.front.min(first as usize), first as usize, tile.size);
            }
            let scheduled = &self.scheduled;
            while tile.accesses.last().is_some_and(|&access| scheduled[access as usize]) {
                tile.accesses.pop();
            }
            let end = tile.accesses.last().map_or(self.front, |&access| access as usize + 1);
            self.tree.add(end, last as usize + 1, -tile.size);
            self.version += u64::from(end <= last as usize);
        }
        while self.scheduled.get(self.front).is_some_and(|&scheduled| scheduled) {
            self.front += 1;
            self.version += 1;
        }
    }

    /// What the tiles live now and started by the next instruction in original order take.
    #[cfg(test)]
    fn at_front(&self) -> i64 {
        self.tree.max(self.front, self.front + 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy, prop_assert, prop_assert_eq};
    use proptest::proptest;

    use super::{MaxTree, Pressure};

    #[test]
    fn the_original_order_is_always_admitted() {
        let accessed = vec![vec![0], vec![0, 1], vec![1, 2], vec![2]];
        let mut pressure = Pressure::new(1, &[10, 10, 10], &accessed);
        for (position, tiles) in accessed.iter().enumerate() {
            assert!(pressure.admits(tiles));
            pressure.schedule(position, tiles);
        }
    }

    #[test]
    fn an_early_start_must_fit_with_what_it_overtakes() {
        let accessed = vec![vec![0], vec![0], vec![1], vec![1]];
        assert!(!Pressure::new(19, &[10, 10], &accessed).admits(&[1]));
        let mut pressure = Pressure::new(20, &[10, 10], &accessed);
        assert!(pressure.admits(&[1]));
        pressure.schedule(2, &[1]);
        assert_eq!(pressure.at_front(), 20);
        pressure.schedule(3, &[1]);
        assert_eq!(pressure.at_front(), 10);
    }

    proptest! {
        #[test]
        fn ranges_have_the_maximum_of_a_plain_array(
            steps in proptest::collection::vec((0..20usize, 0..20usize, -9..10i64), 1..30),
        ) {
            let mut tree = MaxTree::new(20);
            let mut plain = [0i64; 20];
            for (from, to, amount) in steps {
                tree.add(from, to, amount);
                plain.iter_mut().take(to).skip(from).for_each(|value| *value += amount);
                for end in from + 1..=20 {
                    prop_assert_eq!(tree.max(from, end), plain[from..end].iter().copied().max().expect("not empty"));
                }
            }
        }

        #[test]
        fn admitted_orders_stay_within_the_limit(
            accessed in proptest::collection::vec(proptest::collection::btree_set(0..8u32, 0..3), 1..30),
            sizes in proptest::collection::vec(1..10i64, 8),
            order in (0..30usize).prop_flat_map(|_| Just((0..30u32).collect::<Vec<_>>()).prop_shuffle()),
        ) {
            let accessed: Vec<Vec<u32>> = accessed.into_iter().map(|tiles| tiles.into_iter().collect()).collect();
            let live_at = |done: &[usize]| -> i64 {
                let is_live = |tile: u32| {
                    let users = || (0..accessed.len()).filter(|&at| accessed[at].contains(&tile));
                    users().any(|at| done.contains(&at)) && users().any(|at| !done.contains(&at))
                };
                (0..8).filter(|&tile| is_live(tile)).map(|tile| sizes[tile as usize]).sum()
            };
            let in_order = (0..=accessed.len()).map(|end| live_at(&(0..end).collect::<Vec<_>>()));
            // Between two instructions; an instruction itself needs all of its tiles at once.
            let own = accessed.iter().map(|tiles| tiles.iter().map(|&tile| sizes[tile as usize]).sum::<i64>());
            let limit = in_order.max().expect("not empty") + own.max().expect("not empty");
            let mut pressure = Pressure::new(limit, &sizes, &accessed);
            let mut done: Vec<usize> = Vec::new();
            while done.len() < accessed.len() {
                let open = || (0..accessed.len()).filter(|at| !done.contains(at));
                let wanted = order.iter().map(|&at| at as usize).filter(|&at| at < accessed.len() && !done.contains(&at));
                let next = wanted.into_iter().find(|&at| pressure.admits(&accessed[at]));
                let next = next.unwrap_or_else(|| open().min().expect("not done"));
                prop_assert!(pressure.admits(&accessed[next]));
                pressure.schedule(next, &accessed[next]);
                done.push(next);
                prop_assert!(live_at(&done) <= limit);
            }
        }
    }
}
