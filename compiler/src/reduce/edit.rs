//! Copies of a graph with something changed and what is dead left out.

use std::collections::{BTreeMap, BTreeSet};

use ir::graph::{GraphOutput, InputRole, LocationId, NodeId};
use ir::ops::{Attr, Full};
use ir::{Graph, Op, ValueId};

/// What a copy changes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Edit {
    /// Values that are given out, each of the original graph. Those that were outputs keep what the
    /// caller expects of them.
    pub outputs: Vec<ValueId>,
    /// Values that become inputs.
    pub cut: BTreeSet<ValueId>,
    /// Values that earlier ones of the same type are taken for.
    pub replaced: BTreeMap<ValueId, ValueId>,
    /// A constant whose elements all become one.
    pub splat: Option<NodeId>,
    /// A size that becomes another in shapes of inputs and attributes.
    pub resized: Option<(usize, usize)>,
    /// Strides, updates in place, names and source lines are left out.
    pub is_plain: bool,
}

/// Values of a graph's outputs.
pub(super) fn outputs(graph: &Graph) -> Vec<ValueId> {
    graph.outputs.iter().filter_map(|output| output.value).collect()
}

impl Edit {
    /// The edit that only leaves out what is dead.
    pub fn none(graph: &Graph) -> Edit {
        Edit {
            outputs: outputs(graph),
            cut: BTreeSet::new(),
            replaced: BTreeMap::new(),
            splat: None,
            resized: None,
            is_plain: false,
        }
    }

    /// The edited copy; `None` where an op does not accept it.
    pub fn apply(&self, graph: &Graph) -> Option<Graph> {
        let live = self.live(graph);
        let mut copy = Graph::new(graph.name.clone());
        let mut locations: Vec<Option<LocationId>> = vec![None; graph.locations.len()];
        let mut renamed: Vec<Option<ValueId>> = vec![None; graph.n_values()];
        let mut positions: Vec<Option<u32>> = vec![None; graph.inputs.len()];
        for (position, input) in graph.inputs.iter().enumerate().filter(|(_, input)| live[input.value.index()]) {
            let mut ty = graph.ty(input.value).clone();
            ty.shape.iter_mut().for_each(|size| *size = self.size(*size));
            let is_resized = ty != *graph.ty(input.value);
            let value = copy.push_input(input.name.clone(), ty, input.role);
            let added = copy.inputs.last_mut().expect("an input was added");
            added.strides = input.strides.clone().filter(|_| !self.is_plain && !is_resized);
            positions[position] = u32::try_from(copy.inputs.len() - 1).ok();
            renamed[input.value.index()] = Some(value);
        }
        for (id, node) in graph.nodes() {
            if !node.results.iter().any(|result| live[result.index()]) {
                continue;
            }
            if node.results.iter().all(|result| !live[result.index()] || self.cut.contains(result)) {
                for &result in node.results.iter().filter(|result| live[result.index()]) {
                    let value =
                        copy.push_input(format!("cut_{}", result.0), graph.ty(result).clone(), InputRole::Dynamic);
                    renamed[result.index()] = Some(value);
                }
                continue;
            }
            let operands: Option<Vec<ValueId>> =
                node.operands.iter().map(|&operand| renamed[self.resolved(operand).index()]).collect();
            let mut sources = Vec::new();
            for &location in node.locations.iter().filter(|_| !self.is_plain) {
                let source = &mut locations[location.index()];
                let source =
                    source.get_or_insert_with(|| copy.push_location(graph.locations[location.index()].clone()));
                sources.push(*source);
            }
            let added = copy.push(self.op(id, &node.op)?, &operands?, &sources).ok()?;
            for (old, new) in node.results.iter().zip(copy.node(added).results.clone()) {
                renamed[old.index()] = Some(new);
            }
        }
        for &value in &self.outputs {
            let mut output = GraphOutput { value: None, strides: None, alias: None, description: String::new() };
            let original = graph.outputs.iter().find(|output| output.value == Some(value));
            if let Some(original) = original.filter(|_| !self.is_plain && self.resized.is_none()) {
                output = original.clone();
                output.alias = original.alias.and_then(|input| positions.get(input as usize).copied().flatten());
            }
            output.value = Some(renamed[self.resolved(value).index()]?);
            copy.outputs.push(output);
        }
        ir::verify::verify(&copy, ir::verify::GraphPhase::Imported).ok()?;
        Some(copy)
    }

    /// Which values the copy needs, by value.
    fn live(&self, graph: &Graph) -> Vec<bool> {
        let mut live = vec![false; graph.n_values()];
        for &output in &self.outputs {
            live[self.resolved(output).index()] = true;
        }
        for output in
            graph.outputs.iter().filter(|output| output.value.is_some_and(|value| self.outputs.contains(&value)))
        {
            // The caller's tensor of an updated input is a part of the call.
            if let Some(input) =
                output.alias.filter(|_| !self.is_plain).and_then(|input| graph.inputs.get(input as usize))
            {
                live[input.value.index()] = true;
            }
        }
        for (_, node) in graph.nodes().rev() {
            if node.results.iter().any(|result| live[result.index()] && !self.cut.contains(result)) {
                node.operands.iter().for_each(|&operand| live[self.resolved(operand).index()] = true);
            }
        }
        live
    }

    fn resolved(&self, value: ValueId) -> ValueId {
        self.replaced.get(&value).copied().unwrap_or(value)
    }

    fn size(&self, size: usize) -> usize {
        match self.resized {
            Some((from, to)) if from == size => to,
            Some(_) | None => size,
        }
    }

    fn op(&self, id: NodeId, op: &Op) -> Option<Op> {
        if let (Some(splat), Op::Constant(constant)) = (self.splat, op)
            && splat == id
        {
            return Some(Full { shape: constant.shape.clone(), ..Full::scalar(1.0, constant.dtype) }.into());
        }
        if self.resized.is_none() || matches!(op, Op::Constant(_)) {
            return Some(op.clone());
        }
        let attrs = op.attrs().into_iter().map(|(name, value)| (name, self.attribute(name, value)));
        Op::from_parts(op.name(), &attrs.collect::<Vec<_>>())
    }

    /// An attribute that is a size or a list of sizes, with the new size in it.
    fn attribute(&self, name: &str, value: Attr) -> Attr {
        let resized = |number: i64| {
            let size = usize::try_from(number).map(|size| self.size(size)).ok();
            size.and_then(|size| i64::try_from(size).ok()).unwrap_or(number)
        };
        match (name, value) {
            ("shape", Attr::Ints(sizes)) => Attr::Ints(sizes.into_iter().map(resized).collect()),
            ("length" | "end", Attr::Int(size)) => Attr::Int(resized(size)),
            (_, value) => value,
        }
    }
}
