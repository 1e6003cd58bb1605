//! Exact extraction: reductions, decomposition into independent parts, branch and bound.
//!
//! What is needed for sure is paid once and leaves the problem; what it shares with the rest is then
//! free there, so that the rest falls into parts that do not touch. A cycle through several parts is
//! not excluded here: the caller checks, and the bound holds either way.

use smallvec::SmallVec;

use super::{Choice, ClassSet, Problem};

/// Branches before the search gives up.
const MAX_STEPS: u64 = 4_000;

/// What the search found.
pub(super) struct Solved {
    /// A choice that costs less than the given one, if there is one.
    pub choice: Option<Choice>,
    /// No choice costs less.
    pub bound: u64,
}

/// Looks for a choice that costs less than `upper`.
pub(super) fn solve(problem: &Problem, upper: u64) -> Solved {
    let n_classes = problem.classes.len();
    let mut part = Part { is_needed: vec![false; n_classes], open: Vec::new(), paid: 0, choice: vec![None; n_classes] };
    let mut search = Search { problem, cycle_of: cycles(problem), implied: implied(problem), n_steps: 0 };
    for &root in &problem.roots {
        search.need(&mut part, root);
    }
    let is_feasible = search.reduce(&mut part);
    let start = if is_feasible { search.bound(&part) } else { 0 };
    let found = search.solve(part, upper);
    let is_complete = search.n_steps < MAX_STEPS;
    match found {
        Some((cost, choice)) => Solved { choice: Some(choice), bound: if is_complete { cost } else { start } },
        None => Solved { choice: None, bound: if is_complete { upper } else { start } },
    }
}

/// A partial choice: needed classes are paid, or open and still to be decided.
#[derive(Clone)]
struct Part {
    is_needed: Vec<bool>,
    open: Vec<usize>,
    paid: u64,
    choice: Choice,
}

struct Search<'a> {
    problem: &'a Problem,
    /// Classes that reach each other have one number.
    cycle_of: Vec<usize>,
    /// Classes that every way to compute a class needs.
    implied: Vec<ClassSet>,
    n_steps: u64,
}

impl Search<'_> {
    /// Positions of the candidates of a class that close no cycle and that no other is at least as
    /// good as: one that costs no more and needs nothing else.
    fn undominated(&self, part: &Part, class: usize) -> SmallVec<[usize; 4]> {
        let candidates = &self.problem.classes[class];
        let is_free = |child: usize| part.is_needed[child] && self.cycle_of[child] != self.cycle_of[class];
        let needs_within = |candidate: usize, other: usize| {
            let others = &candidates[other].children;
            candidates[candidate].children.iter().all(|&child| is_free(child) || others.contains(&child))
        };
        let acyclic: SmallVec<[usize; 4]> =
            (0..candidates.len()).filter(|&position| !self.closes_cycle(part, class, position)).collect();
        let is_beaten = |position: usize| {
            acyclic.iter().any(|&other| {
                let is_better = candidates[other].cost <= candidates[position].cost && needs_within(other, position);
                let is_equal = candidates[other].cost == candidates[position].cost && needs_within(position, other);
                other != position && is_better && (!is_equal || other < position)
            })
        };
        acyclic.iter().copied().filter(|&position| !is_beaten(position)).collect()
    }

    /// True when what the candidate needs leads back to its class through what is decided.
    fn closes_cycle(&self, part: &Part, class: usize, position: usize) -> bool {
        let is_near = |child: &usize| self.cycle_of[*child] == self.cycle_of[class];
        let children = &self.problem.classes[class][position].children;
        let mut pending: SmallVec<[usize; 16]> = children.iter().copied().filter(is_near).collect();
        let mut seen: SmallVec<[usize; 16]> = SmallVec::new();
        while let Some(next) = pending.pop() {
            if next == class {
                return true;
            }
            if seen.contains(&next) {
                continue;
            }
            seen.push(next);
            if let Some(chosen) = part.choice[next] {
                pending.extend(self.problem.classes[next][chosen].children.iter().copied().filter(is_near));
            }
        }
        false
    }

    /// Needs a class and all that it cannot do without.
    fn need(&self, part: &mut Part, class: usize) {
        if part.is_needed[class] {
            return;
        }
        for implied in self.implied[class].iter() {
            if !std::mem::replace(&mut part.is_needed[implied], true) {
                part.open.push(implied);
            }
        }
    }

    fn decide(&self, part: &mut Part, class: usize, position: usize) {
        let candidate = &self.problem.classes[class][position];
        part.choice[class] = Some(position);
        part.paid = part.paid.saturating_add(candidate.cost);
        for &child in &candidate.children {
            self.need(part, child);
        }
    }

    /// Decides what has no alternative; false when a class is left without any.
    fn reduce(&self, part: &mut Part) -> bool {
        loop {
            let mut has_changed = false;
            let mut next = 0;
            while next < part.open.len() {
                let class = part.open[next];
                let left = self.undominated(part, class);
                if left.is_empty() {
                    return false;
                }
                if let [only] = left.as_slice() {
                    part.open.swap_remove(next);
                    self.decide(part, class, *only);
                    has_changed = true;
                    continue;
                }
                next += 1;
            }
            if !has_changed {
                return true;
            }
        }
    }

    /// What is paid, and the cheapest candidate of each open class.
    fn bound(&self, part: &Part) -> u64 {
        part.open.iter().fold(part.paid, |sum, &class| sum.saturating_add(self.least(class)))
    }

    fn least(&self, class: usize) -> u64 {
        self.problem.classes[class].iter().map(|candidate| candidate.cost).min().unwrap_or(u64::MAX)
    }

    /// The best completion that costs less than `upper`.
    fn solve(&mut self, mut part: Part, upper: u64) -> Option<(u64, Choice)> {
        if !self.reduce(&mut part) {
            return None;
        }
        let mut cost = self.bound(&part);
        if cost >= upper || self.n_steps >= MAX_STEPS {
            return None;
        }
        let mut choice = part.choice.clone();
        for component in self.components(&part) {
            let least = component.iter().fold(0u64, |sum, &class| sum.saturating_add(self.least(class)));
            let alone = Part { open: component, paid: 0, ..part.clone() };
            let (exact, chosen) = self.branch(&alone, upper - (cost - least))?;
            for (into, from) in choice.iter_mut().zip(chosen) {
                *into = into.or(from);
            }
            cost = cost - least + exact;
        }
        (cost < upper).then_some((cost, choice))
    }

    /// Tries the candidates of one open class.
    fn branch(&mut self, part: &Part, mut upper: u64) -> Option<(u64, Choice)> {
        let class = *part.open.first()?;
        let mut best = None;
        for position in self.undominated(part, class) {
            self.n_steps += 1;
            let mut next = part.clone();
            next.open.swap_remove(0);
            self.decide(&mut next, class, position);
            if let Some((cost, choice)) = self.solve(next, upper) {
                upper = cost;
                best = Some((cost, choice));
            }
        }
        best
    }

    /// Open classes that can reach a common class that is not needed yet, together.
    fn components(&self, part: &Part) -> Vec<Vec<usize>> {
        let mut owner: Vec<Option<usize>> = vec![None; self.problem.classes.len()];
        let mut components: Vec<Vec<usize>> = Vec::new();
        for &root in &part.open {
            let mut joined: SmallVec<[usize; 4]> = SmallVec::new();
            let mut reached: SmallVec<[usize; 16]> = SmallVec::new();
            let mut pending: SmallVec<[usize; 16]> = SmallVec::from_elem(root, 1);
            while let Some(class) = pending.pop() {
                if reached.contains(&class) {
                    continue;
                }
                reached.push(class);
                if let Some(component) = owner[class] {
                    if !joined.contains(&component) {
                        joined.push(component);
                    }
                    continue;
                }
                let children = self.problem.classes[class].iter().flat_map(|candidate| &candidate.children);
                pending.extend(children.copied().filter(|&child| !part.is_needed[child]));
            }
            let mut open = vec![root];
            for &component in &joined {
                open.append(&mut components[component]);
            }
            let own = components.len();
            for slot in &mut owner {
                if slot.is_some_and(|component| joined.contains(&component)) {
                    *slot = Some(own);
                }
            }
            for class in reached {
                owner[class] = Some(own);
            }
            components.push(open);
        }
        components.retain(|open| !open.is_empty());
        components
    }
}

/// Numbers of the strongly connected components of the classes.
fn cycles(problem: &Problem) -> Vec<usize> {
    let n_classes = problem.classes.len();
    let children = |class: usize| problem.classes[class].iter().flat_map(|candidate| &candidate.children).copied();
    let mut parents: Vec<Vec<usize>> = vec![Vec::new(); n_classes];
    for class in 0..n_classes {
        children(class).for_each(|child| parents[child].push(class));
    }
    let mut order = Vec::with_capacity(n_classes);
    let mut is_seen = vec![false; n_classes];
    for start in 0..n_classes {
        let mut stack = vec![(start, false)];
        while let Some((class, is_finished)) = stack.pop() {
            if is_finished {
                order.push(class);
            } else if !std::mem::replace(&mut is_seen[class], true) {
                stack.push((class, true));
                stack.extend(children(class).filter(|&child| !is_seen[child]).map(|child| (child, false)));
            }
        }
    }
    let mut cycle_of = vec![usize::MAX; n_classes];
    for (number, &start) in order.iter().rev().enumerate() {
        let mut pending = vec![start];
        while let Some(class) = pending.pop() {
            if cycle_of[class] == usize::MAX {
                cycle_of[class] = number;
                pending.extend(parents[class].iter().copied().filter(|&parent| cycle_of[parent] == usize::MAX));
            }
        }
    }
    cycle_of
}

/// For each class the classes that all its candidates need in the end, and itself: the greatest
/// solution of "what every candidate's operands imply", which any acyclic choice contains.
fn implied(problem: &Problem) -> Vec<ClassSet> {
    let n_classes = problem.classes.len();
    let mut implied: Vec<ClassSet> = vec![ClassSet::full(n_classes); n_classes];
    loop {
        let mut has_changed = false;
        for class in (0..n_classes).rev() {
            let mut common = ClassSet::full(n_classes);
            for candidate in &problem.classes[class] {
                let mut needs = ClassSet::new(n_classes);
                candidate.children.iter().for_each(|&child| needs.extend(&implied[child]));
                common.intersect(&needs);
            }
            common.insert(class);
            if common != implied[class] {
                implied[class] = common;
                has_changed = true;
            }
        }
        if !has_changed {
            return implied;
        }
    }
}
