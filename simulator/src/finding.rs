//! What checks and runs find, with the instructions and model lines behind it.

use std::fmt;

use ir::program::rules::Rule;

use crate::machine::InstructionId;

/// What is wrong.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FindingKind {
    /// An instruction breaks an operand, engine or stream rule.
    Rule(Rule),
    /// A read that is not ordered after the write it needs.
    ReadAfterWrite,
    /// A write that is not ordered after a read of what it replaces.
    WriteAfterRead,
    /// Two writes of one place without an order.
    WriteAfterWrite,
    /// One of these three where the earlier instruction is a transfer and the later one waits for
    /// some of its engines only.
    PartOfTransfer,
    /// A read of a sum in PSUM between two matmuls that add to it.
    OpenGroup,
    /// Two instructions may use a port at once that they must use in turn.
    SharedPort,
    /// A read of bytes that nothing has written.
    Uninitialised,
    /// Bytes of an output that nothing writes.
    UnwrittenOutput,
    /// A transfer that nothing waits for: the program may end before its data is in place.
    UnfinishedTransfer,
    /// Streams that wait for ever.
    Deadlock,
    /// A semaphore that counts beyond its width.
    SemaphoreOverflow,
    /// Accesses in more pieces than a check follows, so that nothing is proved.
    TooFine,
    /// Calls of kernels that are not kept apart: one may begin before another has ended, finds semaphores
    /// that another has left, or is applied twice to memory that it writes.
    Calls,
    /// An input for which an activation function has no valid result.
    ActivationRange,
}

impl FindingKind {
    /// Code in diagnostics.
    pub const fn code(self) -> &'static str {
        match self {
            FindingKind::Rule(rule) => rule.code(),
            FindingKind::ReadAfterWrite => "race-read-after-write",
            FindingKind::WriteAfterRead => "race-write-after-read",
            FindingKind::WriteAfterWrite => "race-write-after-write",
            FindingKind::PartOfTransfer => "part-of-transfer",
            FindingKind::OpenGroup => "open-psum-group",
            FindingKind::SharedPort => "shared-port",
            FindingKind::Uninitialised => "uninitialised-read",
            FindingKind::UnwrittenOutput => "unwritten-output",
            FindingKind::UnfinishedTransfer => "unfinished-transfer",
            FindingKind::Deadlock => "deadlock",
            FindingKind::SemaphoreOverflow => "semaphore-overflow",
            FindingKind::TooFine => "too-fine",
            FindingKind::Calls => "calls",
            FindingKind::ActivationRange => "activation-range",
        }
    }
}

/// An instruction and the model lines behind it, where they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    pub instruction: InstructionId,
    /// Name of the instruction, for example `activation`.
    pub name: &'static str,
    pub sources: Vec<String>,
}

impl fmt::Display for Site {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} `{}`", self.instruction, self.name)?;
        if !self.sources.is_empty() {
            write!(formatter, " from {}", self.sources.join(", "))?;
        }
        Ok(())
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub kind: FindingKind,
    /// Lower case, one sentence, the values that clash.
    pub message: String,
    /// The instructions involved, the earlier one first.
    pub sites: Vec<Site>,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.kind.code(), self.message)?;
        for (position, site) in self.sites.iter().enumerate() {
            let separator = if position == 0 { ": " } else { "; " };
            write!(formatter, "{separator}{site}")?;
        }
        Ok(())
    }
}

/// Everything that a check found, in program order of the later instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub findings: Vec<Finding>,
    /// Findings beyond the number that is kept.
    pub n_omitted: usize,
}

impl Findings {
    /// More than this are counted, not kept.
    pub const LIMIT: usize = 100;

    /// True where nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.findings.is_empty()
    }

    pub(crate) fn extend(&mut self, others: Findings) {
        others.findings.into_iter().for_each(|finding| self.push(finding));
        self.n_omitted += others.n_omitted;
    }

    pub(crate) fn push(&mut self, finding: Finding) {
        if self.findings.len() < Findings::LIMIT {
            self.findings.push(finding);
        } else {
            self.n_omitted += 1;
        }
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(formatter, "{finding}")?;
        }
        if self.n_omitted > 0 {
            writeln!(formatter, "and {} more", self.n_omitted)?;
        }
        Ok(())
    }
}
