//! The per-core part of a report: engines, queues, variables, memory, and the tensor listing.
//!
//! Memory is counted as the published accounting does: code is every `.bin` of the subgraph's folder, constants are
//! the file variables, the scratchpad is the highest end of a virtual variable (they may overlap).

use super::{Found, NodeReport, VariableReport};
use crate::Error;
use crate::container::Container;
use crate::isa::records;
use crate::members::{Definition, EngineFile, GraphFile, Kelf, TensorEntry, TensorMap, Variable, VariableKind};
use ir::program::Engine;
use serde::Serialize;
use std::collections::BTreeMap;

/// One physical core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CoreReport {
    /// Name of the subgraph.
    pub sg: String,
    /// Bytes needed in the shared scratchpad.
    pub scratchpad_bytes: u64,
    /// Bytes of all binaries: instruction streams and tables.
    pub code_bytes: u64,
    /// Bytes of constants.
    pub constant_bytes: u64,
    /// Bytes of the rings of static transfers, by the published estimate.
    pub dma_ring_bytes: u64,
    /// Number of static descriptors.
    pub static_dma_desc: u64,
    /// Bytes of inputs.
    pub input_bytes: u64,
    /// Bytes of outputs.
    pub output_bytes: u64,
    /// Queue sets by name: kind, owner, number of queues.
    pub queues: BTreeMap<String, (String, Option<String>, u64)>,
    /// Variables by name: kind, bytes, id.
    pub vars: BTreeMap<String, (String, Option<u64>, u64)>,
    /// Engines in the order PE, ACT, DVE, POOL, SP; those that the definition does not name are left out.
    pub engines: Vec<EngineReport>,
}

/// The stream of one engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EngineReport {
    /// Key in `def.json`.
    pub engine: &'static str,
    /// Path of the stream.
    pub member: String,
    /// Bytes of the stream; `None` where the member is missing.
    pub bytes: Option<u64>,
    /// Whole 64-byte units of the stream.
    pub units_of_64_bytes: Option<u64>,
    /// Instructions by name, in the open encoding; `None` for a stream that is opaque or does not decode.
    pub instructions: Option<BTreeMap<&'static str, u64>>,
}

/// What engine streams hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StreamEncoding {
    /// This project's documented encoding.
    Open,
    /// Vendor machine code, not published.
    Opaque,
}

pub(super) fn encoding(container: &Container) -> StreamEncoding {
    if container.has_open_encoding() { StreamEncoding::Open } else { StreamEncoding::Opaque }
}

pub(super) fn cores(container: &Container, kelf: Option<&Kelf>, found: &mut Found) -> Vec<CoreReport> {
    let graphs = kelf.map_or(&[][..], |kelf| &kelf.graphs);
    let mut cores = Vec::new();
    for graph in graphs {
        let Some(definition) = found.required::<Definition>(container, &graph.definition) else {
            continue;
        };
        let folder = folder_of(&graph.definition);
        note_unknown_keys(&graph.definition, &definition, found);
        let (static_dma_desc, dma_ring_bytes) = static_dma(container, &folder, &definition, found);
        cores.push(CoreReport {
            sg: graph.name.clone(),
            scratchpad_bytes: scratchpad_bytes(&definition),
            code_bytes: code_bytes(container, &folder),
            constant_bytes: size_of(&definition, &VariableKind::File),
            dma_ring_bytes,
            static_dma_desc,
            input_bytes: size_of(&definition, &VariableKind::Input),
            output_bytes: size_of(&definition, &VariableKind::Output),
            queues: queues(&definition),
            vars: variables(&definition),
            engines: engines(container, &folder, &definition, found),
        });
    }
    cores
}

/// Nodes that run something, each with the tensors of its first core.
pub(super) fn nodes(
    container: &Container,
    graph: &GraphFile,
    kelf: Option<&Kelf>,
    found: &mut Found,
) -> Vec<NodeReport> {
    let mut nodes = Vec::new();
    for (node, graph_node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.op == "tvm_op") {
        if !graph_node.is_kelf() {
            let function = graph_node.attrs.as_ref().map_or(&graph_node.name, |attrs| &attrs.func_name);
            nodes.push(NodeReport { node, executor: "CPU", name: function.clone(), variables: Vec::new() });
            continue;
        }
        for (core, subgraph) in kelf.map_or(&[][..], |kelf| &kelf.graphs).iter().enumerate() {
            // All cores declare the same tensors; the vendor's listing has them once.
            let variables = if core == 0 { tensors(container, &subgraph.definition, found) } else { Vec::new() };
            nodes.push(NodeReport { node, executor: "NeuronCore", name: subgraph.name.clone(), variables });
        }
    }
    nodes
}

fn folder_of(definition: &str) -> String {
    definition.rsplit_once('/').map_or_else(String::new, |(folder, _)| format!("{folder}/"))
}

fn queues(definition: &Definition) -> BTreeMap<String, (String, Option<String>, u64)> {
    let row = |(name, queue): (&String, &crate::members::Queue)| {
        let kind = queue.kind.as_str().to_owned();
        (name.clone(), (kind, queue.owner.clone(), queue.num_queues.unwrap_or(1)))
    };
    definition.dma_queue.iter().map(row).collect()
}

fn variables(definition: &Definition) -> BTreeMap<String, (String, Option<u64>, u64)> {
    let row = |(name, variable): (&String, &Variable)| {
        (name.clone(), (variable.kind.as_str().to_owned(), variable.size, variable.var_id))
    };
    definition.var.iter().map(row).collect()
}

fn engines(container: &Container, folder: &str, definition: &Definition, found: &mut Found) -> Vec<EngineReport> {
    let mut reports = Vec::new();
    for engine in Engine::ALL {
        let Some(file) = definition.engine_instr(engine) else {
            continue;
        };
        let member = format!("{folder}{file}");
        let stream = container.member(&member);
        if let Err(error) = &stream {
            found.warnings.push(error.to_string());
        }
        let stream = stream.ok();
        let bytes = stream.map(|stream| stream.len() as u64);
        let decodable = stream.filter(|_| container.has_open_encoding());
        reports.push(EngineReport {
            engine: engine.name(),
            bytes,
            units_of_64_bytes: bytes.map(|bytes| bytes / 64),
            instructions: decodable.and_then(|stream| instructions(engine, &member, stream, found)),
            member,
        });
    }
    reports
}

fn instructions(engine: Engine, member: &str, stream: &[u8], found: &mut Found) -> Option<BTreeMap<&'static str, u64>> {
    let count = || {
        let mut counts = BTreeMap::new();
        for instruction in records(engine, member, stream)? {
            *counts.entry(instruction?.kind.name()).or_default() += 1;
        }
        Ok(counts)
    };
    count().map_err(|error: Error| found.warnings.push(error.to_string())).ok()
}

fn static_dma(container: &Container, folder: &str, definition: &Definition, found: &mut Found) -> (u64, u64) {
    let (mut n_descriptors, mut ring_bytes) = (0_u64, 0_u64);
    for engine in Engine::ALL {
        let Some(file) = definition.engine_json(engine) else {
            continue;
        };
        let member = format!("{folder}{file}");
        let Some(engine_file) = found.required::<EngineFile>(container, &member) else {
            continue;
        };
        found.note_unknown(&member, "", Some(&engine_file.extra));
        for transfer in engine_file.dma.iter().flat_map(|entry| &entry.desc) {
            n_descriptors += 1;
            ring_bytes = ring_bytes.saturating_add(transfer.ring_bytes());
            if transfer.to_steps.len() > 4 || transfer.to_sizes.len() > 4 {
                found.warnings.push(format!("{member}: a descriptor has more than 4 dimensions"));
            }
        }
    }
    (n_descriptors, ring_bytes)
}

fn scratchpad_bytes(definition: &Definition) -> u64 {
    let mut end_by_area: BTreeMap<Option<&str>, u64> = BTreeMap::new();
    for variable in definition.var.values().filter(|variable| variable.kind == VariableKind::Virtual) {
        let start = variable.backing_variable_off.unwrap_or(0);
        let end = start.saturating_add(variable.size.unwrap_or(0));
        let highest = end_by_area.entry(variable.backing_buf.as_deref()).or_default();
        *highest = end.max(*highest);
    }
    end_by_area.values().fold(0, |sum, end| sum.saturating_add(*end))
}

fn code_bytes(container: &Container, folder: &str) -> u64 {
    let in_folder = |name: &str| name.strip_prefix(folder).is_some_and(|file| !file.contains('/'));
    let binaries = container.members.iter().filter(|(name, _)| in_folder(name) && name.ends_with(".bin"));
    binaries.map(|(_, bytes)| bytes.len() as u64).sum()
}

fn size_of(definition: &Definition, kind: &VariableKind) -> u64 {
    let of_kind = definition.var.values().filter(|variable| variable.kind == *kind);
    of_kind.fold(0, |sum, variable| sum.saturating_add(variable.size.unwrap_or(0)))
}

/// The join of `def.json` and `tensor_map.json`: inputs and outputs by name, constants by file.
fn tensors(container: &Container, definition_member: &str, found: &mut Found) -> Vec<VariableReport> {
    let Some(definition) = found.optional::<Definition>(container, definition_member) else {
        return Vec::new();
    };
    let map_member = format!("{}tensor_map.json", folder_of(definition_member));
    let map: TensorMap = found.optional(container, &map_member).unwrap_or_default();
    for (name, tensor) in &map {
        found.note_unknown(&map_member, &format!("{name}."), Some(&tensor.extra));
    }
    let by_file: BTreeMap<&str, &TensorEntry> =
        map.values().filter(|tensor| tensor.is_const).map(|tensor| (tensor.tf_file.as_str(), tensor)).collect();
    let mut rows = Vec::new();
    for (kind, label) in [(VariableKind::Input, "IN"), (VariableKind::Output, "OUT"), (VariableKind::File, "WEIGHT")] {
        for (name, variable) in definition.var.iter().filter(|(_, variable)| variable.kind == kind) {
            let tensor = match &variable.file_name {
                Some(file) => by_file.get(file.as_str()).copied(),
                None => map.get(name),
            };
            rows.push(VariableReport {
                variable_name: name.clone(),
                kind: label,
                size: variable.size,
                format: tensor.map_or_else(String::new, |tensor| tensor.tf_format.clone()),
                shape: tensor.map(|tensor| tensor.tf_shape.clone()),
                dtype: tensor.map_or_else(String::new, |tensor| tensor.dtype.clone()),
            });
        }
    }
    rows
}

fn note_unknown_keys(member: &str, definition: &Definition, found: &mut Found) {
    found.note_unknown(member, "", Some(&definition.extra));
    for (name, queue) in &definition.dma_queue {
        found.note_unknown(member, &format!("dma_queue.{name}."), Some(&queue.extra));
    }
    for (name, variable) in &definition.var {
        found.note_unknown(member, &format!("var.{name}."), Some(&variable.extra));
    }
}
