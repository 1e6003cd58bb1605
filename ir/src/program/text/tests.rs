//! Printing and parsing are inverse, and parse errors point at their cause.

use proptest::prelude::{Just, Strategy, any, prop_assert_eq};
use proptest::sample::select;
use proptest::{prop_compose, prop_oneof, proptest};
use smallvec::SmallVec;

use super::parse;
use crate::graph::{Location, LocationId};
use crate::program::{
    ActivationFunction, AluOp, Dim, DmaAccess, DmaDim, DmaPlace, DmaQueue, Engine, Gather, HbmId, HbmKind, HbmTensor,
    Instruction, InstructionKind, Program, ProgramPhase, ReduceCommand, ScalarOperand, Space, TableSet, Tile,
    TileAddress, TileId, TileView, Update, Wait,
};
use crate::target::TargetName;
use crate::types::Dtype;

const N_TILES: u32 = 3;

fn dtype() -> impl Strategy<Value = Dtype> {
    select(Dtype::ALL.to_vec())
}

fn dims<T: Clone + std::fmt::Debug>(one: impl Strategy<Value = T>) -> impl Strategy<Value = SmallVec<[T; 4]>> {
    proptest::collection::vec(one, 0..=4).prop_map(SmallVec::from_vec)
}

prop_compose! {
    fn view()(
        tile in 0..=N_TILES,
        partition in any::<u8>(),
        n_partitions in any::<u8>(),
        offset in any::<u32>(),
        dims in dims((any::<i16>(), any::<u16>()).prop_map(|(step, count)| Dim { step, count })),
        dtype in dtype(),
    ) -> TileView {
        TileView { tile: TileId(tile), partition, n_partitions, offset, dims, dtype }
    }
}

fn access() -> impl Strategy<Value = DmaAccess> {
    let place = prop_oneof![
        (0..3u32).prop_map(|tensor| DmaPlace::Hbm { tensor: HbmId(tensor) }),
        (0..=N_TILES, any::<u8>()).prop_map(|(tile, partition)| DmaPlace::Tile { tile: TileId(tile), partition }),
    ];
    let dim = (any::<i16>(), any::<i64>(), any::<u32>());
    let dim = dim.prop_map(|(partition_step, step, count)| DmaDim { partition_step, step, count });
    (place, any::<u64>(), dims(dim), dtype()).prop_map(|(place, offset, dims, dtype)| DmaAccess {
        place,
        offset,
        dims,
        dtype,
    })
}

fn number() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits).prop_filter("NaN is not equal to itself", |value| !value.is_nan())
}

fn operand() -> impl Strategy<Value = ScalarOperand> {
    prop_oneof![number().prop_map(ScalarOperand::Immediate), view().prop_map(ScalarOperand::Vector)]
}

fn alu() -> impl Strategy<Value = AluOp> {
    select(AluOp::VALUES.to_vec())
}

fn arithmetic() -> impl Strategy<Value = InstructionKind> {
    let second = proptest::option::of((alu(), operand(), any::<bool>()));
    prop_oneof![
        (view(), view(), alu(), operand(), any::<bool>(), second).prop_map(
            |(dst, data, op0, operand0, reverse0, second)| InstructionKind::TensorScalar {
                dst,
                data,
                op0,
                operand0,
                reverse0,
                second
            }
        ),
        (view(), view(), alu(), operand(), alu(), view()).prop_map(
            |(dst, data, op0, operand0, reduce_op, reduce_result)| InstructionKind::TensorScalarReduce {
                dst,
                data,
                op0,
                operand0,
                reduce_op,
                reduce_result
            }
        ),
        ((view(), view(), alu(), operand()), (any::<bool>(), alu(), view(), any::<bool>())).prop_map(
            |((dst, data, op0, operand0), (reverse0, op1, operand1, reverse1))| InstructionKind::ScalarTensorTensor {
                dst,
                data,
                op0,
                operand0,
                reverse0,
                op1,
                operand1,
                reverse1
            }
        ),
        (view(), view(), view(), alu()).prop_map(|(dst, lhs, rhs, op)| InstructionKind::TensorTensor {
            dst,
            lhs,
            rhs,
            op
        }),
        (view(), view(), alu(), any::<u8>(), any::<bool>()).prop_map(|(dst, data, op, n_reduced_dims, negate)| {
            InstructionKind::TensorReduce { dst, data, op, n_reduced_dims, negate }
        }),
        (view(), view(), view(), operand(), alu(), alu()).prop_map(|(dst, data0, data1, initial, op0, op1)| {
            InstructionKind::TensorTensorScan { dst, data0, data1, initial, op0, op1 }
        }),
    ]
}

fn movement() -> impl Strategy<Value = InstructionKind> {
    let steps = dims(any::<i32>());
    prop_oneof![
        (view(), view()).prop_map(|(dst, src)| InstructionKind::TensorCopy { dst, src }),
        (view(), view(), view()).prop_map(|(dst, src, predicate)| InstructionKind::TensorCopyPredicated {
            dst,
            src,
            predicate
        }),
        (view(), view()).prop_map(|(dst, data)| InstructionKind::Reciprocal { dst, data }),
        (view(), view()).prop_map(|(dst, data)| InstructionKind::BnStats { dst, data }),
        (view(), view()).prop_map(|(dst, data)| InstructionKind::BnAggr { dst, data }),
        (view(), view()).prop_map(|(dst, data)| InstructionKind::Transpose { dst, data }),
        (view(), number()).prop_map(|(dst, value)| InstructionKind::Memset { dst, value }),
        (view(), steps, any::<i32>(), any::<i32>()).prop_map(|(dst, steps, offset, channel_multiplier)| {
            InstructionKind::Iota { dst, steps, offset, channel_multiplier }
        }),
        select(TableSet::VALUES.to_vec()).prop_map(|set| InstructionKind::LoadTable { set }),
        Just(InstructionKind::Sync),
        (any::<u32>(), any::<u32>()).prop_map(|(entry, bindings)| InstructionKind::Call { entry, bindings }),
        Just(InstructionKind::Return),
        (any::<u16>(), any::<u16>()).prop_map(|(first, count)| InstructionKind::ClearSemaphores { first, count }),
    ]
}

fn kind() -> impl Strategy<Value = InstructionKind> {
    let function = select(ActivationFunction::VALUES.to_vec());
    let reduce = proptest::option::of(select(ReduceCommand::VALUES.to_vec()));
    let gather = (view(), any::<u32>(), any::<u32>());
    let gather = gather.prop_map(|(index, row_elements, n_rows)| Gather { index, row_elements, n_rows });
    prop_oneof![
        arithmetic(),
        movement(),
        (function, view(), view(), operand(), operand(), reduce, proptest::option::of(view())).prop_map(
            |(function, dst, data, scale, bias, reduce, reduce_result)| InstructionKind::Activation {
                function,
                dst,
                data,
                scale,
                bias,
                reduce,
                reduce_result
            }
        ),
        (view(), view(), view(), any::<bool>()).prop_map(|(dst, stationary, moving, accumulate)| {
            InstructionKind::Matmul { dst, stationary, moving, accumulate }
        }),
        (access(), access(), select(DmaQueue::VALUES.to_vec()), proptest::option::of(gather))
            .prop_map(|(dst, src, queue, gather)| InstructionKind::Dma { dst, src, queue, gather }),
    ]
}

prop_compose! {
    fn instruction()(
        engine in select(Engine::ALL.to_vec()),
        kind in kind(),
        waits in proptest::collection::vec((any::<u16>(), any::<u16>()), 0..4),
        update in proptest::option::of((any::<u16>(), any::<u16>())),
        locations in proptest::collection::vec(any::<u32>(), 0..3),
    ) -> Instruction {
        let mut instruction = Instruction::new(engine, kind);
        instruction.waits = waits.into_iter().map(|(semaphore, at_least)| Wait { semaphore, at_least }).collect();
        instruction.update = update.map(|(semaphore, add)| Update { semaphore, add });
        instruction.locations = locations.into_iter().map(LocationId).collect();
        instruction
    }
}

prop_compose! {
    fn tile()(
        label in any::<String>(),
        space in select(Space::VALUES.to_vec()),
        dtype in dtype(),
        n_partitions in any::<u8>(),
        (bytes_per_partition, alignment_bytes) in any::<(u32, u32)>(),
        address in proptest::option::of(any::<(u8, u32)>()),
    ) -> Tile {
        let address = address.map(|(partition, start_byte)| TileAddress { partition, start_byte });
        Tile { label, space, dtype, n_partitions, bytes_per_partition, alignment_bytes, address }
    }
}

prop_compose! {
    fn tensor()(
        name in any::<String>(),
        kind in prop_oneof![
            any::<u32>().prop_map(HbmKind::Input),
            any::<u32>().prop_map(HbmKind::Output),
            Just(HbmKind::Scratch),
            proptest::collection::vec(any::<u8>(), 0..9).prop_map(|bytes| HbmKind::Constant(bytes.into())),
        ],
        dtype in dtype(),
        shape in proptest::collection::vec(any::<usize>(), 0..4),
        size_bytes in any::<u64>(),
    ) -> HbmTensor {
        HbmTensor { name, kind, dtype, shape: shape.into_iter().collect(), size_bytes }
    }
}

prop_compose! {
    fn program()(
        name in any::<String>(),
        target in select(TargetName::ALL.to_vec()),
        phase in select(ProgramPhase::VALUES.to_vec()),
        tensors in proptest::collection::vec(tensor(), 0..3),
        tiles in proptest::collection::vec(tile(), 0..N_TILES as usize),
        instructions in proptest::collection::vec(instruction(), 0..6),
        locations in proptest::collection::vec(any::<[String; 4]>(), 0..3),
    ) -> Program {
        let location = |[node, target, module, line]: [String; 4]| Location { node, target, module, line };
        let locations = locations.into_iter().map(location).collect();
        Program { name, target, phase, tensors, tiles, instructions, locations }
    }
}

proptest! {
    #[test]
    fn printed_programs_parse_to_themselves(program in program()) {
        let text = program.to_string();
        prop_assert_eq!(parse(&text).map_err(|error| format!("{error}\n{text}")), Ok(program));
    }

    #[test]
    fn damaged_text_is_parsed_or_refused(program in program(), cut in any::<usize>(), inserted in any::<char>()) {
        let mut text = program.to_string();
        let mut at = cut % (text.len() + 1);
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        text.insert(at, inserted);
        let _ = parse(&text);
        text.truncate(at);
        let _ = parse(&text);
    }
}

#[test]
fn instructions_print_on_one_readable_line() {
    let text = "\
program \"rms_norm\" target trn2 phase synchronized
location #0 \"mul_1\" \"aten.mul.Tensor\" \"encoder.norm\" \"model.py:12\"
tensor %h0 \"x\" bf16[4, 512] 4096 bytes input 0
tensor %h1 \"eps\" f32[1] 4 bytes constant x\"0000803f\"
tile %t0 \"x\" sbuf bf16 4x1024 align 4 at 0+2048
tile %t1 \"sum\" psum f32 4x4 align 4 at 0+0
sp: dma_copy dst=%t0[0, 0+1p+0x4+1x512] src=%h0[0+512x4+1x512] queue=hardware update s6+16 #0
act: activation square dst=%t0[0:4, 0+1x512] data=%t0[0:4, 0+1x512] scale=1.0 bias=-0.0 reduce=reset -> %t1[0:4, 0] wait s6>=16 update s1+1
dve: tensor_scalar dst=%t1[0:4, 0] data=%t1[0:4, 0] op0=subtract operand0=1e-5 reverse0 op1=max operand1=%t1[0:4, 0]:i32 wait s1>=1 wait s6>=32
sp: sync
";
    assert_eq!(parse(text).expect("the text is well formed").to_string(), text);
}

#[track_caller]
fn expect_error(line: &str, expected: &str) {
    let text =
        format!("// a comment\nprogram \"p\" target trn2 phase lowered\ntile %t0 \"x\" sbuf f32 4x8 align 4\n{line}");
    let error = parse(&text).expect_err("the line is wrong").to_string();
    assert_eq!(error, expected);
}

#[test]
fn errors_point_at_their_cause() {
    expect_error("tile %t2 \"\" sbuf f32 1x4 align 4", "line 4, column 6: `%t1` expected, declarations are in order");
    expect_error("tile %t1 \"\" dram f32 1x4 align 4", "line 4, column 13: no memory is named `dram`");
    expect_error("dve: frobnicate", "line 4, column 6: no instruction is named `frobnicate`");
    expect_error(
        "dve: bn_stats dst=%t0[0:4, 0+1x70000] data=%t0[0:4, 0]",
        "line 4, column 32: `70000` is out of range",
    );
    expect_error("dve: bn_stats dst=%t7[0:4, 0] data=%t0[0:4, 0]", "line 4, column 19: not declared");
    expect_error("dve: bn_stats dst=%t0[0:4, 0]", "line 4, column 30: `data=` expected");
    expect_error("sp: sync wait s1>=2 bogus", "line 4, column 21: end of line expected");
    expect_error("dve: memset dst=%t0[0:4, 0] value=0x1", "line 4, column 35: number expected");
    expect_error("tile %t1 \"open", "line 4, column 15: `\"` expected");
    assert_eq!(parse("").expect_err("nothing is no program").to_string(), "line 1, column 1: `program` expected");
}
