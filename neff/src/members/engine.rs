//! `sgNN/<engine>.json`: the static DMA transfers of an engine and the tables it refers to.

use super::{Extra, integer};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Number;
use std::fmt;

/// The JSON member of one engine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineFile {
    /// Scalar engine: member that describes the activation table sets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub act_info: Option<String>,
    /// Scalar engine: 12 in all known files.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub act_semaphore: Option<u64>,
    /// Scalar engine: names of the activation table sets in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation_function_sets: Option<Vec<String>>,
    /// Static transfers, in the order in which they are triggered.
    pub dma: Vec<DmaEntry>,
    /// Vector engine: its tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dve_tables: Option<Vec<DveTables>>,
    /// The instruction stream.
    pub instr: String,
    /// Name of this member.
    pub name: String,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Members of the vector engine's tables. Older targets have one control table, newer ones a fast and a slow one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DveTables {
    /// Control table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_table: Option<String>,
    /// Control table of fast mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_fast_table: Option<String>,
    /// Control table of slow mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_slow_table: Option<String>,
    /// Data path table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datapath_table: Option<String>,
    /// Opcode table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opcode_table: Option<String>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One triggered DMA: all its descriptors move on one trigger.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DmaEntry {
    /// Descriptors; a single object is read as a list of one.
    #[serde(default, deserialize_with = "one_or_many")]
    pub desc: Vec<DmaTransfer>,
    /// Event that is set on completion.
    #[serde(default, with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub event: Option<u64>,
    /// Function that triggers this and the following entries of the queue set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function_start: Option<String>,
    /// Ties the entry to its trigger in the instruction stream.
    #[serde(with = "integer::number")]
    pub id: u64,
    /// Queue-set instance; wins over `queue`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_name: Option<String>,
    /// Queue set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Semaphores of the other physical core that are incremented too.
    #[serde(default, with = "integer::optional_list", skip_serializing_if = "Option::is_none")]
    pub remote_semaphores: Option<Vec<u64>>,
    /// Marks the first queue of a set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section_start_desc: Option<bool>,
    /// Semaphore that completion increments, by the number of queues in total.
    #[serde(default, with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub semaphore: Option<u64>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One descriptor. Offsets and steps are bytes; the first size is bytes, the others are counts, innermost first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DmaTransfer {
    /// `copy` (also when absent), `cast`, `transpose`, `fma`, `add`, `min` or `max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// The source; absent where `from_arr` lists several.
    #[serde(flatten)]
    pub from: DmaSide,
    /// Sources of a computing transfer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub from_arr: Vec<DmaSide>,
    /// Destination variable.
    pub to: String,
    /// First byte in the destination.
    #[serde(with = "integer::number")]
    pub to_off: u64,
    /// Sizes in the destination.
    #[serde(with = "integer::list")]
    pub to_sizes: Vec<u64>,
    /// Byte steps in the destination.
    #[serde(with = "integer::list")]
    pub to_steps: Vec<i64>,
    /// Element type at the destination, `uint8` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_dtype: Option<String>,
    /// Dimensions that tile the descriptor.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub num_tiling_dimensions: Option<u64>,
    /// Type of `scale`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_dtype: Option<String>,
    /// Factor of `fma`, 1 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<Number>,
    /// Type of `constant`; without it the constant does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constant_dtype: Option<String>,
    /// Operand of `min` and `max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constant: Option<Number>,
    /// Shape of a transpose.
    #[serde(with = "integer::optional_list", skip_serializing_if = "Option::is_none")]
    pub transpose_shape: Option<Vec<u64>>,
    /// Bytes of an element of a transpose.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub transpose_element_size: Option<u64>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The source of a descriptor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DmaSide {
    /// Source variable.
    #[serde(rename = "from", skip_serializing_if = "Option::is_none")]
    pub variable: Option<String>,
    /// First byte in the source.
    #[serde(rename = "from_off", with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub off: Option<u64>,
    /// Sizes in the source.
    #[serde(rename = "from_sizes", with = "integer::optional_list", skip_serializing_if = "Option::is_none")]
    pub sizes: Option<Vec<u64>>,
    /// Byte steps in the source.
    #[serde(rename = "from_steps", with = "integer::optional_list", skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<i64>>,
    /// Element type at the source, `uint8` when absent.
    #[serde(rename = "from_dtype", skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
}

impl DmaTransfer {
    /// Bytes of ring memory that the descriptor takes by the published estimate: 16 per element descriptor, and 16
    /// elements of room on each side.
    pub fn ring_bytes(&self) -> u64 {
        let elements = |sizes: &[u64]| sizes.iter().skip(1).fold(1_u64, |product, size| product.saturating_mul(*size));
        let to = elements(&self.to_sizes);
        let sources = if self.from_arr.is_empty() { std::slice::from_ref(&self.from) } else { &self.from_arr[..] };
        sources.iter().fold(0, |sum: u64, side| {
            let from = elements(side.sizes.as_deref().unwrap_or(&[]));
            sum.saturating_add(from.saturating_add(16).saturating_add(to).saturating_add(16).saturating_mul(16))
        })
    }
}

fn one_or_many<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<DmaTransfer>, D::Error> {
    from.deserialize_any(OneOrMany)
}

struct OneOrMany;

impl<'de> Visitor<'de> for OneOrMany {
    type Value = Vec<DmaTransfer>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a descriptor or a list of descriptors")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(access))
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        DmaTransfer::deserialize(MapAccessDeserializer::new(access)).map(|transfer| vec![transfer])
    }
}
