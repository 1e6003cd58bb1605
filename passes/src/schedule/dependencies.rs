//! Which instructions of a lowered program must follow which.
//!
//! The program's order defines its meaning: two accesses to common bytes, at least one of them a
//! write, keep their order. The activation engine's accumulation registers are one more such place.

use ir::Program;
use ir::program::{Engine, Instruction, InstructionKind, ReduceCommand, TileId};

use crate::footprint::Addressing;
use crate::hazard::{Hazard, HazardKind, History};
use crate::lists::Lists;

/// Predecessors and successors of every instruction, ascending. Predecessors precede in the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dependencies {
    pub predecessors: Lists<Hazard>,
    pub successors: Lists<Hazard>,
}

impl Dependencies {
    pub(super) fn of(program: &Program) -> Self {
        let n_instructions = program.instructions.len();
        let mut history = History::new(program, Addressing::Virtual);
        let mut accumulators = Accumulators::default();
        let mut last_matmul: Vec<Option<u32>> = vec![None; program.tiles.len()];
        let mut predecessors: Lists<Hazard> = Lists::with_capacity(n_instructions);
        let mut found = Vec::new();
        for (position, instruction) in (0u32..).zip(&program.instructions) {
            // No order of completion is assumed: engines are not final.
            history.access(program, position, None, &mut found);
            accumulators.access(position, &program.instructions, &mut found);
            // A group that accumulates must not be interrupted by another one in its tile.
            if let Some(tile) = matmul_tile(instruction) {
                let earlier = last_matmul[tile.index()].replace(position);
                found.extend(earlier.map(|earlier| (earlier, HazardKind::Reuse)));
            }
            found.sort_unstable();
            found.dedup_by_key(|(predecessor, _)| *predecessor);
            predecessors.push(&found);
        }
        let pairs = (0u32..).zip(predecessors.iter()).flat_map(|(position, found)| {
            found.iter().map(move |&(predecessor, kind)| (predecessor, (position, kind)))
        });
        let successors = Lists::collect(n_instructions, pairs);
        Dependencies { predecessors, successors }
    }
}

/// The PSUM tile that the tensor engine writes.
fn matmul_tile(instruction: &Instruction) -> Option<TileId> {
    if instruction.engine != Engine::Pe {
        return None;
    }
    instruction.kind.accesses().tile_writes.first().map(|view| view.tile)
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

/// What a user of the accumulation registers does to them.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Accumulation {
    Resets,
    Continues,
}

impl Accumulators {
    fn access(&mut self, position: u32, program: &[Instruction], found: &mut Vec<Hazard>) {
        let Some(accumulation) = accumulation(&program[position as usize]) else { return };
        let follow = |earlier| (earlier, HazardKind::Reuse);
        found.extend(self.last_of_group.map(follow));
        if accumulation == Accumulation::Resets {
            let next = program[position as usize + 1..].iter().find_map(self::accumulation);
            self.in_group = next == Some(Accumulation::Continues);
            if !self.in_group {
                self.singles.push(position);
                return;
            }
        }
        found.extend(self.singles.drain(..).map(follow));
        self.last_of_group = Some(position);
    }
}

fn accumulation(instruction: &Instruction) -> Option<Accumulation> {
    let InstructionKind::Activation { reduce, reduce_result, .. } = &instruction.kind else { return None };
    match reduce {
        Some(ReduceCommand::ResetReduce) => Some(Accumulation::Resets),
        Some(ReduceCommand::Reduce) => Some(Accumulation::Continues),
        None => reduce_result.as_ref().map(|_| Accumulation::Continues),
    }
}
