//! Every rule on its own left side: it fires, and all nodes of a class have one value.

use std::collections::BTreeMap;

use egg::Id;
use ir::ops::Full;
use ir::reference::Value;
use ir::types::F32Bits;
use ir::{Dtype, Op, TensorType};
use smallvec::{SmallVec, smallvec};

use crate::Numerics;
use crate::fuse::pattern::{Attributes, Pattern};
use crate::fuse::plan::{Terms, terms};
use crate::fuse::region::{LocalNode, LocalValue, Shape};
use crate::fuse::rules::{self, Rule};
use crate::fuse::saturate::{Forgotten, Selection, saturate};
use crate::fuse::term::{Head, TermGraph};
use crate::manager::Fuel;

const F32: Dtype = Dtype::F32;

/// Types of variables, where the rule asks for others than f32[4, 6].
fn type_of(rule: &str, variable: &str) -> TensorType {
    let shape: &[usize] = match (rule, variable) {
        ("attention-expanded-mask", "m") => &[1, 4],
        (rule, "q") if rule.starts_with("attention-grouped") || rule.starts_with("attention-shared") => &[4, 2, 6],
        (rule, "k" | "v") if rule.starts_with("attention-grouped") => &[2, 3, 6],
        (rule, "k" | "v") if rule.starts_with("attention-shared") => &[1, 3, 6],
        (rule, "m") if rule.starts_with("attention-grouped") || rule.starts_with("attention-shared") => &[2, 3],
        (rule, "v" | "m") if rule.starts_with("attention") => &[4, 4],
        (rule, "b") if rule.starts_with("matmul") => &[6, 6],
        (rule, "c") if rule.starts_with("matmul") => &[6],
        (rule, "g" | "b") if rule.contains("norm") => &[6],
        ("rms-norm-gamma-on-scale", _) => &[4, 6],
        _ => &[4, 6],
    };
    let is_predicate = rule.contains("-selected") || rule == "attention-predicate";
    let dtype = match (rule, variable) {
        (_, "m") if is_predicate => Dtype::Bool,
        (rule, "q") if rule.starts_with("attention-widened-query") => Dtype::Bf16,
        (rule, "k") if rule.starts_with("attention-widened-key") => Dtype::Bf16,
        (rule, "v") if rule.starts_with("attention-widened-value") => Dtype::Bf16,
        ("attention-widened-mask", "m") => Dtype::Bf16,
        (rule, "v") if rule.starts_with("attention") && rule.ends_with("-rounded") => Dtype::Bf16,
        ("widened-transposed" | "widened-reshaped", "x") => Dtype::Bf16,
        ("cast-wide-cast" | "cast-slice", "x") | ("matmul-bias-widened", "c") => Dtype::Bf16,
        _ => F32,
    };
    TensorType::new(dtype, shape.iter().copied())
}

/// The number that a `:number` variable is.
fn number_of(rule: &str, variable: &str) -> f64 {
    match (rule, variable) {
        ("scaled-sum", "s") => f64::from(1.0f32 / 6.0),
        (_, "e") => 1e-5,
        (_, "a") => 0.75,
        _ => 0.6,
    }
}

/// The op of a pattern node.
fn op_of(rule: &str, name: &str, depth: usize) -> Op {
    let axes = smallvec![1];
    let product = |activation| {
        let dtype = F32;
        Op::from(ir::ops::FusedMatmul { transpose_lhs: false, transpose_rhs: true, activation, dtype })
    };
    match name {
        "cast" => {
            let dtype = match (rule, depth) {
                ("cast-same" | "cast-slice" | "matmul-bias-widened", _) => F32,
                (rule, _) if rule.contains("widened-") => F32,
                ("cast-wide-cast", 0) => Dtype::F16,
                ("cast-wide-cast", _) => F32,
                ("drop-rounding", 0) => F32,
                _ => Dtype::Bf16,
            };
            ir::ops::Cast { dtype }.into()
        }
        "slice" => ir::ops::Slice { axis: 1, start: 1, end: 4, step: 2 }.into(),
        "reduce_sum" => ir::ops::ReduceSum { axes }.into(),
        "reduce_mean" => ir::ops::ReduceMean { axes }.into(),
        "reduce_max" => ir::ops::ReduceMax { axes }.into(),
        "rms_norm" => ir::ops::RmsNorm { eps: F32Bits::new(1e-5) }.into(),
        "layer_norm" => ir::ops::LayerNorm { eps: F32Bits::new(1e-5) }.into(),
        "matmul" => ir::ops::Matmul { transpose_lhs: false, transpose_rhs: true, dtype: F32 }.into(),
        "transpose" => ir::ops::Transpose { perm: smallvec![1, 0] }.into(),
        "any" => ir::ops::Any { axes }.into(),
        "attention" => attention(rule),
        "reshape" => ir::ops::Reshape { shape: reshaped(rule, depth) }.into(),
        "expand" => ir::ops::Expand { shape: expanded(rule) }.into(),
        "fused_matmul" => product(ir::ops::Activation::None),
        name => Op::from_parts(name, &[]).expect("other ops have no attributes"),
    }
}

fn attention(_: &str) -> Op {
    let (scale, empty, dtype) = (F32Bits::new(0.5), ir::ops::EmptyRow::Zero, F32);
    ir::ops::Attention { scale, causal: Some(1), empty, logsumexp: false, dtype }.into()
}

fn reshaped(rule: &str, depth: usize) -> ir::types::Shape {
    match depth {
        _ if !rule.starts_with("attention-grouped") => smallvec![8, 3],
        1 => smallvec![4, 3, 6],
        _ => smallvec![2, 1, 3, 6],
    }
}

fn expanded(rule: &str) -> ir::types::Shape {
    match rule {
        "attention-expanded-mask" => smallvec![4, 4],
        rule if rule.starts_with("attention-shared") => smallvec![4, 3, 6],
        _ => smallvec![2, 2, 3, 6],
    }
}

/// Draws the left side of a rule.
struct Drawing<'a> {
    rule: &'a Rule,
    shape: Shape,
    drawn: BTreeMap<usize, LocalValue>,
}

impl Drawing<'_> {
    fn push(&mut self, op: Op, operands: SmallVec<[LocalValue; 4]>) -> LocalValue {
        self.shape.nodes.push(LocalNode { op, operands });
        LocalValue::Node { node: self.shape.nodes.len() as u32 - 1, result: 0 }
    }

    fn number(&mut self, value: f64) -> LocalValue {
        self.push(Full::scalar(value, F32).into(), SmallVec::new())
    }

    fn draw(&mut self, pattern: &Pattern, depth: usize) -> LocalValue {
        match pattern {
            Pattern::Literal { number, .. } => self.number(f64::from(*number as f32)),
            Pattern::Variable { variable, is_number } => {
                if let Some(&value) = self.drawn.get(variable) {
                    return value;
                }
                let name = self.rule.names.classes[*variable].clone();
                let value = if *is_number {
                    self.number(f64::from(number_of(self.rule.name, &name) as f32))
                } else {
                    self.shape.leaves.push(type_of(self.rule.name, &name));
                    LocalValue::Leaf(self.shape.leaves.len() as u32 - 1)
                };
                self.drawn.insert(*variable, value);
                value
            }
            Pattern::Named { variable, pattern } => {
                if let Some(&value) = self.drawn.get(variable) {
                    return value;
                }
                let value = self.draw(pattern, depth);
                self.drawn.insert(*variable, value);
                value
            }
            Pattern::Result { index, tuple } => match self.draw(tuple, depth) {
                LocalValue::Node { node, result: _ } => LocalValue::Node { node, result: *index },
                LocalValue::Leaf(_) => unreachable!("tuples are nodes"),
            },
            Pattern::Op {
                kind,
                attributes: Attributes::Any | Attributes::LastAxis | Attributes::Bind(_),
                children,
            } => {
                let operands = children.iter().map(|child| self.draw(child, depth + 1)).collect();
                let op = op_of(self.rule.name, Op::NAMES[usize::from(kind.0)], depth);
                self.push(op, operands)
            }
        }
    }
}

/// Values of all classes; asserts that every node agrees with the others of its class.
fn assert_classes_agree(graph: &TermGraph, leaves: &[Value], rule: &str, tolerance: f64) {
    let mut known: BTreeMap<Id, Vec<Value>> = BTreeMap::new();
    loop {
        let n_known = known.len();
        for class in graph.classes() {
            for term in &class.nodes {
                let operands: Option<Vec<&Vec<Value>>> =
                    term.children.iter().map(|&child| known.get(&graph.find(child))).collect();
                let Some(operands) = operands else { continue };
                let results = match term.head {
                    Head::Leaf(leaf) => vec![leaves[leaf as usize].clone()],
                    Head::Result(index) => vec![operands[0][index as usize].clone()],
                    Head::Op { op, .. } => {
                        let operands: Vec<&Value> = operands.iter().map(|values| &values[0]).collect();
                        graph.analysis.op(op).eval(&operands, &class.data.types).expect("evaluates")
                    }
                };
                let first = known.entry(class.id).or_insert_with(|| results.clone());
                for (want, got) in first.iter().zip(&results) {
                    assert_close(want, got, rule, tolerance);
                }
            }
        }
        if known.len() == n_known {
            return;
        }
    }
}

fn assert_close(want: &Value, got: &Value, rule: &str, tolerance: f64) {
    if let (Ok(want), Ok(got)) = (want.as_bools(), got.as_bools()) {
        assert_eq!(want, got, "`{rule}`");
        return;
    }
    let (want, got) = (want.as_floats().expect("floats"), got.as_floats().expect("floats"));
    for (want, got) in want.iter().zip(got) {
        let scale = want.abs().max(1.0);
        assert!(
            want == got || want.is_nan() && got.is_nan() || (want - got).abs() <= tolerance * scale,
            "`{rule}` makes {got} of {want}"
        );
    }
}

fn random_leaves(types: &[TensorType], seed: u64) -> Vec<Value> {
    let mut graph = ir::Graph::new("leaves");
    for ty in types {
        graph.push_input("leaf", ty.clone(), ir::graph::InputRole::Dynamic);
    }
    ir::random_graph::random_inputs(&graph, seed)
}

#[test]
fn every_rule_fires_and_keeps_the_value_of_its_left_side() {
    for rule in rules::all() {
        let empty = Shape { leaves: Vec::new(), nodes: Vec::new(), outputs: Vec::new() };
        let mut drawing = Drawing { rule, shape: empty, drawn: BTreeMap::new() };
        let root = drawing.draw(&rule.left, 0);
        drawing.shape.outputs.push(root);
        let Terms { mut graph, .. } = terms(&drawing.shape);
        let others: Vec<String> =
            rules::all().iter().filter(|other| other.name != rule.name).map(|other| other.name.to_owned()).collect();
        let selection = Selection::new(Numerics::Approx, &others);
        let saturation = saturate(&mut graph, &selection, 1000, &mut Fuel::unlimited(), &mut Forgotten);
        assert!(!saturation.applications.is_empty(), "`{}` does not fire on its left side", rule.name);
        // Constants are f32: what depends on them is right to f32's precision.
        let tolerance = if rule.class == Numerics::Exact { 0.0 } else { 1e-6 };
        for seed in [3, 4] {
            assert_classes_agree(&graph, &random_leaves(&drawing.shape.leaves, seed), rule.name, tolerance);
        }
    }
}
