//! Proves that waits and updates order every hazard of a program, in the direction of the
//! program's order, and that no engine waits forever. Shares no code with what places the waits:
//! semaphores, knowledge and memory are derived from the program alone.
//!
//! What a wait proves: on a semaphore that one engine's compute instructions count, the first ones
//! whose sum reaches the value. On a semaphore of transfers the same, provided that each of them is
//! issued after the one before is known to be complete; otherwise only the sum of all updates in
//! the program proves anything, and proves all of them.
//!
//! Takes time linear in the program where few accesses to a block of memory are open at once.

mod clocks;
mod memory;
mod touch;

use ir::Program;
use ir::program::verify::ProgramFault;
use ir::program::{Engine, Instruction, InstructionKind, Space};

use clocks::{Known, Semaphores, execute};
use memory::races;

/// Every unordered hazard and every endless wait of a synchronized program.
pub fn check_synchronization(program: &Program) -> Vec<ProgramFault> {
    let steps: Vec<Step<'_>> = program.instructions.iter().map(Step::of).collect();
    let order = match execute(program, &steps) {
        Ok(order) => order,
        Err(faults) => return faults,
    };
    let known = Semaphores::of(&steps, &order).knowledge(&order);
    let mut faults = races(program, &known);
    faults.extend(shared_ports(program, &known));
    faults.extend(unfinished_transfers(program, &known));
    faults
}

/// What of an instruction says when it happens.
struct Step<'a> {
    engine: Engine,
    kind: StepKind,
    waits: &'a [ir::program::Wait],
    update: Option<ir::program::Update>,
}

/// Whose order an instruction follows.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum StepKind {
    /// Its engine's data path: takes effect and completes in stream order.
    Compute,
    /// Its engine's sequencer: completes in stream order.
    Control,
    /// A transfer: completes on its own.
    Transfer,
}

impl<'a> Step<'a> {
    fn of(instruction: &'a Instruction) -> Self {
        let kind = match instruction.kind {
            InstructionKind::Dma { .. } => StepKind::Transfer,
            _ if instruction.is_compute() => StepKind::Compute,
            _ => StepKind::Control,
        };
        Step { engine: instruction.engine, kind, waits: &instruction.waits, update: instruction.update }
    }

    /// The engine whose order of completion this follows; none for transfers.
    fn counting_engine(&self) -> Option<Engine> {
        (self.kind != StepKind::Transfer).then_some(self.engine)
    }
}

/// Pairs of engines that must take turns on a memory and do not.
fn shared_ports(program: &Program, known: &Known<'_>) -> Vec<ProgramFault> {
    let target = program.target.target();
    let mut rules = Vec::new();
    if !target.dve_pool_parallel {
        rules.push((Space::Sbuf, [Engine::Dve, Engine::Pool]));
    }
    if !target.dve_act_parallel {
        rules.push((Space::Psum, [Engine::Dve, Engine::Act]));
    }
    let mut faults = Vec::new();
    for (space, pair) in rules {
        let mut latest: [Option<usize>; 2] = [None; 2];
        for (position, instruction) in program.instructions.iter().enumerate() {
            let Some(side) = pair.iter().position(|&engine| engine == instruction.engine) else { continue };
            let accesses = instruction.kind.accesses();
            let mut views = accesses.tile_reads.iter().chain(&accesses.tile_writes);
            if !instruction.is_compute() || !views.any(|view| program.tile(view.tile).space == space) {
                continue;
            }
            latest[side] = Some(position);
            if let Some(other) = latest[1 - side].filter(|&other| !known.orders(other, position)) {
                let message = format!("uses {space} while instruction {other} may still use it");
                faults.push(ProgramFault::at(program, position, message));
            }
        }
    }
    faults
}

/// Transfers that the last instruction of SP does not wait for.
fn unfinished_transfers(program: &Program, known: &Known<'_>) -> Vec<ProgramFault> {
    known
        .transfers_open_after(Engine::Sp)
        .map(|position| ProgramFault::at(program, position, "the program may end before this is complete"))
        .collect()
}
