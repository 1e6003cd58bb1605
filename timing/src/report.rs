//! What a fit says for people: `docs/timing.md` with its pictures, and the fitted table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use ir::target::accuracy::Work;
use ir::target::{Grade, Target, TargetName};

use crate::fit::{free, value};
use crate::plot::{self, Point};
use crate::replay::{Case, Outcome};
use crate::statistics::{Summary, rank_correlation};

/// A fit and what was predicted with it.
pub struct Fit<'a> {
    pub cases: Vec<&'a Case>,
    pub targets: [Target; 3],
    /// With the priors.
    pub before: Vec<Outcome>,
    pub after: Vec<Outcome>,
    /// Each by a fit that had not seen the case's family.
    pub unseen: Vec<Outcome>,
}

/// Groups of this many rows or more are judged by rank.
const RANKED_ROWS: usize = 5;

type Choice<'a> = dyn Fn(&Case) -> bool + 'a;

impl Fit<'_> {
    fn summary(&self, outcomes: &[Outcome], chosen: &Choice) -> Summary {
        let rows = self.cases.iter().zip(outcomes).filter(|(case, _)| chosen(case));
        Summary::of(rows.map(|(_, outcome)| outcome.error()))
    }

    /// Lines to print: errors by kind and what falls short of which target.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "{}", self.table().trim_end());
        for (name, met) in self.targets_met() {
            let _ = writeln!(text, "{} {name}", if met { "met   " } else { "MISSED" });
        }
        text
    }

    /// The targets, on trn2.
    fn targets_met(&self) -> Vec<(String, bool)> {
        let judged = |case: &Case| case.measured.chip == TargetName::Trn2 && !case.is_apart();
        let instruction = self.summary(&self.after, &|case| judged(case) && case.is_instruction());
        let kernel = self.summary(&self.after, &|case| judged(case) && !case.is_instruction());
        let groups: BTreeSet<&str> =
            self.cases.iter().filter(|case| judged(case)).map(|case| case.measured.group.as_str()).collect();
        let ranks = self.ranks(&judged);
        let lowest = ranks.iter().map(|(_, _, rank)| *rank).fold(1.0, f64::min);
        vec![
            (
                format!("{} rows in {} groups (60 in 8)", instruction.count + kernel.count, groups.len()),
                instruction.count + kernel.count >= 60 && groups.len() >= 8,
            ),
            (
                format!(
                    "instructions: median {} (3 %), worst {} (15 %)",
                    percent(instruction.median),
                    percent(instruction.worst)
                ),
                instruction.median <= 0.03 && instruction.worst <= 0.15,
            ),
            (
                format!(
                    "kernels: median {} (10 %), 90th percentile {} (25 %)",
                    percent(kernel.median),
                    percent(kernel.p90)
                ),
                kernel.median <= 0.10 && kernel.p90 <= 0.25,
            ),
            (format!("lowest rank correlation of {} groups: {lowest:.3} (0.95)", ranks.len()), lowest >= 0.95),
        ]
    }

    /// Group, rows and rank correlation of every group that is large enough.
    fn ranks(&self, chosen: &Choice) -> Vec<(String, usize, f64)> {
        let mut groups: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for (case, outcome) in self.cases.iter().zip(&self.after).filter(|(case, _)| chosen(case)) {
            groups.entry(&case.measured.group).or_default().push((outcome.measured, outcome.predicted));
        }
        let large = groups.into_iter().filter(|(_, pairs)| pairs.len() >= RANKED_ROWS);
        large.map(|(group, pairs)| (group.to_string(), pairs.len(), rank_correlation(&pairs))).collect()
    }

    /// Errors by chip and kind.
    fn table(&self) -> String {
        let mut text = String::from(
            "| chip | kind of row | rows | median before | median | 90 % within | worst | left out: median | left out: 90 % within |\n\
             |---|---|---|---|---|---|---|---|---|\n",
        );
        let mut kinds: BTreeSet<(TargetName, bool, &str)> = BTreeSet::new();
        for case in &self.cases {
            kinds.insert((case.measured.chip, case.is_apart(), &case.measured.kind));
        }
        let mut row = |chip: TargetName, name: &str, chosen: &Choice| {
            let [before, after, unseen] =
                [&self.before, &self.after, &self.unseen].map(|outcomes| self.summary(outcomes, chosen));
            if after.count > 0 {
                let _ = writeln!(
                    text,
                    "| {chip} | {name} | {} | {} | {} | {} | {} | {} | {} |",
                    after.count,
                    percent(before.median),
                    percent(after.median),
                    percent(after.p90),
                    percent(after.worst),
                    percent(unseen.median),
                    percent(unseen.p90)
                );
            }
        };
        for &(chip, apart, kind) in &kinds {
            let name = if apart { format!("{kind}, not fitted") } else { kind.to_string() };
            row(chip, &name, &|case| {
                case.measured.chip == chip && case.is_apart() == apart && case.measured.kind == kind
            });
        }
        for chip in TargetName::ALL {
            row(chip, "**all kernels**", &|case| {
                case.measured.chip == chip && !case.is_apart() && !case.is_instruction()
            });
        }
        text
    }

    /// The generated part of `docs/timing.md`.
    pub fn markdown(&self) -> String {
        let mut text = String::from("## Errors by kind\n\n");
        text += &self.table();
        text += "\n## Targets\n\n";
        for (name, met) in self.targets_met() {
            let _ = writeln!(text, "- {name}: {}", if met { "met" } else { "**missed**" });
        }
        text += "\n## Order within groups\n\nSpearman's rank correlation of every group of five rows or more.\n\n";
        text += "| group | rows | correlation | |\n|---|---|---|---|\n";
        for apart in [false, true] {
            for (group, rows, rank) in self.ranks(&|case| case.is_apart() == apart) {
                let note = if apart { "not fitted" } else { "" };
                let _ = writeln!(text, "| {} | {rows} | {rank:.3} | {note} |", group.replace('|', " "));
            }
        }
        text += "\n## By what the time goes into\n\nThis is what reports print after \"±\".\n\n";
        text +=
            "| chip | time goes into | kernels | left out: median | left out: 90 % within |\n|---|---|---|---|---|\n";
        for chip in TargetName::ALL {
            for work in Work::ALL {
                let found = self.accuracy(chip, work);
                let (median, p90) = (percent(found.median), percent(found.p90));
                let _ = writeln!(text, "| {chip} | {} | {} | {median} | {p90} |", work.name(), found.count);
            }
        }
        text += "\n## Fitted numbers\n\n| chip | number | mechanism | prior | from | fitted | allowed |\n|---|---|---|---|---|---|---|\n";
        for chip in TargetName::ALL {
            for number in free(chip) {
                let _ = writeln!(
                    text,
                    "| {chip} | `{}` | {} | {} | {} | {} | {} to {} |",
                    number.name,
                    number.mechanism,
                    number.prior,
                    number.source,
                    value(&self.targets[chip as usize], number.name),
                    number.low,
                    number.high
                );
            }
        }
        text += "\n## Assumptions\n\nNumbers that nobody has published or measured (grade A), and numbers of trn1 and trn3 that are carried over (grade I).\n\n";
        text += "| number | trn1 | trn2 | trn3 |\n|---|---|---|---|\n";
        let numbers = TargetName::ALL.map(|chip| chip.target().numbers());
        for ((trn1, trn2), trn3) in numbers[0].iter().zip(&numbers[1]).zip(&numbers[2]) {
            let of = |chip: usize| [trn1, trn2, trn3][chip];
            if !(0..3).any(|chip| matches!(of(chip).grade, Grade::A | Grade::I)) {
                continue;
            }
            let cell = |chip: usize| {
                let number = of(chip);
                match number.grade {
                    Grade::A | Grade::I => format!("{} {}: {}", number.value, number.unit, number.source),
                    grade => format!("{} {} ({grade})", number.value, number.unit),
                }
            };
            let _ = writeln!(text, "| `{}` | {} | {} | {} |", of(0).name, cell(0), cell(1), cell(2));
        }
        text += "\n## Every row\n\nTimes in us, shares of the peak in percent.\n\n";
        text += "| row | chip | group | kernel | measured | predicted | error | left out | bound by |\n|---|---|---|---|---|---|---|---|---|\n";
        for ((case, outcome), unseen) in self.cases.iter().zip(&self.after).zip(&self.unseen) {
            let unit = if case.is_share() { 1.0 } else { 1e6 };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {}{} | {} | {} | {:+.1} % | {:+.1} % | {} |",
                case.row.id,
                case.measured.chip,
                case.measured.group.replace('|', " "),
                case.row.kernels.join(" + "),
                if case.is_apart() { " (not fitted)" } else { "" },
                short(outcome.measured / unit),
                short(outcome.predicted / unit),
                100.0 * outcome.error(),
                100.0 * unseen.error(),
                if case.is_instruction() { "" } else { outcome.bound.name() },
            );
        }
        text
    }

    /// Kernels of one chip and one kind of work, predicted unseen.
    fn accuracy(&self, chip: TargetName, work: Work) -> Summary {
        let rows = self.cases.iter().zip(&self.unseen).filter(|(case, outcome)| {
            case.measured.chip == chip
                && !case.is_apart()
                && !case.is_instruction()
                && case.is_whole()
                && outcome.bound.work() == work
        });
        Summary::of(rows.map(|(_, outcome)| outcome.error()))
    }

    /// `ir/src/target/fitted.rs`.
    pub fn fitted_table(&self) -> String {
        let mut text = String::from(
            "//! Numbers fitted to measured kernels, and how well predictions agree with them. Written by\n\
             //! `make fit`; `docs/timing.md` says what was fitted to what. Not for editing by hand.\n\n\
             use super::accuracy::Accuracy;\n\n",
        );
        for chip in TargetName::ALL {
            for number in free(chip) {
                let fitted = grouped(value(&self.targets[chip as usize], number.name));
                let name = format!("{}_{}", chip.name(), number.name).to_uppercase();
                let _ = writeln!(text, "pub(super) const {name}: u64 = {fitted};");
            }
        }
        text += "\n/// Chip by chip, in the order of compute, transfers and latency.\n";
        text += "pub(super) const ACCURACY: [[Accuracy; 3]; 3] = [\n";
        for chip in TargetName::ALL {
            if Work::ALL.iter().all(|&work| self.accuracy(chip, work).count == 0) {
                // As rustfmt writes it.
                text += "    [Accuracy::NONE, Accuracy::NONE, Accuracy::NONE],\n";
                continue;
            }
            text += "    [\n";
            for work in Work::ALL {
                let found = self.accuracy(chip, work);
                if found.count == 0 {
                    text += "        Accuracy::NONE,\n";
                    continue;
                }
                let permille = |share: f64| (share * 1000.0).ceil() as u64;
                let _ = writeln!(
                    text,
                    "        Accuracy {{ n_rows: {}, median_permille: {}, p90_permille: {} }},",
                    found.count,
                    grouped(permille(found.median)),
                    grouped(permille(found.p90))
                );
            }
            text += "    ],\n";
        }
        text + "];\n"
    }

    /// One picture per chip and kind of row.
    ///
    /// # Errors
    /// A file that cannot be written, in words.
    pub fn pictures(&self, folder: &Path) -> Result<Vec<String>, String> {
        std::fs::create_dir_all(folder).map_err(|failure| format!("{}: {failure}", folder.display()))?;
        let mut names = Vec::new();
        for chip in TargetName::ALL {
            for (kind, title, instructions, apart) in [
                ("instructions", "single instructions and transfers", true, false),
                ("kernels", "kernels and engine times", false, false),
                ("apart", "kernels that were not fitted", false, true),
            ] {
                let rows = self.cases.iter().zip(&self.after).filter(|(case, _)| {
                    case.measured.chip == chip
                        && case.is_instruction() == instructions
                        && case.is_apart() == apart
                        && !case.is_share()
                });
                let points: Vec<Point> = rows
                    .map(|(case, outcome)| Point {
                        measured_us: outcome.measured / 1e6,
                        predicted_us: outcome.predicted / 1e6,
                        family: if instructions { "instruction".to_string() } else { case.family().to_string() },
                    })
                    .collect();
                if points.len() < 3 {
                    continue;
                }
                let name = format!("{}-{kind}.svg", chip.name());
                plot::write(&folder.join(&name), &format!("{chip}: {title}, {} rows", points.len()), &points)?;
                names.push(name);
            }
        }
        Ok(names)
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Four digits.
fn short(number: f64) -> String {
    match number.abs() {
        size if size >= 1000.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.3}"),
    }
}

/// With an underscore between thousands, as rustfmt leaves it.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push('_');
        }
        text.push(digit);
    }
    text
}
