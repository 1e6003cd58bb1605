//! A NEFF on the simulator, with tensors as the caller has them.
//!
//! Callers give and get packed row-major elements or tensors in memory of their own; device buffers
//! have the strides that the NEFF's tensor map declares. 64-bit integers that the device's 32-bit
//! arithmetic cannot hold are refused here, before anything runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ir::program::{ActivationFunction, Engine, InstructionKind};
use ir::reference::Value;
use ir::target::activation::ValidRange;
use ir::types::packed_strides;
use ir::{Dtype, TensorType};
use neff::members::{DebugLines, TensorMap, read_json};
use simulator::{InstructionId, LoadError, Machine, RunError, TensorBytes, TensorInfo, Timeline};
use smallvec::SmallVec;

use crate::error::Error;
use crate::kept::{Copy, Kept};
use crate::strided::{View, ViewMut, extent_bytes, is_same_layout};

/// A loaded NEFF.
pub struct Executable {
    machine: Machine,
    origin: Origin,
    inputs: Vec<Option<Slot>>,
    outputs: Vec<Option<Slot>>,
    /// By position of each input, its converted copy where it is a weight.
    weights: Vec<Option<Kept>>,
    /// Of all runs, without what happens before and after the program.
    simulated_ns: AtomicU64,
}

/// An input in device layout.
enum Buffer<'a> {
    /// The caller's memory.
    Borrowed(&'a [u8]),
    Converted(Vec<u8>),
    Kept(Arc<Copy>),
}

impl Buffer<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Buffer::Borrowed(bytes) => bytes,
            Buffer::Converted(bytes) => bytes,
            Buffer::Kept(copy) => &copy.bytes,
        }
    }
}

/// Where a NEFF comes from, and so whose fault a wrong program is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Origin {
    /// This process has compiled it.
    Compiled,
    /// Someone gave it.
    File,
}

impl Origin {
    /// The error for a program that breaks rules or never ends.
    fn wrong_program(self, message: String) -> Error {
        match self {
            Origin::Compiled => Error::Internal(message),
            Origin::File => Error::Input(format!("the NEFF holds no program that can run: {message}")),
        }
    }
}

/// An input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub name: String,
    pub ty: TensorType,
    /// Steps of the device buffer in elements.
    strides: SmallVec<[usize; 6]>,
    size_bytes: usize,
    /// Bits that 64-bit integers may have, the sign included.
    integer_bits: u32,
}

/// Instructions of a program, counted.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct InstructionCounts {
    /// Records of all streams.
    pub n_instructions: usize,
    /// On the data path of PE, ACT, DVE and Pool.
    pub n_compute: usize,
    pub n_transfers: usize,
}

impl Executable {
    /// Loads a NEFF that this process has compiled, and proves that its memory accesses are legal and
    /// ordered: what has not been proved gives neither values nor times.
    ///
    /// # Errors
    /// When the file is damaged, its engine streams are in an encoding that is not ours, or its program
    /// fails a check.
    pub fn load(neff: &[u8]) -> Result<Self, Error> {
        Executable::load_from(neff, Origin::Compiled)
    }

    /// Loads a NEFF that someone gave: what is wrong with its program is bad input.
    ///
    /// # Errors
    /// As [`Executable::load`].
    pub fn load_file(neff: &[u8]) -> Result<Self, Error> {
        Executable::load_from(neff, Origin::File)
    }

    fn load_from(neff: &[u8], origin: Origin) -> Result<Self, Error> {
        let container = neff::container::read(neff).map_err(|failure| Error::Input(failure.error.to_string()))?;
        let mut machine = Machine::of_container(&container).map_err(load_error)?;
        let map: TensorMap = read_json(&container, "sg00/tensor_map.json").unwrap_or_default();
        if let Ok(lines) = read_json::<DebugLines>(&container, DebugLines::MEMBER) {
            machine.set_sources(sources(&lines));
            name_calls(&mut machine, &lines);
        }
        let slots = |tensors: Vec<Option<TensorInfo>>| -> Result<Vec<Option<Slot>>, Error> {
            tensors.into_iter().map(|tensor| tensor.map(|tensor| slot(tensor, &map)).transpose()).collect()
        };
        let (inputs, outputs) = (slots(machine.inputs())?, slots(machine.outputs())?);
        let weights = inputs.iter().map(|_| None).collect();
        prove(&machine, origin)?;
        Ok(Executable { machine, origin, inputs, outputs, weights, simulated_ns: AtomicU64::new(0) })
    }

    /// Marks inputs that seldom change: where one has another layout on the device, its converted
    /// copy is kept for as long as its content stays the same.
    pub fn keep_converted(&mut self, positions: impl IntoIterator<Item = usize>) {
        for position in positions {
            if let Some(weight) = self.weights.get_mut(position) {
                *weight = Some(Kept::default());
            }
        }
    }

    /// How long programs have been running in all runs, in nanoseconds.
    pub fn simulated_ns(&self) -> u64 {
        self.simulated_ns.load(Ordering::Relaxed)
    }

    /// Inputs by position; `None` where the program reads none.
    pub fn inputs(&self) -> &[Option<Slot>] {
        &self.inputs
    }

    /// Outputs by position; `None` where there is none.
    pub fn outputs(&self) -> &[Option<Slot>] {
        &self.outputs
    }

    /// Runs the program on packed elements, by position; inputs that it does not read may be
    /// missing.
    ///
    /// # Errors
    /// Missing or ill-sized inputs, integers that do not fit, indices out of range, numbers for which an
    /// activation function has no valid result, and a program that cannot run.
    pub fn run(&self, inputs: &[Option<Vec<u8>>]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let strides: Vec<_> =
            self.inputs.iter().map(|slot| slot.as_ref().map(|slot| packed_strides(&slot.ty.shape))).collect();
        let view = |position: usize| {
            let slot = self.inputs[position].as_ref()?;
            let bytes = inputs.get(position)?.as_deref()?;
            Some(View { ty: &slot.ty, strides: strides[position].as_deref()?, bytes })
        };
        let views: Vec<Option<View<'_>>> = (0..self.inputs.len()).map(view).collect();
        Ok(self.run_views(&views)?.into_packed())
    }

    /// Runs the program on tensors as the caller has them, by position; inputs that it does not read
    /// may be missing. A tensor that lies as the device wants it is read where it is.
    ///
    /// # Errors
    /// As [`Executable::run`], and for inputs of another type.
    pub fn run_views(&self, inputs: &[Option<View<'_>>]) -> Result<Results<'_>, Error> {
        let mut buffers: Vec<Option<Buffer<'_>>> = Vec::with_capacity(self.inputs.len());
        for (position, slot) in self.inputs.iter().enumerate() {
            let given = inputs.get(position).and_then(Option::as_ref);
            buffers.push(match (slot, given) {
                (Some(slot), Some(view)) => Some(slot.buffer(position, *view, self.weights[position].as_ref())?),
                (Some(_), None) | (None, _) => None,
            });
        }
        let buffers: Vec<Option<&[u8]>> =
            buffers.iter().map(|buffer| buffer.as_ref().map(|buffer| buffer.bytes())).collect();
        let start = Instant::now();
        let outputs = self.machine.run(&buffers).map_err(|error| self.run_error(&error))?;
        self.simulated_ns.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(Results { slots: &self.outputs, tensors: outputs.tensors })
    }

    /// Runs the program on values, by position.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn run_values(&self, inputs: &[Value]) -> Result<Vec<Option<Value>>, Error> {
        let mut packed = Vec::new();
        for (position, value) in inputs.iter().enumerate() {
            let slot = self.inputs.get(position).and_then(Option::as_ref);
            let bytes = slot.map(|slot| value.to_bytes(slot.ty.dtype)).transpose();
            packed.push(bytes.map_err(|error| Error::Input(format!("input {position}: {error}")))?);
        }
        let outputs = self.run(&packed)?;
        let values = outputs.into_iter().zip(&self.outputs).map(|(bytes, slot)| match (bytes, slot) {
            (Some(bytes), Some(slot)) => Value::from_bytes(&slot.ty, &bytes).map(Some),
            (_, _) => Ok(None),
        });
        values.collect::<Result<_, _>>().map_err(|error| Error::Internal(format!("an output: {error}")))
    }

    /// Predicted times.
    ///
    /// # Errors
    /// A broken operand rule, or a deadlock.
    pub fn timeline(&self) -> Result<Timeline, Error> {
        self.machine.timeline().map_err(|finding| self.origin.wrong_program(finding.to_string()))
    }

    /// Whether a run may end because a number leads out of an activation function's range. What lowering
    /// gives log and sin is always in theirs.
    pub fn may_leave_ranges(&self) -> bool {
        let is_limited = |kind: &InstructionKind| match kind {
            InstructionKind::Activation { function, .. } => {
                let is_kept_inside = matches!(function, ActivationFunction::Log | ActivationFunction::Sin);
                ValidRange::of(*function) != ValidRange::All && !is_kept_inside
            }
            _ => false,
        };
        let machines = std::iter::once(&self.machine).chain(self.machine.kernels());
        machines.flat_map(|machine| machine.stream(Engine::Act)).any(|instruction| is_limited(&instruction.kind))
    }

    /// The chip that the program is for.
    pub fn target(&self) -> ir::target::TargetName {
        self.machine.target()
    }

    /// The simulator's view of the program.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Instructions of all streams.
    pub fn counts(&self) -> InstructionCounts {
        let mut counts = InstructionCounts::default();
        let machines = || std::iter::once(&self.machine).chain(self.machine.kernels());
        for instruction in
            Engine::ALL.iter().flat_map(|&engine| machines().flat_map(move |machine| machine.stream(engine)))
        {
            counts.n_instructions += 1;
            counts.n_compute += usize::from(instruction.is_compute());
            counts.n_transfers += usize::from(matches!(instruction.kind, InstructionKind::Dma { .. }));
        }
        counts
    }

    fn run_error(&self, error: &RunError) -> Error {
        match error {
            RunError::InputCount { .. }
            | RunError::MissingInput { .. }
            | RunError::InputSize { .. }
            | RunError::OutOfMemory { .. }
            | RunError::IndexOutOfRange { .. } => Error::Input(error.to_string()),
            // The values are to blame: for others the program is right.
            RunError::OutOfRange(_) => Error::TooWide(error.to_string()),
            RunError::Illegal(_) | RunError::Deadlock(_) => self.origin.wrong_program(error.to_string()),
        }
    }
}

/// # Errors
/// Everything that a program's checks find.
fn prove(machine: &Machine, origin: Origin) -> Result<(), Error> {
    let findings = machine.check();
    if findings.is_empty() {
        return Ok(());
    }
    let n_findings = findings.findings.len() + findings.n_omitted;
    Err(origin.wrong_program(format!("the program fails {n_findings} checks\n{findings}")))
}

/// What a run gave, in device layout.
pub struct Results<'a> {
    slots: &'a [Option<Slot>],
    tensors: Vec<Option<TensorBytes>>,
}

impl Results<'_> {
    /// Copies one output into the caller's tensor.
    ///
    /// # Errors
    /// When there is no such output, or it is of another type.
    pub fn write(&self, position: usize, target: &mut ViewMut<'_>) -> Result<(), Error> {
        let slot = self.slots.get(position).and_then(Option::as_ref);
        let tensor = self.tensors.get(position).and_then(Option::as_ref);
        let (Some(slot), Some(tensor)) = (slot, tensor) else {
            return Err(Error::Input(format!("the program has no output {position}")));
        };
        if slot.ty != *target.ty {
            return Err(Error::Input(format!("output {position} is {}, not {}", slot.ty, target.ty)));
        }
        let view = View { ty: &slot.ty, strides: &slot.strides, bytes: &tensor.bytes };
        view.copy_to(target);
        Ok(())
    }

    /// Packed elements of all outputs, by position.
    fn into_packed(self) -> Vec<Option<Vec<u8>>> {
        let pack = |(slot, tensor): (&Option<Slot>, Option<TensorBytes>)| {
            let Slot { name: _, ty, strides: from, size_bytes: _, integer_bits: _ } = slot.as_ref()?;
            let bytes = tensor?.bytes;
            let strides = packed_strides(&ty.shape);
            if bytes.len() == ty.size_bytes() && is_same_layout(&ty.shape, from, &strides) {
                return Some(bytes);
            }
            let mut packed = vec![0; ty.size_bytes()];
            let view = View { ty, strides: from, bytes: &bytes };
            view.copy_to(&mut ViewMut { ty, strides: &strides, bytes: &mut packed });
            Some(packed)
        };
        self.slots.iter().zip(self.tensors).map(pack).collect()
    }
}

impl Slot {
    /// The device buffer of a tensor.
    fn buffer<'a>(&self, position: usize, view: View<'a>, weight: Option<&Kept>) -> Result<Buffer<'a>, Error> {
        let Slot { name, ty, .. } = self;
        if ty != view.ty {
            return Err(Error::Input(format!("input {position} (`{name}`) is {}, not {ty}", view.ty)));
        }
        if Some(view.bytes.len()) != extent_bytes(ty, view.strides) {
            let message = format!("input {position} (`{name}`): {ty} does not fill {} bytes", view.bytes.len());
            return Err(Error::Input(message));
        }
        if ty.dtype == Dtype::I64 {
            self.check_range(position, view)?;
        }
        if view.bytes.len() == self.size_bytes && is_same_layout(&ty.shape, view.strides, &self.strides) {
            return Ok(Buffer::Borrowed(view.bytes));
        }
        let convert = || {
            let mut bytes = vec![0; self.size_bytes];
            view.copy_to(&mut ViewMut { ty, strides: &self.strides, bytes: &mut bytes });
            bytes
        };
        Ok(match weight {
            Some(weight) => Buffer::Kept(weight.of(view, convert)),
            None => Buffer::Converted(convert()),
        })
    }

    fn check_range(&self, position: usize, view: View<'_>) -> Result<(), Error> {
        let Slot { name, integer_bits, .. } = self;
        let limit = 1i64 << (integer_bits - 1);
        let too_wide = |bytes: &[u8]| {
            let number = i64::from_le_bytes(bytes.try_into().expect("an i64 has eight bytes"));
            (number < -limit || number >= limit).then_some(number)
        };
        let is_packed = view.bytes.len() == self.ty.size_bytes();
        let too_wide = if is_packed {
            view.bytes.chunks_exact(Dtype::I64.size_bytes()).find_map(too_wide)
        } else {
            view.elements().find_map(too_wide)
        };
        let Some(number) = too_wide else { return Ok(()) };
        let why = if *integer_bits < 32 { ", which the program needs to compute in 32 bits" } else { "" };
        Err(Error::TooWide(format!("input {position} (`{name}`): {number} does not fit {integer_bits} bits{why}")))
    }
}

/// # Errors
/// When strides lead out of the buffer.
fn slot(tensor: TensorInfo, map: &TensorMap) -> Result<Slot, Error> {
    let ty = TensorType { dtype: tensor.dtype, shape: tensor.shape };
    let declared = map.get(&tensor.name).and_then(|entry| entry.strides.as_deref());
    let strides = match declared {
        Some(strides) => strides.iter().map(|&stride| usize::try_from(stride)).collect::<Result<_, _>>().ok(),
        None => Some(packed_strides(&ty.shape)),
    };
    let Some(strides) = strides.filter(|strides| strides.len() == ty.rank()) else {
        let message = format!("tensor `{}`: {ty} cannot have strides {declared:?}", tensor.name);
        return Err(Error::Input(message));
    };
    let integer_bits = map.get(&tensor.name).and_then(|entry| entry.integer_bits).unwrap_or(32);
    if !(1..=32).contains(&integer_bits) {
        let message = format!("tensor `{}`: integers of {integer_bits} bits, not 1 to 32", tensor.name);
        return Err(Error::Input(message));
    }
    let size_bytes = usize::try_from(tensor.size_bytes).unwrap_or(usize::MAX);
    if extent_bytes(&ty, &strides).is_none_or(|needed| needed > size_bytes) {
        let message = format!("tensor `{}`: {ty} with strides {strides:?} leaves its buffer", tensor.name);
        return Err(Error::Input(message));
    }
    Ok(Slot { name: tensor.name, ty, strides, size_bytes, integer_bits })
}

/// Model lines by instruction. Instructions share the text of a line.
fn sources(debug: &DebugLines) -> Vec<(InstructionId, Vec<Arc<str>>)> {
    let location = |[node, _, module, line]: &[String; 4]| location_text(node, module, line).into();
    let locations: Vec<Arc<str>> = debug.locations.iter().map(location).collect();
    let mut sources = Vec::new();
    for engine in Engine::ALL {
        let records = debug.lines.get(engine.name()).map(Vec::as_slice).unwrap_or_default();
        for (position, record) in (0..).zip(records) {
            let names = record.iter().filter_map(|&location| locations.get(location as usize).cloned());
            sources.push((InstructionId { engine, position }, names.collect()));
        }
    }
    sources
}

/// Names the model lines of each call, which are in the same order as those of its kernel's first one.
fn name_calls(machine: &mut Machine, debug: &DebugLines) {
    let text = |position: usize| -> Option<Arc<str>> {
        let [node, _, module, line] = debug.locations.get(position)?;
        Some(location_text(node, module, line).into())
    };
    let mut first_of_kernel: BTreeMap<u32, usize> = BTreeMap::new();
    for (number, call) in debug.calls.iter().enumerate() {
        let first = *first_of_kernel.entry(call.kernel).or_insert(call.first_location as usize);
        let start = call.first_location as usize;
        let next = debug.calls.get(number + 1).map_or(debug.locations.len(), |next| next.first_location as usize);
        if start != first {
            let pairs = (0..next.saturating_sub(start)).filter_map(|at| Some((text(first + at)?, text(start + at)?)));
            machine.set_call_sources(number, pairs.collect::<Vec<_>>());
        }
    }
}

fn location_text(node: &str, module: &str, line: &str) -> String {
    let parts: Vec<&str> = [node, module, line].into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(" ")
}

fn load_error(error: LoadError) -> Error {
    match error {
        LoadError::Neff(_) | LoadError::Inconsistent(_) | LoadError::ForeignEncoding => Error::Input(error.to_string()),
        LoadError::Absolute(_) => Error::Internal(error.to_string()),
    }
}
