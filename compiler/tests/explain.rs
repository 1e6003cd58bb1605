//! What `explain` says of fusions that happened, and of those that did not.

use std::path::{Path, PathBuf};
use std::process::Command;

fn sample(name: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/graphs").join(format!("{name}.inf.json"));
    path.to_str().unwrap().to_owned()
}

fn explain(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_neffuse"));
    let output = command.arg("explain").args(arguments).output().expect("the command starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The graph text of a file, explained.
fn explain_text(text: &str, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.ir");
    std::fs::write(&path, text).unwrap();
    explain(&[&[path.to_str().unwrap()], arguments].concat())
}

#[test]
fn a_fusion_comes_with_its_nodes_rules_and_their_classes() {
    let text = explain(&[&sample("rms_norm_naive_bf16")]);
    let fusion = "rms_norm [contract]\n  from mul (aten.mul.Tensor)\n  from mean (aten.mean.dim)\n  from add \
        (aten.add.Tensor)\n  from rsqrt (aten.rsqrt.default)\n  from mul_1 (aten.mul.Tensor)\n  from mul_2 \
        (aten.mul.Tensor)\n  by   drop-rounding [contract]\n  by   rms-norm [reassoc]\n  by   rms-norm-gamma [reassoc]\n";
    assert!(text.contains(fusion), "{text}");
    assert!(explain(&[&sample("softmax_builtin_f32")]).contains("softmax [exact]\n"), "called by the model");
}

#[test]
fn the_nearest_match_is_told_with_its_source_line() {
    let graph = "graph @g {
  loc #0 = \"amax\" \"aten.amax.default\" \"model.norm\" \"model.py:7\"
  input %0 \"x\": f32[4, 16] dynamic
  %1 = mul %0, %0 : f32[4, 16]
  %2 = reduce_max %1 {axes = [1]} : f32[4, 1] #0
  %3 = full {value = 1e-6, dtype = f32, shape = []} : f32[]
  %4 = add %2, %3 : f32[4, 1]
  %5 = rsqrt %4 : f32[4, 1]
  %6 = mul %0, %5 : f32[4, 16]
  output %6 \"\"
}
";
    let text = explain_text(graph, &["--why-not", "rms_norm"]);
    let answer = "asked: `rms_norm` is not recognised: 3 of 5 ops fit the rule `rms-norm`, then `reduce_mean` is \
        expected and `reduce_max` is found\n  at   amax (aten.amax.default, model.norm, model.py:7)\n";
    assert!(text.contains(answer), "{text}");
}

#[test]
fn a_failed_condition_is_told_with_its_reason() {
    let graph = "graph @g {
  input %0 \"x\": f32[4, 16] dynamic
  input %1 \"w\": f32[16, 8] static
  input %2 \"y\": f32[4, 8] dynamic
  %3 = matmul %0, %1 {transpose_lhs = 0, transpose_rhs = 0, dtype = f32} : f32[4, 8]
  %4 = add %3, %2 : f32[4, 8]
  output %4 \"\"
}
";
    let text = explain_text(graph, &["--why-not", "fused_matmul"]);
    assert!(text.contains("the rule `matmul-bias` matches and does not apply: "), "{text}");
    let strict = explain(&[&sample("rms_norm_naive_bf16"), "--numerics", "exact", "--why-not", "rms_norm"]);
    assert!(strict.contains("needs the rule `drop-rounding` of class `contract`, and `exact` does not"), "{strict}");
}

#[test]
fn a_choice_by_cost_is_told_with_both_costs() {
    let graph = "graph @g {
  input %0 \"x\": f32[4, 16] dynamic
  input %1 \"w\": f32[16, 8] static
  input %2 \"b\": f32[8] static
  %3 = matmul %0, %1 {transpose_lhs = 0, transpose_rhs = 0, dtype = f32} : f32[4, 8]
  %4 = add %3, %2 : f32[4, 8]
  output %3 \"\"
  output %4 \"\"
}
";
    let text = explain_text(graph, &["--why-not", "fused_matmul"]);
    assert!(text.contains("asked: `fused_matmul` is possible and not chosen: "), "{text}");
    assert!(text.contains(" us against "), "{text}");
}
