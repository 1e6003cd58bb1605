//! Time of the graph passes per node, on graphs without repetition and on chains of equal blocks.
//!
//! The first kind is a random DAG of pointwise ops, `common/pointwise.rs`. The second kind are transformer blocks with weights of
//! their own. Arguments are numbers of nodes for the DAG.

use std::time::Instant;

use ir::graph::{InputRole, Location};
use ir::ops::{Add, Exp, Full, Matmul, Mul, Reciprocal, ReduceMax, ReduceMean, ReduceSum, Rsqrt, Sigmoid, Sub};
use ir::{Dtype, Graph, Op, TensorType, ValueId};
use passes::Numerics;
use passes::canonicalize::canonicalize;
use passes::fuse::{FuseOptions, fuse};

#[path = "common/pointwise.rs"]
mod pointwise;

use pointwise::pointwise_dag;

/// Runs of which the median counts.
const N_RUNS: usize = 3;

fn main() {
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![1_000, 2_000, 10_000, 100_000] } else { sizes };
    println!("{:<28} {:>8} {:>16} {:>12} {:>12}", "graph", "nodes", "canonicalize us", "fuse us", "us a node");
    for size in sizes {
        measure(&format!("random DAG of {size}"), &pointwise_dag(size));
    }
    for n_blocks in [4, 64] {
        measure(&format!("{n_blocks} equal blocks"), &blocks(n_blocks));
    }
}

fn measure(name: &str, graph: &Graph) {
    let mut canonical_us = Vec::new();
    let mut fuse_us = Vec::new();
    for _ in 0..N_RUNS {
        let start = Instant::now();
        let (canonical, _) = canonicalize(graph, Numerics::Contract).expect("the graph is sound");
        canonical_us.push(start.elapsed().as_secs_f64() * 1e6);
        let start = Instant::now();
        fuse(&canonical, &FuseOptions::new(Numerics::Contract)).expect("the graph is sound");
        fuse_us.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let [canonical_us, fuse_us] = [canonical_us, fuse_us].map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[N_RUNS / 2]
    });
    let per_node_us = (canonical_us + fuse_us) / graph.n_nodes() as f64;
    println!("{name:<28} {:>8} {canonical_us:>16.0} {fuse_us:>12.0} {per_node_us:>12.2}", graph.n_nodes());
}

/// A graph being drawn.
struct Sketch(Graph);

impl Sketch {
    fn input(&mut self, shape: &[usize]) -> ValueId {
        let name = format!("in{}", self.0.inputs.len());
        self.0.push_input(name, TensorType::new(Dtype::F32, shape.iter().copied()), InputRole::Dynamic)
    }

    fn op(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> ValueId {
        let op = op.into();
        let node = format!("{}_{}", op.name(), self.0.n_nodes());
        let location = self.0.push_location(Location { node, ..Default::default() });
        self.0.push_value_of(op, operands, &[location]).expect("the graph is well typed")
    }
}

fn blocks(n_blocks: usize) -> Graph {
    let (rows, width, inner) = (256, 256, 512);
    let mut sketch = Sketch(Graph::new("blocks"));
    let mut x = sketch.input(&[rows, width]);
    for _ in 0..n_blocks {
        let normed = rms_norm(&mut sketch, x);
        let [query, key, value] = [(); 3].map(|()| linear(&mut sketch, normed, width, width));
        let scores = matmul(&mut sketch, query, key, true);
        let weights = softmax(&mut sketch, scores);
        let mixed = matmul(&mut sketch, weights, value, false);
        let attended = linear(&mut sketch, mixed, width, width);
        x = sketch.op(Add, &[x, attended]);
        let normed = rms_norm(&mut sketch, x);
        let [gate, up] = [(); 2].map(|()| linear(&mut sketch, normed, width, inner));
        let sigmoid = sketch.op(Sigmoid, &[gate]);
        let silu = sketch.op(Mul, &[gate, sigmoid]);
        let gated = sketch.op(Mul, &[silu, up]);
        let down = linear(&mut sketch, gated, inner, width);
        x = sketch.op(Add, &[x, down]);
    }
    let Sketch(mut graph) = sketch;
    graph.push_output(x);
    graph
}

fn matmul(sketch: &mut Sketch, lhs: ValueId, rhs: ValueId, transpose_rhs: bool) -> ValueId {
    sketch.op(Matmul { transpose_lhs: false, transpose_rhs, dtype: Dtype::F32 }, &[lhs, rhs])
}

fn linear(sketch: &mut Sketch, x: ValueId, width: usize, n_outputs: usize) -> ValueId {
    let weight = sketch.input(&[width, n_outputs]);
    matmul(sketch, x, weight, false)
}

fn rms_norm(sketch: &mut Sketch, x: ValueId) -> ValueId {
    let square = sketch.op(Mul, &[x, x]);
    let mean = sketch.op(ReduceMean { axes: [1].into_iter().collect() }, &[square]);
    let eps = sketch.op(Full::scalar(1e-6, Dtype::F32), &[]);
    let sum = sketch.op(Add, &[mean, eps]);
    let root = sketch.op(Rsqrt, &[sum]);
    sketch.op(Mul, &[x, root])
}

fn softmax(sketch: &mut Sketch, x: ValueId) -> ValueId {
    let largest = sketch.op(ReduceMax { axes: [1].into_iter().collect() }, &[x]);
    let shifted = sketch.op(Sub, &[x, largest]);
    let exponential = sketch.op(Exp, &[shifted]);
    let sum = sketch.op(ReduceSum { axes: [1].into_iter().collect() }, &[exponential]);
    let inverse = sketch.op(Reciprocal, &[sum]);
    sketch.op(Mul, &[exponential, inverse])
}
