//! One broken instruction per rule, and the legal neighbour of each.

use smallvec::smallvec;

use super::*;
use crate::program::{
    ActivationFunction, AluOp, Dim, DmaAccess, DmaDim, DmaPlace, DmaQueue, Engine, Gather, HbmId, HbmKind,
    ReduceCommand, ScalarOperand, TableSet, TileAddress, TileId, Update, Wait,
};
use crate::target::TargetName;
use crate::types::Dtype;

/// All of SBUF, all of PSUM, as the decoded streams see them.
fn tiles(target: &Target) -> Vec<Tile> {
    [(Space::Sbuf, target.sbuf_usable_bytes), (Space::Psum, target.psum_bytes())]
        .into_iter()
        .map(|(space, bytes)| Tile {
            label: String::new(),
            space,
            dtype: Dtype::F32,
            n_partitions: 128,
            bytes_per_partition: bytes,
            alignment_bytes: 4,
            address: Some(TileAddress { partition: 0, start_byte: 0 }),
        })
        .collect()
}

fn view(tile: u32, partitions: (u8, u8), offset: u32, n: u16, dtype: Dtype) -> TileView {
    let dims = smallvec![Dim { step: 1, count: n }];
    TileView { tile: TileId(tile), partition: partitions.0, n_partitions: partitions.1, offset, dims, dtype }
}

fn sbuf(n: u16) -> TileView {
    view(0, (0, 128), 0, n, Dtype::F32)
}

fn psum(n: u16) -> TileView {
    view(1, (0, 128), 0, n, Dtype::F32)
}

fn rules_of(target: TargetName, engine: Engine, kind: InstructionKind) -> Vec<Rule> {
    let target = target.target();
    let tensor = HbmTensor {
        name: "x".to_owned(),
        kind: HbmKind::Input(0),
        dtype: Dtype::F32,
        shape: smallvec![128, 64],
        size_bytes: 128 * 64 * 4,
    };
    let found = check_instruction(target, &Instruction::new(engine, kind), &tiles(target), &[tensor]);
    found.into_iter().map(|violation| violation.rule).collect()
}

#[track_caller]
fn legal(engine: Engine, kind: InstructionKind) {
    assert_eq!(rules_of(TargetName::Trn2, engine, kind), []);
}

#[track_caller]
fn breaks(rule: Rule, engine: Engine, kind: InstructionKind) {
    assert!(rules_of(TargetName::Trn2, engine, kind.clone()).contains(&rule), "{kind:?}");
}

fn copy(dst: TileView, src: TileView) -> InstructionKind {
    InstructionKind::TensorCopy { dst, src }
}

#[test]
fn partitions_start_at_quadrants() {
    for (first, n, is_legal) in [
        (0, 128, true),
        (0, 65, true),
        (32, 32, true),
        (96, 32, true),
        (64, 64, true),
        (32, 33, false),
        (16, 16, false),
        (64, 65, false),
    ] {
        let operand = view(0, (first, n), 0, 8, Dtype::F32);
        let found = rules_of(TargetName::Trn2, Engine::Dve, copy(operand.clone(), operand));
        assert_eq!(found.is_empty(), is_legal, "{n} partitions from {first}: {found:?}");
    }
}

#[test]
fn operands_lie_within_their_tiles() {
    let usable = TargetName::Trn2.target().sbuf_usable_bytes;
    legal(Engine::Dve, copy(view(0, (0, 128), usable / 4 - 8, 8, Dtype::F32), sbuf(8)));
    breaks(Rule::Extent, Engine::Dve, copy(view(0, (0, 128), usable / 4 - 7, 8, Dtype::F32), sbuf(8)));
    let mut reversed = sbuf(8);
    reversed.dims[0].step = -1;
    breaks(Rule::Extent, Engine::Dve, copy(sbuf(8), reversed));
    breaks(Rule::Type, Engine::Dve, copy(view(0, (0, 128), 0, 8, Dtype::I64), sbuf(8)));
    breaks(Rule::Extent, Engine::Dve, copy(view(7, (0, 128), 0, 8, Dtype::F32), sbuf(8)));
}

#[test]
fn engines_have_their_instructions_and_memories() {
    legal(Engine::Act, copy(sbuf(8), psum(8)));
    assert_eq!(rules_of(TargetName::Trn1, Engine::Act, copy(sbuf(8), psum(8))), [Rule::Engine]);
    breaks(Rule::Engine, Engine::Sp, copy(sbuf(8), sbuf(8)));
    breaks(Rule::Memory, Engine::Pool, copy(sbuf(8), psum(8)));
    breaks(Rule::Engine, Engine::Pool, InstructionKind::Reciprocal { dst: sbuf(8), data: sbuf(8) });
    let add = |lhs, rhs| InstructionKind::TensorTensor { dst: sbuf(8), lhs, rhs, op: AluOp::Add };
    legal(Engine::Dve, add(psum(8), sbuf(8)));
    breaks(Rule::Memory, Engine::Dve, add(psum(8), psum(8)));
}

#[test]
fn psum_views_stay_in_one_bank() {
    legal(Engine::Dve, copy(sbuf(512), psum(512)));
    breaks(Rule::Bank, Engine::Dve, copy(sbuf(512), view(1, (0, 128), 4, 512, Dtype::F32)));
    let crossing = copy(sbuf(512), view(1, (0, 128), 4, 512, Dtype::F32));
    assert_eq!(rules_of(TargetName::Trn3, Engine::Dve, crossing), []);
}

fn matmul(dst: TileView, stationary: TileView, moving: TileView) -> InstructionKind {
    InstructionKind::Matmul { dst, stationary, moving, accumulate: false }
}

#[test]
fn matmul_operands_fit_the_array() {
    let bf16 = |n| view(0, (0, 128), 0, n, Dtype::Bf16);
    legal(Engine::Pe, matmul(psum(512), bf16(128), bf16(512)));
    breaks(Rule::Extent, Engine::Pe, matmul(psum(513), bf16(128), bf16(513)));
    breaks(Rule::Extent, Engine::Pe, matmul(psum(8), bf16(129), bf16(8)));
    breaks(Rule::Type, Engine::Pe, matmul(psum(8), sbuf(128), bf16(8)));
    breaks(Rule::Type, Engine::Pe, matmul(view(1, (0, 128), 0, 8, Dtype::Bf16), bf16(128), bf16(8)));
    breaks(Rule::Memory, Engine::Pe, matmul(sbuf(8), bf16(128), bf16(8)));
    breaks(Rule::Memory, Engine::Pe, matmul(psum(8), psum(128), bf16(8)));
    breaks(Rule::Shape, Engine::Pe, matmul(psum(9), bf16(128), bf16(8)));
    let half = view(0, (64, 64), 0, 8, Dtype::Bf16);
    breaks(Rule::Shape, Engine::Pe, matmul(psum(8), bf16(128), half.clone()));
    breaks(Rule::Partitions, Engine::Pe, matmul(psum(8), view(0, (0, 64), 0, 128, Dtype::Bf16), half));
    let trn3 = rules_of(TargetName::Trn3, Engine::Pe, matmul(view(1, (0, 128), 0, 8, Dtype::Bf16), bf16(128), bf16(8)));
    assert_eq!(trn3, []);
}

#[test]
fn transposes_keep_types_and_sizes() {
    let transpose = |dst, data| InstructionKind::Transpose { dst, data };
    let bf16 = view(0, (0, 64), 0, 128, Dtype::Bf16);
    legal(Engine::Pe, transpose(view(1, (0, 128), 0, 64, Dtype::Bf16), bf16.clone()));
    breaks(Rule::Type, Engine::Pe, transpose(psum(64), bf16.clone()));
    assert_eq!(rules_of(TargetName::Trn1, Engine::Pe, transpose(psum(64), bf16.clone())), []);
    breaks(Rule::Extent, Engine::Dve, transpose(view(0, (0, 128), 0, 64, Dtype::Bf16), bf16));
    let square = view(0, (32, 32), 0, 32, Dtype::F32);
    legal(Engine::Dve, transpose(square.clone(), square));
}

fn activation(bias: ScalarOperand, reduce: Option<ReduceCommand>, reduce_result: Option<TileView>) -> InstructionKind {
    let scale = ScalarOperand::Immediate(2.0);
    let function = ActivationFunction::Exp;
    InstructionKind::Activation { function, dst: sbuf(8), data: psum(8), scale, bias, reduce, reduce_result }
}

#[test]
fn activations_take_vectors_and_row_sums() {
    let one = view(0, (0, 128), 64, 1, Dtype::F32);
    let zero = ScalarOperand::Immediate(0.0);
    legal(Engine::Act, activation(ScalarOperand::Immediate(1.0), Some(ReduceCommand::ResetReduce), Some(one.clone())));
    breaks(Rule::Operator, Engine::Act, activation(zero.clone(), None, Some(one.clone())));
    breaks(Rule::Shape, Engine::Act, activation(ScalarOperand::Vector(sbuf(2)), None, None));
    let on_trn1 = |bias| rules_of(TargetName::Trn1, Engine::Act, activation(bias, None, None));
    assert_eq!(on_trn1(ScalarOperand::Immediate(1.0)), [Rule::Operator]);
    assert_eq!(on_trn1(zero), []);
    assert_eq!(on_trn1(ScalarOperand::Vector(one)), []);
}

#[test]
fn operators_belong_to_their_instructions() {
    let scalar = |data: TileView, op0, second| InstructionKind::TensorScalar {
        dst: data.clone(),
        data,
        op0,
        operand0: ScalarOperand::Immediate(0.0),
        reverse0: false,
        second,
    };
    let then = |op| Some((op, ScalarOperand::Immediate(1.0), false));
    legal(Engine::Dve, scalar(sbuf(8), AluOp::Subtract, then(AluOp::Max)));
    legal(Engine::Act, scalar(sbuf(8), AluOp::Multiply, then(AluOp::Add)));
    breaks(Rule::Operator, Engine::Act, scalar(sbuf(8), AluOp::Add, then(AluOp::Multiply)));
    breaks(Rule::Operator, Engine::Dve, scalar(sbuf(8), AluOp::Power, None));
    let int = view(0, (0, 128), 0, 8, Dtype::I32);
    legal(Engine::Dve, scalar(int.clone(), AluOp::ShiftLeft, then(AluOp::BitwiseAnd)));
    breaks(Rule::Operator, Engine::Dve, scalar(int.clone(), AluOp::ShiftLeft, then(AluOp::Add)));
    breaks(Rule::Type, Engine::Dve, scalar(sbuf(8), AluOp::BitwiseAnd, None));
    breaks(Rule::Operator, Engine::Dve, scalar(sbuf(8), AluOp::Abs, then(AluOp::Abs)));
    let tensor =
        |data: TileView, op| InstructionKind::TensorTensor { dst: data.clone(), lhs: data.clone(), rhs: data, op };
    legal(Engine::Pool, tensor(int.clone(), AluOp::Subtract));
    legal(Engine::Pool, tensor(sbuf(8), AluOp::Power));
    breaks(Rule::Operator, Engine::Dve, tensor(sbuf(8), AluOp::Power));
    breaks(Rule::Operator, Engine::Pool, tensor(sbuf(8), AluOp::Subtract));
    let reduce = |op, n_reduced_dims| InstructionKind::TensorReduce {
        dst: sbuf(1),
        data: sbuf(8),
        op,
        n_reduced_dims,
        negate: false,
    };
    legal(Engine::Dve, reduce(AluOp::Max, 1));
    breaks(Rule::Operator, Engine::Dve, reduce(AluOp::Less, 1));
    breaks(Rule::Shape, Engine::Dve, reduce(AluOp::Max, 2));
}

#[test]
fn statistics_have_their_sizes() {
    let stats = |n_results, n| InstructionKind::BnStats { dst: sbuf(n_results), data: sbuf(n) };
    legal(Engine::Dve, stats(6, 512));
    breaks(Rule::Extent, Engine::Dve, stats(6, 513));
    breaks(Rule::Shape, Engine::Dve, stats(5, 8));
    legal(Engine::Dve, InstructionKind::BnAggr { dst: sbuf(2), data: sbuf(12) });
    breaks(Rule::Shape, Engine::Dve, InstructionKind::BnAggr { dst: sbuf(2), data: sbuf(10) });
    let predicated = |predicate| InstructionKind::TensorCopyPredicated { dst: sbuf(8), src: sbuf(8), predicate };
    legal(Engine::Dve, predicated(view(0, (0, 128), 0, 8, Dtype::U8)));
    breaks(Rule::Type, Engine::Dve, predicated(sbuf(8)));
}

fn load(queue: DmaQueue, dtype: Dtype, rows: u32, gather: Option<Gather>) -> InstructionKind {
    let side = |place, partition_step, step, dtype| DmaAccess {
        place,
        offset: 0,
        dims: smallvec![DmaDim { partition_step, step, count: rows }, DmaDim { partition_step: 0, step: 1, count: 64 }],
        dtype,
    };
    InstructionKind::Dma {
        dst: side(DmaPlace::Tile { tile: TileId(0), partition: 0 }, 1, 0, dtype),
        src: side(DmaPlace::Hbm { tensor: HbmId(0) }, 0, 64, Dtype::F32),
        queue,
        gather,
    }
}

#[test]
fn transfers_fit_their_queues_and_memories() {
    legal(Engine::Sp, load(DmaQueue::Hardware, Dtype::F32, 128, None));
    legal(Engine::Pool, load(DmaQueue::Software, Dtype::Bf16, 128, None));
    breaks(Rule::Queue, Engine::Sp, load(DmaQueue::Hardware, Dtype::Bf16, 128, None));
    breaks(Rule::Queue, Engine::Dve, load(DmaQueue::Hardware, Dtype::F32, 128, None));
    breaks(Rule::Queue, Engine::Sp, load(DmaQueue::Software, Dtype::F32, 128, None));
    let on_trn1 = load(DmaQueue::Hardware, Dtype::F32, 128, None);
    assert_eq!(rules_of(TargetName::Trn1, Engine::Sp, on_trn1), [Rule::Queue]);
    breaks(Rule::Extent, Engine::Sp, load(DmaQueue::Hardware, Dtype::F32, 129, None));
    let InstructionKind::Dma { mut dst, src, queue, gather } = load(DmaQueue::Hardware, Dtype::F32, 128, None) else {
        panic!("a transfer")
    };
    dst.place = DmaPlace::Tile { tile: TileId(1), partition: 0 };
    breaks(
        Rule::Memory,
        Engine::Sp,
        InstructionKind::Dma { dst: dst.clone(), src: src.clone(), queue, gather: gather.clone() },
    );
    dst.place = DmaPlace::Tile { tile: TileId(0), partition: 1 };
    breaks(Rule::Partitions, Engine::Sp, InstructionKind::Dma { dst, src, queue, gather });
}

#[test]
fn gathers_have_one_index_per_row() {
    let gather = |n_partitions, n_rows, dtype| {
        Some(Gather { index: view(0, (0, n_partitions), 512, 1, dtype), row_elements: 64, n_rows })
    };
    legal(Engine::Pool, load(DmaQueue::Software, Dtype::F32, 16, gather(16, 128, Dtype::I32)));
    breaks(Rule::Queue, Engine::Sp, load(DmaQueue::Hardware, Dtype::F32, 16, gather(16, 128, Dtype::I32)));
    breaks(Rule::Shape, Engine::Pool, load(DmaQueue::Software, Dtype::F32, 16, gather(8, 128, Dtype::I32)));
    breaks(Rule::Type, Engine::Pool, load(DmaQueue::Software, Dtype::F32, 16, gather(16, 128, Dtype::F32)));
    breaks(Rule::Extent, Engine::Pool, load(DmaQueue::Software, Dtype::F32, 16, gather(16, 129, Dtype::I32)));
}

#[test]
fn semaphores_are_few_and_transfers_add_one_per_engine() {
    let target = TargetName::Trn2.target();
    let check = |instruction: &Instruction| check_instruction(target, instruction, &tiles(target), &[]).len();
    let mut sync = Instruction::new(Engine::Sp, InstructionKind::Sync);
    sync.waits = smallvec![Wait { semaphore: 255, at_least: 1 }, Wait { semaphore: 0, at_least: 1 }];
    assert_eq!(check(&sync), 0);
    sync.waits.push(Wait { semaphore: 256, at_least: 1 });
    assert_eq!(check(&sync), 2);
    let mut transfer = Instruction::new(Engine::Sp, load(DmaQueue::Hardware, Dtype::F32, 128, None));
    transfer.update = Some(Update { semaphore: 0, add: 1 });
    let found = check_instruction(target, &transfer, &tiles(target), &[]);
    assert_eq!(found[0].rule, Rule::Semaphore);
}

#[test]
fn functions_need_their_table() {
    let exp = Instruction::new(Engine::Act, activation(ScalarOperand::Immediate(0.0), None, None));
    let load = |set| Instruction::new(Engine::Act, InstructionKind::LoadTable { set });
    let stream = [exp.clone(), load(TableSet::ExpAndOthers), exp.clone(), load(TableSet::SinAndOthers), exp];
    let found = check_activation_tables(&stream);
    assert_eq!(found.iter().map(|(position, _)| *position).collect::<Vec<_>>(), [0, 4]);
}

#[test]
fn accumulation_continues_what_a_matmul_started() {
    let target = TargetName::Trn2.target();
    let into = |offset, accumulate| {
        let operand = view(0, (0, 128), 0, 128, Dtype::Bf16);
        let dst = view(1, (0, 128), offset, 128, Dtype::F32);
        Instruction::new(
            Engine::Pe,
            InstructionKind::Matmul { dst, stationary: operand.clone(), moving: operand, accumulate },
        )
    };
    let positions = |stream: &[Instruction]| -> Vec<(usize, Option<usize>)> {
        let found = check_psum_groups(target, stream, &tiles(target));
        found.into_iter().map(|found| (found.position, found.earlier)).collect()
    };
    assert_eq!(positions(&[into(0, false), into(0, true), into(128, false), into(128, true)]), []);
    assert_eq!(positions(&[into(0, true)]), [(0, None)]);
    // Two groups of one bank must not alternate; of two banks they may.
    assert_eq!(positions(&[into(0, false), into(128, false), into(0, true), into(128, true)]), [(2, Some(1))]);
    assert_eq!(positions(&[into(0, false), into(512, false), into(0, true), into(512, true)]), []);
    // What was started in two pieces may be added to at once, and the other way round.
    let wide = |mut instruction: Instruction, columns| {
        if let InstructionKind::Matmul { dst, moving, .. } = &mut instruction.kind {
            (dst.dims[0].count, moving.dims[0].count) = (columns, columns);
        }
        instruction
    };
    assert_eq!(positions(&[wide(into(0, false), 256), into(128, true), into(0, true)]), []);
    assert_eq!(positions(&[into(0, false), wide(into(0, true), 256)]), [(1, None)]);
    // The second piece's start has ended the first one: both lie in one bank.
    assert_eq!(positions(&[into(0, false), into(128, false), wide(into(0, true), 256)]), [(2, Some(1))]);
    // Even and odd columns are two groups, whose regions overlap and whose elements do not.
    let every_other = |mut instruction: Instruction| {
        if let InstructionKind::Matmul { dst, .. } = &mut instruction.kind {
            dst.dims[0].step = 2;
        }
        instruction
    };
    let (even, odd) = (|accumulate| every_other(into(0, accumulate)), |accumulate| every_other(into(1, accumulate)));
    assert_eq!(positions(&[even(false), even(true), odd(false), odd(true)]), []);
    assert_eq!(positions(&[even(false), odd(false), even(true), odd(true)]), [(2, Some(1))]);
}

#[test]
fn the_first_generation_shares_ports() {
    let target = TargetName::Trn1.target();
    let ports = |engine, kind| exclusive_ports(target, &Instruction::new(engine, kind), &tiles(target));
    assert_eq!(ports(Engine::Dve, copy(sbuf(8), psum(8))), [Port::Sbuf, Port::Psum]);
    assert_eq!(ports(Engine::Pool, copy(sbuf(8), sbuf(8))), [Port::Sbuf]);
    assert_eq!(ports(Engine::Act, activation(ScalarOperand::Immediate(0.0), None, None)), [Port::Psum]);
    let trn2 = TargetName::Trn2.target();
    assert_eq!(exclusive_ports(trn2, &Instruction::new(Engine::Dve, copy(sbuf(8), psum(8))), &tiles(trn2)), []);
}
