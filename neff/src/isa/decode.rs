//! From records to instructions.

use super::codes::{
    PLACE_BOUND, PLACE_HBM, PLACE_PSUM, PLACE_SBUF, alu_of, dtype_of, function_of, queue_of, reduce_of, table_set_of,
};
use super::encode::{Addresses, encode_record};
use super::record::{
    ACCUMULATE, CODE_AT, DMA_DST_AT, DMA_SRC_AT, GATHER_INDEX_AT, GATHER_N_ROWS_AT, GATHER_ROW_ELEMENTS_AT, GATHERS,
    HAS_RESULT, IMMEDIATE_AT, IOTA_STEPS_AT, N_UPDATES_AT, N_WAITS_AT, NEGATE, OPCODE_AT, OPERAND0_IS_VECTOR,
    OPERAND1_IS_VECTOR, REVERSE0, REVERSE1, Record, SIDE_VARIABLE_AT, UPDATE_AT, VERSION_AT, VIEW_AT, WAIT_AT,
};
use super::{RECORD_BYTES, VERSION};
use crate::{Code, Error, Place};
use ir::program::{
    AluOp, Dim, DmaAccess, DmaDim, DmaPlace, Engine, Gather, HbmId, Instruction, InstructionKind, PSUM_TILE, SBUF_TILE,
    ScalarOperand, TileId, TileView, Update, Wait,
};
use ir::types::Dtype;
use smallvec::SmallVec;

/// Decodes the stream of one engine. `member` is its name for errors.
///
/// Operands name [`SBUF_TILE`] and [`PSUM_TILE`] and variable ids as HBM tensors.
///
/// # Errors
/// [`Code::BadInstruction`] with the byte in the member.
pub fn decode_stream(engine: Engine, member: &str, stream: &[u8]) -> Result<Vec<Instruction>, Error> {
    records(engine, member, stream)?.collect()
}

/// The instructions of a stream one by one, as [`decode_stream`] gives them.
///
/// # Errors
/// When the stream is no whole number of records. Each record has its own error.
pub fn records<'a>(
    engine: Engine,
    member: &'a str,
    stream: &'a [u8],
) -> Result<impl ExactSizeIterator<Item = Result<Instruction, Error>> + 'a, Error> {
    let (records, rest) = stream.as_chunks::<RECORD_BYTES>();
    if !rest.is_empty() {
        let reason = format!("the stream ends inside a record: {} bytes are no multiple of 256", stream.len());
        return Err(Error::new(Code::BadInstruction, Place::member_byte(member, stream.len() as u64), reason));
    }
    let decode = move |(position, record): (usize, &[u8; RECORD_BYTES])| {
        decode_record(engine, record).map_err(|error| {
            let byte = (position * RECORD_BYTES) as u64 + error.place.byte.unwrap_or(0);
            let reason = format!("record {position}: {}", error.reason);
            Error::new(error.code, Place::member_byte(member, byte), reason)
        })
    };
    Ok(records.iter().enumerate().map(decode))
}

/// Decodes one record of an engine's stream.
///
/// # Errors
/// [`Code::BadInstruction`] with the byte in the record and the field that is wrong.
pub fn decode_record(engine: Engine, record: &[u8; RECORD_BYTES]) -> Result<Instruction, Error> {
    let decoder = Decoder { record: Record(*record) };
    let version = decoder.record.u8(VERSION_AT);
    if version != VERSION {
        return Err(fault(VERSION_AT, format_args!("version is {version}, this tool reads {VERSION}")));
    }
    let mut instruction = Instruction::new(engine, decoder.kind()?);
    instruction.waits = decoder.waits()?;
    instruction.update = decoder.update()?;
    decoder.require_canonical(&instruction)?;
    Ok(instruction)
}

fn fault(at: usize, reason: impl std::fmt::Display) -> Error {
    Error::new(Code::BadInstruction, Place::byte(at as u64), reason.to_string())
}

struct Decoder {
    record: Record,
}

impl Decoder {
    fn waits(&self) -> Result<SmallVec<[Wait; 2]>, Error> {
        let n_waits = usize::from(self.record.u8(N_WAITS_AT));
        if n_waits > WAIT_AT.len() {
            return Err(fault(N_WAITS_AT, format_args!("number of waits is {n_waits}, at most 2")));
        }
        let wait = |at: &usize| Wait { semaphore: self.record.u16(*at), at_least: self.record.u16(at + 2) };
        Ok(WAIT_AT[..n_waits].iter().map(wait).collect())
    }

    fn update(&self) -> Result<Option<Update>, Error> {
        match self.record.u8(N_UPDATES_AT) {
            0 => Ok(None),
            1 => Ok(Some(Update { semaphore: self.record.u16(UPDATE_AT), add: self.record.u16(UPDATE_AT + 2) })),
            n_updates => Err(fault(N_UPDATES_AT, format_args!("number of updates is {n_updates}, at most 1"))),
        }
    }

    fn kind(&self) -> Result<InstructionKind, Error> {
        let view = |position: usize| self.view(VIEW_AT[position]);
        Ok(match self.record.u8(OPCODE_AT) {
            0x01 => self.activation()?,
            0x02 => self.tensor_scalar()?,
            0x03 => InstructionKind::TensorScalarReduce {
                dst: view(0)?,
                data: view(1)?,
                op0: self.operator(0)?,
                operand0: self.operand(0)?,
                reduce_op: self.operator(1)?,
                reduce_result: self.result()?.ok_or_else(|| fault(VIEW_AT[4], "the reduction has no result"))?,
            },
            0x04 => self.scalar_tensor_tensor()?,
            0x05 => {
                InstructionKind::TensorTensor { dst: view(0)?, lhs: view(1)?, rhs: view(2)?, op: self.operator(0)? }
            }
            0x06 => InstructionKind::TensorReduce {
                dst: view(0)?,
                data: view(1)?,
                op: self.operator(0)?,
                n_reduced_dims: self.record.u8(CODE_AT[2]),
                negate: self.record.has_flag(NEGATE),
            },
            0x07 => InstructionKind::TensorTensorScan {
                dst: view(0)?,
                data0: view(1)?,
                data1: view(3)?,
                initial: self.operand(0)?,
                op0: self.operator(0)?,
                op1: self.operator(1)?,
            },
            0x08 => InstructionKind::TensorCopy { dst: view(0)?, src: view(1)? },
            0x09 => InstructionKind::TensorCopyPredicated { dst: view(0)?, src: view(1)?, predicate: view(2)? },
            0x0a => InstructionKind::Reciprocal { dst: view(0)?, data: view(1)? },
            0x0b => InstructionKind::Memset { dst: view(0)?, value: self.immediate(0) },
            0x0c => self.iota()?,
            0x0d => InstructionKind::BnStats { dst: view(0)?, data: view(1)? },
            0x0e => InstructionKind::BnAggr { dst: view(0)?, data: view(1)? },
            0x0f => InstructionKind::Matmul {
                dst: view(0)?,
                stationary: view(1)?,
                moving: view(2)?,
                accumulate: self.record.has_flag(ACCUMULATE),
            },
            0x10 => InstructionKind::Transpose { dst: view(0)?, data: view(1)? },
            0x20 => self.dma()?,
            0x30 => InstructionKind::LoadTable { set: self.code(0, "table set", table_set_of)? },
            0x31 => InstructionKind::Sync,
            0x32 => InstructionKind::Call {
                entry: self.record.u32(IMMEDIATE_AT[0]),
                bindings: self.record.u32(IMMEDIATE_AT[1]),
            },
            0x33 => InstructionKind::Return,
            0x34 => InstructionKind::ClearSemaphores { first: self.number(0)?, count: self.number(1)? },
            opcode => return Err(fault(OPCODE_AT, format_args!("opcode {opcode:#04x} is not assigned"))),
        })
    }

    fn activation(&self) -> Result<InstructionKind, Error> {
        let reduce = match self.record.u8(CODE_AT[1]) {
            0 => None,
            _ => Some(self.code(1, "reduce command", reduce_of)?),
        };
        Ok(InstructionKind::Activation {
            function: self.code(0, "activation function", function_of)?,
            dst: self.view(VIEW_AT[0])?,
            data: self.view(VIEW_AT[1])?,
            scale: self.operand(0)?,
            bias: self.operand(1)?,
            reduce,
            reduce_result: self.result()?,
        })
    }

    fn tensor_scalar(&self) -> Result<InstructionKind, Error> {
        let second = match self.record.u8(CODE_AT[1]) {
            0 => None,
            _ => Some((self.operator(1)?, self.operand(1)?, self.record.has_flag(REVERSE1))),
        };
        Ok(InstructionKind::TensorScalar {
            dst: self.view(VIEW_AT[0])?,
            data: self.view(VIEW_AT[1])?,
            op0: self.operator(0)?,
            operand0: self.operand(0)?,
            reverse0: self.record.has_flag(REVERSE0),
            second,
        })
    }

    fn scalar_tensor_tensor(&self) -> Result<InstructionKind, Error> {
        Ok(InstructionKind::ScalarTensorTensor {
            dst: self.view(VIEW_AT[0])?,
            data: self.view(VIEW_AT[1])?,
            op0: self.operator(0)?,
            operand0: self.operand(0)?,
            reverse0: self.record.has_flag(REVERSE0),
            op1: self.operator(1)?,
            operand1: self.view(VIEW_AT[3])?,
            reverse1: self.record.has_flag(REVERSE1),
        })
    }

    fn iota(&self) -> Result<InstructionKind, Error> {
        let n_steps = self.n_dims(CODE_AT[2])?;
        let step = |position: usize| i32::from_le_bytes(self.record.get(IOTA_STEPS_AT + 4 * position));
        Ok(InstructionKind::Iota {
            dst: self.view(VIEW_AT[0])?,
            steps: (0..n_steps).map(step).collect(),
            offset: i32::from_le_bytes(self.record.get(IMMEDIATE_AT[0])),
            channel_multiplier: i32::from_le_bytes(self.record.get(IMMEDIATE_AT[1])),
        })
    }

    fn dma(&self) -> Result<InstructionKind, Error> {
        let gather = if self.record.has_flag(GATHERS) {
            Some(Gather {
                index: self.view(GATHER_INDEX_AT)?,
                row_elements: self.record.u32(GATHER_ROW_ELEMENTS_AT),
                n_rows: self.record.u32(GATHER_N_ROWS_AT),
            })
        } else {
            None
        };
        Ok(InstructionKind::Dma {
            dst: self.side(DMA_DST_AT)?,
            src: self.side(DMA_SRC_AT)?,
            queue: self.code(0, "DMA queue", queue_of)?,
            gather,
        })
    }

    fn operator(&self, position: usize) -> Result<AluOp, Error> {
        self.code(position, "ALU operator", alu_of)
    }

    fn code<T>(&self, position: usize, what: &str, of: fn(u8) -> Option<T>) -> Result<T, Error> {
        let code = self.record.u8(CODE_AT[position]);
        of(code).ok_or_else(|| fault(CODE_AT[position], format_args!("{what} {code} is not assigned")))
    }

    fn immediate(&self, position: usize) -> f32 {
        f32::from_bits(self.record.u32(IMMEDIATE_AT[position]))
    }

    /// An immediate that is a 16-bit number.
    fn number(&self, position: usize) -> Result<u16, Error> {
        let number = self.record.u32(IMMEDIATE_AT[position]);
        u16::try_from(number).map_err(|_| fault(IMMEDIATE_AT[position], format_args!("{number} exceeds 16 bits")))
    }

    /// A variable id, or a place after the binding register.
    fn id(&self, at: usize) -> Result<u32, Error> {
        let id = self.record.u32(at);
        if HbmId(id).bound_place().is_some() { Err(fault(at, format_args!("{id} exceeds 31 bits"))) } else { Ok(id) }
    }

    fn operand(&self, position: usize) -> Result<ScalarOperand, Error> {
        if self.record.has_flag([OPERAND0_IS_VECTOR, OPERAND1_IS_VECTOR][position]) {
            self.view(VIEW_AT[2 + position]).map(ScalarOperand::Vector)
        } else {
            Ok(ScalarOperand::Immediate(self.immediate(position)))
        }
    }

    fn result(&self) -> Result<Option<TileView>, Error> {
        self.record.has_flag(HAS_RESULT).then(|| self.view(VIEW_AT[4])).transpose()
    }

    fn view(&self, at: usize) -> Result<TileView, Error> {
        let tile = match self.record.u8(at) {
            PLACE_SBUF => SBUF_TILE,
            PLACE_PSUM => PSUM_TILE,
            place => return Err(fault(at, format_args!("memory {place} of an operand is neither sbuf nor psum"))),
        };
        let dtype = self.dtype(at + 1)?;
        let start_byte = u64::from(self.record.u32(at + 8));
        let offset = self.elements(at + 8, start_byte, dtype)?;
        let mut dims = SmallVec::new();
        for at in (at + 12..).step_by(4).take(self.n_dims(at + 2)?) {
            let count = self.record.u16(at + 2);
            self.require_elements(at + 2, u32::from(count))?;
            dims.push(Dim { step: i16::from_le_bytes(self.record.get(at)), count });
        }
        Ok(TileView {
            tile,
            partition: self.record.u8(at + 3),
            n_partitions: self.record.u8(at + 4),
            offset: u32::try_from(offset).expect("a quotient of a 32-bit number fits 32 bits"),
            dims,
            dtype,
        })
    }

    fn side(&self, at: usize) -> Result<DmaAccess, Error> {
        let tile = |tile: TileId| DmaPlace::Tile { tile, partition: self.record.u8(at + 3) };
        let place = match self.record.u8(at) {
            PLACE_SBUF => tile(SBUF_TILE),
            PLACE_PSUM => tile(PSUM_TILE),
            PLACE_HBM => DmaPlace::Hbm { tensor: HbmId(self.id(at + SIDE_VARIABLE_AT)?) },
            PLACE_BOUND => DmaPlace::Hbm { tensor: HbmId::bound(self.id(at + SIDE_VARIABLE_AT)?) },
            place => return Err(fault(at, format_args!("memory {place} of a transfer is not assigned"))),
        };
        let dtype = self.dtype(at + 1)?;
        let offset = self.elements(at + 8, u64::from_le_bytes(self.record.get(at + 8)), dtype)?;
        let mut dims = SmallVec::new();
        for at in (at + 16..).step_by(16).take(self.n_dims(at + 2)?) {
            let count = self.record.u32(at + 8);
            self.require_elements(at + 8, count)?;
            dims.push(DmaDim {
                partition_step: i16::from_le_bytes(self.record.get(at + 12)),
                step: i64::from_le_bytes(self.record.get(at)),
                count,
            });
        }
        Ok(DmaAccess { place, offset, dims, dtype })
    }

    fn dtype(&self, at: usize) -> Result<Dtype, Error> {
        let code = self.record.u8(at);
        dtype_of(code).ok_or_else(|| fault(at, format_args!("element type {code} is not assigned")))
    }

    fn n_dims(&self, at: usize) -> Result<usize, Error> {
        match self.record.u8(at) {
            n_dims @ 0..=4 => Ok(usize::from(n_dims)),
            n_dims => Err(fault(at, format_args!("number of dimensions is {n_dims}, at most 4"))),
        }
    }

    fn elements(&self, at: usize, start_byte: u64, dtype: Dtype) -> Result<u64, Error> {
        let size = dtype.size_bytes() as u64;
        if !start_byte.is_multiple_of(size) {
            return Err(fault(at, format_args!("start byte {start_byte} lies between elements of {dtype}")));
        }
        Ok(start_byte / size)
    }

    fn require_elements(&self, at: usize, count: u32) -> Result<(), Error> {
        if count == 0 { Err(fault(at, "a dimension has count 0")) } else { Ok(()) }
    }

    /// What was not read must be zero: the instruction must encode to the very bytes it came from.
    fn require_canonical(&self, instruction: &Instruction) -> Result<(), Error> {
        let encoded = encode_record(instruction, Addresses::Decoded);
        let encoded = encoded.map_err(|error| Error { code: Code::BadInstruction, ..error })?;
        match encoded.iter().zip(&self.record.0).position(|(written, read)| written != read) {
            None => Ok(()),
            Some(at) => Err(fault(at, format_args!("`{}`: a byte that must be zero is not", instruction.kind.name()))),
        }
    }
}
