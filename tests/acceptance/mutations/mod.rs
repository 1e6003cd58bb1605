//! Damaged programs are reported: every program of the test suite, damaged in one place at a time.
//!
//! Damage to the order of a program must be found by its checks alone. Damage to places may leave an
//! ordered program that computes something else, which its values show; what neither shows must
//! leave every output as it was, or within the tolerance that the undamaged program has to keep.
//!
//! Big programs are damaged in places spread evenly; `make mutations` takes all of them.

mod mutants;
mod subject;

use ir::Program;
use ir::program::Module;
use ir::program::rules::Rule;
use ir::target::TargetName;
use passes::allocate::check_allocation;
use passes::synchronize::check_synchronization;
use simulator::FindingKind;

use self::mutants::{Mutant, Places};
use self::subject::{Fate, large_subjects, subjects};

/// Mutants of one kind and one program; fewer where values decide.
const MOST_ORDERS: usize = 60;
const MOST_PLACES: usize = 30;

/// Mutants of one kind of a program that takes seconds to run.
const MOST_OF_LARGE: usize = 100;

/// The passes' own proofs, which share no code with the simulator.
fn is_reported_by_passes(program: &Program) -> bool {
    !check_synchronization(program).is_empty() || !check_allocation(program).is_empty()
}

#[test]
fn sound_programs_are_not_reported() {
    for target in TargetName::ALL {
        for subject in subjects(target) {
            let machine = subject.machine(&subject.program).expect("every tile has an address");
            let findings = machine.check();
            assert!(findings.is_empty(), "{} on {target}: {findings}", subject.name);
            assert!(!is_reported_by_passes(&subject.program), "{} on {target}", subject.name);
        }
    }
}

/// Mutants by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    reported: usize,
    wrong: usize,
    identical: usize,
    within_tolerance: usize,
}

impl Count {
    fn note(&mut self, fate: &Fate) {
        *match fate {
            Fate::Reported(_) => &mut self.reported,
            Fate::WrongValues => &mut self.wrong,
            Fate::Harmless { identical: true } => &mut self.identical,
            Fate::Harmless { identical: false } => &mut self.within_tolerance,
        } += 1;
    }

    fn total(&self) -> usize {
        self.reported + self.wrong + self.identical + self.within_tolerance
    }
}

/// Damages every program and collects what `is_caught` does not accept.
fn damage(
    kind: &str,
    targets: &[TargetName],
    most: usize,
    places: fn(&Program) -> Places<'_>,
    is_caught: fn(&Mutant, &Fate) -> bool,
) -> Count {
    let mut count = Count::default();
    let mut missed = Vec::new();
    for &target in targets {
        let is_everywhere = most == usize::MAX;
        let large = large_subjects(target).take(usize::from(is_everywhere)).map(|subject| (subject, MOST_OF_LARGE));
        for (subject, most) in subjects(target).map(|subject| (subject, most)).chain(large) {
            for mutant in places(&subject.program).sample(most) {
                let fate = subject.fate(&mutant.program);
                count.note(&fate);
                if !is_caught(&mutant, &fate) {
                    missed.push(format!("{} on {target}: {}: {fate:?}", subject.name, mutant.what));
                }
            }
        }
    }
    println!("{kind}: {count:?}");
    assert!(missed.is_empty(), "{kind}: {} of {}\n{}", missed.len(), count.total(), missed.join("\n"));
    count
}

fn by_both_checks(mutant: &Mutant, fate: &Fate) -> bool {
    let is_reported = is_reported_by_passes(&mutant.program);
    match fate {
        Fate::Reported(_) => is_reported,
        // Where only the sum of both transfers is waited for, both proofs hold without turns.
        Fate::Harmless { identical: true } => mutant.is_turn && !is_reported,
        Fate::Harmless { identical: false } | Fate::WrongValues => false,
    }
}

fn by_check_or_values(_: &Mutant, fate: &Fate) -> bool {
    matches!(fate, Fate::Reported(_) | Fate::WrongValues)
}

/// A tile that another one clobbers between two instructions of one engine is an ordered program
/// with other values, which only who knows the tiles can tell where these values hardly matter.
fn by_any_check_or_values(mutant: &Mutant, fate: &Fate) -> bool {
    by_check_or_values(mutant, fate) || is_reported_by_passes(&mutant.program)
}

/// Two groups in one place are one to the hardware: what is wrong then is their order, or where that is
/// given by chance what they compute.
fn as_interleaved(mutant: &Mutant, fate: &Fate) -> bool {
    match fate {
        Fate::Reported(kinds) => mutant.overlaps || kinds.contains(&FindingKind::Rule(Rule::PsumGroup)),
        Fate::WrongValues => mutant.overlaps,
        Fate::Harmless { .. } => false,
    }
}

fn whatever(_: &Mutant, _: &Fate) -> bool {
    true
}

fn dropped_waits(targets: &[TargetName], most: usize) {
    let count = damage("dropped waits", targets, most, mutants::dropped_waits, by_both_checks);
    assert!(count.total() > 300, "{count:?}");
}

fn shortened_waits(targets: &[TargetName], most: usize) {
    let count = damage("shortened waits for transfers", targets, most, mutants::shortened_waits, by_both_checks);
    assert!(count.total() > 300, "{count:?}");
}

fn interleaved_groups(targets: &[TargetName], most: usize) {
    let count = damage("interleaved PSUM groups", targets, most, mutants::interleaved_groups, as_interleaved);
    assert!(count.total() > 30, "{count:?}");
}

fn moved_tiles(targets: &[TargetName], most: usize) {
    let count = damage("tiles moved onto live ones", targets, most, mutants::moved_tiles, by_any_check_or_values);
    assert!(count.total() > 300, "{count:?}");
}

fn swapped_stores(targets: &[TargetName], most: usize) {
    let count = damage("swapped stores", targets, most, mutants::swapped_stores, by_check_or_values);
    assert!(count.total() > 20, "{count:?}");
}

/// What nothing shows are tiles of equal content, as filled ones, and corrections of a quotient's last
/// bits: one in ten at most.
fn swapped_tiles(targets: &[TargetName], most: usize) {
    let count = damage("swapped tiles", targets, most, mutants::swapped_tiles, whatever);
    assert!(count.total() > 300, "{count:?}");
    assert!((count.identical + count.within_tolerance) * 10 < count.total(), "{count:?}");
}

/// What neither checks nor values show is proved harmless by its kind of fate; that must be rare.
fn shifted_operands(targets: &[TargetName], most: usize) {
    let count = damage("shifted operands", targets, most, mutants::shifted_operands, whatever);
    assert!(count.total() > 300, "{count:?}");
    assert!((count.identical + count.within_tolerance) * 20 < count.total(), "{count:?}");
}

#[test]
fn every_dropped_wait_is_reported() {
    dropped_waits(&[TargetName::Trn2], MOST_ORDERS);
}

#[test]
fn every_wait_shorter_than_its_transfers_is_reported() {
    shortened_waits(&[TargetName::Trn2], MOST_ORDERS);
}

#[test]
fn every_interleaved_group_is_reported() {
    interleaved_groups(&[TargetName::Trn2], MOST_ORDERS);
}

#[test]
fn every_tile_moved_onto_a_live_one_is_reported() {
    moved_tiles(&[TargetName::Trn2], MOST_PLACES);
}

#[test]
fn swapped_stores_are_reported() {
    swapped_stores(&[TargetName::Trn2], MOST_PLACES);
}

#[test]
fn swapped_tiles_are_reported() {
    swapped_tiles(&[TargetName::Trn2], MOST_PLACES);
}

#[test]
fn shifts_that_nothing_reports_change_no_result() {
    shifted_operands(&[TargetName::Trn2], MOST_PLACES);
}

/// Tensors of one type and size that a call takes for one another.
#[test]
fn swapped_bindings_of_calls_are_reported() {
    let subject = subjects(TargetName::Trn2).find(|subject| subject.module.is_some()).expect("one is outlined");
    let module = subject.module.as_ref().expect("it is outlined");
    let (mut count, mut missed) = (Count::default(), Vec::new());
    for call in 0..module.calls.len() {
        for (first, second) in alike(module, call) {
            let mut damaged = module.clone();
            damaged.calls[call].bindings.swap(first, second);
            let fate = subject.fate_of_module(&damaged);
            count.note(&fate);
            if !matches!(fate, Fate::Reported(_) | Fate::WrongValues) {
                missed.push(format!("call {call}: {first} and {second}: {fate:?}"));
            }
        }
    }
    println!("swapped bindings: {count:?}");
    assert!(missed.is_empty(), "{} of {}\n{}", missed.len(), count.total(), missed.join("\n"));
    assert!(count.total() > 20, "{count:?}");
}

/// Pairs of bindings of a call that could be one another by type and size.
fn alike(module: &Module, call: usize) -> Vec<(usize, usize)> {
    let bindings = &module.calls[call].bindings;
    let tensor = |position: usize| {
        let tensor = &module.tensors[bindings[position].index()];
        (tensor.dtype, tensor.size_bytes)
    };
    let pairs = (0..bindings.len()).flat_map(|first| (first + 1..bindings.len()).map(move |second| (first, second)));
    pairs.filter(|&(first, second)| tensor(first) == tensor(second) && bindings[first] != bindings[second]).collect()
}

/// Every place of every program; `make mutations` runs these.
mod everywhere {
    use super::TargetName;

    #[test]
    #[ignore = "takes minutes"]
    fn dropped_waits() {
        super::dropped_waits(&TargetName::ALL, usize::MAX);
    }

    #[test]
    #[ignore = "takes minutes"]
    fn shortened_waits() {
        super::shortened_waits(&TargetName::ALL, usize::MAX);
    }

    #[test]
    #[ignore = "takes minutes"]
    fn interleaved_groups() {
        super::interleaved_groups(&TargetName::ALL, usize::MAX);
    }

    #[test]
    #[ignore = "takes minutes"]
    fn moved_tiles() {
        super::moved_tiles(&[TargetName::Trn2], usize::MAX);
    }

    #[test]
    #[ignore = "takes minutes"]
    fn swapped_stores() {
        super::swapped_stores(&[TargetName::Trn2], usize::MAX);
    }

    #[test]
    #[ignore = "takes minutes"]
    fn swapped_tiles() {
        super::swapped_tiles(&[TargetName::Trn2], usize::MAX);
    }

    #[test]
    #[ignore = "takes half an hour"]
    fn shifted_operands() {
        super::shifted_operands(&[TargetName::Trn2], usize::MAX);
    }
}
