//! One FX node while it is being imported: its arguments by name, and the graph that grows.
//!
//! Getters answer what is wrong with an argument; emitters drop ops that would change nothing, so
//! that builders need not look.

use std::collections::{BTreeMap, BTreeSet};

use ir::graph::LocationId;
use ir::ops::{Cast, Expand, Full, Reshape, Slice, Transpose};
use ir::types::{Axes, Shape};
use ir::{Dtype, Graph, Op, TensorType, ValueId};
use smallvec::SmallVec;

use super::super::captured::{Argument, dtype_of};

/// A tensor of so many elements is in no memory: a document with one is refused.
pub const MAX_ELEMENTS: usize = 1 << 40;

/// Results that one node may have.
const MAX_RESULTS: usize = 1 << 16;

/// Why a node is not imported.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// Nothing of ours computes this.
    Unsupported(String),
    /// The document contradicts itself or the overload's schema.
    Malformed(String),
    /// An operand comes from a node that was refused: there is nothing new to say.
    Cascade,
}

impl From<ir::types::TypeError> for Refusal {
    fn from(error: ir::types::TypeError) -> Self {
        Refusal::Malformed(error.message)
    }
}

/// What an id of the document stands for.
#[derive(Clone, Debug)]
pub enum Binding {
    Value(ValueId),
    /// Results that the graph uses; `None` where it uses none.
    Tuple(Vec<Option<ValueId>>),
    /// The result of a refused node, or a size that is not known before the call.
    Refused,
}

/// A node's results.
#[derive(Clone, Debug)]
pub enum Built {
    One(ValueId),
    Many(Vec<Option<ValueId>>),
}

/// A Python number.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Number {
    Bool(bool),
    Int(i64),
    Float(f64),
}

/// What stands where an overload takes a tensor or a number.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Operand {
    Tensor(ValueId),
    Number(Number),
}

impl Number {
    /// As a float; integers round.
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Bool(flag) => f64::from(u8::from(flag)),
            Number::Int(int) => int as f64,
            Number::Float(float) => float,
        }
    }

    /// Element type of a tensor that PyTorch makes of this number.
    pub fn default_dtype(self) -> Dtype {
        match self {
            Number::Bool(_) => Dtype::Bool,
            Number::Int(_) => Dtype::I64,
            Number::Float(_) => Dtype::F32,
        }
    }

    /// The element of a tensor of this type: integers truncate, floats pass through f32.
    pub fn element(self, dtype: Dtype) -> f64 {
        let value = self.as_f64();
        if dtype.is_float() {
            f64::from(value as f32)
        } else if dtype == Dtype::Bool {
            f64::from(u8::from(value != 0.0))
        } else {
            value.trunc()
        }
    }
}

/// A node being imported.
pub struct Call<'a> {
    pub(in crate::import) graph: &'a mut Graph,
    pub(in crate::import) location: LocationId,
    pub(in crate::import) arguments: BTreeMap<&'static str, &'a Argument>,
    pub(in crate::import) bindings: &'a BTreeMap<u64, Binding>,
    /// Positions of the results that some node or output takes.
    pub(in crate::import) used_results: &'a BTreeSet<usize>,
}

impl Call<'_> {
    fn argument(&self, name: &'static str) -> Option<&Argument> {
        let argument = self.arguments.get(name).copied();
        argument.filter(|argument| **argument != Argument::Nothing)
    }

    fn required(&self, name: &'static str) -> Result<&Argument, Refusal> {
        self.argument(name).ok_or_else(|| Refusal::Malformed(format!("argument `{name}` is missing")))
    }

    /// True where the argument is given and not none.
    pub fn has(&self, name: &'static str) -> bool {
        self.argument(name).is_some()
    }

    /// True where result `position` is used.
    pub fn uses_result(&self, position: usize) -> bool {
        self.used_results.contains(&position)
    }

    /// A tensor.
    pub fn tensor(&self, name: &'static str) -> Result<ValueId, Refusal> {
        self.tensor_in(name, self.required(name)?)
    }

    /// A tensor or none.
    pub fn optional_tensor(&self, name: &'static str) -> Result<Option<ValueId>, Refusal> {
        self.argument(name).map(|argument| self.tensor_in(name, argument)).transpose()
    }

    /// A list of tensors.
    pub fn tensors(&self, name: &'static str) -> Result<Vec<ValueId>, Refusal> {
        self.list(name)?.iter().map(|item| self.tensor_in(name, item)).collect()
    }

    /// A list of tensors or nones.
    pub fn optional_tensors(&self, name: &'static str) -> Result<Vec<Option<ValueId>>, Refusal> {
        let item = |item: &Argument| match item {
            Argument::Nothing => Ok(None),
            item => self.tensor_in(name, item).map(Some),
        };
        self.list(name)?.iter().map(item).collect()
    }

    fn list(&self, name: &'static str) -> Result<&[Argument], Refusal> {
        match self.required(name)? {
            Argument::List(items) => Ok(items),
            _ => Err(mistyped(name, "a list")),
        }
    }

    fn tensor_in(&self, name: &'static str, argument: &Argument) -> Result<ValueId, Refusal> {
        let Argument::Reference(id) = argument else { return Err(mistyped(name, "a tensor")) };
        match self.bindings.get(id) {
            Some(Binding::Value(value)) => Ok(*value),
            Some(Binding::Tuple(_)) => Err(mistyped(name, "a tensor, not a tuple")),
            Some(Binding::Refused) => Err(Refusal::Cascade),
            None => Err(Refusal::Malformed(format!("argument `{name}` names {id}, which is not defined before"))),
        }
    }

    /// A tensor or a number.
    pub fn operand(&self, name: &'static str) -> Result<Operand, Refusal> {
        match self.required(name)? {
            argument @ Argument::Reference(_) => self.tensor_in(name, argument).map(Operand::Tensor),
            argument => number_in(name, argument).map(Operand::Number),
        }
    }

    /// A number.
    pub fn number(&self, name: &'static str) -> Result<Number, Refusal> {
        number_in(name, self.sized(name, self.required(name)?)?)
    }

    /// A number or none.
    pub fn optional_number(&self, name: &'static str) -> Result<Option<Number>, Refusal> {
        self.argument(name).map(|argument| number_in(name, self.sized(name, argument)?)).transpose()
    }

    /// A number, or the schema's default.
    pub fn number_or(&self, name: &'static str, default: Number) -> Result<Number, Refusal> {
        Ok(self.optional_number(name)?.unwrap_or(default))
    }

    /// An integer.
    pub fn int(&self, name: &'static str) -> Result<i64, Refusal> {
        int_in(name, self.sized(name, self.required(name)?)?)
    }

    /// An integer or none.
    pub fn optional_int(&self, name: &'static str) -> Result<Option<i64>, Refusal> {
        self.argument(name).map(|argument| int_in(name, self.sized(name, argument)?)).transpose()
    }

    /// A list of integers; a single integer counts as a list of one.
    pub fn ints(&self, name: &'static str) -> Result<Vec<i64>, Refusal> {
        match self.required(name)? {
            Argument::List(items) => items.iter().map(|item| int_in(name, self.sized(name, item)?)).collect(),
            argument => Ok(vec![int_in(name, self.sized(name, argument)?)?]),
        }
    }

    /// A list of integers or none.
    pub fn optional_ints(&self, name: &'static str) -> Result<Option<Vec<i64>>, Refusal> {
        if self.has(name) { self.ints(name).map(Some) } else { Ok(None) }
    }

    /// A list of sizes.
    pub fn sizes(&self, name: &'static str) -> Result<Shape, Refusal> {
        let size = |int: i64| {
            usize::try_from(int).map_err(|_| Refusal::Malformed(format!("argument `{name}` has the size {int}")))
        };
        self.ints(name)?.into_iter().map(size).collect()
    }

    /// A flag, or the schema's default.
    pub fn flag_or(&self, name: &'static str, default: bool) -> Result<bool, Refusal> {
        match self.argument(name) {
            None => Ok(default),
            Some(Argument::Bool(flag)) => Ok(*flag),
            Some(_) => Err(mistyped(name, "true or false")),
        }
    }

    /// A string or none.
    pub fn optional_text(&self, name: &'static str) -> Result<Option<&str>, Refusal> {
        match self.argument(name) {
            None => Ok(None),
            Some(Argument::Text(text)) => Ok(Some(text)),
            Some(_) => Err(mistyped(name, "a string")),
        }
    }

    /// An element type or none.
    pub fn optional_dtype(&self, name: &'static str) -> Result<Option<Dtype>, Refusal> {
        match self.argument(name) {
            None => Ok(None),
            Some(Argument::Dtype(dtype)) => match dtype_of(dtype) {
                Some(dtype) => Ok(Some(dtype)),
                None => Err(Refusal::Unsupported(format!("element type {dtype} is not supported"))),
            },
            Some(_) => Err(mistyped(name, "an element type")),
        }
    }

    /// Refuses sizes that come from other nodes: they are not known before the call.
    fn sized<'b>(&self, name: &'static str, argument: &'b Argument) -> Result<&'b Argument, Refusal> {
        match argument {
            Argument::Symbol(expression) => {
                Err(Refusal::Unsupported(format!("argument `{name}` is the symbolic size {expression}")))
            }
            Argument::Reference(_) => {
                Err(Refusal::Unsupported(format!("argument `{name}` is a size that another node computes")))
            }
            argument => Ok(argument),
        }
    }
}

fn mistyped(name: &str, wanted: &str) -> Refusal {
    Refusal::Malformed(format!("argument `{name}` must be {wanted}"))
}

fn number_in(name: &str, argument: &Argument) -> Result<Number, Refusal> {
    match argument {
        Argument::Bool(flag) => Ok(Number::Bool(*flag)),
        Argument::Int(int) => Ok(Number::Int(*int)),
        Argument::Float(float) => Ok(Number::Float(*float)),
        Argument::Symbol(expression) => {
            Err(Refusal::Unsupported(format!("argument `{name}` is the symbolic size {expression}")))
        }
        Argument::Opaque(what) => Err(Refusal::Unsupported(format!("argument `{name}` is {what}"))),
        _ => Err(mistyped(name, "a number")),
    }
}

fn int_in(name: &str, argument: &Argument) -> Result<i64, Refusal> {
    match argument {
        Argument::Int(int) => Ok(*int),
        _ => Err(mistyped(name, "an integer")),
    }
}

impl Call<'_> {
    /// Type of a value.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        self.graph.ty(value)
    }

    /// Element type of a value.
    pub fn dtype(&self, value: ValueId) -> Dtype {
        self.ty(value).dtype
    }

    /// Dimensions of a value.
    pub fn shape(&self, value: ValueId) -> Shape {
        self.ty(value).shape.clone()
    }

    /// Number of dimensions of a value.
    pub fn rank(&self, value: ValueId) -> usize {
        self.ty(value).rank()
    }

    /// Adds a node and returns its first result.
    pub fn apply(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> Result<ValueId, Refusal> {
        Ok(self.apply_many(op, operands)?[0])
    }

    /// Adds a node and returns its results.
    pub fn apply_many(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> Result<SmallVec<[ValueId; 1]>, Refusal> {
        let op = op.into();
        let node = self.graph.push(op, operands, &[self.location])?;
        let results = self.graph.node(node).results.clone();
        for &result in &results {
            if !self.ty(result).is_addressable() {
                let message = format!("a tensor {} has {MAX_ELEMENTS} elements or more", self.ty(result));
                return Err(Refusal::Malformed(message));
            }
        }
        Ok(results)
    }

    /// As another element type.
    pub fn cast(&mut self, value: ValueId, dtype: Dtype) -> Result<ValueId, Refusal> {
        if self.dtype(value) == dtype { Ok(value) } else { self.apply(Cast { dtype }, &[value]) }
    }

    /// Under another shape.
    pub fn reshape(&mut self, value: ValueId, shape: impl IntoIterator<Item = usize>) -> Result<ValueId, Refusal> {
        let shape: Shape = shape.into_iter().collect();
        if self.ty(value).shape == shape { Ok(value) } else { self.apply(Reshape { shape }, &[value]) }
    }

    /// With permuted axes.
    pub fn transpose(&mut self, value: ValueId, perm: impl IntoIterator<Item = usize>) -> Result<ValueId, Refusal> {
        let perm: Axes = perm.into_iter().collect();
        let identity = perm.iter().copied().eq(0..self.rank(value));
        if identity { Ok(value) } else { self.apply(Transpose { perm }, &[value]) }
    }

    /// Repeated to a shape.
    pub fn expand(&mut self, value: ValueId, shape: &[usize]) -> Result<ValueId, Refusal> {
        if self.ty(value).shape.as_slice() == shape {
            return Ok(value);
        }
        self.apply(Expand { shape: Shape::from_slice(shape) }, &[value])
    }

    /// The elements at `start`, `start + step`, ... before `end` of an axis.
    pub fn slice(
        &mut self,
        value: ValueId,
        axis: usize,
        range: std::ops::Range<usize>,
        step: usize,
    ) -> Result<ValueId, Refusal> {
        let whole = self.ty(value).shape.get(axis) == Some(&range.end);
        if range.start == 0 && whole && step == 1 {
            return Ok(value);
        }
        self.apply(Slice { axis, start: range.start, end: range.end, step }, &[value])
    }

    /// A rank-0 tensor of a number.
    pub fn scalar(&mut self, number: Number, dtype: Dtype) -> Result<ValueId, Refusal> {
        self.full(number, dtype, &[])
    }

    /// A tensor of one number.
    pub fn full(&mut self, number: Number, dtype: Dtype, shape: &[usize]) -> Result<ValueId, Refusal> {
        let full: Op = Full::new(number.element(dtype), dtype, shape.iter().copied()).into();
        // PyTorch wraps such a number, or compares with it in a wider type.
        full.infer(&[]).map_err(|error| Refusal::Unsupported(error.message))?;
        self.apply(full, &[])
    }

    /// The axis that a possibly negative `dim` names in a tensor of this rank; rank 0 counts as 1.
    pub fn axis(&self, dim: i64, rank: usize) -> Result<usize, Refusal> {
        let n_axes = rank.max(1) as i64;
        let axis = if dim < 0 { dim.saturating_add(n_axes) } else { dim };
        match usize::try_from(axis) {
            Ok(axis) if (axis as i64) < n_axes => Ok(axis),
            Ok(_) | Err(_) => {
                Err(Refusal::Malformed(format!("there is no dimension {dim} in a tensor of rank {rank}")))
            }
        }
    }

    /// Refuses numbers of results that no model has.
    pub fn check_result_count(&self, n_results: usize) -> Result<(), Refusal> {
        if n_results <= MAX_RESULTS {
            return Ok(());
        }
        Err(Refusal::Malformed(format!("a node has {n_results} results")))
    }
}
