//! Parts of a graph as graphs of their own.

use std::collections::{BTreeMap, BTreeSet};

use ir::graph::{InputRole, NodeId};
use ir::{Graph, ValueId};

/// The graph with these values as its only outputs. All inputs stay, dead nodes go.
pub(super) fn asking_for(graph: &Graph, values: &[ValueId]) -> Graph {
    let mut needed: BTreeSet<ValueId> = values.iter().copied().collect();
    for (_, node) in graph.nodes().rev() {
        if node.results.iter().any(|result| needed.contains(result)) {
            needed.extend(node.operands.iter().copied());
        }
    }
    let mut part = graph.with_same_inputs();
    let mut map: BTreeMap<ValueId, ValueId> =
        graph.inputs.iter().zip(&part.inputs).map(|(old, new)| (old.value, new.value)).collect();
    for (id, node) in graph.nodes() {
        if node.results.iter().any(|result| needed.contains(result)) {
            copy_node(graph, id, &mut part, &mut map);
        }
    }
    values.iter().for_each(|value| part.push_output(map[value]));
    part
}

/// One node on inputs of its own.
pub(super) struct NodeAlone {
    pub graph: Graph,
    /// The values that its inputs stand for, by position.
    pub taken: Vec<ValueId>,
}

/// A node whose operands are inputs, but for those that are made of nothing.
pub(super) fn node_alone(graph: &Graph, id: NodeId) -> NodeAlone {
    let mut alone = Graph::new(graph.name.clone());
    alone.locations = graph.locations.clone();
    let (mut map, mut taken) = (BTreeMap::new(), Vec::new());
    for &operand in &graph.node(id).operands {
        if map.contains_key(&operand) {
            continue;
        }
        match graph.producer(operand) {
            Some((producer, node)) if node.operands.is_empty() => copy_node(graph, producer, &mut alone, &mut map),
            Some(_) | None => {
                let name = format!("operand_{}", taken.len());
                map.insert(operand, alone.push_input(name, graph.ty(operand).clone(), InputRole::Dynamic));
                taken.push(operand);
            }
        }
    }
    copy_node(graph, id, &mut alone, &mut map);
    graph.node(id).results.iter().for_each(|result| alone.push_output(map[result]));
    NodeAlone { graph: alone, taken }
}

fn copy_node(graph: &Graph, id: NodeId, part: &mut Graph, map: &mut BTreeMap<ValueId, ValueId>) {
    let node = graph.node(id);
    let operands: Vec<ValueId> = node.operands.iter().map(|operand| map[operand]).collect();
    let types = node.results.iter().map(|&result| graph.ty(result).clone());
    let copy = part.push_unchecked(node.op.clone(), &operands, types, &node.locations);
    map.extend(node.results.iter().copied().zip(part.node(copy).results.clone()));
}

/// Nodes that a value is computed from, in order, its own node included.
pub(super) fn ancestors(graph: &Graph, value: ValueId) -> Vec<NodeId> {
    let mut needed: BTreeSet<ValueId> = [value].into_iter().collect();
    let mut chain = Vec::new();
    for (id, node) in graph.nodes().rev() {
        if node.results.iter().any(|result| needed.contains(result)) {
            needed.extend(node.operands.iter().copied());
            chain.push(id);
        }
    }
    chain.reverse();
    chain
}

/// Values of the first nodes of a chain that later ones read, and those of the last of the first.
pub(super) fn frontier(graph: &Graph, chain: &[NodeId], length: usize) -> Vec<ValueId> {
    let (first, later) = chain.split_at(length);
    let read: BTreeSet<ValueId> = later.iter().flat_map(|&id| graph.node(id).operands.iter().copied()).collect();
    let results = first.iter().flat_map(|&id| graph.node(id).results.iter().copied());
    let last = first.last().map(|&id| graph.node(id).results.as_slice()).unwrap_or_default();
    results.filter(|result| read.contains(result) || last.contains(result)).collect()
}
