//! Help, completions, colours, quiet and verbose.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const COMMANDS: [&str; 13] = [
    "compile",
    "check",
    "run",
    "profile",
    "three-way",
    "explain",
    "bisect",
    "reduce",
    "cache",
    "info",
    "unpack",
    "objdump",
    "completions",
];

fn neffuse(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_neffuse"));
    command.env("NEFFUSE_CACHE_DIR", "").env_remove("XDG_CACHE_HOME").env_remove("HOME").env("COLUMNS", "80");
    command.args(arguments).output().expect("the command starts")
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

fn graph(name: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/graphs").join(format!("{name}.inf.json"));
    path.to_str().unwrap().to_owned()
}

#[test]
fn every_command_has_examples_that_fit_a_terminal() {
    let (help, _) = texts(&neffuse(&["--help"]));
    for command in COMMANDS {
        assert!(help.contains(&format!("\n  {command}")), "{command} is missing:\n{help}");
        let (help, _) = texts(&neffuse(&[command, "--help"]));
        let (_, examples) = help.split_once("\nExamples:\n").unwrap_or_else(|| panic!("{command} has no examples"));
        assert!(examples.lines().all(|line| line.starts_with("  ") && line.len() < 80), "{examples}");
        assert!(examples.contains(&format!("neffuse {command}")), "{examples}");
    }
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let listed: Vec<&str> = listed.filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next()).collect();
    let known: Vec<&str> = COMMANDS.into_iter().chain(["help"]).collect();
    assert!(known.iter().all(|command| listed.contains(command)), "{listed:?}");
    assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
}

#[test]
fn shells_get_completions_for_every_command() {
    for (shell, mark) in
        [("bash", "complete -F _neffuse"), ("zsh", "#compdef neffuse"), ("fish", "complete -c neffuse")]
    {
        let output = neffuse(&["completions", shell]);
        assert!(output.status.success());
        let (script, _) = texts(&output);
        assert!(script.contains(mark), "{shell}");
        assert!(COMMANDS.iter().all(|command| script.contains(command)), "{shell}");
    }
    // The shell itself reads it, where it is installed.
    let (script, _) = texts(&neffuse(&["completions", "bash"]));
    if let Ok(output) = Command::new("bash").args(["-n", "-c", &script]).output() {
        assert!(output.status.success(), "{}", texts(&output).1);
    }
}

#[test]
fn colours_come_on_request_only() {
    let wrong = ["compile", &graph("softmax_naive_f32"), "--stop-after", "fus"];
    let plain = texts(&neffuse(&wrong)).1;
    assert!(!plain.contains('\u{1b}'), "no terminal, no colours: {plain}");
    let colored = texts(&neffuse(&[&wrong[..], &["--color", "always"]].concat())).1;
    assert!(colored.starts_with("\u{1b}[1m\u{1b}[31merror[usage]:\u{1b}[0m --print-after"), "{colored:?}");
    assert!(!texts(&neffuse(&[&wrong[..], &["--color=never"]].concat())).1.contains('\u{1b}'));
    let usage = texts(&neffuse(&["compile", "--color=always", "--no-such-option"])).1;
    assert!(usage.contains("\u{1b}[31merror[usage]:\u{1b}["), "{usage:?}");
}

#[test]
fn quiet_leaves_results_and_errors_and_verbose_tells_each_pass() {
    let input = graph("softmax_naive_f32");
    let (stdout, stderr) = texts(&neffuse(&["check", &input, "--quiet"]));
    assert_eq!((stdout.as_str(), stderr.as_str()), ("", ""));
    let (stdout, stderr) = texts(&neffuse(&["-q", "compile", &input, "--emit", "graph"]));
    assert!(stdout.contains("= softmax") && stderr.is_empty(), "{stderr}");
    let output = neffuse(&["check", &input, "--stop-after", "fuse", "-q"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(texts(&output).1.starts_with("error[usage]: "));
    let (_, stderr) = texts(&neffuse(&["check", &input, "-v"]));
    for pass in compiler::pipeline::PASSES {
        assert!(stderr.lines().any(|line| line.starts_with(pass) && line.ends_with(" ms")), "{pass}: {stderr}");
    }
    assert!(stderr.contains("softmax=1"), "{stderr}");
    assert!(!neffuse(&["check", &input, "-v", "-q"]).status.success());
}
