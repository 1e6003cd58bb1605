//! One loaded program and its execution.

use std::fmt;
use std::sync::{Arc, OnceLock};

use ir::program::rules::{self, Rule};
use ir::program::{DmaPlace, Engine, HbmKind, HbmTensor, Instruction, PSUM_TILE, Program, Tile, memory_tiles};
use ir::target::{Target, TargetName};
use ir::types::{Dtype, Shape, packed_strides};
use neff::container::Container;

use crate::applied::{self, Applied, KernelTensor};
use crate::error::{LoadError, RunError};
use crate::finding::{Finding, FindingKind, Findings, Site};
use crate::sound::Content;
use crate::timeline::{Schedule, Timeline};
use crate::values::memory::{BufferPlace, Memory};
use crate::values::{Executor, TransferError};

/// An instruction of a loaded program: its engine and its position in that engine's stream.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstructionId {
    pub engine: Engine,
    pub position: u32,
}

impl fmt::Display for InstructionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}[{}]", self.engine.name(), self.position)
    }
}

/// An input or output of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Shape,
    /// Steps in elements, outermost first; `None` for a packed tensor.
    pub strides: Option<Vec<i64>>,
    /// Size of the buffer, which strides may make larger than the packed tensor.
    pub size_bytes: u64,
}

/// A tensor's content: its buffer, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorBytes {
    pub dtype: Dtype,
    pub shape: Shape,
    pub bytes: Vec<u8>,
}

/// What a run gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs {
    /// By position in the program's outputs; `None` where the program has no such output.
    pub tensors: Vec<Option<TensorBytes>>,
    /// Activation inputs without a valid result, whose results are NaN; empty unless asked for by
    /// [`Machine::run_lenient`].
    pub findings: Findings,
}

/// Device memory of a program: buffers, and the tensors that lie in them.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceMemory {
    pub buffer_bytes: Vec<u64>,
    /// One per tensor.
    pub places: Vec<BufferPlace>,
}

/// One loaded program.
pub struct Machine {
    content: Option<Content>,
    pub(crate) target: &'static Target,
    /// Engine by engine, each in stream order.
    pub(crate) instructions: Vec<Instruction>,
    /// First instruction of each engine, and the end.
    stream_starts: [usize; Engine::ALL.len() + 1],
    /// SBUF, PSUM.
    pub(crate) tiles: Vec<Tile>,
    pub(crate) tensors: Vec<HbmTensor>,
    strides: Vec<Option<Vec<i64>>>,
    pub(crate) device: DeviceMemory,
    inputs: Vec<Option<usize>>,
    outputs: Vec<Option<usize>>,
    /// Kernels and calls of them; the instructions above are then those that call.
    pub(crate) applied: Option<Box<Applied>>,
    /// Where each engine's instructions begin in its stream of the file.
    first_positions: [u32; Engine::ALL.len()],
    /// Model lines of each instruction; empty where unknown.
    sources: Vec<Vec<Arc<str>>>,
    broken_rules: OnceLock<Findings>,
    schedule: OnceLock<Result<Schedule, Box<Finding>>>,
    /// Bytes of each partition of SBUF and PSUM.
    touched_bytes: OnceLock<[usize; 2]>,
}

/// More inputs or outputs than any graph has.
pub(crate) const MOST_TENSORS: usize = 1 << 16;

/// Model lines that a finding names for one instruction.
const MOST_SITE_SOURCES: usize = 8;

/// The parts of a machine before it is put together.
pub(crate) struct Parts {
    /// All bytes that the program was read from; `None` where it comes from no file.
    pub content: Option<Content>,
    pub target: TargetName,
    /// In the absolute form, in any order that keeps each engine's.
    pub instructions: Vec<Instruction>,
    pub applied: Option<Applied>,
    pub tensors: Vec<HbmTensor>,
    /// One per tensor; `None` for packed ones.
    pub strides: Vec<Option<Vec<i64>>>,
    pub device: DeviceMemory,
    /// Tensors by position of input and output.
    pub inputs: Vec<Option<usize>>,
    pub outputs: Vec<Option<usize>>,
}

impl Machine {
    /// Loads a NEFF. Reads `def.json`, `neff.json`, engine streams, constants and `tensor_map.json`,
    /// and no other member.
    ///
    /// # Errors
    /// A damaged container, another encoding, or members that do not fit together.
    pub fn load(neff: &[u8]) -> Result<Machine, LoadError> {
        Machine::of_container(&neff::container::read(neff).map_err(|failure| failure.error)?)
    }

    /// Loads a NEFF whose container has been read.
    ///
    /// # Errors
    /// As [`Machine::load`].
    pub fn of_container(container: &Container) -> Result<Machine, LoadError> {
        crate::load::read(container).map(Machine::from_parts)
    }

    /// A synchronized program without a file around it, for tests and studies of timing.
    ///
    /// # Errors
    /// A tile without an address, or a position that no graph has.
    pub fn from_program(program: &Program) -> Result<Machine, LoadError> {
        if program.instructions.iter().any(applied::belongs_to_calls) {
            return Err(LoadError::Inconsistent("calls need a file with bindings".to_owned()));
        }
        let absolute = program.to_absolute()?;
        let taken = absolute.tensors.iter().flat_map(|tensor| [tensor.kind.input(), tensor.kind.output()]);
        if let Some(position) = taken.flatten().find(|&position| position as usize >= MOST_TENSORS) {
            return Err(LoadError::Inconsistent(format!("position {position} of an input or output is too large")));
        }
        let device = DeviceMemory {
            buffer_bytes: absolute.tensors.iter().map(|tensor| tensor.size_bytes).collect(),
            places: (0..absolute.tensors.len()).map(|buffer| BufferPlace { buffer, start_byte: 0 }).collect(),
        };
        let positions = |position_of: fn(&HbmKind) -> Option<u32>| {
            let mut slots = Vec::new();
            for (index, tensor) in absolute.tensors.iter().enumerate() {
                let Some(position) = position_of(&tensor.kind) else { continue };
                if slots.len() <= position as usize {
                    slots.resize(position as usize + 1, None);
                }
                slots[position as usize] = Some(index);
            }
            slots
        };
        let inputs = positions(HbmKind::input);
        let outputs = positions(HbmKind::output);
        let lines: Vec<Arc<str>> = program.locations.iter().map(|location| source_text(location).into()).collect();
        let mut machine = Machine::from_parts(Parts {
            content: None,
            target: absolute.target,
            instructions: absolute.instructions,
            applied: None,
            strides: vec![None; absolute.tensors.len()],
            tensors: absolute.tensors,
            device,
            inputs,
            outputs,
        });
        machine.sources = machine
            .instructions
            .iter()
            .map(|instruction| {
                instruction.locations.iter().filter_map(|location| lines.get(location.index()).cloned()).collect()
            })
            .collect();
        Ok(machine)
    }

    pub(crate) fn from_parts(parts: Parts) -> Machine {
        let target = parts.target.target();
        let mut instructions = parts.instructions;
        instructions.sort_by_key(|instruction| instruction.engine as usize);
        let mut stream_starts = [instructions.len(); Engine::ALL.len() + 1];
        for engine in Engine::ALL {
            stream_starts[engine as usize] =
                instructions.partition_point(|instruction| (instruction.engine as usize) < engine as usize);
        }
        Machine {
            content: parts.content,
            target,
            instructions,
            stream_starts,
            tiles: memory_tiles(target),
            tensors: parts.tensors,
            strides: parts.strides,
            device: parts.device,
            inputs: parts.inputs,
            outputs: parts.outputs,
            applied: parts.applied.map(Box::new),
            first_positions: [0; Engine::ALL.len()],
            sources: Vec::new(),
            broken_rules: OnceLock::new(),
            schedule: OnceLock::new(),
            touched_bytes: OnceLock::new(),
        }
    }

    /// The chip that the program is for.
    pub fn target(&self) -> TargetName {
        self.target.name
    }

    /// Inputs by position; `None` where the program has no such input.
    pub fn inputs(&self) -> Vec<Option<TensorInfo>> {
        self.inputs.iter().map(|slot| slot.map(|tensor| self.info(tensor))).collect()
    }

    /// Outputs by position; `None` where the program has no such output.
    pub fn outputs(&self) -> Vec<Option<TensorInfo>> {
        self.outputs.iter().map(|slot| slot.map(|tensor| self.info(tensor))).collect()
    }

    /// The machine whose records begin at these positions of the file's streams.
    pub(crate) fn starting_at(self, first_positions: [u32; Engine::ALL.len()]) -> Machine {
        Machine { first_positions, ..self }
    }

    /// One engine's stream; without its part of kernels, where there are calls.
    pub fn stream(&self, engine: Engine) -> &[Instruction] {
        &self.instructions[self.stream_range(engine)]
    }

    /// Names the model lines behind instructions, for findings. Neither values nor times depend on
    /// them.
    pub fn set_sources(&mut self, sources: impl IntoIterator<Item = (InstructionId, Vec<Arc<str>>)>) {
        // Findings kept so far name the old lines.
        (self.broken_rules, self.schedule) = (OnceLock::new(), OnceLock::new());
        self.sources.resize(self.instructions.len(), Vec::new());
        if let Some(applied) = &mut self.applied {
            applied.set_sources(sources.into_iter().collect());
            return;
        }
        for (id, lines) in sources {
            if self.holds(id) {
                let flat = self.flat(id);
                self.sources[flat] = lines;
            }
        }
    }

    /// Names the model lines of one call: what `lines` makes of those that the kernel's records have.
    pub fn set_call_sources(&mut self, call: usize, lines: impl IntoIterator<Item = (Arc<str>, Arc<str>)>) {
        if let Some(applied) = &mut self.applied {
            applied.set_call_lines(call, lines.into_iter().collect());
        }
    }

    /// True for instructions of this machine's own streams.
    pub(crate) fn holds(&self, id: InstructionId) -> bool {
        let first = self.first_positions[id.engine as usize];
        id.position >= first && ((id.position - first) as usize) < self.stream(id.engine).len()
    }

    /// The kernels that calls apply, in the order of their place in the streams.
    pub fn kernels(&self) -> impl Iterator<Item = &Machine> {
        self.applied.iter().flat_map(|applied| applied.kernels.iter().map(|kernel| &kernel.machine))
    }

    /// Kernel of each call, in order; empty where the program is one kernel.
    pub fn calls(&self) -> Vec<usize> {
        self.applied.iter().flat_map(|applied| applied.calls.iter().map(|call| call.kernel)).collect()
    }

    /// Runs the program. `inputs` are buffers by position; an input that no instruction reads may
    /// be left out.
    ///
    /// # Errors
    /// Inputs that do not fit, a gather's index outside its table, an input of an activation function
    /// for which the chip has no valid result, or a program that breaks operand rules or never ends.
    /// Races do not stop a run; [`Machine::check`] finds them.
    pub fn run(&self, inputs: &[Option<&[u8]>]) -> Result<Outputs, RunError> {
        let outputs = self.run_lenient(inputs)?;
        if outputs.findings.is_empty() { Ok(outputs) } else { Err(RunError::OutOfRange(outputs.findings)) }
    }

    /// Runs the program as [`Machine::run`], but gives NaN where an activation function has no valid
    /// result, and tells where.
    ///
    /// # Errors
    /// As [`Machine::run`], but for inputs of activation functions.
    pub fn run_lenient(&self, inputs: &[Option<&[u8]>]) -> Result<Outputs, RunError> {
        let broken = self.rule_findings();
        if !broken.is_empty() {
            return Err(RunError::Illegal(broken.clone()));
        }
        if let Some(applied) = &self.applied {
            return self.run_calls(applied, inputs);
        }
        let schedule = self.schedule().map_err(|finding| RunError::Deadlock(Box::new(finding.clone())))?;
        let memory = self.memory(inputs)?;
        let mut executor = Executor::new(self.target, memory);
        self.execute(schedule, &mut executor)?;
        let mut findings = Findings::default();
        for bad in &executor.out_of_range {
            findings.push(out_of_range(bad, self.site(self.flat(bad.instruction))));
        }
        Ok(Outputs { tensors: self.take_outputs(executor.memory), findings })
    }

    /// Executes all instructions in the order of a schedule.
    fn execute(&self, schedule: &Schedule, executor: &mut Executor) -> Result<(), RunError> {
        for &flat in &schedule.order {
            let id = self.id(flat);
            executor.execute(id, &self.instructions[flat]).map_err(|error| match error {
                TransferError::Index { row, index, n_rows } => {
                    RunError::IndexOutOfRange { site: self.site(flat), row, index, n_rows }
                }
                TransferError::Memory { bytes } => RunError::OutOfMemory { bytes },
            })?;
        }
        Ok(())
    }

    /// Runs the kernels call by call, each on what the call binds.
    fn run_calls(&self, applied: &Applied, inputs: &[Option<&[u8]>]) -> Result<Outputs, RunError> {
        // That calls end at all depends on what is between them, too.
        if let Err(finding) = crate::timeline::call_times(self, applied, self.target) {
            return Err(RunError::Deadlock(Box::new(finding)));
        }
        let memory = self.memory(inputs)?;
        let mut executor = Executor::new(self.target, memory);
        let mut findings = Findings::default();
        for (number, call) in applied.calls.iter().enumerate() {
            let kernel = &applied.kernels[call.kernel];
            let machine = &kernel.machine;
            let place = |tensor: &KernelTensor| self.device.places[applied.tensor(call, tensor.source)];
            executor.memory.places = kernel.tensors.iter().map(place).collect();
            let schedule = machine.schedule().map_err(|finding| RunError::Deadlock(Box::new(finding.clone())))?;
            machine.execute(schedule, &mut executor).map_err(|error| applied.in_call(number, error))?;
            for bad in executor.out_of_range.drain(..) {
                let site = machine.site(machine.flat(bad.instruction));
                findings.push(out_of_range(&bad, applied.site_in_call(number, site)));
            }
        }
        Ok(Outputs { tensors: self.take_outputs(executor.memory), findings })
    }

    /// Bytes of all device variables.
    pub fn device_bytes(&self) -> u64 {
        self.device.buffer_bytes.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }

    /// Predicts the program's time. Times do not depend on data.
    ///
    /// # Errors
    /// The first broken operand rule, or why streams wait for ever.
    pub fn timeline(&self) -> Result<Timeline, Finding> {
        if let Some(broken) = self.rule_findings().findings.first() {
            return Err(broken.clone());
        }
        if let Some(applied) = &self.applied {
            return crate::timeline::of_calls(self, applied, self.target);
        }
        match self.schedule() {
            Ok(schedule) => Ok(crate::timeline::summarise(self, self.target, schedule)),
            Err(finding) => Err(finding.clone()),
        }
    }

    /// Instructions of all streams.
    pub fn n_instructions(&self) -> usize {
        self.instructions.len() + self.kernels().map(|kernel| kernel.instructions.len()).sum::<usize>()
    }

    /// Predicts the program's time on a chip with other numbers, for studies of timing.
    ///
    /// # Errors
    /// Why streams wait for ever. Operand rules are not looked at.
    pub fn timeline_on(&self, target: &Target) -> Result<Timeline, Finding> {
        if let Some(applied) = &self.applied {
            return crate::timeline::of_calls(self, applied, target);
        }
        let schedule = crate::timeline::simulate(self, target)?;
        Ok(crate::timeline::summarise(self, target, &schedule))
    }

    /// Checks operand rules, order, initialisation and semaphores. A file in which this process has
    /// found nothing wrong is not looked at again.
    pub fn check(&self) -> Findings {
        if self.content.is_some_and(Content::is_known_sound) {
            return Findings::default();
        }
        let findings = match &self.applied {
            Some(applied) => crate::check::check_calls(self, applied),
            None => crate::check::check(self),
        };
        if let Some(content) = self.content.filter(|_| findings.is_empty()) {
            content.note_sound();
        }
        findings
    }

    /// When everything runs. Operands have passed the operand rules.
    pub(crate) fn schedule(&self) -> Result<&Schedule, &Finding> {
        self.schedule
            .get_or_init(|| crate::timeline::simulate(self, self.target).map_err(Box::new))
            .as_ref()
            .map_err(|finding| &**finding)
    }

    /// Operand rules that instructions break.
    pub(crate) fn rule_findings(&self) -> &Findings {
        self.broken_rules.get_or_init(|| {
            let mut findings = Findings::default();
            for (flat, instruction) in self.instructions.iter().enumerate() {
                for violation in rules::check_instruction(self.target, instruction, &self.tiles, &self.tensors) {
                    findings.push(self.rule_finding(flat, violation));
                }
            }
            self.kernels().for_each(|kernel| findings.extend(kernel.rule_findings().clone()));
            findings
        })
    }

    /// Keeps what another pass over the operand rules has found.
    pub(crate) fn note_broken_rules(&self, findings: &Findings) {
        self.broken_rules.get_or_init(|| findings.clone());
    }

    pub(crate) fn rule_finding(&self, flat: usize, violation: rules::Violation) -> Finding {
        let rule: Rule = violation.rule;
        Finding { kind: FindingKind::Rule(rule), message: violation.message, sites: vec![self.site(flat)] }
    }

    pub(crate) fn stream_range(&self, engine: Engine) -> std::ops::Range<usize> {
        let number = engine as usize;
        self.stream_starts[number]..self.stream_starts[number + 1]
    }

    pub(crate) fn id(&self, flat: usize) -> InstructionId {
        let engine = self.instructions[flat].engine;
        let first = self.first_positions[engine as usize];
        InstructionId { engine, position: first + (flat - self.stream_range(engine).start) as u32 }
    }

    pub(crate) fn flat(&self, id: InstructionId) -> usize {
        let first = self.first_positions[id.engine as usize];
        self.stream_range(id.engine).start + (id.position - first) as usize
    }

    pub(crate) fn site(&self, flat: usize) -> Site {
        let sources = self.sources.get(flat).into_iter().flatten();
        Site {
            instruction: self.id(flat),
            name: self.instructions[flat].kind.name(),
            sources: sources.take(MOST_SITE_SOURCES).map(ToString::to_string).collect(),
        }
    }

    /// Outputs with their steps in elements, outermost first; an output whose steps are not known,
    /// although its buffer is larger than the packed tensor, is left out.
    pub(crate) fn output_layouts(&self) -> Vec<(usize, Vec<i64>)> {
        self.outputs.iter().flatten().filter_map(|&tensor| Some((tensor, self.layout(tensor)?))).collect()
    }

    /// Tensors that are outputs.
    pub(crate) fn output_tensors(&self) -> impl Iterator<Item = usize> {
        self.outputs.iter().flatten().copied()
    }

    /// A tensor's steps in elements, outermost first, where they are known.
    pub(crate) fn layout(&self, tensor: usize) -> Option<Vec<i64>> {
        let HbmTensor { dtype, shape, size_bytes, .. } = &self.tensors[tensor];
        if let Some(strides) = &self.strides[tensor] {
            return (strides.len() == shape.len()).then(|| strides.clone());
        }
        let packed_bytes = shape.iter().product::<usize>() as u64 * dtype.size_bytes() as u64;
        let packed = packed_strides(shape).iter().map(|&step| step as i64).collect();
        (packed_bytes == *size_bytes).then_some(packed)
    }

    /// True where the elements of two tensors lie alike.
    pub(crate) fn has_equal_layout(&self, one: usize, other: usize) -> bool {
        let of = |tensor: usize| (&self.tensors[tensor].dtype, &self.tensors[tensor].shape, &self.strides[tensor]);
        one == other || of(one) == of(other)
    }

    fn info(&self, tensor: usize) -> TensorInfo {
        let HbmTensor { name, kind: _, dtype, shape, size_bytes } = &self.tensors[tensor];
        let strides = self.strides[tensor].clone();
        TensorInfo { name: name.clone(), dtype: *dtype, shape: shape.clone(), strides, size_bytes: *size_bytes }
    }

    /// Outputs by position. A buffer that is one output and nothing else is handed over, not copied.
    fn take_outputs(&self, mut memory: Memory) -> Vec<Option<TensorBytes>> {
        let buffer_of = |tensor: usize| self.device.places[tensor].buffer;
        let mut n_readers = vec![0usize; memory.buffers.len()];
        for &tensor in self.outputs.iter().flatten() {
            n_readers[buffer_of(tensor)] += 1;
        }
        let mut take = |tensor: usize| {
            let TensorInfo { name: _, dtype, shape, strides: _, size_bytes } = self.info(tensor);
            let BufferPlace { buffer, start_byte } = self.device.places[tensor];
            let content = &mut memory.buffers[buffer];
            let is_whole = start_byte == 0 && content.len() as u64 == size_bytes && n_readers[buffer] == 1;
            let bytes = if is_whole {
                std::mem::take(content)
            } else {
                content[start_byte..start_byte + size_bytes as usize].to_vec()
            };
            TensorBytes { dtype, shape, bytes }
        };
        self.outputs.iter().map(|slot| slot.map(&mut take)).collect()
    }

    /// Memories with inputs and constants in place.
    fn memory(&self, inputs: &[Option<&[u8]>]) -> Result<Memory, RunError> {
        if inputs.len() != self.inputs.len() {
            return Err(RunError::InputCount { expected: self.inputs.len(), given: inputs.len() });
        }
        let total_bytes = self.device_bytes();
        let has_room = Vec::<u8>::new().try_reserve_exact(usize::try_from(total_bytes).unwrap_or(usize::MAX)).is_ok();
        if !has_room {
            return Err(RunError::OutOfMemory { bytes: total_bytes });
        }
        let mut buffers: Vec<Vec<u8>> = self.device.buffer_bytes.iter().map(|&bytes| vec![0; bytes as usize]).collect();
        let mut place = |tensor: usize, content: &[u8]| {
            let BufferPlace { buffer, start_byte } = self.device.places[tensor];
            buffers[buffer][start_byte..start_byte + content.len()].copy_from_slice(content);
        };
        for (tensor, described) in self.tensors.iter().enumerate() {
            if let HbmKind::Constant(content) = &described.kind {
                place(tensor, content);
            }
        }
        for (position, (slot, given)) in self.inputs.iter().zip(inputs).enumerate() {
            let Some(tensor) = *slot else { continue };
            let HbmTensor { name, size_bytes: expected, .. } = &self.tensors[tensor];
            match given {
                Some(content) if content.len() as u64 == *expected => place(tensor, content),
                Some(content) => {
                    let given = content.len() as u64;
                    return Err(RunError::InputSize { position, name: name.clone(), expected: *expected, given });
                }
                None if self.reads(tensor) => {
                    return Err(RunError::MissingInput { position, name: name.clone() });
                }
                None => {}
            }
        }
        let [sbuf, psum] = self.touched_bytes();
        Ok(Memory::new(self.target.partitions as usize, sbuf, psum, buffers, self.device.places.clone()))
    }

    /// Of the kernels too, where there are any.
    fn touched_bytes(&self) -> [usize; 2] {
        let own = *self.touched_bytes.get_or_init(|| self.find_touched_bytes());
        self.kernels()
            .map(Machine::touched_bytes)
            .fold(own, |most, found| [most[0].max(found[0]), most[1].max(found[1])])
    }

    /// How far into a partition of SBUF and of PSUM instructions reach. Small programs touch little
    /// of either, and clearing all of it would take longer than they run.
    fn find_touched_bytes(&self) -> [usize; 2] {
        let (mut sbuf, mut psum) = (0, 0);
        for instruction in &self.instructions {
            let accesses = instruction.kind.accesses();
            for view in accesses.tile_reads.iter().chain(&accesses.tile_writes) {
                let reach = if view.tile == PSUM_TILE { &mut psum } else { &mut sbuf };
                *reach = view.byte_range().1.max(*reach);
            }
            for side in [accesses.dma_read, accesses.dma_write].into_iter().flatten() {
                if let DmaPlace::Tile { .. } = side.place {
                    let steps = side.dims.iter().map(|dim| dim.step.max(0) * (i64::from(dim.count) - 1).max(0));
                    let last = side.offset as i64 + steps.sum::<i64>();
                    sbuf = ((last + 1) * side.dtype.size_bytes() as i64).max(sbuf);
                }
            }
        }
        let (all_sbuf, all_psum) = (self.target.sbuf_usable_bytes as usize, self.target.psum_bytes() as usize);
        [(sbuf as usize).min(all_sbuf), (psum as usize).min(all_psum)]
    }

    /// True where a tensor's content matters: its buffer is read, or is an output's too.
    fn reads(&self, tensor: usize) -> bool {
        let buffer = self.device.places[tensor].buffer;
        let shares_buffer = |other: usize| other != tensor && self.device.places[other].buffer == buffer;
        let is_in_buffer = |other: usize| self.device.places[other].buffer == buffer;
        self.outputs.iter().flatten().any(|&output| shares_buffer(output))
            || self.applied.as_ref().is_some_and(|applied| applied.read_tensors().any(is_in_buffer))
            || self.instructions.iter().any(|instruction| {
                let read = instruction.kind.accesses().dma_read;
                let read = read.and_then(|side| side.hbm());
                read.is_some_and(|id| self.device.places[id.index()].buffer == buffer)
            })
    }
}

fn out_of_range(bad: &crate::values::OutOfRange, site: Site) -> Finding {
    Finding {
        kind: FindingKind::ActivationRange,
        message: format!(
            "{:?} has no valid result for {:e} (partition {}, element {}), one of {} inputs",
            bad.function, bad.input, bad.partition, bad.element, bad.count
        ),
        sites: vec![site],
    }
}

/// A model location in one line.
fn source_text(location: &ir::graph::Location) -> String {
    let parts = [&location.line, &location.module, &location.node];
    let known: Vec<&str> = parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    known.join(" ")
}
