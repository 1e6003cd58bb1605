//! Kernel objects and their linking: from a synchronized program to engine streams.
//!
//! A program becomes one ELF object whose records leave variable ids and semaphore numbers open;
//! linking fills them in for one place in one NEFF.

use std::collections::BTreeMap;

use ir::Program;
use ir::program::{DmaAccess, Engine, HbmKind, Instruction, InstructionKind};
use neff::isa::{DST_VARIABLE_AT, RECORD_BYTES, SRC_VARIABLE_AT, UPDATE_SEMAPHORE_AT, WAIT_SEMAPHORE_AT};
use neff::kernel_object::{KernelObject, Relocation, RelocationKind, Stream, Symbol};

use crate::package::{line_table, variable_ids, variable_names};

/// Engine streams with every variable and semaphore resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkedKernel {
    streams: BTreeMap<Engine, Vec<u8>>,
    line_table: Vec<u8>,
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
}

/// The relocatable object of a synchronized program.
///
/// # Errors
/// An operand that a record has no room for.
pub fn kernel_object(program: &Program) -> Result<KernelObject, neff::Error> {
    let names = variable_names(program);
    let symbols: Vec<Symbol> = program
        .tensors
        .iter()
        .zip(&names)
        .map(|(tensor, name)| match tensor.kind {
            HbmKind::Constant(_) => Symbol::Constant(name.clone()),
            HbmKind::Input(_) | HbmKind::Output(_) | HbmKind::Updated { .. } | HbmKind::Scratch => {
                Symbol::Tensor(name.clone())
            }
        })
        .collect();
    let mut object = KernelObject { name: program.name.clone(), ..KernelObject::default() };
    for (tensor, name) in program.tensors.iter().zip(&names) {
        match &tensor.kind {
            HbmKind::Constant(data) => _ = object.constants.insert(name.clone(), data.to_vec()),
            HbmKind::Input(_) | HbmKind::Output(_) | HbmKind::Updated { .. } | HbmKind::Scratch => {
                _ = object.tensors.insert(name.clone())
            }
        }
    }
    let unresolved = vec![0; program.tensors.len()];
    for engine in Engine::ALL {
        let bytes = neff::isa::encode_stream(program, engine, &unresolved)?;
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
    let names = variable_names(program);
    let ids: BTreeMap<&str, u32> = names.iter().map(String::as_str).zip(variable_ids(program)).collect();
    let streams = object.link(|symbol| match symbol {
        Symbol::Tensor(name) | Symbol::Constant(name) => ids.get(name.as_str()).copied(),
        Symbol::SemaphoreBase => Some(0),
    })?;
    Ok(LinkedKernel { streams, line_table: object.line_table.clone() })
}

/// The fields of one record that depend on where the kernel is placed.
fn relocations(record: &Instruction, start: usize, symbols: &[Symbol]) -> Vec<Relocation> {
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

fn variable(side: &DmaAccess, offset: usize, symbols: &[Symbol]) -> Option<Relocation> {
    let tensor = side.hbm()?;
    let symbol = symbols[tensor.index()].clone();
    Some(Relocation { offset: offset as u64, kind: RelocationKind::Variable, symbol, addend: 0 })
}
