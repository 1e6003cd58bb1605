//! Vectors that the hardware documents print, for the instructions that there are, and their table of
//! conversions.

use ir::Dtype;
use ir::program::{ActivationFunction, AluOp, Dim, Engine, InstructionKind, ScalarOperand, TileView};
use ir::target::TargetName;

use super::tests::{f32_at, run_on, values};
use crate::RunError;
use crate::testing::{Builder, Order, activation, dma, f32_bytes, lanes, psum, rows, sbuf};

#[test]
fn sin_reduces_no_range() {
    let mut builder = Builder::new(TargetName::Trn2);
    let (input, output) = (builder.input(Dtype::F32, &[1, 1]), builder.output(Dtype::F32, &[1, 1]));
    let lane = |start_byte| lanes(0, 1, start_byte, 1, Dtype::F32);
    let queue = ir::program::DmaQueue::Ring;
    builder.push(Engine::Sp, dma(lane(0), rows(input, 1, 1, Dtype::F32), queue)).update(0, 16);
    let sin = activation(ActivationFunction::Sin, f32_at(1, 64, 1), f32_at(1, 0, 1));
    builder.push(Engine::Act, sin).wait(0, 16).update(1, 1);
    builder.push(Engine::Sp, dma(rows(output, 1, 1, Dtype::F32), lane(64), queue)).wait(1, 1).update(2, 16);
    let machine = builder.machine();
    // The chip gives about 27.65, which is no sine.
    let error = machine.run(&[Some(&f32_bytes(&[9.0]))]).expect_err("9 is beyond pi");
    assert!(matches!(error, RunError::OutOfRange(_)) && error.to_string().contains("Sin has no valid result for 9e0"));
    let half_pi = machine.run(&[Some(&f32_bytes(&[std::f32::consts::FRAC_PI_2]))]).expect("it is in range");
    assert_eq!(values(&half_pi), [1.0]);
}

/// o + c*m + w*s3 + z*s2 + y*s1 + x*s0.
#[test]
fn iota_counts_in_four_dimensions_and_by_channel() {
    let (counts, steps) = ([2u16, 3, 2, 4], [1000, -100, 10, 1]);
    let (offset, multiplier) = (7, 10_000);
    let n: u16 = counts.iter().product();
    let mut step = 1;
    let mut dims: Vec<Dim> = Vec::new();
    for &count in counts.iter().rev() {
        dims.insert(0, Dim { step, count });
        step *= count as i16;
    }
    let dst = TileView { dims: dims.into_iter().collect(), ..f32_at(3, 1024, n) };
    let iota = InstructionKind::Iota { dst, steps: steps.as_slice().into(), offset, channel_multiplier: multiplier };
    let outputs = run_on(TargetName::Trn2, &[0.0; 3], 3, &[(Engine::Pool, iota)], (1024, u32::from(n), Dtype::F32, 3));
    let mut expected = Vec::new();
    for c in 0..3 {
        for w in 0..2 {
            for z in 0..3 {
                for y in 0..2 {
                    let base = offset + c * multiplier + w * 1000 - z * 100 + y * 10;
                    expected.extend((0..4).map(|x| (base + x) as f32));
                }
            }
        }
    }
    assert_eq!(values(&outputs), expected);
}

#[test]
fn bn_stats_describes_even_and_odd_elements() {
    let x = [3.0, 10.0, 5.0, 30.0, 1.0, 20.0];
    let stats = InstructionKind::BnStats { dst: f32_at(1, 1024, 6), data: f32_at(1, 0, 6) };
    let outputs = run_on(TargetName::Trn2, &x, 1, &[(Engine::Dve, stats)], (1024, 6, Dtype::F32, 1));
    // (m, mean of evens, m * variance of evens, m, mean of odds, m * variance of odds)
    assert_eq!(values(&outputs), [3.0, 3.0, 8.0, 3.0, 20.0, 200.0]);
}

#[test]
fn a_scan_is_a_recurrence_of_first_order() {
    let (a, b) = ([2.0, 0.5, -1.0, 3.0], [1.0, 4.0, 0.25, -2.0]);
    let scan = InstructionKind::TensorTensorScan {
        dst: f32_at(1, 1024, 4),
        data0: f32_at(1, 0, 4),
        data1: f32_at(1, 16, 4),
        initial: ScalarOperand::Immediate(0.0),
        op0: AluOp::Multiply,
        op1: AluOp::Add,
    };
    let input = [a, b].concat();
    let outputs = run_on(TargetName::Trn2, &input, 1, &[(Engine::Dve, scan)], (1024, 4, Dtype::F32, 1));
    let mut previous = 0.0;
    let expected: Vec<f32> = a
        .iter()
        .zip(b)
        .map(|(a, b)| {
            previous = a * previous + b;
            previous
        })
        .collect();
    assert_eq!(values(&outputs), expected);
    assert_eq!(expected, [1.0, 4.5, -4.25, -14.75]);
}

/// stationary.T @ moving.
#[test]
fn a_matmul_contracts_partitions() {
    // Three partitions: two stationary columns, then four moving ones.
    let input = [1.0, 2.0, 1.0, 0.0, 0.0, 5.0, 3.0, 4.0, 0.0, 1.0, 0.0, 6.0, 5.0, 6.0, 0.0, 0.0, 1.0, 7.0];
    let matmul = InstructionKind::Matmul {
        dst: psum((0, 2), 0, 4, Dtype::F32),
        stationary: f32_at(3, 0, 2),
        moving: f32_at(3, 8, 4),
        accumulate: false,
    };
    let evict = InstructionKind::TensorCopy { dst: f32_at(2, 1024, 4), src: psum((0, 2), 0, 4, Dtype::F32) };
    let kinds = [(Engine::Pe, matmul), (Engine::Dve, evict)];
    let outputs = run_on(TargetName::Trn2, &input, 3, &kinds, (1024, 4, Dtype::F32, 2));
    assert_eq!(values(&outputs), [1.0, 3.0, 5.0, 58.0, 2.0, 4.0, 6.0, 76.0]);
}

/// What a row of f32 is in memory after a copy to another type.
fn converted(numbers: &[f32], dtype: Dtype) -> Vec<u8> {
    let n = numbers.len() as u16;
    let copy = InstructionKind::TensorCopy { dst: sbuf((0, 1), 1024, n, dtype), src: f32_at(1, 0, n) };
    let outputs = run_on(TargetName::Trn2, numbers, 1, &[(Engine::Dve, copy)], (1024, u32::from(n), dtype, 1));
    outputs.tensors[0].as_ref().expect("there is an output").bytes.clone()
}

#[test]
fn floats_overflow_to_infinity_and_the_lowest_f32_is_minus_infinity() {
    let halves = |bytes: Vec<u8>| -> Vec<u16> {
        bytes.chunks_exact(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]])).collect()
    };
    let bf16_max = f32::from_bits(0x7f7f_0000);
    assert_eq!(
        halves(converted(&[f32::MIN, f32::MAX, bf16_max, 3.392e38, f32::INFINITY], Dtype::Bf16)),
        [0xff80, 0x7f80, 0x7f7f, 0x7f7f, 0x7f80]
    );
    assert_eq!(
        halves(converted(&[f32::MIN, 65_504.0, 65_519.99, 65_520.0, 6e-8, 2.9e-8], Dtype::F16)),
        [0xfc00, 0x7bff, 0x7bff, 0x7c00, 0x0001, 0x0000]
    );
    assert_eq!(converted(&[f32::MIN, 240.0, 247.9, 248.0, 1e30], Dtype::F8E4m3), [0xf8, 0x77, 0x77, 0x78, 0x78]);
    assert_eq!(converted(&[f32::MIN, 57_344.0, 61_439.0, 61_440.0], Dtype::F8E5m2), [0xfc, 0x7b, 0x7b, 0x7c]);
}

#[test]
fn integers_round_half_to_even_and_saturate() {
    let numbers = [0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 1e9, -1e9];
    let signed: Vec<i8> = converted(&numbers, Dtype::I8).into_iter().map(|byte| byte as i8).collect();
    assert_eq!(signed, [0, 2, 2, 0, -2, 126, 127, 127, -128]);
    assert_eq!(converted(&[254.5, 255.5, 300.0, -1.0], Dtype::U8), [254, 255, 255, 0]);
    let words = converted(&[2147483648.0, -3e9, 16_777_217.0, f32::NEG_INFINITY], Dtype::I32);
    let words: Vec<i32> = words.chunks_exact(4).map(|word| i32::from_le_bytes(word.try_into().unwrap())).collect();
    assert_eq!(words, [i32::MAX, i32::MIN, 16_777_216, i32::MIN]);
}
