//! A captured graph as every form of file tells it: nodes by number, arguments, recorded results.
//!
//! References go backwards only, which `build` checks. What a node computes is the business of
//! `aten`.

use std::collections::BTreeMap;

use ir::Dtype;
use ir::graph::{InputRole, Location};

/// A whole graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CapturedGraph {
    pub name: String,
    pub inputs: Vec<CapturedInput>,
    pub nodes: Vec<CapturedNode>,
    pub outputs: Vec<CapturedOutput>,
    /// Tensors that `const` nodes name.
    pub constants: BTreeMap<String, StoredTensor>,
}

/// A tensor that the caller gives.
#[derive(Clone, Debug, PartialEq)]
pub struct CapturedInput {
    /// Unique among inputs and nodes.
    pub id: u64,
    pub name: String,
    pub role: InputRole,
    pub recorded: Recorded,
}

/// A call.
#[derive(Clone, Debug, PartialEq)]
pub struct CapturedNode {
    pub id: u64,
    /// An overload such as `aten.add.Tensor`; `getitem`, one result of a node with several; or
    /// `const`, a stored tensor.
    pub target: String,
    pub positional: Vec<Argument>,
    pub keywords: BTreeMap<String, Argument>,
    pub recorded: Recorded,
    /// What the file calls this node, which may be another target.
    pub location: Location,
    /// Why the reader of the file cannot express this node; it is refused.
    pub refusal: Option<String>,
}

/// What the caller gets.
#[derive(Clone, Debug, PartialEq)]
pub struct CapturedOutput {
    /// `None` where no tensor is returned.
    pub reference: Option<u64>,
    /// The input that it updates in place.
    pub updates: Option<u64>,
    pub description: String,
}

/// A tensor in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTensor {
    /// PyTorch's name.
    pub dtype: String,
    pub shape: Vec<u64>,
    pub data: StoredData,
}

/// Little-endian elements in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub enum StoredData {
    Bytes(Vec<u8>),
    Base64(String),
    /// The writer left them out.
    Missing,
}

/// An argument of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    Nothing,
    Bool(bool),
    Int(i64),
    Float(f64),
    Reference(u64),
    Text(String),
    Dtype(String),
    Device(String),
    MemoryFormat(String),
    Layout(String),
    Symbol(String),
    /// A Python slice or a complex number: no overload that is known takes one.
    Opaque(&'static str),
    List(Vec<Argument>),
}

/// What the writer recorded of a node's result.
#[derive(Clone, Debug, PartialEq)]
pub enum Recorded {
    Nothing,
    Tensor(RecordedTensor),
    Tuple(Vec<Recorded>),
    /// A size that is not known before the call.
    Symbol(String),
}

/// Type and strides of a recorded tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedTensor {
    /// PyTorch's name, for example `bfloat16`.
    pub dtype: String,
    pub shape: Vec<Size>,
    pub strides: Vec<Size>,
}

/// A dimension or stride.
#[derive(Clone, Debug, PartialEq)]
pub enum Size {
    Known(usize),
    Symbol(String),
}

impl RecordedTensor {
    /// The type as people read it, for example `float32[4, 512]`.
    pub fn text(&self) -> String {
        let sizes: Vec<String> = self.shape.iter().map(Size::text).collect();
        format!("{}[{}]", self.dtype, sizes.join(", "))
    }

    /// The shape where every dimension is known.
    pub fn known_shape(&self) -> Option<Vec<usize>> {
        self.shape.iter().map(Size::known).collect()
    }

    /// The strides where every one is known.
    pub fn known_strides(&self) -> Option<Vec<usize>> {
        self.strides.iter().map(Size::known).collect()
    }
}

impl Size {
    /// The number, where it is one.
    pub fn known(&self) -> Option<usize> {
        match self {
            Size::Known(size) => Some(*size),
            Size::Symbol(_) => None,
        }
    }

    fn text(&self) -> String {
        match self {
            Size::Known(size) => size.to_string(),
            Size::Symbol(expression) => expression.clone(),
        }
    }
}

impl Recorded {
    /// The result's type as people read it.
    pub fn text(&self) -> String {
        match self {
            Recorded::Nothing => "none".to_owned(),
            Recorded::Tensor(tensor) => tensor.text(),
            Recorded::Tuple(items) => {
                let items: Vec<String> = items.iter().map(Recorded::text).collect();
                format!("({})", items.join(", "))
            }
            Recorded::Symbol(expression) => expression.clone(),
        }
    }
}

/// The element type with this PyTorch name; `None` where the IR has no such type.
pub fn dtype_of(name: &str) -> Option<Dtype> {
    Some(match name {
        "float64" => Dtype::F64,
        "float32" => Dtype::F32,
        "bfloat16" => Dtype::Bf16,
        "float16" => Dtype::F16,
        "float8_e5m2" => Dtype::F8E5m2,
        "int64" => Dtype::I64,
        "int32" => Dtype::I32,
        "int16" => Dtype::I16,
        "int8" => Dtype::I8,
        "uint8" => Dtype::U8,
        "bool" => Dtype::Bool,
        // `float8_e4m3fn` reaches 448 and has no infinities: it is not the chips' `f8e4m3`.
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::dtype_of;

    #[test]
    fn the_eight_bit_float_without_infinities_is_not_the_chips() {
        assert_eq!(dtype_of("float8_e4m3fn"), None);
    }
}
