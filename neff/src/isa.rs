//! The open instruction encoding: one fixed-width little-endian record per instruction.
//!
//! `docs/isa.md` describes every byte. A record stands alone: on-chip operands are absolute addresses, HBM operands
//! name a variable of `def.json` by its id, and source locations are left out. Encoding therefore resolves a
//! program's tiles and tensors ([`Addresses`]), and decoded operands are in the absolute form of `ir::program`: SBUF and PSUM
//! are one tile each. What an instruction may do is not checked here: that is `ir::program::rules`.
//!
//! Decoding is total and exact: every 256 bytes give an instruction or an error that names the byte, and what decodes
//! encodes to the same 256 bytes.

mod codes;
mod decode;
mod encode;
mod record;

pub use codes::{Code as CodeRow, code_tables};
pub use decode::{decode_record, decode_stream, records};
pub use encode::{Addresses, encode_record, encode_stream};

use ir::program::InstructionKind;

/// Bytes of one record.
pub const RECORD_BYTES: usize = 256;

/// The version of the encoding, which every record carries.
pub const VERSION: u8 = 1;

/// Where the semaphore numbers of the two waits stand in a record, as u16.
pub const WAIT_SEMAPHORE_AT: [usize; 2] = [record::WAIT_AT[0], record::WAIT_AT[1]];

/// Where the semaphore number of the update stands in a record, as u16.
pub const UPDATE_SEMAPHORE_AT: usize = record::UPDATE_AT;

/// Where the variable id of a DMA's destination stands in a record, as u32.
pub const DST_VARIABLE_AT: usize = record::DMA_DST_AT + record::SIDE_VARIABLE_AT;

/// Where the variable id of a DMA's source stands in a record, as u32.
pub const SRC_VARIABLE_AT: usize = record::DMA_SRC_AT + record::SIDE_VARIABLE_AT;

macro_rules! opcodes {
    ($($code:literal $name:literal $pattern:pat),+ $(,)?) => {
        /// Opcodes with the names of their instructions, ascending.
        pub const OPCODES: &[(u8, &str)] = &[$(($code, $name)),+];

        /// The opcode of an instruction.
        pub fn opcode(kind: &InstructionKind) -> u8 {
            match kind {
                $($pattern => $code,)+
            }
        }
    };
}

opcodes! {
    0x01 "activation" InstructionKind::Activation { .. },
    0x02 "tensor_scalar" InstructionKind::TensorScalar { .. },
    0x03 "tensor_scalar_reduce" InstructionKind::TensorScalarReduce { .. },
    0x04 "scalar_tensor_tensor" InstructionKind::ScalarTensorTensor { .. },
    0x05 "tensor_tensor" InstructionKind::TensorTensor { .. },
    0x06 "tensor_reduce" InstructionKind::TensorReduce { .. },
    0x07 "tensor_tensor_scan" InstructionKind::TensorTensorScan { .. },
    0x08 "tensor_copy" InstructionKind::TensorCopy { .. },
    0x09 "tensor_copy_predicated" InstructionKind::TensorCopyPredicated { .. },
    0x0a "reciprocal" InstructionKind::Reciprocal { .. },
    0x0b "memset" InstructionKind::Memset { .. },
    0x0c "iota" InstructionKind::Iota { .. },
    0x0d "bn_stats" InstructionKind::BnStats { .. },
    0x0e "bn_aggr" InstructionKind::BnAggr { .. },
    0x0f "nc_matmul" InstructionKind::Matmul { .. },
    0x10 "nc_transpose" InstructionKind::Transpose { .. },
    0x20 "dma_copy" InstructionKind::Dma { .. },
    0x30 "load_table" InstructionKind::LoadTable { .. },
    0x31 "sync" InstructionKind::Sync,
    0x32 "call" InstructionKind::Call { .. },
    0x33 "return" InstructionKind::Return,
    0x34 "clear_semaphores" InstructionKind::ClearSemaphores { .. },
}
