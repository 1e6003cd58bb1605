//! Which instructions of a lowered program must follow which.
//!
//! The program's order defines its meaning: two accesses to common bytes, at least one of them a
//! write, keep their order. The activation engine's accumulation registers are one more such place.

use std::collections::BTreeMap;

use ir::Program;
use ir::program::{Instruction, InstructionKind, ReduceCommand};

use crate::footprint::{AccessKind, Addressing, Footprint, Memory, footprints};

/// Predecessors and successors of every instruction, ascending. Predecessors precede in the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dependencies {
    pub predecessors: Vec<Vec<u32>>,
    pub successors: Vec<Vec<u32>>,
}

impl Dependencies {
    pub(super) fn of(program: &Program) -> Self {
        let mut histories: BTreeMap<Memory, History> = BTreeMap::new();
        let mut accumulators = Accumulators::default();
        let written = written_memories(program);
        let mut predecessors = Vec::with_capacity(program.instructions.len());
        for (position, instruction) in program.instructions.iter().enumerate() {
            let position = u32::try_from(position).expect("a program has fewer than 2^32 instructions");
            let mut found = Vec::new();
            for (kind, footprint) in footprints(program, instruction, Addressing::Virtual) {
                if written.binary_search(&footprint.memory).is_ok() {
                    histories.entry(footprint.memory).or_default().access(position, kind, footprint, &mut found);
                }
            }
            accumulators.access(position, instruction, &program.instructions, &mut found);
            found.retain(|&predecessor| predecessor != position);
            found.sort_unstable();
            found.dedup();
            predecessors.push(found);
        }
        let mut successors = vec![Vec::new(); predecessors.len()];
        for (position, found) in predecessors.iter().enumerate() {
            let position = u32::try_from(position).expect("a program has fewer than 2^32 instructions");
            for &predecessor in found {
                successors[predecessor as usize].push(position);
            }
        }
        Dependencies { predecessors, successors }
    }
}

/// Memories that the program writes, ascending; all others order nothing.
fn written_memories(program: &Program) -> Vec<Memory> {
    let accesses = program.instructions.iter().flat_map(|instruction| {
        footprints(program, instruction, Addressing::Virtual).into_iter().filter(|(kind, _)| *kind == AccessKind::Write)
    });
    let mut written: Vec<Memory> = accesses.map(|(_, footprint)| footprint.memory).collect();
    written.sort_unstable();
    written.dedup();
    written
}

/// Accesses to one memory that later ones may still have to follow.
#[derive(Default)]
struct History {
    reads: Vec<(u32, Footprint)>,
    writes: Vec<(u32, Footprint)>,
}

impl History {
    fn access(&mut self, position: u32, kind: AccessKind, footprint: Footprint, found: &mut Vec<u32>) {
        let meeting = |accesses: &[(u32, Footprint)], found: &mut Vec<u32>| {
            let meets = accesses.iter().filter(|(_, earlier)| footprint.meets(earlier));
            found.extend(meets.map(|(earlier, _)| *earlier));
        };
        meeting(&self.writes, found);
        match kind {
            AccessKind::Read => self.reads.push((position, footprint)),
            AccessKind::Write => {
                meeting(&self.reads, found);
                // Whoever follows this write follows what it covers.
                self.reads.retain(|(_, earlier)| !footprint.covers(earlier));
                self.writes.retain(|(_, earlier)| !footprint.covers(earlier));
                self.writes.push((position, footprint));
            }
        }
    }
}

/// Order of the users of the activation engine's accumulation registers: a group of several
/// instructions must not be interrupted, groups of one may change places.
#[derive(Default)]
struct Accumulators {
    /// The latest instruction of a group of several.
    last_of_group: Option<u32>,
    /// Groups of one since then.
    singles: Vec<u32>,
    /// True while the current group has several instructions.
    in_group: bool,
}

impl Accumulators {
    fn access(&mut self, position: u32, instruction: &Instruction, program: &[Instruction], found: &mut Vec<u32>) {
        let InstructionKind::Activation { reduce, reduce_result, .. } = &instruction.kind else { return };
        if reduce.is_none() && reduce_result.is_none() {
            return;
        }
        found.extend(self.last_of_group);
        let starts = *reduce == Some(ReduceCommand::ResetReduce);
        if starts {
            self.in_group = continues(&program[position as usize + 1..]);
        }
        if starts && !self.in_group {
            self.singles.push(position);
        } else {
            found.append(&mut self.singles);
            self.last_of_group = Some(position);
        }
    }
}

/// True if the next user of the accumulation registers does not reset them.
fn continues(rest: &[Instruction]) -> bool {
    let mut users = rest.iter().filter_map(|instruction| match &instruction.kind {
        InstructionKind::Activation { reduce, reduce_result, .. } if reduce.is_some() || reduce_result.is_some() => {
            Some(*reduce != Some(ReduceCommand::ResetReduce))
        }
        _ => None,
    });
    users.next().unwrap_or(false)
}
