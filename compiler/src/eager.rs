//! A graph as an eager framework runs it: every node that computes or copies is its own NEFF, and
//! they are dispatched one after another.
//!
//! Nodes of the imported graph that come from one FX node belong together. Those that only rename
//! elements are views, which cost nothing. Equal kernels are compiled and simulated once.

use std::collections::{BTreeMap, BTreeSet};

use ir::graph::{InputRole, LocationId, NodeId};
use ir::ops::OpClass;
use ir::{Graph, Node, Op, ValueId};
use passes::Numerics;
use serde::Serialize;

use crate::error::Error;
use crate::execute::Executable;
use crate::pipeline::{Options, Unwatched, compile};
use crate::report::{PredictedError, RUNTIME, microseconds};

/// One dispatch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dispatch {
    /// The FX node.
    pub node: String,
    /// What it calls.
    pub target: String,
    /// Predicted device body.
    pub body_us: f64,
}

/// A node that cannot be compiled by itself, for example integer arithmetic that a whole graph
/// folds away: an eager framework runs it on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostNode {
    pub node: String,
    pub target: String,
    pub reason: String,
}

/// All dispatches, in order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EagerProfile {
    /// Of NEFFs; host nodes are none.
    pub n_dispatches: usize,
    /// NEFFs that differ.
    pub n_kernels: usize,
    /// Sum of the bodies.
    pub predicted_us: f64,
    /// How far a body may be off: the largest of all.
    pub predicted_error: Option<PredictedError>,
    /// What the runtime adds, for all dispatches.
    pub host_us: f64,
    pub dispatches: Vec<Dispatch>,
    pub host_nodes: Vec<HostNode>,
}

impl EagerProfile {
    /// Bodies and what the runtime adds.
    pub fn wall_us(&self) -> f64 {
        self.predicted_us + self.host_us
    }
}

/// Compiles and simulates every dispatch of a graph.
///
/// # Errors
/// As [`compile`], but for nodes that cannot be compiled, which are listed.
pub fn profile_eager(graph: &Graph, options: &Options) -> Result<EagerProfile, Error> {
    // Eager kernels compute what their op says, no less.
    let options = Options { target: options.target, numerics: Numerics::Exact, ..Options::default() };
    let mut bodies: BTreeMap<String, Result<(f64, Option<PredictedError>), String>> = BTreeMap::new();
    let mut errors: Vec<PredictedError> = Vec::new();
    let (mut dispatches, mut host_nodes) = (Vec::new(), Vec::new());
    for Kernel { node, target, graph } in kernels(graph) {
        let key = graph.to_string();
        let body = match bodies.get(&key) {
            Some(body) => body.clone(),
            None => {
                let body = body_us(&graph, &options)?;
                bodies.insert(key, body.clone());
                body
            }
        };
        match body {
            Ok((body_us, error)) => {
                dispatches.push(Dispatch { node, target, body_us });
                errors.extend(error);
            }
            Err(reason) => host_nodes.push(HostNode { node, target, reason }),
        }
    }
    let n_dispatches = dispatches.len();
    Ok(EagerProfile {
        n_dispatches,
        n_kernels: bodies.values().filter(|body| body.is_ok()).count(),
        predicted_us: dispatches.iter().map(|dispatch| dispatch.body_us).sum(),
        predicted_error: errors.into_iter().max_by(|one, other| one.percent.total_cmp(&other.percent)),
        host_us: microseconds(RUNTIME.dispatch().dispatch_ps) * n_dispatches as f64,
        dispatches,
        host_nodes,
    })
}

/// Bytes that an eager framework moves: each of its kernels reads every operand and writes every result
/// that another one takes. Of a view its own elements count, of a repeated one those that are repeated.
pub fn eager_bytes(graph: &Graph) -> u64 {
    // Nodes that come from nowhere are kernels of their own.
    let group_of = |id: NodeId| match graph.node(id).locations.first() {
        Some(location) => location.index(),
        None => graph.locations.len() + id.index(),
    };
    let is_number = |node: &Node| node.op.class() == OpClass::Creation && graph.ty(node.results[0]).rank() == 0;
    let is_kernel = |node: &Node| !is_view(&node.op) && !is_number(node) && !matches!(node.op, Op::Constant(_));
    let computes = graph.nodes().filter(|(_, node)| is_kernel(node));
    let computing: BTreeSet<usize> = computes.map(|(id, _)| group_of(id)).collect();
    let producer_of = |value: ValueId| graph.producer(value).map(|(id, _)| id);
    let mut bytes: Vec<u64> =
        (0..graph.n_values() as u32).map(|id| graph.ty(ValueId(id)).size_bytes() as u64).collect();
    let mut read: BTreeSet<(usize, ValueId)> = BTreeSet::new();
    let mut written: BTreeSet<ValueId> = graph.outputs.iter().filter_map(|output| output.value).collect();
    let mut total = 0;
    for (id, node) in graph.nodes() {
        if is_view(&node.op) {
            bytes[node.results[0].index()] = bytes[node.results[0].index()].min(bytes[node.operands[0].index()]);
        }
        let group = group_of(id);
        for (position, &operand) in node.operands.iter().enumerate() {
            let is_own = producer_of(operand).is_some_and(|producer| group_of(producer) == group);
            if is_own || !computing.contains(&group) {
                continue;
            }
            written.insert(operand);
            if read.insert((group, operand)) {
                let takes_rows = position == 0 && matches!(node.op, Op::GatherRows(_) | Op::Gather(_) | Op::Index(_));
                let rows = if takes_rows { graph.ty(node.results[0]).size_bytes() as u64 } else { u64::MAX };
                total += bytes[operand.index()].min(rows);
            }
        }
    }
    // What a view is of is written where the view is read.
    for (_, node) in graph.nodes().rev() {
        if is_view(&node.op) && written.contains(&node.results[0]) {
            written.insert(node.operands[0]);
        }
    }
    let is_written = |value: &ValueId| {
        let producer = producer_of(*value).filter(|&id| !is_view(&graph.node(id).op));
        producer.is_some_and(|id| computing.contains(&group_of(id)))
    };
    total + written.iter().filter(|value| is_written(value)).map(|value| bytes[value.index()]).sum::<u64>()
}

fn is_view(op: &Op) -> bool {
    op.class() == OpClass::Movement && !matches!(op, Op::Concat(_))
}

/// Predicted body of a kernel, or why it cannot be compiled by itself.
fn body_us(graph: &Graph, options: &Options) -> Result<Result<(f64, Option<PredictedError>), String>, Error> {
    let compiled = match compile(graph, options, &mut Unwatched) {
        Ok(compiled) => compiled,
        Err(Error::Unsupported { nodes, .. }) => {
            return Ok(Err(nodes.first().map(|node| node.reason.clone()).unwrap_or_default()));
        }
        Err(error) => return Err(error),
    };
    let neff = compiled.neff.ok_or_else(|| Error::Internal("a whole compilation gives a NEFF".to_owned()))?;
    let timeline = Executable::load(&neff)?.timeline()?;
    Ok(Ok((microseconds(timeline.body_ps), PredictedError::of(&timeline))))
}

/// One FX node as a graph of its own.
struct Kernel {
    node: String,
    target: String,
    graph: Graph,
}

fn kernels(graph: &Graph) -> Vec<Kernel> {
    let mut groups: BTreeMap<LocationId, Vec<NodeId>> = BTreeMap::new();
    let mut order = Vec::new();
    for (id, node) in graph.nodes() {
        let Some(&location) = node.locations.first() else { continue };
        let group = groups.entry(location).or_default();
        if group.is_empty() {
            order.push(location);
        }
        group.push(id);
    }
    let computing =
        order.into_iter().filter(|location| !groups[location].iter().all(|&id| is_view(&graph.node(id).op)));
    computing.filter_map(|location| kernel(graph, location, &groups[&location])).collect()
}

/// The nodes of one FX node as a graph; `None` where no other node uses a result.
fn kernel(graph: &Graph, location: LocationId, nodes: &[NodeId]) -> Option<Kernel> {
    let mut own = Graph::new("kernel");
    let inside: BTreeSet<NodeId> = nodes.iter().copied().collect();
    let mut map: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let operands = nodes.iter().flat_map(|&id| graph.node(id).operands.iter().copied());
    for operand in operands {
        let is_outside = graph.producer(operand).is_none_or(|(producer, _)| !inside.contains(&producer));
        if is_outside && !map.contains_key(&operand) {
            let name = format!("in{}", own.inputs.len());
            map.insert(operand, own.push_input(name, graph.ty(operand).clone(), InputRole::Dynamic));
        }
    }
    for &id in nodes {
        let node = graph.node(id);
        let operands: Vec<ValueId> = node.operands.iter().map(|operand| map[operand]).collect();
        let copy = own.push(node.op.clone(), &operands, &[]).ok()?;
        let results = own.node(copy).results.clone();
        map.extend(node.results.iter().copied().zip(results));
    }
    for result in used_outside(graph, &inside) {
        own.push_output(map[&result]);
    }
    let place = &graph.locations[location.index()];
    (!own.outputs.is_empty()).then(|| Kernel { node: place.node.clone(), target: place.target.clone(), graph: own })
}

/// Results of a group that other nodes or the caller take, in order.
fn used_outside(graph: &Graph, inside: &BTreeSet<NodeId>) -> Vec<ValueId> {
    let mut used: BTreeSet<ValueId> = graph.outputs.iter().filter_map(|output| output.value).collect();
    let others = graph.nodes().filter(|(id, _)| !inside.contains(id));
    used.extend(others.flat_map(|(_, node)| node.operands.iter().copied()));
    let results = inside.iter().flat_map(|&id| graph.node(id).results.iter().copied());
    results.filter(|result| used.contains(result)).collect()
}

#[cfg(test)]
mod tests {
    use ir::graph::{InputRole, Location};
    use ir::ops::{Add, Exp, Expand, Mul, Transpose};
    use ir::{Dtype, Graph, Op, TensorType, ValueId};

    use super::eager_bytes;

    #[test]
    fn eager_reads_and_writes_around_every_kernel_and_nothing_around_views() {
        let mut graph = Graph::new("g");
        let square = || TensorType::new(Dtype::F32, [4, 4]);
        let x = graph.push_input("x", square(), InputRole::Dynamic);
        let row = graph.push_input("row", TensorType::new(Dtype::F32, [1, 4]), InputRole::Dynamic);
        let mut node = |op: Op, operands: &[ValueId]| {
            let location = graph.push_location(Location { node: op.name().to_owned(), ..Location::default() });
            graph.push_value_of(op, operands, &[location]).unwrap()
        };
        let exponentials = node(Exp.into(), &[x]);
        let turned = node(Transpose { perm: [1, 0].into_iter().collect() }.into(), &[exponentials]);
        let sum = node(Add.into(), &[turned, x]);
        let rows = node(Expand { shape: [4, 4].into_iter().collect() }.into(), &[row]);
        let product = node(Mul.into(), &[sum, rows]);
        graph.push_output(product);
        // exp reads and writes 64; add reads 2 x 64; mul reads 64 and a row of 16; both write 64.
        assert_eq!(eager_bytes(&graph), 2 * 64 + 3 * 64 + 2 * 64 + 16);
    }
}
