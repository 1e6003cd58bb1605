//! A synchronized program as one NEFF.
//!
//! What the device needs stands in documented members: streams, variables, constants, shapes.
//! Source lines go into `sg00/neffuse_debug.json`, statistics into `hlo_stats.json` and
//! `metrics.json`; nothing that runs the file reads those three.

use std::collections::{BTreeMap, BTreeSet};

use ir::program::{DmaQueue, Engine, HbmKind, HbmTensor, InstructionKind, Module};
use ir::target::TargetName;
use ir::{Dtype, Graph, Program, types::packed_strides};
use neff::container::{Draft, OPEN_ENCODING_BIT, write};
use neff::members::{
    BINDINGS_MEMBER, BuildInfo, DebugLines, Definition, EngineFile, GraphFile, HloStats, Kelf, KelfGraph, Metric,
    Queue, QueueKind, TensorEntry, TensorKind, TensorMap, Variable, VariableKind, chip_name, element_name,
    engine_file_stem, npy, to_compact_json, to_pretty_json,
};

use crate::integers;
use crate::link::LinkedKernel;

/// Transfers of one logical core spread over this many queues.
const QUEUES_PER_SET: u64 = 16;

/// Writes the NEFF of a linked program.
///
/// # Errors
/// What the container has no room for.
pub fn package(graph: &Graph, program: &Program, kernel: &LinkedKernel) -> Result<Vec<u8>, neff::Error> {
    let image = Image {
        target: program.target,
        tensors: &program.tensors,
        programs: vec![(program, 1)],
        integer_bits: integers::input_bits(graph),
    };
    image.write(graph, kernel)
}

/// Writes the NEFF of a linked module. The inputs and outputs of `graph` are the module's, with their
/// steps; `integer_bits` says of each input how many bits its 64-bit integers may have.
///
/// # Errors
/// As [`package`].
pub fn package_module(
    graph: &Graph,
    module: &Module,
    kernel: &LinkedKernel,
    integer_bits: Vec<u32>,
) -> Result<Vec<u8>, neff::Error> {
    let kernels = module.kernels.iter().enumerate();
    let image = Image {
        target: module.target,
        tensors: &module.tensors,
        programs: kernels.map(|(number, kernel)| (&kernel.program, module.n_calls(number) as u64)).collect(),
        integer_bits,
    };
    image.write(graph, kernel)
}

/// What a NEFF is made of.
struct Image<'a> {
    target: TargetName,
    tensors: &'a [HbmTensor],
    /// With how often each runs.
    programs: Vec<(&'a Program, u64)>,
    integer_bits: Vec<u32>,
}

impl Image<'_> {
    fn write(&self, graph: &Graph, kernel: &LinkedKernel) -> Result<Vec<u8>, neff::Error> {
        let names = variable_names(self.tensors);
        let pointers = pointers(self.tensors, &names);
        let mut members = BTreeMap::new();
        let file_name = "file.neff".to_owned();
        members.insert("info.json".to_owned(), to_pretty_json(&build_info(&file_name)));
        members.insert("kelf-0.json".to_owned(), to_pretty_json(&kelf(self.target)));
        members.insert("neff.json".to_owned(), to_pretty_json(&graph_file(self.tensors, &names, &pointers)));
        members.insert("hlo_stats.json".to_owned(), to_pretty_json(&hlo_stats(self)));
        members.insert("metrics.json".to_owned(), to_pretty_json(&metrics(self.tensors)));
        for (tensor, name) in self.tensors.iter().zip(&names) {
            if let HbmKind::Constant(data) = &tensor.kind {
                let shape: Vec<u64> = tensor.shape.iter().map(|&dim| dim as u64).collect();
                let file = npy::write(npy_type(tensor.dtype), &shape, data);
                members.insert(format!("sg00/{}", constant_file(name)), file);
            }
        }
        for engine in Engine::ALL {
            let stem = engine_file_stem(engine);
            members.insert(format!("sg00/{stem}.json"), to_pretty_json(&engine_file(stem)));
            members.insert(format!("sg00/{stem}.bin"), kernel.stream(engine).to_vec());
        }
        if !kernel.bindings().is_empty() {
            let table = kernel.bindings().iter().flat_map(|id| id.to_le_bytes()).collect();
            members.insert(BINDINGS_MEMBER.to_owned(), table);
        }
        let definition = definition(self, &names, &pointers);
        members.insert("sg00/def.json".to_owned(), to_pretty_json(&definition));
        let map = tensor_map(graph, self, &names, &pointers);
        members.insert("sg00/tensor_map.json".to_owned(), to_pretty_json(&map));
        members.insert(DebugLines::MEMBER.to_owned(), kernel.line_table().to_vec());
        write(&Draft { name: file_name, feature_bits: 1 << OPEN_ENCODING_BIT, lnc_size: 1, members })
    }
}

/// The ids of HBM tensors in `def.json`; 0 is the state buffer.
pub fn variable_ids(n_tensors: usize) -> impl Iterator<Item = u32> {
    1..=n_tensors as u32
}

/// A unique name for each HBM tensor, its own where that is free.
pub(crate) fn variable_names(tensors: &[HbmTensor]) -> Vec<String> {
    let mut taken: BTreeSet<String> = BTreeSet::from(["SB".to_owned()]);
    // Of names that come again, the number that the next one tries first: all before are taken.
    let mut counters: BTreeMap<&str, u32> = BTreeMap::new();
    let mut names = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let mut name = tensor.name.clone();
        while !taken.insert(name.clone()) {
            let counter = counters.entry(&tensor.name).or_insert(1);
            name = format!("{}_{counter}", tensor.name);
            *counter += 1;
        }
        names.push(name);
    }
    names
}

/// The output variable of an updated input: it stores the input's address.
struct Pointer {
    name: String,
    var_id: u64,
    /// Position in the program's tensors.
    updated: usize,
}

/// Pointers by the position of their output; their ids follow those of the tensors.
fn pointers(tensors: &[HbmTensor], names: &[String]) -> BTreeMap<u32, Pointer> {
    let mut pointers = BTreeMap::new();
    let taken: BTreeSet<&str> = names.iter().map(String::as_str).chain(["SB"]).collect();
    let mut var_id = tensors.len() as u64;
    for (updated, tensor) in tensors.iter().enumerate() {
        let HbmKind::Updated { input: _, output } = tensor.kind else { continue };
        var_id += 1;
        let mut name = format!("output{output}");
        while taken.contains(name.as_str()) {
            name.push('_');
        }
        pointers.insert(output, Pointer { name, var_id, updated });
    }
    pointers
}

fn build_info(name: &str) -> BuildInfo {
    let mut num_tpb_per_node = vec![0; 64];
    num_tpb_per_node[0] = 1;
    BuildInfo {
        tool_version: format!("neffuse-{}", env!("CARGO_PKG_VERSION")),
        kelp_version: "Dynamic".to_owned(),
        name: name.to_owned(),
        num_tpb: 1,
        num_tpb_requested: 1,
        num_tpb_per_node,
        ..BuildInfo::default()
    }
}

fn kelf(target: TargetName) -> Kelf {
    let graph = KelfGraph { definition: "sg00/def.json".to_owned(), name: "sg00".to_owned(), ..KelfGraph::default() };
    Kelf { graphs: vec![graph], version: "0.5".to_owned(), target: chip_name(target).to_owned(), ..Kelf::default() }
}

fn shape_of(tensor: &HbmTensor) -> Vec<i64> {
    tensor.shape.iter().map(|&dim| dim as i64).collect()
}

fn graph_file(tensors: &[HbmTensor], names: &[String], pointers: &BTreeMap<u32, Pointer>) -> GraphFile {
    type Row<'a> = (&'a str, &'a str, Vec<i64>);
    let listed = |position: fn(&HbmKind) -> Option<u32>| -> BTreeMap<u32, Row<'_>> {
        let found = tensors.iter().zip(names).filter_map(|(tensor, name)| {
            Some((position(&tensor.kind)?, (name.as_str(), element_name(tensor.dtype), shape_of(tensor))))
        });
        found.collect()
    };
    let (inputs, mut outputs) = (listed(HbmKind::input), listed(HbmKind::output));
    for (position, pointer) in pointers {
        if let Some((name, _, _)) = outputs.get_mut(position) {
            *name = &pointer.name;
        }
    }
    fn rows<'a>(found: &'a BTreeMap<u32, Row<'a>>) -> Vec<(&'a str, &'a str, &'a [i64])> {
        found.values().map(|(name, dtype, shape)| (*name, *dtype, shape.as_slice())).collect()
    }
    GraphFile::of_one_kelf(&rows(&inputs), &rows(&outputs), 1)
}

fn hlo_stats(image: &Image<'_>) -> HloStats {
    let once = |program: &Program| -> i64 {
        program.instructions.iter().map(|instruction| multiply_accumulates(&instruction.kind)).sum()
    };
    let macs: i64 = image.programs.iter().map(|(program, n_calls)| once(program) * *n_calls as i64).sum();
    let bytes = |wanted: fn(&HbmKind) -> bool| -> i64 {
        image.tensors.iter().filter(|tensor| wanted(&tensor.kind)).map(|tensor| tensor.size_bytes as i64).sum()
    };
    HloStats {
        aliased_output_size: Some(bytes(|kind| matches!(kind, HbmKind::Updated { .. }))),
        ..HloStats::of_graph(
            macs,
            bytes(|kind| kind.input().is_some()),
            bytes(|kind| kind.output().is_some()),
            bytes(|kind| matches!(kind, HbmKind::Constant(_))),
        )
    }
}

fn multiply_accumulates(kind: &InstructionKind) -> i64 {
    let InstructionKind::Matmul { stationary, moving, .. } = kind else { return 0 };
    i64::from(stationary.n_partitions) * stationary.n_elements() as i64 * moving.n_elements() as i64
}

fn metrics(tensors: &[HbmTensor]) -> Vec<Metric> {
    let hbm: u64 = tensors.iter().map(|tensor| tensor.size_bytes).sum();
    vec![
        Metric::new("TPBCount", 1, "Count"),
        Metric::new("EstimatedLowerBoundLatency", 0, "Milliseconds"),
        Metric::new("EstimatedUpperBoundThroughput", 0, "Count per Second"),
        Metric::new("InferentiaDRAMUsage", hbm, "Bytes"),
    ]
}

fn engine_file(stem: &str) -> EngineFile {
    EngineFile { name: format!("{stem}.json"), instr: format!("{stem}.bin"), ..EngineFile::default() }
}

fn constant_file(name: &str) -> String {
    format!("value_{name}.npy")
}

fn definition(image: &Image<'_>, names: &[String], pointers: &BTreeMap<u32, Pointer>) -> Definition {
    let mut definition = Definition::with_default_names();
    definition.var.insert("SB".to_owned(), Variable::unsized_of(VariableKind::StateBuffer, 0));
    for ((tensor, name), var_id) in image.tensors.iter().zip(names).zip(variable_ids(names.len())) {
        let var_id = u64::from(var_id);
        let variable = match &tensor.kind {
            HbmKind::Input(_) | HbmKind::Updated { .. } => {
                Variable::sized(VariableKind::Input, var_id, tensor.size_bytes)
            }
            HbmKind::Output(_) => Variable::sized(VariableKind::Output, var_id, tensor.size_bytes),
            HbmKind::Constant(_) => {
                Variable { alignment: None, ..Variable::file(var_id, tensor.size_bytes, constant_file(name)) }
            }
            HbmKind::Scratch => Variable::sized(VariableKind::TmpBuf, var_id, tensor.size_bytes),
        };
        definition.var.insert(name.clone(), variable);
    }
    for pointer in pointers.values() {
        let mut variable = Variable::unsized_of(VariableKind::Pointer, pointer.var_id);
        variable.referenced_var_id = Some(pointer.updated as u64 + 1);
        definition.var.insert(pointer.name.clone(), variable);
    }
    for (name, owner, semaphores) in queues(&image.programs) {
        let queue = Queue {
            dynamic_dma: None,
            fabric_path: Some("main".to_owned()),
            num_queues: Some(QUEUES_PER_SET),
            owner: Some(owner.name().to_owned()),
            pinned: None,
            queue_instances: None,
            semaphore: None,
            semaphore_set: Some(semaphores.into_iter().map(u64::from).collect()),
            kind: QueueKind::Dynamic,
            extra: neff::members::Extra::new(),
        };
        definition.dma_queue.insert(name, queue);
    }
    definition
}

/// The queue sets that the program uses: name, triggering engine, completion semaphores.
fn queues(programs: &[(&Program, u64)]) -> Vec<(String, Engine, BTreeSet<u16>)> {
    let mut used: BTreeMap<(DmaQueue, Engine), BTreeSet<u16>> = BTreeMap::new();
    for instruction in programs.iter().flat_map(|(program, _)| &program.instructions) {
        let InstructionKind::Dma { queue, .. } = &instruction.kind else { continue };
        let semaphores = used.entry((*queue, instruction.engine)).or_default();
        semaphores.extend(instruction.update.map(|update| update.semaphore));
    }
    let name = |queue: DmaQueue, engine: Engine| {
        let stem = match engine {
            Engine::Act => "Act",
            Engine::Pe | Engine::Dve | Engine::Pool | Engine::Sp => engine_file_stem(engine),
        };
        match queue {
            DmaQueue::Hardware => format!("q{stem}DynamicHW"),
            DmaQueue::HardwareTranspose => format!("q{stem}DynamicTransposeHW"),
            DmaQueue::Software => format!("q{stem}Dynamic"),
            DmaQueue::Ring => format!("q{stem}Ring"),
        }
    };
    used.into_iter().map(|((queue, engine), semaphores)| (name(queue, engine), engine, semaphores)).collect()
}

/// NumPy's type for the elements of a constant; 16-bit and 8-bit floats as unsigned patterns.
fn npy_type(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F64 => "<f8",
        Dtype::F32 => "<f4",
        Dtype::Bf16 => "<u2",
        Dtype::F16 => "<f2",
        Dtype::F8E4m3 | Dtype::F8E5m2 | Dtype::U8 => "|u1",
        Dtype::I64 => "<i8",
        Dtype::I32 => "<i4",
        Dtype::I16 => "<i2",
        Dtype::I8 => "|i1",
        Dtype::Bool => "|b1",
    }
}

/// Inputs and outputs with their position in the graph, their steps in elements where they are not
/// packed, and how large integers may be.
fn tensor_map(graph: &Graph, image: &Image<'_>, names: &[String], pointers: &BTreeMap<u32, Pointer>) -> TensorMap {
    let mut map = TensorMap::new();
    for (tensor, name) in image.tensors.iter().zip(names) {
        let dtype = element_name(tensor.dtype);
        let mut add = |name: &str, kind: TensorKind, position: u32, alias_of: Option<&String>| {
            let is_input = kind == TensorKind::Input;
            let strides = if is_input {
                &graph.inputs[position as usize].strides
            } else {
                &graph.outputs[position as usize].strides
            };
            let mut entry = TensorEntry::io(name, kind, dtype, &shape_of(tensor));
            entry.position = Some(position);
            entry.alias_of = alias_of.cloned();
            if is_input {
                entry.integer_bits = Some(image.integer_bits[position as usize]).filter(|&bits| bits < 32);
            }
            let packed: Vec<i64> = packed_strides(&tensor.shape).iter().map(|&step| step as i64).collect();
            if let Some(strides) = strides
                && strides.as_slice() != packed.as_slice()
            {
                entry.strides = Some(strides.to_vec());
            }
            map.insert(name.to_owned(), entry);
        };
        match tensor.kind {
            HbmKind::Input(position) => add(name, TensorKind::Input, position, None),
            HbmKind::Output(position) => add(name, TensorKind::Output, position, None),
            HbmKind::Updated { input, output } => {
                add(name, TensorKind::Input, input, None);
                add(&pointers[&output].name, TensorKind::Output, output, Some(name));
            }
            HbmKind::Constant(_) => {
                let file = constant_file(name);
                map.insert(name.clone(), TensorEntry::constant(name, dtype, &shape_of(tensor), &file));
            }
            HbmKind::Scratch => {}
        }
    }
    map
}

/// Source lines by record, as JSON.
pub(crate) fn line_table(program: &Program) -> Vec<u8> {
    to_compact_json(&DebugLines::of(program))
}

/// The same for a module whose streams have so many records: rows of kernels name the locations of their
/// first call, and each call says where its own start.
pub(crate) fn module_line_table(module: &Module, n_records: impl Fn(Engine) -> usize) -> Vec<u8> {
    to_compact_json(&DebugLines::of_module(module, n_records))
}
