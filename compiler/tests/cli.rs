//! The command's contract: exit codes, keys of the JSON report, files that are written.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use compiler::npz::Archive;
use ir::{Dtype, TensorType};
use serde_json::Value;

const KEYS: &str = "graph target numerics neff_bytes compile_seconds cache passes limits n_nodes n_kernels n_instructions \
    n_compute_instructions n_dispatches hbm_read_bytes hbm_write_bytes compulsory_bytes eager_bytes hbm_causes spill_bytes spills sbuf_peak_bytes \
    predicted_us predicted_error assumed_numbers nc_us total_us host_us engine_busy_us bound fusions regions unsupported host_ops max_abs_error \
    max_rel_error eager_abs_error ok";

fn graph(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/graphs").join(name)
}

fn neffuse(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_neffuse"));
    // Nowhere to keep compilations: what is tested is compiled.
    command.env("NEFFUSE_CACHE_DIR", "").env_remove("XDG_CACHE_HOME").env_remove("HOME");
    command.args(arguments).output().expect("the command starts")
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn exit_code(output: &Output) -> i32 {
    output.status.code().expect("the command ends by itself")
}

fn report(output: &Output) -> Value {
    assert_eq!(stdout(output).lines().count(), 1, "one JSON object on one line");
    let report: Value = serde_json::from_str(stdout(output)).unwrap();
    for key in KEYS.split_whitespace() {
        assert!(report.get(key).is_some(), "`{key}` is missing");
    }
    report
}

fn number(report: &Value, key: &str) -> f64 {
    report[key].as_f64().unwrap_or_else(|| panic!("`{key}` is no number: {}", report[key]))
}

#[test]
fn check_compares_with_the_recorded_values() {
    let output = neffuse(&["check", text(&graph("rms_norm_naive_bf16.inf.json")), "--report", "json"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr(&output));
    let report = report(&output);
    assert_eq!(report["graph"], "rms_norm_naive_bf16.inf");
    assert_eq!(report["target"], "trn2");
    assert_eq!(report["numerics"], "contract");
    assert_eq!(report["ok"], true);
    assert_eq!(report["unsupported"], serde_json::json!([]));
    assert_eq!(report["host_ops"], serde_json::json!([]));
    assert_eq!(report["n_compute_instructions"], 3);
    assert_eq!(report["compulsory_bytes"], 4096 + 1024 + 4096);
    assert_eq!(report["fusions"][0]["op"], "rms_norm");
    assert!(number(&report, "max_abs_error") < number(&report, "eager_abs_error"));
    assert!(number(&report, "predicted_us") > 0.0);
    assert!(number(&report, "nc_us") > number(&report, "predicted_us"));
    assert!(report["engine_busy_us"]["act"].as_f64().unwrap() > 0.0);
    assert!(stderr(&output).contains("eager is PyTorch's recorded outputs"));
}

#[test]
fn compile_leaves_times_of_the_device_open() {
    let folder = tempfile::tempdir().unwrap();
    let neff = folder.path().join("out.neff");
    let input = graph("softmax_naive_f32.inf.json");
    let output = neffuse(&["compile", text(&input), "-o", text(&neff), "--target", "trn3", "--report", "json"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr(&output));
    let report = report(&output);
    assert_eq!(report["predicted_us"], Value::Null);
    assert_eq!(report["target"], "trn3");
    assert_eq!(report["neff_bytes"].as_u64(), Some(std::fs::metadata(&neff).unwrap().len()));
    let passes: Vec<&str> =
        report["passes"].as_array().unwrap().iter().map(|pass| pass["name"].as_str().unwrap()).collect();
    assert_eq!(passes, compiler::pipeline::PASSES);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn a_neff_runs_without_its_graph() {
    let folder = tempfile::tempdir().unwrap();
    let (neff, outputs) = (folder.path().join("m.neff"), folder.path().join("y.npz"));
    let input = graph("mlp.inf.json");
    let recorded = graph("mlp.inf.io.npz");
    assert_eq!(exit_code(&neffuse(&["compile", text(&input), "-o", text(&neff)])), 0);
    let arguments = ["run", text(&neff), "--inputs", text(&recorded), "--outputs", text(&outputs)];
    let output = neffuse(&arguments);
    assert_eq!(exit_code(&output), 0, "{}", stderr(&output));
    let ty = TensorType::new(Dtype::F32, [8, 16]);
    let floats = |path: &Path| -> Vec<f32> {
        let bytes = std::fs::read(path).unwrap();
        let graph = compiler::import::read_graph(&input).unwrap();
        let ty = graph.outputs[0].value.map_or(ty.clone(), |value| graph.ty(value).clone());
        let elements = Archive::open(&bytes).unwrap().tensor("out_0", &ty).unwrap();
        elements.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    let (ours, eager) = (floats(&outputs), floats(&recorded));
    assert!(ours.iter().zip(&eager).all(|(ours, eager)| (ours - eager).abs() < 1e-5));
    assert!(ours.iter().any(|&element| element != 0.0));

    let profile = neffuse(&["profile", text(&neff), "--report", "json"]);
    assert_eq!(exit_code(&profile), 0, "{}", stderr(&profile));
    assert!(number(&report(&profile), "predicted_us") > 0.0);
    assert!(stdout(&neffuse(&["info", text(&neff)])).contains("cayman"));
    assert!(stdout(&neffuse(&["objdump", text(&neff)])).contains("pe: nc_matmul"));
    let members = folder.path().join("members");
    assert!(stdout(&neffuse(&["unpack", text(&neff), text(&members)])).contains("sg00/def.json"));
    assert!(members.join("sg00/def.json").is_file());
}

#[test]
fn outputs_with_strides_are_written_as_logical_arrays() {
    // The output's rows are interleaved in the caller's buffer.
    for name in ["import/sdpa_masked_row_core.inf.json", "import/sdpa_masked_row_none.inf.json"] {
        let output = neffuse(&["check", text(&graph(name))]);
        assert_eq!(exit_code(&output), 0, "{}", stderr(&output));
    }
}

#[test]
fn frozen_parameters_need_not_be_given() {
    let folder = tempfile::tempdir().unwrap();
    let (neff, inputs, outputs) =
        (folder.path().join("m.neff"), folder.path().join("x.npz"), folder.path().join("y.npz"));
    let input = graph("mlp.inf.json");
    let output = neffuse(&["compile", text(&input), "-o", text(&neff), "--freeze"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr(&output));
    let imported = compiler::import::read_graph(&input).unwrap();
    let recorded = std::fs::read(graph("mlp.inf.io.npz")).unwrap();
    let mut archive = Archive::open(&recorded).unwrap();
    let dynamic = imported.inputs.iter().position(|input| input.role == ir::graph::InputRole::Dynamic).unwrap();
    let (name, ty) = (format!("in_{dynamic}"), imported.ty(imported.inputs[dynamic].value).clone());
    let elements = archive.tensor(&name, &ty).unwrap();
    std::fs::write(&inputs, compiler::npz::write([(name.as_str(), &ty, &elements[..])]).unwrap()).unwrap();
    let output = neffuse(&["run", text(&neff), "--inputs", text(&inputs), "--outputs", text(&outputs)]);
    assert_eq!(exit_code(&output), 0, "{}", stderr(&output));
}

#[test]
fn eager_profiles_count_every_operator() {
    let input = graph("rms_norm_naive_bf16.inf.json");
    let output = neffuse(&["profile", text(&input), "--eager", "--report", "json"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr(&output));
    let eager = &report(&output)["eager"];
    assert_eq!(eager["n_dispatches"], 6);
    let text = stdout(&neffuse(&["profile", text(&input), "--eager"])).to_owned();
    assert!(text.contains("aten.rsqrt.default") && text.contains("critical path"));
}

#[test]
fn the_three_ways_are_as_published() {
    let (naive, built_in) = (graph("rms_norm_naive_bf16.inf.json"), graph("rms_norm_builtin_bf16.inf.json"));
    let output = neffuse(&["three-way", text(&naive), text(&built_in), "--report", "json"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr(&output));
    let table: Value = serde_json::from_str(stdout(&output)).unwrap();
    let predicted = |row: &Value| number(row, "constant_us") + number(row, "body_us");
    let ways = table["ways"].as_array().unwrap();
    for (way, n_dispatches) in ways.iter().zip([6, 1, 1]) {
        assert_eq!(way["n_dispatches"], n_dispatches);
        let share = predicted(way) / number(way, "published_us");
        assert!((0.9..1.1).contains(&share), "{way}");
    }
    let ratio = predicted(&ways[0]) / predicted(&ways[2]);
    assert!((5.5..6.5).contains(&ratio), "{ratio}");
}

#[test]
fn unsupported_graphs_exit_with_2_and_list_every_node() {
    let output = neffuse(&["check", text(&graph("import/tiny_mamba.inf.json")), "--report", "json"]);
    assert_eq!(exit_code(&output), 2);
    let report = report(&output);
    assert_eq!(report["ok"], false);
    let listed = report["unsupported"].as_array().unwrap();
    assert_eq!(listed.len(), 4);
    for key in ["node", "op", "module", "line", "type", "reason"] {
        assert!(listed[0].get(key).is_some(), "`{key}` is missing");
    }
    let first = stderr(&output).lines().next().unwrap();
    assert!(first.starts_with("error[unsupported]: tiny_mamba.inf.json: 4 nodes cannot be compiled:"), "{first}");
}

#[test]
fn bad_input_and_usage_exit_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        text(&path).to_owned()
    };
    let missing = text(&folder.path().join("missing.json")).to_owned();
    let valid = text(&graph("mlp.inf.json")).to_owned();
    let cases: [Vec<&str>; 9] = [
        vec!["compile", &missing],
        vec!["compile", &*file("bad.json", "{").leak()],
        vec!["compile", &*file("bad.ir", "graph").leak()],
        vec!["compile", &*file("bad.txt", "").leak()],
        vec!["info", &*file("bad.neff", "NEFF").leak()],
        vec!["compile", &valid, "--target", "trn9"],
        vec!["compile", &valid, "--print-after", "no_such_pass"],
        vec!["frobnicate"],
        vec!["run", &valid, "--inputs", &missing, "--outputs", &missing],
    ];
    for case in cases {
        let output = neffuse(&case);
        assert_eq!(exit_code(&output), 1, "{case:?}: {}", stderr(&output));
        assert!(stdout(&output).is_empty(), "{case:?}");
        assert!(!stderr(&output).is_empty(), "{case:?}");
    }
    assert_eq!(exit_code(&neffuse(&["--help"])), 0);
}

#[test]
fn mismatches_exit_with_4() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("softmax_naive_f32.inf.json");
    std::fs::copy(graph("softmax_naive_f32.inf.json"), &input).unwrap();
    let recorded = std::fs::read(graph("softmax_naive_f32.inf.io.npz")).unwrap();
    let ty = TensorType::new(Dtype::F32, [130, 77]);
    let elements = Archive::open(&recorded).unwrap().tensor("in_0", &ty).unwrap();
    // Every eager output 1: far from the truth, but in the other direction than NaN.
    let mut wrong = Archive::open(&recorded).unwrap().tensor("out_0", &ty).unwrap();
    wrong[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let archive = compiler::npz::write([("in_0", &ty, &elements[..]), ("out_0", &ty, &wrong[..])]).unwrap();
    std::fs::write(folder.path().join("softmax_naive_f32.inf.io.npz"), archive).unwrap();
    let output = neffuse(&["check", text(&input), "--report", "json"]);
    assert_eq!(exit_code(&output), 4, "{}", stderr(&output));
    assert_eq!(report(&output)["ok"], false);
    assert!(stderr(&output).contains("MISMATCH"));
}

#[test]
fn stages_can_be_printed_and_passes_stopped() {
    let input = graph("rms_norm_naive_bf16.inf.json");
    let printed = neffuse(&["compile", text(&input), "--print-after", "fuse", "--stop-after", "fuse"]);
    assert_eq!(exit_code(&printed), 0, "{}", stderr(&printed));
    assert!(stderr(&printed).contains("// after fuse") && stderr(&printed).contains("= rms_norm"));
    let graph_text = neffuse(&["compile", text(&input), "--emit", "graph"]);
    assert!(stdout(&graph_text).contains("= rms_norm"));
    // The text of a stage is an input again.
    let folder = tempfile::tempdir().unwrap();
    let again = folder.path().join("again.ir");
    std::fs::write(&again, &graph_text.stdout).unwrap();
    let output = neffuse(&["check", text(&again)]);
    assert_eq!(exit_code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("eager is the reference evaluator"));
    let program = neffuse(&["compile", text(&input), "--emit", "program"]);
    assert!(stdout(&program).contains("act: activation square"));
    let unfused = neffuse(&["compile", text(&input), "--emit", "graph", "--disable-rule", "rms-norm"]);
    assert!(!stdout(&unfused).contains("= rms_norm"), "{}", stdout(&unfused));
}

#[test]
fn compilations_are_byte_identical() {
    let folder = tempfile::tempdir().unwrap();
    let input = graph("bert_layer_none.inf.json");
    let compiled = |name: &str| {
        let path = folder.path().join(name);
        assert_eq!(exit_code(&neffuse(&["compile", text(&input), "-o", text(&path)])), 0);
        std::fs::read(path).unwrap()
    };
    assert!(compiled("a.neff") == compiled("b.neff"));
}
