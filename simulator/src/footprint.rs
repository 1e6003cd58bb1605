//! The bytes that an access touches, as rectangles of partitions and bytes.

use ir::program::{DmaAccess, Gather, Instruction, PSUM_TILE, TileView};

use crate::machine::Machine;
use crate::values::memory::Walk;

/// A memory that accesses are compared in.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Area {
    Sbuf,
    Psum,
    /// A device buffer; it has one partition.
    Buffer(u32),
}

/// Some partitions by some bytes of each; ends are exclusive.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Rect {
    pub area: Area,
    pub partitions: (u32, u32),
    pub bytes: (u64, u64),
}

impl Rect {
    pub fn overlaps(&self, other: &Rect) -> bool {
        self.area == other.area
            && self.partitions.0 < other.partitions.1
            && other.partitions.0 < self.partitions.1
            && self.bytes.0 < other.bytes.1
            && other.bytes.0 < self.bytes.1
    }
}

/// The smallest rectangle around a view.
pub(crate) fn bounding_rect(view: &TileView) -> Rect {
    let (low, high) = view.byte_range();
    let area = if view.tile == PSUM_TILE { Area::Psum } else { Area::Sbuf };
    let first = u32::from(view.partition);
    let partitions = (first, first + u32::from(view.n_partitions));
    Rect { area, partitions, bytes: (low.max(0) as u64, high.max(0) as u64) }
}

/// Dimensions without those that visit the same place again.
pub(crate) fn distinct(
    dims: impl DoubleEndedIterator<Item = (i64, usize)>,
) -> impl DoubleEndedIterator<Item = (i64, usize)> {
    dims.filter(|&(step, _)| step != 0)
}

/// Sorted intervals, those that touch or overlap joined.
pub(crate) fn joined<Bound: Copy + Ord>(mut intervals: Vec<(Bound, Bound)>) -> Vec<(Bound, Bound)> {
    intervals.sort_unstable();
    let mut joined: Vec<(Bound, Bound)> = Vec::with_capacity(intervals.len());
    for (low, high) in intervals {
        match joined.last_mut() {
            Some(last) if low <= last.1 => last.1 = last.1.max(high),
            _ => joined.push((low, high)),
        }
    }
    joined
}

/// The side of a gather or scatter with every row that an index may name.
pub(crate) fn all_rows(side: &DmaAccess, gather: &Gather) -> DmaAccess {
    let rows = ir::program::DmaDim { partition_step: 0, step: i64::from(gather.row_elements), count: gather.n_rows };
    let mut all = side.clone();
    if let Some(outermost) = all.dims.first_mut() {
        *outermost = rows;
    }
    all
}

/// First one, and the one after the last.
type Range<Bound> = (Bound, Bound);

/// A partition is one step of a number that no offset within a partition reaches.
const PARTITION: i64 = 1 << 32;

/// Elements of the side of a transfer in SBUF, partitions and offsets as one number.
pub(crate) fn tile_walk(side: &DmaAccess) -> Walk {
    let steps = side.dims.iter().map(|dim| (i64::from(dim.partition_step) * PARTITION + dim.step, dim.count as usize));
    Walk::new(distinct(steps))
}

/// Partitions and bytes of the side of a transfer in SBUF: one pair per interval and run of
/// partitions that share it.
pub(crate) fn tile_side(side: &DmaAccess, partition: u8, walk: &Walk) -> Vec<(Range<u8>, Range<u32>)> {
    let size = side.dtype.size_bytes() as u32;
    let mut by_partition: Vec<(u8, (u32, u32))> = Vec::new();
    walk.for_each_run(i64::from(partition) * PARTITION + side.offset as i64, |first| {
        let (at, offset) = (first as i64 / PARTITION, (first as i64 % PARTITION) as u32);
        by_partition.push((at as u8, (offset * size, (offset + walk.run as u32) * size)));
    });
    by_partition.sort_unstable();
    let mut open: Vec<(Range<u8>, Vec<Range<u32>>)> = Vec::new();
    for group in by_partition.chunk_by(|lhs, rhs| lhs.0 == rhs.0) {
        let intervals = joined(group.iter().map(|&(_, bytes)| bytes).collect());
        let at = group[0].0;
        match open.last_mut() {
            Some((partitions, same)) if partitions.1 == at && *same == intervals => partitions.1 = at + 1,
            _ => open.push(((at, at + 1), intervals)),
        }
    }
    open.into_iter().flat_map(|(partitions, all)| all.into_iter().map(move |bytes| (partitions, bytes))).collect()
}

/// Highest byte of an SBUF partition that the program touches.
pub(crate) fn sbuf_peak_bytes(machine: &Machine) -> u64 {
    let of_side = |side: &DmaAccess| {
        let reach = side.dims.iter().map(|dim| dim.step.max(0) * (i64::from(dim.count) - 1)).sum::<i64>();
        (side.offset as i64 + reach + 1) as u64 * side.dtype.size_bytes() as u64
    };
    let of_instruction = |instruction: &Instruction| {
        let accesses = instruction.kind.accesses();
        let views = accesses.tile_reads.iter().chain(&accesses.tile_writes).map(|view| bounding_rect(view));
        let views = views.filter(|rect| rect.area == Area::Sbuf).map(|rect| rect.bytes.1);
        let sides = accesses.dma_read.into_iter().chain(accesses.dma_write);
        let sides = sides.filter(|side| side.hbm().is_none()).map(of_side);
        views.chain(sides).max().unwrap_or(0)
    };
    machine.instructions.iter().map(of_instruction).max().unwrap_or(0)
}
