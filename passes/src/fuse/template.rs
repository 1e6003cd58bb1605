//! Right sides of rules: what they build from a match.

use egg::Id;
use ir::ops::{
    Activation, Attention, Cast, EmptyRow, Full, FusedMatmul, LayerNorm, ReduceMax, ReduceMean, ReduceSum, Reshape,
    RmsNorm, Transpose,
};
use ir::types::F32Bits;
use ir::{Dtype, Op, TensorType};
use smallvec::{SmallVec, smallvec};

use super::pattern::{Names, Sexp};
use super::rules::{Reason, Scene};
use super::term::{Head, Origin, Term, TermGraph, Types};

/// How an op of a template gets its attributes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// It has none.
    None,
    /// The op that an op variable is bound to.
    Bound(usize),
    /// An epsilon that is the number of a variable.
    Epsilon(usize),
    /// The epsilon of the norm that an op variable is bound to.
    EpsilonOf(usize),
    /// Element type or shape of the root.
    Root,
    /// The last axis of a variable.
    LastAxis(usize),
    /// A bound matmul with this activation; a fused matmul at the root takes the root's type.
    Product(Activation, usize),
    /// An attention of the root's type with this scale, where one is given.
    Attend(EmptyRow, Option<usize>),
    /// A bound attention with its scale multiplied by a number.
    Scaled(usize, usize),
    /// A bound attention that rounds to the root's type.
    Rounded(usize),
}

/// How an operand of a product is wanted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// The left operand as [.., M, K].
    Lhs,
    /// The right operand as [.., K, N].
    Rhs,
    /// The right operand as [.., N, K].
    RhsTurned,
}

/// A right side.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Template {
    Variable(usize),
    Number(f64),
    /// Product or sum of two numbers.
    Combined(Combination, usize, usize),
    Result {
        index: u32,
        tuple: Box<Template>,
    },
    Op {
        name: &'static str,
        source: Source,
        children: Vec<Template>,
    },
    /// An operand of a bound product, transposed unless the product has it the wanted way.
    Stored {
        product: usize,
        wanted: Stored,
        operand: Box<Template>,
    },
}

/// Arithmetic on constants while a rule applies.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Combination {
    Product,
    Sum,
}

/// A right side with its ops and types, not yet in the e-graph.
#[derive(Debug)]
pub(super) enum Built {
    Class(Id),
    Node { head: BuiltHead, children: SmallVec<[Box<Built>; 3]>, types: Types },
}

/// Head of a built node.
#[derive(Debug)]
pub(super) enum BuiltHead {
    Op(Op),
    Result(u32),
}

impl Template {
    /// Parses a right side.
    ///
    /// # Errors
    /// Says which word is not understood.
    pub fn parse(sexp: &Sexp, names: &mut Names) -> Result<Template, String> {
        match sexp {
            Sexp::Word(word) => match word.strip_prefix('?') {
                Some(name) => Ok(Template::Variable(names.class(name))),
                None => word.parse().map(Template::Number).map_err(|_| format!("`{word}` is no number")),
            },
            Sexp::List(list) => Template::parse_list(list, names),
        }
    }

    fn parse_list(list: &[Sexp], names: &mut Names) -> Result<Template, String> {
        let [Sexp::Word(head), rest @ ..] = list else { return Err("an op's name is missing".to_owned()) };
        let mut variable = |word: &str| names.class(word.trim_start_matches('?'));
        match (head.as_str(), rest) {
            ("*", [Sexp::Word(lhs), Sexp::Word(rhs)]) => {
                Ok(Template::Combined(Combination::Product, variable(lhs), variable(rhs)))
            }
            ("+", [Sexp::Word(lhs), Sexp::Word(rhs)]) => {
                Ok(Template::Combined(Combination::Sum, variable(lhs), variable(rhs)))
            }
            ("result", [Sexp::Word(index), tuple]) => {
                let index = index.parse().map_err(|_| format!("`{index}` is no result"))?;
                Ok(Template::Result { index, tuple: Box::new(Template::parse(tuple, names)?) })
            }
            ("stored", [Sexp::Word(product), Sexp::Word(wanted), operand]) => {
                let wanted = match wanted.as_str() {
                    "lhs" => Stored::Lhs,
                    "rhs" => Stored::Rhs,
                    "rhs-turned" => Stored::RhsTurned,
                    other => return Err(format!("no operand `{other}`")),
                };
                let product = names.op(product.trim_start_matches('$'));
                let operand = Box::new(Template::parse(operand, names)?);
                Ok(Template::Stored { product, wanted, operand })
            }
            (head, children) => {
                let (name, source) = head.split_once('@').unwrap_or((head, ""));
                let name = Op::NAMES.iter().find(|known| **known == name).ok_or_else(|| format!("no op `{name}`"))?;
                let source = Source::parse(source, names)?;
                let children = children.iter().map(|child| Template::parse(child, names)).collect::<Result<_, _>>()?;
                Ok(Template::Op { name, source, children })
            }
        }
    }

    /// True when the right side has an op of this name.
    pub fn makes(&self, op: &str) -> bool {
        match self {
            Template::Variable(_) | Template::Number(_) | Template::Combined(..) => false,
            Template::Result { tuple, .. } => tuple.makes(op),
            Template::Stored { operand, .. } => operand.makes(op),
            Template::Op { name, children, .. } => *name == op || children.iter().any(|child| child.makes(op)),
        }
    }

    /// Builds the right side for a match.
    ///
    /// # Errors
    /// Why it has none: an op that does not accept its operands, or another type than the left side.
    pub fn build(&self, scene: &Scene<'_>) -> Result<Built, Reason> {
        let built = self.build_part(scene, true)?;
        let types = built.types(scene.graph);
        let wanted = &scene.graph[scene.found.root].data.types;
        if types != wanted {
            return Err(format!("the result would be {}, not {}", shown(types), shown(wanted)));
        }
        Ok(built)
    }

    fn build_part(&self, scene: &Scene<'_>, is_root: bool) -> Result<Built, Reason> {
        let number = |variable: usize| {
            let value = scene.graph[scene.found.class(variable)].data.number;
            value.ok_or_else(|| "a factor is no constant".to_owned())
        };
        match self {
            Template::Variable(variable) => Ok(Built::Class(scene.graph.find(scene.found.class(*variable)))),
            Template::Number(value) => Ok(constant(*value)),
            Template::Combined(combination, lhs, rhs) => {
                let (lhs, rhs) = (number(*lhs)?, number(*rhs)?);
                let value = match combination {
                    Combination::Product => lhs * rhs,
                    Combination::Sum => lhs + rhs,
                } as f32;
                if !value.is_finite() {
                    return Err(format!("the constants {lhs} and {rhs} leave the range of f32 together"));
                }
                Ok(constant(f64::from(value)))
            }
            Template::Result { index, tuple } => {
                let tuple = tuple.build_part(scene, false)?;
                let ty = tuple.types(scene.graph).get(*index as usize).cloned().ok_or("the tuple is too short")?;
                Ok(Built::Node {
                    head: BuiltHead::Result(*index),
                    children: smallvec![Box::new(tuple)],
                    types: smallvec![ty],
                })
            }
            Template::Stored { product, wanted, operand } => {
                let operand = operand.build_part(scene, false)?;
                if is_stored(scene.graph.analysis.op(scene.found.op(*product)), *wanted)? {
                    return Ok(operand);
                }
                let ty = operand.types(scene.graph)[0].clone();
                let rank = ty.rank();
                let mut perm: SmallVec<[usize; 6]> = (0..rank).collect();
                perm.swap(rank - 2, rank - 1);
                let op = Op::from(Transpose { perm });
                let types = op.infer(&[ty]).map_err(|error| error.message)?;
                Ok(Built::Node {
                    head: BuiltHead::Op(op),
                    children: smallvec![Box::new(operand)],
                    types: types.into_iter().collect(),
                })
            }
            Template::Op { name, source, children } => {
                let mut built: SmallVec<[Box<Built>; 3]> = SmallVec::new();
                for child in children {
                    built.push(Box::new(child.build_part(scene, false)?));
                }
                let op = source.op(name, scene, is_root)?;
                let operands: SmallVec<[TensorType; 4]> =
                    built.iter().map(|child| child.types(scene.graph)[0].clone()).collect();
                let types = op.infer(&operands).map_err(|error| error.message)?;
                Ok(Built::Node { head: BuiltHead::Op(op), children: built, types: types.into_iter().collect() })
            }
        }
    }
}

fn constant(value: f64) -> Built {
    let ty = TensorType::scalar(Dtype::F32);
    let op = Full::scalar(value, Dtype::F32).into();
    Built::Node { head: BuiltHead::Op(op), children: SmallVec::new(), types: smallvec![ty] }
}

fn shown(types: &Types) -> String {
    let types: Vec<String> = types.iter().map(TensorType::to_string).collect();
    types.join(", ")
}

impl Source {
    fn parse(text: &str, names: &mut Names) -> Result<Source, String> {
        if let Some(name) = text.strip_prefix('$') {
            return Ok(Source::Bound(names.op(name)));
        }
        if let Some(name) = text.strip_prefix('?') {
            return Ok(Source::Epsilon(names.class(name)));
        }
        match text.split_once(':') {
            None if text.is_empty() => Ok(Source::None),
            None if text == "root" => Ok(Source::Root),
            None => match empty_row(text) {
                Some(empty) => Ok(Source::Attend(empty, None)),
                None => Err(format!("`@{text}` in a right side")),
            },
            Some(("scaled", rest)) => {
                let (op, number) = rest.split_once(':').ok_or("a scale is missing")?;
                let op = names.op(op.trim_start_matches('$'));
                Ok(Source::Scaled(op, names.class(number.trim_start_matches('?'))))
            }
            Some(("rounded", name)) => Ok(Source::Rounded(names.op(name.trim_start_matches('$')))),
            Some(("last", name)) => Ok(Source::LastAxis(names.class(name.trim_start_matches('?')))),
            Some(("eps", name)) => Ok(Source::EpsilonOf(names.op(name.trim_start_matches('$')))),
            Some((word, name)) => {
                if let Some(empty) = empty_row(word) {
                    return Ok(Source::Attend(empty, Some(names.class(name.trim_start_matches('?')))));
                }
                let activation = Activation::from_word(word).ok_or_else(|| format!("no activation `{word}`"))?;
                Ok(Source::Product(activation, names.op(name.trim_start_matches('$'))))
            }
        }
    }

    fn op(&self, name: &'static str, scene: &Scene<'_>, is_root: bool) -> Result<Op, Reason> {
        let bound = |variable: &usize| scene.graph.analysis.op(scene.found.op(*variable));
        match self {
            Source::None => Op::from_parts(name, &[]).ok_or_else(|| format!("`{name}` needs attributes")),
            Source::Bound(variable) => Ok(bound(variable).clone()),
            Source::Epsilon(variable) => {
                let value = scene.graph[scene.found.class(*variable)].data.number.ok_or("epsilon is no constant")?;
                norm(name, F32Bits::new(value as f32))
            }
            Source::EpsilonOf(variable) => match bound(variable) {
                Op::RmsNorm(RmsNorm { eps }) | Op::LayerNorm(LayerNorm { eps }) => norm(name, *eps),
                other => Err(format!("`{}` has no epsilon", other.name())),
            },
            Source::Root => root_op(name, scene.root()),
            Source::LastAxis(variable) => {
                let rank = scene.graph[scene.found.class(*variable)].data.types[0].rank();
                last_axis_op(name, rank.checked_sub(1).ok_or("a scalar has no last axis")?)
            }
            Source::Product(activation, variable) => {
                let dtype = is_root.then(|| scene.root().dtype);
                product(bound(variable), *activation, dtype)
            }
            Source::Attend(empty, scale) => {
                let scale = scale.map_or(Some(1.0), |variable| scene.graph[scene.found.class(variable)].data.number);
                let scale = scale.ok_or("the scale is no constant")?;
                let (scale, dtype) = (F32Bits::new(scale as f32), scene.root().dtype);
                Ok(Attention { scale, causal: None, empty: *empty, logsumexp: false, dtype }.into())
            }
            Source::Scaled(variable, factor) => {
                let factor = scene.graph[scene.found.class(*factor)].data.number.ok_or("the scale is no constant")?;
                let attention = attention(bound(variable))?;
                let scale = (f64::from(attention.scale.get()) * factor) as f32;
                if !scale.is_finite() || scale == 0.0 {
                    return Err(format!("the scales {} and {factor} leave the range of f32", attention.scale.get()));
                }
                Ok(Attention { scale: F32Bits::new(scale), ..attention.clone() }.into())
            }
            Source::Rounded(variable) => {
                Ok(Attention { dtype: scene.root().dtype, ..attention(bound(variable))?.clone() }.into())
            }
        }
    }
}

fn empty_row(word: &str) -> Option<EmptyRow> {
    match word {
        "softmax" => Some(EmptyRow::Nan),
        "safe" => Some(EmptyRow::Zero),
        _ => None,
    }
}

fn attention(op: &Op) -> Result<&Attention, Reason> {
    match op {
        Op::Attention(attention) => Ok(attention),
        other => Err(format!("`{}` is no attention", other.name())),
    }
}

/// True where a product has its operand the wanted way.
fn is_stored(op: &Op, wanted: Stored) -> Result<bool, Reason> {
    let (transpose_lhs, transpose_rhs) = match op {
        Op::Matmul(matmul) => (matmul.transpose_lhs, matmul.transpose_rhs),
        Op::FusedMatmul(matmul) => (matmul.transpose_lhs, matmul.transpose_rhs),
        other => return Err(format!("`{}` is no product", other.name())),
    };
    Ok(match wanted {
        Stored::Lhs => !transpose_lhs,
        Stored::Rhs => !transpose_rhs,
        Stored::RhsTurned => transpose_rhs,
    })
}

fn norm(name: &str, eps: F32Bits) -> Result<Op, Reason> {
    match name {
        "rms_norm" => Ok(RmsNorm { eps }.into()),
        "layer_norm" => Ok(LayerNorm { eps }.into()),
        _ => Err(format!("`{name}` has no epsilon")),
    }
}

fn root_op(name: &str, root: &TensorType) -> Result<Op, Reason> {
    match name {
        "cast" => Ok(Cast { dtype: root.dtype }.into()),
        "reshape" => Ok(Reshape { shape: root.shape.clone() }.into()),
        _ => Err(format!("`{name}` takes no attribute of the root")),
    }
}

fn last_axis_op(name: &str, axis: usize) -> Result<Op, Reason> {
    let axes = smallvec![axis];
    match name {
        "reduce_mean" => Ok(ReduceMean { axes }.into()),
        "reduce_sum" => Ok(ReduceSum { axes }.into()),
        "reduce_max" => Ok(ReduceMax { axes }.into()),
        _ => Err(format!("`{name}` has no axes")),
    }
}

/// The fused form of a product; where it has an activation already, no other can follow.
fn product(op: &Op, activation: Activation, dtype: Option<Dtype>) -> Result<Op, Reason> {
    let (transpose_lhs, transpose_rhs, before, own) = match op {
        Op::Matmul(matmul) => (matmul.transpose_lhs, matmul.transpose_rhs, Activation::None, matmul.dtype),
        Op::FusedMatmul(matmul) => (matmul.transpose_lhs, matmul.transpose_rhs, matmul.activation, matmul.dtype),
        other => return Err(format!("`{}` is no product", other.name())),
    };
    if activation != Activation::None && before != Activation::None {
        return Err(format!("the product has the activation `{}` already", before.word()));
    }
    if is_narrower(own) && activation != Activation::None {
        return Err(format!("the product is rounded to {own} before the activation"));
    }
    let activation = if activation == Activation::None { before } else { activation };
    Ok(FusedMatmul { transpose_lhs, transpose_rhs, activation, dtype: dtype.unwrap_or(own) }.into())
}

fn is_narrower(dtype: Dtype) -> bool {
    super::term::is_small_float(dtype)
}

impl Built {
    /// Types of the results.
    pub fn types<'a>(&'a self, graph: &'a TermGraph) -> &'a Types {
        match self {
            Built::Class(class) => &graph[*class].data.types,
            Built::Node { types, .. } => types,
        }
    }

    /// The class that holds this already.
    pub fn lookup(&self, graph: &mut TermGraph) -> Option<Id> {
        match self {
            Built::Class(class) => Some(graph.find(*class)),
            Built::Node { head, children, types: _ } => {
                let children = children.iter().map(|child| child.lookup(graph)).collect::<Option<_>>()?;
                let head = head.interned(graph);
                graph.lookup(Term { head, children, origin: Origin::Outside })
            }
        }
    }

    /// Adds what the e-graph lacks; new nodes come from `origin`.
    pub fn add(&self, graph: &mut TermGraph, origin: Origin) -> Id {
        match self {
            Built::Class(class) => *class,
            Built::Node { head, children, types: _ } => {
                let children = children.iter().map(|child| child.add(graph, origin)).collect();
                let head = head.interned(graph);
                graph.add(Term { head, children, origin })
            }
        }
    }
}

impl BuiltHead {
    fn interned(&self, graph: &mut TermGraph) -> Head {
        match self {
            BuiltHead::Op(op) => graph.analysis.head(op),
            BuiltHead::Result(index) => Head::Result(*index),
        }
    }
}
