//! Orders a lowered program, chooses engines and DMA queues, and inserts table loads.
//!
//! Instructions are list-scheduled on a model of the engines, the DMA queues and their shared
//! bandwidth, with the costs of `ir::target`, under several policies; the shortest schedule wins,
//! in a long program the one that is shortest for its beginning. A load may move ahead of other work
//! only as far as the rest of the program still fits into SBUF and PSUM; where lowering's own order does
//! not fit, a few loads still run ahead, so that no order needs more memory than the larger of the limit
//! and what lowering's order and these loads need. Integer arithmetic only.
//!
//! Relies on a program of phase `Lowered`; leaves out software pipelining of loops, which programs
//! do not have.

mod choice;
mod dependencies;
mod list;
mod loops;
mod pressure;
mod ready;
mod tables;
mod warm_up;

use std::fmt;

use ir::Program;
use ir::program::{Engine, Instruction, InstructionKind, ProgramPhase};

use choice::{ChoiceKind, set_queue};
use list::{Limits, Placement, Policy, Schedule, Scheduler, Tasks, Urgency};
pub use loops::{LoopLimit, LoopReport};
use pressure::Limit;
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

/// Share of SBUF that early starts may take where lowering's own order fills what they may fill
/// together: spills follow either way, and loads that come late cost more than they do.
const EARLY_PERCENT: u32 = 8;

/// Instructions of a program, from its start, that are scheduled under every policy.
const N_COMPARED: usize = 4096;

/// The schedule with the shortest estimate is taken, of equal ones the first.
const POLICIES: [Policy; 3] = [
    Policy { urgency: Urgency::CriticalPath, n_ahead: 512 },
    Policy { urgency: Urgency::CriticalPath, n_ahead: 64 },
    Policy { urgency: Urgency::GivenOrder, n_ahead: 512 },
];

/// What `schedule` did.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
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
    /// In the order of the program.
    pub loops: Vec<LoopReport>,
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
pub fn schedule(mut program: Program, options: &ScheduleOptions) -> (Program, ScheduleStatistics) {
    let target = program.target.target();
    let tasks = Tasks::of(&program, target);
    let sbuf = |percent: u32| i64::from(target.sbuf_usable_bytes) * i64::from(percent) / 100;
    let limits = Limits {
        sbuf_bytes: Limit { all: sbuf(options.sbuf_percent), early: sbuf(EARLY_PERCENT) },
        psum_banks: Limit { all: i64::from(target.psum_banks), early: 0 },
    };
    let schedulers = POLICIES.map(|policy| Scheduler::new(target, &tasks, limits, policy));
    let Schedule { order, times, end_ps, engine_busy_ps } = shortest(schedulers, program.instructions.len());

    let loops = loops::loops(&program, target, &tasks, &order, &times);
    let mut statistics =
        ScheduleStatistics { estimated_ps: end_ps, engine_busy_ps, loops, ..ScheduleStatistics::default() };
    // Every table load comes directly before the first function that needs it: the load itself waits
    // for nothing, so it runs while that function waits for its operands. The first comes before all
    // that ACT computes, while the first operands are on their way.
    let needs: Vec<TableSets> = order.iter().map(|placement| tasks.tables(placement.position)).collect();
    let mut loads = table_loads(&needs);
    let is_act_compute = |&placement: &Placement| {
        let choice = tasks.choice(placement);
        choice.engine == Engine::Act && matches!(choice.kind, ChoiceKind::Compute)
    };
    if let (Some((first, _)), Some(earliest)) = (loads.first_mut(), order.iter().position(is_act_compute)) {
        *first = earliest.min(*first);
    }
    let mut loads = loads.into_iter().peekable();
    let mut instructions = Vec::with_capacity(order.len() + loads.len());
    let mut last_position = 0;
    for (rank, &placement) in order.iter().enumerate() {
        let nothing = Instruction::new(Engine::Sp, InstructionKind::Sync);
        let mut instruction = std::mem::replace(&mut program.instructions[placement.position as usize], nothing);
        let choice = tasks.choice(placement);
        match &choice.kind {
            ChoiceKind::Compute => {
                statistics.n_engine_changes += usize::from(instruction.engine != choice.engine);
            }
            ChoiceKind::Transfer(transfer) => set_queue(&mut instruction.kind, transfer.queue),
        }
        instruction.engine = choice.engine;
        statistics.n_moved += usize::from(placement.position < last_position);
        last_position = last_position.max(placement.position);
        if let Some((_, set)) = loads.next_if(|(before, _)| *before == rank) {
            statistics.n_table_loads += 1;
            let mut load = Instruction::new(Engine::Act, InstructionKind::LoadTable { set });
            load.locations = instruction.locations.clone();
            instructions.push(load);
        }
        instructions.push(instruction);
    }
    statistics.n_instructions = instructions.len();
    (Program { phase: ProgramPhase::Scheduled, instructions, ..program }, statistics)
}

/// The shortest schedule, of equal ones the first. Of a long program only the beginning is
/// scheduled by all, and the one that is through it first goes on.
fn shortest<const N: usize>(mut schedulers: [Scheduler<'_>; N], n_instructions: usize) -> Schedule {
    if n_instructions <= N_COMPARED {
        let schedules = schedulers.into_iter().map(Scheduler::finish);
        return schedules.min_by_key(|schedule| schedule.end_ps).expect("there are policies");
    }
    let times_ps = schedulers.each_mut().map(|scheduler| scheduler.run_until(N_COMPARED));
    let best = times_ps.into_iter().zip(schedulers).min_by_key(|(time_ps, _)| *time_ps);
    best.expect("there are policies").1.finish()
}
