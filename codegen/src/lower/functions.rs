//! Functions that need more than one instruction: those whose table covers only a part of their
//! domain, and those that no engine has.
//!
//! - sqrt and rsqrt use Pool's power, which has no range limit.
//! - log scales inputs outside the table's [2^-64, 2^64] into it and adds the logarithm of the
//!   scale.
//! - sin and cos have a file of their own (`sine`).
//! - a quotient is a product with the reciprocal, corrected by what is left of the dividend; the
//!   products behind the remainder are exact because both factors are split into a bf16 part and a
//!   rest.

use ir::program::{ActivationFunction, AluOp, Engine, InstructionKind, ScalarOperand, Space, TileView};
use ir::{Dtype, Node, Op};

use super::Lowerer;
use super::rowwise::GroupPlan;
use super::storage::{Frame, Operand};

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

    pub(super) fn scalar_op(&mut self, dst: TileView, data: TileView, op0: AluOp, number: f32) {
        let operand0 = ScalarOperand::Immediate(number);
        let kind = InstructionKind::TensorScalar { dst, data, op0, operand0, reverse0: false, second: None };
        self.emit(Engine::Dve, kind);
    }

    pub(super) fn two_scalar_ops(&mut self, dst: TileView, data: TileView, first: (AluOp, f32), second: (AluOp, f32)) {
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

    /// dst = dividend / divisor for numbers of any size. The reciprocal of a divisor below 2^-128 is
    /// infinite, and products of small numbers are not exact: both are scaled where either is small.
    /// Scaling up by a power of two is exact; where it makes the dividend infinite, the quotient is too,
    /// and where it makes the divisor infinite, the quotient is 0.
    pub(super) fn quotient(&mut self, dst: TileView, dividend: TileView, divisor: TileView) {
        if dividend.dtype == Dtype::F16 && divisor.dtype == Dtype::F16 {
            // The smallest number is 2^-24.
            return self.plain_quotient(dst, dividend, divisor);
        }
        let [smaller, scale, large_dividend, large_divisor] =
            std::array::from_fn(|_| self.scratch_like(&dst, Dtype::F32));
        self.scalar_op(smaller.clone(), dividend.clone(), AluOp::Abs, 0.0);
        self.scalar_then_tensor(&smaller, &divisor, (AluOp::Abs, 0.0), (AluOp::Min, &smaller));
        self.two_scalar_ops(scale.clone(), smaller, (AluOp::Less, SMALL), (AluOp::Multiply, SCALE));
        self.scalar_then_tensor(&large_dividend, &scale, (AluOp::Max, 1.0), (AluOp::Multiply, &dividend));
        self.scalar_then_tensor(&large_divisor, &scale, (AluOp::Max, 1.0), (AluOp::Multiply, &divisor));
        self.plain_quotient(dst, large_dividend, large_divisor);
    }

    /// dst = (data op0 number) op1 tensor.
    fn scalar_then_tensor(
        &mut self,
        dst: &TileView,
        data: &TileView,
        (op0, number): (AluOp, f32),
        (op1, tensor): (AluOp, &TileView),
    ) {
        let kind = InstructionKind::ScalarTensorTensor {
            dst: dst.clone(),
            data: data.clone(),
            op0,
            operand0: ScalarOperand::Immediate(number),
            reverse0: false,
            op1,
            operand1: tensor.clone(),
            reverse1: false,
        };
        self.emit(Engine::Dve, kind);
    }

    fn scratch_like(&mut self, view: &TileView, dtype: Dtype) -> TileView {
        let tile = self.new_tile("scratch", Space::Sbuf, dtype, view.n_partitions, view.n_elements());
        self.whole(tile)
    }

    /// dst = dividend / divisor, to the last bit but one in a few thousand cases, where neither is
    /// small. Where the correction is not finite (zero or infinite divisors, overflow), the product
    /// stands.
    pub(super) fn plain_quotient(&mut self, dst: TileView, dividend: TileView, divisor: TileView) {
        let like = |lowerer: &mut Self, dtype| lowerer.scratch_like(&dst, dtype);
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
        self.two_scalar_ops(predicate.clone(), remainder, (AluOp::Multiply, 0.0), (AluOp::Equal, 0.0));
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

/// Below this, dividends and divisors are scaled.
const SMALL: f32 = power_of_two(-96);
/// Takes the smallest denormal number to 2^-119.
const SCALE: f32 = power_of_two(30);

/// Whether quotients by a number need no scaling: where the dividend is small, so is the quotient, whose
/// last bit is then that of the smallest denormal number.
pub(super) fn is_plain_divisor(number: f32) -> bool {
    number.abs() >= 1.0
}

/// 2^exponent, for exponents of normal numbers.
pub(super) const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((127 + exponent) as u32) << 23)
}
