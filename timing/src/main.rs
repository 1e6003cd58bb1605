//! Replays measured kernels on the simulator and fits its timing constants.

mod expression;
mod kernel;
mod measurements;
mod replay;
mod rows;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ir::target::TargetName;
use rayon::prelude::*;

/// Replays measured kernels on the simulator and fits its timing constants
#[derive(Parser)]
struct Arguments {
    /// Folder of rows.txt and kernels/
    #[arg(long, default_value = "tests/timing")]
    folder: PathBuf,
    /// Table of measurements
    #[arg(long, default_value = "../shared/hardware/trainium-measurements.csv")]
    measurements: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print measured and predicted values row by row
    Rows {
        /// Only rows whose id, kernel or group contains this
        filter: Option<String>,
        /// Try another value of a number: NAME=VALUE
        #[arg(long = "set")]
        sets: Vec<String>,
    },
    /// Print the program of a row
    Program { id: String },
    /// Print the timeline of a row
    Timeline { id: String },
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let cases = replay::load(&arguments.folder, &arguments.measurements)?;
    match &arguments.command {
        Command::Rows { filter, sets } => {
            let chosen = |case: &&replay::Case| {
                filter.as_ref().is_none_or(|text| {
                    case.row.id == *text
                        || case.measured.group.contains(text)
                        || case.row.kernels.iter().any(|kernel| kernel.contains(text))
                })
            };
            let mut targets = TargetName::ALL.map(|name| name.target().clone());
            for set in sets {
                let (name, value) = set.split_once('=').ok_or("--set takes NAME=VALUE")?;
                let value: u64 = value.parse().map_err(|_| format!("`{value}` is no number"))?;
                for target in &mut targets {
                    if !target.set(name, value) {
                        return Err(format!("there is no number `{name}`"));
                    }
                }
            }
            let cases: Vec<_> = cases.iter().filter(chosen).collect();
            let outcomes: Result<Vec<_>, String> =
                cases.par_iter().map(|case| case.run(&targets[case.measured.chip as usize])).collect();
            for (case, outcome) in cases.iter().zip(outcomes?) {
                println!(
                    "{} {:<44} {:>12.3} {:>12.3} {:>+7.1} % {}",
                    case.row.id,
                    format!("{} {}", case.measured.group, case.row.kernels.join("+")),
                    outcome.measured / 1e6,
                    outcome.predicted / 1e6,
                    100.0 * outcome.error(),
                    if case.row.apart || case.measured.correction != 1.0 { "apart" } else { &case.measured.kind },
                );
            }
        }
        Command::Program { id } | Command::Timeline { id } => {
            let case = cases.iter().find(|case| case.row.id == *id).ok_or("there is no such row")?;
            for machine in &case.machines {
                let timeline = machine.timeline().map_err(|finding| finding.to_string())?;
                let mut spans: Vec<_> = timeline.spans.iter().collect();
                spans.sort_by_key(|span| span.start_ps);
                for span in spans {
                    println!(
                        "{:>10.3} {:>10.3} {:>10.3} {} {} {:?} {}",
                        span.start_ps as f64 / 1e3,
                        span.end_ps as f64 / 1e3,
                        span.done_ps as f64 / 1e3,
                        span.instruction,
                        span.name,
                        span.cause,
                        span.transfer.as_ref().map_or(String::new(), |data| format!(
                            "data {:.3}..{:.3} on {}",
                            data.first_data_ps as f64 / 1e3,
                            data.last_data_ps as f64 / 1e3,
                            data.n_engines
                        )),
                    );
                }
            }
        }
    }
    Ok(())
}
