//! sin and cos: two reductions by half turns, then the table, which is right on [-pi, pi] only.
//!
//! Half turns keep results near zero as exact as their inputs, and the sign is that of (-1)^n. A
//! number n is taken from x in two stages, n = 2^14 n1 + n0 with n1 and n0 of at most 15 bits and n0 or
//! n0 - 1/2 used as it is. pi comes in parts of so few bits that each product with one of them is
//! exact in f32; they are subtracted from the largest to the smallest, so that every difference is
//! exact too, up to the last one, which is rounded once. What is left lies within pi/2 and 0.01.
//!
//! This holds for |x| up to [`LIMIT`]. Beyond, the result is that of the limit with the sign of x: a
//! number in [-1, 1] and not the sine. NaN and infinities give NaN.

use ir::Dtype;
use ir::program::{ActivationFunction, AluOp, Engine, InstructionKind, ScalarOperand, TileView};

use super::Lowerer;
use super::storage::{Frame, Operand};

/// The largest number of which sin and cos are right: 2^29 pi, rounded down.
pub const LIMIT: f32 = 1_686_629_632.0;

/// pi in parts of 8, 9, 9 and 24 bits.
const PI_PARTS: [f32; 4] = [3.140_625, 0.000_967_025_76, 6.277_114e-7, 1.215_420_1e-10];
/// The third and fourth part in one number.
const PI_REST: f32 = 6.278_329_6e-7;
/// Half turns that the first stage takes at a time.
const STAGE: f32 = 16_384.0;

impl Lowerer<'_> {
    /// sin(x + half_turns * pi).
    pub(super) fn sine(&mut self, dst: TileView, data: TileView, half_turns: f32, frame: &Frame) {
        let [from, rest, low, sign, result] = std::array::from_fn(|_| self.scratch(frame, Dtype::F32));
        let [stages, turns] = std::array::from_fn(|_| self.scratch(frame, Dtype::I32));
        // Parts are subtracted with negative factors: 0 * -part is -0, which keeps the sign of zeros.
        let [first, second, third, fourth] = PI_PARTS.map(|part| -part);
        self.two_scalar_ops(from.clone(), data.clone(), (AluOp::Max, -LIMIT), (AluOp::Min, LIMIT));
        // Conversion to an integer rounds to nearest.
        self.scalar_op(stages.clone(), from.clone(), AluOp::Multiply, std::f32::consts::FRAC_1_PI / STAGE);
        self.scaled_sum(from.clone(), stages.clone(), first * STAGE, from.clone());
        self.scaled_sum(from.clone(), stages.clone(), second * STAGE, from.clone());
        self.scaled_sum(rest.clone(), stages.clone(), -PI_REST * STAGE, from.clone());
        let inverse = std::f32::consts::FRAC_1_PI;
        self.two_scalar_ops(turns.clone(), rest.clone(), (AluOp::Multiply, inverse), (AluOp::Add, half_turns));
        let mut counted = turns.clone();
        if half_turns != 0.0 {
            counted = self.scratch(frame, Dtype::F32);
            self.scalar_op(counted.clone(), turns.clone(), AluOp::Subtract, half_turns);
        }
        self.scaled_sum(rest.clone(), counted.clone(), first, from);
        self.scaled_sum(rest.clone(), stages.clone(), third * STAGE, rest.clone());
        self.scaled_sum(rest.clone(), counted.clone(), second, rest.clone());
        self.scalar_op(low.clone(), stages, AluOp::Multiply, fourth * STAGE);
        self.scaled_sum(low.clone(), counted, -PI_REST, low.clone());
        self.pair(&rest, &rest, &low, AluOp::Add);
        let (one, zero) = (ScalarOperand::Immediate(1.0), ScalarOperand::Immediate(0.0));
        self.emit_activation(ActivationFunction::Sin, result.clone(), rest, one, zero);
        // The first stage takes even numbers of half turns.
        self.scalar_op(turns.clone(), turns.clone(), AluOp::BitwiseAnd, 1.0);
        self.two_scalar_ops(sign.clone(), turns, (AluOp::Multiply, -2.0), (AluOp::Add, 1.0));
        self.alu(result.clone(), Operand::Full(result.clone()), Operand::Full(sign), AluOp::Multiply, frame);
        // x * 0 is NaN where x is not finite.
        self.scaled_sum(dst, data, 0.0, result);
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
}
