//! Every pass on every case: what it left, and its statistics.

use compiler::pipeline::{Stage, Watcher, compile};
use ir::target::TargetName;
use passes::Numerics;
use passes::manager::PassReport;

use crate::support::{GRAPHS, cases, options, sample_graph};

/// Longest text of a stage that a snapshot keeps whole, in lines.
const MAX_LINES: usize = 90;

#[derive(Default)]
struct Pages {
    text: String,
}

impl Pages {
    fn statistics(report: &PassReport) -> String {
        let numbers = report.statistics.iter().map(|(name, count)| format!("{name} {count}"));
        numbers.collect::<Vec<_>>().join(", ")
    }
}

impl Watcher for Pages {
    fn after(&mut self, report: &PassReport, stage: Stage<'_>) {
        // It leaves the graphs here as they are.
        if report.name == "outline" {
            return;
        }
        self.text += &format!("== {}: {}\n", report.name, Pages::statistics(report));
        if report.name == "package" {
            return;
        }
        let text = stage.text();
        let lines: Vec<&str> = text.lines().collect();
        for line in lines.iter().take(MAX_LINES) {
            self.text += line;
            self.text.push('\n');
        }
        if lines.len() > MAX_LINES {
            self.text += &format!("... {} more lines\n", lines.len() - MAX_LINES);
        }
    }

    fn print(&mut self, _: &'static str, _: Stage<'_>) {}
}

#[test]
fn every_pass_on_every_case() {
    insta::with_settings!({snapshot_path => "../../snapshots", prepend_module_to_snapshot => false}, {
        for (name, graph) in cases() {
            let mut pages = Pages::default();
            compile(&graph, &options(TargetName::Trn2, Numerics::Contract), &mut pages).expect("compiles");
            insta::assert_snapshot!(format!("case_{name}"), pages.text);
        }
    });
}

/// Only the statistics of the sample graphs, whose stages are long.
#[test]
fn statistics_of_sample_graphs() {
    #[derive(Default)]
    struct Lines(String);
    impl Watcher for Lines {
        fn after(&mut self, report: &PassReport, _: Stage<'_>) {
            if report.name != "outline" {
                self.0 += &format!("{}: {}\n", report.name, Pages::statistics(report));
            }
        }

        fn print(&mut self, _: &'static str, _: Stage<'_>) {}
    }
    insta::with_settings!({snapshot_path => "../../snapshots", prepend_module_to_snapshot => false}, {
        for name in GRAPHS {
            let mut lines = Lines::default();
            compile(&sample_graph(name), &options(TargetName::Trn2, Numerics::Contract), &mut lines).expect("compiles");
            insta::assert_snapshot!(format!("graph_{name}"), lines.0);
        }
    });
}
