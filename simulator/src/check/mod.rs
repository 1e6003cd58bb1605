//! Checks of a whole program: operand and stream rules, order of all conflicting accesses,
//! initialisation, semaphores.
//!
//! [`digest`] checks operand rules and reads the program once; [`order`] finds an order of
//! execution; [`clocks`] says what waits prove, [`exact`] where semaphores are used in ways that
//! take longer to see through; [`memory`] compares accesses. All take time proportional to the
//! program. Only a program with something wrong is also run in time, so that its findings name
//! instructions in the order in which they would run.

mod calls;
mod chip;
mod clocks;
mod digest;
mod exact;
mod memory;
mod order;
mod places;
mod shadow;
mod streams;

#[cfg(test)]
mod every_kind;
#[cfg(test)]
mod histories;
#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use ir::program::Engine;
use ir::program::rules::Port;

use self::clocks::{Clocks, Proof};
use self::digest::Digest;
use self::exact::ExactClocks;
use self::memory::Reads;
use crate::finding::{Finding, FindingKind, Findings};
use crate::machine::Machine;

pub(crate) use self::calls::check_calls;
pub(crate) use self::order::deadlock;

/// Everything that is wrong with a program. Later checks need what earlier ones establish: where
/// operands are illegal or streams never end, nothing is said about streams and order.
pub(crate) fn check(machine: &Machine) -> Findings {
    let given: Vec<bool> = machine.tensors.iter().map(|tensor| tensor.kind.is_given()).collect();
    check_given(machine, &given, &mut BTreeSet::new())
}

/// As [`check`], where the `given` tensors hold data before the program starts. Adds the device buffers
/// of which something is read that nothing has written.
fn check_given(machine: &Machine, given: &[bool], unset: &mut BTreeSet<u32>) -> Findings {
    let (digest, mut findings, of_streams) = Digest::read(machine);
    machine.note_broken_rules(&findings);
    let operands_are_legal = findings.is_empty();
    check_semaphores(machine, &digest, &mut findings);
    if !operands_are_legal {
        return findings;
    }
    findings.extend(of_streams);
    match order::execution_order(machine, &digest) {
        Ok(order) => check_order(machine, &digest, &order, &mut Memory { given, unset }, &mut findings),
        Err(deadlock) => findings.push(deadlock),
    }
    findings
}

/// What a program finds in device memory.
struct Memory<'a> {
    /// By tensor.
    given: &'a [bool],
    unset: &'a mut BTreeSet<u32>,
}

fn check_order(machine: &Machine, digest: &Digest, order: &[u32], memory: &mut Memory<'_>, findings: &mut Findings) {
    match Clocks::new(digest, order.iter().copied(), &[]) {
        Ok(clocks) => check_accesses(machine, digest, &clocks, order, memory, findings),
        Err(_) if ExactClocks::takes_long(digest) => {
            let clocks = Clocks::without_unclear(digest, order);
            check_accesses(machine, digest, &clocks, order, memory, findings);
        }
        Err(_) => check_accesses(machine, digest, &ExactClocks::new(machine, order), order, memory, findings),
    }
}

fn check_accesses(
    machine: &Machine,
    digest: &Digest,
    clocks: &impl Proof,
    order: &[u32],
    memory: &mut Memory<'_>,
    findings: &mut Findings,
) {
    let mut found = Findings::default();
    let in_order = order.iter().map(|&flat| flat as usize);
    memory::check_memory(machine, digest, clocks, in_order, Reads::WithGaps, memory, &mut found);
    if !found.is_empty()
        && let Ok(schedule) = machine.schedule()
    {
        found = Findings::default();
        memory.unset.clear();
        let in_time = schedule.start_order.iter().copied();
        memory::check_memory(machine, digest, clocks, in_time, Reads::Exact, memory, &mut found);
    }
    findings.extend(found);
    check_ports(machine, digest, clocks, order, findings);
    for flat in clocks.unfinished_transfers() {
        findings.push(Finding {
            kind: FindingKind::UnfinishedTransfer,
            message: "no engine waits for this transfer before the program ends".to_owned(),
            sites: vec![machine.site(flat)],
        });
    }
}

/// Semaphores only count up; what they reach must fit.
fn check_semaphores(machine: &Machine, digest: &Digest, findings: &mut Findings) {
    let limit = machine.target.semaphore_max;
    for (semaphore, counted) in digest.semaphores.iter().enumerate() {
        let Some(flat) = counted.overflows_at else { continue };
        findings.push(Finding {
            kind: FindingKind::SemaphoreOverflow,
            message: format!("semaphore {semaphore} counts to {}, beyond {limit}", counted.total),
            sites: vec![machine.site(flat as usize)],
        });
    }
}

/// On the first generation, engines that share a port must take turns.
fn check_ports(machine: &Machine, digest: &Digest, clocks: &impl Proof, order: &[u32], findings: &mut Findings) {
    let mut ports_of = vec![(0, 0); order.len()];
    for (number, &(flat, _)) in digest.ports.iter().enumerate() {
        let range = &mut ports_of[flat as usize];
        *range = if range.1 == 0 { (number, number + 1) } else { (range.0, number + 1) };
    }
    let mut latest: Vec<(Port, Engine, u32)> = Vec::new();
    for &flat in order.iter().filter(|_| !digest.ports.is_empty()) {
        let engine = machine.instructions[flat as usize].engine;
        let (first, end) = ports_of[flat as usize];
        for &(_, port) in &digest.ports[first..end] {
            for &(other_port, other, earlier) in &latest {
                if other_port == port && other != engine && !clocks.ordered(earlier, flat) {
                    findings.push(Finding {
                        kind: FindingKind::SharedPort,
                        message: format!("two engines may use their common port to {port:?} at once"),
                        sites: vec![machine.site(earlier as usize), machine.site(flat as usize)],
                    });
                }
            }
            latest.retain(|&(other_port, other, _)| (other_port, other) != (port, engine));
            latest.push((port, engine, flat));
        }
    }
}
