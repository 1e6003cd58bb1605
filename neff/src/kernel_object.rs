//! Kernel objects: one fused kernel as an ELF relocatable object.
//!
//! The unit of caching and of linking. A section per engine stream in the open encoding, one per constant, undefined
//! symbols for the HBM tensors that the kernel is applied to, relocations for the variable ids and semaphores that only
//! the linker knows, and a line table. The machine is `EM_NONE`, since no number is assigned to NeuronCores; `readelf`,
//! `objdump -h` and `nm` read the files. `docs/neff.md` lists sections, symbols and relocations.
//!
//! Does not look into the streams: what a relocation patches is its maker's business.

mod read;
mod write;

use crate::{Code, Error, Place};
use ir::program::Engine;
use std::collections::{BTreeMap, BTreeSet};

/// The version of the form of kernel objects, kept in the ELF header's flags.
pub const VERSION: u32 = 1;

const TEXT: &str = ".text.";
const RODATA: &str = ".rodata.";
const RELA: &str = ".rela";
const LINES: &str = ".neffuse.lines";
const TENSOR: &str = "tensor.";
const CONSTANT: &str = "const.";
const SEMAPHORES: &str = "semaphore.base";

/// A kernel before it is linked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelObject {
    /// Name of the kernel.
    pub name: String,
    /// Streams of the engines that have work.
    pub streams: BTreeMap<Engine, Stream>,
    /// Constants by name.
    pub constants: BTreeMap<String, Vec<u8>>,
    /// Names of the HBM tensors that the kernel is applied to.
    pub tensors: BTreeSet<String>,
    /// Table from instructions to ops and source lines; not interpreted here.
    pub line_table: Vec<u8>,
}

/// The stream of one engine with the places that the linker fills in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stream {
    /// Records of the open encoding.
    pub bytes: Vec<u8>,
    /// Fields of the records that depend on the link, in any order.
    pub relocations: Vec<Relocation>,
}

/// A field of a stream that becomes the value of a symbol plus the addend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relocation {
    /// First byte of the field in the stream.
    pub offset: u64,
    /// What the field is.
    pub kind: RelocationKind,
    /// What it refers to.
    pub symbol: Symbol,
    /// Added to the symbol's value.
    pub addend: i64,
}

/// What field a relocation fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RelocationKind {
    /// A variable id, 32 bits.
    Variable,
    /// A semaphore number, 16 bits.
    Semaphore,
}

/// What a relocation refers to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Symbol {
    /// The variable id of an HBM tensor that the kernel is applied to.
    Tensor(String),
    /// The variable id of a constant of this object.
    Constant(String),
    /// The first of the semaphores given to this instance of the kernel.
    SemaphoreBase,
}

impl RelocationKind {
    /// The ELF relocation type.
    pub fn elf_type(self) -> u32 {
        match self {
            RelocationKind::Variable => 1,
            RelocationKind::Semaphore => 2,
        }
    }

    /// Bytes of the field.
    pub fn width_bytes(self) -> usize {
        match self {
            RelocationKind::Variable => 4,
            RelocationKind::Semaphore => 2,
        }
    }

    fn of_elf_type(elf_type: u32) -> Option<Self> {
        [RelocationKind::Variable, RelocationKind::Semaphore].into_iter().find(|kind| kind.elf_type() == elf_type)
    }
}

impl Symbol {
    /// The name in the ELF symbol table.
    pub fn elf_name(&self) -> String {
        match self {
            Symbol::Tensor(name) => format!("{TENSOR}{name}"),
            Symbol::Constant(name) => format!("{CONSTANT}{name}"),
            Symbol::SemaphoreBase => SEMAPHORES.to_owned(),
        }
    }

    fn of_elf_name(name: &str) -> Option<Self> {
        if name == SEMAPHORES {
            return Some(Symbol::SemaphoreBase);
        }
        let tensor = name.strip_prefix(TENSOR).map(|name| Symbol::Tensor(name.to_owned()));
        tensor.or_else(|| name.strip_prefix(CONSTANT).map(|name| Symbol::Constant(name.to_owned())))
    }
}

impl KernelObject {
    /// The object as an ELF file; the same object gives the same bytes.
    ///
    /// # Errors
    /// [`Code::Unwritable`] for a relocation outside its stream or to a symbol that the object does not have, and for a
    /// name that holds a NUL.
    pub fn write(&self) -> Result<Vec<u8>, Error> {
        self.check().map_err(|reason| Error::new(Code::Unwritable, Place::default(), reason))?;
        write::write(self)
    }

    /// Reads an ELF file that [`KernelObject::write`] made, or that has its form.
    ///
    /// # Errors
    /// [`Code::BadObject`] for anything else.
    pub fn read(file: &[u8]) -> Result<Self, Error> {
        let object = read::read(file)?;
        object.check().map_err(|reason| Error::new(Code::BadObject, Place::default(), reason))?;
        Ok(object)
    }

    /// The streams with all relocations applied. `value_of` gives variable ids and the semaphore base.
    ///
    /// # Errors
    /// [`Code::BadObject`] when a symbol has no value or the sum does not fit its field.
    pub fn link(&self, mut value_of: impl FnMut(&Symbol) -> Option<u32>) -> Result<BTreeMap<Engine, Vec<u8>>, Error> {
        self.check().map_err(|reason| Error::new(Code::BadObject, Place::default(), reason))?;
        let mut linked = BTreeMap::new();
        for (engine, stream) in &self.streams {
            let mut bytes = stream.bytes.clone();
            for relocation in &stream.relocations {
                let fault = |reason: String| {
                    let section = format!("{TEXT}{}", engine.name());
                    Error::new(Code::BadObject, Place::member_byte(section, relocation.offset), reason)
                };
                let name = || relocation.symbol.elf_name();
                let value = value_of(&relocation.symbol).ok_or_else(|| fault(format!("`{}` has no value", name())))?;
                let sum = i128::from(value) + i128::from(relocation.addend);
                let width = relocation.kind.width_bytes();
                if sum < 0 || sum >> (8 * width) != 0 {
                    return Err(fault(format!("`{}` + addend is {sum}, the field has {width} bytes", name())));
                }
                let start = usize::try_from(relocation.offset).expect("the check found the field in the stream");
                bytes[start..start + width].copy_from_slice(&sum.to_le_bytes()[..width]);
            }
            linked.insert(*engine, bytes);
        }
        Ok(linked)
    }

    /// What keeps the object from being one, in words.
    fn check(&self) -> Result<(), String> {
        let names = self.constants.keys().chain(&self.tensors).chain([&self.name]);
        if let Some(name) = names.into_iter().find(|name| name.contains('\0')) {
            return Err(format!("the name `{}` holds a NUL", name.escape_debug()));
        }
        for (engine, stream) in &self.streams {
            for relocation in &stream.relocations {
                let end = relocation.offset.checked_add(relocation.kind.width_bytes() as u64);
                if end.is_none_or(|end| end > stream.bytes.len() as u64) {
                    let (at, n_bytes) = (relocation.offset, stream.bytes.len());
                    return Err(format!("relocation at byte {at} of the {n_bytes} of the {} stream", engine.name()));
                }
                let is_known = match &relocation.symbol {
                    Symbol::Tensor(name) => self.tensors.contains(name),
                    Symbol::Constant(name) => self.constants.contains_key(name),
                    Symbol::SemaphoreBase => true,
                };
                if !is_known {
                    return Err(format!("relocation to `{}`, which the object lacks", relocation.symbol.elf_name()));
                }
            }
        }
        Ok(())
    }
}
