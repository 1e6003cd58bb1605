//! The numbers of element types, operators, functions and the other closed sets in a record. Names are those of the text
//! form of programs.
//!
//! A number is never reused for another meaning; 0 means "none" wherever a field may be absent.

use ir::program::{ActivationFunction, AluOp, DmaQueue, ReduceCommand, TableSet};
use ir::types::Dtype;

/// One row of a code table: number and name.
pub type Code = (u8, &'static str);

macro_rules! codes {
    ($table:ident, $to:ident, $from:ident, $type:ident, $name:ident { $($code:literal $variant:ident),+ $(,)? }) => {
        const $table: &[Code] = &[$(($code, $type::$variant.$name())),+];

        pub(super) fn $to(value: $type) -> u8 {
            match value {
                $($type::$variant => $code,)+
            }
        }

        pub(super) fn $from(code: u8) -> Option<$type> {
            match code {
                $($code => Some($type::$variant),)+
                _ => None,
            }
        }
    };
}

codes! { DTYPES, dtype_code, dtype_of, Dtype, name {
    1 F32,
    2 Bf16,
    3 F16,
    4 F8E4m3,
    5 F8E5m2,
    6 I32,
    7 I16,
    8 I8,
    9 U8,
    10 Bool,
    11 I64,
    12 F64,
}}

codes! { ALU_OPS, alu_code, alu_of, AluOp, text_name {
    1 Add,
    2 Subtract,
    3 Multiply,
    4 Max,
    5 Min,
    6 Equal,
    7 NotEqual,
    8 Greater,
    9 GreaterEqual,
    10 Less,
    11 LessEqual,
    12 LogicalAnd,
    13 LogicalOr,
    14 LogicalXor,
    15 Power,
    16 Abs,
    17 LogicalNot,
    18 BitwiseAnd,
    19 BitwiseOr,
    20 BitwiseXor,
    21 ShiftLeft,
    22 ShiftRight,
}}

codes! { FUNCTIONS, function_code, function_of, ActivationFunction, text_name {
    1 Copy,
    2 Square,
    3 Relu,
    4 Abs,
    5 Sign,
    6 Exp,
    7 Tanh,
    8 Sigmoid,
    9 Log,
    10 Softplus,
    11 Sqrt,
    12 Rsqrt,
    13 Reciprocal,
    14 Gelu,
    15 GeluTanh,
    16 Erf,
    17 Silu,
    18 Mish,
    19 Sin,
    20 Arctan,
}}

codes! { TABLE_SETS, table_set_code, table_set_of, TableSet, text_name {
    1 ExpAndOthers,
    2 GeluAndOthers,
    3 NaturalLogExpAndOthers,
    4 ReciprocalSqrtAndSmall,
    5 SiluAndOthers,
    6 SinAndOthers,
}}

codes! { REDUCE_COMMANDS, reduce_code, reduce_of, ReduceCommand, text_name {
    1 ResetReduce,
    2 Reduce,
}}

codes! { QUEUES, queue_code, queue_of, DmaQueue, text_name {
    1 Hardware,
    2 Software,
    3 Ring,
    4 HardwareTranspose,
}}

/// Memories of an operand: on-chip views have the first two, a DMA's sides all four.
const PLACES: &[Code] = &[(1, "sbuf"), (2, "psum"), (3, "hbm"), (4, "bound")];

pub(super) const PLACE_SBUF: u8 = 1;
pub(super) const PLACE_PSUM: u8 = 2;
pub(super) const PLACE_HBM: u8 = 3;
/// HBM, through the binding register.
pub(super) const PLACE_BOUND: u8 = 4;

/// Every code table by the title that `docs/isa.md` gives it.
pub fn code_tables() -> [(&'static str, &'static [Code]); 7] {
    [
        ("Memories", PLACES),
        ("Element types", DTYPES),
        ("ALU operators", ALU_OPS),
        ("Activation functions", FUNCTIONS),
        ("Table sets", TABLE_SETS),
        ("Reduce commands", REDUCE_COMMANDS),
        ("DMA queues", QUEUES),
    ]
}
