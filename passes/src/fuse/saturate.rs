//! Applies the rules to an e-graph until nothing new is found, stage by stage.
//!
//! The loop is our own and not egg's `Runner`, which reads a clock: here the only limits are
//! numbers of nodes and iterations, so that a run is the same everywhere, and each application is
//! recorded with the nodes it matched, which is the proof of what it adds.

use egg::Id;
use smallvec::SmallVec;

use super::pattern::Match;
use super::rules::{self, Reason, Rule, STAGES, Scene, Stage};
use super::template::Built;
use super::term::{Origin, TermGraph};
use crate::Numerics;
use crate::manager::Fuel;

/// Iterations of one stage.
const MAX_ITERATIONS: usize = 24;

/// A use of a rule that changed the e-graph.
#[derive(Clone, Debug)]
pub(super) struct Application {
    /// Position in [`rules::all`].
    pub rule: usize,
    /// Where the matched nodes come from.
    pub origins: SmallVec<[Origin; 8]>,
    /// Earlier applications that the match rests on because they made classes equal.
    pub merges: SmallVec<[u32; 4]>,
}

/// Why saturation ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StopReason {
    /// No rule finds anything new.
    Saturated,
    /// The e-graph has grown to its limit; what it holds is right, more might be found.
    NodeLimit,
    /// A stage has run for its most iterations.
    IterationLimit,
    /// The fuel is spent.
    OutOfFuel,
}

impl StopReason {
    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            StopReason::Saturated => "saturated",
            StopReason::NodeLimit => "node-limit",
            StopReason::IterationLimit => "iteration-limit",
            StopReason::OutOfFuel => "out-of-fuel",
        }
    }
}

/// Which rules run.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    enabled: Vec<usize>,
}

impl Selection {
    /// The rules that `numerics` allows and that are not disabled by name.
    pub fn new(numerics: Numerics, disabled: &[String]) -> Self {
        let is_enabled = |rule: &Rule| numerics.allows(rule.class) && !disabled.iter().any(|name| name == rule.name);
        let enabled = rules::all().iter().enumerate().filter(|(_, rule)| is_enabled(rule)).map(|(at, _)| at).collect();
        Selection { enabled }
    }

    /// Positions of the rules in [`rules::all`].
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.enabled.iter().copied()
    }
}

/// What saturation did.
#[derive(Debug)]
pub(super) struct Saturation {
    pub applications: Vec<Application>,
    pub n_iterations: usize,
    pub stop: StopReason,
}

/// Whether the reasons of right sides that do not apply are kept.
pub(super) trait Refusals {
    /// A rule matched but does not apply.
    fn refused(&mut self, rule: usize, root: Id, reason: Reason);
}

/// Forgets all refusals.
pub(super) struct Forgotten;

impl Refusals for Forgotten {
    fn refused(&mut self, _: usize, _: Id, _: Reason) {}
}

/// Runs the rules to saturation; the e-graph grows to at most `max_nodes`.
pub(super) fn saturate(
    graph: &mut TermGraph,
    selection: &Selection,
    max_nodes: usize,
    fuel: &mut Fuel,
    refusals: &mut dyn Refusals,
) -> Saturation {
    let mut saturation = Saturation { applications: Vec::new(), n_iterations: 0, stop: StopReason::Saturated };
    // Rules up to this stage find nothing new in the graph as it is.
    let mut settled: Option<Stage> = None;
    for stage in STAGES {
        for n_iterations in 1.. {
            let found = search(graph, selection, stage, settled);
            let n_before = saturation.applications.len();
            let is_dry = apply_all(graph, &found, fuel, &mut saturation.applications, refusals);
            graph.rebuild();
            saturation.n_iterations += 1;
            let stop = if is_dry {
                Some(StopReason::OutOfFuel)
            } else if graph.total_number_of_nodes() > max_nodes {
                Some(StopReason::NodeLimit)
            } else {
                None
            };
            if let Some(stop) = stop {
                saturation.stop = stop;
                return saturation;
            }
            if saturation.applications.len() == n_before {
                settled = Some(stage);
                break;
            }
            settled = None;
            if n_iterations == MAX_ITERATIONS {
                saturation.stop = StopReason::IterationLimit;
                break;
            }
        }
    }
    saturation
}

/// All matches of the rules of a stage and the ones before it that are not settled, in order of
/// rules.
fn search(graph: &TermGraph, selection: &Selection, stage: Stage, settled: Option<Stage>) -> Vec<(usize, Vec<Match>)> {
    let all = rules::all();
    let mut found = Vec::new();
    for position in selection.iter() {
        let rule = &all[position];
        let classes = rule.left.discriminant().and_then(|kind| graph.classes_for_op(&kind));
        let is_due = rule.stage <= stage && settled.is_none_or(|settled| rule.stage > settled);
        let (Some(classes), true) = (classes, is_due) else { continue };
        let mut matches = Vec::new();
        for class in classes {
            rule.left.matches(&rule.names, graph, class, &mut matches);
        }
        if !matches.is_empty() {
            found.push((position, matches));
        }
    }
    found
}

/// Applies the matches; true when the fuel ended.
fn apply_all(
    graph: &mut TermGraph,
    found: &[(usize, Vec<Match>)],
    fuel: &mut Fuel,
    applications: &mut Vec<Application>,
    refusals: &mut dyn Refusals,
) -> bool {
    for (position, matches) in found {
        let rule = &rules::all()[*position];
        for found in matches {
            let built = match right_side(rule, graph, found) {
                Ok(built) => built,
                Err(reason) => {
                    refusals.refused(*position, found.root, reason);
                    continue;
                }
            };
            let known = built.lookup(graph);
            if known.is_some_and(|known| graph.find(known) == graph.find(found.root)) {
                continue;
            }
            if !fuel.burn(|| format!("rule {}", rule.name)) {
                return true;
            }
            let id = applications.len() as u32;
            let mut merges = found.merges.clone();
            merges.sort_unstable();
            merges.dedup();
            applications.push(Application { rule: *position, origins: found.origins.clone(), merges });
            join(graph, found.root, &built, known, id);
        }
    }
    false
}

fn right_side(rule: &Rule, graph: &TermGraph, found: &Match) -> Result<Built, Reason> {
    let scene = Scene { graph, names: &rule.names, found };
    if let Some(condition) = rule.condition {
        condition(&scene)?;
    }
    rule.right.build(&scene)
}

/// Makes the class of the left side and the right side one.
fn join(graph: &mut TermGraph, root: Id, built: &Built, known: Option<Id>, application: u32) {
    graph.analysis.is_applying = true;
    let class = known.unwrap_or_else(|| built.add(graph, Origin::Derived(application)));
    graph.union(root, class);
    if known.is_some() {
        graph.analysis.merges.push(application);
        let root = graph.find(root);
        graph[root].data.merges.push(application);
    }
    graph.analysis.is_applying = false;
}
