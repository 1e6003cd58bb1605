//! From a region's shape to what replaces it: e-graph, saturation, extraction, and where each node
//! of the result comes from.

use egg::{EGraph, Id};
use ir::ops::{Attention, FusedMatmul, Gelu, GeluTanh, LayerNorm, LogSoftmax, OpDef, RmsNorm, Sigmoid, Silu, Softmax};
use ir::target::Target;
use ir::{Op, TensorType};
use smallvec::SmallVec;

use super::cost::NodeCost;
use super::extract::{Candidate, Limits, Problem, extract};
use super::region::{LocalNode, LocalValue, Shape};
use super::rules;
use super::saturate::{Application, Refusals, Saturation, Selection, StopReason, saturate};
use super::term::{Head, Knowledge, Origin, Term, TermGraph};
use crate::Numerics;
use crate::hash::StableMap;
use crate::manager::Fuel;

/// An e-graph may grow to this many nodes per node of its region, and some for small ones.
const GROWTH: usize = 20;
const MIN_NODES: usize = 400;

/// What is computed in place of a region.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub nodes: Vec<PlanNode>,
    pub outputs: Vec<LocalValue>,
    pub n_enodes: usize,
    pub n_iterations: usize,
    pub stop: StopReason,
    pub cost_before_ps: u64,
    pub cost_ps: u64,
    pub bound_ps: u64,
    /// Applications of each rule, by position in [`rules::all`].
    pub n_applications: Vec<u64>,
}

/// A node of a plan.
#[derive(Clone, Debug)]
pub(super) struct PlanNode {
    pub op: Op,
    pub operands: SmallVec<[LocalValue; 4]>,
    /// Nodes of the region that this one stands for.
    pub sources: SmallVec<[u32; 4]>,
    /// Rules on the proof of this node, in order of [`rules::all`].
    pub rules: SmallVec<[usize; 4]>,
}

impl PlanNode {
    /// The loosest class on the proof.
    pub fn class(&self) -> Numerics {
        self.rules.iter().map(|&rule| rules::all()[rule].class).max().unwrap_or(Numerics::Exact)
    }
}

impl Shape {
    /// The plan that changes nothing.
    pub fn as_it_is(&self) -> Plan {
        let keep = |(position, node): (usize, &LocalNode)| PlanNode {
            op: node.op.clone(),
            operands: node.operands.clone(),
            sources: SmallVec::from_elem(position as u32, 1),
            rules: SmallVec::new(),
        };
        Plan {
            nodes: self.nodes.iter().enumerate().map(keep).collect(),
            outputs: self.outputs.clone(),
            n_enodes: 0,
            n_iterations: 0,
            stop: StopReason::Saturated,
            cost_before_ps: 0,
            cost_ps: 0,
            bound_ps: 0,
            n_applications: Vec::new(),
        }
    }
}

/// A region's shape as terms.
pub(super) struct Terms {
    pub graph: TermGraph,
    /// Class of each output.
    pub roots: Vec<Id>,
}

/// Adds a region's nodes to a new e-graph.
pub(super) fn terms(shape: &Shape) -> Terms {
    let knowledge = Knowledge::new(shape.leaves.clone());
    let mut graph: TermGraph = EGraph::new(knowledge);
    let outside = Origin::Outside;
    let leaf = |position| Term { head: Head::Leaf(position), children: SmallVec::new(), origin: outside };
    let leaves: Vec<Id> = (0..shape.leaves.len() as u32).map(|position| graph.add(leaf(position))).collect();
    let mut classes: Vec<Id> = Vec::with_capacity(shape.nodes.len());
    let class_of = |graph: &mut TermGraph, classes: &[Id], value: LocalValue| match value {
        LocalValue::Leaf(leaf) => leaves[leaf as usize],
        LocalValue::Node { node, result } => {
            let class = classes[node as usize];
            if graph[class].data.types.len() == 1 {
                return class;
            }
            let origin = Origin::Source(node);
            graph.add(Term { head: Head::Result(result), children: SmallVec::from_elem(class, 1), origin })
        }
    };
    for (position, node) in shape.nodes.iter().enumerate() {
        let children = node.operands.iter().map(|&operand| class_of(&mut graph, &classes, operand)).collect();
        let head = graph.analysis.head(&node.op);
        classes.push(graph.add(Term { head, children, origin: Origin::Source(position as u32) }));
    }
    let roots = shape.outputs.iter().map(|&output| class_of(&mut graph, &classes, output)).collect();
    graph.rebuild();
    Terms { graph, roots }
}

/// Largest e-graph for a region.
pub(super) fn max_nodes(shape: &Shape) -> usize {
    (GROWTH * (shape.nodes.len() + shape.leaves.len())).max(MIN_NODES)
}

/// The plan for a region's shape.
pub(super) fn plan(
    shape: &Shape,
    selection: &Selection,
    target: &Target,
    fuel: &mut Fuel,
    refusals: &mut dyn Refusals,
) -> Plan {
    let Terms { mut graph, roots } = terms(shape);
    let before = Costs { target, graph: &graph, n_applications: 0 }.problem(&roots);
    let cost_before_ps = extract(&before.problem, Limits::default()).map_or(0, |extraction| extraction.cost);
    let saturation = saturate(&mut graph, selection, max_nodes(shape), fuel, refusals);
    let costs = Costs { target, graph: &graph, n_applications: saturation.applications.len() };
    let indexed = costs.problem(&roots);
    let Some(extraction) = extract(&indexed.problem, Limits::default()) else { return shape.as_it_is() };
    let mut writer = Writer {
        graph: &graph,
        saturation: &saturation,
        indexed: &indexed,
        choice: &extraction.choice,
        written: vec![None; indexed.classes.len()],
        nodes: Vec::new(),
    };
    let outputs = indexed.problem.roots.iter().map(|&root| writer.write(root)).collect();
    let nodes = writer.nodes;
    let mut n_applications = vec![0; rules::all().len()];
    for application in &saturation.applications {
        n_applications[application.rule] += 1;
    }
    Plan {
        nodes,
        outputs,
        n_enodes: graph.total_number_of_nodes(),
        n_iterations: saturation.n_iterations,
        stop: saturation.stop,
        cost_before_ps,
        cost_ps: extraction.cost,
        bound_ps: extraction.bound,
        n_applications,
    }
}

/// How often the cheapest choice uses an op of this name.
pub(super) fn n_planned(target: &Target, graph: &TermGraph, roots: &[Id], name: &str) -> usize {
    let indexed = Costs { target, graph, n_applications: usize::MAX }.problem(roots);
    let Some(extraction) = extract(&indexed.problem, Limits::default()) else { return 0 };
    let is_wanted = |(class, chosen): (usize, &Option<usize>)| {
        let candidate = &indexed.problem.classes[class][(*chosen)?];
        let head = graph[indexed.classes[class]].nodes[candidate.term].head;
        let Head::Op { op, .. } = head else { return None };
        (graph.analysis.op(op).name() == name).then_some(())
    };
    extraction.choice.iter().enumerate().filter_map(is_wanted).count()
}

/// Cost when a class is computed by an op of this name, and the least cost; `None` where the class
/// is not reached.
pub(super) fn forced_cost(
    target: &Target,
    graph: &TermGraph,
    roots: &[Id],
    class: Id,
    name: &str,
) -> Option<(u64, u64)> {
    let indexed = Costs { target, graph, n_applications: usize::MAX }.problem(roots);
    let chosen = extract(&indexed.problem, Limits::default())?.cost;
    let number = indexed.classes.iter().position(|&known| known == graph.find(class))?;
    let mut problem = indexed.problem;
    problem.classes[number].retain(|candidate| {
        let head = graph[indexed.classes[number]].nodes[candidate.term].head;
        matches!(head, Head::Op { op, .. } if graph.analysis.op(op).name() == name)
    });
    problem.roots.push(number);
    Some((extract(&problem, Limits::default())?.cost, chosen))
}

/// An extraction problem and the classes that its numbers stand for.
struct Indexed {
    problem: Problem,
    classes: Vec<Id>,
    number_of: StableMap<Id, usize>,
}

struct Costs<'a> {
    target: &'a Target,
    graph: &'a TermGraph,
    n_applications: usize,
}

impl Costs<'_> {
    /// The classes that the roots reach, numbered in the order of a walk.
    fn problem(&self, roots: &[Id]) -> Indexed {
        let mut number_of: StableMap<Id, usize> = StableMap::default();
        let mut classes: Vec<Id> = Vec::new();
        let mut number = |classes: &mut Vec<Id>, class: Id| {
            let class = self.graph.find(class);
            *number_of.entry(class).or_insert_with(|| {
                classes.push(class);
                classes.len() - 1
            })
        };
        let mut problem =
            Problem { roots: roots.iter().map(|&root| number(&mut classes, root)).collect(), ..Problem::default() };
        let mut next = 0;
        while next < classes.len() {
            let class = &self.graph[classes[next]];
            let mut candidates = Vec::with_capacity(class.nodes.len());
            for (position, term) in class.nodes.iter().enumerate() {
                let mut children: SmallVec<[usize; 4]> = SmallVec::new();
                for &child in &term.children {
                    let child = number(&mut classes, child);
                    if !children.contains(&child) {
                        children.push(child);
                    }
                }
                // A node that computes its own class from itself computes nothing.
                if children.contains(&next) {
                    continue;
                }
                candidates.push(Candidate { cost: self.cost(term), children, term: position });
            }
            candidates.sort_by_key(|candidate| self.rank(&class.nodes[candidate.term], candidate.cost));
            problem.classes.push(candidates);
            next += 1;
        }
        Indexed { problem, classes, number_of }
    }

    /// Cost in picoseconds; at least one for every op, so that of two programs that cost the same
    /// the shorter one wins.
    fn cost(&self, term: &Term) -> u64 {
        let Head::Op { op, kind: _, is_commutative: _ } = term.head else { return 0 };
        let op = self.graph.analysis.op(op);
        let operands: SmallVec<[&TensorType; 4]> =
            term.children.iter().map(|&child| &self.graph[child].data.types[0]).collect();
        let types: SmallVec<[TensorType; 4]> = operands.iter().map(|&ty| ty.clone()).collect();
        let Some(result) = op.infer(&types).ok().and_then(|types| types.into_iter().next()) else { return u64::MAX };
        1 + NodeCost::of(self.target, op, &operands, &result).total_ps(self.target)
    }

    /// Order of candidates: cheap first, then the model's own, then by name and order of making.
    fn rank(&self, term: &Term, cost: u64) -> (u64, bool, &'static str, u32) {
        let name = match term.head {
            Head::Op { op, kind: _, is_commutative: _ } => self.graph.analysis.op(op).name(),
            Head::Leaf(_) | Head::Result(_) => "",
        };
        let (is_derived, made) = match term.origin {
            Origin::Outside => (false, 0),
            Origin::Source(node) => (false, node),
            Origin::Derived(application) => (true, application),
        };
        debug_assert!(!is_derived || (made as usize) < self.n_applications);
        (cost, is_derived, name, made)
    }
}

/// Writes the chosen terms as a list of nodes.
struct Writer<'a> {
    graph: &'a TermGraph,
    saturation: &'a Saturation,
    indexed: &'a Indexed,
    choice: &'a [Option<usize>],
    written: Vec<Option<LocalValue>>,
    nodes: Vec<PlanNode>,
}

impl Writer<'_> {
    /// The value of a class; what it needs is written first. Regions are small enough to recurse.
    fn write(&mut self, class: usize) -> LocalValue {
        if let Some(value) = self.written[class] {
            return value;
        }
        let position = self.choice[class].expect("needed classes have a choice");
        let term = &self.graph[self.indexed.classes[class]].nodes[self.indexed.problem.classes[class][position].term];
        let numbers: SmallVec<[usize; 4]> = term.children.iter().map(|&child| self.number_of(child)).collect();
        let operands: SmallVec<[LocalValue; 4]> = numbers.into_iter().map(|number| self.write(number)).collect();
        let value = match (term.head, operands.first()) {
            (Head::Leaf(leaf), _) => LocalValue::Leaf(leaf),
            (Head::Result(result), Some(&LocalValue::Node { node, result: _ })) => {
                // What the result's own rules absorbed belongs to the tuple, which is what is kept.
                let proof = Proof::of(term.origin, self.saturation);
                let node_proof = &mut self.nodes[node as usize];
                merge_sorted(&mut node_proof.sources, &proof.sources);
                merge_sorted(&mut node_proof.rules, &proof.rules);
                LocalValue::Node { node, result }
            }
            (Head::Result(_), Some(LocalValue::Leaf(_)) | None) => unreachable!("a tuple is a node"),
            (Head::Op { op, kind: _, is_commutative: _ }, _) => {
                let proof = Proof::of(term.origin, self.saturation);
                let op = self.graph.analysis.op(op).clone();
                self.nodes.push(PlanNode { op, operands, sources: proof.sources, rules: proof.rules });
                LocalValue::Node { node: self.nodes.len() as u32 - 1, result: 0 }
            }
        };
        self.written[class] = Some(value);
        value
    }

    fn number_of(&self, class: Id) -> usize {
        let class = self.graph.find(class);
        *self.indexed.number_of.get(&class).expect("the problem covers what it reaches")
    }
}

fn merge_sorted<T: Copy + Ord>(into: &mut SmallVec<[T; 4]>, more: &[T])
where
    [T; 4]: smallvec::Array<Item = T>,
{
    into.extend_from_slice(more);
    into.sort_unstable();
    into.dedup();
}

/// What a node rests on: all nodes of the region and all rules on its proof.
pub(super) struct Proof {
    pub sources: SmallVec<[u32; 4]>,
    pub rules: SmallVec<[usize; 4]>,
}

impl Proof {
    /// Follows the applications from a node back to the region.
    pub fn of(origin: Origin, saturation: &Saturation) -> Proof {
        let mut proof = Proof { sources: SmallVec::new(), rules: SmallVec::new() };
        let mut pending: SmallVec<[Origin; 16]> = SmallVec::from_elem(origin, 1);
        let mut seen: SmallVec<[u32; 16]> = SmallVec::new();
        while let Some(origin) = pending.pop() {
            match origin {
                Origin::Outside => {}
                Origin::Source(node) => proof.sources.push(node),
                Origin::Derived(application) => {
                    if seen.contains(&application) {
                        continue;
                    }
                    seen.push(application);
                    let Application { rule, origins, merges } = &saturation.applications[application as usize];
                    proof.rules.push(*rule);
                    pending.extend(origins.iter().copied());
                    pending.extend(merges.iter().map(|&merge| Origin::Derived(merge)));
                }
            }
        }
        proof.sources.sort_unstable();
        proof.sources.dedup();
        proof.rules.sort_unstable();
        proof.rules.dedup();
        proof
    }
}

/// Ops that stand for several ops of a model.
pub(super) const FUSED_OPS: [&str; 10] = [
    RmsNorm::NAME,
    LayerNorm::NAME,
    Softmax::NAME,
    LogSoftmax::NAME,
    Gelu::NAME,
    GeluTanh::NAME,
    Silu::NAME,
    Sigmoid::NAME,
    FusedMatmul::NAME,
    Attention::NAME,
];

/// True for ops that stand for several ops of a model.
pub(super) fn is_fused(op: &Op) -> bool {
    FUSED_OPS.contains(&op.name())
}
