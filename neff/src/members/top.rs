//! The top-level members that every NEFF has: `kelf-0.json`, `info.json` and `neff.json`.

use super::{Extra, integer};
use ir::target::TargetName;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// A kelf file: the subgraphs of one node, one per physical core, and what they are compiled for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kelf {
    /// Subgraphs in core order.
    #[serde(default)]
    pub graphs: Vec<KelfGraph>,
    /// Version of this member's form; `0.5` in all known files.
    #[serde(default)]
    pub version: String,
    /// Target name: `sunda` for trn1, `cayman` for trn2. A free string: an unknown one says nothing.
    #[serde(default)]
    pub target: String,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The vendor's name of a chip. For trn3 none is published: ours stands there.
pub fn chip_name(target: TargetName) -> &'static str {
    match target {
        TargetName::Trn1 => "sunda",
        TargetName::Trn2 => "cayman",
        TargetName::Trn3 => "trn3",
    }
}

/// The chip of a name in a kelf file; `None` for names that are not known.
pub fn chip_target(name: &str) -> Option<TargetName> {
    TargetName::ALL.into_iter().find(|target| chip_name(*target) == name)
}

/// One subgraph of a kelf file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KelfGraph {
    /// Path of its `def.json` in the archive.
    pub definition: String,
    /// Its name, which is its folder.
    #[serde(default)]
    pub name: String,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// `info.json`: what built the file, and the core counts of the header again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BuildInfo {
    /// Compiler version, stored nowhere else.
    pub tool_version: String,
    /// Name of the container family's version; `Dynamic` in all known files.
    pub kelp_version: String,
    /// Network name, as in the header.
    pub name: String,
    /// Logical cores, as in the header.
    #[serde(with = "integer::number")]
    pub num_tpb: u32,
    /// Logical cores asked for, as in the header.
    #[serde(with = "integer::number")]
    pub num_tpb_requested: u32,
    /// Logical cores of each of 64 kelf nodes, as in the header.
    #[serde(with = "integer::list")]
    pub num_tpb_per_node: Vec<u32>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// `neff.json`: the graph that the runtime walks, in the dialect of TVM's graph executor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GraphFile {
    /// One `null` node per input, then one `tvm_op` node per kelf or CPU function.
    pub nodes: Vec<GraphNode>,
    /// Indices of the input nodes.
    #[serde(with = "integer::list")]
    pub arg_nodes: Vec<u64>,
    /// The outputs as `[node, output, 0]`.
    #[serde(with = "integer::table")]
    pub heads: Vec<Vec<u64>>,
    /// Shapes, storage ids and dtypes of the inputs and then the outputs, these once per physical core.
    pub attrs: GraphAttrs,
    /// Running count of outputs before each node.
    #[serde(with = "integer::list")]
    pub node_row_ptr: Vec<u64>,
    /// Signatures.
    pub metadata: Metadata,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A node of the graph.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GraphNode {
    /// `null` or `tvm_op`.
    pub op: String,
    /// Name of the input, or of the function.
    pub name: String,
    /// What runs; absent on inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attrs: Option<NodeAttrs>,
    /// Operands as `[node, output, 0]`.
    #[serde(with = "integer::table")]
    pub inputs: Vec<Vec<u64>>,
    /// Names of the outputs; a kelf repeats the list once per physical core.
    pub output_names: Vec<String>,
    /// `"0"` on inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_param: Option<String>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What a `tvm_op` node runs. Numbers are strings in the file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeAttrs {
    /// `__kelf` for a NeuronCore node, otherwise a CPU function.
    pub func_name: String,
    /// `0` in all known files.
    #[serde(with = "integer::text", skip_serializing_if = "Option::is_none")]
    pub flatten_data: Option<u64>,
    /// Number of inputs.
    #[serde(with = "integer::text", skip_serializing_if = "Option::is_none")]
    pub num_inputs: Option<u64>,
    /// The kelf member; absent on CPU nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kelf: Option<String>,
    /// Number of outputs times physical cores.
    #[serde(with = "integer::text", skip_serializing_if = "Option::is_none")]
    pub num_outputs: Option<u64>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Tables over the graph's inputs and outputs. The file stores each as a pair of a type tag and the list.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GraphAttrs {
    /// Shapes.
    #[serde(serialize_with = "tagged_shapes", deserialize_with = "untag_shapes")]
    pub shape: Vec<Vec<i64>>,
    /// Storage ids.
    #[serde(serialize_with = "tagged_ids", deserialize_with = "untag_ids")]
    pub storage_id: Vec<i64>,
    /// Element types by name.
    #[serde(serialize_with = "tagged_names", deserialize_with = "untag")]
    pub dltype: Vec<String>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The signatures of the graph.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metadata {
    /// Signatures by name; the compiler writes one, `default`.
    pub signatures: BTreeMap<String, Signature>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Inputs and outputs by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Signature {
    /// Inputs.
    pub inputs: BTreeMap<String, SignatureTensor>,
    /// Empty in all known files.
    pub outputs: BTreeMap<String, SignatureTensor>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One tensor of a signature.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SignatureTensor {
    /// Position among the inputs.
    #[serde(with = "integer::number")]
    pub id: u64,
    /// Element type by name.
    pub dtype: String,
    /// Shape.
    #[serde(with = "integer::list")]
    pub shape: Vec<i64>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

impl GraphFile {
    /// The graph of one kelf node over the given inputs and outputs: `(name, dtype, shape)` each, in order.
    ///
    /// `lnc` is the number of physical cores, each of which lists all outputs again.
    pub fn of_one_kelf(inputs: &[(&str, &str, &[i64])], outputs: &[(&str, &str, &[i64])], lnc: u64) -> Self {
        let n_inputs = inputs.len() as u64;
        let n_outputs = outputs.len() as u64 * lnc;
        let repeated = || (0..lnc).flat_map(|_| outputs.iter());
        let mut nodes: Vec<GraphNode> = inputs.iter().map(|(name, _, _)| GraphNode::input(name)).collect();
        nodes.push(GraphNode {
            op: "tvm_op".to_owned(),
            name: "sg_coreV10".to_owned(),
            attrs: Some(NodeAttrs {
                func_name: "__kelf".to_owned(),
                flatten_data: Some(0),
                num_inputs: Some(n_inputs),
                kelf: Some("kelf-0.json".to_owned()),
                num_outputs: Some(n_outputs),
                extra: Extra::new(),
            }),
            inputs: (0..n_inputs).map(|input| vec![input, 0, 0]).collect(),
            output_names: repeated().map(|(name, _, _)| (*name).to_owned()).collect(),
            ..GraphNode::default()
        });
        let tensors = || inputs.iter().chain(repeated());
        let signature = |(id, (name, dtype, shape)): (usize, &(&str, &str, &[i64]))| {
            let tensor = SignatureTensor {
                id: id as u64,
                dtype: (*dtype).to_owned(),
                shape: shape.to_vec(),
                extra: Extra::new(),
            };
            ((*name).to_owned(), tensor)
        };
        let inputs_by_name = inputs.iter().enumerate().map(signature).collect();
        let default = Signature { inputs: inputs_by_name, ..Signature::default() };
        GraphFile {
            nodes,
            arg_nodes: (0..n_inputs).collect(),
            heads: (0..n_outputs).map(|output| vec![n_inputs, output, 0]).collect(),
            attrs: GraphAttrs {
                shape: tensors().map(|(_, _, shape)| shape.to_vec()).collect(),
                storage_id: (0..).take(tensors().count()).collect(),
                dltype: tensors().map(|(_, dtype, _)| (*dtype).to_owned()).collect(),
                extra: Extra::new(),
            },
            node_row_ptr: (0..=n_inputs).chain([n_inputs + n_outputs]).collect(),
            metadata: Metadata { signatures: BTreeMap::from([("default".to_owned(), default)]), extra: Extra::new() },
            extra: Extra::new(),
        }
    }
}

impl GraphNode {
    fn input(name: &str) -> Self {
        GraphNode {
            op: "null".to_owned(),
            name: name.to_owned(),
            output_names: vec![name.to_owned()],
            is_param: Some("0".to_owned()),
            ..GraphNode::default()
        }
    }

    /// Whether the node runs on a NeuronCore.
    pub fn is_kelf(&self) -> bool {
        self.op == "tvm_op" && self.attrs.as_ref().is_some_and(|attrs| attrs.func_name == "__kelf")
    }
}

fn tagged_shapes<S: Serializer>(list: &[Vec<i64>], to: S) -> Result<S::Ok, S::Error> {
    ("list_shape", list).serialize(to)
}

fn tagged_ids<S: Serializer>(list: &[i64], to: S) -> Result<S::Ok, S::Error> {
    ("list_int", list).serialize(to)
}

fn tagged_names<S: Serializer>(list: &[String], to: S) -> Result<S::Ok, S::Error> {
    ("list_str", list).serialize(to)
}

fn untag<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let (_, list) = <(String, T)>::deserialize(from)?;
    Ok(list)
}

#[derive(Deserialize)]
struct Ids(#[serde(with = "integer::list")] Vec<i64>);

#[derive(Deserialize)]
struct Shapes(#[serde(with = "integer::table")] Vec<Vec<i64>>);

fn untag_ids<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<i64>, D::Error> {
    untag::<Ids, D>(from).map(|ids| ids.0)
}

fn untag_shapes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<i64>>, D::Error> {
    untag::<Shapes, D>(from).map(|shapes| shapes.0)
}
