//! An order in which the engines can issue all instructions, found without a clock.
//!
//! Semaphores only count up, so that any order that respects the waits ends in the same place: if
//! one run ends, all do.

use ir::program::Engine;

use super::digest::Digest;
use crate::finding::{Finding, FindingKind};
use crate::machine::Machine;

/// Flat numbers in an order that all waits allow, each transfer being complete when it is issued.
///
/// # Errors
/// A deadlock, with what every engine waits for.
pub(super) fn execution_order(machine: &Machine, digest: &Digest) -> Result<Vec<u32>, Finding> {
    let mut counts = vec![0u64; digest.semaphores.len()];
    let mut next = Engine::ALL.map(|engine| machine.stream_range(engine));
    let mut order = Vec::with_capacity(digest.steps.len());
    loop {
        let n_before = order.len();
        for range in &mut next {
            while let Some(step) = digest.steps[..range.end].get(range.start) {
                let [first, second] = step.waits;
                let holds = |(semaphore, at_least): (u16, u16)| counts[usize::from(semaphore)] >= u64::from(at_least);
                if !holds(first) || !holds(second) {
                    break;
                }
                counts[usize::from(step.update.0)] += u64::from(step.update.1);
                order.push(range.start as u32);
                range.start += 1;
            }
        }
        if order.len() == digest.steps.len() {
            return Ok(order);
        }
        if order.len() == n_before {
            return Err(deadlock(machine, &next.map(|range| range.start), &counts));
        }
    }
}

/// What every engine waits for, given its next instruction.
pub(crate) fn deadlock(machine: &Machine, next: &[usize; Engine::ALL.len()], counts: &[u64]) -> Finding {
    let mut parts = Vec::new();
    let mut sites = Vec::new();
    for (engine, &flat) in Engine::ALL.into_iter().zip(next) {
        if flat == machine.stream_range(engine).end {
            continue;
        }
        let count = |semaphore: u16| counts[usize::from(semaphore)];
        let waits = machine.instructions[flat].waits.iter();
        let unmet: Vec<String> = waits
            .filter(|wait| count(wait.semaphore) < u64::from(wait.at_least))
            .map(|wait| {
                let (semaphore, at_least) = (wait.semaphore, wait.at_least);
                format!("semaphore {semaphore} >= {at_least}, which stays {}", count(semaphore))
            })
            .collect();
        parts.push(format!("{} waits for {}", engine.name(), unmet.join(" and ")));
        sites.push(machine.site(flat));
    }
    Finding { kind: FindingKind::Deadlock, message: parts.join("; "), sites }
}
