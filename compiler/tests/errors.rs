//! Every error of the command has one shape: `error[code]: place: reason`, context, what to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn graph(name: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/graphs").join(name);
    path.to_str().unwrap().to_owned()
}

/// Exit code and standard error of the command in a folder.
fn neffuse(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_neffuse"));
    command.env("NEFFUSE_CACHE_DIR", folder.join("cache")).current_dir(folder);
    let output = command.args(arguments).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn first_lines_stand_alone_and_the_rest_is_indented() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("broken.json", b"{\"format\": 1");
    write("broken.ir", b"graph @g {\n  input %0 \"x\": f32[2] dynamic\n  %1 = exq %0 : f32[2]\n  output %1 \"\"\n}\n");
    write("binary.ir", b"\xff\xfe");
    write("broken.neff", b"not a NEFF");
    write("broken.npz", b"not an archive");
    write("empty.npz", &compiler::npz::write(std::iter::empty()).unwrap());
    write("wide.ir", b"graph @g {\n  input %0 \"x\": f64[2] dynamic\n  %1 = abs %0 : f64[2]\n  output %1 \"\"\n}\n");
    let rms_norm = graph("rms_norm_naive_bf16.inf.json");
    let (exit_code, _) = neffuse(folder.path(), &["compile", &rms_norm, "-o", "good.neff"]);
    assert_eq!(exit_code, 0);
    let cases: [(&[&str], i32, &str); 20] = [
        (&["compile", "missing.json"], 1, "error[file]: missing.json: "),
        (&["compile", "broken.json"], 1, "error[bad-input]: broken.json: "),
        (&["compile", "broken.ir"], 1, "error[syntax]: broken.ir:3:8: "),
        (&["compile", "binary.ir"], 1, "error[bad-input]: binary.ir: "),
        (&["compile", "graph.txt"], 1, "error[file]: graph.txt: "),
        (&["compile", "wide.ir"], 2, "error[unsupported]: g: 1 node cannot be compiled: "),
        (&["compile", &rms_norm, "-o", "no/such/folder.neff"], 1, "error[file]: no/such/folder.neff: "),
        (
            &["compile", &rms_norm, "--stop-after", "fus"],
            1,
            "error[usage]: --print-after, --stop-after: no pass is named `fus`",
        ),
        (
            &["compile", &rms_norm, "--disable-rule", "rms-nrm"],
            1,
            "error[usage]: --disable-rule: no rule is named `rms-nrm`",
        ),
        (&["check", &rms_norm, "--stop-after", "fuse"], 1, "error[usage]: --stop-after leaves no NEFF"),
        (&["compile", &rms_norm, "--target", "trn9"], 1, "error[usage]: invalid value 'trn9' for "),
        (&["compile", &rms_norm, "--tarket", "trn2"], 1, "error[usage]: unexpected argument '--tarket' found"),
        (&["explain", &rms_norm, "--why-not", "rmsnorm"], 1, "error[usage]: --why-not: no fused op is named `rmsnorm`"),
        (&["info", "broken.neff"], 1, "error[bad-input]: broken.neff: "),
        (&["run", "good.neff", "--inputs", "broken.npz", "--outputs", "y.npz"], 1, "error[bad-input]: broken.npz: "),
        (&["run", "broken.neff", "--inputs", "empty.npz", "--outputs", "y.npz"], 1, "error[bad-input]: broken.neff: "),
        (&["run", "good.neff", "--inputs", "empty.npz", "--outputs", "y.npz"], 1, "error[bad-input]: good.neff: "),
        (&["profile", "broken.neff"], 1, "error[bad-input]: broken.neff: "),
        (&["run", "good.neff", "--inputs", "missing.npz", "--outputs", "y.npz"], 1, "error[file]: missing.npz: "),
        (&["profile", "good.neff", "--eager"], 1, "error[usage]: --eager needs the graph, not the NEFF"),
    ];
    for (arguments, expected, first) in cases {
        let (exit_code, stderr) = neffuse(folder.path(), arguments);
        assert_eq!(exit_code, expected, "{arguments:?}: {stderr}");
        let mut lines = stderr.lines();
        let line = lines.next().unwrap_or_default();
        assert!(line.starts_with(first), "{arguments:?}: {line}");
        assert!(!line.ends_with('.'), "{line}");
        assert!(line.len() > first.len() || !first.ends_with(' '), "{arguments:?} gives no reason: {line}");
        let is_usage = line.contains("trn9") || line.contains("tarket");
        assert!(is_usage || lines.all(|line| line.starts_with(' ') || line.is_empty()), "{stderr}");
    }
    let help = |arguments: &[&str]| neffuse(folder.path(), arguments).1;
    assert!(help(&["compile", &rms_norm, "--stop-after", "fus"]).contains("\n  help: did you mean `fuse`?"));
    assert!(help(&["compile", &rms_norm, "--disable-rule", "rms-nrm"]).contains("\n  help: did you mean `rms-norm`?"));
    assert!(help(&["compile", &rms_norm, "--tarket", "trn2"]).contains("'--target'"));
    assert!(help(&["compile", "wide.ir"]).contains("\n  help: "));
}
