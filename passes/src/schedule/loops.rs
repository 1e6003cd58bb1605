//! What each tile loop of a program takes at least, and what its schedule takes.
//!
//! Programs have no loops any more: lowering unrolls them, so that all instructions of one node are
//! the iterations of its tile loop. Of the two bounds on a pipelined loop's interval, times the number
//! of iterations, one is the work of the busiest resource and the other the longest chain of
//! instructions that depend on each other.

use std::collections::BTreeMap;

use ir::Program;
use ir::graph::LocationId;
use ir::program::Engine;
use ir::target::Target;
use smallvec::SmallVec;

use super::choice::ChoiceKind;
use super::list::{Placement, Tasks, Time, hand_over};

/// What keeps a loop from being faster.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoopLimit {
    /// The engine that has most to do.
    Engine(Engine),
    /// The DMA engines, were the work spread evenly over them.
    Dma,
    /// A chain of instructions, transfers aside, each of which needs the one before.
    Chain,
}

impl LoopLimit {
    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            LoopLimit::Engine(engine) => engine.name(),
            LoopLimit::Dma => "dma",
            LoopLimit::Chain => "chain",
        }
    }
}

/// The tile loop of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopReport {
    /// The node's sources: positions in [`Program::locations`].
    pub locations: SmallVec<[LocationId; 2]>,
    pub n_instructions: usize,
    pub limit: LoopLimit,
    /// Work of the limit: on the same engines no order takes less.
    pub bound_ps: u64,
    /// Time from the limit's first start for this loop to its last end, less what it did meanwhile for
    /// other loops; of a chain, which others do not delay, the whole time. What exceeds the bound is
    /// waiting. Of DMA engines, which move several transfers at once, an estimate and at least the bound.
    pub taken_ps: u64,
}

/// Engines, and the DMA engines as one.
const N_RESOURCES: usize = Engine::ALL.len() + 1;
const DMA: usize = Engine::ALL.len();

/// Work of one instruction on one resource.
#[derive(Copy, Clone)]
struct Work {
    start_ps: u64,
    end_ps: u64,
    work_ps: u64,
    loop_idx: u32,
}

#[derive(Clone, Default)]
struct Loop {
    n_instructions: usize,
    chain_ps: u64,
    work_ps: [u64; N_RESOURCES],
    start_ps: u64,
    end_ps: u64,
}

/// The loops of a scheduled order, in the order in which the program has them.
pub(super) fn loops(
    program: &Program,
    target: &Target,
    tasks: &Tasks,
    order: &[Placement],
    times: &[Time],
) -> Vec<LoopReport> {
    let (loop_of, keys) = numbered(program);
    let mut found = vec![Loop { start_ps: u64::MAX, ..Loop::default() }; keys.len()];
    for (position, chain_ps) in chains(target, tasks, order, &loop_of).into_iter().enumerate() {
        let found = &mut found[loop_of[position] as usize];
        found.n_instructions += 1;
        found.chain_ps = found.chain_ps.max(chain_ps);
    }
    let n_dma_engines = u64::from(target.dma_engines).max(1);
    let mut works: [Vec<Work>; N_RESOURCES] = Default::default();
    for (&placement, time) in order.iter().zip(times) {
        let loop_idx = loop_of[placement.position as usize];
        let choice = tasks.choice(placement);
        let (resource, work_ps, end_ps) = match &choice.kind {
            ChoiceKind::Compute => (choice.engine as usize, time.engine_ps - time.start_ps, time.engine_ps),
            ChoiceKind::Transfer(transfer) => (DMA, tasks.moving_ps(transfer) / n_dma_engines, time.done_ps),
        };
        let found = &mut found[loop_idx as usize];
        found.work_ps[resource] += work_ps;
        if resource != DMA {
            found.start_ps = found.start_ps.min(time.start_ps);
            found.end_ps = found.end_ps.max(time.done_ps);
        }
        works[resource].push(Work { start_ps: time.start_ps, end_ps, work_ps, loop_idx });
    }
    let taken: Vec<Vec<u64>> = works.iter().map(|works| taken(works, keys.len())).collect();
    let report = |(idx, (found, locations)): (usize, (Loop, &[LocationId]))| {
        let resources = found.work_ps.iter().enumerate();
        let (resource, work_ps) = resources.max_by_key(|&(number, &work_ps)| (work_ps, std::cmp::Reverse(number)))?;
        let (limit, bound_ps, taken_ps) = match Engine::ALL.get(resource) {
            _ if found.chain_ps > *work_ps => (LoopLimit::Chain, found.chain_ps, found.end_ps - found.start_ps),
            Some(&engine) => (LoopLimit::Engine(engine), *work_ps, taken[resource][idx]),
            None => (LoopLimit::Dma, *work_ps, taken[resource][idx].max(*work_ps)),
        };
        let n_instructions = found.n_instructions;
        Some(LoopReport { locations: locations.into(), n_instructions, limit, bound_ps, taken_ps })
    };
    found.into_iter().zip(keys).enumerate().filter_map(report).collect()
}

/// The loop of every instruction, and the locations of every loop.
fn numbered(program: &Program) -> (Vec<u32>, Vec<&[LocationId]>) {
    let mut known: BTreeMap<&[LocationId], u32> = BTreeMap::new();
    let mut keys: Vec<&[LocationId]> = Vec::new();
    let mut last = 0u32;
    let loop_of = program.instructions.iter().map(|instruction| {
        let key = instruction.locations.as_slice();
        if keys.get(last as usize) != Some(&key) {
            last = *known.entry(key).or_insert_with(|| {
                keys.push(key);
                keys.len() as u32 - 1
            });
        }
        last
    });
    (loop_of.collect(), keys)
}

/// The longest chain within a loop that ends with each task, up to its completion; 0 for transfers,
/// which start long before they are needed.
fn chains(target: &Target, tasks: &Tasks, order: &[Placement], loop_of: &[u32]) -> Vec<u64> {
    let mut choices = vec![None; loop_of.len()];
    for &placement in order {
        let choice = tasks.choice(placement);
        if matches!(choice.kind, ChoiceKind::Compute) {
            choices[placement.position as usize] = Some(choice);
        }
    }
    // The earliest start that predecessors of the same loop allow.
    let mut start_ps = vec![0u64; loop_of.len()];
    let mut ends_ps = vec![0u64; loop_of.len()];
    for (position, &choice) in choices.iter().enumerate() {
        let Some(choice) = choice else { continue };
        for &(successor, kind) in tasks.successors(position) {
            let successor = successor as usize;
            if let Some(next) = choices[successor].filter(|_| loop_of[successor] == loop_of[position]) {
                let after_ps = start_ps[position] + hand_over(target, (choice, choice.delay_ps), next, kind);
                start_ps[successor] = start_ps[successor].max(after_ps);
            }
        }
        ends_ps[position] = start_ps[position] + choice.delay_ps;
    }
    ends_ps
}

/// For each loop how long a resource had it under way, less its work for other loops in that time.
fn taken(works: &[Work], n_loops: usize) -> Vec<u64> {
    let mut spans = vec![(u64::MAX, 0u64); n_loops];
    let mut own_ps = vec![0u64; n_loops];
    for work in works {
        let span = &mut spans[work.loop_idx as usize];
        *span = (span.0.min(work.start_ps), span.1.max(work.end_ps));
        own_ps[work.loop_idx as usize] += work.work_ps;
    }
    // Work by the time at which it starts; an engine's instructions come one after the other.
    let mut sorted: Vec<(u64, u64)> = works.iter().map(|work| (work.start_ps, work.work_ps)).collect();
    sorted.sort_unstable();
    let mut sum_ps = 0;
    for (_, work_ps) in &mut sorted {
        sum_ps += std::mem::replace(work_ps, sum_ps);
    }
    let before = |time_ps: u64| {
        let rank = sorted.partition_point(|&(start_ps, _)| start_ps < time_ps);
        sorted.get(rank).map_or(sum_ps, |&(_, before_ps)| before_ps)
    };
    let taken = spans.into_iter().zip(own_ps).map(|((start_ps, end_ps), own_ps)| {
        if start_ps > end_ps {
            return 0;
        }
        let others_ps = (before(end_ps) - before(start_ps)).saturating_sub(own_ps);
        (end_ps - start_ps).saturating_sub(others_ps)
    });
    taken.collect()
}

#[cfg(test)]
mod tests {
    use super::{Work, taken};

    #[test]
    fn what_is_taken_is_own_work_and_waiting() {
        let work = |start_ps, end_ps, loop_idx| Work { start_ps, end_ps, work_ps: end_ps - start_ps, loop_idx };
        // Loop 0 works 10 + 20 and waits 5; loop 1 works within it; loop 2 never; loop 3 afterwards.
        let works = [work(0, 10, 0), work(10, 40, 1), work(45, 65, 0), work(70, 80, 3)];
        assert_eq!(taken(&works, 4), [35, 30, 0, 10]);
    }
}
