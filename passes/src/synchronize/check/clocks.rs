//! What every instruction knows to have happened when it is issued.
//!
//! Engines issue in order, and their own instructions complete in order: knowledge about an engine
//! is two counts. A transfer completes on its own; it is known to be complete wherever one of the
//! instructions that have waited for it is known to be issued.

use ir::Program;
use ir::program::Engine;
use ir::program::verify::ProgramFault;

use super::{Step, StepKind};

const N_ENGINES: usize = Engine::ALL.len();

/// Positions in an order in which the engines can issue; or the waits at which they get stuck.
pub(super) fn execute(program: &Program, steps: &[Step<'_>]) -> Result<Vec<u32>, Vec<ProgramFault>> {
    let limit = program.target.target().semaphore_max;
    let mut streams: [Vec<u32>; N_ENGINES] = Default::default();
    for (position, step) in (0u32..).zip(steps) {
        streams[step.engine as usize].push(position);
    }
    let mut next = [0usize; N_ENGINES];
    let mut counts: Vec<u32> = vec![0; n_semaphores(steps)];
    let mut order = Vec::with_capacity(steps.len());
    let mut faults = Vec::new();
    loop {
        let n_before = order.len();
        for engine in 0..N_ENGINES {
            while let Some(&position) = streams[engine].get(next[engine]) {
                let step = &steps[position as usize];
                if !step.waits.iter().all(|wait| counts[usize::from(wait.semaphore)] >= u32::from(wait.at_least)) {
                    break;
                }
                if let Some(update) = step.update {
                    let count = &mut counts[usize::from(update.semaphore)];
                    *count += u32::from(update.add);
                    if *count > limit {
                        let message = format!("semaphore s{} exceeds {limit}", update.semaphore);
                        faults.push(ProgramFault::at(program, position as usize, message));
                    }
                }
                order.push(position);
                next[engine] += 1;
            }
        }
        if order.len() == n_before {
            break;
        }
    }
    let stuck = (0..N_ENGINES).filter_map(|engine| streams[engine].get(next[engine]));
    faults.extend(stuck.map(|&position| ProgramFault::at(program, position as usize, "waits forever")));
    if faults.is_empty() { Ok(order) } else { Err(faults) }
}

/// One more than the largest number of a semaphore.
fn n_semaphores(steps: &[Step<'_>]) -> usize {
    let waited = steps.iter().flat_map(|step| step.waits).map(|wait| wait.semaphore);
    let updated = steps.iter().filter_map(|step| step.update).map(|update| update.semaphore);
    waited.chain(updated).max().map_or(0, |semaphore| usize::from(semaphore) + 1)
}

/// Per engine, how many instructions of its stream are known to be issued, and to be complete.
/// Complete counts say nothing of transfers.
#[derive(Copy, Clone, Debug, Default)]
struct Clock {
    issued: [u32; N_ENGINES],
    complete: [u32; N_ENGINES],
}

impl Clock {
    fn join(&mut self, other: &Clock) {
        for engine in 0..N_ENGINES {
            self.issued[engine] = self.issued[engine].max(other.issued[engine]);
            self.complete[engine] = self.complete[engine].max(other.complete[engine]);
        }
    }
}

/// How the values of one semaphore are to be read.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum Reading {
    /// Updates come in the order of `updaters`; any value proves the first ones that reach it.
    #[default]
    InSequence,
    /// Updates come in any order; only the sum of all proves anything.
    OnlyTotal,
}

#[derive(Clone, Debug, Default)]
struct Semaphore {
    reading: Reading,
    /// The first update is a transfer's; in a sequence all are.
    is_of_transfers: bool,
    /// Instructions that update it, in the order of execution.
    updaters: Vec<u32>,
    /// Sums of the updates up to each updater.
    sums: Vec<u32>,
}

impl Semaphore {
    fn total(&self) -> u32 {
        self.sums.last().copied().unwrap_or(0)
    }

    /// Number of updaters whose sums come before the first for which `is_reached` is false.
    fn n_updates(&self, value: u32, is_reached: impl Fn(u32) -> bool) -> usize {
        // Where all updates add the same, as they do in compiled programs, this is where the answer lies.
        let add = self.sums.first().copied().unwrap_or(0).max(1);
        let guess = (value / add) as usize;
        for n_updates in guess.saturating_sub(1)..=guess {
            let Some(before) = self.sums.get(..n_updates) else { break };
            let is_last = self.sums.get(n_updates).is_none_or(|&sum| !is_reached(sum));
            if is_last && before.last().is_none_or(|&sum| is_reached(sum)) {
                return n_updates;
            }
        }
        self.sums.partition_point(|&sum| is_reached(sum))
    }
}

/// The semaphores of a program, by number, and where its instructions stand on them.
pub(super) struct Semaphores<'a> {
    steps: &'a [Step<'a>],
    all: Vec<Semaphore>,
    /// Per instruction, its place among the updaters of its semaphore, from 1.
    rank: Vec<u32>,
    points: Vec<Point>,
}

/// Where an instruction stands in its engine's stream.
#[derive(Copy, Clone, Debug)]
struct Point {
    engine: Engine,
    kind: StepKind,
    /// From 1.
    stream_rank: u32,
}

impl<'a> Semaphores<'a> {
    pub(super) fn of(steps: &'a [Step<'a>], order: &[u32]) -> Self {
        let mut all: Vec<Semaphore> = vec![Semaphore::default(); n_semaphores(steps)];
        let mut rank = vec![0; steps.len()];
        let mut stream_lens = [0; N_ENGINES];
        let point = |step: &Step<'_>| {
            stream_lens[step.engine as usize] += 1;
            Point { engine: step.engine, kind: step.kind, stream_rank: stream_lens[step.engine as usize] }
        };
        let points = steps.iter().map(point).collect();
        for &position in order {
            let step = &steps[position as usize];
            let Some(update) = step.update else { continue };
            let semaphore = &mut all[usize::from(update.semaphore)];
            match semaphore.updaters.first() {
                None => semaphore.is_of_transfers = step.kind == StepKind::Transfer,
                // Transfers must prove their sequence; a mixture of engines has none.
                Some(&first) if steps[first as usize].counting_engine() != step.counting_engine() => {
                    semaphore.reading = Reading::OnlyTotal;
                }
                Some(_) => {}
            }
            semaphore.sums.push(semaphore.total() + u32::from(update.add));
            semaphore.updaters.push(position);
            rank[position as usize] = semaphore.updaters.len() as u32;
        }
        let mut semaphores = Semaphores { steps, all, rank, points };
        semaphores.read_totals();
        semaphores
    }

    /// Of a semaphore of transfers on which everyone waits for the sum of all, a sequence would
    /// prove no more than that sum does.
    fn read_totals(&mut self) {
        let mut waits_for_less = vec![false; self.all.len()];
        for wait in self.steps.iter().flat_map(|step| step.waits) {
            let semaphore = usize::from(wait.semaphore);
            waits_for_less[semaphore] |= u32::from(wait.at_least) < self.all[semaphore].total();
        }
        for (semaphore, waits_for_less) in self.all.iter_mut().zip(waits_for_less) {
            if semaphore.is_of_transfers && !waits_for_less {
                semaphore.reading = Reading::OnlyTotal;
            }
        }
    }

    /// What every instruction knows when it is issued.
    pub(super) fn knowledge(mut self, order: &[u32]) -> Known<'a> {
        loop {
            let mut clocks = Clocks {
                at_issue: vec![Clock::default(); self.steps.len()],
                ends: [Clock::default(); N_ENGINES],
                waiters: vec![[u32::MAX; N_ENGINES]; self.steps.len()],
            };
            let out_of_sequence = self.run(order, &mut clocks);
            if out_of_sequence.is_empty() {
                return Known { clocks, semaphores: self };
            }
            // What was concluded from these sequences may be wrong: conclude again without them.
            for idx in out_of_sequence {
                self.all[idx].reading = Reading::OnlyTotal;
            }
        }
    }

    /// Fills the clocks; gives the semaphores that turn out to have no sequence.
    fn run(&self, order: &[u32], clocks: &mut Clocks) -> Vec<usize> {
        let mut out_of_sequence = Vec::new();
        for &position in order {
            let step = &self.steps[position as usize];
            let engine = step.engine as usize;
            let stream_rank = self.points[position as usize].stream_rank;
            let mut known = clocks.ends[engine];
            known.issued[engine] = stream_rank;
            for wait in step.waits {
                for &updater in self.proven(usize::from(wait.semaphore), u32::from(wait.at_least)) {
                    known.join(&clocks.at_issue[updater as usize]);
                    match self.steps[updater as usize].counting_engine() {
                        Some(engine) => {
                            let complete = &mut known.complete[engine as usize];
                            *complete = (*complete).max(self.points[updater as usize].stream_rank);
                        }
                        None => {
                            let first = &mut clocks.waiters[updater as usize][engine];
                            *first = (*first).min(stream_rank);
                        }
                    }
                }
            }
            if step.kind == StepKind::Transfer
                && let Some(update) = step.update
            {
                let semaphore = &self.all[usize::from(update.semaphore)];
                let before = (self.rank[position as usize] as usize).checked_sub(2).map(|at| semaphore.updaters[at]);
                let follows_all = before.is_none_or(|before| clocks.knows_transfer(&known, before));
                if semaphore.reading == Reading::InSequence && !follows_all {
                    out_of_sequence.push(usize::from(update.semaphore));
                }
            }
            clocks.ends[engine] = known;
            clocks.at_issue[position as usize] = known;
        }
        out_of_sequence.sort_unstable();
        out_of_sequence.dedup();
        out_of_sequence
    }

    /// Updaters that are complete when the semaphore has this value and whose completion implies
    /// the rest of what it proves.
    fn proven(&self, idx: usize, at_least: u32) -> &[u32] {
        let semaphore = &self.all[idx];
        let Semaphore { reading, is_of_transfers, updaters, sums: _ } = semaphore;
        match reading {
            Reading::InSequence if *is_of_transfers => {
                // Fifteen of sixteen engines say nothing of the transfer that they belong to.
                let n_complete = semaphore.n_updates(at_least, |sum| sum <= at_least);
                &updaters[n_complete.saturating_sub(1)..n_complete]
            }
            Reading::InSequence => {
                let last = semaphore.n_updates(at_least, |sum| sum < at_least);
                if at_least == 0 { &[] } else { updaters.get(last..=last).unwrap_or(&[]) }
            }
            Reading::OnlyTotal => {
                if at_least >= semaphore.total() {
                    updaters
                } else {
                    &[]
                }
            }
        }
    }
}

struct Clocks {
    at_issue: Vec<Clock>,
    /// Per engine, after its last instruction.
    ends: [Clock; N_ENGINES],
    /// Per transfer and engine, the place in the stream of the first instruction that waits for it.
    waiters: Vec<[u32; N_ENGINES]>,
}

impl Clocks {
    /// True if a holder of this clock knows the transfer to be complete: someone it knows to be
    /// issued has waited for it.
    fn knows_transfer(&self, clock: &Clock, position: u32) -> bool {
        let waiters = &self.waiters[position as usize];
        clock.issued.iter().zip(waiters).any(|(issued, first)| issued >= first)
    }
}

/// What is known where.
pub(super) struct Known<'a> {
    clocks: Clocks,
    semaphores: Semaphores<'a>,
}

impl Known<'_> {
    /// True if `later` takes effect after `earlier` is complete.
    pub(super) fn orders(&self, earlier: usize, later: usize) -> bool {
        self.same_stream(earlier, later) || self.covers(&self.clocks.at_issue[later], earlier)
    }

    /// True if one engine's data path runs both, one after the other.
    pub(super) fn same_stream(&self, earlier: usize, later: usize) -> bool {
        let (first, second) = (self.semaphores.points[earlier], self.semaphores.points[later]);
        first.engine == second.engine && first.kind == StepKind::Compute && second.kind == StepKind::Compute
    }

    /// Transfers that the engine does not know to be complete after its last instruction.
    pub(super) fn transfers_open_after(&self, engine: Engine) -> impl Iterator<Item = usize> {
        let end = &self.clocks.ends[engine as usize];
        let transfers = self.semaphores.steps.iter().enumerate().filter(|(_, step)| step.kind == StepKind::Transfer);
        transfers.map(|(position, _)| position).filter(|&position| !self.covers(end, position))
    }

    /// True if a holder of this clock knows the instruction to be complete.
    fn covers(&self, clock: &Clock, position: usize) -> bool {
        let Point { engine, kind, stream_rank } = self.semaphores.points[position];
        match kind {
            StepKind::Compute | StepKind::Control => clock.complete[engine as usize] >= stream_rank,
            StepKind::Transfer => self.clocks.knows_transfer(clock, position as u32),
        }
    }
}
