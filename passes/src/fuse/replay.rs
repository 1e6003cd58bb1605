//! Writes the planned graph: every region's plan with the region's own leaves and locations.

use ir::graph::ValueDef;
use ir::types::TypeError;
use ir::{Graph, NodeId, ValueId};
use smallvec::SmallVec;

use super::plan::{Plan, PlanNode};
use super::region::{Cut, LocalValue};
use super::{Fusion, fusion};
use crate::canonicalize::{Builder, Locations, Results, merge_locations, operand_order_only};
use crate::hash::StableMap;
use crate::manager::{Fuel, Statistics};
use crate::numerics::Numerics;

/// The graph and its fused ops.
pub(super) struct Replayed {
    pub graph: Graph,
    pub fusions: Vec<Fusion>,
}

/// A node that is to be written: of a region's plan, or a constant of the graph.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
enum Task {
    Planned { region: usize, node: u32 },
    Constant(NodeId),
}

/// A value that a task reads.
#[derive(Copy, Clone)]
enum Source {
    /// Position among the inputs.
    Input(u32),
    Result {
        task: Task,
        index: u32,
    },
}

/// Where a task stands.
enum State {
    Open,
    Done(Results),
}

/// Writes the graph. A region whose plan would read what depends on it is written as it was.
///
/// # Errors
/// A plan that is ill typed, which is a fault of a rule.
pub(super) fn replay(graph: &Graph, cut: &Cut, plans: &[Plan]) -> Result<Replayed, TypeError> {
    let mut kept: Vec<bool> = vec![false; cut.regions.len()];
    let mut unchanged: Vec<Option<Plan>> = vec![None; cut.shapes.len()];
    loop {
        let replay = Replay { graph, cut, plans, unchanged: &unchanged, kept: &kept };
        match replay.run()? {
            Ok(replayed) => return Ok(replayed),
            Err(region) => {
                let shape = cut.regions[region].shape;
                kept[region] = true;
                unchanged[shape].get_or_insert_with(|| cut.shapes[shape].as_it_is());
            }
        }
    }
}

struct Replay<'a> {
    graph: &'a Graph,
    cut: &'a Cut,
    plans: &'a [Plan],
    /// By shape, for regions that are kept.
    unchanged: &'a [Option<Plan>],
    /// Regions that are written as they were.
    kept: &'a [bool],
}

impl Replay<'_> {
    /// The graph, or a region that depends on itself.
    fn run(&self) -> Result<Result<Replayed, usize>, TypeError> {
        let (mut fuel, mut statistics) = (Fuel::unlimited(), Statistics::new());
        // The e-graph keeps operands in an order of its own; all else is as it was chosen.
        let mut builder = Builder::new(self.graph, Numerics::Exact, operand_order_only, &mut fuel, &mut statistics);
        let mut states: StableMap<Task, State> = StableMap::default();
        let mut fusions: Vec<(ValueId, Fusion)> = Vec::new();
        let mut outputs = self.graph.outputs.clone();
        for output in &mut outputs {
            let Some(value) = output.value else { continue };
            let source = self.source(value);
            if let Source::Result { task, index: _ } = source
                && let Err(region) = self.write(task, &mut builder, &mut states, &mut fusions)?
            {
                return Ok(Err(region));
            }
            output.value = value_of(source, &builder, &states);
        }
        let (graph, renamed) = builder.finish_renamed(outputs)?;
        // Fusions in the order of the nodes that they became.
        let mut placed: Vec<(ValueId, Fusion)> = Vec::new();
        for (value, fusion) in fusions {
            if let Some(value) = renamed[value.index()] {
                placed.push((value, fusion));
            }
        }
        placed.sort_by_key(|(value, _)| *value);
        placed.dedup_by_key(|(value, _)| *value);
        Ok(Ok(Replayed { graph, fusions: placed.into_iter().map(|(_, fusion)| fusion).collect() }))
    }

    fn plan(&self, region: usize) -> &Plan {
        let shape = self.cut.regions[region].shape;
        self.unchanged[shape].as_ref().filter(|_| self.kept[region]).unwrap_or(&self.plans[shape])
    }

    fn source(&self, value: ValueId) -> Source {
        match (self.cut.region_of[value.index()], self.graph.def(value)) {
            (_, ValueDef::Input(position)) => Source::Input(position),
            (None, ValueDef::Result { node, index }) => Source::Result { task: Task::Constant(node), index },
            (Some((region, position)), ValueDef::Result { .. }) => {
                self.local(region, self.plan(region).outputs[position])
            }
        }
    }

    fn local(&self, region: usize, value: LocalValue) -> Source {
        match value {
            LocalValue::Leaf(leaf) => self.source(self.cut.regions[region].leaves[leaf as usize]),
            LocalValue::Node { node, result } => Source::Result { task: Task::Planned { region, node }, index: result },
        }
    }

    fn operands(&self, task: Task) -> SmallVec<[Source; 4]> {
        match task {
            Task::Constant(_) => SmallVec::new(),
            Task::Planned { region, node } => {
                let operands = &self.plan(region).nodes[node as usize].operands;
                operands.iter().map(|&operand| self.local(region, operand)).collect()
            }
        }
    }

    /// Writes a task and what it reads first; a region that depends on itself is an error.
    fn write(
        &self,
        root: Task,
        builder: &mut Builder<'_>,
        states: &mut StableMap<Task, State>,
        fusions: &mut Vec<(ValueId, Fusion)>,
    ) -> Result<Result<(), usize>, TypeError> {
        let mut pending: Vec<Task> = vec![root];
        while let Some(&task) = pending.last() {
            if matches!(states.get(&task), Some(State::Done(_))) {
                pending.pop();
                continue;
            }
            let operands = self.operands(task);
            let n_pending = pending.len();
            states.insert(task, State::Open);
            for operand in operands.iter().rev() {
                let Source::Result { task: below, index: _ } = *operand else { continue };
                match states.get(&below) {
                    Some(State::Done(_)) => {}
                    // A task that is open reads, in the end, the one that is looked at.
                    Some(State::Open) => return Ok(Err(self.region_to_keep(below, &pending))),
                    None => pending.push(below),
                }
            }
            if pending.len() > n_pending {
                continue;
            }
            pending.pop();
            let values: SmallVec<[ValueId; 4]> =
                operands.iter().filter_map(|&operand| value_of(operand, builder, states)).collect();
            let results = self.emit(task, &values, builder, fusions)?;
            states.insert(task, State::Done(results));
        }
        Ok(Ok(()))
    }

    /// A region on a cycle that is not written as it was yet; there is one, because the graph
    /// itself has no cycle.
    fn region_to_keep(&self, below: Task, pending: &[Task]) -> usize {
        let region_of = |task: &Task| match *task {
            Task::Planned { region, node: _ } => Some(region),
            Task::Constant(_) => None,
        };
        let mut regions = std::iter::once(&below).chain(pending.iter().rev()).filter_map(region_of);
        regions.find(|&region| !self.kept[region]).expect("unchanged regions have no cycle")
    }

    fn emit(
        &self,
        task: Task,
        operands: &[ValueId],
        builder: &mut Builder<'_>,
        fusions: &mut Vec<(ValueId, Fusion)>,
    ) -> Result<Results, TypeError> {
        match task {
            Task::Constant(node) => {
                let node = self.graph.node(node);
                builder.emit(node.op.clone(), operands, &node.locations)
            }
            Task::Planned { region, node } => {
                let node = &self.plan(region).nodes[node as usize];
                let locations = self.locations(region, node);
                let results = builder.emit(node.op.clone(), operands, &locations)?;
                if let Some(fusion) = fusion(node, &locations) {
                    fusions.push((results[0], fusion));
                }
                Ok(results)
            }
        }
    }

    /// Locations of the nodes that a planned node stands for in this region.
    fn locations(&self, region: usize, node: &PlanNode) -> Locations {
        let mut locations = Locations::new();
        for &source in &node.sources {
            let source = self.cut.regions[region].nodes[source as usize];
            merge_locations(&mut locations, &self.graph.node(source).locations);
        }
        locations
    }
}

fn value_of(source: Source, builder: &Builder<'_>, states: &StableMap<Task, State>) -> Option<ValueId> {
    match source {
        Source::Input(position) => Some(builder.input(position as usize)),
        Source::Result { task, index } => match states.get(&task) {
            Some(State::Done(results)) => Some(results[index as usize]),
            Some(State::Open) | None => None,
        },
    }
}
