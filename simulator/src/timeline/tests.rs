//! The two calibration timelines of the machine model, and single effects.

use ir::Dtype;
use ir::program::{ActivationFunction, DmaQueue, Engine, InstructionKind, TableSet};
use ir::target::TargetName;

use super::*;
use crate::testing::{Builder, Order, activation, dma, lanes, psum, rows, sbuf};

/// Loads rows, applies exp on ACT and stores them from Pool. Prepared descriptors serve both ways or
/// neither: the first profile shows the store's trigger right behind exp.
fn exp_program(n_rows: u32, n: u32, load_engine: Engine, load_queue: DmaQueue) -> Builder {
    let mut builder = Builder::new(TargetName::Trn2);
    let shape = [n_rows as usize, n as usize];
    let (input, output) = (builder.input(Dtype::Bf16, &shape), builder.output(Dtype::Bf16, &shape));
    let bf16 = Dtype::Bf16;
    let load = dma(lanes(0, n_rows, 0, n, bf16), rows(input, n_rows, n, bf16), load_queue);
    builder.push(load_engine, load).update(0, 16);
    // The table is loaded when the function is first needed, as in the profiles.
    builder.push(Engine::Act, InstructionKind::LoadTable { set: TableSet::ExpAndOthers }).wait(0, 16);
    let (dst, data) = (sbuf((0, n_rows as u8), 65_536, n as u16, bf16), sbuf((0, n_rows as u8), 0, n as u16, bf16));
    builder.push(Engine::Act, activation(ActivationFunction::Exp, dst, data)).update(1, 1);
    let store = dma(rows(output, n_rows, n, bf16), lanes(0, n_rows, 65_536, n, bf16), load_queue);
    builder.push(Engine::Pool, store).wait(1, 1).update(2, 16);
    builder
}

/// Events of the profile, in ns from the first trigger, against the model within 5 %.
#[track_caller]
fn expect_events(timeline: &Timeline, expected: &[(&str, i64, f64)]) {
    for &(what, ps, seen_ns) in expected {
        let error = (ps as f64 / 1000.0 - seen_ns) / seen_ns;
        assert!(error.abs() < 0.05, "{what}: {ps} ps against {seen_ns} ns, {:+.1} %", error * 100.0);
    }
    assert!(
        timeline.critical_path.windows(2).all(|pair| pair[0].to_ps == pair[1].from_ps),
        "{:?}",
        timeline.critical_path
    );
}

fn span(timeline: &Timeline, engine: Engine, position: u32) -> &Span {
    let id = InstructionId { engine, position };
    timeline.spans.iter().find(|span| span.instruction == id).expect("the instruction exists")
}

fn data(timeline: &Timeline, engine: Engine, position: u32) -> &TransferSpan {
    span(timeline, engine, position).transfer.as_ref().expect("a transfer")
}

#[test]
fn exp_of_4_rows_on_one_engine_matches_its_profile() {
    let builder = exp_program(4, 4096, Engine::Sp, DmaQueue::Ring);
    let timeline = builder.machine().timeline().expect("it ends");
    // Appendix E.1: trigger at 22,280.
    expect_events(
        &timeline,
        &[
            ("first data", data(&timeline, Engine::Sp, 0).first_data_ps, 1_003.0),
            ("last data", data(&timeline, Engine::Sp, 0).last_data_ps, 2_419.0),
            ("table load", span(&timeline, Engine::Act, 0).start_ps, 2_740.0),
            ("exp", span(&timeline, Engine::Act, 1).start_ps, 4_070.0),
            ("exp done", span(&timeline, Engine::Act, 1).done_ps, 7_780.0),
            ("store data", data(&timeline, Engine::Pool, 0).first_data_ps, 8_710.0),
            ("end", data(&timeline, Engine::Pool, 0).last_data_ps, 9_930.0),
        ],
    );
    assert_eq!(data(&timeline, Engine::Sp, 0).n_engines, 1);
}

#[test]
fn exp_of_128_rows_on_16_engines_matches_its_profile() {
    let builder = exp_program(128, 128, Engine::Pool, DmaQueue::Software);
    let timeline = builder.machine().timeline().expect("it ends");
    // Appendix E.2: trigger at 33,300.
    expect_events(
        &timeline,
        &[
            ("first data", data(&timeline, Engine::Pool, 0).first_data_ps, 739.0),
            ("last data", data(&timeline, Engine::Pool, 0).last_data_ps, 1_207.0),
            ("table load", span(&timeline, Engine::Act, 0).start_ps, 1_500.0),
            ("exp", span(&timeline, Engine::Act, 1).start_ps, 2_840.0),
            ("exp done", span(&timeline, Engine::Act, 1).done_ps, 3_240.0),
            ("store trigger", span(&timeline, Engine::Pool, 1).done_ps, 4_120.0),
            ("store data", data(&timeline, Engine::Pool, 1).first_data_ps, 4_740.0),
        ],
    );
    assert_eq!(data(&timeline, Engine::Pool, 0).n_engines, 16);
    assert_eq!(timeline.bound, Bound::Latency);
    assert_eq!((timeline.hbm_read_bytes, timeline.hbm_write_bytes), (32_768, 32_768));
}

#[test]
fn long_matmul_streams_warm_the_engine_up() {
    let mut builder = Builder::new(TargetName::Trn2);
    let n_matmuls = 200;
    for _ in 0..n_matmuls {
        let kind = InstructionKind::Matmul {
            dst: psum((0, 128), 0, 512, Dtype::F32),
            stationary: sbuf((0, 128), 0, 128, Dtype::Bf16),
            moving: sbuf((0, 128), 1024, 512, Dtype::Bf16),
            accumulate: false,
        };
        builder.push(Engine::Pe, kind);
    }
    let timeline = builder.machine().timeline().expect("it ends");
    let interval = |position: u32| {
        span(&timeline, Engine::Pe, position + 1).start_ps - span(&timeline, Engine::Pe, position).start_ps
    };
    assert_eq!((interval(0), interval(n_matmuls - 2)), (428_666, 215_333));
    assert_eq!(timeline.bound, Bound::Pe);
}

#[test]
fn a_dependent_instruction_waits_for_its_operand() {
    let mut builder = Builder::new(TargetName::Trn2);
    let f32 = Dtype::F32;
    for (dst, data) in [(4096, 0), (8192, 4096), (16_384, 0)] {
        let copy = activation(ActivationFunction::Copy, sbuf((0, 128), dst, 128, f32), sbuf((0, 128), data, 128, f32));
        builder.push(Engine::Act, copy);
    }
    let timeline = builder.machine().timeline().expect("it ends");
    let spans: Vec<_> = (0..3).map(|position| span(&timeline, Engine::Act, position)).collect();
    assert_eq!(spans[1].start_ps, spans[0].done_ps + 35_000);
    assert_eq!(spans[1].cause, Cause::Operand(spans[0].instruction));
    assert_eq!(spans[2].start_ps, spans[1].end_ps);
}

#[test]
fn transfers_share_engines_and_generators() {
    let mut builder = Builder::new(TargetName::Trn2);
    let input = builder.input(Dtype::F32, &[128, 1024]);
    for start_byte in [0, 4096] {
        let (dst, src) = (lanes(0, 128, start_byte, 1024, Dtype::F32), rows(input, 128, 1024, Dtype::F32));
        builder.push(Engine::Sp, dma(dst, src, DmaQueue::Hardware)).update(0, 16);
    }
    let timeline = builder.machine().timeline().expect("it ends");
    let (first, second) = (data(&timeline, Engine::Sp, 0), data(&timeline, Engine::Sp, 1));
    let target = TargetName::Trn2.target();
    assert_eq!(span(&timeline, Engine::Sp, 1).start_ps, target.dma_hardware_issue_ps as i64);
    // Eight rows of one packet on each engine.
    let work_ps = 8 * (target.dma_packet_ps + 4 * target.dma_kib_ps) + target.dma_hardware_gap_ps;
    assert_eq!(second.first_data_ps, first.first_data_ps + work_ps as i64);
    assert_eq!(second.behind, Some(InstructionId { engine: Engine::Sp, position: 0 }));
}

#[test]
fn a_deadlock_says_who_waits_for_what() {
    let mut builder = Builder::new(TargetName::Trn2);
    builder.push(Engine::Act, InstructionKind::Sync).wait(3, 1).update(4, 1);
    builder.push(Engine::Dve, InstructionKind::Sync).wait(4, 2).update(3, 1);
    let finding = builder.machine().timeline().expect_err("both wait for ever");
    assert_eq!(
        finding.message,
        "act waits for semaphore 3 >= 1, which stays 0; dve waits for semaphore 4 >= 2, which stays 0"
    );
    assert_eq!(finding.sites.len(), 2);
}
