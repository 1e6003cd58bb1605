//! Names of the program enums in the text form, and back.

use std::fmt;
use std::str::FromStr;

use super::{ActivationFunction, AluOp, DmaQueue, Engine, ProgramPhase, ReduceCommand, Space, TableSet};
use crate::types::TypeError;

macro_rules! names {
    ($type:ident, $what:literal, { $($variant:ident => $name:literal),+ $(,)? }) => {
        impl $type {
            /// Every value, in declaration order.
            pub const VALUES: &'static [$type] = &[$($type::$variant),+];

            /// Name in the text form.
            pub const fn text_name(self) -> &'static str {
                match self {
                    $($type::$variant => $name),+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.text_name())
            }
        }

        impl FromStr for $type {
            type Err = TypeError;

            fn from_str(text: &str) -> Result<Self, TypeError> {
                let found = Self::VALUES.iter().copied().find(|value| value.text_name() == text);
                found.ok_or_else(|| TypeError::new(format!(concat!("no ", $what, " is named `{}`"), text)))
            }
        }
    };
}

names!(Engine, "engine", { Pe => "pe", Act => "act", Dve => "dve", Pool => "pool", Sp => "sp" });

names!(Space, "memory", { Sbuf => "sbuf", Psum => "psum" });

names!(ProgramPhase, "phase", {
    Lowered => "lowered",
    Scheduled => "scheduled",
    Allocated => "allocated",
    Synchronized => "synchronized",
});

names!(ReduceCommand, "reduce command", { ResetReduce => "reset", Reduce => "continue" });

names!(DmaQueue, "queue", {
    Hardware => "hardware",
    HardwareTranspose => "hardware_transpose",
    Software => "software",
    Ring => "ring",
});

names!(ActivationFunction, "activation function", {
    Copy => "copy",
    Square => "square",
    Relu => "relu",
    Abs => "abs",
    Sign => "sign",
    Exp => "exp",
    Tanh => "tanh",
    Sigmoid => "sigmoid",
    Log => "log",
    Softplus => "softplus",
    Sqrt => "sqrt",
    Rsqrt => "rsqrt",
    Reciprocal => "reciprocal",
    Gelu => "gelu",
    GeluTanh => "gelu_tanh",
    Erf => "erf",
    Silu => "silu",
    Mish => "mish",
    Sin => "sin",
    Arctan => "arctan",
});

names!(TableSet, "table set", {
    ExpAndOthers => "exp_and_others",
    GeluAndOthers => "gelu_and_others",
    NaturalLogExpAndOthers => "natural_log_exp_and_others",
    ReciprocalSqrtAndSmall => "reciprocal_sqrt_and_small",
    SiluAndOthers => "silu_and_others",
    SinAndOthers => "sin_and_others",
});

names!(AluOp, "ALU operator", {
    Add => "add",
    Subtract => "subtract",
    Multiply => "multiply",
    Max => "max",
    Min => "min",
    Equal => "equal",
    NotEqual => "not_equal",
    Greater => "greater",
    GreaterEqual => "greater_equal",
    Less => "less",
    LessEqual => "less_equal",
    LogicalAnd => "logical_and",
    LogicalOr => "logical_or",
    LogicalXor => "logical_xor",
    Power => "power",
    Abs => "abs",
    LogicalNot => "logical_not",
    BitwiseAnd => "bitwise_and",
    BitwiseOr => "bitwise_or",
    BitwiseXor => "bitwise_xor",
    ShiftLeft => "shift_left",
    ShiftRight => "shift_right",
});
