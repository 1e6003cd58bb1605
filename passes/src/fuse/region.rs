//! Cuts a graph into regions, each small enough to saturate, and tells equal regions apart from
//! different ones.
//!
//! A value is cut where it is the residual stream, where it has many users, where the region would
//! grow too large, and at the graph's inputs. Constants belong to every region that reads them.

use ir::graph::ValueDef;
use ir::ops::OpClass;
use ir::{Graph, NodeId, Op, TensorType, ValueId};
use smallvec::SmallVec;

use crate::hash::StableMap;

/// A value with more users is cut.
const MAX_USERS: u32 = 8;

/// A region with more nodes is cut.
const MAX_NODES: usize = 400;

/// An operand inside a region.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum LocalValue {
    /// Position in [`Region::leaves`].
    Leaf(u32),
    /// Result of a node of the region.
    Node { node: u32, result: u32 },
}

/// A node of a region.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LocalNode {
    pub op: Op,
    pub operands: SmallVec<[LocalValue; 4]>,
}

/// What makes regions equal: the nodes in the order of a walk from the outputs, with the leaves
/// named by type alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub leaves: Vec<TensorType>,
    pub nodes: Vec<LocalNode>,
    pub outputs: Vec<LocalValue>,
}

/// A part of a graph: which values it reads; which of its values others read is in
/// [`Cut::region_of`].
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub leaves: Vec<ValueId>,
    /// Nodes of the graph, in the order of [`Shape::nodes`].
    pub nodes: Vec<NodeId>,
    /// Position among the distinct shapes.
    pub shape: usize,
}

/// A graph cut into regions.
pub(super) struct Cut {
    pub regions: Vec<Region>,
    /// Distinct shapes, in order of first appearance.
    pub shapes: Vec<Shape>,
    /// For each value that is an output of a region: the region, and its position among the outputs.
    pub region_of: Vec<Option<(usize, usize)>>,
}

/// Cuts the graph.
pub(super) fn cut(graph: &Graph) -> Cut {
    let groups = group(graph);
    let n_groups = groups.iter().flatten().max().map_or(0, |last| last + 1);
    let mut outputs: Vec<Vec<ValueId>> = vec![Vec::new(); n_groups];
    let mut is_output = vec![false; graph.n_values()];
    let mut mark = |value: ValueId, reader: Option<usize>| {
        let Some((node, _)) = graph.producer(value) else { return };
        let Some(group) = groups[node.index()] else { return };
        if reader != Some(group) && !std::mem::replace(&mut is_output[value.index()], true) {
            outputs[group].push(value);
        }
    };
    for (id, node) in graph.nodes() {
        if let Some(reader) = groups[id.index()] {
            node.operands.iter().for_each(|&operand| mark(operand, Some(reader)));
        }
    }
    graph.outputs.iter().filter_map(|output| output.value).for_each(|value| mark(value, None));
    let mut cut = Cut { regions: Vec::new(), shapes: Vec::new(), region_of: vec![None; graph.n_values()] };
    let mut known: StableMap<Shape, usize> = StableMap::default();
    for (group, mut outputs) in outputs.into_iter().enumerate() {
        outputs.sort_unstable();
        let (shape, leaves, nodes) = walk(graph, &groups, group, &outputs);
        let next = cut.shapes.len();
        let position = *known.entry(shape.clone()).or_insert(next);
        if position == next {
            cut.shapes.push(shape);
        }
        for (position, output) in outputs.iter().enumerate() {
            cut.region_of[output.index()] = Some((cut.regions.len(), position));
        }
        cut.regions.push(Region { leaves, nodes, shape: position });
    }
    cut
}

/// The region of each node, numbered in order of first node; `None` for constants, which have none
/// of their own.
fn group(graph: &Graph) -> Vec<Option<usize>> {
    let n_uses = graph.use_counts();
    let (n_readers, skipped, weighed) = (n_readers(graph, &n_uses), skipped(graph, &n_uses), weighed(graph));
    let mut sets = DisjointSets::new(graph.n_nodes());
    for (id, node) in graph.nodes() {
        for &operand in &node.operands {
            let ValueDef::Result { node: producer, index: _ } = graph.def(operand) else { continue };
            let is_constant = graph.node(producer).op.class() == OpClass::Creation;
            let is_residual = !weighed[operand.index()] && is_residual(graph, operand, &n_readers);
            let is_stream = skipped[operand.index()] || is_residual;
            if !is_constant && n_uses[operand.index()] <= MAX_USERS && !is_stream {
                sets.join(producer.index(), id.index());
            }
        }
    }
    let mut number_of: Vec<Option<usize>> = vec![None; graph.n_nodes()];
    let mut n_groups = 0;
    let mut is_output = vec![false; graph.n_values()];
    graph.outputs.iter().filter_map(|output| output.value).for_each(|value| is_output[value.index()] = true);
    let mut groups = Vec::with_capacity(graph.n_nodes());
    for (id, node) in graph.nodes() {
        if node.op.class() == OpClass::Creation && !node.results.iter().any(|result| is_output[result.index()]) {
            groups.push(None);
            continue;
        }
        let set = sets.find(id.index());
        let number = *number_of[set].get_or_insert_with(|| {
            n_groups += 1;
            n_groups - 1
        });
        groups.push(Some(number));
    }
    groups
}

/// True for the stream that blocks are added to: a sum of two tensors of its own extents, as it is or
/// rounded, that several nodes read.
fn is_residual(graph: &Graph, value: ValueId, n_readers: &[u32]) -> bool {
    let is_sum = |value: ValueId| {
        let Some((_, node)) = graph.producer(value) else { return false };
        matches!(node.op, Op::Add(_))
            && node.operands[0] != node.operands[1]
            && node.operands.iter().all(|&operand| have_equal_extents(graph, operand, value))
    };
    let Some((_, node)) = graph.producer(value) else { return false };
    let is_stream = is_sum(value) || matches!(node.op, Op::Cast(_)) && is_sum(node.operands[0]);
    is_stream && n_readers[value.index()] > 1
}

/// Values that a softmax reads, spelled out or not: scores, to which a mask may have been added.
fn weighed(graph: &Graph) -> Vec<bool> {
    let mut weighed = vec![false; graph.n_values()];
    for (_, node) in graph.nodes() {
        if matches!(node.op, Op::Softmax(_) | Op::LogSoftmax(_) | Op::ReduceMax(_)) {
            weighed[node.operands[0].index()] = true;
        }
    }
    weighed
}

/// Values that a block's result is added to: the block ends in a product, perhaps viewed, rounded
/// or with a bias, and something else reads the value too.
fn skipped(graph: &Graph, n_uses: &[u32]) -> Vec<bool> {
    let mut skipped = vec![false; graph.n_values()];
    for (_, node) in graph.nodes() {
        let (Op::Add(_), &[lhs, rhs]) = (&node.op, node.operands.as_slice()) else { continue };
        if lhs == rhs || !have_equal_extents(graph, lhs, rhs) {
            continue;
        }
        for (stream, block) in [(lhs, rhs), (rhs, lhs)] {
            if n_uses[stream.index()] > 1 && ends_in_product(graph, block) {
                skipped[narrow(graph, stream).index()] = true;
            }
        }
    }
    skipped
}

/// What a value was widened from: the form in which the model keeps it, and which is half as large.
fn narrow(graph: &Graph, value: ValueId) -> ValueId {
    match graph.producer(value) {
        Some((_, node)) if matches!(node.op, Op::Cast(_)) => {
            let operand = node.operands[0];
            let is_narrower = graph.ty(operand).dtype.size_bytes() < graph.ty(value).dtype.size_bytes();
            if is_narrower { operand } else { value }
        }
        _ => value,
    }
}

/// True for equal shapes but for leading dimensions of extent 1.
fn have_equal_extents(graph: &Graph, one: ValueId, other: ValueId) -> bool {
    let extents = |value: ValueId| graph.ty(value).shape.iter().copied().skip_while(|&extent| extent == 1);
    extents(one).eq(extents(other))
}

fn ends_in_product(graph: &Graph, mut value: ValueId) -> bool {
    while let Some((_, node)) = graph.producer(value) {
        let is_bias = |operand: ValueId| graph.ty(operand).rank() == 1;
        value = match &node.op {
            Op::Matmul(_) | Op::FusedMatmul(_) => return true,
            Op::Reshape(_) | Op::Cast(_) | Op::Transpose(_) => node.operands[0],
            Op::Add(_) if is_bias(node.operands[1]) => node.operands[0],
            _ => return false,
        };
    }
    false
}

/// Readers of each value; a value that one cast reads counts the readers of that cast.
fn n_readers(graph: &Graph, n_uses: &[u32]) -> Vec<u32> {
    let mut n_readers = n_uses.to_vec();
    for (_, node) in graph.nodes() {
        if matches!(node.op, Op::Cast(_)) {
            let more = n_uses[node.results[0].index()];
            let count = &mut n_readers[node.operands[0].index()];
            *count = (*count + more).saturating_sub(1);
        }
    }
    n_readers
}

/// Shape, leaves and nodes of a group, in the order of a walk from its outputs.
fn walk(
    graph: &Graph,
    groups: &[Option<usize>],
    group: usize,
    outputs: &[ValueId],
) -> (Shape, Vec<ValueId>, Vec<NodeId>) {
    let mut shape = Shape { leaves: Vec::new(), nodes: Vec::new(), outputs: Vec::new() };
    let (mut leaves, mut nodes) = (Vec::new(), Vec::new());
    let mut local: StableMap<ValueId, LocalValue> = StableMap::default();
    for &root in outputs {
        let mut pending: SmallVec<[ValueId; 16]> = SmallVec::from_elem(root, 1);
        while let Some(&value) = pending.last() {
            if local.contains_key(&value) {
                pending.pop();
                continue;
            }
            let inside = graph.producer(value).filter(|(id, node)| {
                groups[id.index()] == Some(group) || (node.op.class() == OpClass::Creation && is_small(graph, value))
            });
            let Some((id, node)) = inside else {
                local.insert(value, LocalValue::Leaf(leaves.len() as u32));
                leaves.push(value);
                shape.leaves.push(graph.ty(value).clone());
                pending.pop();
                continue;
            };
            let n_pending = pending.len();
            pending.extend(node.operands.iter().rev().copied().filter(|operand| !local.contains_key(operand)));
            if pending.len() > n_pending {
                continue;
            }
            pending.pop();
            let operands = node.operands.iter().map(|operand| local[operand]).collect();
            for (index, &result) in node.results.iter().enumerate() {
                local.insert(result, LocalValue::Node { node: nodes.len() as u32, result: index as u32 });
            }
            nodes.push(id);
            shape.nodes.push(LocalNode { op: node.op.clone(), operands });
        }
        shape.outputs.push(local[&root]);
    }
    (shape, leaves, nodes)
}

/// Constants that rules may look into; others are leaves.
fn is_small(graph: &Graph, value: ValueId) -> bool {
    graph.ty(value).rank() == 0
}

/// Sets of nodes that grow by joining, up to [`MAX_NODES`].
struct DisjointSets {
    parent: Vec<usize>,
    size: Vec<usize>,
}

impl DisjointSets {
    fn new(n_elements: usize) -> Self {
        DisjointSets { parent: (0..n_elements).collect(), size: vec![1; n_elements] }
    }

    fn find(&mut self, mut element: usize) -> usize {
        while self.parent[element] != element {
            self.parent[element] = self.parent[self.parent[element]];
            element = self.parent[element];
        }
        element
    }

    fn join(&mut self, lhs: usize, rhs: usize) {
        let (lhs, rhs) = (self.find(lhs), self.find(rhs));
        if lhs == rhs || self.size[lhs] + self.size[rhs] > MAX_NODES {
            return;
        }
        let (root, below) = (lhs.min(rhs), lhs.max(rhs));
        self.parent[below] = root;
        self.size[root] += self.size[below];
    }
}
