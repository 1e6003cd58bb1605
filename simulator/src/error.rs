//! Why a program cannot be loaded or run.

use ir::program::AbsoluteError;

use crate::finding::{Finding, Findings, Site};

/// Why a program cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The file is damaged or not in a form this simulator reads.
    #[error("{0}")]
    Neff(#[from] neff::Error),
    /// The container reads, but what it holds does not fit together.
    #[error("{0}")]
    Inconsistent(String),
    /// The engine streams are in an encoding that is not ours.
    #[error("the engine streams are not in the open encoding: feature bit {bit} is not set", bit = neff::container::OPEN_ENCODING_BIT)]
    ForeignEncoding,
    /// A program whose operands have no addresses.
    #[error("{0}")]
    Absolute(#[from] AbsoluteError),
}

/// Why a run stopped.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    /// Another number of inputs than the program has.
    #[error("the program takes {expected} inputs, not {given}")]
    InputCount { expected: usize, given: usize },
    /// An input that the program reads is not given.
    #[error("input {position} (`{name}`) is missing")]
    MissingInput { position: usize, name: String },
    /// An input of another size.
    #[error("input {position} (`{name}`) has {given} bytes, not {expected}")]
    InputSize { position: usize, name: String, expected: u64, given: u64 },
    /// More memory than this machine can give.
    #[error("the program needs {bytes} bytes, which do not fit into this machine's memory")]
    OutOfMemory { bytes: u64 },
    /// A gather's index outside its table: bad input.
    #[error("index {index} of row {row} is outside 0..{n_rows} in {site}")]
    IndexOutOfRange { site: Site, row: usize, index: i32, n_rows: u32 },
    /// Inputs of activation functions outside the range for which the chip gives valid results.
    #[error("{} activations have inputs without a valid result: {first}", .0.findings.len() + .0.n_omitted, first = .0.findings[0])]
    OutOfRange(Findings),
    /// Instructions whose operands do not exist or do not fit together.
    #[error("the program breaks operand rules: {first}", first = .0.findings[0])]
    Illegal(Findings),
    /// Streams that wait for ever.
    #[error("{0}")]
    Deadlock(Box<Finding>),
}

impl RunError {
    /// Code in diagnostics.
    pub const fn code(&self) -> &'static str {
        match self {
            RunError::InputCount { .. } | RunError::MissingInput { .. } | RunError::InputSize { .. } => "bad-input",
            RunError::OutOfMemory { .. } => "out-of-memory",
            RunError::IndexOutOfRange { .. } => "index-out-of-range",
            RunError::OutOfRange(_) => "activation-range",
            RunError::Illegal(_) => "illegal-program",
            RunError::Deadlock(_) => "deadlock",
        }
    }
}
