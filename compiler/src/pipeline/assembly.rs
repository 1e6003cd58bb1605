//! Puts the kernels of functions together: the module's device memory, and what each call binds.

use std::collections::BTreeMap;
use std::sync::Arc;

use ir::graph::ValueDef;
use ir::program::{Call, HbmId, HbmKind, HbmTensor, Kernel, KernelPlace, Module};
use ir::target::TargetName;
use ir::{Dtype, Graph, Op, Program, ValueId};
use passes::outline::{GraphCall, Outline, Source, Target};

/// Stands for a tensor that is missing; the module's own check reports it.
const MISSING: HbmId = HbmId(u32::MAX >> 1);

/// Device memory that calls no longer need, by element type and size.
type Free = BTreeMap<(Dtype, u64), Vec<HbmId>>;

/// A module in the making.
pub(super) struct Assembly<'a> {
    graph: &'a Graph,
    outline: &'a Outline,
    module: Module,
    inputs: BTreeMap<u32, HbmId>,
    outputs: BTreeMap<u32, HbmId>,
    /// By value between calls: where it is kept.
    slots: Vec<Option<HbmId>>,
    weights: BTreeMap<ValueId, HbmId>,
    constants: BTreeMap<(Dtype, Arc<[u8]>), HbmId>,
}

impl<'a> Assembly<'a> {
    pub fn new(graph: &'a Graph, outline: &'a Outline, target: TargetName) -> Assembly<'a> {
        let (tensors, kernels, calls) = (Vec::new(), Vec::new(), Vec::new());
        Assembly {
            graph,
            outline,
            module: Module { name: graph.name.replace('\0', ""), target, tensors, kernels, calls },
            inputs: BTreeMap::new(),
            outputs: BTreeMap::new(),
            slots: vec![None; outline.between.len()],
            weights: BTreeMap::new(),
            constants: BTreeMap::new(),
        }
    }

    /// The module of the functions' programs, in order.
    pub fn module(mut self, programs: &[Program]) -> Module {
        self.declare_interface(programs);
        for (number, program) in programs.iter().enumerate() {
            let kernel = self.kernel(number, program);
            self.module.kernels.push(kernel);
        }
        let ending_at = ending_at(self.outline);
        let mut free = Free::new();
        for (call, ending) in self.outline.calls.iter().zip(&ending_at) {
            let bindings = self.bindings(call, &programs[call.function], &mut free);
            self.module.calls.push(Call { kernel: call.function, bindings, locations: call.locations.clone() });
            // What this call was the last to read may be overwritten by the next.
            for slot in ending.iter().filter_map(|&value| self.slots[value]) {
                let HbmTensor { dtype, size_bytes, .. } = self.module.tensors[slot.index()];
                free.entry((dtype, size_bytes)).or_default().push(slot);
            }
        }
        self.module
    }

    fn push(&mut self, tensor: HbmTensor) -> HbmId {
        self.module.tensors.push(tensor);
        HbmId(self.module.tensors.len() as u32 - 1)
    }

    /// Inputs and outputs of the graph, in its order.
    fn declare_interface(&mut self, programs: &[Program]) {
        let mut inputs: BTreeMap<u32, &HbmTensor> = BTreeMap::new();
        let mut outputs: BTreeMap<u32, &HbmTensor> = BTreeMap::new();
        let mut updated: BTreeMap<u32, u32> = BTreeMap::new();
        for call in &self.outline.calls {
            for tensor in &programs[call.function].tensors {
                let source = tensor.kind.input().map(|position| call.inputs[position as usize]);
                let target = tensor.kind.output().map(|position| call.outputs[position as usize]);
                match (source, target) {
                    (Some(Source::Input(input)), Some(Target::Output(output))) => {
                        updated.insert(input, output);
                        inputs.insert(input, tensor);
                    }
                    (Some(Source::Input(input)), _) => _ = inputs.entry(input).or_insert(tensor),
                    (None, Some(Target::Output(output))) => _ = outputs.insert(output, tensor),
                    (Some(Source::Output(_) | Source::Between(_) | Source::Constant(_)) | None, _) => {}
                }
            }
        }
        for (input, tensor) in inputs {
            let name = self.graph.inputs[input as usize].name.replace('\0', "");
            let output = updated.get(&input).copied();
            let kind = output.map_or(HbmKind::Input(input), |output| HbmKind::Updated { input, output });
            let id = self.push(HbmTensor { name, kind, ..tensor.clone() });
            self.inputs.insert(input, id);
            self.outputs.extend(output.map(|output| (output, id)));
        }
        for (output, tensor) in outputs {
            let (name, kind) = (format!("output{output}"), HbmKind::Output(output));
            let id = self.push(HbmTensor { name, kind, ..tensor.clone() });
            self.outputs.insert(output, id);
        }
    }

    /// A kernel whose inputs and outputs are bound and whose other tensors are the module's.
    fn kernel(&mut self, number: usize, program: &Program) -> Kernel {
        let mut n_bound = 0;
        let mut places = Vec::with_capacity(program.tensors.len());
        for tensor in &program.tensors {
            places.push(match &tensor.kind {
                HbmKind::Input(_) | HbmKind::Output(_) | HbmKind::Updated { .. } => {
                    n_bound += 1;
                    KernelPlace::Bound(n_bound - 1)
                }
                HbmKind::Constant(content) => KernelPlace::Fixed(self.constant(tensor, content)),
                HbmKind::Scratch => {
                    let name = format!("kernel{number}.{}", tensor.name);
                    KernelPlace::Fixed(self.push(HbmTensor { name, ..tensor.clone() }))
                }
            });
        }
        Kernel { program: program.clone(), places }
    }

    /// Equal constants of kernels are one.
    fn constant(&mut self, tensor: &HbmTensor, content: &Arc<[u8]>) -> HbmId {
        let key = (tensor.dtype, content.clone());
        if let Some(&known) = self.constants.get(&key) {
            return known;
        }
        let id = self.push(tensor.clone());
        self.constants.insert(key, id);
        id
    }

    /// What a call applies its kernel to, in the order of the kernel's bound tensors.
    fn bindings(&mut self, call: &GraphCall, program: &Program, free: &mut Free) -> Vec<HbmId> {
        let mut bindings = Vec::with_capacity(program.tensors.len());
        for tensor in &program.tensors {
            match (tensor.kind.input(), tensor.kind.output()) {
                (Some(input), _) => bindings.push(self.source(call.inputs[input as usize], tensor)),
                (None, Some(output)) => bindings.push(self.target(call.outputs[output as usize], tensor, free)),
                (None, None) => {}
            }
        }
        bindings
    }

    fn source(&mut self, source: Source, tensor: &HbmTensor) -> HbmId {
        match source {
            Source::Input(position) => self.inputs.get(&position).copied().unwrap_or(MISSING),
            Source::Output(position) => self.outputs.get(&position).copied().unwrap_or(MISSING),
            Source::Between(value) => self.slots[value as usize].unwrap_or(MISSING),
            Source::Constant(value) => self.weight(value, tensor).unwrap_or(MISSING),
        }
    }

    fn target(&mut self, target: Target, tensor: &HbmTensor, free: &mut Free) -> HbmId {
        match target {
            Target::Output(position) => self.outputs.get(&position).copied().unwrap_or(MISSING),
            Target::Between(value) => {
                let reused = free.get_mut(&(tensor.dtype, tensor.size_bytes)).and_then(Vec::pop);
                let slot = reused.unwrap_or_else(|| {
                    let name = format!("between{value}");
                    self.push(HbmTensor { name, kind: HbmKind::Scratch, ..tensor.clone() })
                });
                self.slots[value as usize] = Some(slot);
                slot
            }
        }
    }

    /// A large constant of the graph, stored in the NEFF.
    fn weight(&mut self, value: ValueId, tensor: &HbmTensor) -> Option<HbmId> {
        if let Some(&known) = self.weights.get(&value) {
            return Some(known);
        }
        let ValueDef::Result { node, index: _ } = self.graph.def(value) else { return None };
        let Op::Constant(constant) = &self.graph.node(node).op else { return None };
        let (name, kind) = (format!("constant{}", value.0), HbmKind::Constant(constant.data.clone()));
        let id = self.push(HbmTensor { name, kind, ..tensor.clone() });
        self.weights.insert(value, id);
        Some(id)
    }
}

/// By call: the values between calls that no later one reads.
fn ending_at(outline: &Outline) -> Vec<Vec<usize>> {
    let mut last: Vec<Option<usize>> = vec![None; outline.between.len()];
    for (number, call) in outline.calls.iter().enumerate() {
        for target in &call.outputs {
            if let Target::Between(value) = *target {
                last[value as usize] = Some(number);
            }
        }
        for source in &call.inputs {
            if let Source::Between(value) = *source {
                last[value as usize] = Some(number);
            }
        }
    }
    let mut ending_at = vec![Vec::new(); outline.calls.len()];
    for (value, call) in last.into_iter().enumerate() {
        if let Some(call) = call {
            ending_at[call].push(value);
        }
    }
    ending_at
}
