//! `neffuse compile`: a graph to a NEFF, or to one of the forms on the way.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use ir::Graph;

use super::progress::Terminal;
use super::{CompileOptions, Outcome, ReportArgs, default_output, stem, with_report, write_atomically};
use crate::cache::{Built, Cache, build};
use crate::error::Error;
use crate::import::pt2::ArchiveFile;
use crate::import::{is_archive, read_graph};
use crate::pipeline::{Compiled, Options, Watcher, compile, freeze};
use crate::report::{CacheUse, Report};
use crate::samples::{recorded_path, samples_for};

/// Compile a graph to a NEFF
///
/// Parameters stay inputs of the NEFF unless --freeze stores them in it.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  neffuse compile model.json -o model.neff --target trn3
  neffuse compile model.json --emit graph      the fused graph as text
  neffuse compile model.json --print-after fuse --stop-after fuse
  neffuse compile model.json --report json | jq .hbm_read_bytes")]
pub(super) struct CompileArgs {
    /// The graph: .pt2 (torch.export), .json (fxg-json/1) or .ir
    input: PathBuf,
    /// Where to write; by default the input's name with another extension, in the current folder.
    /// Text goes to standard output unless a file is named
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// What to write
    #[arg(long, default_value = "neff", value_name = "graph|program|neff|elf")]
    emit: Emit,
    /// Store the values of parameters in the NEFF; they are read from the .pt2 archive, or from the
    /// recorded values beside the graph
    #[arg(long)]
    freeze: bool,
    #[command(flatten)]
    options: CompileOptions,
    #[command(flatten)]
    report: ReportArgs,
}

/// A form to write.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
enum Emit {
    /// The graph after the last graph pass, as text
    Graph,
    /// The program after the last program pass, as text
    Program,
    /// The NEFF
    Neff,
    /// The kernel object before linking
    Elf,
}

/// A compiled file.
#[derive(Clone, Debug)]
pub struct CompileOutcome {
    /// As it was imported, parameters frozen where asked.
    pub imported: Graph,
    pub compiled: Compiled,
    pub report: Report,
}

/// Whether parameters are stored in the NEFF.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Parameters {
    Inputs,
    Frozen,
}

/// A graph file and its NEFF, compiled now or earlier.
#[derive(Clone, Debug)]
pub struct BuildOutcome {
    /// As it was imported, parameters frozen where asked.
    pub imported: Graph,
    pub built: Built,
}

/// Reads a graph file and compiles it, unless the cache has what an earlier compilation gave.
///
/// # Errors
/// As [`read_graph`] and [`build`].
pub fn build_file(
    input: &Path,
    parameters: Parameters,
    options: &Options,
    cache: Option<&Cache>,
    watcher: &mut dyn Watcher,
) -> Result<BuildOutcome, Error> {
    let imported = import_file(input, parameters)?;
    let built = build(&imported, options, cache, watcher);
    let mut built = with_report(built, "compile", &imported, options)?;
    built.report.graph = stem(input);
    Ok(BuildOutcome { imported, built })
}

/// Reads and compiles a graph file, whatever the cache has: all forms on the way are wanted.
///
/// # Errors
/// As [`read_graph`] and [`compile`].
pub fn compile_file(
    input: &Path,
    parameters: Parameters,
    options: &Options,
    watcher: &mut dyn Watcher,
) -> Result<CompileOutcome, Error> {
    let imported = import_file(input, parameters)?;
    let compiled = with_report(compile(&imported, options, watcher), "compile", &imported, options)?;
    let mut report = Report::new(stem(input));
    report.note_options(options);
    report.note_compiled(&imported, &compiled);
    report.cache = Some(CacheUse::Off);
    report.ok = true;
    Ok(CompileOutcome { imported, compiled, report })
}

/// Reads a graph file.
///
/// # Errors
/// As [`read_graph`]; when parameters shall be frozen and their values are not there.
pub(super) fn import_file(input: &Path, parameters: Parameters) -> Result<Graph, Error> {
    let mut imported = read_graph(input)?;
    if parameters == Parameters::Frozen {
        imported = frozen(&imported, input)?;
    }
    Ok(imported)
}

/// The graph with its parameters stored in it: those of the archive, or recorded values beside it.
fn frozen(graph: &Graph, path: &Path) -> Result<Graph, Error> {
    if is_archive(path) {
        return ArchiveFile::open(path)?.with_tensors(|tensors| {
            let elements = |position: usize| tensors.elements(&graph.inputs[position].name).map(Cow::into_owned);
            freeze(graph, |position| elements(position).map_err(Error::Input))
        });
    }
    let recorded = recorded_path(path);
    if !recorded.exists() {
        return Err(Error::Input(format!("{}: --freeze needs the values of parameters there", recorded.display())));
    }
    let samples = samples_for(graph, path)?;
    freeze(graph, |position| {
        let input = &graph.inputs[position];
        let bytes = samples.inputs[position].to_bytes(graph.ty(input.value).dtype);
        bytes.map_err(|error| Error::Input(format!("input `{}`: {error}", input.name)))
    })
}

pub(super) fn command(arguments: &CompileArgs) -> Outcome {
    let options = arguments.options.options();
    match emit(arguments, &options) {
        Ok((report, stdout, note)) => {
            if arguments.report.is_json() {
                return Outcome { stdout: report.to_json() + "\n", stderr: String::new(), exit_code: 0 };
            }
            Outcome { stdout, stderr: note + &report.compile_summary(), exit_code: 0 }
        }
        Err(error) => {
            let mut report = Report::failed(stem(&arguments.input), &error);
            report.note_options(&options);
            let stdout = if arguments.report.is_json() { report.to_json() + "\n" } else { String::new() };
            Outcome { stdout, stderr: format!("{error}\n"), exit_code: error.exit_code() }
        }
    }
}

/// The report, text for standard output, and a line about what was written.
fn emit(arguments: &CompileArgs, options: &Options) -> Result<(Report, String, String), Error> {
    let parameters = if arguments.freeze { Parameters::Frozen } else { Parameters::Inputs };
    let mut terminal = Terminal::new(&format!("compiling {}", stem(&arguments.input)));
    if arguments.emit == Emit::Neff && options.stop_after.is_none() {
        let cache = arguments.options.cache()?;
        let outcome = build_file(&arguments.input, parameters, options, cache.as_ref(), &mut terminal)?;
        drop(terminal);
        let path = arguments.output.clone().unwrap_or_else(|| default_output(&arguments.input, "neff"));
        let Built { neff, report } = outcome.built;
        let note = write_output(&path, &neff)?;
        return Ok((report, String::new(), note));
    }
    let outcome = compile_file(&arguments.input, parameters, options, &mut terminal)?;
    drop(terminal);
    let CompileOutcome { compiled, report, .. } = outcome;
    let (bytes, extension) = match arguments.emit {
        Emit::Graph => (Some(graph_text(&compiled).into_bytes()), None),
        Emit::Program => (program_text(&compiled).map(String::into_bytes), None),
        Emit::Neff => (compiled.neff.clone(), Some("neff")),
        Emit::Elf => (elf(&compiled)?, Some("o")),
    };
    if arguments.emit == Emit::Elf {
        let path = arguments.output.clone().unwrap_or_else(|| default_output(&arguments.input, "o"));
        if let Some(note) = write_elfs(&compiled, &path)? {
            return Ok((report, String::new(), note));
        }
    }
    let Some(bytes) = bytes else {
        if options.stop_after.is_some() {
            return Ok((report, String::new(), String::new()));
        }
        return Err(Error::Internal("a whole compilation gives every form".to_owned()));
    };
    let path = match (&arguments.output, extension) {
        (Some(path), _) => path.clone(),
        (None, Some(extension)) => default_output(&arguments.input, extension),
        (None, None) if arguments.report.is_json() => {
            return Err(Error::Input("standard output takes the report: name a file with -o".to_owned()));
        }
        (None, None) => {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            return Ok((report, text, String::new()));
        }
    };
    let note = write_output(&path, &bytes)?;
    Ok((report, String::new(), note))
}

/// The graph that is left; of an outlined one the graph of each function.
fn graph_text(compiled: &Compiled) -> String {
    match &compiled.outlined {
        Some(outlined) => {
            outlined.functions.iter().map(|function| format!("{function}")).collect::<Vec<_>>().join("\n")
        }
        None => compiled.graph.to_string(),
    }
}

/// The program; of an outlined graph that of each kernel.
fn program_text(compiled: &Compiled) -> Option<String> {
    match &compiled.outlined {
        Some(outlined) if outlined.programs.is_empty() => None,
        Some(outlined) => {
            Some(outlined.programs.iter().map(|program| format!("{program}")).collect::<Vec<_>>().join("\n"))
        }
        None => compiled.program.as_ref().map(ToString::to_string),
    }
}

/// Writes a file and gives a line about it.
fn write_output(path: &Path, bytes: &[u8]) -> Result<String, Error> {
    write_atomically(path, bytes)?;
    Ok(format!("wrote {} ({} bytes)\n", path.display(), bytes.len()))
}

/// The kernel object of a compilation.
fn elf(compiled: &Compiled) -> Result<Option<Vec<u8>>, Error> {
    let Some(program) = &compiled.program else { return Ok(None) };
    let object = codegen::kernel_object(program).and_then(|object| object.write());
    object.map(Some).map_err(|error| Error::Internal(error.to_string()))
}

/// Writes each kernel of an outlined graph beside the others: `model.0.o`, `model.1.o`.
fn write_elfs(compiled: &Compiled, path: &Path) -> Result<Option<String>, Error> {
    let Some(module) = compiled.outlined.as_ref().and_then(|outlined| outlined.module.as_ref()) else {
        return Ok(None);
    };
    let mut note = String::new();
    for (number, kernel) in module.kernels.iter().enumerate() {
        let object = codegen::module_kernel_object(module, kernel).and_then(|object| object.write());
        let object = object.map_err(|error| Error::Internal(error.to_string()))?;
        note += &write_output(&path.with_extension(format!("{number}.o")), &object)?;
    }
    Ok(Some(note))
}
