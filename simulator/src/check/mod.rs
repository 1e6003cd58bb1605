//! Checks of a whole program: operand and stream rules, order of all conflicting accesses,
//! initialisation, semaphores.

mod clocks;
mod memory;
mod shadow;

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;

use ir::program::rules::{self, Port};
use ir::program::{Engine, InstructionKind, ReduceCommand};

use self::clocks::Clocks;
use crate::finding::{Finding, FindingKind, Findings};
use crate::machine::Machine;
use crate::timeline::Schedule;

/// Everything that is wrong with a program. Later checks need what earlier ones establish: where
/// operands are illegal or streams never end, nothing is said about streams and order.
pub(crate) fn check(machine: &Machine) -> Findings {
    let mut findings = machine.rule_findings().clone();
    let operands_are_legal = findings.is_empty();
    check_semaphores(machine, &mut findings);
    if operands_are_legal {
        check_streams(machine, &mut findings);
        match machine.schedule() {
            Ok(schedule) => check_order(machine, schedule, &mut findings),
            Err(deadlock) => findings.push(deadlock.clone()),
        }
    }
    findings
}

fn check_order(machine: &Machine, schedule: &Schedule, findings: &mut Findings) {
    let clocks = Clocks::new(machine, schedule);
    memory::check_memory(machine, schedule, &clocks, findings);
    check_ports(machine, schedule, &clocks, findings);
    for flat in clocks.unfinished_transfers() {
        findings.push(Finding {
            kind: FindingKind::UnfinishedTransfer,
            message: "no engine waits for this transfer before the program ends".to_owned(),
            sites: vec![machine.site(flat)],
        });
    }
}

/// Rules that span a stream: loaded tables, accumulation.
fn check_streams(machine: &Machine, findings: &mut Findings) {
    let first = machine.stream_range(Engine::Act).start;
    for (position, violation) in rules::check_activation_tables(machine.stream(Engine::Act)) {
        findings.push(machine.rule_finding(first + position, violation));
    }
    let first = machine.stream_range(Engine::Pe).start;
    for found in rules::check_psum_groups(machine.target, machine.stream(Engine::Pe), &machine.tiles) {
        let positions = found.earlier.into_iter().chain([found.position]);
        let sites = positions.map(|position| machine.site(first + position)).collect();
        let kind = FindingKind::Rule(found.violation.rule);
        findings.push(Finding { kind, message: found.violation.message, sites });
    }
    check_accumulators(machine, findings);
}

/// Row sums that continue what nothing has reset.
fn check_accumulators(machine: &Machine, findings: &mut Findings) {
    let mut is_reset = [false; 256];
    for flat in machine.stream_range(Engine::Act) {
        let InstructionKind::Activation { dst, reduce: Some(command), .. } = &machine.instructions[flat].kind else {
            continue;
        };
        let first = usize::from(dst.partition);
        let lanes = first..(first + usize::from(dst.n_partitions)).min(is_reset.len());
        match command {
            ReduceCommand::ResetReduce => is_reset[lanes].fill(true),
            ReduceCommand::Reduce => {
                if let Some(lane) = lanes.into_iter().find(|&lane| !is_reset[lane]) {
                    findings.push(Finding {
                        kind: FindingKind::Uninitialised,
                        message: format!("continues the row sum of lane {lane}, which nothing has reset"),
                        sites: vec![machine.site(flat)],
                    });
                }
            }
        }
    }
}

/// Semaphores only count up; what they reach must fit.
fn check_semaphores(machine: &Machine, findings: &mut Findings) {
    let mut totals = std::collections::BTreeMap::<u16, (u64, usize)>::new();
    for (flat, instruction) in machine.instructions.iter().enumerate() {
        let Some(update) = instruction.update else { continue };
        let (total, last) = totals.entry(update.semaphore).or_default();
        *total += u64::from(update.add);
        *last = flat;
    }
    let limit = u64::from(machine.target.semaphore_max);
    for (semaphore, (total, last)) in totals {
        if total > limit {
            findings.push(Finding {
                kind: FindingKind::SemaphoreOverflow,
                message: format!("semaphore {semaphore} counts to {total}, beyond {limit}"),
                sites: vec![machine.site(last)],
            });
        }
    }
}

/// On the first generation, engines that share a port must take turns.
fn check_ports(machine: &Machine, schedule: &Schedule, clocks: &Clocks<'_>, findings: &mut Findings) {
    let mut latest: Vec<(Port, Engine, usize)> = Vec::new();
    for &flat in &schedule.start_order {
        let instruction = &machine.instructions[flat];
        for port in rules::exclusive_ports(machine.target, instruction, &machine.tiles) {
            for &(other_port, engine, earlier) in &latest {
                if other_port == port && engine != instruction.engine && !clocks.ordered(earlier, flat) {
                    findings.push(Finding {
                        kind: FindingKind::SharedPort,
                        message: format!("two engines may use their common port to {port:?} at once"),
                        sites: vec![machine.site(earlier), machine.site(flat)],
                    });
                }
            }
            latest.retain(|&(other_port, engine, _)| (other_port, engine) != (port, instruction.engine));
            latest.push((port, instruction.engine, flat));
        }
    }
}
