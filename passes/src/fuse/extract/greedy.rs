//! Greedy choice that counts a shared value once: what is chosen already is free for what follows.
//!
//! Costs only fall while classes are chosen, and a class changes its arc only when its cost falls;
//! so the arcs never close a cycle. Falling costs are passed on to users within a budget that is
//! linear in the size of the net; a user that does not hear of one only chooses less well.

use smallvec::SmallVec;

use super::net::{ABSENT, Chosen, Net, Order, tree_costs};

/// Costs that are passed on, for each arc and child of the net.
const BUDGET: u64 = 16;

/// A choice for the needed classes, deepest first; `None` when there is none.
pub(super) fn by_marginal_cost(net: &Net, order: &Order) -> Option<Chosen> {
    let (costs, best) = tree_costs(net, order);
    if net.needed().any(|class| costs[class] == u64::MAX) {
        return None;
    }
    let mut greedy = Greedy {
        net,
        parents: net.parents(),
        costs,
        best,
        is_fixed: vec![false; net.n_classes()],
        chosen: vec![ABSENT; net.n_classes()],
        pending: Vec::new(),
        budget: BUDGET * net.size(),
    };
    // Below other needed classes first: what they need is free for the ones above.
    for &class in &order.children_first {
        if net.is_needed[class as usize] {
            greedy.choose(class as usize);
        }
    }
    Some(greedy.chosen)
}

struct Greedy<'a> {
    net: &'a Net,
    parents: Vec<SmallVec<[u32; 4]>>,
    /// What a class still costs, and by which arc.
    costs: Vec<u64>,
    best: Chosen,
    /// The class keeps its arc.
    is_fixed: Vec<bool>,
    chosen: Chosen,
    pending: Vec<u32>,
    budget: u64,
}

impl Greedy<'_> {
    fn choose(&mut self, root: usize) {
        let mut stack: Vec<(usize, usize)> = vec![(root, 0)];
        while let Some((class, at)) = stack.pop() {
            if at == 0 {
                if self.is_fixed[class] {
                    continue;
                }
                self.is_fixed[class] = true;
                self.chosen[class] = self.best[class];
            }
            let arc = &self.net.classes[class][self.chosen[class] as usize];
            match arc.children.get(at) {
                Some(&child) => {
                    stack.push((class, at + 1));
                    stack.push((child as usize, 0));
                }
                None => self.free(class),
            }
        }
    }

    /// The class is chosen with all below: it costs the others nothing.
    fn free(&mut self, class: usize) {
        self.costs[class] = 0;
        self.pending.push(class as u32);
        while let Some(below) = self.pending.pop() {
            if self.budget == 0 {
                self.pending.clear();
                return;
            }
            for &parent in &self.parents[below as usize] {
                let parent = parent as usize;
                if self.is_fixed[parent] {
                    continue;
                }
                for (position, arc) in self.net.classes[parent].iter().enumerate() {
                    if arc.children.binary_search(&below).is_err() {
                        continue;
                    }
                    self.budget = self.budget.saturating_sub(1 + arc.children.len() as u64);
                    let children = arc.children.iter().map(|&child| self.costs[child as usize]);
                    let cost = children.fold(arc.cost, u64::saturating_add);
                    if cost < self.costs[parent] {
                        self.costs[parent] = cost;
                        self.best[parent] = position as u32;
                        self.pending.push(parent as u32);
                    }
                }
            }
        }
    }
}
