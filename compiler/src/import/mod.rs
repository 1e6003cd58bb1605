//! From saved graphs to the IR.
//!
//! Two forms are read: fxg-json/1, which the `torch.compile` backend writes, and the IR's own text
//! form. Nothing is optimised here.

use ir::Graph;
use ir::graph::Location;

mod aten;
pub mod document;
mod fxg;

pub use fxg::parse as parse_json;

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

/// Parses either form by its extension.
///
/// # Errors
/// As the form's parser.
pub fn parse(form: Form, text: &[u8]) -> Result<Graph, ImportError> {
    match form {
        Form::Json => fxg::parse(text),
    }
}

/// A form of saved graphs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// `.json`: fxg-json/1.
    Json,
}
