//! `models/model.json` and the weight tables as they stand in the archive: schema 8 of
//! torch.export, without what concerns nobody here.
//!
//! Unions are objects of one key. Relies on serde for syntax and for the bound on nesting.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

/// The only major version that is read; minor ones add fields.
pub const MAJOR_VERSION: i64 = 8;

/// The version alone.
#[derive(Deserialize)]
pub struct Versioned {
    pub schema_version: Version,
    #[serde(default)]
    pub torch_version: String,
}

#[derive(Deserialize)]
pub struct Version {
    pub major: i64,
    pub minor: i64,
}

/// A whole exported program.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub struct ExportedProgram<'a> {
    pub graph_module: GraphModule<'a>,
    #[serde(default)]
    pub range_constraints: BTreeMap<String, RangeConstraint>,
}

#[derive(Deserialize)]
pub struct RangeConstraint {
    pub min_val: Option<i64>,
    pub max_val: Option<i64>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub struct GraphModule<'a> {
    pub graph: Graph<'a>,
    pub signature: Signature,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub struct Graph<'a> {
    pub inputs: Vec<Argument<'a>>,
    pub outputs: Vec<Argument<'a>>,
    pub nodes: Vec<Node<'a>>,
    pub tensor_values: BTreeMap<String, TensorMeta>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub struct Node<'a> {
    pub target: String,
    pub inputs: Vec<NamedArgument<'a>>,
    pub outputs: Vec<Argument<'a>>,
    pub metadata: Metadata<'a>,
    #[serde(default)]
    pub name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub struct Metadata<'a> {
    #[serde(borrow, default)]
    pub stack_trace: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub nn_module_stack: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub struct NamedArgument<'a> {
    pub name: String,
    pub arg: Argument<'a>,
}

/// The name of a value.
#[derive(Deserialize)]
pub struct Name {
    pub name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", bound(deserialize = "'de: 'a"))]
#[expect(clippy::enum_variant_names, reason = "they are the schema's names")]
pub enum Argument<'a> {
    AsNone(IgnoredAny),
    AsTensor(Name),
    AsTensors(Vec<Name>),
    AsOptionalTensor(OptionalTensor),
    AsOptionalTensors(Vec<OptionalTensor>),
    AsNestedTensors(Vec<Vec<Name>>),
    AsInt(i64),
    AsInts(Vec<i64>),
    AsIntLists(Vec<Vec<i64>>),
    AsFloat(Float),
    AsFloats(Vec<Float>),
    AsFloatLists(Vec<Vec<Float>>),
    AsBool(bool),
    AsBools(Vec<bool>),
    AsString(String),
    AsStrings(Vec<String>),
    AsComplex(IgnoredAny),
    AsSymInt(SymInt),
    AsSymInts(Vec<SymInt>),
    AsSymFloat(SymFloat),
    AsSymFloats(Vec<SymFloat>),
    AsSymBool(SymBool),
    AsSymBools(Vec<SymBool>),
    AsScalarType(i64),
    AsMemoryFormat(i64),
    AsLayout(i64),
    AsDevice(Device),
    AsOperator(String),
    AsGraph(Box<GraphArgument<'a>>),
    AsCustomObj(IgnoredAny),
    AsStringToArgument(IgnoredAny),
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub struct GraphArgument<'a> {
    pub graph: Graph<'a>,
}

#[derive(Deserialize, PartialEq, Eq)]
pub struct Device {
    #[serde(rename = "type")]
    pub kind: String,
    pub index: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptionalTensor {
    AsTensor(Name),
    AsNone(IgnoredAny),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymInt {
    AsName(String),
    AsInt(i64),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymFloat {
    AsName(String),
    AsFloat(Float),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymBool {
    AsName(String),
    AsBool(bool),
}

/// A number; infinities and NaN are strings, as JSON has none.
#[derive(Copy, Clone)]
pub struct Float(pub f64);

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Spelling<'a> {
            Number(f64),
            #[serde(borrow)]
            Text(Cow<'a, str>),
        }
        let number = match Spelling::deserialize(deserializer)? {
            Spelling::Number(number) => number,
            Spelling::Text(text) => match text.as_ref() {
                "Infinity" => f64::INFINITY,
                "-Infinity" => f64::NEG_INFINITY,
                "NaN" => f64::NAN,
                other => return Err(serde::de::Error::custom(format!("`{other}` is no number"))),
            },
        };
        Ok(Float(number))
    }
}

/// Type and place of a tensor.
#[derive(Deserialize)]
pub struct TensorMeta {
    pub dtype: i64,
    pub sizes: Vec<Size>,
    pub strides: Vec<Size>,
    #[serde(default)]
    pub storage_offset: Option<Size>,
    pub layout: i64,
    pub device: Device,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    AsInt(i64),
    AsExpr(Expression),
}

#[derive(Deserialize)]
pub struct Expression {
    pub expr_str: String,
}

#[derive(Deserialize)]
pub struct Signature {
    pub input_specs: Vec<InputSpec>,
    pub output_specs: Vec<OutputSpec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputSpec {
    UserInput(IgnoredAny),
    Parameter(ParameterSpec),
    Buffer(BufferSpec),
    TensorConstant(ConstantSpec),
    CustomObj(IgnoredAny),
    ConstantInput(IgnoredAny),
    Token(IgnoredAny),
}

#[derive(Deserialize)]
pub struct ParameterSpec {
    pub parameter_name: String,
}

#[derive(Deserialize)]
pub struct BufferSpec {
    pub buffer_name: String,
}

#[derive(Deserialize)]
pub struct ConstantSpec {
    pub tensor_constant_name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputSpec {
    UserOutput(IgnoredAny),
    LossOutput(IgnoredAny),
    BufferMutation(BufferSpec),
    ParameterMutation(ParameterSpec),
    UserInputMutation(UserInputSpec),
    GradientToParameter(IgnoredAny),
    GradientToUserInput(IgnoredAny),
    Token(IgnoredAny),
}

#[derive(Deserialize)]
pub struct UserInputSpec {
    pub user_input_name: String,
}

/// A table of stored tensors.
#[derive(Deserialize)]
pub struct PayloadTable {
    pub config: BTreeMap<String, Payload>,
}

#[derive(Deserialize)]
pub struct Payload {
    pub path_name: String,
    pub use_pickle: bool,
    pub tensor_meta: Option<TensorMeta>,
}

/// PyTorch's name of an element type's code.
pub fn dtype_name(code: i64) -> Option<&'static str> {
    Some(match code {
        1 => "uint8",
        2 => "int8",
        3 => "int16",
        4 => "int32",
        5 => "int64",
        6 => "float16",
        7 => "float32",
        8 => "float64",
        9 => "complex32",
        10 => "complex64",
        11 => "complex128",
        12 => "bool",
        13 => "bfloat16",
        28 => "uint16",
        29 => "float8_e4m3fn",
        30 => "float8_e5m2",
        31 => "float8_e4m3fnuz",
        32 => "float8_e5m2fnuz",
        33 => "float8_e8m0fnu",
        34 => "uint32",
        35 => "uint64",
        _ => return None,
    })
}

/// PyTorch's name of a layout's code.
pub fn layout_name(code: i64) -> &'static str {
    match code {
        1 => "sparse_coo",
        2 => "sparse_csr",
        3 => "sparse_csc",
        4 => "sparse_bsr",
        5 => "sparse_bsc",
        6 => "mkldnn",
        7 => "strided",
        _ => "unknown",
    }
}

/// PyTorch's name of a memory format's code.
pub fn memory_format_name(code: i64) -> &'static str {
    match code {
        1 => "contiguous_format",
        2 => "channels_last",
        3 => "channels_last_3d",
        4 => "preserve_format",
        _ => "unknown",
    }
}
