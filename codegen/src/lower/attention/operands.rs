//! Operands of attention's products: where they lie already as the tensor engine wants them, views;
//! else loaded, and transposed on the way.

use std::ops::Range;

use ir::program::{Dim, Engine, InstructionKind, Space, TileView};
use ir::types::Shape;
use ir::{Dtype, types::packed_strides};
use smallvec::{SmallVec, smallvec};

use super::{Columns, Context, RowBlock, Shared};
use crate::lower::Lowerer;
use crate::lower::storage::{contiguous, layout, padded, view};
use crate::map::{Base, Grid, Map, N_PARTITIONS, Piece};

/// Rows that are loaded, and transposed, together: as many keys have their scores in one bank.
pub(super) const ROWS_TOGETHER: usize = 4 * N_PARTITIONS;

impl Lowerer<'_> {
    /// Keys of a bank of scores with their features on partitions, made when they are first read.
    pub(super) fn key_columns(&mut self, context: &Context, shared: &mut Shared, bank: usize) -> Columns {
        while shared.keys.len() <= bank {
            let number = shared.keys.len();
            let span = number * context.n_bank..context.extents.n_keys.min((number + 1) * context.n_bank);
            let map = head_map(&context.operands[1], &shared_lead(context), shared.head..shared.head + 1);
            shared.keys.push(self.turned(&map, span, context.score_dtype));
        }
        shared.keys[bank].clone()
    }

    /// A block of 128 values with their keys on partitions, made when they are first read.
    pub(super) fn value_rows(&mut self, context: &Context, shared: &mut Shared, block: usize) -> TileView {
        while shared.values.len() <= block {
            let first = shared.values.len() * N_PARTITIONS;
            let span = first..context.extents.n_keys.min(first + ROWS_TOGETHER);
            let map = head_map(&context.operands[2], &shared_lead(context), shared.head..shared.head + 1);
            shared.values.extend(self.natural_rows(&map, span, context.weight_dtype));
        }
        shared.values[block].clone()
    }

    /// The queries of a block with their features on partitions, by 128 features.
    pub(super) fn query_columns(&mut self, context: &mut Context, block: &RowBlock) -> Columns {
        let n_rows = block.n_rows();
        let (head, first) = (block.heads.start, block.queries.start / ROWS_TOGETHER * ROWS_TOGETHER);
        let part = |columns: &Columns| {
            let start = (block.queries.start - first) as u32;
            let cut =
                |view: &TileView| TileView { offset: view.offset + start, dims: contiguous(n_rows), ..view.clone() };
            columns.iter().map(cut).collect()
        };
        if let Some((_, columns)) = context.queries.as_ref().filter(|(key, _)| *key == (head, first)) {
            return part(columns);
        }
        let heads = head_map(&context.operands[0], &context.lead, block.heads.clone());
        let last = if block.heads.len() > 1 { n_rows } else { heads.shape[1].min(first + ROWS_TOGETHER) };
        let columns = self.turned(&heads, first..last, context.score_dtype);
        context.queries = Some(((head, first), columns.clone()));
        part(&columns)
    }

    /// Rows of a map [heads, rows, columns] with the columns on partitions, by 128 columns. Rows count
    /// through all heads.
    fn turned(&mut self, map: &Map, rows: Range<usize>, dtype: Dtype) -> Columns {
        let n_columns = map.shape[2];
        let slices: SmallVec<[Range<usize>; 1]> =
            (0..n_columns).step_by(N_PARTITIONS).map(|start| start..n_columns.min(start + N_PARTITIONS)).collect();
        if map.shape[0] == 1 && packs_rows(map) {
            let rows = map.slice(1, rows.start, rows.end, 1);
            return slices.iter().map(|columns| self.loaded_turned(&rows, columns, dtype)).collect();
        }
        let blocks = self.natural_rows(map, rows.clone(), dtype);
        slices.iter().map(|columns| self.transposed_blocks(&blocks, columns, rows.len(), dtype)).collect()
    }

    /// Columns on partitions straight from where each column's rows are packed.
    fn loaded_turned(&mut self, map: &Map, columns: &Range<usize>, dtype: Dtype) -> TileView {
        let turned = map.transpose(&[0, 2, 1]).slice(1, columns.start, columns.end, 1);
        if let Some(found) = self.rows_in_place(&turned, dtype) {
            return found;
        }
        let grid = Grid::new(&turned.shape, layout(0, 2), 1);
        let tile = self.fill_from(&turned, &turned.shape.clone(), &grid, 0, 0, dtype);
        self.whole(tile)
    }

    /// Blocks of 128 rows side by side, their columns on partitions.
    fn transposed_blocks(
        &mut self,
        blocks: &[TileView],
        columns: &Range<usize>,
        n_rows: usize,
        dtype: Dtype,
    ) -> TileView {
        let n_columns = columns.len() as u8;
        let tile = self.new_tile("turned", Space::Sbuf, dtype, n_columns, n_rows);
        if !self.target.pe_exact_transpose {
            for (position, block) in blocks.iter().enumerate() {
                let at = (position * N_PARTITIONS) as u32;
                let dst = view(tile, n_columns, at, contiguous(usize::from(block.n_partitions)), dtype);
                self.transpose(dst, column_view(block, columns));
            }
            return self.whole(tile);
        }
        let per_bank = (self.target.psum_bank_bytes as usize / dtype.size_bytes() / N_PARTITIONS).max(1);
        for (group, blocks) in blocks.chunks(per_bank).enumerate() {
            let n_rows = blocks.iter().map(|block| usize::from(block.n_partitions)).sum();
            let psum = self.new_tile("transpose", Space::Psum, dtype, n_columns, n_rows);
            for (position, block) in blocks.iter().enumerate() {
                let at = (position * N_PARTITIONS) as u32;
                let dst = view(psum, n_columns, at, contiguous(usize::from(block.n_partitions)), dtype);
                self.emit(Engine::Pe, InstructionKind::Transpose { dst, data: column_view(block, columns) });
            }
            let at = (group * per_bank * N_PARTITIONS) as u32;
            let dst = view(tile, n_columns, at, contiguous(n_rows), dtype);
            let src = self.whole(psum);
            self.emit(Engine::Dve, InstructionKind::TensorCopy { dst, src });
        }
        self.whole(tile)
    }

    /// Rows of a map [heads, rows, columns], 128 to a view, with rows on partitions. Rows count through
    /// all heads.
    fn natural_rows(&mut self, map: &Map, rows: Range<usize>, dtype: Dtype) -> Vec<TileView> {
        if map.shape[0] > 1 {
            debug_assert!(rows.end <= N_PARTITIONS, "several heads are one block");
            return vec![self.rows_of_heads(map, dtype)];
        }
        let spans = rows.clone().step_by(N_PARTITIONS).map(|start| start..rows.end.min(start + N_PARTITIONS));
        let blocks: Vec<Map> = spans.map(|span| map.slice(1, span.start, span.end, 1)).collect();
        if blocks.iter().all(|block| view_of(block).is_some()) {
            return blocks.iter().filter_map(|block| self.rows_in_place(block, dtype)).collect();
        }
        if map.is_hbm() && packs_rows(map) {
            return self.turned_back(&map.slice(1, rows.start, rows.end, 1), blocks.len(), dtype);
        }
        let n_whole = rows.len() / N_PARTITIONS;
        let mut views =
            self.whole_blocks(&map.slice(1, rows.start, rows.start + n_whole * N_PARTITIONS, 1), n_whole, dtype);
        if n_whole < blocks.len() {
            views.push(self.rows_of_heads(&blocks[n_whole], dtype));
        }
        views
    }

    /// Blocks of 128 rows of a map whose columns are the rows in device memory: loaded as they lie
    /// there, and turned.
    fn turned_back(&mut self, map: &Map, n_blocks: usize, dtype: Dtype) -> Vec<TileView> {
        let (n_rows, n_columns) = (map.shape[1], map.shape[2]);
        let n_whole = n_rows / N_PARTITIONS;
        let whole = self.new_tile("turned", Space::Sbuf, dtype, N_PARTITIONS as u8, n_whole * n_columns);
        let mut views: Vec<TileView> = (0..n_whole)
            .map(|block| {
                let at = (block * n_columns) as u32;
                view(whole, N_PARTITIONS as u8, at, contiguous(n_columns), dtype)
            })
            .collect();
        if n_whole < n_blocks {
            let n_rest = (n_rows % N_PARTITIONS) as u8;
            let tile = self.new_tile("turned", Space::Sbuf, dtype, n_rest, n_columns);
            views.push(self.whole(tile));
        }
        let turned = map.transpose(&[0, 2, 1]);
        for start in (0..n_columns).step_by(N_PARTITIONS) {
            let columns = start..n_columns.min(start + N_PARTITIONS);
            let source = self.rows_of_heads(&turned.slice(1, columns.start, columns.end, 1), dtype);
            let part = |block: usize| {
                let rows = block * N_PARTITIONS..n_rows.min((block + 1) * N_PARTITIONS);
                column_view(&source, &rows)
            };
            let to: Vec<TileView> = views.iter().map(|block| column_view(block, &columns)).collect();
            self.transpose_side_by_side((0..n_whole).map(part).collect(), &to[..n_whole], n_columns);
            self.transpose_side_by_side((n_whole..n_blocks).map(part).collect(), &to[n_whole..], n_columns);
        }
        views
    }

    /// Transposes blocks of equal shape into parts of one tile that lie `step` elements apart, in one
    /// eviction.
    fn transpose_side_by_side(&mut self, blocks: Vec<TileView>, to: &[TileView], step: usize) {
        let Some(first) = to.first() else { return };
        let n_columns = first.n_elements();
        let padded = padded(n_columns, first.dtype);
        let fits = blocks.len() * padded * first.dtype.size_bytes() <= self.target.psum_bank_bytes as usize;
        if !fits || !self.target.pe_exact_transpose {
            for (data, dst) in blocks.into_iter().zip(to) {
                self.transpose(dst.clone(), data);
            }
            return;
        }
        let n_blocks = blocks.len();
        let psum = self.new_tile("transpose", Space::Psum, first.dtype, first.n_partitions, n_blocks * padded);
        let at =
            |index: usize| view(psum, first.n_partitions, (index * padded) as u32, contiguous(n_columns), first.dtype);
        for (index, data) in blocks.into_iter().enumerate() {
            self.emit(Engine::Pe, InstructionKind::Transpose { dst: at(index), data });
        }
        let (dst, src) = (blocks_view(first.clone(), n_blocks, step), blocks_view(at(0), n_blocks, padded));
        self.emit(Engine::Dve, InstructionKind::TensorCopy { dst, src });
    }

    /// Whole blocks of 128 rows in one tile, filled by as few transfers as there are pieces.
    fn whole_blocks(&mut self, map: &Map, n_blocks: usize, dtype: Dtype) -> Vec<TileView> {
        if n_blocks == 0 {
            return Vec::new();
        }
        let n_columns = map.shape[2];
        let Some(blocks) = map.reshape(&[n_blocks, N_PARTITIONS, n_columns]) else {
            let block = |index: usize| map.slice(1, index * N_PARTITIONS, (index + 1) * N_PARTITIONS, 1);
            return (0..n_blocks).map(|index| self.rows_of_heads(&block(index), dtype)).collect();
        };
        let grid = Grid::new(&blocks.shape, layout(1, 1), n_blocks);
        let tile = self.fill_from(&blocks, &blocks.shape.clone(), &grid, 0, 0, dtype);
        let at =
            |index: usize| view(tile, N_PARTITIONS as u8, (index * n_columns) as u32, contiguous(n_columns), dtype);
        (0..n_blocks).map(at).collect()
    }

    /// At most 128 rows, through all heads of the map.
    fn rows_of_heads(&mut self, map: &Map, dtype: Dtype) -> TileView {
        if let Some(found) = self.rows_in_place(map, dtype) {
            return found;
        }
        let grid = Grid::new(&map.shape, layout(0, 2), 1);
        let tile = self.fill_from(map, &map.shape.clone(), &grid, 0, 0, dtype);
        self.whole(tile)
    }

    /// A view of a map that lies as a block of rows, copied where it is of another element type.
    fn rows_in_place(&mut self, map: &Map, dtype: Dtype) -> Option<TileView> {
        let found = view_of(map)?;
        if found.dtype == dtype {
            return Some(found);
        }
        let tile = self.new_tile("convert", Space::Sbuf, dtype, found.n_partitions, found.n_elements());
        let dst = self.whole(tile);
        self.emit(Engine::Dve, InstructionKind::TensorCopy { dst: dst.clone(), src: found });
        Some(dst)
    }
}

/// Blocks that lie `step` elements apart as one view.
pub(super) fn blocks_view(first: TileView, n_blocks: usize, step: usize) -> TileView {
    let n_rows = first.n_elements();
    if step == n_rows || n_blocks == 1 {
        return TileView { dims: contiguous(n_blocks * n_rows), ..first };
    }
    let dims = smallvec![Dim { step: step as i16, count: n_blocks as u16 }, Dim { step: 1, count: n_rows as u16 }];
    TileView { dims, ..first }
}

/// Leading dimensions of keys and values.
fn shared_lead(context: &Context) -> Shape {
    let shape = &context.operands[1].shape;
    Shape::from_slice(&shape[..shape.len() - 2])
}

/// Position of a head among the leading dimensions.
pub(super) fn lead_index(lead: &[usize], head: usize) -> Shape {
    packed_strides(lead).iter().zip(lead).map(|(&stride, &extent)| head / stride % extent).collect()
}

/// Consecutive heads of one batch as a map [heads, rows, columns].
pub(super) fn head_map(map: &Map, lead: &[usize], heads: Range<usize>) -> Map {
    let mut part = map.clone();
    let first = lead_index(lead, heads.start);
    for (axis, &index) in first.iter().enumerate() {
        let count = if axis + 1 == lead.len() { heads.len() } else { 1 };
        part = part.slice(axis, index, index + count, 1);
    }
    let (rows, columns) = (map.shape[map.shape.len() - 2], map.shape[map.shape.len() - 1]);
    part.reshape(&[heads.len(), rows, columns]).expect("dimensions of one element come and go freely")
}

/// A map [heads, rows, columns] of at most 128 rows that lies with its rows on the partitions of one
/// tile from the first on.
fn view_of(map: &Map) -> Option<TileView> {
    let [piece] = map.pieces.as_slice() else { return None };
    let Base::Tile(tile) = piece.base else { return None };
    let [heads, rows, columns] = piece.axes[..] else { return None };
    let heads_fit = heads.count == 1 || (heads.partition_step, heads.step) == (rows.count as i64, 0);
    let rows_fit = rows.count == 1 || (rows.partition_step, rows.step) == (1, 0);
    let columns_fit = columns.count == 1 || (columns.partition_step, columns.step) == (0, 1);
    let n_rows = heads.count * rows.count;
    let is_whole = [heads.count, rows.count, columns.count] == map.shape[..];
    let fits = is_whole && heads_fit && rows_fit && columns_fit && piece.partition == 0 && n_rows <= N_PARTITIONS;
    fits.then(|| view(tile, n_rows as u8, piece.offset as u32, contiguous(columns.count), map.dtype))
}

/// True where the rows of each column of a map [1, rows, columns] are packed: in device memory, or on
/// chip with columns on partitions.
fn packs_rows(map: &Map) -> bool {
    let packs = |piece: &Piece| {
        let [_, rows, columns] = piece.axes[..] else { return false };
        match piece.base {
            Base::Hbm(_) => rows.step == 1 && columns.step != 1,
            Base::Tile(_) => (rows.partition_step, rows.step) == (0, 1) && columns.partition_step == 1,
        }
    };
    map.pieces.iter().all(packs)
}

fn column_view(block: &TileView, columns: &Range<usize>) -> TileView {
    let offset = block.offset + columns.start as u32;
    TileView { offset, dims: contiguous(columns.len()), ..block.clone() }
}
