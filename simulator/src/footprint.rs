//! The bytes that an access touches, as rectangles of partitions and bytes.

use ir::program::{DmaAccess, DmaPlace, Instruction, InstructionKind, PSUM_TILE, TileView};

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

/// What an instruction reads and writes, exactly to the byte.
#[derive(Clone, Debug, Default)]
pub(crate) struct Footprint {
    pub reads: Vec<Rect>,
    pub writes: Vec<Rect>,
}

/// The exact footprint. Operands have passed the operand rules.
pub(crate) fn of_instruction(machine: &Machine, instruction: &Instruction) -> Footprint {
    let accesses = instruction.kind.accesses();
    let mut footprint = Footprint::default();
    for view in &accesses.tile_reads {
        add_view(view, &mut footprint.reads);
    }
    for view in &accesses.tile_writes {
        add_view(view, &mut footprint.writes);
    }
    if let InstructionKind::Dma { dst, src, queue: _, gather } = &instruction.kind {
        for (side, rects) in [(src, &mut footprint.reads), (dst, &mut footprint.writes)] {
            match gather {
                // Any row may be meant.
                Some(gather) if side.hbm().is_some() => add_side(machine, &all_rows(side, gather), rects),
                Some(_) | None => add_side(machine, side, rects),
            }
        }
    }
    footprint
}

/// The side of a transfer with every row that an index may name.
fn all_rows(side: &ir::program::DmaAccess, gather: &ir::program::Gather) -> ir::program::DmaAccess {
    let rows = ir::program::DmaDim { partition_step: 0, step: i64::from(gather.row_elements), count: gather.n_rows };
    let mut all = side.clone();
    if let Some(outermost) = all.dims.first_mut() {
        *outermost = rows;
    }
    all
}

/// The smallest rectangle around a view.
pub(crate) fn bounding_rect(view: &TileView) -> Rect {
    let (low, high) = view.byte_range();
    Rect { area: area_of(view), partitions: partitions_of(view), bytes: (low.max(0) as u64, high.max(0) as u64) }
}

fn area_of(view: &TileView) -> Area {
    if view.tile == PSUM_TILE { Area::Psum } else { Area::Sbuf }
}

fn partitions_of(view: &TileView) -> (u32, u32) {
    let first = u32::from(view.partition);
    (first, first + u32::from(view.n_partitions))
}

fn add_view(view: &TileView, rects: &mut Vec<Rect>) {
    let size = view.dtype.size_bytes() as u64;
    let (area, partitions) = (area_of(view), partitions_of(view));
    let mut intervals = Vec::new();
    let walk = Walk::new(distinct(view.dims.iter().map(|dim| (i64::from(dim.step), usize::from(dim.count)))));
    walk.for_each_run(i64::from(view.offset), |first| {
        intervals.push((first as u64 * size, (first + walk.run) as u64 * size));
    });
    rects.extend(joined(intervals).into_iter().map(|bytes| Rect { area, partitions, bytes }));
}

/// Dimensions without those that visit the same place again.
fn distinct(dims: impl DoubleEndedIterator<Item = (i64, usize)>) -> impl DoubleEndedIterator<Item = (i64, usize)> {
    dims.filter(|&(step, _)| step != 0)
}

/// Sorted intervals, those that touch or overlap joined.
fn joined(mut intervals: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    intervals.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::with_capacity(intervals.len());
    for (low, high) in intervals {
        match joined.last_mut() {
            Some(last) if low <= last.1 => last.1 = last.1.max(high),
            _ => joined.push((low, high)),
        }
    }
    joined
}

fn add_side(machine: &Machine, side: &DmaAccess, rects: &mut Vec<Rect>) {
    let size = side.dtype.size_bytes() as u64;
    match side.place {
        DmaPlace::Hbm { tensor } => {
            let place = machine.device.places[tensor.index()];
            let walk = Walk::new(distinct(side.dims.iter().map(|dim| (dim.step, dim.count as usize))));
            let mut intervals = Vec::new();
            walk.for_each_run(side.offset as i64, |first| {
                let start = place.start_byte as u64 + first as u64 * size;
                intervals.push((start, start + walk.run as u64 * size));
            });
            let area = Area::Buffer(place.buffer as u32);
            rects.extend(joined(intervals).into_iter().map(|bytes| Rect { area, partitions: (0, 1), bytes }));
        }
        DmaPlace::Tile { tile: _, partition } => add_tile_side(side, partition, size, rects),
    }
}

/// First partition and the one after the last.
type Range = (u32, u32);

/// One rectangle per interval and run of partitions that share it.
fn add_tile_side(side: &DmaAccess, partition: u8, size: u64, rects: &mut Vec<Rect>) {
    // A partition is one step of a number that no offset within a partition reaches.
    const PARTITION: i64 = 1 << 32;
    let steps = side.dims.iter().map(|dim| (i64::from(dim.partition_step) * PARTITION + dim.step, dim.count as usize));
    let walk = Walk::new(distinct(steps));
    let mut by_partition: Vec<(u32, (u64, u64))> = Vec::new();
    walk.for_each_run(i64::from(partition) * PARTITION + side.offset as i64, |first| {
        let (at, offset) = (first as i64 / PARTITION, first as i64 % PARTITION);
        by_partition.push((at as u32, (offset as u64 * size, (offset as u64 + walk.run as u64) * size)));
    });
    by_partition.sort_unstable();
    let mut open: Vec<(Range, Vec<(u64, u64)>)> = Vec::new();
    for group in by_partition.chunk_by(|lhs, rhs| lhs.0 == rhs.0) {
        let intervals = joined(group.iter().map(|&(_, bytes)| bytes).collect());
        let at = group[0].0;
        match open.last_mut() {
            Some((partitions, same)) if partitions.1 == at && *same == intervals => partitions.1 = at + 1,
            _ => open.push(((at, at + 1), intervals)),
        }
    }
    for (partitions, intervals) in open {
        rects.extend(intervals.into_iter().map(|bytes| Rect { area: Area::Sbuf, partitions, bytes }));
    }
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
