//! List scheduling: time advances from event to event, and every free engine takes the most urgent
//! of the instructions that are ready and not too far ahead of the first one left.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use ir::Program;
use ir::program::{DmaPlace, DmaQueue, Engine, InstructionKind, Space, Tile};
use ir::target::Target;
use smallvec::SmallVec;

use super::choice::{Choice, ChoiceKind, Choices, Transfer};
use super::dependencies::Dependencies;
use super::pressure::{Limit, Pressure, accesses_of};
use super::ready::Ready;
use super::tables::{LoadedTables, TableSets};
use super::warm_up::WarmUp;
use crate::hazard::{Hazard, HazardKind};
use crate::lists::Lists;

/// Instructions of a class that an engine looks at before it gives up for now.
const MAX_TRIES: usize = 8;

/// How much more urgent each instruction is than the next in the given order.
const GIVEN_ORDER_STEP_PS: u64 = 100_000;

/// What the scheduler knows of a program's instructions, by position.
pub(super) struct Tasks {
    n_tasks: usize,
    choices: Choices,
    tables: Vec<TableSets>,
    dependencies: Dependencies,
    sbuf: TileUses,
    psum: TileUses,
    /// Tasks with the same engines and tables, and the class of each task.
    classes: Vec<(u8, TableSets)>,
    class_of: Vec<u8>,
    /// The longest time from each task's start to the end of the program.
    critical_ps: Vec<u64>,
}

/// Which tasks access which tiles of one memory.
struct TileUses {
    /// Of each tile what it takes, in the unit in which the memory is counted.
    sizes: Vec<i64>,
    /// Tiles by task, ascending.
    tiles: Lists<u32>,
    /// Tasks by tile, ascending.
    tasks: Lists<u32>,
}

/// The position of an instruction in the given program and the choice that was made for it.
#[derive(Copy, Clone)]
pub(super) struct Placement {
    pub position: u32,
    pub choice_idx: u8,
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
    pub sbuf_bytes: Limit,
    pub psum_banks: Limit,
}

/// An order of all tasks and what it is expected to take.
pub(super) struct Schedule {
    pub order: Vec<Placement>,
    /// By place in the order.
    pub times: Vec<Time>,
    pub end_ps: u64,
    pub engine_busy_ps: [u64; Engine::ALL.len()],
}

/// When an instruction is expected to run.
#[derive(Copy, Clone, Debug)]
pub(super) struct Time {
    pub start_ps: u64,
    /// When the engine may start its next instruction.
    pub engine_ps: u64,
    /// When the results are there.
    pub done_ps: u64,
}

impl Tasks {
    pub(super) fn of(program: &Program, target: &Target) -> Self {
        let choices = Choices::of(program, target);
        let dependencies = Dependencies::of(program);
        let tables: Vec<TableSets> =
            program.instructions.iter().map(|instruction| TableSets::needed_by(&instruction.kind)).collect();
        let mut classes = Vec::new();
        let mut class_idxs: BTreeMap<(u8, TableSets), u8> = BTreeMap::new();
        let mut class_of = Vec::with_capacity(tables.len());
        for (choices, &tables) in choices.all.iter().zip(&tables) {
            let engines = choices.iter().fold(0, |bits, choice| bits | 1u8 << choice.engine as u8);
            class_of.push(*class_idxs.entry((engines, tables)).or_insert_with(|| {
                classes.push((engines, tables));
                u8::try_from(classes.len() - 1).expect("few sets of engines go with few sets of tables")
            }));
        }
        let critical_ps = critical_paths(target, &choices, &dependencies);
        Tasks {
            n_tasks: program.instructions.len(),
            choices,
            tables,
            dependencies,
            sbuf: TileUses::of(program, target, Space::Sbuf),
            psum: TileUses::of(program, target, Space::Psum),
            classes,
            class_of,
            critical_ps,
        }
    }

    /// The choice of a placement.
    pub(super) fn choice(&self, placement: Placement) -> &Choice {
        &self.choices.all.get(placement.position as usize)[usize::from(placement.choice_idx)]
    }

    /// What must follow a task.
    pub(super) fn successors(&self, position: usize) -> &[Hazard] {
        self.dependencies.successors.get(position)
    }

    /// What a transfer asks of all DMA engines together.
    pub(super) fn moving_ps(&self, transfer: &Transfer) -> u64 {
        self.choices.works.get(transfer.work_idx as usize).iter().map(|&(_, work_ps)| work_ps).sum()
    }

    /// The table sets that hold the function of the task at this position.
    pub(super) fn tables(&self, position: u32) -> TableSets {
        self.tables[position as usize]
    }
}

impl TileUses {
    fn of(program: &Program, target: &Target, space: Space) -> Self {
        let size = |tile: &Tile| match tile.space {
            other if other != space => 0,
            Space::Sbuf => i64::from(tile.bytes_per_partition),
            Space::Psum => i64::from(tile.bytes_per_partition.div_ceil(target.psum_bank_bytes)),
        };
        let mut tiles = Lists::with_capacity(program.instructions.len());
        for instruction in &program.instructions {
            tiles.push(&tiles_in(program, &instruction.kind, space));
        }
        let tasks = accesses_of(program.tiles.len(), &tiles);
        TileUses { sizes: program.tiles.iter().map(size).collect(), tiles, tasks }
    }

    fn pressure(&self, limit: Limit, n_tasks: usize) -> Pressure<'_> {
        Pressure::new(limit, &self.sizes, &self.tasks, n_tasks)
    }
}

/// Tasks with the same engines and tables.
struct Class {
    engines: u8,
    tables: TableSets,
    /// Not ready yet, by time.
    future: BinaryHeap<Reverse<(u64, u32)>>,
    /// Ready, by priority, then by position.
    ready: Ready,
    /// Ready, by position; scheduled ones are dropped when they come up.
    ready_in_order: BinaryHeap<Reverse<u32>>,
}

/// A schedule in the making; every task follows its predecessors.
pub(super) struct Scheduler<'a> {
    target: &'static Target,
    tasks: &'a Tasks,
    urgency: Urgency,
    classes: Vec<Class>,
    n_ahead: usize,
    /// First position not scheduled yet.
    front: usize,
    /// Tasks whose predecessors are scheduled but which are too far ahead, by position.
    parked: BinaryHeap<Reverse<u32>>,
    n_missing: Vec<u32>,
    ready_ps: Vec<u64>,
    is_scheduled: Vec<bool>,
    order: Vec<Placement>,
    times: Vec<Time>,
    end_ps: u64,
    now_ps: u64,
    sbuf: Pressure<'a>,
    psum: Pressure<'a>,
    free_ps: [u64; Engine::ALL.len()],
    warm_up: WarmUp,
    /// When Pool has made its latest descriptors.
    descriptors_end_ps: u64,
    busy_ps: [u64; Engine::ALL.len()],
    /// When each engine's latest use of SBUF and of PSUM ends.
    sbuf_free_ps: [u64; Engine::ALL.len()],
    psum_free_ps: [u64; Engine::ALL.len()],
    generator_free_ps: [u64; Engine::ALL.len()],
    dma_free_ps: Vec<u64>,
    /// Of the PSUM banks that no tile has, when the tensor engine may overwrite each: in the order in
    /// which they were given up, which is that in which `allocate` gives them away.
    bank_free_ps: VecDeque<u64>,
    loaded: LoadedTables,
    /// One bit for each engine that has found nothing to start since anything has changed for it.
    quiet: u8,
}

impl<'a> Scheduler<'a> {
    pub(super) fn new(target: &'static Target, tasks: &'a Tasks, limits: Limits, policy: Policy) -> Self {
        let class = |&(engines, tables): &(u8, TableSets)| Class {
            engines,
            tables,
            future: BinaryHeap::new(),
            ready: Ready::default(),
            ready_in_order: BinaryHeap::new(),
        };
        let n_tasks = tasks.n_tasks;
        let mut scheduler = Scheduler {
            target,
            tasks,
            urgency: policy.urgency,
            classes: tasks.classes.iter().map(class).collect(),
            n_ahead: policy.n_ahead,
            front: 0,
            parked: BinaryHeap::new(),
            n_missing: tasks.dependencies.predecessors.iter().map(|found| found.len() as u32).collect(),
            ready_ps: vec![0; n_tasks],
            is_scheduled: vec![false; n_tasks],
            order: Vec::with_capacity(n_tasks),
            times: Vec::with_capacity(n_tasks),
            end_ps: 0,
            now_ps: 0,
            sbuf: tasks.sbuf.pressure(limits.sbuf_bytes, n_tasks),
            psum: tasks.psum.pressure(limits.psum_banks, n_tasks),
            free_ps: [0; Engine::ALL.len()],
            warm_up: WarmUp::new(target),
            descriptors_end_ps: u64::MAX,
            busy_ps: [0; Engine::ALL.len()],
            sbuf_free_ps: [0; Engine::ALL.len()],
            psum_free_ps: [0; Engine::ALL.len()],
            generator_free_ps: [0; Engine::ALL.len()],
            dma_free_ps: vec![0; target.dma_engines as usize],
            bank_free_ps: vec![0; target.psum_banks as usize].into(),
            loaded: LoadedTables::default(),
            quiet: 0,
        };
        for position in 0..n_tasks {
            if scheduler.n_missing[position] == 0 {
                scheduler.enqueue(position);
            }
        }
        scheduler
    }

    /// Schedules on until the first tasks, this many in the given order, are scheduled; gives the
    /// time.
    pub(super) fn run_until(&mut self, n_tasks: usize) -> u64 {
        while self.front < n_tasks.min(self.tasks.n_tasks) {
            self.wake();
            let mut progressed = false;
            for engine in Engine::ALL {
                while self.run_on(engine) {
                    progressed = true;
                }
            }
            if !progressed {
                self.advance();
            }
        }
        self.now_ps
    }

    /// Schedules what is left.
    pub(super) fn finish(mut self) -> Schedule {
        self.run_until(self.tasks.n_tasks);
        Schedule { order: self.order, times: self.times, end_ps: self.end_ps, engine_busy_ps: self.busy_ps }
    }

    /// How urgent a task is; in order of critical path, the longest time from its start to the end
    /// of the program.
    fn priority(&self, position: u32) -> u64 {
        match self.urgency {
            Urgency::CriticalPath => self.tasks.critical_ps[position as usize],
            // In picoseconds like the others: a table load is worth passing some instructions.
            Urgency::GivenOrder => (self.tasks.n_tasks as u64 - 1 - u64::from(position)) * GIVEN_ORDER_STEP_PS,
        }
    }

    fn choices(&self, position: usize) -> &'a [Choice] {
        self.tasks.choices.all.get(position)
    }

    /// Makes a task with all predecessors scheduled eligible, now or when it is not too far ahead.
    fn enqueue(&mut self, position: usize) {
        if position.saturating_sub(self.front) > self.n_ahead {
            self.parked.push(Reverse(position as u32));
            return;
        }
        let entry = Reverse((self.ready_ps[position], position as u32));
        self.classes[usize::from(self.tasks.class_of[position])].future.push(entry);
    }

    /// Makes tasks whose time has come available.
    fn wake(&mut self) {
        for class_idx in 0..self.classes.len() {
            while let Some(&Reverse((ready_ps, position))) = self.classes[class_idx].future.peek()
                && ready_ps <= self.now_ps
            {
                let priority_ps = self.priority(position);
                let class = &mut self.classes[class_idx];
                self.quiet &= !class.engines;
                class.future.pop();
                class.ready.push((priority_ps, Reverse(position)));
                class.ready_in_order.push(Reverse(position));
            }
        }
    }

    /// Starts the best task on this engine now; false if there is none.
    fn run_on(&mut self, engine: Engine) -> bool {
        let own = 1u8 << engine as u8;
        if self.quiet & own != 0 || self.free_ps[engine as usize] > self.now_ps {
            return false;
        }
        let mut best: Option<(u64, Reverse<usize>)> = None;
        for class_idx in 0..self.classes.len() {
            let class = &self.classes[class_idx];
            if class.engines & own == 0 {
                continue;
            }
            let delay_ps = self.ready_after_load(class.tables) - self.now_ps;
            if let Some(position) = self.candidate(class_idx, engine) {
                let urgency = self.priority(position as u32).saturating_sub(delay_ps);
                best = best.max(Some((urgency, Reverse(position))));
            }
        }
        let Some((_, Reverse(position))) = best else {
            self.quiet |= own;
            return false;
        };
        self.start(position, engine);
        true
    }

    /// The most urgent task of a class that can start on this engine now.
    fn candidate(&mut self, class_idx: usize, engine: Engine) -> Option<usize> {
        for rank in 0..MAX_TRIES {
            let is_scheduled = &self.is_scheduled;
            let entry = self.classes[class_idx].ready.get(rank, |position| is_scheduled[position as usize]);
            let Some(position) = entry else { break };
            if self.can_start(position as usize, engine) {
                return Some(position as usize);
            }
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
        let is_free = |choice: &Choice| self.earliest_start(position, choice) <= self.now_ps;
        let choices = self.choices(position);
        if !choices.iter().any(|choice| choice.engine == engine && is_free(choice)) {
            return false;
        }
        let tasks = self.tasks;
        if self.banks_free_ps(tasks.psum.tiles.get(position)) > self.now_ps {
            return false;
        }
        let fits = self.sbuf.admits(position, tasks.sbuf.tiles.get(position))
            && self.psum.admits(position, tasks.psum.tiles.get(position));
        if !fits {
            return false;
        }
        let best = match choices {
            [only] => Some(only),
            several => several.iter().min_by_key(|choice| self.finish_ps(position, choice)),
        };
        best.is_some_and(|choice| choice.engine == engine)
    }

    /// When the banks that these tiles need are given up: results that are still read would make the
    /// tensor engine stand still.
    fn banks_free_ps(&self, psum_tiles: &[u32]) -> u64 {
        if psum_tiles.is_empty() {
            return 0;
        }
        // Tiles that need more than there are share banks.
        let n_banks = usize::try_from(self.psum.starting(psum_tiles)).unwrap_or(0);
        self.bank_free_ps.iter().take(n_banks).copied().max().unwrap_or(0)
    }

    /// When a function of these sets can start. The load that it may need comes right after ACT's
    /// latest instruction, while the function still waits for its operands; the first comes before
    /// all that ACT computes.
    fn ready_after_load(&self, tables: TableSets) -> u64 {
        if !self.loaded.must_load(tables) {
            return self.now_ps;
        }
        if self.loaded.is_nothing() {
            return self.now_ps.max(self.target.act_table_load_ps);
        }
        self.now_ps.max(self.free_ps[Engine::Act as usize] + self.target.act_table_load_ps)
    }

    /// When the engine, its generator and the shared ports are free.
    fn earliest_start(&self, position: usize, choice: &Choice) -> u64 {
        let engine = choice.engine;
        let mut start_ps = self.now_ps.max(self.free_ps[engine as usize]);
        if let ChoiceKind::Transfer(transfer) = &choice.kind {
            if transfer.generator_ps > 0 {
                start_ps = start_ps.max(self.generator_free_ps[engine as usize]);
            }
            return start_ps;
        }
        if !self.target.dve_pool_parallel && !self.tasks.sbuf.tiles.get(position).is_empty() {
            start_ps = match engine {
                Engine::Dve => start_ps.max(self.sbuf_free_ps[Engine::Pool as usize]),
                Engine::Pool => start_ps.max(self.sbuf_free_ps[Engine::Dve as usize]),
                Engine::Pe | Engine::Act | Engine::Sp => start_ps,
            };
        }
        if !self.target.dve_act_parallel && !self.tasks.psum.tiles.get(position).is_empty() {
            start_ps = match engine {
                Engine::Dve => start_ps.max(self.psum_free_ps[Engine::Act as usize]),
                Engine::Act => start_ps.max(self.psum_free_ps[Engine::Dve as usize]),
                Engine::Pe | Engine::Pool | Engine::Sp => start_ps,
            };
        }
        start_ps
    }

    /// When the results are there if the task starts as early as it can.
    fn finish_ps(&self, position: usize, choice: &Choice) -> u64 {
        let start_ps = self.earliest_start(position, choice);
        match &choice.kind {
            ChoiceKind::Compute => start_ps + choice.delay_ps + self.cold_ps(start_ps, choice),
            ChoiceKind::Transfer(transfer) => {
                let data_ps = start_ps + self.pool_start_ps(start_ps, transfer) + transfer.data_ps;
                self.parts(data_ps, transfer).map(|(_, end_ps)| end_ps).max().unwrap_or(data_ps)
            }
        }
    }

    /// What Pool needs before it makes descriptors, unless it comes straight from others.
    fn pool_start_ps(&self, start_ps: u64, transfer: &Transfer) -> u64 {
        let comes_straight = self.descriptors_end_ps == start_ps;
        if transfer.queue == DmaQueue::Software && !comes_straight { self.target.dma_software_start_ps } else { 0 }
    }

    /// What a choice takes longer on the tensor engine when that is cold.
    fn cold_ps(&self, start_ps: u64, choice: &Choice) -> u64 {
        if choice.cold_ps > 0 && self.warm_up.is_cold(start_ps) { choice.cold_ps } else { 0 }
    }

    /// The DMA engines that a transfer uses and when each has moved its part.
    fn parts(&self, data_ps: u64, transfer: &Transfer) -> impl Iterator<Item = (usize, u64)> + use<'_, 'a> {
        let stagger_ps = transfer.stagger_ps;
        let works = self.tasks.choices.works.get(transfer.work_idx as usize);
        (0u64..).zip(works).map(move |(rank, &(engine, work_ps))| {
            let arrival_ps = data_ps + rank * stagger_ps;
            (usize::from(engine), arrival_ps.max(self.dma_free_ps[usize::from(engine)]) + work_ps)
        })
    }

    fn start(&mut self, position: usize, engine: Engine) {
        let tasks = self.tasks;
        let choices = self.choices(position);
        let choice_idx = choices.iter().position(|choice| choice.engine == engine);
        let choice_idx = choice_idx.expect("candidates have a choice on their engine");
        let choice = &choices[choice_idx];
        let (sbuf_tiles, psum_tiles) = (tasks.sbuf.tiles.get(position), tasks.psum.tiles.get(position));
        let tables = tasks.tables[position];
        let start_ps = self.ready_after_load(tables);
        let load_ps = if self.loaded.must_load(tables) { self.target.act_table_load_ps } else { 0 };
        self.loaded.run(tables);
        let cold_ps = self.cold_ps(start_ps, choice);
        let end_ps = start_ps + choice.interval_ps + cold_ps;
        if engine == Engine::Pe {
            self.warm_up.add(start_ps, end_ps);
        }
        self.free_ps[engine as usize] = end_ps;
        self.busy_ps[engine as usize] += load_ps + choice.interval_ps + cold_ps;
        let done_ps = match &choice.kind {
            ChoiceKind::Compute => {
                let done_ps = start_ps + choice.delay_ps + cold_ps;
                if !sbuf_tiles.is_empty() {
                    self.sbuf_free_ps[engine as usize] = done_ps;
                }
                if !psum_tiles.is_empty() {
                    self.psum_free_ps[engine as usize] = done_ps;
                }
                done_ps
            }
            ChoiceKind::Transfer(transfer) => {
                self.generator_free_ps[engine as usize] = start_ps + transfer.generator_ps;
                let pool_start_ps = self.pool_start_ps(start_ps, transfer);
                self.free_ps[engine as usize] += pool_start_ps;
                if transfer.queue == DmaQueue::Software {
                    self.descriptors_end_ps = self.free_ps[engine as usize];
                }
                let data_ps = start_ps + pool_start_ps + transfer.data_ps;
                let parts: SmallVec<[(usize, u64); 16]> = self.parts(data_ps, transfer).collect();
                for &(engine, end_ps) in &parts {
                    self.dma_free_ps[engine] = end_ps;
                }
                parts.iter().map(|(_, end_ps)| *end_ps).max().unwrap_or(data_ps) + transfer.completion_ps
            }
        };
        self.end_ps = self.end_ps.max(done_ps);
        self.quiet = 0;
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
        self.sbuf.schedule(position, sbuf_tiles);
        let n_started = usize::try_from(self.psum.starting(psum_tiles)).unwrap_or(0);
        self.bank_free_ps.drain(..n_started.min(self.bank_free_ps.len()));
        let n_banks = self.psum.schedule(position, psum_tiles);
        self.bank_free_ps.extend((0..n_banks).map(|_| done_ps + self.target.wake_pe_ps));
        self.bank_free_ps.truncate(self.target.psum_banks as usize);
        self.order.push(Placement { position: position as u32, choice_idx: choice_idx as u8 });
        self.times.push(Time { start_ps, engine_ps: end_ps, done_ps });
        let delay_ps = done_ps - self.now_ps;
        for &(successor, kind) in tasks.dependencies.successors.get(position) {
            let successor = successor as usize;
            let next = &self.choices(successor)[0];
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
        // Ports that engines share make them wait for one another.
        let sbuf_ps = if self.target.dve_pool_parallel { &[] } else { self.sbuf_free_ps.as_slice() };
        let psum_ps = if self.target.dve_act_parallel { &[] } else { self.psum_free_ps.as_slice() };
        let engines = self.free_ps.iter().chain(&self.generator_free_ps).chain(sbuf_ps).chain(psum_ps);
        let engines = engines.chain(&self.bank_free_ps);
        let engines = engines.copied().filter(|&free_ps| free_ps > self.now_ps);
        let arrivals =
            self.classes.iter().filter_map(|class| class.future.peek().map(|&Reverse((ready_ps, _))| ready_ps));
        let next_ps = engines.chain(arrivals).min();
        // With nothing left to wait for, some DMA engine is what the alternatives were waiting for.
        let has_event = next_ps.is_some();
        let next_ps = next_ps.unwrap_or(self.now_ps + 1).max(self.now_ps + 1);
        // For an engine that was free all the time, what another would finish earlier stays so.
        let is_past = |time_ps: u64| self.now_ps < time_ps && time_ps <= next_ps;
        let is_bank_free = self.bank_free_ps.iter().any(|&free_ps| is_past(free_ps));
        let is_alone = self.target.dve_pool_parallel && self.target.dve_act_parallel && !is_bank_free;
        for engine in 0..Engine::ALL.len() {
            if !is_alone || !has_event || is_past(self.free_ps[engine]) || is_past(self.generator_free_ps[engine]) {
                self.quiet &= !(1u8 << engine);
            }
        }
        self.now_ps = next_ps;
    }
}

/// From the start of an instruction, which takes `delay_ps` to complete, to the start of one that
/// depends on it.
pub(super) fn hand_over(target: &Target, (choice, delay_ps): (&Choice, u64), next: &Choice, kind: HazardKind) -> u64 {
    match (&choice.kind, &next.kind) {
        // A transfer's completion includes the wake-up.
        (ChoiceKind::Transfer(_), _) => delay_ps,
        (ChoiceKind::Compute, ChoiceKind::Compute) if choice.engine == next.engine => {
            match (choice.engine, kind) {
                // Accumulation into PSUM is pipelined.
                (Engine::Pe, _) | (_, HazardKind::Reuse) => choice.interval_ps,
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

/// The longest time from each task's start to the end of the program.
fn critical_paths(target: &Target, choices: &Choices, dependencies: &Dependencies) -> Vec<u64> {
    let n_tasks = choices.all.len();
    let mut longest_ps: Vec<u64> = vec![0; n_tasks];
    for position in (0..n_tasks).rev() {
        let choice = &choices.all.get(position)[0];
        let paths = dependencies.successors.get(position).iter().map(|&(successor, kind)| {
            let next = &choices.all.get(successor as usize)[0];
            hand_over(target, (choice, choice.delay_ps), next, kind) + longest_ps[successor as usize]
        });
        longest_ps[position] = paths.max().unwrap_or(0).max(choice.delay_ps);
    }
    longest_ps
}

/// Tiles that an instruction accesses in one memory, ascending.
fn tiles_in(program: &Program, kind: &InstructionKind, space: Space) -> SmallVec<[u32; 8]> {
    let accesses = kind.accesses();
    let views = accesses.tile_reads.iter().chain(&accesses.tile_writes).map(|view| view.tile);
    let sides = accesses.dma_read.into_iter().chain(accesses.dma_write).filter_map(|side| match side.place {
        DmaPlace::Tile { tile, .. } => Some(tile),
        DmaPlace::Hbm { .. } => None,
    });
    let mut tiles: SmallVec<[u32; 8]> =
        views.chain(sides).filter(|&tile| program.tile(tile).space == space).map(|tile| tile.0).collect();
    tiles.sort_unstable();
    tiles.dedup();
    tiles
}
