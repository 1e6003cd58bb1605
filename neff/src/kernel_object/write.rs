//! From kernel objects to ELF.
//!
//! Uses the low-level ELF writer: the high-level one refuses a machine that it does not know.

use super::{CONSTANT, KernelObject, LINES, RELA, RODATA, SEMAPHORES, Stream, Symbol, TENSOR, TEXT, VERSION};
use crate::isa::RECORD_BYTES;
use crate::{Code, Error, Place};
use object::Endianness;
use object::elf;
use object::write::StringId;
use object::write::elf::{FileHeader, Rel, SectionHeader, SectionIndex, Sym, Writer};
use std::collections::BTreeMap;

const DATA_ALIGNMENT: u64 = 64;

/// A section whose content is known before it is written.
struct Content<'a> {
    name: String,
    bytes: &'a [u8],
    flags: elf::SectionFlags,
    alignment: u64,
    stream: Option<&'a Stream>,
}

struct Placed<'a> {
    content: &'a Content<'a>,
    index: SectionIndex,
    name: StringId,
    offset: u64,
}

struct PlacedRela<'a> {
    stream: &'a Stream,
    section: SectionIndex,
    name: StringId,
    offset: u64,
}

pub(super) fn write(kernel: &KernelObject) -> Result<Vec<u8>, Error> {
    let contents = contents(kernel);
    let rela_names: Vec<String> = contents.iter().map(|content| format!("{RELA}{}", content.name)).collect();
    let symbols = symbols(kernel);
    let mut file = Vec::new();
    let mut writer = Writer::new(Endianness::Little, true, &mut file);
    writer.reserve_file_header();
    let placed: Vec<Placed<'_>> = contents.iter().map(|content| place(&mut writer, content)).collect();
    let mut relas = Vec::new();
    for (section, rela_name) in placed.iter().zip(&rela_names) {
        let Some(stream) = section.content.stream.filter(|stream| !stream.relocations.is_empty()) else { continue };
        writer.reserve_section_index();
        let name = writer.add_section_name(rela_name.as_bytes());
        let offset = writer.reserve_relocations(stream.relocations.len(), true);
        relas.push(PlacedRela { stream, section: section.index, name, offset });
    }
    writer.reserve_null_symbol_index();
    let mut names = vec![writer.add_string(kernel.name.as_bytes())];
    writer.reserve_symbol_index(None);
    for (name, section) in &symbols {
        names.push(writer.add_string(name.as_bytes()));
        writer.reserve_symbol_index(section.map(|position| placed[position].index));
    }
    let symtab = writer.reserve_symtab_section_index();
    writer.reserve_symtab();
    writer.reserve_symtab_shndx();
    writer.reserve_strtab_section_index();
    writer.reserve_strtab().map_err(|error| unwritable(&error))?;
    writer.reserve_shstrtab_section_index();
    writer.reserve_shstrtab().map_err(|error| unwritable(&error))?;
    writer.reserve_section_headers();

    write_header(&mut writer)?;
    for section in &placed {
        writer.pad_until(section.offset);
        writer.write(section.content.bytes);
    }
    let positions = symbols.iter().enumerate().map(|(position, (name, _))| (name.as_str(), position)).collect();
    for rela in &relas {
        write_relocations(&mut writer, rela, &positions);
    }
    write_symbols(&mut writer, &names, &symbols, &placed);
    writer.write_strtab();
    writer.write_shstrtab();
    writer.write_null_section_header();
    for section in &placed {
        write_section_header(&mut writer, section);
    }
    for rela in &relas {
        let n_relocations = rela.stream.relocations.len();
        writer.write_relocation_section_header(rela.name, rela.section, symtab, rela.offset, n_relocations, true);
    }
    // The null symbol and the file symbol are local.
    writer.write_symtab_section_header(2);
    writer.write_strtab_section_header();
    writer.write_shstrtab_section_header();
    Ok(file)
}

fn contents(kernel: &KernelObject) -> Vec<Content<'_>> {
    let streams = kernel.streams.iter().map(|(engine, stream)| Content {
        name: format!("{TEXT}{}", engine.name()),
        bytes: &stream.bytes,
        flags: elf::SHF_ALLOC | elf::SHF_EXECINSTR,
        alignment: RECORD_BYTES as u64,
        stream: Some(stream),
    });
    let constants = kernel.constants.iter().map(|(name, bytes)| Content {
        name: format!("{RODATA}{name}"),
        bytes,
        flags: elf::SHF_ALLOC,
        alignment: DATA_ALIGNMENT,
        stream: None,
    });
    let lines = Content {
        name: LINES.to_owned(),
        bytes: &kernel.line_table,
        flags: elf::SectionFlags(0),
        alignment: 1,
        stream: None,
    };
    streams.chain(constants).chain([lines]).collect()
}

/// Global symbols: ELF name, and the position in [`contents`] of the section that defines it.
fn symbols(kernel: &KernelObject) -> Vec<(String, Option<usize>)> {
    let n_streams = kernel.streams.len();
    let defined = kernel.constants.keys().enumerate();
    let defined = defined.map(|(position, name)| (format!("{CONSTANT}{name}"), Some(n_streams + position)));
    let undefined = kernel.tensors.iter().map(|name| (format!("{TENSOR}{name}"), None));
    let mut symbols: Vec<_> = defined.chain(undefined).collect();
    let mut relocations = kernel.streams.values().flat_map(|stream| &stream.relocations);
    if relocations.any(|relocation| relocation.symbol == Symbol::SemaphoreBase) {
        symbols.push((SEMAPHORES.to_owned(), None));
    }
    symbols
}

fn place<'a>(writer: &mut Writer<'a>, content: &'a Content<'a>) -> Placed<'a> {
    let index = writer.reserve_section_index();
    let name = writer.add_section_name(content.name.as_bytes());
    let offset = writer.reserve(content.bytes.len() as u64, content.alignment);
    Placed { content, index, name, offset }
}

fn write_header(writer: &mut Writer<'_>) -> Result<(), Error> {
    let header = FileHeader {
        os_abi: elf::ELFOSABI_NONE,
        abi_version: 0,
        e_type: elf::ET_REL,
        e_machine: elf::EM_NONE,
        e_entry: 0,
        e_flags: elf::FileFlags(VERSION),
    };
    writer.write_file_header(&header).map_err(|error| unwritable(&error))
}

fn write_relocations(writer: &mut Writer<'_>, rela: &PlacedRela<'_>, positions: &BTreeMap<&str, usize>) {
    writer.pad_until(rela.offset);
    for relocation in &rela.stream.relocations {
        let position = positions.get(relocation.symbol.elf_name().as_str());
        // The null and the file symbol come first.
        let position = position.expect("the object was checked to have every symbol") + 2;
        writer.write_relocation(
            true,
            &Rel {
                r_offset: relocation.offset,
                r_sym: u32::try_from(position).expect("fewer than 2^32 symbols fit in memory"),
                r_type: elf::RelocationType(relocation.kind.elf_type()),
                r_addend: relocation.addend,
            },
        );
    }
}

fn write_symbols(
    writer: &mut Writer<'_>,
    names: &[StringId],
    symbols: &[(String, Option<usize>)],
    placed: &[Placed<'_>],
) {
    writer.write_null_symbol();
    let (file_name, names) = names.split_first().expect("the file symbol's name was added first");
    writer.write_symbol(&Sym {
        section: None,
        st_name: writer.string_offset(Some(*file_name)),
        st_info: elf::STB_LOCAL | elf::STT_FILE,
        st_other: elf::SymbolOther(0),
        st_shndx: elf::SHN_ABS,
        st_value: 0,
        st_size: 0,
    });
    for ((_, section), name) in symbols.iter().zip(names) {
        let section = section.map(|position| &placed[position]);
        let kind = if section.is_some() { elf::STT_OBJECT } else { elf::STT_NOTYPE };
        writer.write_symbol(&Sym {
            section: section.map(|section| section.index.0),
            st_name: writer.string_offset(Some(*name)),
            st_info: elf::STB_GLOBAL | kind,
            st_other: elf::SymbolOther(0),
            st_shndx: elf::SHN_UNDEF,
            st_value: 0,
            st_size: section.map_or(0, |section| section.content.bytes.len() as u64),
        });
    }
    writer.write_symtab_shndx();
}

fn write_section_header(writer: &mut Writer<'_>, section: &Placed<'_>) {
    writer.write_section_header(&SectionHeader {
        sh_name: writer.section_name_offset(Some(section.name)),
        sh_type: elf::SHT_PROGBITS,
        sh_flags: section.content.flags,
        sh_addr: 0,
        sh_offset: section.offset,
        sh_size: section.content.bytes.len() as u64,
        sh_link: 0,
        sh_info: 0,
        sh_addralign: section.content.alignment,
        sh_entsize: 0,
    });
}

fn unwritable(error: &object::write::Error) -> Error {
    Error::new(Code::Unwritable, Place::default(), error.to_string().to_lowercase())
}
