//! Numbers that try a function: every bf16 and f16, edges of f32; running it, and how far results are from
//! the truth.

use compiler::execute::Executable;
use ir::graph::InputRole;
use ir::reference::{Rounding, Value, evaluate, round_float};
use ir::target::TargetName;
use ir::{Dtype, Graph, Op, TensorType, ValueId};
use passes::Numerics;

use crate::support::{neff_of, options};

/// Every bf16: 65,536 of them.
pub fn every_bf16() -> Vec<f64> {
    (0..=u16::MAX).map(|bits| f64::from(f32::from_bits(u32::from(bits) << 16))).collect()
}

/// Every f16.
pub fn every_f16() -> Vec<f64> {
    let ty = TensorType::new(Dtype::F16, [1 << 16]);
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    floats(&Value::from_bytes(&ty, &bytes).expect("two bytes are an f16")).to_vec()
}

/// f32 of both signs at every exponent, with mantissas at both ends, in the middle and at random, and
/// the neighbours of the numbers at which functions change: 32,768 in all.
pub fn f32_edges() -> Vec<f64> {
    let mut random = SplitMix(7);
    let mut numbers = Vec::new();
    for exponent in 0..=255u32 {
        let mantissas = [0, 1, 2, 0x40_0000, 0x3f_ffff, 0x7f_fffe, 0x7f_ffff];
        let random = (0..21).map(|_| random.next() as u32 & 0x7f_ffff);
        for mantissa in mantissas.into_iter().chain(random) {
            let bits = exponent << 23 | mantissa;
            numbers.extend([bits, bits | 1 << 31].map(f32::from_bits));
        }
    }
    let pi = std::f32::consts::PI;
    for center in [0.5, 1.0, pi / 4.0, pi / 2.0, pi, 2.0 * pi, 25_735.0, 51_471.0, codegen::SINE_LIMIT] {
        for step in -32..32i32 {
            let bits = (f32::to_bits(center) as i32 + step) as u32;
            numbers.extend([bits, bits | 1 << 31].map(f32::from_bits));
        }
    }
    // Where results are of a usual size.
    while numbers.len() < 32_768 {
        let unit = (random.next() >> 40) as f32 / (1 << 24) as f32;
        let scale = f32::from_bits(((random.next() % 40 + 110) as u32) << 23);
        numbers.push((unit * 2.0 - 1.0) * scale);
    }
    numbers.into_iter().map(f64::from).collect()
}

/// Units in the last place of `dtype` at the truth, between a result and the truth. 0 where both are
/// NaN, or the same infinity; infinite where only one is either.
pub fn ulps(result: f64, truth: f64, dtype: Dtype) -> f64 {
    let rounded = round_float(dtype, truth);
    if (result.is_nan() && truth.is_nan()) || result == rounded {
        return if truth.is_finite() && result.is_finite() { (result - truth).abs() / ulp(truth, dtype) } else { 0.0 };
    }
    if !result.is_finite() || !rounded.is_finite() {
        return f64::INFINITY;
    }
    (result - truth).abs() / ulp(truth, dtype)
}

/// Distance of neighbouring numbers of a type at `number`.
pub fn ulp(number: f64, dtype: Dtype) -> f64 {
    let (mantissa_bits, min_exponent) = match dtype {
        Dtype::F32 => (23, -126),
        Dtype::Bf16 => (7, -126),
        Dtype::F16 => (10, -14),
        _ => panic!("{dtype} is not asked for"),
    };
    let exponent = (((number.to_bits() >> 52) & 0x7ff) as i32 - 1023).max(min_exponent);
    f64::from_bits(((exponent - mantissa_bits + 1023) as u64) << 52)
}

/// Results of a checked program on the simulator, or why there are none.
pub fn run(graph: &Graph, inputs: &[Value], target: TargetName) -> Result<Vec<Value>, String> {
    let executable = Executable::load(&neff_of(graph, &options(target, Numerics::Contract))).expect("it loads");
    let outputs = executable.run_values(inputs).map_err(|error| error.to_string())?;
    Ok(outputs.into_iter().flatten().collect())
}

/// The first output as the reference gives it.
pub fn reference(graph: &Graph, inputs: &[Value], rounding: Rounding) -> Value {
    evaluate(graph, inputs, rounding).expect("the graph evaluates").remove(0).expect("it has an output")
}

/// A graph of one op on inputs of these types, with its first result as output.
pub fn graph_of(op: impl Into<Op>, types: &[TensorType]) -> Graph {
    let mut graph = Graph::new("g");
    let operands: Vec<ValueId> = types.iter().map(|ty| graph.push_input("x", ty.clone(), InputRole::Dynamic)).collect();
    let node = graph.push(op.into(), &operands, &[]).expect("the op takes these");
    let result = graph.node(node).results[0];
    graph.push_output(result);
    graph
}

pub fn floats(value: &Value) -> &[f64] {
    value.as_floats().expect("floats")
}

/// Sebastiano Vigna's splitmix64.
pub struct SplitMix(pub u64);

impl SplitMix {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
