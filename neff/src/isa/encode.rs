//! From instructions to records.

use super::codes::{
    PLACE_BOUND, PLACE_HBM, PLACE_PSUM, PLACE_SBUF, alu_code, dtype_code, function_code, queue_code, reduce_code,
    table_set_code,
};
use super::record::{
    ACCUMULATE, CODE_AT, DMA_DST_AT, DMA_SRC_AT, GATHER_INDEX_AT, GATHER_N_ROWS_AT, GATHER_ROW_ELEMENTS_AT, GATHERS,
    HAS_RESULT, IMMEDIATE_AT, IOTA_STEPS_AT, N_UPDATES_AT, N_WAITS_AT, NEGATE, OPCODE_AT, OPERAND0_IS_VECTOR,
    OPERAND1_IS_VECTOR, REVERSE0, REVERSE1, Record, SIDE_VARIABLE_AT, UPDATE_AT, VERSION_AT, VIEW_AT, WAIT_AT,
};
use super::{RECORD_BYTES, VERSION, opcode};
use crate::{Code, Error, Place};
use ir::program::{
    AluOp, DmaAccess, DmaPlace, Engine, Gather, HbmId, Instruction, InstructionKind, PSUM_TILE, Program, SBUF_TILE,
    ScalarOperand, Space, Tile, TileId, TileView,
};
use ir::types::Dtype;

/// What tiles and HBM tensors of an instruction stand for.
#[derive(Debug, Clone, Copy)]
pub enum Addresses<'a> {
    /// Those of a program.
    Program {
        /// The program's tiles, all with addresses.
        tiles: &'a [Tile],
        /// The variable id of each HBM tensor of the program, or its place after the binding register.
        variables: &'a [HbmId],
    },
    /// Those of a decoded instruction: whole memories, and variable ids.
    Decoded,
}

/// Encodes the stream of one engine.
///
/// # Errors
/// As [`encode_record`]; the place is the byte in the stream.
pub fn encode_stream(program: &Program, engine: Engine, variables: &[HbmId]) -> Result<Vec<u8>, Error> {
    let addresses = Addresses::Program { tiles: &program.tiles, variables };
    let mut stream = Vec::new();
    for (_, instruction) in program.stream(engine) {
        let at = stream.len() as u64;
        let record = encode_record(instruction, addresses)
            .map_err(|error| Error { place: Place::byte(at + error.place.byte.unwrap_or(0)), ..error })?;
        stream.extend_from_slice(&record);
    }
    Ok(stream)
}

/// Encodes one instruction. Its engine is that of the stream it goes into; its locations are left out.
///
/// # Errors
/// [`Code::Unwritable`] for what a record has no room for: a third wait, a fifth dimension, a tile without an address,
/// an address beyond its field or between elements. The place is the byte in the record.
pub fn encode_record(instruction: &Instruction, addresses: Addresses<'_>) -> Result<[u8; RECORD_BYTES], Error> {
    let mut encoder = Encoder { record: Record([0; RECORD_BYTES]), addresses, name: instruction.kind.name() };
    encoder.record.put(OPCODE_AT, [opcode(&instruction.kind)]);
    encoder.record.put(VERSION_AT, [VERSION]);
    encoder.synchronization(instruction)?;
    encoder.kind(&instruction.kind)?;
    Ok(encoder.record.0)
}

struct Encoder<'a> {
    record: Record,
    addresses: Addresses<'a>,
    name: &'static str,
}

impl Encoder<'_> {
    fn fault(&self, at: usize, reason: impl std::fmt::Display) -> Error {
        Error::new(Code::Unwritable, Place::byte(at as u64), format!("`{}`: {reason}", self.name))
    }

    fn synchronization(&mut self, instruction: &Instruction) -> Result<(), Error> {
        let n_waits = instruction.waits.len();
        if n_waits > WAIT_AT.len() {
            return Err(self.fault(N_WAITS_AT, format_args!("{n_waits} waits, a record holds 2")));
        }
        self.record.put(N_WAITS_AT, [n_waits as u8]);
        for (wait, at) in instruction.waits.iter().zip(WAIT_AT) {
            self.record.put(at, wait.semaphore.to_le_bytes());
            self.record.put(at + 2, wait.at_least.to_le_bytes());
        }
        if let Some(update) = instruction.update {
            self.record.put(N_UPDATES_AT, [1]);
            self.record.put(UPDATE_AT, update.semaphore.to_le_bytes());
            self.record.put(UPDATE_AT + 2, update.add.to_le_bytes());
        }
        Ok(())
    }

    fn kind(&mut self, kind: &InstructionKind) -> Result<(), Error> {
        match kind {
            InstructionKind::Activation { function, dst, data, scale, bias, reduce, reduce_result } => {
                self.record.put(CODE_AT[0], [function_code(*function)]);
                self.record.put(CODE_AT[1], [reduce.map_or(0, reduce_code)]);
                self.views(&[dst, data])?;
                self.operand(0, scale)?;
                self.operand(1, bias)?;
                reduce_result.as_ref().map_or(Ok(()), |result| self.result(result))
            }
            InstructionKind::TensorScalar { .. }
            | InstructionKind::TensorScalarReduce { .. }
            | InstructionKind::ScalarTensorTensor { .. }
            | InstructionKind::TensorTensorScan { .. }
            | InstructionKind::TensorTensor { .. }
            | InstructionKind::TensorReduce { .. } => self.arithmetic(kind),
            InstructionKind::TensorCopy { dst, src: data }
            | InstructionKind::Reciprocal { dst, data }
            | InstructionKind::BnStats { dst, data }
            | InstructionKind::BnAggr { dst, data }
            | InstructionKind::Transpose { dst, data } => self.views(&[dst, data]),
            InstructionKind::TensorCopyPredicated { dst, src, predicate } => self.views(&[dst, src, predicate]),
            InstructionKind::Memset { dst, value } => {
                self.record.put(IMMEDIATE_AT[0], value.to_bits().to_le_bytes());
                self.views(&[dst])
            }
            InstructionKind::Iota { dst, steps, offset, channel_multiplier } => {
                self.iota_steps(steps)?;
                self.record.put(IMMEDIATE_AT[0], offset.to_le_bytes());
                self.record.put(IMMEDIATE_AT[1], channel_multiplier.to_le_bytes());
                self.views(&[dst])
            }
            InstructionKind::Matmul { dst, stationary, moving, accumulate } => {
                self.flag(ACCUMULATE, *accumulate);
                self.views(&[dst, stationary, moving])
            }
            InstructionKind::Dma { dst, src, queue, gather } => {
                self.record.put(CODE_AT[0], [queue_code(*queue)]);
                self.side(DMA_DST_AT, dst)?;
                self.side(DMA_SRC_AT, src)?;
                gather.as_ref().map_or(Ok(()), |gather| self.gather(gather))
            }
            InstructionKind::LoadTable { set } => {
                self.record.put(CODE_AT[0], [table_set_code(*set)]);
                Ok(())
            }
            InstructionKind::Call { entry, bindings } => {
                self.record.put(IMMEDIATE_AT[0], entry.to_le_bytes());
                self.record.put(IMMEDIATE_AT[1], bindings.to_le_bytes());
                Ok(())
            }
            InstructionKind::ClearSemaphores { first, count } => {
                self.record.put(IMMEDIATE_AT[0], u32::from(*first).to_le_bytes());
                self.record.put(IMMEDIATE_AT[1], u32::from(*count).to_le_bytes());
                Ok(())
            }
            InstructionKind::Sync | InstructionKind::Return => Ok(()),
        }
    }

    /// The instructions with ALU operators; the others have nothing to add here.
    fn arithmetic(&mut self, kind: &InstructionKind) -> Result<(), Error> {
        match kind {
            InstructionKind::TensorScalar { dst, data, op0, operand0, reverse0, second } => {
                self.views(&[dst, data])?;
                self.stage(0, *op0, operand0, *reverse0)?;
                let second = second.as_ref();
                second.map_or(Ok(()), |(op1, operand1, reverse1)| self.stage(1, *op1, operand1, *reverse1))
            }
            InstructionKind::TensorScalarReduce { dst, data, op0, operand0, reduce_op, reduce_result } => {
                self.views(&[dst, data])?;
                self.stage(0, *op0, operand0, false)?;
                self.operator(1, *reduce_op);
                self.result(reduce_result)
            }
            InstructionKind::ScalarTensorTensor { dst, data, op0, operand0, reverse0, op1, operand1, reverse1 } => {
                self.views(&[dst, data])?;
                self.stage(0, *op0, operand0, *reverse0)?;
                self.operator(1, *op1);
                self.flag(REVERSE1, *reverse1);
                self.view(VIEW_AT[3], operand1)
            }
            InstructionKind::TensorTensorScan { dst, data0, data1, initial, op0, op1 } => {
                self.views(&[dst, data0])?;
                self.stage(0, *op0, initial, false)?;
                self.operator(1, *op1);
                self.view(VIEW_AT[3], data1)
            }
            InstructionKind::TensorTensor { dst, lhs, rhs, op } => {
                self.operator(0, *op);
                self.views(&[dst, lhs, rhs])
            }
            InstructionKind::TensorReduce { dst, data, op, n_reduced_dims, negate } => {
                self.operator(0, *op);
                self.record.put(CODE_AT[2], [*n_reduced_dims]);
                self.flag(NEGATE, *negate);
                self.views(&[dst, data])
            }
            InstructionKind::Activation { .. }
            | InstructionKind::TensorCopy { .. }
            | InstructionKind::TensorCopyPredicated { .. }
            | InstructionKind::Reciprocal { .. }
            | InstructionKind::Memset { .. }
            | InstructionKind::Iota { .. }
            | InstructionKind::BnStats { .. }
            | InstructionKind::BnAggr { .. }
            | InstructionKind::Matmul { .. }
            | InstructionKind::Transpose { .. }
            | InstructionKind::Dma { .. }
            | InstructionKind::LoadTable { .. }
            | InstructionKind::Sync
            | InstructionKind::Call { .. }
            | InstructionKind::Return
            | InstructionKind::ClearSemaphores { .. } => Ok(()),
        }
    }

    /// An operator with its scalar operand.
    fn stage(&mut self, position: usize, op: AluOp, operand: &ScalarOperand, reverse: bool) -> Result<(), Error> {
        self.operator(position, op);
        self.flag([REVERSE0, REVERSE1][position], reverse);
        self.operand(position, operand)
    }

    fn operator(&mut self, position: usize, op: AluOp) {
        self.record.put(CODE_AT[position], [alu_code(op)]);
    }

    fn gather(&mut self, gather: &Gather) -> Result<(), Error> {
        self.record.set_flag(GATHERS);
        self.record.put(GATHER_ROW_ELEMENTS_AT, gather.row_elements.to_le_bytes());
        self.record.put(GATHER_N_ROWS_AT, gather.n_rows.to_le_bytes());
        self.view(GATHER_INDEX_AT, &gather.index)
    }

    // A boolean of the instruction becomes a bit of the record.
    fn flag(&mut self, flag: u8, is_set: bool) {
        if is_set {
            self.record.set_flag(flag);
        }
    }

    fn operand(&mut self, position: usize, operand: &ScalarOperand) -> Result<(), Error> {
        match operand {
            ScalarOperand::Immediate(value) => {
                self.record.put(IMMEDIATE_AT[position], value.to_bits().to_le_bytes());
                Ok(())
            }
            ScalarOperand::Vector(view) => {
                self.record.set_flag([OPERAND0_IS_VECTOR, OPERAND1_IS_VECTOR][position]);
                self.view(VIEW_AT[2 + position], view)
            }
        }
    }

    fn result(&mut self, view: &TileView) -> Result<(), Error> {
        self.record.set_flag(HAS_RESULT);
        self.view(VIEW_AT[4], view)
    }

    fn views(&mut self, views: &[&TileView]) -> Result<(), Error> {
        views.iter().zip(VIEW_AT).try_for_each(|(view, at)| self.view(at, view))
    }

    fn view(&mut self, at: usize, view: &TileView) -> Result<(), Error> {
        let (place, base_partition, base_byte) = self.tile(at, view.tile)?;
        let partition = self.partition(at, base_partition, view.partition)?;
        let start_byte = self.start_byte(at + 8, base_byte, u64::from(view.offset), view.dtype)?;
        let Ok(start_byte) = u32::try_from(start_byte) else {
            return Err(self.fault(at + 8, format_args!("start byte {start_byte} exceeds 32 bits")));
        };
        self.n_dims(at + 2, view.dims.len(), view.dims.iter().any(|dim| dim.count == 0))?;
        self.record.put(at, [place, dtype_code(view.dtype), view.dims.len() as u8, partition, view.n_partitions]);
        self.record.put(at + 8, start_byte.to_le_bytes());
        for (dim, at) in view.dims.iter().zip((at + 12..).step_by(4)) {
            self.record.put(at, dim.step.to_le_bytes());
            self.record.put(at + 2, dim.count.to_le_bytes());
        }
        Ok(())
    }

    fn side(&mut self, at: usize, access: &DmaAccess) -> Result<(), Error> {
        let (place, partition, variable, base_byte) = match access.place {
            DmaPlace::Hbm { tensor } => {
                let variable = self.variable(at, tensor)?;
                match variable.bound_place() {
                    Some(place) => (PLACE_BOUND, 0, place, 0),
                    None => (PLACE_HBM, 0, variable.0, 0),
                }
            }
            DmaPlace::Tile { tile, partition } => {
                let (place, base_partition, base_byte) = self.tile(at, tile)?;
                (place, self.partition(at, base_partition, partition)?, 0, base_byte)
            }
        };
        let start_byte = self.start_byte(at + 8, base_byte, access.offset, access.dtype)?;
        self.n_dims(at + 2, access.dims.len(), access.dims.iter().any(|dim| dim.count == 0))?;
        self.record.put(at, [place, dtype_code(access.dtype), access.dims.len() as u8, partition]);
        self.record.put(at + SIDE_VARIABLE_AT, variable.to_le_bytes());
        self.record.put(at + 8, start_byte.to_le_bytes());
        for (dim, at) in access.dims.iter().zip((at + 16..).step_by(16)) {
            self.record.put(at, dim.step.to_le_bytes());
            self.record.put(at + 8, dim.count.to_le_bytes());
            self.record.put(at + 12, dim.partition_step.to_le_bytes());
        }
        Ok(())
    }

    fn iota_steps(&mut self, steps: &[i32]) -> Result<(), Error> {
        self.n_dims(CODE_AT[2], steps.len(), false)?;
        self.record.put(CODE_AT[2], [steps.len() as u8]);
        for (step, at) in steps.iter().zip((IOTA_STEPS_AT..).step_by(4)) {
            self.record.put(at, step.to_le_bytes());
        }
        Ok(())
    }

    /// Memory, first partition and first byte of a tile.
    fn tile(&self, at: usize, tile: TileId) -> Result<(u8, u8, u32), Error> {
        let tiles = match self.addresses {
            Addresses::Program { tiles, variables: _ } => tiles,
            Addresses::Decoded => {
                return match tile {
                    SBUF_TILE => Ok((PLACE_SBUF, 0, 0)),
                    PSUM_TILE => Ok((PLACE_PSUM, 0, 0)),
                    TileId(id) => Err(self.fault(at, format_args!("tile {id} is no memory"))),
                };
            }
        };
        let Some(found) = tiles.get(tile.index()) else {
            return Err(self.fault(at, format_args!("tile {} is none of the program's", tile.0)));
        };
        let Some(address) = found.address else {
            return Err(self.fault(at, format_args!("tile {} (`{}`) has no address", tile.0, found.label)));
        };
        let place = match found.space {
            Space::Sbuf => PLACE_SBUF,
            Space::Psum => PLACE_PSUM,
        };
        Ok((place, address.partition, address.start_byte))
    }

    fn variable(&self, at: usize, tensor: HbmId) -> Result<HbmId, Error> {
        match self.addresses {
            Addresses::Decoded => Ok(tensor),
            Addresses::Program { tiles: _, variables } => variables.get(tensor.index()).copied().ok_or_else(|| {
                self.fault(at + SIDE_VARIABLE_AT, format_args!("HBM tensor {} has no variable id", tensor.0))
            }),
        }
    }

    fn partition(&self, at: usize, base: u8, partition: u8) -> Result<u8, Error> {
        base.checked_add(partition)
            .ok_or_else(|| self.fault(at + 3, format_args!("partition {base} + {partition} exceeds 8 bits")))
    }

    fn start_byte(&self, at: usize, base: u32, offset: u64, dtype: Dtype) -> Result<u64, Error> {
        let size = dtype.size_bytes() as u64;
        let start = offset.checked_mul(size).and_then(|bytes| bytes.checked_add(u64::from(base)));
        let Some(start) = start else {
            return Err(self.fault(at, format_args!("element {offset} of {dtype} from byte {base} exceeds 64 bits")));
        };
        // Decoded operands count elements from the start of the memory.
        if !start.is_multiple_of(size) {
            return Err(self.fault(at, format_args!("start byte {start} lies between elements of {dtype}")));
        }
        Ok(start)
    }

    fn n_dims(&self, at: usize, n_dims: usize, any_is_empty: bool) -> Result<(), Error> {
        if n_dims > 4 {
            return Err(self.fault(at, format_args!("{n_dims} dimensions, a record holds 4")));
        }
        if any_is_empty {
            return Err(self.fault(at, "a dimension has count 0"));
        }
        Ok(())
    }
}
