//! Kernel objects and their linking: from a synchronized program to engine streams.
//!
//! A program becomes one ELF object whose records leave variable ids and semaphore numbers open;
//! linking fills them in for one place in one NEFF. A module becomes an object per kernel, whose
//! streams are laid out behind the calls ([`link_module`]); tensors that each call binds anew are
//! places after the binding register, and nothing has to be filled in for them.

use std::collections::BTreeMap;

use ir::Program;
use ir::program::{DmaAccess, Engine, HbmId, HbmKind, Instruction, InstructionKind, Kernel, KernelPlace, Module};
use neff::isa::{DST_VARIABLE_AT, RECORD_BYTES, SRC_VARIABLE_AT, UPDATE_SEMAPHORE_AT, WAIT_SEMAPHORE_AT};
use neff::kernel_object::{KernelObject, Relocation, RelocationKind, Stream, Symbol};

use crate::control::{ControlError, control_streams};
use crate::package::{line_table, module_line_table, variable_ids, variable_names};

/// Engine streams with every variable and semaphore resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkedKernel {
    streams: BTreeMap<Engine, Vec<u8>>,
    line_table: Vec<u8>,
    /// Variable ids that calls point into; empty without calls.
    bindings: Vec<u32>,
}

impl LinkedKernel {
    /// One engine's stream; empty where the engine has no work.
    pub fn stream(&self, engine: Engine) -> &[u8] {
        self.streams.get(&engine).map_or(&[], Vec::as_slice)
    }

    /// Source lines by record, as JSON.
    pub fn line_table(&self) -> &[u8] {
        &self.line_table
    }

    /// The table of variable ids that calls set the binding register to.
    pub fn bindings(&self) -> &[u32] {
        &self.bindings
    }
}

/// The relocatable object of a synchronized program.
///
/// # Errors
/// An operand that a record has no room for.
pub fn kernel_object(program: &Program) -> Result<KernelObject, neff::Error> {
    let names = variable_names(&program.tensors);
    let names: Vec<Option<&str>> = names.iter().map(|name| Some(name.as_str())).collect();
    object_of(program, &names, &vec![HbmId(0); program.tensors.len()])
}

/// The relocatable object of one kernel of a module.
///
/// # Errors
/// As [`kernel_object`].
pub fn module_kernel_object(module: &Module, kernel: &Kernel) -> Result<KernelObject, neff::Error> {
    let all_names = variable_names(&module.tensors);
    let fixed = |place: &KernelPlace| match place {
        KernelPlace::Bound(_) => None,
        KernelPlace::Fixed(tensor) => Some(all_names[tensor.index()].as_str()),
    };
    let names: Vec<Option<&str>> = kernel.places.iter().map(fixed).collect();
    let variables: Vec<HbmId> = kernel
        .places
        .iter()
        .map(|place| match *place {
            KernelPlace::Bound(position) => HbmId::bound(position),
            KernelPlace::Fixed(_) => HbmId(0),
        })
        .collect();
    object_of(&kernel.program, &names, &variables)
}

/// An object whose records name `variables`; those of tensors with a name are the linker's to fill in.
fn object_of(program: &Program, names: &[Option<&str>], variables: &[HbmId]) -> Result<KernelObject, neff::Error> {
    let mut object = KernelObject { name: program.name.clone(), ..KernelObject::default() };
    let mut symbols: Vec<Option<Symbol>> = Vec::with_capacity(names.len());
    for (tensor, name) in program.tensors.iter().zip(names) {
        let Some(name) = *name else {
            symbols.push(None);
            continue;
        };
        match &tensor.kind {
            HbmKind::Constant(data) => {
                object.constants.insert(name.to_owned(), data.to_vec());
                symbols.push(Some(Symbol::Constant(name.to_owned())));
            }
            HbmKind::Input(_) | HbmKind::Output(_) | HbmKind::Updated { .. } | HbmKind::Scratch => {
                object.tensors.insert(name.to_owned());
                symbols.push(Some(Symbol::Tensor(name.to_owned())));
            }
        }
    }
    for engine in Engine::ALL {
        let bytes = neff::isa::encode_stream(program, engine, variables)?;
        if bytes.is_empty() {
            continue;
        }
        let records = program.stream(engine).enumerate();
        let relocations = records
            .flat_map(|(position, (_, record))| relocations(record, position * RECORD_BYTES, &symbols))
            .collect();
        object.streams.insert(engine, Stream { bytes, relocations });
    }
    object.line_table = line_table(program);
    Ok(object)
}

/// Links a program's object at the start of the variables and semaphores of one NEFF.
///
/// # Errors
/// A symbol without a value, which would be a fault of [`kernel_object`].
pub fn link(program: &Program, object: &KernelObject) -> Result<LinkedKernel, neff::Error> {
    let names = variable_names(&program.tensors);
    let streams = link_streams(object, &names)?;
    Ok(LinkedKernel { streams, line_table: object.line_table.clone(), bindings: Vec::new() })
}

/// Links a module: each engine's stream is its calls, then its part of each kernel.
///
/// # Errors
/// What a record or the semaphores have no room for.
pub fn link_module(module: &Module) -> Result<LinkedKernel, ControlError> {
    let names = variable_names(&module.tensors);
    let mut kernels = Vec::with_capacity(module.kernels.len());
    for kernel in &module.kernels {
        kernels.push(link_streams(&module_kernel_object(module, kernel)?, &names)?);
    }
    let mut bindings: Vec<u32> = Vec::new();
    let mut starts = Vec::with_capacity(module.calls.len());
    for call in &module.calls {
        starts.push(u32::try_from(bindings.len()).map_err(|_| ControlError::TooManyBindings)?);
        bindings.extend(call.bindings.iter().map(|tensor| variable_id(*tensor)));
    }
    let streams = control_streams(module, &kernels, &starts)?;
    let n_records = |engine: Engine| streams.get(&engine).map_or(0, Vec::len) / RECORD_BYTES;
    let line_table = module_line_table(module, n_records);
    Ok(LinkedKernel { streams, line_table, bindings })
}

/// The streams of an object whose symbols are variables of these names.
fn link_streams(object: &KernelObject, names: &[String]) -> Result<BTreeMap<Engine, Vec<u8>>, neff::Error> {
    let ids: BTreeMap<&str, u32> = names.iter().map(String::as_str).zip(variable_ids(names.len())).collect();
    object.link(|symbol| match symbol {
        Symbol::Tensor(name) | Symbol::Constant(name) => ids.get(name.as_str()).copied(),
        Symbol::SemaphoreBase => Some(0),
    })
}

/// The id of a tensor of a program or module in `def.json`.
fn variable_id(tensor: HbmId) -> u32 {
    tensor.0 + 1
}

/// The fields of one record that depend on where the kernel is placed.
fn relocations(record: &Instruction, start: usize, symbols: &[Option<Symbol>]) -> Vec<Relocation> {
    let mut found = Vec::new();
    for (wait, at) in record.waits.iter().zip(WAIT_SEMAPHORE_AT) {
        found.push(semaphore(start + at, wait.semaphore));
    }
    found.extend(record.update.map(|update| semaphore(start + UPDATE_SEMAPHORE_AT, update.semaphore)));
    if let InstructionKind::Dma { dst, src, .. } = &record.kind {
        found.extend(variable(dst, start + DST_VARIABLE_AT, symbols));
        found.extend(variable(src, start + SRC_VARIABLE_AT, symbols));
    }
    found
}

fn semaphore(offset: usize, number: u16) -> Relocation {
    Relocation {
        offset: offset as u64,
        kind: RelocationKind::Semaphore,
        symbol: Symbol::SemaphoreBase,
        addend: i64::from(number),
    }
}

fn variable(side: &DmaAccess, offset: usize, symbols: &[Option<Symbol>]) -> Option<Relocation> {
    let tensor = side.hbm()?;
    let symbol = symbols[tensor.index()].clone()?;
    Some(Relocation { offset: offset as u64, kind: RelocationKind::Variable, symbol, addend: 0 })
}
