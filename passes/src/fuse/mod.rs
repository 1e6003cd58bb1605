//! Fusion by equality saturation: `mul, mean, add, rsqrt, mul, mul` becomes `rms_norm`, a bias and
//! an activation ride on the read-out of their matmul.
//!
//! The graph is cut into regions, equal regions are planned once, a plan is the cheapest of all
//! programs that the rules prove equal. Expects the canonical form and keeps it. What lies between
//! nodes in memory and in time is decided later.

mod cost;
mod explain;
pub mod extract;
mod pattern;
mod plan;
mod region;
mod replay;
mod rules;
mod saturate;
mod template;
mod term;

use ir::Graph;
use ir::graph::LocationId;
use ir::target::TargetName;

pub use cost::NodeCost;
pub use explain::{Answer, WhyNot, why_not};
pub use saturate::StopReason;

use plan::{Plan, is_fused, plan};
use region::{Cut, cut};
use saturate::{Forgotten, Selection};

use crate::canonicalize::Locations;
use crate::manager::{FnPass, Fuel, Pass, PassContext, PassError, Phase, Statistics};
use crate::numerics::Numerics;

/// Name of this pass.
pub const NAME: &str = "fuse";

/// What may be rewritten, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuseOptions {
    /// The loosest class of a rule.
    pub numerics: Numerics,
    /// Applications of rules; `None` without limit.
    pub fuel: Option<u64>,
    /// Names of rules that are not used.
    pub disabled_rules: Vec<String>,
    /// The chip whose costs decide.
    pub target: TargetName,
}

impl FuseOptions {
    /// All rules that `numerics` allows, for trn2.
    pub fn new(numerics: Numerics) -> Self {
        FuseOptions { numerics, fuel: None, disabled_rules: Vec::new(), target: TargetName::Trn2 }
    }
}

/// A fused op of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fusion {
    /// Name of the op.
    pub op: &'static str,
    /// The loosest class on its proof; exact for an op that the model itself calls.
    pub class: Numerics,
    /// Rules on its proof, in the order of the rule set.
    pub rules: Vec<&'static str>,
    /// What it stands for, as names of the graph's locations.
    pub locations: Vec<LocationId>,
}

/// A distinct region: what was found for it, and how far that may be from the best.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionReport {
    /// Nodes of the graph that one instance covers.
    pub n_nodes: usize,
    /// Regions of the graph that are equal to this one, itself included.
    pub n_instances: usize,
    /// Nodes of its e-graph.
    pub n_enodes: usize,
    /// Estimated time of one instance without overlap.
    pub cost_ps: u64,
    /// No choice from the e-graph costs less.
    pub bound_ps: u64,
    /// Why saturation ended.
    pub stop: StopReason,
}

impl RegionReport {
    /// How far the cost may lie above the best choice; 0 where the choice is proven.
    pub fn gap_ps(&self) -> u64 {
        self.cost_ps - self.bound_ps
    }
}

/// What fusion did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FuseReport {
    /// In order of the result's nodes.
    pub fusions: Vec<Fusion>,
    pub n_regions: usize,
    /// Regions that were saturated; the others are copies of these.
    pub n_distinct_regions: usize,
    /// The distinct ones, in order of first appearance.
    pub regions: Vec<RegionReport>,
    /// Nodes of all e-graphs.
    pub n_enodes: usize,
    pub n_iterations: usize,
    /// How often saturation stopped for each reason, in order of [`StopReason`].
    pub stop_reasons: Vec<(StopReason, usize)>,
    /// Estimated time without overlap, before and after, and what no choice can beat.
    pub cost_before_ps: u64,
    pub cost_ps: u64,
    pub bound_ps: u64,
    /// How often each rule was applied, in order of the rule set; rules that were not are left out.
    pub n_applications: Vec<(&'static str, u64)>,
    /// Applications counted against the fuel.
    pub fuel_spent: u64,
    /// The application that took the last of the fuel.
    pub last_change: Option<String>,
}

impl FuseReport {
    /// How far the cost may lie above the best choice.
    pub fn gap_ps(&self) -> u64 {
        self.cost_ps - self.bound_ps
    }

    /// The distinct region with the largest gap over all its instances; `None` where every choice is
    /// proven.
    pub fn worst_region(&self) -> Option<(usize, &RegionReport)> {
        let open = self.regions.iter().enumerate().filter(|(_, region)| region.gap_ps() > 0);
        open.max_by_key(|(at, region)| {
            (region.gap_ps().saturating_mul(region.n_instances as u64), std::cmp::Reverse(*at))
        })
    }

    /// The counts for a pass's statistics.
    pub fn statistics(&self) -> Statistics {
        let mut statistics = Statistics::new();
        statistics.add("regions", self.n_regions as u64);
        statistics.add("distinct_regions", self.n_distinct_regions as u64);
        statistics.add("enodes", self.n_enodes as u64);
        statistics.add("iterations", self.n_iterations as u64);
        for (reason, count) in &self.stop_reasons {
            statistics.add(reason.name(), *count as u64);
        }
        statistics.add("fused_ops", self.fusions.len() as u64);
        statistics.add("cost_before_ps", self.cost_before_ps);
        statistics.add("cost_ps", self.cost_ps);
        statistics.add("bound_ps", self.bound_ps);
        for (name, count) in &self.n_applications {
            statistics.add(name, *count);
        }
        statistics
    }
}

/// Names of all rules with their classes, in the order of the rule set.
pub fn rule_names() -> impl ExactSizeIterator<Item = (&'static str, Numerics)> {
    rules::all().iter().map(|rule| (rule.name, rule.class))
}

/// Names of the fused ops that rules make, in the order of the rule set.
pub fn fused_op_names() -> Vec<&'static str> {
    let mut names: Vec<&'static str> = Vec::new();
    for rule in rules::all() {
        for name in plan::FUSED_OPS {
            if rule.right.makes(name) && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

/// The graph with its fused ops chosen, and what was done.
///
/// # Errors
/// A disabled rule that does not exist, or a fault of the compiler: an ill-typed result.
pub fn fuse(graph: &Graph, options: &FuseOptions) -> Result<(Graph, FuseReport), PassError> {
    let mut fuel = Fuel::new(options.fuel);
    fuse_with(graph, options, &mut fuel)
}

/// As [`fuse`], spending `fuel` instead of the options'.
///
/// # Errors
/// As [`fuse`].
pub fn fuse_with(graph: &Graph, options: &FuseOptions, fuel: &mut Fuel) -> Result<(Graph, FuseReport), PassError> {
    let internal = |message: String| PassError::Internal { pass: NAME, message };
    if let Some(name) = options.disabled_rules.iter().find(|name| rules::all().iter().all(|rule| rule.name != **name)) {
        return Err(PassError::UnknownRule { name: name.clone() });
    }
    let selection = Selection::new(options.numerics, &options.disabled_rules);
    let target = options.target.target();
    let cut = cut(graph);
    let plans: Vec<Plan> =
        cut.shapes.iter().map(|shape| plan(shape, &selection, target, fuel, &mut Forgotten)).collect();
    let fused = replay::replay(graph, &cut, &plans).map_err(|error| internal(error.message))?;
    let mut report = report(&cut, &plans, fuel);
    report.fusions = fused.fusions;
    Ok((fused.graph, report))
}

/// This pass for a pass list.
pub fn pass(options: FuseOptions) -> impl Pass<Graph> {
    FnPass {
        name: NAME,
        establishes: Phase::Fused,
        run: move |graph: Graph, context: &mut PassContext| {
            let (graph, report) = fuse_with(&graph, &options, &mut context.fuel)?;
            context.statistics = report.statistics();
            Ok(graph)
        },
    }
}

fn report(cut: &Cut, plans: &[Plan], fuel: &Fuel) -> FuseReport {
    let mut report = FuseReport {
        n_regions: cut.regions.len(),
        n_distinct_regions: plans.len(),
        fuel_spent: fuel.spent(),
        last_change: fuel.last().map(str::to_owned),
        ..FuseReport::default()
    };
    let mut n_applications = vec![0; rules::all().len()];
    for (plan, shape) in plans.iter().zip(&cut.shapes) {
        report.regions.push(RegionReport {
            n_nodes: shape.nodes.len(),
            n_instances: 0,
            n_enodes: plan.n_enodes,
            cost_ps: plan.cost_ps,
            bound_ps: plan.bound_ps,
            stop: plan.stop,
        });
        report.n_enodes += plan.n_enodes;
        report.n_iterations += plan.n_iterations;
        match report.stop_reasons.iter_mut().find(|(reason, _)| *reason == plan.stop) {
            Some((_, count)) => *count += 1,
            None => report.stop_reasons.push((plan.stop, 1)),
        }
        for (total, count) in n_applications.iter_mut().zip(&plan.n_applications) {
            *total += count;
        }
    }
    report.stop_reasons.sort_unstable();
    for region in &cut.regions {
        let plan = &plans[region.shape];
        report.cost_before_ps += plan.cost_before_ps;
        report.cost_ps += plan.cost_ps;
        report.bound_ps += plan.bound_ps;
        report.regions[region.shape].n_instances += 1;
    }
    let named = rules::all().iter().map(|rule| rule.name).zip(n_applications);
    report.n_applications = named.filter(|(_, count)| *count > 0).collect();
    report
}

/// Whether a node counts as fused in the report.
fn fusion(node: &plan::PlanNode, locations: &Locations) -> Option<Fusion> {
    is_fused(&node.op).then(|| Fusion {
        op: node.op.name(),
        class: node.class(),
        rules: node.rules.iter().map(|&rule| rules::all()[rule].name).collect(),
        locations: locations.to_vec(),
    })
}

#[cfg(test)]
mod tests;
