//! What an instruction may do: operands, engines, memories, types and streams.
//!
//! The rules are machine-model.md sections 2.1 to 2.7 and appendix B, as far as our instructions
//! reach. They are checked on one instruction at a time by [`check_instruction`], and on an engine's
//! stream by [`check_activation_tables`] and [`check_psum_groups`]. Ordering between engines is not
//! here; [`exclusive_ports`] says which instructions must not overlap on the first chip generation.
//!
//! Rules that need an address are skipped for tiles that have none yet.
//!
//! # What a program may rely on for order
//!
//! 1. Compute instructions of one engine take effect in stream order: an engine needs no semaphore
//!    against itself.
//! 2. A transfer is triggered in stream order but is not part of its engine's pipeline. It needs a
//!    wait for whatever it reads or overwrites, also for results of its own engine.
//! 3. Nothing orders two transfers, not even on one queue, unless the second is triggered after a
//!    wait for the completion of the first.
//! 4. A transfer's update happens when all its data is in place; each DMA engine adds its 1 when it
//!    is done, so that 15 of 16 say nothing.
//! 5. A wait for `semaphore >= value` orders exactly those updates without which the value cannot
//!    be reached, in any interleaving that the other waits allow. Two transfers in flight on one
//!    semaphore are told apart only by waiting for both.
//! 6. What a stream has waited for stays known to all its later instructions, and passes on with
//!    their updates.
//! 7. The program ends when every stream has ended. A transfer that nobody has waited for by then
//!    may still be under way.

use std::fmt;

use super::{Accesses, HbmTensor, Instruction, InstructionKind, Space, Tile, TileView};
use crate::target::Target;

mod dma;
mod operations;
mod streams;
mod views;

pub use streams::{
    LoadedTables, Port, PsumGroups, StreamViolation, check_activation_tables, check_psum_groups, exclusive_ports,
};

/// Which rule is broken.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// The engine cannot execute the instruction, or not on this target.
    Engine,
    /// An operand lies in a memory that the engine cannot reach in this role.
    Memory,
    /// Partitions outside the tile, or an illegal first partition.
    Partitions,
    /// Free dimensions, element counts or bytes outside the tile.
    Extent,
    /// Two operands disagree in their partitions or element counts.
    Shape,
    /// An element type that the instruction does not take.
    Type,
    /// A result crosses a PSUM bank.
    Bank,
    /// An ALU operator or immediate that the instruction does not take.
    Operator,
    /// A transfer's queue cannot do this.
    Queue,
    /// An address that its element type does not allow.
    Alignment,
    /// Waits and updates that the hardware does not have.
    Semaphore,
    /// An activation function whose table set is not loaded.
    Table,
    /// Accumulation that no matmul has started.
    PsumGroup,
}

impl Rule {
    /// Code in diagnostics.
    pub const fn code(self) -> &'static str {
        match self {
            Rule::Engine => "engine",
            Rule::Memory => "operand-memory",
            Rule::Partitions => "partitions",
            Rule::Extent => "extent",
            Rule::Shape => "operand-shape",
            Rule::Type => "operand-type",
            Rule::Bank => "psum-bank",
            Rule::Operator => "operator",
            Rule::Queue => "dma-queue",
            Rule::Alignment => "alignment",
            Rule::Semaphore => "semaphore",
            Rule::Table => "activation-table",
            Rule::PsumGroup => "psum-group",
        }
    }
}

/// A broken rule: lower case, one sentence, the values that clash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.rule.code(), self.message)
    }
}

/// What rules are checked against, and what they have found.
struct Checker<'a> {
    target: &'a Target,
    tiles: &'a [Tile],
    tensors: &'a [HbmTensor],
    name: &'static str,
    found: Vec<Violation>,
}

impl Checker<'_> {
    fn broken(&mut self, rule: Rule, message: impl fmt::Display) {
        self.found.push(Violation { rule, message: format!("`{}` {message}", self.name) });
    }

    /// Records the violation unless `holds`; the sentence is only made when it is needed.
    fn require<Text: fmt::Display>(&mut self, holds: bool, rule: Rule, message: impl FnOnce() -> Text) {
        if !holds {
            self.broken(rule, message());
        }
    }

    fn space(&self, view: &TileView) -> Option<Space> {
        self.tiles.get(view.tile.index()).map(|tile| tile.space)
    }

    fn in_psum(&self, view: &TileView) -> bool {
        self.space(view) == Some(Space::Psum)
    }
}

/// Every rule that one instruction breaks. `tiles` and `tensors` are what its operands name.
pub fn check_instruction(
    target: &Target,
    instruction: &Instruction,
    tiles: &[Tile],
    tensors: &[HbmTensor],
) -> Vec<Violation> {
    check_accesses(target, instruction, &instruction.kind.accesses(), tiles, tensors)
}

/// [`check_instruction`], given the instruction's accesses.
pub fn check_accesses(
    target: &Target,
    instruction: &Instruction,
    accesses: &Accesses<'_>,
    tiles: &[Tile],
    tensors: &[HbmTensor],
) -> Vec<Violation> {
    let mut checker = Checker { target, tiles, tensors, name: instruction.kind.name(), found: Vec::new() };
    check_semaphores(&mut checker, instruction);
    for view in accesses.tile_reads.iter().chain(&accesses.tile_writes) {
        views::check_view(&mut checker, view);
    }
    // Later rules compute with extents, which must make sense for that.
    let is_sound = |violation: &Violation| !matches!(violation.rule, Rule::Extent | Rule::Type);
    if checker.found.iter().all(is_sound) {
        operations::check_engine_and_memory(&mut checker, instruction.engine, &instruction.kind, accesses);
        operations::check_operation(&mut checker, instruction.engine, &instruction.kind);
        if let InstructionKind::Dma { dst, src, queue, gather } = &instruction.kind {
            dma::check_transfer(&mut checker, instruction.engine, dst, src, *queue, gather.as_ref());
        }
    }
    checker.found
}

fn check_semaphores(checker: &mut Checker<'_>, instruction: &Instruction) {
    let target = checker.target;
    checker.require(instruction.waits.len() <= 2, Rule::Semaphore, || {
        format!("has {} waits; an instruction carries two", instruction.waits.len())
    });
    let named = instruction.waits.iter().map(|wait| wait.semaphore);
    for semaphore in named.chain(instruction.update.iter().map(|update| update.semaphore)) {
        checker.require(u32::from(semaphore) < target.semaphores, Rule::Semaphore, || {
            format!("names semaphore {semaphore} of {}", target.semaphores)
        });
    }
    let is_dma = matches!(instruction.kind, InstructionKind::Dma { .. });
    if let Some(update) = instruction.update.filter(|_| is_dma) {
        checker.require(u32::from(update.add) == target.dma_engines, Rule::Semaphore, || {
            format!("adds {} on completion; every one of {} DMA engines adds 1", update.add, target.dma_engines)
        });
    }
}

#[cfg(test)]
mod every_rule;
#[cfg(test)]
mod tests;
