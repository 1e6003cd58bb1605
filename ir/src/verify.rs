//! The graph verifier: everything that is wrong with a graph, not the first thing only.
//!
//! What every graph owes is checked here: definitions before uses, types as inferred, references in
//! range, layouts where and only where the graph is placed. What a phase promises beyond that is
//! defined and checked with the pass that establishes it; passes call this first.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::graph::{Graph, Layout, Node, NodeId, ValueDef, ValueId};
use crate::text::{input_line, node_line, output_line};
use crate::types::TensorType;

/// What has been established of a graph; each phase includes the ones before it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GraphPhase {
    /// Well-typed, as the importer made it.
    Imported,
    /// In canonical form.
    Canonical,
    /// Fused ops are chosen.
    Fused,
    /// Every value has a place in the layout table.
    Placed,
}

/// What a fault is about.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Element {
    /// The graph as a whole.
    Graph,
    /// Position in [`Graph::inputs`].
    Input(usize),
    Node(NodeId),
    /// Position in [`Graph::outputs`].
    Output(usize),
}

/// One thing that is wrong with a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    pub code: &'static str,
    pub message: String,
    pub element: Element,
}

/// Checks a graph.
///
/// # Errors
/// Every fault, with the printed line that it is about.
pub fn verify(graph: &Graph, phase: GraphPhase) -> Result<(), Diagnostics> {
    faults(graph, phase).iter().map(|fault| describe(graph, fault)).collect::<Diagnostics>().into_result()
}

/// Everything that is wrong with a graph, in the order in which it prints.
pub fn faults(graph: &Graph, phase: GraphPhase) -> Vec<Fault> {
    let mut faults = Vec::new();
    check_layouts(graph, phase, &mut faults);
    for (position, input) in graph.inputs.iter().enumerate() {
        let element = Element::Input(position);
        check_value(graph, input.value, input.strides.as_deref(), element, &mut faults);
        let is_own = input.value.index() < graph.n_values()
            && matches!(graph.def(input.value), ValueDef::Input(own) if own as usize == position);
        if !is_own {
            let message = format!("%{} is not defined by input {position}", input.value.0);
            faults.push(Fault { code: "input", message, element });
        } else {
            check_size(graph.ty(input.value), element, &mut faults);
        }
    }
    for (id, node) in graph.nodes() {
        check_operands(graph, id, node, &mut faults);
        check_types(graph, id, node, &mut faults);
        check_locations(graph, id, node, &mut faults);
    }
    for (position, output) in graph.outputs.iter().enumerate() {
        if let Some(value) = output.value {
            check_value(graph, value, output.strides.as_deref(), Element::Output(position), &mut faults);
        }
    }
    check_aliases(graph, &mut faults);
    faults
}

/// A fault as a diagnostic that names the element and shows its line.
fn describe(graph: &Graph, fault: &Fault) -> Diagnostic {
    let diagnostic = Diagnostic::error(fault.code, fault.message.clone());
    match fault.element {
        Element::Graph => diagnostic.at_named(format!("@{}", graph.name)),
        Element::Input(position) => diagnostic
            .at_named(format!("@{}: input {position}", graph.name))
            .with_context(input_line(graph, &graph.inputs[position])),
        Element::Output(position) => diagnostic
            .at_named(format!("@{}: output {position}", graph.name))
            .with_context(output_line(graph, &graph.outputs[position])),
        Element::Node(id) => {
            let node = graph.node(id);
            let first = node.locations.first().and_then(|location| graph.locations.get(location.index()));
            let line = first.map(|location| location.line.as_str()).filter(|line| !line.is_empty());
            let line = line.map(|line| format!(" ({line})")).unwrap_or_default();
            diagnostic
                .at_named(format!("@{}: node {}{line}", graph.name, id.index()))
                .with_context(node_line(graph, id))
        }
    }
}

fn check_layouts(graph: &Graph, phase: GraphPhase, faults: &mut Vec<Fault>) {
    let mut report = |message: String| faults.push(Fault { code: "layout", message, element: Element::Graph });
    let (n_layouts, n_values) = (graph.layouts.len(), graph.n_values());
    if phase < GraphPhase::Placed {
        if n_layouts != 0 {
            report(format!("{n_layouts} layouts before placement"));
        }
        return;
    }
    if n_layouts != n_values {
        report(format!("{n_values} values have {n_layouts} layouts"));
    }
    for (position, layout) in graph.layouts.iter().enumerate().take(n_values) {
        let Some(Layout { n_outer, n_partition }) = *layout else { continue };
        let ty = graph.ty(ValueId(u32::try_from(position).expect("fewer than 2^32 values")));
        if usize::from(n_outer) + usize::from(n_partition) > ty.rank() {
            report(format!("layout ({n_outer}, {n_partition}) of %{position} splits more dimensions than {ty} has"));
        }
    }
}

/// An input's or output's value and its strides.
fn check_value(graph: &Graph, value: ValueId, strides: Option<&[i64]>, element: Element, faults: &mut Vec<Fault>) {
    if value.index() >= graph.n_values() {
        faults.push(undefined(value, element));
        return;
    }
    let (ty, Some(strides)) = (graph.ty(value), strides) else { return };
    let message = if strides.len() != ty.rank() {
        format!("{} strides for {ty}", strides.len())
    } else if strides.iter().any(|&stride| stride < 0) {
        format!("strides {strides:?} step backwards")
    } else if !is_reach_addressable(&ty.shape, strides) {
        format!("strides {strides:?} of {ty} reach beyond any memory")
    } else {
        return;
    };
    faults.push(Fault { code: "strides", message, element });
}

/// Whether the last element lies below 2^40, the bound of [`TensorType::is_addressable`].
fn is_reach_addressable(shape: &[usize], strides: &[i64]) -> bool {
    let reach = shape.iter().zip(strides).try_fold(0usize, |reach, (&dim, &stride)| {
        let way = usize::try_from(stride).ok()?.checked_mul(dim.saturating_sub(1))?;
        reach.checked_add(way)
    });
    reach.is_some_and(|reach| reach < 1 << 40)
}

/// Every updated input is updated by one output of its type and strides, and holds no element twice.
fn check_aliases(graph: &Graph, faults: &mut Vec<Fault>) {
    let mut updated = BTreeSet::new();
    for (position, output) in graph.outputs.iter().enumerate() {
        let Some(alias) = output.alias else { continue };
        let mut report =
            |message: String| faults.push(Fault { code: "alias", message, element: Element::Output(position) });
        let Some(input) = graph.inputs.get(alias as usize) else {
            report(format!("it updates input {alias} of {}", graph.inputs.len()));
            continue;
        };
        if !updated.insert(alias) {
            report(format!("`{}` is updated by another output too", input.name));
        }
        let Some(value) = output.value.filter(|value| value.index() < graph.n_values()) else {
            report(format!("`{}` is updated by no value", input.name));
            continue;
        };
        if input.value.index() >= graph.n_values() {
            continue;
        }
        let (ty, updated_ty) = (graph.ty(value), graph.ty(input.value));
        if ty != updated_ty {
            report(format!("{ty} does not fit `{}` of {updated_ty}", input.name));
        } else if output.strides != input.strides {
            report(format!("its strides are not those of `{}`", input.name));
        } else if !input.strides.as_ref().is_none_or(|strides| holds_once(&ty.shape, strides)) {
            report(format!("elements of `{}` share memory", input.name));
        }
    }
}

/// True where strides are seen to put no two indices at the same place: sorted, each is longer than
/// what the ones below it reach.
pub fn holds_once(shape: &[usize], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut steps: SmallVec<[(u64, usize); 6]> =
        shape.iter().zip(strides).filter(|(dim, _)| **dim > 1).map(|(&dim, step)| (step.unsigned_abs(), dim)).collect();
    steps.sort_unstable();
    let mut reach = 0u64;
    for (step, dim) in steps {
        if step <= reach {
            return false;
        }
        reach = reach.saturating_add(step.saturating_mul(dim as u64 - 1));
    }
    true
}

fn check_operands(graph: &Graph, id: NodeId, node: &Node, faults: &mut Vec<Fault>) {
    let element = Element::Node(id);
    for &operand in &node.operands {
        if operand.index() >= graph.n_values() {
            faults.push(undefined(operand, element));
            continue;
        }
        match graph.def(operand) {
            ValueDef::Result { node: producer, index: _ } if producer >= id => {
                let message = format!("`{}` uses %{} before it is defined", node.op.name(), operand.0);
                faults.push(Fault { code: "use-before-definition", message, element });
            }
            ValueDef::Result { .. } | ValueDef::Input(_) => {}
        }
    }
}

fn check_types(graph: &Graph, id: NodeId, node: &Node, faults: &mut Vec<Fault>) {
    if node.operands.iter().any(|operand| operand.index() >= graph.n_values()) {
        return;
    }
    let element = Element::Node(id);
    let operands: SmallVec<[TensorType; 4]> = node.operands.iter().map(|&operand| graph.ty(operand).clone()).collect();
    let declared: SmallVec<[&TensorType; 1]> = node.results.iter().map(|&result| graph.ty(result)).collect();
    declared.iter().for_each(|ty| check_size(ty, element, faults));
    match node.op.infer(&operands) {
        Err(error) => faults.push(Fault { code: "type-mismatch", message: error.message, element }),
        Ok(inferred) if !inferred.iter().eq(declared.iter().copied()) => {
            let list = |types: &[&TensorType]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let inferred: Vec<&TensorType> = inferred.iter().collect();
            let message = format!("`{}` gives {}, not {}", node.op.name(), list(&inferred), list(&declared));
            faults.push(Fault { code: "result-type", message, element });
        }
        Ok(_) => {}
    }
}

fn check_size(ty: &TensorType, element: Element, faults: &mut Vec<Fault>) {
    if !ty.is_addressable() {
        faults.push(Fault { code: "size", message: format!("{ty} is too large for any memory"), element });
    }
}

fn check_locations(graph: &Graph, id: NodeId, node: &Node, faults: &mut Vec<Fault>) {
    let n_locations = graph.locations.len();
    for location in node.locations.iter().filter(|location| location.index() >= n_locations) {
        let message = format!("location #{} of {n_locations}", location.0);
        faults.push(Fault { code: "location", message, element: Element::Node(id) });
    }
    if node.locations.windows(2).any(|pair| pair[0] >= pair[1]) {
        let message = "locations are not sorted without duplicates".to_string();
        faults.push(Fault { code: "location", message, element: Element::Node(id) });
    }
}

fn undefined(value: ValueId, element: Element) -> Fault {
    Fault { code: "undefined-value", message: format!("no value is named %{}", value.0), element }
}
