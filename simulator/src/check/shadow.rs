//! Who last touched each byte of device memory, and what an access to any memory meets.

use std::collections::BTreeMap;

use smallvec::SmallVec;

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

/// Who has read a byte since it was written; a reader that an ordered later one stands for is left
/// out.
pub(super) type Readers = SmallVec<[u32; 4]>;

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

/// Adds a reader in place of those that it stands for.
#[inline]
pub(super) fn add_reader(readers: &mut Readers, reader: u32, stands_for: &impl Fn(u32, u32) -> bool) {
    if readers.last() == Some(&reader) {
        return;
    }
    if let [earlier] = readers[..]
        && stands_for(reader, earlier)
    {
        readers[0] = reader;
        return;
    }
    readers.retain(|earlier| !stands_for(reader, *earlier));
    readers.push(reader);
}

#[derive(Clone, Debug)]
struct Cell {
    end: u64,
    writer: Writer,
    readers: Readers,
}

/// The history of one device buffer: cells by first byte; gaps are uninitialised.
#[derive(Default)]
pub(super) struct BufferShadow {
    cells: BTreeMap<u64, Cell>,
}

impl BufferShadow {
    pub fn n_cells(&self) -> usize {
        self.cells.len()
    }

    /// Marks bytes as holding data from before the program.
    pub fn initialise(&mut self, (low, high): (u64, u64)) {
        self.carve(low, high);
        self.cells.insert(low, Cell { end: high, writer: Writer::Before, readers: Readers::new() });
    }

    /// Adds a read; see [`super::chip::ChipShadow::read`].
    pub fn read(
        &mut self,
        (low, high): (u64, u64),
        reader: u32,
        stands_for: impl Fn(u32, u32) -> bool,
        mut meet: impl FnMut(Met),
    ) {
        self.split(low);
        self.split(high);
        self.fill_gaps(low, high);
        for (&start, cell) in self.cells.range_mut(low..high) {
            meet(match cell.writer {
                Writer::Nobody => Met::Uninitialised(0, start),
                Writer::Before | Writer::Instruction(_) => Met::WrittenBy(cell.writer),
            });
            add_reader(&mut cell.readers, reader, &stands_for);
        }
    }

    /// Adds a write.
    pub fn write(&mut self, (low, high): (u64, u64), writer: u32, mut meet: impl FnMut(Met)) {
        self.split(low);
        self.split(high);
        for (_, cell) in self.cells.range(low..high) {
            if cell.writer == Writer::Nobody {
                cell.readers.iter().for_each(|&reader| meet(Met::ReadTooEarlyBy(reader)));
            } else {
                meet(Met::OverwritesWrite(cell.writer));
                cell.readers.iter().for_each(|&reader| meet(Met::ReadBy(reader)));
            }
        }
        self.carve(low, high);
        self.cells.insert(low, Cell { end: high, writer: Writer::Instruction(writer), readers: Readers::new() });
    }

    /// The first byte of the range that nothing wrote.
    pub fn first_gap(&self, (low, high): (u64, u64)) -> Option<u64> {
        let mut at = low;
        let first = self.cells.range(..=low).next_back().map_or(low, |(&start, _)| start);
        for (&start, cell) in self.cells.range(first..high) {
            if start > at || (cell.writer == Writer::Nobody && cell.end > at) {
                break;
            }
            at = at.max(cell.end);
        }
        (at < high).then_some(at)
    }

    /// Gives every gap of a range a cell that nobody wrote.
    fn fill_gaps(&mut self, low: u64, high: u64) {
        let mut gaps: SmallVec<[(u64, u64); 4]> = SmallVec::new();
        let mut at = low;
        for (&start, cell) in self.cells.range(low..high) {
            if start > at {
                gaps.push((at, start));
            }
            at = cell.end;
        }
        if at < high {
            gaps.push((at, high));
        }
        for (start, end) in gaps {
            self.cells.insert(start, Cell { end, writer: Writer::Nobody, readers: Readers::new() });
        }
    }

    /// Makes `at` a boundary of cells.
    fn split(&mut self, at: u64) {
        let Some((_, cell)) = self.cells.range_mut(..at).next_back() else { return };
        if cell.end > at {
            let upper = cell.clone();
            cell.end = at;
            self.cells.insert(at, upper);
        }
    }

    /// Removes the cells of a range, splitting those that reach out of it.
    fn carve(&mut self, low: u64, high: u64) {
        self.split(low);
        self.split(high);
        let covered: SmallVec<[u64; 8]> = self.cells.range(low..high).map(|(&start, _)| start).collect();
        for start in covered {
            self.cells.remove(&start);
        }
    }
}
