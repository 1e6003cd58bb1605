//! Orders a lowered program, chooses engines and DMA queues, and inserts table loads.
//!
//! Instructions are list-scheduled on a model of the engines, the DMA queues and their shared
//! bandwidth, with the costs of `ir::target`, under several policies; the shortest schedule wins. A load may move ahead of other work only as far as
//! the rest of the program still fits into SBUF and PSUM, so that no order needs more memory than
//! the larger of the limit and what lowering's own order needs. Integer arithmetic only.
//!
//! Relies on a program of phase `Lowered`; leaves out software pipelining of loops, which programs
//! do not have.

mod choice;
mod dependencies;
mod list;
mod pressure;
mod tables;

use std::fmt;

use ir::Program;
use ir::program::{Engine, Instruction, InstructionKind, ProgramPhase, Space};

use choice::{ChoiceKind, choices, set_queue};
use dependencies::Dependencies;
use list::{Estimate, Limits, Policy, Task, Urgency, list_schedule, tiles_in};
use tables::{TableSets, table_loads};

/// How freely instructions move.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ScheduleOptions {
    /// Share of usable SBUF that early starts may fill; the rest is left to fragmentation.
    pub sbuf_percent: u32,
}

impl Default for ScheduleOptions {
    fn default() -> Self {
        ScheduleOptions { sbuf_percent: 80 }
    }
}

/// The schedule with the shortest estimate is taken, of equal ones the first.
const POLICIES: [Policy; 3] = [
    Policy { urgency: Urgency::CriticalPath, n_ahead: 512 },
    Policy { urgency: Urgency::CriticalPath, n_ahead: 64 },
    Policy { urgency: Urgency::GivenOrder, n_ahead: 512 },
];

/// What `schedule` did.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct ScheduleStatistics {
    pub n_instructions: usize,
    /// Instructions that precede one that preceded them before.
    pub n_moved: usize,
    /// Instructions whose engine changed; transfers excepted.
    pub n_engine_changes: usize,
    pub n_table_loads: usize,
    /// Of the model that ordered the instructions.
    pub estimated_ps: u64,
    /// Busy time in stream order: pe, act, dve, pool, sp.
    pub engine_busy_ps: [u64; Engine::ALL.len()],
}

impl fmt::Display for ScheduleStatistics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} instructions, {} moved, {} on another engine, {} table loads, {}.{:03} us estimated",
            self.n_instructions,
            self.n_moved,
            self.n_engine_changes,
            self.n_table_loads,
            self.estimated_ps / 1_000_000,
            self.estimated_ps / 1000 % 1000
        )
    }
}

/// Puts a lowered program in its final order with final engines, queues and table loads.
pub fn schedule(program: &Program, options: &ScheduleOptions) -> (Program, ScheduleStatistics) {
    let target = program.target.target();
    let dependencies = Dependencies::of(program);
    let task = |instruction: &Instruction| Task {
        choices: choices(program, target, instruction),
        tables: TableSets::needed_by(&instruction.kind),
        sbuf_tiles: tiles_in(program, &instruction.kind, Space::Sbuf),
        psum_tiles: tiles_in(program, &instruction.kind, Space::Psum),
    };
    let tasks: Vec<Task> = program.instructions.iter().map(task).collect();
    let limits = Limits {
        sbuf_bytes: i64::from(target.sbuf_usable_bytes) * i64::from(options.sbuf_percent) / 100,
        psum_banks: i64::from(target.psum_banks),
    };
    let schedules = POLICIES.iter().map(|&policy| list_schedule(program, &tasks, &dependencies, limits, policy));
    let best = schedules.min_by_key(|(_, estimate)| estimate.end_ps);
    let (order, Estimate { end_ps, engine_busy_ps }) = best.expect("there are policies");

    let mut statistics = ScheduleStatistics { estimated_ps: end_ps, engine_busy_ps, ..ScheduleStatistics::default() };
    let mut instructions = Vec::with_capacity(order.len());
    let mut last_position = 0;
    for placement in &order {
        let mut instruction = program.instructions[placement.position].clone();
        let choice = &tasks[placement.position].choices[placement.choice_idx];
        match &choice.kind {
            ChoiceKind::Compute => {
                statistics.n_engine_changes += usize::from(instruction.engine != choice.engine);
            }
            ChoiceKind::Transfer { queue, .. } => set_queue(&mut instruction.kind, *queue),
        }
        instruction.engine = choice.engine;
        statistics.n_moved += usize::from(placement.position < last_position);
        last_position = last_position.max(placement.position);
        instructions.push(instruction);
    }
    let instructions = insert_table_loads(instructions, &mut statistics);
    statistics.n_instructions = instructions.len();
    let scheduled = Program { phase: ProgramPhase::Scheduled, instructions, ..program.clone() };
    (scheduled, statistics)
}

/// Puts every table load directly before the first function that needs it: the load itself waits
/// for nothing, so it runs while that function waits for its operands.
fn insert_table_loads(instructions: Vec<Instruction>, statistics: &mut ScheduleStatistics) -> Vec<Instruction> {
    let needs: Vec<TableSets> =
        instructions.iter().map(|instruction| TableSets::needed_by(&instruction.kind)).collect();
    let mut loads = table_loads(&needs).into_iter().peekable();
    let mut with_loads = Vec::with_capacity(instructions.len());
    for (position, instruction) in instructions.into_iter().enumerate() {
        if let Some((_, set)) = loads.next_if(|(before, _)| *before == position) {
            statistics.n_table_loads += 1;
            let mut load = Instruction::new(Engine::Act, InstructionKind::LoadTable { set });
            load.locations = instruction.locations.clone();
            with_loads.push(load);
        }
        with_loads.push(instruction);
    }
    with_loads
}
