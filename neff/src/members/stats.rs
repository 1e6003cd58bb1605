//! `hlo_stats.json` and `metrics.json`: what profilers read beside the program. Loading needs neither.

use super::{Extra, integer};
use serde::{Deserialize, Serialize};
use serde_json::Number;

/// `hlo_stats.json`: counts of the whole graph; -1 means not computed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct HloStats {
    /// Bytes of outputs that share memory with inputs.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub aliased_output_size: Option<i64>,
    /// Twice the multiply-accumulates per byte of traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arithmetic_intensity: Option<f64>,
    /// Bytes of constants.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub constant_size: Option<i64>,
    /// Number of inputs.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub hlo_input_count: Option<i64>,
    /// Multiply-accumulates; profilers take twice this as the model's floating-point operations.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub hlo_mac_count: Option<i64>,
    /// Number of outputs.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub hlo_output_count: Option<i64>,
    /// Bytes of input feature maps.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub ifmap_size: Option<i64>,
    /// Bytes of output feature maps.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub ofmap_size: Option<i64>,
    /// Outputs that are read again.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub outputs_read_from_count: Option<i64>,
    /// Inputs that are outputs.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub passthrough_tensors_count: Option<i64>,
    /// Outputs that repeat another.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub redundant_output_count: Option<i64>,
    /// Bytes moved in and out.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub traffic: Option<i64>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

impl HloStats {
    /// The statistics of a graph with this many multiply-accumulates, bytes in and out, and constants.
    pub fn of_graph(mac_count: i64, input_bytes: i64, output_bytes: i64, constant_bytes: i64) -> Self {
        let traffic = input_bytes + output_bytes + constant_bytes;
        // Vendor files have 0 for a graph without matrix products, and a graph without traffic has no ratio either.
        let intensity = if traffic > 0 { mac_count as f64 * 2.0 / traffic as f64 } else { 0.0 };
        HloStats {
            aliased_output_size: Some(0),
            arithmetic_intensity: Some(intensity),
            constant_size: Some(constant_bytes),
            hlo_input_count: Some(-1),
            hlo_mac_count: Some(mac_count),
            hlo_output_count: Some(-1),
            ifmap_size: Some(input_bytes),
            ofmap_size: Some(output_bytes),
            outputs_read_from_count: Some(-1),
            passthrough_tensors_count: Some(-1),
            redundant_output_count: Some(-1),
            traffic: Some(traffic),
            extra: Extra::new(),
        }
    }
}

/// `metrics.json`: a list of named values.
pub type Metrics = Vec<Metric>;

/// One metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Metric {
    /// Name.
    pub metric_name: String,
    /// Value.
    pub value: Number,
    /// Unit, spelled out.
    #[serde(default)]
    pub unit: String,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

impl Metric {
    /// A metric from its three parts.
    pub fn new(name: &str, value: impl Into<Number>, unit: &str) -> Self {
        Metric { metric_name: name.to_owned(), value: value.into(), unit: unit.to_owned(), extra: Extra::new() }
    }
}
