//! Many short lists in one piece of memory.

use std::ops::Range;

/// Lists by number, made one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lists<T> {
    items: Vec<T>,
    /// Where each list ends.
    ends: Vec<u32>,
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Lists { items: Vec::new(), ends: Vec::new() }
    }
}

impl<T: Copy> Lists<T> {
    /// No lists, with room for this many.
    pub(crate) fn with_capacity(n_lists: usize) -> Self {
        Lists { items: Vec::with_capacity(n_lists), ends: Vec::with_capacity(n_lists) }
    }

    /// Adds a list.
    pub(crate) fn push(&mut self, items: &[T]) {
        self.items.extend_from_slice(items);
        self.end_list();
    }

    /// Adds a list.
    pub(crate) fn push_from(&mut self, items: impl Iterator<Item = T>) {
        self.items.extend(items);
        self.end_list();
    }

    fn end_list(&mut self) {
        self.ends.push(u32::try_from(self.items.len()).expect("lists hold fewer than 2^32 items"));
    }

    /// For pairs of a list's number and an item, every list's items in the order of the pairs.
    pub(crate) fn collect(n_lists: usize, pairs: impl Iterator<Item = (u32, T)> + Clone) -> Self {
        let mut ends = vec![0u32; n_lists];
        for (list, _) in pairs.clone() {
            ends[list as usize] += 1;
        }
        let mut start = 0;
        for end in &mut ends {
            start += std::mem::replace(end, start);
        }
        // Each end is its list's start until the list is full.
        let Some((_, any)) = pairs.clone().next() else { return Lists { items: Vec::new(), ends } };
        let mut items = vec![any; start as usize];
        for (list, item) in pairs {
            let end = &mut ends[list as usize];
            items[*end as usize] = item;
            *end += 1;
        }
        Lists { items, ends }
    }

    /// Number of lists.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The items of one list.
    pub(crate) fn get(&self, list: usize) -> &[T] {
        &self.items[self.range(list)]
    }

    /// All items, list by list.
    pub(crate) fn items(&self) -> &[T] {
        &self.items
    }

    /// Where a list's items are among all.
    pub(crate) fn range(&self, list: usize) -> Range<usize> {
        let start = list.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        start..self.ends[list] as usize
    }

    /// The lists in order.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &[T]> + Clone {
        (0..self.len()).map(|list| self.get(list))
    }
}

#[cfg(test)]
mod tests {
    use super::Lists;

    #[test]
    fn pairs_come_into_their_lists_in_order() {
        let pairs = [(2, 'a'), (0, 'b'), (2, 'c'), (3, 'd'), (0, 'e')];
        let lists = Lists::collect(5, pairs.into_iter());
        assert_eq!(lists.iter().collect::<Vec<_>>(), [&['b', 'e'][..], &[], &['a', 'c'], &['d'], &[]]);
        let mut pushed = Lists::with_capacity(5);
        for list in [&['b', 'e'][..], &[], &['a', 'c'], &['d'], &[]] {
            pushed.push(list);
        }
        assert_eq!(pushed, lists);
        assert_eq!(Lists::<u8>::collect(2, std::iter::empty()).iter().map(<[u8]>::len).sum::<usize>(), 0);
    }
}
