//! From ELF to kernel objects, trusting nothing.

use super::{KernelObject, LINES, RELA, RODATA, Relocation, RelocationKind, Symbol, TEXT, VERSION};
use crate::{Code, Error, Place};
use ir::program::Engine;
use object::LittleEndian;
use object::elf::{self, FileHeader64, Rela64, SectionHeader64};
use object::read::elf::{FileHeader, Rela, SectionHeader, SectionTable, SymbolTable};

type Elf = FileHeader64<LittleEndian>;
const LITTLE: LittleEndian = LittleEndian;

pub(super) fn read(file: &[u8]) -> Result<KernelObject, Error> {
    let reader = Reader::new(file)?;
    let mut kernel = KernelObject { name: reader.kernel_name()?, ..KernelObject::default() };
    // Sections may overlap in a hostile file: all copies together must not exceed the file.
    let mut left = file.len();
    for (index, section) in reader.sections.enumerate() {
        if index.0 == 0 || section.sh_type(LITTLE) != elf::SHT_PROGBITS {
            continue;
        }
        let name = reader.section_name(section)?;
        let bytes = section.data(LITTLE, file).map_err(|error| bad(section, &error))?;
        left = left.checked_sub(bytes.len()).ok_or_else(|| fault(format!("sections overlap at `{name}`")))?;
        let is_new = if let Some(engine) = name.strip_prefix(TEXT) {
            let engine = engine_of(engine)?;
            let is_new = !kernel.streams.contains_key(&engine);
            kernel.streams.entry(engine).or_default().bytes = bytes.to_owned();
            is_new
        } else if let Some(constant) = name.strip_prefix(RODATA) {
            kernel.constants.insert(constant.to_owned(), bytes.to_owned()).is_none()
        } else if name == LINES {
            let is_new = kernel.line_table.is_empty();
            kernel.line_table = bytes.to_owned();
            is_new
        } else {
            return Err(fault(format!("section `{}` is none of a kernel's", name.escape_debug())));
        };
        if !is_new {
            return Err(fault(format!("section `{name}` stands twice")));
        }
    }
    for section in reader.sections.iter() {
        reader.relocations(section, &mut kernel)?;
    }
    for symbol in reader.symbols.iter().skip(1) {
        if let Some(Symbol::Tensor(name)) = reader.global(symbol)? {
            kernel.tensors.insert(name);
        }
    }
    Ok(kernel)
}

struct Reader<'a> {
    file: &'a [u8],
    sections: SectionTable<'a, Elf>,
    symbols: SymbolTable<'a, Elf>,
}

impl<'a> Reader<'a> {
    fn new(file: &'a [u8]) -> Result<Self, Error> {
        let header = Elf::parse(file).map_err(|error| fault(format!("no 64-bit ELF file: {error}")))?;
        let ident = header.e_ident();
        if ident.data != elf::ELFDATA2LSB {
            return Err(fault("the ELF file is not little-endian"));
        }
        if header.e_type(LITTLE) != elf::ET_REL || header.e_machine(LITTLE) != elf::EM_NONE {
            return Err(fault("the ELF file is not a relocatable object without a machine"));
        }
        let version = header.e_flags(LITTLE).0;
        if version != VERSION {
            return Err(fault(format!("the object's version is {version}, this tool reads {VERSION}")));
        }
        let sections = header.sections(LITTLE, file).map_err(|error| fault(lower(&error)))?;
        let symbols = sections.symbols(LITTLE, file, elf::SHT_SYMTAB).map_err(|error| fault(lower(&error)))?;
        Ok(Reader { file, sections, symbols })
    }

    fn section_name(&self, section: &SectionHeader64<LittleEndian>) -> Result<&'a str, Error> {
        let name = self.sections.section_name(LITTLE, section).map_err(|error| bad(section, &error))?;
        std::str::from_utf8(name).map_err(|_| fault("a section name is not UTF-8"))
    }

    fn symbol_name(&self, symbol: &elf::Sym64<LittleEndian>) -> Result<&'a str, Error> {
        let name = self.symbols.symbol_name(LITTLE, symbol).map_err(|error| fault(lower(&error)))?;
        std::str::from_utf8(name).map_err(|_| fault("a symbol name is not UTF-8"))
    }

    /// The name of the file symbol.
    fn kernel_name(&self) -> Result<String, Error> {
        let file_symbol = self.symbols.iter().find(|symbol| symbol.st_type() == elf::STT_FILE);
        let file_symbol = file_symbol.ok_or_else(|| fault("no file symbol names the kernel"))?;
        self.symbol_name(file_symbol).map(str::to_owned)
    }

    /// What a global symbol stands for; `None` for others.
    fn global(&self, symbol: &elf::Sym64<LittleEndian>) -> Result<Option<Symbol>, Error> {
        if symbol.st_bind() != elf::STB_GLOBAL {
            return Ok(None);
        }
        let name = self.symbol_name(symbol)?;
        let known = Symbol::of_elf_name(name);
        known.map(Some).ok_or_else(|| fault(format!("symbol `{}` is none of a kernel's", name.escape_debug())))
    }

    fn relocations(&self, section: &SectionHeader64<LittleEndian>, kernel: &mut KernelObject) -> Result<(), Error> {
        let Some((entries, _)) = section.rela(LITTLE, self.file).map_err(|error| bad(section, &error))? else {
            return Ok(());
        };
        let name = self.section_name(section)?;
        let engine = name.strip_prefix(RELA).and_then(|name| name.strip_prefix(TEXT));
        let engine = engine_of(engine.ok_or_else(|| fault(format!("`{}` is of no stream", name.escape_debug())))?)?;
        let Some(stream) = kernel.streams.get_mut(&engine) else {
            return Err(fault(format!("relocations of the {} stream, which is missing", engine.name())));
        };
        if !stream.relocations.is_empty() {
            return Err(fault(format!("section `{name}` stands twice")));
        }
        for entry in entries {
            stream.relocations.push(self.relocation(entry)?);
        }
        Ok(())
    }

    fn relocation(&self, entry: &Rela64<LittleEndian>) -> Result<Relocation, Error> {
        let elf_type = entry.r_type(LITTLE, false).0;
        let kind = RelocationKind::of_elf_type(elf_type);
        let symbol = self.symbols.symbol(object::SymbolIndex(entry.r_sym(LITTLE, false) as usize));
        let symbol = symbol.map_err(|error| fault(lower(&error)))?;
        Ok(Relocation {
            offset: entry.r_offset(LITTLE),
            kind: kind.ok_or_else(|| fault(format!("relocation type {elf_type} is not assigned")))?,
            symbol: self.global(symbol)?.ok_or_else(|| fault("a relocation refers to a local symbol"))?,
            addend: entry.r_addend(LITTLE),
        })
    }
}

fn engine_of(name: &str) -> Result<Engine, Error> {
    let found = Engine::ALL.into_iter().find(|engine| engine.name() == name);
    found.ok_or_else(|| fault(format!("`{}` is no engine", name.escape_debug())))
}

fn fault(reason: impl Into<String>) -> Error {
    Error::new(Code::BadObject, Place::default(), reason)
}

fn bad(section: &SectionHeader64<LittleEndian>, error: &object::read::Error) -> Error {
    Error::new(Code::BadObject, Place::byte(section.sh_offset(LITTLE)), lower(error))
}

fn lower(error: &object::read::Error) -> String {
    error.to_string().to_lowercase()
}
