//! From a NEFF's members to a machine.
//!
//! Reads `kelf-0.json` (chip, subgraph), `neff.json` (inputs and outputs), `def.json` (variables and
//! streams), engine streams, constants and `tensor_map.json` (positions and strides of inputs and
//! outputs). Names only join members to each other. Debug and statistics members are not opened.

use std::collections::BTreeMap;

use ir::program::{DmaPlace, Engine, HbmId, HbmKind, HbmTensor, Instruction, InstructionKind};
use ir::target::TargetName;
use ir::{Dtype, Shape};
use neff::container::Container;
use neff::isa;
use neff::members::{
    Definition, GraphFile, Kelf, TensorMap, Variable, VariableKind, chip_target, element_type, npy, read_json,
};

use crate::applied::{self, Applied};
use crate::error::LoadError;
use crate::machine::{DeviceMemory, MOST_TENSORS, Parts};
use crate::sound::Content;
use crate::values::memory::BufferPlace;

/// Reads the members that hold the program.
pub(crate) fn read(container: &Container) -> Result<Parts, LoadError> {
    if !container.has_open_encoding() {
        return Err(LoadError::ForeignEncoding);
    }
    let graph: GraphFile = json(container, "neff.json")?;
    let node = graph.nodes.iter().find(|node| node.is_kelf()).ok_or_else(|| mismatch("neff.json has no kelf node"))?;
    let kelf_name = node.attrs.as_ref().and_then(|attrs| attrs.kelf.as_deref()).unwrap_or("kelf-0.json");
    let kelf: Kelf = json(container, kelf_name)?;
    let [subgraph] = &kelf.graphs[..] else {
        return Err(mismatch(format!("{kelf_name} has {} subgraphs; this simulator runs one core", kelf.graphs.len())));
    };
    let definition: Definition = json(container, &subgraph.definition)?;
    let folder = subgraph.definition.rsplit_once('/').map_or("", |(folder, _)| folder);
    let member = |name: &str| if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
    let map_name = member("tensor_map.json");
    let has_map = container.members.contains_key(&map_name);
    let tensor_map: TensorMap = if has_map { json(container, &map_name)? } else { TensorMap::new() };

    let mut variables = Variables::of(&definition)?;
    variables.add_constants(&definition, |name| container.member(&member(name)))?;
    let inputs = graph.arg_nodes.iter().map(|&node| {
        let node = usize::try_from(node).ok().and_then(|node| graph.nodes.get(node));
        node.map(|node| node.name.as_str()).ok_or_else(|| mismatch("neff.json names an input node that does not exist"))
    });
    let inputs = inputs.collect::<Result<Vec<&str>, LoadError>>()?;
    let outputs: Vec<&str> = node.output_names.iter().map(String::as_str).collect();
    let shapes = Shapes { graph: &graph, tensor_map: &tensor_map };
    let input_slots = variables.add_interface(&inputs, 0, &shapes, HbmKind::Input)?;
    let output_slots = variables.add_interface(&outputs, inputs.len(), &shapes, HbmKind::Output)?;

    let mut streams: [Vec<Instruction>; Engine::ALL.len()] = Default::default();
    let mut read = vec![container.member(kelf_name)?, container.member("neff.json")?];
    read.push(container.member(&subgraph.definition)?);
    read.push(if has_map { container.member(&map_name)? } else { &[] });
    for engine in Engine::ALL {
        let Some(name) = definition.engine_instr(engine) else { continue };
        let path = member(name);
        let records = container.member(&path)?;
        // Which engine a stream is for stands in the definition.
        read.push(records);
        let records = isa::records(engine, &path, records)?;
        let stream = &mut streams[engine as usize];
        stream.reserve_exact(records.len());
        for instruction in records {
            stream.push(variables.resolve(instruction?, &path)?);
        }
    }
    let target = target_of(&kelf.target)?;
    let has_calls = streams.iter().flatten().any(applied::belongs_to_calls);
    let applied = if has_calls {
        let path = member(neff::members::BINDINGS_MEMBER.rsplit('/').next().unwrap_or_default());
        let table = container.members.get(&path).map_or(&[][..], Vec::as_slice);
        read.push(table);
        let bindings = variables.bindings(&path, table)?;
        let device = &variables.device;
        Some(Applied::split(target, &mut streams, &variables.tensors, device, bindings)?)
    } else {
        None
    };
    let instructions: Vec<Instruction> = streams.into_iter().flatten().collect();
    Ok(Parts {
        content: Some(Content::of(read)),
        target,
        instructions,
        applied,
        strides: variables.strides,
        tensors: variables.tensors,
        device: variables.device,
        inputs: input_slots,
        outputs: output_slots,
    })
}

fn mismatch(message: impl Into<String>) -> LoadError {
    LoadError::Inconsistent(message.into())
}

fn json<Kind: serde::de::DeserializeOwned>(container: &Container, name: &str) -> Result<Kind, LoadError> {
    Ok(read_json(container, name)?)
}

fn target_of(chip: &str) -> Result<TargetName, LoadError> {
    chip_target(chip).ok_or_else(|| mismatch(format!("no chip is named `{chip}`")))
}

/// Where shapes, types and positions of inputs and outputs stand.
struct Shapes<'a> {
    graph: &'a GraphFile,
    tensor_map: &'a TensorMap,
}

/// Device variables as tensors in buffers.
struct Variables {
    tensors: Vec<HbmTensor>,
    strides: Vec<Option<Vec<i64>>>,
    device: DeviceMemory,
    by_id: BTreeMap<u64, usize>,
    by_name: BTreeMap<String, usize>,
}

impl Variables {
    /// All variables in device memory. Pointers share the buffer of what they point to.
    fn of(definition: &Definition) -> Result<Variables, LoadError> {
        let mut variables = Variables {
            tensors: Vec::new(),
            strides: Vec::new(),
            device: DeviceMemory::default(),
            by_id: BTreeMap::new(),
            by_name: BTreeMap::new(),
        };
        let mut ordered: Vec<(&String, &Variable)> = definition.var.iter().collect();
        ordered.sort_by_key(|(_, variable)| variable.var_id);
        let mut scratchpads: BTreeMap<&str, usize> = BTreeMap::new();
        for &(name, variable) in &ordered {
            let size_bytes = variable.size.unwrap_or(0);
            let place = match &variable.kind {
                VariableKind::StateBuffer | VariableKind::DgeTable | VariableKind::Pointer => continue,
                VariableKind::Input | VariableKind::Output | VariableKind::File | VariableKind::TmpBuf => {
                    variables.device.buffer_bytes.push(size_bytes);
                    BufferPlace { buffer: variables.device.buffer_bytes.len() - 1, start_byte: 0 }
                }
                VariableKind::Virtual => {
                    let start = variable.backing_variable_off.unwrap_or(0);
                    let area = variable.backing_buf.as_deref().unwrap_or("");
                    let buffer = *scratchpads.entry(area).or_insert_with(|| {
                        variables.device.buffer_bytes.push(0);
                        variables.device.buffer_bytes.len() - 1
                    });
                    let end =
                        start.checked_add(size_bytes).ok_or_else(|| mismatch(format!("`{name}` is too large")))?;
                    let bytes = &mut variables.device.buffer_bytes[buffer];
                    *bytes = end.max(*bytes);
                    BufferPlace { buffer, start_byte: start as usize }
                }
                kind => return Err(mismatch(format!("`{name}` is a variable of the kind `{}`", kind.as_str()))),
            };
            variables.add(name, variable.var_id, size_bytes, place)?;
        }
        for &(name, variable) in ordered.iter().filter(|(_, variable)| variable.kind == VariableKind::Pointer) {
            let referenced = variable.referenced_var_id.and_then(|id| variables.by_id.get(&id).copied());
            let referenced = referenced.ok_or_else(|| mismatch(format!("pointer `{name}` points to no variable")))?;
            let (size_bytes, place) = (variables.tensors[referenced].size_bytes, variables.device.places[referenced]);
            variables.add(name, variable.var_id, size_bytes, place)?;
        }
        let total: u128 = variables.device.buffer_bytes.iter().map(|&bytes| u128::from(bytes)).sum();
        if total > u128::from(MOST_DEVICE_BYTES) {
            return Err(mismatch(format!("the variables take {total} bytes of device memory")));
        }
        Ok(variables)
    }

    fn add(&mut self, name: &str, id: u64, size_bytes: u64, place: BufferPlace) -> Result<(), LoadError> {
        let index = self.tensors.len();
        if self.by_id.insert(id, index).is_some() {
            return Err(mismatch(format!("`{name}` shares its id {id} with another variable")));
        }
        self.by_name.insert(name.to_owned(), index);
        self.tensors.push(HbmTensor {
            name: name.to_owned(),
            kind: HbmKind::Scratch,
            dtype: Dtype::U8,
            shape: Shape::from_slice(&[size_bytes as usize]),
            size_bytes,
        });
        self.strides.push(None);
        self.device.places.push(place);
        Ok(())
    }

    /// Content of file variables.
    fn add_constants<'a>(
        &mut self,
        definition: &Definition,
        member: impl Fn(&str) -> Result<&'a [u8], neff::Error>,
    ) -> Result<(), LoadError> {
        for (name, variable) in definition.var.iter().filter(|(_, variable)| variable.kind == VariableKind::File) {
            let file = variable.file_name.as_deref().ok_or_else(|| mismatch(format!("`{name}` names no file")))?;
            let bytes = member(file)?;
            let content = if file.ends_with(".npy") { npy::read(file, bytes)?.data } else { bytes };
            let tensor = &mut self.tensors[self.by_name[name]];
            if content.len() as u64 != tensor.size_bytes {
                let (given, expected) = (content.len(), tensor.size_bytes);
                return Err(mismatch(format!("`{file}` holds {given} bytes, but `{name}` has {expected}")));
            }
            tensor.kind = HbmKind::Constant(content.into());
        }
        Ok(())
    }

    /// Types, shapes and positions of inputs or outputs. The tensors of `neff.json` are listed from
    /// `first` on.
    fn add_interface(
        &mut self,
        names: &[&str],
        first: usize,
        shapes: &Shapes<'_>,
        kind: fn(u32) -> HbmKind,
    ) -> Result<Vec<Option<usize>>, LoadError> {
        let mut slots: Vec<Option<usize>> = Vec::new();
        for (number, &name) in names.iter().enumerate() {
            let index =
                *self.by_name.get(name).ok_or_else(|| mismatch(format!("def.json has no variable `{name}`")))?;
            let entry = shapes.tensor_map.get(name);
            let position = entry.and_then(|entry| entry.position).map_or(number, |position| position as usize);
            if position >= MOST_TENSORS || slots.get(position).is_some_and(Option::is_some) {
                return Err(mismatch(format!("`{name}` has position {position}, which is taken or too large")));
            }
            slots.resize(slots.len().max(position + 1), None);
            slots[position] = Some(index);
            let tensor = &mut self.tensors[index];
            let type_name = shapes.graph.attrs.dltype.get(first + number).map_or("", String::as_str);
            tensor.dtype =
                element_type(type_name).ok_or_else(|| mismatch(format!("`{name}` has the type `{type_name}`")))?;
            let dims = shapes.graph.attrs.shape.get(first + number).map_or(&[][..], Vec::as_slice);
            let dims: Option<Shape> = dims.iter().map(|&dim| usize::try_from(dim).ok()).collect();
            tensor.shape = dims.ok_or_else(|| mismatch(format!("`{name}` has a negative dimension")))?;
            tensor.kind = kind(position as u32);
            self.strides[index] = entry.and_then(|entry| entry.strides.clone());
        }
        Ok(slots)
    }

    /// The table of bindings, as positions in the list of tensors.
    fn bindings(&self, path: &str, table: &[u8]) -> Result<Vec<usize>, LoadError> {
        let (ids, rest) = table.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(mismatch(format!("{path} ends inside a variable id")));
        }
        let index = |id: &[u8; 4]| {
            let id = u32::from_le_bytes(*id);
            let index = self.by_id.get(&u64::from(id)).copied();
            index.ok_or_else(|| mismatch(format!("{path} names variable {id}, which is no tensor")))
        };
        ids.iter().map(index).collect()
    }

    /// Variable ids to positions in the list of tensors.
    fn resolve(&self, mut instruction: Instruction, path: &str) -> Result<Instruction, LoadError> {
        if let InstructionKind::Dma { dst, src, queue: _, gather: _ } = &mut instruction.kind {
            for side in [dst, src] {
                let DmaPlace::Hbm { tensor } = &mut side.place else { continue };
                if tensor.bound_place().is_some() {
                    continue;
                }
                let index = self.by_id.get(&u64::from(tensor.0));
                let index =
                    index.ok_or_else(|| mismatch(format!("{path} names variable {}, which is no tensor", tensor.0)))?;
                *tensor = HbmId(*index as u32);
            }
        }
        Ok(instruction)
    }
}

/// More device memory than any stack of any chip has.
const MOST_DEVICE_BYTES: u64 = 64 << 30;

#[cfg(test)]
mod tests {
    use ir::program::{DmaQueue, HbmKind};
    use neff::members::TensorEntry;

    use super::*;
    use crate::machine::Machine;
    use crate::testing::{Builder, NeffDraft, Order, dma, f32_bytes, f32_values, lanes, rows};

    /// out = input + constant would need compute; this copies input and constant to two outputs.
    fn two_copies() -> Builder {
        let mut builder = Builder::new(TargetName::Trn2);
        let f32 = Dtype::F32;
        let (input, first, second) =
            (builder.input(f32, &[2, 2]), builder.output(f32, &[2, 2]), builder.output(f32, &[2, 2]));
        let constant = builder.constant(f32, &[2, 2], &f32_bytes(&[5.0, 6.0, 7.0, 8.0]));
        let mut semaphore = 0;
        for (source, target, start_byte) in [(input, first, 0), (constant, second, 64)] {
            let load = dma(lanes(0, 2, start_byte, 2, f32), rows(source, 2, 2, f32), DmaQueue::Hardware);
            builder.push(Engine::Sp, load).update(semaphore, 16);
            let store = dma(rows(target, 2, 2, f32), lanes(0, 2, start_byte, 2, f32), DmaQueue::Hardware);
            builder.push(Engine::Sp, store).wait(semaphore, 16).update(semaphore + 1, 16);
            semaphore += 2;
        }
        builder
    }

    fn outputs(file: &[u8]) -> Vec<Vec<f32>> {
        let machine = Machine::load(file).expect("the file is whole");
        let outputs = machine.run(&[Some(&f32_bytes(&[1.0, 2.0, 3.0, 4.0]))]).expect("the program is legal");
        outputs.tensors.iter().map(|tensor| f32_values(&tensor.as_ref().expect("no gaps").bytes)).collect()
    }

    #[test]
    fn a_file_runs_like_its_program() {
        let builder = two_copies();
        let draft = NeffDraft::of(&builder.program);
        let expected = vec![vec![1.0, 2.0, 3.0, 4.0], vec![5.0, 6.0, 7.0, 8.0]];
        assert_eq!(outputs(&draft.write()), expected);
        let loaded = Machine::load(&draft.write()).expect("the file is whole");
        assert_eq!(loaded.timeline(), builder.machine().timeline());
        let input = loaded.inputs()[0].clone().expect("there is one input");
        assert_eq!((input.dtype, input.shape.as_slice(), input.size_bytes), (Dtype::F32, &[2, 2][..], 16));
    }

    #[test]
    fn positions_and_strides_come_from_the_tensor_map() {
        let builder = two_copies();
        let mut draft = NeffDraft::of(&builder.program);
        let mut entry = TensorEntry::io("t1", neff::members::TensorKind::Output, "float32", &[2, 2]);
        entry.position = Some(3);
        entry.strides = Some(vec![1, 2]);
        draft.tensor_map.insert("t1".to_owned(), entry);
        let machine = Machine::load(&draft.write()).expect("the file is whole");
        let outputs = machine.outputs();
        assert_eq!(outputs.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false, true]);
        assert_eq!(outputs[3].as_ref().and_then(|info| info.strides.clone()), Some(vec![1, 2]));
    }

    #[test]
    fn an_output_that_points_to_an_input_shares_its_buffer() {
        let mut builder = Builder::new(TargetName::Trn2);
        let f32 = Dtype::F32;
        let (cache, row, updated) =
            (builder.input(f32, &[2, 2]), builder.input(f32, &[1, 2]), builder.output(f32, &[2, 2]));
        let mut second_row = rows(updated, 1, 2, f32);
        second_row.offset = 2;
        builder.push(Engine::Sp, dma(second_row, rows(row, 1, 2, f32), DmaQueue::Hardware));
        let mut draft = NeffDraft::of(&builder.program);
        let pointer = draft.definition.var.get_mut("t2").expect("the output is a variable");
        pointer.kind = VariableKind::Pointer;
        pointer.referenced_var_id = Some(u64::from(cache.0) + 1);
        let machine = Machine::load(&draft.write()).expect("the file is whole");
        let given = [f32_bytes(&[1.0, 2.0, 3.0, 4.0]), f32_bytes(&[8.0, 9.0])];
        let outputs = machine.run(&[Some(&given[0]), Some(&given[1])]).expect("the program is legal");
        let bytes = &outputs.tensors[0].as_ref().expect("there is one output").bytes;
        assert_eq!(f32_values(bytes), [1.0, 2.0, 8.0, 9.0]);
        assert!(machine.run(&[None, Some(&given[1])]).is_err());
    }

    #[test]
    fn damaged_files_are_refused_with_a_reason() {
        let builder = two_copies();
        let reason = |change: fn(&mut NeffDraft)| {
            let mut draft = NeffDraft::of(&builder.program);
            change(&mut draft);
            Machine::load(&draft.write()).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(reason(|draft| draft.feature_bits = 0).contains("open encoding"));
        assert!(reason(|draft| drop(draft.definition.var.remove("t3"))).contains("variable"));
        assert!(reason(|draft| draft.kelf.target = "inferentia".to_owned()).contains("`inferentia`"));
        assert!(reason(|draft| draft.graph.attrs.dltype[0] = "float80".to_owned()).contains("float80"));
        assert!(
            reason(|draft| {
                let constant = draft.definition.var.get_mut("t3").expect("the constant is a variable");
                constant.size = Some(12);
            })
            .contains("holds 16 bytes")
        );
        assert!(
            reason(|draft| {
                let output = draft.definition.var.get_mut("t1").expect("the output is a variable");
                output.size = Some(1 << 60);
            })
            .contains("device memory")
        );
        assert!(matches!(Machine::load(&[0; 2000]), Err(LoadError::Neff(_))));
    }

    #[test]
    fn a_file_is_checked_once_and_a_broken_one_every_time() {
        let content = |draft: &NeffDraft| {
            let container = neff::container::read(&draft.write()).map_err(|failure| failure.error);
            read(&container.expect("the file is whole")).expect("the members fit together").content.expect("a file")
        };
        let mut builder = two_copies();
        let broken = NeffDraft::of(&builder.program);
        let found = |draft: &NeffDraft| Machine::load(&draft.write()).expect("the file is whole").check();
        assert_eq!((found(&broken).findings.len(), found(&broken).findings.len()), (2, 2));
        assert!(!content(&broken).is_known_sound());
        builder.push(Engine::Sp, ir::program::InstructionKind::Sync).wait(1, 16).wait(3, 16);
        let sound = NeffDraft::of(&builder.program);
        assert!(!content(&sound).is_known_sound());
        assert!(found(&sound).is_empty());
        assert!(content(&sound).is_known_sound());
        // Whatever the checks depend on makes another program.
        let changes: [fn(&mut NeffDraft); 4] = [
            |draft| draft.stream_mut(Engine::Sp)[70] ^= 1,
            |draft| draft.kelf.target = neff::members::chip_name(TargetName::Trn3).to_owned(),
            |draft| draft.graph.attrs.dltype[0] = "int32".to_owned(),
            |draft| draft.definition.var.get_mut("t1").expect("an output").size = Some(20),
        ];
        for change in changes {
            let mut draft = NeffDraft::of(&builder.program);
            change(&mut draft);
            let container = neff::container::read(&draft.write()).map_err(|failure| failure.error);
            let parts = read(&container.expect("the file is whole"));
            assert!(parts.is_err() || !content(&draft).is_known_sound());
        }
    }

    #[test]
    fn constants_are_kept_as_bytes() {
        let machine = Machine::load(&NeffDraft::of(&two_copies().program).write()).expect("the file is whole");
        let constants = machine.tensors.iter().filter(|tensor| matches!(tensor.kind, HbmKind::Constant(_)));
        assert_eq!(constants.count(), 1);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

        /// Whatever stands in the streams, the simulator answers and does not panic.
        #[test]
        fn damaged_streams_are_answered(changes in proptest::collection::vec((0usize..2048, 0u8..=255), 1..4)) {
            let mut draft = NeffDraft::of(&two_copies().program);
            let stream = draft.stream_mut(Engine::Sp);
            for (at, value) in changes {
                let at = at % stream.len();
                stream[at] = value;
            }
            if let Ok(machine) = Machine::load(&draft.write()) {
                let _ = machine.check();
                let _ = machine.timeline();
                let _ = machine.run(&[Some(&[0; 16])]);
            }
        }
    }
}
