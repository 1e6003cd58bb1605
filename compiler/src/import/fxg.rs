//! From an fxg-json/1 document to a captured graph.

use std::collections::BTreeMap;

use ir::graph::{InputRole, Location};
use neff::json::{JsonError, from_slice_within};
use serde_json::Value;

use super::captured::{CapturedGraph, CapturedInput, CapturedNode, CapturedOutput, StoredData, StoredTensor};
use super::document::{
    ConstantEntry, Document, FORMAT, InputEntry, NodeEntry, OutputEntry, parse_argument, parse_recorded,
};
use super::{ImportError, json_budget_bytes};

/// Reads an fxg-json/1 document.
///
/// # Errors
/// What is no document.
pub fn read(text: &[u8]) -> Result<CapturedGraph, ImportError> {
    // The version is read alone first: another version may have other fields.
    let format = serde_json::from_slice::<FormatOnly>(text);
    let format = format.map_err(|error| ImportError::Malformed(format!("no graph: {error}")))?.format;
    if format != FORMAT {
        return Err(ImportError::Malformed(format!("format `{format}` is not known; `{FORMAT}` is")));
    }
    let document: Document =
        from_slice_within(text, json_budget_bytes(text.len())).map_err(|JsonError { error, is_over_budget: _ }| {
            ImportError::Malformed(format!("no graph of {FORMAT}: {error}"))
        })?;
    captured(document).map_err(ImportError::Malformed)
}

#[derive(serde::Deserialize)]
struct FormatOnly {
    format: String,
}

fn captured(document: Document) -> Result<CapturedGraph, String> {
    let described = document.inputs.iter().filter_map(|input| Some((input.desc.clone()?, input.id))).collect();
    Ok(CapturedGraph {
        name: document.name,
        inputs: document.inputs.into_iter().map(input).collect::<Result<_, _>>()?,
        nodes: document.nodes.into_iter().map(node).collect::<Result<_, _>>()?,
        outputs: document.outputs.into_iter().map(|entry| output(entry, &described)).collect(),
        constants: document.constants.into_iter().map(|(name, entry)| (name, constant(entry))).collect(),
    })
}

fn input(entry: InputEntry) -> Result<CapturedInput, String> {
    let fail = |reason: String| format!("input `{}`: {reason}", entry.name);
    let recorded = parse_recorded(&entry.out).map_err(fail)?;
    let role = match entry.role.as_deref() {
        Some("static" | "param" | "buffer") => InputRole::Static,
        Some("saved") => InputRole::Saved,
        Some("tangent") => InputRole::Tangent,
        Some("input") | None => InputRole::Dynamic,
        Some(other) => return Err(fail(format!("role `{other}` is not known"))),
    };
    Ok(CapturedInput { id: entry.id, name: entry.name, role, recorded })
}

fn node(entry: NodeEntry) -> Result<CapturedNode, String> {
    let fail = |reason: String| format!("node `{}` ({}): {reason}", entry.name, entry.target);
    let recorded = parse_recorded(&entry.out).map_err(fail)?;
    let positional = entry.args.iter().map(parse_argument).collect::<Result<Vec<_>, _>>().map_err(fail)?;
    let keyword = |(name, value): (&String, &Value)| Ok::<_, String>((name.clone(), parse_argument(value)?));
    let keywords = entry.kwargs.iter().map(keyword).collect::<Result<BTreeMap<_, _>, _>>().map_err(fail)?;
    let location = Location {
        node: entry.name,
        target: entry.target.clone(),
        module: module_path(entry.module.as_deref().unwrap_or_default()),
        line: entry.loc.unwrap_or_default(),
    };
    Ok(CapturedNode { id: entry.id, target: entry.target, positional, keywords, recorded, location, refusal: None })
}

/// An output; `described` gives inputs by AOTAutograd's descriptors.
fn output(entry: OutputEntry, described: &BTreeMap<String, u64>) -> CapturedOutput {
    let description = entry.desc.unwrap_or_default();
    let updated =
        description.strip_prefix("InputMutationAOTOutput(mutated_input=").and_then(|rest| rest.strip_suffix(')'));
    let updates = updated.and_then(|name| described.get(name).copied());
    CapturedOutput { reference: entry.reference, updates, description }
}

fn constant(entry: ConstantEntry) -> StoredTensor {
    let data = entry.data.map_or(StoredData::Missing, StoredData::Base64);
    StoredTensor { dtype: entry.dtype, shape: entry.shape, data }
}

/// A module path without the expression that captured the model: `L['self'].layers.0` is
/// `layers.0`.
fn module_path(captured: &str) -> String {
    let mut path = captured;
    while let Some(start) = path.find(']').filter(|_| path.starts_with("L[") || path.starts_with('[')) {
        path = &path[start + 1..];
    }
    path.trim_start_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::module_path;

    #[test]
    fn module_paths_lose_the_captured_expression() {
        assert_eq!(module_path("L['args'][0].model.embed_tokens"), "model.embed_tokens");
        assert_eq!(module_path("L['self']"), "");
        assert_eq!(module_path("encoder.layer"), "encoder.layer");
    }
}
