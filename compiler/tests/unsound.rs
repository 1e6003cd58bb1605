//! A program that fails its checks gives no number: neither values nor times, on no output.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use compiler::execute::Executable;
use ir::program::Engine;
use neff::container::{Draft, OPEN_ENCODING_BIT, read, write};
use neff::isa::{Addresses, RECORD_BYTES, decode_record, encode_record};
use neff::members::{Definition, read_json};
use serde_json::Value;

fn graph(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/graphs").join(name)
}

fn neffuse(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_neffuse"));
    command.env("NEFFUSE_CACHE_DIR", "").env_remove("XDG_CACHE_HOME").env_remove("HOME");
    command.args(arguments).output().expect("the command starts")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of this repository are text")
}

/// The same NEFF with no waits in the vector engine's stream.
fn without_waits(file: &[u8]) -> Vec<u8> {
    let container = read(file).expect("our own file is sound");
    let definition: Definition = read_json(&container, "sg00/def.json").expect("our own file has one");
    let mut members = container.members.clone();
    let name = format!("sg00/{}", definition.engine_instr(Engine::Dve).expect("every engine has a stream"));
    let mut stream = Vec::new();
    for record in members[&name].as_chunks::<RECORD_BYTES>().0 {
        let mut instruction = decode_record(Engine::Dve, record).expect("our own records decode");
        instruction.waits.clear();
        stream.extend(encode_record(&instruction, Addresses::Decoded).expect("it was encoded before"));
    }
    assert_ne!(members.insert(name, stream.clone()), Some(stream), "there were waits");
    let name = container.header.name_text().into_owned();
    write(&Draft { name, feature_bits: 1 << OPEN_ENCODING_BIT, lnc_size: 1, members }).expect("writable")
}

fn damaged(folder: &Path) -> PathBuf {
    let neff = folder.join("m.neff");
    let output = neffuse(&["compile", text(&graph("mlp.inf.json")), "-o", text(&neff)]);
    assert!(output.status.success());
    let file = without_waits(&std::fs::read(&neff).expect("it was written"));
    std::fs::write(&neff, file).expect("the folder is ours");
    neff
}

#[test]
fn run_writes_no_values() {
    let folder = tempfile::tempdir().expect("there is room");
    let (neff, values) = (damaged(folder.path()), folder.path().join("y.npz"));
    let inputs = graph("mlp.inf.io.npz");
    let output = neffuse(&["run", text(&neff), "--inputs", text(&inputs), "--outputs", text(&values)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty() && !values.exists());
    let said = String::from_utf8(output.stderr).expect("messages are text");
    // Both instructions, and the line of the model that they come from.
    let finding = said.lines().find(|line| line.starts_with("race-read-after-write")).expect("a race");
    assert!(finding.contains("`dma_copy` from ") && finding.contains("; dve["), "{finding}");
}

#[test]
fn profile_tells_no_time() {
    let folder = tempfile::tempdir().expect("there is room");
    let neff = damaged(folder.path());
    let output = neffuse(&["profile", text(&neff)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    assert!(!String::from_utf8_lossy(&output.stderr).contains(" us"));
    let output = neffuse(&["profile", text(&neff), "--report", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let numbers: Vec<&String> = report
        .as_object()
        .expect("an object")
        .iter()
        .filter(|(_, value)| value.is_number())
        .map(|(key, _)| key)
        .collect();
    assert_eq!((report["ok"].as_bool(), numbers), (Some(false), Vec::new()), "{report}");
}

#[test]
fn nothing_is_loaded() {
    let folder = tempfile::tempdir().expect("there is room");
    let file = std::fs::read(damaged(folder.path())).expect("it was written");
    // The compiler's own program is the compiler's fault, and someone's file is bad input.
    let own = Executable::load(&file).err().expect("it fails its checks");
    let given = Executable::load_file(&file).err().expect("it fails its checks");
    assert_eq!((own.code(), given.code()), ("internal", "bad-input"));
    assert!(own.to_string().contains("race-read-after-write"), "{own}");
}
