//! Functions that need more than one instruction: those whose table covers only a part of their
//! domain, and those that no engine has.
//!
//! - sqrt and rsqrt of any input use Pool's power, which has no range limit. The fused norms use
//!   the table function: their input is a mean of squares plus eps.
//! - log scales inputs outside the table's [2^-64, 2^64] into it and adds the logarithm of the
//!   scale.
//! - sin and cos subtract a multiple of 2 pi first (Cody and Waite's split into three constants),
//!   since the table is right on [-pi, pi] only. The split is exact for |x| up to 2^17; beyond, the
//!   result is NaN rather than a wrong number.

use ir::program::{ActivationFunction, AluOp, Engine, InstructionKind, ScalarOperand, TileView};
use ir::{Dtype, Node, Op};

use super::Lowerer;
use super::rowwise::GroupPlan;
use super::storage::{Frame, Operand};

/// 2 pi in three parts: the first two have few enough bits that a multiple by an integer up to
/// 2^15 is exact in f32.
const TWO_PI_HIGH: f32 = 6.281_25;
const TWO_PI_MIDDLE: f32 = 0.001_934_051_5;
const TWO_PI_LOW: f32 = 1.255_665_9e-6;
const SIN_LIMIT: f32 = 131_072.0;

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
            Op::Sin(_) => self.sine(dst, data, 0.0, frame),
            Op::Cos(_) => self.sine(dst, data, std::f32::consts::FRAC_PI_2, frame),
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
        self.emit(Engine::Dve, InstructionKind::TensorCopy { dst, src: result });
    }

    /// dst = src where `data op bound` holds.
    fn select(&mut self, dst: &TileView, src: &TileView, data: &TileView, (op, bound): (AluOp, f32), frame: &Frame) {
        let predicate = self.scratch(frame, Dtype::Bool);
        self.scalar_op(predicate.clone(), data.clone(), op, bound);
        let kind = InstructionKind::TensorCopyPredicated { dst: dst.clone(), src: src.clone(), predicate };
        self.emit(Engine::Dve, kind);
    }

    /// sin(x + phase).
    fn sine(&mut self, dst: TileView, data: TileView, phase: f32, frame: &Frame) {
        let turns = self.scratch(frame, Dtype::F32);
        let whole = self.scratch(frame, Dtype::I32);
        let rest = self.scratch(frame, Dtype::F32);
        // Conversion to an integer rounds to nearest: the number of whole turns of x + phase.
        self.two_scalar_ops(
            turns.clone(),
            data.clone(),
            (AluOp::Add, phase),
            (AluOp::Multiply, 1.0 / std::f32::consts::TAU),
        );
        self.emit(Engine::Dve, InstructionKind::TensorCopy { dst: whole.clone(), src: turns });
        let mut from = data.clone();
        for part in [TWO_PI_HIGH, TWO_PI_MIDDLE, TWO_PI_LOW] {
            let kind = InstructionKind::ScalarTensorTensor {
                dst: rest.clone(),
                data: whole.clone(),
                op0: AluOp::Multiply,
                operand0: ScalarOperand::Immediate(part),
                reverse0: false,
                op1: AluOp::Subtract,
                operand1: from,
                reverse1: true,
            };
            self.emit(Engine::Dve, kind);
            from = rest.clone();
        }
        let pi = std::f32::consts::PI;
        self.two_scalar_ops(rest.clone(), rest.clone(), (AluOp::Add, phase), (AluOp::Max, -pi));
        self.scalar_op(rest.clone(), rest.clone(), AluOp::Min, pi);
        let result = self.scratch(frame, Dtype::F32);
        let one = ScalarOperand::Immediate(1.0);
        self.emit_activation(ActivationFunction::Sin, result.clone(), rest, one, ScalarOperand::Immediate(0.0));
        let magnitude = self.scratch(frame, Dtype::F32);
        let one = ScalarOperand::Immediate(1.0);
        self.emit_activation(ActivationFunction::Abs, magnitude.clone(), data, one, ScalarOperand::Immediate(0.0));
        let invalid = self.splat_vector(f64::NAN, Dtype::F32, frame.n_partitions());
        let invalid = self.repeated(&invalid, frame);
        self.select(&result, &invalid, &magnitude, (AluOp::Greater, SIN_LIMIT), frame);
        self.emit(Engine::Dve, InstructionKind::TensorCopy { dst, src: result });
    }
}

/// 2^exponent, for exponents of normal numbers.
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((127 + exponent) as u32) << 23)
}
