//! Functions that need more than one instruction: those whose table covers only a part of their
//! domain, and those that no engine has.
//!
//! - sqrt and rsqrt of any input use Pool's power, which has no range limit. The fused norms use
//!   the table function: their input is a mean of squares plus eps.
//! - log scales inputs outside the table's [2^-64, 2^64] into it and adds the logarithm of the
//!   scale.
//! - sin and cos subtract a multiple of pi first (Cody and Waite's split into three constants), since
//!   the table is right on [-pi, pi] only, and give the result the sign of that multiple. Half turns
//!   keep results near zero as exact as their inputs. The split is exact for |x| up to 2^16; beyond,
//!   the result is NaN rather than a wrong number.
//! - a quotient is a product with the reciprocal, corrected by what is left of the dividend; the
//!   products behind the remainder are exact because both factors are split into a bf16 part and a
//!   rest.

use ir::program::{ActivationFunction, AluOp, Engine, InstructionKind, ScalarOperand, Space, TileView};
use ir::{Dtype, Node, Op};

use super::Lowerer;
use super::rowwise::GroupPlan;
use super::storage::{Frame, Operand};

/// pi in three parts: the first two have so few bits that a multiple by n or n - 1/2 is exact in f32
/// for integers n up to 2^14.
const PI_PARTS: [f32; 3] = [3.140_625, 0.000_967_025_76, 6.278_329_6e-7];
const SIN_LIMIT: f32 = 51_471.0;

impl Lowerer<'_> {
    /// Emits a unary node that is neither an ALU op nor a plain activation.
    pub(super) fn function(&mut self, node: &Node, frame: &Frame, plan: &GroupPlan) {
        let dst = self.dst(node, frame, plan);
        let data = self.full_operand(node.operands[0], frame);
        match &node.op {
            Op::Neg(_) => self.scalar_op(dst, data, AluOp::Multiply, -1.0),
            Op::LogicalNot(_) => self.scalar_op(dst, data, AluOp::Equal, 0.0),
            Op::Reciprocal(_) => self.emit(Engine::Dve, InstructionKind::Reciprocal { dst, data }),
            Op::Sqrt(_) => self.root_power(dst, data, 0.5, frame),
            Op::Rsqrt(_) => self.root_power(dst, data, -0.5, frame),
            Op::Log(_) => self.log(dst, data, frame),
            Op::Sign(_) => self.sign(dst, data, frame),
            Op::Sin(_) => self.sine(dst, data, 0.0, frame),
            Op::Cos(_) => self.sine(dst, data, 0.5, frame),
            _ => unreachable!("`{}` is not a unary function", node.op.name()),
        }
    }

    fn scalar_op(&mut self, dst: TileView, data: TileView, op0: AluOp, number: f32) {
        let operand0 = ScalarOperand::Immediate(number);
        let kind = InstructionKind::TensorScalar { dst, data, op0, operand0, reverse0: false, second: None };
        self.emit(Engine::Dve, kind);
    }

    fn two_scalar_ops(&mut self, dst: TileView, data: TileView, first: (AluOp, f32), second: (AluOp, f32)) {
        let kind = InstructionKind::TensorScalar {
            dst,
            data,
            op0: first.0,
            operand0: ScalarOperand::Immediate(first.1),
            reverse0: false,
            second: Some((second.0, ScalarOperand::Immediate(second.1), false)),
        };
        self.emit(Engine::Dve, kind);
    }

    /// x^exponent; min(x, 0) * 0 is added so that -inf gives NaN, as a root does.
    fn root_power(&mut self, dst: TileView, data: TileView, exponent: f64, frame: &Frame) {
        let vector = self.splat_vector(exponent, Dtype::F32, frame.n_partitions());
        let rhs = self.repeated(&vector, frame);
        let power = self.scratch(frame, Dtype::F32);
        let guard = self.scratch(frame, Dtype::F32);
        let kind = InstructionKind::TensorTensor { dst: power.clone(), lhs: data.clone(), rhs, op: AluOp::Power };
        self.emit(Engine::Pool, kind);
        self.two_scalar_ops(guard.clone(), data, (AluOp::Min, 0.0), (AluOp::Multiply, 0.0));
        self.alu(dst, Operand::Full(power), Operand::Full(guard), AluOp::Add, frame);
    }

    fn log(&mut self, dst: TileView, data: TileView, frame: &Frame) {
        let (low, high) = (power_of_two(-64), power_of_two(64));
        let log_of_clamped = |lowerer: &mut Self, scale: f32, shift: f32| {
            let scaled = lowerer.scratch(frame, Dtype::F32);
            lowerer.two_scalar_ops(scaled.clone(), data.clone(), (AluOp::Multiply, scale), (AluOp::Max, low));
            lowerer.scalar_op(scaled.clone(), scaled.clone(), AluOp::Min, high);
            let result = lowerer.scratch(frame, Dtype::F32);
            let one = ScalarOperand::Immediate(1.0);
            let zero = ScalarOperand::Immediate(0.0);
            lowerer.emit_activation(ActivationFunction::Log, result.clone(), scaled, one, zero);
            if shift != 0.0 {
                lowerer.scalar_op(result.clone(), result.clone(), AluOp::Add, shift);
            }
            result
        };
        let log_two = std::f64::consts::LN_2;
        let result = log_of_clamped(self, 1.0, 0.0);
        let small = log_of_clamped(self, power_of_two(85), (-85.0 * log_two) as f32);
        let large = log_of_clamped(self, low, (64.0 * log_two) as f32);
        self.select(&result, &small, &data, (AluOp::Less, low), frame);
        self.select(&result, &large, &data, (AluOp::Greater, high), frame);
        for (op, bound, value) in [
            (AluOp::Equal, 0.0, f32::NEG_INFINITY),
            (AluOp::Less, 0.0, f32::NAN),
            (AluOp::Equal, f32::INFINITY, f32::INFINITY),
        ] {
            let special = self.splat_vector(f64::from(value), Dtype::F32, frame.n_partitions());
            let special = self.repeated(&special, frame);
            self.select(&result, &special, &data, (op, bound), frame);
        }
        self.copy(dst, result);
    }

    /// dst = src where `data op bound` holds.
    fn select(&mut self, dst: &TileView, src: &TileView, data: &TileView, (op, bound): (AluOp, f32), frame: &Frame) {
        let predicate = self.scratch(frame, Dtype::Bool);
        self.scalar_op(predicate.clone(), data.clone(), op, bound);
        let kind = InstructionKind::TensorCopyPredicated { dst: dst.clone(), src: src.clone(), predicate };
        self.emit(Engine::Dve, kind);
    }

    /// sin(x + half_turns * pi).
    fn sine(&mut self, dst: TileView, data: TileView, half_turns: f32, frame: &Frame) {
        let [turns, rest, parity, result] = std::array::from_fn(|_| self.scratch(frame, Dtype::F32));
        let [whole, half] = std::array::from_fn(|_| self.scratch(frame, Dtype::I32));
        // Conversion to an integer rounds to nearest: the number of half turns of x + half_turns * pi.
        let inverse = std::f32::consts::FRAC_1_PI;
        self.two_scalar_ops(turns.clone(), data.clone(), (AluOp::Multiply, inverse), (AluOp::Add, half_turns));
        self.copy(whole.clone(), turns.clone());
        self.two_scalar_ops(turns.clone(), whole.clone(), (AluOp::Subtract, half_turns), (AluOp::Multiply, -1.0));
        let mut from = data.clone();
        for part in PI_PARTS {
            self.scaled_sum(rest.clone(), turns.clone(), part, from);
            from = rest.clone();
        }
        let quarter = std::f32::consts::FRAC_PI_2;
        self.two_scalar_ops(rest.clone(), rest.clone(), (AluOp::Max, -quarter), (AluOp::Min, quarter));
        let (one, zero) = (ScalarOperand::Immediate(1.0), ScalarOperand::Immediate(0.0));
        self.emit_activation(ActivationFunction::Sin, result.clone(), rest, one, zero);
        // n - 2 round(n / 2) is 0 for even n and 1 or -1 for odd n.
        self.scalar_op(half.clone(), whole.clone(), AluOp::Multiply, 0.5);
        self.scaled_sum(parity.clone(), half, -2.0, whole);
        let (lhs, rhs) = (Operand::Full(parity.clone()), Operand::Full(parity.clone()));
        self.alu(parity.clone(), lhs, rhs, AluOp::Multiply, frame);
        self.two_scalar_ops(parity.clone(), parity.clone(), (AluOp::Multiply, -2.0), (AluOp::Add, 1.0));
        self.alu(result.clone(), Operand::Full(result.clone()), Operand::Full(parity), AluOp::Multiply, frame);
        let magnitude = self.scratch(frame, Dtype::F32);
        let (one, zero) = (ScalarOperand::Immediate(1.0), ScalarOperand::Immediate(0.0));
        self.emit_activation(ActivationFunction::Abs, magnitude.clone(), data, one, zero);
        let invalid = self.splat_vector(f64::NAN, Dtype::F32, frame.n_partitions());
        let invalid = self.repeated(&invalid, frame);
        self.select(&result, &invalid, &magnitude, (AluOp::Greater, SIN_LIMIT), frame);
        self.copy(dst, result);
    }

    /// (x > 0) - (x < 0), which is 0 for NaN where the activation function gives NaN.
    fn sign(&mut self, dst: TileView, data: TileView, frame: &Frame) {
        let positive = self.scratch(frame, Dtype::F32);
        self.scalar_op(positive.clone(), data.clone(), AluOp::Greater, 0.0);
        let kind = InstructionKind::ScalarTensorTensor {
            dst,
            data,
            op0: AluOp::Less,
            operand0: ScalarOperand::Immediate(0.0),
            reverse0: false,
            op1: AluOp::Subtract,
            operand1: positive,
            reverse1: true,
        };
        self.emit(Engine::Dve, kind);
    }

    fn copy(&mut self, dst: TileView, src: TileView) {
        self.emit(Engine::Dve, InstructionKind::TensorCopy { dst, src });
    }

    /// dst = data * factor + addend.
    fn scaled_sum(&mut self, dst: TileView, data: TileView, factor: f32, addend: TileView) {
        let kind = InstructionKind::ScalarTensorTensor {
            dst,
            data,
            op0: AluOp::Multiply,
            operand0: ScalarOperand::Immediate(factor),
            reverse0: false,
            op1: AluOp::Add,
            operand1: addend,
            reverse1: false,
        };
        self.emit(Engine::Dve, kind);
    }

    /// dst = dividend / divisor, to the last bit but one in a few thousand cases. Where the
    /// correction is not a number (zero or infinite divisors, overflow), the product stands.
    pub(super) fn quotient(&mut self, dst: TileView, dividend: TileView, divisor: TileView) {
        let like = |lowerer: &mut Self, dtype| {
            let tile = lowerer.new_tile("scratch", Space::Sbuf, dtype, dst.n_partitions, dst.n_elements());
            lowerer.whole(tile)
        };
        let [inverse, quotient, product, remainder] = std::array::from_fn(|_| like(self, Dtype::F32));
        self.emit(Engine::Dve, InstructionKind::Reciprocal { dst: inverse.clone(), data: divisor.clone() });
        self.pair(&quotient, &dividend, &inverse, AluOp::Multiply);
        let (quotient_high, quotient_low) = self.split(&quotient);
        let (divisor_high, divisor_low) = self.split(&divisor);
        let mut from = dividend;
        for (lhs, rhs) in [
            (&quotient_high, &divisor_high),
            (&quotient_high, &divisor_low),
            (&quotient_low, &divisor_high),
            (&quotient_low, &divisor_low),
        ] {
            self.pair(&product, lhs, rhs, AluOp::Multiply);
            self.pair(&remainder, &from, &product, AluOp::Subtract);
            from = remainder.clone();
        }
        self.pair(&remainder, &remainder, &inverse, AluOp::Multiply);
        self.pair(&product, &quotient, &remainder, AluOp::Add);
        let predicate = like(self, Dtype::Bool);
        self.pair(&predicate, &remainder, &remainder, AluOp::Equal);
        let kind = InstructionKind::TensorCopyPredicated { dst: quotient.clone(), src: product, predicate };
        self.emit(Engine::Dve, kind);
        self.copy(dst, quotient);
    }

    pub(super) fn pair(&mut self, dst: &TileView, lhs: &TileView, rhs: &TileView, op: AluOp) {
        let (dst, lhs, rhs) = (dst.clone(), lhs.clone(), rhs.clone());
        self.emit(Engine::Dve, InstructionKind::TensorTensor { dst, lhs, rhs, op });
    }

    /// A value as the sum of a bf16 part and an exact rest.
    pub(super) fn split(&mut self, value: &TileView) -> (TileView, TileView) {
        let n_elements = value.n_elements();
        let [high, low] = [Dtype::Bf16, Dtype::F32].map(|dtype| {
            let tile = self.new_tile("scratch", Space::Sbuf, dtype, value.n_partitions, n_elements);
            self.whole(tile)
        });
        self.copy(high.clone(), value.clone());
        self.pair(&low, value, &high, AluOp::Subtract);
        (high, low)
    }
}

/// 2^exponent, for exponents of normal numbers.
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((127 + exponent) as u32) << 23)
}
