//! Spellings of attention: every one becomes the fused op alone, with the scale, the mask and the
//! heads that it says.

use ir::ops::{
    Add, Any, Attention, Cast, Div, EmptyRow, Exp, Expand, Matmul, Mul, Ne, ReduceMax, ReduceSum, Reshape, Softmax,
    Sub, Transpose, Where,
};
use ir::{Dtype, Graph, Op, ValueId};
use smallvec::smallvec;

use super::fused;
use crate::Numerics;
use crate::fuse::FuseOptions;
use crate::testing::Sketch;

const F32: Dtype = Dtype::F32;
const BF16: Dtype = Dtype::Bf16;

/// Where the factors of the scale stand.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Scale {
    Scores,
    Divided,
    Query,
    Key,
    Both,
    /// On a query before its heads are split off.
    Projection,
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum Mask {
    None,
    Added,
    Selected,
    /// where(mask, 0, -inf) added.
    Chosen,
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum Weights {
    Softmax,
    Spelled,
    Safe,
}

fn times(s: &mut Sketch, x: ValueId, value: f64) -> ValueId {
    let number = s.number(value, F32);
    s.op(Mul, &[x, number])
}

fn matmul(s: &mut Sketch, lhs: ValueId, rhs: ValueId, dtype: Dtype) -> ValueId {
    s.op(Matmul { transpose_lhs: false, transpose_rhs: false, dtype }, &[lhs, rhs])
}

fn turned(s: &mut Sketch, x: ValueId) -> ValueId {
    s.op(Transpose { perm: smallvec![0, 1, 3, 2] }, &[x])
}

/// The weights of scores [2, 4, 5, 7].
fn weights(s: &mut Sketch, scores: ValueId, kind: Weights) -> ValueId {
    let axes = || smallvec![3];
    match kind {
        Weights::Softmax => s.op(Softmax, &[scores]),
        Weights::Spelled => {
            let largest = s.op(ReduceMax { axes: axes() }, &[scores]);
            let shifted = s.op(Sub, &[scores, largest]);
            let exponentials = s.op(Exp, &[shifted]);
            let sum = s.op(ReduceSum { axes: axes() }, &[exponentials]);
            s.op(Div, &[exponentials, sum])
        }
        Weights::Safe => {
            let softmax = s.op(Softmax, &[scores]);
            let (excluded, zero) = (s.number(f64::NEG_INFINITY, F32), s.number(0.0, F32));
            let kept = s.op(Ne, &[scores, excluded]);
            let any = s.op(Any { axes: axes() }, &[kept]);
            s.op(Where, &[any, softmax, zero])
        }
    }
}

fn spelled(scale: Scale, mask: Mask, kind: Weights) -> Graph {
    let mut s = Sketch::new();
    let (mut q, mut k, v) = (s.input(F32, &[2, 4, 5, 6]), s.input(F32, &[2, 4, 7, 6]), s.input(F32, &[2, 4, 7, 8]));
    match scale {
        Scale::Query => q = times(&mut s, q, 0.25),
        Scale::Key => k = times(&mut s, k, 0.25),
        Scale::Both => (q, k) = (times(&mut s, q, 0.5), times(&mut s, k, 0.5)),
        Scale::Projection => {
            let projected = s.input(F32, &[2, 5, 24]);
            let scaled = times(&mut s, projected, 0.25);
            let split = s.op(Reshape { shape: smallvec![2, 5, 4, 6] }, &[scaled]);
            q = s.op(Transpose { perm: smallvec![0, 2, 1, 3] }, &[split]);
        }
        Scale::Scores | Scale::Divided => {}
    }
    let columns = turned(&mut s, k);
    let mut scores = matmul(&mut s, q, columns, F32);
    match scale {
        Scale::Scores => scores = times(&mut s, scores, 0.25),
        Scale::Divided => {
            let root = s.number(4.0, F32);
            scores = s.op(Div, &[scores, root]);
        }
        Scale::Query | Scale::Key | Scale::Both | Scale::Projection => {}
    }
    let (excluded, zero) = (s.number(f64::NEG_INFINITY, F32), s.number(0.0, F32));
    match mask {
        Mask::None => {}
        Mask::Added => {
            let mask = s.input(F32, &[2, 1, 1, 7]);
            scores = s.op(Add, &[scores, mask]);
        }
        Mask::Selected => {
            let mask = s.input(Dtype::Bool, &[5, 7]);
            scores = s.op(Where, &[mask, scores, excluded]);
        }
        Mask::Chosen => {
            let mask = s.input(Dtype::Bool, &[5, 7]);
            let chosen = s.op(Where, &[mask, zero, excluded]);
            scores = s.op(Add, &[chosen, scores]);
        }
    }
    let weights = weights(&mut s, scores, kind);
    let output = matmul(&mut s, weights, v, F32);
    s.finish(&[output])
}

/// The attention of a graph that has one, and no product or softmax beside it.
fn only_attention(graph: &Graph, numerics: Numerics) -> Option<(Attention, Graph)> {
    let (result, _) = fused(graph, &FuseOptions::new(numerics));
    let mut found = None;
    for (_, node) in result.nodes() {
        match &node.op {
            Op::Attention(attention) if found.is_none() => found = Some(attention.clone()),
            Op::Attention(_) | Op::Matmul(_) | Op::FusedMatmul(_) | Op::Softmax(_) => return None,
            _ => {}
        }
    }
    Some((found?, result))
}

#[test]
fn every_spelling_becomes_attention() {
    for scale in [Scale::Scores, Scale::Divided, Scale::Query, Scale::Key, Scale::Both, Scale::Projection] {
        for mask in [Mask::None, Mask::Added, Mask::Selected, Mask::Chosen] {
            for kind in [Weights::Softmax, Weights::Spelled, Weights::Safe] {
                let graph = spelled(scale, mask, kind);
                let found = only_attention(&graph, Numerics::Reassoc);
                let Some((attention, _)) = found else { panic!("{scale:?}, {mask:?}, {kind:?} is not recognised") };
                assert_eq!(attention.scale.get(), 0.25, "{scale:?}, {mask:?}, {kind:?}");
                let empty = if kind == Weights::Safe { EmptyRow::Zero } else { EmptyRow::Nan };
                assert_eq!(attention.empty, empty);
            }
        }
    }
}

#[test]
fn roundings_inside_attention_need_contraction() {
    let mut s = Sketch::new();
    let [q, k, v] = [0, 1, 2].map(|_| s.input(BF16, &[2, 4, 5, 6]));
    let columns = turned(&mut s, k);
    let product = matmul(&mut s, q, columns, BF16);
    let wide = s.op(Cast { dtype: F32 }, &[product]);
    let softmax = s.op(Softmax, &[wide]);
    let rounded = s.op(Cast { dtype: BF16 }, &[softmax]);
    let output = matmul(&mut s, rounded, v, BF16);
    let graph = s.finish(&[output]);
    let (attention, result) = only_attention(&graph, Numerics::Contract).expect("it is recognised");
    assert_eq!((attention.dtype, result.n_nodes()), (BF16, 1));
    assert!(only_attention(&graph, Numerics::Reassoc).is_none());
}

#[test]
fn repeated_heads_are_shared() {
    let mut s = Sketch::new();
    let q = s.input(F32, &[2, 4, 5, 6]);
    let [k, v] = [0, 1].map(|_| {
        let shared = s.input(F32, &[2, 2, 7, 6]);
        let split = s.op(Reshape { shape: smallvec![2, 2, 1, 7, 6] }, &[shared]);
        let repeated = s.op(Expand { shape: smallvec![2, 2, 2, 7, 6] }, &[split]);
        s.op(Reshape { shape: smallvec![2, 4, 7, 6] }, &[repeated])
    });
    let columns = turned(&mut s, k);
    let scores = matmul(&mut s, q, columns, F32);
    let softmax = s.op(Softmax, &[scores]);
    let output = matmul(&mut s, softmax, v, F32);
    let (_, result) = only_attention(&s.finish(&[output]), Numerics::Reassoc).expect("it is recognised");
    assert_eq!(result.n_nodes(), 1);
}

#[test]
fn other_functions_of_scores_stay_apart() {
    let mut s = Sketch::new();
    let [q, k, v] = [0, 1, 2].map(|_| s.input(F32, &[2, 4, 5, 6]));
    let dropped = s.input(F32, &[2, 4, 5, 5]);
    let columns = turned(&mut s, k);
    let scores = matmul(&mut s, q, columns, F32);
    let softmax = s.op(Softmax, &[scores]);
    let kept = s.op(Mul, &[softmax, dropped]);
    let output = matmul(&mut s, kept, v, F32);
    assert!(only_attention(&s.finish(&[output]), Numerics::Contract).is_none());
}
