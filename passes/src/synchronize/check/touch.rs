//! Which bytes of which partitions an instruction reads or writes, exactly.

use ir::Program;
use ir::program::{DmaAccess, DmaPlace, Instruction, InstructionKind, Space, TileView};
use smallvec::SmallVec;

/// Runs that one access may be told apart into; longer lists count as one run from end to end.
const MAX_RUNS: usize = 1 << 16;

/// A memory: SBUF, PSUM or one tensor.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    OnChip(Space),
    Tensor(u32),
}

/// What one instruction reads or writes of one memory: all its bytes on all its partitions.
#[derive(Clone, Debug)]
pub(super) struct Touch {
    pub position: u32,
    pub writes: bool,
    /// One bit for each partition; those beyond the last count as the last.
    pub partitions: u128,
    pub bytes: Bytes,
}

impl Touch {
    /// True if some byte is in both.
    pub(super) fn meets(&self, other: &Touch) -> bool {
        self.partitions & other.partitions != 0 && self.bytes.meets(&other.bytes)
    }

    /// True only if every byte of `other` from `low` to `high` is one of these.
    pub(super) fn contains(&self, other: &Touch, (low, high): (i64, i64)) -> bool {
        other.partitions & !self.partitions == 0 && self.bytes.contain(&other.bytes, (low, high))
    }
}

/// Bytes from `low` to `high`, all or some of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bytes {
    pub low: i64,
    pub high: i64,
    pub runs: Runs,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Runs {
    One,
    /// Runs of one length at one distance, which is larger.
    Regular {
        length: i64,
        step: i64,
    },
    /// Sorted and apart from each other.
    Listed(Box<[(i64, i64)]>),
}

impl Bytes {
    fn dense(low: i64, high: i64) -> Self {
        Bytes { low, high, runs: Runs::One }
    }

    /// The bytes of elements of `size` bytes at `start` and all sums of steps (in bytes, with counts).
    fn new(start: i64, dims: impl DoubleEndedIterator<Item = (i64, i64)> + Clone, size: i64) -> Self {
        Bytes::nested(start, dims.clone(), size).unwrap_or_else(|| Bytes::sorted(start, dims, size))
    }

    /// The same where every step passes over all that the dimensions within it reach, and at most one
    /// leaves gaps: so it is with nearly all accesses.
    fn nested(low: i64, dims: impl DoubleEndedIterator<Item = (i64, i64)>, size: i64) -> Option<Self> {
        let mut length = size;
        let mut regular: Option<(i64, i64)> = None;
        for (step, count) in dims.rev() {
            if step == 0 || count <= 1 {
                continue;
            }
            match &mut regular {
                None if step == length => length = length.checked_mul(count)?,
                None if step > length => regular = Some((step, count)),
                Some((inner_step, inner_count)) if step == inner_step.checked_mul(*inner_count)? => {
                    *inner_count = inner_count.checked_mul(count)?;
                }
                None | Some(_) => return None,
            }
        }
        let (runs, span) = match regular {
            None => (Runs::One, 0),
            Some((step, count)) => (Runs::Regular { length, step }, step.checked_mul(count - 1)?),
        };
        Some(Bytes { low, high: low.checked_add(span)?.checked_add(length)?, runs })
    }

    fn sorted(start: i64, dims: impl Iterator<Item = (i64, i64)>, size: i64) -> Self {
        let mut low = start;
        let mut outer: SmallVec<[(i64, i64); 4]> = SmallVec::new();
        for (step, count) in dims {
            if step != 0 && count > 1 {
                if step < 0 {
                    low = low.saturating_add(step.saturating_mul(count - 1));
                }
                outer.push((step.saturating_abs(), count));
            }
        }
        outer.sort_unstable();
        // Steps that leave no gap lengthen the run, steps that go on from a smaller one its row of runs.
        let mut length = size;
        let mut regular: SmallVec<[(i64, i64); 4]> = SmallVec::new();
        for (step, count) in outer {
            match regular.last_mut() {
                None if step <= length => length = length.saturating_add(step.saturating_mul(count - 1)),
                Some((inner_step, inner_count)) if step == inner_step.saturating_mul(*inner_count) => {
                    *inner_count = inner_count.saturating_mul(count);
                }
                None | Some(_) => regular.push((step, count)),
            }
        }
        match regular[..] {
            [] => Bytes::dense(low, low.saturating_add(length)),
            [(step, count)] => {
                let high = low.saturating_add(step.saturating_mul(count - 1)).saturating_add(length);
                Bytes { low, high, runs: Runs::Regular { length, step } }
            }
            _ => Bytes::listed(low, length, &regular),
        }
    }

    fn listed(low: i64, length: i64, outer: &[(i64, i64)]) -> Self {
        let mut runs = vec![(low, low.saturating_add(length))];
        for &(step, count) in outer {
            let span = step.saturating_mul(count - 1);
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            if runs.len().saturating_mul(count) > MAX_RUNS {
                let (first, last) = (runs[0].0, runs[runs.len() - 1].1);
                runs = vec![(first, last.saturating_add(span))];
                continue;
            }
            let moved =
                (0..count as i64).flat_map(|at| runs.iter().map(move |run| (run.0 + at * step, run.1 + at * step)));
            let mut moved: Vec<(i64, i64)> = moved.collect();
            moved.sort_unstable();
            runs.clear();
            for (low, high) in moved {
                match runs.last_mut() {
                    Some(last) if low <= last.1 => last.1 = last.1.max(high),
                    Some(_) | None => runs.push((low, high)),
                }
            }
        }
        let (low, high) = (runs[0].0, runs[runs.len() - 1].1);
        let runs = if runs.len() == 1 { Runs::One } else { Runs::Listed(runs.into()) };
        Bytes { low, high, runs }
    }

    /// The run with this number, ascending; `None` after the last.
    fn run(&self, idx: usize) -> Option<(i64, i64)> {
        match &self.runs {
            Runs::One => (idx == 0).then_some((self.low, self.high)),
            Runs::Regular { length, step } => {
                let low = self.low + idx as i64 * step;
                (low < self.high).then_some((low, low + length))
            }
            Runs::Listed(runs) => runs.get(idx).copied(),
        }
    }

    /// Number of the first run that ends after this byte.
    fn first_run_after(&self, byte: i64) -> usize {
        match &self.runs {
            Runs::One => usize::from(self.high <= byte),
            Runs::Regular { length, step } => ((byte - self.low - length).div_euclid(*step) + 1).max(0) as usize,
            Runs::Listed(runs) => runs.partition_point(|run| run.1 <= byte),
        }
    }

    fn meets(&self, other: &Bytes) -> bool {
        if self.low >= other.high || other.low >= self.high {
            return false;
        }
        match (&self.runs, &other.runs) {
            (Runs::One, Runs::One) => true,
            (Runs::One, _) => other.run(other.first_run_after(self.low)).is_some_and(|run| run.0 < self.high),
            (_, Runs::One) => self.run(self.first_run_after(other.low)).is_some_and(|run| run.0 < other.high),
            (Runs::Regular { length, step }, Runs::Regular { length: other_length, step: other_step })
                if step == other_step =>
            {
                // Run number i of the other is `distance + i step` after run 0 of these: some i must
                // bring it over a run of these.
                let distance = other.low - self.low;
                let last = (self.high - self.low - length) / step;
                let last_other = (other.high - other.low - other_length) / step;
                let least = ((-other_length - distance).div_euclid(*step) + 1).max(-last);
                least <= last_other && distance + least * step < *length
            }
            (Runs::Regular { .. } | Runs::Listed(_), Runs::Regular { .. } | Runs::Listed(_)) => self.runs_meet(other),
        }
    }

    fn runs_meet(&self, other: &Bytes) -> bool {
        let (mut idx, mut other_idx) = (self.first_run_after(other.low), other.first_run_after(self.low));
        while let (Some(run), Some(other_run)) = (self.run(idx), other.run(other_idx)) {
            if run.0 < other_run.1 && other_run.0 < run.1 {
                return true;
            }
            if run.1 <= other_run.1 {
                idx += 1;
            } else {
                other_idx += 1;
            }
        }
        false
    }

    /// True only if every byte of `inner` from `low` to `high` is one of these.
    fn contain(&self, inner: &Bytes, (low, high): (i64, i64)) -> bool {
        match (&self.runs, &inner.runs) {
            (Runs::One, _) => self.low <= inner.low.max(low) && inner.high.min(high) <= self.high,
            (Runs::Regular { length, step }, Runs::Regular { length: inner_length, step: inner_step })
                if step == inner_step =>
            {
                let (before, after) = ((inner.low - self.low).rem_euclid(*step), self.high - inner.high);
                self.low <= inner.low && after >= 0 && before + inner_length <= *length
            }
            (Runs::Regular { .. } | Runs::Listed(_), _) => self == inner,
        }
    }
}

/// Calls `note` for everything that an instruction touches, reads first, where the place is wanted.
pub(super) fn touches(
    program: &Program,
    position: u32,
    instruction: &Instruction,
    is_wanted: impl Fn(Place) -> bool,
    mut note: impl FnMut(Place, Touch),
) {
    let accesses = instruction.kind.accesses();
    // Of the side in HBM any row may be meant.
    let is_indexed = matches!(instruction.kind, InstructionKind::Dma { gather: Some(_), .. });
    let mut add = |writes: bool, views: &[&TileView], side: Option<&DmaAccess>| {
        for view in views {
            if let Some((place, partitions, bytes)) = view_bytes(program, view)
                && is_wanted(place)
            {
                note(place, Touch { position, writes, partitions, bytes });
            }
        }
        if let Some(side) = side
            && side_place(program, side).is_some_and(&is_wanted)
            && let Some((place, partitions, bytes)) = side_bytes(program, side, is_indexed)
        {
            note(place, Touch { position, writes, partitions, bytes });
        }
    };
    add(false, &accesses.tile_reads, accesses.dma_read);
    add(true, &accesses.tile_writes, accesses.dma_write);
}

/// Bits of partitions, of which the first may lie beyond the last there is.
fn partition_bits(first: u32, n_partitions: u32) -> u128 {
    let first = first.min(u128::BITS - 1);
    let n_partitions = n_partitions.min(u128::BITS - first);
    let bits = if n_partitions == u128::BITS { u128::MAX } else { (1 << n_partitions) - 1 };
    bits << first
}

fn view_bytes(program: &Program, view: &TileView) -> Option<(Place, u128, Bytes)> {
    let tile = program.tile(view.tile);
    let address = tile.address?;
    let size = view.dtype.size_bytes() as i64;
    let dims = view.dims.iter().map(|dim| (i64::from(dim.step) * size, i64::from(dim.count)));
    let start = i64::from(address.start_byte) + i64::from(view.offset) * size;
    let first = u32::from(address.partition) + u32::from(view.partition);
    let partitions = partition_bits(first, u32::from(view.n_partitions));
    Some((Place::OnChip(tile.space), partitions, Bytes::new(start, dims, size)))
}

fn side_place(program: &Program, side: &DmaAccess) -> Option<Place> {
    match side.place {
        DmaPlace::Hbm { tensor } => Some(Place::Tensor(tensor.0)),
        DmaPlace::Tile { tile, partition: _ } => Some(Place::OnChip(program.tile(tile).space)),
    }
}

fn side_bytes(program: &Program, side: &DmaAccess, is_indexed: bool) -> Option<(Place, u128, Bytes)> {
    let size = side.dtype.size_bytes() as i64;
    let start = (side.offset as i64).saturating_mul(size);
    let dims = side.dims.iter().map(|dim| (dim.step.saturating_mul(size), i64::from(dim.count)));
    match side.place {
        DmaPlace::Hbm { tensor } if is_indexed => {
            Some((Place::Tensor(tensor.0), 1, Bytes::dense(0, program.tensor(tensor).size_bytes as i64)))
        }
        DmaPlace::Hbm { tensor } => Some((Place::Tensor(tensor.0), 1, Bytes::new(start, dims, size))),
        DmaPlace::Tile { tile, partition } => {
            let tile = program.tile(tile);
            let address = tile.address?;
            let first = i64::from(address.partition) + i64::from(partition);
            let steps = side.dims.iter().map(|dim| (i64::from(dim.partition_step), i64::from(dim.count)));
            let rows = Bytes::new(first, steps, 1);
            let mut partitions = 0;
            for idx in rows.first_run_after(0).. {
                let Some((low, high)) = rows.run(idx).filter(|run| run.0 < i64::from(u128::BITS)) else { break };
                let low = low.max(0);
                partitions |= partition_bits(low as u32, (high - low).min(i64::from(u128::BITS)) as u32);
            }
            // Beyond the last partition there is nothing to tell apart.
            partitions |= if rows.high > i64::from(u128::BITS) { 1 << (u128::BITS - 1) } else { 0 };
            let start = i64::from(address.start_byte).saturating_add(start);
            Some((Place::OnChip(tile.space), partitions, Bytes::new(start, dims, size)))
        }
    }
}
