//! The report as text, in the layout of the vendor's packager listing with this tool's additions after it.

use super::{EngineReport, HeaderReport, NodeReport, Report, VariableReport, features};
use crate::container::ReadFailure;
use std::fmt::{self, Display};

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "NEFF header")?;
        let mut rows = header_rows(&self.header);
        rows.extend([
            ("Payload", format!("{}, {} members", self.payload.form, self.payload.members)),
            ("Hash Order", self.payload.hash_order.to_owned()),
            ("Target", self.kelf.as_ref().map_or_else(String::new, |kelf| kelf.target.clone())),
            ("Compiler Version", self.info.as_ref().map_or_else(String::new, |info| info.tool_version.clone())),
            ("Content SHA-256", self.content_sha256.clone()),
        ]);
        write_labels(f, &rows)?;
        writeln!(f, "\nNodes")?;
        write_table(f, &node_rows(&self.nodes))?;
        writeln!(f, "\nMemory in bytes")?;
        write_table(f, &self.memory_rows())?;
        writeln!(f, "\nEngine streams")?;
        write_table(f, &self.engine_rows())?;
        writeln!(f, "\n{}", self.encoding.statement)?;
        write_list(f, "Keys without a known meaning", &self.unknown_keys)?;
        write_list(f, "Warnings", &self.warnings)
    }
}

impl Display for HeaderReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "NEFF header")?;
        write_labels(f, &header_rows(self))
    }
}

impl ReadFailure {
    /// The header, where there is one, as text; empty otherwise. The error itself is printed by the caller.
    pub fn header_text(&self) -> String {
        self.header.as_ref().map_or_else(String::new, |header| HeaderReport::of(header).to_string())
    }
}

impl Report {
    fn memory_rows(&self) -> Vec<Vec<String>> {
        let head = ["core", "code", "constants", "scratchpad", "DMA rings", "inputs", "outputs"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for core in &self.cores {
            let bytes = [
                core.code_bytes,
                core.constant_bytes,
                core.scratchpad_bytes,
                core.dma_ring_bytes,
                core.input_bytes,
                core.output_bytes,
            ];
            rows.push(std::iter::once(core.sg.clone()).chain(bytes.map(|bytes| bytes.to_string())).collect());
        }
        rows
    }

    fn engine_rows(&self) -> Vec<Vec<String>> {
        let mut rows =
            vec![["core", "engine", "member", "bytes", "64-byte units", "instructions"].map(str::to_owned).to_vec()];
        for core in &self.cores {
            for engine in &core.engines {
                let count = |count: Option<u64>| count.map_or_else(|| "missing".to_owned(), |count| count.to_string());
                rows.push(vec![
                    core.sg.clone(),
                    engine.engine.to_owned(),
                    engine.member.clone(),
                    count(engine.bytes),
                    count(engine.units_of_64_bytes),
                    instructions(engine),
                ]);
            }
        }
        rows
    }
}

fn instructions(engine: &EngineReport) -> String {
    let Some(counts) = &engine.instructions else { return "opaque".to_owned() };
    let named = counts.iter().map(|(name, count)| format!("{count} {name}"));
    named.collect::<Vec<_>>().join(", ")
}

fn header_rows(header: &HeaderReport) -> Vec<(&'static str, String)> {
    let (major, minor) = header.neff_version.split_once('.').unwrap_or((&header.neff_version, ""));
    let mask = header.feature_bits.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let names: Vec<String> = features(mask.unwrap_or(0)).into_iter().map(|feature| feature.name).collect();
    let enabled = if names.is_empty() { "N/A".to_owned() } else { names.join(", ") };
    vec![
        ("Package Version", header.pkg_version.to_string()),
        ("Header Size (bytes)", header.header_size.to_string()),
        ("Data Size (bytes)", header.data_size.to_string()),
        ("Major Version", major.to_owned()),
        ("Minor Version", minor.to_owned()),
        ("Build Version", header.build_version.clone()),
        ("Number of Neuron cores", header.num_tpb.to_string()),
        ("Hash", header.hash.clone()),
        ("UUID", header.uuid.clone()),
        ("Network Name", header.name.clone()),
        ("Enabled Features", enabled),
        ("LNC Size", header.lnc_size.to_string()),
    ]
}

fn node_rows(nodes: &[NodeReport]) -> Vec<Vec<String>> {
    let head = ["NODE", "Executor", "Name", "Variable", "Size", "Type", "Format", "Shape", "DataType", "TimeSeries"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for node in nodes {
        rows.push(vec![node.node.to_string(), node.executor.to_owned(), node.name.clone()]);
        rows.extend(node.variables.iter().map(variable_row));
    }
    rows
}

fn variable_row(variable: &VariableReport) -> Vec<String> {
    let dims = variable.shape.as_ref().map(|shape| shape.iter().map(i64::to_string).collect::<Vec<_>>().join(" "));
    vec![
        String::new(),
        String::new(),
        String::new(),
        variable.variable_name.clone(),
        variable.size.map_or_else(String::new, |size| size.to_string()),
        variable.kind.to_owned(),
        variable.format.clone(),
        dims.map_or_else(|| "unknown".to_owned(), |dims| format!("[{dims}]")),
        variable.dtype.clone(),
        if variable.kind == "OUT" { "false".to_owned() } else { String::new() },
    ]
}

fn write_labels(f: &mut fmt::Formatter<'_>, rows: &[(&str, String)]) -> fmt::Result {
    for (label, value) in rows {
        writeln!(f, "{}", format!("  {label:<24}{}", printable(value)).trim_end())?;
    }
    Ok(())
}

fn write_table(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>]) -> fmt::Result {
    let n_columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..n_columns).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{:<width$}", printable(cell)));
        let line = cells.collect::<Vec<_>>().join("  ");
        writeln!(f, "  {}", line.trim_end())?;
    }
    Ok(())
}

fn write_list(f: &mut fmt::Formatter<'_>, title: &str, lines: &[String]) -> fmt::Result {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{title}")?;
    lines.iter().try_for_each(|line| writeln!(f, "  {}", printable(line)))
}

/// Names come from the file and may hold control characters, which a terminal would obey.
fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '\u{fffd}' } else { character }).collect()
}
