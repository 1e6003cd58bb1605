//! Makes a failing graph small: fewer outputs, nodes and inputs, smaller sizes, plain constants.
//!
//! A predicate says of a graph whether it still shows the fault. Every step is tried on a copy and
//! kept if the predicate holds, in a fixed order, until no step helps: the result depends on the
//! graph and the predicate alone.

mod edit;

use std::collections::BTreeSet;

use ir::{Dtype, Graph, Op, ValueId};

use edit::Edit;

/// What a reduction may cost.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Graphs that are tried at most.
    pub max_tests: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { max_tests: 5000 }
    }
}

/// A reduced graph.
#[derive(Clone, Debug)]
pub struct Reduction {
    pub graph: Graph,
    pub n_tests: usize,
    /// The limit ended the work: more might be possible.
    pub is_cut_short: bool,
}

/// Reduces a graph for which `shows_fault` holds; it is asked of every graph that is tried.
pub fn reduce(graph: &Graph, limits: Limits, shows_fault: &mut dyn FnMut(&Graph) -> bool) -> Reduction {
    let mut search = Search { graph: graph.clone(), limits, n_tests: 0, shows_fault };
    search.try_edit(&Edit { is_plain: true, ..Edit::none(graph) });
    loop {
        let before = search.graph.clone();
        search.only_output();
        search.drop_outputs();
        search.raise_outputs();
        search.cut();
        search.bypass();
        search.plain_constants();
        search.shrink();
        if search.graph == before || search.is_out_of_tests() {
            break;
        }
    }
    let is_cut_short = search.is_out_of_tests();
    Reduction { graph: search.graph, n_tests: search.n_tests, is_cut_short }
}

struct Search<'a> {
    /// The smallest graph so far that shows the fault.
    graph: Graph,
    limits: Limits,
    n_tests: usize,
    shows_fault: &'a mut dyn FnMut(&Graph) -> bool,
}

impl Search<'_> {
    fn is_out_of_tests(&self) -> bool {
        self.n_tests >= self.limits.max_tests
    }

    /// Makes an edit if it changes the graph and the fault stays.
    fn try_edit(&mut self, edit: &Edit) -> bool {
        if self.is_out_of_tests() {
            return false;
        }
        let Some(edited) = edit.apply(&self.graph).filter(|edited| *edited != self.graph) else { return false };
        self.n_tests += 1;
        let is_kept = (self.shows_fault)(&edited);
        if is_kept {
            self.graph = edited;
        }
        is_kept
    }

    /// Makes the earliest value that still shows the fault the only output.
    fn only_output(&mut self) {
        let results: Vec<ValueId> = self.graph.nodes().flat_map(|(_, node)| node.results.iter().copied()).collect();
        for value in results {
            let edit = Edit { outputs: vec![value], ..Edit::none(&self.graph) };
            if self.try_edit(&edit) {
                return;
            }
        }
    }

    /// Leaves out outputs one by one, the last first.
    fn drop_outputs(&mut self) {
        let mut position = edit::outputs(&self.graph).len();
        while position > 0 && edit::outputs(&self.graph).len() > 1 {
            position -= 1;
            let mut edit = Edit::none(&self.graph);
            edit.outputs.remove(position);
            self.try_edit(&edit);
        }
    }

    /// Gives out an operand instead of what is computed from it.
    fn raise_outputs(&mut self) {
        let mut position = 0;
        while position < edit::outputs(&self.graph).len() {
            let outputs = edit::outputs(&self.graph);
            let producer = self.graph.producer(outputs[position]);
            let operands = producer.map(|(_, node)| node.operands.to_vec()).unwrap_or_default();
            let is_raised = operands.into_iter().any(|operand| {
                let mut outputs = outputs.clone();
                outputs[position] = operand;
                self.try_edit(&Edit { outputs, ..Edit::none(&self.graph) })
            });
            // A raised output may be raised further.
            position += usize::from(!is_raised);
        }
    }

    /// Makes results of nodes inputs, many at once and then one by one, the last first.
    fn cut(&mut self) {
        let mut n_at_once = self.graph.n_nodes();
        while n_at_once > 0 {
            let mut end = self.graph.n_nodes();
            while end > 0 {
                let start = end.saturating_sub(n_at_once);
                let nodes = self.graph.nodes().skip(start).take(end - start);
                let cut: BTreeSet<ValueId> = nodes.flat_map(|(_, node)| node.results.iter().copied()).collect();
                let edit = Edit { cut, ..Edit::none(&self.graph) };
                self.try_edit(&edit);
                // Dead nodes go with the ones that are cut.
                end = start.min(self.graph.n_nodes());
            }
            n_at_once /= 2;
        }
    }

    /// Takes an operand of the same type for a node's result, the last node first.
    fn bypass(&mut self) {
        let mut position = self.graph.n_nodes();
        while position > 0 {
            position = (position - 1).min(self.graph.n_nodes().saturating_sub(1));
            let Some((_, node)) = self.graph.nodes().nth(position) else { break };
            let &[result] = node.results.as_slice() else { continue };
            let same = node.operands.iter().copied().find(|&operand| self.graph.ty(operand) == self.graph.ty(result));
            if let Some(operand) = same {
                let edit = Edit { replaced: [(result, operand)].into_iter().collect(), ..Edit::none(&self.graph) };
                self.try_edit(&edit);
            }
        }
    }

    /// Makes stored values a repeated one.
    fn plain_constants(&mut self) {
        for position in 0..self.graph.n_nodes() {
            let Some((id, node)) = self.graph.nodes().nth(position) else { break };
            if let Op::Constant(constant) = &node.op
                && constant.dtype != Dtype::Bool
            {
                let edit = Edit { splat: Some(id), ..Edit::none(&self.graph) };
                self.try_edit(&edit);
            }
        }
    }

    /// Makes sizes of inputs smaller wherever they occur: to 1, 2, or a half.
    fn shrink(&mut self) {
        let mut sizes: Vec<usize> =
            self.graph.inputs.iter().flat_map(|input| self.graph.ty(input.value).shape.to_vec()).collect();
        sizes.sort_unstable();
        sizes.dedup();
        for size in sizes.into_iter().rev() {
            let mut from = size;
            for to in [1, 2, size / 16, size / 4, size / 2] {
                if to >= 1 && to < from && self.try_edit(&Edit { resized: Some((from, to)), ..Edit::none(&self.graph) })
                {
                    from = to;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
