//! What every instruction can rely on, however semaphores are used: vector clocks over engines and
//! sets of transfers. Takes time that grows with the square of the program; [`super::clocks`] is for
//! programs that use semaphores the plain way.
//!
//! The rules are those of `ir::program::rules`, "What a program may rely on for order". A wait
//! orders an update only where the semaphore cannot reach the awaited value without it. Which
//! updates could stand in for another depends on what the waits order, so the clocks are computed
//! again until they stay the same; every round alone is sound.

use ir::program::{Engine, InstructionKind, Wait};

use super::clocks::{N_ENGINES, Proof};
use super::digest::{Digest, Updaters};
use crate::machine::Machine;

/// More rounds only find order in programs that build it from many shared semaphores.
const MOST_ROUNDS: usize = 8;

/// Pairs of instructions that may be looked at in each round.
const MOST_PAIRS: u64 = 1 << 26;

/// A set of transfers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TransferSet {
    words: Vec<u64>,
}

impl TransferSet {
    fn contains(&self, transfer: usize) -> bool {
        self.words.get(transfer / 64).is_some_and(|word| word >> (transfer % 64) & 1 == 1)
    }

    fn insert(&mut self, transfer: usize) {
        let word = transfer / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (transfer % 64);
    }

    fn join(&mut self, other: &TransferSet) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }
}

/// What is known to have happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Clock {
    /// Instructions of each engine that are complete; a transfer among them is triggered.
    done: [u32; N_ENGINES],
    /// Instructions of each engine that have been issued.
    issued: [u32; N_ENGINES],
    /// Transfers that are complete.
    transfers: TransferSet,
}

impl Clock {
    fn join(&mut self, other: &Clock) {
        for engine in 0..N_ENGINES {
            self.done[engine] = self.done[engine].max(other.done[engine]);
            self.issued[engine] = self.issued[engine].max(other.issued[engine]);
        }
        self.transfers.join(&other.transfers);
    }
}

/// One instruction that adds to a semaphore.
struct Adder {
    flat: usize,
    add: u64,
}

/// All updates of one semaphore.
#[derive(Default)]
struct Counter {
    adders: Vec<Adder>,
    /// The only engine whose data path counts here, so that the adders complete in their order.
    chain: bool,
}

/// The order of a program.
pub(super) struct ExactClocks<'a> {
    machine: &'a Machine,
    /// Number of a transfer among transfers.
    transfer_number: Vec<Option<usize>>,
    position: Vec<u32>,
    /// Place in an order that all waits allow.
    rank: Vec<usize>,
    /// What each instruction knows when it is issued, through waits alone.
    before: Vec<Clock>,
    /// What each update says.
    after: Vec<Clock>,
    counters: Vec<Counter>,
}

impl<'a> ExactClocks<'a> {
    /// True where a program is too large for this.
    pub fn takes_long(digest: &Digest) -> bool {
        let n_instructions = digest.steps.len() as u64;
        let n_pairs = n_instructions.saturating_mul(n_instructions);
        // Every wait looks at all pairs of updates.
        let of_waits = digest.semaphores.iter().filter(|semaphore| !matches!(semaphore.updaters, Updaters::Engine(_)));
        let of_waits = of_waits
            .map(|semaphore| semaphore.n_updates.saturating_mul(semaphore.n_updates).saturating_mul(semaphore.n_waits));
        of_waits.fold(n_pairs, u64::saturating_add) > MOST_PAIRS
    }

    /// `order` is one that all waits allow.
    pub fn new(machine: &'a Machine, order: &[u32]) -> ExactClocks<'a> {
        let n_instructions = machine.instructions.len();
        let mut transfer_number = vec![None; n_instructions];
        let mut n_transfers = 0;
        for (flat, instruction) in machine.instructions.iter().enumerate() {
            if matches!(instruction.kind, InstructionKind::Dma { .. }) {
                transfer_number[flat] = Some(n_transfers);
                n_transfers += 1;
            }
        }
        let mut rank = vec![0; n_instructions];
        for (number, &flat) in order.iter().enumerate() {
            rank[flat as usize] = number;
        }
        let mut clocks = ExactClocks {
            machine,
            position: (0..n_instructions).map(|flat| machine.id(flat).position).collect(),
            rank,
            before: vec![Clock::default(); n_instructions],
            after: Vec::new(),
            counters: counters(machine, &transfer_number),
            transfer_number,
        };
        // At first every update is only known to follow its own instruction.
        clocks.after = (0..n_instructions).map(|flat| clocks.completed(flat, Clock::default())).collect();
        for _ in 0..MOST_ROUNDS {
            if !clocks.advance(order) || clocks.counters.iter().all(|counter| counter.chain) {
                break;
            }
        }
        clocks
    }

    /// Computes all clocks from the last round's; true where something changed.
    fn advance(&mut self, order: &[u32]) -> bool {
        let mut known: Vec<Clock> = vec![Clock::default(); N_ENGINES];
        let mut changed = false;
        let mut after = self.after.clone();
        for flat in order.iter().map(|&flat| flat as usize) {
            let instruction = &self.machine.instructions[flat];
            let mut clock = std::mem::take(&mut known[instruction.engine as usize]);
            for wait in &instruction.waits {
                for update in self.required(flat, wait, &clock) {
                    clock.join(&after[update]);
                }
            }
            let completed = self.completed(flat, clock.clone());
            changed |= after[flat] != completed;
            after[flat] = completed;
            self.before[flat] = clock.clone();
            known[instruction.engine as usize] = clock;
        }
        self.after = after;
        changed
    }

    /// What the completion of an instruction says that knew this much.
    fn completed(&self, flat: usize, mut clock: Clock) -> Clock {
        let (engine, count) = (self.machine.instructions[flat].engine as usize, self.position[flat] + 1);
        clock.issued[engine] = clock.issued[engine].max(count);
        match self.transfer_number[flat] {
            Some(transfer) => clock.transfers.insert(transfer),
            None => clock.done[engine] = clock.done[engine].max(count),
        }
        clock
    }

    /// Updates without which the waiting instruction cannot be issued, those that say something new.
    fn required(&self, waiting: usize, wait: &Wait, known: &Clock) -> Vec<usize> {
        let counter = &self.counters[usize::from(wait.semaphore)];
        let needed = u64::from(wait.at_least);
        if needed == 0 {
            return Vec::new();
        }
        if counter.chain {
            let mut sum = 0;
            let last = counter.adders.iter().find(|adder| {
                sum += adder.add;
                sum >= needed
            });
            return last.map(|adder| adder.flat).into_iter().collect();
        }
        // What may have been counted by then: all but what follows the wait.
        let engine = self.machine.instructions[waiting].engine as usize;
        let possible: Vec<&Adder> = counter
            .adders
            .iter()
            .filter(|adder| self.after[adder.flat].issued[engine] <= self.position[waiting])
            .collect();
        let total: u64 = possible.iter().map(|adder| adder.add).sum();
        let candidates = possible
            .iter()
            .filter(|adder| self.rank[adder.flat] < self.rank[waiting] && !self.is_known(adder.flat, known));
        candidates
            .filter(|adder| {
                // An unfinished transfer may have counted all but one of its engines.
                let own = if self.transfer_number[adder.flat].is_some() { 1 } else { adder.add };
                if total - own < needed {
                    return true;
                }
                let dependent =
                    possible.iter().filter(|other| other.flat != adder.flat && self.follows(other.flat, adder.flat));
                total - own - dependent.map(|other| other.add).sum::<u64>() < needed
            })
            .map(|adder| adder.flat)
            .collect()
    }

    fn is_known(&self, flat: usize, known: &Clock) -> bool {
        match self.transfer_number[flat] {
            Some(transfer) => known.transfers.contains(transfer),
            None => known.done[self.machine.instructions[flat].engine as usize] > self.position[flat],
        }
    }

    /// True where the completion of `later` says that `earlier` is complete.
    fn follows(&self, later: usize, earlier: usize) -> bool {
        self.is_known(earlier, &self.after[later])
    }
}

impl Proof for ExactClocks<'_> {
    fn ordered(&self, earlier: u32, later: u32) -> bool {
        let (earlier, later) = (earlier as usize, later as usize);
        let known = &self.before[later];
        if let Some(transfer) = self.transfer_number[earlier] {
            return known.transfers.contains(transfer);
        }
        let engine = self.machine.instructions[earlier].engine;
        let same_pipeline = engine == self.machine.instructions[later].engine && self.transfer_number[later].is_none();
        let limit = if same_pipeline { self.position[later] } else { known.done[engine as usize] };
        self.position[earlier] < limit
    }

    fn unfinished_transfers(&self) -> Vec<usize> {
        let mut known = TransferSet::default();
        for engine in Engine::ALL {
            if let Some(last) = self.machine.stream_range(engine).next_back() {
                known.join(&self.before[last].transfers);
            }
        }
        let transfers = self.transfer_number.iter().enumerate();
        transfers.filter_map(|(flat, number)| number.filter(|&number| !known.contains(number)).map(|_| flat)).collect()
    }
}

fn counters(machine: &Machine, transfer_number: &[Option<usize>]) -> Vec<Counter> {
    let mut counters: Vec<Counter> = Vec::new();
    counters.resize_with(1 + usize::from(u16::MAX), Counter::default);
    for (flat, instruction) in machine.instructions.iter().enumerate() {
        if let Some(update) = instruction.update {
            counters[usize::from(update.semaphore)].adders.push(Adder { flat, add: u64::from(update.add) });
        }
    }
    for counter in &mut counters {
        let engines = counter.adders.iter().map(|adder| machine.instructions[adder.flat].engine);
        let one_engine = engines.clone().all(|engine| Some(engine) == engines.clone().next());
        counter.chain = one_engine && counter.adders.iter().all(|adder| transfer_number[adder.flat].is_none());
    }
    counters
}
