//! The fxg-json/1 document as it stands in the file, checked for shape but not for meaning.
//!
//! Relies on serde for syntax and for the bound on nesting. What it says of a graph is the business
//! of `fxg`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::captured::{Argument, Recorded, RecordedTensor, Size};

/// The only format version that is read.
pub const FORMAT: &str = "fxg-json/1";

/// A whole file.
#[derive(Deserialize)]
pub struct Document {
    #[serde(default)]
    pub name: String,
    pub inputs: Vec<InputEntry>,
    pub nodes: Vec<NodeEntry>,
    pub outputs: Vec<OutputEntry>,
    #[serde(default)]
    pub constants: BTreeMap<String, ConstantEntry>,
}

/// One graph input.
#[derive(Deserialize)]
pub struct InputEntry {
    pub id: u64,
    pub name: String,
    /// AOTAutograd's descriptor, by which outputs name the inputs that they update.
    #[serde(default)]
    pub desc: Option<String>,
    #[serde(default)]
    pub role: Option<String>,
    pub out: Value,
}

/// One FX node.
#[derive(Deserialize)]
pub struct NodeEntry {
    pub id: u64,
    pub name: String,
    pub target: String,
    #[serde(default)]
    pub args: Vec<Value>,
    #[serde(default)]
    pub kwargs: BTreeMap<String, Value>,
    #[serde(default)]
    pub out: Value,
    #[serde(default)]
    pub module: Option<String>,
    #[serde(default)]
    pub loc: Option<String>,
}

/// One graph output.
#[derive(Deserialize)]
pub struct OutputEntry {
    #[serde(rename = "ref")]
    pub reference: Option<u64>,
    #[serde(default)]
    pub desc: Option<String>,
}

/// One tensor stored in the file.
#[derive(Deserialize)]
pub struct ConstantEntry {
    pub shape: Vec<u64>,
    pub dtype: String,
    /// Base64 of little-endian elements; absent where the writer found it too large.
    #[serde(default)]
    pub data: Option<String>,
}

/// Reads an argument.
///
/// # Errors
/// What is no argument of the format.
pub fn parse_argument(value: &Value) -> Result<Argument, String> {
    match value {
        Value::Null => Ok(Argument::Nothing),
        Value::Bool(flag) => Ok(Argument::Bool(*flag)),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(int), _) => Ok(Argument::Int(int)),
            (None, Some(float)) if !number.is_u64() => Ok(Argument::Float(float)),
            (None, _) => Err(format!("the number {number} does not fit 64 bits")),
        },
        Value::String(text) => Err(format!("the bare string `{text}` is no argument")),
        Value::Array(items) => items.iter().map(parse_argument).collect::<Result<_, _>>().map(Argument::List),
        Value::Object(entries) => {
            let mut entries = entries.iter();
            let (Some((key, value)), None) = (entries.next(), entries.next()) else {
                return Err("an argument object must have exactly one key".to_owned());
            };
            parse_tagged(key, value)
        }
    }
}

fn parse_tagged(key: &str, value: &Value) -> Result<Argument, String> {
    let text = || value.as_str().map(str::to_owned).ok_or_else(|| format!("`{key}` needs a string"));
    match key {
        "ref" => value.as_u64().map(Argument::Reference).ok_or_else(|| "`ref` needs a node number".to_owned()),
        "float" => match value.as_str() {
            Some("inf") => Ok(Argument::Float(f64::INFINITY)),
            Some("-inf") => Ok(Argument::Float(f64::NEG_INFINITY)),
            Some("nan") => Ok(Argument::Float(f64::NAN)),
            Some(_) | None => Err("`float` needs inf, -inf or nan".to_owned()),
        },
        "str" => text().map(Argument::Text),
        "dtype" => text().map(Argument::Dtype),
        "device" => text().map(Argument::Device),
        "memory_format" => text().map(Argument::MemoryFormat),
        "layout" => text().map(Argument::Layout),
        "sym" => text().map(Argument::Symbol),
        "slice" => Ok(Argument::Opaque("a Python slice")),
        "complex" => Ok(Argument::Opaque("a complex number")),
        _ => Err(format!("`{key}` tags no argument")),
    }
}

/// Reads what a writer recorded of a result.
///
/// # Errors
/// What is no result of the format.
pub fn parse_recorded(value: &Value) -> Result<Recorded, String> {
    let entries = match value {
        Value::Null => return Ok(Recorded::Nothing),
        Value::Object(entries) => entries,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err("`out` must be an object or null".to_owned());
        }
    };
    if let Some(items) = entries.get("tuple") {
        let items = items.as_array().ok_or("`tuple` needs a list")?;
        return items.iter().map(parse_recorded).collect::<Result<_, _>>().map(Recorded::Tuple);
    }
    if let Some(expression) = entries.get("sym") {
        let expression = expression.as_str().ok_or("`sym` needs a string")?;
        return Ok(Recorded::Symbol(expression.to_owned()));
    }
    let dtype = entries.get("dtype").and_then(Value::as_str).ok_or("a tensor needs a `dtype`")?;
    let shape = parse_sizes("shape", entries.get("shape"))?;
    let strides = parse_sizes("stride", entries.get("stride"))?;
    if shape.len() != strides.len() {
        return Err(format!("{} dimensions but {} strides", shape.len(), strides.len()));
    }
    Ok(Recorded::Tensor(RecordedTensor { dtype: dtype.to_owned(), shape, strides }))
}

fn parse_sizes(name: &str, value: Option<&Value>) -> Result<Vec<Size>, String> {
    let items = value.and_then(Value::as_array).ok_or_else(|| format!("a tensor needs a list `{name}`"))?;
    items
        .iter()
        .map(|item| match (item.as_u64(), item.get("sym").and_then(Value::as_str)) {
            (Some(size), _) => usize::try_from(size)
                .map(Size::Known)
                .map_err(|_| format!("`{name}` has an entry that does not fit this machine")),
            (None, Some(expression)) => Ok(Size::Symbol(expression.to_owned())),
            (None, None) => Err(format!("`{name}` has an entry that is neither a size nor a symbol")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Argument, Recorded, parse_argument, parse_recorded};

    #[test]
    fn arguments_of_every_tag_are_read() {
        assert_eq!(parse_argument(&json!(2)), Ok(Argument::Int(2)));
        assert_eq!(parse_argument(&json!(2.0)), Ok(Argument::Float(2.0)));
        assert_eq!(parse_argument(&json!({"float": "-inf"})), Ok(Argument::Float(f64::NEG_INFINITY)));
        assert_eq!(
            parse_argument(&json!([{"ref": 3}, null])),
            Ok(Argument::List(vec![Argument::Reference(3), Argument::Nothing]))
        );
        assert_eq!(parse_argument(&json!({"slice": [null, 2, null]})), Ok(Argument::Opaque("a Python slice")));
    }

    #[test]
    fn arguments_that_the_format_lacks_are_refused() {
        for value in [json!("text"), json!({}), json!({"ref": -1}), json!({"ref": 1, "str": "x"}), json!(u64::MAX)] {
            assert!(parse_argument(&value).is_err(), "{value}");
        }
    }

    #[test]
    fn recorded_types_print_with_symbols() {
        let value = json!({"shape": [{"sym": "s1"}, 8], "stride": [8, 1], "dtype": "float32", "device": "cpu"});
        let Ok(Recorded::Tensor(tensor)) = parse_recorded(&value) else { panic!("a tensor is recorded") };
        assert_eq!(tensor.text(), "float32[s1, 8]");
        assert_eq!(tensor.known_shape(), None);
    }
}
