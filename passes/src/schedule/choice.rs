//! On which engine and queue an instruction may run, and what it costs there.

use std::collections::BTreeMap;

use ir::Program;
use ir::program::{
    AluOp, DmaAccess, DmaQueue, Engine, Gather, Instruction, InstructionKind, ScalarOperand, Space, TileView,
};
use ir::target::Target;
use ir::target::cost::{cost_on, dma_cost};
use smallvec::{SmallVec, smallvec};

use crate::lists::Lists;

/// One way to run an instruction.
#[derive(Copy, Clone, Debug)]
pub(super) struct Choice {
    pub engine: Engine,
    pub kind: ChoiceKind,
    /// From the start until the engine may start its next instruction.
    pub interval_ps: u64,
    /// From the start until the results are there, when nothing else runs.
    pub delay_ps: u64,
    /// What a cold tensor engine adds to both.
    pub cold_ps: u64,
}

/// What a choice is besides the engine.
#[derive(Copy, Clone, Debug)]
pub(super) enum ChoiceKind {
    Compute,
    Transfer(Transfer),
}

/// A transfer on one queue.
#[derive(Copy, Clone, Debug)]
pub(super) struct Transfer {
    pub queue: DmaQueue,
    /// The queue's descriptors are taken for this long; 0 where Pool makes them.
    pub generator_ps: u64,
    /// From the start to the first data.
    pub data_ps: u64,
    /// Each DMA engine starts this much after the one before it.
    pub stagger_ps: u64,
    /// From the last data to the start of an instruction that waits.
    pub completion_ps: u64,
    /// Number of its list in [`Choices::works`].
    pub work_idx: u32,
}

/// Every legal way to run each instruction of a program.
#[derive(Default)]
pub(super) struct Choices {
    /// By instruction, the given engine first where it is one of them.
    pub all: Lists<Choice>,
    /// What transfers ask of DMA engines: the engines used with their work in picoseconds.
    pub works: Lists<(u8, u64)>,
}

impl Choices {
    pub(super) fn of(program: &Program, target: &Target) -> Self {
        let mut choices = Choices { all: Lists::with_capacity(program.instructions.len()), works: Lists::default() };
        let mut work_idxs = BTreeMap::new();
        for instruction in &program.instructions {
            if let InstructionKind::Dma { dst, src, gather, queue } = &instruction.kind {
                let ways = transfer_ways(target, dst, src, *queue, gather.as_ref());
                let transfers: SmallVec<[Choice; 3]> = ways
                    .into_iter()
                    .map(|way| choices.transfer(program, target, instruction, way, &mut work_idxs))
                    .collect();
                choices.all.push(&transfers);
                continue;
            }
            let given = instruction.engine;
            let others = engines_of(program, target, &instruction.kind).into_iter().filter(|engine| *engine != given);
            choices.all.push_from(std::iter::once(given).chain(others).map(|engine| {
                let cost = cost_on(target, engine, &instruction.kind, &program.tiles);
                let delay_ps = cost.setup_ps + cost.latency_ps;
                let cold_ps = cost.stream_ps * (target.pe_cold_factor - 1);
                Choice { engine, kind: ChoiceKind::Compute, interval_ps: cost.interval_ps, delay_ps, cold_ps }
            }));
        }
        choices
    }

    fn transfer(
        &mut self,
        program: &Program,
        target: &Target,
        instruction: &Instruction,
        (engine, queue): (Engine, DmaQueue),
        work_idxs: &mut BTreeMap<Vec<u64>, u32>,
    ) -> Choice {
        let InstructionKind::Dma { dst, src, gather, queue: _ } = &instruction.kind else {
            unreachable!("only transfers have queues")
        };
        let cost = dma_cost(target, dst, src, queue, gather.as_ref(), &program.tiles);
        let delay_ps = cost.prepare_ps + cost.alone_ps(target) + cost.completion_ps;
        let works = &mut self.works;
        let work_idx = *work_idxs.entry(cost.engine_ps).or_insert_with_key(|engine_ps| {
            works.push_from((0u8..).zip(engine_ps.iter().copied()).filter(|&(_, work_ps)| work_ps > 0));
            works.len() as u32 - 1
        });
        let transfer = Transfer {
            queue,
            generator_ps: cost.generator_ps,
            data_ps: cost.prepare_ps + cost.first_packet_ps,
            stagger_ps: cost.stagger_ps,
            completion_ps: cost.completion_ps,
            work_idx,
        };
        let interval_ps = cost.prepare_ps + target.control_ps;
        Choice { engine, kind: ChoiceKind::Transfer(transfer), interval_ps, delay_ps, cold_ps: 0 }
    }
}

/// Hardware generators neither cast nor gather.
fn transfer_ways(
    target: &Target,
    dst: &DmaAccess,
    src: &DmaAccess,
    queue: DmaQueue,
    gather: Option<&Gather>,
) -> SmallVec<[(Engine, DmaQueue); 3]> {
    if queue == DmaQueue::HardwareTranspose {
        smallvec![(Engine::Sp, queue), (Engine::Act, queue)]
    } else if gather.is_some() || dst.dtype != src.dtype {
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
        | InstructionKind::Sync
        | InstructionKind::Call { .. }
        | InstructionKind::Return
        | InstructionKind::ClearSemaphores { .. } => {}
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
