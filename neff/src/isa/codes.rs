//! The numbers of element types, operators, functions and the other closed sets in a record.
//!
//! A number is never reused for another meaning; 0 means "none" wherever a field may be absent.

use ir::program::{ActivationFunction, AluOp, DmaQueue, ReduceCommand, TableSet};
use ir::types::Dtype;

/// One row of a code table: number and name.
pub type Code = (u8, &'static str);

macro_rules! codes {
    ($table:ident, $to:ident, $from:ident, $type:ident { $($code:literal $name:literal $variant:ident),+ $(,)? }) => {
        const $table: &[Code] = &[$(($code, $name)),+];

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

codes! { DTYPES, dtype_code, dtype_of, Dtype {
    1 "f32" F32,
    2 "bf16" Bf16,
    3 "f16" F16,
    4 "f8e4m3" F8E4m3,
    5 "f8e5m2" F8E5m2,
    6 "i32" I32,
    7 "i16" I16,
    8 "i8" I8,
    9 "u8" U8,
    10 "bool" Bool,
    11 "i64" I64,
    12 "f64" F64,
}}

codes! { ALU_OPS, alu_code, alu_of, AluOp {
    1 "add" Add,
    2 "subtract" Subtract,
    3 "multiply" Multiply,
    4 "max" Max,
    5 "min" Min,
    6 "equal" Equal,
    7 "not_equal" NotEqual,
    8 "greater" Greater,
    9 "greater_equal" GreaterEqual,
    10 "less" Less,
    11 "less_equal" LessEqual,
    12 "logical_and" LogicalAnd,
    13 "logical_or" LogicalOr,
    14 "logical_xor" LogicalXor,
    15 "power" Power,
    16 "abs" Abs,
    17 "logical_not" LogicalNot,
    18 "bitwise_and" BitwiseAnd,
    19 "bitwise_or" BitwiseOr,
    20 "bitwise_xor" BitwiseXor,
    21 "shift_left" ShiftLeft,
    22 "shift_right" ShiftRight,
}}

codes! { FUNCTIONS, function_code, function_of, ActivationFunction {
    1 "copy" Copy,
    2 "square" Square,
    3 "relu" Relu,
    4 "abs" Abs,
    5 "sign" Sign,
    6 "exp" Exp,
    7 "tanh" Tanh,
    8 "sigmoid" Sigmoid,
    9 "log" Log,
    10 "softplus" Softplus,
    11 "sqrt" Sqrt,
    12 "rsqrt" Rsqrt,
    13 "reciprocal" Reciprocal,
    14 "gelu" Gelu,
    15 "gelu_tanh" GeluTanh,
    16 "erf" Erf,
    17 "silu" Silu,
    18 "mish" Mish,
    19 "sin" Sin,
    20 "arctan" Arctan,
}}

codes! { TABLE_SETS, table_set_code, table_set_of, TableSet {
    1 "exp_and_others" ExpAndOthers,
    2 "gelu_and_others" GeluAndOthers,
    3 "natural_log_exp_and_others" NaturalLogExpAndOthers,
    4 "reciprocal_sqrt_and_small" ReciprocalSqrtAndSmall,
    5 "silu_and_others" SiluAndOthers,
    6 "sin_and_others" SinAndOthers,
}}

codes! { REDUCE_COMMANDS, reduce_code, reduce_of, ReduceCommand {
    1 "reset_reduce" ResetReduce,
    2 "reduce" Reduce,
}}

codes! { QUEUES, queue_code, queue_of, DmaQueue {
    1 "hardware" Hardware,
    2 "software" Software,
    3 "ring" Ring,
}}

/// Memories of an operand: on-chip views have the first two, a DMA's sides all three.
const PLACES: &[Code] = &[(1, "sbuf"), (2, "psum"), (3, "hbm")];

pub(super) const PLACE_SBUF: u8 = 1;
pub(super) const PLACE_PSUM: u8 = 2;
pub(super) const PLACE_HBM: u8 = 3;

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
