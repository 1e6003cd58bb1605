//! Softmax, log-softmax, RMSNorm and LayerNorm over the last axis.
//!
//! One row per partition uses the engines' free row sums: RMSNorm of 16-bit rows is three instructions,
//! softmax four. Several rows per partition (attention scores of many heads) reduce all of them with one
//! `tensor_reduce` each.
//!
//! Roots are Pool's power, which has no input range, but for RMSNorm of 16-bit rows with gamma: its
//! three instructions leave no room for another, and the table's rsqrt is right up to 2^97, which means
//! a root mean square of 2^48.5. The simulator reports what is beyond.

use ir::program::{ActivationFunction, AluOp, Engine, InstructionKind, ReduceCommand, ScalarOperand, Space, TileView};
use ir::{Dtype, Node, ValueId};

use super::Lowerer;
use super::functions::power_of_two;
use super::reduce::row_of;
use super::rowwise::GroupPlan;
use super::storage::{Frame, Operand, repeat};

/// The smallest input of the table's rsqrt, which an epsilon must not be below.
const MIN_TABLE_EPS: f32 = power_of_two(-87);

/// Statistics of `bn_stats`: count, mean and squared deviation of even and of odd elements.
const STATS_PER_CHUNK: usize = 6;

impl Lowerer<'_> {
    /// exp(x - max) / sum(exp(x - max)).
    pub(super) fn softmax(&mut self, node: &Node, frame: &Frame, plan: &GroupPlan) {
        let dst = self.dst(node, frame, plan);
        let (exponentials, sums) = self.exponentials(node.operands[0], frame);
        let inverse = self.column(frame, n_rows(frame));
        self.emit(Engine::Dve, InstructionKind::Reciprocal { dst: inverse.clone(), data: sums.clone() });
        if dst.dtype != Dtype::F32 {
            let factor = self.per_row(inverse, frame);
            self.alu(dst, Operand::Full(exponentials), factor, AluOp::Multiply, frame);
            return;
        }
        // The reciprocal's rounding would shift a whole f32 row: its rest is multiplied apart.
        let rest = self.reciprocal_rest(&sums, &inverse, frame);
        let small = self.scratch(frame, Dtype::F32);
        let rest = self.per_row(rest, frame);
        self.alu(small.clone(), Operand::Full(exponentials.clone()), rest, AluOp::Multiply, frame);
        if n_rows(frame) == 1 {
            let kind = InstructionKind::ScalarTensorTensor {
                dst,
                data: exponentials,
                op0: AluOp::Multiply,
                operand0: ScalarOperand::Vector(inverse),
                reverse0: false,
                op1: AluOp::Add,
                operand1: small,
                reverse1: false,
            };
            self.emit(Engine::Dve, kind);
            return;
        }
        let large = self.scratch(frame, Dtype::F32);
        let factor = self.per_row(inverse, frame);
        self.alu(large.clone(), Operand::Full(exponentials), factor, AluOp::Multiply, frame);
        self.alu(dst, Operand::Full(large), Operand::Full(small), AluOp::Add, frame);
    }

    /// inverse * (1 - sum * inverse): what the rounded reciprocal of a sum lacks. Both are split so
    /// that their products are exact; a sum of exponentials is finite and at least 1, or NaN.
    fn reciprocal_rest(&mut self, sums: &TileView, inverse: &TileView, frame: &Frame) -> TileView {
        let (sum_high, sum_low) = self.split(sums);
        let (inverse_high, inverse_low) = self.split(inverse);
        let [product, rest] = std::array::from_fn(|_| self.column(frame, n_rows(frame)));
        self.pair(&product, &sum_high, &inverse_high, AluOp::Multiply);
        let one = ScalarOperand::Immediate(1.0);
        let (dst, data) = (rest.clone(), product.clone());
        let op0 = AluOp::Subtract;
        let kind = InstructionKind::TensorScalar { dst, data, op0, operand0: one, reverse0: true, second: None };
        self.emit(Engine::Dve, kind);
        for (lhs, rhs) in [(&sum_high, &inverse_low), (&sum_low, &inverse_high), (&sum_low, &inverse_low)] {
            self.pair(&product, lhs, rhs, AluOp::Multiply);
            self.pair(&rest, &rest, &product, AluOp::Subtract);
        }
        self.pair(&rest, &rest, inverse, AluOp::Multiply);
        rest
    }

    /// x - max - log(sum(exp(x - max))); the sum lies in [1, n], well inside the table's range.
    pub(super) fn log_softmax(&mut self, node: &Node, frame: &Frame, plan: &GroupPlan) {
        let dst = self.dst(node, frame, plan);
        let data = self.full_operand(node.operands[0], frame);
        let n_rows = n_rows(frame);
        let negative_max = self.negative_max(data.clone(), frame);
        let (_, sums) = self.shifted_exponentials(data.clone(), &negative_max, frame);
        let logs = self.column(frame, n_rows);
        let (one, zero) = (ScalarOperand::Immediate(1.0), ScalarOperand::Immediate(0.0));
        self.emit_activation(ActivationFunction::Log, logs.clone(), sums, one, zero);
        if n_rows == 1 {
            let kind = InstructionKind::TensorScalar {
                dst,
                data,
                op0: AluOp::Add,
                operand0: ScalarOperand::Vector(negative_max),
                reverse0: false,
                second: Some((AluOp::Subtract, ScalarOperand::Vector(logs), false)),
            };
            self.emit(Engine::Dve, kind);
            return;
        }
        let shifted = self.scratch(frame, Dtype::F32);
        let shift = self.per_row(negative_max, frame);
        self.alu(shifted.clone(), Operand::Full(data), shift, AluOp::Add, frame);
        let logs = self.per_row(logs, frame);
        self.alu(dst, Operand::Full(shifted), logs, AluOp::Subtract, frame);
    }

    fn exponentials(&mut self, operand: ValueId, frame: &Frame) -> (TileView, TileView) {
        let data = self.full_operand(operand, frame);
        let negative_max = self.negative_max(data.clone(), frame);
        self.shifted_exponentials(data, &negative_max, frame)
    }

    fn negative_max(&mut self, data: TileView, frame: &Frame) -> TileView {
        let column = self.column(frame, n_rows(frame));
        let rows = self.split_rows(data, row_length(frame));
        self.emit_reduce(column.clone(), rows, AluOp::Max, true);
        column
    }

    /// exp(x - max) and its row sums.
    fn shifted_exponentials(&mut self, data: TileView, negative_max: &TileView, frame: &Frame) -> (TileView, TileView) {
        let n_rows = n_rows(frame);
        let exponentials = self.scratch(frame, Dtype::F32);
        let sums = self.column(frame, n_rows);
        if n_rows == 1 {
            let kind = InstructionKind::Activation {
                function: ActivationFunction::Exp,
                dst: exponentials.clone(),
                data,
                scale: ScalarOperand::Immediate(1.0),
                bias: ScalarOperand::Vector(negative_max.clone()),
                reduce: Some(ReduceCommand::ResetReduce),
                reduce_result: Some(sums.clone()),
            };
            self.emit(Engine::Act, kind);
            return (exponentials, sums);
        }
        let shifted = self.scratch(frame, Dtype::F32);
        let shift = self.per_row(negative_max.clone(), frame);
        self.alu(shifted.clone(), Operand::Full(data), shift, AluOp::Add, frame);
        let (one, zero) = (ScalarOperand::Immediate(1.0), ScalarOperand::Immediate(0.0));
        self.emit_activation(ActivationFunction::Exp, exponentials.clone(), shifted, one, zero);
        let rows = self.split_rows(exponentials.clone(), row_length(frame));
        self.emit_reduce(sums.clone(), rows, AluOp::Add, false);
        (exponentials, sums)
    }

    /// x * rsqrt(mean(x * x) + eps) * gamma.
    pub(super) fn rms_norm(&mut self, node: &Node, eps: f32, frame: &Frame, plan: &GroupPlan) {
        let dst = self.dst(node, frame, plan);
        let data = self.full_operand(node.operands[0], frame);
        let squares = self.square_sums(&data, frame);
        let scale = (1.0 / row_length(frame) as f64) as f32;
        let rstd = self.column(frame, n_rows(frame));
        let gamma = node.operands.get(1);
        if gamma.is_some() && n_rows(frame) == 1 && data.dtype.size_bytes() <= 2 && eps >= MIN_TABLE_EPS {
            let (scale, bias) = (ScalarOperand::Immediate(scale), ScalarOperand::Immediate(eps));
            self.emit_activation(ActivationFunction::Rsqrt, rstd.clone(), squares, scale, bias);
        } else {
            self.two_scalar_ops(rstd.clone(), squares, (AluOp::Multiply, scale), (AluOp::Add, eps));
            self.inverse_root(&rstd);
        }
        let Some(&gamma) = gamma else {
            let factor = self.per_row(rstd, frame);
            self.alu(dst, Operand::Full(data), factor, AluOp::Multiply, frame);
            return;
        };
        if n_rows(frame) == 1 {
            let operand1 = self.full_operand(gamma, frame);
            let kind = InstructionKind::ScalarTensorTensor {
                dst,
                data,
                op0: AluOp::Multiply,
                operand0: ScalarOperand::Vector(rstd),
                reverse0: false,
                op1: AluOp::Multiply,
                operand1,
                reverse1: false,
            };
            self.emit(Engine::Dve, kind);
            return;
        }
        let scaled = self.scratch(frame, Dtype::F32);
        let factor = self.per_row(rstd, frame);
        self.alu(scaled.clone(), Operand::Full(data), factor, AluOp::Multiply, frame);
        let gamma = self.operand(gamma, frame);
        self.alu(dst, Operand::Full(scaled), gamma, AluOp::Multiply, frame);
    }

    /// Sums of squares, by row.
    fn square_sums(&mut self, data: &TileView, frame: &Frame) -> TileView {
        let n_rows = n_rows(frame);
        let squares = self.scratch(frame, Dtype::F32);
        let sums = self.column(frame, n_rows);
        if n_rows == 1 {
            let kind = InstructionKind::Activation {
                function: ActivationFunction::Square,
                dst: squares,
                data: data.clone(),
                scale: ScalarOperand::Immediate(1.0),
                bias: ScalarOperand::Immediate(0.0),
                reduce: Some(ReduceCommand::ResetReduce),
                reduce_result: Some(sums.clone()),
            };
            self.emit(Engine::Act, kind);
            return sums;
        }
        let (one, zero) = (ScalarOperand::Immediate(1.0), ScalarOperand::Immediate(0.0));
        self.emit_activation(ActivationFunction::Square, squares.clone(), data.clone(), one, zero);
        let rows = self.split_rows(squares, row_length(frame));
        self.emit_reduce(sums.clone(), rows, AluOp::Add, false);
        sums
    }

    /// (x - mean) * rsqrt(variance + eps) * gamma + beta, with mean and rsqrt as results 1 and 2.
    pub(super) fn layer_norm(&mut self, node: &Node, eps: f32, frame: &Frame) {
        let (n_rows, n_row) = (n_rows(frame), row_length(frame));
        let data = self.full_operand(node.operands[0], frame);
        let packed = if row_of(&data, 0, n_row).is_some() || n_rows == 1 { data } else { self.packed(data) };
        let means = self.result_view(node.results[1], frame);
        let rstds = self.result_view(node.results[2], frame);
        for row in 0..n_rows {
            let values = if n_rows == 1 { packed.clone() } else { row_of(&packed, row, n_row).expect("packed above") };
            let mean = row_of(&means, row, 1).expect("a column has rows");
            let shifted_variance = row_of(&rstds, row, 1).expect("a column has rows");
            self.row_statistics(&values, n_row, eps, &mean, &shifted_variance);
        }
        self.inverse_root(&rstds);
        let dst = self.result_view(node.results[0], frame);
        let gamma = node.operands.get(1).copied();
        let beta = node.operands.get(2).copied();
        let steps = usize::from(gamma.is_some()) + usize::from(beta.is_some());
        let normalized = if steps == 0 { dst.clone() } else { self.scratch(frame, Dtype::F32) };
        self.center_and_scale(&normalized, &packed, &means, &rstds, frame);
        let Some(gamma) = gamma else { return };
        let scaled = if beta.is_none() { dst.clone() } else { self.scratch(frame, Dtype::F32) };
        let gamma = self.operand(gamma, frame);
        self.alu(scaled.clone(), Operand::Full(normalized), gamma, AluOp::Multiply, frame);
        if let Some(beta) = beta {
            let beta = self.operand(beta, frame);
            self.alu(dst, Operand::Full(scaled), beta, AluOp::Add, frame);
        }
    }

    fn center_and_scale(&mut self, dst: &TileView, data: &TileView, means: &TileView, rstds: &TileView, frame: &Frame) {
        if n_rows(frame) == 1 {
            let kind = InstructionKind::TensorScalar {
                dst: dst.clone(),
                data: data.clone(),
                op0: AluOp::Subtract,
                operand0: ScalarOperand::Vector(means.clone()),
                reverse0: false,
                second: Some((AluOp::Multiply, ScalarOperand::Vector(rstds.clone()), false)),
            };
            self.emit(Engine::Dve, kind);
            return;
        }
        let centered = self.scratch(frame, Dtype::F32);
        let means = self.per_row(means.clone(), frame);
        self.alu(centered.clone(), Operand::Full(data.clone()), means, AluOp::Subtract, frame);
        let rstds = self.per_row(rstds.clone(), frame);
        self.alu(dst.clone(), Operand::Full(centered), rstds, AluOp::Multiply, frame);
    }

    /// Mean and variance + eps of one row, from statistics of chunks of at most 512.
    fn row_statistics(&mut self, row: &TileView, n_row: usize, eps: f32, mean: &TileView, shifted: &TileView) {
        let chunk = self.target.bn_stats_max as usize;
        let n_chunks = n_row.div_ceil(chunk);
        let tile = self.new_tile("statistics", Space::Sbuf, Dtype::F32, row.n_partitions, n_chunks * STATS_PER_CHUNK);
        let statistics = self.whole(tile);
        for position in 0..n_chunks {
            let length = chunk.min(n_row - position * chunk);
            let mut data = row_of(row, 0, n_row).expect("rows have one dimension");
            let step = data.dims.first().map_or(1, |dim| dim.step);
            data.offset = (i64::from(data.offset) + (position * chunk) as i64 * i64::from(step)) as u32;
            let data = row_of(&data, 0, length).expect("rows have one dimension");
            let dst = row_of(&statistics, position, STATS_PER_CHUNK).expect("statistics are packed");
            self.emit(Engine::Dve, InstructionKind::BnStats { dst, data });
        }
        let merged = self.new_tile("statistics", Space::Sbuf, Dtype::F32, row.n_partitions, 2);
        let merged = self.whole(merged);
        self.emit(Engine::Dve, InstructionKind::BnAggr { dst: merged.clone(), data: statistics });
        let variance = row_of(&merged, 1, 1).expect("a pair has two");
        let first = row_of(&merged, 0, 1).expect("a pair has two");
        self.emit(Engine::Dve, InstructionKind::TensorCopy { dst: mean.clone(), src: first });
        self.scalar_op(shifted.clone(), variance, AluOp::Add, eps);
    }

    /// A column of numbers to the power -1/2, in place.
    fn inverse_root(&mut self, column: &TileView) {
        let exponent = self.splat_vector(-0.5, Dtype::F32, column.n_partitions);
        let rhs = repeat(&exponent, column.n_elements());
        let (dst, lhs) = (column.clone(), column.clone());
        self.emit(Engine::Pool, InstructionKind::TensorTensor { dst, lhs, rhs, op: AluOp::Power });
    }

    fn packed(&mut self, data: TileView) -> TileView {
        let tile = self.new_tile("scratch", Space::Sbuf, data.dtype, data.n_partitions, data.n_elements());
        let packed = self.whole(tile);
        self.emit(Engine::Dve, InstructionKind::TensorCopy { dst: packed.clone(), src: data });
        packed
    }

    fn result_view(&mut self, result: ValueId, frame: &Frame) -> TileView {
        let tile = self.result_tile(result, frame);
        self.whole(tile)
    }

    /// A new f32 tile with one element per row of the frame tile.
    fn column(&mut self, frame: &Frame, n_rows: usize) -> TileView {
        let tile = self.new_tile("column", Space::Sbuf, Dtype::F32, frame.n_partitions(), n_rows);
        self.whole(tile)
    }

    /// A column as an operand of the frame: one value per partition, or repeated along each row.
    fn per_row(&mut self, column: TileView, frame: &Frame) -> Operand {
        if n_rows(frame) == 1 {
            return Operand::Vector(column);
        }
        let mut full = column;
        full.dims.extend(repeat(&full.clone(), row_length(frame)).dims);
        Operand::Full(full)
    }
}

/// Rows per partition of a frame tile, for ops over the last axis.
fn n_rows(frame: &Frame) -> usize {
    frame.n_outer() * frame.grid.n_free / row_length(frame)
}

fn row_length(frame: &Frame) -> usize {
    frame.shape[frame.shape.len() - 1]
}
