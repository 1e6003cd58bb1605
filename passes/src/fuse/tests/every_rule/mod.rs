//! Every rule alone on its own left side, in several sizes: it fires, and on 1,000 sets of numbers for
//! each size all programs of a class have one value.
//!
//! Over the reals a rewrite changes nothing: what is compared are f64 values without roundings, so
//! that nothing but the algebra of a rule can show. An exact rule is compared once more with all
//! roundings, bit by bit.

mod draws;
mod left_sides;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use egg::Id;
use ir::graph::InputRole;
use ir::ops::Cast;
use ir::reference::{Lanes, Value};
use ir::{Dtype, Graph, ValueId};

use crate::Numerics;
use crate::canonicalize::canonicalize;
use crate::fuse::pattern::{Names, Pattern, Sexp};
use crate::fuse::plan::{Terms, terms};
use crate::fuse::region::LocalValue;
use crate::fuse::rules::{self, Rule};
use crate::fuse::saturate::{Forgotten, Selection, saturate};
use crate::fuse::term::{Head, Term, TermGraph};
use crate::fuse::{FuseOptions, fuse};
use crate::manager::Fuel;

use self::draws::{KINDS, Kind, draw};
use self::left_sides::{LeftSide, SIZES, drawn, left_side};

/// Sets of numbers for each rule and size.
const N_DRAWS: u64 = 1000;

/// Numbers on which the sides of a rule differ, and why that is accepted.
const EXCEPTIONS: [(&str, &[Kind], &str); 4] = [
    ("sqrt-of-reciprocal", &[Kind::Zeros, Kind::Infinite], "-0 and -inf, of which one is the reciprocal of the other"),
    ("softmax-unshifted", &[Kind::Spread, Kind::Large, Kind::Infinite], "exponentials overflow on the left"),
    ("log-of-softmax", &[Kind::Spread, Kind::Large], "weights underflow on the left"),
    ("attention-predicate", &[Kind::Infinite], "scores that are infinite or NaN outlast an added -inf"),
];

/// Of a value: what two orders of f64 operations may differ by, with what an exponential makes of it.
const OF_THE_VALUE: f64 = 1e-9;

/// Of the largest number on the way, which a cancellation leaves of it.
const OF_THE_LARGEST: f64 = 1e-13;

#[test]
fn every_rule_fires_and_keeps_the_value_of_its_left_side() {
    let mut faults = Vec::new();
    for rule in rules::all() {
        if let Err(fault) = check(rule) {
            faults.push(format!("`{}`: {fault}", rule.name));
        }
    }
    assert!(faults.is_empty(), "{} of {} rules\n{}", faults.len(), rules::all().len(), faults.join("\n"));
}

/// An e-graph whose classes are known to be equal by one rule alone.
fn saturated(rule: &Rule, left: &LeftSide) -> Result<(TermGraph, Id), String> {
    let Terms { mut graph, roots } = terms(&left.shape);
    let others: Vec<String> =
        rules::all().iter().filter(|other| other.name != rule.name).map(|other| other.name.to_owned()).collect();
    let selection = Selection::new(Numerics::Approx, &others);
    let saturation = saturate(&mut graph, &selection, 1000, &mut Fuel::unlimited(), &mut Forgotten);
    if saturation.applications.is_empty() {
        return Err("it does not fire on its left side".to_owned());
    }
    // What the rule made must stand in the class of the left side, or there is nothing to compare.
    let root = graph.find(roots[0]);
    if graph[root].nodes.len() < 2 {
        return Err("its left side has no second form".to_owned());
    }
    Ok((graph, root))
}

fn check(rule: &Rule) -> Result<(), String> {
    let exceptions = EXCEPTIONS.iter().find(|(name, _, _)| *name == rule.name).map_or(&[][..], |(_, kinds, _)| kinds);
    let mut differing = BTreeSet::new();
    for (number, size) in SIZES.iter().enumerate() {
        let left = left_side(rule, size);
        let (graph, root) = saturated(rule, &left).map_err(|fault| format!("size {number}: {fault}"))?;
        let order = evaluation_order(&graph);
        let mut n_telling = 0;
        for draw_number in 0..N_DRAWS {
            let kind = KINDS[draw_number as usize % KINDS.len()];
            let leaves = draw(&left.shape.leaves, &left.leaves, kind, draw_number);
            match compare(rule, &graph, &order, root, &leaves) {
                Ok(is_telling) => n_telling += u64::from(is_telling),
                Err(_) if exceptions.contains(&kind) => {
                    differing.insert(kind);
                }
                Err(fault) => return Err(format!("size {number}, draw {draw_number}, {kind:?}: {fault}")),
            }
        }
        if n_telling * 3 < N_DRAWS {
            return Err(format!("size {number}: only {n_telling} of {N_DRAWS} draws give numbers"));
        }
    }
    match exceptions.iter().find(|kind| !differing.contains(kind)) {
        Some(kind) => Err(format!("{kind:?} is no exception")),
        None => Ok(()),
    }
}

/// Compares in f64, and bit by bit where the rule is exact. True when the left side has a finite number:
/// agreement on infinities and NaN alone says little.
fn compare(rule: &Rule, graph: &TermGraph, order: &[(Id, &Term)], root: Id, leaves: &[Value]) -> Result<bool, String> {
    let result = agree(graph, order, leaves, Arithmetic::Wide)?.remove(&root).expect("the root has a value");
    if rule.class == Numerics::Exact {
        agree(graph, order, leaves, Arithmetic::Rounded)?;
    }
    Ok(result[0].as_floats().expect("left sides are floats").iter().any(|number| number.is_finite()))
}

/// All terms, operands first; of a class that stands for one of its own operands the others first.
fn evaluation_order(graph: &TermGraph) -> Vec<(Id, &Term)> {
    let mut terms: Vec<(Id, &Term)> =
        graph.classes().flat_map(|class| class.nodes.iter().map(|term| (class.id, term))).collect();
    terms.sort_by_key(|&(class, _)| class);
    let (mut order, mut known) = (Vec::new(), BTreeSet::new());
    while !terms.is_empty() {
        let (ready, waiting): (Vec<_>, Vec<_>) = terms
            .into_iter()
            .partition(|(_, term)| term.children.iter().all(|&child| known.contains(&graph.find(child))));
        assert!(!ready.is_empty(), "every class has a program");
        known.extend(ready.iter().map(|&(class, _)| class));
        order.extend(ready);
        terms = waiting;
    }
    order
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Arithmetic {
    /// f64 without roundings; equal to within those of f64.
    Wide,
    /// Every result rounded to its element type; equal bit by bit.
    Rounded,
}

/// The values of all classes.
///
/// # Errors
/// The first term whose value is not that of the others of its class.
fn agree(
    graph: &TermGraph,
    order: &[(Id, &Term)],
    leaves: &[Value],
    arithmetic: Arithmetic,
) -> Result<BTreeMap<Id, Vec<Value>>, String> {
    let mut known: BTreeMap<Id, Vec<Value>> = BTreeMap::new();
    let mut others: Vec<(Id, Vec<Value>)> = Vec::new();
    for &(class, term) in order {
        let results = evaluated(graph, class, term, &known, leaves, arithmetic);
        if let Entry::Vacant(first) = known.entry(class) {
            first.insert(results);
        } else {
            others.push((class, results));
        }
    }
    let all = known.values().chain(others.iter().map(|(_, results)| results)).flatten();
    let numbers = all.filter_map(|value| value.as_floats().ok()).flatten();
    let largest = numbers.filter(|number| number.is_finite()).fold(0.0f64, |largest, number| largest.max(number.abs()));
    for (class, results) in &others {
        for (want, got) in known[class].iter().zip(results) {
            assert_eq!(want.shape, got.shape, "classes have one type");
            match arithmetic {
                Arithmetic::Wide => close(want, got, largest)?,
                Arithmetic::Rounded => same_bits(want, got)?,
            }
        }
    }
    Ok(known)
}

fn evaluated(
    graph: &TermGraph,
    class: Id,
    term: &Term,
    known: &BTreeMap<Id, Vec<Value>>,
    leaves: &[Value],
    arithmetic: Arithmetic,
) -> Vec<Value> {
    let operands: Vec<&Vec<Value>> = term.children.iter().map(|&child| &known[&graph.find(child)]).collect();
    match term.head {
        Head::Leaf(leaf) => vec![leaves[leaf as usize].clone()],
        Head::Result(index) => vec![operands[0][index as usize].clone()],
        Head::Op { op, .. } => {
            let operands: Vec<&Value> = operands.iter().map(|values| &values[0]).collect();
            let types = &graph[class].data.types;
            let values = graph.analysis.op(op).eval(&operands, types).expect("evaluates");
            match arithmetic {
                Arithmetic::Wide => values,
                Arithmetic::Rounded => {
                    values.into_iter().zip(types).map(|(value, ty)| value.rounded(ty.dtype)).collect()
                }
            }
        }
    }
}

fn close(want: &Value, got: &Value, largest: f64) -> Result<(), String> {
    let (Lanes::Float(want), Lanes::Float(got)) = (&want.lanes, &got.lanes) else {
        return if want == got { Ok(()) } else { Err(format!("{got:?} instead of {want:?}")) };
    };
    for (&want, &got) in want.iter().zip(got) {
        let tolerance = (OF_THE_VALUE * want.abs()).max(OF_THE_LARGEST * largest);
        let is_close = want == got || want.is_nan() && got.is_nan() || (want - got).abs() <= tolerance;
        if !is_close {
            return Err(format!("{got:e} instead of {want:e}, among numbers up to {largest:e}"));
        }
    }
    Ok(())
}

fn same_bits(want: &Value, got: &Value) -> Result<(), String> {
    let (Lanes::Float(want), Lanes::Float(got)) = (&want.lanes, &got.lanes) else {
        return if want == got { Ok(()) } else { Err(format!("{got:?} instead of {want:?}")) };
    };
    for (&want, &got) in want.iter().zip(got) {
        if want.to_bits() != got.to_bits() && !(want.is_nan() && got.is_nan()) {
            return Err(format!("{got:e} and not the bits of {want:e}"));
        }
    }
    Ok(())
}

fn expression(name: &str, text: &str) -> LeftSide {
    let mut names = Names::default();
    let pattern = Pattern::parse(&Sexp::parse(text).expect("parses"), &mut names).expect("parses");
    drawn(name, &pattern, &names, &SIZES[1])
}

/// Where two expressions of the same variables have other values.
fn differ(left: &str, right: &str) -> bool {
    let [left, right] = [left, right].map(|text| expression("", text));
    assert_eq!(left.leaves, right.leaves);
    let value = |left_side: &LeftSide, leaves: &[Value]| {
        let Terms { graph, roots } = terms(&left_side.shape);
        let mut known = BTreeMap::new();
        for (class, term) in evaluation_order(&graph) {
            known.insert(class, evaluated(&graph, class, term, &known, leaves, Arithmetic::Wide));
        }
        known[&roots[0]][0].clone()
    };
    (0..100).any(|number| {
        let leaves = draw(&left.shape.leaves, &left.leaves, Kind::Uniform, number);
        close(&value(&left, &leaves), &value(&right, &leaves), 10.0).is_err()
    })
}

#[test]
fn what_is_nearly_equal_is_told_apart() {
    assert!(!differ("(mul (add ?x ?y) ?x)", "(add (mul ?x ?x) (mul ?y ?x))"));
    assert!(differ("(sqrt (add (mul ?x ?x) 1e-6))", "(sqrt (mul ?x ?x))"));
    assert!(differ("(rsqrt (add (mul ?x ?x) 1e-6))", "(rsqrt (add (mul ?x ?x) 1.001e-6))"));
    assert!(differ("(mul ?x 0.7071067811865476)", "(mul ?x 0.7071067690849304)"));
    assert!(differ("(mul ?x (sigmoid (mul ?x 1.702)))", "(gelu ?x)"));
}

/// The graph of a left side. With roundings, every f32 on the way is rounded to bf16: the canonical form
/// has no constants to fold and nothing to reorder then, and what rules do follows on dropping them.
fn graph_of(left: &LeftSide, has_roundings: bool) -> Graph {
    let mut graph = Graph::new("left side");
    let inputs = left.shape.leaves.iter().zip(&left.leaves);
    let leaves: Vec<ValueId> =
        inputs.map(|(ty, name)| graph.push_input(name.clone(), ty.clone(), InputRole::Dynamic)).collect();
    let mut results: Vec<Vec<ValueId>> = Vec::new();
    for node in &left.shape.nodes {
        let value_of = |&value: &LocalValue| match value {
            LocalValue::Leaf(leaf) => leaves[leaf as usize],
            LocalValue::Node { node, result } => results[node as usize][result as usize],
        };
        let operands: Vec<ValueId> = node.operands.iter().map(value_of).collect();
        let id = graph.push(node.op.clone(), &operands, &[]).expect("left sides are well typed");
        let mut values = graph.node(id).results.to_vec();
        let is_inside = results.len() + 1 < left.shape.nodes.len() && !operands.is_empty();
        if has_roundings && is_inside && graph.ty(values[0]).dtype == Dtype::F32 {
            for dtype in [Dtype::Bf16, Dtype::F32] {
                values[0] = graph.push_value_of(Cast { dtype }.into(), &values[..1], &[]).expect("floats cast");
            }
        }
        results.push(values);
    }
    graph.push_output(*results.last().and_then(|values| values.first()).expect("left sides have a node"));
    graph
}

/// Each rule has work to do after canonicalization and beside all others: no other rule takes all its
/// cases, nor does the way in which graphs are cut.
#[test]
fn every_rule_is_reached_from_a_graph() {
    let mut unseen: BTreeSet<&str> = rules::all().iter().map(|rule| rule.name).collect();
    let mut reach = |graph: &Graph| {
        let (canonical, _) = canonicalize(graph, Numerics::Approx).expect("canonicalizes");
        let (_, report) = fuse(&canonical, &FuseOptions::new(Numerics::Approx)).expect("fuses");
        for (name, _) in &report.n_applications {
            unseen.remove(name);
        }
    };
    for rule in rules::all() {
        for size in &SIZES {
            let left = left_side(rule, size);
            [false, true].into_iter().for_each(|has_roundings| reach(&graph_of(&left, has_roundings)));
        }
    }
    // The slice of a widened value, narrowed again, is a slice of a cast to its own type.
    reach(&graph_of(&expression("narrowed-slice", "(cast (slice (cast ?x)))"), false));
    assert!(unseen.is_empty(), "{unseen:?}");
}
