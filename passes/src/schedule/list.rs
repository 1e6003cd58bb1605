//! List scheduling: time advances from event to event, and every free engine takes the most urgent
//! of the instructions that are ready and not too far ahead of the first one left.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use ir::Program;
use ir::program::{DmaPlace, Engine, InstructionKind, Space, Tile};
use ir::target::Target;
use ir::target::cost::DmaCost;
use smallvec::SmallVec;

use super::choice::{Choice, ChoiceKind};
use super::dependencies::Dependencies;
use super::pressure::Pressure;
use super::tables::{LoadedTables, TableSets};
use crate::hazard::HazardKind;

/// Instructions of a class that an engine looks at before it gives up for now.
const MAX_TRIES: usize = 8;

/// How much more urgent each instruction is than the next in the given order.
const GIVEN_ORDER_STEP_PS: u64 = 100_000;

/// What the scheduler knows of one instruction.
pub(super) struct Task {
    pub choices: SmallVec<[Choice; 3]>,
    pub tables: TableSets,
    /// Tiles accessed, by memory.
    pub sbuf_tiles: Vec<u32>,
    pub psum_tiles: Vec<u32>,
}

/// The position of an instruction in the given program and the choice that was made for it.
pub(super) struct Placement {
    pub position: usize,
    pub choice_idx: usize,
}

/// What makes an instruction urgent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// A long way to the end of the program.
    CriticalPath,
    /// An early place in the given order.
    GivenOrder,
}

/// One way to choose among ready instructions.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub urgency: Urgency,
    /// How far, in positions of the given order, an instruction may run ahead of the first one left.
    pub n_ahead: usize,
}

/// The most that tiles may take when instructions start early.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub sbuf_bytes: i64,
    pub psum_banks: i64,
}

/// What the schedule is expected to take.
pub(super) struct Estimate {
    pub end_ps: u64,
    pub engine_busy_ps: [u64; Engine::ALL.len()],
}

/// Orders the tasks; every task follows its predecessors.
pub(super) fn list_schedule(
    program: &Program,
    tasks: &[Task],
    dependencies: &Dependencies,
    limits: Limits,
    policy: Policy,
) -> (Vec<Placement>, Estimate) {
    let mut scheduler = Scheduler::new(program, tasks, dependencies, limits, policy);
    while scheduler.order.len() < tasks.len() {
        scheduler.wake();
        let mut progressed = false;
        for engine in Engine::ALL {
            while scheduler.run_on(engine) {
                progressed = true;
            }
        }
        if !progressed {
            scheduler.advance();
        }
    }
    let end_ps = scheduler.done_ps.iter().copied().max().unwrap_or(0);
    (scheduler.order, Estimate { end_ps, engine_busy_ps: scheduler.busy_ps })
}

/// Tasks with the same engines and tables.
#[derive(Default)]
struct Class {
    engines: u8,
    tables: TableSets,
    /// Not ready yet, by time.
    future: BinaryHeap<Reverse<(u64, u32)>>,
    /// Ready, by priority, then by position.
    ready: BinaryHeap<(u64, Reverse<u32>)>,
    /// Ready, by position; scheduled ones are dropped when they come up.
    ready_in_order: BinaryHeap<Reverse<u32>>,
}

struct Scheduler<'a> {
    target: &'static Target,
    tasks: &'a [Task],
    dependencies: &'a Dependencies,
    priority_ps: Vec<u64>,
    classes: Vec<Class>,
    class_of: Vec<usize>,
    n_ahead: usize,
    /// First position not scheduled yet.
    front: usize,
    /// Tasks whose predecessors are scheduled but which are too far ahead, by position.
    parked: BinaryHeap<Reverse<u32>>,
    n_missing: Vec<usize>,
    ready_ps: Vec<u64>,
    done_ps: Vec<u64>,
    is_scheduled: Vec<bool>,
    /// The version of memory at which a task was last found not to fit.
    refused_at: Vec<Option<u64>>,
    order: Vec<Placement>,
    now_ps: u64,
    sbuf: Pressure,
    psum: Pressure,
    free_ps: [u64; Engine::ALL.len()],
    busy_ps: [u64; Engine::ALL.len()],
    /// When each engine's latest use of SBUF and of PSUM ends.
    sbuf_free_ps: [u64; Engine::ALL.len()],
    psum_free_ps: [u64; Engine::ALL.len()],
    generator_free_ps: [u64; Engine::ALL.len()],
    dma_free_ps: Vec<u64>,
    loaded: LoadedTables,
}

impl<'a> Scheduler<'a> {
    fn new(
        program: &Program,
        tasks: &'a [Task],
        dependencies: &'a Dependencies,
        limits: Limits,
        policy: Policy,
    ) -> Self {
        let target = program.target.target();
        let mut classes: Vec<Class> = Vec::new();
        let mut class_idxs: BTreeMap<(u8, TableSets), usize> = BTreeMap::new();
        let mut class_of = Vec::with_capacity(tasks.len());
        for task in tasks {
            let engines = task.choices.iter().fold(0, |bits, choice| bits | 1u8 << choice.engine as u8);
            let class_idx = *class_idxs.entry((engines, task.tables)).or_insert_with(|| {
                classes.push(Class { engines, tables: task.tables, ..Class::default() });
                classes.len() - 1
            });
            class_of.push(class_idx);
        }
        let n_missing = dependencies.predecessors.iter().map(Vec::len).collect();
        let sizes = |wanted: Space| -> Vec<i64> {
            let size = |tile: &Tile| match tile.space {
                space if space != wanted => 0,
                Space::Sbuf => i64::from(tile.bytes_per_partition),
                Space::Psum => i64::from(tile.bytes_per_partition.div_ceil(target.psum_bank_bytes)),
            };
            program.tiles.iter().map(size).collect()
        };
        let tiles_of =
            |tiles: fn(&Task) -> &Vec<u32>| -> Vec<Vec<u32>> { tasks.iter().map(|task| tiles(task).clone()).collect() };
        let mut scheduler = Scheduler {
            target,
            tasks,
            dependencies,
            priority_ps: priorities(target, tasks, dependencies, policy.urgency),
            classes,
            class_of,
            n_ahead: policy.n_ahead,
            front: 0,
            parked: BinaryHeap::new(),
            n_missing,
            ready_ps: vec![0; tasks.len()],
            done_ps: vec![0; tasks.len()],
            is_scheduled: vec![false; tasks.len()],
            refused_at: vec![None; tasks.len()],
            order: Vec::with_capacity(tasks.len()),
            now_ps: 0,
            sbuf: Pressure::new(limits.sbuf_bytes, &sizes(Space::Sbuf), &tiles_of(|task| &task.sbuf_tiles)),
            psum: Pressure::new(limits.psum_banks, &sizes(Space::Psum), &tiles_of(|task| &task.psum_tiles)),
            free_ps: [0; Engine::ALL.len()],
            busy_ps: [0; Engine::ALL.len()],
            sbuf_free_ps: [0; Engine::ALL.len()],
            psum_free_ps: [0; Engine::ALL.len()],
            generator_free_ps: [0; Engine::ALL.len()],
            dma_free_ps: vec![0; target.dma_engines as usize],
            loaded: LoadedTables::default(),
        };
        for position in 0..tasks.len() {
            if scheduler.n_missing[position] == 0 {
                scheduler.enqueue(position);
            }
        }
        scheduler
    }

    /// Makes a task with all predecessors scheduled eligible, now or when it is not too far ahead.
    fn enqueue(&mut self, position: usize) {
        if position.saturating_sub(self.front) > self.n_ahead {
            self.parked.push(Reverse(position as u32));
            return;
        }
        let entry = Reverse((self.ready_ps[position], position as u32));
        self.classes[self.class_of[position]].future.push(entry);
    }

    /// Makes tasks whose time has come available.
    fn wake(&mut self) {
        for class in &mut self.classes {
            while let Some(&Reverse((ready_ps, position))) = class.future.peek()
                && ready_ps <= self.now_ps
            {
                class.future.pop();
                class.ready.push((self.priority_ps[position as usize], Reverse(position)));
                class.ready_in_order.push(Reverse(position));
            }
        }
    }

    /// Starts the best task on this engine now; false if there is none.
    fn run_on(&mut self, engine: Engine) -> bool {
        if self.free_ps[engine as usize] > self.now_ps {
            return false;
        }
        let mut best: Option<(u64, Reverse<usize>)> = None;
        for class_idx in 0..self.classes.len() {
            let class = &self.classes[class_idx];
            if class.engines & 1 << engine as u8 == 0 {
                continue;
            }
            let delay_ps = self.ready_after_load(class.tables) - self.now_ps;
            if let Some(position) = self.candidate(class_idx, engine) {
                let urgency = self.priority_ps[position].saturating_sub(delay_ps);
                best = best.max(Some((urgency, Reverse(position))));
            }
        }
        let Some((_, Reverse(position))) = best else { return false };
        self.start(position, engine);
        true
    }

    /// The most urgent task of a class that can start on this engine now.
    fn candidate(&mut self, class_idx: usize, engine: Engine) -> Option<usize> {
        let mut passed = Vec::new();
        let mut found = None;
        while passed.len() < MAX_TRIES
            && let Some(entry) = self.classes[class_idx].ready.pop()
        {
            let (_, Reverse(position)) = entry;
            if self.is_scheduled[position as usize] {
                continue;
            }
            passed.push(entry);
            if self.can_start(position as usize, engine) {
                found = Some(position as usize);
                break;
            }
        }
        self.classes[class_idx].ready.extend(passed);
        if found.is_some() {
            return found;
        }
        // The next one in the original order always fits into memory.
        let class = &mut self.classes[class_idx];
        while let Some(&Reverse(position)) = class.ready_in_order.peek() {
            if !self.is_scheduled[position as usize] {
                return self.can_start(position as usize, engine).then_some(position as usize);
            }
            class.ready_in_order.pop();
        }
        None
    }

    /// True if the task fits into memory and no other engine would finish it earlier.
    fn can_start(&mut self, position: usize, engine: Engine) -> bool {
        let task = &self.tasks[position];
        let is_free = |choice: &Choice| self.earliest_start(position, choice) <= self.now_ps;
        if !task.choices.iter().any(|choice| choice.engine == engine && is_free(choice)) {
            return false;
        }
        let version = self.sbuf.version() + self.psum.version();
        if self.refused_at[position] == Some(version) {
            return false;
        }
        if !(self.sbuf.admits(&task.sbuf_tiles) && self.psum.admits(&task.psum_tiles)) {
            self.refused_at[position] = Some(version);
            return false;
        }
        let best = task.choices.iter().min_by_key(|choice| self.finish(position, choice));
        best.is_some_and(|choice| choice.engine == engine)
    }

    /// When a function of these sets can start. The load that it may need comes right after ACT's
    /// latest instruction, while the function still waits for its operands.
    fn ready_after_load(&self, tables: TableSets) -> u64 {
        if !self.loaded.must_load(tables) {
            return self.now_ps;
        }
        self.now_ps.max(self.free_ps[Engine::Act as usize] + self.target.act_table_load_ps)
    }

    /// When the engine, its generator and the shared ports are free.
    fn earliest_start(&self, position: usize, choice: &Choice) -> u64 {
        let engine = choice.engine;
        let mut start_ps = self.now_ps.max(self.free_ps[engine as usize]);
        if let ChoiceKind::Transfer { cost, .. } = &choice.kind {
            if cost.generator_ps > 0 {
                start_ps = start_ps.max(self.generator_free_ps[engine as usize]);
            }
            return start_ps;
        }
        let task = &self.tasks[position];
        if !self.target.dve_pool_parallel && !task.sbuf_tiles.is_empty() {
            start_ps = match engine {
                Engine::Dve => start_ps.max(self.sbuf_free_ps[Engine::Pool as usize]),
                Engine::Pool => start_ps.max(self.sbuf_free_ps[Engine::Dve as usize]),
                Engine::Pe | Engine::Act | Engine::Sp => start_ps,
            };
        }
        if !self.target.dve_act_parallel && !task.psum_tiles.is_empty() {
            start_ps = match engine {
                Engine::Dve => start_ps.max(self.psum_free_ps[Engine::Act as usize]),
                Engine::Act => start_ps.max(self.psum_free_ps[Engine::Dve as usize]),
                Engine::Pe | Engine::Pool | Engine::Sp => start_ps,
            };
        }
        start_ps
    }

    /// When the results are there if the task starts as early as it can.
    fn finish(&self, position: usize, choice: &Choice) -> u64 {
        let start_ps = self.earliest_start(position, choice);
        match &choice.kind {
            ChoiceKind::Compute => start_ps + choice.cost.setup_ps + choice.cost.latency_ps,
            ChoiceKind::Transfer { cost, .. } => {
                let data_ps = start_ps + cost.prepare_ps + cost.first_packet_ps;
                self.parts(data_ps, cost).map(|(_, end_ps)| end_ps).max().unwrap_or(data_ps)
            }
        }
    }

    /// The DMA engines that a transfer uses and when each has moved its part.
    fn parts<'c>(&self, data_ps: u64, cost: &'c DmaCost) -> impl Iterator<Item = (usize, u64)> + use<'_, 'c, 'a> {
        let used = cost.engine_ps.iter().enumerate().filter(|(_, work_ps)| **work_ps > 0);
        used.enumerate().map(move |(rank, (engine, work_ps))| {
            let arrival_ps = data_ps + rank as u64 * cost.stagger_ps;
            (engine, arrival_ps.max(self.dma_free_ps[engine]) + work_ps)
        })
    }

    fn start(&mut self, position: usize, engine: Engine) {
        let tasks = self.tasks;
        let task = &tasks[position];
        let choice_idx = task.choices.iter().position(|choice| choice.engine == engine);
        let choice_idx = choice_idx.expect("candidates have a choice on their engine");
        let choice = &task.choices[choice_idx];
        let start_ps = self.ready_after_load(task.tables);
        let load_ps = if self.loaded.must_load(task.tables) { self.target.act_table_load_ps } else { 0 };
        self.loaded.run(task.tables);
        let end_ps = start_ps + choice.cost.interval_ps;
        self.free_ps[engine as usize] = end_ps;
        self.busy_ps[engine as usize] += load_ps + choice.cost.interval_ps;
        let done_ps = match &choice.kind {
            ChoiceKind::Compute => {
                let done_ps = start_ps + choice.cost.setup_ps + choice.cost.latency_ps;
                if !task.sbuf_tiles.is_empty() {
                    self.sbuf_free_ps[engine as usize] = done_ps;
                }
                if !task.psum_tiles.is_empty() {
                    self.psum_free_ps[engine as usize] = done_ps;
                }
                done_ps
            }
            ChoiceKind::Transfer { cost, .. } => {
                self.generator_free_ps[engine as usize] = start_ps + cost.generator_ps;
                let data_ps = start_ps + cost.prepare_ps + cost.first_packet_ps;
                let parts: SmallVec<[(usize, u64); 16]> = self.parts(data_ps, cost).collect();
                for &(engine, end_ps) in &parts {
                    self.dma_free_ps[engine] = end_ps;
                }
                parts.iter().map(|(_, end_ps)| *end_ps).max().unwrap_or(data_ps) + cost.completion_ps
            }
        };
        self.done_ps[position] = done_ps;
        self.is_scheduled[position] = true;
        while self.is_scheduled.get(self.front).is_some_and(|&scheduled| scheduled) {
            self.front += 1;
        }
        while let Some(&Reverse(parked)) = self.parked.peek()
            && (parked as usize).saturating_sub(self.front) <= self.n_ahead
        {
            self.parked.pop();
            self.enqueue(parked as usize);
        }
        self.sbuf.schedule(position, &task.sbuf_tiles);
        self.psum.schedule(position, &task.psum_tiles);
        self.order.push(Placement { position, choice_idx });
        for &(successor, kind) in &self.dependencies.successors[position] {
            let successor = successor as usize;
            let next = &self.tasks[successor].choices[0];
            let delay_ps = self.done_ps[position] - self.now_ps;
            let after_ps = self.now_ps + hand_over(self.target, (choice, delay_ps), next, kind);
            self.ready_ps[successor] = self.ready_ps[successor].max(after_ps);
            self.n_missing[successor] -= 1;
            if self.n_missing[successor] == 0 {
                self.enqueue(successor);
            }
        }
        self.wake();
    }

    /// Moves time to the next event.
    fn advance(&mut self) {
        let engines =
            self.free_ps.iter().chain(&self.generator_free_ps).chain(&self.sbuf_free_ps).chain(&self.psum_free_ps);
        let engines = engines.copied().filter(|&free_ps| free_ps > self.now_ps);
        let arrivals =
            self.classes.iter().filter_map(|class| class.future.peek().map(|&Reverse((ready_ps, _))| ready_ps));
        let next_ps = engines.chain(arrivals).min();
        // With nothing left to wait for, some DMA engine is what the alternatives were waiting for.
        self.now_ps = next_ps.unwrap_or(self.now_ps + 1).max(self.now_ps + 1);
    }
}

/// From the start of an instruction, which takes `delay_ps` to complete, to the start of one that
/// depends on it.
fn hand_over(target: &Target, (choice, delay_ps): (&Choice, u64), next: &Choice, kind: HazardKind) -> u64 {
    match (&choice.kind, &next.kind) {
        // A transfer's completion includes the wake-up.
        (ChoiceKind::Transfer { .. }, _) => delay_ps,
        (ChoiceKind::Compute, ChoiceKind::Compute) if choice.engine == next.engine => {
            match (choice.engine, kind) {
                // Accumulation into PSUM is pipelined.
                (Engine::Pe, _) | (_, HazardKind::Reuse) => choice.cost.interval_ps,
                (_, HazardKind::Flow) => delay_ps + target.wake_same_engine_ps,
            }
        }
        (ChoiceKind::Compute, _) => {
            delay_ps
                + match next.engine {
                    Engine::Pe => target.wake_pe_ps,
                    Engine::Act | Engine::Dve => target.wake_ps,
                    Engine::Pool | Engine::Sp => target.wake_other_ps,
                }
        }
    }
}

/// How urgent each task is; in order of critical path, the longest time from its start to the end
/// of the program.
fn priorities(target: &Target, tasks: &[Task], dependencies: &Dependencies, urgency: Urgency) -> Vec<u64> {
    if urgency == Urgency::GivenOrder {
        // In picoseconds like the others: a table load is worth passing some instructions.
        return (0..tasks.len()).rev().map(|n_after| n_after as u64 * GIVEN_ORDER_STEP_PS).collect();
    }
    let mut priorities: Vec<u64> = vec![0; tasks.len()];
    for position in (0..tasks.len()).rev() {
        let choice = &tasks[position].choices[0];
        let delay_ps = match &choice.kind {
            ChoiceKind::Compute => choice.cost.setup_ps + choice.cost.latency_ps,
            ChoiceKind::Transfer { cost, .. } => cost.prepare_ps + cost.alone_ps(target) + cost.completion_ps,
        };
        let longest = dependencies.successors[position].iter().map(|&(successor, kind)| {
            let next = &tasks[successor as usize].choices[0];
            hand_over(target, (choice, delay_ps), next, kind) + priorities[successor as usize]
        });
        priorities[position] = longest.max().unwrap_or(0).max(delay_ps);
    }
    priorities
}

/// Tiles that an instruction accesses in one memory, ascending.
pub(super) fn tiles_in(program: &Program, kind: &InstructionKind, space: Space) -> Vec<u32> {
    let accesses = kind.accesses();
    let views = accesses.tile_reads.iter().chain(&accesses.tile_writes).map(|view| view.tile);
    let sides = accesses.dma_read.into_iter().chain(accesses.dma_write).filter_map(|side| match side.place {
        DmaPlace::Tile { tile, .. } => Some(tile),
        DmaPlace::Hbm { .. } => None,
    });
    let mut tiles: Vec<u32> =
        views.chain(sides).filter(|&tile| program.tile(tile).space == space).map(|tile| tile.0).collect();
    tiles.sort_unstable();
    tiles.dedup();
    tiles
}
