use smallvec::SmallVec;

use super::moves::improve;
use super::net::tree_costs;
use super::{Candidate, Limits, Problem, extract, net_of};

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
    let found = extract(&Problem { classes, roots: vec![0] }, Limits::default()).expect("there is a choice");
    assert_eq!((found.cost, found.bound), (22, 22));
    assert_eq!(found.choice[3], Some(0));
}

#[test]
fn a_cycle_is_never_chosen() {
    let classes = vec![vec![candidate(1, &[1]), candidate(50, &[])], vec![candidate(1, &[0]), candidate(100, &[])]];
    let found = extract(&Problem { classes, roots: vec![1] }, Limits::default()).expect("there is a choice");
    assert_eq!(found.cost, 51);
}

#[test]
fn what_only_cycles_compute_is_refused() {
    let classes = vec![vec![candidate(1, &[1])], vec![candidate(1, &[0])]];
    assert_eq!(extract(&Problem { classes, roots: vec![0] }, Limits::default()), None);
}

/// Three results of one tuple at 15 against 9 + 9 + 9 apart.
fn merged_projections() -> Problem {
    let apart = |tuple: usize| vec![candidate(9, &[]), candidate(0, &[tuple])];
    let classes = vec![vec![candidate(0, &[1, 2, 3])], apart(4), apart(4), apart(4), vec![candidate(15, &[])]];
    Problem { classes, roots: vec![0] }
}

#[test]
fn what_pays_only_together_is_chosen_together() {
    let found = extract(&merged_projections(), Limits::default()).expect("there is a choice");
    assert_eq!((found.cost, found.bound), (15, 15));
}

#[test]
fn group_moves_leave_a_choice_that_no_single_move_improves() {
    let net = net_of(&merged_projections());
    let order = net.order();
    let (_, mut chosen) = tree_costs(&net, &order);
    assert_eq!(net.cost_of(&chosen), Some(27));
    improve(&net, &order, &mut chosen, 10_000);
    assert_eq!(net.cost_of(&chosen), Some(15));
}

#[test]
fn a_spent_limit_leaves_a_valid_choice_and_bound() {
    for seed in 0..200u64 {
        let problem = random_problem(seed, 40, Edges::Down);
        let best = extract(&problem, Limits::default());
        let quick = extract(&problem, Limits { max_work: 0 });
        assert_eq!(best.is_some(), quick.is_some(), "seed {seed}");
        let (Some(best), Some(quick)) = (best, quick) else { continue };
        assert!(quick.bound <= best.cost && best.bound <= quick.cost, "seed {seed}");
        assert_eq!(problem.cost_of(&quick.choice), Some(quick.cost), "seed {seed}");
    }
}

#[test]
fn exact_search_matches_exhaustive_search_on_small_problems() {
    for (n_classes, edges, n_seeds) in [(7, Edges::Any, 1_000), (9, Edges::Down, 300), (9, Edges::Any, 300)] {
        for seed in 0..n_seeds {
            let problem = random_problem(seed, n_classes, edges);
            let found = extract(&problem, Limits::default());
            assert_eq!(found.as_ref().map(|found| found.cost), exhaustive(&problem), "seed {seed}");
            assert!(found.is_none_or(|found| found.is_optimal()), "seed {seed}");
        }
    }
}

#[test]
fn long_chains_need_no_stack() {
    const LENGTH: usize = 100_000;
    let link = |class: usize| match class + 1 < LENGTH {
        true => vec![candidate(3, &[class + 1]), candidate(2, &[(class + 2).min(LENGTH - 1)])],
        false => vec![candidate(1, &[])],
    };
    let problem = Problem { classes: (0..LENGTH).map(link).collect(), roots: vec![0] };
    let found = extract(&problem, Limits::default()).expect("there is a choice");
    // Two classes at a time but for the last step.
    assert_eq!(found.cost, 2 * (LENGTH as u64 / 2) + 1);
}

/// Which classes an arc may need.
#[derive(Copy, Clone)]
enum Edges {
    Any,
    /// Those with higher numbers.
    Down,
}

fn random_problem(seed: u64, n_classes: usize, edges: Edges) -> Problem {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound as u64) as usize
    };
    let mut classes = Vec::new();
    for class in 0..n_classes {
        let n_candidates = 1 + next(3);
        let mut of_class = Vec::new();
        for _ in 0..n_candidates {
            let n_children = next(4);
            let least = match edges {
                Edges::Any => 0,
                Edges::Down => class + 1,
            };
            let mut children = Vec::new();
            if least < n_classes {
                children.extend((0..n_children).map(|_| least + next(n_classes - least)));
            }
            children.sort_unstable();
            children.dedup();
            of_class.push(candidate(next(20) as u64, &children));
        }
        classes.push(of_class);
    }
    Problem { classes, roots: vec![0, 1] }
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
    choices.filter_map(|choice| problem.cost_of(&choice)).min()
}
