//! Replays measured kernels on the simulator and fits its timing constants.

mod expression;
mod fit;
mod kernel;
mod measurements;
mod plot;
mod replay;
mod report;
mod rows;
mod statistics;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ir::target::TargetName;

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
    /// Fit the free numbers and print the errors by kind, also for families left out of the fit
    Fit {
        /// Write the fitted table, docs/timing.md and its pictures
        #[arg(long)]
        write: bool,
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
            for (case, outcome) in cases.iter().zip(replay::predict(&cases, &targets)?) {
                println!(
                    "{} {:<44} {:>12.3} {:>12.3} {:>+7.1} % {}",
                    case.row.id,
                    format!("{} {}", case.measured.group, case.row.kernels.join("+")),
                    outcome.measured / 1e6,
                    outcome.predicted / 1e6,
                    100.0 * outcome.error(),
                    if case.is_apart() { "apart" } else { &case.measured.kind },
                );
            }
        }
        Command::Fit { write } => {
            let fit = run_fit(&cases)?;
            print!("{}", fit.text());
            if *write {
                write_results(&fit)?;
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

/// Fits every chip, then again without each family in turn.
fn run_fit(cases: &[replay::Case]) -> Result<report::Fit<'_>, String> {
    let all: Vec<&replay::Case> = cases.iter().collect();
    let bar = indicatif::ProgressBar::new_spinner();
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    let mut targets = fit::priors();
    let before = replay::predict(&all, &targets)?;
    for chip in TargetName::ALL {
        let progress = |loss: f64| {
            bar.set_message(format!("{chip}: loss {loss:.6}"));
            bar.inc(1);
        };
        if bar.is_hidden() {
            eprintln!("fitting {chip}");
        }
        targets = fit::fit(&all, chip, &targets, &fit::STEPS, fit::MOST_SWEEPS, &progress)?;
    }
    let after = replay::predict(&all, &targets)?;
    let mut unseen = after.clone();
    let families: std::collections::BTreeSet<(TargetName, &str)> =
        all.iter().filter(|case| !case.is_apart()).map(|case| (case.measured.chip, case.family())).collect();
    for (chip, family) in families {
        let is_left_out = |case: &replay::Case| case.measured.chip == chip && case.family() == family;
        let seen: Vec<&replay::Case> = all.iter().copied().filter(|case| !is_left_out(case)).collect();
        let progress = |loss: f64| {
            bar.set_message(format!("{chip} without {family}: loss {loss:.6}"));
            bar.inc(1);
        };
        if bar.is_hidden() {
            eprintln!("fitting {chip} without {family}");
        }
        let refitted = fit::fit(&seen, chip, &targets, &fit::CORRECTION, 1, &progress)?;
        let left_out: Vec<&replay::Case> = all.iter().copied().filter(|case| is_left_out(case)).collect();
        let mut outcomes = replay::predict(&left_out, &refitted)?.into_iter();
        for (case, slot) in all.iter().zip(&mut unseen).filter(|(case, _)| is_left_out(case)) {
            *slot = outcomes.next().ok_or_else(|| format!("{}: no prediction", case.row.id))?;
        }
    }
    bar.finish_and_clear();
    Ok(report::Fit { cases: all, targets, before, after, unseen })
}

/// Marks of the generated part of docs/timing.md.
const GENERATED: [&str; 2] = ["<!-- written by `make fit` from here -->", "<!-- to here -->"];

fn write_results(fit: &report::Fit) -> Result<(), String> {
    let file = |path: &str, text: &str| std::fs::write(path, text).map_err(|failure| format!("{path}: {failure}"));
    file("ir/src/target/fitted.rs", &fit.fitted_table())?;
    let names = fit.pictures(std::path::Path::new("docs/timing"))?;
    let path = "docs/timing.md";
    let page = std::fs::read_to_string(path).map_err(|failure| format!("{path}: {failure}"))?;
    let [start, end] = GENERATED.map(|mark| page.find(mark).ok_or(format!("{path}: `{mark}` is missing")));
    let (start, end) = (start? + GENERATED[0].len(), end?);
    let pictures: String =
        names.iter().map(|name| format!("![{}](timing/{name})\n\n", name.trim_end_matches(".svg"))).collect();
    let text = format!("{}\n\n{pictures}{}\n{}", &page[..start], fit.markdown(), &page[end..]);
    file(path, &text)
}
