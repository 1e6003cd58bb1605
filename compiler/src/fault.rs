//! Reports on faults of the compiler: a file from which anyone can make the fault happen again.
//!
//! A report is the imported graph in the IR's text form, so that it is an input of the command as it
//! stands, with the error, the options and the compiler's version as comments before it, and what the
//! failing pass was given as a comment after it. Compilations are deterministic; the pass is found by
//! compiling once more with an eye on every stage.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use ir::Graph;
use sha2::{Digest, Sha256};

use crate::cache::COMPILER_VERSION;
use crate::error::Error;
use crate::pipeline::{Compiled, Options, Stage, Watcher, compile, pass_after};
use passes::manager::PassReport;

/// What a fault happened in.
#[derive(Copy, Clone, Debug)]
pub struct Circumstances<'a> {
    /// The command that makes it happen again: `compile`, `check` or `profile`.
    pub command: &'a str,
    /// The graph as imported.
    pub graph: &'a Graph,
    pub options: &'a Options,
}

/// A compilation as [`report_text`] repeats it.
pub type Compile<'a> = &'a dyn Fn(&Graph, &Options, &mut dyn Watcher) -> Result<Compiled, Error>;

/// The error with the place of a report on it, which is written to this folder; errors that are no
/// internal ones stay as they are.
pub fn reported(error: Error, circumstances: Circumstances<'_>, folder: &Path) -> Error {
    let Error::Internal(message) = &error else { return error };
    let text = report_text(message, circumstances, &compile);
    let help = match write_report(folder, &circumstances.graph.name, &text) {
        Ok(path) => {
            let command = replay_command(circumstances, &path.display().to_string());
            format!("this is a fault of neffuse: please report it with {}\n  replay: {command}", path.display())
        }
        Err(error) => format!("this is a fault of neffuse, and {}: {error}: please report it", folder.display()),
    };
    error.with_help(&help)
}

/// The report on an internal error with this message.
pub fn report_text(message: &str, circumstances: Circumstances<'_>, compile: Compile<'_>) -> String {
    let Circumstances { command: _, graph, options } = circumstances;
    let mut keeper = StageKeeper { done: None, last: graph.to_string() };
    let again = compile(graph, options, &mut keeper);
    let mut text = String::from("// neffuse: report on an internal error\n");
    let mut line = |name: &str, value: &str| {
        for (position, value) in value.lines().enumerate() {
            let name = if position == 0 { format!("{name}:") } else { String::new() };
            writeln!(text, "// {name:<9}{value}").expect("strings take all text");
        }
    };
    line("version", COMPILER_VERSION);
    line("error", message);
    match &again {
        Err(Error::Internal(_)) => line("pass", pass_after(keeper.done).unwrap_or("none")),
        Err(other) => line("pass", &format!("not known; compiled again, it ended in {other}")),
        Ok(_) => line("pass", "none: the graph compiles, the program is wrong"),
    }
    let fuel = options.fuel.map_or("unlimited".to_owned(), |fuel| fuel.to_string());
    line("target", options.target.name());
    line("numerics", options.numerics.name());
    line("fuel", &fuel);
    line(
        "disabled",
        &if options.disabled_rules.is_empty() { "no rules".into() } else { options.disabled_rules.join(", ") },
    );
    line("replay", &replay_command(circumstances, "THIS_FILE"));
    write!(text, "{graph}").expect("strings take all text");
    if let (Err(Error::Internal(_)), Some(pass)) = (&again, pass_after(keeper.done)) {
        writeln!(text, "// before pass `{pass}`:").expect("strings take all text");
        for line in keeper.last.lines() {
            writeln!(text, "// {line}").expect("strings take all text");
        }
    }
    text
}

/// Writes a report whole, under a name that its content decides, and gives its path.
///
/// # Errors
/// When the folder cannot be made or written.
pub fn write_report(folder: &Path, graph_name: &str, text: &str) -> io::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    let digest: String = Sha256::digest(text)[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    let plain = |character: char| if character.is_ascii_alphanumeric() { character } else { '_' };
    let name: String = graph_name.chars().take(64).map(plain).collect();
    let path = folder.join(format!("{name}-{digest}.ir"));
    // A file of this name has this content.
    if !path.exists() {
        crate::commands::write_atomically(&path, text.as_bytes())
            .map_err(|error| io::Error::other(error.to_string()))?;
    }
    Ok(path)
}

fn replay_command(circumstances: Circumstances<'_>, file: &str) -> String {
    let Circumstances { command, graph: _, options } = circumstances;
    let Options { target, numerics, print_after: _, stop_after, fuel, disabled_rules, outline } = options;
    let mut text = format!("neffuse {command} {file} --no-cache --target {target} --numerics {}", numerics.name());
    if let Some(fuel) = fuel {
        write!(text, " --fuel {fuel}").expect("strings take all text");
    }
    if let Some(pass) = stop_after {
        write!(text, " --stop-after {pass}").expect("strings take all text");
    }
    if *outline != Options::default().outline {
        write!(text, " --outline {}", outline.name()).expect("strings take all text");
    }
    for rule in disabled_rules {
        write!(text, " --disable-rule {rule}").expect("strings take all text");
    }
    text
}

/// Keeps the last pass and what it left.
struct StageKeeper {
    done: Option<&'static str>,
    last: String,
}

impl Watcher for StageKeeper {
    fn after(&mut self, report: &PassReport, stage: Stage<'_>) {
        self.done = Some(report.name);
        self.last = stage.text();
    }
}

#[cfg(test)]
mod tests {
    use ir::Graph;
    use ir::text::parse_graph;
    use passes::manager::PassReport;

    use super::{Circumstances, report_text, reported, write_report};
    use crate::error::Error;
    use crate::pipeline::{Compiled, Options, Stage, Watcher, compile, silence_panics};

    const TEXT: &str =
        "graph @g {\n  input %0 \"x\": f32[4, 8] dynamic\n  %1 = exp %0 : f32[4, 8]\n  output %1 \"\"\n}\n";

    /// A compiler whose pass after `fuse` panics, whatever it gets.
    fn broken(graph: &Graph, options: &Options, watcher: &mut dyn Watcher) -> Result<Compiled, Error> {
        struct Bomb<'a>(&'a mut dyn Watcher);
        impl Watcher for Bomb<'_> {
            fn after(&mut self, report: &PassReport, stage: Stage<'_>) {
                self.0.after(report, stage);
                assert!(report.name != "fuse", "the next pass is broken");
            }
        }
        compile(graph, options, &mut Bomb(watcher))
    }

    #[test]
    fn a_report_names_the_pass_and_is_an_input_that_replays_the_fault() {
        silence_panics();
        let graph = parse_graph("g.ir", TEXT).unwrap();
        let options = Options { fuel: Some(1000), disabled_rules: vec!["rms-norm".to_owned()], ..Options::default() };
        let error = broken(&graph, &options, &mut crate::pipeline::Unwatched).unwrap_err();
        let Error::Internal(message) = &error else { panic!("{error}") };
        let circumstances = Circumstances { command: "compile", graph: &graph, options: &options };
        let text = report_text(message, circumstances, &broken);
        assert!(text.contains("\n// pass:    index_masks\n"), "{text}");
        assert!(text.contains("the next pass is broken"), "{text}");
        let replay = "// replay:  neffuse compile THIS_FILE --no-cache --target trn2 --numerics contract --fuel 1000 \
            --disable-rule rms-norm\n";
        assert!(text.contains(replay), "{text}");
        assert!(text.contains("// before pass `index_masks`:\n// graph @g {\n"), "{text}");
        let again = parse_graph("report.ir", &text).unwrap();
        assert_eq!(again, graph);
        let second = broken(&again, &options, &mut crate::pipeline::Unwatched).unwrap_err();
        assert_eq!(second, error);
    }

    #[test]
    fn reports_are_kept_apart_and_other_errors_have_none() {
        let folder = tempfile::tempdir().unwrap();
        let graph = parse_graph("g.ir", TEXT).unwrap();
        let options = Options::default();
        let circumstances = Circumstances { command: "check", graph: &graph, options: &options };
        let input = Error::Input("x".to_owned());
        assert_eq!(reported(input.clone(), circumstances, folder.path()), input);
        let internal = |message: &str| reported(Error::Internal(message.to_owned()), circumstances, folder.path());
        let (one, other) = (internal("one\ndetail").to_string(), internal("other").to_string());
        assert_eq!(internal("one\ndetail").to_string(), one);
        assert!(one.starts_with("error[internal]: one\ndetail\n  help: this is a fault of neffuse"), "{one}");
        assert!(one.contains("\n  replay: neffuse check "), "{one}");
        assert_ne!(one, other);
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(files.len(), 2);
        // The compiler is not broken here, and the report says so.
        let text = std::fs::read_to_string(files[0].as_ref().unwrap().path()).unwrap();
        assert!(text.contains("// pass:    none: the graph compiles, the program is wrong\n"), "{text}");
        let file = folder.path().join("file");
        std::fs::write(&file, b"").unwrap();
        assert!(write_report(&file, "g", "text").is_err());
    }
}
