//! The left sides of rules as graphs: types of variables and attributes of ops, in several sizes.

use std::collections::BTreeMap;

use ir::ops::Full;
use ir::types::{F32Bits, Shape as Dims};
use ir::{Dtype, Op, TensorType};
use smallvec::{SmallVec, smallvec};

use crate::fuse::pattern::{Attributes, Names, Pattern};
use crate::fuse::region::{LocalNode, LocalValue, Shape};
use crate::fuse::rules::Rule;

const F32: Dtype = Dtype::F32;

/// Extents and storage of what is drawn.
pub struct Size {
    /// Extents of batches before the last two axes.
    lead: &'static [usize],
    rows: usize,
    columns: usize,
    /// Rows of keys, columns of what a product gives.
    keys: usize,
    /// Columns of values.
    values: usize,
    /// Heads that share keys and values, in so many groups.
    heads: usize,
    groups: usize,
    /// The right operands of products are stored [N, K].
    transpose_rhs: bool,
    /// The left operands of first products are stored [K, M].
    transpose_lhs: bool,
}

/// Even ones, ragged ones, single elements, and batches with operands stored the other way.
pub const SIZES: [Size; 4] = [
    size(&[], [4, 6, 3, 4], [4, 2], true, false),
    size(&[], [3, 7, 5, 9], [6, 3], false, false),
    size(&[], [1, 1, 1, 1], [2, 1], true, true),
    size(&[2], [5, 3, 7, 2], [6, 2], false, true),
];

const fn size(
    lead: &'static [usize],
    [rows, columns, keys, values]: [usize; 4],
    [heads, groups]: [usize; 2],
    transpose_rhs: bool,
    transpose_lhs: bool,
) -> Size {
    Size { lead, rows, columns, keys, values, heads, groups, transpose_rhs, transpose_lhs }
}

/// A graph that is the left side of a rule.
pub struct LeftSide {
    pub shape: Shape,
    /// Of each leaf, the variable that it is.
    pub leaves: Vec<String>,
}

/// The left side of the rule.
pub fn left_side(rule: &Rule, size: &Size) -> LeftSide {
    drawn(rule.name, &rule.left, &rule.names, size)
}

/// The pattern; what its variables and ops are goes by the name of a rule or case.
pub fn drawn(rule: &str, pattern: &Pattern, names: &Names, size: &Size) -> LeftSide {
    let shape = Shape { leaves: Vec::new(), nodes: Vec::new(), outputs: Vec::new() };
    let left = LeftSide { shape, leaves: Vec::new() };
    let mut drawing = Drawing { rule, names, size, left, types: Vec::new(), drawn: BTreeMap::new() };
    let root = drawing.draw(pattern, 0);
    drawing.left.shape.outputs.push(root);
    drawing.left
}

/// Keys and values of fewer heads than queries have.
fn has_groups(rule: &str) -> bool {
    rule.starts_with("attention-grouped")
}

/// One head of keys and values.
fn shares_head(rule: &str) -> bool {
    rule.starts_with("attention-shared")
}

/// True for rules whose left side is an attention already, with operands stored as it wants them.
fn is_of_attention(rule: &str) -> bool {
    let parts = ["-scaled-query", "-scaled-key", "-widened", "-cast", "-grouped", "-shared", "-predicate", "-expanded"];
    rule.starts_with("attention") && parts.iter().any(|part| rule.contains(part))
}

impl Size {
    fn with_lead(&self, lead: &[usize], matrix: [usize; 2]) -> Dims {
        self.lead.iter().chain(lead).chain(&matrix).copied().collect()
    }

    fn matrix(&self, rows: usize, columns: usize) -> Dims {
        self.with_lead(&[], [rows, columns])
    }

    fn stored(&self, is_transposed: bool, rows: usize, columns: usize) -> Dims {
        if is_transposed { self.matrix(columns, rows) } else { self.matrix(rows, columns) }
    }

    fn type_of(&self, rule: &str, variable: &str) -> TensorType {
        TensorType { dtype: dtype_of(rule, variable), shape: self.shape_of(rule, variable) }
    }

    fn shape_of(&self, rule: &str, variable: &str) -> Dims {
        let Size { rows, columns, keys, values, heads, groups, .. } = *self;
        match (rule, variable) {
            (rule, "q" | "k" | "v" | "m") if has_groups(rule) || shares_head(rule) => {
                let shared = if has_groups(rule) { groups } else { 1 };
                match variable {
                    "q" => self.with_lead(&[heads], [rows, columns]),
                    "k" => self.with_lead(&[shared], [keys, columns]),
                    "v" => self.with_lead(&[shared], [keys, values]),
                    _ => smallvec![rows, keys],
                }
            }
            ("attention-expanded-mask", "m") => smallvec![1, keys],
            (rule, "q") if is_of_attention(rule) => self.matrix(rows, columns),
            (rule, "k") if is_of_attention(rule) => self.matrix(keys, columns),
            (rule, "v") if is_of_attention(rule) => self.matrix(keys, values),
            (rule, "q") if rule.starts_with("attention") => self.stored(self.transpose_lhs, rows, columns),
            (rule, "k") if rule.starts_with("attention") => self.stored(self.transpose_rhs, columns, keys),
            (rule, "v") if rule.starts_with("attention") => self.stored(self.transpose_rhs, keys, values),
            (rule, "m") if rule.starts_with("attention") => self.matrix(rows, keys),
            (rule, "a") if rule.starts_with("matmul") => self.stored(self.transpose_lhs, rows, columns),
            (rule, "b") if rule.starts_with("matmul") => self.stored(self.transpose_rhs, columns, keys),
            (rule, "c") if rule.starts_with("matmul") => smallvec![keys],
            (rule, "y") if rule.starts_with("matmul") => self.matrix(rows, keys),
            (rule, "g" | "b") if rule.contains("norm") => smallvec![columns],
            (_, _) => self.matrix(rows, columns),
        }
    }

    /// The number that a `:number` variable is. Products and sums of them are exact in f32, so that what
    /// a rule makes of constants is right to more than f32's precision.
    fn number_of(&self, rule: &str, variable: &str) -> f64 {
        match (rule, variable) {
            ("scaled-sum", "s") => 1.0 / self.columns as f64,
            (_, "e") => 1.0 / f64::from(1 << 17),
            (_, "a") => 0.75,
            (_, "b") => 0.625,
            (_, _) => -0.5625,
        }
    }

    /// The op of a pattern node.
    fn op_of(&self, rule: &str, name: &str, bound: Option<&str>, depth: usize, operands: &[TensorType]) -> Op {
        let last = self.lead.len() + 1;
        let axes = smallvec![last];
        let (transpose_lhs, transpose_rhs) = (self.transpose_lhs && bound != Some("p"), self.transpose_rhs);
        let eps = F32Bits::new(1.0 / 131_072.0);
        match name {
            "cast" => ir::ops::Cast { dtype: cast_to(rule, depth) }.into(),
            "slice" => {
                ir::ops::Slice { axis: last, start: usize::from(self.columns > 2), end: self.columns, step: 2 }.into()
            }
            "reduce_sum" => ir::ops::ReduceSum { axes }.into(),
            "reduce_mean" => ir::ops::ReduceMean { axes }.into(),
            "reduce_max" => ir::ops::ReduceMax { axes }.into(),
            "any" => ir::ops::Any { axes }.into(),
            "rms_norm" => ir::ops::RmsNorm { eps }.into(),
            "layer_norm" => ir::ops::LayerNorm { eps }.into(),
            "matmul" => ir::ops::Matmul { transpose_lhs, transpose_rhs, dtype: F32 }.into(),
            "fused_matmul" => {
                let activation = ir::ops::Activation::None;
                ir::ops::FusedMatmul { transpose_lhs, transpose_rhs, activation, dtype: F32 }.into()
            }
            "transpose" => {
                let mut perm: SmallVec<[usize; 6]> = (0..=last).collect();
                perm.swap(last - 1, last);
                ir::ops::Transpose { perm }.into()
            }
            "attention" => {
                // With more queries than keys some rows are empty for a negative bound.
                let causal = Some(if self.rows > self.keys { -1 } else { 1 });
                let (scale, empty) = (F32Bits::new(0.5), ir::ops::EmptyRow::Zero);
                ir::ops::Attention { scale, causal, empty, logsumexp: false, dtype: F32 }.into()
            }
            "reshape" => ir::ops::Reshape { shape: self.reshaped(rule, depth, &operands[0]) }.into(),
            "expand" => ir::ops::Expand { shape: self.expanded(rule, &operands[0]) }.into(),
            name => Op::from_parts(name, &[]).expect("other ops have no attributes"),
        }
    }

    /// Of repeated heads the outer reshape merges, the inner one splits.
    fn reshaped(&self, rule: &str, depth: usize, operand: &TensorType) -> Dims {
        let own = operand.shape.last().copied().unwrap_or(1);
        match depth {
            _ if !has_groups(rule) => self.matrix(self.columns, self.rows),
            1 => self.with_lead(&[self.heads], [self.keys, own]),
            _ => self.with_lead(&[self.groups, 1], [self.keys, own]),
        }
    }

    fn expanded(&self, rule: &str, operand: &TensorType) -> Dims {
        let Size { rows, keys, heads, groups, .. } = *self;
        let own = operand.shape.last().copied().unwrap_or(1);
        match rule {
            "attention-expanded-mask" => self.matrix(rows, keys),
            rule if shares_head(rule) => self.with_lead(&[heads], [keys, own]),
            _ => self.with_lead(&[groups, heads / groups], [keys, own]),
        }
    }
}

fn dtype_of(rule: &str, variable: &str) -> Dtype {
    let is_predicate = rule.contains("-selected") || rule == "attention-predicate";
    match (rule, variable) {
        (_, "m") if is_predicate => Dtype::Bool,
        (rule, "q") if rule.starts_with("attention-widened-query") => Dtype::Bf16,
        (rule, "k") if rule.starts_with("attention-widened-key") => Dtype::Bf16,
        (rule, "v") if rule.starts_with("attention-widened-value") => Dtype::Bf16,
        ("attention-widened-mask", "m") => Dtype::Bf16,
        (rule, "v") if rule.starts_with("attention") && rule.ends_with("-rounded") => Dtype::Bf16,
        ("widened-transposed" | "widened-reshaped" | "narrowed-slice", "x") => Dtype::Bf16,
        ("cast-wide-cast" | "cast-slice", "x") | ("matmul-bias-widened", "c") => Dtype::Bf16,
        (_, _) => F32,
    }
}

fn cast_to(rule: &str, depth: usize) -> Dtype {
    match (rule, depth) {
        ("cast-same" | "cast-slice" | "matmul-bias-widened", _) => F32,
        (rule, _) if rule.contains("widened-") => F32,
        ("cast-wide-cast", 0) => Dtype::F16,
        ("cast-wide-cast", _) => F32,
        ("drop-rounding", 0) | ("narrowed-slice", 1..) => F32,
        (_, _) => Dtype::Bf16,
    }
}

/// Draws a pattern.
struct Drawing<'a> {
    rule: &'a str,
    names: &'a Names,
    size: &'a Size,
    left: LeftSide,
    /// By node.
    types: Vec<SmallVec<[TensorType; 1]>>,
    drawn: BTreeMap<usize, LocalValue>,
}

impl Drawing<'_> {
    fn push(&mut self, op: Op, operands: SmallVec<[LocalValue; 4]>) -> LocalValue {
        let types = op.infer(&self.types_of(&operands));
        let types = types.unwrap_or_else(|error| panic!("`{}`: {}", self.rule, error.message));
        self.types.push(types.into_iter().collect());
        self.left.shape.nodes.push(LocalNode { op, operands });
        LocalValue::Node { node: self.left.shape.nodes.len() as u32 - 1, result: 0 }
    }

    fn types_of(&self, values: &[LocalValue]) -> Vec<TensorType> {
        let ty = |value: &LocalValue| match *value {
            LocalValue::Leaf(leaf) => self.left.shape.leaves[leaf as usize].clone(),
            LocalValue::Node { node, result } => self.types[node as usize][result as usize].clone(),
        };
        values.iter().map(ty).collect()
    }

    fn number(&mut self, value: f64) -> LocalValue {
        self.push(Full::scalar(value, F32).into(), SmallVec::new())
    }

    fn draw(&mut self, pattern: &Pattern, depth: usize) -> LocalValue {
        match pattern {
            // In f64: what a rounded literal is off by would hide what a rule is.
            Pattern::Literal { number, .. } => self.number(*number),
            Pattern::Variable { variable, is_number } => {
                if let Some(&value) = self.drawn.get(variable) {
                    return value;
                }
                let name = &self.names.classes[*variable];
                let value = if *is_number {
                    self.number(self.size.number_of(self.rule, name))
                } else {
                    self.left.shape.leaves.push(self.size.type_of(self.rule, name));
                    self.left.leaves.push(name.clone());
                    LocalValue::Leaf(self.left.leaves.len() as u32 - 1)
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
            Pattern::Op { kind, attributes, children } => {
                let operands: SmallVec<[LocalValue; 4]> =
                    children.iter().map(|child| self.draw(child, depth + 1)).collect();
                let bound = match attributes {
                    Attributes::Bind(name) => Some(name.as_str()),
                    Attributes::Any | Attributes::LastAxis => None,
                };
                let types = self.types_of(&operands);
                let op = self.size.op_of(self.rule, Op::NAMES[usize::from(kind.0)], bound, depth, &types);
                self.push(op, operands)
            }
        }
    }
}
