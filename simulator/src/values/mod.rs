//! What instructions compute: f32 inside, one rounding on write.
//!
//! Instructions run one after the other in an order that the semaphores allow; for a program
//! without races every such order gives the same values. Nothing here knows how a program was made.

use ir::program::{
    ActivationFunction, AluOp, Engine, Instruction, InstructionKind, ReduceCommand, ScalarOperand, TileView,
};
use ir::target::Target;
use ir::target::activation::ValidRange;

use self::alu::Order;
use self::convert::raw_bits;
use self::memory::Memory;
use crate::machine::InstructionId;

mod alu;
pub(crate) mod convert;
mod functions;
mod matrix;
pub(crate) mod memory;
mod statistics;
mod transfer;

pub(crate) use transfer::TransferError;

/// An input for which an activation function gives no valid result.
#[derive(Clone, Debug, PartialEq)]
pub struct OutOfRange {
    pub instruction: InstructionId,
    pub function: ActivationFunction,
    /// data * scale + bias.
    pub input: f32,
    /// Where it was seen first: partition of the memory, element of the operand.
    pub partition: usize,
    pub element: usize,
    /// How many inputs of this instruction are out of range.
    pub count: usize,
}

/// One core's memories and registers while a program runs.
pub(crate) struct Executor<'a> {
    target: &'a Target,
    pub memory: Memory,
    /// The activation engine's accumulation registers, one per lane.
    accumulators: Vec<f32>,
    pub out_of_range: Vec<OutOfRange>,
    scratch: Scratch,
}

/// Rows in flight, kept to save allocations.
#[derive(Default)]
struct Scratch {
    first: Vec<f32>,
    second: Vec<f32>,
    raw: Vec<u8>,
    raw_second: Vec<u8>,
}

impl<'a> Executor<'a> {
    pub fn new(target: &'a Target, memory: Memory) -> Self {
        let accumulators = vec![0.0; target.partitions as usize];
        Executor { target, memory, accumulators, out_of_range: Vec::new(), scratch: Scratch::default() }
    }

    /// Executes one instruction; a transfer moves all of its data.
    ///
    /// # Errors
    /// A gather whose index is outside its table, or a transfer larger than this machine's memory.
    pub fn execute(&mut self, id: InstructionId, instruction: &Instruction) -> Result<(), TransferError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = self.dispatch(id, instruction, &mut scratch);
        self.scratch = scratch;
        result
    }

    fn dispatch(
        &mut self,
        id: InstructionId,
        instruction: &Instruction,
        scratch: &mut Scratch,
    ) -> Result<(), TransferError> {
        match &instruction.kind {
            InstructionKind::Activation { function, dst, data, scale, bias, reduce, reduce_result } => {
                let affine = Affine { scale, bias };
                self.activation(id, *function, [dst, data], affine, (*reduce, reduce_result.as_ref()), scratch);
            }
            InstructionKind::TensorScalar { dst, data, op0, operand0, reverse0, second } => {
                let first = (*op0, operand0, *reverse0);
                let second = second.as_ref().map(|(op, operand, reverse)| (*op, operand, *reverse));
                if alu::is_bitwise(*op0) {
                    self.bit_scalar(dst, data, first, second, scratch);
                } else {
                    self.tensor_scalar(dst, data, first, second, scratch);
                }
            }
            InstructionKind::TensorScalarReduce { dst, data, op0, operand0, reduce_op, reduce_result } => {
                for lane in 0..usize::from(dst.n_partitions) {
                    self.memory.read(data, lane, &mut scratch.first);
                    let operand = self.scalar(operand0, lane);
                    alu::with_scalar(*op0, &mut scratch.first, operand, Order::TensorFirst);
                    self.memory.write(dst, lane, &scratch.first);
                    self.memory.write(reduce_result, lane, &[alu::reduce(*reduce_op, &scratch.first)]);
                }
            }
            InstructionKind::ScalarTensorTensor { dst, data, op0, operand0, reverse0, op1, operand1, reverse1 } => {
                for lane in 0..usize::from(dst.n_partitions) {
                    self.memory.read(data, lane, &mut scratch.first);
                    self.memory.read(operand1, lane, &mut scratch.second);
                    let operand = self.scalar(operand0, lane);
                    alu::with_scalar(*op0, &mut scratch.first, operand, Order::reversed_if(*reverse0));
                    alu::with_tensor(*op1, &mut scratch.first, &scratch.second, Order::reversed_if(*reverse1));
                    self.memory.write(dst, lane, &scratch.first);
                }
            }
            InstructionKind::TensorTensor { dst, lhs, rhs, op } => {
                self.tensor_tensor(instruction, [dst, lhs, rhs], *op, scratch)
            }
            InstructionKind::TensorReduce { dst, data, op, n_reduced_dims, negate } => {
                self.tensor_reduce([dst, data], *op, usize::from(*n_reduced_dims), *negate, scratch);
            }
            InstructionKind::TensorTensorScan { dst, data0, data1, initial, op0, op1 } => {
                for lane in 0..usize::from(dst.n_partitions) {
                    self.memory.read(data0, lane, &mut scratch.first);
                    self.memory.read(data1, lane, &mut scratch.second);
                    let mut previous = self.scalar(initial, lane);
                    for (value, &other) in scratch.first.iter_mut().zip(&scratch.second) {
                        previous = alu::apply(*op1, alu::apply(*op0, *value, previous), other);
                        *value = previous;
                    }
                    self.memory.write(dst, lane, &scratch.first);
                }
            }
            InstructionKind::TensorCopy { dst, src } => self.copy(dst, src, scratch),
            InstructionKind::TensorCopyPredicated { dst, src, predicate } => {
                self.copy_where(dst, src, predicate, scratch)
            }
            InstructionKind::Reciprocal { dst, data } => {
                for lane in 0..usize::from(dst.n_partitions) {
                    self.memory.read(data, lane, &mut scratch.first);
                    scratch.first.iter_mut().for_each(|value| *value = 1.0 / *value);
                    self.memory.write(dst, lane, &scratch.first);
                }
            }
            InstructionKind::Memset { dst, value } => {
                scratch.first.clear();
                scratch.first.resize(dst.n_elements(), *value);
                for lane in 0..usize::from(dst.n_partitions) {
                    self.memory.write(dst, lane, &scratch.first);
                }
            }
            InstructionKind::Iota { dst, steps, offset, channel_multiplier } => {
                self.iota(dst, steps, *offset, *channel_multiplier, scratch);
            }
            InstructionKind::BnStats { dst, data } => {
                for lane in 0..usize::from(dst.n_partitions) {
                    self.memory.read(data, lane, &mut scratch.first);
                    self.memory.write(dst, lane, &statistics::of_row(&scratch.first));
                }
            }
            InstructionKind::BnAggr { dst, data } => {
                for lane in 0..usize::from(dst.n_partitions) {
                    self.memory.read(data, lane, &mut scratch.first);
                    self.memory.write(dst, lane, &statistics::merge(&scratch.first));
                }
            }
            InstructionKind::Matmul { dst, stationary, moving, accumulate } => {
                let onto = if *accumulate { matrix::Onto::Previous } else { matrix::Onto::Nothing };
                matrix::multiply(&mut self.memory, dst, stationary, moving, onto);
            }
            InstructionKind::Transpose { dst, data } => {
                if instruction.engine == Engine::Pe && !self.target.pe_exact_transpose {
                    matrix::transpose_by_identity(&mut self.memory, dst, data);
                } else {
                    matrix::transpose_bits(&mut self.memory, dst, data);
                }
            }
            InstructionKind::Dma { dst, src, queue: _, gather } => {
                transfer::execute(&mut self.memory, dst, src, gather.as_ref())?;
            }
            InstructionKind::LoadTable { set: _ }
            | InstructionKind::Sync
            | InstructionKind::Call { .. }
            | InstructionKind::Return
            | InstructionKind::ClearSemaphores { .. } => {}
        }
        Ok(())
    }

    fn scalar(&self, operand: &ScalarOperand, lane: usize) -> f32 {
        match operand {
            ScalarOperand::Immediate(value) => *value,
            ScalarOperand::Vector(view) => self.memory.read_one(view, lane),
        }
    }

    fn activation(
        &mut self,
        id: InstructionId,
        function: ActivationFunction,
        [dst, data]: [&TileView; 2],
        affine: Affine<'_>,
        (reduce, reduce_result): (Option<ReduceCommand>, Option<&TileView>),
        scratch: &mut Scratch,
    ) {
        let range = ValidRange::of(function);
        let mut seen: Option<OutOfRange> = None;
        for lane in 0..usize::from(dst.n_partitions) {
            self.memory.read(data, lane, &mut scratch.first);
            let (scale, bias) = (self.scalar(affine.scale, lane), self.scalar(affine.bias, lane));
            scratch.first.iter_mut().for_each(|value| *value = *value * scale + bias);
            scratch.second.clear();
            if range != ValidRange::All {
                scratch.second.extend_from_slice(&scratch.first);
            }
            functions::evaluate(function, &mut scratch.first);
            for (element, (&input, value)) in scratch.second.iter().zip(&mut scratch.first).enumerate() {
                if range.excludes(input) {
                    *value = f32::NAN;
                    let partition = usize::from(data.partition) + lane;
                    let first = OutOfRange { instruction: id, function, input, partition, element, count: 0 };
                    seen.get_or_insert(first).count += 1;
                }
            }
            self.memory.write(dst, lane, &scratch.first);
            if let Some(command) = reduce {
                let sum = alu::reduce(AluOp::Add, &scratch.first);
                let register = &mut self.accumulators[usize::from(dst.partition) + lane];
                *register = match command {
                    ReduceCommand::ResetReduce => sum,
                    ReduceCommand::Reduce => *register + sum,
                };
                if let Some(result) = reduce_result {
                    let total = *register;
                    self.memory.write(result, lane, &[total]);
                }
            }
        }
        self.out_of_range.extend(seen);
    }

    fn tensor_scalar(
        &mut self,
        dst: &TileView,
        data: &TileView,
        first: (AluOp, &ScalarOperand, bool),
        second: Option<(AluOp, &ScalarOperand, bool)>,
        scratch: &mut Scratch,
    ) {
        for lane in 0..usize::from(dst.n_partitions) {
            self.memory.read(data, lane, &mut scratch.first);
            for (op, operand, reverse) in [Some(first), second].into_iter().flatten() {
                let operand = self.scalar(operand, lane);
                alu::with_scalar(op, &mut scratch.first, operand, Order::reversed_if(reverse));
            }
            self.memory.write(dst, lane, &scratch.first);
        }
    }

    /// Bitwise operators work on raw elements; an immediate is a number in the data's type.
    fn bit_scalar(
        &mut self,
        dst: &TileView,
        data: &TileView,
        first: (AluOp, &ScalarOperand, bool),
        second: Option<(AluOp, &ScalarOperand, bool)>,
        scratch: &mut Scratch,
    ) {
        let size = data.dtype.size_bytes();
        for lane in 0..usize::from(dst.n_partitions) {
            self.memory.read_raw(data, lane, &mut scratch.raw);
            for (op, operand, reverse) in [Some(first), second].into_iter().flatten() {
                let operand_bits = match operand {
                    ScalarOperand::Immediate(value) => *value as i64 as u32,
                    ScalarOperand::Vector(view) => {
                        self.memory.read_raw(view, lane, &mut scratch.raw_second);
                        raw_bits(view.dtype, &scratch.raw_second)
                    }
                };
                for element in scratch.raw.chunks_exact_mut(size) {
                    let bits = raw_bits(data.dtype, element);
                    let (lhs, rhs) = if reverse { (operand_bits, bits) } else { (bits, operand_bits) };
                    let result = alu::apply_bits(op, lhs, rhs, 8 * size as u32);
                    element.copy_from_slice(&result.to_le_bytes()[..size]);
                }
            }
            self.memory.write_raw(dst, lane, &scratch.raw);
        }
    }

    fn tensor_tensor(&mut self, instruction: &Instruction, views: [&TileView; 3], op: AluOp, scratch: &mut Scratch) {
        let [dst, lhs, rhs] = views;
        let exact = instruction.engine == Engine::Pool && views.iter().all(|view| view.dtype == ir::Dtype::I32)
            || alu::is_bitwise(op);
        for lane in 0..usize::from(dst.n_partitions) {
            if !exact {
                self.memory.read(lhs, lane, &mut scratch.first);
                self.memory.read(rhs, lane, &mut scratch.second);
                alu::with_tensor(op, &mut scratch.first, &scratch.second, Order::TensorFirst);
                self.memory.write(dst, lane, &scratch.first);
                continue;
            }
            self.memory.read_raw(lhs, lane, &mut scratch.raw);
            self.memory.read_raw(rhs, lane, &mut scratch.raw_second);
            let size = lhs.dtype.size_bytes();
            let others = scratch.raw_second.chunks_exact(size);
            for (element, other) in scratch.raw.chunks_exact_mut(size).zip(others) {
                let (left, right) = (raw_bits(lhs.dtype, element), raw_bits(rhs.dtype, other));
                let result = if alu::is_bitwise(op) {
                    alu::apply_bits(op, left, right, 8 * size as u32)
                } else {
                    alu::apply_integer(op, left as i32, right as i32) as u32
                };
                element.copy_from_slice(&result.to_le_bytes()[..size]);
            }
            self.memory.write_raw(dst, lane, &scratch.raw);
        }
    }

    fn tensor_reduce(
        &mut self,
        [dst, data]: [&TileView; 2],
        op: AluOp,
        n_reduced_dims: usize,
        negate: bool,
        scratch: &mut Scratch,
    ) {
        let reduced = &data.dims[data.dims.len() - n_reduced_dims..];
        let group: usize = reduced.iter().map(|dim| usize::from(dim.count)).product();
        let size = data.dtype.size_bytes();
        for lane in 0..usize::from(dst.n_partitions) {
            if alu::is_bitwise(op) {
                self.memory.read_raw(data, lane, &mut scratch.raw);
                scratch.raw_second.clear();
                for elements in scratch.raw.chunks_exact(group * size) {
                    let bits = elements.chunks_exact(size).map(|element| raw_bits(data.dtype, element));
                    let folded = bits.reduce(|lhs, rhs| alu::apply_bits(op, lhs, rhs, 8 * size as u32)).unwrap_or(0);
                    scratch.raw_second.extend_from_slice(&folded.to_le_bytes()[..size]);
                }
                self.memory.write_raw(dst, lane, &scratch.raw_second);
                continue;
            }
            self.memory.read(data, lane, &mut scratch.first);
            let sign = if negate { -1.0 } else { 1.0 };
            scratch.second.clear();
            scratch.second.extend(scratch.first.chunks_exact(group).map(|row| sign * alu::reduce(op, row)));
            self.memory.write(dst, lane, &scratch.second);
        }
    }

    /// Bit-exact between equal types on DVE, Pool and ACT; through f32 otherwise.
    fn copy(&mut self, dst: &TileView, src: &TileView, scratch: &mut Scratch) {
        for lane in 0..usize::from(dst.n_partitions) {
            if dst.dtype == src.dtype {
                self.memory.read_raw(src, lane, &mut scratch.raw);
                self.memory.write_raw(dst, lane, &scratch.raw);
            } else {
                self.memory.read(src, lane, &mut scratch.first);
                self.memory.write(dst, lane, &scratch.first);
            }
        }
    }

    fn copy_where(&mut self, dst: &TileView, src: &TileView, predicate: &TileView, scratch: &mut Scratch) {
        let size = src.dtype.size_bytes();
        let predicate_size = predicate.dtype.size_bytes();
        let mut chosen = Vec::new();
        for lane in 0..usize::from(dst.n_partitions) {
            self.memory.read_raw(dst, lane, &mut chosen);
            self.memory.read_raw(src, lane, &mut scratch.raw);
            self.memory.read_raw(predicate, lane, &mut scratch.raw_second);
            let conditions = scratch.raw_second.chunks_exact(predicate_size);
            let elements = chosen.chunks_exact_mut(size).zip(scratch.raw.chunks_exact(size));
            for ((slot, element), condition) in elements.zip(conditions) {
                if condition.iter().any(|&byte| byte != 0) {
                    slot.copy_from_slice(element);
                }
            }
            self.memory.write_raw(dst, lane, &chosen);
        }
    }

    fn iota(&mut self, dst: &TileView, steps: &[i32], offset: i32, channel_multiplier: i32, scratch: &mut Scratch) {
        let mut row = vec![offset];
        for (dim, &step) in dst.dims.iter().zip(steps) {
            let indices = 0..i32::from(dim.count);
            row = row
                .iter()
                .flat_map(|&base| indices.clone().map(move |index| base.wrapping_add(index.wrapping_mul(step))))
                .collect();
        }
        for lane in 0..usize::from(dst.n_partitions) {
            let shift = (lane as i32).wrapping_mul(channel_multiplier);
            let values = row.iter().map(|value| value.wrapping_add(shift));
            if dst.dtype == ir::Dtype::I32 {
                scratch.raw.clear();
                scratch.raw.extend(values.flat_map(i32::to_le_bytes));
                self.memory.write_raw(dst, lane, &scratch.raw);
            } else {
                scratch.first.clear();
                scratch.first.extend(values.map(|value| value as f32));
                self.memory.write(dst, lane, &scratch.first);
            }
        }
    }
}

/// Scale and bias of an activation.
struct Affine<'a> {
    scale: &'a ScalarOperand,
    bias: &'a ScalarOperand,
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
