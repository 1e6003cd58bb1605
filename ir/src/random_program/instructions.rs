//! Random instructions of the compute engines.

use super::{Access, Generator, Group, MAX_COLUMNS, MOST_PSUM_TILES, ON_CHIP, PARTITIONS};
use crate::program::{
    ActivationFunction, AluOp, Engine, InstructionKind, ReduceCommand, ScalarOperand, Space, TileId, TileView,
};
use crate::random::Random;
use crate::types::Dtype;

const FUNCTIONS: [ActivationFunction; 20] = [
    ActivationFunction::Copy,
    ActivationFunction::Square,
    ActivationFunction::Relu,
    ActivationFunction::Abs,
    ActivationFunction::Sign,
    ActivationFunction::Exp,
    ActivationFunction::Tanh,
    ActivationFunction::Sigmoid,
    ActivationFunction::Log,
    ActivationFunction::Softplus,
    ActivationFunction::Sqrt,
    ActivationFunction::Rsqrt,
    ActivationFunction::Reciprocal,
    ActivationFunction::Gelu,
    ActivationFunction::GeluTanh,
    ActivationFunction::Erf,
    ActivationFunction::Silu,
    ActivationFunction::Mish,
    ActivationFunction::Sin,
    ActivationFunction::Arctan,
];

const ARITHMETIC: [AluOp; 17] = [
    AluOp::Add,
    AluOp::Subtract,
    AluOp::Multiply,
    AluOp::Max,
    AluOp::Min,
    AluOp::Equal,
    AluOp::NotEqual,
    AluOp::Greater,
    AluOp::GreaterEqual,
    AluOp::Less,
    AluOp::LessEqual,
    AluOp::LogicalAnd,
    AluOp::LogicalOr,
    AluOp::LogicalXor,
    AluOp::Power,
    AluOp::Abs,
    AluOp::LogicalNot,
];

const BITWISE: [AluOp; 5] =
    [AluOp::BitwiseAnd, AluOp::BitwiseOr, AluOp::BitwiseXor, AluOp::ShiftLeft, AluOp::ShiftRight];

const REDUCING: [AluOp; 4] = [AluOp::Add, AluOp::Multiply, AluOp::Max, AluOp::Min];

impl Generator {
    pub(super) fn compute(&mut self) {
        match self.random.below(13) {
            0 | 1 => self.activation(),
            2 => self.tensor_scalar(),
            3 => self.tensor_scalar_reduce(),
            4 => self.scalar_tensor_tensor(),
            5 => self.tensor_tensor(),
            6 => self.tensor_reduce(),
            7 => self.scan(),
            8 => self.copy(),
            9 => self.copy_predicated(),
            10 => self.reciprocal_or_fill(),
            11 => self.iota(),
            _ => self.statistics(),
        }
    }

    /// A part of some tile to read, with its partitions and elements.
    fn operand(&mut self) -> (TileView, u8, usize) {
        let tile = self.source();
        let n_partitions = match self.random.below(3) {
            0 => self.random.one_of(&PARTITIONS).min(self.n_partitions(tile)),
            _ => self.n_partitions(tile),
        };
        let n = 1 + self.random.below(self.n_columns(tile).min(MAX_COLUMNS));
        let view = self.part(tile, n_partitions, n, Access::Read).expect("the part is no larger than the tile");
        (view, n_partitions, n)
    }

    /// Another operand of the same size, if a few tries find one.
    fn operand_like(&mut self, n_partitions: u8, n: usize) -> Option<TileView> {
        (0..6).find_map(|_| {
            let tile = self.source();
            self.part(tile, n_partitions, n, Access::Read)
        })
    }

    fn number(&mut self) -> f32 {
        (self.random.in_range(-2.0, 2.0) * 64.0).round() as f32 / 64.0
    }

    /// A number, or one f32 per partition.
    fn scalar(&mut self, n_partitions: u8) -> ScalarOperand {
        if self.random.once_in(2) {
            for _ in 0..4 {
                let tile = self.sbuf_source();
                if self.dtype(tile) != Dtype::F32 {
                    continue;
                }
                if let Some(mut view) = self.part(tile, n_partitions, 1, Access::Write) {
                    view.dims.clear();
                    return ScalarOperand::Vector(view);
                }
            }
        }
        ScalarOperand::Immediate(self.number())
    }

    /// An arithmetic operator with what it is applied to; unary ones take 0.
    fn arithmetic(&mut self, n_partitions: u8) -> (AluOp, ScalarOperand) {
        let op = self.random.one_of(&ARITHMETIC);
        match op {
            AluOp::Abs | AluOp::LogicalNot => (op, ScalarOperand::Immediate(0.0)),
            _ => (op, self.scalar(n_partitions)),
        }
    }

    fn any_dtype(&mut self) -> Dtype {
        self.random.one_of(&ON_CHIP)
    }

    /// A column of f32 for one result per partition, in a new tile.
    fn column(&mut self, n_partitions: u8) -> TileId {
        self.tile(Space::Sbuf, Dtype::F32, n_partitions, 1)
    }

    fn activation(&mut self) {
        let (data, n_partitions, n) = self.operand();
        let function = self.random.one_of(&FUNCTIONS);
        let scale = self.scalar(n_partitions);
        let has_scalar_bias = self.program.target.target().act_scalar_bias;
        let bias = match self.scalar(n_partitions) {
            ScalarOperand::Immediate(_) if !has_scalar_bias => ScalarOperand::Immediate(0.0),
            bias => bias,
        };
        let dtype = self.any_dtype();
        if self.random.once_in(3) {
            self.row_sums((function, data, scale, bias), dtype);
            return;
        }
        let (dst, created) = self.destination(dtype, n_partitions, n);
        let kind = InstructionKind::Activation { function, dst, data, scale, bias, reduce: None, reduce_result: None };
        self.emit_to(created, Engine::Act, kind);
    }

    /// One to three activations that accumulate, the last of which gives the sums.
    fn row_sums(
        &mut self,
        (function, data, scale, bias): (ActivationFunction, TileView, ScalarOperand, ScalarOperand),
        dtype: Dtype,
    ) {
        let n_instructions = 1 + self.random.below(3);
        let sums = self.column(data.n_partitions);
        let sums_view = self.whole(sums);
        // A tile that is written by each: its last content counts.
        let results = self.tile(Space::Sbuf, dtype, data.n_partitions, data.n_elements());
        let dst = self.whole(results);
        let mut n_emitted = 0;
        for number in 0..n_instructions {
            let reduce = Some(if number == 0 { ReduceCommand::ResetReduce } else { ReduceCommand::Reduce });
            let is_last = number + 1 == n_instructions;
            let kind = InstructionKind::Activation {
                function,
                dst: dst.clone(),
                data: data.clone(),
                scale: scale.clone(),
                bias: bias.clone(),
                reduce,
                reduce_result: is_last.then(|| sums_view.clone()),
            };
            n_emitted += usize::from(self.emit(Engine::Act, kind));
        }
        // All are legal or none is, but for the sums' place.
        if n_emitted == n_instructions {
            self.sbuf.extend([sums, results]);
        } else if n_emitted == 0 {
            self.program.tiles.truncate(sums.index());
        }
    }

    fn tensor_scalar(&mut self) {
        let (data, n_partitions, n) = self.operand();
        if data.dtype.is_integer() && self.random.once_in(2) {
            self.bitwise_scalar(data, n_partitions, n);
            return;
        }
        let (op0, operand0) = self.arithmetic(n_partitions);
        let second = if self.random.once_in(2) {
            let (op, operand) = self.arithmetic(n_partitions);
            Some((op, operand, self.random.once_in(2)))
        } else {
            None
        };
        let engine = if self.random.once_in(4) { Engine::Act } else { Engine::Dve };
        let dtype = self.any_dtype();
        let (dst, created) = self.destination(dtype, n_partitions, n);
        let reverse0 = self.random.once_in(2);
        self.emit_to(created, engine, InstructionKind::TensorScalar { dst, data, op0, operand0, reverse0, second });
    }

    fn bitwise_scalar(&mut self, data: TileView, n_partitions: u8, n: usize) {
        let operand = |random: &mut Random| ScalarOperand::Immediate(random.below(9) as f32);
        let (op0, operand0) = (self.random.one_of(&BITWISE), operand(&mut self.random));
        let second = self.random.once_in(2).then(|| (self.random.one_of(&BITWISE), operand(&mut self.random), false));
        let (dst, created) = self.destination(data.dtype, n_partitions, n);
        let kind = InstructionKind::TensorScalar { dst, data, op0, operand0, reverse0: false, second };
        self.emit_to(created, Engine::Dve, kind);
    }

    fn tensor_scalar_reduce(&mut self) {
        let (data, n_partitions, n) = self.operand();
        let (op0, operand0) = self.arithmetic(n_partitions);
        let reduce_op = self.random.one_of(&REDUCING);
        // The result's column stands in a tile that is written already, or in none that is read later.
        let column = self.sbuf_source();
        let Some(mut reduce_result) = self.part(column, n_partitions, 1, Access::Write) else { return };
        reduce_result.dims.clear();
        let dtype = self.any_dtype();
        let (dst, created) = self.destination(dtype, n_partitions, n);
        let kind = InstructionKind::TensorScalarReduce { dst, data, op0, operand0, reduce_op, reduce_result };
        self.emit_to(created, Engine::Dve, kind);
    }

    fn scalar_tensor_tensor(&mut self) {
        let (data, n_partitions, n) = self.operand();
        let Some(operand1) = self.operand_like(n_partitions, n) else { return };
        let (op0, operand0) = self.arithmetic(n_partitions);
        let op1 = self.random.one_of(&ARITHMETIC);
        let (reverse0, reverse1) = (self.random.once_in(2), self.random.once_in(2));
        let dtype = self.any_dtype();
        let (dst, created) = self.destination(dtype, n_partitions, n);
        let kind = InstructionKind::ScalarTensorTensor { dst, data, op0, operand0, reverse0, op1, operand1, reverse1 };
        self.emit_to(created, Engine::Dve, kind);
    }

    fn tensor_tensor(&mut self) {
        let (lhs, n_partitions, n) = self.operand();
        let Some(rhs) = self.operand_like(n_partitions, n) else { return };
        let is_bitwise = lhs.dtype.is_integer() && lhs.dtype == rhs.dtype && self.random.once_in(2);
        let op = if is_bitwise { self.random.one_of(&BITWISE) } else { self.random.one_of(&ARITHMETIC) };
        let dtype = if lhs.dtype == rhs.dtype { lhs.dtype } else { self.any_dtype() };
        let (dst, created) = self.destination(dtype, n_partitions, n);
        let engine = if self.random.once_in(3) || op == AluOp::Power { Engine::Pool } else { Engine::Dve };
        self.emit_to(created, engine, InstructionKind::TensorTensor { dst, lhs, rhs, op });
    }

    fn tensor_reduce(&mut self) {
        let (data, n_partitions, _) = self.operand();
        let n_reduced_dims = 1 + self.random.below(data.dims.len()) as u8;
        let kept = &data.dims[..data.dims.len() - usize::from(n_reduced_dims)];
        let n: usize = kept.iter().map(|dim| usize::from(dim.count)).product();
        let is_bitwise = data.dtype.is_integer() && self.random.once_in(3);
        let op = if is_bitwise { self.random.one_of(&BITWISE) } else { self.random.one_of(&ARITHMETIC) };
        let dtype = if is_bitwise { data.dtype } else { self.any_dtype() };
        let negate = !is_bitwise && self.random.once_in(3);
        let (dst, created) = self.destination(dtype, n_partitions, n);
        let kind = InstructionKind::TensorReduce { dst, data, op, n_reduced_dims, negate };
        self.emit_to(created, Engine::Dve, kind);
    }

    fn scan(&mut self) {
        let (data0, n_partitions, n) = self.operand();
        let Some(data1) = self.operand_like(n_partitions, n) else { return };
        let (op0, op1) = (self.random.one_of(&ARITHMETIC), self.random.one_of(&ARITHMETIC));
        let initial = self.scalar(n_partitions);
        let dtype = self.any_dtype();
        let (dst, created) = self.destination(dtype, n_partitions, n);
        let kind = InstructionKind::TensorTensorScan { dst, data0, data1, initial, op0, op1 };
        self.emit_to(created, Engine::Dve, kind);
    }

    fn copy(&mut self) {
        let (src, n_partitions, n) = self.operand();
        let dtype = if self.random.once_in(2) { src.dtype } else { self.any_dtype() };
        let engine = self.random.one_of(&[Engine::Dve, Engine::Pool, Engine::Act]);
        let (dst, created) = self.destination(dtype, n_partitions, n);
        self.emit_to(created, engine, InstructionKind::TensorCopy { dst, src });
    }

    /// Into a part of a tile that is written already.
    fn copy_predicated(&mut self) {
        let (src, n_partitions, n) = self.operand();
        let same: Vec<TileId> = self.sbuf.iter().copied().filter(|&tile| self.dtype(tile) == src.dtype).collect();
        let integers: Vec<TileId> = self.sbuf.iter().copied().filter(|&tile| !self.dtype(tile).is_float()).collect();
        if same.is_empty() || integers.is_empty() {
            return;
        }
        let (dst, predicate) = (self.random.one_of(&same), self.random.one_of(&integers));
        let dst = self.part(dst, n_partitions, n, Access::Write);
        let predicate = self.part(predicate, n_partitions, n, Access::Read);
        if let (Some(dst), Some(predicate)) = (dst, predicate) {
            self.emit(Engine::Dve, InstructionKind::TensorCopyPredicated { dst, src, predicate });
        }
    }

    fn reciprocal_or_fill(&mut self) {
        let (data, n_partitions, n) = self.operand();
        let dtype = self.any_dtype();
        let (dst, created) = self.destination(dtype, n_partitions, n);
        if self.random.once_in(2) {
            self.emit_to(created, Engine::Dve, InstructionKind::Reciprocal { dst, data });
            return;
        }
        let value = self.number();
        let engine = self.random.one_of(&[Engine::Dve, Engine::Pool]);
        self.emit_to(created, engine, InstructionKind::Memset { dst, value });
    }

    fn iota(&mut self) {
        let n_partitions = self.random.one_of(&PARTITIONS);
        let n = 1 + self.random.below(MAX_COLUMNS);
        let dtype = self.random.one_of(&[Dtype::I32, Dtype::I32, Dtype::F32, Dtype::Bf16, Dtype::I16]);
        let (dst, created) = self.destination(dtype, n_partitions, n);
        let steps = dst.dims.iter().map(|_| self.random.below(7) as i32 - 3).collect();
        let (offset, channel_multiplier) = (self.random.below(100) as i32 - 50, self.random.below(9) as i32 - 4);
        self.emit_to(created, Engine::Pool, InstructionKind::Iota { dst, steps, offset, channel_multiplier });
    }

    /// Statistics of a row, and what they merge to.
    fn statistics(&mut self) {
        let (data, n_partitions, _) = self.operand();
        let statistics = self.tile(Space::Sbuf, Dtype::F32, n_partitions, 6);
        let dst = self.whole(statistics);
        let n_before = self.program.instructions.len();
        self.emit_new(statistics, Engine::Dve, InstructionKind::BnStats { dst, data });
        if self.program.instructions.len() == n_before {
            return;
        }
        let (merged, data) = (self.tile(Space::Sbuf, Dtype::F32, n_partitions, 2), self.whole(statistics));
        let dst = self.whole(merged);
        self.emit_new(merged, Engine::Dve, InstructionKind::BnAggr { dst, data });
    }

    /// The tensor engine: groups of matmuls, several of which may be open, and transposes.
    pub(super) fn matrix(&mut self) {
        match self.random.below(5) {
            0 => self.transpose(),
            1 | 2 if !self.groups.is_empty() => self.continue_group(),
            _ if self.groups.len() < 2 => self.start_group(),
            _ => self.continue_group(),
        }
    }

    fn transpose(&mut self) {
        let tile = self.sbuf_source();
        let data = self.whole(tile);
        let (rows, columns) = (usize::from(data.n_partitions), data.n_elements());
        let target = self.program.target.target();
        if self.random.once_in(2) {
            let created = self.tile(Space::Sbuf, data.dtype, columns as u8, rows);
            let dst = self.whole(created);
            self.emit_new(created, Engine::Dve, InstructionKind::Transpose { dst, data });
            return;
        }
        let dtype = if target.pe_exact_transpose { data.dtype } else { Dtype::F32 };
        let created = self.tile(Space::Psum, dtype, columns as u8, rows);
        let dst = self.whole(created);
        self.emit_new(created, Engine::Pe, InstructionKind::Transpose { dst, data });
    }

    /// Two operands of a matmul with so many columns each; of f32 both or none.
    fn factors(&mut self, is_f32: bool, n_rows: usize, n_columns: usize) -> Option<(TileView, TileView)> {
        let fits = |dtype: Dtype| dtype.is_float() && (dtype == Dtype::F32) == is_f32;
        let floats: Vec<TileId> = self.sbuf.iter().copied().filter(|&tile| fits(self.dtype(tile))).collect();
        if floats.is_empty() {
            return None;
        }
        (0..8).find_map(|_| {
            let (left, right) = (self.random.one_of(&floats), self.random.one_of(&floats));
            let depth = self.n_partitions(left).min(self.n_partitions(right));
            let mut stationary = self.part(left, depth, n_rows, Access::Read)?;
            let mut moving = self.part(right, depth, n_columns, Access::Read)?;
            (stationary.partition, moving.partition) = (0, 0);
            Some((stationary, moving))
        })
    }

    fn start_group(&mut self) {
        let (n_rows, n_columns) = (1 + self.random.below(20), 1 + self.random.below(MAX_COLUMNS));
        let is_f32 = self.random.once_in(2);
        let Some((stationary, moving)) = self.factors(is_f32, n_rows, n_columns) else { return };
        let has_bf16 = self.program.target.target().psum_bf16_accumulate;
        let dtype = if has_bf16 && self.random.once_in(3) { Dtype::Bf16 } else { Dtype::F32 };
        let tile = self.tile(Space::Psum, dtype, n_rows as u8, n_columns);
        let dst = self.whole(tile);
        let kind = InstructionKind::Matmul { dst: dst.clone(), stationary, moving, accumulate: false };
        if !self.emit(Engine::Pe, kind) {
            self.program.tiles.pop();
            return;
        }
        let n_left = self.random.below(3);
        self.groups.push(Group { tile, dst, n_rows, n_columns, is_f32, n_left });
        if n_left == 0 {
            self.close_group(self.groups.len() - 1);
        }
    }

    fn continue_group(&mut self) {
        let at = self.random.below(self.groups.len());
        let Group { is_f32, n_rows, n_columns, .. } = self.groups[at];
        if let Some((stationary, moving)) = self.factors(is_f32, n_rows, n_columns) {
            let dst = self.groups[at].dst.clone();
            self.emit(Engine::Pe, InstructionKind::Matmul { dst, stationary, moving, accumulate: true });
        }
        let group = &mut self.groups[at];
        group.n_left = group.n_left.saturating_sub(1);
        if group.n_left == 0 {
            self.close_group(at);
        }
    }

    /// From now on the sums may be read.
    fn close_group(&mut self, at: usize) {
        let group = self.groups.remove(at);
        self.psum.push(group.tile);
        while self.psum.len() > MOST_PSUM_TILES {
            self.psum.remove(0);
        }
    }

    pub(super) fn close_groups(&mut self) {
        while !self.groups.is_empty() {
            self.close_group(0);
            self.copy();
        }
    }
}
