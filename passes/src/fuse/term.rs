//! The term language of the e-graph: one generic node for all ops, and what is known of a class.
//!
//! Attributes are part of an interned op, which patterns may leave open. Operands of commutative
//! ops are kept sorted by class, so that no rule for commutativity is needed. A node also carries
//! where it comes from, which does not count for equality.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use egg::{Analysis, DidMerge, EGraph, Id, Language};
use ir::{Dtype, Op, TensorType};
use smallvec::SmallVec;

use crate::canonicalize::is_commutative;
use crate::hash::StableMap;

/// An e-graph over tensor terms.
pub(super) type TermGraph = EGraph<Term, Knowledge>;

/// Types of the results of a node; one for a tensor, several for a tuple.
pub(super) type Types = SmallVec<[TensorType; 1]>;

/// Position of an op's name in [`Op::NAMES`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct OpKind(pub u16);

/// Position of an op in [`Knowledge::ops`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct OpId(pub u32);

/// What a node is, without its operands.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Head {
    /// A value from outside the region.
    Leaf(u32),
    /// One result of a tuple.
    Result(u32),
    Op {
        kind: OpKind,
        op: OpId,
        is_commutative: bool,
    },
}

/// What egg compares first.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Discriminant {
    Leaf,
    Result,
    Op(OpKind),
}

/// Where a node comes from: a node of the region, or an application of a rule.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Origin {
    /// A leaf.
    Outside,
    /// Position of a node in its region.
    Source(u32),
    /// Position in [`super::saturate::Saturated::applications`].
    Derived(u32),
}

/// An e-node.
#[derive(Clone, Debug)]
pub(super) struct Term {
    pub head: Head,
    pub children: SmallVec<[Id; 4]>,
    pub origin: Origin,
}

impl PartialEq for Term {
    fn eq(&self, other: &Self) -> bool {
        self.head == other.head && self.children == other.children
    }
}

impl Eq for Term {}

impl Hash for Term {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.head.hash(state);
        self.children.hash(state);
    }
}

impl PartialOrd for Term {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Term {
    fn cmp(&self, other: &Self) -> Ordering {
        self.head.cmp(&other.head).then_with(|| self.children.cmp(&other.children))
    }
}

impl Language for Term {
    type Discriminant = Discriminant;

    fn discriminant(&self) -> Discriminant {
        match self.head {
            Head::Leaf(_) => Discriminant::Leaf,
            Head::Result(_) => Discriminant::Result,
            Head::Op { kind, op: _, is_commutative: _ } => Discriminant::Op(kind),
        }
    }

    fn matches(&self, other: &Self) -> bool {
        self.head == other.head && self.children.len() == other.children.len()
    }

    fn children(&self) -> &[Id] {
        &self.children
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.children
    }

    fn update_children<F: FnMut(Id) -> Id>(&mut self, mut update: F) {
        for child in &mut self.children {
            *child = update(*child);
        }
        if matches!(self.head, Head::Op { is_commutative: true, .. }) {
            self.children.sort_unstable();
        }
    }
}

/// What is known of a class.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub types: Types,
    /// The number that this rank-0 class is.
    pub number: Option<f64>,
    /// Applications that made two classes one without adding a node: what rests on their equality
    /// rests on these.
    pub merges: SmallVec<[u32; 2]>,
}

impl Facts {
    /// Type of a tensor; `None` for a tuple.
    pub fn ty(&self) -> Option<&TensorType> {
        match self.types.as_slice() {
            [ty] => Some(ty),
            _ => None,
        }
    }
}

/// The ops of an e-graph, and the types of its leaves.
#[derive(Default)]
pub(super) struct Knowledge {
    ops: Vec<Op>,
    interned: StableMap<Op, Head>,
    pub leaves: Vec<TensorType>,
    /// True while rules are applied; false while congruence is restored.
    pub is_applying: bool,
    /// Applications that made two classes one without adding a node.
    pub merges: SmallVec<[u32; 8]>,
}

impl Knowledge {
    /// No ops, and leaves of these types.
    pub fn new(leaves: Vec<TensorType>) -> Self {
        Knowledge { leaves, ..Knowledge::default() }
    }

    /// The op of this name.
    pub fn op(&self, id: OpId) -> &Op {
        &self.ops[id.0 as usize]
    }

    /// The head of an op.
    pub fn head(&mut self, op: &Op) -> Head {
        if let Some(&head) = self.interned.get(op) {
            return head;
        }
        let head = Head::Op {
            kind: kind_of(op.name()).expect("every op is in the table"),
            op: OpId(self.ops.len() as u32),
            is_commutative: is_commutative(op),
        };
        self.ops.push(op.clone());
        self.interned.insert(op.clone(), head);
        head
    }
}

/// The kind of the op of this name.
pub(super) fn kind_of(name: &str) -> Option<OpKind> {
    Op::NAMES.iter().position(|known| *known == name).map(|position| OpKind(position as u16))
}

impl Analysis<Term> for Knowledge {
    type Data = Facts;

    fn make(egraph: &mut TermGraph, term: &Term, _: Id) -> Facts {
        let none = || Facts { types: Types::new(), number: None, merges: SmallVec::new() };
        match term.head {
            Head::Leaf(leaf) => {
                Facts { types: Types::from_elem(egraph.analysis.leaves[leaf as usize].clone(), 1), ..none() }
            }
            Head::Result(index) => {
                let tuple = &egraph[term.children[0]].data.types;
                Facts { types: Types::from_elem(tuple[index as usize].clone(), 1), ..none() }
            }
            Head::Op { op, kind: _, is_commutative: _ } => {
                let operands: SmallVec<[TensorType; 4]> =
                    term.children.iter().map(|&child| egraph[child].data.types[0].clone()).collect();
                let op = egraph.analysis.op(op);
                let number = match op {
                    Op::Full(full) if full.shape.is_empty() && full.dtype.is_float() => Some(full.value.get()),
                    _ => None,
                };
                let types = op.infer(&operands).expect("terms are checked before they are added");
                Facts { types, number, merges: SmallVec::new() }
            }
        }
    }

    fn remake(egraph: &mut TermGraph, _: &Term, id: Id) -> Facts {
        egraph[id].data.clone()
    }

    fn merge(&mut self, into: &mut Facts, from: Facts) -> DidMerge {
        debug_assert_eq!(into.types, from.types, "equal classes have equal types");
        into.number = into.number.or(from.number);
        into.merges.extend(from.merges);
        if !self.is_applying {
            // Congruence follows from some of them; naming all errs on the safe side.
            into.merges.extend_from_slice(&self.merges);
        }
        into.merges.sort_unstable();
        into.merges.dedup();
        // Nothing that `make` derives depends on these, so parents need no update.
        DidMerge(false, false)
    }
}

/// True for floats that are narrower than the type that arithmetic is done in.
pub(super) fn is_small_float(dtype: Dtype) -> bool {
    dtype.is_float() && dtype.size_bytes() < Dtype::F32.size_bytes()
}
