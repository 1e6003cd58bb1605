//! Archives of torch.export: values of small ones against PyTorch's, and damaged ones, which are
//! refused with file and place and never end the process.

use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use compiler::import::pt2::{ArchiveFile, StoredTensors, parse};
use compiler::import::{ImportError, read_graph};
use compiler::npz::Archive;
use ir::Graph;
use ir::graph::InputRole;
use ir::reference::{Rounding, Value, evaluate};
use proptest::prelude::*;
use serde_json::json;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

const MODEL: &str = "models/model.json";
const WEIGHTS: &str = "data/weights/model_weights_config.json";

fn sample(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/graphs/import/pt2").join(name)
}

/// Values of all inputs: the archive's own for static ones, the recorded ones in order for the others.
fn inputs(graph: &Graph, path: &Path, recorded: &mut Archive<'_>) -> Vec<Value> {
    let mut n_given = 0;
    let mut inputs = Vec::new();
    for input in &graph.inputs {
        let ty = graph.ty(input.value);
        let elements = if input.role == InputRole::Static {
            let elements = |tensors: &StoredTensors<'_>| {
                assert_eq!(tensors.ty(&input.name), Some(ty));
                Ok(tensors.elements(&input.name).unwrap().into_owned())
            };
            ArchiveFile::open(path).unwrap().with_tensors(elements).unwrap()
        } else {
            n_given += 1;
            recorded.tensor(&format!("in_{}", n_given - 1), ty).unwrap()
        };
        inputs.push(Value::from_bytes(ty, &elements).unwrap());
    }
    inputs
}

/// Imports a sample and compares what it evaluates to with what PyTorch gave, exactly.
fn check(name: &str) -> Graph {
    let path = sample(&format!("{name}.pt2"));
    let graph = read_graph(&path).unwrap();
    let recorded = std::fs::read(sample(&format!("{name}.io.npz"))).unwrap();
    let mut recorded = Archive::open(&recorded).unwrap();
    let inputs = inputs(&graph, &path, &mut recorded);
    let outputs = evaluate(&graph, &inputs, Rounding::PerOp).unwrap();
    for (position, (output, value)) in graph.outputs.iter().zip(outputs).enumerate() {
        let Some(id) = output.value else {
            assert!(!recorded.contains(&format!("out_{position}")));
            continue;
        };
        let expected = recorded.tensor(&format!("out_{position}"), graph.ty(id)).unwrap();
        let found = value.unwrap().to_bytes(graph.ty(id).dtype).unwrap();
        assert_eq!(found, expected, "output {position} of {name}");
    }
    graph
}

#[test]
fn tied_strided_and_constant_tensors_have_pytorchs_values() {
    let graph = check("stored");
    let inputs: Vec<(&str, InputRole)> = graph.inputs.iter().map(|input| (input.name.as_str(), input.role)).collect();
    // Both constants are small: they are no inputs, nor are the number and the missing argument.
    assert_eq!(
        inputs,
        [
            ("turned", InputRole::Static),
            ("rows", InputRole::Static),
            ("embedding.weight", InputRole::Static),
            ("head.weight", InputRole::Static),
            ("repeated", InputRole::Static),
            ("hidden", InputRole::Static),
            ("ids", InputRole::Dynamic),
        ]
    );
    assert_eq!(graph.inputs[0].strides.as_deref(), Some(&[1, 6][..]));
    let absent: Vec<usize> = (0..graph.outputs.len()).filter(|&at| graph.outputs[at].value.is_none()).collect();
    assert_eq!(absent, [1, 6]);
}

#[test]
fn writes_through_views_have_pytorchs_values() {
    let graph = check("updated");
    let descriptions: Vec<&str> = graph.outputs.iter().map(|output| output.description.as_str()).collect();
    assert_eq!(
        descriptions[..4],
        [
            "InputMutationAOTOutput(mutated_input=cache)",
            "InputMutationAOTOutput(mutated_input=count)",
            "InputMutationAOTOutput(mutated_input=y)",
            "PlainAOTOutput(idx=0)",
        ]
    );
    let updated = |position: usize| graph.outputs[position].alias.map(|at| graph.inputs[at as usize].name.as_str());
    assert_eq!([updated(0), updated(1), updated(2), updated(3)], [Some("cache"), Some("count"), Some("y"), None]);
    let lines: Vec<&str> = graph.locations.iter().map(|location| location.line.as_str()).collect();
    assert!(lines.iter().all(|line| line.starts_with("export_samples.py:")), "{lines:?}");
    assert!(graph.locations.iter().any(|location| location.target == "aten.add_.Tensor"));
}

/// All members of an archive by name without the folder.
fn members(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut zip = ZipArchive::new(Cursor::new(bytes)).unwrap();
    let mut members = Vec::new();
    for position in 0..zip.len() {
        let mut file = zip.by_index(position).unwrap();
        let mut data = Vec::new();
        file.read_to_end(&mut data).unwrap();
        let name = std::str::from_utf8(file.name_raw()).unwrap().split_once('/').unwrap().1.to_owned();
        members.push((name, data));
    }
    members
}

fn packed(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, data) in members {
        zip.start_file(format!("sample/{name}"), options).unwrap();
        zip.write_all(data).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(sample(name)).unwrap()
}

/// A sample with one member changed.
fn edited(name: &str, member: &str, edit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut members = members(&bytes(name));
    edit(&mut members.iter_mut().find(|(name, _)| name == member).unwrap().1);
    packed(&members)
}

/// A sample with one JSON member changed.
fn edited_json(name: &str, member: &str, edit: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
    edited(name, member, |data| {
        let mut value = serde_json::from_slice(data).unwrap();
        edit(&mut value);
        *data = serde_json::to_vec(&value).unwrap();
    })
}

fn reason(bytes: &[u8]) -> String {
    match parse("sample", bytes) {
        Err(ImportError::Malformed(reason)) => reason,
        Err(ImportError::Unsupported(nodes)) => nodes[0].reason.clone(),
        Ok(_) => panic!("the archive is accepted"),
    }
}

fn assert_reason(bytes: &[u8], parts: &[&str]) {
    let reason = reason(bytes);
    assert!(parts.iter().all(|part| reason.contains(part)), "{reason}");
}

#[test]
fn repacked_archives_are_read() {
    let repacked = packed(&members(&bytes("stored.pt2")));
    assert_eq!(parse("stored", &repacked).unwrap(), read_graph(&sample("stored.pt2")).unwrap());
}

#[test]
fn other_versions_and_forms_are_named() {
    let model = |edit: fn(&mut serde_json::Value)| edited_json("stored.pt2", MODEL, edit);
    assert_reason(&model(|model| model["schema_version"]["major"] = json!(9)), &["schema 9.", "8.x is", "2.15"]);
    assert_reason(&model(|model| model["schema_version"] = json!("8")), &["no exported program"]);
    assert_reason(&edited("stored.pt2", "byteorder", |data| *data = b"big".to_vec()), &["`byteorder` is `big`"]);
    assert_reason(
        &edited("stored.pt2", "archive_version", |data| *data = b"7".to_vec()),
        &["`archive_version` is `7`"],
    );
    assert_reason(&edited("stored.pt2", MODEL, |data| data[40] = 0xff), &["`models/model.json` is no text"]);
    assert_reason(b"", &["no .pt2 archive"]);
    assert_reason(&packed(&[("serialized_exported_program.json".to_owned(), vec![])]), &["before 2.8"]);
    assert_reason(&packed(&[("data.pkl".to_owned(), vec![])]), &["there is no member `models/model.json`"]);
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let deflated = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    zip.start_file("sample/models/model.json", deflated).unwrap();
    zip.write_all(&[b' '; 4096]).unwrap();
    assert_reason(&zip.finish().unwrap().into_inner(), &["compressed"]);
}

#[test]
fn tensors_that_cannot_be_are_named() {
    let table = |edit: fn(&mut serde_json::Value)| edited_json("stored.pt2", WEIGHTS, edit);
    let meta = |table: &mut serde_json::Value, key: &str, value: serde_json::Value| {
        table["config"]["turned"]["tensor_meta"][key] = value;
    };
    let size = |number: i64| json!([{"as_int": number}, {"as_int": 4}]);
    let claims = edited_json("stored.pt2", WEIGHTS, |table| meta(table, "sizes", size(1 << 33)));
    assert_reason(&claims, &["tensor `turned`", "leaves the 96 bytes of `data/weights/weight_"]);
    let claims = edited_json("stored.pt2", WEIGHTS, |table| {
        meta(table, "sizes", size(1 << 33));
        meta(table, "strides", json!([{"as_int": 0}, {"as_int": 0}]));
    });
    assert_reason(&claims, &["its tensors claim", "far more than the file's"]);
    let negative = edited_json("stored.pt2", WEIGHTS, |table| meta(table, "strides", size(-1)));
    assert_reason(&negative, &["tensor `turned`", "the size -1"]);
    let offset = edited_json("stored.pt2", WEIGHTS, |table| meta(table, "storage_offset", json!({"as_int": i64::MAX})));
    assert_reason(&offset, &["tensor `turned`", "from 9223372036854775807"]);
    let outside = table(|table| table["config"]["turned"]["path_name"] = json!("../../../etc/passwd"));
    assert_reason(&outside, &["there is no member `data/weights/../../../etc/passwd`"]);
    assert_reason(&table(|table| table["config"] = json!([])), &["is no table of tensors"]);
}

#[test]
fn graphs_that_contradict_themselves_are_named() {
    let model = |edit: &dyn Fn(&mut serde_json::Value)| {
        edited_json("updated.pt2", MODEL, |model| edit(&mut model["graph_module"]))
    };
    let operand = |graph: &mut serde_json::Value, name: &str| {
        graph["graph"]["nodes"][0]["inputs"][0]["arg"] = json!({"as_tensor": {"name": name}});
    };
    // A node that reads its own result, or a later one's.
    let own = model(&|graph| operand(graph, graph["graph"]["nodes"][0]["name"].clone().as_str().unwrap()));
    assert_reason(&own, &["node `", "is not defined before"]);
    assert_reason(&model(&|graph| operand(graph, "nobody")), &["argument `self`: `nobody` is not defined before"]);
    let twice = model(&|graph| {
        let node = graph["graph"]["nodes"][0].clone();
        graph["graph"]["nodes"].as_array_mut().unwrap().push(node);
    });
    assert_reason(&twice, &["is defined twice"]);
    let huge = model(&|graph| graph["graph"]["tensor_values"]["x"]["sizes"][0] = json!({"as_int": 1_i64 << 42}));
    assert_reason(&huge, &["`x`", "elements"]);
    let unstored = model(&|graph| graph["signature"]["input_specs"][0]["buffer"]["buffer_name"] = json!("other"));
    assert_reason(&unstored, &["tensor `other` is not stored in the archive"]);
    let another = model(&|graph| graph["graph"]["tensor_values"]["b_count"]["dtype"] = json!(7));
    assert_reason(&another, &["tensor `count` is stored as i32[] but is float32[] in the graph"]);
    let short = model(&|graph| graph["signature"]["input_specs"] = json!([]));
    assert_reason(&short, &["4 inputs but 0 descriptions"]);
    let expanded = model(&|graph| graph["graph"]["nodes"][0]["target"] = json!("torch.ops.aten.squeeze_.default"));
    assert_reason(&expanded, &["changing the shape of a tensor in place"]);
    let deep = edited("updated.pt2", MODEL, |data| {
        *data = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    });
    assert_reason(&deep, &["no exported program"]);
}

#[test]
fn writes_that_multiply_are_bounded() {
    // Views of views, each written to: every write goes through all of them.
    let bytes = edited_json("updated.pt2", MODEL, |model| {
        let graph = &mut model["graph_module"]["graph"];
        let meta = graph["tensor_values"]["y"].clone();
        let mut nodes = Vec::new();
        let mut node = |target: &str, operand: String, name: String, argument: serde_json::Value| {
            nodes.push(json!({
                "target": target, "name": name, "metadata": {}, "outputs": [{"as_tensor": {"name": name}}],
                "inputs": [{"name": "self", "arg": {"as_tensor": {"name": operand}}}, argument],
            }));
        };
        for level in 0..2000 {
            let operand = if level == 0 { "y".to_owned() } else { format!("v{}", level - 1) };
            let size = json!({"name": "size", "arg": {"as_ints": [6, 2]}});
            node("torch.ops.aten.view.default", operand, format!("v{level}"), size);
            let other = json!({"name": "other", "arg": {"as_int": 1}});
            node("torch.ops.aten.add_.Tensor", format!("v{level}"), format!("w{level}"), other);
            graph["tensor_values"][format!("v{level}")] = meta.clone();
            graph["tensor_values"][format!("w{level}")] = meta.clone();
        }
        graph["nodes"] = json!(nodes);
        graph["outputs"] = json!([]);
        model["graph_module"]["signature"]["output_specs"] = json!([]);
    });
    assert_reason(&bytes, &["come apart into more than 68096 nodes"]);
}

#[test]
fn every_truncation_is_refused() {
    let whole = bytes("updated.pt2");
    for length in (0..whole.len()).step_by(37) {
        assert!(parse("updated", &whole[..length]).is_err(), "{length}");
    }
}

#[test]
fn every_flipped_bit_changes_nothing_or_is_refused() {
    let whole = bytes("stored.pt2");
    let graph = parse("stored", &whole).unwrap();
    for position in (0..whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[position] ^= 1 << (position % 8);
        if let Ok(parsed) = parse("stored", &damaged) {
            assert_eq!(parsed, graph, "{position}");
        }
    }
}

#[test]
fn damaged_weights_are_refused_where_they_are_taken() {
    let mut damaged = bytes("stored.pt2");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.pt2");
    let name = b"stored/data/weights/weight_0";
    let header = damaged.windows(name.len()).position(|window| window == name).unwrap();
    damaged[header + name.len()] ^= 1;
    std::fs::write(&path, damaged).unwrap();
    let elements = |name: &'static str| {
        let taken = |tensors: &StoredTensors<'_>| Ok(tensors.elements(name).map(|_| ()));
        ArchiveFile::open(&path).unwrap().with_tensors(taken).unwrap()
    };
    let error = elements("turned").unwrap_err();
    assert!(error.contains("damaged.pt2: member `data/weights/weight_0` is damaged"), "{error}");
    elements("hidden").unwrap();
}

/// Every place in a document, as a JSON pointer.
fn pointers(value: &serde_json::Value, prefix: &str, found: &mut Vec<String>) {
    found.push(prefix.to_owned());
    match value {
        serde_json::Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| pointers(item, &format!("{prefix}/{at}"), found));
        }
        serde_json::Value::Object(entries) => {
            entries.iter().for_each(|(key, item)| pointers(item, &format!("{prefix}/{key}"), found));
        }
        _ => {}
    }
}

fn replacement() -> impl Strategy<Value = serde_json::Value> {
    let targets = prop::sample::select(vec![
        "torch.ops.aten.add_.Tensor",
        "torch.ops.aten.permute.default",
        "torch.ops.aten.expand.default",
        "torch.ops.aten.split.Tensor",
        "torch.ops.aten.unbind.int",
        "torch.ops.aten.reshape.default",
        "torch.ops.aten.slice.Tensor",
        "torch.ops.aten.copy_.default",
        "torch.ops.higher_order.wrap_with_set_grad_enabled",
        "_operator.mul",
    ]);
    let names = prop::sample::select(vec!["y", "x", "b_cache", "b_count", "add", "view", "nobody"]);
    prop_oneof![
        3 => targets.prop_map(|target| json!(target)),
        3 => names.clone().prop_map(|name| json!({"as_tensor": {"name": name}})),
        2 => names.prop_map(|name| json!(name)),
        3 => prop::sample::select(vec![0, 1, -1, 2, 7, 1000, i64::MAX, i64::MIN]).prop_map(|int| json!(int)),
        2 => (-3_i64..9).prop_map(|int| json!({"as_int": int})),
        1 => Just(json!({"as_ints": [1, 0]})),
        1 => Just(json!({"as_expr": {"expr_str": "s0"}})),
        1 => Just(json!({"as_none": true})),
        1 => Just(json!([])),
        1 => Just(json!(null)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_archives_never_panic(
        name in prop::sample::select(vec!["stored.pt2", "updated.pt2"]),
        member in prop::sample::select(vec![MODEL, MODEL, MODEL, WEIGHTS]),
        edits in prop::collection::vec((any::<prop::sample::Index>(), replacement()), 1..5),
    ) {
        let archive = edited_json(name, member, |document| {
            for (place, replacement) in edits {
                let mut places = Vec::new();
                pointers(document, "", &mut places);
                if let Some(value) = document.pointer_mut(&places[place.index(places.len())]) {
                    *value = replacement;
                }
            }
        });
        let _ = parse("mutated", &archive);
    }

    #[test]
    fn mutated_bytes_never_panic(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut archive = bytes("updated.pt2");
        for (place, byte) in edits {
            let position = place.index(archive.len());
            archive[position] = byte;
        }
        let _ = parse("mutated", &archive);
    }
}

fn neffuse(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_neffuse"));
    command.env("NEFFUSE_CACHE_DIR", "").env_remove("XDG_CACHE_HOME").env_remove("HOME");
    command.args(arguments).output().expect("the command starts")
}

#[test]
fn the_command_takes_archives_and_names_damaged_ones() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["stored.pt2", "updated.pt2"] {
        let output = neffuse(&["check", sample(name).to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let damaged = folder.path().join("damaged.pt2");
    std::fs::write(&damaged, &bytes("stored.pt2")[..9000]).unwrap();
    let neff = folder.path().join("damaged.neff");
    for command in ["compile", "check", "explain", "profile"] {
        let mut arguments = vec![command, damaged.to_str().unwrap()];
        if command == "compile" {
            arguments.extend(["-o", neff.to_str().unwrap()]);
        }
        let output = neffuse(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.starts_with("error[bad-input]: damaged.pt2: no .pt2 archive, which is a zip"), "{stderr}");
    }
    assert!(!neff.exists());
}
