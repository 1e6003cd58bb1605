//! What an inspector says about any NEFF: a report with a stable JSON form, and the same as text.
//!
//! Reads the documented members only. Engine streams of vendor files are opaque, since their encoding is not
//! published; the report says so and counts bytes. A member that is missing or damaged costs its part of the report
//! and adds a warning, never the report.

mod compare;
mod core;
mod text;

pub use self::compare::{HeaderDifference, content_differences, content_hash, header_differences};
pub use self::core::{CoreReport, EngineReport, StreamEncoding};

use crate::container::{Container, Header, OPEN_ENCODING_BIT, ReadFailure, read};
use crate::members::{BuildInfo, Extra, GraphFile, HloStats, Kelf, Metrics, read_json};
use crate::{Error, members};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Write;

/// Everything that is said about a NEFF. Keys of the JSON form are the field names.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Bytes of the file.
    pub file_size: u64,
    /// The header's fields.
    pub header: HeaderReport,
    /// The payload as stored.
    pub payload: PayloadReport,
    /// What built the file.
    pub info: Option<InfoReport>,
    /// The kelf file of the first NeuronCore node.
    pub kelf: Option<Kelf>,
    /// Names of the inputs.
    pub inputs: Vec<String>,
    /// Names of the outputs, once however many cores list them.
    pub outputs: Vec<String>,
    /// Shapes of inputs and outputs as `neff.json` lists them.
    pub neff_json_shapes: Vec<Vec<i64>>,
    /// Element types of inputs and outputs as `neff.json` lists them.
    pub neff_json_dtypes: Vec<String>,
    /// One entry per physical core.
    pub cores: Vec<CoreReport>,
    /// The feature bits that are set.
    pub features: Vec<FeatureReport>,
    /// What the engine streams hold.
    pub encoding: EncodingReport,
    /// Nodes and their tensors, as the vendor's listing has them.
    pub nodes: Vec<NodeReport>,
    /// `hlo_stats.json`, if present.
    pub hlo_stats: Option<HloStats>,
    /// `metrics.json`, if present.
    pub metrics: Option<Metrics>,
    /// SHA-256 over all members but for the network's name: equal for equal content, however it is packed.
    pub content_sha256: String,
    /// Keys of JSON members that this tool has no meaning for, as `member: key`.
    pub unknown_keys: Vec<String>,
    /// Everything odd that was found.
    pub warnings: Vec<String>,
}

/// The header's fields in printable form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeaderReport {
    /// Packaging version.
    pub pkg_version: u64,
    /// Bytes before the payload.
    pub header_size: u64,
    /// Bytes of the payload by the header.
    pub data_size: u64,
    /// Version of the format, `major.minor`.
    pub neff_version: String,
    /// Build text.
    pub build_version: String,
    /// Logical cores.
    pub num_tpb: u32,
    /// First 16 bytes of the hash field as stored, in hexadecimal.
    pub hash: String,
    /// Whether the other 16 bytes are zero.
    pub hash_tail_zero: bool,
    /// Identity in hexadecimal without hyphens.
    pub uuid: String,
    /// Version nibble of the identity.
    pub uuid_version: u8,
    /// Network name.
    pub name: String,
    /// Logical cores asked for.
    pub requested_tpb_count: u32,
    /// Logical cores of the first kelf node.
    pub tpb_per_node_first: u8,
    /// Feature bits in hexadecimal.
    pub feature_bits: String,
    /// Physical cores per logical core as stored.
    pub lnc_size: u32,
    /// Whether the rest of the header is zero.
    pub pad_zero: bool,
}

/// The payload as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PayloadReport {
    /// `gzip` or `tar`.
    pub form: &'static str,
    /// MD5 of the payload in digest order.
    pub md5: String,
    /// How the header's hash relates to the payload.
    pub hash_order: &'static str,
    /// Padding after the gzip stream.
    pub gzip_trailing_zero_bytes: u64,
    /// Number of regular files.
    pub members: usize,
}

/// `info.json` in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InfoReport {
    /// Compiler version.
    pub tool_version: String,
    /// Version of the container family.
    pub kelp_version: String,
    /// Network name without the folders of the host that compiled it.
    pub name: String,
    /// Logical cores.
    pub num_tpb: u32,
    /// Logical cores asked for.
    pub num_tpb_requested: u32,
}

/// A feature bit that is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FeatureReport {
    /// Position of the bit.
    pub bit: u32,
    /// Its name, or `bit N (unnamed)`.
    pub name: String,
}

/// What the engine streams hold, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EncodingReport {
    /// The encoding of all streams of the file.
    pub streams: StreamEncoding,
    /// What that means for whoever has the file.
    pub statement: &'static str,
}

/// A node of the graph with its tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeReport {
    /// Index in `neff.json`.
    pub node: usize,
    /// `NeuronCore` or `CPU`.
    pub executor: &'static str,
    /// Subgraph folder, or the CPU function.
    pub name: String,
    /// Tensors: inputs, outputs, then constants, each sorted by name as text.
    pub variables: Vec<VariableReport>,
}

/// A tensor of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VariableReport {
    /// Name in `def.json`.
    pub variable_name: String,
    /// `IN`, `OUT` or `WEIGHT`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Bytes.
    pub size: Option<u64>,
    /// Axis letters; empty where the tensor map has none.
    pub format: String,
    /// Shape; `None` where the tensor map has none.
    pub shape: Option<Vec<i64>>,
    /// Element type; empty where the tensor map has none.
    pub dtype: String,
}

const OPEN_STATEMENT: &str = "The engine streams use neffuse's open instruction encoding (docs/isa.md). Only this \
     project's tools execute it: a Neuron runtime refuses the file because of feature bit 62.";
const OPAQUE_STATEMENT: &str = "The engine streams are vendor machine code. Their encoding is not published, so they \
     are opaque here: sizes are shown, contents are not decoded.";

impl Report {
    /// Reads a file and reports on it.
    ///
    /// # Errors
    /// As [`read`]; [`HeaderReport::of`] still reports the header that a [`ReadFailure`] may carry.
    pub fn of_file(file: &[u8]) -> Result<Self, ReadFailure> {
        read(file).map(|container| Report::of(&container))
    }

    /// Reports on a NEFF that was read.
    pub fn of(container: &Container) -> Self {
        let mut found = Found::default();
        let graph: Option<GraphFile> = found.required(container, "neff.json");
        let info: Option<BuildInfo> = found.required(container, "info.json");
        let graph = graph.unwrap_or_default();
        let kelf: Option<Kelf> = found.required(container, &kelf_member(&graph));
        found.warnings.extend(container.warnings.iter().map(Error::to_string));
        note_contradictions(container, info.as_ref(), kelf.as_ref(), &mut found);
        for (member, extra) in [
            ("neff.json", Some(&graph.extra)),
            ("info.json", info.as_ref().map(|info| &info.extra)),
            ("kelf-0.json", kelf.as_ref().map(|kelf| &kelf.extra)),
        ] {
            found.note_unknown(member, "", extra);
        }
        let cores = core::cores(container, kelf.as_ref(), &mut found);
        let nodes = core::nodes(container, &graph, kelf.as_ref(), &mut found);
        let streams = core::encoding(container);
        Report {
            file_size: container.payload.file_bytes,
            header: HeaderReport::of(&container.header),
            payload: PayloadReport::of(container),
            inputs: graph.arg_nodes.iter().filter_map(|node| node_name(&graph, *node)).collect(),
            outputs: outputs(&graph, container.header.lnc()),
            neff_json_shapes: graph.attrs.shape,
            neff_json_dtypes: graph.attrs.dltype,
            info: info.map(InfoReport::of),
            kelf,
            cores,
            features: features(container.header.feature_bits),
            encoding: EncodingReport {
                streams,
                statement: match streams {
                    StreamEncoding::Open => OPEN_STATEMENT,
                    StreamEncoding::Opaque => OPAQUE_STATEMENT,
                },
            },
            nodes,
            hlo_stats: found.optional(container, "hlo_stats.json"),
            metrics: found.optional(container, "metrics.json"),
            content_sha256: content_hash(container),
            unknown_keys: found.unknown_keys,
            warnings: found.warnings,
        }
    }

    /// The report as one JSON object on one line.
    pub fn to_json_text(&self) -> String {
        serde_json::to_string(self).expect("a report has string keys only")
    }

    /// The report as a JSON value.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("a report has string keys only")
    }
}

impl HeaderReport {
    /// The printable form of a header.
    pub fn of(header: &Header) -> Self {
        HeaderReport {
            pkg_version: header.pkg_version,
            header_size: header.header_size,
            data_size: header.data_size,
            neff_version: format!("{}.{}", header.neff_version_major, header.neff_version_minor),
            build_version: header.build_text().into_owned(),
            num_tpb: header.num_tpb,
            hash: hexadecimal(&header.hash[..16]),
            hash_tail_zero: header.hash[16..].iter().all(|byte| *byte == 0),
            uuid: hexadecimal(&header.uuid),
            uuid_version: header.uuid[6] >> 4,
            name: header.name_text().into_owned(),
            requested_tpb_count: header.requested_tpb_count,
            tpb_per_node_first: header.tpb_per_node[0],
            feature_bits: format!("{:#x}", header.feature_bits),
            lnc_size: header.lnc_size,
            pad_zero: header.pad_is_zero,
        }
    }
}

impl InfoReport {
    fn of(info: BuildInfo) -> Self {
        InfoReport {
            name: file_name(&info.name).to_owned(),
            tool_version: info.tool_version,
            kelp_version: info.kelp_version,
            num_tpb: info.num_tpb,
            num_tpb_requested: info.num_tpb_requested,
        }
    }
}

impl PayloadReport {
    fn of(container: &Container) -> Self {
        PayloadReport {
            form: container.payload.form.as_str(),
            md5: hexadecimal(&container.payload.md5),
            hash_order: container.payload.hash_order.as_str(),
            gzip_trailing_zero_bytes: container.payload.gzip_trailing_zero_bytes,
            members: container.members.len(),
        }
    }
}

/// The set bits of a feature mask, lowest first.
///
/// Vendor output names bits 10 and 11; which is which is inferred from their order. Names of other bits that vendor
/// files set are not published.
pub fn features(feature_bits: u64) -> Vec<FeatureReport> {
    let name = |bit| match bit {
        10 => "virtual-core".to_owned(),
        11 => "v3-2x-4x-dve-perf-mode".to_owned(),
        OPEN_ENCODING_BIT => "neffuse-open-encoding".to_owned(),
        _ => format!("bit {bit} (unnamed)"),
    };
    let set = (0..u64::BITS).filter(|bit| feature_bits >> bit & 1 == 1);
    set.map(|bit| FeatureReport { bit, name: name(bit) }).collect()
}

/// What turned up while reading members.
#[derive(Default)]
struct Found {
    warnings: Vec<String>,
    unknown_keys: Vec<String>,
}

impl Found {
    fn required<T: DeserializeOwned>(&mut self, container: &Container, member: &str) -> Option<T> {
        let parsed = read_json(container, member);
        parsed.map_err(|error: Error| self.warnings.push(error.to_string())).ok()
    }

    fn optional<T: DeserializeOwned>(&mut self, container: &Container, member: &str) -> Option<T> {
        container.members.contains_key(member).then(|| self.required(container, member)).flatten()
    }

    fn note_unknown(&mut self, member: &str, path: &str, extra: Option<&Extra>) {
        let keys = extra.into_iter().flat_map(members::Extra::keys);
        // Keys that begin with a number sign are comments by the format's own convention.
        let unknown = keys.filter(|key| !key.starts_with('#'));
        self.unknown_keys.extend(unknown.map(|key| format!("{member}: {path}{key}")));
    }
}

fn note_contradictions(container: &Container, info: Option<&BuildInfo>, kelf: Option<&Kelf>, found: &mut Found) {
    let header = &container.header;
    // Compilers write the output path or its last part into either place.
    if let Some(info) = info.filter(|info| file_name(&info.name) != file_name(&header.name_text())) {
        let note = format!("info.json names the network `{}`, the header `{}`", info.name, header.name_text());
        found.warnings.push(note);
    }
    if let Some(kelf) = kelf.filter(|kelf| kelf.graphs.len() != header.lnc() as usize) {
        let note = format!("the header's lnc_size is {}, the kelf has {} graphs", header.lnc_size, kelf.graphs.len());
        found.warnings.push(note);
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

fn kelf_member(graph: &GraphFile) -> String {
    let named = graph.nodes.iter().filter_map(|node| node.attrs.as_ref()?.kelf.as_deref()).next();
    named.unwrap_or("kelf-0.json").to_owned()
}

fn node_name(graph: &GraphFile, node: u64) -> Option<String> {
    graph.nodes.get(usize::try_from(node).ok()?).map(|node| node.name.clone())
}

fn outputs(graph: &GraphFile, lnc: u32) -> Vec<String> {
    let mut names = Vec::new();
    for head in &graph.heads {
        let [node, output, ..] = head[..] else {
            continue;
        };
        let node = usize::try_from(node).ok().and_then(|node| graph.nodes.get(node));
        let name = node.and_then(|node| node.output_names.get(usize::try_from(output).ok()?));
        names.extend(name.cloned());
    }
    // Every physical core lists all outputs again.
    let n_outputs = names.len() / lnc as usize;
    if n_outputs > 0 && names.chunks(n_outputs).all(|part| part == &names[..n_outputs]) {
        names.truncate(n_outputs);
    }
    names
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}
