//! Chooses one node per class so that the whole costs least, a shared value counted once.
//!
//! Bottom-up on tree cost, then on the cost of the reachable DAG, then moves of single classes and
//! of all results of a tuple together, then exact search within a number of steps. What is reported
//! is the cost, and a bound that no choice can beat.

mod exact;

use smallvec::SmallVec;

/// A node that a class may be computed by.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub cost: u64,
    /// Classes of its operands, without repetition.
    pub children: SmallVec<[usize; 4]>,
    /// Position of the node in its class.
    pub term: usize,
}

/// Classes with their candidates, best first where costs tie, and the classes that are wanted.
#[derive(Clone, Debug, Default)]
pub(super) struct Problem {
    pub classes: Vec<Vec<Candidate>>,
    pub roots: Vec<usize>,
    /// Classes that only make sense together: all results of a tuple, with the candidate of each.
    pub groups: Vec<Vec<(usize, usize)>>,
}

/// A choice of candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extraction {
    /// Position of the chosen candidate, by class; `None` for classes that are not needed.
    pub choice: Vec<Option<usize>>,
    pub cost: u64,
    /// No choice costs less.
    pub bound: u64,
}

/// The best choice found; `None` when no acyclic choice covers the roots.
pub(super) fn extract(problem: &Problem) -> Option<Extraction> {
    let tree = by_tree_cost(problem);
    let dag = by_dag_cost(problem);
    let starts = [tree, dag].into_iter().filter_map(|choice| Some((cost_of(problem, &choice)?, choice)));
    let (cost, choice) = starts.min_by_key(|(cost, _)| *cost)?;
    let (cost, choice) = improve(problem, cost, choice);
    let exact = exact::solve(problem, cost);
    let (cost, choice) = match exact.choice.and_then(|choice| Some((cost_of(problem, &choice)?, choice))) {
        Some((lower, better)) if lower < cost => (lower, better),
        Some(_) | None => (cost, choice),
    };
    let bound = exact.bound;
    let needed = needed_of(problem, &choice);
    let choice = choice.into_iter().zip(needed).map(|(chosen, is_needed)| chosen.filter(|_| is_needed)).collect();
    Some(Extraction { choice, cost, bound: bound.min(cost) })
}

type Choice = Vec<Option<usize>>;

/// For each class the candidate whose operands' costs add up to least, repeated operands repeated.
fn by_tree_cost(problem: &Problem) -> Choice {
    let mut best: Vec<Option<u64>> = vec![None; problem.classes.len()];
    let mut choice: Choice = vec![None; problem.classes.len()];
    loop {
        let mut is_stable = true;
        for (class, candidates) in problem.classes.iter().enumerate().rev() {
            for (position, candidate) in candidates.iter().enumerate() {
                let below: Option<u64> = candidate
                    .children
                    .iter()
                    .try_fold(candidate.cost, |sum, &child| Some(sum.saturating_add(best[child]?)));
                let Some(cost) = below else { continue };
                if best[class].is_none_or(|known| cost < known) {
                    best[class] = Some(cost);
                    choice[class] = Some(position);
                    is_stable = false;
                }
            }
        }
        if is_stable {
            return choice;
        }
    }
}

/// A set of classes.
#[derive(Clone, PartialEq, Eq)]
struct ClassSet {
    words: Vec<u64>,
}

impl ClassSet {
    fn new(n_classes: usize) -> Self {
        ClassSet { words: vec![0; n_classes.div_ceil(64)] }
    }

    fn full(n_classes: usize) -> Self {
        let mut set = ClassSet::new(n_classes);
        (0..n_classes).for_each(|class| set.insert(class));
        set
    }

    fn intersect(&mut self, other: &ClassSet) {
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word &= more;
        }
    }

    fn insert(&mut self, class: usize) {
        self.words[class / 64] |= 1 << (class % 64);
    }

    fn contains(&self, class: usize) -> bool {
        self.words[class / 64] >> (class % 64) & 1 == 1
    }

    fn extend(&mut self, other: &ClassSet) {
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let bits = std::iter::successors(Some(word), |rest| Some(rest & rest.wrapping_sub(1)));
            bits.take_while(|rest| *rest != 0).map(move |rest| at * 64 + rest.trailing_zeros() as usize)
        })
    }
}

/// For each class the candidate under which all classes that it reaches cost least together.
fn by_dag_cost(problem: &Problem) -> Choice {
    let n_classes = problem.classes.len();
    let mut reached: Vec<Option<(ClassSet, u64)>> = vec![None; n_classes];
    let mut choice: Choice = vec![None; n_classes];
    for _ in 0..=n_classes {
        let mut is_stable = true;
        // Operands mostly have higher numbers, so that this order settles in few rounds.
        for (class, candidates) in problem.classes.iter().enumerate().rev() {
            for (position, candidate) in candidates.iter().enumerate() {
                let mut set = ClassSet::new(n_classes);
                let is_ready = candidate.children.iter().all(|&child| match &reached[child] {
                    Some((below, _)) => {
                        set.extend(below);
                        true
                    }
                    None => false,
                });
                if !is_ready || set.contains(class) {
                    continue;
                }
                let chosen_cost = |below: usize| choice[below].map_or(0, |at| problem.classes[below][at].cost);
                let cost = set.iter().fold(candidate.cost, |sum, below| sum.saturating_add(chosen_cost(below)));
                if reached[class].as_ref().is_none_or(|(_, known)| cost < *known) {
                    set.insert(class);
                    reached[class] = Some((set, cost));
                    choice[class] = Some(position);
                    is_stable = false;
                }
            }
        }
        if is_stable {
            break;
        }
    }
    choice
}

/// Classes that the roots need under a choice.
fn needed_of(problem: &Problem, choice: &Choice) -> Vec<bool> {
    let mut needed = vec![false; problem.classes.len()];
    let mut pending = problem.roots.clone();
    while let Some(class) = pending.pop() {
        if std::mem::replace(&mut needed[class], true) {
            continue;
        }
        if let Some(position) = choice[class] {
            pending.extend(&problem.classes[class][position].children);
        }
    }
    needed
}

/// Cost of what the roots need under a choice; `None` where something is missing or cyclic.
fn cost_of(problem: &Problem, choice: &Choice) -> Option<u64> {
    const DONE: u8 = 2;
    const OPEN: u8 = 1;
    let mut state = vec![0u8; problem.classes.len()];
    let mut cost = 0u64;
    for &root in &problem.roots {
        let mut stack: Vec<(usize, usize)> = vec![(root, 0)];
        while let Some((class, at)) = stack.pop() {
            if at == 0 {
                match state[class] {
                    DONE => continue,
                    OPEN => return None,
                    _ => state[class] = OPEN,
                }
                cost = cost.saturating_add(problem.classes[class][choice[class]?].cost);
            }
            match problem.classes[class][choice[class]?].children.get(at) {
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

/// Changes single classes, and all results of a tuple together, while that lowers the cost.
fn improve(problem: &Problem, mut cost: u64, mut choice: Choice) -> (u64, Choice) {
    let singles = problem.classes.iter().enumerate().filter(|(_, candidates)| candidates.len() > 1);
    let singles = singles.flat_map(|(class, candidates)| (0..candidates.len()).map(move |at| vec![(class, at)]));
    let moves: Vec<Vec<(usize, usize)>> = singles.chain(problem.groups.iter().cloned()).collect();
    loop {
        let before = cost;
        for changed in &moves {
            let mut next = choice.clone();
            for &(class, position) in changed {
                next[class] = Some(position);
            }
            if let Some(lower) = cost_of(problem, &next).filter(|lower| *lower < cost) {
                (cost, choice) = (lower, next);
            }
        }
        if cost == before {
            return (cost, choice);
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::{Candidate, Problem, extract};

    fn candidate(cost: u64, children: &[usize]) -> Candidate {
        Candidate { cost, children: SmallVec::from_slice(children), term: 0 }
    }

    #[test]
    fn a_shared_value_is_paid_once() {
        // Tree cost prefers 12 + 12, the DAG shares the class that costs 20.
        let classes = vec![
            vec![candidate(0, &[1, 2])],
            vec![candidate(12, &[]), candidate(1, &[3])],
            vec![candidate(12, &[]), candidate(1, &[3])],
            vec![candidate(20, &[])],
        ];
        let found = extract(&Problem { classes, roots: vec![0], groups: Vec::new() }).expect("there is a choice");
        assert_eq!((found.cost, found.bound), (22, 22));
        assert_eq!(found.choice[3], Some(0));
    }

    #[test]
    fn a_cycle_is_never_chosen() {
        let classes = vec![vec![candidate(1, &[1]), candidate(50, &[])], vec![candidate(1, &[0]), candidate(100, &[])]];
        let found = extract(&Problem { classes, roots: vec![1], groups: Vec::new() }).expect("there is a choice");
        assert_eq!(found.cost, 51);
    }

    #[test]
    fn group_moves_find_what_pays_only_together() {
        // Three results of one tuple at 15 against 9 + 9 + 9 apart.
        let apart = |tuple: usize| vec![candidate(9, &[]), candidate(0, &[tuple])];
        let classes = vec![vec![candidate(0, &[1, 2, 3])], apart(4), apart(4), apart(4), vec![candidate(15, &[])]];
        let groups = vec![vec![(1, 1), (2, 1), (3, 1)]];
        let found = extract(&Problem { classes, roots: vec![0], groups }).expect("there is a choice");
        assert_eq!(found.cost, 15);
    }

    #[test]
    fn exact_search_matches_exhaustive_search_on_small_problems() {
        for seed in 0..60u64 {
            let problem = random_problem(seed);
            assert_eq!(extract(&problem).map(|found| found.cost), exhaustive(&problem), "seed {seed}");
        }
    }

    fn random_problem(seed: u64) -> Problem {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = move |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % bound
        };
        let n_classes = 7;
        let mut classes = Vec::new();
        for _ in 0..n_classes {
            let n_candidates = 1 + next(2);
            let mut of_class = Vec::new();
            for _ in 0..n_candidates {
                let n_children = next(3);
                let mut children: Vec<usize> = (0..n_children).map(|_| next(n_classes) as usize).collect();
                children.dedup();
                of_class.push(candidate(next(20), &children));
            }
            classes.push(of_class);
        }
        Problem { classes, roots: vec![0, 1], groups: Vec::new() }
    }

    fn exhaustive(problem: &Problem) -> Option<u64> {
        let n_choices: usize = problem.classes.iter().map(Vec::len).product();
        let choices = (0..n_choices).map(|mut index| {
            let pick = |of_class: &Vec<Candidate>| {
                let position = index % of_class.len();
                index /= of_class.len();
                Some(position)
            };
            problem.classes.iter().map(pick).collect::<Vec<_>>()
        });
        choices.filter_map(|choice| super::cost_of(problem, &choice)).min()
    }
}
