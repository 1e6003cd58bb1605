//! From a captured graph to the IR's.
//!
//! Ids are resolved in the nodes' order, so that cycles and forward references cannot be expressed.
//! A node that is refused is replaced by a stand-in of its recorded type, and the import goes on:
//! the caller learns of all refused nodes at once. A graph with stand-ins is never returned.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use ir::graph::{InputRole, Location, LocationId};
use ir::ops::Constant;
use ir::types::{Shape, packed_strides};
use ir::verify::holds_once;
use ir::{Dtype, Graph, TensorType, ValueId};
use smallvec::SmallVec;

use super::aten::{self, Binding, Built, Call, MAX_ELEMENTS, Refusal};
use super::captured::{
    Argument, CapturedGraph, CapturedInput, CapturedNode, CapturedOutput, Recorded, RecordedTensor, StoredData,
    StoredTensor, dtype_of,
};
use super::{ImportError, UnsupportedNode};

/// Nodes and inputs that a graph may have.
const MAX_ENTRIES: usize = 1 << 20;

/// Turns a captured graph into the IR's.
///
/// # Errors
/// Where it contradicts itself, or every node that cannot be compiled.
pub fn build(captured: &CapturedGraph) -> Result<Graph, ImportError> {
    if captured.nodes.len() + captured.inputs.len() > MAX_ENTRIES {
        return Err(malformed(format!("more than {MAX_ENTRIES} nodes and inputs")));
    }
    let mut importer = Importer {
        graph: Graph::new(captured.name.clone()),
        constants: &captured.constants,
        bindings: BTreeMap::new(),
        recorded: BTreeMap::new(),
        used_results: used_results(captured),
        unsupported: Vec::new(),
    };
    for input in &captured.inputs {
        importer.input(input).map_err(|reason| malformed(format!("input `{}`: {reason}", input.name)))?;
    }
    for node in &captured.nodes {
        let Location { node: name, target, .. } = &node.location;
        importer.node(node).map_err(|reason| malformed(format!("node `{name}` ({target}): {reason}")))?;
    }
    for (position, output) in captured.outputs.iter().enumerate() {
        importer.output(output).map_err(|reason| malformed(format!("output {position}: {reason}")))?;
    }
    if importer.unsupported.is_empty() {
        Ok(importer.graph)
    } else {
        Err(ImportError::Unsupported(importer.unsupported))
    }
}

fn malformed(reason: String) -> ImportError {
    ImportError::Malformed(reason)
}

struct Importer<'a> {
    graph: Graph,
    constants: &'a BTreeMap<String, StoredTensor>,
    bindings: BTreeMap<u64, Binding>,
    recorded: BTreeMap<u64, Recorded>,
    /// By node, the positions of its results that are taken.
    used_results: BTreeMap<u64, BTreeSet<usize>>,
    unsupported: Vec<UnsupportedNode>,
}

impl Importer<'_> {
    fn input(&mut self, input: &CapturedInput) -> Result<(), String> {
        let CapturedInput { id, name, role, recorded } = input;
        self.claim(*id)?;
        let location = Location { node: name.clone(), target: "input".to_owned(), ..Location::default() };
        let ty = match supported_type(recorded)? {
            Ok(ty) => ty,
            Err(reason) => {
                self.refuse(location, recorded, reason);
                // The position stays taken, so that later inputs keep theirs.
                self.graph.push_input(name.clone(), TensorType::new(Dtype::F32, [0]), *role);
                self.bind(*id, Binding::Refused, recorded.clone());
                return Ok(());
            }
        };
        let strides = caller_strides(recorded)?;
        let value = self.graph.push_input(name.clone(), ty, *role);
        let position = self.graph.inputs.len() - 1;
        self.graph.inputs[position].strides = strides;
        self.bind(*id, Binding::Value(value), recorded.clone());
        Ok(())
    }

    fn node(&mut self, node: &CapturedNode) -> Result<(), String> {
        let recorded = &node.recorded;
        self.claim(node.id)?;
        let outcome = match supported_types(recorded)? {
            Some(reason) => Err(Refusal::Unsupported(reason)),
            None => self.build(node),
        };
        let refusal = match outcome.and_then(|binding| self.check_recorded(&binding, recorded).map(|()| binding)) {
            Ok(binding) => {
                self.bind(node.id, binding, recorded.clone());
                return Ok(());
            }
            Err(refusal) => refusal,
        };
        match refusal {
            Refusal::Malformed(reason) => return Err(reason),
            Refusal::Unsupported(reason) => self.refuse(node.location.clone(), recorded, reason),
            Refusal::Cascade => {}
        }
        let stand_in = self.stand_in(&node.location.node, recorded);
        self.bind(node.id, stand_in, recorded.clone());
        Ok(())
    }

    fn build(&mut self, node: &CapturedNode) -> Result<Binding, Refusal> {
        if let Some(reason) = &node.refusal {
            return Err(Refusal::Unsupported(reason.clone()));
        }
        if node.target == "getitem" {
            return self.item(&node.positional);
        }
        if node.target == "const" {
            let location = self.place(&node.location);
            return self.constant(&node.location.node, &node.positional, location);
        }
        let Some(overload) = aten::overload(&node.target) else {
            return Err(Refusal::Unsupported(unknown_target(&node.target)));
        };
        let arguments = overload.bind(&node.positional, &node.keywords)?;
        let location = self.place(&node.location);
        let nothing = BTreeSet::new();
        let mut call = Call {
            graph: &mut self.graph,
            location,
            arguments,
            bindings: &self.bindings,
            used_results: self.used_results.get(&node.id).unwrap_or(&nothing),
        };
        Ok(match (overload.build)(&mut call)? {
            Built::One(value) => Binding::Value(value),
            Built::Many(values) => Binding::Tuple(values),
        })
    }

    /// A location; nodes that a reader took apart in place share theirs.
    fn place(&mut self, location: &Location) -> LocationId {
        match self.graph.locations.last() {
            Some(last) if last == location => {
                LocationId(u32::try_from(self.graph.locations.len() - 1).expect("locations have 32-bit names"))
            }
            Some(_) | None => self.graph.push_location(location.clone()),
        }
    }

    /// One result of a node with several.
    fn item(&mut self, positional: &[Argument]) -> Result<Binding, Refusal> {
        let [Argument::Reference(id), Argument::Int(position)] = positional else {
            return Err(Refusal::Malformed("an item needs a node and a position".to_owned()));
        };
        let items = match self.bindings.get(id) {
            Some(Binding::Tuple(items)) => items,
            Some(Binding::Refused) => return Err(Refusal::Cascade),
            Some(Binding::Value(_)) => return Err(Refusal::Malformed(format!("node {id} has one result"))),
            None => return Err(Refusal::Malformed(format!("node {id} is not defined before"))),
        };
        let item = usize::try_from(*position).ok().and_then(|position| items.get(position).copied());
        let item = item.ok_or_else(|| Refusal::Malformed(format!("node {id} has no result {position}")))?;
        item.map(Binding::Value).ok_or_else(|| Refusal::Unsupported(format!("result {position} is not computed")))
    }

    /// A tensor that the file stores.
    fn constant(&mut self, node: &str, positional: &[Argument], location: LocationId) -> Result<Binding, Refusal> {
        let name = match positional {
            [] => node,
            [Argument::Text(name)] => name,
            _ => return Err(Refusal::Malformed("a constant needs a name".to_owned())),
        };
        let Some(entry) = self.constants.get(name) else {
            return Err(Refusal::Malformed(format!("there is no constant `{name}`")));
        };
        let Some(dtype) = dtype_of(&entry.dtype) else {
            return Err(Refusal::Unsupported(format!("element type {} is not supported", entry.dtype)));
        };
        let data = match &entry.data {
            StoredData::Bytes(data) => data.clone(),
            StoredData::Base64(text) => {
                let data = base64::engine::general_purpose::STANDARD.decode(text);
                data.map_err(|error| Refusal::Malformed(format!("constant `{name}`: {error}")))?
            }
            StoredData::Missing => {
                return Err(Refusal::Unsupported(format!("constant `{name}` is too large for the file")));
            }
        };
        let shape = entry.shape.iter().map(|&dim| usize::try_from(dim)).collect::<Result<Shape, _>>();
        let shape = shape.map_err(|_| Refusal::Malformed(format!("constant `{name}` is too large")))?;
        let value = self.graph.push_value_of(Constant { dtype, shape, data: data.into() }.into(), &[], &[location])?;
        Ok(Binding::Value(value))
    }

    fn output(&mut self, output: &CapturedOutput) -> Result<(), String> {
        let (description, updates) = (output.description.clone(), output.updates);
        let Some(id) = output.reference else {
            self.graph.outputs.push(ir::graph::GraphOutput { value: None, strides: None, alias: None, description });
            return Ok(());
        };
        let value = match self.bindings.get(&id) {
            Some(Binding::Value(value)) => Some(*value),
            Some(Binding::Refused) => None,
            Some(Binding::Tuple(_)) => return Err(format!("node {id} is a tuple")),
            None => return Err(format!("there is no node {id}")),
        };
        let strides = match self.recorded.get(&id) {
            Some(recorded @ Recorded::Tensor(_)) if value.is_some() => caller_strides(recorded)?,
            Some(_) | None => None,
        };
        let mut output = ir::graph::GraphOutput { value, strides, alias: None, description };
        if let Some(updated) = updates.and_then(|id| self.updated_input(id, &output)) {
            output.strides = self.graph.inputs[updated as usize].strides.clone();
            output.alias = Some(updated);
        }
        self.graph.outputs.push(output);
        Ok(())
    }

    /// Position of the input that an output updates in place; `None` where the update cannot be made
    /// in its memory, and the caller has to copy.
    fn updated_input(&self, id: u64, output: &ir::graph::GraphOutput) -> Option<u32> {
        let Some(Binding::Value(updated)) = self.bindings.get(&id) else { return None };
        let position = self.graph.inputs.iter().position(|input| input.value == *updated)?;
        let (input, ty) = (&self.graph.inputs[position], self.graph.ty(*updated));
        let holds_once = input.strides.as_ref().is_none_or(|strides| holds_once(&ty.shape, strides));
        let position = u32::try_from(position).ok()?;
        let is_free = self.graph.outputs.iter().all(|other| other.alias != Some(position));
        (holds_once && is_free && output.value.is_some_and(|value| self.graph.ty(value) == ty)).then_some(position)
    }

    /// Refuses an id that is taken.
    fn claim(&self, id: u64) -> Result<(), String> {
        if self.bindings.contains_key(&id) { Err(format!("id {id} is defined twice")) } else { Ok(()) }
    }

    fn bind(&mut self, id: u64, binding: Binding, recorded: Recorded) {
        self.bindings.insert(id, binding);
        self.recorded.insert(id, recorded);
    }

    fn refuse(&mut self, location: Location, recorded: &Recorded, reason: String) {
        self.unsupported.push(UnsupportedNode { location, result: recorded.text(), reason });
    }

    /// Compares what was built with what the writer recorded: the writer saw PyTorch run.
    fn check_recorded(&self, binding: &Binding, recorded: &Recorded) -> Result<(), Refusal> {
        match (binding, recorded) {
            (Binding::Value(value), Recorded::Tensor(tensor)) => self.check_type(*value, tensor),
            (Binding::Tuple(values), Recorded::Tuple(items)) if values.len() == items.len() => {
                values.iter().zip(items).try_for_each(|(value, item)| match (value, item) {
                    (Some(value), Recorded::Tensor(tensor)) => self.check_type(*value, tensor),
                    (_, _) => Ok(()),
                })
            }
            (_, Recorded::Nothing) => Ok(()),
            (_, _) => Err(Refusal::Malformed(format!("the recorded result {} is another", recorded.text()))),
        }
    }

    fn check_type(&self, value: ValueId, tensor: &RecordedTensor) -> Result<(), Refusal> {
        let ty = self.graph.ty(value);
        let is_same = dtype_of(&tensor.dtype) == Some(ty.dtype)
            && tensor.known_shape().is_some_and(|shape| shape.as_slice() == ty.shape.as_slice());
        if is_same {
            return Ok(());
        }
        Err(Refusal::Malformed(format!("its result is recorded as {} but is {ty}", tensor.text())))
    }

    /// What later nodes see of a refused one.
    fn stand_in(&mut self, name: &str, recorded: &Recorded) -> Binding {
        match recorded {
            Recorded::Tensor(_) => self.stand_in_value(name, recorded).map_or(Binding::Refused, Binding::Value),
            Recorded::Tuple(items) => {
                let values: Option<Vec<_>> =
                    items.iter().map(|item| self.stand_in_value(name, item).map(Some)).collect();
                values.map_or(Binding::Refused, Binding::Tuple)
            }
            Recorded::Nothing | Recorded::Symbol(_) => Binding::Refused,
        }
    }

    fn stand_in_value(&mut self, name: &str, recorded: &Recorded) -> Option<ValueId> {
        let ty = supported_type(recorded).ok()?.ok()?;
        Some(self.graph.push_input(name, ty, InputRole::Dynamic))
    }
}

fn unknown_target(target: &str) -> String {
    if target.starts_with("hop.") {
        "higher-order operators are not supported".to_owned()
    } else if target.starts_with("py.") {
        "arithmetic on sizes is not supported".to_owned()
    } else {
        "this overload is not supported".to_owned()
    }
}

/// By node, the positions that `getitem` nodes take.
fn used_results(captured: &CapturedGraph) -> BTreeMap<u64, BTreeSet<usize>> {
    let mut used: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    for node in captured.nodes.iter().filter(|node| node.target == "getitem") {
        if let [Argument::Reference(id), Argument::Int(position)] = node.positional[..]
            && let Ok(position) = usize::try_from(position)
        {
            used.entry(id).or_default().insert(position);
        }
    }
    used
}

/// The IR's type of a recorded tensor, or why there is none.
///
/// # Errors
/// When the recorded tensor cannot exist.
fn supported_type(recorded: &Recorded) -> Result<Result<TensorType, String>, String> {
    let tensor = match recorded {
        Recorded::Tensor(tensor) => tensor,
        Recorded::Symbol(expression) => return Ok(Err(format!("the symbolic size {expression}"))),
        Recorded::Nothing | Recorded::Tuple(_) => return Ok(Err("it is no tensor".to_owned())),
    };
    let Some(shape) = tensor.known_shape() else {
        return Ok(Err("a symbolic shape: sizes must be known when the graph is captured".to_owned()));
    };
    let dtype = match dtype_of(&tensor.dtype) {
        Some(Dtype::F64) => return Ok(Err("element type float64: no device instruction takes it".to_owned())),
        Some(dtype) => dtype,
        None => return Ok(Err(format!("element type {} is not supported", tensor.dtype))),
    };
    let ty = TensorType::new(dtype, shape);
    if !ty.is_addressable() {
        return Err(format!("a tensor {ty} has {MAX_ELEMENTS} elements or more"));
    }
    Ok(Ok(ty))
}

/// Why a recorded result has no counterpart in the IR, where that is so.
fn supported_types(recorded: &Recorded) -> Result<Option<String>, String> {
    match recorded {
        Recorded::Nothing => Ok(None),
        Recorded::Tensor(_) | Recorded::Symbol(_) => Ok(supported_type(recorded)?.err()),
        // A refused tuple is refused where an item is taken.
        Recorded::Tuple(items) => {
            for item in items {
                if let Recorded::Tensor(tensor) = item
                    && tensor.known_shape().is_none()
                {
                    return Ok(Some("a symbolic shape: sizes must be known when the graph is captured".to_owned()));
                }
            }
            Ok(None)
        }
    }
}

/// The strides of the caller's buffer; `None` where it is packed row-major.
fn caller_strides(recorded: &Recorded) -> Result<Option<SmallVec<[i64; 6]>>, String> {
    let Recorded::Tensor(tensor) = recorded else { return Ok(None) };
    let (Some(shape), Some(strides)) = (tensor.known_shape(), tensor.known_strides()) else {
        return Err("its strides are symbolic".to_owned());
    };
    let extent = shape.iter().zip(&strides).try_fold(0usize, |extent, (&dim, &stride)| {
        dim.saturating_sub(1).checked_mul(stride).and_then(|way| way.checked_add(extent))
    });
    if extent.is_none_or(|extent| extent >= MAX_ELEMENTS) {
        return Err(format!("strides {strides:?} reach further than {MAX_ELEMENTS} elements"));
    }
    // The stride of a dimension of size 1 is never stepped.
    let packed = packed_strides(&shape);
    let is_packed = (0..shape.len()).all(|axis| shape[axis] == 1 || strides[axis] == packed[axis]);
    if is_packed || shape.contains(&0) {
        return Ok(None);
    }
    Ok(Some(strides.into_iter().map(|stride| stride as i64).collect()))
}
