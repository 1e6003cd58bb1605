//! Checks of a whole program.

use crate::finding::Findings;
use crate::machine::Machine;

pub(crate) fn check(machine: &Machine) -> Findings {
    machine.rule_findings()
}
