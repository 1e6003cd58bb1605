//! The compile cache as processes use it: together, killed, damaged, without room.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

fn graph(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/graphs").join(format!("{name}.inf.json"))
}

/// A cache folder and a folder for outputs.
struct Place {
    cache: PathBuf,
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        Place { cache: folder.path().join("cache"), folder }
    }

    fn neff(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_neffuse"));
        command.args(arguments).env("NEFFUSE_CACHE_DIR", &self.cache).current_dir(self.folder.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the command starts")
    }

    fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn start(&self, graph_name: &str, neff: &Path) -> Child {
        let graph = graph(graph_name);
        let arguments = ["compile", text(&graph), "-o", text(neff), "--report", "json"];
        self.command(&arguments).spawn().expect("the command starts")
    }

    /// Compiles a sample graph and gives the report.
    fn compile(&self, graph_name: &str, neff: &Path, more: &[&str]) -> (Value, String) {
        let graph = graph(graph_name);
        let mut arguments = vec!["compile", text(&graph), "-o", text(neff), "--report", "json"];
        arguments.extend(more);
        let output = self.run(&arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        (report(&output), stderr(&output))
    }

    fn entries(&self) -> Vec<PathBuf> {
        let folder = fs::read_dir(self.cache.join("entries")).into_iter().flatten();
        let mut entries: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
        entries.retain(|path| path.extension().is_some_and(|extension| extension == "entry"));
        entries.sort();
        entries
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_second_compilation_is_read_and_tells_the_same() {
    let place = Place::new();
    let (first, second) = (place.neff("first.neff"), place.neff("second.neff"));
    let (mut cold, _) = place.compile("rms_norm_naive_bf16", &first, &[]);
    let (mut warm, notes) = place.compile("rms_norm_naive_bf16", &second, &[]);
    assert_eq!((cold["cache"].as_str(), warm["cache"].as_str()), (Some("miss"), Some("hit")));
    assert_eq!(notes, "");
    assert!(fs::read(first).unwrap() == fs::read(second).unwrap());
    assert_eq!(cold["fusions"][0]["op"], "rms_norm");
    for report in [&mut cold, &mut warm] {
        report["cache"] = Value::Null;
        report["compile_seconds"] = Value::Null;
    }
    assert_eq!(cold, warm);
    // The other commands read the same entry.
    let input = graph("rms_norm_naive_bf16");
    for command in ["check", "profile"] {
        let output = place.run(&[command, text(&input), "--report", "json"]);
        assert_eq!(report(&output)["cache"], "hit", "{command}");
        assert_eq!(report(&output)["ok"], true, "{command}");
    }
    let (off, _) = place.compile("rms_norm_naive_bf16", &place.neff("off.neff"), &["--no-cache"]);
    assert_eq!(off["cache"], "off");
    assert!(place.text(&["cache", "ls"]).contains("rms_norm_naive_bf16"));
}

#[test]
fn ten_cold_processes_compile_each_key_once() {
    let place = Place::new();
    let names = ["rms_norm_naive_bf16", "tiny_llama_core"];
    let neff = |position: usize| place.neff(&format!("{position}.neff"));
    let children: Vec<Child> = (0..10).map(|position| place.start(names[position % 2], &neff(position))).collect();
    let outputs: Vec<Output> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let mut n_misses = 0;
    for (position, output) in outputs.iter().enumerate() {
        assert!(output.status.success(), "{}", stderr(output));
        assert_eq!(stderr(output), "");
        n_misses += usize::from(report(output)["cache"] == "miss");
        assert!(fs::read(neff(position)).unwrap() == fs::read(neff(position % 2)).unwrap(), "process {position}");
    }
    assert_eq!(n_misses, 2);
    assert_eq!(place.entries().len(), 2);
}

#[test]
fn killed_processes_leave_a_usable_cache() {
    let place = Place::new();
    let started = Instant::now();
    place.compile("tiny_llama_core", &place.neff("x.neff"), &["--no-cache"]);
    let whole = started.elapsed();
    // Kills at moments spread over the time of a compilation and its writing.
    let n_kills = 40;
    for kill in 0..n_kills {
        let mut child = place.start("tiny_llama_core", &place.neff("x.neff"));
        std::thread::sleep(whole * kill / n_kills + Duration::from_millis(u64::from(kill % 3)));
        child.kill().unwrap();
        child.wait().unwrap();
        place.text(&["cache", "verify"]);
        place.text(&["cache", "clear", "--all"]);
    }
    // What is left while writing: a part of an entry.
    let (_, _) = place.compile("rms_norm_naive_bf16", &place.neff("y.neff"), &[]);
    let entry = place.entries().remove(0);
    let part = fs::read(&entry).unwrap();
    fs::write(entry.with_extension("tmp"), &part[..part.len() / 2]).unwrap();
    fs::remove_file(&entry).unwrap();
    let (after, notes) = place.compile("rms_norm_naive_bf16", &place.neff("z.neff"), &[]);
    assert_eq!((after["cache"].as_str(), notes.as_str()), (Some("miss"), ""));
    assert!(!entry.with_extension("tmp").exists());
    assert!(fs::read(place.neff("y.neff")).unwrap() == fs::read(place.neff("z.neff")).unwrap());
    let (again, _) = place.compile("rms_norm_naive_bf16", &place.neff("z.neff"), &[]);
    assert_eq!(again["cache"], "hit");
}

#[test]
fn damaged_entries_are_compiled_again_with_a_notice() {
    let place = Place::new();
    let neff = place.neff("x.neff");
    place.compile("rms_norm_naive_bf16", &neff, &[]);
    let right = fs::read(&neff).unwrap();
    let entry = place.entries().remove(0);
    let whole = fs::read(&entry).unwrap();
    let middle = whole.len() / 2;
    let mut flipped = whole.clone();
    flipped[middle] ^= 1;
    // An entry of another key under this name.
    place.compile("rms_norm_naive_bf16", &neff, &["--target", "trn1"]);
    let other = place.entries().into_iter().find(|path| *path != entry).unwrap();
    let damages = [
        (flipped, "its checksum is wrong"),
        (whole[..middle].to_vec(), "its checksum is wrong"),
        (whole[..10].to_vec(), "it is cut off"),
        (b"something else that is not an entry at all".to_vec(), "it is no entry of this form"),
        (fs::read(other).unwrap(), "it belongs to another key"),
    ];
    for (bytes, reason) in damages {
        fs::write(&entry, bytes).unwrap();
        let verify = place.run(&["cache", "verify"]);
        assert_eq!(verify.status.code(), Some(4), "{reason}");
        let (report, notes) = place.compile("rms_norm_naive_bf16", &neff, &[]);
        assert_eq!(report["cache"], "miss", "{reason}");
        assert!(notes.starts_with("note: compile cache ") && notes.contains(reason), "{notes}");
        assert_eq!(notes.lines().count(), 1);
        assert!(fs::read(&neff).unwrap() == right);
        assert_eq!(place.compile("rms_norm_naive_bf16", &neff, &[]).0["cache"], "hit");
    }
}

#[test]
fn a_cache_without_room_or_rights_fails_no_compilation() {
    let place = Place::new();
    let neff = place.neff("x.neff");
    // A file where the folder should be.
    fs::write(&place.cache, b"in the way").unwrap();
    let (report, notes) = place.compile("rms_norm_naive_bf16", &neff, &[]);
    assert_eq!(report["cache"], "miss");
    assert_eq!(notes.lines().count(), 1, "{notes}");
    assert!(notes.contains("the result is not kept"), "{notes}");
    fs::remove_file(&place.cache).unwrap();
    // A bound that no entry fits.
    let graph = graph("rms_norm_naive_bf16");
    let arguments = ["compile", text(&graph), "-o", text(&neff), "--report", "json"];
    let output = place.command(&arguments).env("NEFFUSE_CACHE_SIZE", "1K").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(place.entries().is_empty());
    let output = place.command(&arguments).env("NEFFUSE_CACHE_SIZE", "much").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("`much` is no size"));
}

/// A limit on the size of files stands for a full disk: writing an entry fails in the middle.
#[cfg(target_os = "linux")]
#[test]
fn a_write_that_fails_in_the_middle_leaves_nothing() {
    let place = Place::new();
    let script = format!(
        "trap '' XFSZ; ulimit -f 1; exec {} compile {} -o /dev/null --report json",
        env!("CARGO_BIN_EXE_neffuse"),
        text(&graph("rms_norm_naive_bf16"))
    );
    let output = Command::new("sh").args(["-c", &script]).env("NEFFUSE_CACHE_DIR", &place.cache).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("the result is not kept"), "{}", stderr(&output));
    let left: Vec<_> = fs::read_dir(place.cache.join("entries")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[cfg(unix)]
#[test]
fn a_read_only_cache_is_read() {
    use std::os::unix::fs::PermissionsExt;

    let place = Place::new();
    let neff = place.neff("x.neff");
    place.compile("rms_norm_naive_bf16", &neff, &[]);
    let entries = place.cache.join("entries");
    for folder in [&entries, &place.cache] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o555)).unwrap();
    }
    let (report, notes) = place.compile("rms_norm_naive_bf16", &neff, &[]);
    assert_eq!((report["cache"].as_str(), notes.as_str()), (Some("hit"), ""));
    let (_, notes) = place.compile("softmax_naive_f32", &neff, &[]);
    // The superuser may write everywhere.
    let may_write = fs::write(entries.join("probe"), b"").is_ok();
    assert_eq!(notes.lines().count(), usize::from(!may_write), "{notes}");
    for folder in [&place.cache, &entries] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn the_longest_unused_compilations_make_room() {
    let place = Place::new();
    let neff = place.neff("x.neff");
    let graph_path = graph("rms_norm_naive_bf16");
    let compile = |target: &str| {
        let arguments = ["compile", text(&graph_path), "-o", text(&neff), "--report", "json", "--target", target];
        let output = place.command(&arguments).env("NEFFUSE_CACHE_SIZE", "30000").output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        // Uses are told apart by their times.
        std::thread::sleep(Duration::from_millis(20));
        report(&output)["cache"].as_str().unwrap().to_owned()
    };
    assert_eq!([compile("trn1"), compile("trn2"), compile("trn1")], ["miss", "miss", "hit"]);
    assert_eq!(compile("trn3"), "miss");
    let sizes: Vec<u64> = place.entries().iter().map(|path| fs::metadata(path).unwrap().len()).collect();
    assert!(sizes.iter().sum::<u64>() <= 30_000, "{sizes:?}");
    assert_eq!(sizes.len(), 2, "the bound holds two: {sizes:?}");
    assert_eq!([compile("trn1"), compile("trn2")], ["hit", "miss"]);
}

#[test]
fn what_is_watched_limited_or_failed_is_not_kept() {
    let place = Place::new();
    let input = graph("rms_norm_naive_bf16");
    let runs: [&[&str]; 5] = [
        &["--fuel", "1000", "-o", "x.neff"],
        &["--print-after", "fuse", "-o", "x.neff"],
        &["--stop-after", "fuse"],
        &["--emit", "graph"],
        &["--emit", "elf", "-o", "x.o"],
    ];
    for more in runs {
        let mut arguments = vec!["compile", text(&input)];
        arguments.extend(more);
        assert!(place.run(&arguments).status.success(), "{more:?}");
        assert!(place.entries().is_empty(), "{more:?}");
    }
    let unsupported = place.folder.path().join("unsupported.ir");
    fs::write(
        &unsupported,
        "graph @g {\n  input %0 \"x\": f64[2] dynamic\n  %1 = abs %0 : f64[2]\n  output %1 \"\"\n}\n",
    )
    .unwrap();
    assert_eq!(place.run(&["compile", text(&unsupported)]).status.code(), Some(2));
    assert!(place.entries().is_empty());
}

#[test]
fn why_names_the_part_that_differs() {
    let place = Place::new();
    let input = place.folder.path().join("x.ir");
    let write = |name: &str, line: &str, op: &str| {
        let text = format!(
            "graph @g {{\n  loc #0 = \"n\" \"aten.{op}\" \"\" \"{line}\"\n  input %0 \"{name}\": f32[2, 3] dynamic\n  \
             %1 = {op} %0 : f32[2, 3] #0\n  output %1 \"\"\n}}\n"
        );
        fs::write(&input, text).unwrap();
    };
    let why = |more: &[&str]| {
        let mut arguments = vec!["cache", "why", text(&input)];
        arguments.extend(more);
        place.text(&arguments)
    };
    write("x", "model.py:1", "exp");
    assert_eq!(why(&[]), "miss: the cache is empty\n");
    assert!(place.run(&["compile", text(&input), "-o", "x.neff"]).status.success());
    assert!(why(&[]).starts_with("hit: "), "{}", why(&[]));
    assert!(why(&["--target", "trn3"]).contains("\n  --target: trn3 here, trn2 there\n"));
    assert!(why(&["--numerics", "exact"]).contains("\n  --numerics: exact here, contract there\n"));
    assert!(why(&["--disable-rule", "rms-norm"]).contains("\n  --disable-rule: rms-norm here, none there\n"));
    write("x", "model.py:2", "exp");
    assert!(why(&[]).ends_with("different are\n  module paths or source lines\n"), "{}", why(&[]));
    write("y", "model.py:1", "exp");
    assert!(why(&[]).ends_with("different are\n  names of the graph, its tensors or nodes\n"), "{}", why(&[]));
    write("x", "model.py:1", "tanh");
    assert!(why(&[]).contains("\n  the graph: ops, types or shapes\n"), "{}", why(&[]));
    write("x", "model.py:1", "exp");
    // An entry of another compiler.
    let entry = place.entries().remove(0);
    let mut other = compiler::cache::Entry::from_bytes(&fs::read(&entry).unwrap()).unwrap();
    other.key.version = "0.0.1+0".to_owned();
    fs::remove_file(&entry).unwrap();
    let path = entry.with_file_name(format!("{}.entry", other.key.digest()));
    fs::write(path, other.to_bytes().unwrap()).unwrap();
    let version = compiler::cache::COMPILER_VERSION;
    let expected = format!("different are\n  the compiler's version: {version} here, 0.0.1+0 there\n");
    assert!(why(&[]).ends_with(&expected), "{}", why(&[]));
    assert!(place.run(&["compile", text(&input), "-o", "x.neff"]).status.success());
    assert_eq!(place.entries().len(), 2);
}

#[test]
fn clear_removes_compilations_and_nothing_else() {
    let place = Place::new();
    place.compile("rms_norm_naive_bf16", &place.neff("x.neff"), &[]);
    fs::write(place.cache.join("entries").join("mine.txt"), b"keep").unwrap();
    assert!(place.text(&["cache", "clear"]).contains("holds 1 compilation, "));
    assert_eq!(place.entries().len(), 1);
    assert!(place.text(&["cache", "clear", "--all"]).starts_with("removed 1 compilation, "));
    assert!(place.entries().is_empty());
    assert!(place.cache.join("entries").join("mine.txt").exists());
    assert_eq!(place.text(&["cache", "path"]).trim_end(), text(&place.cache));
}
