//! The event loop.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use ir::program::{Engine, InstructionKind, Update, Wait};
use ir::target::Target;
use ir::target::cost::{DmaCost, InstructionCost, dma_cost, instruction_cost};

use super::dma::{Carried, DmaEngines};
use super::tensor_engine::WarmUp;
use crate::check::deadlock;
use crate::finding::Finding;
use crate::footprint::bounding_rect;
use crate::machine::Machine;

/// When every instruction runs, and an order in which to execute them.
pub(crate) struct Schedule {
    /// One per instruction.
    pub slots: Vec<Slot>,
    /// Instructions in an order that all semaphores allow; a transfer stands where its data moves.
    pub order: Vec<usize>,
    /// Instructions in the order of their start.
    pub start_order: Vec<usize>,
    /// Work of each DMA engine.
    pub dma_engine_ps: Vec<u64>,
    /// When each engine has come to the end of its stream.
    pub end_ps: [u64; Engine::ALL.len()],
    /// How warm the tensor engine was.
    pub warm_up: WarmUp,
}

/// How a program begins.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Start {
    /// When each engine does.
    pub engine_ps: [u64; Engine::ALL.len()],
    /// The tensor engine has been busy before.
    pub is_warm: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Slot {
    pub start_ps: u64,
    pub end_ps: u64,
    pub done_ps: u64,
    pub cause: SlotCause,
    pub transfer: Option<TransferSlot>,
}

#[derive(Clone, Debug)]
pub(crate) struct TransferSlot {
    pub trigger_ps: u64,
    pub first_ps: u64,
    pub last_ps: u64,
    pub n_engines: u32,
    pub behind: Option<usize>,
    pub read_bytes: u64,
    pub write_bytes: u64,
}

#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum SlotCause {
    #[default]
    Start,
    Engine(usize),
    Semaphore(usize),
    Operand(usize),
    Generator(usize),
}

/// What happens next. The order breaks ties between events of one time.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// An update becomes visible.
    Update { instruction: usize },
    /// A transfer's first data is ready to move.
    Data { instruction: usize },
    /// An engine looks at its next instruction.
    Look { engine: Engine },
}

struct EngineState {
    next: usize,
    end: usize,
    free_ps: u64,
    last: Option<usize>,
    /// The descriptor generator of its hardware queue.
    generator_free_ps: u64,
    last_transfer: Option<usize>,
    /// Whose update ended the current wait.
    woken_by: Option<usize>,
}

struct Simulation<'a> {
    machine: &'a Machine,
    target: &'a Target,
    costs: Vec<InstructionCost>,
    engines: Vec<EngineState>,
    semaphores: Vec<u64>,
    /// Engines that wait for a semaphore.
    waiting: Vec<Vec<Engine>>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    dma: DmaEngines,
    /// Costs of transfers whose data has not moved yet.
    under_way: BTreeMap<usize, DmaCost>,
    schedule: Schedule,
}

/// Runs a program in time.
///
/// # Errors
/// A deadlock, with what every engine waits for.
pub(crate) fn simulate(machine: &Machine, target: &Target) -> Result<Schedule, Finding> {
    simulate_from(machine, target, Start::default())
}

/// As [`simulate`], with engines that begin later and may be warm.
///
/// # Errors
/// As [`simulate`].
pub(crate) fn simulate_from(machine: &Machine, target: &Target, start: Start) -> Result<Schedule, Finding> {
    let engines = Engine::ALL.map(|engine| {
        let range = machine.stream_range(engine);
        EngineState {
            next: range.start,
            end: range.end,
            free_ps: 0,
            last: None,
            generator_free_ps: 0,
            last_transfer: None,
            woken_by: None,
        }
    });
    let n_semaphores = 1 + usize::from(u16::MAX);
    let mut simulation = Simulation {
        machine,
        target,
        costs: machine.instructions.iter().map(|found| instruction_cost(target, found, &machine.tiles)).collect(),
        engines: engines.into(),
        semaphores: vec![0; n_semaphores],
        waiting: vec![Vec::new(); n_semaphores],
        events: Engine::ALL
            .into_iter()
            .map(|engine| Reverse((start.engine_ps[engine as usize], Event::Look { engine })))
            .collect(),
        dma: DmaEngines::new(target),
        under_way: BTreeMap::new(),
        schedule: Schedule {
            slots: vec![Slot::default(); machine.instructions.len()],
            order: Vec::with_capacity(machine.instructions.len()),
            start_order: Vec::with_capacity(machine.instructions.len()),
            dma_engine_ps: Vec::new(),
            end_ps: start.engine_ps,
            warm_up: if start.is_warm { WarmUp::warm(target) } else { WarmUp::new(target) },
        },
    };
    while let Some(Reverse((now_ps, event))) = simulation.events.pop() {
        match event {
            Event::Update { instruction } => simulation.update(now_ps, instruction),
            Event::Data { instruction } => simulation.carry(now_ps, instruction),
            Event::Look { engine } => simulation.look(now_ps, engine),
        }
    }
    if simulation.engines.iter().any(|state| state.next < state.end) {
        return Err(simulation.deadlock());
    }
    let Schedule { slots, start_order, dma_engine_ps, .. } = &mut simulation.schedule;
    // Instructions were appended when they were looked at; a stable sort keeps that order for ties.
    start_order.sort_by_key(|&instruction| slots[instruction].start_ps);
    *dma_engine_ps = simulation.dma.busy_ps;
    Ok(simulation.schedule)
}

impl Simulation<'_> {
    fn push(&mut self, at_ps: u64, event: Event) {
        self.events.push(Reverse((at_ps, event)));
    }

    fn is_met(&self, wait: &Wait) -> bool {
        self.semaphores[usize::from(wait.semaphore)] >= u64::from(wait.at_least)
    }

    /// Issues an engine's next instruction, or puts the engine to sleep.
    fn look(&mut self, now_ps: u64, engine: Engine) {
        let state = &self.engines[engine as usize];
        let instruction = state.next;
        if instruction == state.end {
            let end_ps = &mut self.schedule.end_ps[engine as usize];
            *end_ps = now_ps.max(*end_ps);
            return;
        }
        let machine = self.machine;
        if let Some(wait) = machine.instructions[instruction].waits.iter().find(|wait| !self.is_met(wait)) {
            self.waiting[usize::from(wait.semaphore)].push(engine);
            return;
        }
        self.schedule.start_order.push(instruction);
        let kind = &machine.instructions[instruction].kind;
        if let InstructionKind::Dma { dst, src, queue, gather } = kind {
            let cost = dma_cost(self.target, dst, src, *queue, gather.as_ref(), &machine.tiles);
            self.trigger(now_ps, engine, instruction, &cost);
            self.under_way.insert(instruction, cost);
        } else if machine.instructions[instruction].is_control() {
            self.issue_control(now_ps, engine, instruction);
        } else {
            self.issue(now_ps, engine, instruction);
        }
        let state = &mut self.engines[engine as usize];
        state.next += 1;
        state.last = Some(instruction);
        state.woken_by = None;
    }

    /// Why an instruction that was ready at `now_ps` starts later, or then.
    fn cause(&self, engine: Engine) -> SlotCause {
        let state = &self.engines[engine as usize];
        match (state.woken_by, state.last) {
            (Some(updater), _) => SlotCause::Semaphore(updater),
            (None, Some(last)) => SlotCause::Engine(last),
            (None, None) => SlotCause::Start,
        }
    }

    /// A data-path instruction, or a table load.
    fn issue(&mut self, now_ps: u64, engine: Engine, instruction: usize) {
        let InstructionCost { setup_ps, interval_ps, latency_ps, stream_ps, drain_ps } = self.costs[instruction];
        let (mut start_ps, mut cause) = (now_ps + setup_ps, self.cause(engine));
        let state = &self.engines[engine as usize];
        if let Some(last) = state.last
            && state.free_ps > start_ps
        {
            (start_ps, cause) = (state.free_ps, SlotCause::Engine(last));
        }
        if let Some((producer, done_ps)) = self.operand(engine, instruction)
            && done_ps + self.target.wake_same_engine_ps > start_ps
        {
            (start_ps, cause) = (done_ps + self.target.wake_same_engine_ps, SlotCause::Operand(producer));
        }
        let (mut stretch_ps, mut drain_stretch_ps) = (0, 0);
        if engine == Engine::Pe {
            let factor = self.schedule.warm_up.factor(start_ps);
            (stretch_ps, drain_stretch_ps) = (stream_ps * (factor - 1), drain_ps * (factor - 1));
            self.schedule.warm_up.add(start_ps, start_ps + interval_ps + stretch_ps, factor);
        }
        let end_ps = start_ps + interval_ps + stretch_ps;
        let done_ps = start_ps + latency_ps + stretch_ps + drain_stretch_ps;
        self.schedule.slots[instruction] = Slot { start_ps, end_ps, done_ps, cause, transfer: None };
        self.schedule.order.push(instruction);
        self.engines[engine as usize].free_ps = end_ps;
        if self.machine.instructions[instruction].update.is_some() {
            self.push(done_ps, Event::Update { instruction });
        }
        // The next one is looked at while this one streams, early enough to hide its setup.
        self.push(now_ps.max(start_ps - setup_ps), Event::Look { engine });
    }

    /// The latest earlier instruction of the same engine whose result this one reads. The tensor
    /// engine reads no results of its own: it accumulates in place.
    fn operand(&self, engine: Engine, instruction: usize) -> Option<(usize, u64)> {
        // Results are at most a pipeline late, which few instructions fit into.
        const N_IN_FLIGHT: usize = 4;
        if engine == Engine::Pe {
            return None;
        }
        let first = self.machine.stream_range(engine).start;
        let accesses = self.machine.instructions[instruction].kind.accesses();
        let reads: Vec<_> = accesses.tile_reads.iter().map(|view| bounding_rect(view)).collect();
        (first.max(instruction.saturating_sub(N_IN_FLIGHT))..instruction)
            .filter(|&earlier| {
                let earlier = &self.machine.instructions[earlier];
                let writes = earlier.kind.accesses().tile_writes;
                earlier.is_compute()
                    && writes.iter().any(|write| reads.iter().any(|read| read.overlaps(&bounding_rect(write))))
            })
            .map(|earlier| (earlier, self.schedule.slots[earlier].done_ps))
            .max_by_key(|&(earlier, done_ps)| (done_ps, earlier))
    }

    /// A wait or update without work: the sequencer's alone.
    fn issue_control(&mut self, now_ps: u64, engine: Engine, instruction: usize) {
        let done_ps = now_ps + self.costs[instruction].interval_ps;
        let cause = self.cause(engine);
        self.schedule.slots[instruction] = Slot { start_ps: now_ps, end_ps: done_ps, done_ps, cause, transfer: None };
        self.schedule.order.push(instruction);
        if self.machine.instructions[instruction].update.is_some() {
            // An update stands behind the data path: it counts what is complete.
            let behind_ps = self.engines[engine as usize].last.map_or(0, |last| self.data_path_done(engine, last));
            self.push(done_ps.max(behind_ps), Event::Update { instruction });
        }
        self.push(done_ps, Event::Look { engine });
    }

    /// When everything up to `last` of an engine's data path is done.
    pub(super) fn data_path_done(&self, engine: Engine, last: usize) -> u64 {
        let first = self.machine.stream_range(engine).start;
        let compute = (first..=last).rev().take(8).filter(|&earlier| self.machine.instructions[earlier].is_compute());
        compute.map(|earlier| self.schedule.slots[earlier].done_ps).max().unwrap_or(0)
    }

    /// Hands a transfer to its queue.
    fn trigger(&mut self, now_ps: u64, engine: Engine, instruction: usize, cost: &DmaCost) {
        let state = &self.engines[engine as usize];
        let (mut start_ps, mut cause) = (now_ps, self.cause(engine));
        // Descriptor work in software occupies the engine; a plain trigger is the sequencer's alone.
        if let Some(last) = state.last
            && cost.prepare_ps > 0
            && state.free_ps > start_ps
        {
            (start_ps, cause) = (state.free_ps, SlotCause::Engine(last));
        }
        if let Some(last) = state.last_transfer
            && cost.generator_ps > 0
            && state.generator_free_ps > start_ps
        {
            (start_ps, cause) = (state.generator_free_ps, SlotCause::Generator(last));
        }
        let mut trigger_ps = start_ps + cost.prepare_ps;
        let follows_another = state.last.is_some_and(|last| {
            state.free_ps == start_ps && matches!(self.machine.instructions[last].kind, InstructionKind::Dma { .. })
        });
        if cost.prepare_ps > 0 && !follows_another {
            trigger_ps += self.target.dma_software_start_ps;
        }
        let done_ps = trigger_ps + self.target.control_ps;
        let transfer = TransferSlot {
            trigger_ps,
            first_ps: 0,
            last_ps: 0,
            n_engines: 0,
            behind: None,
            read_bytes: cost.hbm_read_bytes,
            write_bytes: cost.hbm_write_bytes,
        };
        self.schedule.slots[instruction] = Slot { start_ps, end_ps: done_ps, done_ps, cause, transfer: Some(transfer) };
        let state = &mut self.engines[engine as usize];
        if cost.prepare_ps > 0 {
            state.free_ps = done_ps;
        }
        if cost.generator_ps > 0 {
            state.generator_free_ps = trigger_ps + cost.generator_ps;
            state.last_transfer = Some(instruction);
        }
        self.push(trigger_ps + cost.first_packet_ps, Event::Data { instruction });
        self.push(done_ps, Event::Look { engine });
    }

    /// Moves a transfer's data.
    fn carry(&mut self, now_ps: u64, instruction: usize) {
        let Some(cost) = self.under_way.remove(&instruction) else { return };
        let ring = self.machine.instructions[instruction].engine as usize;
        let Carried { first_ps, last_ps, n_engines, behind } =
            self.dma.carry(self.target, instruction, ring, &cost, now_ps);
        if let Some(transfer) = &mut self.schedule.slots[instruction].transfer {
            (transfer.first_ps, transfer.last_ps) = (first_ps, last_ps);
            (transfer.n_engines, transfer.behind) = (n_engines, behind);
        }
        self.schedule.order.push(instruction);
        if self.machine.instructions[instruction].update.is_some() {
            // The completion time includes the waiting engine's wake-up.
            let visible_ps = last_ps + cost.completion_ps.saturating_sub(self.target.wake_ps);
            self.push(visible_ps, Event::Update { instruction });
        }
    }

    /// Counts an update and wakes whoever it satisfies.
    fn update(&mut self, now_ps: u64, instruction: usize) {
        let Some(Update { semaphore, add }) = self.machine.instructions[instruction].update else { return };
        self.semaphores[usize::from(semaphore)] += u64::from(add);
        for engine in std::mem::take(&mut self.waiting[usize::from(semaphore)]) {
            let next = self.engines[engine as usize].next;
            let mut waits = self.machine.instructions[next].waits.iter();
            if waits.any(|wait| wait.semaphore == semaphore && !self.is_met(wait)) {
                self.waiting[usize::from(semaphore)].push(engine);
                continue;
            }
            self.engines[engine as usize].woken_by = Some(instruction);
            let wake_ps = match engine {
                Engine::Pe => self.target.wake_pe_ps,
                Engine::Act | Engine::Dve => self.target.wake_ps,
                Engine::Pool | Engine::Sp => self.target.wake_other_ps,
            };
            self.push(now_ps + wake_ps, Event::Look { engine });
        }
    }

    fn deadlock(&self) -> Finding {
        let next = std::array::from_fn(|engine| self.engines[engine].next);
        deadlock(self.machine, &next, &self.semaphores)
    }
}
