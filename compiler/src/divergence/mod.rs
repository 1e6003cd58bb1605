//! The first value of a graph that differs between two sides, and a small graph that shows it.
//!
//! What either side computes inside a fused kernel is not to be seen, so values are asked for as
//! outputs: a binary search over prefixes of the graph, each ending in the values that the rest
//! needs, comes to a place where they begin to differ. From there the search goes back along
//! operands while one of them, asked for alone, differs too.

mod judge;
mod parts;
mod side;

use std::collections::BTreeSet;

use ir::graph::NodeId;
use ir::reference::{Rounding, Value};
use ir::{Graph, ValueId};

use crate::error::Error;
use crate::reduce::{Limits, reduce};
use crate::samples::{DEFAULT_SEED, seeded};
use crate::verdict::Standard;

pub use judge::{Difference, Sameness};
pub use side::{Run, SIDES, Side};

use judge::{Pair, by_bits, by_standard};
use parts::{ancestors, asking_for, frontier, node_alone};
use side::{Kind, evaluated};

/// Two sides and what counts as the same.
pub struct Contest {
    pub a: Side,
    pub b: Side,
    pub sameness: Sameness,
}

/// A node whose value differs although its operands agree.
#[derive(Clone, Debug, PartialEq)]
pub struct Divergence {
    pub node: NodeId,
    pub value: ValueId,
    pub difference: Difference,
    /// Values that must be asked for together with it to make it differ; mostly none.
    pub together_with: Vec<ValueId>,
    /// Graphs that were compared.
    pub n_tests: usize,
    /// The first reason why a part of the graph could not be compared, and how many could not.
    pub skipped: Option<(usize, String)>,
}

/// A graph in which the sides differ, as small as it got.
#[derive(Clone, Debug, PartialEq)]
pub struct SmallGraph {
    pub graph: Graph,
    /// Values that it needs to show the difference; without them, values made from the fixed seed do.
    pub inputs: Option<Vec<Value>>,
}

impl Contest {
    /// Outputs of a graph that differ, by position.
    ///
    /// # Errors
    /// Those of either side.
    pub fn differences(&self, graph: &Graph, inputs: &[Value]) -> Result<Vec<(usize, Difference)>, Error> {
        let (a, b) = (self.a.outputs(graph, inputs)?, self.b.outputs(graph, inputs)?);
        let standard = match self.sameness {
            Sameness::Bits => None,
            Sameness::Standard => Some(self.standard(graph, inputs, &a)?),
        };
        let mut found = Vec::new();
        for (position, output) in graph.outputs.iter().enumerate() {
            let Some(value) = output.value else { continue };
            let dtype = graph.ty(value).dtype;
            let at = |values: &'_ [Option<Value>]| values.get(position).cloned().flatten();
            let (Some(a), Some(b)) = (at(&a), at(&b)) else {
                return Err(Error::Internal(format!("a side gives no output {position}")));
            };
            let difference = match &standard {
                None => by_bits(&a, &b, dtype),
                Some(Standard { truth, eager }) => {
                    let (Some(eager), Some(truth)) = (at(eager), at(truth)) else {
                        return Err(Error::Internal(format!("the reference gives no output {position}")));
                    };
                    // What is not evaluated is judged; of two that are not, the second.
                    let judged = if self.b.is_evaluated() { &a } else { &b };
                    by_standard(&Pair { a: &a, b: &b, judged, eager: &eager, truth: &truth }, dtype)
                }
            };
            found.extend(difference.map(|difference| (position, difference)));
        }
        Ok(found)
    }

    /// What stands for eager, and the truth.
    fn standard(&self, graph: &Graph, inputs: &[Value], a: &[Option<Value>]) -> Result<Standard, Error> {
        let truth = evaluated(graph, inputs, Rounding::None)?;
        let eager = match (&self.a.kind, &self.b.kind) {
            (Kind::Run(_), Kind::Run(_)) => a.to_vec(),
            (Kind::Reference | Kind::Eager | Kind::Run(_), _) => evaluated(graph, inputs, Rounding::PerOp)?,
        };
        Ok(Standard { truth, eager })
    }

    /// The first node whose value differs although its operands agree; `None` where no output of the
    /// graph differs. `progress` is told what is being compared.
    ///
    /// # Errors
    /// Those of either side on the whole graph.
    pub fn first_divergence(
        &self,
        graph: &Graph,
        inputs: &[Value],
        progress: &mut dyn FnMut(&str),
    ) -> Result<Option<Divergence>, Error> {
        progress("the whole graph");
        let mut outputs: Vec<ValueId> = graph.outputs.iter().filter_map(|output| output.value).collect();
        outputs.sort_unstable();
        outputs.dedup();
        let found = self.differences(&asking_for(graph, &outputs), inputs)?;
        let Some(start) = earliest(outputs, found) else { return Ok(None) };
        let mut search = Search { contest: self, graph, inputs, progress, n_tests: 1, n_skipped: 0, reason: None };
        let start = search.by_prefixes(start);
        let found = search.back_along_operands(start);
        let Some((node, _)) = graph.producer(found.value) else {
            return Err(Error::Internal(format!("the sides differ in input %{}, which both are given", found.value.0)));
        };
        Ok(Some(Divergence {
            node,
            value: found.value,
            difference: found.difference,
            together_with: found.asked.into_iter().filter(|&value| value != found.value).collect(),
            n_tests: search.n_tests,
            skipped: search.reason.map(|reason| (search.n_skipped, reason)),
        }))
    }

    /// The smallest graph with a difference of its kind that is found from a divergence: of its node
    /// alone on values made from the fixed seed, or of all before it, or on the values that the node has.
    ///
    /// # Errors
    /// When the reference has no values for the graph.
    pub fn smallest(
        &self,
        graph: &Graph,
        inputs: &[Value],
        divergence: &Divergence,
        progress: &mut dyn FnMut(&str),
    ) -> Result<SmallGraph, Error> {
        let alone = node_alone(graph, divergence.node);
        let mut asked = divergence.together_with.clone();
        asked.push(divergence.value);
        let prefix = asking_for(graph, &asked);
        let mut n_tests = 0;
        // A large difference must not be traded for one of roundings elsewhere.
        let least = if divergence.difference.severity() >= 4.0 { 2.0 } else { 0.0 };
        let mut differs = |candidate: &Graph| {
            n_tests += 1;
            progress(&format!("reducing, graph {n_tests}: {} nodes", candidate.n_nodes()));
            let inputs = seeded(candidate, DEFAULT_SEED).inputs;
            let found = self.differences(candidate, &inputs);
            found.is_ok_and(|found| found.iter().any(|(_, difference)| difference.severity() >= least))
        };
        for candidate in [&alone.graph, &prefix] {
            if differs(candidate) {
                let small = reduce(candidate, Limits::default(), &mut differs).graph;
                return Ok(SmallGraph { graph: small, inputs: None });
            }
        }
        let taken = evaluated(&asking_for(graph, &alone.taken), inputs, Rounding::PerOp)?;
        let taken: Vec<Value> = taken.into_iter().flatten().collect();
        if self.differences(&alone.graph, &taken).is_ok_and(|found| !found.is_empty()) {
            return Ok(SmallGraph { graph: alone.graph, inputs: Some(taken) });
        }
        Ok(SmallGraph { graph: prefix, inputs: Some(inputs.to_vec()) })
    }
}

/// A value that differs where these values are asked for.
struct Found {
    value: ValueId,
    difference: Difference,
    asked: Vec<ValueId>,
}

struct Search<'a> {
    contest: &'a Contest,
    graph: &'a Graph,
    inputs: &'a [Value],
    progress: &'a mut dyn FnMut(&str),
    n_tests: usize,
    n_skipped: usize,
    reason: Option<String>,
}

impl Search<'_> {
    /// The first of these values that differs when all of them are asked for. What cannot be
    /// compiled with such outputs, or evaluated, is passed over.
    fn ask(&mut self, asked: Vec<ValueId>) -> Option<Option<Found>> {
        self.n_tests += 1;
        (self.progress)(&format!("comparison {}: {} values", self.n_tests, asked.len()));
        match self.contest.differences(&asking_for(self.graph, &asked), self.inputs) {
            Ok(differences) => Some(earliest(asked, differences)),
            Err(error) => {
                self.n_skipped += 1;
                let names: Vec<String> = asked.iter().map(|value| format!("%{}", value.0)).collect();
                let message = error.to_string();
                let first = message.lines().next().unwrap_or_default();
                self.reason.get_or_insert_with(|| format!("{} as outputs: {first}", names.join(", ")));
                None
            }
        }
    }

    /// Searches prefixes of what the found value is computed from.
    fn by_prefixes(&mut self, mut found: Found) -> Found {
        let chain = ancestors(self.graph, found.value);
        // Prefixes by length: none differs at length 0.
        let (mut passing, mut failing) = (0, chain.len());
        while failing - passing > 1 {
            let middle = passing + (failing - passing) / 2;
            let mut lengths: Vec<usize> = (passing + 1..failing).collect();
            lengths.sort_by_key(|&length| (length.abs_diff(middle), length));
            let answer = lengths.into_iter().find_map(|length| {
                let answer = self.ask(frontier(self.graph, &chain, length))?;
                Some((length, answer))
            });
            match answer {
                Some((length, None)) => passing = length,
                Some((length, Some(earlier))) => {
                    failing = length;
                    found = earlier;
                }
                None => break,
            }
        }
        found
    }

    /// Steps back while an operand differs by itself.
    fn back_along_operands(&mut self, mut found: Found) -> Found {
        if found.asked.len() > 1
            && let Some(Some(alone)) = self.ask(vec![found.value])
        {
            found = alone;
        }
        let mut agreeing: BTreeSet<ValueId> = BTreeSet::new();
        loop {
            let Some((_, node)) = self.graph.producer(found.value) else { return found };
            let earlier = node.operands.iter().find_map(|&operand| {
                if self.graph.producer(operand).is_none() || !agreeing.insert(operand) {
                    return None;
                }
                self.ask(vec![operand]).flatten()
            });
            match earlier {
                Some(earlier) => found = earlier,
                None => return found,
            }
        }
    }
}

/// The difference of the value that is computed first.
fn earliest(asked: Vec<ValueId>, differences: Vec<(usize, Difference)>) -> Option<Found> {
    let (position, difference) = differences.into_iter().min_by_key(|(position, _)| asked[*position])?;
    Some(Found { value: asked[position], difference, asked })
}

#[cfg(test)]
mod tests;
