//! Who last touched each byte: an interval index per run of partitions with one history.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use crate::footprint::{Area, Rect};

/// Who wrote a byte.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    /// It held data before the program began.
    Before,
    /// Nothing has written it; it has been read.
    Nobody,
    /// An instruction, by number.
    Instruction(u32),
}

#[derive(Clone, Debug)]
struct Cell {
    end: u64,
    writer: Writer,
    /// Who has read it since; a reader that an ordered later one stands for is left out.
    readers: SmallVec<[u32; 4]>,
}

/// Partitions with the same history.
#[derive(Clone, Debug)]
struct Rows {
    partitions: (u32, u32),
    /// By first byte; gaps are uninitialised.
    cells: BTreeMap<u64, Cell>,
}

/// The history of all memories.
#[derive(Default)]
pub(super) struct Shadow {
    areas: BTreeMap<Area, Vec<Rows>>,
}

/// What an access meets.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Met {
    /// A read of what this one wrote.
    WrittenBy(Writer),
    /// A write over what this one read.
    ReadBy(u32),
    /// A write of what this one has read although nothing had written it.
    ReadTooEarlyBy(u32),
    /// A write over what this one wrote.
    OverwritesWrite(Writer),
    /// A read of bytes that nothing wrote: partition, first byte.
    Uninitialised(u32, u64),
}

impl Shadow {
    /// Marks bytes as holding data from before the program.
    pub fn initialise(&mut self, rect: &Rect) {
        self.update(rect, |cells, (low, high)| {
            carve(cells, low, high);
            cells.insert(low, Cell { end: high, writer: Writer::Before, readers: SmallVec::new() });
        });
    }

    /// Adds a read. `stands_for(later, earlier)` says whether a reader makes an earlier one
    /// superfluous: whoever is ordered after the later one is ordered after both.
    pub fn read(&mut self, rect: &Rect, reader: u32, stands_for: impl Fn(u32, u32) -> bool, mut meet: impl FnMut(Met)) {
        self.update_rows(rect, |rows, (low, high)| {
            let first_partition = rows.partitions.0;
            let cells = &mut rows.cells;
            split(cells, low);
            split(cells, high);
            fill_gaps(cells, low, high);
            for (&start, cell) in cells.range_mut(low..high) {
                meet(match cell.writer {
                    Writer::Nobody => Met::Uninitialised(first_partition, start),
                    Writer::Before | Writer::Instruction(_) => Met::WrittenBy(cell.writer),
                });
                if cell.readers.last() != Some(&reader) {
                    cell.readers.retain(|earlier| !stands_for(reader, *earlier));
                    cell.readers.push(reader);
                }
            }
        });
    }

    /// Who has read some of the bytes since they were written.
    pub fn readers(&mut self, rect: &Rect) -> BTreeSet<u32> {
        let mut readers = BTreeSet::new();
        self.update(rect, |cells, (low, high)| {
            split(cells, low);
            readers.extend(cells.range(low..high).flat_map(|(_, cell)| cell.readers.iter().copied()));
        });
        readers
    }

    /// Adds a write.
    pub fn write(&mut self, rect: &Rect, writer: u32, mut meet: impl FnMut(Met)) {
        self.update(rect, |cells, (low, high)| {
            split(cells, low);
            split(cells, high);
            for (_, cell) in cells.range(low..high) {
                if cell.writer == Writer::Nobody {
                    cell.readers.iter().for_each(|&reader| meet(Met::ReadTooEarlyBy(reader)));
                } else {
                    meet(Met::OverwritesWrite(cell.writer));
                    cell.readers.iter().for_each(|&reader| meet(Met::ReadBy(reader)));
                }
            }
            carve(cells, low, high);
            cells.insert(low, Cell { end: high, writer: Writer::Instruction(writer), readers: SmallVec::new() });
        });
    }

    /// The first byte of the rectangle that nothing wrote.
    pub fn first_gap(&mut self, rect: &Rect) -> Option<u64> {
        let mut gap = None;
        self.update(rect, |cells, (low, high)| {
            let mut at = low;
            let first = cells.range(..=low).next_back().map_or(low, |(&start, _)| start);
            for (&start, cell) in cells.range(first..high) {
                if start > at || (cell.writer == Writer::Nobody && cell.end > at) {
                    break;
                }
                at = at.max(cell.end);
            }
            if at < high {
                gap.get_or_insert(at);
            }
        });
        gap
    }

    fn update(&mut self, rect: &Rect, mut change: impl FnMut(&mut BTreeMap<u64, Cell>, (u64, u64))) {
        self.update_rows(rect, |rows, bytes| change(&mut rows.cells, bytes));
    }

    /// Calls `change` on every run of partitions of the rectangle, split at its edges.
    fn update_rows(&mut self, rect: &Rect, mut change: impl FnMut(&mut Rows, (u64, u64))) {
        let all = self
            .areas
            .entry(rect.area)
            .or_insert_with(|| vec![Rows { partitions: (0, u32::MAX), cells: BTreeMap::new() }]);
        let (first, last) = rect.partitions;
        for edge in [first, last] {
            let number = all.partition_point(|rows| rows.partitions.1 <= edge);
            if let Some(rows) = all.get_mut(number)
                && rows.partitions.0 < edge
            {
                let mut lower = rows.clone();
                lower.partitions.1 = edge;
                rows.partitions.0 = edge;
                all.insert(number, lower);
            }
        }
        let from = all.partition_point(|rows| rows.partitions.1 <= first);
        for rows in all[from..].iter_mut().take_while(|rows| rows.partitions.0 < last) {
            change(rows, rect.bytes);
        }
    }
}

/// Gives every gap of a range a cell that nobody wrote.
fn fill_gaps(cells: &mut BTreeMap<u64, Cell>, low: u64, high: u64) {
    let mut gaps: SmallVec<[(u64, u64); 4]> = SmallVec::new();
    let mut at = low;
    for (&start, cell) in cells.range(low..high) {
        if start > at {
            gaps.push((at, start));
        }
        at = cell.end;
    }
    if at < high {
        gaps.push((at, high));
    }
    for (start, end) in gaps {
        cells.insert(start, Cell { end, writer: Writer::Nobody, readers: SmallVec::new() });
    }
}

/// Makes `at` a boundary of cells.
fn split(cells: &mut BTreeMap<u64, Cell>, at: u64) {
    let Some((_, cell)) = cells.range_mut(..at).next_back() else { return };
    if cell.end > at {
        let upper = cell.clone();
        cell.end = at;
        cells.insert(at, upper);
    }
}

/// Removes the cells of a range whose ends are boundaries.
fn carve(cells: &mut BTreeMap<u64, Cell>, low: u64, high: u64) {
    split(cells, low);
    split(cells, high);
    let covered: SmallVec<[u64; 8]> = cells.range(low..high).map(|(&start, _)| start).collect();
    for start in covered {
        cells.remove(&start);
    }
}
