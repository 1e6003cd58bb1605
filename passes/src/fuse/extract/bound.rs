//! A lower bound: the cost of a class is shared out among the classes that may need it.
//!
//! However a class splits what it costs among its parents, no choice costs less than what arrives
//! at the needed classes. Where the cheapest arcs leave shares unused, the split moves towards the
//! parents that use them, for some rounds; the best bound of all rounds counts.

use smallvec::SmallVec;

use super::net::{ABSENT, Net, Order};

/// Rounds of moving shares.
const MAX_ROUNDS: usize = 24;

/// Sweeps over a net with cycles in a round.
const MAX_SWEEPS: usize = 4;

/// Weight of a share at the start.
const UNIT: u64 = 1 << 16;

/// What no choice beats, and what each arc of a needed class would add to it.
pub(super) struct Bounds {
    pub bound: u64,
    /// For each arc how far above the cheapest of its class it lies, in the round of the bound.
    pub excess: Vec<SmallVec<[u64; 4]>>,
    /// What a class costs at least by this split.
    pub value: Vec<u64>,
}

/// A bound for the net.
pub(super) fn lower_bound(net: &Net, order: &Order) -> Bounds {
    let mut split = Split::new(net, order);
    let mut best = split.pass();
    for round in 1..MAX_ROUNDS {
        if !split.adapt(round) {
            break;
        }
        let next = split.pass();
        if next.bound > best.bound {
            best = next;
        }
    }
    best
}

struct Split<'a> {
    net: &'a Net,
    order: &'a Order,
    parents: Vec<SmallVec<[u32; 4]>>,
    /// By class, for each of its parents.
    weights: Vec<SmallVec<[u64; 4]>>,
    /// By class, for each child in the order of `slots`: what it pays.
    shares: Vec<SmallVec<[u64; 4]>>,
    /// For each class and each of its parents: the position of the class among the parent's slots.
    slot_at_parent: Vec<SmallVec<[u32; 4]>>,
    /// By class and arc: the slots of its children.
    slots: Vec<Vec<SmallVec<[u32; 4]>>>,
    value: Vec<u64>,
    cheapest: Vec<u32>,
}

impl<'a> Split<'a> {
    fn new(net: &'a Net, order: &'a Order) -> Self {
        let n_classes = net.n_classes();
        let parents = net.parents();
        let mut slot_at_parent: Vec<SmallVec<[u32; 4]>> = vec![SmallVec::new(); n_classes];
        let mut slots: Vec<Vec<SmallVec<[u32; 4]>>> = Vec::with_capacity(n_classes);
        let mut shares = Vec::with_capacity(n_classes);
        let mut slot_of = vec![(u32::MAX, 0u32); n_classes];
        for class in 0..n_classes {
            let mut n_slots = 0;
            let mut of_class = Vec::with_capacity(net.classes[class].len());
            for arc in &net.classes[class] {
                let mut of_arc = SmallVec::new();
                for &child in &arc.children {
                    let slot = &mut slot_of[child as usize];
                    if slot.0 != class as u32 {
                        *slot = (class as u32, n_slots);
                        slot_at_parent[child as usize].push(n_slots);
                        n_slots += 1;
                    }
                    of_arc.push(slot.1);
                }
                of_class.push(of_arc);
            }
            slots.push(of_class);
            shares.push(SmallVec::from_elem(0, n_slots as usize));
        }
        let weights = parents.iter().map(|parents| SmallVec::from_elem(UNIT, parents.len())).collect();
        Split {
            net,
            order,
            parents,
            weights,
            shares,
            slot_at_parent,
            slots,
            value: vec![0; n_classes],
            cheapest: vec![ABSENT; n_classes],
        }
    }

    fn arc_value(&self, class: usize, position: usize) -> u64 {
        let shares = self.slots[class][position].iter().map(|&slot| self.shares[class][slot as usize]);
        shares.fold(self.net.classes[class][position].cost, u64::saturating_add)
    }

    /// Values of all classes under the split. Off cycles one sweep, children first, gives them; on
    /// cycles they start from nothing and each sweep raises them towards what they may be.
    fn pass(&mut self) -> Bounds {
        let n_sweeps = if self.order.is_acyclic { 1 } else { MAX_SWEEPS };
        if n_sweeps > 1 {
            self.shares.iter_mut().flatten().for_each(|share| *share = 0);
        }
        let bound = (0..n_sweeps).map(|_| self.sweep()).last().unwrap_or(0);
        let mut excess = vec![SmallVec::new(); self.net.n_classes()];
        for class in self.net.needed() {
            let arcs = 0..self.net.classes[class].len();
            // Shares may have grown on a cycle since the value was taken; more excess is right then.
            excess[class] =
                arcs.map(|position| self.arc_value(class, position).saturating_sub(self.value[class])).collect();
        }
        Bounds { bound, excess, value: self.value.clone() }
    }

    /// Values and shares of all classes from the shares that are known; returns what arrives at the
    /// needed ones.
    fn sweep(&mut self) -> u64 {
        let mut bound = 0u64;
        for &class in &self.order.children_first {
            let class = class as usize;
            let arcs = 0..self.net.classes[class].len();
            let least = arcs.map(|position| (self.arc_value(class, position), position)).min();
            let (value, cheapest) = least.unwrap_or((u64::MAX, 0));
            (self.value[class], self.cheapest[class]) = (value, cheapest as u32);
            if self.net.is_needed[class] {
                bound = bound.saturating_add(value);
                continue;
            }
            let total: u64 = self.weights[class].iter().sum();
            for at in 0..self.parents[class].len() {
                let part = u128::from(value) * u128::from(self.weights[class][at]) / u128::from(total.max(1));
                let (parent, slot) = (self.parents[class][at] as usize, self.slot_at_parent[class][at] as usize);
                self.shares[parent][slot] = part as u64;
            }
        }
        bound
    }

    /// Moves weights towards the parents whose cheapest arcs are used; false when nothing is left
    /// to move.
    fn adapt(&mut self, round: usize) -> bool {
        let n_classes = self.net.n_classes();
        let mut is_used = self.net.is_needed.clone();
        let mut has_changed = false;
        let mut users: Vec<SmallVec<[u32; 4]>> = vec![SmallVec::new(); n_classes];
        for &class in self.order.children_first.iter().rev() {
            let class = class as usize;
            if !is_used[class] {
                continue;
            }
            for &child in &self.net.classes[class][self.cheapest[class] as usize].children {
                is_used[child as usize] = true;
                users[child as usize].push(class as u32);
            }
        }
        for ((weights, parents), users) in self.weights.iter_mut().zip(&self.parents).zip(&users) {
            if users.is_empty() || users.len() == parents.len() {
                continue;
            }
            for (weight, parent) in weights.iter_mut().zip(parents) {
                let step = (*weight / (2 + round as u64 / 2)).max(1);
                let is_user = users.contains(parent);
                *weight = if is_user { (*weight + step).min(UNIT << 8) } else { (*weight - step).max(1) };
            }
            has_changed = true;
        }
        has_changed
    }
}
