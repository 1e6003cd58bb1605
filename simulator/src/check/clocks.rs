//! What every instruction can rely on, where semaphores are used the plain way: vector clocks over
//! engines and transfers in time proportional to the program.
//!
//! The rules are those of `ir::program::rules`, "What a program may rely on for order". The plain
//! way: a semaphore is updated by one engine's pipeline, or by transfers such that each wait stands
//! for the first so many of them, and every later one is issued by somebody who knows these to be
//! complete. Every wait is at first believed to mean that, and the belief is checked at the end:
//! no instruction can be the first in time to be deceived, because whatever could have counted in
//! place of the awaited transfers was issued before it, by somebody whose beliefs held.
//!
//! Programs that use semaphores otherwise are left to [`super::exact`].

use ir::program::Engine;

use super::digest::{Digest, Step, Updaters};

pub(super) const N_ENGINES: usize = Engine::ALL.len();

/// Never, as a position.
const NEVER: u32 = u32::MAX;

/// Knows what is complete when an instruction touches memory.
pub(super) trait Proof {
    /// True where `earlier` is complete before `later` touches memory.
    fn ordered(&self, earlier: u32, later: u32) -> bool;

    /// Transfers of whose completion no engine knows at the end of its stream.
    fn unfinished_transfers(&self) -> Vec<usize>;
}

/// What an instruction knows when it is issued, beside what its own stream tells.
#[derive(Copy, Clone, Debug, Default)]
struct Clock {
    /// Instructions of each engine's pipeline that are complete, counted in its whole stream.
    done: [u32; N_ENGINES],
    /// Instructions of each engine that have been issued, with all that they knew.
    issued: [u32; N_ENGINES],
}

impl Clock {
    /// Adds that the first instructions of an engine's pipeline are complete.
    fn complete(&mut self, engine: usize, n_first: u32) {
        self.done[engine] = self.done[engine].max(n_first);
        self.issued[engine] = self.issued[engine].max(n_first);
    }

    fn join(&mut self, other: &Clock) {
        for engine in 0..N_ENGINES {
            self.done[engine] = self.done[engine].max(other.done[engine]);
            self.issued[engine] = self.issued[engine].max(other.issued[engine]);
        }
    }
}

/// The updates of one semaphore so far.
#[derive(Default)]
struct Counter {
    n_updates: usize,
    /// What each one adds, where all add the same.
    unit: u64,
    /// Value after each update, where they do not.
    sums: Vec<u64>,
    /// What the first updates say together: a state of knowledge, and how far the pipeline of the
    /// updating engine is then complete.
    says: Vec<(u32, u32)>,
    /// Transfers that update it.
    transfers: Vec<u32>,
    /// How many of them each engine knows by waits of its own.
    learned: [u32; N_ENGINES],
    /// How many of them each engine is known to know when it issues one.
    known: [u32; N_ENGINES],
    /// For each transfer, how many earlier ones its issuer knows.
    known_by_issuer: Vec<u32>,
    /// Numbers of first transfers that waits stand for.
    believed: Vec<u32>,
    /// Waited for, but updated by several.
    is_unclear: bool,
}

/// The order of a program.
pub(super) struct Clocks<'a> {
    steps: &'a [Step],
    /// Different states of knowledge.
    states: Vec<Clock>,
    /// The one of each instruction.
    state_of: Vec<u32>,
    /// For each transfer, the first position of each engine that knows it by a wait of its own.
    learned_at: Vec<[u32; N_ENGINES]>,
}

impl<'a> Clocks<'a> {
    /// Walks over the program in an order that its waits allow. Waits for `distrusted` semaphores
    /// are taken to prove nothing.
    ///
    /// # Errors
    /// Semaphores that are used in another way, ascending.
    pub fn new(
        digest: &'a Digest,
        order: impl Iterator<Item = u32>,
        distrusted: &[u16],
    ) -> Result<Clocks<'a>, Vec<u16>> {
        let mut clocks = Clocks {
            steps: &digest.steps,
            states: Vec::with_capacity(digest.steps.len() / 2 + 1),
            state_of: vec![0; digest.steps.len()],
            learned_at: vec![[NEVER; N_ENGINES]; digest.n_transfers],
        };
        clocks.states.push(Clock::default());
        let mut counters: Vec<Counter> = Vec::new();
        counters.resize_with(digest.semaphores.len(), Counter::default);
        let mut current = [0u32; N_ENGINES];
        for flat in order {
            let step = &digest.steps[flat as usize];
            let engine = usize::from(step.engine);
            for (semaphore, at_least) in step.waits {
                if at_least == 0 {
                    continue;
                }
                let counter = &mut counters[usize::from(semaphore)];
                let updaters = digest.semaphores[usize::from(semaphore)].updaters;
                let n_first = counter.n_first(updaters, u64::from(at_least));
                counter.is_unclear |= updaters == Updaters::Several;
                if n_first > 0 && distrusted.binary_search(&semaphore).is_err() {
                    clocks.learn(&mut current[engine], step, counter, updaters, n_first);
                }
            }
            clocks.state_of[flat as usize] = current[engine];
            let (semaphore, add) = step.update;
            if add > 0 {
                let counter = &mut counters[usize::from(semaphore)];
                clocks.count(current[engine], step, counter, add);
            }
        }
        let is_unclear = |(semaphore, counter): (usize, &Counter)| {
            let semaphore = semaphore as u16;
            (!counter.is_plain() && distrusted.binary_search(&semaphore).is_err()).then_some(semaphore)
        };
        let unclear: Vec<u16> = counters.iter().enumerate().filter_map(is_unclear).collect();
        if unclear.is_empty() { Ok(clocks) } else { Err(unclear) }
    }

    /// Clocks that hold, but leave out what some waits prove.
    pub fn without_unclear(digest: &'a Digest, order: &[u32]) -> Clocks<'a> {
        let mut distrusted: Vec<u16> = Vec::new();
        loop {
            match Clocks::new(digest, order.iter().copied(), &distrusted) {
                Ok(clocks) => return clocks,
                Err(unclear) => distrusted.extend(unclear),
            }
            distrusted.sort_unstable();
        }
    }

    /// Adds what the first updates of a semaphore say to the knowledge of an engine.
    fn learn(&mut self, state: &mut u32, step: &Step, counter: &mut Counter, updaters: Updaters, n_first: usize) {
        let engine = usize::from(step.engine);
        let (says, n_done) = counter.says[n_first - 1];
        let mut clock = self.states[*state as usize];
        clock.join(&self.states[says as usize]);
        if let Updaters::Engine(other) = updaters {
            clock.complete(usize::from(other), n_done);
        }
        *state = self.states.len() as u32;
        self.states.push(clock);
        if !counter.transfers.is_empty() {
            for &transfer in counter.transfers.get(counter.learned[engine] as usize..n_first).unwrap_or(&[]) {
                self.learned_at[transfer as usize][engine] = step.position;
            }
            counter.learned[engine] = counter.learned[engine].max(n_first as u32);
            if counter.believed.last() != Some(&(n_first as u32)) {
                counter.believed.push(n_first as u32);
            }
        }
    }

    /// Notes an update of an instruction that knows this much.
    fn count(&mut self, state: u32, step: &Step, counter: &mut Counter, add: u16) {
        counter.add(u64::from(add));
        if !step.is_transfer() {
            // What an engine knows grows along its stream, so that this says what earlier ones did.
            counter.says.push((state, step.position + 1));
            return;
        }
        let engine = usize::from(step.engine);
        let mut clock = self.states[state as usize];
        clock.issued[engine] = clock.issued[engine].max(step.position + 1);
        let known = &mut counter.known[engine];
        let knows = |transfer: u32| self.knows(transfer, &clock);
        *known += counter.transfers[*known as usize..].iter().take_while(|&&earlier| knows(earlier)).count() as u32;
        counter.known_by_issuer.push(*known);
        counter.transfers.push(step.transfer);
        if let Some(&(before, _)) = counter.says.last() {
            clock.join(&self.states[before as usize]);
        }
        counter.says.push((self.states.len() as u32, 0));
        self.states.push(clock);
    }

    /// True where this knowledge contains that the transfer is complete.
    fn knows(&self, transfer: u32, clock: &Clock) -> bool {
        let learned_at = &self.learned_at[transfer as usize];
        (0..N_ENGINES).any(|engine| learned_at[engine] < clock.issued[engine])
    }
}

impl Proof for Clocks<'_> {
    #[inline(always)]
    fn ordered(&self, earlier: u32, later: u32) -> bool {
        let (first, second) = (&self.steps[earlier as usize], &self.steps[later as usize]);
        let engine = usize::from(first.engine);
        if first.is_transfer() {
            let learned_at = &self.learned_at[first.transfer as usize];
            return learned_at[usize::from(second.engine)] <= second.position
                || self.knows(first.transfer, &self.states[self.state_of[later as usize] as usize]);
        }
        if first.engine == second.engine && !second.is_transfer() {
            return first.position < second.position;
        }
        first.position < self.states[self.state_of[later as usize] as usize].done[engine]
    }

    fn unfinished_transfers(&self) -> Vec<usize> {
        let is_unfinished =
            |step: &Step| step.is_transfer() && self.learned_at[step.transfer as usize] == [NEVER; N_ENGINES];
        (0..self.steps.len()).filter(|&flat| is_unfinished(&self.steps[flat])).collect()
    }
}

impl Counter {
    fn add(&mut self, add: u64) {
        if self.n_updates == 0 {
            self.unit = add;
        }
        if self.unit != add && self.sums.is_empty() {
            self.sums.extend((1..=self.n_updates as u64).map(|number| number * self.unit));
        }
        self.n_updates += 1;
        if self.unit != add || !self.sums.is_empty() {
            self.sums.push(self.sums.last().copied().unwrap_or(0) + add);
        }
    }

    /// How many of the first updates are complete when the semaphore has this value.
    fn n_first(&self, updaters: Updaters, at_least: u64) -> usize {
        let n_up_to = |value: u64| match &self.sums[..] {
            [] => (value / self.unit.max(1)) as usize,
            sums => sums.partition_point(|&sum| sum <= value),
        };
        match updaters {
            Updaters::Engine(_) => n_up_to(at_least - 1) + 1,
            // Fifteen of sixteen engines say nothing of the transfer that they belong to.
            Updaters::Transfers => n_up_to(at_least),
            Updaters::Nobody | Updaters::Several => 0,
        }
    }

    /// True where all that waits stand for is known to whoever issued a later transfer.
    fn is_plain(&self) -> bool {
        if self.is_unclear || self.believed.is_empty() || self.known_by_issuer.is_empty() {
            return !self.is_unclear;
        }
        // For each number of first transfers, how many such numbers up to it waits stand for.
        let mut n_believed = vec![0u32; self.known_by_issuer.len() + 1];
        for &n_first in &self.believed {
            n_believed[n_first as usize] = 1;
        }
        let mut sum = 0;
        for number in &mut n_believed {
            sum += *number;
            *number = sum;
        }
        let issuers = self.known_by_issuer.iter().enumerate();
        issuers.into_iter().all(|(number, &known)| n_believed[number] == n_believed[known as usize])
    }
}
