//! Kernel objects: what is written is read back, links as asked, is an ELF file to everyone else's tools, and no bytes
//! make the reader panic.

use ir::program::Engine;
use neff::Code;
use neff::kernel_object::{KernelObject, Relocation, RelocationKind, Stream, Symbol};
use object::{Object, ObjectSection, ObjectSymbol};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::{Strategy, any, prop_assert_eq, proptest};
use proptest::sample::{Index, select};
use std::collections::BTreeMap;
use std::process::Command;

fn kernel() -> KernelObject {
    let relocation = |offset, kind, symbol, addend| Relocation { offset, kind, symbol, addend };
    KernelObject {
        name: "rms_norm_0".to_owned(),
        streams: BTreeMap::from([
            (Engine::Act, Stream { bytes: vec![1; 512], relocations: Vec::new() }),
            (
                Engine::Sp,
                Stream {
                    bytes: vec![2; 256],
                    relocations: vec![
                        relocation(36, RelocationKind::Variable, Symbol::Tensor("x".to_owned()), 0),
                        relocation(116, RelocationKind::Variable, Symbol::Constant("gamma".to_owned()), 1),
                        relocation(12, RelocationKind::Semaphore, Symbol::SemaphoreBase, 3),
                    ],
                },
            ),
        ]),
        constants: BTreeMap::from([("gamma".to_owned(), vec![9; 100])]),
        tensors: ["x".to_owned(), "y".to_owned()].into(),
        line_table: b"lines".to_vec(),
    }
}

#[test]
fn an_object_reads_back_and_is_deterministic() {
    let bytes = kernel().write().unwrap();
    assert_eq!(KernelObject::read(&bytes).unwrap(), kernel());
    assert_eq!(kernel().write().unwrap(), bytes);
    let empty = KernelObject::default();
    assert_eq!(KernelObject::read(&empty.write().unwrap()).unwrap(), empty);
}

#[test]
fn linking_fills_the_fields() {
    let linked = kernel()
        .link(|symbol| match symbol {
            Symbol::Tensor(name) => (name == "x").then_some(0x0102_0304),
            Symbol::Constant(_) => Some(41),
            Symbol::SemaphoreBase => Some(0x1000),
        })
        .unwrap();
    let mut expected = vec![2; 256];
    expected[36..40].copy_from_slice(&[4, 3, 2, 1]);
    expected[116..120].copy_from_slice(&[42, 0, 0, 0]);
    expected[12..14].copy_from_slice(&[3, 0x10]);
    assert_eq!(linked[&Engine::Sp], expected);
    assert_eq!(linked[&Engine::Act], vec![1; 512]);
}

#[test]
fn linking_refuses_what_does_not_fit() {
    let refused = |value: Option<u32>| kernel().link(|_| value).unwrap_err().to_string();
    assert_eq!(refused(None), ".text.sp, byte 36: `tensor.x` has no value [bad-object]");
    assert_eq!(
        refused(Some(65_533)),
        ".text.sp, byte 12: `semaphore.base` + addend is 65536, the field has 2 bytes [bad-object]"
    );
    let mut negative = kernel();
    negative.streams.get_mut(&Engine::Sp).unwrap().relocations[0].addend = -2;
    assert_eq!(negative.link(|_| Some(1)).unwrap_err().code, Code::BadObject);
}

#[test]
fn relocations_must_lie_in_their_stream_and_name_what_exists() {
    let refused = |change: &dyn Fn(&mut Relocation)| {
        let mut kernel = kernel();
        change(&mut kernel.streams.get_mut(&Engine::Sp).unwrap().relocations[0]);
        kernel.write().unwrap_err()
    };
    assert!(refused(&|relocation| relocation.offset = 253).reason.contains("byte 253 of the 256"));
    assert_eq!(refused(&|relocation| relocation.offset = u64::MAX).code, Code::Unwritable);
    let missing = refused(&|relocation| relocation.symbol = Symbol::Tensor("z".to_owned()));
    assert_eq!(missing.reason, "relocation to `tensor.z`, which the object lacks");
}

#[test]
fn a_general_elf_reader_sees_sections_symbols_and_relocations() {
    let bytes = kernel().write().unwrap();
    let elf = object::read::elf::ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
    assert_eq!(elf.kind(), object::ObjectKind::Relocatable);
    let header = elf.elf_header();
    assert_eq!(header.e_machine.get(object::Endianness::Little), object::elf::EM_NONE);
    let sections: Vec<_> = elf.sections().map(|section| (section.name().unwrap().to_owned(), section.size())).collect();
    let content = [(".text.act", 512), (".text.sp", 256), (".rodata.gamma", 100), (".neffuse.lines", 5)];
    for (name, size) in content {
        assert!(sections.contains(&(name.to_owned(), size)), "{name} in {sections:?}");
    }
    let text = elf.section_by_name(".text.act").unwrap();
    assert_eq!((text.align(), text.data().unwrap()), (256, &[1; 512][..]));
    let symbol = |name: &str| elf.symbols().find(|symbol| symbol.name() == Ok(name)).unwrap();
    assert!(symbol("tensor.x").is_undefined() && symbol("semaphore.base").is_undefined());
    assert!(symbol("const.gamma").is_definition());
    assert_eq!(symbol("const.gamma").size(), 100);
    assert_eq!(elf.section_by_name(".text.sp").unwrap().relocations().count(), 3);
}

#[test]
fn the_binutils_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kernel.o");
    std::fs::write(&path, kernel().write().unwrap()).unwrap();
    for (tool, arguments, expected) in [
        (
            "readelf",
            &["-aW"][..],
            &[".text.act", ".rela.text.sp", "tensor.x", "Machine:                           None"][..],
        ),
        ("objdump", &["-h"], &[".text.sp", ".rodata.gamma"]),
        ("nm", &[], &["U tensor.x", "U semaphore.base", "R const.gamma"]),
    ] {
        // Not every machine has the tools; the general reader above covers the rest.
        let Ok(output) = Command::new(tool).args(arguments).arg(&path).output() else { continue };
        let (text, faults) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && faults.is_empty(), "{tool}: {faults}");
        for part in expected {
            assert!(text.contains(part), "{tool} does not print `{part}`:\n{text}");
        }
    }
}

#[test]
fn other_elf_files_are_refused_by_name() {
    let bytes = kernel().write().unwrap();
    let refused = |at: usize, value: u8| {
        let mut damaged = bytes.clone();
        damaged[at] = value;
        KernelObject::read(&damaged).unwrap_err().reason
    };
    assert!(refused(0, 0).starts_with("no 64-bit ELF file"));
    assert_eq!(refused(5, 2), "the ELF file is not little-endian");
    assert_eq!(refused(16, 2), "the ELF file is not a relocatable object without a machine");
    assert_eq!(refused(18, 62), "the ELF file is not a relocatable object without a machine");
    assert_eq!(refused(48, 9), "the object's version is 9, this tool reads 1");
    assert_eq!(KernelObject::read(&[]).unwrap_err().code, Code::BadObject);
}

fn kernels() -> impl Strategy<Value = KernelObject> {
    let names = || "[a-zA-Z0-9_./ -]{0,12}";
    let bytes = || vec(any::<u8>(), 0..300);
    let parts = (names(), btree_map(names(), bytes(), 0..4), btree_set(names(), 0..4), bytes());
    let wishes = vec((any::<Index>(), 0..3_u8, any::<Index>(), any::<i64>()), 0..6);
    let streams = btree_map(select(&Engine::ALL[..]), (bytes(), wishes), 0..5);
    (parts, streams).prop_map(|((name, constants, tensors, line_table), streams)| {
        let mut kernel = KernelObject { name, streams: BTreeMap::new(), constants, tensors, line_table };
        let tensors: Vec<String> = kernel.tensors.iter().cloned().collect();
        let constants: Vec<String> = kernel.constants.keys().cloned().collect();
        for (engine, (bytes, wishes)) in streams {
            let mut relocations = Vec::new();
            for (at, kind, which, addend) in wishes {
                let (kind, symbol) = match kind {
                    0 if !tensors.is_empty() => (RelocationKind::Variable, Symbol::Tensor(which.get(&tensors).clone())),
                    1 if !constants.is_empty() => {
                        (RelocationKind::Variable, Symbol::Constant(which.get(&constants).clone()))
                    }
                    _ => (RelocationKind::Semaphore, Symbol::SemaphoreBase),
                };
                let Some(room) = bytes.len().checked_sub(kind.width_bytes()) else { continue };
                relocations.push(Relocation { offset: at.index(room + 1) as u64, kind, symbol, addend });
            }
            kernel.streams.insert(engine, Stream { bytes, relocations });
        }
        kernel
    })
}

proptest! {
    #[test]
    fn any_object_reads_back(kernel in kernels()) {
        prop_assert_eq!(KernelObject::read(&kernel.write().unwrap()).unwrap(), kernel);
    }

    #[test]
    fn damaged_objects_never_panic(
        kernel in kernels(),
        cut in any::<Index>(),
        changes in vec((any::<Index>(), any::<u8>()), 0..6),
    ) {
        let mut bytes = kernel.write().unwrap();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        for bytes in [&bytes[..], &bytes[..cut.index(bytes.len() + 1)]] {
            if let Ok(kernel) = KernelObject::read(bytes) {
                let _ = kernel.link(|_| Some(1));
            }
        }
    }
}
