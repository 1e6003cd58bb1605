//! `sg00/neffuse_debug.json`: this project's table from instructions to nodes and source lines of the model.
//!
//! For people and error messages only: removing it changes neither values nor times.

use ir::Program;
use ir::graph::{Location, LocationId};
use ir::program::Engine;
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
    /// By engine key: for each record of its stream, positions in `locations`.
    pub lines: BTreeMap<String, Vec<Vec<u32>>>,
}

impl DebugLines {
    /// Path of the member.
    pub const MEMBER: &str = "sg00/neffuse_debug.json";

    /// The table of a program whose streams are in program order.
    pub fn of(program: &Program) -> Self {
        let row =
            |place: &Location| [place.node.clone(), place.target.clone(), place.module.clone(), place.line.clone()];
        let lines = Engine::ALL.map(|engine| {
            let records = program.stream(engine).map(|(_, record)| &record.locations);
            let records = records.map(|locations| locations.iter().map(|location| location.0).collect());
            (engine.name().to_owned(), records.collect())
        });
        DebugLines {
            graph: program.name.clone(),
            locations: program.locations.iter().map(row).collect(),
            lines: lines.into_iter().collect(),
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
