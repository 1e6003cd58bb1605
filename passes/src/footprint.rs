//! Which bytes an instruction touches, exactly enough to tell that two accesses do not meet.
//!
//! Used by `schedule` over tiles and by `synchronize` over addresses. The independent checkers have
//! their own account of memory and do not use this one.

use ir::Program;
use ir::program::{DmaAccess, DmaPlace, HbmId, Instruction, InstructionKind, Space, TileId, TileView};
use smallvec::SmallVec;

/// Runs that are looked at one by one.
const MAX_RUNS: i64 = 1024;

/// A memory whose bytes are numbered from 0.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Memory {
    /// One tile, while tiles have no addresses.
    Tile(TileId),
    /// All of SBUF or PSUM.
    Chip(Space),
    /// One HBM tensor.
    Hbm(HbmId),
}

/// How footprints name on-chip memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Addressing {
    /// By tile; tiles never meet.
    Virtual,
    /// By address; every tile must have one.
    Physical,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AccessKind {
    Read,
    Write,
}

/// Some partitions with some bytes of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    pub memory: Memory,
    pub partitions: Pattern,
    pub bytes: Pattern,
}

/// Runs of bytes, or of partitions, at regular distances.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    pub low: i64,
    /// One past the last byte.
    high: i64,
    /// Length of one run.
    pub run: i64,
    /// Step and count, steps ascending and larger than the run.
    dims: SmallVec<[(i64, i64); 1]>,
}

impl Clone for Pattern {
    fn clone(&self) -> Self {
        // Much cheaper than the derived clone, which goes element by element.
        Pattern { low: self.low, high: self.high, run: self.run, dims: SmallVec::from_slice(&self.dims) }
    }
}

impl Pattern {
    /// The bytes of elements of `size` bytes at `offset` and all sums of steps, counted in elements;
    /// partitions are elements of size 1.
    fn new(offset: i64, steps: impl DoubleEndedIterator<Item = (i64, i64)> + Clone, size: i64) -> Self {
        let mut pattern = Pattern::run(offset.saturating_mul(size), size);
        // Nearly always the innermost dimension has the smallest step.
        let mut last = (0, 0);
        for (step, count) in steps.clone().rev().filter(|&(step, count)| count > 1 && step != 0) {
            let dim = (step.saturating_mul(size), count);
            if dim < last {
                return Pattern::sorted(offset, steps, size);
            }
            pattern.repeat(dim);
            last = dim;
        }
        pattern
    }

    fn sorted(offset: i64, steps: impl Iterator<Item = (i64, i64)>, size: i64) -> Self {
        let mut low = offset.saturating_mul(size);
        let mut wanted: SmallVec<[(i64, i64); 4]> = SmallVec::new();
        for (step, count) in steps {
            if count <= 1 || step == 0 {
                continue;
            }
            let step = step.saturating_mul(size);
            if step < 0 {
                low = low.saturating_add(step.saturating_mul(count - 1));
            }
            wanted.push((step.saturating_abs(), count));
        }
        wanted.sort_unstable();
        let mut pattern = Pattern::run(low, size);
        wanted.into_iter().for_each(|dim| pattern.repeat(dim));
        pattern
    }

    /// Adds a dimension, whose step is no smaller than those of the others.
    fn repeat(&mut self, (step, count): (i64, i64)) {
        let span = step.saturating_mul(count - 1);
        self.high = self.high.saturating_add(span);
        match self.dims.last_mut() {
            None if step <= self.run => self.run = self.run.saturating_add(span),
            Some((inner_step, inner_count)) if step == inner_step.saturating_mul(*inner_count) => {
                *inner_count = inner_count.saturating_mul(count);
            }
            None | Some(_) => self.dims.push((step, count)),
        }
    }

    fn run(low: i64, run: i64) -> Self {
        Pattern { low, high: low.saturating_add(run), run, dims: SmallVec::new() }
    }

    fn dense(low: i64, high: i64) -> Self {
        Pattern::run(low, high - low)
    }

    /// The same bytes, this far on.
    fn moved(mut self, distance: i64) -> Self {
        self.low = self.low.saturating_add(distance);
        self.high = self.high.saturating_add(distance);
        self
    }

    /// One past the last byte.
    pub(crate) fn high(&self) -> i64 {
        self.high
    }

    /// Bytes that it has at least.
    fn least_bytes(&self) -> i64 {
        let (mut n_bytes, mut span) = (self.run, self.run);
        for &(step, count) in &self.dims {
            if step < span {
                break;
            }
            n_bytes = n_bytes.saturating_mul(count);
            span = span.saturating_add(step.saturating_mul(count - 1));
        }
        n_bytes
    }

    pub(crate) fn is_dense(&self) -> bool {
        self.dims.is_empty()
    }

    /// First byte of every run.
    pub(crate) fn run_starts(&self) -> Vec<i64> {
        let mut starts = vec![self.low];
        for &(step, count) in &self.dims {
            starts = starts.iter().flat_map(|start| (0..count).map(move |at| start + at * step)).collect();
        }
        starts
    }

    /// Calls `visit` with the numbers of the blocks of `length` bytes that hold some byte of the
    /// pattern, ascending; of patterns with many runs, all from the first to the last.
    pub(crate) fn for_each_block(&self, length: i64, mut visit: impl FnMut(i64)) {
        let n_runs = self.dims.iter().fold(1i64, |n_runs, (_, count)| n_runs.saturating_mul(*count));
        let bits = length.trailing_zeros();
        let is_power = length == 1 << bits;
        let block_of = |byte: i64| if is_power { byte >> bits } else { byte.div_euclid(length) };
        let span = |low: i64, high: i64| block_of(low)..=block_of(high - 1);
        // Gaps that no block fits into leave none out.
        let is_close = |&(step, _): &(i64, i64)| step - self.run < length;
        if n_runs > MAX_RUNS || (self.dims.len() <= 1 && self.dims.iter().all(is_close)) {
            return span(self.low, self.high()).for_each(visit);
        }
        let mut starts = self.run_starts();
        starts.sort_unstable();
        let mut next = i64::MIN;
        for start in starts {
            let (first, last) = span(start, start + self.run).into_inner();
            (first.max(next)..=last).for_each(&mut visit);
            next = next.max(last + 1);
        }
    }

    /// False only if no byte is in both.
    fn meets(&self, other: &Pattern) -> bool {
        let is_apart = self.high <= other.low || other.high <= self.low;
        !is_apart && ((self.is_dense() && other.is_dense()) || self.gaps_meet(other))
    }

    /// False only if no byte is in both, where both reach over common bytes and some leave gaps.
    fn gaps_meet(&self, other: &Pattern) -> bool {
        let mut periods = self.dims.iter().chain(&other.dims).map(|&(step, _)| step);
        !periods.any(|period| self.misses_modulo(other, period))
    }

    /// True if the two patterns occupy disjoint residues modulo `period`.
    fn misses_modulo(&self, other: &Pattern, period: i64) -> bool {
        let (Some((start, len)), Some((other_start, other_len))) = (self.residues(period), other.residues(period))
        else {
            return false;
        };
        let distance = (other_start - start).rem_euclid(period);
        distance >= len && distance + other_len <= period
    }

    /// First residue and length of the circular range that holds all residues, if shorter than the
    /// period.
    fn residues(&self, period: i64) -> Option<(i64, i64)> {
        let moving = self.dims.iter().filter(|(step, _)| step % period != 0);
        let len = moving.fold(self.run, |len, (step, count)| len.saturating_add(step.saturating_mul(count - 1)));
        (len < period).then(|| (self.low.rem_euclid(period), len))
    }

    pub(crate) fn covers(&self, other: &Pattern) -> bool {
        self == other || (self.is_dense() && self.low <= other.low && other.high() <= self.high())
    }
}

impl Footprint {
    /// False only if the two share no byte.
    pub(crate) fn meets(&self, other: &Footprint) -> bool {
        self.memory == other.memory && self.partitions.meets(&other.partitions) && self.bytes.meets(&other.bytes)
    }

    /// Bytes in all partitions that it has at least.
    pub(crate) fn least_bytes(&self) -> u64 {
        u64::try_from(self.partitions.least_bytes().saturating_mul(self.bytes.least_bytes())).unwrap_or(0)
    }

    /// True only if every byte of `other` is also in `self`.
    pub(crate) fn covers(&self, other: &Footprint) -> bool {
        self.memory == other.memory && self.partitions.covers(&other.partitions) && self.bytes.covers(&other.bytes)
    }
}

/// Every memory access of an instruction, reads first.
pub(crate) fn footprints(
    program: &Program,
    instruction: &Instruction,
    addressing: Addressing,
) -> SmallVec<[(AccessKind, Footprint); 6]> {
    let mut found = SmallVec::new();
    for_each_footprint(program, instruction, addressing, |_| true, |kind, footprint| found.push((kind, footprint)));
    found
}

/// Calls `visit` with every access of an instruction to memories that are wanted, reads first.
pub(crate) fn for_each_footprint(
    program: &Program,
    instruction: &Instruction,
    addressing: Addressing,
    is_wanted: impl Fn(Memory) -> bool,
    mut visit: impl FnMut(AccessKind, Footprint),
) {
    let accesses = instruction.kind.accesses();
    let is_indexed = matches!(instruction.kind, InstructionKind::Dma { gather: Some(_), .. });
    let mut both = |kind: AccessKind, views: &[&TileView], side: Option<&DmaAccess>| {
        for view in views {
            if is_wanted(origin(program, view.tile, addressing).0) {
                visit(kind, view_footprint(program, view, addressing));
            }
        }
        let Some(side) = side else { return };
        let memory = match side.place {
            DmaPlace::Hbm { tensor } => Memory::Hbm(tensor),
            DmaPlace::Tile { tile, partition: _ } => origin(program, tile, addressing).0,
        };
        if is_wanted(memory) {
            let whole = if is_indexed { whole_place(program, side) } else { None };
            visit(kind, whole.unwrap_or_else(|| access_footprint(program, side, addressing)));
        }
    };
    both(AccessKind::Read, &accesses.tile_reads, accesses.dma_read);
    both(AccessKind::Write, &accesses.tile_writes, accesses.dma_write);
}

/// The memory that holds a tile, its first partition and its first byte there.
fn origin(program: &Program, tile: TileId, addressing: Addressing) -> (Memory, i64, i64) {
    match (addressing, program.tile(tile).address) {
        (Addressing::Physical, Some(address)) => {
            let memory = Memory::Chip(program.tile(tile).space);
            (memory, i64::from(address.partition), i64::from(address.start_byte))
        }
        (Addressing::Virtual | Addressing::Physical, _) => (Memory::Tile(tile), 0, 0),
    }
}

/// What a view touches.
pub(crate) fn view_footprint(program: &Program, view: &TileView, addressing: Addressing) -> Footprint {
    let (memory, tile_partition, tile_byte) = origin(program, view.tile, addressing);
    let steps = view.dims.iter().map(|dim| (i64::from(dim.step), i64::from(dim.count)));
    let bytes = Pattern::new(i64::from(view.offset), steps, size_of(view.dtype)).moved(tile_byte);
    let first = tile_partition + i64::from(view.partition);
    Footprint { memory, partitions: Pattern::dense(first, first + i64::from(view.n_partitions)), bytes }
}

/// What one side of a DMA touches; on a tile, all its partitions with all bytes that it touches on
/// any of them.
pub(crate) fn access_footprint(program: &Program, access: &DmaAccess, addressing: Addressing) -> Footprint {
    let offset = i64::try_from(access.offset).unwrap_or(i64::MAX);
    let steps = access.dims.iter().map(|dim| (dim.step, i64::from(dim.count)));
    let bytes = Pattern::new(offset, steps, size_of(access.dtype));
    match access.place {
        DmaPlace::Hbm { tensor } => Footprint { memory: Memory::Hbm(tensor), partitions: Pattern::dense(0, 1), bytes },
        DmaPlace::Tile { tile, partition } => {
            let (memory, tile_partition, tile_byte) = origin(program, tile, addressing);
            let bytes = bytes.moved(tile_byte);
            let steps = access.dims.iter().map(|dim| (i64::from(dim.partition_step), i64::from(dim.count)));
            let partitions = Pattern::new(tile_partition + i64::from(partition), steps, 1);
            Footprint { memory, partitions, bytes }
        }
    }
}

/// All of an HBM tensor: a gather may read any row, a scatter write any.
fn whole_place(program: &Program, access: &DmaAccess) -> Option<Footprint> {
    let tensor = access.hbm()?;
    let high = i64::try_from(program.tensor(tensor).size_bytes).unwrap_or(i64::MAX);
    let bytes = Pattern::dense(0, high);
    Some(Footprint { memory: Memory::Hbm(tensor), partitions: Pattern::dense(0, 1), bytes })
}

fn size_of(dtype: ir::Dtype) -> i64 {
    i64::try_from(dtype.size_bytes()).expect("an element has few bytes")
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    fn bytes(pattern: &Pattern) -> Vec<i64> {
        pattern.run_starts().iter().flat_map(|start| (0..pattern.run).map(move |at| start + at)).collect()
    }

    fn pattern(offset: i64, steps: &[(i64, i64)], size: i64) -> Pattern {
        Pattern::new(offset, steps.iter().copied(), size)
    }

    #[test]
    fn rows_and_columns_merge_to_one_run() {
        assert_eq!(pattern(4, &[(8, 3), (1, 8)], 2), Pattern::dense(8, 56));
        assert_eq!(pattern(7, &[(-1, 8)], 2), Pattern::dense(0, 16));
        assert_eq!(pattern(0, &[(0, 5), (16, 4), (1, 8)], 1).dims.as_slice(), &[(16, 4)]);
    }

    #[test]
    fn column_blocks_of_one_matrix_do_not_meet() {
        let left = pattern(0, &[(64, 128), (1, 32)], 4);
        let right = pattern(32, &[(64, 128), (1, 32)], 4);
        let middle = pattern(31, &[(64, 128), (1, 2)], 4);
        assert!(!left.meets(&right));
        assert!(left.meets(&middle) && right.meets(&middle));
    }

    #[test]
    fn interleaved_elements_do_not_meet() {
        assert!(!pattern(0, &[(2, 10)], 4).meets(&pattern(1, &[(2, 10)], 4)));
        assert!(pattern(0, &[(2, 10)], 4).meets(&pattern(1, &[(3, 10)], 4)));
    }

    proptest::proptest! {
        #[test]
        fn patterns_that_share_a_byte_meet(
            offsets in (0..20i64, 0..20i64),
            steps in proptest::collection::vec((-9..10i64, 1..4i64), 0..4),
            other_steps in proptest::collection::vec((-9..10i64, 1..4i64), 0..4),
            size in 1..5i64,
        ) {
            let (left, right) = (pattern(offsets.0, &steps, size), pattern(offsets.1, &other_steps, size));
            let (left_bytes, right_bytes) = (bytes(&left), bytes(&right));
            let shared = left_bytes.iter().any(|byte| right_bytes.contains(byte));
            proptest::prop_assert!(left.meets(&right) || !shared);
            proptest::prop_assert_eq!(left_bytes.iter().max().map(|last| last + 1), Some(left.high()));
            proptest::prop_assert!(!left.covers(&right) || right_bytes.iter().all(|byte| left_bytes.contains(byte)));
        }
    }
}
