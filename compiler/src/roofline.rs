//! The least time that a chip takes for a graph, whatever the program: what predicted times are
//! compared with.
//!
//! Four engines work at once, each at its peak, and nothing waits. What a program adds (transposes,
//! copies from PSUM, weights read again, instructions' overheads) is not in it. It is computed from a
//! graph after fusion, in which an attention is one op, and products count at the rate of the element
//! types that they are really made of. Where a causal bound leaves out scores that nobody sees, they count
//! or not ([`Scores`]).

use ir::ops::{Activation, Attention, AttentionExtents, OpClass};
use ir::target::Target;
use ir::{Dtype, Graph, Node, Op, TensorType, ValueId, graph::ValueDef};

/// Least picoseconds of each engine's share of a graph.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Roofline {
    /// Multiplications and additions at the peak of their operands' type.
    pub pe_ps: u64,
    /// One pass over the elements of every function that takes a table.
    pub act_ps: u64,
    /// One pass over the elements that are reduced to one for each row.
    pub dve_ps: u64,
    /// [`crate::metrics::compulsory_bytes`] at the peak of all DMA engines.
    pub dma_ps: u64,
}

/// Which scores of an attention with a causal bound are counted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Scores {
    /// All that the model's products make, as its graph spells them out.
    All,
    /// Those that some query sees.
    Seen,
}

/// What is counted before it is time.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
struct Work {
    /// Multiplications and additions of 16-bit floats; those of other types count as often as the
    /// array passes over them.
    n_macs: u128,
    n_table_elements: u128,
    n_reduced_elements: u128,
}

impl Roofline {
    /// The roofline of a graph on a chip. The compulsory bytes are given, for the graph after fusion
    /// may store constants that the imported one computes.
    pub fn of(graph: &Graph, compulsory_bytes: u64, target: &Target, scores: Scores) -> Roofline {
        let mut work = Work::default();
        for (_, node) in graph.nodes() {
            work.add(graph, node, target, scores);
        }
        let lanes = u128::from(target.partitions);
        Roofline {
            pe_ps: cycles_ps(work.n_macs, lanes * lanes, target.pe_khz),
            act_ps: cycles_ps(work.n_table_elements, lanes, target.act_khz),
            dve_ps: cycles_ps(work.n_reduced_elements, lanes, target.dve_khz),
            dma_ps: compulsory_bytes.saturating_mul(1000) / target.dma_peak_bytes_per_ns,
        }
    }

    /// The time of the engine that takes longest.
    pub fn bound_ps(&self) -> u64 {
        self.pe_ps.max(self.act_ps).max(self.dve_ps).max(self.dma_ps)
    }

    /// The engine that takes longest, as people call it.
    pub fn bound_by(&self) -> &'static str {
        let engines = [("PE", self.pe_ps), ("ACT", self.act_ps), ("DVE", self.dve_ps), ("DMA", self.dma_ps)];
        engines.into_iter().find(|&(_, ps)| ps == self.bound_ps()).map_or("nothing", |(name, _)| name)
    }
}

/// Time of `n` steps, of which `per_cycle` are done in each cycle.
fn cycles_ps(n: u128, per_cycle: u128, khz: u64) -> u64 {
    u64::try_from(n * 1_000_000_000 / (per_cycle * u128::from(khz))).unwrap_or(u64::MAX)
}

impl Work {
    fn add(&mut self, graph: &Graph, node: &Node, target: &Target, scores: Scores) {
        let n_results = graph.ty(node.results[0]).n_elements() as u128;
        let operand = |position: usize| graph.ty(node.operands[position]);
        let n_rows = |ty: &TensorType| (ty.n_elements() / ty.shape.last().copied().unwrap_or(1).max(1)) as u128;
        match &node.op {
            Op::Matmul(op) => self.product(graph, node, n_results, inner(operand(0), op.transpose_lhs), target),
            Op::FusedMatmul(op) => {
                self.product(graph, node, n_results, inner(operand(0), op.transpose_lhs), target);
                self.n_table_elements += match op.activation {
                    Activation::None | Activation::Relu => 0,
                    Activation::Gelu
                    | Activation::GeluTanh
                    | Activation::Silu
                    | Activation::Tanh
                    | Activation::Sigmoid
                    | Activation::Exp => n_results,
                };
            }
            Op::Attention(op) => self.attention(op, [operand(0), operand(1), operand(2)], target, scores),
            // The sum comes with the pass that exponentiates, the maximum does not.
            Op::Softmax(_) | Op::LogSoftmax(_) => {
                self.n_table_elements += n_results;
                self.n_reduced_elements += n_results;
            }
            Op::RmsNorm(_) | Op::LayerNorm(_) => {
                self.n_table_elements += n_rows(operand(0));
                self.n_reduced_elements += n_results;
            }
            Op::Exp(_)
            | Op::Log(_)
            | Op::Sqrt(_)
            | Op::Rsqrt(_)
            | Op::Sin(_)
            | Op::Cos(_)
            | Op::Tanh(_)
            | Op::Sigmoid(_)
            | Op::Erf(_)
            | Op::Gelu(_)
            | Op::GeluTanh(_)
            | Op::Silu(_)
            | Op::Softplus(_)
            | Op::Pow(_) => self.n_table_elements += n_results,
            op => match op.class() {
                OpClass::Reduction => self.n_reduced_elements += operand(0).n_elements() as u128,
                OpClass::Pointwise
                | OpClass::Scan
                | OpClass::Movement
                | OpClass::Indexing
                | OpClass::Creation
                | OpClass::Contraction
                | OpClass::Fused => {}
            },
        }
    }

    fn product(&mut self, graph: &Graph, node: &Node, n_results: u128, n_inner: u128, target: &Target) {
        let is_half = node.operands[..2].iter().all(|&operand| is_exactly_half(graph, operand));
        self.n_macs += n_results * n_inner * passes(is_half, target);
    }

    fn attention(&mut self, op: &Attention, operands: [&TensorType; 3], target: &Target, scores: Scores) {
        let [query, key, value] = operands;
        let extents = AttentionExtents::of(query, key, value);
        let (n_queries, n_keys) = (extents.n_queries as i128, extents.n_keys as i128);
        let n_counted: i128 = match op.causal {
            None => n_queries * n_keys,
            Some(_) if scores == Scores::All => n_queries * n_keys,
            Some(offset) => (0..n_queries).map(|row| (row + i128::from(offset) + 1).clamp(0, n_keys)).sum(),
        };
        let n_scores = extents.n_heads as u128 * n_counted.unsigned_abs();
        let is_half = query.dtype.is_half() && key.dtype.is_half();
        self.n_macs += n_scores * extents.n_features as u128 * passes(is_half, target);
        // Weights are as wide as what they are multiplied with and summed to.
        let is_half = value.dtype.is_half() && op.dtype.is_half();
        self.n_macs += n_scores * extents.n_values as u128 * passes(is_half, target);
        self.n_table_elements += n_scores;
        self.n_reduced_elements += n_scores;
    }
}

/// How often the array passes over what it multiplies.
fn passes(is_half: bool, target: &Target) -> u128 {
    if is_half { 1 } else { u128::from(target.pe_f32_passes) }
}

/// True where a value has no more than 16 bits, whatever type it is stored in.
fn is_exactly_half(graph: &Graph, mut value: ValueId) -> bool {
    loop {
        if narrow(graph.ty(value).dtype) {
            return true;
        }
        let ValueDef::Result { node, index: _ } = graph.def(value) else { return false };
        let node = graph.node(node);
        let keeps_values = matches!(node.op, Op::Cast(_)) || node.op.class() == OpClass::Movement;
        match node.operands[..] {
            [operand] if keeps_values => value = operand,
            _ => return false,
        }
    }
}

fn narrow(dtype: Dtype) -> bool {
    dtype.is_half() || matches!(dtype, Dtype::F8E4m3 | Dtype::F8E5m2)
}

/// Length of the axis that a product sums over.
fn inner(lhs: &TensorType, transposed: bool) -> u128 {
    let from_end = if transposed { 2 } else { 1 };
    lhs.rank().checked_sub(from_end).map_or(1, |axis| lhs.shape[axis] as u128)
}

#[cfg(test)]
mod tests {
    use ir::target::TargetName;
    use ir::text::parse_graph;

    use super::*;
    use crate::metrics::compulsory_bytes;

    fn counting(scores: Scores, text: &str) -> Roofline {
        let graph = parse_graph("test", text).unwrap();
        Roofline::of(&graph, compulsory_bytes(&graph), TargetName::Trn2.target(), scores)
    }

    fn roofline(text: &str) -> Roofline {
        let (seen, all) = (counting(Scores::Seen, text), counting(Scores::All, text));
        assert_eq!((seen.dma_ps, seen.pe_ps.max(all.pe_ps)), (all.dma_ps, all.pe_ps));
        seen
    }

    #[test]
    fn products_take_a_cycle_for_128_by_128_and_four_in_f32() {
        let product = |dtype: &str| {
            roofline(&format!(
                "graph @g {{\n  input %0 \"a\": {dtype}[2048, 2048] dynamic\n  input %1 \"b\": {dtype}[2048, 2048] dynamic\n  \
                 %2 = matmul %0, %1 {{transpose_lhs = 0, transpose_rhs = 0, dtype = {dtype}}} : {dtype}[2048, 2048]\n  \
                 output %2 \"\"\n}}"
            ))
        };
        // 2048^3 / 128^2 cycles at 2.4 GHz.
        assert_eq!(product("bf16").pe_ps, 218_453_333);
        assert_eq!(product("f32").pe_ps, 873_813_333);
        assert_eq!(product("bf16").bound_by(), "PE");
        // Three matrices of 8 MiB at 415 B/ns.
        assert_eq!(product("bf16").dma_ps, 3 * (8 << 20) * 1000 / 415);
    }

    #[test]
    fn operands_cast_from_16_bits_count_as_such() {
        let text = "graph @g {\n  input %0 \"a\": bf16[128, 128] dynamic\n  input %1 \"b\": bf16[128, 128] dynamic\n  \
                    %2 = cast %0 {dtype = f32} : f32[128, 128]\n  %3 = cast %1 {dtype = f32} : f32[128, 128]\n  \
                    %4 = transpose %3 {perm = [1, 0]} : f32[128, 128]\n  \
                    %5 = matmul %2, %4 {transpose_lhs = 0, transpose_rhs = 0, dtype = f32} : f32[128, 128]\n  \
                    %6 = exp %5 : f32[128, 128]\n  \
                    %7 = matmul %6, %4 {transpose_lhs = 0, transpose_rhs = 0, dtype = f32} : f32[128, 128]\n  \
                    output %7 \"\"\n}";
        let found = roofline(text);
        // 128 columns once and, with an operand that has 24 bits, four times.
        assert_eq!(found.pe_ps, 5 * 128 * 1000 * 10 / 24);
        assert_eq!(found.act_ps, 128 * 1000 * 10 / 12);
        assert_eq!(found.dve_ps, 0);
    }

    #[test]
    fn causal_attention_counts_the_scores_that_are_seen() {
        let attention = |causal: &str| {
            let text = format!(
                "graph @g {{\n  input %0 \"q\": bf16[4, 256, 128] dynamic\n  input %1 \"k\": bf16[4, 256, 128] dynamic\n  \
                 input %2 \"v\": bf16[4, 256, 128] dynamic\n  %3 = attention %0, %1, %2 {{scale = 0.125, causal = {causal}, \
                 empty = zero, logsumexp = 0, dtype = bf16}} : bf16[4, 256, 128]\n  output %3 \"\"\n}}"
            );
            (roofline(&text), counting(Scores::All, &text))
        };
        let ((whole, _), (causal, all)) = (attention("[]"), attention("[0]"));
        assert_eq!(all, whole);
        let (n_whole, n_causal) = (4 * 256 * 256, 4 * 256 * 257 / 2);
        assert_eq!(whole.pe_ps, 2 * n_whole * 128 * 1000 * 10 / (128 * 128 * 24));
        assert_eq!(causal.pe_ps, 2 * n_causal * 128 * 1000 * 10 / (128 * 128 * 24));
        assert_eq!((whole.act_ps, causal.act_ps), (n_whole * 10_000 / 128 / 12, n_causal * 10_000 / 128 / 12));
        assert_eq!(causal.dve_ps, n_causal * 100_000 / 128 / 96);
    }

    #[test]
    fn norms_reduce_each_row_and_take_one_root() {
        let text = "graph @g {\n  input %0 \"x\": f32[256, 512] dynamic\n  \
                    %1 = softmax %0 : f32[256, 512]\n  output %1 \"\"\n}";
        let found = roofline(text);
        assert_eq!((found.act_ps, found.dve_ps), (1024 * 10_000 / 12, 1024 * 100_000 / 96));
        let text = "graph @g {\n  input %0 \"x\": f32[256, 512] dynamic\n  \
                    %1 = reduce_sum %0 {axes = [1]} : f32[256, 1]\n  %2 = rsqrt %1 : f32[256, 1]\n  output %2 \"\"\n}";
        let found = roofline(text);
        assert_eq!((found.act_ps, found.dve_ps), (2 * 10_000 / 12, 1024 * 100_000 / 96));
    }
}
