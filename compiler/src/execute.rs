//! A NEFF on the simulator, with tensors as the caller has them.
//!
//! Callers give and get packed row-major elements; device buffers have the strides that the NEFF's
//! tensor map declares. 64-bit integers that the device's 32-bit arithmetic cannot hold are refused
//! here, before anything runs.

use std::borrow::Cow;

use ir::program::{Engine, InstructionKind};
use ir::reference::Value;
use ir::types::packed_strides;
use ir::{Dtype, TensorType};
use neff::members::TensorMap;
use simulator::{InstructionId, LoadError, Machine, RunError, TensorInfo, Timeline};
use smallvec::SmallVec;

use crate::error::Error;

/// A loaded NEFF.
pub struct Executable {
    machine: Machine,
    inputs: Vec<Option<Slot>>,
    outputs: Vec<Option<Slot>>,
}

/// An input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub name: String,
    pub ty: TensorType,
    /// Steps of the device buffer in elements.
    strides: SmallVec<[usize; 6]>,
    size_bytes: usize,
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
    /// Loads a NEFF.
    ///
    /// # Errors
    /// When the file is damaged, or its engine streams are in an encoding that is not ours.
    pub fn load(neff: &[u8]) -> Result<Self, Error> {
        let mut machine = Machine::load(neff).map_err(load_error)?;
        let container = neff::container::read(neff).map_err(|failure| Error::Input(failure.error.to_string()))?;
        let map = container.member("sg00/tensor_map.json").ok();
        let map: TensorMap = map.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default();
        if let Some(sources) = container.member("sg00/neffuse_debug.json").ok().and_then(sources) {
            machine.set_sources(sources);
        }
        let slots = |tensors: Vec<Option<TensorInfo>>| -> Result<Vec<Option<Slot>>, Error> {
            tensors.into_iter().map(|tensor| tensor.map(|tensor| slot(tensor, &map)).transpose()).collect()
        };
        let (inputs, outputs) = (slots(machine.inputs())?, slots(machine.outputs())?);
        Ok(Executable { machine, inputs, outputs })
    }

    /// Inputs by position; `None` where the program reads none.
    pub fn inputs(&self) -> &[Option<Slot>] {
        &self.inputs
    }

    /// Outputs by position; `None` where there is none.
    pub fn outputs(&self) -> &[Option<Slot>] {
        &self.outputs
    }

    /// Proves that memory accesses are ordered and legal.
    ///
    /// # Errors
    /// Everything that was found: a fault of the compiler.
    pub fn check(&self) -> Result<(), Error> {
        let findings = self.machine.check();
        if findings.is_empty() {
            return Ok(());
        }
        let n_findings = findings.findings.len() + findings.n_omitted;
        Err(Error::Internal(format!("the program fails {n_findings} checks\n{findings}")))
    }

    /// Runs the program on packed elements, by position; inputs that it does not read may be
    /// missing.
    ///
    /// # Errors
    /// Missing or ill-sized inputs, integers that do not fit, indices out of range; a program that
    /// cannot run is a fault of the compiler.
    pub fn run(&self, inputs: &[Option<Vec<u8>>]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut buffers: Vec<Option<Cow<'_, [u8]>>> = Vec::new();
        for (position, slot) in self.inputs.iter().enumerate() {
            let given = inputs.get(position).and_then(Option::as_ref);
            buffers.push(match (slot, given) {
                (Some(slot), Some(packed)) => Some(slot.buffer(position, packed)?),
                (Some(_), None) | (None, _) => None,
            });
        }
        let buffers: Vec<Option<&[u8]>> = buffers.iter().map(Option::as_deref).collect();
        let outputs = self.run_buffers(&buffers)?;
        let packed = outputs.into_iter().zip(&self.outputs).map(|(buffer, slot)| match (buffer, slot) {
            (Some(buffer), Some(slot)) => Some(slot.packed(buffer)),
            (_, _) => None,
        });
        Ok(packed.collect())
    }

    /// Runs the program on buffers that have the strides of their slots, by position: nothing is
    /// copied on the way in or out.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn run_buffers(&self, inputs: &[Option<&[u8]>]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        for (position, (slot, buffer)) in self.inputs.iter().zip(inputs).enumerate() {
            if let (Some(slot), Some(buffer)) = (slot, buffer) {
                slot.check_range(position, buffer)?;
            }
        }
        // Inputs that the program does not read may follow those that it does.
        let outputs = self.machine.run(&inputs[..inputs.len().min(self.inputs.len())]).map_err(run_error)?;
        Ok(outputs.tensors.into_iter().map(|tensor| tensor.map(|tensor| tensor.bytes)).collect())
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
    /// A deadlock: a fault of the compiler.
    pub fn timeline(&self) -> Result<Timeline, Error> {
        self.machine.timeline().map_err(|finding| Error::Internal(finding.to_string()))
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
        for instruction in Engine::ALL.iter().flat_map(|&engine| self.machine.stream(engine)) {
            counts.n_instructions += 1;
            counts.n_compute += usize::from(instruction.is_compute());
            counts.n_transfers += usize::from(matches!(instruction.kind, InstructionKind::Dma { .. }));
        }
        counts
    }
}

impl Slot {
    /// Steps of the buffer in elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// Bytes of the buffer.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The device buffer of packed elements.
    fn buffer<'a>(&self, position: usize, packed: &'a [u8]) -> Result<Cow<'a, [u8]>, Error> {
        let Slot { name, ty, .. } = self;
        if packed.len() != ty.size_bytes() {
            let message =
                format!("input {position} (`{name}`): {ty} has {} bytes, not {}", ty.size_bytes(), packed.len());
            return Err(Error::Input(message));
        }
        if self.is_packed() {
            return Ok(Cow::Borrowed(packed));
        }
        let size = ty.dtype.size_bytes();
        let mut buffer = vec![0; self.size_bytes];
        for (element, place) in packed.chunks_exact(size).zip(self.places()) {
            buffer[place * size..(place + 1) * size].copy_from_slice(element);
        }
        Ok(Cow::Owned(buffer))
    }

    /// Refuses 64-bit integers that 32 bits cannot hold; other types pass, and so do buffers of a
    /// wrong size, which the simulator refuses.
    fn check_range(&self, position: usize, buffer: &[u8]) -> Result<(), Error> {
        if self.ty.dtype != Dtype::I64 || buffer.len() != self.size_bytes {
            return Ok(());
        }
        let (words, _) = buffer.as_chunks::<8>();
        let is_wide = |number: &i64| i32::try_from(*number).is_err();
        match self.places().map(|place| i64::from_le_bytes(words[place])).find(is_wide) {
            None => Ok(()),
            Some(number) => {
                let name = &self.name;
                Err(Error::Input(format!("input {position} (`{name}`): {number} does not fit 32 bits")))
            }
        }
    }

    /// Packed elements of the device buffer.
    fn packed(&self, buffer: Vec<u8>) -> Vec<u8> {
        let size = self.ty.dtype.size_bytes();
        if self.is_packed() {
            return buffer;
        }
        self.places().flat_map(|place| &buffer[place * size..(place + 1) * size]).copied().collect()
    }

    fn is_packed(&self) -> bool {
        self.strides == packed_strides(&self.ty.shape)
    }

    /// Position in the buffer of each element, in row-major order.
    fn places(&self) -> impl Iterator<Item = usize> {
        let packed = packed_strides(&self.ty.shape);
        (0..self.ty.n_elements()).map(move |flat| {
            let axes = self.ty.shape.iter().zip(&packed).zip(&self.strides);
            axes.map(|((&dim, &step), &stride)| flat / step.max(1) % dim * stride).sum()
        })
    }
}

/// # Errors
/// When strides lead out of the buffer.
fn slot(tensor: TensorInfo, map: &TensorMap) -> Result<Slot, Error> {
    let ty = TensorType { dtype: tensor.dtype, shape: tensor.shape };
    let declared = map.get(&tensor.name).and_then(|entry| entry.strides.as_ref());
    let strides = match declared {
        None => packed_strides(&ty.shape),
        Some(strides) => {
            let strides: Option<SmallVec<[usize; 6]>> =
                strides.iter().map(|&stride| usize::try_from(stride).ok()).collect();
            let strides = strides.filter(|strides| strides.len() == ty.rank());
            strides.ok_or_else(|| Error::Input(format!("tensor `{}`: {ty} with strides {declared:?}", tensor.name)))?
        }
    };
    let size_bytes = usize::try_from(tensor.size_bytes).unwrap_or(usize::MAX);
    let reach = ty.shape.iter().zip(&strides).try_fold(1usize, |reach, (&dim, &stride)| {
        dim.saturating_sub(1).checked_mul(stride).and_then(|way| way.checked_add(reach))
    });
    let needed = reach.and_then(|reach| reach.checked_mul(ty.dtype.size_bytes()));
    if ty.n_elements() > 0 && needed.is_none_or(|needed| needed > size_bytes) {
        let message = format!("tensor `{}`: {ty} with strides {strides:?} leaves its buffer", tensor.name);
        return Err(Error::Input(message));
    }
    Ok(Slot { name: tensor.name, ty, strides, size_bytes })
}

/// Model lines by instruction, from the debug member; `None` where it is damaged.
fn sources(debug: &[u8]) -> Option<Vec<(InstructionId, Vec<String>)>> {
    #[derive(serde::Deserialize)]
    struct Debug {
        locations: Vec<[String; 4]>,
        lines: std::collections::BTreeMap<String, Vec<Vec<usize>>>,
    }
    let debug: Debug = serde_json::from_slice(debug).ok()?;
    let mut sources = Vec::new();
    for engine in Engine::ALL {
        let records = debug.lines.get(engine.name()).map(Vec::as_slice).unwrap_or_default();
        for (position, record) in records.iter().enumerate() {
            let names = record.iter().filter_map(|&location| debug.locations.get(location));
            let names: Vec<String> = names.map(|[node, _, module, line]| location_text(node, module, line)).collect();
            sources.push((InstructionId { engine, position: u32::try_from(position).ok()? }, names));
        }
    }
    Some(sources)
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

fn run_error(error: RunError) -> Error {
    match error {
        RunError::InputCount { .. }
        | RunError::MissingInput { .. }
        | RunError::InputSize { .. }
        | RunError::OutOfMemory { .. }
        | RunError::IndexOutOfRange { .. } => Error::Input(error.to_string()),
        RunError::Illegal(_) | RunError::Deadlock(_) => Error::Internal(error.to_string()),
    }
}
