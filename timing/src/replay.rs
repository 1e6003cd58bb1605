//! Kernels and rows brought together: every row's machines, and predicted against measured values.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ir::program::{DmaQueue, Engine, InstructionKind};
use ir::target::{Target, TargetName};
use rayon::prelude::*;
use simulator::{Bound, Machine, Timeline};

use crate::kernel::Kernel;
use crate::measurements::{Measurement, read};
use crate::rows::{Metric, Row};

/// A measured row with the programs that replay it.
pub struct Case {
    pub row: Row,
    pub measured: Measurement,
    pub machines: Vec<Arc<Machine>>,
}

/// A case's outcome.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub predicted: f64,
    pub measured: f64,
    /// What the prediction is bound by.
    pub bound: Bound,
}

impl Outcome {
    /// Signed share of the measured value.
    pub fn error(&self) -> f64 {
        (self.predicted - self.measured) / self.measured
    }
}

/// Every row of `folder` that `measurements` has a value for.
///
/// # Errors
/// In words: unreadable files, faulty kernels, rows without a measurement.
pub fn load(folder: &Path, measurements: &Path) -> Result<Vec<Case>, String> {
    let mut measured = measurements_of(measurements)?;
    measured.append(&mut measurements_of(&folder.join("more-measurements.csv"))?);
    let kernels = kernels(&folder.join("kernels"))?;
    let rows = rows(&folder.join("rows.txt"))?;
    let mut wanted: BTreeMap<(TargetName, String, String), &Row> = BTreeMap::new();
    for row in &rows {
        let chip = measured.get(&row.id).ok_or_else(|| format!("{}: there is no such measurement", row.id))?.chip;
        for name in &row.kernels {
            wanted.insert((chip, name.clone(), key(row)), row);
        }
    }
    let wanted: Vec<_> = wanted.into_iter().collect();
    let built: Result<BTreeMap<_, Arc<Machine>>, String> = wanted
        .into_par_iter()
        .map(|((chip, name, parameters), row)| {
            let kernel = kernels.get(&name).ok_or_else(|| format!("{}: there is no kernel `{name}`", row.id))?;
            let program = kernel.program(chip, &row.names()?).map_err(|failure| format!("{}: {failure}", row.id))?;
            let machine = Machine::from_program(&program).map_err(|failure| format!("{}: {failure}", row.id))?;
            Ok(((chip, name, parameters), Arc::new(machine)))
        })
        .collect();
    let built = built?;
    let case = |row: Row| {
        let measured = measured[&row.id].clone();
        let of = |name: &String| built[&(measured.chip, name.clone(), key(&row))].clone();
        let machines = row.kernels.iter().map(of).collect();
        Case { measured, machines, row }
    };
    Ok(rows.into_iter().map(case).collect())
}

fn measurements_of(path: &Path) -> Result<BTreeMap<String, Measurement>, String> {
    let rows = read(path).map_err(|failure| failure.to_string())?;
    Ok(rows.into_iter().map(|row| (row.id.clone(), row)).collect())
}

/// Parameters as a key.
fn key(row: &Row) -> String {
    row.parameters.iter().map(|(name, value)| format!("{name}={value} ")).collect()
}

/// Every kernel of a folder by name.
///
/// # Errors
/// In words.
pub fn kernels(folder: &Path) -> Result<BTreeMap<String, Kernel>, String> {
    let mut kernels = BTreeMap::new();
    let entries = std::fs::read_dir(folder).map_err(|failure| format!("{}: {failure}", folder.display()))?;
    for entry in entries {
        let path = entry.map_err(|failure| failure.to_string())?.path();
        if path.extension().is_none_or(|extension| extension != "kernel") {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(|failure| format!("{}: {failure}", path.display()))?;
        let kernel = Kernel::parse(&text).map_err(|failure| format!("{}: {failure}", path.display()))?;
        kernels.insert(kernel.name.clone(), kernel);
    }
    Ok(kernels)
}

fn rows(path: &Path) -> Result<Vec<Row>, String> {
    let text = std::fs::read_to_string(path).map_err(|failure| format!("{}: {failure}", path.display()))?;
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with("//"))
        .map(|(number, line)| {
            Row::parse(line).map_err(|failure| format!("{} line {}: {failure}", path.display(), number + 1))
        })
        .collect()
}

/// The timelines of every program of some cases.
#[derive(Clone)]
pub struct Timelines(BTreeMap<usize, Arc<Timeline>>);

/// Whether a program's timeline can change with a number of this name.
fn depends_on(machine: &Machine, name: &str) -> bool {
    let uses = |queue: DmaQueue| {
        Engine::ALL.into_iter().any(|engine| {
            let mut stream = machine.stream(engine).iter();
            stream.any(|instruction| match &instruction.kind {
                InstructionKind::Dma { queue: used, .. } => *used == queue,
                _ => false,
            })
        })
    };
    match name {
        _ if name.starts_with("nc_") || name.starts_with("profile_") => false,
        _ if name.starts_with("dma_hardware") => uses(DmaQueue::Hardware),
        _ if name.starts_with("dma_software") => uses(DmaQueue::Software),
        _ if name.starts_with("dma_ring") => uses(DmaQueue::Ring),
        _ if name.starts_with("pe_") => !machine.stream(Engine::Pe).is_empty(),
        _ => true,
    }
}

impl Timelines {
    /// Simulates every program on chips with these numbers, in the order of [`TargetName`].
    ///
    /// # Errors
    /// A deadlock, in words.
    pub fn of(cases: &[&Case], targets: &[Target; 3]) -> Result<Timelines, String> {
        Timelines(BTreeMap::new()).simulated(cases, targets, |_| true)
    }

    /// The same after a number of this name has changed: only programs that depend on it run again.
    ///
    /// # Errors
    /// A deadlock, in words.
    pub fn changed(&self, cases: &[&Case], targets: &[Target; 3], name: &str) -> Result<Timelines, String> {
        self.clone().simulated(cases, targets, |machine| depends_on(machine, name))
    }

    fn simulated(
        mut self,
        cases: &[&Case],
        targets: &[Target; 3],
        chosen: impl Fn(&Machine) -> bool + Sync,
    ) -> Result<Timelines, String> {
        let mut machines: BTreeMap<usize, (&Machine, TargetName)> = BTreeMap::new();
        for case in cases {
            for machine in &case.machines {
                machines.insert(Arc::as_ptr(machine) as usize, (machine, case.measured.chip));
            }
        }
        // The longest first, so that no core is left with one at the end.
        let mut order: Vec<(usize, (&Machine, TargetName))> = machines.into_iter().collect();
        order.retain(|(key, (machine, _))| !self.0.contains_key(key) || chosen(machine));
        order.sort_by_key(|(_, (machine, _))| std::cmp::Reverse(machine.n_instructions()));
        let simulated: Result<Vec<(usize, Arc<Timeline>)>, String> = order
            .par_iter()
            .with_max_len(1)
            .map(|&(key, (machine, chip))| {
                let timeline = machine.timeline_on(&targets[chip as usize]).map_err(|finding| finding.to_string())?;
                Ok((key, Arc::new(timeline)))
            })
            .collect();
        self.0.extend(simulated?);
        Ok(self)
    }

    /// What every case predicts.
    ///
    /// # Errors
    /// A timeline without what a row asks for, in words.
    pub fn outcomes(&self, cases: &[&Case], targets: &[Target; 3]) -> Result<Vec<Outcome>, String> {
        let outcome = |case: &&Case| {
            let of: Vec<&Timeline> =
                case.machines.iter().map(|machine| &*self.0[&(Arc::as_ptr(machine) as usize)]).collect();
            let predicted = case.row.predict(&of, &targets[case.measured.chip as usize]);
            let predicted = predicted.ok_or_else(|| format!("{}: the timeline holds no such thing", case.row.id))?;
            let longest = of.iter().max_by_key(|timeline| timeline.body_ps);
            let bound = longest.map_or(Bound::Latency, |timeline| timeline.bound);
            Ok(Outcome { predicted, measured: case.measured.value, bound })
        };
        cases.iter().map(outcome).collect()
    }
}

/// Predicts every case on chips with these numbers.
///
/// # Errors
/// As [`Timelines::of`] and [`Timelines::outcomes`].
pub fn predict(cases: &[&Case], targets: &[Target; 3]) -> Result<Vec<Outcome>, String> {
    Timelines::of(cases, targets)?.outcomes(cases, targets)
}

impl Case {
    /// Single instructions and transfers, as against whole kernels.
    pub fn is_instruction(&self) -> bool {
        self.measured.kind == "instruction" || self.measured.kind == "dma"
    }

    /// In absolute value neither fitted nor judged.
    pub fn is_apart(&self) -> bool {
        self.row.apart || self.measured.correction != 1.0
    }

    /// A share of the peak instead of a time.
    pub fn is_share(&self) -> bool {
        self.row.metric == Metric::PeakShare
    }

    /// The time of a whole kernel, as against an engine's part of it.
    pub fn is_whole(&self) -> bool {
        matches!(self.row.metric, Metric::Body | Metric::Nc | Metric::Total | Metric::PeakShare)
    }

    /// What is left out together when the fit is tested on what it has not seen.
    pub fn family(&self) -> &str {
        if self.is_instruction() { "instruction" } else { self.row.kernels[0].split('_').next().unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Summary;

    #[test]
    fn kernels_pass_the_checks_and_the_committed_numbers_predict_them() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let measurements = root.join("../shared/hardware/trainium-measurements.csv");
        let cases = load(&root.join("tests/timing"), &measurements).unwrap_or_else(|failure| panic!("{failure}"));
        let mut seen = std::collections::BTreeSet::new();
        for case in &cases {
            for (name, machine) in case.row.kernels.iter().zip(&case.machines) {
                // Of each kernel a few sizes.
                let size = machine.n_instructions().next_power_of_two();
                if size < 20_000 && seen.insert((name.clone(), size)) {
                    let findings = machine.check();
                    assert!(findings.findings.is_empty(), "{} {name}: {:?}", case.row.id, findings.findings.first());
                }
            }
        }
        let judged: Vec<&Case> =
            cases.iter().filter(|case| case.measured.chip == TargetName::Trn2 && !case.is_apart()).collect();
        let outcomes = predict(&judged, &TargetName::ALL.map(|name| name.target().clone())).expect("all of them end");
        let errors = |instructions: bool| {
            let rows = judged.iter().zip(&outcomes).filter(move |(case, _)| case.is_instruction() == instructions);
            Summary::of(rows.map(|(_, outcome)| outcome.error()))
        };
        let (instructions, kernels) = (errors(true), errors(false));
        assert!(instructions.count >= 30 && kernels.count >= 140, "{} {}", instructions.count, kernels.count);
        assert!(instructions.median <= 0.03 && instructions.worst <= 0.15, "{instructions:?}");
        assert!(kernels.median <= 0.10 && kernels.p90 <= 0.25, "{kernels:?}");
    }
}
