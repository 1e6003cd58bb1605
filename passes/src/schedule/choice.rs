//! On which engine and queue an instruction may run, and what it costs there.

use ir::Program;
use ir::program::{
    AluOp, DmaAccess, DmaQueue, Engine, Gather, Instruction, InstructionKind, ScalarOperand, Space, TileView,
};
use ir::target::Target;
use ir::target::cost::{DmaCost, InstructionCost, dma_cost, instruction_cost};
use smallvec::{SmallVec, smallvec};

/// One way to run an instruction.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub engine: Engine,
    /// The instruction for this engine, with the queue that goes with it.
    pub kind: ChoiceKind,
    pub cost: InstructionCost,
}

/// What a choice changes besides the engine.
#[derive(Clone, Debug)]
pub(super) enum ChoiceKind {
    Compute,
    Transfer { queue: DmaQueue, cost: DmaCost },
}

/// Every legal way to run an instruction, the given engine first where it is one of them.
pub(super) fn choices(program: &Program, target: &Target, instruction: &Instruction) -> SmallVec<[Choice; 3]> {
    match &instruction.kind {
        InstructionKind::Dma { dst, src, gather, queue: _ } => {
            let ways = transfer_ways(target, dst, src, gather.as_ref());
            ways.into_iter().map(|(engine, queue)| transfer(program, target, instruction, engine, queue)).collect()
        }
        kind => {
            let mut engines = engines_of(program, target, kind);
            engines.retain(|engine| *engine != instruction.engine);
            engines.insert(0, instruction.engine);
            let compute = |engine| {
                let moved = Instruction::new(engine, kind.clone());
                let cost = instruction_cost(target, &moved, &program.tiles);
                Choice { engine, kind: ChoiceKind::Compute, cost }
            };
            engines.into_iter().map(compute).collect()
        }
    }
}

/// Hardware generators neither cast nor gather.
fn transfer_ways(
    target: &Target,
    dst: &DmaAccess,
    src: &DmaAccess,
    gather: Option<&Gather>,
) -> SmallVec<[(Engine, DmaQueue); 3]> {
    if gather.is_some() || dst.dtype != src.dtype {
        smallvec![(Engine::Pool, DmaQueue::Software)]
    } else if target.hardware_dge {
        smallvec![
            (Engine::Sp, DmaQueue::Hardware),
            (Engine::Act, DmaQueue::Hardware),
            (Engine::Pool, DmaQueue::Software)
        ]
    } else {
        smallvec![(Engine::Sp, DmaQueue::Ring), (Engine::Pool, DmaQueue::Software)]
    }
}

fn transfer(program: &Program, target: &Target, instruction: &Instruction, engine: Engine, queue: DmaQueue) -> Choice {
    let mut moved = Instruction::new(engine, instruction.kind.clone());
    set_queue(&mut moved.kind, queue);
    let cost = instruction_cost(target, &moved, &program.tiles);
    let InstructionKind::Dma { dst, src, gather, queue } = &moved.kind else {
        unreachable!("only transfers have queues")
    };
    let transfer_cost = dma_cost(target, dst, src, *queue, gather.as_ref(), &program.tiles);
    Choice { engine, kind: ChoiceKind::Transfer { queue: *queue, cost: transfer_cost }, cost }
}

/// Puts a transfer on a queue; nothing else has one.
pub(super) fn set_queue(kind: &mut InstructionKind, wanted: DmaQueue) {
    if let InstructionKind::Dma { queue, .. } = kind {
        *queue = wanted;
    }
}

/// Engines that give the same result for this instruction.
fn engines_of(program: &Program, target: &Target, kind: &InstructionKind) -> SmallVec<[Engine; 3]> {
    let in_sbuf = |view: &TileView| program.tile(view.tile).space == Space::Sbuf;
    let keeps_values =
        |dst: &TileView, src: &TileView| dst.dtype == src.dtype || (dst.dtype.is_float() && src.dtype.is_float());
    let mut engines = SmallVec::new();
    match kind {
        InstructionKind::TensorCopy { dst, src } if keeps_values(dst, src) => {
            engines.push(Engine::Dve);
            if target.act_tensor_ops {
                engines.push(Engine::Act);
            }
            if in_sbuf(dst) && in_sbuf(src) {
                engines.push(Engine::Pool);
            }
        }
        InstructionKind::TensorScalar { dst, data, op0, operand0, reverse0: false, second }
            if dst.dtype.is_float() && data.dtype.is_float() && is_affine(*op0, second.as_ref()) =>
        {
            let is_float = |operand: &ScalarOperand| operand.vector().is_none_or(|view| view.dtype.is_float());
            engines.push(Engine::Dve);
            if target.act_tensor_ops && is_float(operand0) && second.as_ref().is_none_or(|(_, at, _)| is_float(at)) {
                engines.push(Engine::Act);
            }
        }
        InstructionKind::Memset { dst, value: _ } => {
            engines.push(Engine::Dve);
            if in_sbuf(dst) {
                engines.push(Engine::Pool);
            }
        }
        InstructionKind::TensorCopy { .. }
        | InstructionKind::TensorScalar { .. }
        | InstructionKind::Activation { .. }
        | InstructionKind::TensorScalarReduce { .. }
        | InstructionKind::ScalarTensorTensor { .. }
        | InstructionKind::TensorTensor { .. }
        | InstructionKind::TensorReduce { .. }
        | InstructionKind::TensorTensorScan { .. }
        | InstructionKind::TensorCopyPredicated { .. }
        | InstructionKind::Reciprocal { .. }
        | InstructionKind::Iota { .. }
        | InstructionKind::BnStats { .. }
        | InstructionKind::BnAggr { .. }
        | InstructionKind::Matmul { .. }
        | InstructionKind::Transpose { .. }
        | InstructionKind::Dma { .. }
        | InstructionKind::LoadTable { .. }
        | InstructionKind::Sync => {}
    }
    engines
}

/// The pairs of operators that ACT's `tensor_scalar` has.
fn is_affine(op0: AluOp, second: Option<&(AluOp, ScalarOperand, bool)>) -> bool {
    match (op0, second) {
        (AluOp::Multiply | AluOp::Add, None) => true,
        (AluOp::Multiply, Some((AluOp::Add, _, false))) => true,
        (_, _) => false,
    }
}
