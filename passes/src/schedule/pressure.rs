//! How full a memory would be if the rest of the program ran in its original order.
//!
//! A tile is live from its first to its last access. Starting a tile early makes it live longer;
//! [`Pressure::admits`] says whether the rest of the program still fits then. Because every
//! admitted change keeps the original order of the rest feasible, scheduling never reaches a point
//! where nothing fits, and never needs more memory than the limit, or than the original order with
//! what may start early on top.

use smallvec::SmallVec;

use crate::lists::Lists;

/// Positions of a block.
const BLOCK: usize = 64;

/// Maximum over ranges of positions, with additions to ranges, in steps of blocks: what changes
/// lies within the scheduler's window, a few blocks wide.
struct Levels {
    /// Per position, without the additions to its whole block.
    own: Vec<i64>,
    /// Per block, what is added to all of it, and the maximum of its own levels without that.
    added: Vec<i64>,
    max: Vec<i64>,
}

impl Levels {
    /// Level 0 everywhere.
    #[cfg(test)]
    fn new(n_positions: usize) -> Self {
        Self::of((0..n_positions).map(|_| 0))
    }

    fn of(levels: impl Iterator<Item = i64>) -> Self {
        let own: Vec<i64> = levels.collect();
        let max: Vec<i64> = own.chunks(BLOCK).map(max_of).collect();
        Levels { added: vec![0; max.len()], own, max }
    }

    fn add(&mut self, from: usize, to: usize, amount: i64) {
        let mut at = from;
        while at < to {
            let block = at / BLOCK;
            let end = to.min((block + 1) * BLOCK);
            if end - at == BLOCK {
                self.added[block] += amount;
            } else {
                self.own[at..end].iter_mut().for_each(|level| *level += amount);
                let end = self.own.len().min((block + 1) * BLOCK);
                self.max[block] = max_of(&self.own[block * BLOCK..end]);
            }
            at = end;
        }
    }

    /// The maximum of a range.
    #[cfg(test)]
    fn max(&self, from: usize, to: usize) -> i64 {
        self.blocks(from, to).map(|(_, max)| max).max().unwrap_or(i64::MIN)
    }

    /// The first position of a range whose level is above a limit.
    fn above(&self, from: usize, to: usize, limit: i64) -> Option<usize> {
        let ((start, end), _) = self.blocks(from, to).find(|&(_, max)| max > limit)?;
        (start..end).find(|&position| self.level(position) > limit)
    }

    fn level(&self, position: usize) -> i64 {
        self.own[position] + self.added[position / BLOCK]
    }

    /// The parts of a range that lie in each block, and their maxima.
    fn blocks(&self, from: usize, to: usize) -> impl Iterator<Item = ((usize, usize), i64)> {
        let mut at = from;
        std::iter::from_fn(move || {
            let block = at / BLOCK;
            let (start, end) = (at, to.min((block + 1) * BLOCK));
            at = end;
            (start < end).then(|| {
                let own = if end - start == BLOCK { self.max[block] } else { max_of(&self.own[start..end]) };
                ((start, end), own + self.added[block])
            })
        })
    }
}

fn max_of(levels: &[i64]) -> i64 {
    levels.iter().copied().fold(i64::MIN, i64::max)
}

/// Tiles of one memory with their sizes and the positions that access them.
pub(super) struct Pressure<'a> {
    levels: Levels,
    /// The part of the levels that tiles started early take, beyond the original order's own.
    early: Levels,
    limit: Limit,
    sizes: &'a [i64],
    /// Per tile, the positions that access it, ascending.
    accesses: &'a Lists<u32>,
    /// Per tile, how many of its accesses are left: those after them are all scheduled.
    n_left: Vec<u32>,
    is_live: Vec<bool>,
    scheduled: Vec<bool>,
    /// First position not yet scheduled.
    front: usize,
    /// By position, why its instruction was last refused.
    refusals: Vec<Refusal>,
}

/// What tiles may take that start early.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// Of all tiles together.
    pub all: i64,
    /// Of those that start early, where the original order by itself takes more than `all`: without
    /// it nothing could be fetched ahead there.
    pub early: i64,
}

/// Positions at which what an instruction would start does not fit.
#[derive(Copy, Clone)]
struct Refusal {
    position: u32,
    n_needed: i64,
    early_position: u32,
    n_early: i64,
}

/// What has not been refused, or not by a position that is still to come.
const NO_REFUSAL: Refusal = Refusal { position: 0, n_needed: i64::MIN / 2, early_position: 0, n_early: 0 };

/// For the tiles that each position accesses, the positions that access each tile.
pub(super) fn accesses_of(n_tiles: usize, accessed: &Lists<u32>) -> Lists<u32> {
    let pairs = (0u32..).zip(accessed.iter());
    Lists::collect(n_tiles, pairs.flat_map(|(position, tiles)| tiles.iter().map(move |&tile| (tile, position))))
}

impl<'a> Pressure<'a> {
    /// `sizes[t]` of tile t, and the positions that access it, of `n_positions`.
    pub(super) fn new(limit: Limit, sizes: &'a [i64], accesses: &'a Lists<u32>, n_positions: usize) -> Self {
        let mut changes = vec![0i64; n_positions + 1];
        for (&size, positions) in sizes.iter().zip(accesses.iter()) {
            if let (Some(&first), Some(&last)) = (positions.first(), positions.last()) {
                changes[first as usize] += size;
                changes[last as usize + 1] -= size;
            }
        }
        let mut level = 0;
        let levels = changes[..n_positions].iter().map(|change| {
            level += change;
            level
        });
        Pressure {
            levels: Levels::of(levels),
            early: Levels::of((0..n_positions).map(|_| 0)),
            limit,
            sizes,
            accesses,
            n_left: accesses.iter().map(|positions| positions.len() as u32).collect(),
            is_live: vec![false; sizes.len()],
            scheduled: vec![false; n_positions],
            front: 0,
            refusals: vec![NO_REFUSAL; n_positions],
        }
    }

    /// Accesses of a tile up to the last that is not scheduled.
    fn left(&self, tile_idx: u32) -> &'a [u32] {
        &self.accesses.get(tile_idx as usize)[..self.n_left[tile_idx as usize] as usize]
    }

    /// True if scheduling the instruction at `position`, which accesses these tiles, next keeps the
    /// rest within the limit.
    pub(super) fn admits(&mut self, position: usize, tile_idxs: &[u32]) -> bool {
        let Refusal { position: blocking, n_needed, early_position, n_early } = self.refusals[position];
        if blocking.min(early_position) as usize >= self.front
            && self.levels.level(blocking as usize) + n_needed > self.limit.all
            && self.early.level(early_position as usize) + n_early > self.limit.early
        {
            return false;
        }
        let mut starting: SmallVec<[(usize, i64); 4]> = SmallVec::new();
        for &tile_idx in tile_idxs {
            if self.is_live[tile_idx as usize] {
                continue;
            }
            let Some(&first) = self.left(tile_idx).first() else { continue };
            if first as usize <= self.front {
                continue;
            }
            let (end, size) = (first as usize, self.sizes[tile_idx as usize]);
            // Those that start with it come on top.
            let on_top = |at: usize| starting.iter().filter(|(end, _)| at < *end).map(|(_, size)| size).sum::<i64>();
            let blocking = match starting.as_slice() {
                [] => self.levels.above(self.front, end, self.limit.all - size),
                _ => (self.front..end).find(|&at| self.levels.level(at) + on_top(at) > self.limit.all - size),
            };
            if let Some(blocking) = blocking {
                let n_early: i64 = size + starting.iter().map(|(_, size)| size).sum::<i64>();
                if let Some(early) = self.early.above(self.front, end, self.limit.early - n_early) {
                    self.refusals[position] = Refusal {
                        position: blocking as u32,
                        n_needed: size + on_top(blocking),
                        early_position: early as u32,
                        n_early,
                    };
                    return false;
                }
            }
            starting.push((end, size));
        }
        true
    }

    /// What those of the tiles take that no instruction has started yet.
    pub(super) fn starting(&self, tile_idxs: &[u32]) -> i64 {
        let new = tile_idxs.iter().filter(|&&tile_idx| !self.is_live[tile_idx as usize]);
        new.map(|&tile_idx| self.sizes[tile_idx as usize]).sum()
    }

    /// Records that the instruction at `position`, which accesses these tiles, comes next. Gives what
    /// those of them take that no other instruction accesses any more.
    pub(super) fn schedule(&mut self, position: usize, tile_idxs: &[u32]) -> i64 {
        self.scheduled[position] = true;
        let mut ended = 0;
        for &tile_idx in tile_idxs {
            let left = self.left(tile_idx);
            let (Some(&first), Some(&last)) = (left.first(), left.last()) else { continue };
            let size = self.sizes[tile_idx as usize];
            if !self.is_live[tile_idx as usize] {
                self.is_live[tile_idx as usize] = true;
                self.levels.add(self.front.min(first as usize), first as usize, size);
                self.early.add(self.front.min(first as usize), first as usize, size);
            }
            let n_left = left.iter().rposition(|&access| !self.scheduled[access as usize]).map_or(0, |at| at + 1);
            self.n_left[tile_idx as usize] = n_left as u32;
            let end = left[..n_left].last().map_or(self.front, |&access| access as usize + 1);
            self.levels.add(end, last as usize + 1, -size);
            ended += if n_left == 0 { size } else { 0 };
        }
        while self.scheduled.get(self.front).is_some_and(|&scheduled| scheduled) {
            self.front += 1;
        }
        ended
    }

    /// What the tiles live now and started by the next instruction in original order take.
    #[cfg(test)]
    fn at_front(&self) -> i64 {
        self.levels.level(self.front)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy, prop_assert, prop_assert_eq};
    use proptest::proptest;

    use super::{Levels, Limit, Pressure, accesses_of};
    use crate::lists::Lists;

    fn lists(accessed: &[Vec<u32>]) -> Lists<u32> {
        let mut all = Lists::default();
        accessed.iter().for_each(|tiles| all.push(tiles));
        all
    }

    /// No tile may start early beyond this.
    fn strict(all: i64) -> Limit {
        Limit { all, early: 0 }
    }

    #[test]
    fn the_original_order_is_always_admitted() {
        let accessed = vec![vec![0], vec![0, 1], vec![1, 2], vec![2]];
        let accesses = accesses_of(3, &lists(&accessed));
        let mut pressure = Pressure::new(strict(1), &[10, 10, 10], &accesses, 4);
        for (position, tiles) in accessed.iter().enumerate() {
            assert!(pressure.admits(position, tiles));
            pressure.schedule(position, tiles);
        }
    }

    #[test]
    fn an_early_start_must_fit_with_what_it_overtakes() {
        let accessed = vec![vec![0], vec![0], vec![1], vec![1]];
        let accesses = accesses_of(2, &lists(&accessed));
        assert!(!Pressure::new(strict(19), &[10, 10], &accesses, 4).admits(2, &[1]));
        let mut pressure = Pressure::new(strict(20), &[10, 10], &accesses, 4);
        assert!(pressure.admits(2, &[1]));
        pressure.schedule(2, &[1]);
        assert_eq!(pressure.at_front(), 20);
        pressure.schedule(3, &[1]);
        assert_eq!(pressure.at_front(), 10);
    }

    /// Where the original order takes more than the limit, one tile may be fetched while another is used.
    #[test]
    fn something_may_start_early_where_everything_is_full() {
        let accessed = vec![vec![0], vec![0, 1], vec![0, 2], vec![0, 3]];
        let accesses = accesses_of(4, &lists(&accessed));
        let limit = Limit { all: 10, early: 5 };
        let mut pressure = Pressure::new(limit, &[50, 5, 5, 5], &accesses, 4);
        assert!(pressure.admits(0, &[0]));
        pressure.schedule(0, &[0]);
        assert!(pressure.admits(2, &[2]), "behind the tile that is used now");
        pressure.schedule(2, &[0, 2]);
        assert!(!pressure.admits(3, &[3]), "a second one would take 10");
        pressure.schedule(1, &[0, 1]);
        assert!(pressure.admits(3, &[3]));
    }

    proptest! {
        #[test]
        fn ranges_have_the_maximum_of_a_plain_array(
            steps in proptest::collection::vec((0..300usize, 0..300usize, -9..10i64), 1..30),
        ) {
            let mut levels = Levels::new(300);
            let mut plain = [0i64; 300];
            for (from, to, amount) in steps {
                levels.add(from, to, amount);
                plain.iter_mut().take(to).skip(from).for_each(|value| *value += amount);
                for end in from + 1..=300 {
                    prop_assert_eq!(levels.max(from, end), plain[from..end].iter().copied().max().expect("not empty"));
                    let above = plain[from..end].iter().position(|&level| level > 5).map(|at| from + at);
                    prop_assert_eq!(levels.above(from, end, 5), above);
                }
            }
        }

        #[test]
        fn admitted_orders_stay_within_the_limit(
            accessed in proptest::collection::vec(proptest::collection::btree_set(0..8u32, 0..3), 1..30),
            sizes in proptest::collection::vec(1..10i64, 8),
            order in (0..30usize).prop_flat_map(|_| Just((0..30u32).collect::<Vec<_>>()).prop_shuffle()),
            (percent, early) in (0..=100i64, 0..20i64),
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
            let needed = in_order.max().expect("not empty") + own.max().expect("not empty");
            let accesses = accesses_of(8, &lists(&accessed));
            let limit = Limit { all: needed * percent / 100, early };
            let mut pressure = Pressure::new(limit, &sizes, &accesses, accessed.len());
            let mut done: Vec<usize> = Vec::new();
            while done.len() < accessed.len() {
                let open = || (0..accessed.len()).filter(|at| !done.contains(at));
                let wanted = order.iter().map(|&at| at as usize).filter(|&at| at < accessed.len() && !done.contains(&at));
                let next = wanted.into_iter().find(|&at| pressure.admits(at, &accessed[at]));
                let next = next.unwrap_or_else(|| open().min().expect("not done"));
                prop_assert!(pressure.admits(next, &accessed[next]));
                pressure.schedule(next, &accessed[next]);
                done.push(next);
                prop_assert!(live_at(&done) <= needed + early);
            }
        }
    }
}
