//! What a node costs, as an estimate before placement and scheduling.
//!
//! Rows lie on partitions and the last axis is free; every op streams its elements once per
//! instruction. Casts ride on the reads and writes of their neighbours and views are free, but
//! neither is worth nothing: of two equal programs the one without them wins.

use ir::ops::{Attention, AttentionExtents, OpClass};
use ir::target::Target;
use ir::{Op, TensorType};

/// The parts of a node's cost.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCost {
    pub n_instructions: u64,
    /// Free elements that instructions stream, all instructions together.
    pub streamed_elements: u64,
    /// Columns that the tensor engine streams.
    pub matmul_columns: u64,
    /// Moved between HBM and SBUF.
    pub hbm_bytes: u64,
}

/// Free elements of a tensor per partition, with rows on partitions.
fn free_elements(target: &Target, ty: &TensorType) -> u64 {
    let length = ty.shape.last().copied().unwrap_or(1).max(1) as u64;
    let rows = (ty.n_elements() as u64).div_ceil(length);
    rows.div_ceil(u64::from(target.partitions)) * length
}

/// Row blocks of a tensor, which is what one element per row streams.
fn row_blocks(target: &Target, ty: &TensorType) -> u64 {
    free_elements(target, ty).div_ceil(ty.shape.last().copied().unwrap_or(1).max(1) as u64)
}

impl NodeCost {
    /// The cost of one op.
    pub fn of(target: &Target, op: &Op, operands: &[&TensorType], result: &TensorType) -> NodeCost {
        let free = free_elements(target, result);
        let passes = |n_instructions: u64, streamed_elements: u64| NodeCost {
            n_instructions,
            streamed_elements,
            ..NodeCost::default()
        };
        match op.class() {
            OpClass::Creation => NodeCost::default(),
            OpClass::Pointwise if matches!(op, Op::Cast(_)) => passes(0, free.div_ceil(2)),
            OpClass::Pointwise => passes(1, free),
            OpClass::Reduction | OpClass::Scan => {
                let widest = operands.iter().map(|ty| free_elements(target, ty)).max().unwrap_or(free);
                passes(1, widest)
            }
            OpClass::Movement => movement(op, free, passes),
            OpClass::Indexing => NodeCost { hbm_bytes: result.size_bytes() as u64, ..passes(1, 0) },
            OpClass::Contraction => match op {
                Op::Attention(attention) => attention_cost(target, attention, operands),
                _ => contraction(target, op, operands, result),
            },
            OpClass::Fused => {
                let small = row_blocks(target, result);
                let n_vectors = operands.len().saturating_sub(1) as u64;
                match op {
                    Op::RmsNorm(_) => passes(3, 2 * free + small),
                    Op::LayerNorm(_) => passes(4 + n_vectors, (2 + n_vectors) * free + 2 * small),
                    Op::LogSoftmax(_) => passes(4, 3 * free + small),
                    _ => passes(4, 3 * free + small),
                }
            }
        }
    }

    /// Time in picoseconds when nothing overlaps.
    pub fn total_ps(&self, target: &Target) -> u64 {
        let cycles_ps = |cycles: u64, khz: u64| cycles.saturating_mul(1_000_000_000) / khz;
        let stream_ps = cycles_ps(self.streamed_elements, target.dve_khz);
        let matmul_ps = cycles_ps(self.matmul_columns, target.pe_khz);
        let hbm_ps = self.hbm_bytes.saturating_mul(1000) / target.hbm_bytes_per_ns;
        let issue_ps = self.n_instructions.saturating_mul(target.act_overhead_ps);
        stream_ps.saturating_add(matmul_ps).saturating_add(hbm_ps).saturating_add(issue_ps)
    }
}

fn movement(op: &Op, free: u64, passes: impl Fn(u64, u64) -> NodeCost) -> NodeCost {
    match op {
        // Read through the PE or the DVE, and written back.
        Op::Transpose(_) => passes(2, 2 * free),
        Op::Concat(_) => passes(1, free),
        _ => NodeCost::default(),
    }
}

fn contraction(target: &Target, op: &Op, operands: &[&TensorType], result: &TensorType) -> NodeCost {
    let inner = match (op, operands) {
        (Op::Matmul(matmul), [lhs, ..]) => inner_length(lhs, matmul.transpose_lhs),
        (Op::FusedMatmul(matmul), [lhs, ..]) => inner_length(lhs, matmul.transpose_lhs),
        (_, _) => 1,
    };
    let partitions = u64::from(target.partitions);
    let tiles = (result.n_elements() as u64).div_ceil(partitions * partitions);
    let free = free_elements(target, result);
    // One instruction reads PSUM and applies bias and activation on the way.
    NodeCost {
        n_instructions: 1 + tiles * inner.div_ceil(partitions),
        streamed_elements: free,
        matmul_columns: tiles * inner.div_ceil(partitions) * partitions,
        hbm_bytes: 0,
    }
}

/// Rows of all heads lie on partitions, and scores stay on chip: their maximum, exponential and the
/// transposes of the weights are a pass each, a mask is another.
fn attention_cost(target: &Target, op: &Attention, operands: &[&TensorType]) -> NodeCost {
    let [query, key, value, masks @ ..] = operands else { return NodeCost::default() };
    let AttentionExtents { n_heads, n_queries, n_keys, n_features, n_values, .. } =
        AttentionExtents::of(query, key, value);
    let partitions = u64::from(target.partitions);
    let blocks = (n_heads as u64 * n_queries as u64).div_ceil(partitions);
    let (n_keys, n_features, n_values) = (n_keys as u64, n_features as u64, n_values as u64);
    let passes = |is_half: bool| if is_half { 1 } else { target.pe_f32_passes };
    let scores = n_keys * n_features.div_ceil(partitions) * passes(query.dtype.is_half() && key.dtype.is_half());
    let weights =
        (n_keys + n_keys.div_ceil(partitions) * n_values) * passes(value.dtype.is_half() && op.dtype.is_half());
    NodeCost {
        n_instructions: 8 + blocks,
        streamed_elements: blocks * ((3 + masks.len() as u64) * n_keys + n_values),
        matmul_columns: blocks * (scores + weights),
        hbm_bytes: 0,
    }
}

fn inner_length(lhs: &TensorType, transposed: bool) -> u64 {
    let from_end = if transposed { 2 } else { 1 };
    lhs.rank().checked_sub(from_end).map_or(1, |axis| lhs.shape[axis] as u64)
}
