//! One broken program per kind of finding, and the ordered neighbour of each.

use ir::Dtype;
use ir::program::rules::Rule;
use ir::program::{ActivationFunction, DmaQueue, Engine, InstructionKind, ReduceCommand, TableSet, TileView};
use ir::target::TargetName;

use crate::FindingKind;
use crate::testing::{Builder, Order, activation, dma, lanes, psum, rows, sbuf};

const F32: Dtype = Dtype::F32;

fn copy(dst: TileView, src: TileView) -> InstructionKind {
    InstructionKind::TensorCopy { dst, src }
}

fn memset(dst: TileView) -> InstructionKind {
    InstructionKind::Memset { dst, value: 0.0 }
}

fn all(start_byte: u32, n: u16) -> TileView {
    sbuf((0, 128), start_byte, n, F32)
}

/// Findings but those of transfers under way at the end, which most programs here do not wait for.
fn kinds(builder: &Builder) -> Vec<FindingKind> {
    let kinds = builder.machine().check().findings.into_iter().map(|finding| finding.kind);
    kinds.filter(|&kind| kind != FindingKind::UnfinishedTransfer).collect()
}

#[track_caller]
fn expect(builder: &Builder, expected: &[FindingKind]) {
    let findings = builder.machine().check();
    let found = kinds(builder);
    assert_eq!(found, expected, "{findings}");
}

/// Load, add on DVE, store; every step as given.
struct Pipeline {
    load_update: bool,
    compute_wait: bool,
    compute_update: bool,
    store_wait: bool,
}

const ORDERED: Pipeline = Pipeline { load_update: true, compute_wait: true, compute_update: true, store_wait: true };

impl Pipeline {
    fn build(&self) -> Builder {
        let mut builder = Builder::new(TargetName::Trn2);
        let (input, output) = (builder.input(F32, &[128, 8]), builder.output(F32, &[128, 8]));
        let load =
            builder.push(Engine::Sp, dma(lanes(0, 128, 0, 8, F32), rows(input, 128, 8, F32), DmaQueue::Hardware));
        if self.load_update {
            load.update(0, 16);
        }
        let compute = builder.push(Engine::Dve, copy(all(64, 8), all(0, 8)));
        if self.compute_wait {
            compute.wait(0, 16);
        }
        if self.compute_update {
            compute.update(1, 1);
        }
        let store =
            builder.push(Engine::Sp, dma(rows(output, 128, 8, F32), lanes(0, 128, 64, 8, F32), DmaQueue::Hardware));
        if self.store_wait {
            store.wait(1, 1);
        }
        builder
    }
}

#[test]
fn an_ordered_pipeline_is_clean_and_every_missing_wait_shows() {
    expect(&ORDERED.build(), &[]);
    expect(&Pipeline { compute_wait: false, ..ORDERED }.build(), &[FindingKind::ReadAfterWrite]);
    expect(&Pipeline { store_wait: false, ..ORDERED }.build(), &[FindingKind::ReadAfterWrite]);
    expect(&Pipeline { load_update: false, ..ORDERED }.build(), &[FindingKind::Deadlock]);
    expect(&Pipeline { compute_update: false, ..ORDERED }.build(), &[FindingKind::Deadlock]);
}

#[test]
fn findings_name_both_instructions_and_the_place() {
    let machine = Pipeline { compute_wait: false, ..ORDERED }.build().machine();
    let text = machine.check().findings[0].to_string();
    assert_eq!(
        text,
        "race-read-after-write: reads what another instruction writes, in bytes 0..32 of SBUF on partitions 0..128, \
         and no semaphore orders the two: sp[0] `dma_copy`; dve[0] `tensor_copy`"
    );
}

#[test]
fn findings_name_model_lines() {
    let mut builder = Pipeline { compute_wait: false, ..ORDERED }.build();
    let location = ir::graph::Location { line: "model.py:7".to_owned(), node: "mul".to_owned(), ..Default::default() };
    builder.program.locations.push(location);
    builder.program.instructions[1].locations.push(ir::graph::LocationId(0));
    let sites = &builder.machine().check().findings[0].sites;
    assert_eq!(sites[1].sources, ["model.py:7 mul"]);
    let mut machine = builder.machine();
    let id = sites[0].instruction;
    machine.set_sources([(id, vec!["model.py:3".into()])]);
    assert!(machine.check().findings[0].to_string().contains("sp[0] `dma_copy` from model.py:3"));
}

#[test]
fn overwriting_needs_the_reader_to_be_done() {
    let build = |wait: bool| {
        let mut builder = Builder::new(TargetName::Trn2);
        builder.push(Engine::Dve, memset(all(0, 8))).update(0, 1);
        builder.push(Engine::Act, activation(ActivationFunction::Copy, all(64, 8), all(0, 8))).wait(0, 1).update(1, 1);
        builder.push(Engine::Dve, memset(all(4096, 8192)));
        let overwrite = builder.push(Engine::Dve, memset(all(0, 4)));
        if wait {
            overwrite.wait(1, 1);
        }
        builder
    };
    expect(&build(true), &[]);
    expect(&build(false), &[FindingKind::WriteAfterRead]);
}

#[test]
fn two_writes_need_an_order_and_strided_ones_may_interleave() {
    let mut builder = Builder::new(TargetName::Trn2);
    builder.push(Engine::Dve, memset(all(0, 8)));
    builder.push(Engine::Pool, memset(sbuf((32, 32), 28, 8, F32)));
    expect(&builder, &[FindingKind::WriteAfterWrite]);
    let mut builder = Builder::new(TargetName::Trn2);
    let every_other = |start_byte| {
        let mut view = all(start_byte, 8);
        view.dims[0].step = 2;
        view
    };
    builder.push(Engine::Dve, memset(every_other(0)));
    builder.push(Engine::Pool, memset(every_other(4)));
    expect(&builder, &[]);
}

#[test]
fn an_engine_is_in_order_with_itself_but_not_with_its_transfers() {
    let build = |wait: bool| {
        let mut builder = Builder::new(TargetName::Trn2);
        let output = builder.output(F32, &[128, 8]);
        builder.push(Engine::Pool, memset(all(0, 8)));
        builder.push(Engine::Pool, copy(all(64, 8), all(0, 8))).update(0, 1);
        let store =
            builder.push(Engine::Pool, dma(rows(output, 128, 8, F32), lanes(0, 128, 64, 8, F32), DmaQueue::Software));
        if wait {
            store.wait(0, 1);
        }
        builder
    };
    expect(&build(true), &[]);
    expect(&build(false), &[FindingKind::ReadAfterWrite]);
}

/// Two loads on one queue, and a reader of the first that waits for `at_least`.
fn two_loads(semaphores: [u16; 2], at_least: u16, second_wait: Option<u16>) -> Builder {
    let mut builder = Builder::new(TargetName::Trn2);
    let input = builder.input(F32, &[128, 8]);
    for (semaphore, start_byte) in semaphores.into_iter().zip([0, 64]) {
        let load = dma(lanes(0, 128, start_byte, 8, F32), rows(input, 128, 8, F32), DmaQueue::Hardware);
        builder.push(Engine::Sp, load).update(semaphore, 16);
    }
    let reader = builder.push(Engine::Dve, copy(all(128, 8), all(0, 8))).wait(semaphores[0], at_least);
    if let Some(at_least) = second_wait {
        reader.wait(semaphores[1], at_least);
    }
    builder
}

#[test]
fn transfers_in_flight_on_one_semaphore_are_not_told_apart() {
    expect(&two_loads([0, 1], 16, None), &[]);
    expect(&two_loads([0, 0], 32, None), &[]);
    // Either load may be the one that counted 16.
    expect(&two_loads([0, 0], 16, None), &[FindingKind::ReadAfterWrite]);
    // 15 of 16 engines say nothing about the last one.
    expect(&two_loads([0, 1], 15, None), &[FindingKind::PartOfTransfer]);
    expect(&two_loads([0, 1], 16, Some(16)), &[]);
}

#[test]
fn a_transfer_that_starts_after_the_wait_cannot_stand_in() {
    let build = |trigger_waits: bool| {
        let mut builder = Builder::new(TargetName::Trn2);
        let input = builder.input(F32, &[128, 8]);
        let load = |start_byte| dma(lanes(0, 128, start_byte, 8, F32), rows(input, 128, 8, F32), DmaQueue::Hardware);
        let first = load(0);
        let second = load(64);
        builder.push(Engine::Sp, first).update(0, 16);
        builder.push(Engine::Dve, copy(all(128, 8), all(0, 8))).wait(0, 16).update(1, 1);
        let again = builder.push(Engine::Sp, second).update(0, 16);
        if trigger_waits {
            again.wait(1, 1);
        }
        builder
    };
    // Only where the second load waits for the reader is the first 16 the first load's.
    expect(&build(true), &[]);
    expect(&build(false), &[FindingKind::ReadAfterWrite]);
}

#[test]
fn order_passes_on_through_other_engines() {
    let mut builder = Builder::new(TargetName::Trn2);
    builder.push(Engine::Dve, memset(all(0, 8))).update(0, 1);
    builder.push(Engine::Act, InstructionKind::Sync).wait(0, 1);
    builder.push(Engine::Act, InstructionKind::Sync).update(1, 1);
    builder.push(Engine::Pool, copy(all(64, 8), all(0, 8))).wait(1, 1);
    expect(&builder, &[]);
}

#[test]
fn reads_before_writes_are_found_to_the_byte() {
    let mut builder = Builder::new(TargetName::Trn2);
    builder.push(Engine::Dve, memset(sbuf((0, 32), 0, 7, F32)));
    builder.push(Engine::Dve, copy(sbuf((0, 32), 64, 8, F32), sbuf((0, 32), 0, 8, F32)));
    let findings = builder.machine().check();
    assert_eq!(findings.findings[0].kind, FindingKind::Uninitialised);
    assert_eq!(
        findings.findings[0].message,
        "reads bytes 28..29 of SBUF on partitions 0..1, which nothing has written"
    );
    let mut builder = Builder::new(TargetName::Trn2);
    let output = builder.output(F32, &[128, 8]);
    builder.push(Engine::Sp, dma(lanes(0, 128, 0, 8, F32), rows(output, 128, 8, F32), DmaQueue::Hardware));
    expect(&builder, &[FindingKind::Uninitialised, FindingKind::UnwrittenOutput]);
}

#[test]
fn outputs_are_written_whole() {
    let mut builder = Builder::new(TargetName::Trn2);
    let (input, output) = (builder.input(F32, &[4, 8]), builder.output(F32, &[4, 8]));
    builder.push(Engine::Sp, dma(rows(output, 3, 8, F32), rows(input, 3, 8, F32), DmaQueue::Hardware));
    let findings = builder.machine().check();
    assert_eq!(findings.findings[0].message, "byte 96 of `t1` is never written");
    assert_eq!(kinds(&builder), [FindingKind::UnwrittenOutput]);
}

#[test]
fn hbm_is_ordered_too() {
    let build = |wait: bool| {
        let mut builder = Builder::new(TargetName::Trn2);
        let (input, output) = (builder.input(F32, &[128, 8]), builder.output(F32, &[128, 8]));
        let scratch = builder.scratch(F32, &[128, 8]);
        builder
            .push(Engine::Sp, dma(rows(scratch, 128, 8, F32), rows(input, 128, 8, F32), DmaQueue::Hardware))
            .update(0, 16);
        let second =
            builder.push(Engine::Act, dma(rows(output, 128, 8, F32), rows(scratch, 128, 8, F32), DmaQueue::Hardware));
        if wait {
            second.wait(0, 16);
        }
        builder
    };
    expect(&build(true), &[]);
    expect(&build(false), &[FindingKind::ReadAfterWrite]);
}

#[test]
fn matmuls_add_to_matmuls_only() {
    let matmul = |accumulate| InstructionKind::Matmul {
        dst: psum((0, 128), 0, 8, F32),
        stationary: all(0, 128),
        moving: all(0, 8),
        accumulate,
    };
    let mut builder = Builder::new(TargetName::Trn2);
    builder.push(Engine::Dve, memset(all(0, 128))).update(0, 1);
    builder.push(Engine::Pe, matmul(false)).wait(0, 1).update(1, 1);
    builder.push(Engine::Dve, memset(psum((0, 128), 0, 8, F32))).wait(1, 1).update(2, 1);
    builder.push(Engine::Pe, matmul(true)).wait(2, 1);
    expect(&builder, &[FindingKind::Rule(Rule::PsumGroup)]);
    builder.program.instructions.remove(2);
    builder.program.instructions[2].waits.clear();
    expect(&builder, &[]);
    builder.program.instructions.remove(1);
    expect(&builder, &[FindingKind::Rule(Rule::PsumGroup), FindingKind::ReadAfterWrite, FindingKind::Uninitialised]);
}

#[test]
fn groups_in_one_bank_do_not_alternate() {
    let matmul = |start_byte, accumulate| InstructionKind::Matmul {
        dst: psum((0, 128), start_byte, 8, F32),
        stationary: all(0, 128),
        moving: all(0, 8),
        accumulate,
    };
    let build = |second_byte: u32| {
        let mut builder = Builder::new(TargetName::Trn2);
        builder.push(Engine::Dve, memset(all(0, 128))).update(0, 1);
        builder.push(Engine::Pe, matmul(0, false)).wait(0, 1);
        builder.push(Engine::Pe, matmul(second_byte, false));
        builder.push(Engine::Pe, matmul(0, true));
        builder.push(Engine::Pe, matmul(second_byte, true));
        builder
    };
    expect(&build(2048), &[]);
    expect(&build(32), &[FindingKind::Rule(Rule::PsumGroup)]);
    assert_eq!(
        build(32).machine().check().findings[0].to_string(),
        "psum-group: `nc_matmul` accumulates in a bank where another group has started since: \
         pe[1] `nc_matmul`; pe[2] `nc_matmul`"
    );
}

#[test]
fn sums_are_read_when_they_are_complete() {
    let matmul = |accumulate| InstructionKind::Matmul {
        dst: psum((0, 128), 0, 8, F32),
        stationary: all(0, 128),
        moving: all(0, 8),
        accumulate,
    };
    let build = |read_early: bool| {
        let mut builder = Builder::new(TargetName::Trn2);
        builder.push(Engine::Dve, memset(all(0, 128))).update(0, 1);
        builder.push(Engine::Pe, matmul(false)).wait(0, 1).update(1, 1);
        let read = |builder: &mut Builder, count: u16| {
            builder.push(Engine::Dve, copy(all(1024, 8), psum((0, 128), 0, 8, F32))).wait(1, count).update(0, 1);
        };
        if read_early {
            read(&mut builder, 1);
            builder.push(Engine::Pe, matmul(true)).wait(0, 2);
        } else {
            builder.push(Engine::Pe, matmul(true)).update(1, 1);
            read(&mut builder, 2);
        }
        builder
    };
    expect(&build(false), &[]);
    expect(&build(true), &[FindingKind::OpenGroup]);
}

#[test]
fn streams_load_tables_and_reset_sums() {
    let mut builder = Builder::new(TargetName::Trn2);
    builder.push(Engine::Dve, memset(all(0, 8))).update(0, 1);
    let mut exp = activation(ActivationFunction::Exp, all(64, 8), all(0, 8));
    if let InstructionKind::Activation { reduce, .. } = &mut exp {
        *reduce = Some(ReduceCommand::Reduce);
    }
    builder.push(Engine::Act, exp).wait(0, 1);
    expect(&builder, &[FindingKind::Rule(Rule::Table), FindingKind::Uninitialised]);
    let load = ir::program::Instruction::new(Engine::Act, InstructionKind::LoadTable { set: TableSet::ExpAndOthers });
    builder.program.instructions.insert(0, load);
    if let InstructionKind::Activation { reduce, .. } = &mut builder.program.instructions[2].kind {
        *reduce = Some(ReduceCommand::ResetReduce);
    }
    expect(&builder, &[]);
}

#[test]
fn the_end_waits_for_every_transfer() {
    let mut builder = ORDERED.build();
    let all_kinds = |builder: &Builder| -> Vec<_> {
        builder.machine().check().findings.into_iter().map(|finding| finding.kind).collect()
    };
    assert_eq!(all_kinds(&builder), [FindingKind::UnfinishedTransfer]);
    builder.program.instructions[2].update(2, 16);
    builder.push(Engine::Act, InstructionKind::Sync).wait(2, 16);
    assert_eq!(all_kinds(&builder), []);
}

#[test]
fn semaphores_do_not_overflow() {
    let mut builder = Builder::new(TargetName::Trn2);
    for _ in 0..2 {
        builder.push(Engine::Dve, InstructionKind::Sync).update(0, 40_000);
    }
    expect(&builder, &[FindingKind::SemaphoreOverflow]);
}

#[test]
fn illegal_operands_are_found_before_anything_runs() {
    let mut builder = Builder::new(TargetName::Trn2);
    builder.push(Engine::Dve, memset(sbuf((0, 128), 0, 8, F32)));
    builder.push(Engine::Pool, memset(psum((0, 128), 0, 8, F32)));
    builder.push(Engine::Dve, copy(all(0, 8), all(0, 9)));
    expect(&builder, &[FindingKind::Rule(Rule::Shape), FindingKind::Rule(Rule::Memory)]);
    assert!(matches!(builder.machine().run(&[]), Err(crate::RunError::Illegal(_))));
}

#[test]
fn trn1_engines_take_turns_at_shared_ports() {
    let build = |target, wait: bool| {
        let mut builder = Builder::new(target);
        builder.push(Engine::Dve, memset(all(0, 8))).update(0, 1);
        let second = builder.push(Engine::Pool, memset(all(64, 8)));
        if wait {
            second.wait(0, 1);
        }
        builder
    };
    expect(&build(TargetName::Trn1, true), &[]);
    expect(&build(TargetName::Trn1, false), &[FindingKind::SharedPort]);
    expect(&build(TargetName::Trn2, false), &[]);
}

/// Every second element of eight, from the first or the second.
fn alternate(start_byte: u32) -> TileView {
    let mut view = all(start_byte, 8);
    view.dims[0].step = 2;
    view
}

#[test]
fn accesses_with_gaps_are_told_apart() {
    let build = |read_byte: u32, written_byte: u32| {
        let mut builder = Builder::new(TargetName::Trn2);
        builder.push(Engine::Dve, memset(all(0, 16))).update(0, 1);
        builder.push(Engine::Pool, copy(all(1024, 8), alternate(read_byte))).wait(0, 1);
        builder.push(Engine::Act, activation(ActivationFunction::Copy, alternate(written_byte), all(64, 8)));
        let zeros = ir::program::Instruction::new(Engine::Act, InstructionKind::Sync);
        builder.program.instructions.insert(2, zeros);
        builder.program.instructions[2].wait(0, 1);
        builder.program.instructions[0].kind = memset(all(0, 128));
        builder
    };
    expect(&build(0, 4), &[]);
    expect(&build(4, 0), &[]);
    assert_eq!(kinds(&build(4, 4)).len(), 1);
    // What lies in a gap was written before.
    let mut builder = Builder::new(TargetName::Trn2);
    builder.push(Engine::Dve, memset(alternate(0)));
    builder.push(Engine::Dve, copy(all(1024, 8), alternate(0)));
    expect(&builder, &[]);
    builder.push(Engine::Dve, copy(all(1024, 8), alternate(4)));
    expect(&builder, &[FindingKind::Uninitialised]);
}
