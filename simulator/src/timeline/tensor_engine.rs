//! Warm-up of the tensor engine: a window of little activity puts the next one at reduced rate.
//!
//! Windows lie on a fixed grid from the start of the program, and the engine starts cold.

use ir::target::Target;

pub(crate) struct WarmUp {
    window_ps: u64,
    warm_percent: u64,
    cold_factor: u64,
    /// Streaming time at full rate in the window before the first.
    before_ps: u64,
    /// Streaming time at full rate in each window so far.
    busy_ps: Vec<u64>,
}

impl WarmUp {
    pub fn new(target: &Target) -> WarmUp {
        WarmUp {
            window_ps: target.pe_window_ps,
            warm_percent: target.pe_warm_percent,
            cold_factor: target.pe_cold_factor,
            before_ps: 0,
            busy_ps: Vec::new(),
        }
    }

    /// An engine that has been busy up to now.
    pub fn warm(target: &Target) -> WarmUp {
        WarmUp { before_ps: target.pe_window_ps, ..WarmUp::new(target) }
    }

    /// How many times longer a stream takes that starts at this time. Starts never go back.
    pub fn factor(&self, start_ps: u64) -> u64 {
        let window = (start_ps / self.window_ps) as usize;
        let before = match window.checked_sub(1) {
            Some(previous) => self.busy_ps.get(previous).copied().unwrap_or(0),
            None => self.before_ps,
        };
        if before * 100 >= self.window_ps * self.warm_percent { 1 } else { self.cold_factor }
    }

    /// Counts activity, which a cold engine has `factor` times less of.
    pub fn add(&mut self, start_ps: u64, end_ps: u64, factor: u64) {
        let mut from = start_ps;
        while from < end_ps {
            let window = (from / self.window_ps) as usize;
            let to = end_ps.min((window as u64 + 1) * self.window_ps);
            if self.busy_ps.len() <= window {
                self.busy_ps.resize(window + 1, 0);
            }
            self.busy_ps[window] += (to - from) / factor;
            from = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::target::TargetName;

    #[test]
    fn a_busy_window_warms_the_next_and_an_idle_one_cools_it() {
        let target = TargetName::Trn2.target();
        let window = target.pe_window_ps;
        let mut warm_up = WarmUp::new(target);
        assert_eq!(warm_up.factor(0), 2);
        // Busy all the time but at half rate counts as half.
        warm_up.add(window / 4, window, 2);
        assert_eq!((warm_up.factor(window - 1), warm_up.factor(window)), (2, 2));
        warm_up.add(window, 2 * window, 2);
        assert_eq!(warm_up.factor(2 * window), 1);
        warm_up.add(2 * window, 2 * window + window / 4, 1);
        assert_eq!((warm_up.factor(3 * window - 1), warm_up.factor(3 * window)), (1, 2));
        assert_eq!(WarmUp::new(TargetName::Trn1.target()).factor(0), 1);
    }
}
