//! Operands of large contractions, panel by panel, with the contraction axis on partitions.
//!
//! A panel is one tile that holds some blocks of 128 of the contraction axis by a range of the other
//! axis. Where the operand lies that way already, a view of it is the panel. From device memory it
//! is one transfer where the other axis is packed there; else its rows are loaded or found on chip
//! and turned, 128 x 128 elements at a time.

use std::collections::BTreeMap;
use std::ops::Range;

use ir::program::{Dim, DmaQueue, Engine, HbmId, HbmKind, InstructionKind, Space, TileId, TileView};
use ir::types::Shape;
use ir::{Dtype, ValueId};
use smallvec::{SmallVec, smallvec};

use super::Lowerer;
use super::storage::{contiguous, layout, padded, restrict, stored_dtype, view};
use crate::map::{Axis, Base, Grid, Map, N_PARTITIONS, Piece};

/// Columns of a row that are loaded at a time to be turned.
const LOADED_COLUMNS: usize = 1024;

/// An operand as a matrix [inner, free] that the PE sums over `inner`.
#[derive(Clone, Debug)]
pub(super) struct PanelSource {
    /// The value whose storage it is.
    root: ValueId,
    /// True where the value is stored as [free, inner].
    is_turned_view: bool,
    map: Map,
    /// True where `free` lies on partitions or is not packed in device memory.
    needs_turn: bool,
    pub dtype: Dtype,
    pub n_inner: usize,
    pub n_free: usize,
    /// Blocks of 128 of the contraction axis in one panel.
    pub inner_blocks: usize,
    /// Free elements of one panel.
    pub free_length: usize,
}

/// Identifies a panel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PanelKey {
    root: ValueId,
    is_turned_view: bool,
    dtype: Dtype,
    shape: (usize, usize),
    cut: (usize, usize),
    /// How often the operand was read from device memory before.
    pass: usize,
    inner_panel: usize,
    free_panel: usize,
}

/// Panels that exist, and which blocks of rows they hold.
#[derive(Debug, Default)]
pub(super) struct Panels {
    tiles: BTreeMap<PanelKey, TileId>,
    turned: BTreeMap<(PanelKey, usize), ()>,
    rows: BTreeMap<(ValueId, bool, usize, usize), TileId>,
    /// Copies in device memory, by the key of the first pass: elements as they lie in the panel.
    stashed: BTreeMap<PanelKey, HbmId>,
}

impl PanelSource {
    /// Panels along the contraction axis.
    pub(super) fn n_inner_panels(&self) -> usize {
        self.n_inner.div_ceil(N_PARTITIONS * self.inner_blocks)
    }

    /// Contraction indices of a panel.
    pub(super) fn inner(&self, panel: usize) -> Range<usize> {
        let length = N_PARTITIONS * self.inner_blocks;
        panel * length..self.n_inner.min((panel + 1) * length)
    }

    fn free(&self, panel: usize) -> Range<usize> {
        panel * self.free_length..self.n_free.min((panel + 1) * self.free_length)
    }

    fn key(&self, pass: usize, inner_panel: usize, free_panel: usize) -> PanelKey {
        PanelKey {
            root: self.root,
            is_turned_view: self.is_turned_view,
            dtype: self.dtype,
            shape: (self.n_inner, self.n_free),
            cut: (self.inner_blocks, self.free_length),
            pass,
            inner_panel,
            free_panel,
        }
    }

    /// True where reading the operand again costs a transfer and nothing else.
    pub(super) fn is_in_device_memory(&self) -> bool {
        self.map.is_hbm()
    }

    /// True where transfers alone fill the panels.
    pub(super) fn is_loaded(&self) -> bool {
        self.is_in_device_memory() && !self.needs_turn
    }

    /// Tiles that hold the operand.
    pub(super) fn tiles(&self) -> impl Iterator<Item = TileId> + '_ {
        self.map.tiles_read()
    }
}

impl Lowerer<'_> {
    /// A value of [rows, columns] as an operand that is summed over its rows or its columns; `None`
    /// where its map is not affine in two dimensions.
    pub(super) fn panel_source(
        &mut self,
        value: ValueId,
        (n_rows, n_columns): (usize, usize),
        sums_rows: bool,
        dtype: Dtype,
    ) -> Option<PanelSource> {
        let stored = self.map(value).reshape(&[n_rows, n_columns])?;
        let map = if sums_rows { stored } else { stored.transpose(&[1, 0]) };
        let lies_right = |piece: &Piece| {
            let [inner, free] = &piece.axes[..] else { return false };
            match piece.base {
                Base::Hbm(_) => free.step == 1 || free.count == 1,
                Base::Tile(_) => inner.partition_step == 1 && free.partition_step == 0,
            }
        };
        let (n_inner, n_free) = if sums_rows { (n_rows, n_columns) } else { (n_columns, n_rows) };
        Some(PanelSource {
            root: self.root(value),
            is_turned_view: !sums_rows,
            needs_turn: !map.pieces.iter().all(lies_right),
            map,
            dtype,
            n_inner,
            n_free,
            inner_blocks: 4,
            free_length: n_free,
        })
    }

    /// The part of an operand in contraction block `block` of a panel, elements `free` of its other
    /// axis, which lie in one panel.
    pub(super) fn panel_view(
        &mut self,
        source: &PanelSource,
        pass: usize,
        inner_panel: usize,
        block: usize,
        free: Range<usize>,
    ) -> TileView {
        let inner = source.inner(inner_panel);
        let start = inner.start + block * N_PARTITIONS;
        let n_inner = N_PARTITIONS.min(inner.end - start) as u8;
        if let Some(direct) = self.direct_panel(source, start..start + usize::from(n_inner), free.clone()) {
            return direct;
        }
        let free_panel = free.start / source.free_length;
        let key = source.key(pass, inner_panel, free_panel);
        let stash = self.panels.stashed.get(&source.key(0, inner_panel, free_panel)).copied();
        let tile = if let Some(stash) = stash {
            self.fetched_panel(source, key, stash)
        } else if source.needs_turn {
            let blocks = free.start / N_PARTITIONS..free.end.div_ceil(N_PARTITIONS);
            self.turn(source, &key, blocks)
        } else {
            self.loaded_panel(source, key)
        };
        let length = source.free(free_panel).len();
        let offset = block * length + free.start - free_panel * source.free_length;
        view(tile, n_inner, offset as u32, contiguous(free.len()), source.dtype)
    }

    /// A view of the operand itself, where a single tile holds the part with `inner` on partitions.
    fn direct_panel(&self, source: &PanelSource, inner: Range<usize>, free: Range<usize>) -> Option<TileView> {
        if source.needs_turn || stored_dtype(source.map.dtype) != source.dtype {
            return None;
        }
        let parts = source.map.cut(&[inner.start, free.start], &[inner.len(), free.len()]);
        let [piece] = &parts[..] else { return None };
        let (Base::Tile(tile), 0) = (piece.base, piece.partition) else { return None };
        let covers = piece.axes[0].count == inner.len() && piece.axes[1].count == free.len();
        let partitions = piece.axes[0].partition_step == 1 && piece.axes[0].step == 0 || inner.len() == 1;
        (covers && partitions && (piece.axes[1].step == 1 || free.len() == 1))
            .then(|| view(tile, inner.len() as u8, piece.offset as u32, contiguous(free.len()), source.dtype))
    }

    fn new_panel(&mut self, source: &PanelSource, key: &PanelKey, label: &str, dtype: Dtype) -> TileId {
        let n_inner = source.inner(key.inner_panel).len();
        let n_elements = n_inner.div_ceil(N_PARTITIONS) * source.free(key.free_panel).len();
        self.new_tile(label, Space::Sbuf, dtype, n_inner.min(N_PARTITIONS) as u8, n_elements)
    }

    /// Copies a panel that has been made to device memory; later passes fetch it from there.
    pub(super) fn stash_panel(&mut self, source: &PanelSource, inner_panel: usize, free_panel: usize) {
        let key = source.key(0, inner_panel, free_panel);
        let Some(&tile) = self.panels.tiles.get(&key) else { return };
        let n_elements = source.inner(inner_panel).len().div_ceil(N_PARTITIONS) * source.free(free_panel).len();
        let name = format!("scratch_{}", self.program.tensors.len());
        let size = (N_PARTITIONS * n_elements * source.dtype.size_bytes()) as u64;
        let stash = self.new_tensor(name, HbmKind::Scratch, source.dtype, &[N_PARTITIONS, n_elements], size);
        for (in_memory, on_chip) in stash_pieces(source, &key, stash, tile) {
            self.copy_piece(&in_memory, source.dtype, &on_chip, source.dtype);
        }
        self.panels.stashed.insert(key, stash);
    }

    fn fetched_panel(&mut self, source: &PanelSource, key: PanelKey, stash: HbmId) -> TileId {
        if let Some(&tile) = self.panels.tiles.get(&key) {
            return tile;
        }
        let tile = self.new_panel(source, &key, "load", source.dtype);
        for (in_memory, on_chip) in stash_pieces(source, &key, stash, tile) {
            self.copy_piece(&on_chip, source.dtype, &in_memory, source.dtype);
        }
        self.panels.tiles.insert(key, tile);
        tile
    }

    /// A panel that transfers fill.
    fn loaded_panel(&mut self, source: &PanelSource, key: PanelKey) -> TileId {
        if let Some(&tile) = self.panels.tiles.get(&key) {
            return tile;
        }
        let physical = stored_dtype(source.map.dtype);
        let loaded = self.new_panel(source, &key, "load", physical);
        let (inner, free) = (source.inner(key.inner_panel), source.free(key.free_panel));
        let part = source.map.slice(0, inner.start, inner.end, 1).slice(1, free.start, free.end, 1);
        let n_whole = inner.len() / N_PARTITIONS * N_PARTITIONS;
        if n_whole > 0 {
            let whole = part.slice(0, 0, n_whole, 1);
            self.fill_blocks(loaded, 0, &whole, free.len());
        }
        if n_whole < inner.len() {
            let rest = part.slice(0, n_whole, inner.len(), 1);
            self.fill_blocks(loaded, n_whole / N_PARTITIONS, &rest, free.len());
        }
        let tile = if physical == source.dtype {
            loaded
        } else {
            let converted = self.new_panel(source, &key, "convert", source.dtype);
            self.convert_blocks(converted, loaded, inner.len(), free.len());
            converted
        };
        self.panels.tiles.insert(key, tile);
        tile
    }

    /// Copies the blocks of a panel to another element type; a last block of fewer partitions alone.
    fn convert_blocks(&mut self, converted: TileId, loaded: TileId, n_inner: usize, n_free: usize) {
        let n_whole = n_inner / N_PARTITIONS;
        let parts = [(0, n_whole, N_PARTITIONS), (n_whole, 1, n_inner % N_PARTITIONS)];
        for (first, count, n_partitions) in parts.into_iter().filter(|part| part.1 > 0 && part.2 > 0) {
            let of = |tile: TileId, dtype: Dtype| {
                view(tile, n_partitions as u8, (first * n_free) as u32, contiguous(count * n_free), dtype)
            };
            let (dst, src) = (self.program.tile(converted).dtype, self.program.tile(loaded).dtype);
            let kind = InstructionKind::TensorCopy { dst: of(converted, dst), src: of(loaded, src) };
            self.emit(Engine::Dve, kind);
        }
    }

    /// Transfers [blocks * 128 or fewer, free] elements to consecutive blocks of a panel.
    fn fill_blocks(&mut self, tile: TileId, first_block: usize, part: &Map, n_free: usize) {
        let n_inner = part.shape[0];
        let n_blocks = n_inner.div_ceil(N_PARTITIONS);
        let n_partitions = n_inner / n_blocks;
        let Some(part) = part.reshape(&[n_blocks, n_partitions, n_free]) else {
            // A piece ends inside a block: block by block there are only two dimensions.
            for block in 0..n_blocks {
                let rows = part.slice(0, block * n_partitions, (block + 1) * n_partitions, 1);
                self.fill_blocks(tile, first_block + block, &rows, n_free);
            }
            return;
        };
        let axis = |count, partition_step, step| Axis { count, partition_step, step };
        let dst = Piece {
            start: smallvec![0; 3],
            base: Base::Tile(tile),
            partition: 0,
            offset: (first_block * n_free) as i64,
            axes: smallvec![axis(n_blocks, 0, n_free as i64), axis(n_partitions, 1, 0), axis(n_free, 0, 1)],
        };
        let dtype = self.program.tile(tile).dtype;
        for src in part.cut(&dst.start, &dst.extents()) {
            self.copy_piece(&restrict(&dst, &src), dtype, &src, part.dtype);
        }
    }

    /// A panel of which these blocks of rows are turned.
    fn turn(&mut self, source: &PanelSource, key: &PanelKey, blocks: Range<usize>) -> TileId {
        let tile = match self.panels.tiles.get(key) {
            Some(&tile) => tile,
            None => {
                let tile = self.new_panel(source, key, "transposed", source.dtype);
                self.panels.tiles.insert(key.clone(), tile);
                tile
            }
        };
        let blocks: Vec<usize> =
            blocks.filter(|&block| self.panels.turned.insert((key.clone(), block), ()).is_none()).collect();
        for run in blocks.chunk_by(|one, next| one + 1 == *next) {
            let (first, end) = (run[0], run[run.len() - 1] + 1);
            let n_turned = self.turn_by_transfer(source, key, first..end, tile);
            for block in first + n_turned..end {
                self.turn_rows(source, key, block, tile);
            }
        }
        tile
    }

    /// True where transfers alone fill the panels, turning the rows on the way or not.
    pub(super) fn comes_by_transfers(&self, source: &PanelSource) -> bool {
        let is_whole = source.n_free.is_multiple_of(self.target.dma_transpose_rows as usize);
        source.is_loaded() || source.is_in_device_memory() && is_whole && self.can_be_turned_by_transfers(source)
    }

    /// True for element types and panels that DMA engines turn.
    fn can_be_turned_by_transfers(&self, source: &PanelSource) -> bool {
        self.target.dma_transpose
            && source.dtype.size_bytes() == 2
            && source.map.dtype == source.dtype
            && source.free_length.is_multiple_of(self.target.dma_transpose_rows as usize)
    }

    /// Loads rows of an operand in device memory turned, where DMA engines can: 2-byte elements that lie
    /// together along the contraction axis. Returns how many of the blocks of rows that made.
    fn turn_by_transfer(&mut self, source: &PanelSource, key: &PanelKey, blocks: Range<usize>, tile: TileId) -> usize {
        let (inner, free) = (source.inner(key.inner_panel), source.free(key.free_panel));
        let block_rows = self.target.dma_transpose_rows as usize;
        let is_turned = self.can_be_turned_by_transfers(source) && free.len().is_multiple_of(block_rows);
        // The last rows of an operand may be no whole block.
        let whole_rows = source.n_free / block_rows * block_rows;
        let n_blocks =
            blocks.clone().filter(|block| source.n_free.min((block + 1) * N_PARTITIONS) <= whole_rows).count();
        if !is_turned || n_blocks == 0 {
            return 0;
        }
        let rows = blocks.start * N_PARTITIONS..source.n_free.min((blocks.start + n_blocks) * N_PARTITIONS);
        let part = source.map.transpose(&[1, 0]).slice(0, rows.start, rows.end, 1);
        let n_whole = inner.len() / N_PARTITIONS;
        let parts = [(0, n_whole, N_PARTITIONS), (n_whole, 1, inner.len() % N_PARTITIONS)];
        let mut transfers = Vec::new();
        for (first, count, width) in parts.into_iter().filter(|part| part.1 > 0 && part.2 > 0) {
            let start = inner.start + first * N_PARTITIONS;
            let columns = part.slice(1, start, start + count * width, 1);
            let Some(columns) = columns.reshape(&[rows.len(), count, width]) else { return 0 };
            let columns = columns.transpose(&[1, 0, 2]);
            let pieces = columns.cut(&[0; 3], &[count, rows.len(), width]);
            let [piece] = &pieces[..] else { return 0 };
            let packed = piece.axes.iter().all(|axis| axis.partition_step == 0) && piece.axes[2].step == 1;
            let covers = piece.axes.iter().map(|axis| axis.count).eq([count, rows.len(), width]);
            if !matches!(piece.base, Base::Hbm(_)) || !packed || !covers {
                return 0;
            }
            let axis = |count, partition_step, step| Axis { count, partition_step, step };
            let dst = Piece {
                start: smallvec![0; 3],
                base: Base::Tile(tile),
                partition: 0,
                offset: (first * free.len() + rows.start - free.start) as i64,
                axes: smallvec![axis(count, 0, free.len() as i64), axis(rows.len(), 0, 1), axis(width, 1, 0)],
            };
            transfers.push((dst.access_by_axis(source.dtype), piece.access_by_axis(source.dtype)));
        }
        let alignment = &mut self.program.tiles[tile.index()].alignment_bytes;
        *alignment = (*alignment).max(self.target.dma_transpose_alignment_bytes);
        for (dst, src) in transfers {
            let queue = DmaQueue::HardwareTranspose;
            self.emit(Engine::Sp, InstructionKind::Dma { dst, src, queue, gather: None });
        }
        n_blocks
    }

    /// Makes the rows on chip that blocks of a panel are turned from.
    pub(super) fn make_rows(&mut self, source: &PanelSource, inner_panel: usize, blocks: Range<usize>) {
        if !source.needs_turn {
            return;
        }
        let inner = source.inner(inner_panel);
        for block in blocks {
            let rows = block * N_PARTITIONS..source.n_free.min((block + 1) * N_PARTITIONS);
            let parts = source.map.cut(&[inner.start, rows.start], &[inner.len(), rows.len()]);
            for piece in parts {
                if let Base::Tile(tile) = piece.base {
                    self.make_tile(tile);
                }
            }
        }
    }

    /// Turns 128 rows of an operand by the columns of a panel.
    fn turn_rows(&mut self, source: &PanelSource, key: &PanelKey, block: usize, tile: TileId) {
        let inner = source.inner(key.inner_panel);
        let rows = block * N_PARTITIONS..source.n_free.min((block + 1) * N_PARTITIONS);
        let free = source.free(key.free_panel);
        let at = rows.start - free.start;
        let n_whole = inner.len() / N_PARTITIONS;
        let mut first = 0;
        while first < inner.len().div_ceil(N_PARTITIONS) {
            // Blocks of 128 columns share an eviction; a shorter one has fewer partitions.
            let count = if first < n_whole { n_whole - first } else { 1 };
            let columns = inner.start + first * N_PARTITIONS;
            let width = N_PARTITIONS.min(inner.end - columns);
            let data: Vec<TileView> = (0..count)
                .map(|index| {
                    let start = columns + index * N_PARTITIONS;
                    self.row_view(source, block, start..start + width)
                })
                .collect();
            let dims: SmallVec<[Dim; 4]> = smallvec![
                Dim { step: free.len() as i16, count: count as u16 },
                Dim { step: 1, count: rows.len() as u16 }
            ];
            let offset = (first * free.len() + at) as u32;
            let dst = view(tile, width as u8, offset, dims, source.dtype);
            self.turn_blocks(dst, &data, rows.len(), free.len());
            first += count;
        }
    }

    /// dst[f, i, p] = data[i][p, f], with one eviction for all where the PE turns them.
    fn turn_blocks(&mut self, dst: TileView, data: &[TileView], n_rows: usize, step: usize) {
        let width = usize::from(dst.n_partitions);
        if !self.target.pe_exact_transpose || data[0].dtype.size_bytes() > 4 {
            for (index, part) in data.iter().enumerate() {
                let offset = dst.offset + (index * step) as u32;
                self.transpose(view(dst.tile, width as u8, offset, contiguous(n_rows), dst.dtype), part.clone());
            }
            return;
        }
        let dtype = data[0].dtype;
        let through_step = padded(n_rows, dtype);
        let psum = self.new_tile("transpose", Space::Psum, dtype, width as u8, data.len() * through_step);
        for (index, part) in data.iter().enumerate() {
            let through = view(psum, width as u8, (index * through_step) as u32, contiguous(n_rows), dtype);
            self.emit(Engine::Pe, InstructionKind::Transpose { dst: through, data: part.clone() });
        }
        let dims: SmallVec<[Dim; 4]> = smallvec![
            Dim { step: through_step as i16, count: data.len() as u16 },
            Dim { step: 1, count: n_rows as u16 }
        ];
        let src = view(psum, width as u8, 0, dims, dtype);
        self.emit(Engine::Dve, InstructionKind::TensorCopy { dst, src });
    }

    /// 128 rows of an operand that has to be turned, these columns, with the rows on partitions.
    fn row_view(&mut self, source: &PanelSource, block: usize, columns: Range<usize>) -> TileView {
        let rows = block * N_PARTITIONS..source.n_free.min((block + 1) * N_PARTITIONS);
        let dtype = stored_dtype(source.map.dtype);
        let parts = source.map.cut(&[columns.start, rows.start], &[columns.len(), rows.len()]);
        if let [piece] = &parts[..]
            && let Base::Tile(tile) = piece.base
        {
            let [inner, free] = [piece.axes[0], piece.axes[1]];
            let on_rows = free.partition_step == 1 && free.step == 0 || rows.len() == 1;
            let along = inner.partition_step == 0 && i16::try_from(inner.step).is_ok();
            if on_rows && along && piece.partition == 0 {
                self.make_tile(tile);
                let dims = smallvec![Dim { step: inner.step as i16, count: columns.len() as u16 }];
                return view(tile, rows.len() as u8, piece.offset as u32, dims, dtype);
            }
        }
        let start = columns.start / LOADED_COLUMNS * LOADED_COLUMNS;
        let length = LOADED_COLUMNS.min(source.n_inner - start);
        let key = (source.root, source.is_turned_view, block, start);
        let tile = match self.panels.rows.get(&key) {
            Some(&tile) => tile,
            None => {
                let stored = source.map.transpose(&[1, 0]).slice(1, start, start + length, 1);
                let shape: Shape = stored.shape.clone();
                let grid = Grid::new(&shape, layout(0, 1), 1);
                let tile = self.fill_from(&stored, &shape, &grid, block, 0, dtype);
                self.panels.rows.insert(key, tile);
                tile
            }
        };
        let offset = (columns.start - start) as u32;
        view(tile, rows.len() as u8, offset, contiguous(columns.len()), dtype)
    }
}

/// A panel in device memory and on chip, piece by piece: a last block of fewer partitions alone.
fn stash_pieces(source: &PanelSource, key: &PanelKey, stash: HbmId, tile: TileId) -> Vec<(Piece, Piece)> {
    let (n_inner, n_free) = (source.inner(key.inner_panel).len(), source.free(key.free_panel).len());
    let (n_whole, n_rest) = (n_inner / N_PARTITIONS, n_inner % N_PARTITIONS);
    let n_elements = n_inner.div_ceil(N_PARTITIONS) * n_free;
    let axis = |count, partition_step, step| Axis { count, partition_step, step };
    let piece = |base, (n_rows, n_columns), first: usize, rows: Axis| Piece {
        start: smallvec![0, 0],
        base,
        partition: 0,
        offset: first as i64,
        axes: smallvec![Axis { count: n_rows, ..rows }, axis(n_columns, 0, 1)],
    };
    let parts = [(0, (N_PARTITIONS, n_whole * n_free)), (n_whole * n_free, (n_rest, n_free))];
    let filled = parts.into_iter().filter(|(_, (n_rows, n_columns))| n_rows * n_columns > 0);
    filled
        .map(|(first, extents)| {
            let in_memory = piece(Base::Hbm(stash), extents, first, axis(0, 0, n_elements as i64));
            (in_memory, piece(Base::Tile(tile), extents, first, axis(0, 1, 0)))
        })
        .collect()
}
