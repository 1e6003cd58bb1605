//! An exported program as a captured graph: inputs by role, nodes, and outputs with the updates of
//! inputs first.

use std::collections::{BTreeMap, BTreeSet};

use ir::graph::{InputRole, Location};

use super::arguments::{recorded, tensor_names};
use super::memory::{Memory, TensorId};
use super::nodes::{Bound, Scope, read_nodes};
use super::schema::{Argument as Given, ExportedProgram, Graph, InputSpec, Name, OutputSpec, RangeConstraint};
use super::weights::Weights;
use crate::import::captured::{
    Argument, CapturedGraph, CapturedInput, CapturedNode, CapturedOutput, Recorded, RecordedTensor, Size, StoredData,
    StoredTensor, dtype_of,
};
use crate::import::{ImportError, UnsupportedNode};

/// Constants of at most so many bytes are part of the graph; larger ones are inputs.
const MAX_CONSTANT_BYTES: usize = 64 << 10;

/// Reads an exported program.
///
/// # Errors
/// Where it contradicts itself, and symbolic sizes of its inputs.
pub fn captured(
    name: &str,
    program: &ExportedProgram<'_>,
    weights: &Weights<'_>,
) -> Result<CapturedGraph, ImportError> {
    let graph = &program.graph_module.graph;
    let symbolic = symbolic_inputs(program);
    if !symbolic.is_empty() {
        return Err(ImportError::Unsupported(symbolic));
    }
    let mut memory = Memory::new(graph.nodes.len());
    let mut scope = Scope::new(graph);
    let fail = ImportError::Malformed;
    let inputs = read_inputs(program, weights, &mut memory, &mut scope).map_err(fail)?;
    read_nodes(&mut memory, &mut scope).map_err(fail)?;
    let outputs = outputs(program, &inputs, &mut memory, &scope).map_err(fail)?;
    assembled(name, inputs, outputs, memory, weights).map_err(fail)
}

/// A tensor input.
struct Input<'a> {
    captured: CapturedInput,
    tensor: TensorId,
    placeholder: &'a str,
    is_constant: bool,
}

/// Every dimension of an input that is not a number.
fn symbolic_inputs(program: &ExportedProgram<'_>) -> Vec<UnsupportedNode> {
    let graph = &program.graph_module.graph;
    let mut found = Vec::new();
    let mut refuse = |name: &str, result: String, reason: String| {
        let location = Location { node: name.to_owned(), target: "input".to_owned(), ..Location::default() };
        found.push(UnsupportedNode { location, result, reason });
    };
    for input in &graph.inputs {
        match input {
            Given::AsTensor(Name { name }) => {
                let Some(recorded) = graph.tensor_values.get(name).and_then(|meta| recorded(meta).ok()) else {
                    continue;
                };
                let symbolic = recorded.shape.iter().enumerate().filter_map(|(axis, size)| match size {
                    Size::Known(_) => None,
                    Size::Symbol(expression) => Some(format!("dimension {axis} is {}", named(program, expression))),
                });
                let symbolic: Vec<String> = symbolic.collect();
                if !symbolic.is_empty() {
                    let reason = format!("{}: export with static shapes, without dynamic_shapes", symbolic.join(", "));
                    refuse(name, recorded.text(), reason);
                }
            }
            Given::AsSymInt(_) | Given::AsSymFloat(_) | Given::AsSymBool(_) => {
                let reason = "a number that is not fixed: export without dynamic_shapes for it".to_owned();
                refuse("(number)", String::new(), reason);
            }
            _ => {}
        }
    }
    found
}

/// A symbolic size with its range.
fn named(program: &ExportedProgram<'_>, expression: &str) -> String {
    let bound = |bound: Option<i64>| bound.map_or_else(|| "any".to_owned(), |bound| bound.to_string());
    match program.range_constraints.get(expression) {
        Some(RangeConstraint { min_val, max_val }) => {
            format!("the symbolic size {expression} ({} to {})", bound(*min_val), bound(*max_val))
        }
        None => format!("the symbolic size {expression}"),
    }
}

fn read_inputs<'a>(
    program: &'a ExportedProgram<'a>,
    weights: &Weights<'_>,
    memory: &mut Memory,
    scope: &mut Scope<'a>,
) -> Result<Vec<Input<'a>>, String> {
    let graph = &program.graph_module.graph;
    let specs = &program.graph_module.signature.input_specs;
    if specs.len() != graph.inputs.len() {
        return Err(format!("{} inputs but {} descriptions of them", graph.inputs.len(), specs.len()));
    }
    let stored_names: BTreeSet<&str> = specs.iter().filter_map(stored_name).collect();
    let mut inputs = Vec::new();
    // Tensors that share memory, by member.
    let mut members: BTreeMap<&str, (TensorId, &str)> = BTreeMap::new();
    for (input, spec) in graph.inputs.iter().zip(specs) {
        let Given::AsTensor(Name { name: placeholder }) = input else { continue };
        let recorded = scope.recorded(placeholder)?;
        let stored = stored_name(spec);
        let role = if stored.is_some() { InputRole::Static } else { InputRole::Dynamic };
        let name = match stored {
            Some(name) => name.to_owned(),
            None if stored_names.contains(placeholder.as_str()) => format!("input.{placeholder}"),
            None => placeholder.clone(),
        };
        let id = memory.new_id();
        let tensor = memory.base(id, recorded.clone());
        scope.define(placeholder, Bound::Tensor(tensor))?;
        if let Some(name) = stored {
            check_stored(weights, name, &recorded)?;
        }
        if let Some((name, member)) = stored.and_then(|name| Some((name, weights.member(name)?))) {
            if let Some((other, other_name)) = members.get(member) {
                memory.untrack(tensor, &format!("`{name}` shares it with `{other_name}`"));
                memory.untrack(*other, &format!("`{other_name}` shares it with `{name}`"));
            } else {
                members.insert(member, (tensor, name));
            }
        }
        let is_constant = matches!(spec, InputSpec::TensorConstant(_));
        let captured = CapturedInput { id, name, role, recorded: Recorded::Tensor(recorded) };
        inputs.push(Input { captured, tensor, placeholder, is_constant });
    }
    Ok(inputs)
}

/// The archive must store a tensor as the graph records it, unless the IR has no such type: then the
/// graph is refused for that.
fn check_stored(weights: &Weights<'_>, name: &str, recorded: &RecordedTensor) -> Result<(), String> {
    match weights.ty(name) {
        Some(ty)
            if dtype_of(&recorded.dtype) != Some(ty.dtype) || recorded.known_shape().as_deref() != Some(&ty.shape) =>
        {
            Err(format!("tensor `{name}` is stored as {ty} but is {} in the graph", recorded.text()))
        }
        None if !weights.is_listed(name) => Err(format!("tensor `{name}` is not stored in the archive")),
        Some(_) | None => Ok(()),
    }
}

/// Name of a tensor that the archive stores.
fn stored_name(spec: &InputSpec) -> Option<&str> {
    match spec {
        InputSpec::Parameter(spec) => Some(&spec.parameter_name),
        InputSpec::Buffer(spec) => Some(&spec.buffer_name),
        InputSpec::TensorConstant(spec) => Some(&spec.tensor_constant_name),
        InputSpec::UserInput(_) | InputSpec::CustomObj(_) | InputSpec::ConstantInput(_) | InputSpec::Token(_) => None,
    }
}

/// The outputs: updates of inputs, by in-place ops or by the signature, then what the model returns.
fn outputs(
    program: &ExportedProgram<'_>,
    inputs: &[Input<'_>],
    memory: &mut Memory,
    scope: &Scope<'_>,
) -> Result<Vec<CapturedOutput>, String> {
    let Graph { outputs: given, .. } = &program.graph_module.graph;
    let specs = &program.graph_module.signature.output_specs;
    if specs.len() != given.len() {
        return Err(format!("{} outputs but {} descriptions of them", given.len(), specs.len()));
    }
    let mut outputs = Vec::new();
    // Parameters and buffers are declared by their own names, arguments by their placeholders'.
    let named = |name: &str| {
        let is_named = |input: &&Input<'_>| match input.captured.role {
            InputRole::Static => input.captured.name == name,
            InputRole::Dynamic | InputRole::Saved | InputRole::Tangent => input.placeholder == name,
        };
        inputs.iter().find(is_named).ok_or_else(|| format!("an output updates `{name}`, which is no input"))
    };
    let declared = specs.iter().filter_map(updated_name).map(|name| Ok(named(name)?.captured.id));
    let declared = declared.collect::<Result<BTreeSet<u64>, String>>()?;
    for Input { captured, tensor, .. } in inputs {
        if memory.is_written(*tensor) && !declared.contains(&captured.id) {
            let reference = Some(memory.read(*tensor)?);
            outputs.push(CapturedOutput { reference, updates: Some(captured.id), description: update_of(captured) });
        }
    }
    let mut n_returned = 0;
    for (position, (output, spec)) in given.iter().zip(specs).enumerate() {
        let (updates, description) = match updated_name(spec).map(named).transpose()? {
            Some(Input { captured, .. }) => (Some(captured.id), update_of(captured)),
            None => {
                n_returned += 1;
                (None, format!("PlainAOTOutput(idx={})", n_returned - 1))
            }
        };
        let reference = match output {
            Given::AsTensor(Name { name }) => {
                match scope.get(name).map_err(|error| format!("output {position}: {error}"))? {
                    Bound::Tensor(tensor) => Some(memory.read(*tensor)?),
                    Bound::Symbol(_) => None,
                }
            }
            output if tensor_names(output).is_empty() => None,
            _ => return Err(format!("output {position} is no single tensor")),
        };
        outputs.push(CapturedOutput { reference, updates, description });
    }
    Ok(outputs)
}

fn update_of(input: &CapturedInput) -> String {
    format!("InputMutationAOTOutput(mutated_input={})", input.name)
}

/// The input that an output updates.
fn updated_name(spec: &OutputSpec) -> Option<&str> {
    match spec {
        OutputSpec::BufferMutation(spec) => Some(&spec.buffer_name),
        OutputSpec::ParameterMutation(spec) => Some(&spec.parameter_name),
        OutputSpec::UserInputMutation(spec) => Some(&spec.user_input_name),
        OutputSpec::UserOutput(_)
        | OutputSpec::LossOutput(_)
        | OutputSpec::GradientToParameter(_)
        | OutputSpec::GradientToUserInput(_)
        | OutputSpec::Token(_) => None,
    }
}

/// The whole graph, with small constants that nothing updates stored in it.
fn assembled(
    name: &str,
    inputs: Vec<Input<'_>>,
    outputs: Vec<CapturedOutput>,
    memory: Memory,
    weights: &Weights<'_>,
) -> Result<CapturedGraph, String> {
    let mut captured = CapturedGraph { name: name.to_owned(), outputs, ..CapturedGraph::default() };
    for input in inputs {
        let CapturedInput { id, name, recorded, .. } = &input.captured;
        let ty = weights.ty(name).filter(|ty| ty.size_bytes() <= MAX_CONSTANT_BYTES);
        let (Some(ty), Recorded::Tensor(tensor), true) =
            (ty, recorded, input.is_constant && !memory.is_written(input.tensor))
        else {
            captured.inputs.push(input.captured);
            continue;
        };
        let shape = ty.shape.iter().map(|&size| size as u64).collect();
        let data = StoredData::Bytes(weights.elements(name)?.into_owned());
        captured.constants.insert(name.clone(), StoredTensor { dtype: tensor.dtype.clone(), shape, data });
        captured.nodes.push(CapturedNode {
            id: *id,
            target: "const".to_owned(),
            positional: vec![Argument::Text(name.clone())],
            keywords: BTreeMap::new(),
            recorded: recorded.clone(),
            location: Location { node: name.clone(), target: "const".to_owned(), ..Location::default() },
            refusal: None,
        });
    }
    captured.nodes.extend(memory.into_nodes());
    Ok(captured)
}
