//! Contractions: matmul with its epilogue folded into the eviction from PSUM.
//!
//! The PE wants the contraction axis on the partitions of both operands. An operand that lies the
//! other way round is transposed block by block, on the PE where its transposes are bit-exact, else
//! on the DVE. The left operand is stationary, so that rows of the result lie on partitions.

use ir::ops::Activation;
use ir::program::{ActivationFunction, AluOp, Engine, InstructionKind, ScalarOperand, Space, TileId, TileView};
use ir::types::Shape;
use ir::{Dtype, Node, NodeId, Op, TensorType, ValueId};
use smallvec::SmallVec;

use super::Lowerer;
use super::rowwise::ROW_ELEMENTS;
use super::storage::{Frame, Operand, TileSet, contiguous, layout, stored_dtype, view};
use crate::map::{Axis, Base, Grid, N_PARTITIONS, Piece};

/// What a contraction is, with shared operands' batches merged into rows.
#[derive(Clone, Debug)]
pub(super) struct Contraction {
    pub lhs: ValueId,
    pub rhs: ValueId,
    bias: Option<ValueId>,
    activation: Activation,
    pub transpose_lhs: bool,
    pub transpose_rhs: bool,
    pub n_batches: usize,
    pub n_rows: usize,
    pub n_inner: usize,
    pub n_columns: usize,
    /// True where all batches share the right operand.
    shared: bool,
    dtype: Dtype,
    /// Element type that the PE reads.
    pub operand_dtype: Dtype,
}

impl Contraction {
    /// Rows and columns of both operands as they are stored, where there is one batch.
    pub(super) fn stored_shapes(&self) -> ((usize, usize), (usize, usize)) {
        let turned = |shape: (usize, usize), is_turned: bool| if is_turned { (shape.1, shape.0) } else { shape };
        let lhs = turned((self.n_rows, self.n_inner), self.transpose_lhs);
        (lhs, turned((self.n_inner, self.n_columns), self.transpose_rhs))
    }

    /// True where the result is the sum itself.
    pub(super) fn is_plain(&self) -> bool {
        self.bias.is_none() && self.activation == Activation::None
    }
}

/// One operand with its contraction axis on partitions: a tile per 128 of it.
struct OperandTiles {
    tiles: Vec<TileId>,
    /// Elements per partition of a tile.
    n_free: usize,
    /// First free element of the batch that is being emitted.
    offset: usize,
}

impl Lowerer<'_> {
    pub(super) fn contraction(&mut self, id: NodeId, node: &Node) {
        let contraction = self.describe(node);
        if self.blocked_contraction(id, node, &contraction) {
            return;
        }
        let result = node.results[0];
        let ty = self.graph.ty(result).clone();
        let result_layout = self.graph.layouts[result.index()].expect("contractions are placed");
        let per_tile = self.batches_per_tile(&contraction, &ty);
        let grid = Grid::new(&ty.shape, result_layout, per_tile);
        let dtype = stored_dtype(contraction.dtype);
        let mut tiles = Vec::new();
        for block in 0..grid.n_blocks() {
            for segment in 0..grid.n_segments() {
                let n_free = grid.outer(segment).len() * contraction.n_columns;
                tiles.push(self.new_tile("value", Space::Sbuf, dtype, grid.rows(block).len() as u8, n_free));
            }
        }
        for batch in 0..contraction.n_batches {
            let rhs = self.moving(&contraction, batch);
            for block in 0..grid.n_blocks() {
                let tile = tiles[block * grid.n_segments() + batch / per_tile];
                let rows = grid.rows(block);
                let lhs = self.stationary(&contraction, batch, block);
                self.block(&contraction, &lhs, &rhs, (tile, batch % per_tile, rows.len()));
            }
        }
        self.define_tiles(result, TileSet { shape: ty.shape, grid, dtype, tiles });
    }

    /// Batches in one tile of the result: all, unless it is so large that parts of it will leave.
    fn batches_per_tile(&self, contraction: &Contraction, ty: &TensorType) -> usize {
        if ty.size_bytes() < self.large_bytes() {
            return contraction.n_batches.max(1);
        }
        (ROW_ELEMENTS / contraction.n_columns.max(1)).clamp(1, contraction.n_batches.max(1))
    }

    fn describe(&self, node: &Node) -> Contraction {
        let (activation, transpose_lhs, transpose_rhs, dtype) = match &node.op {
            Op::Matmul(op) => (Activation::None, op.transpose_lhs, op.transpose_rhs, op.dtype),
            Op::FusedMatmul(op) => (op.activation, op.transpose_lhs, op.transpose_rhs, op.dtype),
            _ => unreachable!("`{}` is not a contraction", node.op.name()),
        };
        let (lhs, rhs) = (node.operands[0], node.operands[1]);
        let result = &self.graph.ty(node.results[0]).shape;
        let rank = result.len();
        let shared = self.graph.ty(rhs).rank() == 2;
        let stored = &self.graph.ty(lhs).shape;
        let n_inner = if transpose_lhs { stored[stored.len() - 2] } else { stored[stored.len() - 1] };
        let batches: usize = result[..rank - 2].iter().product();
        let merges = shared && !transpose_lhs;
        let narrow = |value: ValueId| {
            let dtype = self.physical_dtype(value);
            dtype.is_half().then_some(dtype)
        };
        let operand_dtype = match (narrow(lhs), narrow(rhs)) {
            (Some(left), Some(right)) if left == right => left,
            (_, _) => Dtype::F32,
        };
        Contraction {
            lhs,
            rhs,
            bias: node.operands.get(2).copied(),
            activation,
            transpose_lhs,
            transpose_rhs,
            n_batches: if merges { 1 } else { batches },
            n_rows: if merges { batches * result[rank - 2] } else { result[rank - 2] },
            n_inner,
            n_columns: result[rank - 1],
            shared,
            dtype,
            operand_dtype,
        }
    }

    /// The right operand as [K, N] tiles.
    fn moving(&mut self, contraction: &Contraction, batch: usize) -> OperandTiles {
        let batch = if contraction.shared { 0 } else { batch };
        let (inner, columns) = (contraction.n_inner, contraction.n_columns);
        let n_batches = if contraction.shared { 1 } else { contraction.n_batches };
        if !contraction.transpose_rhs {
            return self.natural(contraction.rhs, (n_batches, inner, columns), batch, contraction.operand_dtype);
        }
        let stored = (n_batches, columns, inner);
        let tiles = (0..inner.div_ceil(N_PARTITIONS))
            .map(|block| self.transposed(contraction.rhs, stored, batch, block, 0..columns, contraction.operand_dtype))
            .collect();
        OperandTiles { tiles, n_free: columns, offset: 0 }
    }

    /// The left operand as [K, M] tiles for one block of rows.
    fn stationary(&mut self, contraction: &Contraction, batch: usize, block: usize) -> OperandTiles {
        let (inner, n_rows) = (contraction.n_inner, contraction.n_rows);
        let rows = block * N_PARTITIONS..n_rows.min((block + 1) * N_PARTITIONS);
        if contraction.transpose_lhs {
            let stored = (contraction.n_batches, inner, n_rows);
            let mut tiles = self.natural(contraction.lhs, stored, batch, contraction.operand_dtype);
            tiles.offset += rows.start;
            return tiles;
        }
        let stored = (contraction.n_batches, n_rows, inner);
        let tiles = (0..inner.div_ceil(N_PARTITIONS))
            .map(|inner_block| {
                let dtype = contraction.operand_dtype;
                self.transposed(contraction.lhs, stored, batch, inner_block, rows.clone(), dtype)
            })
            .collect();
        OperandTiles { tiles, n_free: rows.len(), offset: 0 }
    }

    /// A frame over an operand seen as [batches, rows, columns].
    fn operand_frame(&self, value: ValueId, (batches, rows, columns): (usize, usize, usize), block: usize) -> Frame {
        let shape = self.graph.ty(value).shape.clone();
        let wanted = crate::place::layout_with_extents(&shape, (batches, rows, columns));
        let chosen = wanted.unwrap_or_else(|| layout(shape.len().saturating_sub(2), 1));
        let grid = Grid::new(&shape, chosen, batches);
        Frame { shape, grid, block, segment: 0, chunk: None }
    }

    /// Tiles with the operand's rows on partitions, as it is stored.
    fn natural(&mut self, value: ValueId, stored: (usize, usize, usize), batch: usize, dtype: Dtype) -> OperandTiles {
        let (_, rows, columns) = stored;
        let tiles = (0..rows.div_ceil(N_PARTITIONS))
            .map(|block| {
                let frame = self.operand_frame(value, stored, block);
                self.operand_tile_as(value, &frame, dtype)
            })
            .collect();
        OperandTiles { tiles, n_free: columns, offset: batch * columns }
    }

    fn operand_tile_as(&mut self, value: ValueId, frame: &Frame, dtype: Dtype) -> TileId {
        let physical = self.physical_dtype(value);
        if physical == dtype || !matches!(self.storage(value), super::Storage::Tiles(_)) {
            return self.operand_tile(value, frame, Some(dtype)).0;
        }
        let (tile, _) = self.operand_tile(value, frame, None);
        let key = (tile, dtype);
        if let Some(&converted) = self.converted.get(&key) {
            return converted;
        }
        let src = self.whole(tile);
        let converted = self.new_tile("convert", Space::Sbuf, dtype, src.n_partitions, src.n_elements());
        let dst = self.whole(converted);
        self.emit(Engine::Dve, InstructionKind::TensorCopy { dst, src });
        self.converted.insert(key, converted);
        converted
    }

    /// Columns `128 * inner_block..` of the operand's `rows`, with those columns on partitions.
    fn transposed(
        &mut self,
        value: ValueId,
        stored: (usize, usize, usize),
        batch: usize,
        inner_block: usize,
        rows: std::ops::Range<usize>,
        dtype: Dtype,
    ) -> TileId {
        let key = (self.root(value), dtype, stored, batch, inner_block, rows.start);
        if let Some(&tile) = self.transposes.get(&key) {
            return tile;
        }
        let (_, _, n_columns) = stored;
        let columns = inner_block * N_PARTITIONS..n_columns.min((inner_block + 1) * N_PARTITIONS);
        if let Some(tile) = self.loaded_transposed(value, &columns, &rows, dtype) {
            self.transposes.insert(key, tile);
            return tile;
        }
        let tile = self.new_tile("transposed", Space::Sbuf, dtype, columns.len() as u8, rows.len());
        for block in rows.start / N_PARTITIONS..rows.end.div_ceil(N_PARTITIONS) {
            let frame = self.operand_frame(value, stored, block);
            let source = self.operand_tile_as(value, &frame, dtype);
            let n_rows = frame.grid.rows(block).len();
            let offset = (batch * n_columns + columns.start) as u32;
            let data = view(source, n_rows as u8, offset, contiguous(columns.len()), dtype);
            let at = (block * N_PARTITIONS - rows.start) as u32;
            let dst = view(tile, columns.len() as u8, at, contiguous(n_rows), dtype);
            self.transpose(dst, data);
        }
        self.transposes.insert(key, tile);
        tile
    }

    /// Columns of a matrix on partitions, straight from device memory where its columns are packed.
    fn loaded_transposed(
        &mut self,
        value: ValueId,
        columns: &std::ops::Range<usize>,
        rows: &std::ops::Range<usize>,
        dtype: Dtype,
    ) -> Option<TileId> {
        let super::Storage::Map(map) = self.storage(value) else { return None };
        let packs_columns =
            |piece: &Piece| matches!(piece.base, Base::Hbm(_)) && matches!(piece.axes[..], [Axis { step: 1, .. }, _]);
        if !map.pieces.iter().all(packs_columns) {
            return None;
        }
        let turned = map.transpose(&[1, 0]).slice(0, columns.start, columns.end, 1).slice(1, rows.start, rows.end, 1);
        let shape = turned.shape.clone();
        let grid = Grid::new(&shape, layout(0, 1), 1);
        Some(self.fill_from(&turned, &shape, &grid, 0, 0, dtype))
    }

    /// dst[f, p] = data[p, f] for up to 128 x 128 elements.
    pub(super) fn transpose(&mut self, dst: TileView, data: TileView) {
        if self.target.pe_exact_transpose {
            let (n_rows, n_columns) = (usize::from(data.n_partitions), data.n_elements());
            let psum = self.new_tile("transpose", Space::Psum, data.dtype, n_columns as u8, n_rows);
            let through = self.whole(psum);
            self.emit(Engine::Pe, InstructionKind::Transpose { dst: through.clone(), data });
            self.emit(Engine::Dve, InstructionKind::TensorCopy { dst, src: through });
            return;
        }
        let side = self.target.dve_transpose_max as usize;
        let (n_rows, n_columns) = (usize::from(data.n_partitions), data.n_elements());
        for row in (0..n_rows).step_by(side) {
            for column in (0..n_columns).step_by(side) {
                let (height, width) = (side.min(n_rows - row), side.min(n_columns - column));
                let from = TileView {
                    partition: data.partition + row as u8,
                    n_partitions: height as u8,
                    offset: data.offset + column as u32,
                    dims: contiguous(width),
                    ..data.clone()
                };
                let to = TileView {
                    partition: dst.partition + column as u8,
                    n_partitions: width as u8,
                    offset: dst.offset + row as u32,
                    dims: contiguous(height),
                    ..dst.clone()
                };
                self.emit(Engine::Dve, InstructionKind::Transpose { dst: to, data: from });
            }
        }
    }

    /// One block of result rows: accumulate over the contraction axis, evict with the epilogue.
    fn block(
        &mut self,
        contraction: &Contraction,
        lhs: &OperandTiles,
        rhs: &OperandTiles,
        (tile, batch, n_rows): (TileId, usize, usize),
    ) {
        let max_columns = (self.target.psum_bank_bytes / 4) as usize;
        for start in (0..contraction.n_columns).step_by(max_columns) {
            let n_columns = max_columns.min(contraction.n_columns - start);
            let psum = self.new_tile("product", Space::Psum, Dtype::F32, n_rows as u8, n_columns);
            let product = self.whole(psum);
            for (position, (&left, &right)) in lhs.tiles.iter().zip(&rhs.tiles).enumerate() {
                let n_inner = N_PARTITIONS.min(contraction.n_inner - position * N_PARTITIONS) as u8;
                let dtype = contraction.operand_dtype;
                debug_assert!(lhs.offset + n_rows <= lhs.offset.max(lhs.n_free) + n_rows);
                let stationary = view(left, n_inner, lhs.offset as u32, contiguous(n_rows), dtype);
                let moving = view(right, n_inner, (rhs.offset + start) as u32, contiguous(n_columns), dtype);
                let accumulate = position > 0;
                self.emit(Engine::Pe, InstructionKind::Matmul { dst: product.clone(), stationary, moving, accumulate });
            }
            let offset = (batch * contraction.n_columns + start) as u32;
            let dst_dtype = self.program.tile(tile).dtype;
            let dst = view(tile, n_rows as u8, offset, contiguous(n_columns), dst_dtype);
            self.evict(contraction, dst, product, start);
        }
    }

    pub(super) fn evict(&mut self, contraction: &Contraction, dst: TileView, product: TileView, start: usize) {
        let function = match contraction.activation {
            Activation::None => None,
            Activation::Relu => Some(ActivationFunction::Relu),
            Activation::Gelu => Some(ActivationFunction::Gelu),
            Activation::GeluTanh => Some(ActivationFunction::GeluTanh),
            Activation::Silu => Some(ActivationFunction::Silu),
            Activation::Tanh => Some(ActivationFunction::Tanh),
            Activation::Sigmoid => Some(ActivationFunction::Sigmoid),
            Activation::Exp => Some(ActivationFunction::Exp),
        };
        let mut data = product;
        if let Some(bias) = contraction.bias {
            let n_columns = data.n_elements();
            let bias = self.bias_view(bias, data.n_partitions, start, n_columns);
            let biased = match function {
                None => dst.clone(),
                Some(_) => {
                    let tile = self.new_tile("scratch", Space::Sbuf, Dtype::F32, data.n_partitions, n_columns);
                    self.whole(tile)
                }
            };
            let kind = match bias {
                Operand::Immediate(number) => InstructionKind::TensorScalar {
                    dst: biased.clone(),
                    data,
                    op0: AluOp::Add,
                    operand0: ScalarOperand::Immediate(number),
                    reverse0: false,
                    second: None,
                },
                Operand::Vector(rhs) | Operand::Full(rhs) => {
                    InstructionKind::TensorTensor { dst: biased.clone(), lhs: data, rhs, op: AluOp::Add }
                }
            };
            self.emit(Engine::Dve, kind);
            data = biased;
        }
        match function {
            Some(function) => {
                let (one, zero) = (ScalarOperand::Immediate(1.0), ScalarOperand::Immediate(0.0));
                self.emit_activation(function, dst, data, one, zero);
            }
            None if contraction.bias.is_some() => {}
            None => self.emit(Engine::Dve, InstructionKind::TensorCopy { dst, src: data }),
        }
    }

    /// Columns of a bias over N, repeated on partitions by the DMA that loads it.
    fn bias_view(&mut self, bias: ValueId, n_partitions: u8, start: usize, n_columns: usize) -> Operand {
        if let super::Storage::Splat(number) = self.storage(bias) {
            return Operand::Immediate(*number as f32);
        }
        let n_bias = self.graph.ty(bias).n_elements();
        let shape: Shape = SmallVec::from_slice(&[N_PARTITIONS, n_bias]);
        let grid = Grid::new(&shape, layout(0, 1), 1);
        let frame = Frame { shape, grid, block: 0, segment: 0, chunk: None };
        let (tile, _) = self.operand_tile(bias, &frame, None);
        let dtype = self.program.tile(tile).dtype;
        Operand::Full(view(tile, n_partitions, start as u32, contiguous(n_columns), dtype))
    }
}
