//! Extremes, negation and magnitude of integers, exact in 32 bits.
//!
//! The DVE's own maximum would round its operands to f32: what is compared exactly is selected.

use ir::program::{AluOp, Engine, InstructionKind, TileView};
use ir::{Dtype, Node};

use super::Lowerer;
use super::rowwise::GroupPlan;
use super::storage::{Frame, Operand};

impl Lowerer<'_> {
    /// The greater or less of two integers, by whether the left one stands in this relation.
    pub(super) fn integer_extreme(&mut self, node: &Node, relation: AluOp, frame: &Frame, plan: &GroupPlan) {
        let dst = self.dst(node, frame, plan);
        let is_chosen = self.scratch(frame, Dtype::Bool);
        let (lhs, rhs) = (node.operands[0], node.operands[1]);
        self.compare_integers(is_chosen.clone(), (lhs, rhs), relation, frame);
        let [lhs, rhs] = [lhs, rhs].map(|operand| self.full_operand(operand, frame));
        self.choose(dst, is_chosen, lhs, rhs);
    }

    pub(super) fn integer_negation(&mut self, node: &Node, frame: &Frame, plan: &GroupPlan) {
        let dst = self.dst(node, frame, plan);
        let lhs = self.full_operand(node.operands[0], frame);
        let rhs = self.minus_ones(frame);
        self.emit(Engine::Pool, InstructionKind::TensorTensor { dst, lhs, rhs, op: AluOp::Multiply });
    }

    pub(super) fn integer_magnitude(&mut self, node: &Node, frame: &Frame, plan: &GroupPlan) {
        let dst = self.dst(node, frame, plan);
        let operand = self.full_operand(node.operands[0], frame);
        let negated = self.negated(operand.clone(), frame);
        let is_negative = self.scratch(frame, Dtype::Bool);
        let (data, zero) = (Operand::Full(operand.clone()), Operand::Immediate(0.0));
        self.alu(is_negative.clone(), data, zero, AluOp::Less, frame);
        self.choose(dst, is_negative, negated, operand);
    }

    /// -operand; the least integer stays as it is.
    pub(super) fn negated(&mut self, operand: TileView, frame: &Frame) -> TileView {
        let rhs = self.minus_ones(frame);
        let dst = self.scratch(frame, Dtype::I32);
        let kind = InstructionKind::TensorTensor { dst: dst.clone(), lhs: operand, rhs, op: AluOp::Multiply };
        self.emit(Engine::Pool, kind);
        dst
    }

    fn minus_ones(&mut self, frame: &Frame) -> TileView {
        let minus_one = self.splat_vector(-1.0, Dtype::I32, frame.n_partitions());
        self.repeated(&minus_one, frame)
    }

    fn choose(&mut self, dst: TileView, predicate: TileView, chosen: TileView, other: TileView) {
        self.emit(Engine::Dve, InstructionKind::TensorCopy { dst: dst.clone(), src: other });
        self.emit(Engine::Dve, InstructionKind::TensorCopyPredicated { dst, src: chosen, predicate });
    }
}
