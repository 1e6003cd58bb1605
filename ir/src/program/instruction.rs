//! Instructions, one variant per nki.isa instruction, and what they read and write.
//!
//! Semantics, limits and costs are machine-model.md sections 2 and 3; the legality rules are
//! checked by the program verifier, not here.

use smallvec::{SmallVec, smallvec};

use super::{DmaAccess, DmaPlace, Engine, HbmId, TileId, TileView, Update, Wait};
use crate::graph::LocationId;

/// A function of the activation engine: `f(data * scale + bias)`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ActivationFunction {
    Copy,
    Square,
    Relu,
    Abs,
    Sign,
    Exp,
    Tanh,
    Sigmoid,
    Log,
    Softplus,
    Sqrt,
    Rsqrt,
    Reciprocal,
    Gelu,
    GeluTanh,
    Erf,
    Silu,
    Mish,
    Sin,
    Arctan,
}

/// A set of activation functions that one table load makes available. `Copy`, `Square`, `Relu`,
/// `Abs` and `Sign` are in every set.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TableSet {
    ExpAndOthers,
    GeluAndOthers,
    NaturalLogExpAndOthers,
    ReciprocalSqrtAndSmall,
    SiluAndOthers,
    SinAndOthers,
}

/// An operator of the vector engine's ALU. Arithmetic is in f32; comparisons give 1.0 or 0.0.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AluOp {
    Add,
    Subtract,
    Multiply,
    Max,
    Min,
    Equal,
    NotEqual,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    LogicalAnd,
    LogicalOr,
    LogicalXor,
    /// Pool only.
    Power,
    /// Unary; the operand is ignored and must be the immediate 0.
    Abs,
    /// Unary; the operand is ignored and must be the immediate 0.
    LogicalNot,
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    ShiftLeft,
    ShiftRight,
}

/// A per-instruction scalar or a per-partition vector (a view of one element per partition).
#[derive(Clone, Debug, PartialEq)]
pub enum ScalarOperand {
    Immediate(f32),
    Vector(TileView),
}

/// What an instruction does to its engine's accumulation registers.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReduceCommand {
    /// Reset, then accumulate this instruction.
    ResetReduce,
    /// Keep accumulating.
    Reduce,
}

/// The queue that carries a DMA. The trigger is issued by the instruction's engine.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DmaQueue {
    /// Descriptors made by hardware on command of SP or ACT; no cast, no gather. trn2 and later.
    Hardware,
    /// As `Hardware`, through the engines' transposing mode: the innermost dimension lies in a row of
    /// the source and over partitions of the destination. trn2 and later.
    HardwareTranspose,
    /// Descriptors made by the Pool engine; casts and gathers.
    Software,
    /// Descriptors made by the host when the NEFF is loaded; no gather. trn1's way.
    Ring,
}

/// What one instruction does.
#[derive(Clone, Debug, PartialEq)]
pub enum InstructionKind {
    /// ACT: dst = function(data * scale + bias); `reduce` also sums the results over all free
    /// elements in f32, and `reduce_result`, where given, receives the sum (one element per
    /// partition).
    Activation {
        function: ActivationFunction,
        dst: TileView,
        data: TileView,
        scale: ScalarOperand,
        bias: ScalarOperand,
        reduce: Option<ReduceCommand>,
        reduce_result: Option<TileView>,
    },
    /// DVE, or ACT on trn2 and later for (multiply, add), (multiply) and (add):
    /// t = data op0 operand0; dst = t op1 operand1. A reversed op swaps its two sides.
    TensorScalar {
        dst: TileView,
        data: TileView,
        op0: AluOp,
        operand0: ScalarOperand,
        reverse0: bool,
        second: Option<(AluOp, ScalarOperand, bool)>,
    },
    /// DVE: dst = data op0 operand0, and `reduce_result` = `reduce_op` over all free elements.
    TensorScalarReduce {
        dst: TileView,
        data: TileView,
        op0: AluOp,
        operand0: ScalarOperand,
        reduce_op: AluOp,
        reduce_result: TileView,
    },
    /// DVE: dst = (data op0 operand0) op1 operand1, with `operand1` a full tile.
    ScalarTensorTensor {
        dst: TileView,
        data: TileView,
        op0: AluOp,
        operand0: ScalarOperand,
        reverse0: bool,
        op1: AluOp,
        operand1: TileView,
        reverse1: bool,
    },
    /// DVE, or Pool for `Power` and for exact 32-bit integers: dst = lhs op rhs.
    TensorTensor { dst: TileView, lhs: TileView, rhs: TileView, op: AluOp },
    /// DVE: dst = op over the last `n_reduced_dims` free dimensions of data; `negate` multiplies by -1.
    TensorReduce { dst: TileView, data: TileView, op: AluOp, n_reduced_dims: u8, negate: bool },
    /// DVE: `r[i] = (data0[i] op0 r[i-1]) op1 data1[i]`, `r[-1] = initial`.
    TensorTensorScan { dst: TileView, data0: TileView, data1: TileView, initial: ScalarOperand, op0: AluOp, op1: AluOp },
    /// DVE, Pool, or ACT on trn2 and later: dst = data; bit-exact where the types are equal.
    TensorCopy { dst: TileView, src: TileView },
    /// DVE: dst = predicate ? src : dst; `src` and `dst` of one type, `predicate` of 8, 16 or 32-bit integers.
    TensorCopyPredicated { dst: TileView, src: TileView, predicate: TileView },
    /// DVE: dst = 1 / data.
    Reciprocal { dst: TileView, data: TileView },
    /// DVE or Pool: dst = value.
    Memset { dst: TileView, value: f32 },
    /// Pool: dst[p, i..] = offset + p * channel_multiplier + sum of i_k * step_k, in 32-bit integers,
    /// where the steps belong to `dst`'s dimensions.
    Iota { dst: TileView, steps: SmallVec<[i32; 4]>, offset: i32, channel_multiplier: i32 },
    /// DVE: dst[0..6] = count, mean and count * variance of the even, then of the odd elements; at most 512.
    BnStats { dst: TileView, data: TileView },
    /// DVE: merges triples (count, mean, count * variance) into dst[0..2] = mean, variance.
    BnAggr { dst: TileView, data: TileView },
    /// PE: dst[m, n] (+)= sum over partitions k of stationary[k, m] * moving[k, n].
    Matmul {
        dst: TileView,
        stationary: TileView,
        moving: TileView,
        /// Adds to what the PSUM group holds instead of overwriting it.
        accumulate: bool,
    },
    /// PE (to PSUM, up to 128 x 128) or DVE (up to 32 x 32): dst[f, p] = data[p, f].
    Transpose { dst: TileView, data: TileView },
    /// DMA engines: dst = src, element by element; `gather` adds per-row offsets to the HBM side.
    Dma { dst: DmaAccess, src: DmaAccess, queue: DmaQueue, gather: Option<Gather> },
    /// ACT sequencer: makes a function set available.
    LoadTable { set: TableSet },
    /// Any sequencer: waits and updates only.
    Sync,
    /// Any sequencer: goes on at record `entry` of its own stream, with the binding register at `bindings`,
    /// until that part's `Return`.
    Call { entry: u32, bindings: u32 },
    /// Any sequencer: goes on behind the latest `Call`; in the part that the stream begins with, ends the
    /// stream.
    Return,
    /// Any sequencer: sets `count` semaphores from `first` on to 0, before its update.
    ClearSemaphores { first: u16, count: u16 },
}

/// Row offsets of a DMA that gathers from HBM or, where its source is on chip, scatters to HBM: the
/// i-th step of the HBM side's outermost dimension starts at `index[i] * row_elements` elements,
/// where i counts the index view's partitions. Of equal indices the last counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Gather {
    /// One 32-bit integer per partition.
    pub index: TileView,
    pub row_elements: u32,
    /// Valid indices are 0..n_rows.
    pub n_rows: u32,
}

impl Gather {
    /// True where the offsets are the destination's.
    pub fn scatters(src: &DmaAccess) -> bool {
        src.hbm().is_none()
    }
}

/// One instruction of one engine's stream.
#[derive(Debug, PartialEq)]
pub struct Instruction {
    pub engine: Engine,
    pub kind: InstructionKind,
    /// At most two; more are carried by `Sync` instructions before this one.
    pub waits: SmallVec<[Wait; 2]>,
    pub update: Option<Update>,
    /// Positions in [`super::Program::locations`].
    pub locations: SmallVec<[LocationId; 2]>,
}

impl Clone for Instruction {
    fn clone(&self) -> Self {
        // As for `TileView`.
        let Instruction { engine, ref kind, ref waits, update, ref locations } = *self;
        let (waits, locations) = (SmallVec::from_slice(waits), SmallVec::from_slice(locations));
        Instruction { engine, kind: kind.clone(), waits, update, locations }
    }
}

impl Instruction {
    /// An instruction without waits, updates or locations.
    pub fn new(engine: Engine, kind: InstructionKind) -> Self {
        Instruction { engine, kind, waits: SmallVec::new(), update: None, locations: SmallVec::new() }
    }

    /// True for the data path of PE, ACT, DVE and Pool: not DMAs, table loads or control.
    pub fn is_compute(&self) -> bool {
        !matches!(self.kind, InstructionKind::Dma { .. } | InstructionKind::LoadTable { .. }) && !self.is_control()
    }

    /// True for what the sequencer does alone: waits, updates, calls.
    pub fn is_control(&self) -> bool {
        matches!(
            self.kind,
            InstructionKind::Sync
                | InstructionKind::Call { .. }
                | InstructionKind::Return
                | InstructionKind::ClearSemaphores { .. }
        )
    }
}

/// What an instruction touches in memory.
#[derive(Clone, Debug, Default)]
pub struct Accesses<'a> {
    pub tile_reads: SmallVec<[&'a TileView; 4]>,
    pub tile_writes: SmallVec<[&'a TileView; 2]>,
    pub dma_read: Option<&'a DmaAccess>,
    pub dma_write: Option<&'a DmaAccess>,
}

impl InstructionKind {
    /// Name in the text form: the nki.isa name.
    pub const fn name(&self) -> &'static str {
        match self {
            InstructionKind::Activation { .. } => "activation",
            InstructionKind::TensorScalar { .. } => "tensor_scalar",
            InstructionKind::TensorScalarReduce { .. } => "tensor_scalar_reduce",
            InstructionKind::ScalarTensorTensor { .. } => "scalar_tensor_tensor",
            InstructionKind::TensorTensor { .. } => "tensor_tensor",
            InstructionKind::TensorReduce { .. } => "tensor_reduce",
            InstructionKind::TensorTensorScan { .. } => "tensor_tensor_scan",
            InstructionKind::TensorCopy { .. } => "tensor_copy",
            InstructionKind::TensorCopyPredicated { .. } => "tensor_copy_predicated",
            InstructionKind::Reciprocal { .. } => "reciprocal",
            InstructionKind::Memset { .. } => "memset",
            InstructionKind::Iota { .. } => "iota",
            InstructionKind::BnStats { .. } => "bn_stats",
            InstructionKind::BnAggr { .. } => "bn_aggr",
            InstructionKind::Matmul { .. } => "nc_matmul",
            InstructionKind::Transpose { .. } => "nc_transpose",
            InstructionKind::Dma { .. } => "dma_copy",
            InstructionKind::LoadTable { .. } => "load_table",
            InstructionKind::Sync => "sync",
            InstructionKind::Call { .. } => "call",
            InstructionKind::Return => "return",
            InstructionKind::ClearSemaphores { .. } => "clear_semaphores",
        }
    }

    /// Every operand on chip: outputs first, then inputs, vectors and a gather's indices. Sides of
    /// a transfer are none of them.
    pub fn views_mut(&mut self) -> SmallVec<[&mut TileView; 6]> {
        let mut views = SmallVec::new();
        match self {
            InstructionKind::Activation { dst, data, scale, bias, reduce_result, reduce: _, function: _ } => {
                views.push(dst);
                views.extend(reduce_result);
                views.push(data);
                views.extend(scale.vector_mut());
                views.extend(bias.vector_mut());
            }
            InstructionKind::TensorScalar { dst, data, operand0, second, op0: _, reverse0: _ } => {
                views.extend([dst, data]);
                views.extend(operand0.vector_mut());
                views.extend(second.as_mut().and_then(|(_, operand, _)| operand.vector_mut()));
            }
            InstructionKind::TensorScalarReduce { dst, data, operand0, reduce_result, op0: _, reduce_op: _ } => {
                views.extend([dst, reduce_result, data]);
                views.extend(operand0.vector_mut());
            }
            InstructionKind::ScalarTensorTensor {
                dst,
                data,
                operand0,
                operand1,
                op0: _,
                reverse0: _,
                op1: _,
                reverse1: _,
            } => {
                views.extend([dst, data, operand1]);
                views.extend(operand0.vector_mut());
            }
            InstructionKind::TensorTensor { dst, lhs, rhs, op: _ } => views.extend([dst, lhs, rhs]),
            InstructionKind::TensorReduce { dst, data, op: _, n_reduced_dims: _, negate: _ }
            | InstructionKind::Reciprocal { dst, data }
            | InstructionKind::BnStats { dst, data }
            | InstructionKind::BnAggr { dst, data }
            | InstructionKind::Transpose { dst, data }
            | InstructionKind::TensorCopy { dst, src: data } => views.extend([dst, data]),
            InstructionKind::TensorTensorScan { dst, data0, data1, initial, op0: _, op1: _ } => {
                views.extend([dst, data0, data1]);
                views.extend(initial.vector_mut());
            }
            InstructionKind::TensorCopyPredicated { dst, src, predicate } => views.extend([dst, src, predicate]),
            InstructionKind::Memset { dst, value: _ }
            | InstructionKind::Iota { dst, steps: _, offset: _, channel_multiplier: _ } => views.push(dst),
            InstructionKind::Matmul { dst, stationary, moving, accumulate: _ } => {
                views.extend([dst, stationary, moving]);
            }
            InstructionKind::Dma { gather, dst: _, src: _, queue: _ } => {
                views.extend(gather.as_mut().map(|gather| &mut gather.index));
            }
            InstructionKind::LoadTable { set: _ }
            | InstructionKind::Sync
            | InstructionKind::Call { .. }
            | InstructionKind::Return
            | InstructionKind::ClearSemaphores { .. } => {}
        }
        views
    }

    /// Every memory access. An accumulating matmul and a predicated copy also read their dst.
    pub fn accesses(&self) -> Accesses<'_> {
        let mut found = Accesses::default();
        match self {
            InstructionKind::Activation { dst, data, scale, bias, reduce: _, reduce_result, function: _ } => {
                found.tile_reads.push(data);
                found.tile_reads.extend([scale, bias].into_iter().filter_map(ScalarOperand::vector));
                found.tile_writes.push(dst);
                found.tile_writes.extend(reduce_result);
            }
            InstructionKind::TensorScalar { dst, data, operand0, second, op0: _, reverse0: _ } => {
                found.tile_reads.push(data);
                found.tile_reads.extend(operand0.vector());
                found.tile_reads.extend(second.as_ref().and_then(|(_, operand, _)| operand.vector()));
                found.tile_writes.push(dst);
            }
            InstructionKind::TensorScalarReduce { dst, data, operand0, reduce_result, op0: _, reduce_op: _ } => {
                found.tile_reads.push(data);
                found.tile_reads.extend(operand0.vector());
                found.tile_writes.extend([dst, reduce_result]);
            }
            InstructionKind::ScalarTensorTensor {
                dst,
                data,
                operand0,
                operand1,
                op0: _,
                reverse0: _,
                op1: _,
                reverse1: _,
            } => {
                found.tile_reads.extend([data, operand1]);
                found.tile_reads.extend(operand0.vector());
                found.tile_writes.push(dst);
            }
            InstructionKind::TensorTensor { dst, lhs, rhs, op: _ } => {
                found.tile_reads.extend([lhs, rhs]);
                found.tile_writes.push(dst);
            }
            InstructionKind::TensorReduce { dst, data, op: _, n_reduced_dims: _, negate: _ }
            | InstructionKind::Reciprocal { dst, data }
            | InstructionKind::BnStats { dst, data }
            | InstructionKind::BnAggr { dst, data }
            | InstructionKind::Transpose { dst, data }
            | InstructionKind::TensorCopy { dst, src: data } => {
                found.tile_reads.push(data);
                found.tile_writes.push(dst);
            }
            InstructionKind::TensorTensorScan { dst, data0, data1, initial, op0: _, op1: _ } => {
                found.tile_reads.extend([data0, data1]);
                found.tile_reads.extend(initial.vector());
                found.tile_writes.push(dst);
            }
            InstructionKind::TensorCopyPredicated { dst, src, predicate } => {
                found.tile_reads.extend([src, predicate, dst]);
                found.tile_writes.push(dst);
            }
            InstructionKind::Memset { dst, value: _ }
            | InstructionKind::Iota { dst, steps: _, offset: _, channel_multiplier: _ } => found.tile_writes.push(dst),
            InstructionKind::Matmul { dst, stationary, moving, accumulate } => {
                found.tile_reads.extend([stationary, moving]);
                if *accumulate {
                    found.tile_reads.push(dst);
                }
                found.tile_writes.push(dst);
            }
            InstructionKind::Dma { dst, src, queue: _, gather } => {
                found.tile_reads.extend(gather.as_ref().map(|gather| &gather.index));
                found.dma_read = Some(src);
                found.dma_write = Some(dst);
            }
            InstructionKind::LoadTable { set: _ }
            | InstructionKind::Sync
            | InstructionKind::Call { .. }
            | InstructionKind::Return
            | InstructionKind::ClearSemaphores { .. } => {}
        }
        found
    }
}

impl InstructionKind {
    /// Calls `change` with the tile of every view and of every DMA side.
    pub fn for_each_tile_mut(&mut self, change: &mut dyn FnMut(&mut TileId)) {
        for view in self.views_mut() {
            change(&mut view.tile);
        }
        if let InstructionKind::Dma { dst, src, queue: _, gather: _ } = self {
            for side in [dst, src] {
                if let DmaPlace::Tile { tile, partition: _ } = &mut side.place {
                    change(tile);
                }
            }
        }
    }
}

impl ScalarOperand {
    /// The view, where the operand is a vector.
    pub fn vector(&self) -> Option<&TileView> {
        match self {
            ScalarOperand::Immediate(_) => None,
            ScalarOperand::Vector(view) => Some(view),
        }
    }

    fn vector_mut(&mut self) -> Option<&mut TileView> {
        match self {
            ScalarOperand::Immediate(_) => None,
            ScalarOperand::Vector(view) => Some(view),
        }
    }
}

impl DmaAccess {
    /// The HBM tensor, where this side lies in HBM.
    pub fn hbm(&self) -> Option<HbmId> {
        match self.place {
            DmaPlace::Hbm { tensor } => Some(tensor),
            DmaPlace::Tile { .. } => None,
        }
    }
}

impl ActivationFunction {
    /// The table sets that hold this function; empty for functions that every set holds.
    pub fn table_sets(self) -> SmallVec<[TableSet; 2]> {
        match self {
            ActivationFunction::Copy
            | ActivationFunction::Square
            | ActivationFunction::Relu
            | ActivationFunction::Abs
            | ActivationFunction::Sign => SmallVec::new(),
            ActivationFunction::Exp => smallvec![TableSet::ExpAndOthers, TableSet::NaturalLogExpAndOthers],
            ActivationFunction::Tanh | ActivationFunction::Sigmoid => smallvec![TableSet::ExpAndOthers],
            ActivationFunction::Log | ActivationFunction::Softplus => smallvec![TableSet::NaturalLogExpAndOthers],
            ActivationFunction::Sqrt | ActivationFunction::Rsqrt | ActivationFunction::Reciprocal => {
                smallvec![TableSet::ReciprocalSqrtAndSmall]
            }
            ActivationFunction::Gelu | ActivationFunction::GeluTanh | ActivationFunction::Erf => {
                smallvec![TableSet::GeluAndOthers]
            }
            ActivationFunction::Silu | ActivationFunction::Mish => smallvec![TableSet::SiluAndOthers],
            ActivationFunction::Sin | ActivationFunction::Arctan => smallvec![TableSet::SinAndOthers],
        }
    }
}
