//! Instruction codec: every instruction encodes and decodes to itself, any bytes decode or are refused by name, and the
//! document says what the code does.

use ir::program::{
    ActivationFunction, AluOp, Dim, DmaAccess, DmaDim, DmaPlace, DmaQueue, Engine, Gather, HbmId, Instruction,
    InstructionKind, PSUM_TILE, Program, ReduceCommand, SBUF_TILE, ScalarOperand, Space, TableSet, Tile, TileAddress,
    TileId, TileView, Update, Wait,
};
use ir::target::TargetName;
use ir::types::Dtype;
use neff::Code;
use neff::isa::{
    Addresses, DST_VARIABLE_AT, OPCODES, RECORD_BYTES, SRC_VARIABLE_AT, UPDATE_SEMAPHORE_AT, VERSION,
    WAIT_SEMAPHORE_AT, code_tables, decode_record, decode_stream, encode_record, encode_stream, opcode,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{BoxedStrategy, Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::sample::select;
use smallvec::{SmallVec, smallvec};

const N_KINDS: usize = 22;
const VARIABLES: [HbmId; 3] = [HbmId(7), HbmId(1), HbmId(70_000)];

/// Two tiles per memory, at addresses that fit every element size.
fn tiles() -> Vec<Tile> {
    let tile = |space, partition, start_byte| Tile {
        label: String::new(),
        space,
        dtype: Dtype::F32,
        n_partitions: 64,
        bytes_per_partition: 1 << 14,
        alignment_bytes: 8,
        address: Some(TileAddress { partition, start_byte }),
    };
    vec![
        tile(Space::Sbuf, 0, 0),
        tile(Space::Psum, 0, 4096),
        tile(Space::Sbuf, 32, 98_304),
        tile(Space::Psum, 64, 2048),
    ]
}

fn program_addresses(tiles: &[Tile]) -> Addresses<'_> {
    Addresses::Program { tiles, variables: &VARIABLES }
}

fn views() -> impl Strategy<Value = TileView> {
    let dims = vec((any::<i16>(), 1..=u16::MAX), 0..=4);
    let dtypes = select(&Dtype::ALL[..]);
    (0..4_u32, 0..128_u8, 0..=128_u8, 0..100_000_u32, dims, dtypes).prop_map(
        |(tile, partition, n_partitions, offset, dims, dtype)| TileView {
            tile: TileId(tile),
            partition,
            n_partitions,
            offset,
            dims: dims.into_iter().map(|(step, count)| Dim { step, count }).collect(),
            dtype,
        },
    )
}

fn sides() -> impl Strategy<Value = DmaAccess> {
    let hbm = (0..3_u32).prop_map(|tensor| DmaPlace::Hbm { tensor: HbmId(tensor) });
    let tile = (0..4_u32, 0..128_u8).prop_map(|(tile, partition)| DmaPlace::Tile { tile: TileId(tile), partition });
    let dims = vec((any::<i16>(), any::<i64>(), 1..=u32::MAX), 0..=4);
    (prop_oneof![hbm, tile], 0..1_u64 << 40, dims, select(&Dtype::ALL[..])).prop_map(|(place, offset, dims, dtype)| {
        let dim = |(partition_step, step, count)| DmaDim { partition_step, step, count };
        DmaAccess { place, offset, dims: dims.into_iter().map(dim).collect(), dtype }
    })
}

fn operands() -> impl Strategy<Value = ScalarOperand> {
    let immediate = any::<f32>().prop_map(ScalarOperand::Immediate);
    prop_oneof![immediate, views().prop_map(ScalarOperand::Vector)]
}

fn operators() -> impl Strategy<Value = AluOp> {
    select(AluOp::VALUES)
}

fn functions() -> impl Strategy<Value = ActivationFunction> {
    select(ActivationFunction::VALUES)
}

fn table_sets() -> impl Strategy<Value = TableSet> {
    select(TableSet::VALUES)
}

/// Instructions of the kind at this position in the opcode table.
fn kind_at(position: usize) -> BoxedStrategy<InstructionKind> {
    let pair = || (views(), views());
    match position {
        0 => {
            let reduce = option::of(select(ReduceCommand::VALUES));
            (functions(), pair(), operands(), operands(), reduce, option::of(views()))
                .prop_map(|(function, (dst, data), scale, bias, reduce, reduce_result)| InstructionKind::Activation {
                    function,
                    dst,
                    data,
                    scale,
                    bias,
                    reduce,
                    reduce_result,
                })
                .boxed()
        }
        1 => (pair(), operators(), operands(), any::<bool>(), option::of((operators(), operands(), any::<bool>())))
            .prop_map(|((dst, data), op0, operand0, reverse0, second)| InstructionKind::TensorScalar {
                dst,
                data,
                op0,
                operand0,
                reverse0,
                second,
            })
            .boxed(),
        2 => {
            (pair(), operators(), operands(), operators(), views())
                .prop_map(|((dst, data), op0, operand0, reduce_op, reduce_result)| {
                    InstructionKind::TensorScalarReduce { dst, data, op0, operand0, reduce_op, reduce_result }
                })
                .boxed()
        }
        3 => (pair(), operators(), operands(), any::<(bool, bool)>(), operators(), views())
            .prop_map(|((dst, data), op0, operand0, (reverse0, reverse1), op1, operand1)| {
                InstructionKind::ScalarTensorTensor { dst, data, op0, operand0, reverse0, op1, operand1, reverse1 }
            })
            .boxed(),
        4 => (pair(), views(), operators())
            .prop_map(|((dst, lhs), rhs, op)| InstructionKind::TensorTensor { dst, lhs, rhs, op })
            .boxed(),
        5 => (pair(), operators(), any::<u8>(), any::<bool>())
            .prop_map(|((dst, data), op, n_reduced_dims, negate)| InstructionKind::TensorReduce {
                dst,
                data,
                op,
                n_reduced_dims,
                negate,
            })
            .boxed(),
        6 => (pair(), views(), operands(), operators(), operators())
            .prop_map(|((dst, data0), data1, initial, op0, op1)| InstructionKind::TensorTensorScan {
                dst,
                data0,
                data1,
                initial,
                op0,
                op1,
            })
            .boxed(),
        7 => pair().prop_map(|(dst, src)| InstructionKind::TensorCopy { dst, src }).boxed(),
        8 => (pair(), views())
            .prop_map(|((dst, src), predicate)| InstructionKind::TensorCopyPredicated { dst, src, predicate })
            .boxed(),
        9 => pair().prop_map(|(dst, data)| InstructionKind::Reciprocal { dst, data }).boxed(),
        10 => (views(), any::<f32>()).prop_map(|(dst, value)| InstructionKind::Memset { dst, value }).boxed(),
        11 => (views(), vec(any::<i32>(), 0..=4), any::<i32>(), any::<i32>())
            .prop_map(|(dst, steps, offset, channel_multiplier)| InstructionKind::Iota {
                dst,
                steps: SmallVec::from_vec(steps),
                offset,
                channel_multiplier,
            })
            .boxed(),
        12 => pair().prop_map(|(dst, data)| InstructionKind::BnStats { dst, data }).boxed(),
        13 => pair().prop_map(|(dst, data)| InstructionKind::BnAggr { dst, data }).boxed(),
        14 => (pair(), views(), any::<bool>())
            .prop_map(|((dst, stationary), moving, accumulate)| InstructionKind::Matmul {
                dst,
                stationary,
                moving,
                accumulate,
            })
            .boxed(),
        15 => pair().prop_map(|(dst, data)| InstructionKind::Transpose { dst, data }).boxed(),
        16 => {
            let gather =
                option::of((views(), any::<u32>(), any::<u32>()).prop_map(|(index, row_elements, n_rows)| Gather {
                    index,
                    row_elements,
                    n_rows,
                }));
            let queue = select(DmaQueue::VALUES);
            (sides(), sides(), queue, gather)
                .prop_map(|(dst, src, queue, gather)| InstructionKind::Dma { dst, src, queue, gather })
                .boxed()
        }
        17 => table_sets().prop_map(|set| InstructionKind::LoadTable { set }).boxed(),
        18 => Just(InstructionKind::Sync).boxed(),
        19 => any::<(u32, u32)>().prop_map(|(entry, bindings)| InstructionKind::Call { entry, bindings }).boxed(),
        20 => Just(InstructionKind::Return).boxed(),
        21 => any::<(u16, u16)>().prop_map(|(first, count)| InstructionKind::ClearSemaphores { first, count }).boxed(),
        _ => unreachable!("{N_KINDS} kinds"),
    }
}

fn instructions() -> impl Strategy<Value = Instruction> {
    let waits = vec(any::<(u16, u16)>(), 0..=2);
    let kind = (0..N_KINDS).prop_flat_map(kind_at);
    (kind, waits, option::of(any::<(u16, u16)>()), select(&Engine::ALL[..])).prop_map(
        |(kind, waits, update, engine)| {
            let mut instruction = Instruction::new(engine, kind);
            instruction.waits = waits.into_iter().map(|(semaphore, at_least)| Wait { semaphore, at_least }).collect();
            instruction.update = update.map(|(semaphore, add)| Update { semaphore, add });
            instruction
        },
    )
}

/// The view in decoded form: from the first partition and byte of its memory.
fn absolute(view: &TileView, tiles: &[Tile]) -> TileView {
    let tile = &tiles[view.tile.index()];
    let address = tile.address.unwrap();
    TileView {
        tile: if tile.space == Space::Sbuf { SBUF_TILE } else { PSUM_TILE },
        partition: address.partition + view.partition,
        offset: address.start_byte / view.dtype.size_bytes() as u32 + view.offset,
        ..view.clone()
    }
}

proptest! {
    #[test]
    fn every_instruction_decodes_to_itself(instruction in instructions()) {
        let tiles = tiles();
        let record = encode_record(&instruction, program_addresses(&tiles)).unwrap();
        let decoded = decode_record(instruction.engine, &record).unwrap();
        prop_assert_eq!(encode_record(&decoded, Addresses::Decoded).unwrap(), record);
        prop_assert_eq!(decoded.engine, instruction.engine);
        prop_assert_eq!(&decoded.waits, &instruction.waits);
        prop_assert_eq!(decoded.update, instruction.update);
        prop_assert_eq!(decoded.kind.name(), instruction.kind.name());
        let (ours, theirs) = (decoded.kind.accesses(), instruction.kind.accesses());
        for (ours, theirs) in [(&ours.tile_reads[..], &theirs.tile_reads[..]), (&ours.tile_writes, &theirs.tile_writes)] {
            let expected: Vec<TileView> = theirs.iter().map(|view| absolute(view, &tiles)).collect();
            prop_assert_eq!(ours.iter().map(|view| (*view).clone()).collect::<Vec<_>>(), expected);
        }
        for (ours, theirs) in [(ours.dma_read, theirs.dma_read), (ours.dma_write, theirs.dma_write)] {
            let hbm = |access: &DmaAccess| access.hbm();
            let variable = theirs.and_then(hbm).map(|tensor| VARIABLES[tensor.index()]);
            prop_assert_eq!(ours.and_then(hbm), variable);
            prop_assert_eq!(ours.map(|access| &access.dims), theirs.map(|access| &access.dims));
        }
    }

    #[test]
    fn changed_records_are_refused_or_mean_what_they_say(
        instruction in instructions(),
        changes in vec((0..RECORD_BYTES, any::<u8>()), 1..4),
    ) {
        let mut record = encode_record(&instruction, program_addresses(&tiles())).unwrap();
        for (at, value) in changes {
            record[at] = value;
        }
        match decode_record(instruction.engine, &record) {
            Ok(decoded) => prop_assert_eq!(encode_record(&decoded, Addresses::Decoded).unwrap(), record),
            Err(error) => {
                prop_assert_eq!(error.code, Code::BadInstruction);
                prop_assert!(error.place.byte.unwrap() < RECORD_BYTES as u64);
            }
        }
    }

    #[test]
    fn any_bytes_decode_or_are_refused(bytes in vec(any::<u8>(), 0..1024), opcode in 0..0x34_u8) {
        let mut bytes = bytes;
        for record in bytes.chunks_mut(RECORD_BYTES).filter(|record| record.len() > 1) {
            record[..2].copy_from_slice(&[opcode, VERSION]);
        }
        if let Err(error) = decode_stream(Engine::Dve, "sg00/DVE.bin", &bytes) {
            prop_assert_eq!(error.code, Code::BadInstruction);
            prop_assert!(error.place.byte.unwrap() <= bytes.len() as u64);
        }
    }
}

#[test]
fn the_opcode_table_has_every_kind_under_its_own_name() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    assert_eq!(OPCODES.len(), N_KINDS);
    for (position, (code, name)) in OPCODES.iter().enumerate() {
        let kind = kind_at(position).new_tree(&mut runner).unwrap().current();
        assert_eq!((opcode(&kind), kind.name()), (*code, *name));
    }
    assert!(OPCODES.is_sorted_by(|left, right| left.0 < right.0));
}

fn row_sum() -> Instruction {
    let view = |tile, dtype, count| TileView {
        tile: TileId(tile),
        partition: 0,
        n_partitions: 4,
        offset: 0,
        dims: smallvec![Dim { step: 1, count }],
        dtype,
    };
    let mut instruction = Instruction::new(
        Engine::Act,
        InstructionKind::Activation {
            function: ActivationFunction::Square,
            dst: view(0, Dtype::F32, 512),
            data: view(2, Dtype::Bf16, 512),
            scale: ScalarOperand::Immediate(1.0),
            bias: ScalarOperand::Vector(view(0, Dtype::F32, 1)),
            reduce: Some(ReduceCommand::ResetReduce),
            reduce_result: Some(view(2, Dtype::F32, 1)),
        },
    );
    instruction.waits = smallvec![Wait { semaphore: 0x0102, at_least: 16 }];
    instruction.update = Some(Update { semaphore: 3, add: 1 });
    instruction
}

#[test]
fn the_bytes_of_an_activation_stand_where_the_document_says() {
    let record = encode_record(&row_sum(), program_addresses(&tiles())).unwrap();
    let mut expected = [0; RECORD_BYTES];
    let mut put = |at: usize, bytes: &[u8]| expected[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[0x01, 1, 1, 1]);
    put(4, &[0x02, 0x01, 16, 0]);
    put(12, &[3, 0, 1, 0]);
    // The bias is a vector and there is a result; square; reset and reduce.
    put(16, &[0b0100_0010, 2, 1, 0]);
    put(20, &1.0_f32.to_le_bytes());
    put(32, &[1, 1, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2]);
    // Tile 2 begins at partition 32, byte 98,304.
    put(60, &[1, 2, 1, 32, 4, 0, 0, 0, 0, 0x80, 0x01, 0, 1, 0, 0, 2]);
    put(116, &[1, 1, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0]);
    put(144, &[1, 1, 1, 32, 4, 0, 0, 0, 0, 0x80, 0x01, 0, 1, 0, 1, 0]);
    assert_eq!(record, expected);
}

#[test]
fn fields_that_a_linker_patches_stand_where_the_constants_say() {
    let side = |tensor, offset| DmaAccess {
        place: DmaPlace::Hbm { tensor: HbmId(tensor) },
        offset,
        dims: smallvec![DmaDim { partition_step: 0, step: 1, count: 64 }],
        dtype: Dtype::F32,
    };
    let kind = InstructionKind::Dma { dst: side(2, 0), src: side(0, 3), queue: DmaQueue::Hardware, gather: None };
    let mut instruction = Instruction::new(Engine::Sp, kind);
    instruction.waits = smallvec![Wait { semaphore: 11, at_least: 1 }, Wait { semaphore: 12, at_least: 2 }];
    instruction.update = Some(Update { semaphore: 13, add: 16 });
    let mut record = encode_record(&instruction, program_addresses(&tiles())).unwrap();
    let u16_at = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
    assert_eq!(WAIT_SEMAPHORE_AT.map(u16_at), [11, 12]);
    assert_eq!(u16_at(UPDATE_SEMAPHORE_AT), 13);
    assert_eq!(record[DST_VARIABLE_AT..DST_VARIABLE_AT + 4], 70_000_u32.to_le_bytes());
    assert_eq!(record[SRC_VARIABLE_AT..SRC_VARIABLE_AT + 4], 7_u32.to_le_bytes());
    record[SRC_VARIABLE_AT] = 9;
    let decoded = decode_record(Engine::Sp, &record).unwrap();
    assert_eq!(decoded.kind.accesses().dma_read.unwrap().hbm(), Some(HbmId(9)));
    // Offsets are bytes in the record and elements in the instruction.
    assert_eq!(decoded.kind.accesses().dma_read.unwrap().offset, 3);
    assert_eq!(record[120..128], 12_u64.to_le_bytes());
}

#[test]
fn what_has_no_room_in_a_record_is_refused_by_name() {
    let tiles = tiles();
    let refuse = |change: &dyn Fn(&mut Instruction)| {
        let mut instruction = row_sum();
        change(&mut instruction);
        let error = encode_record(&instruction, program_addresses(&tiles)).unwrap_err();
        assert_eq!(error.code, Code::Unwritable);
        error.to_string()
    };
    let with_dst = |change: &dyn Fn(&mut TileView)| {
        refuse(&|instruction| {
            let InstructionKind::Activation { dst, .. } = &mut instruction.kind else { panic!("an activation") };
            change(dst);
        })
    };
    let three_waits = refuse(&|instruction| instruction.waits.extend([Wait { semaphore: 1, at_least: 1 }; 2]));
    assert_eq!(three_waits, "byte 2: `activation`: 3 waits, a record holds 2 [unwritable]");
    assert!(with_dst(&|dst| dst.dims.resize(5, Dim { step: 1, count: 1 })).contains("5 dimensions"));
    assert!(with_dst(&|dst| dst.dims[0].count = 0).contains("count 0"));
    assert!(with_dst(&|dst| dst.tile = TileId(9)).contains("tile 9 is none"));
    assert!(with_dst(&|dst| dst.offset = u32::MAX).contains("exceeds 32 bits"));
    let mut virtual_tiles = tiles.clone();
    virtual_tiles[0].address = None;
    let error = encode_record(&row_sum(), program_addresses(&virtual_tiles)).unwrap_err();
    assert!(error.to_string().contains("has no address"), "{error}");
    let mut odd_tiles = tiles.clone();
    odd_tiles[0].address = Some(TileAddress { partition: 0, start_byte: 2 });
    let error = encode_record(&row_sum(), program_addresses(&odd_tiles)).unwrap_err();
    assert!(error.to_string().contains("start byte 2 lies between elements of f32"), "{error}");
}

#[test]
fn damage_names_the_record_and_the_byte() {
    let mut program = Program::new("p", TargetName::Trn2);
    program.tiles = tiles();
    program.instructions = vec![Instruction::new(Engine::Act, InstructionKind::Sync), row_sum()];
    program.instructions.push(Instruction::new(Engine::Sp, InstructionKind::Sync));
    let stream = encode_stream(&program, Engine::Act, &VARIABLES).unwrap();
    assert_eq!(stream.len(), 2 * RECORD_BYTES);
    assert_eq!(decode_stream(Engine::Act, "a", &stream).unwrap().len(), 2);
    let refused = |at: usize, value: u8| {
        let mut damaged = stream.clone();
        damaged[at] = value;
        decode_stream(Engine::Act, "sg00/Activation.bin", &damaged).unwrap_err().to_string()
    };
    for (at, value, expected) in [
        (256, 0xee, "record 1: opcode 0xee is not assigned"),
        (257, 2, "record 1: version is 2, this tool reads 1"),
        (258, 3, "record 1: number of waits is 3, at most 2"),
        (259, 2, "record 1: number of updates is 2, at most 1"),
        (273, 99, "record 1: activation function 99 is not assigned"),
        (288, 3, "record 1: memory 3 of an operand is neither sbuf nor psum"),
        (289, 0, "record 1: element type 0 is not assigned"),
        (290, 5, "record 1: number of dimensions is 5, at most 4"),
        (296, 2, "record 1: start byte 2 lies between elements of f32"),
        (511, 1, "record 1: `activation`: a byte that must be zero is not"),
        (60, 1, "record 0: `sync`: a byte that must be zero is not"),
    ] {
        let place = format!("sg00/Activation.bin, byte {at}: {expected} [bad-instruction]");
        assert_eq!(refused(at, value), place);
    }
    let error = decode_stream(Engine::Act, "a", &stream[..300]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a, byte 300: the stream ends inside a record: 300 bytes are no multiple of 256 [bad-instruction]"
    );
}

/// The rows `| number | name | ...` of the table under a heading of `docs/isa.md`.
fn documented(heading: &str) -> Vec<(u8, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/isa.md");
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut lines =
        text.lines().skip_while(|line| line.trim_start_matches('#').trim() != heading || !line.starts_with('#'));
    assert!(lines.next().is_some(), "docs/isa.md has no heading `{heading}`");
    let section = lines.take_while(|line| !line.starts_with('#'));
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`'));
        let (number, name) = (cells.next()?, cells.next()?);
        let number = match number.strip_prefix("0x") {
            Some(digits) => u8::from_str_radix(digits, 16),
            None => number.parse(),
        };
        Some((number.ok()?, name.to_owned()))
    };
    section.filter(|line| line.starts_with('|')).filter_map(row).collect()
}

#[test]
fn the_document_lists_the_opcodes_and_codes_of_the_program() {
    let named = |rows: &[(u8, &str)]| rows.iter().map(|(code, name)| (*code, (*name).to_owned())).collect::<Vec<_>>();
    assert_eq!(documented("Opcodes"), named(OPCODES));
    for (title, rows) in code_tables() {
        assert_eq!(documented(title), named(rows), "{title}");
    }
}
