//! Checks what a program's phase promises and reports every fault with the printed instruction.

use std::fmt;

use super::Program;

/// Something wrong with a program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramFault {
    /// Position of the instruction; `None` for faults of the whole program or of a declaration.
    pub instruction: Option<usize>,
    /// Lower case, no final dot.
    pub message: String,
    /// The instruction or declaration as the text form prints it; may be empty.
    pub line: String,
}

impl ProgramFault {
    /// A fault of the instruction at this position.
    pub fn at(program: &Program, position: usize, message: impl Into<String>) -> Self {
        let line = program.instructions.get(position).map(|instruction| program.instruction_text(instruction));
        ProgramFault { instruction: Some(position), message: message.into(), line: line.unwrap_or_default() }
    }

    /// A fault of a declaration or of the whole program.
    pub fn of_program(line: impl Into<String>, message: impl Into<String>) -> Self {
        ProgramFault { instruction: None, message: message.into(), line: line.into() }
    }
}

impl fmt::Display for ProgramFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.instruction, self.line.is_empty()) {
            (Some(position), _) => write!(formatter, "instruction {position}: {}: {}", self.message, self.line),
            (None, false) => write!(formatter, "{}: {}", self.message, self.line),
            (None, true) => formatter.write_str(&self.message),
        }
    }
}
