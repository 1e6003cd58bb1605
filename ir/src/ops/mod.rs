//! The op table: the closed set of tensor ops, one file per op.
//!
//! Everything that is known of an op as mathematics stands in its file; what hardware does with it
//! stands in `codegen`. Printing, parsing, verification, the e-graph language and the random graph
//! generator derive from the table. Adding an op: one file, one `mod` line, one table line.

use smallvec::SmallVec;

use crate::reference::{EvalError, Value};
use crate::types::{Dtype, TensorType, TypeError};

mod add;
mod relu;

pub use add::Add;
pub use relu::Relu;

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

/// The value of one attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attr {
    Int(i64),
    Ints(SmallVec<[i64; 6]>),
    /// Bits of an f32.
    F32(u32),
    /// Bits of an f64.
    F64(u64),
    Dtype(Dtype),
    /// A word from a closed list that the op checks.
    Word(String),
    /// Little-endian elements of a constant.
    Bytes(std::sync::Arc<[u8]>),
}

/// Named attributes in the order in which the op declares them.
pub type Attrs = SmallVec<[(&'static str, Attr); 2]>;

/// One op: its name, its types and its meaning.
pub trait OpDef: Clone + PartialEq + Eq + std::hash::Hash + std::fmt::Debug + Sized {
    /// Name in the text form.
    const NAME: &'static str;
    const ARITY: Arity;
    const CLASS: OpClass;

    /// Result types for operands whose number agrees with [`OpDef::ARITY`].
    ///
    /// # Errors
    /// What clashes, with both types.
    fn infer(&self, operands: &[TensorType]) -> Result<SmallVec<[TensorType; 1]>, TypeError>;

    /// The results in wide arithmetic: f64, i64 or bool lanes. The caller rounds to the result's
    /// element type.
    ///
    /// # Errors
    /// When an operand's value has no result, such as an index out of range.
    fn eval(&self, operands: &[Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError>;

    /// The attributes, in declaration order.
    fn attrs(&self) -> Attrs {
        Attrs::new()
    }

    /// The op with these attributes; `None` where one is missing, unknown or ill-typed.
    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self>;
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
            pub fn infer(&self, operands: &[TensorType]) -> Result<SmallVec<[TensorType; 1]>, TypeError> {
                check_arity(self.name(), self.arity(), operands.len())?;
                match self { $(Op::$variant(op) => op.infer(operands)),* }
            }

            /// The results in wide arithmetic, see [`OpDef::eval`].
            ///
            /// # Errors
            /// When an operand's value has no result.
            pub fn eval(&self, operands: &[Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
                match self { $(Op::$variant(op) => op.eval(operands, results)),* }
            }

            /// The attributes, in declaration order.
            pub fn attrs(&self) -> Attrs {
                match self { $(Op::$variant(op) => op.attrs()),* }
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
    Add,
    Relu,
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
    Err(TypeError::new(format!("`{name}` takes {wanted} operands, not {n_operands}")))
}
