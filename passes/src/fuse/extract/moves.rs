//! Improves a choice step by step.
//!
//! A move changes the arc of one class, brings a class in and lets every class that could use it
//! decide again (all results of a tuple, all users of a shared part), or takes a class out of use.
//! Costs follow from the number of users of each class, so that a move costs what it changes, and a
//! move that does not pay is undone.

use smallvec::SmallVec;

use super::net::{ABSENT, Chosen, Net, Order, tree_costs};

/// Improves the choice while that lowers its cost; at most so many classes are touched. Returns
/// the work done.
pub(super) fn improve(net: &Net, order: &Order, chosen: &mut Chosen, max_work: u64) -> u64 {
    let mut state = State::new(net, order, chosen);
    while state.work < max_work && state.round(max_work) {}
    *chosen = net.trimmed(&state.chosen);
    state.work
}

/// As [`improve`] with detours: classes in turn are forced to another arc, and what the moves make
/// of that is kept where it costs less.
pub(super) fn improve_by_detours(net: &Net, order: &Order, chosen: &mut Chosen, seed: u64, max_work: u64) -> u64 {
    let mut state = State::new(net, order, chosen);
    while state.work < max_work && state.round(max_work) {}
    let open: Vec<usize> = (0..net.n_classes()).filter(|&class| net.classes[class].len() > 1).collect();
    let mut random = seed | 1;
    let mut below = |bound: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % bound.max(1) as u64) as usize
    };
    let mut best = (state.cost, state.chosen.clone());
    while state.work < max_work && !open.is_empty() {
        for _ in 0..1 + below(4) {
            let class = open[below(open.len())];
            let position = below(net.classes[class].len());
            match state.n_users[class] {
                0 => {
                    state.open(class, u64::MAX);
                }
                _ => {
                    state.switch(class, position as u32);
                }
            }
            state.journal.clear();
        }
        while state.work < max_work && state.round(max_work) {}
        state.work += net.n_classes() as u64;
        if state.cost <= best.0 {
            best = (state.cost, state.chosen.clone());
        } else {
            state = State { work: state.work, ..State::new(net, order, &best.1) };
        }
    }
    *chosen = net.trimmed(&best.1);
    state.work
}

/// A change to undo.
#[derive(Copy, Clone)]
enum Change {
    Users { class: u32, before: u32 },
    Arc { class: u32, before: u32 },
}

struct State<'a> {
    net: &'a Net,
    order: &'a Order,
    parents: Vec<SmallVec<[u32; 4]>>,
    trees: Vec<u64>,
    /// For every class, also absent ones.
    chosen: Chosen,
    n_users: Vec<u32>,
    cost: u64,
    journal: Vec<Change>,
    work: u64,
    seen: Vec<u32>,
    stamp: u32,
}

impl<'a> State<'a> {
    fn new(net: &'a Net, order: &'a Order, chosen: &Chosen) -> Self {
        let (trees, by_tree) = tree_costs(net, order);
        let mut state = State {
            net,
            order,
            parents: net.parents(),
            trees,
            chosen: by_tree,
            n_users: vec![0; net.n_classes()],
            cost: 0,
            journal: Vec::new(),
            work: 0,
            seen: vec![0; net.n_classes()],
            stamp: 0,
        };
        let trimmed = net.trimmed(chosen);
        for (class, &position) in trimmed.iter().enumerate() {
            if position != ABSENT {
                let arc = &net.classes[class][position as usize];
                state.chosen[class] = position;
                state.cost = state.cost.saturating_add(arc.cost);
                arc.children.iter().for_each(|&child| state.n_users[child as usize] += 1);
            }
        }
        net.needed().for_each(|class| state.n_users[class] += 1);
        state
    }

    fn set_users(&mut self, class: usize, n_users: u32) {
        self.journal.push(Change::Users { class: class as u32, before: self.n_users[class] });
        self.n_users[class] = n_users;
    }

    fn set_arc(&mut self, class: usize, position: u32) {
        self.journal.push(Change::Arc { class: class as u32, before: self.chosen[class] });
        self.chosen[class] = position;
    }

    fn undo(&mut self, to: usize, cost: u64) {
        while self.journal.len() > to {
            match self.journal.pop() {
                Some(Change::Users { class, before }) => self.n_users[class as usize] = before,
                Some(Change::Arc { class, before }) => self.chosen[class as usize] = before,
                None => {}
            }
        }
        self.cost = cost;
    }

    /// Adds a user; a class that had none is computed by the arc that costs least beside what is
    /// there.
    fn acquire(&mut self, root: usize) {
        let mut pending: SmallVec<[usize; 16]> = SmallVec::from_elem(root, 1);
        while let Some(class) = pending.pop() {
            self.work += 1;
            let before = self.n_users[class];
            self.set_users(class, before + 1);
            if before > 0 {
                continue;
            }
            let arcs = self.net.classes[class].iter().enumerate();
            let marginal = arcs.map(|(position, arc)| {
                let costs = arc.children.iter().map(|&child| match self.n_users[child as usize] {
                    0 => self.trees[child as usize],
                    _ => 0,
                });
                (costs.fold(arc.cost, u64::saturating_add), position)
            });
            let position = match self.order.is_cyclic[class] {
                // The marginal costs may lead back; trees do not among themselves.
                true => self.chosen[class] as usize,
                false => marginal.min().map_or(0, |(_, position)| position),
            };
            self.set_arc(class, position as u32);
            let arc = &self.net.classes[class][position];
            self.cost = self.cost.saturating_add(arc.cost);
            pending.extend(arc.children.iter().map(|&child| child as usize));
        }
    }

    /// Takes a user away; a class without users leaves.
    fn release(&mut self, root: usize) {
        let mut pending: SmallVec<[usize; 16]> = SmallVec::from_elem(root, 1);
        while let Some(class) = pending.pop() {
            self.work += 1;
            let left = self.n_users[class] - 1;
            self.set_users(class, left);
            if left == 0 {
                let arc = &self.net.classes[class][self.chosen[class] as usize];
                self.cost -= arc.cost;
                pending.extend(arc.children.iter().map(|&child| child as usize));
            }
        }
    }

    /// Gives a class that is present another arc; false, and nothing done, where that closes a
    /// cycle.
    fn switch(&mut self, class: usize, position: u32) -> bool {
        if self.chosen[class] == position {
            return true;
        }
        let (to, cost) = (self.journal.len(), self.cost);
        let net = self.net;
        let (old, new) = (&net.classes[class][self.chosen[class] as usize], &net.classes[class][position as usize]);
        self.set_arc(class, position);
        self.cost = self.cost.saturating_add(new.cost);
        new.children.iter().for_each(|&child| self.acquire(child as usize));
        self.cost -= old.cost;
        old.children.iter().for_each(|&child| self.release(child as usize));
        if self.order.is_cyclic[class] && self.reaches_itself(class) {
            self.undo(to, cost);
            return false;
        }
        true
    }

    fn reaches_itself(&mut self, class: usize) -> bool {
        self.stamp += 1;
        let component = self.order.component[class];
        let mut pending: SmallVec<[usize; 16]> = SmallVec::from_elem(class, 1);
        while let Some(next) = pending.pop() {
            let arc = &self.net.classes[next][self.chosen[next] as usize];
            for &child in &arc.children {
                let child = child as usize;
                if child == class {
                    return true;
                }
                self.work += 1;
                if self.order.component[child] == component && self.seen[child] != self.stamp {
                    self.seen[child] = self.stamp;
                    pending.push(child);
                }
            }
        }
        false
    }

    /// The arc of a present class that makes the whole cheapest, if it lowers the cost.
    fn settle(&mut self, class: usize) -> bool {
        let mut has_improved = false;
        for position in 0..self.net.classes[class].len() as u32 {
            let (to, cost) = (self.journal.len(), self.cost);
            self.work += 1;
            if self.n_users[class] == 0 {
                return has_improved;
            }
            if self.switch(class, position) && self.cost < cost {
                has_improved = true;
            } else {
                self.undo(to, cost);
            }
        }
        has_improved
    }

    /// Brings a class in and lets those that could use it decide; true when the cost is below
    /// `limit` afterwards, else nothing is done.
    fn open(&mut self, class: usize, limit: u64) -> bool {
        let (to, cost) = (self.journal.len(), self.cost);
        self.acquire(class);
        let parents = self.parents[class].clone();
        for &parent in &parents {
            let parent = parent as usize;
            if self.n_users[parent] > 0 {
                self.settle(parent);
            }
        }
        self.release(class);
        if self.order.is_cyclic[class] && self.n_users[class] > 0 && self.reaches_itself(class) {
            self.undo(to, cost);
            return false;
        }
        if self.cost < limit {
            return true;
        }
        self.undo(to, cost);
        false
    }

    /// Makes all users of a class take another arc; true when that lowers the cost, else nothing is
    /// done.
    fn close(&mut self, class: usize) -> bool {
        let (to, cost) = (self.journal.len(), self.cost);
        let parents = self.parents[class].clone();
        for &parent in &parents {
            let parent = parent as usize;
            let uses = |state: &Self, position: usize| {
                state.net.classes[parent][position].children.binary_search(&(class as u32)).is_ok()
            };
            if self.n_users[parent] == 0 || !uses(self, self.chosen[parent] as usize) {
                continue;
            }
            let mut best: Option<(u64, u32)> = None;
            for position in 0..self.net.classes[parent].len() {
                if uses(self, position) {
                    continue;
                }
                let (to, cost) = (self.journal.len(), self.cost);
                if self.switch(parent, position as u32) && best.is_none_or(|(least, _)| self.cost < least) {
                    best = Some((self.cost, position as u32));
                }
                self.undo(to, cost);
            }
            match best {
                Some((_, position)) => self.switch(parent, position),
                None => break,
            };
        }
        if self.cost < cost {
            return true;
        }
        self.undo(to, cost);
        false
    }

    /// Tries every move once; true when one lowered the cost.
    fn round(&mut self, max_work: u64) -> bool {
        let mut has_improved = false;
        for class in 0..self.net.n_classes() {
            if self.work > max_work {
                break;
            }
            let is_shared = self.parents[class].len() > 1;
            let cost = self.cost;
            has_improved |= match self.n_users[class] {
                0 if is_shared => self.open(class, cost),
                0 => false,
                _ => {
                    let settled = self.net.classes[class].len() > 1 && self.settle(class);
                    settled | (self.n_users[class] > 0 && is_shared && !self.net.is_needed[class] && self.close(class))
                }
            };
            self.journal.clear();
        }
        has_improved
    }
}
