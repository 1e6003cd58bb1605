//! Arguments and types of the archive's schema as captured ones.

use super::memory::Memory;
use super::nodes::{Bound, Scope};
use super::schema::{self, Name, OptionalTensor, SymBool, SymFloat, SymInt, TensorMeta, dtype_name};
use crate::import::captured::{Argument, RecordedTensor, Size};

/// What the archive records of a tensor.
///
/// # Errors
/// Sizes that no tensor has.
pub fn recorded(meta: &TensorMeta) -> Result<RecordedTensor, String> {
    let size = |size: &schema::Size| match size {
        schema::Size::AsInt(size) => {
            usize::try_from(*size).map(Size::Known).map_err(|_| format!("a tensor with the size or stride {size}"))
        }
        schema::Size::AsExpr(expression) => Ok(Size::Symbol(readable(&expression.expr_str))),
    };
    let shape = meta.sizes.iter().map(size).collect::<Result<Vec<_>, _>>()?;
    let strides = meta.strides.iter().map(size).collect::<Result<Vec<_>, _>>()?;
    if shape.len() != strides.len() {
        return Err(format!("{} dimensions but {} strides", shape.len(), strides.len()));
    }
    let dtype = dtype_name(meta.dtype).map_or_else(|| format!("number {}", meta.dtype), str::to_owned);
    let layout = schema::layout_name(meta.layout);
    // No element type of the IR has such a name, so that the tensor is refused with it.
    let dtype = if layout == "strided" { dtype } else { format!("{layout} {dtype}") };
    Ok(RecordedTensor { dtype, shape, strides })
}

/// An expression without SymPy's constructors: `Symbol('s77', positive=True)` is `s77`, and
/// `Integer(2)` is `2`.
fn readable(expression: &str) -> String {
    let mut text = String::new();
    let mut rest = expression;
    while let Some(start) = ["Symbol('", "Integer("].iter().filter_map(|call| rest.find(call)).min() {
        let Some((inside, after)) = rest[start..].split_once(')') else { break };
        text.push_str(&rest[..start]);
        let name = inside.split(['(', '\'']).find(|part| !part.is_empty() && !["Symbol", "Integer"].contains(part));
        text.push_str(name.unwrap_or_default());
        rest = after;
    }
    text + rest
}

/// Reads arguments: tensors are read as they are at this point of the graph.
pub struct Reader<'a, 'b> {
    pub memory: &'a mut Memory,
    pub scope: &'a Scope<'b>,
}

impl Reader<'_, '_> {
    /// An argument of a node.
    ///
    /// # Errors
    /// Names that are not defined before.
    pub fn argument(&mut self, argument: &schema::Argument<'_>) -> Result<Argument, String> {
        use schema::Argument as Given;
        Ok(match argument {
            Given::AsNone(_) => Argument::Nothing,
            Given::AsTensor(name) => self.tensor(name)?,
            Given::AsTensors(names) => self.tensors(names)?,
            Given::AsOptionalTensor(tensor) => self.optional_tensor(tensor)?,
            Given::AsOptionalTensors(tensors) => list(tensors, |tensor| self.optional_tensor(tensor))?,
            Given::AsNestedTensors(lists) => list(lists, |names| self.tensors(names))?,
            Given::AsInt(int) => Argument::Int(*int),
            Given::AsInts(ints) => ints_argument(ints),
            Given::AsIntLists(lists) => Argument::List(lists.iter().map(|ints| ints_argument(ints)).collect()),
            Given::AsFloat(float) => Argument::Float(float.0),
            Given::AsFloats(floats) => floats_argument(floats),
            Given::AsFloatLists(lists) => Argument::List(lists.iter().map(|floats| floats_argument(floats)).collect()),
            Given::AsBool(flag) => Argument::Bool(*flag),
            Given::AsBools(flags) => Argument::List(flags.iter().copied().map(Argument::Bool).collect()),
            Given::AsString(text) | Given::AsOperator(text) => Argument::Text(text.clone()),
            Given::AsStrings(texts) => Argument::List(texts.iter().cloned().map(Argument::Text).collect()),
            Given::AsSymInt(int) => self.sym_int(int)?,
            Given::AsSymInts(ints) => list(ints, |int| self.sym_int(int))?,
            Given::AsSymFloat(float) => self.sym_float(float)?,
            Given::AsSymFloats(floats) => list(floats, |float| self.sym_float(float))?,
            Given::AsSymBool(flag) => self.sym_bool(flag)?,
            Given::AsSymBools(flags) => list(flags, |flag| self.sym_bool(flag))?,
            Given::AsScalarType(code) => {
                Argument::Dtype(dtype_name(*code).map_or_else(|| format!("number {code}"), str::to_owned))
            }
            Given::AsMemoryFormat(code) => Argument::MemoryFormat(schema::memory_format_name(*code).to_owned()),
            Given::AsLayout(code) => Argument::Layout(schema::layout_name(*code).to_owned()),
            Given::AsDevice(device) => Argument::Device(device.kind.clone()),
            Given::AsComplex(_) => Argument::Opaque("a complex number"),
            Given::AsGraph(_) => Argument::Opaque("a graph"),
            Given::AsCustomObj(_) => Argument::Opaque("an object"),
            Given::AsStringToArgument(_) => Argument::Opaque("a dictionary"),
        })
    }

    fn tensor(&mut self, Name { name }: &Name) -> Result<Argument, String> {
        match self.scope.get(name)? {
            Bound::Tensor(tensor) => self.memory.read(*tensor).map(Argument::Reference),
            Bound::Symbol(expression) => Ok(Argument::Symbol(expression.clone())),
        }
    }

    fn tensors(&mut self, names: &[Name]) -> Result<Argument, String> {
        list(names, |name| self.tensor(name))
    }

    fn optional_tensor(&mut self, tensor: &OptionalTensor) -> Result<Argument, String> {
        match tensor {
            OptionalTensor::AsTensor(name) => self.tensor(name),
            OptionalTensor::AsNone(_) => Ok(Argument::Nothing),
        }
    }

    fn symbol(&self, name: &str) -> Result<Argument, String> {
        match self.scope.get(name)? {
            Bound::Symbol(expression) => Ok(Argument::Symbol(expression.clone())),
            Bound::Tensor(_) => Err(format!("`{name}` is a tensor, not a number")),
        }
    }

    fn sym_int(&self, int: &SymInt) -> Result<Argument, String> {
        match int {
            SymInt::AsName(name) => self.symbol(name),
            SymInt::AsInt(int) => Ok(Argument::Int(*int)),
        }
    }

    fn sym_float(&self, float: &SymFloat) -> Result<Argument, String> {
        match float {
            SymFloat::AsName(name) => self.symbol(name),
            SymFloat::AsFloat(float) => Ok(Argument::Float(float.0)),
        }
    }

    fn sym_bool(&self, flag: &SymBool) -> Result<Argument, String> {
        match flag {
            SymBool::AsName(name) => self.symbol(name),
            SymBool::AsBool(flag) => Ok(Argument::Bool(*flag)),
        }
    }
}

fn list<T>(items: &[T], item: impl FnMut(&T) -> Result<Argument, String>) -> Result<Argument, String> {
    items.iter().map(item).collect::<Result<_, _>>().map(Argument::List)
}

fn ints_argument(ints: &[i64]) -> Argument {
    Argument::List(ints.iter().copied().map(Argument::Int).collect())
}

fn floats_argument(floats: &[schema::Float]) -> Argument {
    Argument::List(floats.iter().map(|float| Argument::Float(float.0)).collect())
}

/// Names of all tensors that an argument reads.
pub fn tensor_names<'a>(argument: &'a schema::Argument<'_>) -> Vec<&'a str> {
    use schema::Argument as Given;
    match argument {
        Given::AsTensor(Name { name }) => vec![name.as_str()],
        Given::AsTensors(names) => names.iter().map(|Name { name }| name.as_str()).collect(),
        Given::AsNestedTensors(lists) => lists.iter().flatten().map(|Name { name }| name.as_str()).collect(),
        Given::AsOptionalTensor(OptionalTensor::AsTensor(Name { name })) => vec![name.as_str()],
        Given::AsOptionalTensors(tensors) => tensors
            .iter()
            .filter_map(|tensor| match tensor {
                OptionalTensor::AsTensor(Name { name }) => Some(name.as_str()),
                OptionalTensor::AsNone(_) => None,
            })
            .collect(),
        Given::AsNone(_)
        | Given::AsOptionalTensor(OptionalTensor::AsNone(_))
        | Given::AsInt(_)
        | Given::AsInts(_)
        | Given::AsIntLists(_)
        | Given::AsFloat(_)
        | Given::AsFloats(_)
        | Given::AsFloatLists(_)
        | Given::AsBool(_)
        | Given::AsBools(_)
        | Given::AsString(_)
        | Given::AsStrings(_)
        | Given::AsComplex(_)
        | Given::AsSymInt(_)
        | Given::AsSymInts(_)
        | Given::AsSymFloat(_)
        | Given::AsSymFloats(_)
        | Given::AsSymBool(_)
        | Given::AsSymBools(_)
        | Given::AsScalarType(_)
        | Given::AsMemoryFormat(_)
        | Given::AsLayout(_)
        | Given::AsDevice(_)
        | Given::AsOperator(_)
        | Given::AsGraph(_)
        | Given::AsCustomObj(_)
        | Given::AsStringToArgument(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::readable;

    #[test]
    fn expressions_are_shown_without_constructors() {
        assert_eq!(readable("Symbol('s77', positive=True, integer=True)"), "s77");
        assert_eq!(readable("Mul(Integer(2), Symbol('s0', integer=True))"), "Mul(2, s0)");
        assert_eq!(readable("s0 + Symbol('s1"), "s0 + Symbol('s1");
    }
}
