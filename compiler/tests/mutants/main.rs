//! A thousand damaged files of each kind: every one is accepted or refused with a diagnostic, as `fuzz/src/lib.rs`
//! defines it, and so is every file that fuzzing has found or starts from.
//!
//! Damage comes from a fixed seed. Beside bytes, it changes what the reader would otherwise stop short of: numbers and
//! subtrees of JSON, words of text, and members and instructions inside of a NEFF whose archive is whole.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use mutate::{
    Random, change_stream, mutated_archive, mutated_bytes, mutated_json, mutated_members, mutated_text, mutated_zip,
};
use readers::Answer;

mod mutate;
#[path = "../../../fuzz/src/lib.rs"]
mod readers;
mod seeds;

type Reader = fn(&[u8]) -> Answer;

type Mutator = fn(&[u8], &mut Random) -> Vec<u8>;

/// Mutants of each kind.
const N_MUTANTS: usize = 1000;

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

/// Files of a folder in the order of their names.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn seeds(kind: &str) -> Vec<Vec<u8>> {
    files(&fuzz_folder().join("seeds").join(kind)).into_iter().map(|(_, bytes)| bytes).collect()
}

/// Gives the reader mutants of the seeds, and asks that enough of them are refused for the mutations to mean something.
fn answer_all(kind: &str, reader: Reader, mutators: &[Mutator]) {
    let seeds = seeds(kind);
    assert!(!seeds.is_empty(), "`{kind}` has no seeds");
    for seed in &seeds {
        assert_eq!(reader(seed), Answer::Accepted, "a seed of `{kind}`");
    }
    for (position, mutate) in mutators.iter().enumerate() {
        let mut n_refused = 0;
        for number in 0..N_MUTANTS {
            let mut random = Random((position * N_MUTANTS + number) as u64);
            let mutant = mutate(random.of(&seeds).as_slice(), &mut random);
            match catch_unwind(AssertUnwindSafe(|| reader(&mutant))) {
                Ok(Answer::Accepted) => {}
                Ok(Answer::Refused) => n_refused += 1,
                Err(_) => {
                    let path = std::env::temp_dir().join(format!("neffuse-{kind}-{position}-{number}"));
                    std::fs::write(&path, &mutant).unwrap();
                    panic!("mutant {number} of `{kind}` is not answered: {}", path.display());
                }
            }
        }
        assert!(n_refused > N_MUTANTS / 10, "`{kind}`: only {n_refused} mutants of {N_MUTANTS} are refused");
    }
}

#[test]
fn fxg_documents() {
    answer_all("fxg", readers::fxg, &[mutated_json, mutated_bytes]);
}

#[test]
fn graphs_as_text() {
    answer_all("ir_graph", readers::ir_graph, &[mutated_text, mutated_bytes]);
}

#[test]
fn programs_as_text() {
    answer_all("ir_program", readers::ir_program, &[mutated_text, mutated_bytes]);
}

#[test]
fn exported_programs() {
    answer_all("pt2", readers::pt2, &[mutated_zip, mutated_bytes]);
}

#[test]
fn archives_of_arrays() {
    answer_all("npz", readers::npz, &[mutated_zip, mutated_bytes]);
}

#[test]
fn neffs() {
    answer_all("neff", readers::neff, &[mutated_members, mutated_archive, mutated_bytes]);
}

#[test]
fn instructions() {
    let mutate = |seed: &[u8], random: &mut Random| {
        let mut bytes = seed[1..].to_vec();
        change_stream(&mut bytes, random);
        change_stream(&mut bytes, random);
        bytes.insert(0, seed[0]);
        bytes
    };
    answer_all("instruction", readers::instruction, &[mutate]);
}

#[test]
fn regressions() {
    let kinds: [(&str, Reader); 7] = [
        ("fxg", readers::fxg),
        ("pt2", readers::pt2),
        ("ir_graph", readers::ir_graph),
        ("ir_program", readers::ir_program),
        ("npz", readers::npz),
        ("neff", readers::neff),
        ("instruction", readers::instruction),
    ];
    for (kind, reader) in kinds {
        let folder = fuzz_folder().join("regressions").join(kind);
        if !folder.exists() {
            continue;
        }
        for (path, bytes) in files(&folder) {
            let answer = catch_unwind(AssertUnwindSafe(|| reader(&bytes)));
            assert!(answer.is_ok(), "{} is not answered", path.display());
        }
    }
}
