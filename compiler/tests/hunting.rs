//! `bisect` and `reduce` as commands, and fuel, on which bisection rests.
#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use compiler::failure::failure_of;
use compiler::import::read_graph;
use compiler::pipeline::{Options, Unwatched, compile};
use compiler::samples::samples_for;
use compiler::verdict::Standard;

const COMMAND: &str = env!("CARGO_BIN_EXE_neffuse");

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/graphs").join(format!("{name}.inf.json"))
}

fn neffuse(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(COMMAND);
    command.env("NEFFUSE_CACHE_DIR", folder.join("cache")).current_dir(folder);
    command.args(arguments).output().expect("the command starts")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Shell text that ends with 0 for NEFFs in which the square of an rms_norm rides on its sum.
fn has_fused_square() -> String {
    format!("{COMMAND} objdump {{}} | grep -q 'activation square'")
}

#[test]
fn the_change_that_makes_a_command_end_otherwise_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let input = sample("rms_norm_naive_bf16");
    let arguments = ["bisect", text(&input), "--command", &has_fused_square(), "--output-dir", "found"];
    let found = stdout(&neffuse(folder.path(), &arguments));
    assert!(found.starts_with("with all changes it ends with exit code 0\nchange "), "{found}");
    assert!(found.contains(" makes it so: rule rms-norm\n"), "{found}");
    assert!(found.contains("\n+ %3 = rms_norm %2 "), "{found}");
    assert!(found.contains("\n- %3 = mul %2, %2 ") && found.contains("      from mul (aten.mul.Tensor)"), "{found}");
    let file = |name: &str| fs::read_to_string(folder.path().join("found").join(name)).unwrap();
    assert!(!file("before.ir").contains("rms_norm %") && file("after.ir").contains("rms_norm %"));
    // The amounts of fuel that it names do what it says.
    let amount = found.split("--fuel ").nth(2).and_then(|rest| rest.lines().next()).unwrap();
    let amount: u64 = amount.parse().unwrap();
    for (fuel, expected) in [(amount - 1, false), (amount, true)] {
        let graph =
            stdout(&neffuse(folder.path(), &["compile", text(&input), "--emit", "graph", "--fuel", &fuel.to_string()]));
        assert_eq!(graph.contains("= rms_norm"), expected, "fuel {fuel}");
    }
}

#[test]
fn what_no_change_breaks_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let input = sample("rms_norm_naive_bf16");
    let passing = neffuse(folder.path(), &["bisect", text(&input)]);
    assert_eq!(passing.status.code(), Some(1));
    assert!(stderr(&passing).contains("it passes with all changes"), "{}", stderr(&passing));
    let without = stdout(&neffuse(folder.path(), &["bisect", text(&input), "--command", "exit 3 # {}"]));
    assert!(without.starts_with("it ends with exit code 3 with no change made (--fuel 0)"), "{without}");
    // Recorded outputs that are no numbers, which nothing computes.
    fs::copy(&input, folder.path().join("x.json")).unwrap();
    let graph = read_graph(&input).unwrap();
    let types: Vec<_> = graph.inputs.iter().map(|input| graph.ty(input.value)).collect();
    let result = graph.ty(graph.outputs[0].value.unwrap());
    let ones = |ty: &ir::TensorType| 0x3f80_u16.to_le_bytes().repeat(ty.n_elements());
    let bytes = [ones(types[0]), ones(types[1]), 0x7fc0_u16.to_le_bytes().repeat(result.n_elements())];
    let arrays = [("in_0", types[0], &bytes[0]), ("in_1", types[1], &bytes[1]), ("out_0", result, &bytes[2])];
    let archive =
        compiler::npz::write(arrays.into_iter().map(|(name, ty, bytes)| (name, ty, bytes.as_slice()))).unwrap();
    fs::write(folder.path().join("x.io.npz"), archive).unwrap();
    let wrong = stdout(&neffuse(folder.path(), &["bisect", "x.json"]));
    assert!(wrong.starts_with("it fails (mismatch) with no change made (--fuel 0): no rule is to blame\n"), "{wrong}");
    assert!(wrong.contains("the graph is wrong after pass `outline`"), "{wrong}");
}

#[test]
fn the_first_node_that_options_compute_differently_is_shown_and_made_small() {
    let folder = tempfile::tempdir().unwrap();
    let input = sample("softmax_naive_f32");
    let found = stdout(&neffuse(folder.path(), &["bisect", text(&input), "mode=exact", "mode=reassoc"]));
    let first = found.lines().next().unwrap();
    assert!(first.starts_with("first divergence of mode=exact and mode=reassoc: %5 = div %3, %4 : "), "{found}");
    assert!(found.contains("\n  from div (aten.div.Tensor)\n  its operands agree: %3, %4\n"), "{found}");
    assert!(found.contains("elements differ in their bits\n  worst element ["), "{found}");
    let small = "softmax_naive_f32.inf.small.ir";
    assert!(found.contains(&format!("\nwrote {small}: ")), "{found}");
    // The command that it names finds the same in the small graph.
    let replay = found.lines().last().unwrap().trim();
    assert_eq!(replay, format!("neffuse bisect {small} mode=exact mode=reassoc"));
    let words: Vec<&str> = replay.split(' ').skip(1).collect();
    let again = stdout(&neffuse(folder.path(), &[words, vec!["-o", "again.ir"]].concat()));
    let op = |line: &str| line.split(' ').skip_while(|word| *word != "=").nth(1).map(str::to_owned);
    assert_eq!(op(again.lines().next().unwrap()), op(first), "{again}");
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(read("again.ir"), read(small), "it is as small as it gets");
}

#[test]
fn sides_that_agree_and_sides_that_are_none_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let input = sample("rms_norm_naive_bf16");
    let fails = |sides: &[&str]| {
        let output = neffuse(folder.path(), &[&["bisect", text(&input)], sides].concat());
        assert_eq!(output.status.code(), Some(1), "{sides:?}");
        stderr(&output)
    };
    let agree = "error[bad-input]: rms_norm_naive_bf16.inf: reference and simulator agree on all outputs";
    assert!(fails(&["reference", "simulator"]).starts_with(agree));
    assert!(fails(&["reference", "simulater"]).starts_with("error[usage]: `simulater`: no side and no option"));
    assert!(fails(&["eager", "stop=fus"]).contains("help: did you mean `fuse`?"));
    assert!(fails(&["eager"]).starts_with("error[usage]: "));
    assert!(fails(&["eager", "simulator", "--command", "true {}"]).starts_with("error[usage]: "));
    assert!(fails(&["--compare", "bits"]).starts_with("error[usage]: "));
}

#[test]
fn a_llama_is_reduced_to_what_the_command_looks_for() {
    let folder = tempfile::tempdir().unwrap();
    let input = sample("tiny_llama_core");
    let reduced = |name: &str| {
        let arguments = ["reduce", text(&input), "-o", name, "--command", "grep -q '= matmul' {}"];
        let output = neffuse(folder.path(), &arguments);
        stdout(&output);
        assert!(stderr(&output).contains("it still ends with exit code 0"), "{}", stderr(&output));
        fs::read_to_string(folder.path().join(name)).unwrap()
    };
    let small = reduced("small.ir");
    assert_eq!(small.lines().filter(|line| line.starts_with("  %")).count(), 1, "{small}");
    assert_eq!(small, reduced("again.ir"));
    stdout(&neffuse(folder.path(), &["check", "small.ir"]));
}

#[test]
fn the_kind_of_failure_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let graph = "graph @g {
  input %0 \"x\": f32[64, 128] dynamic
  input %1 \"w\": f64[64, 128] static
  %2 = exp %0 : f32[64, 128]
  %3 = tanh %2 : f32[64, 128]
  %4 = abs %1 : f64[64, 128]
  %5 = cast %4 {dtype = f32} : f32[64, 128]
  %6 = mul %3, %5 : f32[64, 128]
  output %6 \"\"
}
";
    fs::write(folder.path().join("x.ir"), graph).unwrap();
    let output = neffuse(folder.path(), &["reduce", "x.ir", "-o", "small.ir"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let small = fs::read_to_string(folder.path().join("small.ir")).unwrap();
    assert!(small.contains(": f64[1, 1]") && !small.contains("tanh"), "{small}");
    let passing = neffuse(folder.path(), &["reduce", text(&sample("softmax_naive_f32")), "-o", "none.ir"]);
    assert_eq!(passing.status.code(), Some(1));
    assert!(stderr(&passing).contains("there is no failure to reduce"));
    assert!(!folder.path().join("none.ir").exists());
}

#[test]
fn commands_that_cannot_judge_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let input = sample("rms_norm_naive_bf16");
    for command in ["true", "no-such-command-anywhere {}"] {
        for arguments in [vec!["bisect", text(&input)], vec!["reduce", text(&input), "-o", "small.ir"]] {
            let output = neffuse(folder.path(), &[arguments, vec!["--command", command]].concat());
            assert_eq!(output.status.code(), Some(1), "{command}");
            assert!(stderr(&output).starts_with("error[usage]: --command: "), "{}", stderr(&output));
        }
    }
}

#[test]
fn every_amount_of_fuel_gives_a_right_program_or_an_honest_refusal() {
    for (name, step) in [("rms_norm_naive_bf16", 1), ("softmax_naive_f32", 1), ("tiny_llama_bf16", 17)] {
        let path = sample(name);
        let graph = read_graph(&path).unwrap();
        let samples = samples_for(&graph, &path).unwrap();
        let standard = Standard::of(&graph, &samples).unwrap();
        let n_changes = compile(&graph, &Options::default(), &mut Unwatched).unwrap().fuse.fuel_spent;
        let mut n_passing = 0u64;
        for fuel in (0..=n_changes).step_by(step) {
            let options = Options { fuel: Some(fuel), ..Options::default() };
            match failure_of(&graph, &options, &samples, &standard).unwrap() {
                None => n_passing += 1,
                // Without folding, some integer computations have no lowering.
                Some(failure) => assert!(failure.kind.starts_with("unsupported"), "{name}, fuel {fuel}: {failure:?}"),
            }
        }
        assert!(2 * n_passing > n_changes / step as u64, "{name}: {n_passing} of {n_changes}");
    }
}
