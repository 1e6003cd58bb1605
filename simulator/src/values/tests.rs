//! Values of whole programs and of single instructions.

use ir::Dtype;
use ir::program::{ActivationFunction, AluOp, DmaQueue, Engine, Gather, InstructionKind, ReduceCommand, ScalarOperand};
use ir::target::TargetName;

use crate::testing::{Builder, Order, activation, dma, f32_bytes, f32_values, lanes, psum, rows, sbuf};
use crate::{FindingKind, RunError};

/// Loads f32 [n_rows, n] to SBUF bytes 0.., runs the instructions, stores `result` of [n_rows, m].
pub(super) fn run_on(
    target: TargetName,
    input: &[f32],
    n_rows: u8,
    kinds: &[(Engine, InstructionKind)],
    result: (u32, u32, Dtype, u8),
) -> crate::Outputs {
    let mut builder = Builder::new(target);
    let n = input.len() / usize::from(n_rows);
    let (start_byte, n_result, dtype, result_rows) = result;
    let source = builder.input(Dtype::F32, &[n_rows.into(), n]);
    let output = builder.output(dtype, &[result_rows.into(), n_result as usize]);
    let load = dma(
        lanes(0, n_rows.into(), 0, n as u32, Dtype::F32),
        rows(source, n_rows.into(), n as u32, Dtype::F32),
        DmaQueue::Ring,
    );
    builder.push(Engine::Sp, load).update(0, 16);
    let mut done = (0, 16);
    for (number, (engine, kind)) in kinds.iter().enumerate() {
        let semaphore = number as u16 + 1;
        builder.push(*engine, kind.clone()).wait(done.0, done.1).update(semaphore, 1);
        done = (semaphore, 1);
    }
    let store = dma(
        rows(output, result_rows.into(), n_result, dtype),
        lanes(0, result_rows.into(), start_byte, n_result, dtype),
        DmaQueue::Ring,
    );
    builder.push(Engine::Sp, store).wait(done.0, done.1).update(100, 16);
    let machine = builder.machine();
    machine.run_lenient(&[Some(&f32_bytes(input))]).expect("the program is legal")
}

pub(super) fn values(outputs: &crate::Outputs) -> Vec<f32> {
    f32_values(&outputs.tensors[0].as_ref().expect("there is an output").bytes)
}

pub(super) fn f32_at(n_rows: u8, start_byte: u32, n: u16) -> ir::program::TileView {
    sbuf((0, n_rows), start_byte, n, Dtype::F32)
}

#[test]
fn rms_norm_in_three_instructions() {
    let (n_rows, n) = (4u8, 8u16);
    let input: Vec<f32> = (0..32).map(|i| (i as f32 - 13.0) / 7.0).collect();
    let square = InstructionKind::Activation {
        function: ActivationFunction::Square,
        dst: f32_at(n_rows, 1024, n),
        data: f32_at(n_rows, 0, n),
        scale: ScalarOperand::Immediate(1.0),
        bias: ScalarOperand::Immediate(0.0),
        reduce: Some(ReduceCommand::ResetReduce),
        reduce_result: Some(f32_at(n_rows, 2048, 1)),
    };
    let rsqrt = InstructionKind::Activation {
        function: ActivationFunction::Rsqrt,
        dst: f32_at(n_rows, 2052, 1),
        data: f32_at(n_rows, 2048, 1),
        scale: ScalarOperand::Immediate(1.0 / 8.0),
        bias: ScalarOperand::Immediate(1e-5),
        reduce: None,
        reduce_result: None,
    };
    let scale = InstructionKind::ScalarTensorTensor {
        dst: f32_at(n_rows, 4096, n),
        data: f32_at(n_rows, 0, n),
        op0: AluOp::Multiply,
        operand0: ScalarOperand::Vector(f32_at(n_rows, 2052, 1)),
        reverse0: false,
        op1: AluOp::Add,
        operand1: f32_at(n_rows, 0, n),
        reverse1: false,
    };
    let kinds = [(Engine::Act, square), (Engine::Act, rsqrt), (Engine::Dve, scale)];
    let outputs = run_on(TargetName::Trn2, &input, n_rows, &kinds, (4096, 8, Dtype::F32, 4));
    for (row, result) in input.chunks(8).zip(values(&outputs).chunks(8)) {
        let inverse = 1.0 / (row.iter().map(|x| f64::from(x * x)).sum::<f64>() / 8.0 + 1e-5).sqrt();
        for (&x, &y) in row.iter().zip(result) {
            let expected = f64::from(x) * (inverse + 1.0);
            assert!((f64::from(y) - expected).abs() < 1e-5, "{y} against {expected}");
        }
    }
    assert!(outputs.findings.is_empty());
}

#[test]
fn inputs_outside_a_functions_range_are_reported_instead_of_a_number() {
    let mut builder = Builder::new(TargetName::Trn2);
    let (input, output) = (builder.input(Dtype::F32, &[2, 2]), builder.output(Dtype::F32, &[2, 2]));
    let lane = |start_byte| lanes(0, 2, start_byte, 2, Dtype::F32);
    builder.push(Engine::Sp, dma(lane(0), rows(input, 2, 2, Dtype::F32), DmaQueue::Ring)).update(0, 16);
    let log = activation(ActivationFunction::Log, f32_at(2, 1024, 2), f32_at(2, 0, 2));
    builder.push(Engine::Act, log).wait(0, 16).update(1, 1);
    builder.push(Engine::Sp, dma(rows(output, 2, 2, Dtype::F32), lane(1024), DmaQueue::Ring)).wait(1, 1).update(2, 16);
    let mut machine = builder.machine();
    let id = crate::InstructionId { engine: Engine::Act, position: 0 };
    machine.set_sources([(id, vec!["log (aten.log.default) model.py:7".into()])]);
    let bytes = f32_bytes(&[1.0, 0.0, f32::NAN, f32::INFINITY]);
    let error = machine.run(&[Some(&bytes)]).expect_err("0 and infinity have no logarithm on the chip");
    assert_eq!(error.code(), "activation-range");
    assert_eq!(
        error.to_string(),
        "1 activations have inputs without a valid result: activation-range: Log has no valid result for 0e0 \
         (partition 0, element 1), one of 2 inputs: act[0] `activation` from log (aten.log.default) model.py:7"
    );
    let outputs = machine.run_lenient(&[Some(&bytes)]).expect("the program is legal");
    assert_eq!(outputs.findings.findings[0].kind, FindingKind::ActivationRange);
    let results = values(&outputs);
    assert_eq!(results[0], 0.0);
    assert!(results[1..].iter().all(|result| result.is_nan()), "{results:?}");
    assert!(machine.run(&[Some(&f32_bytes(&[1.0, 2.0, f32::NAN, 4.0]))]).is_ok(), "what a NaN gives is a NaN");
}

#[test]
fn results_are_rounded_once_to_their_type() {
    let copy = |dtype| InstructionKind::TensorCopy { dst: sbuf((0, 1), 1024, 4, dtype), src: f32_at(1, 0, 4) };
    let input = [1.0 + 1.0 / 256.0, -2.5, 300.0, f32::NAN];
    let bf16 = run_on(TargetName::Trn2, &input, 1, &[(Engine::Dve, copy(Dtype::Bf16))], (1024, 4, Dtype::Bf16, 1));
    let bytes = &bf16.tensors[0].as_ref().expect("there is an output").bytes;
    assert_eq!(bytes[..6], [0x80, 0x3f, 0x20, 0xc0, 0x96, 0x43]);
    let int = run_on(TargetName::Trn2, &input, 1, &[(Engine::Dve, copy(Dtype::I8))], (1024, 4, Dtype::I8, 1));
    assert_eq!(int.tensors[0].as_ref().expect("there is an output").bytes, [1, -2i8 as u8, 127, 0]);
}

#[test]
fn matmuls_accumulate_in_psum() {
    // Two matmuls of [2 x 2] data with itself: dst = 2 * data^T data.
    let matmul = |accumulate| InstructionKind::Matmul {
        dst: psum((0, 2), 0, 2, Dtype::F32),
        stationary: f32_at(2, 0, 2),
        moving: f32_at(2, 0, 2),
        accumulate,
    };
    let evict = InstructionKind::TensorCopy { dst: f32_at(2, 1024, 2), src: psum((0, 2), 0, 2, Dtype::F32) };
    let kinds = [(Engine::Pe, matmul(false)), (Engine::Pe, matmul(true)), (Engine::Dve, evict)];
    let outputs = run_on(TargetName::Trn2, &[1.0, 2.0, 3.0, 4.0], 2, &kinds, (1024, 2, Dtype::F32, 2));
    assert_eq!(values(&outputs), [20.0, 28.0, 28.0, 40.0]);
}

#[test]
fn pe_transposes_move_bits_except_on_trn1() {
    let run = |target| {
        let transpose = InstructionKind::Transpose { dst: psum((0, 3), 0, 2, Dtype::F32), data: f32_at(2, 0, 3) };
        let evict = InstructionKind::TensorCopy { dst: f32_at(3, 1024, 2), src: psum((0, 3), 0, 2, Dtype::F32) };
        let input = [1.0, 2.0, f32::INFINITY, 4.0, 5.0, 6.0];
        values(&run_on(target, &input, 2, &[(Engine::Pe, transpose), (Engine::Dve, evict)], (1024, 2, Dtype::F32, 3)))
    };
    assert_eq!(run(TargetName::Trn2), [1.0, 4.0, 2.0, 5.0, f32::INFINITY, 6.0]);
    let polluted = run(TargetName::Trn1);
    assert_eq!(polluted[..5], [1.0, 4.0, 2.0, 5.0, f32::INFINITY]);
    assert!(polluted[5].is_nan());
}

#[test]
fn reductions_scans_and_selections() {
    let input = [3.0, 1.0, 2.0, 0.0, 5.0, 4.0];
    let reduce = |op, negate| InstructionKind::TensorReduce {
        dst: f32_at(1, 1024, 1),
        data: f32_at(1, 0, 6),
        op,
        n_reduced_dims: 1,
        negate,
    };
    let one = |kind| values(&run_on(TargetName::Trn2, &input, 1, &[(Engine::Dve, kind)], (1024, 1, Dtype::F32, 1)))[0];
    assert_eq!(one(reduce(AluOp::Max, true)), -5.0);
    assert_eq!(one(reduce(AluOp::Add, false)), 15.0);
    let scan = InstructionKind::TensorTensorScan {
        dst: f32_at(1, 1024, 6),
        data0: f32_at(1, 0, 6),
        data1: f32_at(1, 0, 6),
        initial: ScalarOperand::Immediate(1.0),
        op0: AluOp::Multiply,
        op1: AluOp::Add,
    };
    let six = |kinds: &[(Engine, InstructionKind)]| {
        values(&run_on(TargetName::Trn2, &input, 1, kinds, (1024, 6, Dtype::F32, 1)))
    };
    assert_eq!(six(&[(Engine::Dve, scan)]), [6.0, 7.0, 16.0, 0.0, 5.0, 24.0]);
    // Where x >= 2, x; elsewhere -1.
    let compare = InstructionKind::TensorScalar {
        dst: sbuf((0, 1), 512, 6, Dtype::U8),
        data: f32_at(1, 0, 6),
        op0: AluOp::GreaterEqual,
        operand0: ScalarOperand::Immediate(2.0),
        reverse0: false,
        second: None,
    };
    let fill = InstructionKind::Memset { dst: f32_at(1, 1024, 6), value: -1.0 };
    let select = InstructionKind::TensorCopyPredicated {
        dst: f32_at(1, 1024, 6),
        src: f32_at(1, 0, 6),
        predicate: sbuf((0, 1), 512, 6, Dtype::U8),
    };
    let kinds = [(Engine::Dve, compare), (Engine::Pool, fill), (Engine::Dve, select)];
    assert_eq!(six(&kinds), [3.0, -1.0, 2.0, -1.0, 5.0, 4.0]);
}

#[test]
fn integers_go_through_f32_except_on_pool() {
    let big = 16_777_217i32;
    let i32_at = |start_byte| sbuf((0, 1), start_byte, 1, Dtype::I32);
    let run = |engine| {
        let iota = InstructionKind::Iota {
            dst: i32_at(512),
            steps: [0].as_slice().into(),
            offset: big,
            channel_multiplier: 0,
        };
        let zero = InstructionKind::Memset { dst: i32_at(516), value: 0.0 };
        let add =
            InstructionKind::TensorTensor { dst: i32_at(1024), lhs: i32_at(512), rhs: i32_at(516), op: AluOp::Add };
        let kinds = [(Engine::Pool, iota), (Engine::Dve, zero), (engine, add)];
        let outputs = run_on(TargetName::Trn2, &[0.0], 1, &kinds, (1024, 1, Dtype::I32, 1));
        let bytes = &outputs.tensors[0].as_ref().expect("there is an output").bytes;
        i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    };
    assert_eq!((run(Engine::Pool), run(Engine::Dve)), (big, 16_777_216));
}

#[test]
fn gathers_take_rows_and_refuse_indices_outside_their_table() {
    let run = |indices: [f32; 2]| {
        let mut builder = Builder::new(TargetName::Trn2);
        let (table, positions) = (builder.input(Dtype::F32, &[3, 2]), builder.input(Dtype::I32, &[2, 1]));
        let output = builder.output(Dtype::F32, &[2, 2]);
        let load = dma(lanes(0, 2, 0, 1, Dtype::I32), rows(positions, 2, 1, Dtype::I32), DmaQueue::Ring);
        builder.push(Engine::Sp, load).update(0, 16);
        let gather = Gather { index: sbuf((0, 2), 0, 1, Dtype::I32), row_elements: 2, n_rows: 3 };
        let kind = InstructionKind::Dma {
            dst: lanes(0, 2, 64, 2, Dtype::F32),
            src: rows(table, 2, 2, Dtype::F32),
            queue: DmaQueue::Software,
            gather: Some(gather),
        };
        builder.push(Engine::Pool, kind).wait(0, 16).update(1, 16);
        let store = dma(rows(output, 2, 2, Dtype::F32), lanes(0, 2, 64, 2, Dtype::F32), DmaQueue::Ring);
        builder.push(Engine::Sp, store).wait(1, 16).update(2, 16);
        let raw: Vec<u8> = indices.iter().flat_map(|&index| (index as i32).to_le_bytes()).collect();
        builder.machine().run(&[Some(&f32_bytes(&[0.0, 1.0, 10.0, 11.0, 20.0, 21.0])), Some(&raw)])
    };
    assert_eq!(values(&run([2.0, 0.0]).expect("both indices are valid")), [20.0, 21.0, 0.0, 1.0]);
    let error = run([1.0, -1.0]).expect_err("-1 is no row");
    assert!(matches!(error, RunError::IndexOutOfRange { row: 1, index: -1, n_rows: 3, .. }), "{error}");
    assert_eq!(error.code(), "index-out-of-range");
}

#[test]
fn software_transfers_cast() {
    let mut builder = Builder::new(TargetName::Trn2);
    let (input, output) = (builder.input(Dtype::F32, &[1, 3]), builder.output(Dtype::I32, &[1, 3]));
    let load = dma(lanes(0, 1, 0, 3, Dtype::I32), rows(input, 1, 3, Dtype::F32), DmaQueue::Software);
    builder.push(Engine::Pool, load).update(0, 16);
    let store = dma(rows(output, 1, 3, Dtype::I32), lanes(0, 1, 0, 3, Dtype::I32), DmaQueue::Hardware);
    builder.push(Engine::Sp, store).wait(0, 16).update(1, 16);
    let outputs = builder.machine().run(&[Some(&f32_bytes(&[1.5, 2.5, -7.2]))]).expect("the program is legal");
    let expected: Vec<u8> = [2i32, 2, -7].iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(outputs.tensors[0].as_ref().expect("there is an output").bytes, expected);
}

#[test]
fn inputs_are_checked() {
    let builder = {
        let mut builder = Builder::new(TargetName::Trn2);
        let (input, output) = (builder.input(Dtype::F32, &[1, 3]), builder.output(Dtype::F32, &[1, 3]));
        builder
            .push(Engine::Sp, dma(rows(output, 1, 3, Dtype::F32), rows(input, 1, 3, Dtype::F32), DmaQueue::Hardware));
        builder
    };
    let machine = builder.machine();
    assert!(matches!(machine.run(&[]), Err(RunError::InputCount { expected: 1, given: 0 })));
    assert!(matches!(machine.run(&[None]), Err(RunError::MissingInput { position: 0, .. })));
    assert!(matches!(machine.run(&[Some(&[0; 4])]), Err(RunError::InputSize { expected: 12, given: 4, .. })));
    assert_eq!(values(&machine.run(&[Some(&f32_bytes(&[1.0, 2.0, 3.0]))]).expect("it fits")), [1.0, 2.0, 3.0]);
}
