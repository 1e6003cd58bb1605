//! Random transfers: loads, stores, moves, gathers and scatters.

use smallvec::{SmallVec, smallvec};

use super::{Generator, MAX_COLUMNS, ON_CHIP, PARTITIONS};
use crate::program::{
    DmaAccess, DmaDim, DmaPlace, DmaQueue, Engine, Gather, HbmId, HbmKind, HbmTensor, InstructionKind, Space, TileId,
};
use crate::types::Dtype;

/// Rows of the tensors that are read and written by index.
pub(super) const INDEXED_ROWS: u32 = 32;

impl Generator {
    /// A region of a tensor, as rows and columns or the other way round.
    fn region(&mut self, tensor: HbmId, n_rows: usize, n_columns: usize) -> DmaAccess {
        let shape = self.program.tensor(tensor).shape.clone();
        let (row, column) = (self.random.below(shape[0] - n_rows + 1), self.random.below(shape[1] - n_columns + 1));
        let dims = smallvec![
            DmaDim { partition_step: 0, step: shape[1] as i64, count: n_rows as u32 },
            DmaDim { partition_step: 0, step: 1, count: n_columns as u32 }
        ];
        let offset = (row * shape[1] + column) as u64;
        DmaAccess { place: DmaPlace::Hbm { tensor }, offset, dims, dtype: self.program.tensor(tensor).dtype }
    }

    /// Columns of a tile from `first` on, by row.
    fn tile_side(&self, tile: TileId, n_rows: usize, first: usize, n_columns: usize) -> DmaAccess {
        DmaAccess {
            place: DmaPlace::Tile { tile, partition: 0 },
            offset: first as u64,
            dims: smallvec![
                DmaDim { partition_step: 1, step: 0, count: n_rows as u32 },
                DmaDim { partition_step: 0, step: 1, count: n_columns as u32 }
            ],
            dtype: self.dtype(tile),
        }
    }

    /// An engine and a queue that may carry a transfer. Ring queues take any.
    fn way(&mut self, casts: bool) -> (Engine, DmaQueue) {
        let engines = [Engine::Sp, Engine::Act, Engine::Pool, Engine::Pe, Engine::Dve];
        let has_hardware = self.program.target.target().hardware_dge;
        match self.random.below(3) {
            0 if has_hardware && !casts => (self.random.one_of(&[Engine::Sp, Engine::Act]), DmaQueue::Hardware),
            1 => (Engine::Pool, DmaQueue::Software),
            _ => (self.random.one_of(&engines), DmaQueue::Ring),
        }
    }

    fn transfer(&mut self, dst: DmaAccess, src: DmaAccess) -> (Engine, InstructionKind) {
        let (engine, queue) = self.way(dst.dtype != src.dtype);
        (engine, InstructionKind::Dma { dst, src, queue, gather: None })
    }

    /// Whole outputs, so that none is left unwritten.
    pub(super) fn fill_outputs(&mut self) {
        for output in self.outputs.clone() {
            let HbmTensor { dtype, shape, kind, .. } = self.program.tensor(output).clone();
            if kind.is_given() {
                continue;
            }
            let tile = self.tile(Space::Sbuf, dtype, shape[0] as u8, shape[1]);
            let value = self.random.below(9) as f32 - 4.0;
            let dst = self.whole(tile);
            let engine = self.random.one_of(&[Engine::Pool, Engine::Dve]);
            self.emit_new(tile, engine, InstructionKind::Memset { dst, value });
            let (dst, src) = (self.region(output, shape[0], shape[1]), self.tile_side(tile, shape[0], 0, shape[1]));
            let (engine, kind) = self.transfer(dst, src);
            self.emit(engine, kind);
        }
        self.load();
    }

    pub(super) fn load(&mut self) {
        let input = self.random.one_of(&self.inputs);
        let HbmTensor { dtype, shape, .. } = self.program.tensor(input).clone();
        let limit = shape[0].min(128);
        let n_rows = usize::from(self.random.one_of(&PARTITIONS)).min(limit);
        let n_columns = 1 + self.random.below(shape[1].min(MAX_COLUMNS));
        let dtype = if self.random.once_in(4) { self.random.one_of(&ON_CHIP) } else { dtype };
        let tile = self.tile(Space::Sbuf, dtype, n_rows as u8, n_columns);
        let (dst, src) = (self.tile_side(tile, n_rows, 0, n_columns), self.region(input, n_rows, n_columns));
        let (engine, kind) = self.transfer(dst, src);
        self.emit_new(tile, engine, kind);
    }

    pub(super) fn store(&mut self) {
        let tile = self.sbuf_source();
        self.store_of(tile);
    }

    fn store_of(&mut self, tile: TileId) {
        let output = self.random.one_of(&self.outputs);
        let shape = self.program.tensor(output).shape.clone();
        let n_rows = usize::from(self.n_partitions(tile)).min(shape[0]);
        let n_columns = self.n_columns(tile).min(shape[1]);
        let first = self.random.below(self.n_columns(tile) - n_columns + 1);
        let (dst, src) = (self.region(output, n_rows, n_columns), self.tile_side(tile, n_rows, first, n_columns));
        let (engine, kind) = self.transfer(dst, src);
        self.emit(engine, kind);
    }

    /// The newest tiles, so that not all of the program is dead.
    pub(super) fn store_last(&mut self) {
        let newest: Vec<TileId> = self.sbuf.iter().rev().take(4).copied().collect();
        newest.into_iter().for_each(|tile| self.store_of(tile));
    }

    /// Rows of a 2-byte tensor or tile that the DMA engines turn, where the chip has that mode.
    pub(super) fn turn(&mut self) {
        let target = self.program.target.target();
        let block = target.dma_transpose_rows as usize;
        let input = self.random.one_of(&self.inputs);
        let HbmTensor { dtype, shape, .. } = self.program.tensor(input).clone();
        if !target.dma_transpose || dtype.size_bytes() != 2 || shape[0] < block {
            return;
        }
        let n_rows = block * (1 + self.random.below((shape[0] / block).min(4)));
        let n_columns = 1 + self.random.below(shape[1].min(128));
        let tile = self.tile(Space::Sbuf, dtype, n_columns as u8, n_rows);
        let alignment = &mut self.program.tiles[tile.index()].alignment_bytes;
        *alignment = (*alignment).max(target.dma_transpose_alignment_bytes);
        let src = self.region(input, n_rows, n_columns);
        let mut dst = self.tile_side(tile, n_columns, 0, n_rows);
        dst.dims.reverse();
        let engine = self.random.one_of(&[Engine::Sp, Engine::Act]);
        let queue = DmaQueue::HardwareTranspose;
        self.emit_new(tile, engine, InstructionKind::Dma { dst, src, queue, gather: None });
    }

    /// From tile to tile, transposed or not; or over scratch memory; or from input to output.
    pub(super) fn move_in_memory(&mut self) {
        match self.random.below(3) {
            0 => {
                let from = self.sbuf_source();
                let (n_rows, n_columns) = (usize::from(self.n_partitions(from)), self.n_columns(from));
                let mut src = self.tile_side(from, n_rows, 0, n_columns);
                let (mut rows, mut columns) = (n_rows, n_columns);
                if self.random.once_in(2) {
                    (rows, columns) = (n_columns, n_rows);
                    src.dims.reverse();
                }
                let dtype = if self.random.once_in(4) { self.random.one_of(&ON_CHIP) } else { src.dtype };
                let tile = self.tile(Space::Sbuf, dtype, rows as u8, columns);
                let dst = self.tile_side(tile, rows, 0, columns);
                let (engine, kind) = self.transfer(dst, src);
                self.emit_new(tile, engine, kind);
            }
            1 => self.through_scratch(),
            _ => {
                let (input, output) = (self.random.one_of(&self.inputs), self.random.one_of(&self.outputs));
                if input == output {
                    return;
                }
                let (from, to) = (self.program.tensor(input).shape.clone(), self.program.tensor(output).shape.clone());
                let (n_rows, n_columns) =
                    (1 + self.random.below(from[0].min(to[0])), 1 + self.random.below(from[1].min(to[1])));
                let (dst, src) = (self.region(output, n_rows, n_columns), self.region(input, n_rows, n_columns));
                let (engine, kind) = self.transfer(dst, src);
                self.emit(engine, kind);
            }
        }
    }

    /// Into device memory and back. All of the scratch tensor is written by its first user.
    fn through_scratch(&mut self) {
        let scratch = match self.scratch {
            Some(scratch) => scratch,
            None => {
                let scratch = self.tensor(HbmKind::Scratch, Dtype::F32, [128, 16]);
                let tile = self.tile(Space::Sbuf, Dtype::F32, 128, 16);
                let dst = self.whole(tile);
                self.emit_new(tile, Engine::Pool, InstructionKind::Memset { dst, value: 0.5 });
                let (dst, src) = (self.region(scratch, 128, 16), self.tile_side(tile, 128, 0, 16));
                let (engine, kind) = self.transfer(dst, src);
                self.emit(engine, kind);
                self.scratch = Some(scratch);
                scratch
            }
        };
        let from = self.sbuf_source();
        let (n_rows, n_columns) = (usize::from(self.n_partitions(from)), self.n_columns(from).min(16));
        let (dst, src) = (self.region(scratch, n_rows, n_columns), self.tile_side(from, n_rows, 0, n_columns));
        let (engine, kind) = self.transfer(dst, src);
        self.emit(engine, kind);
        let n_rows = usize::from(self.random.one_of(&PARTITIONS));
        let tile = self.tile(Space::Sbuf, Dtype::F32, n_rows as u8, 16);
        let (dst, src) = (self.tile_side(tile, n_rows, 0, 16), self.region(scratch, n_rows, 16));
        let (engine, kind) = self.transfer(dst, src);
        self.emit_new(tile, engine, kind);
    }

    /// Rows of a tensor by index: gathered, or scattered.
    pub(super) fn indexed_rows(&mut self) {
        let indices = match self.indices {
            Some(indices) => indices,
            None => {
                let indices = self.tile(Space::Sbuf, Dtype::I32, 128, 1);
                let (dst, src) = (self.tile_side(indices, 128, 0, 1), self.region(self.index_constant, 128, 1));
                let (engine, kind) = self.transfer(dst, src);
                self.emit(engine, kind);
                self.indices = Some(indices);
                indices
            }
        };
        let n_rows = self.random.one_of(&PARTITIONS);
        let mut index = self.view(indices, 0, SmallVec::new());
        index.n_partitions = n_rows;
        let scatters = self.random.once_in(2);
        let tensor = if scatters { self.random.one_of(&self.outputs) } else { self.random.one_of(&self.inputs) };
        let HbmTensor { dtype, shape, .. } = self.program.tensor(tensor).clone();
        let n_columns = 1 + self.random.below(shape[1].min(MAX_COLUMNS));
        let gather = Some(Gather { index, row_elements: shape[1] as u32, n_rows: INDEXED_ROWS });
        let in_hbm = DmaAccess {
            place: DmaPlace::Hbm { tensor },
            offset: self.random.below(shape[1] - n_columns + 1) as u64,
            dims: smallvec![
                DmaDim { partition_step: 0, step: shape[1] as i64, count: u32::from(n_rows) },
                DmaDim { partition_step: 0, step: 1, count: n_columns as u32 }
            ],
            dtype,
        };
        let queue = DmaQueue::Software;
        if !scatters {
            let dtype = if self.random.once_in(4) { self.random.one_of(&ON_CHIP) } else { dtype };
            let tile = self.tile(Space::Sbuf, dtype, n_rows, n_columns);
            let dst = self.tile_side(tile, usize::from(n_rows), 0, n_columns);
            self.emit_new(tile, Engine::Pool, InstructionKind::Dma { dst, src: in_hbm, queue, gather });
            return;
        }
        let from = self.sbuf_source();
        if self.n_partitions(from) >= n_rows && self.n_columns(from) >= n_columns {
            let src = self.tile_side(from, usize::from(n_rows), 0, n_columns);
            self.emit(Engine::Pool, InstructionKind::Dma { dst: in_hbm, src, queue, gather });
        }
    }
}
