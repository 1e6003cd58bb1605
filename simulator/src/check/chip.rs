//! Who last touched each byte of SBUF or PSUM: columns of bytes, and in each the partitions that
//! share a history.
//!
//! Programs touch the same tiles over and over, so that an access nearly always meets one column
//! with one history that begin and end where it does. Everything else splits columns, and a write
//! makes one column again of what it covers.

use smallvec::{SmallVec, smallvec};

use super::digest::ChipRect;
use super::places::Places;
use super::shadow::{Met, Readers, Writer};

/// Partitions with one history.
#[derive(Clone, Debug)]
struct Cell {
    partitions: (u8, u8),
    writer: Writer,
    readers: Readers,
}

#[derive(Clone, Debug)]
struct Column {
    end: u32,
    /// Apart from each other; partitions without one have not been touched.
    cells: SmallVec<[Cell; 1]>,
}

/// The history of one on-chip memory.
pub(super) struct ChipShadow {
    /// First bytes of columns.
    starts: Places,
    /// By first byte, the number of the column.
    column_at: Vec<u32>,
    columns: Vec<Column>,
    /// Numbers of columns that are no more.
    unused: Vec<u32>,
    /// In all columns.
    n_cells: usize,
}

impl ChipShadow {
    pub fn new(bytes_per_partition: u32) -> ChipShadow {
        let n_places = bytes_per_partition as usize + 1;
        let column_at = vec![0; n_places];
        ChipShadow { starts: Places::new(n_places), column_at, columns: Vec::new(), unused: Vec::new(), n_cells: 0 }
    }

    /// Runs of partitions of runs of bytes that have histories of their own.
    pub fn n_cells(&self) -> usize {
        self.n_cells
    }

    /// Adds a read. `stands_for(later, earlier)` says whether a reader makes an earlier one
    /// superfluous: whoever is ordered after the later one is ordered after both.
    #[inline(always)]
    pub fn read(
        &mut self,
        rect: &ChipRect,
        reader: u32,
        stands_for: impl Fn(u32, u32) -> bool,
        mut meet: impl FnMut(Met),
    ) {
        match self.only_cell(rect) {
            Some(cell) => read_cell(cell, rect.bytes.0, reader, &stands_for, &mut meet),
            None => self.read_columns(rect, reader, stands_for, meet),
        }
    }

    #[inline(never)]
    fn read_columns(
        &mut self,
        rect: &ChipRect,
        reader: u32,
        stands_for: impl Fn(u32, u32) -> bool,
        mut meet: impl FnMut(Met),
    ) {
        let (low, high) = rect.bytes;
        self.split(low);
        self.split(high);
        let mut at = low;
        while at < high {
            let column = self.column_or_gap(at, high);
            let n_before = column.cells.len();
            isolate(column, rect.partitions);
            let mut untouched: SmallVec<[(u8, u8); 2]> = smallvec![rect.partitions];
            for cell in column.cells.iter_mut().filter(|cell| within(cell.partitions, rect.partitions)) {
                read_cell(cell, at, reader, &stands_for, &mut meet);
                subtract(&mut untouched, cell.partitions);
            }
            for partitions in untouched {
                let mut cell = Cell { partitions, writer: Writer::Nobody, readers: Readers::default() };
                read_cell(&mut cell, at, reader, &stands_for, &mut meet);
                column.cells.push(cell);
            }
            let n_new = column.cells.len() - n_before;
            at = column.end;
            self.n_cells += n_new;
        }
    }

    /// Adds a write.
    #[inline(always)]
    pub fn write(&mut self, rect: &ChipRect, writer: u32, mut meet: impl FnMut(Met)) {
        match self.only_cell(rect) {
            Some(cell) => {
                write_cell(cell, &mut meet);
                cell.writer = Writer::Instruction(writer);
                cell.readers.clear();
            }
            None => self.write_columns(rect, writer, meet),
        }
    }

    #[inline(never)]
    fn write_columns(&mut self, rect: &ChipRect, writer: u32, mut meet: impl FnMut(Met)) {
        let (low, high) = rect.bytes;
        self.split(low);
        self.split(high);
        let mut at = low;
        let mut is_alone = true;
        while at < high {
            let column = self.column_or_gap(at, high);
            let n_before = column.cells.len();
            isolate(column, rect.partitions);
            column.cells.retain(|cell| {
                let is_overwritten = within(cell.partitions, rect.partitions);
                if is_overwritten {
                    write_cell(cell, &mut meet);
                }
                !is_overwritten
            });
            is_alone &= column.cells.is_empty();
            let n_after = column.cells.len();
            at = column.end;
            self.n_cells = self.n_cells + n_after - n_before;
        }
        let readers = Readers::default();
        let written = Cell { partitions: rect.partitions, writer: Writer::Instruction(writer), readers };
        if is_alone {
            self.replace(low, high, written);
            return;
        }
        let mut at = low;
        while at < high {
            let column = self.column_or_gap(at, high);
            column.cells.push(written.clone());
            at = column.end;
            self.n_cells += 1;
        }
    }

    /// Calls `see` with the writer and the readers of everything in the rectangle.
    #[inline]
    pub fn histories(&mut self, rect: &ChipRect, mut see: impl FnMut(Writer, &Readers)) {
        if let Some(cell) = self.only_cell(rect) {
            see(cell.writer, &cell.readers);
            return;
        }
        let (low, high) = rect.bytes;
        self.split(low);
        self.split(high);
        let mut at = low;
        while at < high {
            let column = self.column_or_gap(at, high);
            let cells = column.cells.iter().filter(|cell| overlap(cell.partitions, rect.partitions));
            cells.for_each(|cell| see(cell.writer, &cell.readers));
            at = column.end;
        }
    }

    /// The one history of a rectangle, where that is exactly all that it meets.
    #[inline(always)]
    fn only_cell(&mut self, rect: &ChipRect) -> Option<&mut Cell> {
        let (low, high) = rect.bytes;
        if !self.starts.contains(low as usize) {
            return None;
        }
        let column = &mut self.columns[self.column_at[low as usize] as usize];
        if column.end != high {
            return None;
        }
        match &mut column.cells[..] {
            [cell] if cell.partitions == rect.partitions => Some(cell),
            _ => None,
        }
    }

    /// Makes a byte the first of its column, if it is in one.
    fn split(&mut self, at: u32) {
        let Some(start) = self.starts.previous(at as usize) else { return };
        if start == at as usize {
            return;
        }
        let column = &mut self.columns[self.column_at[start] as usize];
        if column.end > at {
            let upper = column.clone();
            column.end = at;
            self.n_cells += upper.cells.len();
            self.insert(at, upper);
        }
    }

    /// The column that starts here; an empty one up to the next, at most to `high`, where there is none.
    fn column_or_gap(&mut self, at: u32, high: u32) -> &mut Column {
        if !self.starts.contains(at as usize) {
            let end = self.starts.next(at as usize).map_or(high, |next| high.min(next as u32));
            self.insert(at, Column { end, cells: SmallVec::new() });
        }
        &mut self.columns[self.column_at[at as usize] as usize]
    }

    fn insert(&mut self, at: u32, column: Column) {
        let number = match self.unused.pop() {
            Some(number) => {
                self.columns[number as usize] = column;
                number
            }
            None => {
                self.columns.push(column);
                self.columns.len() as u32 - 1
            }
        };
        self.starts.insert(at as usize);
        self.column_at[at as usize] = number;
    }

    /// One column for all that the range holds; its ends are ends of columns.
    fn replace(&mut self, low: u32, high: u32, cell: Cell) {
        let mut at = self.column_or_gap(low, high).end;
        while at < high {
            let number = self.column_at[at as usize];
            self.starts.remove(at as usize);
            self.unused.push(number);
            at = self.columns[number as usize].end;
        }
        let column = self.column_or_gap(low, high);
        column.end = high;
        column.cells.push(cell);
        self.n_cells += 1;
    }
}

#[inline(always)]
fn read_cell(
    cell: &mut Cell,
    first_byte: u32,
    reader: u32,
    stands_for: &impl Fn(u32, u32) -> bool,
    meet: &mut impl FnMut(Met),
) {
    meet(match cell.writer {
        Writer::Nobody => Met::Uninitialised(cell.partitions.0.into(), first_byte.into()),
        Writer::Before | Writer::Instruction(_) => Met::WrittenBy(cell.writer),
    });
    super::shadow::add_reader(&mut cell.readers, reader, stands_for);
}

#[inline(always)]
fn write_cell(cell: &Cell, meet: &mut impl FnMut(Met)) {
    if cell.writer == Writer::Nobody {
        cell.readers.iter().for_each(|&reader| meet(Met::ReadTooEarlyBy(reader)));
    } else {
        meet(Met::OverwritesWrite(cell.writer));
        cell.readers.iter().for_each(|&reader| meet(Met::ReadBy(reader)));
    }
}

fn overlap(lhs: (u8, u8), rhs: (u8, u8)) -> bool {
    lhs.0 < rhs.1 && rhs.0 < lhs.1
}

fn within(inner: (u8, u8), outer: (u8, u8)) -> bool {
    outer.0 <= inner.0 && inner.1 <= outer.1
}

/// Splits cells at the ends of a range of partitions.
fn isolate(column: &mut Column, (first, end): (u8, u8)) {
    for edge in [first, end] {
        let crosses = |cell: &Cell| cell.partitions.0 < edge && edge < cell.partitions.1;
        // Cells are apart from each other, so that one edge meets one of them.
        if let Some(cell) = column.cells.iter_mut().find(|cell| crosses(cell)) {
            let mut upper = cell.clone();
            upper.partitions.0 = edge;
            cell.partitions.1 = edge;
            column.cells.push(upper);
        }
    }
}

/// Takes a range out of ranges that contain it or are apart from it.
fn subtract(ranges: &mut SmallVec<[(u8, u8); 2]>, (first, end): (u8, u8)) {
    let Some(at) = ranges.iter().position(|&range| within((first, end), range)) else { return };
    let (low, high) = ranges.swap_remove(at);
    ranges.extend([(low, first), (end, high)].into_iter().filter(|(low, high)| low < high));
}
