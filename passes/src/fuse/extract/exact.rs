//! Exact extraction by branch and bound over reduced nets.
//!
//! A branch makes a class needed or forbids it, or gives a class one of its arcs. Each branch is
//! reduced anew and falls into parts, which are solved one after the other against what the others
//! cost at least; equal parts are solved once. A class above which nothing else uses what is below
//! it is solved by itself first. The search ends after a number of steps of work, not of time; what
//! is proven until then holds.

use smallvec::SmallVec;

use super::bound::{Bounds, lower_bound};
use super::greedy::by_marginal_cost;
use super::moves::{improve, improve_by_detours};
use super::net::{ABSENT, Arc, Chosen, Net, Order};
use super::reduce::{Reduced, reduce};
use crate::hash::StableMap;

/// Branches below each other; deeper ones are given up.
const MAX_DEPTH: u32 = 120;

/// Parts whose solutions are kept.
const MAX_KNOWN: usize = 20_000;

/// Where the detours of an unproven part begin.
const SEED: u64 = 0x5eed;

/// What is known of a net.
#[derive(Clone, Debug)]
pub(super) struct Solved {
    /// The best choice found that costs less than asked for.
    pub best: Option<(u64, Chosen)>,
    /// No choice costs less.
    pub bound: u64,
}

/// The search, with the work that it may do.
pub(super) struct Search {
    pub work: u64,
    pub max_work: u64,
    pub n_branches: u64,
    known: StableMap<Vec<u64>, Solved>,
}

impl Search {
    pub fn new(max_work: u64) -> Self {
        Search { work: 0, max_work, n_branches: 0, known: StableMap::default() }
    }

    fn is_exhausted(&self) -> bool {
        self.work >= self.max_work
    }

    /// The best choice for a net that needs nothing of others.
    pub fn solve_net(&mut self, net: &Net) -> Solved {
        let infeasible = Solved { best: None, bound: u64::MAX };
        let Some(reduced) = reduce(net) else { return infeasible };
        self.work += reduced.work;
        self.solve_parts(&reduced, u64::MAX, 0)
    }

    /// The best choice for a reduced net below `upper`.
    fn solve_parts(&mut self, reduced: &Reduced, upper: u64, depth: u32) -> Solved {
        let parts: Vec<Part<'_>> = reduced.parts.iter().map(Part::new).collect();
        self.work += parts.iter().map(Part::work).sum::<u64>();
        let mut bounds: Vec<u64> = parts.iter().map(|part| part.bounds.bound).collect();
        let mut total = bounds.iter().copied().fold(reduced.paid, u64::saturating_add);
        if total >= upper {
            return Solved { best: None, bound: total };
        }
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by_key(|&at| (parts[at].net.n_classes(), at));
        let mut chosen: Vec<Chosen> = vec![Chosen::new(); parts.len()];
        let mut cost = reduced.paid;
        let mut is_found = true;
        for at in order {
            let rest = total - bounds[at];
            let solved = self.solve_part(&parts[at], upper - rest, depth);
            total = rest.saturating_add(solved.bound.max(bounds[at]));
            bounds[at] = solved.bound.max(bounds[at]);
            match solved.best {
                Some((least, of_part)) => {
                    chosen[at] = of_part;
                    cost = cost.saturating_add(least);
                }
                None => is_found = false,
            }
            if total >= upper {
                return Solved { best: None, bound: total };
            }
            if !is_found && depth > 0 {
                break;
            }
        }
        let best = (is_found && cost < upper).then(|| (cost, reduced.expand(&chosen)));
        Solved { best, bound: total }
    }

    /// The best choice for a part below `upper`.
    fn solve_part(&mut self, part: &Part<'_>, upper: u64, depth: u32) -> Solved {
        let key = key_of(part.net);
        if let Some(known) = self.known.get(&key) {
            let is_optimal = known.best.as_ref().is_some_and(|(cost, _)| *cost == known.bound);
            if is_optimal || known.bound >= upper {
                let best = known.best.clone().filter(|(cost, _)| *cost < upper);
                return Solved { best, bound: known.bound };
            }
        }
        // What is found is worth knowing whole at the top, and below `upper` further down.
        let solved = self.search_part(part, upper, depth);
        debug_assert!(
            solved.best.iter().all(|(cost, chosen)| part.net.cost_of(chosen) == Some(*cost)),
            "a choice costs what the search says"
        );
        if self.known.len() < MAX_KNOWN {
            self.known.insert(key, solved.clone());
        }
        solved
    }

    fn search_part(&mut self, part: &Part<'_>, mut upper: u64, depth: u32) -> Solved {
        let Part { net, order, bounds } = part;
        let bound = bounds.bound;
        let mut best: Option<(u64, Chosen)> = None;
        let mut keep = |cost: u64, chosen: Chosen, upper: &mut u64| {
            if cost < *upper {
                *upper = cost;
                best = Some((cost, chosen));
            }
        };
        if let Some(mut chosen) = by_marginal_cost(net, order) {
            self.work += net.size();
            if depth == 0 {
                self.work += improve(net, order, &mut chosen, (200_000 + 40 * net.size()).min(self.max_work));
            }
            if let Some(cost) = net.cost_of(&chosen) {
                keep(cost, net.trimmed(&chosen), &mut upper);
            }
        }
        if bound >= upper || self.is_exhausted() || depth >= MAX_DEPTH {
            return Solved { best, bound: bound.min(upper) };
        }
        self.n_branches += 1;
        if let Some((class, inner)) = articulation(net, order) {
            let solved = self.solve_articulation(net, class, &inner, upper, depth);
            if let Some((cost, chosen)) = solved.best {
                keep(cost, chosen, &mut upper);
            }
            return Solved { best, bound: solved.bound.max(bound).min(upper) };
        }
        let mut least = u64::MAX;
        for branch in self.branches(part, upper) {
            let solved = match reduce(&branch) {
                None => Solved { best: None, bound: u64::MAX },
                Some(reduced) => {
                    self.work += reduced.work;
                    self.solve_parts(&reduced, upper, depth + 1)
                }
            };
            least = least.min(solved.bound);
            if let Some((cost, mut chosen)) = solved.best {
                for (position, arcs) in chosen.iter_mut().zip(&branch.classes) {
                    if let Some(arc) = arcs.get(*position as usize) {
                        *position = arc.pick;
                    }
                }
                keep(cost, chosen, &mut upper);
            }
        }
        if depth == 0 && least < upper {
            // Not proven: look on from the best, with half as much work again for all parts.
            let max_work = (self.max_work + self.max_work / 2).saturating_sub(self.work);
            if let Some((cost, chosen)) = best.as_mut() {
                self.work += improve_by_detours(net, order, chosen, SEED, max_work);
                *cost = net.cost_of(chosen).unwrap_or(u64::MAX);
                upper = upper.min(*cost);
            }
        }
        Solved { best, bound: least.max(bound).min(upper) }
    }

    /// Solves what only this class uses by itself, and the rest with the result.
    fn solve_articulation(&mut self, net: &Net, class: usize, inner: &[u32], upper: u64, depth: u32) -> Solved {
        let mut alone = Net { classes: vec![Vec::new(); net.n_classes()], is_needed: vec![false; net.n_classes()] };
        inner.iter().for_each(|&below| alone.classes[below as usize] = net.classes[below as usize].clone());
        alone.is_needed[class] = true;
        let nothing = Solved { best: None, bound: u64::MAX };
        let Some(reduced) = reduce(&alone) else { return nothing };
        let inside = self.solve_parts(&reduced, u64::MAX, depth + 1);
        let Some((cost, within)) = inside.best else { return Solved { best: None, bound: 0 } };
        let collapsed = |cost: u64| {
            let mut outer = net.clone();
            outer.classes[class] = vec![Arc { cost, children: SmallVec::new(), pick: 0 }];
            reduce(&outer)
        };
        let Some(reduced) = collapsed(cost) else { return nothing };
        let around = self.solve_parts(&reduced, upper, depth + 1);
        let best = around.best.map(|(cost, mut chosen)| {
            if chosen[class] != ABSENT {
                inner.iter().for_each(|&below| chosen[below as usize] = within[below as usize]);
            }
            (cost, chosen)
        });
        // A class that is not solved to the end may still save what its bound leaves open.
        Solved { best, bound: around.bound.saturating_sub(cost - inside.bound) }
    }

    /// Nets of which one holds the best choice below `upper`, the likely one first; their arcs pick
    /// positions in this part.
    fn branches(&self, part: &Part<'_>, upper: u64) -> Vec<Net> {
        let Part { net, order: _, bounds } = part;
        let mut base = (*net).clone();
        for arcs in &mut base.classes {
            arcs.iter_mut().enumerate().for_each(|(position, arc)| arc.pick = position as u32);
        }
        for class in net.needed() {
            let excess = &bounds.excess[class];
            let mut at = 0;
            base.classes[class].retain(|_| {
                at += 1;
                bounds.bound.saturating_add(excess[at - 1]) < upper
            });
        }
        let parents = base.parents();
        let shared = (0..base.n_classes()).filter(|&class| parents[class].len() > 1 && !base.is_needed[class]);
        let weight = |class: usize| bounds.value[class].saturating_mul(parents[class].len() as u64);
        if let Some(class) = shared.max_by_key(|&class| (weight(class), std::cmp::Reverse(class))) {
            let mut with = base.clone();
            with.is_needed[class] = true;
            let mut without = base;
            without.classes[class].clear();
            for arcs in &mut without.classes {
                arcs.retain(|arc| arc.children.binary_search(&(class as u32)).is_err());
            }
            return vec![with, without];
        }
        let open = base.needed().filter(|&class| base.classes[class].len() > 1);
        let Some(class) = open
            .max_by_key(|&class| base.classes[class].len())
            .or_else(|| (0..base.n_classes()).find(|&class| base.classes[class].len() > 1))
        else {
            return vec![base];
        };
        let arcs = base.classes[class].clone();
        let only = |arc: Arc| {
            let mut one = base.clone();
            one.classes[class] = vec![arc];
            one
        };
        arcs.into_iter().map(only).collect()
    }
}

/// A part with what the search asks of it first.
struct Part<'a> {
    net: &'a Net,
    order: Order,
    bounds: Bounds,
}

impl<'a> Part<'a> {
    fn new(net: &'a Net) -> Self {
        let order = net.order();
        let bounds = lower_bound(net, &order);
        Part { net, order, bounds }
    }

    /// What looking at the part takes, most of it for the bound.
    fn work(&self) -> u64 {
        self.net.size() * if self.order.is_acyclic { 8 } else { 24 }
    }
}

/// The net as numbers, without what its arcs stand for.
fn key_of(net: &Net) -> Vec<u64> {
    let mut key = Vec::with_capacity(2 * net.n_classes());
    for (arcs, &is_needed) in net.classes.iter().zip(&net.is_needed) {
        key.push(2 * arcs.len() as u64 + u64::from(is_needed));
        for arc in arcs {
            key.extend([arc.cost, arc.children.len() as u64]);
            key.extend(arc.children.iter().map(|&child| u64::from(child)));
        }
    }
    key
}

/// A class that alone uses all that is below it, with all of that; the one that comes closest to
/// half the net. Nets with cycles are not looked at.
fn articulation(net: &Net, order: &Order) -> Option<(usize, Vec<u32>)> {
    if !order.is_acyclic {
        return None;
    }
    let n_classes = net.n_classes();
    let root = n_classes;
    let dominators = Dominators::of(net, order);
    // An edge leaves the region of every class between its upper end and the dominator of its lower.
    let mut n_leaving = vec![0i64; n_classes + 1];
    let mut size = vec![1usize; n_classes + 1];
    for &class in &order.children_first {
        for child in net.children(class as usize) {
            n_leaving[class as usize] += 1;
            n_leaving[dominators.parent[child]] -= 1;
        }
    }
    let mut best: Option<(usize, usize)> = None;
    for &class in &order.children_first {
        let class = class as usize;
        let above = dominators.parent[class];
        size[above] += size[class];
        n_leaving[above] += n_leaving[class];
        if n_leaving[class] == 0 && size[class] > 1 && !net.is_needed[class] && above <= root {
            let distance = size[class].abs_diff(n_classes / 2);
            if best.is_none_or(|(least, _)| distance < least) {
                best = Some((distance, class));
            }
        }
    }
    let (_, class) = best?;
    let mut is_inside = vec![false; n_classes];
    let mut inner = vec![class as u32];
    is_inside[class] = true;
    let mut next = 0;
    while let Some(&below) = inner.get(next) {
        next += 1;
        for child in net.children(below as usize) {
            if !std::mem::replace(&mut is_inside[child], true) {
                inner.push(child as u32);
            }
        }
    }
    Some((class, inner))
}

/// The nearest class that all ways from what is needed to a class go through; the number of classes
/// stands for "none".
struct Dominators {
    parent: Vec<usize>,
}

impl Dominators {
    fn of(net: &Net, order: &Order) -> Dominators {
        let n_classes = net.n_classes();
        let root = n_classes;
        let mut parent = vec![usize::MAX; n_classes + 1];
        let mut depth = vec![0usize; n_classes + 1];
        net.needed().for_each(|class| parent[class] = root);
        for &class in order.children_first.iter().rev() {
            let class = class as usize;
            // All parents are done: the order goes from users to what they use.
            depth[class] = depth[parent[class]] + 1;
            for child in net.children(class) {
                let mut other = match parent[child] {
                    usize::MAX => class,
                    known => known,
                };
                let mut own = class;
                while own != other {
                    if depth[own] >= depth[other] {
                        own = parent[own];
                    } else {
                        other = parent[other];
                    }
                }
                parent[child] = own;
            }
        }
        Dominators { parent }
    }
}
