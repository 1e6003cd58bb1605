//! Rules that span a stream: loaded tables, PSUM groups, row sums.

use ir::program::rules::{LoadedTables, PsumGroups};
use ir::program::{Engine, Instruction, InstructionKind, ReduceCommand};

use crate::finding::{Finding, FindingKind, Findings};
use crate::machine::Machine;

/// All streams so far, one after the other.
pub(super) struct Streams<'a> {
    machine: &'a Machine,
    tables: LoadedTables,
    groups: PsumGroups<'a>,
    /// Lanes whose row sum has been reset.
    is_reset: [bool; 256],
    pub findings: Findings,
}

impl<'a> Streams<'a> {
    pub fn new(machine: &'a Machine) -> Streams<'a> {
        Streams {
            machine,
            tables: LoadedTables::default(),
            groups: PsumGroups::new(machine.target, &machine.tiles),
            is_reset: [false; 256],
            findings: Findings::default(),
        }
    }

    /// Takes an engine's next instruction, whose operands are legal.
    #[inline]
    pub fn add(&mut self, flat: usize, instruction: &'a Instruction) {
        match instruction.engine {
            Engine::Pe => self.add_matmul(flat, instruction),
            Engine::Act => self.add_activation(flat, instruction),
            Engine::Dve | Engine::Pool | Engine::Sp => {}
        }
    }

    fn add_matmul(&mut self, flat: usize, instruction: &'a Instruction) {
        let Some(found) = self.groups.add(flat, instruction) else { return };
        let sites = found.earlier.into_iter().chain([flat]).map(|flat| self.machine.site(flat)).collect();
        let kind = FindingKind::Rule(found.violation.rule);
        self.findings.push(Finding { kind, message: found.violation.message, sites });
    }

    fn add_activation(&mut self, flat: usize, instruction: &Instruction) {
        if let Some(violation) = self.tables.add(instruction) {
            self.findings.push(self.machine.rule_finding(flat, violation));
        }
        let InstructionKind::Activation { dst, reduce: Some(command), .. } = &instruction.kind else { return };
        let first = usize::from(dst.partition);
        let lanes = first..(first + usize::from(dst.n_partitions)).min(self.is_reset.len());
        match command {
            ReduceCommand::ResetReduce => self.is_reset[lanes].fill(true),
            ReduceCommand::Reduce => {
                if let Some(lane) = lanes.into_iter().find(|&lane| !self.is_reset[lane]) {
                    self.findings.push(Finding {
                        kind: FindingKind::Uninitialised,
                        message: format!("continues the row sum of lane {lane}, which nothing has reset"),
                        sites: vec![self.machine.site(flat)],
                    });
                }
            }
        }
    }
}
