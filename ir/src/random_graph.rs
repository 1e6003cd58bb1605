//! Random graphs for tests: pointwise ops, reductions over the last axis, broadcasts and casts.
//!
//! One seed gives one graph, on every machine. Graphs are benign: intervals are tracked so that no
//! value overflows or leaves an op's domain, and an op that jumps (a comparison) reads inputs only,
//! where the truth and a rounded run see the same numbers. Nor are roundings all that is left of a value: a
//! number is not subtracted from itself in another type, and rows of a softmax, whose sum is 1, are not
//! summed.

use crate::graph::{Graph, InputRole, ValueId};
use crate::ops::{
    Abs, Add, Cast, Cos, Div, Erf, Exp, Expand, Full, Gelu, GeluTanh, Gt, Le, Log, Lt, Maximum, Minimum, Mul, Neg, Op,
    Reciprocal, ReduceMax, ReduceMean, ReduceMin, ReduceSum, Relu, Rsqrt, Sigmoid, Silu, Sin, Softmax, Softplus, Sqrt,
    Sub, Tanh, Where,
};
use crate::random::Random;
use crate::reference::Value;
use crate::types::{Dtype, Shape, TensorType};

/// Magnitude that no value exceeds.
const MAX_MAGNITUDE: f64 = 1000.0;

/// What random graphs look like.
#[derive(Clone, Debug)]
pub struct RandomGraphOptions {
    pub n_inputs: usize,
    /// Ops to try; fewer nodes come out where operands do not fit.
    pub n_ops: usize,
    pub max_rank: usize,
    /// Largest dimension before the last.
    pub max_rows: usize,
    /// Largest last dimension.
    pub max_columns: usize,
}

impl Default for RandomGraphOptions {
    fn default() -> Self {
        RandomGraphOptions { n_inputs: 3, n_ops: 12, max_rank: 3, max_rows: 12, max_columns: 40 }
    }
}

/// The graph of a seed. Every value is an output or has a user.
pub fn random_graph(seed: u64, options: &RandomGraphOptions) -> Graph {
    let mut generator = Generator::new(seed, options);
    for position in 0..options.n_inputs.max(1) {
        generator.add_input(position);
    }
    for _ in 0..options.n_ops {
        generator.add_op();
    }
    generator.finish()
}

/// Inputs of a graph: floats in -2..2 as their element type holds them, small non-negative integers.
pub fn random_inputs(graph: &Graph, seed: u64) -> Vec<Value> {
    let mut random = Random { state: seed };
    let mut input_value = |ty: &TensorType| {
        let n_elements = ty.n_elements();
        let value = if ty.dtype.is_float() {
            Value::floats(&ty.shape, (0..n_elements).map(|_| random.in_range(-2.0, 2.0)).collect::<Vec<_>>())
        } else if ty.dtype.is_integer() {
            Value::ints(&ty.shape, (0..n_elements).map(|_| random.below(8) as i64).collect::<Vec<_>>())
        } else {
            Value::bools(&ty.shape, (0..n_elements).map(|_| random.below(2) == 1).collect::<Vec<_>>())
        };
        value.rounded(ty.dtype)
    };
    graph.inputs.iter().map(|input| input_value(graph.ty(input.value))).collect()
}

/// Numbers that a value may hold.
#[derive(Copy, Clone, Debug)]
struct Interval {
    low: f64,
    high: f64,
}

impl Interval {
    fn new(low: f64, high: f64) -> Self {
        Interval { low, high }
    }

    fn magnitude(self) -> f64 {
        self.low.abs().max(self.high.abs())
    }

    /// Smallest interval with all of these numbers.
    fn around(numbers: &[f64]) -> Self {
        let low = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let high = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Interval { low, high }
    }

    /// Corners of an op that is monotonic in each operand.
    fn corners(self, other: Interval, function: impl Fn(f64, f64) -> f64) -> Self {
        let lows = [function(self.low, other.low), function(self.low, other.high)];
        let highs = [function(self.high, other.low), function(self.high, other.high)];
        Interval::around(&[lows[0], lows[1], highs[0], highs[1]])
    }
}

struct Generator {
    random: Random,
    graph: Graph,
    /// Every value broadcasts to this shape.
    base: Shape,
    /// By value; bools have 0..1.
    intervals: Vec<Interval>,
    /// Float inputs, whose numbers the truth and a rounded run share.
    exact: Vec<ValueId>,
}

impl Generator {
    fn new(seed: u64, options: &RandomGraphOptions) -> Self {
        let mut random = Random { state: seed };
        let rank = 1 + random.below(options.max_rank.max(1));
        let mut base: Shape = (1..rank).map(|_| 1 + random.below(options.max_rows.max(1))).collect();
        base.push(1 + random.below(options.max_columns.max(1)));
        let graph = Graph::new(format!("random_{seed}"));
        Generator { random, graph, base, intervals: Vec::new(), exact: Vec::new() }
    }

    /// An input that broadcasts to the base shape; the first one has that shape.
    fn add_input(&mut self, position: usize) {
        let mut shape = self.base.clone();
        if position > 0 {
            let n_dropped = self.random.below(shape.len() + 1);
            shape.drain(..n_dropped.saturating_sub(1));
            for dim in &mut shape {
                if self.random.below(3) == 0 {
                    *dim = 1;
                }
            }
        }
        let dtype = self.random.one_of(&[Dtype::F32, Dtype::F32, Dtype::Bf16, Dtype::F16]);
        let role = if position == 1 { InputRole::Static } else { InputRole::Dynamic };
        let value = self.graph.push_input(format!("x{position}"), TensorType { dtype, shape }, role);
        self.intervals.push(Interval::new(-2.0, 2.0));
        self.exact.push(value);
    }

    fn add_op(&mut self) {
        match self.random.below(12) {
            0..4 => self.add_unary(),
            4..8 => self.add_binary(),
            8 => self.add_reduction(),
            9 => self.add_cast(),
            10 => self.add_expand(),
            _ => self.add_choice(),
        }
    }

    /// A float value, the newer the likelier.
    fn operand(&mut self) -> ValueId {
        let floats: Vec<ValueId> = (0..self.graph.n_values() as u32)
            .map(ValueId)
            .filter(|&value| self.graph.ty(value).dtype.is_float())
            .collect();
        let from = if self.random.below(2) == 0 { floats.len().saturating_sub(3) } else { 0 };
        self.random.one_of(&floats[from..])
    }

    fn interval(&self, value: ValueId) -> Interval {
        self.intervals[value.index()]
    }

    /// Adds a node unless its result may be too large. Rounding to 16 bits moves numbers a little.
    fn push(&mut self, op: impl Into<Op>, operands: &[ValueId], interval: Interval) -> Option<ValueId> {
        if interval.magnitude() > MAX_MAGNITUDE {
            return None;
        }
        let value = self.graph.push_value_of(op.into(), operands, &[]).expect("generated nodes are well-typed");
        let slack = 0.02 * interval.magnitude();
        let low = if interval.low > 0.0 { interval.low * 0.98 } else { interval.low - slack };
        self.intervals.push(Interval::new(low, interval.high + slack));
        Some(value)
    }

    fn add_unary(&mut self) {
        let operand = self.operand();
        let range = self.interval(operand);
        let mapped = |function: fn(f64) -> f64| Interval::around(&[function(range.low), function(range.high)]);
        let (op, interval): (Op, Interval) = match self.random.below(17) {
            0 => (Neg.into(), Interval::new(-range.high, -range.low)),
            1 => (Abs.into(), Interval::new(0.0, range.magnitude())),
            2 if range.high <= 5.0 => (Exp.into(), mapped(libm::exp)),
            3 if range.low >= 0.1 => (Log.into(), mapped(libm::log)),
            4 if range.low >= 0.1 => (Sqrt.into(), mapped(libm::sqrt)),
            5 if range.low >= 0.1 => (Rsqrt.into(), mapped(|number| 1.0 / libm::sqrt(number))),
            6 if range.low >= 0.1 => (Reciprocal.into(), mapped(|number| 1.0 / number)),
            7 if range.magnitude() <= 20.0 => (Sin.into(), Interval::new(-1.0, 1.0)),
            8 if range.magnitude() <= 20.0 => (Cos.into(), Interval::new(-1.0, 1.0)),
            9 => (Sigmoid.into(), mapped(|number| 1.0 / (1.0 + libm::exp(-number)))),
            10 => (Erf.into(), Interval::new(-1.0, 1.0)),
            11 => (Relu.into(), Interval::new(0.0, range.high.max(0.0))),
            12 => (Gelu.into(), Interval::new(-0.2, range.high.max(0.0))),
            13 => (GeluTanh.into(), Interval::new(-0.2, range.high.max(0.0))),
            14 => (Silu.into(), Interval::new(-0.3, range.high.max(0.0))),
            15 => (
                Softplus.into(),
                mapped(|number| libm::fmax(number, 0.0) + libm::log1p(libm::exp(-libm::fabs(number)))),
            ),
            _ => (Tanh.into(), Interval::new(-1.0, 1.0)),
        };
        self.push(op, &[operand], interval);
    }

    fn add_binary(&mut self) {
        let lhs = self.operand();
        let rhs = self.second_operand(lhs);
        let (left, right) = (self.interval(lhs), self.interval(rhs));
        let mut choice = self.random.below(6);
        if choice < 2 && self.may_cancel(lhs, rhs) {
            choice = 5;
        }
        let (op, interval): (Op, Interval) = match choice {
            0 => (Add.into(), left.corners(right, |x, y| x + y)),
            1 => (Sub.into(), left.corners(right, |x, y| x - y)),
            2 => (Maximum.into(), left.corners(right, f64::max)),
            3 => (Minimum.into(), left.corners(right, f64::min)),
            4 if right.low >= 0.1 => (Div.into(), left.corners(right, |x, y| x / y)),
            _ => (Mul.into(), left.corners(right, |x, y| x * y)),
        };
        self.push(op, &[lhs, rhs], interval);
    }

    /// True where both may hold the same number, rounded or not, whatever its sign.
    fn may_cancel(&self, lhs: ValueId, rhs: ValueId) -> bool {
        let sources = |value: ValueId| {
            let (mut sources, mut open) = (vec![value], vec![value]);
            while let Some(value) = open.pop() {
                let Some((_, node)) = self.graph.producer(value) else { continue };
                let passes_on = matches!(
                    node.op,
                    Op::Cast(_)
                        | Op::Expand(_)
                        | Op::Neg(_)
                        | Op::Abs(_)
                        | Op::Relu(_)
                        | Op::Minimum(_)
                        | Op::Maximum(_)
                        | Op::Where(_)
                        | Op::ReduceMax(_)
                        | Op::ReduceMin(_)
                        | Op::ReduceMean(_)
                );
                if passes_on {
                    sources.extend(node.operands.iter().copied());
                    open.extend(node.operands.iter().copied());
                }
            }
            sources
        };
        let of_lhs = sources(lhs);
        sources(rhs).iter().any(|source| of_lhs.contains(source))
    }

    /// A value or a scalar constant of the same element type.
    fn second_operand(&mut self, first: ValueId) -> ValueId {
        let dtype = self.graph.ty(first).dtype;
        if self.random.below(3) == 0 {
            let number = (self.random.in_range(-2.0, 2.0) * 64.0).round() / 64.0;
            let constant = self.push(Full::scalar(number, dtype), &[], Interval::new(number, number));
            return constant.expect("a small constant is in range");
        }
        let second = self.operand();
        if self.graph.ty(second).dtype == dtype {
            return second;
        }
        let interval = self.interval(second);
        self.push(Cast { dtype }, &[second], interval).unwrap_or(first)
    }

    fn add_reduction(&mut self) {
        let operand = self.operand();
        let range = self.interval(operand);
        let Some(axis) = self.graph.ty(operand).rank().checked_sub(1) else { return };
        let n_elements = self.graph.ty(operand).shape[axis] as f64;
        let axes = smallvec::smallvec![axis];
        let mut choice = self.random.below(5);
        if self.has_constant_sum(operand) {
            choice = choice.max(2);
        }
        let (op, interval): (Op, Interval) = match choice {
            0 => (ReduceSum { axes }.into(), Interval::new(range.low * n_elements, range.high * n_elements)),
            1 => (ReduceMean { axes }.into(), range),
            2 => (ReduceMax { axes }.into(), range),
            3 => (ReduceMin { axes }.into(), range),
            _ => (Softmax.into(), Interval::new(0.0, 1.0)),
        };
        self.push(op, &[operand], interval);
    }

    /// True for softmax, whatever its sign and element type.
    fn has_constant_sum(&self, value: ValueId) -> bool {
        let Some((_, node)) = self.graph.producer(value) else { return false };
        match node.op {
            Op::Softmax(_) => true,
            Op::Neg(_) | Op::Abs(_) | Op::Relu(_) | Op::Cast(_) | Op::Expand(_) => {
                self.has_constant_sum(node.operands[0])
            }
            _ => false,
        }
    }

    fn add_cast(&mut self) {
        let operand = self.operand();
        let interval = self.interval(operand);
        let dtype = self.random.one_of(&[Dtype::F32, Dtype::Bf16, Dtype::F16]);
        if dtype != self.graph.ty(operand).dtype {
            self.push(Cast { dtype }, &[operand], interval);
        }
    }

    fn add_expand(&mut self) {
        let operand = self.operand();
        let interval = self.interval(operand);
        let shape = self.base.clone();
        if self.graph.ty(operand).shape != shape {
            self.push(Expand { shape }, &[operand], interval);
        }
    }

    /// A comparison of two inputs and a `where` over it.
    fn add_choice(&mut self) {
        let lhs = self.random.one_of(&self.exact);
        let dtype = self.graph.ty(lhs).dtype;
        let same: Vec<ValueId> =
            self.exact.iter().copied().filter(|&other| self.graph.ty(other).dtype == dtype).collect();
        let rhs = self.random.one_of(&same);
        let comparison: Op = self.random.one_of(&[Lt.into(), Gt.into(), Le.into()]);
        let condition = self.push(comparison, &[lhs, rhs], Interval::new(0.0, 1.0)).expect("bools are in range");
        let first = self.operand();
        let second = self.second_operand(first);
        let (left, right) = (self.interval(first), self.interval(second));
        let interval = Interval::around(&[left.low, left.high, right.low, right.high]);
        self.push(Where, &[condition, first, second], interval);
    }

    fn finish(mut self) -> Graph {
        let counts = self.graph.use_counts();
        for (position, _) in counts.iter().enumerate().filter(|(_, count)| **count == 0) {
            self.graph.push_output(ValueId(position as u32));
        }
        if self.graph.outputs.is_empty() {
            self.graph.push_output(ValueId(0));
        }
        self.graph
    }
}
