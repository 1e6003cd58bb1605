//! The layout of a record: where each field stands, and checked access to it.

use super::RECORD_BYTES;

pub(super) const OPCODE_AT: usize = 0;
pub(super) const VERSION_AT: usize = 1;
pub(super) const N_WAITS_AT: usize = 2;
pub(super) const N_UPDATES_AT: usize = 3;
pub(super) const WAIT_AT: [usize; 2] = [4, 8];
pub(super) const UPDATE_AT: usize = 12;
pub(super) const FLAGS_AT: usize = 16;
/// Three bytes for operators, functions and small counts.
pub(super) const CODE_AT: [usize; 3] = [17, 18, 19];
/// Two 32-bit immediates.
pub(super) const IMMEDIATE_AT: [usize; 2] = [20, 24];

/// On-chip operands: destination, data, two operands, reduction result.
pub(super) const VIEW_AT: [usize; 5] = [32, 60, 88, 116, 144];
pub(super) const VIEW_BYTES: usize = 28;
/// The steps of an iota stand where the data operand would.
pub(super) const IOTA_STEPS_AT: usize = VIEW_AT[1];

pub(super) const DMA_DST_AT: usize = 32;
pub(super) const DMA_SRC_AT: usize = 112;
pub(super) const SIDE_VARIABLE_AT: usize = 4;
pub(super) const GATHER_INDEX_AT: usize = 192;
pub(super) const GATHER_ROW_ELEMENTS_AT: usize = GATHER_INDEX_AT + VIEW_BYTES;
pub(super) const GATHER_N_ROWS_AT: usize = GATHER_ROW_ELEMENTS_AT + 4;

/// The operand in view 2 is a vector, not immediate 0.
pub(super) const OPERAND0_IS_VECTOR: u8 = 1 << 0;
/// The operand in view 3 is a vector, not immediate 1.
pub(super) const OPERAND1_IS_VECTOR: u8 = 1 << 1;
pub(super) const REVERSE0: u8 = 1 << 2;
pub(super) const REVERSE1: u8 = 1 << 3;
pub(super) const NEGATE: u8 = 1 << 4;
pub(super) const ACCUMULATE: u8 = 1 << 5;
pub(super) const HAS_RESULT: u8 = 1 << 6;
pub(super) const GATHERS: u8 = 1 << 7;

/// The bytes of one record. Offsets are constants of this module, all within the record.
#[derive(Clone)]
pub(super) struct Record(pub [u8; RECORD_BYTES]);

impl Record {
    pub fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.0[at..at + N].copy_from_slice(&bytes);
    }

    pub fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[at..at + N]);
        bytes
    }

    pub fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.get(at))
    }

    pub fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.get(at))
    }

    pub fn set_flag(&mut self, flag: u8) {
        self.0[FLAGS_AT] |= flag;
    }

    pub fn has_flag(&self, flag: u8) -> bool {
        self.0[FLAGS_AT] & flag != 0
    }
}
