//! The command line: arguments, and one file per command.
//!
//! Commands return what they found; [`main`] alone prints, and turns errors into exit codes.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use ir::Graph;
use ir::target::TargetName;
use passes::Numerics;

use crate::cache::Cache;
use crate::error::Error;
use crate::fault::{Circumstances, reported};
use crate::pipeline::{Options, Outlining, PASSES, guarded, silence_panics};

mod bisect;
mod cache;
mod check;
mod compile;
mod completions;
mod diverge;
mod explain;
mod inspect;
mod output;
mod predicate;
mod profile;
mod progress;
mod reduce;
mod run;
mod style;

use progress::{Verbosity, set_verbosity};
use style::{color_choice, painted, stream_choice};

pub use check::{Check, CheckOutcome, check};
pub use compile::{BuildOutcome, CompileOutcome, Parameters, build_file, compile_file};
pub use output::write_atomically;
pub use run::run_npz;

/// Compiles PyTorch graphs for AWS Trainium and runs the result on a simulator.
#[derive(Debug, Parser)]
#[command(name = "neffuse", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Colours on terminals (`auto`; not where NO_COLOR is set), everywhere or nowhere
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = "Output")]
    color: ColorChoice,
    /// Print results and errors, but no summaries, notices and progress
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Output")]
    quiet: bool,
    /// Print the time and counts of every pass
    #[arg(short, long, global = true, help_heading = "Output")]
    verbose: bool,
}

const EXAMPLES: &str = "\
Examples:
  neffuse compile model.json -o model.neff   compile a captured graph for trn2
  neffuse check model.json                   compile, simulate, compare
  neffuse profile model.json --eager         predicted time, also node by node
  neffuse explain model.json                 what was fused, by which rules
  neffuse run model.neff --inputs x.npz --outputs y.npz
  neffuse info any.neff                      what is in a NEFF, the vendor's too
  neffuse COMMAND --help                     examples of each command

Exit codes: 0 ok, 1 bad input or usage, 2 unsupported graph, 3 internal fault,
4 mismatch.";

#[derive(Debug, Subcommand)]
enum Command {
    Compile(compile::CompileArgs),
    Check(check::CheckArgs),
    Run(run::RunArgs),
    Profile(profile::ProfileArgs),
    ThreeWay(profile::ThreeWayArgs),
    Explain(explain::ExplainArgs),
    Bisect(bisect::BisectArgs),
    Reduce(reduce::ReduceArgs),
    Cache(cache::CacheArgs),
    Info(inspect::InfoArgs),
    Unpack(inspect::UnpackArgs),
    Objdump(inspect::ObjdumpArgs),
    Completions(completions::CompletionsArgs),
}

/// How to compile; the same for every command that does.
#[derive(Clone, Debug, Args)]
pub struct CompileOptions {
    /// The chip to compile for
    #[arg(long, value_parser = target, default_value = "trn2", value_name = "trn1|trn2|trn3")]
    target: TargetName,
    /// How far rewrites may change bits: `exact` keeps every rounding, `reassoc` may reorder sums,
    /// `contract` may also drop roundings of intermediates, `approx` may use close formulas
    #[arg(long, value_parser = numerics, default_value = "contract", value_name = "exact|reassoc|contract|approx")]
    numerics: Numerics,
    /// Print the graph or program after this pass (`all`: after every pass); may be repeated
    #[arg(long, value_name = "PASS", help_heading = "Debugging", long_help = print_after_help())]
    print_after: Vec<String>,
    /// Stop after this pass
    #[arg(long, value_name = "PASS", help_heading = "Debugging")]
    stop_after: Option<String>,
    /// Changes that passes may make in all: halve it to find the change that breaks a model
    #[arg(long, value_name = "N", help_heading = "Debugging")]
    fuel: Option<u64>,
    /// Compile without this fusion rule; may be repeated
    #[arg(long, value_name = "RULE", help_heading = "Debugging")]
    disable_rule: Vec<String>,
    /// Whether repeated layers are compiled once and called, or everything is one kernel
    #[arg(long, value_parser = outlining, default_value = "auto", value_name = "auto|off")]
    outline: Outlining,
    /// Neither read nor write the compile cache (see `neffuse cache --help`)
    #[arg(long)]
    no_cache: bool,
}

impl CompileOptions {
    /// The pipeline's options.
    fn options(&self) -> Options {
        Options {
            target: self.target,
            numerics: self.numerics,
            print_after: self.print_after.clone(),
            stop_after: self.stop_after.clone(),
            fuel: self.fuel,
            disabled_rules: self.disable_rule.clone(),
            outline: self.outline,
        }
    }

    /// What a command line says to get these options for two sides; empty where they are the default.
    fn replaying(&self) -> String {
        let default = Options::default();
        let mut text = String::new();
        if self.target != default.target {
            text += &format!(" --target {}", self.target);
        }
        if self.numerics != default.numerics {
            text += &format!(" --numerics {}", self.numerics.name());
        }
        if self.outline != default.outline {
            text += &format!(" --outline {}", self.outline.name());
        }
        self.disable_rule.iter().for_each(|rule| text += &format!(" --disable-rule {rule}"));
        text
    }

    /// The compile cache, unless it shall not be used or there is no place for one.
    fn cache(&self) -> Result<Option<Cache>, Error> {
        if self.no_cache { Ok(None) } else { Cache::from_variables(&|name| std::env::var_os(name)) }
    }
}

fn print_after_help() -> String {
    let passes = PASSES.join(", ");
    format!(
        "Print the graph or program after this pass (`all`: after every pass); may be repeated. Passes are {passes}"
    )
}

fn outlining(text: &str) -> Result<Outlining, String> {
    text.parse()
}

fn target(text: &str) -> Result<TargetName, String> {
    text.parse().map_err(|error: ir::types::TypeError| error.message)
}

fn numerics(text: &str) -> Result<Numerics, String> {
    text.parse().map_err(|error: ir::types::TypeError| error.message)
}

/// A machine-readable form of the result.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
enum ReportForm {
    /// One JSON object on standard output
    Json,
}

#[derive(Clone, Debug, Args)]
struct ReportArgs {
    /// Print one JSON object on standard output instead of text
    #[arg(long, value_name = "FORM")]
    report: Option<ReportForm>,
}

impl ReportArgs {
    fn is_json(&self) -> bool {
        self.report.is_some()
    }
}

/// What a command prints and how it ends.
struct Outcome {
    /// For standard output.
    stdout: String,
    /// For standard error: summaries and diagnostics.
    stderr: String,
    exit_code: u8,
}

impl Outcome {
    fn text(stdout: String) -> Outcome {
        Outcome { stdout, stderr: String::new(), exit_code: 0 }
    }
}

/// The whole command: reads the arguments, prints, gives the exit code.
pub fn main() -> ExitCode {
    // Panics are reported as internal errors, with the message once.
    silence_panics();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let color = color_choice(&arguments);
    stream_choice(color).write_global();
    let matches = Cli::command().color(color).try_get_matches_from(arguments);
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and versions are no errors.
            if !error.use_stderr() {
                let _ = error.print();
                return ExitCode::SUCCESS;
            }
            let text = error.render().ansi().to_string().replacen("error:", "error[usage]:", 1);
            let _ = anstream::stderr().write_all(text.as_bytes());
            return ExitCode::from(1);
        }
    };
    let verbosity = match (cli.quiet, cli.verbose) {
        (true, _) => Verbosity::Quiet,
        (false, true) => Verbosity::Verbose,
        (false, false) => Verbosity::Normal,
    };
    set_verbosity(verbosity);
    let mut outcome = guarded(|| Ok(dispatch(cli.command))).unwrap_or_else(|error| failed(&error));
    if verbosity == Verbosity::Quiet {
        outcome.stderr = only_error(&outcome.stderr).to_owned();
    }
    let _ = anstream::stderr().write_all(painted(&outcome.stderr).as_bytes());
    let mut stdout = std::io::stdout();
    match stdout.write_all(outcome.stdout.as_bytes()).and_then(|()| stdout.flush()) {
        // A closed pipe ends the reader's interest, not the command's success.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let _ = writeln!(std::io::stderr(), "error[file]: standard output: {error}");
            ExitCode::from(1)
        }
        Ok(()) | Err(_) => ExitCode::from(outcome.exit_code),
    }
}

/// The error in what a command says, without what stands before it.
fn only_error(stderr: &str) -> &str {
    let starts = std::iter::once(0).chain(stderr.match_indices('\n').map(|(end, _)| end + 1));
    let mut errors = starts.map(|start| &stderr[start..]).filter(|rest| rest.starts_with("error["));
    errors.next().unwrap_or_default()
}

fn dispatch(command: Command) -> Outcome {
    match command {
        Command::Compile(arguments) => compile::command(&arguments),
        Command::Check(arguments) => check::command(&arguments),
        Command::Run(arguments) => run::command(&arguments).unwrap_or_else(|error| failed(&error)),
        Command::Profile(arguments) => profile::command(&arguments),
        Command::ThreeWay(arguments) => profile::three_way_command(&arguments).unwrap_or_else(|error| failed(&error)),
        Command::Explain(arguments) => explain::command(&arguments).unwrap_or_else(|error| failed(&error)),
        Command::Bisect(arguments) => bisect::command(&arguments).unwrap_or_else(|error| failed(&error)),
        Command::Reduce(arguments) => reduce::command(&arguments).unwrap_or_else(|error| failed(&error)),
        Command::Cache(arguments) => cache::command(&arguments).unwrap_or_else(|error| failed(&error)),
        Command::Info(arguments) => inspect::info(&arguments).unwrap_or_else(|error| failed(&error)),
        Command::Unpack(arguments) => inspect::unpack(&arguments).unwrap_or_else(|error| failed(&error)),
        Command::Completions(arguments) => completions::command(&arguments),
        Command::Objdump(arguments) => inspect::objdump(&arguments).unwrap_or_else(|error| failed(&error)),
    }
}

/// What a command gives, or its error; an internal one with a report on it.
fn with_report<T>(result: Result<T, Error>, command: &str, graph: &Graph, options: &Options) -> Result<T, Error> {
    result.map_err(|error| reported(error, Circumstances { command, graph, options }, &report_folder()))
}

/// Where reports on faults are written: beside the compile cache, where there is one.
pub fn report_folder() -> PathBuf {
    let cache = Cache::from_variables(&|name| std::env::var_os(name)).ok().flatten();
    cache.map_or_else(|| std::env::temp_dir().join("neffuse"), |cache| cache.folder().to_owned()).join("reports")
}

fn failed(error: &Error) -> Outcome {
    Outcome { stdout: String::new(), stderr: format!("{error}\n"), exit_code: error.exit_code() }
}

/// Name of a graph file without its extension.
fn stem(path: &Path) -> String {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| Error::File(format!("{}: {error}", path.display())))
}

/// The default output beside the working directory: `x.neff` for `x.json`.
fn default_output(input: &Path, extension: &str) -> PathBuf {
    PathBuf::from(format!("{}.{extension}", stem(input)))
}
