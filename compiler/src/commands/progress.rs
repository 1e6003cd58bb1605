//! What is shown while a graph is compiled: a spinner on terminals, printed stages anywhere.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use passes::manager::PassReport;

use crate::pipeline::{Stage, Watcher};

/// Shows passes as they run, on standard error.
pub struct Terminal {
    spinner: Option<ProgressBar>,
}

impl Terminal {
    /// A spinner with this text where standard error is a terminal, else nothing.
    pub fn new(text: &str) -> Self {
        let spinner = std::io::stderr().is_terminal().then(|| {
            let spinner = ProgressBar::new_spinner();
            let style =
                ProgressStyle::with_template("{spinner} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
            spinner.set_style(style);
            spinner.set_message(text.to_owned());
            spinner.enable_steady_tick(Duration::from_millis(120));
            spinner
        });
        Terminal { spinner }
    }

    fn write(&self, text: &str) {
        match &self.spinner {
            Some(spinner) => spinner.suspend(|| write_stderr(text)),
            None => write_stderr(text),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}

impl Watcher for Terminal {
    fn after(&mut self, report: &PassReport, _: Stage<'_>) {
        self.show(&format!("after {}", report.name));
    }

    fn print(&mut self, pass: &'static str, stage: Stage<'_>) {
        self.write(&format!("// after {pass}\n{}\n", stage.text().trim_end()));
    }

    fn show(&mut self, text: &str) {
        if let Some(spinner) = &self.spinner {
            spinner.set_message(text.to_owned());
        }
    }

    fn notice(&mut self, text: &str) {
        self.write(&format!("note: {text}\n"));
    }
}

fn write_stderr(text: &str) {
    // A closed standard error loses only what is printed to it.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
