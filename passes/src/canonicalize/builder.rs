//! Builds a graph in canonical form, node by node.
//!
//! Every node goes through [`Builder::emit`]: the rules of its family are tried first, then an
//! equal node is looked up, and only then is a node made. Nodes that nothing uses in the end are
//! left out by [`Builder::finish`], which also fixes the order of nodes.

use ir::graph::{GraphOutput, Location, LocationId, NodeId, ValueDef};
use ir::types::TypeError;
use ir::{Dtype, Graph, Op, TensorType, ValueId};
use smallvec::{SmallVec, smallvec};

use super::fold::Constant;
use crate::Numerics;
use crate::hash::{StableMap, stable_hash};
use crate::manager::{Fuel, Statistics};

/// Results of a node.
pub(crate) type Results = SmallVec<[ValueId; 1]>;

/// Source nodes that a node stands for.
pub(crate) type Locations = SmallVec<[LocationId; 2]>;

/// A node that is about to be made.
pub(crate) struct Term {
    pub op: Op,
    pub operands: SmallVec<[ValueId; 4]>,
    pub locations: Locations,
}

/// A rewrite of one node: its results in another form, or `None` where it does not apply.
pub(crate) type Rule = fn(&mut Builder<'_>, &Term) -> Result<Option<Results>, TypeError>;

/// A rule with its name and class.
pub(crate) type RuleEntry = (&'static str, Numerics, Rule);

/// Depth of the structural keys: how far below a value its operand order may depend on.
const KEY_DEPTH: usize = 4;

/// Rules without which a graph is not in canonical form, whatever else is left undone.
const OWED_RULES: [&str; 3] = ["compute-in-f32", "cast-identity", "movement-identity"];

/// A rewrite as a fuel limit names it.
fn change_text(graph: &Graph, rule: &str, term: &Term) -> String {
    let sources = term.locations.iter().map(|location| {
        let Location { node, module, line, .. } = &graph.locations[location.index()];
        let places = [node, module, line].into_iter().filter(|place| !place.is_empty());
        places.map(String::as_str).collect::<Vec<&str>>().join(", ")
    });
    let sources: Vec<String> = sources.filter(|source| !source.is_empty()).collect();
    let sources = if sources.is_empty() { String::new() } else { format!(" ({})", sources.join("; ")) };
    format!("rule {rule} on `{}`{sources}", term.op.name())
}

/// What is known of a value while building.
struct Facts {
    /// Hashes of the expression down to depth 0, 1, 2 and 3; inputs count by type and role, so
    /// that repeated layers get the same operand order.
    keys: [u64; KEY_DEPTH],
    constant: Option<Constant>,
    /// Uses in the graph that is being rebuilt; 0 where the value is new.
    n_uses: u32,
}

/// A graph under construction.
pub(crate) struct Builder<'a> {
    graph: Graph,
    node_locations: Vec<Locations>,
    facts: Vec<Facts>,
    interned: StableMap<(Op, SmallVec<[ValueId; 4]>), NodeId>,
    /// Results of terms that a rule has rewritten. Rules emit terms themselves: without this, shared
    /// parts would be rewritten once per path to them.
    rewritten: StableMap<(Op, SmallVec<[ValueId; 4]>), Results>,
    families: fn(&Op) -> &'static [RuleEntry],
    n_rewrites: u64,
    pub numerics: Numerics,
    fuel: &'a mut Fuel,
    statistics: &'a mut Statistics,
}

impl<'a> Builder<'a> {
    /// A builder over the inputs of `source`; `families` gives the rules of an op.
    pub fn new(
        source: &Graph,
        numerics: Numerics,
        families: fn(&Op) -> &'static [RuleEntry],
        fuel: &'a mut Fuel,
        statistics: &'a mut Statistics,
    ) -> Self {
        let graph = source.with_same_inputs();
        let mut builder = Builder {
            graph,
            node_locations: Vec::new(),
            facts: Vec::new(),
            interned: StableMap::default(),
            rewritten: StableMap::default(),
            families,
            n_rewrites: 0,
            numerics,
            fuel,
            statistics,
        };
        for input in &builder.graph.inputs {
            let key = stable_hash(&(input.role, builder.graph.ty(input.value)));
            builder.facts.push(Facts { keys: [key; KEY_DEPTH], constant: None, n_uses: 0 });
        }
        builder
    }

    /// Number of rewrites made.
    pub fn n_rewrites(&self) -> u64 {
        self.n_rewrites
    }

    /// Results of an op in canonical form.
    ///
    /// # Errors
    /// The op's reason for not accepting the operands.
    pub fn emit(
        &mut self,
        op: impl Into<Op>,
        operands: &[ValueId],
        locations: &[LocationId],
    ) -> Result<Results, TypeError> {
        let key = (op.into(), SmallVec::from_slice(operands));
        if let Some(results) = self.rewritten.get(&key) {
            let results = results.clone();
            self.locate(&results, locations);
            return Ok(results);
        }
        let term = Term { op: key.0, operands: key.1, locations: Locations::from_slice(locations) };
        for &(name, class, rule) in (self.families)(&term.op) {
            if !self.numerics.allows(class) {
                continue;
            }
            // What the canonical form owes to later passes is done without fuel, too.
            let is_owed = OWED_RULES.contains(&name);
            if !is_owed && self.fuel.left() == Some(0) {
                continue;
            }
            let Some(results) = rule(self, &term)? else { continue };
            // The rewrites inside may have taken the rest.
            if !is_owed && !self.fuel.burn(|| change_text(&self.graph, name, &term)) {
                continue;
            }
            self.n_rewrites += 1;
            self.statistics.add(name, 1);
            self.rewritten.insert((term.op, term.operands), results.clone());
            return Ok(results);
        }
        self.intern(term)
    }

    /// The only result of an op in canonical form.
    ///
    /// # Errors
    /// As [`Builder::emit`].
    pub fn value(
        &mut self,
        op: impl Into<Op>,
        operands: &[ValueId],
        locations: &[LocationId],
    ) -> Result<ValueId, TypeError> {
        Ok(self.emit(op, operands, locations)?[0])
    }

    /// The value as the result of a rewrite.
    ///
    /// # Errors
    /// As [`Builder::emit`].
    pub fn rewritten(
        &mut self,
        op: impl Into<Op>,
        operands: &[ValueId],
        locations: &[LocationId],
    ) -> Result<Option<Results>, TypeError> {
        self.emit(op, operands, locations).map(Some)
    }

    /// Adds locations to the nodes that compute values.
    fn locate(&mut self, values: &[ValueId], locations: &[LocationId]) {
        for &value in values {
            if let ValueDef::Result { node, index: _ } = self.graph.def(value) {
                merge_locations(&mut self.node_locations[node.index()], locations);
            }
        }
    }

    fn intern(&mut self, term: Term) -> Result<Results, TypeError> {
        let key = (term.op, term.operands);
        if let Some(&node) = self.interned.get(&key) {
            merge_locations(&mut self.node_locations[node.index()], &term.locations);
            return Ok(self.graph.node(node).results.clone());
        }
        let node = self.graph.push(key.0.clone(), &key.1, &term.locations)?;
        self.node_locations.push(self.graph.node(node).locations.clone());
        let results = self.graph.node(node).results.clone();
        for (index, &result) in results.iter().enumerate() {
            let keys = self.keys_of(&key.0, &key.1, index, self.graph.ty(result));
            let expanded = key.1.first().filter(|_| matches!(key.0, Op::Expand(_)));
            let constant = match expanded.and_then(|&operand| self.constant(operand)) {
                Some(constant) => constant.expanded(self.graph.ty(result)),
                None => Constant::of(&key.0),
            };
            self.facts.push(Facts { keys, constant, n_uses: 0 });
        }
        self.interned.insert(key, node);
        Ok(results)
    }

    fn keys_of(&self, op: &Op, operands: &[ValueId], index: usize, ty: &TensorType) -> [u64; KEY_DEPTH] {
        let own = stable_hash(&(op, index, ty));
        let mut keys = [own; KEY_DEPTH];
        for (above, key) in keys[1..].iter_mut().enumerate() {
            let below: SmallVec<[u64; 4]> =
                operands.iter().map(|operand| self.facts[operand.index()].keys[above]).collect();
            *key = stable_hash(&(own, below));
        }
        keys
    }

    /// The value of the input at this position.
    pub fn input(&self, position: usize) -> ValueId {
        self.graph.inputs[position].value
    }

    /// Type of a value.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        self.graph.ty(value)
    }

    /// Element type of a value.
    pub fn dtype(&self, value: ValueId) -> Dtype {
        self.graph.ty(value).dtype
    }

    /// The op that computes a value; `None` for inputs.
    pub fn op_of(&self, value: ValueId) -> Option<&Op> {
        self.graph.producer(value).map(|(_, node)| &node.op)
    }

    /// Operands of the node that computes a value; none for inputs.
    pub fn operands_of(&self, value: ValueId) -> SmallVec<[ValueId; 4]> {
        self.graph.producer(value).map(|(_, node)| node.operands.clone()).unwrap_or_default()
    }

    /// The only operand of the node that computes a value.
    pub fn operand_of(&self, value: ValueId) -> Option<ValueId> {
        let (_, node) = self.graph.producer(value)?;
        let [operand] = node.operands.as_slice() else { return None };
        Some(*operand)
    }

    /// What a value is at compile time, where that is known.
    pub fn constant(&self, value: ValueId) -> Option<&Constant> {
        self.facts[value.index()].constant.as_ref()
    }

    /// The number that every element of a float or integer value is.
    pub fn uniform(&self, value: ValueId) -> Option<f64> {
        self.constant(value)?.uniform_number()
    }

    /// The number that a float or integer value of rank 0 is.
    pub fn scalar(&self, value: ValueId) -> Option<f64> {
        if self.ty(value).rank() > 0 {
            return None;
        }
        self.uniform(value)
    }

    /// True when the graph that is being rebuilt uses the value at most once.
    pub fn is_used_once(&self, value: ValueId) -> bool {
        self.facts[value.index()].n_uses <= 1
    }

    /// Notes that a value stands for one of the source graph with this many uses.
    pub fn add_uses(&mut self, value: ValueId, n_uses: u32) {
        self.facts[value.index()].n_uses += n_uses;
    }

    /// Locations of the node about to be made and of the nodes that define these values.
    pub fn absorb(&self, term: &Term, values: &[ValueId]) -> Locations {
        let mut locations = term.locations.clone();
        for &value in values {
            if let ValueDef::Result { node, index: _ } = self.graph.def(value) {
                merge_locations(&mut locations, &self.node_locations[node.index()]);
            }
        }
        locations
    }

    /// Order of operands of a commutative op: constants last, larger tensors first, then by
    /// structure, then as they came.
    pub fn operand_rank(&self, value: ValueId) -> (bool, std::cmp::Reverse<usize>, u64) {
        let facts = &self.facts[value.index()];
        (facts.constant.is_some(), std::cmp::Reverse(self.ty(value).n_elements()), facts.keys[KEY_DEPTH - 1])
    }

    /// The finished graph: only what the outputs need, operands before users, in the order in
    /// which a walk from the outputs meets them.
    ///
    /// # Errors
    /// None for nodes that this builder made.
    pub fn finish(self, outputs: Vec<GraphOutput>) -> Result<Graph, TypeError> {
        self.finish_renamed(outputs).map(|(graph, _)| graph)
    }

    /// As [`Builder::finish`], with the new name of each value that is kept.
    ///
    /// # Errors
    /// As [`Builder::finish`].
    pub fn finish_renamed(self, outputs: Vec<GraphOutput>) -> Result<(Graph, Vec<Option<ValueId>>), TypeError> {
        let mut graph = self.graph.with_same_inputs();
        let mut renamed: Vec<Option<ValueId>> = vec![None; self.graph.n_values()];
        for (old, new) in self.graph.inputs.iter().zip(&graph.inputs) {
            renamed[old.value.index()] = Some(new.value);
        }
        for root in outputs.iter().filter_map(|output| output.value) {
            let mut pending: SmallVec<[ValueId; 16]> = smallvec![root];
            while let Some(&value) = pending.last() {
                if renamed[value.index()].is_some() {
                    pending.pop();
                    continue;
                }
                let (id, node) = self.graph.producer(value).expect("inputs are renamed before the walk");
                let missing = node.operands.iter().rev().filter(|operand| renamed[operand.index()].is_none());
                let n_pending = pending.len();
                pending.extend(missing.copied());
                if pending.len() > n_pending {
                    continue;
                }
                pending.pop();
                let operands: SmallVec<[ValueId; 4]> =
                    node.operands.iter().filter_map(|operand| renamed[operand.index()]).collect();
                let made = graph.push(node.op.clone(), &operands, &self.node_locations[id.index()])?;
                for (old, &new) in node.results.iter().zip(&graph.node(made).results.clone()) {
                    renamed[old.index()] = Some(new);
                }
            }
        }
        graph.outputs = outputs;
        for output in &mut graph.outputs {
            output.value = output.value.and_then(|value| renamed[value.index()]);
        }
        Ok((graph, renamed))
    }
}

/// Adds `more` to `locations`, sorted and without duplicates.
pub(crate) fn merge_locations(locations: &mut Locations, more: &[LocationId]) {
    if more.iter().all(|location| locations.contains(location)) {
        return;
    }
    locations.extend_from_slice(more);
    locations.sort_unstable();
    locations.dedup();
}
