//! Fuel: how many changes a compilation may still make.
//!
//! Passes ask before every change. Because runs are deterministic, a compilation with fuel N makes
//! exactly the first N changes of the unlimited one, so halving the fuel finds the change that
//! breaks a model.

/// A budget of changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fuel {
    limit: Option<u64>,
    spent: u64,
    last: Option<String>,
}

impl Fuel {
    /// A budget that never ends.
    pub fn unlimited() -> Self {
        Fuel::default()
    }

    /// A budget of `limit` changes; `None` never ends.
    pub fn new(limit: Option<u64>) -> Self {
        Fuel { limit, spent: 0, last: None }
    }

    /// Spends one unit; false when none is left and the change must not be made.
    pub fn burn(&mut self, change: impl FnOnce() -> String) -> bool {
        let Some(limit) = self.limit else {
            self.spent += 1;
            return true;
        };
        if self.spent >= limit {
            return false;
        }
        self.spent += 1;
        if self.spent == limit {
            self.last = Some(change());
        }
        true
    }

    /// Changes made so far.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Changes that may still be made; `None` without a limit.
    pub fn left(&self) -> Option<u64> {
        self.limit.map(|limit| limit - self.spent)
    }

    /// The change that took the last unit of a limited budget.
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::Fuel;

    #[test]
    fn limited_fuel_allows_exactly_its_number_of_changes_and_names_the_last() {
        let mut fuel = Fuel::new(Some(2));
        assert!(fuel.burn(|| "first".to_owned()));
        assert!(fuel.burn(|| "second".to_owned()));
        assert!(!fuel.burn(|| "third".to_owned()));
        assert_eq!((fuel.spent(), fuel.left(), fuel.last()), (2, Some(0), Some("second")));
    }
}
