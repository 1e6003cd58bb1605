//! Kernels and calls of them, as the streams of a file hold them.
//!
//! A stream that calls begins with waits, updates and calls up to its `return`; its part of each kernel
//! follows, up to a `return` of its own. Every stream makes the same calls. What a kernel touches in device
//! memory is named by places after the binding register, which each call sets, or by variable ids, which
//! are the same in all calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use ir::Dtype;
use ir::program::{DmaPlace, Engine, HbmId, HbmKind, HbmTensor, Instruction, InstructionKind};
use ir::target::TargetName;
use ir::types::Shape;

use crate::error::{LoadError, RunError};
use crate::finding::Site;
use crate::machine::{DeviceMemory, InstructionId, Machine, Parts};
use crate::values::memory::BufferPlace;

/// Calls and what they apply.
pub(crate) struct Applied {
    pub kernels: Vec<KernelMachine>,
    pub calls: Vec<CallSite>,
    /// Tensors of the machine that calls bind.
    bindings: Vec<usize>,
    /// By call: what the model lines of its kernel are there.
    lines: Vec<BTreeMap<Arc<str>, Arc<str>>>,
}

/// A kernel: a machine whose tensors stand for others in each call.
pub(crate) struct KernelMachine {
    pub machine: Machine,
    /// One per tensor of the machine.
    pub tensors: Vec<KernelTensor>,
}

/// What a kernel does with one of its tensors.
#[derive(Copy, Clone, Debug)]
pub(crate) struct KernelTensor {
    pub source: TensorSource,
    pub reads: bool,
    pub writes: bool,
}

/// What a tensor of a kernel stands for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TensorSource {
    /// Place after the binding register.
    Bound(usize),
    /// A tensor of the machine that calls.
    Fixed(usize),
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallSite {
    pub kernel: usize,
    /// Where its bindings start.
    pub bindings: usize,
}

/// True for instructions that only streams with calls have.
pub(crate) fn belongs_to_calls(instruction: &Instruction) -> bool {
    matches!(
        instruction.kind,
        InstructionKind::Call { .. } | InstructionKind::Return | InstructionKind::ClearSemaphores { .. }
    )
}

fn mismatch(message: String) -> LoadError {
    LoadError::Inconsistent(message)
}

impl Applied {
    /// Takes the kernels out of the streams, which keep what calls them.
    pub fn split(
        target: TargetName,
        streams: &mut [Vec<Instruction>; Engine::ALL.len()],
        tensors: &[HbmTensor],
        device: &DeviceMemory,
        bindings: Vec<usize>,
    ) -> Result<Applied, LoadError> {
        let mut parts: Vec<KernelParts> = Vec::new();
        let mut calls: Option<Vec<CallSite>> = None;
        for engine in Engine::ALL {
            let stream = &mut streams[engine as usize];
            if stream.is_empty() {
                continue;
            }
            let entries = cut(engine, stream, &mut parts, calls.is_none())?;
            let own = calls_of(engine, stream, &entries)?;
            if calls.get_or_insert_with(|| own.clone()) != &own {
                return Err(mismatch(format!("{} makes other calls than the engines before it", engine.name())));
            }
        }
        let calls = calls.unwrap_or_default();
        let mut applied = Applied { kernels: Vec::new(), lines: vec![BTreeMap::new(); calls.len()], calls, bindings };
        for (number, parts) in parts.into_iter().enumerate() {
            let kernel = applied.kernel(target, number, parts, tensors, device)?;
            applied.kernels.push(kernel);
        }
        Ok(applied)
    }

    /// The tensor that a kernel's stands for in a call.
    pub fn tensor(&self, call: &CallSite, source: TensorSource) -> usize {
        match source {
            TensorSource::Bound(place) => self.bindings[call.bindings + place],
            TensorSource::Fixed(tensor) => tensor,
        }
    }

    /// Tensors that some call reads.
    pub fn read_tensors(&self) -> impl Iterator<Item = usize> {
        self.calls.iter().flat_map(|call| {
            let read = self.kernels[call.kernel].tensors.iter().filter(|tensor| tensor.reads);
            read.map(|tensor| self.tensor(call, tensor.source))
        })
    }

    /// Names model lines; those of kernels by the records of their streams.
    pub fn set_sources(&mut self, sources: Vec<(InstructionId, Vec<Arc<str>>)>) {
        for kernel in &mut self.kernels {
            let own: Vec<_> = sources.iter().filter(|(id, _)| kernel.machine.holds(*id)).cloned().collect();
            kernel.machine.set_sources(own);
        }
    }

    pub fn set_call_lines(&mut self, call: usize, lines: BTreeMap<Arc<str>, Arc<str>>) {
        if let Some(known) = self.lines.get_mut(call) {
            *known = lines;
        }
    }

    /// A place of a kernel in one call.
    pub fn site_in_call(&self, call: usize, site: Site) -> Site {
        let lines = &self.lines[call];
        let line = |line: String| lines.get(line.as_str()).map_or(line, ToString::to_string);
        Site { sources: site.sources.into_iter().map(line).collect(), ..site }
    }

    pub fn in_call(&self, call: usize, error: RunError) -> RunError {
        match error {
            RunError::IndexOutOfRange { site, row, index, n_rows } => {
                RunError::IndexOutOfRange { site: self.site_in_call(call, site), row, index, n_rows }
            }
            other => other,
        }
    }

    fn kernel(
        &self,
        target: TargetName,
        number: usize,
        parts: KernelParts,
        tensors: &[HbmTensor],
        device: &DeviceMemory,
    ) -> Result<KernelMachine, LoadError> {
        let mut named = Named::default();
        let mut instructions = parts.instructions;
        for instruction in &mut instructions {
            if let InstructionKind::Dma { dst, src, queue: _, gather: _ } = &mut instruction.kind {
                for (side, writes) in [(dst, true), (src, false)] {
                    if let DmaPlace::Hbm { tensor } = &mut side.place {
                        *tensor = named.note(*tensor, writes);
                    }
                }
            }
        }
        let mut memory = DeviceMemory::default();
        let mut described = Vec::with_capacity(named.tensors.len());
        let mut buffers: BTreeMap<usize, usize> = BTreeMap::new();
        for tensor in &named.tensors {
            let stands_for = self.example(number, tensor.source, tensors)?;
            let place = device.places.get(stands_for.unwrap_or(usize::MAX)).copied();
            let (buffer, start_byte) = match (tensor.source, place) {
                (TensorSource::Fixed(_), Some(BufferPlace { buffer, start_byte })) => {
                    let own = *buffers.entry(buffer).or_insert_with(|| {
                        memory.buffer_bytes.push(device.buffer_bytes[buffer]);
                        memory.buffer_bytes.len() - 1
                    });
                    (own, start_byte)
                }
                (TensorSource::Bound(_) | TensorSource::Fixed(_), _) => {
                    let size_bytes = stands_for.map_or(0, |tensor| tensors[tensor].size_bytes);
                    memory.buffer_bytes.push(size_bytes);
                    (memory.buffer_bytes.len() - 1, 0)
                }
            };
            memory.places.push(BufferPlace { buffer, start_byte });
            let empty = || HbmTensor {
                name: "unbound".to_owned(),
                kind: HbmKind::Scratch,
                dtype: Dtype::U8,
                shape: Shape::from_slice(&[0]),
                size_bytes: 0,
            };
            // Whether it holds data when a call begins is for the check of calls to say.
            let kind = HbmKind::Scratch;
            described.push(stands_for.map_or_else(empty, |tensor| HbmTensor { kind, ..tensors[tensor].clone() }));
        }
        let machine = Machine::from_parts(Parts {
            content: None,
            target,
            instructions,
            applied: None,
            strides: vec![None; described.len()],
            tensors: described,
            device: memory,
            inputs: Vec::new(),
            outputs: Vec::new(),
        });
        Ok(KernelMachine { machine: machine.starting_at(parts.first_positions), tensors: named.tensors })
    }

    /// What a tensor of a kernel stands for in its first call. In the others it must be as large.
    fn example(&self, kernel: usize, source: TensorSource, tensors: &[HbmTensor]) -> Result<Option<usize>, LoadError> {
        let place = match source {
            TensorSource::Fixed(tensor) => return Ok(Some(tensor)),
            TensorSource::Bound(place) => place,
        };
        let mut example: Option<usize> = None;
        for call in self.calls.iter().filter(|call| call.kernel == kernel) {
            let bound = call.bindings.checked_add(place).and_then(|at| self.bindings.get(at)).copied();
            let Some(bound) = bound else {
                return Err(mismatch(format!("a call of kernel {kernel} binds nothing to place {place}")));
            };
            let first = *example.get_or_insert(bound);
            if tensors[first].size_bytes != tensors[bound].size_bytes {
                let (name, other) = (&tensors[first].name, &tensors[bound].name);
                return Err(mismatch(format!(
                    "kernel {kernel} is applied to `{name}` and to `{other}` of another size"
                )));
            }
        }
        Ok(example)
    }
}

/// A kernel's records.
#[derive(Default)]
struct KernelParts {
    instructions: Vec<Instruction>,
    first_positions: [u32; Engine::ALL.len()],
}

/// Takes the parts of kernels out of a stream and gives the record that each begins at.
fn cut(
    engine: Engine,
    stream: &mut Vec<Instruction>,
    parts: &mut Vec<KernelParts>,
    is_first: bool,
) -> Result<Vec<u32>, LoadError> {
    let is_return = |instruction: &Instruction| instruction.kind == InstructionKind::Return;
    let end = stream.iter().position(is_return);
    let end = end.ok_or_else(|| mismatch(format!("the calls of {} do not end", engine.name())))?;
    let kernels = stream.split_off(end + 1);
    let mut entries = Vec::new();
    let mut at = stream.len();
    let mut number = 0;
    let mut part: Vec<Instruction> = Vec::new();
    for instruction in kernels {
        if !is_return(&instruction) {
            if belongs_to_calls(&instruction) {
                return Err(mismatch(format!("a kernel of {} makes calls of its own", engine.name())));
            }
            part.push(instruction);
            continue;
        }
        if parts.len() == number {
            if !is_first {
                return Err(mismatch(format!("{} has more kernels than the engines before it", engine.name())));
            }
            parts.push(KernelParts::default());
        }
        entries.push(at as u32);
        parts[number].first_positions[engine as usize] = at as u32;
        at += part.len() + 1;
        parts[number].instructions.append(&mut part);
        number += 1;
    }
    if !part.is_empty() || number != parts.len() {
        return Err(mismatch(format!("the kernels of {} are not those of the other engines", engine.name())));
    }
    Ok(entries)
}

/// The calls of a stream without its kernels.
fn calls_of(engine: Engine, stream: &[Instruction], entries: &[u32]) -> Result<Vec<CallSite>, LoadError> {
    let mut calls = Vec::new();
    for (position, instruction) in stream.iter().enumerate() {
        match instruction.kind {
            InstructionKind::Call { entry, bindings } => {
                let kernel = entries.binary_search(&entry).map_err(|_| {
                    let engine = engine.name();
                    mismatch(format!("{engine}[{position}] calls record {entry}, where no kernel begins"))
                })?;
                calls.push(CallSite { kernel, bindings: bindings as usize });
            }
            _ if instruction.is_control() => {}
            _ => {
                let (engine, name) = (engine.name(), instruction.kind.name());
                return Err(mismatch(format!("{engine}[{position}], `{name}`, stands between calls")));
            }
        }
    }
    Ok(calls)
}

/// The tensors that a kernel's records name.
#[derive(Default)]
struct Named {
    ids: BTreeMap<TensorSource, usize>,
    tensors: Vec<KernelTensor>,
}

impl Named {
    /// The kernel's own id of a tensor that it reads or writes.
    fn note(&mut self, tensor: HbmId, writes: bool) -> HbmId {
        let source = match tensor.bound_place() {
            Some(place) => TensorSource::Bound(place as usize),
            None => TensorSource::Fixed(tensor.index()),
        };
        let next = self.tensors.len();
        let id = *self.ids.entry(source).or_insert(next);
        if id == next {
            self.tensors.push(KernelTensor { source, reads: false, writes: false });
        }
        let known = &mut self.tensors[id];
        (known.reads, known.writes) = (known.reads || !writes, known.writes || writes);
        HbmId(id as u32)
    }
}
