//! Reads at places that an operand names: row gathers by DMA, and constant indices as access
//! patterns.

use ir::graph::NodeId;
use ir::program::{
    AluOp, DmaAccess, DmaDim, DmaPlace, DmaQueue, Engine, Gather, HbmId, InstructionKind, Space, TileId, TileView,
};
use ir::types::{Shape, broadcast_shapes, packed_strides};
use ir::{Dtype, Node, Op, ValueId};
use smallvec::SmallVec;

use super::storage::{Frame, Storage, TileSet, at_index, layout, repeat, stored_dtype};
use super::{Lowerer, Unsupported};
use crate::map::{Axis, Base, Grid, Map, Piece};

/// Dimensions of a transfer's side beside that of its rows.
const MAX_INNER_DIMS: usize = 3;

/// Most pieces that a constant index may break a value into.
const MAX_PIECES: usize = 4096;

impl Lowerer<'_> {
    pub(super) fn indexing(&mut self, id: NodeId, node: &Node) -> Result<(), Vec<Unsupported>> {
        let refuse = |reason: &str| Err(vec![Unsupported { node: Some(id), reason: reason.to_string() }]);
        match &node.op {
            Op::GatherRows(_) => {
                self.gather_rows(node.operands[0], node.operands[1], node.results[0]);
                Ok(())
            }
            Op::ScatterRows(op) => match self.scatter_rows(node, op.axis) {
                None => Ok(()),
                Some(reason) => refuse(&reason),
            },
            Op::Gather(op) => {
                let index_shape = &self.graph.ty(node.operands[1]).shape;
                let single = index_shape.iter().enumerate().all(|(axis, &dim)| axis == op.axis || dim == 1);
                if !single {
                    return refuse("a gather with an index for each row, of integers or of many elements");
                }
                self.gather_along(node.operands[0], node.operands[1], op.axis, node.results[0]);
                Ok(())
            }
            Op::Index(op) => {
                let axes: Vec<usize> = op.axes.iter().copied().collect();
                let indices: Option<Vec<(Shape, Vec<i64>)>> =
                    node.operands[1..].iter().map(|&index| self.constant_integers(index)).collect();
                if let Some(indices) = indices {
                    return match self.index_constant(node.operands[0], &axes, &indices) {
                        Some(map) => {
                            self.storage[node.results[0].index()] = Some(Storage::Map(map));
                            Ok(())
                        }
                        None => refuse("a constant index that breaks its operand into too many pieces"),
                    };
                }
                if axes != [0] {
                    return refuse("an index over other axes than the first that is not constant");
                }
                self.index_rows(node.operands[0], node.operands[1], node.results[0]);
                Ok(())
            }
            _ => unreachable!("`{}` is not an indexing op", node.op.name()),
        }
    }

    /// result[i.., :] = table[ids[i..], :], one descriptor per row.
    fn gather_rows(&mut self, table: ValueId, ids: ValueId, result: ValueId) {
        let source = self.hbm_piece(table);
        let ids_shape = self.graph.ty(ids).shape.clone();
        let tiles = self.index_tiles(ids);
        self.gather_into(&source, 0, &ids_shape, &tiles, result);
    }

    /// As [`Lowerer::gather_rows`], where negative ids count from the end.
    fn index_rows(&mut self, table: ValueId, ids: ValueId, result: ValueId) {
        let n_rows = self.graph.ty(table).shape[0];
        let ids_shape = self.graph.ty(ids).shape.clone();
        let tiles: Vec<TileId> = self.index_tiles(ids).into_iter().map(|tile| self.wrapped(tile, n_rows)).collect();
        let source = self.hbm_piece(table);
        self.gather_into(&source, 0, &ids_shape, &tiles, result);
    }

    /// result[.., j, ..] = x[.., index[j], ..] where all other dimensions of the index are 1.
    fn gather_along(&mut self, value: ValueId, index: ValueId, axis: usize, result: ValueId) {
        let mut source = self.hbm_piece(value);
        let shape = self.graph.ty(index).shape.clone();
        for (position, other) in source.axes.iter_mut().enumerate() {
            if position != axis {
                other.count = 1;
            }
        }
        let tiles = self.index_tiles(index);
        self.gather_into(&source, axis, &shape, &tiles, result);
    }

    /// Rows written to device memory, one descriptor each: in place where the operand is an input that
    /// this result updates and that nothing else reads, else on a copy. The answer is a reason to
    /// refuse.
    fn scatter_rows(&mut self, node: &Node, axis: usize) -> Option<String> {
        let (base, ids, values) = (node.operands[0], node.operands[1], node.operands[2]);
        let result = node.results[0];
        let ty = self.graph.ty(result).clone();
        if ty.dtype == Dtype::I64 {
            return Some("writing 64-bit integers at an index".to_owned());
        }
        let map = match self.updated_in_place(base, result) {
            Some(map) => map,
            None => {
                let base = self.stored_map(base);
                self.packed_in_hbm(&base)
            }
        };
        let target = map.pieces[0].clone();
        self.storage[result.index()] = Some(Storage::Map(map));
        if ty.n_elements() == 0 || self.graph.ty(ids).n_elements() == 0 {
            return None;
        }
        let mut order: SmallVec<[usize; 6]> = SmallVec::from_slice(&[axis]);
        order.extend((0..ty.rank()).filter(|&other| other != axis));
        let rows = self.stored_map(values).transpose(&order);
        let grid = Grid::new(&rows.shape, layout(0, 1), 1);
        let row_bytes = grid.n_free * ty.dtype.size_bytes();
        if row_bytes > self.target.sbuf_usable_bytes as usize {
            return Some(format!("writing rows of {row_bytes} bytes at an index"));
        }
        let inner: SmallVec<[Axis; 6]> = order[1..].iter().map(|&other| target.axes[other]).collect();
        let indices: Vec<TileId> =
            self.index_tiles(ids).into_iter().map(|tile| self.wrapped(tile, ty.shape[axis])).collect();
        for (block, &index) in indices.iter().enumerate() {
            let shape = rows.shape.clone();
            let tile = self.fill_from(&rows, &shape, &grid, block, 0, ty.dtype);
            let gather = Gather {
                index: self.whole(index),
                row_elements: target.axes[axis].step as u32,
                n_rows: target.axes[axis].count as u32,
            };
            let to = Piece { axes: inner.clone(), start: SmallVec::from_elem(0, inner.len()), ..target.clone() };
            self.scatter_block(&to, (tile, 0, grid.rows(block).len()), &gather, ty.dtype);
        }
        None
    }

    /// The map of an input that may be updated in place: the result is its update, and nothing else
    /// reads it.
    fn updated_in_place(&mut self, base: ValueId, result: ValueId) -> Option<Map> {
        let root = self.root(base);
        let position = self.graph.inputs.iter().position(|input| input.value == root)?;
        let is_update =
            |output: &ir::graph::GraphOutput| output.alias == Some(position as u32) && output.value == Some(result);
        let is_updated = self.uses[root.index()] == 1 && self.graph.outputs.iter().any(is_update);
        (is_updated && root == base).then(|| self.map(base))
    }

    /// One row per partition of a tile, from this element on, to indexed rows of a box.
    fn scatter_block(
        &mut self,
        to: &Piece,
        (tile, offset, n_rows): (TileId, usize, usize),
        gather: &Gather,
        dtype: Dtype,
    ) {
        let mut dst = to.access(dtype);
        let n_free: usize = to.extents().iter().product();
        if dst.dims.len() > MAX_INNER_DIMS {
            let split = to.axes.iter().position(|axis| axis.count > 1).expect("many dimensions have a long one");
            let n_inner = n_free / to.axes[split].count;
            for index in 0..to.axes[split].count {
                let part = at_index(to, split, index);
                self.scatter_block(&part, (tile, offset + index * n_inner, n_rows), gather, dtype);
            }
            return;
        }
        dst.dims.insert(0, DmaDim { partition_step: 0, step: 0, count: n_rows as u32 });
        let mut dims = SmallVec::new();
        dims.push(DmaDim { partition_step: 1, step: 0, count: n_rows as u32 });
        if n_free != 1 {
            dims.push(DmaDim { partition_step: 0, step: 1, count: n_free as u32 });
        }
        let src = DmaAccess { place: DmaPlace::Tile { tile, partition: 0 }, offset: offset as u64, dims, dtype };
        let kind = InstructionKind::Dma { dst, src, queue: DmaQueue::Software, gather: Some(gather.clone()) };
        self.emit(Engine::Pool, kind);
    }

    /// The value as one affine piece in HBM.
    fn hbm_piece(&mut self, value: ValueId) -> Piece {
        let map = self.stored_map(value);
        match map.pieces.as_slice() {
            [piece] if map.is_hbm() => piece.clone(),
            _ => self.packed_in_hbm(&map).pieces[0].clone(),
        }
    }

    /// The indices as tiles of one 32-bit integer per partition.
    fn index_tiles(&mut self, ids: ValueId) -> Vec<TileId> {
        let shape = self.graph.ty(ids).shape.clone();
        let grid = Grid::new(&shape, layout(0, shape.len()), 1);
        (0..grid.n_blocks())
            .map(|block| {
                let frame = Frame { shape: shape.clone(), grid: grid.clone(), block, segment: 0, chunk: None };
                self.operand_tile(ids, &frame, Some(Dtype::I32)).0
            })
            .collect()
    }

    /// index + (index < 0) * n, exactly.
    fn wrapped(&mut self, index: TileId, n_rows: usize) -> TileId {
        let source = self.whole(index);
        let [negative, shift, wrapped] =
            std::array::from_fn(|_| self.new_tile("index", Space::Sbuf, Dtype::I32, source.n_partitions, 1));
        let kind = InstructionKind::TensorScalar {
            dst: self.whole(negative),
            data: source.clone(),
            op0: AluOp::Less,
            operand0: ir::program::ScalarOperand::Immediate(0.0),
            reverse0: false,
            second: None,
        };
        self.emit(Engine::Dve, kind);
        let length = self.splat_vector(n_rows as f64, Dtype::I32, source.n_partitions);
        self.integer(self.whole(shift), self.whole(negative), repeat(&length, 1), AluOp::Multiply);
        self.integer(self.whole(wrapped), source, self.whole(shift), AluOp::Add);
        wrapped
    }

    fn integer(&mut self, dst: TileView, lhs: TileView, rhs: TileView, op: AluOp) {
        self.emit(Engine::Pool, InstructionKind::TensorTensor { dst, lhs, rhs, op });
    }

    /// Gathers along `axis` of a piece in HBM; the result has the index's dimensions first.
    fn gather_into(&mut self, source: &Piece, axis: usize, ids_shape: &[usize], indices: &[TileId], result: ValueId) {
        let ty = self.graph.ty(result).clone();
        let dtype = stored_dtype(ty.dtype);
        let words = if ty.dtype == Dtype::I64 { 2 } else { 1 };
        let Base::Hbm(tensor) = source.base else { unreachable!("gathers read HBM") };
        let inner: SmallVec<[Axis; 6]> =
            source.axes.iter().enumerate().filter(|&(at, _)| at != axis).map(|(_, &inner)| inner).collect();
        let grid = Grid::new(&ty.shape, layout(0, ids_shape.len()), 1);
        let gathered = GatherSource { tensor, offset: source.offset, row: source.axes[axis], inner, words, dtype };
        let mut tiles = Vec::new();
        for (block, &index) in indices.iter().enumerate() {
            let n_rows = grid.rows(block).len();
            let tile = self.new_tile("gather", Space::Sbuf, dtype, n_rows as u8, grid.n_free);
            self.gather_block(&gathered, index, tile, n_rows, grid.n_free);
            tiles.push(tile);
        }
        self.define_tiles(result, TileSet { shape: ty.shape, grid, dtype, tiles });
    }

    fn gather_block(&mut self, source: &GatherSource, index: TileId, tile: TileId, n_rows: usize, n_free: usize) {
        let inner = Piece {
            start: SmallVec::from_elem(0, source.inner.len()),
            base: Base::Hbm(source.tensor),
            partition: 0,
            offset: source.offset,
            axes: source.inner.clone(),
        };
        let mut src = inner.access(source.dtype);
        src.offset *= source.words as u64;
        for dim in &mut src.dims {
            dim.step *= source.words;
        }
        src.dims.insert(0, DmaDim { partition_step: 0, step: 0, count: n_rows as u32 });
        let mut dims = SmallVec::new();
        dims.push(DmaDim { partition_step: 1, step: 0, count: n_rows as u32 });
        if n_free != 1 {
            dims.push(DmaDim { partition_step: 0, step: 1, count: n_free as u32 });
        }
        let place = DmaPlace::Tile { tile, partition: 0 };
        let dst = DmaAccess { place, offset: 0, dims, dtype: source.dtype };
        let gather = Gather {
            index: self.whole(index),
            row_elements: (source.row.step * source.words) as u32,
            n_rows: source.row.count as u32,
        };
        let kind = InstructionKind::Dma { dst, src, queue: DmaQueue::Software, gather: Some(gather) };
        self.emit(Engine::Pool, kind);
    }

    /// The elements of an integer constant.
    fn constant_integers(&self, value: ValueId) -> Option<(Shape, Vec<i64>)> {
        let shape = self.graph.ty(value).shape.clone();
        let (_, node) = self.graph.producer(value)?;
        let n_elements: usize = shape.iter().product();
        match &node.op {
            Op::Full(full) => Some((shape, vec![full.value.get() as i64; n_elements])),
            Op::Iota(iota) => {
                let at = |index: usize| iota.start.wrapping_add(iota.step.wrapping_mul(index as i64));
                Some((shape, (0..n_elements).map(at).collect()))
            }
            Op::Constant(constant) => {
                let size = constant.dtype.size_bytes();
                let decode = |bytes: &[u8]| {
                    let mut wide = [if bytes[size - 1] >= 128 { 255 } else { 0 }; 8];
                    wide[..size].copy_from_slice(bytes);
                    i64::from_le_bytes(wide)
                };
                constant.dtype.is_integer().then(|| (shape, constant.data.chunks_exact(size).map(decode).collect()))
            }
            _ => None,
        }
    }

    /// Advanced indexing with constant indices, as pieces of the operand's map.
    fn index_constant(&mut self, value: ValueId, axes: &[usize], indices: &[(Shape, Vec<i64>)]) -> Option<Map> {
        let mut map = self.map(value);
        if map.pieces.len() != 1 {
            map = self.packed_in_hbm(&map);
        }
        let piece = map.pieces[0].clone();
        let mut common = Shape::new();
        for (shape, _) in indices {
            common = broadcast_shapes(&common, shape).ok()?;
        }
        let n_points: usize = common.iter().product();
        let points: Vec<(i64, i64)> = (0..n_points)
            .map(|flat| {
                let (mut partition, mut offset) = (0, 0);
                for (&axis, (shape, values)) in axes.iter().zip(indices) {
                    let index = values[broadcast_index(shape, &common, flat)];
                    let length = map.shape[axis] as i64;
                    let index = if index < 0 { index + length } else { index };
                    partition += index * piece.axes[axis].partition_step;
                    offset += index * piece.axes[axis].step;
                }
                (partition, offset)
            })
            .collect();
        let adjacent = axes.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let at = if adjacent { axes[0] } else { 0 };
        let kept: Vec<usize> = (0..map.shape.len()).filter(|axis| !axes.contains(axis)).collect();
        let n_before = if adjacent { at } else { 0 };
        let assemble = |index_axes: &[Axis], index_start: &[usize], (partition, offset): (i64, i64)| {
            let mut axes: SmallVec<[Axis; 6]> = kept[..n_before].iter().map(|&axis| piece.axes[axis]).collect();
            axes.extend(index_axes.iter().copied());
            axes.extend(kept[n_before..].iter().map(|&axis| piece.axes[axis]));
            let mut start: Shape = SmallVec::from_elem(0, n_before);
            start.extend(index_start.iter().copied());
            start.resize(axes.len(), 0);
            Piece {
                start,
                axes,
                partition: piece.partition + partition,
                offset: piece.offset + offset,
                ..piece.clone()
            }
        };
        let mut shape: Shape = kept[..n_before].iter().map(|&axis| map.shape[axis]).collect();
        shape.extend(common.iter().copied());
        shape.extend(kept[n_before..].iter().map(|&axis| map.shape[axis]));
        let pieces = match affine_points(&points, &common) {
            Some(index_axes) => vec![assemble(&index_axes, &vec![0; common.len()], points[0])],
            None if n_points <= MAX_PIECES => {
                let strides = packed_strides(&common);
                let one = Axis { count: 1, partition_step: 0, step: 0 };
                (0..n_points)
                    .map(|flat| {
                        let start: Vec<usize> =
                            common.iter().zip(&strides).map(|(&dim, &stride)| flat / stride % dim).collect();
                        assemble(&vec![one; common.len()], &start, points[flat])
                    })
                    .collect()
            }
            None => return None,
        };
        Some(Map { shape, dtype: map.dtype, pieces })
    }
}

struct GatherSource {
    tensor: HbmId,
    offset: i64,
    row: Axis,
    inner: SmallVec<[Axis; 6]>,
    /// 32-bit words per element that the offsets are scaled by.
    words: i64,
    dtype: Dtype,
}

/// The points as one affine pattern over `shape`, if they are.
fn affine_points(points: &[(i64, i64)], shape: &[usize]) -> Option<SmallVec<[Axis; 6]>> {
    let strides = packed_strides(shape);
    let first = *points.first()?;
    let axes: SmallVec<[Axis; 6]> = shape
        .iter()
        .zip(&strides)
        .map(|(&count, &stride)| {
            let (partition, offset) = if count > 1 { points[stride] } else { first };
            Axis { count, partition_step: partition - first.0, step: offset - first.1 }
        })
        .collect();
    let fits = points.iter().enumerate().all(|(flat, &(partition, offset))| {
        let (mut at_partition, mut at_offset) = first;
        for ((axis, &dim), &stride) in axes.iter().zip(shape).zip(&strides) {
            let coordinate = (flat / stride % dim) as i64;
            at_partition += coordinate * axis.partition_step;
            at_offset += coordinate * axis.step;
        }
        (at_partition, at_offset) == (partition, offset)
    });
    fits.then_some(axes)
}

/// Position in a tensor of shape `from` of row-major element `flat` of what it broadcasts to.
fn broadcast_index(from: &[usize], to: &[usize], flat: usize) -> usize {
    let (own, strides) = (packed_strides(from), packed_strides(to));
    let skipped = to.len() - from.len();
    let coordinate = |axis: usize| flat / strides[axis + skipped] % to[axis + skipped];
    (0..from.len()).filter(|&axis| from[axis] != 1).map(|axis| coordinate(axis) * own[axis]).sum()
}
