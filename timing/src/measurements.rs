//! The table of measurements.

use std::path::Path;

use ir::target::TargetName;

/// One measured value.
#[derive(Clone, Debug)]
pub struct Measurement {
    pub id: String,
    pub chip: TargetName,
    /// Kind of work, such as `kernel-mlp`.
    pub kind: String,
    pub group: String,
    /// Corrected, in picoseconds; percent for rows that state a share of the peak.
    pub value: f64,
    /// The correction that the value contains; 1 for none.
    pub correction: f64,
}

/// Why measurements could not be read.
#[derive(Debug, thiserror::Error)]
pub enum MeasurementError {
    #[error("{path}: {source}")]
    File { path: String, source: csv::Error },
    #[error("{path}: the column `{column}` is missing")]
    Column { path: String, column: &'static str },
}

/// Reads every row of one of the chips of [`TargetName`] whose unit is a time or a percentage.
///
/// # Errors
/// A file that cannot be read, or one without the columns.
pub fn read(path: &Path) -> Result<Vec<Measurement>, MeasurementError> {
    let shown = path.display().to_string();
    let file = |source| MeasurementError::File { path: shown.clone(), source };
    let mut reader = csv::Reader::from_path(path).map_err(file)?;
    let header = reader.headers().map_err(file)?.clone();
    let column = |name: &'static str| {
        let found = header.iter().position(|field| field == name);
        found.ok_or(MeasurementError::Column { path: shown.clone(), column: name })
    };
    let (id, chip, kind, group) = (column("id")?, column("chip")?, column("kind")?, column("group")?);
    let unit = column("unit")?;
    let (value, correction) = (column("value_adj")?, column("correction")?);
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(file)?;
        let Some(chip) = chip_of(&record[chip]) else { continue };
        let Some(unit_ps) = unit_ps(&record[unit]) else { continue };
        let Ok(measured) = record[value].parse::<f64>() else { continue };
        rows.push(Measurement {
            id: record[id].to_string(),
            chip,
            kind: record[kind].to_string(),
            group: record[group].to_string(),
            value: measured * unit_ps,
            correction: record[correction].parse().unwrap_or(1.0),
        });
    }
    Ok(rows)
}

fn chip_of(text: &str) -> Option<TargetName> {
    match text {
        "trn1/inf2 (NeuronCore-v2)" => Some(TargetName::Trn1),
        other => other.parse().ok(),
    }
}

fn unit_ps(unit: &str) -> Option<f64> {
    match unit {
        "ns" => Some(1e3),
        "us" => Some(1e6),
        "ms" => Some(1e9),
        "%" => Some(1.0),
        _ => None,
    }
}
