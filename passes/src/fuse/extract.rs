//! Chooses one node per class so that the whole costs least, a shared value counted once.
//!
//! The problem is reduced and falls into parts. Each part gets a greedy choice, moves of single
//! classes and of all users of a shared class together, and exact search within a number of steps.
//! What is reported is the cost, and a bound that no choice can beat. Every answer is checked
//! against the problem as it was given.

mod bound;
mod exact;
mod greedy;
mod moves;
mod net;
mod reduce;

use smallvec::SmallVec;

use exact::Search;
use net::{ABSENT, Arc, Net};

/// A node that a class may be computed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// In any unit; all costs together stay below 2^63.
    pub cost: u64,
    /// Classes of its operands, without repetition.
    pub children: SmallVec<[usize; 4]>,
    /// What the caller knows the node by.
    pub term: usize,
}

/// Classes with their candidates, and the classes that are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    /// Candidates of each class; of two that cost the same the first is taken.
    pub classes: Vec<Vec<Candidate>>,
    /// What the choice has to contain.
    pub roots: Vec<usize>,
}

/// How long to look for a better choice and for its proof.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Candidates and children that the search looks at.
    pub max_work: u64,
}

impl Default for Limits {
    /// About a quarter of a second, which only problems that stay open take.
    fn default() -> Self {
        Limits { max_work: 2_000_000 }
    }
}

/// A choice of candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extraction {
    /// Position of the chosen candidate, by class; `None` for classes that are not needed.
    pub choice: Vec<Option<usize>>,
    /// Costs of the chosen candidates, each class once.
    pub cost: u64,
    /// No choice costs less.
    pub bound: u64,
    /// Branches of the exact search.
    pub n_branches: u64,
}

impl Extraction {
    /// True when no choice costs less.
    pub fn is_optimal(&self) -> bool {
        self.cost == self.bound
    }
}

/// The best choice found; `None` when no acyclic choice covers the roots.
pub fn extract(problem: &Problem, limits: Limits) -> Option<Extraction> {
    let net = net_of(problem);
    let mut search = Search::new(limits.max_work);
    let solved = search.solve_net(&net);
    let found = solved.best.map(|(_, chosen)| net.trimmed(&chosen));
    // A choice that its problem does not confirm would be a fault of the search; trees are right
    // always.
    let checked = found.and_then(|chosen| Some((problem.cost_of(&choice_of(&chosen))?, chosen)));
    debug_assert!(checked.is_some() || solved.bound == u64::MAX, "the search returns a valid choice");
    let (cost, chosen) = checked.or_else(|| {
        let (_, trees) = net::tree_costs(&net, &net.order());
        let chosen = net.trimmed(&trees);
        Some((problem.cost_of(&choice_of(&chosen))?, chosen))
    })?;
    let choice = choice_of(&chosen);
    Some(Extraction { choice, cost, bound: solved.bound.min(cost), n_branches: search.n_branches })
}

impl Problem {
    /// Cost of what the roots need under a choice, each class once; `None` where a candidate is
    /// missing or the choice is cyclic.
    pub fn cost_of(&self, choice: &[Option<usize>]) -> Option<u64> {
        const OPEN: u8 = 1;
        const DONE: u8 = 2;
        let mut state = vec![0u8; self.classes.len()];
        let mut cost = 0u64;
        for &root in &self.roots {
            let mut stack: Vec<(usize, usize)> = vec![(root, 0)];
            while let Some((class, at)) = stack.pop() {
                let candidate = self.classes[class].get(choice[class]?)?;
                if at == 0 {
                    match state[class] {
                        DONE => continue,
                        OPEN => return None,
                        _ => state[class] = OPEN,
                    }
                    cost = cost.saturating_add(candidate.cost);
                }
                match candidate.children.get(at) {
                    Some(&child) => {
                        stack.push((class, at + 1));
                        stack.push((child, 0));
                    }
                    None => state[class] = DONE,
                }
            }
        }
        Some(cost)
    }
}

fn choice_of(chosen: &[u32]) -> Vec<Option<usize>> {
    chosen.iter().map(|&position| (position != ABSENT).then_some(position as usize)).collect()
}

fn net_of(problem: &Problem) -> Net {
    let arc = |candidate: &Candidate| {
        let mut children: SmallVec<[u32; 4]> = candidate.children.iter().map(|&child| child as u32).collect();
        children.sort_unstable();
        children.dedup();
        Arc { cost: candidate.cost, children, pick: 0 }
    };
    let mut is_needed = vec![false; problem.classes.len()];
    problem.roots.iter().for_each(|&root| is_needed[root] = true);
    Net { classes: problem.classes.iter().map(|candidates| candidates.iter().map(arc).collect()).collect(), is_needed }
}

#[cfg(test)]
mod tests;
