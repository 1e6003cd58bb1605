//! `sgNN/tensor_map.json`: shapes, element types and layouts by tensor name.

use super::{Extra, integer, open_enum};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Tensors by name.
pub type TensorMap = BTreeMap<String, TensorEntry>;

open_enum! {
    /// On which side of the subgraph a tensor lies.
    TensorKind {
        /// Input.
        Input = "input",
        /// Output.
        Output = "output",
    }
}

/// One tensor. Inputs and outputs join to `def.json` by name, constants by file name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TensorEntry {
    /// This project's key: the input that an output updates in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias_of: Option<String>,
    /// Element type by name.
    pub dtype: String,
    /// This project's key: how many bits the 64-bit integers of an input may have where that is less than 32, such
    /// that no integer of the program leaves 32 bits.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub integer_bits: Option<u32>,
    /// Whether it is a constant.
    pub is_const: bool,
    /// Input or output; absent on constants and intermediates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<TensorKind>,
    /// Its name again.
    pub layer_name: String,
    /// This project's key: position among the graph's inputs or outputs, where some numbers may be unused.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// Letters of the axes on the device.
    pub sim_format: String,
    /// Shape on the device.
    #[serde(with = "integer::list")]
    pub sim_shape: Vec<i64>,
    /// Axis along which a constant is split; written on constants only, `null` when it is whole.
    #[serde(deserialize_with = "even_null", skip_serializing_if = "Option::is_none")]
    pub split_axis: Option<Value>,
    /// Sizes of the parts of a split constant.
    #[serde(deserialize_with = "even_null", skip_serializing_if = "Option::is_none")]
    pub split_indices_or_sections: Option<Value>,
    /// This project's key: steps in elements of each axis, where the tensor is not packed.
    #[serde(with = "integer::optional_list", skip_serializing_if = "Option::is_none")]
    pub strides: Option<Vec<i64>>,
    /// File of the tensor; joins a constant to `file_name` in `def.json`.
    pub tf_file: String,
    /// Letters of the axes in the framework.
    pub tf_format: String,
    /// Shape in the framework.
    #[serde(with = "integer::list")]
    pub tf_shape: Vec<i64>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

impl TensorEntry {
    /// An input or output whose device layout is its framework layout.
    pub fn io(name: &str, kind: TensorKind, dtype: &str, shape: &[i64]) -> Self {
        let format = format_of_rank(shape.len());
        TensorEntry {
            dtype: dtype.to_owned(),
            kind: Some(kind),
            layer_name: name.to_owned(),
            sim_format: format.clone(),
            sim_shape: shape.to_vec(),
            tf_file: format!("value_{name}.npy"),
            tf_format: format,
            tf_shape: shape.to_vec(),
            ..TensorEntry::default()
        }
    }

    /// A constant stored whole in the named member of the subgraph's folder.
    pub fn constant(name: &str, dtype: &str, shape: &[i64], file_name: &str) -> Self {
        TensorEntry {
            is_const: true,
            kind: None,
            split_axis: Some(Value::Null),
            split_indices_or_sections: Some(Value::Null),
            tf_file: file_name.to_owned(),
            ..TensorEntry::io(name, TensorKind::Input, dtype, shape)
        }
    }
}

/// The vendor's axis letters for a rank, as far as known; higher ranks are numbered by us as `N`, `D1` and so on.
pub fn format_of_rank(rank: usize) -> String {
    match rank {
        0 | 1 => "N".to_owned(),
        2 => "NC".to_owned(),
        3 => "NHC".to_owned(),
        4 => "CRSM".to_owned(),
        _ => (1..rank).fold("N".to_owned(), |format, axis| format!("{format}D{axis}")),
    }
}

// An explicit null is content here, unlike an absent key.
fn even_null<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}
