//! A set of places among a fixed number, with the nearest one above and below in constant time.

/// Bits in levels of 64: a bit of one level says that a word of the level below is not empty.
pub(super) struct Places {
    levels: Vec<Vec<u64>>,
}

impl Places {
    /// None of `n_places`.
    pub fn new(n_places: usize) -> Places {
        let mut levels = Vec::new();
        let mut n_bits = n_places;
        loop {
            let n_words = n_bits.div_ceil(64).max(1);
            levels.push(vec![0; n_words]);
            if n_words == 1 {
                return Places { levels };
            }
            n_bits = n_words;
        }
    }

    #[inline]
    pub fn contains(&self, place: usize) -> bool {
        self.levels[0][place / 64] >> (place % 64) & 1 == 1
    }

    pub fn insert(&mut self, mut place: usize) {
        for level in &mut self.levels {
            level[place / 64] |= 1 << (place % 64);
            place /= 64;
        }
    }

    pub fn remove(&mut self, mut place: usize) {
        for level in &mut self.levels {
            let word = &mut level[place / 64];
            *word &= !(1 << (place % 64));
            if *word != 0 {
                return;
            }
            place /= 64;
        }
    }

    /// The lowest place at or above this one.
    pub fn next(&self, place: usize) -> Option<usize> {
        self.nearest(place, |word, bit| word & (u64::MAX << bit), |at| at.checked_add(1), u64::trailing_zeros)
    }

    /// The highest place at or below this one.
    pub fn previous(&self, place: usize) -> Option<usize> {
        let below = |word: u64, bit: usize| word & (u64::MAX >> (63 - bit));
        self.nearest(place, below, |at| at.checked_sub(1), |word| 63 - word.leading_zeros())
    }

    /// Climbs until a word has a place on the right side, and descends to its nearest.
    #[inline]
    fn nearest(
        &self,
        place: usize,
        side: impl Fn(u64, usize) -> u64,
        beyond: impl Fn(usize) -> Option<usize>,
        first: impl Fn(u64) -> u32,
    ) -> Option<usize> {
        let mut at = place;
        for (height, level) in self.levels.iter().enumerate() {
            let word = side(*level.get(at / 64)?, at % 64);
            if word != 0 {
                let mut found = at / 64 * 64 + first(word) as usize;
                for lower in self.levels[..height].iter().rev() {
                    found = found * 64 + first(lower[found]) as usize;
                }
                return Some(found);
            }
            at = beyond(at / 64)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::prop_assert_eq;

    use super::Places;

    proptest::proptest! {
        #[test]
        fn neighbours_are_those_of_an_ordered_set(
            n_places in 1usize..20_000,
            changes in proptest::collection::vec((0usize..20_000, proptest::bool::ANY), 0..80),
            questions in proptest::collection::vec(0usize..20_000, 1..40),
        ) {
            let (mut places, mut expected) = (Places::new(n_places), BTreeSet::new());
            for (place, is_added) in changes {
                let place = place % n_places;
                if is_added {
                    places.insert(place);
                    expected.insert(place);
                } else {
                    places.remove(place);
                    expected.remove(&place);
                }
            }
            for place in questions.into_iter().map(|place| place % n_places) {
                prop_assert_eq!(places.contains(place), expected.contains(&place));
                prop_assert_eq!(places.next(place), expected.range(place..).next().copied());
                prop_assert_eq!(places.previous(place), expected.range(..=place).next_back().copied());
            }
        }
    }
}
