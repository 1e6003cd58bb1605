//! One block of query rows: scores, softmax and weighted sum.

use std::ops::Range;

use ir::Dtype;
use ir::ops::EmptyRow;
use ir::program::{
    ActivationFunction, AluOp, Dim, Engine, InstructionKind, ReduceCommand, ScalarOperand, Space, TileView,
};
use smallvec::{SmallVec, smallvec};

use super::operands::blocks_view;
use super::{Context, RowBlock, Shared, scalar};
use crate::lower::Lowerer;
use crate::lower::functions::power_of_two;
use crate::lower::storage::{contiguous, padded, view};
use crate::map::N_PARTITIONS;

/// Sums of rows with a key are at least exp(0), up to rounding.
const LEAST_SUM: f32 = 0.5;

/// Statistics and weighted sum of the chunks so far.
struct Online {
    /// -scale * max.
    shift: TileView,
    sum: TileView,
    total: TileView,
}

impl Lowerer<'_> {
    /// Computes a block of rows.
    pub(super) fn row_block(&mut self, context: &mut Context, shared: &mut Shared, block: &RowBlock) {
        let n_visible = n_visible(context, block);
        if n_visible == 0 {
            return self.empty_block(context, block);
        }
        let queries = self.query_columns(context, block);
        let chunks: Vec<Range<usize>> = (0..n_visible)
            .step_by(context.n_chunk)
            .map(|start| start..n_visible.min(start + context.n_chunk))
            .collect();
        let mut online: Option<Online> = None;
        let mut last = None;
        for chunk in &chunks {
            let scores = self.scores(context, shared, block, &queries, chunk.clone());
            let (shift, sums, total) = self.chunk(context, shared, (scores, chunk.start), online.as_ref());
            if chunks.len() > 1 {
                online = Some(self.merge(context, online, (shift.clone(), sums.clone(), total.clone())));
            }
            last = Some((shift, sums, total));
        }
        let Some((shift, sum, total)) = last else { return };
        let (shift, sum, total) = match online {
            Some(online) => (online.shift, online.sum, vec![online.total]),
            None => (shift, sum, total),
        };
        self.finish_rows(context, block, (shift, sum, total));
    }

    /// Scores of a chunk of keys, by bank: in PSUM, or with the mask in SBUF and scaled.
    fn scores(
        &mut self,
        context: &mut Context,
        shared: &mut Shared,
        block: &RowBlock,
        queries: &[TileView],
        chunk: Range<usize>,
    ) -> Vec<TileView> {
        let n_rows = block.n_rows();
        let mut scores = Vec::new();
        for start in chunk.clone().step_by(context.n_bank) {
            let keys = start..chunk.end.min(start + context.n_bank);
            let psum = self.new_tile("scores", Space::Psum, Dtype::F32, n_rows as u8, keys.len());
            let product = self.whole(psum);
            let columns = self.key_columns(context, shared, start / context.n_bank);
            for (position, (query, key)) in queries.iter().zip(&columns).enumerate() {
                let moving = TileView { dims: contiguous(keys.len()), ..key.clone() };
                let (dst, stationary) = (product.clone(), query.clone());
                self.emit(Engine::Pe, InstructionKind::Matmul { dst, stationary, moving, accumulate: position > 0 });
            }
            if queries.is_empty() {
                self.emit(Engine::Dve, InstructionKind::Memset { dst: product.clone(), value: 0.0 });
            }
            if context.is_direct {
                self.exclude_in_product(context, block, &product, keys.clone());
            }
            scores.push(if context.is_direct { product } else { self.masked(context, block, product, keys) });
        }
        scores
    }

    /// Maximum, sum of exponentials, and products of them with the values, of a chunk; the products by
    /// columns of a bank, in PSUM.
    fn chunk(
        &mut self,
        context: &Context,
        shared: &mut Shared,
        (scores, first_key): (Vec<TileView>, usize),
        online: Option<&Online>,
    ) -> (TileView, TileView, Vec<TileView>) {
        let (mut shift, factor) = self.shift_of(context, &scores);
        let n_rows = usize::from(shift.n_partitions);
        if !context.is_direct {
            // exp(-inf - max) is 0 for a max that is finite.
            self.emit(Engine::Dve, scalar(&shift.clone(), &shift, AluOp::Min, f32::MAX));
        }
        if let Some(online) = online {
            let merged = self.statistics_column(n_rows);
            self.pair(&merged, &shift, &online.shift, AluOp::Min);
            shift = merged;
        }
        let (weights, sums) = self.exponentials_of(context, &scores, (&shift, factor));
        let total = self.weighted_sum(context, shared, &weights, first_key);
        (shift, sums, total)
    }

    /// -scale * max of each row, and what the exponentials multiply the scores with.
    ///
    /// Scores of one bank are replaced by -scale * score on the way, which leaves nothing to compute
    /// between the last score and the first exponential; the maxima of several are scaled alone.
    fn shift_of(&mut self, context: &Context, banks: &[TileView]) -> (TileView, f32) {
        let (n_rows, scale) = (banks[0].n_partitions, score_scale(context));
        let (data, factor) = match banks {
            [bank] => (bank.clone(), -1.0),
            _ => {
                let tile = self.new_tile("statistics", Space::Sbuf, Dtype::F32, n_rows, banks.len());
                for (position, bank) in banks.iter().enumerate() {
                    let dst = view(tile, n_rows, position as u32, SmallVec::new(), Dtype::F32);
                    self.reduce_columns(dst, bank, AluOp::Max);
                }
                (self.whole(tile), scale)
            }
        };
        let shift = self.statistics_column(usize::from(n_rows));
        let kind = InstructionKind::TensorScalarReduce {
            dst: data.clone(),
            data,
            op0: AluOp::Multiply,
            operand0: ScalarOperand::Immediate(-scale),
            reduce_op: AluOp::Min,
            reduce_result: shift.clone(),
        };
        self.emit(Engine::Dve, kind);
        (shift, factor)
    }

    fn reduce_columns(&mut self, dst: TileView, data: &TileView, op: AluOp) {
        let dims = smallvec![Dim { step: 1, count: data.n_elements() as u16 }];
        let data = TileView { dims, ..data.clone() };
        self.emit(Engine::Dve, InstructionKind::TensorReduce { dst, data, op, n_reduced_dims: 1, negate: false });
    }

    /// The columns of a tile of statistics combined.
    fn combined(&mut self, tile: ir::program::TileId, n_columns: usize, op: AluOp) -> TileView {
        let all = self.whole(tile);
        if n_columns == 1 {
            return all;
        }
        let dst = self.statistics_column(usize::from(all.n_partitions));
        self.reduce_columns(dst.clone(), &all, op);
        dst
    }

    fn statistics_column(&mut self, n_rows: usize) -> TileView {
        let tile = self.new_tile("statistics", Space::Sbuf, Dtype::F32, n_rows as u8, 1);
        self.whole(tile)
    }

    /// exp(factor * score + shift) by bank, and its row sums.
    fn exponentials_of(
        &mut self,
        context: &Context,
        scores: &[TileView],
        (shift, factor): (&TileView, f32),
    ) -> (Vec<TileView>, TileView) {
        let n_rows = shift.n_partitions;
        let sums = self.new_tile("statistics", Space::Sbuf, Dtype::F32, n_rows, scores.len());
        let mut weights = Vec::new();
        for (position, data) in scores.iter().enumerate() {
            let tile = self.new_tile("weights", Space::Sbuf, context.weight_dtype, n_rows, data.n_elements());
            let dst = self.whole(tile);
            let kind = InstructionKind::Activation {
                function: ActivationFunction::Exp,
                dst: dst.clone(),
                data: data.clone(),
                scale: ScalarOperand::Immediate(factor),
                bias: ScalarOperand::Vector(shift.clone()),
                reduce: Some(ReduceCommand::ResetReduce),
                reduce_result: Some(view(sums, n_rows, position as u32, SmallVec::new(), Dtype::F32)),
            };
            self.emit(Engine::Act, kind);
            weights.push(dst);
        }
        (weights, self.combined(sums, scores.len(), AluOp::Add))
    }

    /// The weights' product with the values, by columns of a bank.
    fn weighted_sum(
        &mut self,
        context: &Context,
        shared: &mut Shared,
        weights: &[TileView],
        first_key: usize,
    ) -> Vec<TileView> {
        let n_rows = weights[0].n_partitions;
        let n_values = context.extents.n_values;
        let mut totals = Vec::new();
        for start in (0..n_values).step_by(context.n_bank) {
            let n_columns = context.n_bank.min(n_values - start);
            let psum = self.new_tile("attended", Space::Psum, Dtype::F32, n_rows, n_columns);
            totals.push((start, self.whole(psum)));
        }
        let mut key = first_key;
        for bank in weights {
            for stationary in self.turned_weights(bank) {
                let values = self.value_rows(context, shared, key / N_PARTITIONS);
                for (start, total) in &totals {
                    let moving = TileView {
                        n_partitions: stationary.n_partitions,
                        offset: values.offset + *start as u32,
                        dims: contiguous(total.n_elements()),
                        ..values.clone()
                    };
                    let (dst, stationary) = (total.clone(), stationary.clone());
                    let accumulate = key > first_key;
                    self.emit(Engine::Pe, InstructionKind::Matmul { dst, stationary, moving, accumulate });
                }
                key += usize::from(stationary.n_partitions);
            }
        }
        totals.into_iter().map(|(_, total)| total).collect()
    }

    /// The weights of a bank with keys on partitions, 128 keys to a view.
    fn turned_weights(&mut self, weights: &TileView) -> Vec<TileView> {
        let dtype = weights.dtype;
        let (n_rows, n_keys) = (usize::from(weights.n_partitions), weights.n_elements());
        let step = padded(n_rows, dtype);
        let n_whole = n_keys / N_PARTITIONS;
        let mut turned = Vec::new();
        let part = |start: usize, count: usize| TileView {
            offset: weights.offset + start as u32,
            dims: contiguous(count),
            ..weights.clone()
        };
        let spans = [(0, N_PARTITIONS, n_whole), (n_whole * N_PARTITIONS, n_keys % N_PARTITIONS, 1)];
        for (start, n_partitions, n_blocks) in spans.into_iter().filter(|&(_, size, count)| size * count > 0) {
            let tile = self.new_tile("turned", Space::Sbuf, dtype, n_partitions as u8, n_blocks * step);
            let at =
                |tile, index: usize| view(tile, n_partitions as u8, (index * step) as u32, contiguous(n_rows), dtype);
            if self.target.pe_exact_transpose {
                let psum = self.new_tile("transpose", Space::Psum, dtype, n_partitions as u8, n_blocks * step);
                for index in 0..n_blocks {
                    let data = part(start + index * N_PARTITIONS, n_partitions);
                    self.emit(Engine::Pe, InstructionKind::Transpose { dst: at(psum, index), data });
                }
                let (dst, src) = (blocks_view(at(tile, 0), n_blocks, step), blocks_view(at(psum, 0), n_blocks, step));
                self.emit(Engine::Dve, InstructionKind::TensorCopy { dst, src });
            } else {
                for index in 0..n_blocks {
                    self.transpose(at(tile, index), part(start + index * N_PARTITIONS, n_partitions));
                }
            }
            turned.extend((0..n_blocks).map(|index| at(tile, index)));
        }
        turned
    }

    /// Adds a chunk to the ones before: their sums and products are rescaled to the new maximum.
    fn merge(
        &mut self,
        context: &Context,
        before: Option<Online>,
        (shift, sum, products): (TileView, TileView, Vec<TileView>),
    ) -> Online {
        let n_rows = usize::from(sum.n_partitions);
        let tile = self.new_tile("attended", Space::Sbuf, Dtype::F32, n_rows as u8, context.extents.n_values);
        let part = |start: usize, product: &TileView| {
            view(tile, n_rows as u8, start as u32, contiguous(product.n_elements()), Dtype::F32)
        };
        let starts: Vec<usize> = (0..products.len()).map(|position| position * context.n_bank).collect();
        let Some(before) = before else {
            for (&start, product) in starts.iter().zip(&products) {
                let (dst, src) = (part(start, product), product.clone());
                self.emit(Engine::Dve, InstructionKind::TensorCopy { dst, src });
            }
            return Online { shift, sum, total: self.whole(tile) };
        };
        // exp(old max - new max)
        let (factor, total) = (self.statistics_column(n_rows), self.statistics_column(n_rows));
        let (scale, bias) = (ScalarOperand::Immediate(-1.0), ScalarOperand::Vector(shift.clone()));
        self.emit_activation(ActivationFunction::Exp, factor.clone(), before.shift, scale, bias);
        self.rescaled(total.clone(), before.sum, &factor, sum);
        for (&start, product) in starts.iter().zip(&products) {
            let dims = contiguous(product.n_elements());
            let old = TileView { offset: start as u32, dims, ..before.total.clone() };
            self.rescaled(part(start, product), old, &factor, product.clone());
        }
        Online { shift, sum: total, total: self.whole(tile) }
    }

    /// dst = old * factor + new.
    fn rescaled(&mut self, dst: TileView, old: TileView, factor: &TileView, new: TileView) {
        let kind = InstructionKind::ScalarTensorTensor {
            dst,
            data: old,
            op0: AluOp::Multiply,
            operand0: ScalarOperand::Vector(factor.clone()),
            reverse0: false,
            op1: AluOp::Add,
            operand1: new,
            reverse1: false,
        };
        self.emit(Engine::Dve, kind);
    }

    /// Divides by the sums and writes the results.
    fn finish_rows(
        &mut self,
        context: &mut Context,
        block: &RowBlock,
        (shift, sum, total): (TileView, TileView, Vec<TileView>),
    ) {
        let n_rows = block.n_rows();
        let keep = self.kept_rows(context, block, &sum);
        let mut least = sum.clone();
        if !context.is_direct && (context.op.empty == EmptyRow::Zero || context.op.logsumexp) {
            least = self.statistics_column(n_rows);
            self.emit(Engine::Dve, scalar(&least, &sum, AluOp::Max, LEAST_SUM));
        }
        let inverse = self.statistics_column(n_rows);
        // Zeros divided by 0 are NaN.
        let data = if context.op.empty == EmptyRow::Nan { sum } else { least.clone() };
        self.emit(Engine::Dve, InstructionKind::Reciprocal { dst: inverse.clone(), data });
        if let Some(keep) = keep.as_ref().filter(|_| context.is_direct) {
            self.pair(&inverse.clone(), &inverse, keep, AluOp::Multiply);
        }
        let result = self.attended_view(context, block);
        let mut start = 0;
        for data in total {
            for offset in (0..data.n_elements()).step_by(context.n_bank) {
                let n_columns = context.n_bank.min(data.n_elements() - offset);
                let dims = contiguous(n_columns);
                let data = TileView { offset: data.offset + offset as u32, dims: dims.clone(), ..data.clone() };
                let dst = TileView { offset: result.offset + start, dims, ..result.clone() };
                let kind = InstructionKind::TensorScalar {
                    dst,
                    data,
                    op0: AluOp::Multiply,
                    operand0: ScalarOperand::Vector(inverse.clone()),
                    reverse0: false,
                    second: None,
                };
                self.emit(Engine::Dve, kind);
                start += n_columns as u32;
            }
        }
        self.store_rows(context, block.heads.len());
        if context.op.logsumexp {
            self.logarithms(context, block, (shift, least, keep));
        }
    }

    /// log(sum) - shift.
    fn logarithms(
        &mut self,
        context: &mut Context,
        block: &RowBlock,
        (shift, sum, keep): (TileView, TileView, Option<TileView>),
    ) {
        let dst = self.logarithm_view(context, block);
        let logarithm = self.statistics_column(block.n_rows());
        let (one, zero) = (ScalarOperand::Immediate(1.0), ScalarOperand::Immediate(-0.0));
        self.emit_activation(ActivationFunction::Log, logarithm.clone(), sum, one, zero);
        self.pair(&dst, &logarithm, &shift, AluOp::Subtract);
        if let Some(keep) = keep {
            self.pair(&dst, &dst, &keep, AluOp::Multiply);
        }
    }

    /// 1 for rows with a key; 0, or NaN, for those without. `None` where all rows have one, or the
    /// sums say so and nothing but they is wanted.
    fn kept_rows(&mut self, context: &Context, block: &RowBlock, sum: &TileView) -> Option<TileView> {
        let n_rows = block.n_rows();
        let first = context.op.causal.map_or(0, |offset| offset.saturating_add(block.queries.start as i64));
        if !(context.is_direct && first < 0 || !context.is_direct && context.op.logsumexp) {
            return None;
        }
        let keep = self.statistics_column(n_rows);
        if !context.is_direct {
            self.emit(Engine::Dve, scalar(&keep, sum, AluOp::Greater, 0.0));
        } else {
            // Sums of excluded scores alone are sums of ones: the row's number tells.
            let tile = self.new_tile("rows", Space::Sbuf, Dtype::I32, n_rows as u8, 1);
            let dst = self.whole(tile);
            let offset = first.max(i64::from(i32::MIN)) as i32;
            let kind =
                InstructionKind::Iota { dst: dst.clone(), steps: SmallVec::new(), offset, channel_multiplier: 1 };
            self.emit(Engine::Pool, kind);
            self.emit(Engine::Dve, scalar(&keep, &dst, AluOp::GreaterEqual, 0.0));
        }
        if context.op.empty == EmptyRow::Nan {
            let inverse = self.statistics_column(n_rows);
            self.emit(Engine::Dve, InstructionKind::Reciprocal { dst: inverse.clone(), data: keep.clone() });
            self.pair(&keep, &keep, &inverse, AluOp::Multiply);
        }
        Some(keep)
    }
}

/// Keys that some row of a block sees.
fn n_visible(context: &Context, block: &RowBlock) -> usize {
    let n_keys = context.extents.n_keys;
    match context.op.causal {
        None => n_keys,
        Some(offset) => usize::try_from((block.queries.end as i64).saturating_add(offset)).map_or(0, |n| n.min(n_keys)),
    }
}

/// Scales that exponentials apply by themselves.
pub(super) fn is_plain_scale(scale: f32) -> bool {
    scale >= power_of_two(-60) && scale.is_finite()
}

/// What exponentials multiply scores with.
fn score_scale(context: &Context) -> f32 {
    if context.is_direct { context.op.scale.get() } else { 1.0 }
}
