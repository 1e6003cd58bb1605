//! From parts of a graph to functions and calls: equal parts become one function.
//!
//! Parts are equal when their nodes are, one by one, with operands in the same places, and when what
//! they read and leave behind has the same types, roles and steps. Which nodes and values of the graph
//! these are makes no difference.

use std::ops::Range;

use ir::graph::{InputRole, LocationId, ValueDef};
use ir::{Graph, NodeId, Op, TensorType, ValueId};
use smallvec::SmallVec;

use super::values::Values;
use super::{GraphCall, Outline, Source, Target};
use crate::hash::{StableMap, stable_hash};

type Strides = Option<SmallVec<[i64; 6]>>;

/// An operand of a node in a part.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
enum Local {
    Input(u32),
    Result { node: u32, index: u32 },
}

/// What a part reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct InputShape {
    ty: TensorType,
    is_static: bool,
    strides: Strides,
}

/// What a part leaves behind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OutputShape {
    value: Local,
    strides: Strides,
    /// The input that it updates in place.
    alias: Option<u32>,
}

/// What makes parts equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Shape {
    inputs: Vec<InputShape>,
    nodes: Vec<(Op, SmallVec<[Local; 4]>)>,
    outputs: Vec<OutputShape>,
}

/// A part and what its places are in the graph.
struct Part {
    shape: Shape,
    nodes: Vec<NodeId>,
    inputs: Vec<ValueId>,
    outputs: Vec<Target>,
}

/// A function that has been made of a part.
struct Known {
    shape: Shape,
    /// Node of the part and position among its locations, by location of the function.
    sources: Vec<(usize, usize)>,
    /// Position among the functions.
    function: usize,
}

/// The graph as calls of the functions that its segments are; `None` where an in-place update keeps
/// parts from being separated.
pub(super) fn outline(graph: &Graph, values: &Values, segments: Vec<Range<usize>>) -> Option<Outline> {
    let borders = Borders::of(graph, values, segments)?;
    let mut outline = Outline { functions: Vec::new(), calls: Vec::new(), between: borders.between.clone() };
    let mut known: StableMap<u64, Vec<Known>> = StableMap::default();
    for number in 0..borders.n_parts() {
        let part = Walk::new(graph, values, &borders).part(number);
        let of_hash = known.entry(stable_hash(&part.shape)).or_default();
        let position = of_hash.iter().position(|known| known.shape == part.shape).unwrap_or_else(|| {
            let (function, sources) = function(graph, &part, outline.functions.len());
            of_hash.push(Known { shape: part.shape.clone(), sources, function: outline.functions.len() });
            outline.functions.push(function);
            of_hash.len() - 1
        });
        let Known { sources, function, shape: _ } = &of_hash[position];
        let location = |&(node, location): &(usize, usize)| {
            let found = graph.node(part.nodes[node]).locations.get(location);
            found.map(|location| graph.locations[location.index()].clone()).unwrap_or_default()
        };
        outline.calls.push(GraphCall {
            function: *function,
            inputs: part.inputs.iter().map(|&value| borders.source(graph, value)).collect(),
            outputs: part.outputs,
            locations: sources.iter().map(location).collect(),
        });
    }
    Some(outline)
}

/// A function, and for each of its locations the node of the part and the position among that node's
/// locations that it comes from.
fn function(graph: &Graph, part: &Part, number: usize) -> (Graph, Vec<(usize, usize)>) {
    let mut function = Graph::new(format!("{}.{number}", graph.name));
    let mut sources = Vec::new();
    let mut ids: StableMap<LocationId, LocationId> = StableMap::default();
    for (position, (shape, value)) in part.shape.inputs.iter().zip(&part.inputs).enumerate() {
        let name = match graph.def(*value) {
            ValueDef::Input(input) => graph.inputs[input as usize].name.clone(),
            ValueDef::Result { .. } => format!("value{position}"),
        };
        let role = if shape.is_static { InputRole::Static } else { InputRole::Dynamic };
        function.push_input(name, shape.ty.clone(), role);
        function.inputs[position].strides = shape.strides.clone();
    }
    let mut results: Vec<SmallVec<[ValueId; 1]>> = Vec::with_capacity(part.nodes.len());
    let resolve = |results: &[SmallVec<[ValueId; 1]>], local: Local| match local {
        Local::Input(position) => ValueId(position),
        Local::Result { node, index } => results[node as usize][index as usize],
    };
    for (position, ((op, operands), id)) in part.shape.nodes.iter().zip(&part.nodes).enumerate() {
        let node = graph.node(*id);
        let mut locations: SmallVec<[LocationId; 2]> = SmallVec::new();
        for (number, &location) in node.locations.iter().enumerate() {
            let next = LocationId(function.locations.len() as u32);
            let known = *ids.entry(location).or_insert(next);
            if known == next {
                function.push_location(graph.locations[location.index()].clone());
                sources.push((position, number));
            }
            locations.push(known);
        }
        let operands: SmallVec<[ValueId; 4]> = operands.iter().map(|&local| resolve(&results, local)).collect();
        let types = node.results.iter().map(|&result| graph.ty(result).clone());
        let copy = function.push_unchecked(op.clone(), &operands, types, &locations);
        results.push(function.node(copy).results.clone());
    }
    for output in &part.shape.outputs {
        function.push_output(resolve(&results, output.value));
        let last = function.outputs.len() - 1;
        (function.outputs[last].strides, function.outputs[last].alias) = (output.strides.clone(), output.alias);
    }
    (function, sources)
}

/// Which values cross between the parts of a graph.
struct Borders {
    /// Nodes of each part that depend on inputs, in order.
    parts: Vec<Vec<NodeId>>,
    /// By value: outputs of the graph that the part which has it must store.
    stores: StableMap<ValueId, Vec<u32>>,
    /// By part: outputs of the graph that are none of its values, but left to it.
    passes: Vec<Vec<u32>>,
    /// By value: where other parts find it.
    found: StableMap<ValueId, Source>,
    between: Vec<TensorType>,
    /// By position of an input of the graph: more than one part reads it.
    is_shared: Vec<bool>,
}

impl Borders {
    fn of(graph: &Graph, values: &Values, segments: Vec<Range<usize>>) -> Option<Borders> {
        let mut parts: Vec<Vec<NodeId>> = segments.into_iter().map(|range| values.sequence[range].to_vec()).collect();
        let mut part_of: Vec<Option<usize>> = vec![None; graph.n_nodes()];
        for (number, nodes) in parts.iter().enumerate() {
            nodes.iter().for_each(|node| part_of[node.index()] = Some(number));
        }
        let home = |value: ValueId| match graph.def(value) {
            ValueDef::Result { node, index: _ } => part_of[node.index()],
            ValueDef::Input(_) => None,
        };
        // Outputs that nobody computes, such as inputs, are copied at the end.
        let computed = |output: &ir::graph::GraphOutput| output.value.is_none_or(|value| home(value).is_some());
        if !graph.outputs.iter().all(computed) {
            parts.push(Vec::new());
        }
        let mut passes = vec![Vec::new(); parts.len()];
        let mut stores: StableMap<ValueId, Vec<u32>> = StableMap::default();
        let mut found: StableMap<ValueId, Source> = StableMap::default();
        for (position, output) in (0..).zip(&graph.outputs) {
            let Some(value) = output.value else { continue };
            match home(value) {
                Some(_) => stores.entry(value).or_default().push(position),
                None => passes[parts.len() - 1].push(position),
            }
            if home(value).is_some() && output.strides.is_none() && output.alias.is_none() {
                found.entry(value).or_insert(Source::Output(position));
            }
        }
        let readers = Readers::of(graph, values, &parts, &passes);
        let updates = graph.outputs.iter().filter_map(|output| Some((output.value?, output.alias?)));
        for (value, alias) in updates {
            let at = home(value).unwrap_or(parts.len() - 1);
            if readers.parts[alias as usize].iter().any(|&reader| reader != at) {
                return None;
            }
        }
        let mut between = Vec::new();
        for (number, nodes) in parts.iter().enumerate() {
            for operand in nodes.iter().flat_map(|node| &graph.node(*node).operands) {
                if home(*operand).is_some_and(|home| home != number) {
                    found.entry(*operand).or_insert_with(|| {
                        between.push(graph.ty(*operand).clone());
                        Source::Between(between.len() as u32 - 1)
                    });
                }
            }
        }
        let is_shared = readers.parts.iter().map(|parts| parts.len() > 1).collect();
        Some(Borders { parts, stores, passes, found, between, is_shared })
    }

    fn n_parts(&self) -> usize {
        self.parts.len()
    }

    fn source(&self, graph: &Graph, value: ValueId) -> Source {
        match graph.def(value) {
            ValueDef::Input(position) => Source::Input(position),
            ValueDef::Result { .. } => self.found.get(&value).copied().unwrap_or(Source::Constant(value)),
        }
    }
}

/// Which parts read each input of the graph.
struct Readers {
    /// By position of the input; ascending.
    parts: Vec<SmallVec<[usize; 1]>>,
}

impl Readers {
    fn of(graph: &Graph, values: &Values, parts: &[Vec<NodeId>], passes: &[Vec<u32>]) -> Readers {
        let mut readers = Readers { parts: vec![SmallVec::new(); graph.inputs.len()] };
        let mut note = |value: ValueId, number: usize| {
            if let ValueDef::Input(position) = graph.def(value)
                && readers.parts[position as usize].last() != Some(&number)
            {
                readers.parts[position as usize].push(number);
            }
        };
        for (number, nodes) in parts.iter().enumerate() {
            nodes.iter().flat_map(|node| &graph.node(*node).operands).for_each(|&operand| note(operand, number));
            let passed = passes[number].iter().filter_map(|&output| graph.outputs[output as usize].value);
            passed.filter(|&value| values.fixed_node(graph, value).is_none()).for_each(|value| note(value, number));
        }
        readers
    }
}

/// Walks over one part.
struct Walk<'a> {
    graph: &'a Graph,
    values: &'a Values,
    borders: &'a Borders,
    part: Part,
    local: StableMap<ValueId, Local>,
}

impl<'a> Walk<'a> {
    fn new(graph: &'a Graph, values: &'a Values, borders: &'a Borders) -> Walk<'a> {
        let shape = Shape { inputs: Vec::new(), nodes: Vec::new(), outputs: Vec::new() };
        let part = Part { shape, nodes: Vec::new(), inputs: Vec::new(), outputs: Vec::new() };
        Walk { graph, values, borders, part, local: StableMap::default() }
    }

    fn part(mut self, number: usize) -> Part {
        let (graph, borders) = (self.graph, self.borders);
        for &node in &borders.parts[number] {
            self.node(node);
        }
        for &node in &borders.parts[number] {
            for &result in &graph.node(node).results {
                let stores = borders.stores.get(&result).map_or(&[][..], Vec::as_slice);
                stores.iter().for_each(|&output| self.store(output, result));
                if let Some(Source::Between(place)) = borders.found.get(&result) {
                    let value = self.local[&result];
                    self.part.shape.outputs.push(OutputShape { value, strides: None, alias: None });
                    self.part.outputs.push(Target::Between(*place));
                }
            }
        }
        for &output in &borders.passes[number] {
            if let Some(value) = graph.outputs[output as usize].value {
                self.operand(value);
                self.store(output, value);
            }
        }
        self.part
    }

    /// Adds a node whose operands that depend on inputs are there.
    fn node(&mut self, id: NodeId) {
        let graph = self.graph;
        let operands = graph.node(id).operands.iter().map(|&operand| self.operand(operand)).collect();
        self.add(id, operands);
    }

    fn add(&mut self, id: NodeId, operands: SmallVec<[Local; 4]>) {
        let node = self.graph.node(id);
        let number = self.part.nodes.len() as u32;
        self.part.nodes.push(id);
        self.part.shape.nodes.push((node.op.clone(), operands));
        for (index, &result) in (0..).zip(&node.results) {
            self.local.insert(result, Local::Result { node: number, index });
        }
    }

    /// An operand's place; what depends on no input is computed here.
    fn operand(&mut self, value: ValueId) -> Local {
        if let Some(&local) = self.local.get(&value) {
            return local;
        }
        if let Some(node) = self.values.fixed_node(self.graph, value) {
            self.fixed(node);
            return self.local[&value];
        }
        self.input(value)
    }

    /// Adds a node that depends on no input, after those that it reads.
    fn fixed(&mut self, node: NodeId) {
        let graph = self.graph;
        let mut pending = vec![node];
        while let Some(&id) = pending.last() {
            let node = graph.node(id);
            let is_missing = |operand: &&ValueId| !self.local.contains_key(operand);
            if let Some(&missing) = node.operands.iter().find(is_missing) {
                pending.extend(self.values.fixed_node(graph, missing));
                continue;
            }
            pending.pop();
            if !self.local.contains_key(&node.results[0]) {
                let operands = node.operands.iter().map(|operand| self.local[operand]).collect();
                self.add(id, operands);
            }
        }
    }

    fn input(&mut self, value: ValueId) -> Local {
        let place = Local::Input(self.part.inputs.len() as u32);
        let ty = self.graph.ty(value).clone();
        let shape = match self.graph.def(value) {
            ValueDef::Input(position) => {
                let input = &self.graph.inputs[position as usize];
                // What others read too must keep its layout.
                let is_static = input.role == InputRole::Static && !self.borders.is_shared[position as usize];
                InputShape { ty, is_static, strides: input.strides.clone() }
            }
            ValueDef::Result { .. } => InputShape { ty, is_static: false, strides: None },
        };
        self.part.shape.inputs.push(shape);
        self.part.inputs.push(value);
        self.local.insert(value, place);
        place
    }

    /// Stores a value as an output of the graph.
    fn store(&mut self, output: u32, value: ValueId) {
        let declared = &self.graph.outputs[output as usize];
        let alias = declared.alias.map(|input| {
            let updated = self.graph.inputs[input as usize].value;
            match self.operand(updated) {
                Local::Input(position) => position,
                Local::Result { .. } => unreachable!("an input of the graph is no result"),
            }
        });
        let value = self.local[&value];
        self.part.shape.outputs.push(OutputShape { value, strides: declared.strides.clone(), alias });
        self.part.outputs.push(Target::Output(output));
    }
}
