//! What is shown while a command works: a bar on terminals, printed stages and notices anywhere,
//! a line for each pass where the user wants to know.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use passes::manager::PassReport;

use super::style::painted;
use crate::pipeline::{PASSES, Stage, Watcher};

/// How long a command works before its bar appears.
const PATIENCE: Duration = Duration::from_millis(400);
/// Columns of a line of statistics.
const MAX_COLUMNS: usize = 78;

/// How much is told on standard error beside errors.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Verbosity {
    Quiet,
    Normal,
    Verbose,
}

static VERBOSITY: OnceLock<Verbosity> = OnceLock::new();

/// Sets it for this process, once.
pub(super) fn set_verbosity(verbosity: Verbosity) {
    // The command line is read once.
    let _ = VERBOSITY.set(verbosity);
}

fn verbosity() -> Verbosity {
    VERBOSITY.get().copied().unwrap_or(Verbosity::Normal)
}

/// Shows on standard error what is being done.
pub(super) struct Terminal {
    bar: Option<Bar>,
}

/// A bar that appears when the command is not done at once.
struct Bar {
    bar: ProgressBar,
    /// Dropped to end the wait.
    is_working: Option<Sender<()>>,
    appearance: Option<JoinHandle<()>>,
}

impl Bar {
    fn new(text: &str) -> Bar {
        let style = ProgressStyle::with_template("{spinner} {prefix} [{bar:18}] {elapsed} {wide_msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ");
        let bar = ProgressBar::with_draw_target(Some(PASSES.len() as u64), ProgressDrawTarget::hidden());
        let bar = bar.with_style(style).with_prefix(text.to_owned());
        let (is_working, work) = mpsc::channel::<()>();
        let shown = bar.clone();
        let appearance = std::thread::spawn(move || {
            if work.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                shown.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
                shown.enable_steady_tick(Duration::from_millis(125));
            }
        });
        Bar { bar, is_working: Some(is_working), appearance: Some(appearance) }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.is_working = None;
        if let Some(appearance) = self.appearance.take() {
            // The thread only draws.
            let _ = appearance.join();
        }
        self.bar.finish_and_clear();
    }
}

impl Terminal {
    /// A bar with this text where standard error is a terminal, else nothing. Commands that are done
    /// at once show no bar.
    pub fn new(text: &str) -> Self {
        let is_shown = verbosity() == Verbosity::Normal && std::io::stderr().is_terminal();
        Terminal { bar: is_shown.then(|| Bar::new(text)) }
    }

    fn write(&self, text: &str) {
        match &self.bar {
            Some(Bar { bar, .. }) => bar.suspend(|| write_stderr(text)),
            None => write_stderr(text),
        }
    }
}

impl Watcher for Terminal {
    fn after(&mut self, report: &PassReport, _: Stage<'_>) {
        if let Some(Bar { bar, .. }) = &self.bar {
            // Functions take turns: the bar goes back for the next one.
            let done = PASSES.iter().position(|&name| name == report.name);
            bar.set_position(done.map_or(0, |position| position as u64 + 1));
            bar.set_message(format!("after {}", report.name));
        }
        if verbosity() == Verbosity::Verbose {
            self.write(&pass_text(report));
        }
    }

    fn print(&mut self, pass: &'static str, stage: Stage<'_>) {
        self.write(&format!("// after {pass}\n{}\n", stage.text().trim_end()));
    }

    fn show(&mut self, text: &str) {
        if let Some(Bar { bar, .. }) = &self.bar {
            bar.set_message(text.to_owned());
        }
        if verbosity() == Verbosity::Verbose {
            self.write(&format!("{text}\n"));
        }
    }

    fn notice(&mut self, text: &str) {
        if verbosity() != Verbosity::Quiet {
            self.write(&format!("note: {text}\n"));
        }
    }
}

/// A pass's time, and below it what it counted.
fn pass_text(report: &PassReport) -> String {
    let mut text = format!("{:<20}{:>10.2} ms\n", report.name, report.seconds * 1e3);
    let mut line = String::new();
    for (name, count) in report.statistics.iter() {
        let entry = format!(" {name}={count}");
        if line.len() + entry.len() > MAX_COLUMNS - 3 {
            text += &format!("   {line}\n");
            line.clear();
        }
        line += &entry;
    }
    if line.is_empty() { text } else { text + &format!("   {line}\n") }
}

fn write_stderr(text: &str) {
    // A closed standard error loses only what is printed to it.
    let _ = anstream::stderr().write_all(painted(text).as_bytes());
}

#[cfg(test)]
mod tests {
    use passes::manager::{PassReport, Phase, Statistics};

    use super::{MAX_COLUMNS, pass_text};

    #[test]
    fn lines_of_statistics_fit_a_terminal() {
        let mut statistics = Statistics::new();
        for position in 0..30 {
            statistics.add(&format!("some-rule-{position}"), 7 * position);
        }
        let text = pass_text(&PassReport { name: "fuse", phase: Phase::Fused, seconds: 0.0125, statistics });
        assert!(text.starts_with("fuse                     12.50 ms\n    some-rule-0=0 "), "{text}");
        assert!(text.lines().all(|line| line.len() <= MAX_COLUMNS), "{text}");
        assert_eq!(text.matches('=').count(), 30);
    }
}
