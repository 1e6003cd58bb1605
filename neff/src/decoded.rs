//! A NEFF in the open encoding as a program again: decoded streams, and variables as HBM tensors.
//!
//! The program is in the absolute form of `ir::program`: its tiles are SBUF and PSUM, and an HBM tensor's position is its
//! variable id. Source locations come from the debug member where there is one; nothing else depends on it.
//!
//! Checks that members fit together, not what instructions may do: that is `ir::program::rules`.

use crate::container::{Container, OPEN_ENCODING_BIT};
use crate::isa::records;
use crate::members::{
    DebugLines, Definition, GraphFile, Kelf, TensorEntry, TensorMap, Variable, VariableKind, chip_target, element_type,
    npy, read_json,
};
use crate::{Code, Error, Place};
use ir::Program;
use ir::program::{Engine, HbmKind, HbmTensor, ProgramPhase, memory_tiles};
use ir::target::TargetName;
use ir::types::{Dtype, Shape};
use std::collections::BTreeMap;
use std::sync::Arc;

const DEFINITION: &str = "sg00/def.json";
const TENSOR_MAP: &str = "sg00/tensor_map.json";

/// Decodes a NEFF that this project made.
///
/// # Errors
/// [`Code::BadInstruction`] for streams in another encoding or records that do not decode; otherwise the member and what
/// is wrong with it.
pub fn program(container: &Container) -> Result<Program, Error> {
    if !container.has_open_encoding() {
        let reason = format!("the engine streams are opaque: feature bit {OPEN_ENCODING_BIT} is not set");
        return Err(Error::new(Code::BadInstruction, Place::default(), reason));
    }
    let definition: Definition = read_json(container, DEFINITION)?;
    let debug: DebugLines = read_json(container, DebugLines::MEMBER).unwrap_or_default();
    let mut program = Program::new(container.header.name_text(), target(container)?);
    program.phase = ProgramPhase::Synchronized;
    program.tiles = memory_tiles(program.target.target());
    program.tensors = tensors(container, &definition)?;
    program.locations = debug.locations();
    for engine in Engine::ALL {
        let Some(file) = definition.engine_instr(engine) else { continue };
        let member = format!("sg00/{file}");
        let stream = records(engine, &member, container.member(&member)?)?;
        program.instructions.reserve_exact(stream.len());
        for (position, instruction) in stream.enumerate() {
            let mut instruction = instruction?;
            instruction.locations = debug.of_record(engine, position).collect();
            program.instructions.push(instruction);
        }
    }
    Ok(program)
}

fn target(container: &Container) -> Result<TargetName, Error> {
    let member = "kelf-0.json";
    let kelf: Kelf = read_json(container, member)?;
    chip_target(&kelf.target).ok_or_else(|| {
        let reason = format!("target `{}` is none that this tool knows", kelf.target.escape_debug());
        Error::new(Code::BadJson, Place::member(member), reason)
    })
}

/// One tensor per variable id. The state buffer and other variables without content are empty scratch.
fn tensors(container: &Container, definition: &Definition) -> Result<Vec<HbmTensor>, Error> {
    let map: TensorMap = read_json(container, TENSOR_MAP)?;
    let graph: GraphFile = read_json(container, "neff.json")?;
    let order = Order::of(&graph);
    let by_file: BTreeMap<&str, &TensorEntry> =
        map.values().filter(|entry| entry.is_const).map(|entry| (entry.tf_file.as_str(), entry)).collect();
    let mut slots: Vec<Option<HbmTensor>> = vec![None; definition.var.len()];
    for (name, variable) in &definition.var {
        let slot = usize::try_from(variable.var_id).ok().and_then(|id| slots.get_mut(id));
        let Some(slot) = slot else {
            return Err(fault(
                name,
                format!("id {} is not below the {} variables", variable.var_id, definition.var.len()),
            ));
        };
        if slot.is_some() {
            return Err(fault(name, format!("id {} stands twice", variable.var_id)));
        }
        let entry = match &variable.file_name {
            Some(file) => by_file.get(file.as_str()).copied(),
            None => map.get(name),
        };
        *slot = Some(tensor(container, name, variable, entry, &order)?);
    }
    // As many slots as variables, none filled twice: all are filled.
    let mut tensors: Vec<HbmTensor> = slots.into_iter().flatten().collect();
    for (name, variable) in definition.var.iter().filter(|(_, variable)| variable.kind == VariableKind::Pointer) {
        let updated = variable.referenced_var_id.and_then(|id| usize::try_from(id).ok());
        let Some(updated) = updated.and_then(|id| tensors.get_mut(id)) else {
            return Err(fault(name, "it points to no variable".to_owned()));
        };
        if let (HbmKind::Input(input), Ok(output)) = (&updated.kind, position(name, map.get(name), &order.outputs)) {
            updated.kind = HbmKind::Updated { input: *input, output };
        }
    }
    Ok(tensors)
}

fn tensor(
    container: &Container,
    name: &str,
    variable: &Variable,
    entry: Option<&TensorEntry>,
    order: &Order<'_>,
) -> Result<HbmTensor, Error> {
    let size_bytes = variable.size.unwrap_or(0);
    let kind = match &variable.kind {
        VariableKind::Input => HbmKind::Input(position(name, entry, &order.inputs)?),
        VariableKind::Output => HbmKind::Output(position(name, entry, &order.outputs)?),
        VariableKind::File => HbmKind::Constant(constant(container, name, variable)?),
        VariableKind::StateBuffer
        | VariableKind::TmpBuf
        | VariableKind::Virtual
        | VariableKind::Pointer
        | VariableKind::DgeTable
        | VariableKind::Other(_) => HbmKind::Scratch,
    };
    let (dtype, shape) = match entry {
        Some(entry) => typed(name, entry)?,
        None => (Dtype::U8, Shape::from_slice(&[usize::try_from(size_bytes).unwrap_or(usize::MAX)])),
    };
    Ok(HbmTensor { name: name.to_owned(), kind, dtype, shape, size_bytes })
}

fn typed(name: &str, entry: &TensorEntry) -> Result<(Dtype, Shape), Error> {
    let in_map = |reason: String| Error::new(Code::BadJson, Place::member(TENSOR_MAP), format!("`{name}`: {reason}"));
    let dtype = element_type(&entry.dtype);
    let dtype = dtype.ok_or_else(|| in_map(format!("element type `{}` is not known", entry.dtype.escape_debug())))?;
    let dims = entry.tf_shape.iter().map(|dim| usize::try_from(*dim));
    let shape = dims.collect::<Result<Shape, _>>();
    Ok((dtype, shape.map_err(|_| in_map("a dimension is negative".to_owned()))?))
}

/// The position that the tensor map gives, else the one in the graph.
fn position(name: &str, entry: Option<&TensorEntry>, order: &[&str]) -> Result<u32, Error> {
    if let Some(position) = entry.and_then(|entry| entry.position) {
        return Ok(position);
    }
    let found = order.iter().position(|listed| *listed == name).and_then(|position| u32::try_from(position).ok());
    found.ok_or_else(|| fault(name, "neff.json does not list it".to_owned()))
}

fn constant(container: &Container, name: &str, variable: &Variable) -> Result<Arc<[u8]>, Error> {
    let Some(file) = &variable.file_name else { return Err(fault(name, "it has no file".to_owned())) };
    let member = format!("sg00/{file}");
    let bytes = container.member(&member)?;
    let data = if file.ends_with(".npy") { npy::read(&member, bytes)?.data } else { bytes };
    if Some(data.len() as u64) != variable.size {
        return Err(fault(name, format!("its size is not that of `{file}`, {} bytes", data.len())));
    }
    Ok(Arc::from(data))
}

fn fault(name: &str, reason: String) -> Error {
    Error::new(Code::BadJson, Place::member(DEFINITION), format!("variable `{}`: {reason}", name.escape_debug()))
}

/// Inputs and outputs in the order of the graph.
struct Order<'a> {
    inputs: Vec<&'a str>,
    outputs: Vec<&'a str>,
}

impl<'a> Order<'a> {
    fn of(graph: &'a GraphFile) -> Self {
        let is_input = |node: &&crate::members::GraphNode| node.op == "null";
        let kelf = graph.nodes.iter().find(|node| node.is_kelf());
        Order {
            inputs: graph.nodes.iter().filter(is_input).map(|node| node.name.as_str()).collect(),
            outputs: kelf.into_iter().flat_map(|node| &node.output_names).map(String::as_str).collect(),
        }
    }
}
