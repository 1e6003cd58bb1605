//! Finds the change that breaks a graph, by the amount of fuel.
//!
//! A compilation with fuel N makes the first N changes. Whether it fails need not be monotonic: a
//! later change may hide what an earlier one broke. So what is found is a pair of neighbours, the
//! first of which passes while the second fails; the change between them makes the failure appear.

/// What a search found.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Bisection {
    /// With all changes there is no failure.
    Passes,
    /// There is a failure without any change.
    FailsWithout,
    /// With fuel `failing - 1` there is no failure, with `failing` there is.
    Found { failing: u64 },
}

/// Searches; `fails` is asked for amounts of fuel, `None` for all changes.
///
/// # Errors
/// The first error of `fails`.
pub fn bisect<E>(fails: &mut dyn FnMut(Option<u64>) -> Result<bool, E>) -> Result<Bisection, E> {
    if !fails(None)? {
        return Ok(Bisection::Passes);
    }
    if fails(Some(0))? {
        return Ok(Bisection::FailsWithout);
    }
    // From some amount on, more fuel changes nothing, so doubling comes to a failure.
    let (mut passing, mut failing) = (0, 1);
    while !fails(Some(failing))? {
        passing = failing;
        failing = match failing.checked_mul(2) {
            Some(next) => next,
            None => return Ok(Bisection::Passes),
        };
    }
    while failing - passing > 1 {
        let middle = passing + (failing - passing) / 2;
        if fails(Some(middle))? {
            failing = middle;
        } else {
            passing = middle;
        }
    }
    Ok(Bisection::Found { failing })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::{Bisection, bisect};

    /// The result and how often it was asked.
    fn search(n_changes: u64, fails: impl Fn(u64) -> bool) -> (Bisection, usize) {
        let mut n_tests = 0;
        let result = bisect(&mut |fuel| {
            n_tests += 1;
            Ok::<bool, Infallible>(fails(fuel.unwrap_or(n_changes).min(n_changes)))
        });
        (result.unwrap(), n_tests)
    }

    #[test]
    fn the_first_failing_change_is_found_in_few_steps() {
        for guilty in 1..=200 {
            let (found, n_tests) = search(200, |fuel| fuel >= guilty);
            assert_eq!(found, Bisection::Found { failing: guilty });
            assert!(n_tests <= 20, "{n_tests} tests for {guilty}");
        }
    }

    #[test]
    fn a_failure_that_comes_and_goes_gives_a_change_that_makes_it_appear() {
        let fails = |fuel: u64| matches!(fuel, 10..15 | 40..);
        let (Bisection::Found { failing }, _) = search(100, fails) else { panic!("it fails in the end") };
        assert!(fails(failing) && !fails(failing - 1), "{failing}");
    }

    #[test]
    fn failures_that_no_change_makes_are_told() {
        assert_eq!(search(100, |_| true).0, Bisection::FailsWithout);
        assert_eq!(search(100, |_| false).0, Bisection::Passes);
    }
}
