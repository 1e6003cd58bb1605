//! Runs a NEFF: values, timing and checks.
//!
//! [`Machine`] holds one loaded program. [`Machine::run`] gives its values, [`Machine::timeline`]
//! predicts its time, [`Machine::check`] proves that its memory accesses are ordered and legal.
//! Only the file decides: the crate shares no code with lowering, passes or the reference evaluator,
//! and reads no debug or statistics member.

mod applied;
mod check;
mod error;
mod finding;
mod footprint;
mod load;
mod machine;
mod sound;
#[cfg(test)]
mod testing;
mod timeline;
mod values;

pub use error::{LoadError, RunError};
pub use finding::{Finding, FindingKind, Findings, Site};
pub use machine::{InstructionId, Machine, Outputs, TensorBytes, TensorInfo};
pub use timeline::{Bound, Busy, CallSpan, Cause, CriticalStep, Span, Timeline, TransferSpan};
