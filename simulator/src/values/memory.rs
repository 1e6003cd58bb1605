//! SBUF, PSUM and device memory as flat bytes, and elements read and written through access
//! patterns.
//!
//! Patterns have been checked against the memories before anything runs; an index here is in range.

use ir::program::{Dim, DmaAccess, DmaPlace, PSUM_TILE, TileView};
use smallvec::SmallVec;

use super::convert::{Element, with_element};

/// All memories of one core.
pub(crate) struct Memory {
    sbuf: Vec<u8>,
    psum: Vec<u8>,
    sbuf_pitch: usize,
    psum_pitch: usize,
    /// Device buffers.
    pub buffers: Vec<Vec<u8>>,
    /// Where each tensor lies.
    pub places: Vec<BufferPlace>,
}

/// A tensor's buffer and its first byte there.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct BufferPlace {
    pub buffer: usize,
    pub start_byte: usize,
}

/// An access pattern with its contiguous innermost elements taken together.
pub(crate) struct Walk {
    /// Elements per run.
    pub run: usize,
    /// (step in elements, count), outermost first.
    pub outer: SmallVec<[(i64, usize); 4]>,
}

impl Walk {
    /// Takes the innermost dimensions together while they are contiguous.
    pub fn new(dims: impl DoubleEndedIterator<Item = (i64, usize)>) -> Walk {
        let mut run = 1;
        let mut outer: SmallVec<[(i64, usize); 4]> = SmallVec::new();
        for (step, count) in dims.rev().filter(|&(_, count)| count != 1) {
            if outer.is_empty() && step == run as i64 {
                run *= count;
            } else {
                outer.push((step, count));
            }
        }
        outer.reverse();
        Walk { run, outer }
    }

    /// How often [`Walk::for_each_run`] calls.
    pub fn n_runs(&self) -> u64 {
        self.outer.iter().fold(1, |n_runs: u64, &(_, count)| n_runs.saturating_mul(count as u64))
    }

    /// The pattern of a view.
    pub fn of_view(dims: &[Dim]) -> Walk {
        Walk::new(dims.iter().map(|dim| (i64::from(dim.step), usize::from(dim.count))))
    }

    /// Calls `visit` with the first element of every run, in order.
    #[inline(always)]
    pub fn for_each_run(&self, start: i64, mut visit: impl FnMut(usize)) {
        // Written out by depth: the innermost loop is a plain one.
        match self.outer[..] {
            [] => visit(start as usize),
            [(step, count)] => (0..count as i64).for_each(|index| visit((start + index * step) as usize)),
            _ => self.for_each_run_nested(start, &mut visit),
        }
    }

    fn for_each_run_nested(&self, start: i64, visit: &mut impl FnMut(usize)) {
        let Some((&(inner_step, inner_count), outer)) = self.outer.split_last() else { return };
        let mut indices: SmallVec<[usize; 4]> = SmallVec::from_elem(0, outer.len());
        let mut at = start;
        loop {
            (0..inner_count as i64).for_each(|index| visit((at + index * inner_step) as usize));
            let mut depth = outer.len();
            loop {
                if depth == 0 {
                    return;
                }
                depth -= 1;
                indices[depth] += 1;
                at += outer[depth].0;
                if indices[depth] < outer[depth].1 {
                    break;
                }
                at -= outer[depth].0 * outer[depth].1 as i64;
                indices[depth] = 0;
            }
        }
    }
}

impl Memory {
    /// Zeroed memories of these sizes per partition.
    pub fn new(
        partitions: usize,
        sbuf_pitch: usize,
        psum_pitch: usize,
        buffers: Vec<Vec<u8>>,
        places: Vec<BufferPlace>,
    ) -> Memory {
        Memory {
            sbuf: vec![0; partitions * sbuf_pitch],
            psum: vec![0; partitions * psum_pitch],
            sbuf_pitch,
            psum_pitch,
            buffers,
            places,
        }
    }

    /// The bytes of one partition of the view's memory; `partition` counts from the view's first.
    pub fn row(&self, view: &TileView, partition: usize) -> &[u8] {
        let at = usize::from(view.partition) + partition;
        if view.tile == PSUM_TILE {
            &self.psum[at * self.psum_pitch..][..self.psum_pitch]
        } else {
            &self.sbuf[at * self.sbuf_pitch..][..self.sbuf_pitch]
        }
    }

    /// The same, to be written.
    pub fn row_mut(&mut self, view: &TileView, partition: usize) -> &mut [u8] {
        let at = usize::from(view.partition) + partition;
        if view.tile == PSUM_TILE {
            &mut self.psum[at * self.psum_pitch..][..self.psum_pitch]
        } else {
            &mut self.sbuf[at * self.sbuf_pitch..][..self.sbuf_pitch]
        }
    }

    /// One partition's elements in visiting order, widened to f32.
    pub fn read(&self, view: &TileView, partition: usize, out: &mut Vec<f32>) {
        out.clear();
        let row = self.row(view, partition);
        let walk = Walk::of_view(&view.dims);
        with_element!(view.dtype, Kind => {
            walk.for_each_run(i64::from(view.offset), |first| {
                let bytes = &row[first * Kind::SIZE..][..walk.run * Kind::SIZE];
                out.extend(bytes.chunks_exact(Kind::SIZE).map(Kind::decode));
            })
        });
    }

    /// The first element of one partition.
    pub fn read_one(&self, view: &TileView, partition: usize) -> f32 {
        let row = self.row(view, partition);
        with_element!(view.dtype, Kind => {
            Kind::decode(&row[view.offset as usize * Kind::SIZE..][..Kind::SIZE])
        })
    }

    /// Stores `values` in visiting order, each rounded once to the view's type.
    pub fn write(&mut self, view: &TileView, partition: usize, values: &[f32]) {
        let walk = Walk::of_view(&view.dims);
        let row = self.row_mut(view, partition);
        let mut values = values.iter();
        with_element!(view.dtype, Kind => {
            walk.for_each_run(i64::from(view.offset), |first| {
                let bytes = &mut row[first * Kind::SIZE..][..walk.run * Kind::SIZE];
                for (slot, &value) in bytes.chunks_exact_mut(Kind::SIZE).zip(&mut values) {
                    Kind::encode(value, slot);
                }
            })
        });
    }

    /// One partition's elements in visiting order as they are stored.
    pub fn read_raw(&self, view: &TileView, partition: usize, out: &mut Vec<u8>) {
        out.clear();
        let row = self.row(view, partition);
        let size = view.dtype.size_bytes();
        let walk = Walk::of_view(&view.dims);
        walk.for_each_run(i64::from(view.offset), |first| {
            out.extend_from_slice(&row[first * size..][..walk.run * size]);
        });
    }

    /// Stores raw elements in visiting order.
    pub fn write_raw(&mut self, view: &TileView, partition: usize, mut raw: &[u8]) {
        let size = view.dtype.size_bytes();
        let walk = Walk::of_view(&view.dims);
        let row = self.row_mut(view, partition);
        walk.for_each_run(i64::from(view.offset), |first| {
            let (run, rest) = raw.split_at(walk.run * size);
            row[first * size..][..run.len()].copy_from_slice(run);
            raw = rest;
        });
    }

    /// Calls `visit` with each run of one side of a transfer in order: its memory and byte range.
    /// `row_starts` replaces the outermost dimension's offsets, in elements, of an indexed side.
    pub fn for_each_transfer_run(
        &mut self,
        side: &DmaAccess,
        row_starts: Option<&[i64]>,
        mut visit: impl FnMut(&mut [u8]),
    ) {
        let size = side.dtype.size_bytes();
        let (bytes, start_byte, pitch) = match side.place {
            DmaPlace::Hbm { tensor } => {
                let place = self.places[tensor.index()];
                (&mut self.buffers[place.buffer][place.start_byte..], side.offset as i64 * size as i64, 0)
            }
            DmaPlace::Tile { tile: _, partition } => {
                let first_byte = usize::from(partition) * self.sbuf_pitch + side.offset as usize * size;
                (&mut self.sbuf[..], first_byte as i64, self.sbuf_pitch as i64)
            }
        };
        let inner = if row_starts.is_some() { side.dims.get(1..).unwrap_or(&[]) } else { &side.dims[..] };
        // In bytes, so that a partition step is one number whatever the pitch.
        let steps = inner
            .iter()
            .map(|dim| (i64::from(dim.partition_step) * pitch + dim.step * size as i64, dim.count as usize));
        let mut walk = Walk { run: size, outer: steps.filter(|&(_, count)| count != 1).collect() };
        while let Some(&(step, count)) = walk.outer.last()
            && step == walk.run as i64
        {
            walk.run *= count;
            walk.outer.pop();
        }
        let rows = row_starts.unwrap_or(&[0]);
        for &row in rows {
            walk.for_each_run(start_byte + row * size as i64, |first| visit(&mut bytes[first..][..walk.run]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_contiguous_dimensions_and_keep_the_order() {
        let walk = Walk::new([(100, 2), (4, 3), (1, 4)].into_iter());
        assert_eq!((walk.run, walk.outer.as_slice()), (12, &[(100, 2)][..]));
        let walk = Walk::new([(100, 2), (0, 2), (-3, 2), (10, 2), (1, 2)].into_iter());
        let mut starts = Vec::new();
        walk.for_each_run(7, |start| starts.push(start));
        let expected: Vec<usize> = [0, 100]
            .into_iter()
            .flat_map(|a| [0, 0].into_iter().flat_map(move |b: i64| [0, -3].map(move |c| a + b + c)))
            .flat_map(|sum| [0, 10].map(|d| (7 + sum + d) as usize))
            .collect();
        assert_eq!(starts, expected);
    }
}
