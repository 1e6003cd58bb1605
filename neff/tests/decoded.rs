//! A NEFF in the open encoding becomes the program again that it was made from.

use ir::Program;
use ir::graph::{Location, LocationId};
use ir::program::{
    Dim, DmaAccess, DmaDim, DmaPlace, DmaQueue, Engine, HbmId, HbmKind, HbmTensor, Instruction, InstructionKind,
    ProgramPhase, Space, Tile, TileAddress, TileId, TileView,
};
use ir::target::TargetName;
use ir::types::Dtype;
use neff::Code;
use neff::container::{Container, Draft, Members, OPEN_ENCODING_BIT, read, write};
use neff::info::{Report, StreamEncoding};
use neff::isa::encode_stream;
use neff::members::{
    DebugLines, Definition, EngineFile, GraphFile, Kelf, KelfGraph, TensorEntry, TensorKind, TensorMap, Variable,
    VariableKind, engine_file_stem, npy, to_compact_json, to_pretty_json,
};
use proptest::collection::vec;
use proptest::prelude::{any, proptest};
use proptest::sample::{Index, select};
use smallvec::smallvec;
use std::sync::Arc;

/// Loads a [4, 8] input, doubles it in place through a scratch tensor, and stores it.
fn program() -> Program {
    let mut program = Program::new("double", TargetName::Trn2);
    program.phase = ProgramPhase::Synchronized;
    let tensor = |name: &str, kind| HbmTensor {
        name: name.to_owned(),
        kind,
        dtype: Dtype::F32,
        shape: smallvec![4, 8],
        size_bytes: 128,
    };
    let constant: Arc<[u8]> = (0..128).collect::<Vec<u8>>().into();
    program.tensors = vec![
        tensor("x", HbmKind::Input(2)),
        tensor("w", HbmKind::Constant(constant)),
        HbmTensor { dtype: Dtype::U8, shape: smallvec![128], ..tensor("spill", HbmKind::Scratch) },
        tensor("y", HbmKind::Output(0)),
    ];
    program.tiles = vec![Tile {
        label: "t".to_owned(),
        space: Space::Sbuf,
        dtype: Dtype::F32,
        n_partitions: 4,
        bytes_per_partition: 32,
        alignment_bytes: 4,
        address: Some(TileAddress { partition: 32, start_byte: 64 }),
    }];
    program.locations = vec![Location { node: "add".to_owned(), line: "model.py:3".to_owned(), ..Location::default() }];
    let dims =
        smallvec![DmaDim { partition_step: 0, step: 8, count: 4 }, DmaDim { partition_step: 0, step: 1, count: 8 }];
    let hbm = |tensor| DmaAccess { place: DmaPlace::Hbm { tensor: HbmId(tensor) }, offset: 0, dims, dtype: Dtype::F32 };
    let tile = DmaAccess {
        place: DmaPlace::Tile { tile: TileId(0), partition: 0 },
        offset: 0,
        dims: smallvec![
            DmaDim { partition_step: 1, step: 0, count: 4 },
            DmaDim { partition_step: 0, step: 1, count: 8 }
        ],
        dtype: Dtype::F32,
    };
    let view = TileView {
        tile: TileId(0),
        partition: 0,
        n_partitions: 4,
        offset: 0,
        dims: smallvec![Dim { step: 1, count: 8 }],
        dtype: Dtype::F32,
    };
    let dma = |dst, src| InstructionKind::Dma { dst, src, queue: DmaQueue::Hardware, gather: None };
    let mut double = Instruction::new(
        Engine::Dve,
        InstructionKind::TensorTensor { dst: view.clone(), lhs: view.clone(), rhs: view, op: ir::program::AluOp::Add },
    );
    double.locations = smallvec![LocationId(0)];
    program.instructions = vec![
        Instruction::new(Engine::Act, dma(tile.clone(), hbm.clone()(0))),
        double,
        Instruction::new(Engine::Sp, dma(hbm(3), tile)),
    ];
    program
}

fn members(program: &Program) -> Members {
    let mut definition = Definition::with_default_names();
    let mut map = TensorMap::new();
    definition.var.insert("SB".to_owned(), Variable::unsized_of(VariableKind::StateBuffer, 0));
    let mut members = Members::new();
    for (tensor, var_id) in program.tensors.iter().zip(1..) {
        let file = format!("value_{}.npy", tensor.name);
        let (variable, entry) = match &tensor.kind {
            HbmKind::Input(position) => (
                Variable::sized(VariableKind::Input, var_id, tensor.size_bytes),
                TensorEntry {
                    position: Some(*position),
                    ..TensorEntry::io(&tensor.name, TensorKind::Input, "float32", &[4, 8])
                },
            ),
            HbmKind::Output(_) => (
                Variable::sized(VariableKind::Output, var_id, tensor.size_bytes),
                TensorEntry::io(&tensor.name, TensorKind::Output, "float32", &[4, 8]),
            ),
            HbmKind::Constant(data) => {
                members.insert(format!("sg00/{file}"), npy::write("<f4", &[4, 8], data));
                (
                    Variable::file(var_id, tensor.size_bytes, &file),
                    TensorEntry::constant(&tensor.name, "float32", &[4, 8], &file),
                )
            }
            HbmKind::Updated { .. } => unreachable!("the program updates no input"),
            HbmKind::Scratch => {
                let variable = Variable::sized(VariableKind::TmpBuf, var_id, tensor.size_bytes);
                definition.var.insert(tensor.name.clone(), variable);
                continue;
            }
        };
        definition.var.insert(tensor.name.clone(), variable);
        map.insert(tensor.name.clone(), entry);
    }
    let variables: Vec<HbmId> = (1..=program.tensors.len() as u32).map(HbmId).collect();
    for engine in Engine::ALL {
        let stem = engine_file_stem(engine);
        let file = EngineFile { name: format!("{stem}.json"), instr: format!("{stem}.bin"), ..EngineFile::default() };
        members.insert(format!("sg00/{stem}.json"), to_compact_json(&file));
        members.insert(format!("sg00/{stem}.bin"), encode_stream(program, engine, &variables).unwrap());
    }
    let tensor: (&str, &str, &[i64]) = ("x", "float32", &[4, 8]);
    let graph = GraphFile::of_one_kelf(&[tensor], &[("y", "float32", &[4, 8])], 1);
    let subgraph =
        KelfGraph { definition: "sg00/def.json".to_owned(), name: "sg00".to_owned(), ..KelfGraph::default() };
    let kelf = Kelf { graphs: vec![subgraph], target: "cayman".to_owned(), ..Kelf::default() };
    members.insert("kelf-0.json".to_owned(), to_pretty_json(&kelf));
    members.insert("neff.json".to_owned(), to_pretty_json(&graph));
    members.insert("sg00/def.json".to_owned(), to_pretty_json(&definition));
    members.insert("sg00/tensor_map.json".to_owned(), to_pretty_json(&map));
    members.insert(DebugLines::MEMBER.to_owned(), to_compact_json(&DebugLines::of(program)));
    members
}

fn container(members: Members) -> Container {
    let draft = Draft { name: "double".to_owned(), feature_bits: 1 << OPEN_ENCODING_BIT, lnc_size: 1, members };
    read(&write(&draft).unwrap()).unwrap()
}

/// What decoding must give: the absolute form with variable ids as tensor positions, engine by engine.
fn expected() -> Program {
    let mut program = program();
    for instruction in &mut program.instructions {
        let InstructionKind::Dma { dst, src, .. } = &mut instruction.kind else { continue };
        for side in [dst, src] {
            if let DmaPlace::Hbm { tensor } = &mut side.place {
                tensor.0 += 1;
            }
        }
    }
    let state_buffer = HbmTensor {
        name: "SB".to_owned(),
        kind: HbmKind::Scratch,
        dtype: Dtype::U8,
        shape: smallvec![0],
        size_bytes: 0,
    };
    program.tensors.insert(0, state_buffer);
    let mut absolute = program.to_absolute().unwrap();
    absolute.instructions.sort_by_key(|instruction| instruction.engine);
    absolute
}

#[test]
fn a_neff_decodes_to_its_program() {
    assert_eq!(neff::decoded::program(&container(members(&program()))).unwrap(), expected());
}

#[test]
fn the_listing_shows_variables_records_and_sources() {
    let text = neff::objdump::objdump(&container(members(&program()))).unwrap();
    insta::assert_snapshot!(text, @r"
    double for trn2

    %t0 sbuf
    %t1 psum
    %h1 `x` input 2 f32[4, 8] 128 bytes
    %h2 `w` constant f32[4, 8] 128 bytes
    %h3 `spill` scratch u8[128] 128 bytes
    %h4 `y` output 0 f32[4, 8] 128 bytes

    PE (pe), 0 bytes, records: 0

    Activation (act), 256 bytes, records: 1
         0  dma_copy dst=%t0[32, 16+1p+0x4+1x8]:f32 src=%h1[0+8x4+1x8] queue=hardware

    DVE (dve), 256 bytes, records: 1
         0  tensor_tensor dst=%t0[32:36, 16+1x8]:f32 lhs=%t0[32:36, 16+1x8]:f32 rhs=%t0[32:36, 16+1x8]:f32 op=add  // model.py:3 add

    Pool (pool), 0 bytes, records: 0

    SP (sp), 256 bytes, records: 1
         0  dma_copy dst=%h4[0+8x4+1x8] src=%t0[32, 16+1p+0x4+1x8]:f32 queue=hardware
    ");
}

#[test]
fn the_debug_member_gives_locations_and_nothing_else() {
    let mut members = members(&program());
    members.remove(DebugLines::MEMBER);
    let mut expected = expected();
    expected.locations.clear();
    expected.instructions.iter_mut().for_each(|instruction| instruction.locations.clear());
    assert_eq!(neff::decoded::program(&container(members)).unwrap(), expected);
}

#[test]
fn members_that_do_not_fit_together_are_refused_by_name() {
    let refused = |change: &dyn Fn(&mut Members)| {
        let mut members = members(&program());
        change(&mut members);
        neff::decoded::program(&container(members)).unwrap_err().to_string()
    };
    let replaced = |member: &'static str, from: &'static str, to: &'static str| {
        refused(&move |members| {
            let text = String::from_utf8(members[member].clone()).unwrap();
            assert!(text.contains(from), "{from} in {text}");
            members.insert(member.to_owned(), text.replacen(from, to, 1).into_bytes());
        })
    };
    for (refusal, expected) in [
        (replaced("kelf-0.json", "cayman", "gen9"), "kelf-0.json: target `gen9` is none that this tool knows"),
        (
            replaced("sg00/def.json", "\"var_id\": 4", "\"var_id\": 9"),
            "variable `y`: id 9 is not below the 5 variables",
        ),
        (replaced("sg00/def.json", "\"var_id\": 4", "\"var_id\": 2"), "id 2 stands twice"),
        (
            replaced(
                "sg00/def.json",
                "\"size\": 128,\n            \"type\": \"file\"",
                "\"size\": 96,\n            \"type\": \"file\"",
            ),
            "variable `w`: its size is not that of `value_w.npy`, 128 bytes",
        ),
        (
            replaced("sg00/tensor_map.json", "float32", "float7"),
            "sg00/tensor_map.json: `w`: element type `float7` is not known",
        ),
        (
            replaced("sg00/tensor_map.json", "\"tf_shape\": [\n            4", "\"tf_shape\": [\n            -4"),
            "a dimension is negative",
        ),
        (
            replaced(
                "neff.json",
                "\"output_names\": [\n                \"y\"",
                "\"output_names\": [\n                \"z\"",
            ),
            "variable `y`: neff.json does not list it",
        ),
        (refused(&|members| drop(members.remove("sg00/DVE.bin"))), "sg00/DVE.bin: the archive has no such member"),
        (
            refused(&|members| drop(members.remove("sg00/value_w.npy"))),
            "sg00/value_w.npy: the archive has no such member",
        ),
        (
            refused(&|members| members.get_mut("sg00/DVE.bin").unwrap()[0] = 0),
            "sg00/DVE.bin, byte 0: record 0: opcode 0x00",
        ),
    ] {
        assert!(refusal.contains(expected), "{expected}: {refusal}");
    }
    let mut foreign = container(members(&program()));
    foreign.header.feature_bits = 0;
    let refusal = neff::decoded::program(&foreign).unwrap_err();
    assert_eq!(refusal.code, Code::BadInstruction);
    assert!(refusal.to_string().contains("opaque: feature bit 62 is not set"));
}

proptest! {
    #[test]
    fn changed_members_never_panic(
        which in any::<Index>(),
        changes in vec((any::<Index>(), select(b"0193-\"{}[],:.eax ".to_vec())), 1..6),
    ) {
        let mut container = container(members(&program()));
        let names: Vec<String> = container.members.keys().filter(|name| name.ends_with(".json")).cloned().collect();
        let bytes = container.members.get_mut(which.get(&names)).unwrap();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        drop(Report::of(&container).to_string());
        let _ = neff::decoded::program(&container);
    }
}

#[test]
fn the_report_counts_instructions_and_says_who_executes_them() {
    let container = container(members(&program()));
    let report = Report::of(&container);
    assert_eq!(report.encoding.streams, StreamEncoding::Open);
    assert!(report.encoding.statement.contains("Only this project's tools execute it"));
    let counts = |engine: &str| {
        let engine = report.cores[0].engines.iter().find(|report| report.engine == engine).unwrap();
        engine.instructions.clone().unwrap().into_iter().collect::<Vec<_>>()
    };
    assert_eq!(counts("act"), [("dma_copy", 1)]);
    assert_eq!(counts("dve"), [("tensor_tensor", 1)]);
    assert_eq!(counts("pe"), []);
    assert_eq!(report.features[0].name, "neffuse-open-encoding");
    assert_eq!(report.unknown_keys, Vec::<String>::new());
    // Only info.json was left out above.
    assert_eq!(report.warnings, ["info.json: the archive has no such member [missing-member]"]);
    let text = report.to_string();
    assert!(text.contains("sg00  dve     sg00/DVE.bin         256    4              1 tensor_tensor"), "{text}");
}
