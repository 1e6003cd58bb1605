//! Adds the waits and updates that order every hazard of an allocated program.
//!
//! Every engine counts those of its compute instructions that somebody waits for. A transfer
//! completes in 16 parts that come in any order, so a count shared by several running transfers
//! proves nothing about one of them: each has a semaphore of its own, used again only by a transfer
//! that is issued after the earlier one is known to be complete. Transfers that only the end of the
//! program waits for share one, whose full count proves them all.
//!
//! Waits that others imply are left out: the program is walked in order with the knowledge that
//! each engine has at each instruction.

mod check;
mod clock;
mod hazards;

use std::collections::VecDeque;
use std::fmt;

use ir::Program;
use ir::program::{Engine, Instruction, InstructionKind, ProgramPhase, Update, Wait};
use smallvec::SmallVec;

use clock::{Clock, Completion, Event, NOBODY};
use hazards::hazards;

use crate::lists::Lists;

pub use check::check_synchronization;

/// What a completed transfer has added to its semaphore: one from each DMA engine.
const TRANSFER_COUNT: u16 = 16;
/// Waits that one instruction carries.
const MAX_WAITS: usize = 2;

/// What `synchronize` did.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct SynchronizeStatistics {
    /// Pairs of instructions that their engines do not order.
    pub n_hazards: usize,
    pub n_waits: usize,
    /// Waits added so that a semaphore could be used again.
    pub n_reuse_waits: usize,
    pub n_updates: usize,
    /// Instructions added to carry waits.
    pub n_syncs: usize,
    pub n_semaphores: usize,
}

impl fmt::Display for SynchronizeStatistics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} hazards, {} waits ({} for reuse), {} updates, {} syncs, {} semaphores",
            self.n_hazards, self.n_waits, self.n_reuse_waits, self.n_updates, self.n_syncs, self.n_semaphores
        )
    }
}

/// Why a program cannot be synchronized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SynchronizeError {
    #[error("{needed} semaphores are needed, there are {available}")]
    TooFewSemaphores { needed: usize, available: usize },
}

/// Orders every hazard of an allocated program and waits for all transfers at its end.
///
/// # Errors
/// When the counters alone need more semaphores than there are.
pub fn synchronize(program: Program) -> Result<(Program, SynchronizeStatistics), SynchronizeError> {
    let available = program.target.target().semaphores as usize;
    synchronize_below(program, available)
}

/// As [`synchronize`], with the semaphores below `available` only.
///
/// # Errors
/// As [`synchronize`].
pub fn synchronize_below(
    program: Program,
    available: usize,
) -> Result<(Program, SynchronizeStatistics), SynchronizeError> {
    let hazards = hazards(&program);
    let mut planner = Planner::new(&program, &hazards, available)?;
    for (position, (instruction, predecessors)) in program.instructions.iter().zip(hazards.iter()).enumerate() {
        planner.plan(position, instruction, predecessors);
    }
    let final_waits = planner.final_waits();
    planner.statistics.n_hazards = hazards.items().len();
    Ok(planner.write(program, final_waits))
}

/// Where a transfer counts.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Ticket {
    semaphore: u16,
    /// What the semaphore reaches when this transfer, and all it follows there, are complete.
    at_least: u16,
}

/// A semaphore that transfers take turns on.
struct Turn {
    semaphore: u16,
    /// Position of the transfer whose turn it was last.
    latest: u32,
    at_least: u16,
}

struct Planner {
    events: Vec<Event>,
    /// What each engine knows after its latest instruction.
    clocks: [Clock; Engine::ALL.len()],
    stream_lens: [u32; Engine::ALL.len()],
    /// Per instruction, the positions it waits for.
    waits: Lists<u32>,
    /// What the current instruction may have to wait for.
    open: Vec<u32>,
    /// Per compute instruction, whether somebody waits for it.
    is_awaited: Vec<bool>,
    tickets: Vec<Option<Ticket>>,
    /// First semaphore of each engine's counters; the next engine's come after them.
    counters: [u16; Engine::ALL.len()],
    /// Semaphores of transfers that only the end waits for, with their counts.
    shared: Vec<(u16, u16)>,
    /// Transfers that somebody other than the end must follow.
    has_followers: Vec<bool>,
    /// Semaphores not used yet.
    unused: std::ops::Range<u16>,
    turns: VecDeque<Turn>,
    max_count: u16,
    statistics: SynchronizeStatistics,
}

impl Planner {
    fn new(program: &Program, hazards: &Lists<u32>, available: usize) -> Result<Self, SynchronizeError> {
        let target = program.target.target();
        let n_instructions = program.instructions.len();
        let max_count = u16::try_from(target.semaphore_max).unwrap_or(u16::MAX);
        let mut has_followers = vec![false; n_instructions];
        for &predecessor in hazards.items() {
            has_followers[predecessor as usize] = true;
        }
        let mut next = 0usize;
        let mut stream_lens = [0usize; Engine::ALL.len()];
        for instruction in &program.instructions {
            stream_lens[instruction.engine as usize] += 1;
        }
        let counters = stream_lens.map(|stream_len| {
            let first = next;
            next += stream_len.div_ceil(usize::from(max_count)).max(1);
            first
        });
        let is_shared = |position: &usize| is_transfer(&program.instructions[*position]) && !has_followers[*position];
        let n_shared = (0..n_instructions).filter(is_shared).count();
        let first_shared = next;
        next += n_shared.div_ceil(usize::from(max_count / TRANSFER_COUNT));
        // At least one semaphore is left for the other transfers to take turns on.
        if next >= available {
            return Err(SynchronizeError::TooFewSemaphores { needed: next + 1, available });
        }
        let number = |semaphore: usize| u16::try_from(semaphore).expect("below the number of semaphores");
        Ok(Planner {
            events: Vec::with_capacity(n_instructions),
            clocks: [Clock::default(); Engine::ALL.len()],
            stream_lens: [0; Engine::ALL.len()],
            waits: Lists::with_capacity(n_instructions),
            open: Vec::new(),
            is_awaited: vec![false; n_instructions],
            tickets: vec![None; n_instructions],
            counters: counters.map(number),
            shared: (first_shared..next).map(|semaphore| (number(semaphore), 0)).collect(),
            has_followers,
            unused: number(next)..number(available),
            turns: VecDeque::new(),
            max_count,
            statistics: SynchronizeStatistics::default(),
        })
    }

    /// Decides the waits of one instruction and, for a transfer, its semaphore.
    fn plan(&mut self, position: usize, instruction: &Instruction, hazards: &[u32]) {
        let engine = instruction.engine;
        let mut clock = self.clocks[engine as usize];
        let mut wanted = std::mem::take(&mut self.open);
        wanted.clear();
        wanted.extend_from_slice(hazards);
        if is_transfer(instruction) {
            wanted.extend(self.take_semaphore(position, &clock, hazards));
        }
        let waits = self.needed(&clock, &mut wanted);
        let stream_idx = self.stream_lens[engine as usize];
        for &predecessor in &waits {
            clock.join(&self.events[predecessor as usize].clock_when_complete());
            self.events[predecessor as usize].add_waiter(engine, stream_idx);
            self.is_awaited[predecessor as usize] = true;
        }
        self.waits.push(&waits);
        self.open = wanted;
        let completion = if is_transfer(instruction) { Completion::OnItsOwn } else { Completion::InOrder };
        let first_waiters = [NOBODY; Engine::ALL.len()];
        self.events.push(Event { engine, stream_idx, completion, at_issue: clock, first_waiters });
        self.stream_lens[engine as usize] = stream_idx + 1;
        clock.issued[engine as usize] = stream_idx + 1;
        self.clocks[engine as usize] = clock;
    }

    /// The events among `open`, ascending, that neither the clock nor another of them implies.
    fn needed(&self, clock: &Clock, open: &mut Vec<u32>) -> SmallVec<[u32; 8]> {
        open.retain(|&predecessor| !self.events[predecessor as usize].is_known_by(clock));
        open.sort_unstable();
        open.dedup();
        // An event implies only events that come before it.
        let mut needed = SmallVec::new();
        while let Some(predecessor) = open.pop() {
            needed.push(predecessor);
            if open.is_empty() {
                break;
            }
            let implied = self.events[predecessor as usize].clock_when_complete();
            open.retain(|&earlier| !self.events[earlier as usize].is_known_by(&implied));
        }
        needed.reverse();
        needed
    }

    /// Gives a transfer its semaphore; returns the transfer that must be complete before, if the
    /// clock and the hazards do not already say so.
    fn take_semaphore(&mut self, position: usize, clock: &Clock, hazards: &[u32]) -> Option<u32> {
        if !self.has_followers[position] {
            let max_count = self.max_count - TRANSFER_COUNT;
            let slot = self.shared.iter_mut().find(|(_, count)| *count <= max_count);
            let (semaphore, count) = slot.expect("there are enough for all transfers of this kind");
            *count += TRANSFER_COUNT;
            self.tickets[position] = Some(Ticket { semaphore: *semaphore, at_least: *count });
            return None;
        }
        if let Some(semaphore) = self.unused.next() {
            self.take_turn(position, semaphore, TRANSFER_COUNT);
            return None;
        }
        let mut known = *clock;
        for &predecessor in hazards {
            known.join(&self.events[predecessor as usize].clock_when_complete());
        }
        let is_over =
            |turn: &Turn| hazards.contains(&turn.latest) || self.events[turn.latest as usize].is_known_by(&known);
        let over = self.turns.iter().position(is_over);
        let turn = self.turns.remove(over.unwrap_or(0)).expect("unused semaphores were given turns");
        self.take_turn(position, turn.semaphore, turn.at_least + TRANSFER_COUNT);
        if over.is_some() {
            return None;
        }
        self.statistics.n_reuse_waits += 1;
        Some(turn.latest)
    }

    fn take_turn(&mut self, position: usize, semaphore: u16, at_least: u16) {
        self.tickets[position] = Some(Ticket { semaphore, at_least });
        if at_least <= self.max_count - TRANSFER_COUNT {
            self.turns.push_back(Turn { semaphore, latest: position as u32, at_least });
        }
    }

    /// What SP must still wait for after its last instruction: every transfer.
    fn final_waits(&self) -> Vec<Wait> {
        let mut clock = self.clocks[Engine::Sp as usize];
        let transfers = (0u32..).zip(&self.events).filter(|(_, event)| event.completion == Completion::OnItsOwn);
        let transfers = transfers.map(|(position, _)| position);
        let (mut others, shared): (Vec<u32>, Vec<u32>) =
            transfers.partition(|&position| self.has_followers[position as usize]);
        for position in shared {
            clock.join(&self.events[position as usize].clock_when_complete());
        }
        let needed = self.needed(&clock, &mut others);
        let own = needed.into_iter().filter_map(|position| self.tickets[position as usize]);
        let mut waits: Vec<Wait> =
            own.map(|ticket| Wait { semaphore: ticket.semaphore, at_least: ticket.at_least }).collect();
        waits.extend(self.shared.iter().map(|&(semaphore, at_least)| Wait { semaphore, at_least }));
        waits
    }

    /// The program with its waits, updates and added `Sync` instructions.
    fn write(mut self, mut program: Program, final_waits: Vec<Wait>) -> (Program, SynchronizeStatistics) {
        let counted = self.count_awaited();
        let mut instructions = Vec::with_capacity(program.instructions.len());
        for (position, mut instruction) in std::mem::take(&mut program.instructions).into_iter().enumerate() {
            let awaited = self.waits.get(position).iter();
            let mut waits: SmallVec<[Wait; 8]> =
                awaited.filter_map(|&predecessor| self.wait_for(predecessor as usize, &counted)).collect();
            waits.sort_unstable();
            instruction.update = match (self.tickets[position], counted[position]) {
                (Some(ticket), _) => Some(Update { semaphore: ticket.semaphore, add: TRANSFER_COUNT }),
                (None, Some(count)) => {
                    let (semaphore, _) = self.counter(instruction.engine, count);
                    Some(Update { semaphore, add: 1 })
                }
                (None, None) => None,
            };
            self.statistics.n_updates += usize::from(instruction.update.is_some());
            self.push(&mut instructions, instruction, &waits);
        }
        if !final_waits.is_empty() {
            self.push(&mut instructions, Instruction::new(Engine::Sp, InstructionKind::Sync), &final_waits);
            self.statistics.n_syncs += 1;
        }
        let mut used: Vec<u16> =
            instructions.iter().filter_map(|instruction| Some(instruction.update?.semaphore)).collect();
        used.sort_unstable();
        used.dedup();
        self.statistics.n_semaphores = used.len();
        (Program { phase: ProgramPhase::Synchronized, instructions, ..program }, self.statistics)
    }

    /// Appends an instruction; waits beyond what it can carry go before it.
    fn push(&mut self, instructions: &mut Vec<Instruction>, mut instruction: Instruction, mut waits: &[Wait]) {
        self.statistics.n_waits += waits.len();
        while let Some((carried, rest)) = waits.split_at_checked(MAX_WAITS).filter(|(_, rest)| !rest.is_empty()) {
            waits = rest;
            let mut carrier = Instruction::new(instruction.engine, InstructionKind::Sync);
            carrier.waits = carried.into();
            carrier.locations = instruction.locations.clone();
            instructions.push(carrier);
            self.statistics.n_syncs += 1;
        }
        instruction.waits = waits.into();
        instructions.push(instruction);
    }

    /// Numbers each engine's awaited compute instructions from 1.
    fn count_awaited(&self) -> Vec<Option<u32>> {
        let mut counts = [0u32; Engine::ALL.len()];
        let mut count = |(event, &is_awaited): (&Event, &bool)| {
            if event.completion == Completion::OnItsOwn || !is_awaited {
                return None;
            }
            counts[event.engine as usize] += 1;
            Some(counts[event.engine as usize])
        };
        self.events.iter().zip(&self.is_awaited).map(&mut count).collect()
    }

    /// The semaphore and its value when an engine's n-th awaited instruction is complete.
    fn counter(&self, engine: Engine, count: u32) -> (u16, u16) {
        let max_count = u32::from(self.max_count);
        let (full, rest) = ((count - 1) / max_count, (count - 1) % max_count + 1);
        let narrow = |value: u32| u16::try_from(value).expect("counts and counters are 16 bits wide");
        (self.counters[engine as usize] + narrow(full), narrow(rest))
    }

    fn wait_for(&self, predecessor: usize, counted: &[Option<u32>]) -> Option<Wait> {
        if let Some(ticket) = self.tickets[predecessor] {
            return Some(Wait { semaphore: ticket.semaphore, at_least: ticket.at_least });
        }
        let (semaphore, at_least) = self.counter(self.events[predecessor].engine, counted[predecessor]?);
        Some(Wait { semaphore, at_least })
    }
}

fn is_transfer(instruction: &Instruction) -> bool {
    matches!(instruction.kind, InstructionKind::Dma { .. })
}
