//! From saved graphs to the IR.
//!
//! Three forms are read: fxg-json/1, which the `torch.compile` backend writes; `.pt2` archives of
//! torch.export; and the IR's own text form. Nothing is optimised here.

use std::path::Path;

use ir::Graph;
use ir::diagnostic::{RenderStyle, SourceText};
use ir::graph::Location;

use crate::error::Error;
use crate::pipeline::guarded;

use pt2::ArchiveFile;

mod aten;
mod build;
mod captured;
mod document;
mod fxg;
pub mod pt2;

pub use captured::dtype_of;

/// Reads an fxg-json/1 document.
///
/// # Errors
/// What is no graph, or every node that cannot be compiled.
pub fn parse_json(text: &[u8]) -> Result<Graph, ImportError> {
    build::build(&fxg::read(text)?)
}

/// Memory that the values of a graph's JSON may take: so much, and so many times its text. Real
/// documents take about a third of the second.
fn json_budget_bytes(text_bytes: usize) -> usize {
    text_bytes.saturating_mul(24).saturating_add(32 << 20)
}

/// The targets of all overloads that can be imported, sorted.
pub fn supported_overloads() -> impl Iterator<Item = &'static str> {
    aten::OVERLOADS.iter().map(|overload| overload.target)
}

/// Why a document gives no graph.
#[derive(Clone, Debug, PartialEq)]
pub enum ImportError {
    /// It is no graph: one sentence.
    Malformed(String),
    /// It is a graph, but these nodes cannot be compiled.
    Unsupported(Vec<UnsupportedNode>),
}

/// A node that cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct UnsupportedNode {
    #[serde(flatten, serialize_with = "serialize_location")]
    pub location: Location,
    /// The result's type as the document records it, for example `float32[4, 512]`.
    #[serde(rename = "type")]
    pub result: String,
    pub reason: String,
}

fn serialize_location<S: serde::Serializer>(location: &Location, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeMap;
    let Location { node, target, module, line } = location;
    let mut map = serializer.serialize_map(Some(4))?;
    for (key, value) in [("node", node), ("op", target), ("module", module), ("line", line)] {
        map.serialize_entry(key, value)?;
    }
    map.end()
}

/// Reads a graph file: `.json` is fxg-json/1, `.pt2` a torch.export archive, `.ir` the IR's text
/// form.
///
/// # Errors
/// When the file cannot be read, is no graph, or has nodes that cannot be compiled.
pub fn read_graph(path: &Path) -> Result<Graph, Error> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if is_archive(path) {
        let file = ArchiveFile::open(path)?;
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        return guarded(|| pt2::parse(&stem, file.bytes()).map_err(|error| Error::import(&name, error)));
    }
    let bytes = std::fs::read(path).map_err(|error| Error::File(format!("{}: {error}", path.display())))?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => guarded(|| parse_json(&bytes).map_err(|error| Error::import(&name, error))),
        Some("ir") => guarded(|| read_text(&name, &bytes)),
        Some(_) | None => Err(Error::Input(format!("{name}: a graph is a .json, .pt2 or .ir file"))),
    }
}

/// True for the name of a torch.export archive.
pub fn is_archive(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "pt2")
}

fn read_text(name: &str, bytes: &[u8]) -> Result<Graph, Error> {
    let text = std::str::from_utf8(bytes).map_err(|error| Error::Input(format!("{name}: no text: {error}")))?;
    ir::text::parse_graph(name, text)
        .map_err(|faults| Error::Text(faults.render(&SourceText::new(name, text), RenderStyle::Plain)))
}
