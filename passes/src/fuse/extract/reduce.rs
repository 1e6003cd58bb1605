//! Makes a net smaller without losing its best choice, and takes apart what does not touch.
//!
//! Arcs that cannot be completed or that another arc replaces at no more cost go; what every choice
//! contains is paid and leaves the net; classes with one arc, and arcs that alone use a class, are
//! folded into their users. What is needed anyway is free for its users, except on a cycle, where
//! the edge stays to exclude the cycle. What is left falls into parts that share no class.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::net::{ABSENT, Arc, Chosen, Net, Order, tree_costs};

/// Rounds of all reductions; what is left after them is as right, only larger.
const MAX_ROUNDS: usize = 24;

/// Arcs that an arc is compared with.
const MAX_COMPARED: usize = 48;

/// Classes that are looked at to find what an arc implies.
const MAX_IMPLIED: usize = 64;

/// What a reduced arc decides.
#[derive(Copy, Clone, Debug)]
enum Pick {
    Nothing,
    Choose { class: u32, position: u32 },
    Both(u32, u32),
}

/// A net in parts.
pub(super) struct Reduced {
    /// Cost of what is decided.
    pub paid: u64,
    pub parts: Vec<Net>,
    decided: Vec<u32>,
    picks: Vec<Pick>,
    n_classes: usize,
    /// What the reduction touched.
    pub work: u64,
}

impl Reduced {
    /// The choice for the net that was reduced.
    pub fn expand(&self, parts: &[Chosen]) -> Chosen {
        let mut chosen = vec![ABSENT; self.n_classes];
        let mut is_seen = vec![false; self.picks.len()];
        let mut pending = self.decided.clone();
        for (net, of_part) in self.parts.iter().zip(parts) {
            let taken = net.classes.iter().zip(of_part).filter(|(_, position)| **position != ABSENT);
            pending.extend(taken.map(|(arcs, &position)| arcs[position as usize].pick));
        }
        while let Some(pick) = pending.pop() {
            if std::mem::replace(&mut is_seen[pick as usize], true) {
                continue;
            }
            match self.picks[pick as usize] {
                Pick::Nothing => {}
                Pick::Choose { class, position } => chosen[class as usize] = position,
                Pick::Both(lhs, rhs) => pending.extend([lhs, rhs]),
            }
        }
        chosen
    }
}

/// The reduced net; `None` when nothing covers the needed classes.
pub(super) fn reduce(net: &Net) -> Option<Reduced> {
    let mut picks = vec![Pick::Nothing];
    let mut classes: Vec<Vec<Arc>> = Vec::with_capacity(net.n_classes());
    for (class, arcs) in net.classes.iter().enumerate() {
        let mut own = Vec::with_capacity(arcs.len());
        for (position, arc) in arcs.iter().enumerate() {
            if arc.children.binary_search(&(class as u32)).is_ok() {
                continue;
            }
            own.push(Arc { pick: picks.len() as u32, ..arc.clone() });
            picks.push(Pick::Choose { class: class as u32, position: position as u32 });
        }
        classes.push(own);
    }
    let mut reducer = Reducer {
        net: Net { classes, is_needed: net.is_needed.clone() },
        picks,
        decided: Vec::new(),
        paid: 0,
        users: Vec::new(),
        work: 0,
    };
    reducer.run()?;
    let parts = split(&reducer.net);
    let Reducer { picks, decided, paid, work, .. } = reducer;
    Some(Reduced { paid, parts, decided, picks, n_classes: net.n_classes(), work })
}

struct Reducer {
    net: Net,
    picks: Vec<Pick>,
    decided: Vec<u32>,
    paid: u64,
    /// Classes that may have an arc with this child.
    users: Vec<Vec<u32>>,
    work: u64,
}

impl Reducer {
    fn run(&mut self) -> Option<()> {
        self.drop_incomplete()?;
        for _ in 0..MAX_ROUNDS {
            self.work += self.net.size() * 4;
            let mut has_changed = self.need_what_is_implied();
            let order = self.net.order();
            self.forget_unreached(&order);
            has_changed |= self.free_what_is_needed(&order);
            has_changed |= self.drop_dominated(&order);
            let n_arcs = self.n_arcs();
            has_changed |= self.fold(&order);
            if !order.is_acyclic && self.n_arcs() != n_arcs {
                self.drop_incomplete()?;
            }
            self.check_needed()?;
            if !has_changed {
                break;
            }
        }
        Some(())
    }

    fn n_arcs(&self) -> usize {
        self.net.classes.iter().map(Vec::len).sum()
    }

    fn check_needed(&self) -> Option<()> {
        self.net.needed().all(|class| !self.net.classes[class].is_empty()).then_some(())
    }

    fn join(&mut self, lhs: u32, rhs: u32) -> u32 {
        match (lhs, rhs) {
            (0, one) | (one, 0) => one,
            (lhs, rhs) => {
                self.picks.push(Pick::Both(lhs, rhs));
                self.picks.len() as u32 - 1
            }
        }
    }

    /// Removes arcs that no choice completes; `None` when a needed class has none left.
    fn drop_incomplete(&mut self) -> Option<()> {
        let n_classes = self.net.n_classes();
        let mut uses: Vec<SmallVec<[(u32, u32); 4]>> = vec![SmallVec::new(); n_classes];
        let mut n_missing: Vec<SmallVec<[u32; 4]>> = Vec::with_capacity(n_classes);
        let mut is_complete = vec![false; n_classes];
        let mut pending = VecDeque::new();
        for (class, arcs) in self.net.classes.iter().enumerate() {
            n_missing.push(arcs.iter().map(|arc| arc.children.len() as u32).collect());
            for (position, arc) in arcs.iter().enumerate() {
                arc.children.iter().for_each(|&child| uses[child as usize].push((class as u32, position as u32)));
                if arc.children.is_empty() && !std::mem::replace(&mut is_complete[class], true) {
                    pending.push_back(class);
                }
            }
        }
        while let Some(child) = pending.pop_front() {
            for &(class, position) in &uses[child] {
                let missing = &mut n_missing[class as usize][position as usize];
                *missing -= 1;
                if *missing == 0 && !std::mem::replace(&mut is_complete[class as usize], true) {
                    pending.push_back(class as usize);
                }
            }
        }
        for (class, missing) in n_missing.iter().enumerate() {
            let mut at = 0;
            self.net.classes[class].retain(|_| {
                at += 1;
                missing[at - 1] == 0
            });
        }
        self.check_needed()
    }

    /// What all arcs of a needed class need is needed.
    fn need_what_is_implied(&mut self) -> bool {
        let mut has_changed = false;
        let mut pending: Vec<usize> = self.net.needed().collect();
        while let Some(class) = pending.pop() {
            for child in common_children(&self.net.classes[class]) {
                if !std::mem::replace(&mut self.net.is_needed[child as usize], true) {
                    pending.push(child as usize);
                    has_changed = true;
                }
            }
        }
        has_changed
    }

    fn forget_unreached(&mut self, order: &Order) {
        for (class, arcs) in self.net.classes.iter_mut().enumerate() {
            if order.component[class] == u32::MAX {
                arcs.clear();
            }
        }
    }

    /// Edges to needed classes go, except on cycles; the least cost of a needed class is paid.
    fn free_what_is_needed(&mut self, order: &Order) -> bool {
        let mut has_changed = false;
        for class in 0..self.net.n_classes() {
            for arc in &mut self.net.classes[class] {
                let n_children = arc.children.len();
                let is_needed = &self.net.is_needed;
                arc.children.retain(|child| {
                    !is_needed[*child as usize] || order.component[*child as usize] == order.component[class]
                });
                has_changed |= arc.children.len() != n_children;
            }
        }
        for class in 0..self.net.n_classes() {
            if self.net.is_needed[class] {
                let least = self.net.classes[class].iter().map(|arc| arc.cost).min().unwrap_or(0);
                self.net.classes[class].iter_mut().for_each(|arc| arc.cost -= least);
                self.paid = self.paid.saturating_add(least);
            }
        }
        has_changed
    }

    /// Removes arcs that another arc of the class replaces: one that costs no more and needs only
    /// what the other implies. Off cycles it may need more, if that costs no more than is saved.
    fn drop_dominated(&mut self, order: &Order) -> bool {
        let (trees, _) = tree_costs(&self.net, order);
        let common = self.net.classes.iter().map(|arcs| common_children(arcs)).collect();
        let mut implied = Implied { common, seen: vec![u32::MAX; self.net.n_classes()], stamp: 0 };
        let mut has_changed = false;
        // Children first: what a class implies is known before its users ask.
        for &class in &order.children_first {
            let class = class as usize;
            if self.net.classes[class].len() < 2 {
                continue;
            }
            let mut sorted: Vec<usize> = (0..self.net.classes[class].len()).collect();
            let arcs = &self.net.classes[class];
            sorted.sort_by_key(|&position| (arcs[position].cost, arcs[position].children.len(), position));
            let mut kept: Vec<usize> = Vec::with_capacity(sorted.len());
            for &position in &sorted {
                let arc = &arcs[position];
                implied.mark(&arc.children);
                let extra = |other: &Arc| {
                    let more = other.children.iter().filter(|child| !implied.contains(**child));
                    more.fold(other.cost, |sum, &child| match order.is_cyclic[class] {
                        true => u64::MAX,
                        false => sum.saturating_add(trees[child as usize]),
                    })
                };
                let is_beaten = kept.iter().take(MAX_COMPARED).any(|&other| extra(&arcs[other]) <= arc.cost);
                self.work += (kept.len().min(MAX_COMPARED) + 1) as u64;
                if !is_beaten {
                    kept.push(position);
                }
            }
            if kept.len() < arcs.len() {
                has_changed = true;
                kept.sort_unstable();
                let mut at = 0;
                let mut next = 0;
                self.net.classes[class].retain(|_| {
                    let is_kept = kept.get(next) == Some(&at);
                    next += usize::from(is_kept);
                    at += 1;
                    is_kept
                });
                implied.common[class] = common_children(&self.net.classes[class]);
            }
        }
        has_changed
    }

    /// Folds classes into their users, children first.
    fn fold(&mut self, order: &Order) -> bool {
        self.users = vec![Vec::new(); self.net.n_classes()];
        for class in 0..self.net.n_classes() {
            for child in self.net.children(class).collect::<SmallVec<[usize; 16]>>() {
                if self.users[child].last() != Some(&(class as u32)) {
                    self.users[child].push(class as u32);
                }
            }
        }
        let mut has_changed = false;
        for &class in &order.children_first {
            has_changed |= self.fold_class(class as usize);
        }
        has_changed
    }

    fn fold_class(&mut self, class: usize) -> bool {
        let [first, rest @ ..] = self.net.classes[class].as_slice() else { return false };
        let (is_single, cost, n_children) = (rest.is_empty(), first.cost, first.children.len());
        let users = self.users_of(class);
        if self.net.is_needed[class] {
            if !is_single {
                return false;
            }
            self.decide(class, &users);
            return true;
        }
        let n_arcs = self.net.classes[class].len();
        let n_uses = |user: &u32| {
            let arcs = &self.net.classes[*user as usize];
            arcs.iter().filter(|arc| arc.children.binary_search(&(class as u32)).is_ok()).count()
        };
        let may_fold = match users.as_slice() {
            [] => false,
            [user] => is_single || n_uses(user) == 1 && n_arcs <= MAX_COMPARED,
            [..] => is_single && cost == 0 && n_children <= 1,
        };
        if may_fold {
            let arcs = std::mem::take(&mut self.net.classes[class]);
            self.replace(class, &users, &arcs);
        }
        may_fold
    }

    /// Classes that have an arc with this child.
    fn users_of(&mut self, class: usize) -> SmallVec<[u32; 4]> {
        let mut users: SmallVec<[u32; 4]> = std::mem::take(&mut self.users[class]).into_iter().collect();
        users.sort_unstable();
        users.dedup();
        let classes = &self.net.classes;
        users.retain(|user| {
            classes[*user as usize].iter().any(|arc| arc.children.binary_search(&(class as u32)).is_ok())
        });
        self.users[class] = users.to_vec();
        users
    }

    /// Pays the only arc of a needed class; its children are needed, and stand for it in its users,
    /// which are on a cycle with it.
    fn decide(&mut self, class: usize, users: &[u32]) {
        let mut arcs = std::mem::take(&mut self.net.classes[class]);
        self.net.is_needed[class] = false;
        self.paid = self.paid.saturating_add(arcs[0].cost);
        self.decided.push(arcs[0].pick);
        for &child in &arcs[0].children {
            self.net.is_needed[child as usize] = true;
        }
        (arcs[0].cost, arcs[0].pick) = (0, 0);
        self.replace(class, users, &arcs);
    }

    /// Puts arcs in the place of a child.
    fn replace(&mut self, class: usize, users: &[u32], arcs: &[Arc]) {
        for &user in users {
            let before = std::mem::take(&mut self.net.classes[user as usize]);
            let mut after = Vec::with_capacity(before.len());
            for arc in before {
                let Ok(at) = arc.children.binary_search(&(class as u32)) else {
                    after.push(arc);
                    continue;
                };
                for other in arcs {
                    let mut children = arc.children.clone();
                    children.remove(at);
                    children.extend_from_slice(&other.children);
                    children.sort_unstable();
                    children.dedup();
                    self.work += 1 + children.len() as u64;
                    if children.binary_search(&user).is_ok() {
                        continue;
                    }
                    let pick = self.join(arc.pick, other.pick);
                    after.push(Arc { cost: arc.cost.saturating_add(other.cost), children, pick });
                }
            }
            self.net.classes[user as usize] = after;
            for &child in arcs.iter().flat_map(|arc| &arc.children) {
                if self.users[child as usize].last() != Some(&user) {
                    self.users[child as usize].push(user);
                }
            }
        }
    }
}

/// Classes that an arc needs whatever else is chosen, as far as they are found.
struct Implied {
    common: Vec<SmallVec<[u32; 4]>>,
    seen: Vec<u32>,
    stamp: u32,
}

impl Implied {
    fn mark(&mut self, children: &[u32]) {
        self.stamp += 1;
        let mut pending: SmallVec<[u32; 16]> = SmallVec::from_slice(children);
        let mut n_left = MAX_IMPLIED.max(children.len());
        while let Some(class) = pending.pop() {
            if n_left == 0 {
                // The arc's own children are always marked.
                children.iter().for_each(|&child| self.seen[child as usize] = self.stamp);
                return;
            }
            if self.seen[class as usize] != self.stamp {
                self.seen[class as usize] = self.stamp;
                n_left -= 1;
                pending.extend_from_slice(&self.common[class as usize]);
            }
        }
    }

    fn contains(&self, class: u32) -> bool {
        self.seen[class as usize] == self.stamp
    }
}

/// Children of all arcs of a class.
fn common_children(arcs: &[Arc]) -> SmallVec<[u32; 4]> {
    let [first, rest @ ..] = arcs else { return SmallVec::new() };
    let is_common = |child: &&u32| rest.iter().all(|arc| arc.children.binary_search(*child).is_ok());
    first.children.iter().filter(is_common).copied().collect()
}

/// Parts of a net that share no class, each numbered anew in the order of a walk from what is
/// needed, so that equal parts get equal numbers.
fn split(net: &Net) -> Vec<Net> {
    let n_classes = net.n_classes();
    let mut sets: Vec<u32> = (0..n_classes as u32).collect();
    for class in 0..n_classes {
        for child in net.children(class) {
            let (lhs, rhs) = (find(&mut sets, class as u32), find(&mut sets, child as u32));
            sets[lhs.max(rhs) as usize] = lhs.min(rhs);
        }
    }
    let mut number_of = vec![ABSENT; n_classes];
    let mut part_of: Vec<u32> = vec![ABSENT; n_classes];
    let mut members: Vec<Vec<u32>> = Vec::new();
    for root in net.needed() {
        let set = find(&mut sets, root as u32) as usize;
        if part_of[set] == ABSENT {
            part_of[set] = members.len() as u32;
            members.push(Vec::new());
        }
        let part = &mut members[part_of[set] as usize];
        let mut pending = vec![root as u32];
        while let Some(class) = pending.pop() {
            if number_of[class as usize] != ABSENT {
                continue;
            }
            number_of[class as usize] = part.len() as u32;
            part.push(class);
            pending.extend(net.children(class as usize).map(|child| child as u32));
        }
    }
    let renumber = |class: &u32| {
        let renumbered = net.classes[*class as usize].iter().map(|arc| {
            let mut children: SmallVec<[u32; 4]> =
                arc.children.iter().map(|&child| number_of[child as usize]).collect();
            children.sort_unstable();
            Arc { children, ..*arc }
        });
        renumbered.collect()
    };
    let part = |members: &Vec<u32>| Net {
        classes: members.iter().map(renumber).collect(),
        is_needed: members.iter().map(|&class| net.is_needed[class as usize]).collect(),
    };
    members.iter().map(part).collect()
}

fn find(sets: &mut [u32], mut element: u32) -> u32 {
    while sets[element as usize] != element {
        sets[element as usize] = sets[sets[element as usize] as usize];
        element = sets[element as usize];
    }
    element
}
