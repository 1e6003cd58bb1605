//! Kernels and rows brought together: every row's machines, and predicted against measured values.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ir::target::{Target, TargetName};
use rayon::prelude::*;
use simulator::Machine;

use crate::kernel::Kernel;
use crate::measurements::{Measurement, read};
use crate::rows::Row;

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
    let measured: BTreeMap<String, Measurement> = read(measurements)
        .map_err(|failure| failure.to_string())?
        .into_iter()
        .map(|row| (row.id.clone(), row))
        .collect();
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

impl Case {
    /// The prediction on a chip with these numbers.
    ///
    /// # Errors
    /// As [`Row::predict`].
    pub fn run(&self, target: &Target) -> Result<Outcome, String> {
        let machines: Vec<&Machine> = self.machines.iter().map(Arc::as_ref).collect();
        Ok(Outcome { predicted: self.row.predict(&machines, target)?, measured: self.measured.value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_passes_the_checks() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let measurements = root.join("../shared/hardware/trainium-measurements.csv");
        let cases = load(&root.join("tests/timing"), &measurements).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(cases.len() > 100);
        let mut seen = std::collections::BTreeSet::new();
        for case in &cases {
            // The smallest program of each kernel stands for it.
            for (name, machine) in case.row.kernels.iter().zip(&case.machines) {
                if machine.n_instructions() < 20_000 && seen.insert((name.clone(), machine.n_instructions())) {
                    let findings = machine.check();
                    assert!(findings.findings.is_empty(), "{} {name}: {:?}", case.row.id, findings.findings.first());
                }
            }
        }
    }
}
