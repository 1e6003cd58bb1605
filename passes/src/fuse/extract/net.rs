//! The form that reductions and searches work on: classes with arcs, some of them needed.

use smallvec::SmallVec;

/// A way to compute a class.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Arc {
    pub cost: u64,
    /// Sorted, without repetition.
    pub children: SmallVec<[u32; 4]>,
    /// What taking it decides, in the terms of whoever made the net.
    pub pick: u32,
}

/// Classes by number with their arcs, and which of them every choice contains.
#[derive(Clone, Debug, Default)]
pub(super) struct Net {
    pub classes: Vec<Vec<Arc>>,
    pub is_needed: Vec<bool>,
}

/// Position of the chosen arc, by class; [`ABSENT`] for classes that are not part of the choice.
pub(super) type Chosen = Vec<u32>;

/// In a choice: not part of it.
pub(super) const ABSENT: u32 = u32::MAX;

impl Net {
    pub fn n_classes(&self) -> usize {
        self.classes.len()
    }

    /// Numbers of the needed classes.
    pub fn needed(&self) -> impl Iterator<Item = usize> + '_ {
        self.is_needed.iter().enumerate().filter(|(_, is_needed)| **is_needed).map(|(class, _)| class)
    }

    /// Children of all arcs of a class, with repetition.
    pub fn children(&self, class: usize) -> impl Iterator<Item = usize> + '_ {
        self.classes[class].iter().flat_map(|arc| &arc.children).map(|&child| child as usize)
    }

    /// Arcs and their children: what a pass over the net touches.
    pub fn size(&self) -> u64 {
        self.classes.iter().flatten().map(|arc| 1 + arc.children.len() as u64).sum()
    }

    /// For each class the classes with an arc that needs it, each once.
    pub fn parents(&self) -> Vec<SmallVec<[u32; 4]>> {
        let mut parents: Vec<SmallVec<[u32; 4]>> = vec![SmallVec::new(); self.n_classes()];
        for class in 0..self.n_classes() {
            for child in self.children(class) {
                // Parents come in order, so that a repeated one is the last.
                if parents[child].last() != Some(&(class as u32)) {
                    parents[child].push(class as u32);
                }
            }
        }
        parents
    }

    /// Cost of the classes that the needed ones reach under a choice; `None` where one is missing
    /// or the choice is cyclic.
    pub fn cost_of(&self, chosen: &[u32]) -> Option<u64> {
        const OPEN: u8 = 1;
        const DONE: u8 = 2;
        let mut state = vec![0u8; self.n_classes()];
        let mut cost = 0u64;
        let mut stack: Vec<(usize, usize)> = Vec::new();
        for root in self.needed() {
            stack.push((root, 0));
            while let Some((class, at)) = stack.pop() {
                let arc = self.classes[class].get(chosen[class] as usize)?;
                if at == 0 {
                    match state[class] {
                        DONE => continue,
                        OPEN => return None,
                        _ => state[class] = OPEN,
                    }
                    cost = cost.saturating_add(arc.cost);
                }
                match arc.children.get(at) {
                    Some(&child) => {
                        stack.push((class, at + 1));
                        stack.push((child as usize, 0));
                    }
                    None => state[class] = DONE,
                }
            }
        }
        Some(cost)
    }

    /// The choice without the classes that the needed ones do not reach.
    pub fn trimmed(&self, chosen: &[u32]) -> Chosen {
        let mut trimmed = vec![ABSENT; self.n_classes()];
        let mut pending: Vec<usize> = self.needed().collect();
        while let Some(class) = pending.pop() {
            if trimmed[class] == ABSENT && chosen[class] != ABSENT {
                trimmed[class] = chosen[class];
                pending
                    .extend(self.classes[class][chosen[class] as usize].children.iter().map(|&child| child as usize));
            }
        }
        trimmed
    }

    /// Strongly connected components of what the needed classes reach.
    pub fn order(&self) -> Order {
        Order::of(self)
    }
}

/// Strongly connected components: classes that reach each other.
pub(super) struct Order {
    /// Classes that the needed ones reach; those of components below come first.
    pub children_first: Vec<u32>,
    /// Component of each class; `u32::MAX` where it is not reached.
    pub component: Vec<u32>,
    /// Classes that reach themselves.
    pub is_cyclic: Vec<bool>,
    /// True when no class reaches itself.
    pub is_acyclic: bool,
}

impl Order {
    /// Tarjan's algorithm without recursion.
    fn of(net: &Net) -> Order {
        let n_classes = net.n_classes();
        let mut order = Order {
            children_first: Vec::with_capacity(n_classes),
            component: vec![u32::MAX; n_classes],
            is_cyclic: vec![false; n_classes],
            is_acyclic: true,
        };
        let mut index = vec![u32::MAX; n_classes];
        let mut low = vec![u32::MAX; n_classes];
        let (mut next_index, mut next_component) = (0u32, 0u32);
        let mut open: Vec<u32> = Vec::new();
        // Class, arc, position among its children.
        let mut stack: Vec<(u32, u32, u32)> = Vec::new();
        for root in net.needed() {
            if index[root] != u32::MAX {
                continue;
            }
            stack.push((root as u32, 0, 0));
            while let Some(&mut (class, ref mut arc, ref mut at)) = stack.last_mut() {
                let here = class as usize;
                if index[here] == u32::MAX {
                    (index[here], low[here]) = (next_index, next_index);
                    next_index += 1;
                    open.push(class);
                }
                let arcs = &net.classes[here];
                while arcs.get(*arc as usize).is_some_and(|found| found.children.len() <= *at as usize) {
                    (*arc, *at) = (*arc + 1, 0);
                }
                if let Some(found) = arcs.get(*arc as usize) {
                    let child = found.children[*at as usize] as usize;
                    *at += 1;
                    if index[child] == u32::MAX {
                        stack.push((child as u32, 0, 0));
                    } else if order.component[child] == u32::MAX {
                        low[here] = low[here].min(index[child]);
                        order.is_cyclic[here] |= child == here;
                    }
                    continue;
                }
                stack.pop();
                if let Some(&(parent, _, _)) = stack.last() {
                    low[parent as usize] = low[parent as usize].min(low[here]);
                }
                if low[here] == index[here] {
                    let start = open.iter().rposition(|&member| member == class).expect("an open class is listed");
                    let is_cycle = open.len() - start > 1;
                    for &member in &open[start..] {
                        order.component[member as usize] = next_component;
                        order.is_cyclic[member as usize] |= is_cycle;
                        order.is_acyclic &= !order.is_cyclic[member as usize];
                        order.children_first.push(member);
                    }
                    open.truncate(start);
                    next_component += 1;
                }
            }
        }
        order
    }
}

/// For each class the cost of its cheapest tree, a shared value paid at every use, and the arc that
/// gives it; `u64::MAX` where there is none.
pub(super) fn tree_costs(net: &Net, order: &Order) -> (Vec<u64>, Chosen) {
    let mut costs = vec![u64::MAX; net.n_classes()];
    let mut chosen = vec![ABSENT; net.n_classes()];
    loop {
        let mut has_changed = false;
        for &class in &order.children_first {
            let class = class as usize;
            for (position, arc) in net.classes[class].iter().enumerate() {
                let children = arc.children.iter().map(|&child| costs[child as usize]);
                let cost = children.fold(arc.cost, u64::saturating_add);
                if cost < costs[class] {
                    costs[class] = cost;
                    chosen[class] = position as u32;
                    has_changed = true;
                }
            }
        }
        if order.is_acyclic || !has_changed {
            return (costs, chosen);
        }
    }
}
