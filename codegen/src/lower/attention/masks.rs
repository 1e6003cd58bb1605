//! What keeps queries from keys: causal bounds, which PE adds to products in PSUM, and masks, which
//! are added to scaled scores in SBUF.

use std::ops::Range;

use ir::Dtype;
use ir::program::{AluOp, Dim, Engine, InstructionKind, ScalarOperand, Space, TileView};
use smallvec::{SmallVec, smallvec};

use super::operands::head_map;
use super::{Context, RowBlock, scalar};
use crate::lower::Lowerer;
use crate::lower::functions::power_of_two;
use crate::lower::storage::{contiguous, layout, repeat};
use crate::map::{Grid, Map, N_PARTITIONS};

/// Added to scores that a causal bound excludes: after any scale that is not tiny their exponential
/// is 0, and bf16 holds it.
const EXCLUDED: f32 = -power_of_two(126);

/// Tiles that say which keys a causal bound excludes.
pub(super) struct Triangle {
    /// 1 on the diagonal.
    identity: TileView,
    /// [`EXCLUDED`] where the column is not below the row, 0 elsewhere.
    upper: TileView,
    /// -inf and 0 likewise, where a mask is added too.
    infinite: Option<TileView>,
}

/// What a mask's part depends on: first head, queries, number of rows, keys.
pub(super) type MaskKey = (usize, usize, usize, (usize, usize));

impl Lowerer<'_> {
    /// Adds what excludes keys under the causal bound to a product in PSUM, where it is not 0.
    pub(super) fn exclude_in_product(
        &mut self,
        context: &Context,
        block: &RowBlock,
        product: &TileView,
        keys: Range<usize>,
    ) {
        let (Some(triangle), Some((columns, first))) = (&context.triangle, excluded_columns(context, block, &keys))
        else {
            return;
        };
        let n_queries = block.queries.len();
        let mut dims: SmallVec<[Dim; 4]> = smallvec![Dim { step: 1, count: n_queries as u16 }];
        if block.heads.len() > 1 {
            dims.insert(0, Dim { step: 0, count: block.heads.len() as u16 });
        }
        let stationary = TileView { n_partitions: n_queries as u8, dims, ..triangle.identity.clone() };
        let offset = triangle.upper.offset + first as u32;
        let dims = contiguous(columns.len());
        let moving = TileView { n_partitions: n_queries as u8, offset, dims: dims.clone(), ..triangle.upper.clone() };
        let dst = TileView { offset: product.offset + columns.start as u32, dims, ..product.clone() };
        self.emit(Engine::Pe, InstructionKind::Matmul { dst, stationary, moving, accumulate: true });
    }

    /// scale * product + mask, and -inf for keys that a causal bound excludes.
    pub(super) fn masked(
        &mut self,
        context: &mut Context,
        block: &RowBlock,
        product: TileView,
        keys: Range<usize>,
    ) -> TileView {
        let tile = self.new_tile("scores", Space::Sbuf, Dtype::F32, block.n_rows() as u8, keys.len());
        let (dst, scale) = (self.whole(tile), context.op.scale.get());
        let kind = match context.mask.clone() {
            None => scalar(&dst, &product, AluOp::Multiply, scale),
            Some(mask) => InstructionKind::ScalarTensorTensor {
                dst: dst.clone(),
                data: product,
                op0: AluOp::Multiply,
                operand0: ScalarOperand::Immediate(scale),
                reverse0: false,
                op1: AluOp::Add,
                operand1: self.mask_view(context, &mask, block, keys.clone()),
                reverse1: false,
            },
        };
        self.emit(Engine::Dve, kind);
        let infinite = context.triangle.as_ref().and_then(|triangle| triangle.infinite.clone());
        if let (Some(infinite), Some((columns, first))) = (infinite, excluded_columns(context, block, &keys)) {
            let dims = contiguous(columns.len());
            let n_partitions = dst.n_partitions;
            let part = TileView { offset: columns.start as u32, dims: dims.clone(), ..dst.clone() };
            let rhs = TileView { n_partitions, offset: infinite.offset + first as u32, dims, ..infinite };
            self.emit(Engine::Dve, InstructionKind::TensorTensor { dst: part.clone(), lhs: part, rhs, op: AluOp::Add });
        }
        dst
    }

    /// The mask for a block's rows and some keys, as numbers to add.
    fn mask_view(&mut self, context: &mut Context, mask: &Map, block: &RowBlock, keys: Range<usize>) -> TileView {
        let part = head_map(mask, &context.lead, block.heads.clone());
        let part = part.slice(1, block.queries.start, block.queries.end, 1).slice(2, keys.start, keys.end, 1);
        let repeats = |axis: usize| {
            part.pieces.len() == 1
                && (part.pieces[0].axes[axis].step, part.pieces[0].axes[axis].partition_step) == (0, 0)
        };
        // A mask that is the same for all heads, or all queries, is loaded once.
        let lead_repeats = mask.pieces.len() == 1
            && mask.pieces[0].axes[..context.lead.len()].iter().all(|axis| (axis.step, axis.partition_step) == (0, 0));
        let first_head = if lead_repeats { 0 } else { block.heads.start };
        let first_query = if repeats(1) { 0 } else { block.queries.start };
        let key = (first_head, first_query, block.n_rows(), (keys.start, keys.end));
        if let Some(known) = context.masks.get(&key) {
            return known.clone();
        }
        let grid = Grid::new(&part.shape, layout(0, 2), 1);
        let dtype = mask.dtype;
        let tile = self.fill_from(&part, &part.shape.clone(), &grid, 0, 0, dtype);
        let mut found = self.whole(tile);
        if dtype == Dtype::Bool {
            found = self.additive(&found);
        }
        // Parts that are read again and again stay, the others come and go.
        if repeats(1) || context.extents.n_queries <= N_PARTITIONS {
            context.masks.insert(key, found.clone());
        }
        found
    }

    /// 0 where a predicate holds, -inf elsewhere.
    fn additive(&mut self, predicate: &TileView) -> TileView {
        let n_elements = predicate.n_elements();
        let tile = self.new_tile("mask", Space::Sbuf, Dtype::Bf16, predicate.n_partitions, n_elements);
        let dst = self.whole(tile);
        self.emit(Engine::Dve, InstructionKind::Memset { dst: dst.clone(), value: f32::NEG_INFINITY });
        let zero = self.splat_vector(0.0, Dtype::Bf16, predicate.n_partitions);
        let src = repeat(&zero, n_elements);
        let kind = InstructionKind::TensorCopyPredicated { dst: dst.clone(), src, predicate: predicate.clone() };
        self.emit(Engine::Dve, kind);
        dst
    }

    /// Tiles that exclude keys after the diagonal.
    pub(super) fn triangle(&mut self, context: &Context) -> Triangle {
        // bf16 holds both factors exactly, whatever the type of the scores' own.
        let dtype = Dtype::Bf16;
        let count = self.new_tile("diagonal", Space::Sbuf, Dtype::I32, N_PARTITIONS as u8, N_PARTITIONS);
        let steps = self.whole(count);
        let kind = InstructionKind::Iota { dst: steps.clone(), steps: smallvec![1], offset: 0, channel_multiplier: -1 };
        self.emit(Engine::Pool, kind);
        let mut compared = |op0: AluOp, second: f32| {
            let tile = self.new_tile("diagonal", Space::Sbuf, dtype, N_PARTITIONS as u8, N_PARTITIONS);
            let dst = self.whole(tile);
            let kind = InstructionKind::TensorScalar {
                dst: dst.clone(),
                data: steps.clone(),
                op0,
                operand0: ScalarOperand::Immediate(0.0),
                reverse0: false,
                second: Some((AluOp::Multiply, ScalarOperand::Immediate(second), false)),
            };
            self.emit(Engine::Dve, kind);
            dst
        };
        let (identity, upper) = (compared(AluOp::Equal, 1.0), compared(AluOp::GreaterEqual, EXCLUDED));
        let infinite = (!context.is_direct).then(|| {
            let below = self.new_tile("diagonal", Space::Sbuf, Dtype::I32, N_PARTITIONS as u8, N_PARTITIONS);
            let predicate = self.whole(below);
            self.emit(Engine::Dve, scalar(&predicate, &steps, AluOp::Less, 0.0));
            self.additive(&predicate)
        });
        Triangle { identity, upper, infinite }
    }
}

/// Columns of a bank that some rows of a block do not see, and which column of the triangle is the
/// first of them.
fn excluded_columns(context: &Context, block: &RowBlock, keys: &Range<usize>) -> Option<(Range<usize>, usize)> {
    let offset = context.op.causal?;
    // Row r sees keys up to diagonal + r - 1; column c of the triangle is key diagonal + c.
    let diagonal = (block.queries.start as i64).saturating_add(offset).saturating_add(1);
    let first = diagonal.max(keys.start as i64);
    let last = (diagonal + block.queries.len() as i64 - 1).min(keys.end as i64);
    (first < last).then(|| {
        let columns = (first - keys.start as i64) as usize..(last - keys.start as i64) as usize;
        (columns, (first - diagonal) as usize)
    })
}
