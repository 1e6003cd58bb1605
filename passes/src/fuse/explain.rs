//! Why a graph has no fused op of some kind: what came nearest, and what it fell short of.
//!
//! The answers are tried from the strongest to the weakest: the op is there; it lost on cost; a
//! looser class or a disabled rule would have made it; a rule matched but does not apply; the
//! program is known to be another function; the best partial match of a rule.

use std::fmt;

use egg::Id;
use ir::graph::LocationId;
use ir::{Graph, Op};

use super::FuseOptions;
use super::pattern::{Match, Pattern};
use super::plan::{Proof, Terms, forced_cost, max_nodes, n_planned, terms};
use super::region::{Cut, cut};
use super::rules::{self, Reason, Rule, misses};
use super::saturate::{Refusals, Saturation, Selection, saturate};
use super::term::{Head, Origin, TermGraph};
use crate::manager::{Fuel, PassError};
use crate::numerics::Numerics;

/// Why a pattern is not in the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhyNot {
    /// Name of the fused op.
    pub op: String,
    pub answer: Answer,
    /// The places of the model that the answer is about.
    pub locations: Vec<LocationId>,
}

/// The strongest answer that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is recognised, this many times.
    Recognised { count: usize },
    /// It is an alternative that costs more than what was chosen.
    LostOnCost { cost_ps: u64, chosen_ps: u64 },
    /// A rule on its proof is of a looser class than allowed.
    TooStrict { rule: &'static str, class: Numerics, allowed: Numerics },
    /// A rule on its proof is disabled.
    Disabled { rule: &'static str },
    /// A rule matched and gave a reason not to apply.
    Refused { rule: &'static str, reason: String },
    /// The program is another function.
    Another { reason: &'static str },
    /// The best partial match of a rule: how many of its ops fit, and the first that does not.
    Partial { rule: &'static str, n_fitting: usize, n_ops: usize, expected: String, found: String },
    /// Nothing in the graph resembles it.
    Nothing,
}

impl fmt::Display for WhyNot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = &self.op;
        match &self.answer {
            Answer::Recognised { count: 1 } => write!(formatter, "`{op}` is recognised once"),
            Answer::Recognised { count } => write!(formatter, "`{op}` is recognised, {count} times"),
            Answer::LostOnCost { cost_ps, chosen_ps } => {
                let (cost, chosen) = (*cost_ps as f64 / 1e6, *chosen_ps as f64 / 1e6);
                write!(formatter, "`{op}` is possible and not chosen: {cost:.3} us against {chosen:.3} us without it")
            }
            Answer::TooStrict { rule, class, allowed } => {
                write!(
                    formatter,
                    "`{op}` needs the rule `{rule}` of class `{class}`, and `{allowed}` does not allow it"
                )
            }
            Answer::Disabled { rule } => write!(formatter, "`{op}` needs the rule `{rule}`, which is disabled"),
            Answer::Refused { rule, reason } => {
                write!(formatter, "`{op}`: the rule `{rule}` matches and does not apply: {reason}")
            }
            Answer::Another { reason } => write!(formatter, "this is not `{op}`: {reason}"),
            Answer::Partial { rule, n_fitting, n_ops, expected, found } => write!(
                formatter,
                "`{op}` is not recognised: {n_fitting} of {n_ops} ops fit the rule `{rule}`, then {expected} is \
                 expected and {found} is found"
            ),
            Answer::Nothing => write!(formatter, "nothing in the graph resembles `{op}`"),
        }
    }
}

/// Why a graph in canonical form has no `op` after [`super::fuse`].
///
/// # Errors
/// When no rule makes an op of this name.
pub fn why_not(graph: &Graph, op: &str, options: &FuseOptions) -> Result<WhyNot, PassError> {
    let makers: Vec<&Rule> = rules::all().iter().filter(|rule| rule.right.makes(op)).collect();
    if makers.is_empty() {
        return Err(PassError::UnknownRule { name: op.to_owned() });
    }
    let question = Question { graph, op, options, makers, cut: cut(graph) };
    let (answer, locations) = question.answer();
    Ok(WhyNot { op: op.to_owned(), answer, locations })
}

type Located = (Answer, Vec<LocationId>);

struct Question<'a> {
    graph: &'a Graph,
    op: &'a str,
    options: &'a FuseOptions,
    /// Rules whose right side has the op.
    makers: Vec<&'static Rule>,
    cut: Cut,
}

/// A saturated region.
struct Saturated {
    shape: usize,
    terms: Terms,
    saturation: Saturation,
    refusals: Kept,
}

/// Keeps the refusals.
#[derive(Default)]
struct Kept {
    refusals: Vec<(usize, Id, Reason)>,
}

impl Refusals for Kept {
    fn refused(&mut self, rule: usize, root: Id, reason: Reason) {
        self.refusals.push((rule, root, reason));
    }
}

impl Question<'_> {
    fn answer(&self) -> Located {
        let allowed = self.saturate_all(&Selection::new(self.options.numerics, &self.options.disabled_rules));
        if let Some(found) = self.chosen_or_too_dear(&allowed) {
            return found;
        }
        let all = self.saturate_all(&Selection::new(Numerics::Approx, &[]));
        self.not_allowed(&all)
            .or_else(|| self.another(&all))
            .or_else(|| self.refused(&all))
            .or_else(|| self.partial(&all))
            .unwrap_or((Answer::Nothing, Vec::new()))
    }

    fn saturate_all(&self, selection: &Selection) -> Vec<Saturated> {
        let run = |(shape, of): (usize, &super::region::Shape)| {
            let mut terms = terms(of);
            let mut refusals = Kept::default();
            let fuel = &mut Fuel::unlimited();
            let saturation = saturate(&mut terms.graph, selection, max_nodes(of), fuel, &mut refusals);
            Saturated { shape, terms, saturation, refusals }
        };
        self.cut.shapes.iter().enumerate().map(run).collect()
    }

    fn is_wanted(&self, graph: &TermGraph, head: Head) -> bool {
        match head {
            Head::Op { op, .. } => graph.analysis.op(op).name() == self.op,
            Head::Leaf(_) | Head::Result(_) => false,
        }
    }

    /// The op is chosen, or an alternative that was not.
    fn chosen_or_too_dear(&self, regions: &[Saturated]) -> Option<Located> {
        let target = self.options.target.target();
        let mut too_dear = None;
        let mut count = 0;
        for region in regions {
            let Terms { graph, roots } = &region.terms;
            let mut classes =
                graph.classes().filter(|class| class.nodes.iter().any(|term| self.is_wanted(graph, term.head)));
            let Some(class) = classes.next() else { continue };
            let n_copies = self.cut.regions.iter().filter(|other| other.shape == region.shape).count();
            count += n_copies * n_planned(target, graph, roots, self.op);
            if let Some((cost_ps, chosen_ps)) = forced_cost(target, graph, roots, class.id, self.op) {
                let locations = self.locations_of_class(region, class.id);
                too_dear.get_or_insert((Answer::LostOnCost { cost_ps, chosen_ps }, locations));
            }
        }
        if count > 0 {
            return Some((Answer::Recognised { count }, Vec::new()));
        }
        too_dear
    }

    /// With all rules the op is found; the rules on its proof say which one is missing.
    fn not_allowed(&self, regions: &[Saturated]) -> Option<Located> {
        for region in regions {
            let graph = &region.terms.graph;
            for class in graph.classes() {
                if let Some(term) = class.nodes.iter().find(|term| self.is_wanted(graph, term.head)) {
                    let proof = Proof::of(term.origin, &region.saturation);
                    let rules = proof.rules.iter().map(|&rule| &rules::all()[rule]);
                    let is_allowed = |rule: &&Rule| self.options.numerics.allows(rule.class);
                    let is_disabled = |rule: &&Rule| self.options.disabled_rules.iter().any(|name| name == rule.name);
                    let answer = match rules.clone().find(|rule| !is_allowed(rule)) {
                        Some(rule) => {
                            let allowed = self.options.numerics;
                            Answer::TooStrict { rule: rule.name, class: rule.class, allowed }
                        }
                        None => Answer::Disabled { rule: rules.clone().find(is_disabled)?.name },
                    };
                    return Some((answer, self.locations(region, &proof.sources)));
                }
            }
        }
        None
    }

    /// A known program that is another function.
    fn another(&self, regions: &[Saturated]) -> Option<Located> {
        for miss in misses().iter().filter(|miss| miss.op == self.op) {
            for region in regions {
                let graph = &region.terms.graph;
                for class in candidates(graph, &miss.pattern) {
                    let mut found: Vec<Match> = Vec::new();
                    miss.pattern.matches(&miss.names, graph, class, &mut found);
                    let Some(found) = found.first() else { continue };
                    let sources: Vec<u32> =
                        found.origins.iter().flat_map(|&origin| self.sources(region, origin)).collect();
                    return Some((Answer::Another { reason: miss.message }, self.locations(region, &sources)));
                }
            }
        }
        None
    }

    /// A rule that makes the op matched and does not apply.
    fn refused(&self, regions: &[Saturated]) -> Option<Located> {
        for region in regions {
            let makes = |rule: &usize| self.makers.iter().any(|maker| maker.name == rules::all()[*rule].name);
            let mut refusals = region.refusals.refusals.iter().filter(|(rule, _, _)| makes(rule));
            if let Some((rule, root, reason)) = refusals.next() {
                let answer = Answer::Refused { rule: rules::all()[*rule].name, reason: reason.clone() };
                return Some((answer, self.locations_of_class(region, *root)));
            }
        }
        None
    }

    /// The best partial match of a rule that makes the op.
    fn partial(&self, regions: &[Saturated]) -> Option<Located> {
        let mut best: Option<(usize, Located)> = None;
        for rule in &self.makers {
            let n_ops = n_ops(&rule.left);
            for region in regions {
                let graph = &region.terms.graph;
                for class in candidates(graph, &rule.left) {
                    let fit = fit(graph, &rule.left, class);
                    let Some(gap) = fit.gap else { continue };
                    // One op in common, or less than half of them, is no resemblance.
                    if fit.n_fitting < 2 || 2 * fit.n_fitting < n_ops {
                        continue;
                    }
                    if best.as_ref().is_none_or(|(n_fitting, _)| fit.n_fitting > *n_fitting) {
                        let locations = self.locations_of_class(region, gap.class);
                        let (expected, found) = (gap.expected, shown(graph, gap.class));
                        let answer =
                            Answer::Partial { rule: rule.name, n_fitting: fit.n_fitting, n_ops, expected, found };
                        best = Some((fit.n_fitting, (answer, locations)));
                    }
                }
            }
        }
        best.map(|(_, located)| located)
    }

    fn sources(&self, region: &Saturated, origin: Origin) -> Vec<u32> {
        Proof::of(origin, &region.saturation).sources.to_vec()
    }

    fn locations_of_class(&self, region: &Saturated, class: Id) -> Vec<LocationId> {
        let graph = &region.terms.graph;
        let first = graph[graph.find(class)].nodes.iter().map(|term| term.origin).min();
        let sources = first.map(|origin| self.sources(region, origin)).unwrap_or_default();
        self.locations(region, &sources)
    }

    /// Locations of nodes of the first region of a shape.
    fn locations(&self, region: &Saturated, sources: &[u32]) -> Vec<LocationId> {
        let Some(first) = self.cut.regions.iter().find(|other| other.shape == region.shape) else { return Vec::new() };
        let nodes = sources.iter().map(|&source| self.graph.node(first.nodes[source as usize]));
        let mut locations: Vec<LocationId> = nodes.flat_map(|node| node.locations.iter().copied()).collect();
        locations.sort_unstable();
        locations.dedup();
        locations
    }
}

/// Classes in which a pattern's root may match.
fn candidates(graph: &TermGraph, pattern: &Pattern) -> Vec<Id> {
    let classes = pattern.discriminant().and_then(|kind| graph.classes_for_op(&kind));
    classes.map(Iterator::collect).unwrap_or_default()
}

/// How far a pattern fits in a class, variables unbound.
struct Fit {
    n_fitting: usize,
    gap: Option<Gap>,
}

/// The first place where a pattern does not fit.
struct Gap {
    class: Id,
    expected: String,
}

fn n_ops(pattern: &Pattern) -> usize {
    match pattern {
        Pattern::Variable { .. } | Pattern::Literal { .. } => 0,
        Pattern::Named { pattern, .. } => n_ops(pattern),
        Pattern::Result { tuple, .. } => n_ops(tuple),
        Pattern::Op { children, .. } => 1 + children.iter().map(n_ops).sum::<usize>(),
    }
}

fn fit(graph: &TermGraph, pattern: &Pattern, class: Id) -> Fit {
    let class = graph.find(class);
    let number = graph[class].data.number;
    let missing = |expected: String| Fit { n_fitting: 0, gap: Some(Gap { class, expected }) };
    match pattern {
        Pattern::Variable { is_number: true, .. } if number.is_none() => missing("a number".to_owned()),
        Pattern::Variable { .. } => Fit { n_fitting: 0, gap: None },
        Pattern::Literal { number: literal, .. } => match number {
            Some(number) if (number - literal).abs() <= 1e-6 * literal.abs() => Fit { n_fitting: 0, gap: None },
            Some(_) | None => missing(format!("the number {literal}")),
        },
        Pattern::Named { pattern, .. } => fit(graph, pattern, class),
        Pattern::Result { .. } | Pattern::Op { .. } => fit_node(graph, pattern, class),
    }
}

/// The best of the nodes of a class.
fn fit_node(graph: &TermGraph, pattern: &Pattern, class: Id) -> Fit {
    let (children, own): (&[Pattern], usize) = match pattern {
        Pattern::Op { children, .. } => (children, 1),
        Pattern::Result { tuple, .. } => (std::slice::from_ref(tuple.as_ref()), 0),
        Pattern::Variable { .. } | Pattern::Literal { .. } | Pattern::Named { .. } => (&[], 0),
    };
    let mut best: Option<Fit> = None;
    for term in &graph[class].nodes {
        let is_same = Some(egg::Language::discriminant(term)) == pattern.discriminant();
        if !is_same || term.children.len() != children.len() {
            continue;
        }
        let orders: &[bool] =
            if matches!(term.head, Head::Op { is_commutative: true, .. }) { &[false, true] } else { &[false] };
        for &is_swapped in orders {
            let mut whole = Fit { n_fitting: own, gap: None };
            for (position, child) in children.iter().enumerate() {
                let at = if is_swapped { children.len() - 1 - position } else { position };
                let part = fit(graph, child, term.children[at]);
                whole.n_fitting += part.n_fitting;
                whole.gap = whole.gap.or(part.gap);
            }
            if best.as_ref().is_none_or(|best| whole.n_fitting > best.n_fitting) {
                best = Some(whole);
            }
        }
    }
    best.unwrap_or_else(|| Fit { n_fitting: 0, gap: Some(Gap { class, expected: expected(pattern) }) })
}

fn expected(pattern: &Pattern) -> String {
    match pattern {
        Pattern::Op { kind, .. } => format!("`{}`", Op::NAMES[usize::from(kind.0)]),
        Pattern::Result { index, .. } => format!("result {index} of a tuple"),
        Pattern::Named { pattern, .. } => expected(pattern),
        Pattern::Variable { .. } => "a value".to_owned(),
        Pattern::Literal { number, .. } => format!("the number {number}"),
    }
}

/// What a class is, by its first node of the model.
fn shown(graph: &TermGraph, class: Id) -> String {
    let class = &graph[graph.find(class)];
    if let Some(number) = class.data.number {
        return format!("the number {number}");
    }
    let first = class.nodes.iter().min_by_key(|term| term.origin);
    match first.map(|term| term.head) {
        Some(Head::Op { op, .. }) => format!("`{}`", graph.analysis.op(op).name()),
        Some(Head::Result(index)) => format!("result {index} of a tuple"),
        Some(Head::Leaf(_)) | None => format!("an operand of type {}", class.data.types[0]),
    }
}
