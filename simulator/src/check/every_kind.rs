//! Every kind of finding comes up, by itself, for some program.

use std::collections::BTreeSet;

use ir::program::rules::Rule;
use ir::program::text::parse;
use ir::target::TargetName;

use crate::finding::{Finding, FindingKind};
use crate::machine::Machine;

const UNSOUND: &str = include_str!("unsound.txt");

/// A number for each kind, without gaps from 0. Rules of single instructions are one kind here: each
/// has an instruction in `ir::program::rules`.
fn number(kind: FindingKind) -> usize {
    match kind {
        FindingKind::Rule(Rule::Table) => 1,
        FindingKind::Rule(Rule::PsumGroup) => 2,
        FindingKind::Rule(
            Rule::Engine
            | Rule::Memory
            | Rule::Partitions
            | Rule::Extent
            | Rule::Shape
            | Rule::Type
            | Rule::Bank
            | Rule::Operator
            | Rule::Queue
            | Rule::Alignment
            | Rule::Semaphore,
        ) => 0,
        FindingKind::ReadAfterWrite => 3,
        FindingKind::WriteAfterRead => 4,
        FindingKind::WriteAfterWrite => 5,
        FindingKind::PartOfTransfer => 6,
        FindingKind::OpenGroup => 7,
        FindingKind::SharedPort => 8,
        FindingKind::Uninitialised => 9,
        FindingKind::UnwrittenOutput => 10,
        FindingKind::UnfinishedTransfer => 11,
        FindingKind::Deadlock => 12,
        FindingKind::SemaphoreOverflow => 13,
        FindingKind::TooFine => 14,
        FindingKind::ActivationRange => 15,
        FindingKind::Calls => CALLS,
    }
}

/// One more than the largest number above.
const N_KINDS: usize = 16;

/// Programs with calls need bindings, and have tests of their own in `super::calls`.
const CALLS: usize = N_KINDS;

fn machine(target: TargetName, lines: &str) -> Machine {
    let sbuf_bytes = target.target().sbuf_usable_bytes;
    let (lines, is_output) = lines.strip_prefix("output\n").map_or((lines, false), |rest| (rest, true));
    let (lines, is_large) = lines.strip_prefix("large\n").map_or((lines, false), |rest| (rest, true));
    let n_columns = if is_large { 16_386 } else { 8 };
    let role = if is_output { "output 0" } else { "scratch" };
    let text = format!(
        "program \"unsound\" target {target} phase synchronized
tensor %h0 \"x\" f32[128, 8] 4096 bytes input 0
tensor %h1 \"y\" f32[128, {n_columns}] {} bytes {role}
tile %t0 \"sbuf\" sbuf f32 128x{sbuf_bytes} align 4 at 0+0
tile %t1 \"psum\" psum f32 128x16384 align 4 at 0+0
{lines}",
        128 * n_columns * 4
    );
    let program = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    Machine::from_program(&program).expect("every tile has an address")
}

/// What checks find and, where they find nothing, what a run does.
fn findings(machine: &Machine) -> Vec<Finding> {
    let mut findings = machine.check().findings;
    if findings.is_empty() {
        let input = [0; 4096];
        findings.extend(machine.run_lenient(&[Some(&input)]).expect("it runs").findings.findings);
    }
    findings
}

#[test]
fn every_kind_of_finding_has_a_program_with_it_alone() {
    let text: String =
        UNSOUND.lines().filter(|line| !line.starts_with("//")).map(|line| line.to_owned() + "\n").collect();
    let mut found = BTreeSet::new();
    for section in text.split("== ").skip(1) {
        let (title, lines) = section.split_once('\n').expect("a title and lines");
        let (code, target) = title.split_once(" on ").unwrap_or((title, "trn2"));
        let machine = machine(target.parse().expect("a chip"), lines.trim_start());
        let findings = findings(&machine);
        assert!(!findings.is_empty(), "{title}: nothing is found\n{lines}");
        for finding in &findings {
            assert_eq!(finding.kind.code(), code, "{finding}\n{lines}");
            found.insert(number(finding.kind));
            let n_sites = match finding.kind {
                FindingKind::Rule(Rule::PsumGroup)
                | FindingKind::ReadAfterWrite
                | FindingKind::WriteAfterRead
                | FindingKind::WriteAfterWrite
                | FindingKind::PartOfTransfer
                | FindingKind::OpenGroup
                | FindingKind::SharedPort
                | FindingKind::Deadlock => 2,
                FindingKind::UnwrittenOutput => 0,
                FindingKind::Rule(_)
                | FindingKind::Uninitialised
                | FindingKind::UnfinishedTransfer
                | FindingKind::SemaphoreOverflow
                | FindingKind::TooFine
                | FindingKind::ActivationRange => 1,
                FindingKind::Calls => unreachable!("none of these programs has a call"),
            };
            assert!(finding.sites.len() == n_sites || finding.message.contains("no matmul has written"), "{finding}");
        }
    }
    assert_eq!(found, (0..N_KINDS).collect(), "kinds without a program in unsound.txt");
}
