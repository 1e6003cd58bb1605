//! A NEFF on the simulator, with tensors as the caller has them.
//!
//! Callers give and get packed row-major elements or tensors in memory of their own; device buffers
//! have the strides that the NEFF's tensor map declares. 64-bit integers that the device's 32-bit
//! arithmetic cannot hold are refused here, before anything runs.

use std::borrow::Cow;

use ir::program::{Engine, InstructionKind};
use ir::reference::Value;
use ir::types::packed_strides;
use ir::{Dtype, TensorType};
use neff::members::TensorMap;
use simulator::{InstructionId, LoadError, Machine, RunError, TensorBytes, TensorInfo, Timeline};
use smallvec::SmallVec;

use crate::error::Error;
use crate::strided::{View, ViewMut, extent_bytes, is_same_layout};

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
        let strides: Vec<_> =
            self.inputs.iter().map(|slot| slot.as_ref().map(|slot| packed_strides(&slot.ty.shape))).collect();
        let view = |position: usize| {
            let slot = self.inputs[position].as_ref()?;
            let bytes = inputs.get(position)?.as_deref()?;
            Some(View { ty: &slot.ty, strides: strides[position].as_deref()?, bytes })
        };
        let views: Vec<Option<View<'_>>> = (0..self.inputs.len()).map(view).collect();
        let results = self.run_views(&views)?;
        let packed = self.outputs.iter().enumerate().map(|(position, slot)| {
            let Some(slot) = slot else { return Ok(None) };
            let mut bytes = vec![0; slot.ty.size_bytes()];
            let strides = packed_strides(&slot.ty.shape);
            results.write(position, &mut ViewMut { ty: &slot.ty, strides: &strides, bytes: &mut bytes })?;
            Ok(Some(bytes))
        });
        packed.collect()
    }

    /// Runs the program on tensors as the caller has them, by position; inputs that it does not read
    /// may be missing. A tensor that lies as the device wants it is read where it is.
    ///
    /// # Errors
    /// As [`Executable::run`], and for inputs of another type.
    pub fn run_views(&self, inputs: &[Option<View<'_>>]) -> Result<Results<'_>, Error> {
        let mut buffers: Vec<Option<Cow<'_, [u8]>>> = Vec::new();
        for (position, slot) in self.inputs.iter().enumerate() {
            let given = inputs.get(position).and_then(Option::as_ref);
            buffers.push(match (slot, given) {
                (Some(slot), Some(view)) => Some(slot.buffer(position, *view)?),
                (Some(_), None) | (None, _) => None,
            });
        }
        let buffers: Vec<Option<&[u8]>> = buffers.iter().map(Option::as_deref).collect();
        let outputs = self.machine.run(&buffers).map_err(run_error)?;
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
}

impl Slot {
    /// The device buffer of a tensor.
    fn buffer<'a>(&self, position: usize, view: View<'a>) -> Result<Cow<'a, [u8]>, Error> {
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
            return Ok(Cow::Borrowed(view.bytes));
        }
        let mut buffer = vec![0; self.size_bytes];
        view.copy_to(&mut ViewMut { ty, strides: &self.strides, bytes: &mut buffer });
        Ok(Cow::Owned(buffer))
    }

    fn check_range(&self, position: usize, view: View<'_>) -> Result<(), Error> {
        let too_wide = view.elements().find_map(|bytes| {
            let number = i64::from_le_bytes(bytes.try_into().expect("an i64 has eight bytes"));
            i32::try_from(number).is_err().then_some(number)
        });
        match too_wide {
            None => Ok(()),
            Some(number) => {
                let name = &self.name;
                Err(Error::TooWide(format!("input {position} (`{name}`): {number} does not fit 32 bits")))
            }
        }
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
    let size_bytes = usize::try_from(tensor.size_bytes).unwrap_or(usize::MAX);
    if extent_bytes(&ty, &strides).is_none_or(|needed| needed > size_bytes) {
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
