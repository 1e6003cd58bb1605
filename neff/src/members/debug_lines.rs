//! `sg00/neffuse_debug.json`: this project's table from instructions to nodes and source lines of the model.
//!
//! For people and error messages only: removing it changes neither values nor times.

use ir::Program;
use ir::graph::{Location, LocationId};
use ir::program::{Engine, Module};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DebugLines {
    /// Name of the program.
    pub graph: String,
    /// Nodes as name, called function, module path and source line.
    pub locations: Vec<[String; 4]>,
    /// By engine key: for each record of its stream, positions in `locations`. Records of a kernel have those
    /// of its first call.
    pub lines: BTreeMap<String, Vec<Vec<u32>>>,
    /// Calls in order, where there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<DebugCall>,
}

/// What the locations of a kernel are in one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DebugCall {
    /// The kernel's number, in the order of its place in the streams.
    pub kernel: u32,
    /// Position in `locations` of the first of this call's. They are as many, and in the same order, as those of the
    /// kernel's first call.
    pub first_location: u32,
}

impl DebugLines {
    /// Path of the member.
    pub const MEMBER: &str = "sg00/neffuse_debug.json";

    /// The table of a module whose streams, of `n_records` each, hold calls and then kernels in order.
    pub fn of_module(module: &Module, n_records: impl Fn(Engine) -> usize) -> Self {
        let mut table = DebugLines { graph: module.name.clone(), ..DebugLines::default() };
        let mut first_of_kernel: Vec<Option<u32>> = vec![None; module.kernels.len()];
        for call in &module.calls {
            let first_location = table.locations.len() as u32;
            first_of_kernel[call.kernel].get_or_insert(first_location);
            table.locations.extend(call.locations.iter().map(row));
            table.calls.push(DebugCall { kernel: call.kernel as u32, first_location });
        }
        for engine in Engine::ALL {
            let mut rows: Vec<Vec<u32>> = Vec::with_capacity(n_records(engine));
            for (kernel, first) in module.kernels.iter().zip(&first_of_kernel) {
                let first = first.unwrap_or(0);
                let records = kernel.program.stream(engine).map(|(_, record)| &record.locations);
                rows.extend(records.map(|locations| locations.iter().map(|location| first + location.0).collect()));
                // The record that returns.
                rows.push(Vec::new());
            }
            let n_control = n_records(engine).saturating_sub(rows.len());
            if n_records(engine) > 0 {
                rows.splice(0..0, std::iter::repeat_n(Vec::new(), n_control));
            } else {
                rows.clear();
            }
            table.lines.insert(engine.name().to_owned(), rows);
        }
        table
    }

    /// The table of a program whose streams are in program order.
    pub fn of(program: &Program) -> Self {
        let lines = Engine::ALL.map(|engine| {
            let records = program.stream(engine).map(|(_, record)| &record.locations);
            let records = records.map(|locations| locations.iter().map(|location| location.0).collect());
            (engine.name().to_owned(), records.collect())
        });
        DebugLines {
            graph: program.name.clone(),
            locations: program.locations.iter().map(row).collect(),
            lines: lines.into_iter().collect(),
            calls: Vec::new(),
        }
    }

    /// The locations in the program's form.
    pub fn locations(&self) -> Vec<Location> {
        let location = |[node, target, module, line]: &[String; 4]| Location {
            node: node.clone(),
            target: target.clone(),
            module: module.clone(),
            line: line.clone(),
        };
        self.locations.iter().map(location).collect()
    }

    /// The locations of a record; those that the table lacks are left out.
    pub fn of_record(&self, engine: Engine, position: usize) -> impl Iterator<Item = LocationId> {
        let row = self.lines.get(engine.name()).and_then(|rows| rows.get(position));
        let known = self.locations.len();
        row.into_iter()
            .flatten()
            .filter(move |location| (**location as usize) < known)
            .map(|location| LocationId(*location))
    }
}

fn row(place: &Location) -> [String; 4] {
    [place.node.clone(), place.target.clone(), place.module.clone(), place.line.clone()]
}
