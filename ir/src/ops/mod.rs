//! The op table: the closed set of tensor ops, one file per op.
//!
//! Everything that is known of an op as mathematics stands in its file; what hardware does with it
//! stands in `codegen`. Printing, parsing, verification, the e-graph language and the random graph
//! generator derive from the table. Adding an op: one file, one `mod` line, one table line.

use smallvec::SmallVec;

use crate::reference::{EvalError, Value};
use crate::types::{TensorType, TypeError};

mod abs;
mod add;
mod all;
mod any;
mod attention;
mod attributes;
mod cast;
mod concat;
mod constant;
mod cos;
mod cumsum;
mod div;
mod eq;
mod erf;
mod example;
mod exp;
mod expand;
mod full;
mod fused_matmul;
mod gather;
mod gather_rows;
mod ge;
mod gelu;
mod gelu_tanh;
mod gt;
mod index;
mod iota;
mod layer_norm;
mod le;
mod log;
mod log_softmax;
mod logical_and;
mod logical_not;
mod logical_or;
mod logical_xor;
mod lt;
mod matmul;
mod maximum;
mod minimum;
mod mul;
mod ne;
mod neg;
mod operands;
mod pointwise;
mod pow;
mod reciprocal;
mod reduce_max;
mod reduce_mean;
mod reduce_min;
mod reduce_sum;
mod relayout;
mod relu;
mod reshape;
mod rms_norm;
mod rows;
mod rsqrt;
mod scatter_rows;
mod sigmoid;
mod sign;
mod silu;
mod sin;
mod slice;
mod softmax;
mod softplus;
mod sqrt;
mod sub;
mod tanh;
mod transpose;
mod r#where;

pub use abs::Abs;
pub use add::Add;
pub use all::All;
pub use any::Any;
pub use attention::{Attention, AttentionExtents, EmptyRow};
pub use attributes::{Attr, AttrKind, Attrs};
pub use cast::Cast;
pub use concat::Concat;
pub use constant::Constant;
pub use cos::Cos;
pub use cumsum::Cumsum;
pub use div::Div;
pub use eq::Eq;
pub use erf::Erf;
pub use example::Example;
pub use exp::Exp;
pub use expand::Expand;
pub use full::Full;
pub use fused_matmul::{Activation, FusedMatmul};
pub use gather::Gather;
pub use gather_rows::GatherRows;
pub use ge::Ge;
pub use gelu::Gelu;
pub use gelu_tanh::GeluTanh;
pub use gt::Gt;
pub use index::Index;
pub use iota::Iota;
pub use layer_norm::LayerNorm;
pub use le::Le;
pub use log::Log;
pub use log_softmax::LogSoftmax;
pub use logical_and::LogicalAnd;
pub use logical_not::LogicalNot;
pub use logical_or::LogicalOr;
pub use logical_xor::LogicalXor;
pub use lt::Lt;
pub use matmul::Matmul;
pub use maximum::Maximum;
pub use minimum::Minimum;
pub use mul::Mul;
pub use ne::Ne;
pub use neg::Neg;
pub use pow::Pow;
pub use reciprocal::Reciprocal;
pub use reduce_max::ReduceMax;
pub use reduce_mean::ReduceMean;
pub use reduce_min::ReduceMin;
pub use reduce_sum::ReduceSum;
pub use relayout::Relayout;
pub use relu::Relu;
pub use reshape::Reshape;
pub use rms_norm::RmsNorm;
pub use rsqrt::Rsqrt;
pub use scatter_rows::ScatterRows;
pub use sigmoid::Sigmoid;
pub use sign::Sign;
pub use silu::Silu;
pub use sin::Sin;
pub use slice::Slice;
pub use softmax::Softmax;
pub use softplus::Softplus;
pub use sqrt::Sqrt;
pub use sub::Sub;
pub use tanh::Tanh;
pub use transpose::Transpose;
pub use r#where::Where;

/// Types of the results of one node.
pub type ResultTypes = SmallVec<[TensorType; 1]>;

/// How many operands an op takes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Arity {
    Exactly(usize),
    /// At least the first and at most the second number.
    Between(usize, usize),
    AtLeast(usize),
}

/// What an op does to the elements of its operands.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OpClass {
    /// Result element i depends on operand elements i only, operands broadcast.
    Pointwise,
    /// Combines elements along axes, which stay as size 1.
    Reduction,
    /// Combines each element with those before it on an axis; the shape stays.
    Scan,
    /// Moves or repeats elements, computes nothing.
    Movement,
    /// Moves elements to or from places that an operand names.
    Indexing,
    /// Has no operands.
    Creation,
    /// Sums products over a shared axis.
    Contraction,
    /// A named composition of the above.
    Fused,
}

impl OpClass {
    /// Every class, in declaration order.
    pub const ALL: [OpClass; 8] = [
        OpClass::Pointwise,
        OpClass::Reduction,
        OpClass::Scan,
        OpClass::Movement,
        OpClass::Indexing,
        OpClass::Creation,
        OpClass::Contraction,
        OpClass::Fused,
    ];
}

/// One op: its name, its types and its meaning.
pub trait OpDef: Clone + std::cmp::Eq + std::hash::Hash + std::fmt::Debug + Sized {
    /// Name in the text form.
    const NAME: &'static str;
    const ARITY: Arity;
    const CLASS: OpClass;
    /// Names and kinds of the attributes, in declaration order.
    const ATTRS: &'static [(&'static str, AttrKind)] = &[];

    /// Result types for operands whose number agrees with [`OpDef::ARITY`].
    ///
    /// # Errors
    /// What clashes, with both types.
    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError>;

    /// The results in wide arithmetic: f64, i64 or bool lanes. The caller rounds to the result's
    /// element type.
    ///
    /// # Errors
    /// When an operand's value has no result, such as an index out of range.
    fn eval(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError>;

    /// The results as an eager run computes them before it rounds: as [`OpDef::eval`], but long sums
    /// of products run in f32, which is what every CPU and accelerator does.
    ///
    /// # Errors
    /// As [`OpDef::eval`].
    fn eval_eager(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        self.eval(operands, results)
    }

    /// The attributes, in declaration order.
    fn attrs(&self) -> Attrs {
        Attrs::new()
    }

    /// The op with these attributes; `None` where one is missing, unknown or ill-typed.
    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self>;

    /// At least one small application with its checked results; every form of the op has one.
    fn examples() -> Vec<Example>;
}

macro_rules! op_table {
    ($($variant:ident),* $(,)?) => {
        /// Every tensor op.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Op { $($variant($variant)),* }

        impl Op {
            /// Names of all ops, in table order.
            pub const NAMES: &'static [&'static str] = &[$($variant::NAME),*];

            /// Name in the text form.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$variant(_) => $variant::NAME),* }
            }

            /// How many operands this op takes.
            pub fn arity(&self) -> Arity {
                match self { $(Op::$variant(_) => $variant::ARITY),* }
            }

            /// What this op does to elements.
            pub fn class(&self) -> OpClass {
                match self { $(Op::$variant(_) => $variant::CLASS),* }
            }

            /// Result types; checks the number of operands first.
            ///
            /// # Errors
            /// What clashes, with both types.
            pub fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
                check_arity(self.name(), self.arity(), operands.len())?;
                match self { $(Op::$variant(op) => op.infer(operands)),* }
            }

            /// The results in wide arithmetic, see [`OpDef::eval`].
            ///
            /// # Errors
            /// When an operand's value has no result.
            pub fn eval(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
                match self { $(Op::$variant(op) => op.eval(operands, results)),* }
            }

            /// The results as an eager run computes them, see [`OpDef::eval_eager`].
            ///
            /// # Errors
            /// When an operand's value has no result.
            pub fn eval_eager(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
                match self { $(Op::$variant(op) => op.eval_eager(operands, results)),* }
            }

            /// The attributes, in declaration order.
            pub fn attrs(&self) -> Attrs {
                match self { $(Op::$variant(op) => op.attrs()),* }
            }

            /// Names and kinds of the attributes of the op of this name; `None` where there is none.
            pub fn attr_kinds(name: &str) -> Option<&'static [(&'static str, AttrKind)]> {
                $(if name == $variant::NAME { return Some($variant::ATTRS); })*
                None
            }

            /// Examples of every op, in table order.
            pub fn examples() -> Vec<Example> {
                let mut examples = Vec::new();
                $(examples.extend($variant::examples());)*
                examples
            }

            /// The op of this name with these attributes; `None` where there is none.
            pub fn from_parts(name: &str, attrs: &[(&str, Attr)]) -> Option<Op> {
                $(if name == $variant::NAME { return $variant::from_attrs(attrs).map(Op::$variant); })*
                None
            }
        }

        $(impl From<$variant> for Op { fn from(op: $variant) -> Op { Op::$variant(op) } })*
    };
}

op_table! {
    Neg,
    Abs,
    Exp,
    Log,
    Sqrt,
    Rsqrt,
    Reciprocal,
    Sin,
    Cos,
    Tanh,
    Sigmoid,
    Erf,
    Relu,
    Gelu,
    GeluTanh,
    Silu,
    Sign,
    Softplus,
    LogicalNot,
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Maximum,
    Minimum,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    LogicalAnd,
    LogicalOr,
    LogicalXor,
    Where,
    Cast,
    ReduceSum,
    ReduceMean,
    ReduceMax,
    ReduceMin,
    Any,
    All,
    Cumsum,
    Reshape,
    Transpose,
    Expand,
    Slice,
    Concat,
    Relayout,
    GatherRows,
    Gather,
    Index,
    Full,
    Iota,
    Constant,
    Matmul,
    FusedMatmul,
    Attention,
    Softmax,
    LogSoftmax,
    RmsNorm,
    LayerNorm,
    ScatterRows,
}

fn check_arity(name: &str, arity: Arity, n_operands: usize) -> Result<(), TypeError> {
    let (fits, wanted) = match arity {
        Arity::Exactly(count) => (n_operands == count, format!("{count}")),
        Arity::Between(low, high) => ((low..=high).contains(&n_operands), format!("{low} to {high}")),
        Arity::AtLeast(low) => (n_operands >= low, format!("at least {low}")),
    };
    if fits {
        return Ok(());
    }
    let noun = if arity == Arity::Exactly(1) { "operand" } else { "operands" };
    Err(TypeError::new(format!("`{name}` takes {wanted} {noun}, not {n_operands}")))
}
