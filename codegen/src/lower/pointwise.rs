//! Instruction selection for pointwise nodes.
//!
//! A binary op is one `tensor_scalar` where one side is an immediate or one value per partition,
//! else one `tensor_tensor`. An absorbed producer adds its own op to the same instruction: two ALU
//! ops (`tensor_scalar`), an ALU op and a tensor (`scalar_tensor_tensor`), or the scale and bias of
//! an `activation`. None of these changes a bit: the intermediate was f32 either way.

use ir::program::{ActivationFunction, AluOp, Engine, InstructionKind, ScalarOperand, Space, TileView};
use ir::{Dtype, Node, Op, ValueId};

use super::Lowerer;
use super::functions::is_plain_divisor;
use super::rowwise::GroupPlan;
use super::storage::{Frame, Operand, Storage, repeat};

/// An ALU op with a scalar side, as the first half of a fused instruction.
struct ScalarStep {
    data: ValueId,
    op: AluOp,
    scalar: ScalarOperand,
    reverse: bool,
}

impl Lowerer<'_> {
    /// Emits one node of a group for one tile.
    pub(super) fn row_instructions(&mut self, node: &Node, frame: &Frame, plan: &GroupPlan) {
        match &node.op {
            Op::Softmax(_) => self.softmax(node, frame, plan),
            Op::LogSoftmax(_) => self.log_softmax(node, frame, plan),
            Op::RmsNorm(norm) => self.rms_norm(node, norm.eps.get(), frame, plan),
            Op::LayerNorm(norm) => self.layer_norm(node, norm.eps.get(), frame),
            Op::ReduceSum(_) | Op::ReduceMean(_) | Op::ReduceMax(_) | Op::ReduceMin(_) | Op::Any(_) | Op::All(_) => {
                self.reduce_rows(node, frame, plan);
            }
            Op::Cumsum(_) => self.cumsum(node, frame, plan),
            Op::Where(_) => self.where_(node, frame, plan),
            Op::Cast(_) => self.cast(node, frame, plan),
            Op::Pow(_) => {
                let dst = self.dst(node, frame, plan);
                let (lhs, rhs) = (node.operands[0], node.operands[1]);
                let lhs = self.full_operand(lhs, frame);
                let rhs = self.full_operand(rhs, frame);
                self.emit(Engine::Pool, InstructionKind::TensorTensor { dst, lhs, rhs, op: AluOp::Power });
            }
            Op::Div(_) => self.divide(node, frame, plan),
            Op::Maximum(_) if self.is_integer(node) => self.integer_extreme(node, AluOp::GreaterEqual, frame, plan),
            Op::Minimum(_) if self.is_integer(node) => self.integer_extreme(node, AluOp::LessEqual, frame, plan),
            Op::Neg(_) if self.is_integer(node) => self.integer_negation(node, frame, plan),
            Op::Abs(_) if self.is_integer(node) => self.integer_magnitude(node, frame, plan),
            op => match (alu_op(op), activation_function(op)) {
                (Some(alu), _) if self.is_integer(node) => self.integer_binary(node, alu, frame, plan),
                (Some(alu), _) => self.binary(node, alu, frame, plan),
                (None, Some(function)) => self.activation(node, function, frame, plan),
                (None, None) => self.function(node, frame, plan),
            },
        }
    }

    /// The view that a node's instruction writes.
    pub(super) fn dst(&mut self, node: &Node, frame: &Frame, plan: &GroupPlan) -> TileView {
        let written = self.written(node.results[0], plan);
        let tile = self.result_tile(written, frame);
        self.whole(tile)
    }

    /// A scratch tile with the frame's elements.
    pub(super) fn scratch(&mut self, frame: &Frame, dtype: Dtype) -> TileView {
        let n_elements = frame.n_outer() * frame.grid.n_free;
        let tile = self.new_tile("scratch", Space::Sbuf, dtype, frame.n_partitions(), n_elements);
        self.whole(tile)
    }

    fn is_integer(&self, node: &Node) -> bool {
        self.graph.ty(node.operands[0]).dtype.is_integer()
    }

    /// True where `producer` can be part of `consumer`'s instruction.
    pub(super) fn can_absorb(&self, producer: &Node, consumer: &Node, plan: &GroupPlan) -> bool {
        let result = producer.results[0];
        let ty = self.graph.ty(result);
        let float_step = ty.dtype == Dtype::F32 && self.graph.ty(producer.operands[0]).dtype.is_float();
        if !float_step || alu_op(&producer.op).is_none() || self.scalar_side(producer).is_none() {
            return false;
        }
        if producer.operands.iter().any(|operand| plan.absorbed.contains_key(operand)) {
            return false;
        }
        if activation_function(&consumer.op).is_some() {
            return self.activation_step(producer).is_some();
        }
        let consumes_once = consumer.operands.iter().filter(|&&operand| operand == result).count() == 1;
        let absorbs_another = consumer.operands.iter().any(|operand| plan.absorbed.contains_key(operand));
        alu_op(&consumer.op).is_some() && consumer.operands.len() == 2 && consumes_once && !absorbs_another
    }

    /// Which operand of a binary node is an immediate or one value per partition, the other being full.
    fn scalar_side(&self, node: &Node) -> Option<usize> {
        let [lhs, rhs] = node.operands.as_slice() else { return None };
        let shape = &self.graph.ty(node.results[0]).shape;
        let layout = self.graph.layouts[node.results[0].index()]?;
        let (n_outer, _, n_free) = layout.extents(shape);
        let is_scalar = |value: ValueId| {
            if self.is_splat(value) {
                return true;
            }
            let own = &self.graph.ty(value).shape;
            let rows_end = usize::from(layout.n_outer + layout.n_partition);
            let missing = shape.len() - own.len();
            let free = (rows_end..shape.len()).all(|axis| axis < missing || own[axis - missing] == 1);
            free && n_outer == 1 && n_free > 1
        };
        let is_full = |value: ValueId| self.graph.ty(value).shape == *shape && !self.is_splat(value);
        if is_scalar(*rhs) && is_full(*lhs) {
            return Some(1);
        }
        (is_scalar(*lhs) && is_full(*rhs)).then_some(0)
    }

    fn is_splat(&self, value: ValueId) -> bool {
        let root = self.root(value);
        if let Some(super::Storage::Splat(_)) = &self.storage[root.index()] {
            return true;
        }
        matches!(self.graph.producer(root), Some((_, node)) if matches!(node.op, Op::Full(_)))
    }

    /// A producer as an activation's scale (multiply) or bias (add, subtract a scalar).
    fn activation_step(&self, producer: &Node) -> Option<(usize, AluOp)> {
        let side = self.scalar_side(producer)?;
        match (&producer.op, side) {
            (Op::Mul(_), _) => Some((side, AluOp::Multiply)),
            (Op::Add(_), _) if self.target.act_scalar_bias || !self.is_splat(producer.operands[side]) => {
                Some((side, AluOp::Add))
            }
            (_, _) => None,
        }
    }

    fn scalar(&mut self, value: ValueId, frame: &Frame) -> ScalarOperand {
        let operand = self.operand(value, frame);
        self.scalar_operand(operand)
    }

    /// An immediate or vector as a scalar operand; vectors are f32.
    fn scalar_operand(&mut self, operand: Operand) -> ScalarOperand {
        let view = match operand {
            Operand::Immediate(number) => return ScalarOperand::Immediate(number),
            Operand::Vector(view) | Operand::Full(view) => view,
        };
        if view.dtype == Dtype::F32 {
            return ScalarOperand::Vector(view);
        }
        let tile = self.new_tile("scratch", Space::Sbuf, Dtype::F32, view.n_partitions, 1);
        let dst = self.whole(tile);
        self.emit(Engine::Dve, InstructionKind::TensorCopy { dst: dst.clone(), src: view });
        ScalarOperand::Vector(dst)
    }

    /// The absorbed producer of an operand, as a step.
    fn absorbed_step(&mut self, operand: ValueId, frame: &Frame, plan: &GroupPlan) -> Option<ScalarStep> {
        let id = plan.absorbed.get(&operand)?;
        let producer = self.graph.node(*id);
        let side = self.scalar_side(producer).expect("absorbed nodes have a scalar side");
        let scalar = self.scalar(producer.operands[side], frame);
        let op = alu_op(&producer.op).expect("absorbed nodes are ALU ops");
        Some(ScalarStep { data: producer.operands[1 - side], op, scalar, reverse: side == 0 })
    }

    /// Emits `lhs op rhs` for a float or bool node.
    fn binary(&mut self, node: &Node, op: AluOp, frame: &Frame, plan: &GroupPlan) {
        let dst = self.dst(node, frame, plan);
        for (position, &operand) in node.operands.iter().enumerate() {
            let Some(step) = self.absorbed_step(operand, frame, plan) else { continue };
            let other = node.operands[1 - position];
            let data = self.full_operand(step.data, frame);
            let kind = match self.operand(other, frame) {
                Operand::Full(operand1) => InstructionKind::ScalarTensorTensor {
                    dst,
                    data,
                    op0: step.op,
                    operand0: step.scalar,
                    reverse0: step.reverse,
                    op1: op,
                    operand1,
                    reverse1: position == 1,
                },
                scalar => two_ops(dst, data, step, (op, self.scalar_operand(scalar), position == 1)),
            };
            self.emit(Engine::Dve, kind);
            return;
        }
        let (lhs, rhs) = (self.operand(node.operands[0], frame), self.operand(node.operands[1], frame));
        self.alu(dst, lhs, rhs, op, frame);
    }

    /// Emits dst = lhs op rhs.
    pub(super) fn alu(&mut self, dst: TileView, lhs: Operand, rhs: Operand, op: AluOp, frame: &Frame) {
        let (data, scalar, reverse0) = match (lhs, rhs) {
            (Operand::Full(lhs), Operand::Full(rhs)) => {
                self.emit(Engine::Dve, InstructionKind::TensorTensor { dst, lhs, rhs, op });
                return;
            }
            (Operand::Full(data), scalar) => (data, scalar, false),
            (scalar, Operand::Full(data)) => (data, scalar, true),
            (Operand::Vector(vector), scalar) => (self.repeated(&vector, frame), scalar, false),
            (Operand::Immediate(number), scalar) => {
                let vector = self.splat_vector(f64::from(number), Dtype::F32, frame.n_partitions());
                (self.repeated(&vector, frame), scalar, false)
            }
        };
        let operand0 = self.scalar_operand(scalar);
        self.emit(Engine::Dve, InstructionKind::TensorScalar { dst, data, op0: op, operand0, reverse0, second: None });
    }

    /// A vector read again for every element of the frame tile.
    pub(super) fn repeated(&self, vector: &TileView, frame: &Frame) -> TileView {
        repeat(vector, frame.n_outer() * frame.grid.n_free)
    }

    /// Exact 32-bit arithmetic on the Pool engine; comparisons, see [`Lowerer::integer_comparison`].
    fn integer_binary(&mut self, node: &Node, op: AluOp, frame: &Frame, plan: &GroupPlan) {
        let dst = self.dst(node, frame, plan);
        let (lhs, rhs) = (node.operands[0], node.operands[1]);
        if is_comparison(op) {
            return self.compare_integers(dst, (lhs, rhs), op, frame);
        }
        let [lhs, rhs] = [lhs, rhs].map(|operand| self.full_operand(operand, frame));
        match op {
            AluOp::Subtract => self.integer_difference(dst, lhs, rhs, frame),
            _ => self.emit(Engine::Pool, InstructionKind::TensorTensor { dst, lhs, rhs, op }),
        }
    }

    /// Whether two integers stand in this relation.
    pub(super) fn compare_integers(&mut self, dst: TileView, (lhs, rhs): (ValueId, ValueId), op: AluOp, frame: &Frame) {
        let lhs = self.full_operand(lhs, frame);
        if let Storage::Splat(number) = *self.storage(rhs)
            && number.abs() < INEXACT_IN_F32
        {
            // Rounding is monotonic, and no other number is rounded to this one.
            return self.alu(dst, Operand::Full(lhs), Operand::Immediate(number as f32), op, frame);
        }
        let rhs = self.full_operand(rhs, frame);
        self.integer_comparison(dst, lhs, rhs, op, frame);
    }

    /// Comparisons test the sign of a number that has that of x - y in f32.
    ///
    /// The 32-bit difference is 0 where x = y only, but wraps where x and y lie 2^31 or more apart.
    /// The f32 difference of the rounded x and y has the right sign unless it is 0, and then x and y
    /// are close. Twice this plus the 32-bit one is right in both cases: where the latter wraps, it
    /// is off by 2^32, and the sum is 3 (x - y) -+ 2^32 with |x - y| of at least 2^31.
    fn integer_comparison(&mut self, dst: TileView, lhs: TileView, rhs: TileView, op: AluOp, frame: &Frame) {
        let difference = self.scratch(frame, Dtype::I32);
        self.integer_difference(difference.clone(), lhs.clone(), rhs.clone(), frame);
        if matches!(op, AluOp::Equal | AluOp::NotEqual) {
            return self.alu(dst, Operand::Full(difference), Operand::Immediate(0.0), op, frame);
        }
        let rounded = self.scratch(frame, Dtype::F32);
        let kind = InstructionKind::TensorTensor { dst: rounded.clone(), lhs, rhs, op: AluOp::Subtract };
        self.emit(Engine::Dve, kind);
        let signed = self.scratch(frame, Dtype::F32);
        let kind = InstructionKind::ScalarTensorTensor {
            dst: signed.clone(),
            data: rounded,
            op0: AluOp::Multiply,
            operand0: ScalarOperand::Immediate(2.0),
            reverse0: false,
            op1: AluOp::Add,
            operand1: difference,
            reverse1: false,
        };
        self.emit(Engine::Dve, kind);
        self.alu(dst, Operand::Full(signed), Operand::Immediate(0.0), op, frame);
    }

    fn integer_difference(&mut self, dst: TileView, lhs: TileView, rhs: TileView, frame: &Frame) {
        let negated = self.negated(rhs, frame);
        self.emit(Engine::Pool, InstructionKind::TensorTensor { dst, lhs, rhs: negated, op: AluOp::Add });
    }

    /// x / s is x * (1 / s) where that is exact; 1 / x is a reciprocal; else see [`Lowerer::quotient`].
    fn divide(&mut self, node: &Node, frame: &Frame, plan: &GroupPlan) {
        let dst = self.dst(node, frame, plan);
        let (lhs, rhs) = (node.operands[0], node.operands[1]);
        match (self.operand(lhs, frame), self.operand(rhs, frame)) {
            (numerator, Operand::Immediate(number)) if is_power_of_two(number) => {
                self.alu(dst, numerator, Operand::Immediate(1.0 / number), AluOp::Multiply, frame);
            }
            (Operand::Immediate(1.0), Operand::Vector(_) | Operand::Full(_)) => {
                let data = self.full_operand(rhs, frame);
                self.emit(Engine::Dve, InstructionKind::Reciprocal { dst, data });
            }
            (_, Operand::Immediate(number)) if is_plain_divisor(number) => {
                let (dividend, divisor) = (self.full_operand(lhs, frame), self.full_operand(rhs, frame));
                self.plain_quotient(dst, dividend, divisor);
            }
            (_, _) => {
                let (dividend, divisor) = (self.full_operand(lhs, frame), self.full_operand(rhs, frame));
                self.quotient(dst, dividend, divisor);
            }
        }
    }

    /// f(x), with an absorbed scale or shift as the activation's.
    fn activation(&mut self, node: &Node, function: ActivationFunction, frame: &Frame, plan: &GroupPlan) {
        let dst = self.dst(node, frame, plan);
        let operand = node.operands[0];
        let (mut scale, mut bias) = (ScalarOperand::Immediate(1.0), ScalarOperand::Immediate(0.0));
        let mut data = operand;
        if let Some(step) = self.absorbed_step(operand, frame, plan) {
            data = step.data;
            match step.op {
                AluOp::Multiply => scale = step.scalar,
                _ => bias = step.scalar,
            }
        }
        let data = self.full_operand(data, frame);
        self.emit_activation(function, dst, data, scale, bias);
    }

    /// An activation without a row sum. A bias of 0 is -0, which changes no number, not even -0.
    pub(super) fn emit_activation(
        &mut self,
        function: ActivationFunction,
        dst: TileView,
        data: TileView,
        scale: ScalarOperand,
        bias: ScalarOperand,
    ) {
        let bias = self.activation_bias(bias, data.n_partitions);
        let kind = InstructionKind::Activation { function, dst, data, scale, bias, reduce: None, reduce_result: None };
        self.emit(Engine::Act, kind);
    }

    /// On trn1 a bias other than 0 must be a vector.
    pub(super) fn activation_bias(&mut self, bias: ScalarOperand, n_partitions: u8) -> ScalarOperand {
        match bias {
            ScalarOperand::Immediate(0.0) => ScalarOperand::Immediate(-0.0),
            ScalarOperand::Immediate(number) if !self.target.act_scalar_bias => {
                ScalarOperand::Vector(self.splat_vector(f64::from(number), Dtype::F32, n_partitions))
            }
            other => other,
        }
    }

    fn where_(&mut self, node: &Node, frame: &Frame, plan: &GroupPlan) {
        let result = self.written(node.results[0], plan);
        let dst = self.dst(node, frame, plan);
        let predicate = self.full_operand(node.operands[0], frame);
        let is_integer = self.graph.ty(result).dtype.is_integer();
        match self.operand(node.operands[2], frame) {
            // Integers beyond f32 come from a tile.
            Operand::Immediate(value) if !is_integer || f64::from(value.abs()) < INEXACT_IN_F32 => {
                self.emit(Engine::Dve, InstructionKind::Memset { dst: dst.clone(), value })
            }
            Operand::Immediate(_) | Operand::Vector(_) | Operand::Full(_) => {
                let src = self.full_operand(node.operands[2], frame);
                self.emit(Engine::Dve, InstructionKind::TensorCopy { dst: dst.clone(), src });
            }
        }
        let wanted = super::stored_dtype(self.graph.ty(result).dtype);
        let mut src = self.full_operand(node.operands[1], frame);
        if src.dtype != wanted {
            let converted = self.scratch(frame, wanted);
            self.emit(Engine::Dve, InstructionKind::TensorCopy { dst: converted.clone(), src });
            src = converted;
        }
        self.emit(Engine::Dve, InstructionKind::TensorCopyPredicated { dst, src, predicate });
    }

    fn cast(&mut self, node: &Node, frame: &Frame, plan: &GroupPlan) {
        let dst = self.dst(node, frame, plan);
        let Op::Cast(cast) = &node.op else { return };
        if cast.dtype == Dtype::Bool {
            let data = self.operand(node.operands[0], frame);
            self.alu(dst, data, Operand::Immediate(0.0), AluOp::NotEqual, frame);
            return;
        }
        let src = self.full_operand(node.operands[0], frame);
        self.emit(Engine::Dve, InstructionKind::TensorCopy { dst, src });
    }
}

fn two_ops(dst: TileView, data: TileView, step: ScalarStep, second: (AluOp, ScalarOperand, bool)) -> InstructionKind {
    InstructionKind::TensorScalar {
        dst,
        data,
        op0: step.op,
        operand0: step.scalar,
        reverse0: step.reverse,
        second: Some(second),
    }
}

/// The smallest integer that another one is rounded to in f32.
const INEXACT_IN_F32: f64 = (1 << 24) as f64;

fn is_comparison(op: AluOp) -> bool {
    matches!(op, AluOp::Equal | AluOp::NotEqual | AluOp::Greater | AluOp::GreaterEqual | AluOp::Less | AluOp::LessEqual)
}

fn is_power_of_two(number: f32) -> bool {
    number.is_normal() && number.to_bits().trailing_zeros() >= 23 && (1.0 / number).is_normal()
}

/// The ALU op of a binary node.
pub(super) fn alu_op(op: &Op) -> Option<AluOp> {
    match op {
        Op::Add(_) => Some(AluOp::Add),
        Op::Sub(_) => Some(AluOp::Subtract),
        Op::Mul(_) => Some(AluOp::Multiply),
        Op::Maximum(_) => Some(AluOp::Max),
        Op::Minimum(_) => Some(AluOp::Min),
        Op::Eq(_) => Some(AluOp::Equal),
        Op::Ne(_) => Some(AluOp::NotEqual),
        Op::Gt(_) => Some(AluOp::Greater),
        Op::Ge(_) => Some(AluOp::GreaterEqual),
        Op::Lt(_) => Some(AluOp::Less),
        Op::Le(_) => Some(AluOp::LessEqual),
        Op::LogicalAnd(_) => Some(AluOp::LogicalAnd),
        Op::LogicalOr(_) => Some(AluOp::LogicalOr),
        Op::LogicalXor(_) => Some(AluOp::LogicalXor),
        _ => None,
    }
}

/// The activation function of a unary node whose whole input range the engine's table covers.
pub(super) fn activation_function(op: &Op) -> Option<ActivationFunction> {
    match op {
        Op::Exp(_) => Some(ActivationFunction::Exp),
        Op::Tanh(_) => Some(ActivationFunction::Tanh),
        Op::Sigmoid(_) => Some(ActivationFunction::Sigmoid),
        Op::Erf(_) => Some(ActivationFunction::Erf),
        Op::Gelu(_) => Some(ActivationFunction::Gelu),
        Op::GeluTanh(_) => Some(ActivationFunction::GeluTanh),
        Op::Silu(_) => Some(ActivationFunction::Silu),
        Op::Softplus(_) => Some(ActivationFunction::Softplus),
        Op::Abs(_) => Some(ActivationFunction::Abs),
        Op::Relu(_) => Some(ActivationFunction::Relu),
        _ => None,
    }
}
