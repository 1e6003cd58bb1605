//! Whether the tensor engine is warm: it runs at a reduced rate after a window of little activity.
//!
//! Windows lie on a fixed grid from the start of the program, and the engine starts cold.

use ir::target::Target;

#[derive(Clone, Debug)]
pub(super) struct WarmUp {
    target: &'static Target,
    /// Streaming time at full rate, by window.
    busy_ps: Vec<u64>,
}

impl WarmUp {
    pub(super) fn new(target: &'static Target) -> Self {
        WarmUp { target, busy_ps: Vec::new() }
    }

    /// True where what starts at this time runs at the reduced rate.
    pub(super) fn is_cold(&self, start_ps: u64) -> bool {
        if self.target.pe_cold_factor == 1 {
            return false;
        }
        let window = (start_ps / self.target.pe_window_ps) as usize;
        let before = window.checked_sub(1).and_then(|before| self.busy_ps.get(before)).copied().unwrap_or(0);
        before * 100 < self.target.pe_window_ps * self.target.pe_warm_percent
    }

    /// Counts streaming; while the engine is cold, less of it is activity.
    pub(super) fn add(&mut self, start_ps: u64, end_ps: u64) {
        let factor = if self.is_cold(start_ps) { self.target.pe_cold_factor } else { 1 };
        let window_ps = self.target.pe_window_ps;
        let mut from_ps = start_ps;
        while from_ps < end_ps {
            let window = (from_ps / window_ps) as usize;
            let to_ps = end_ps.min((window as u64 + 1) * window_ps);
            if self.busy_ps.len() <= window {
                self.busy_ps.resize(window + 1, 0);
            }
            self.busy_ps[window] += (to_ps - from_ps) / factor;
            from_ps = to_ps;
        }
    }
}

#[cfg(test)]
mod tests {
    use ir::target::TargetName;

    use super::WarmUp;

    #[test]
    fn a_busy_window_warms_the_next_one() {
        let target = TargetName::Trn2.target();
        let window_ps = target.pe_window_ps;
        let mut warm_up = WarmUp::new(target);
        assert!(warm_up.is_cold(0));
        warm_up.add(0, window_ps);
        assert!(warm_up.is_cold(window_ps - 1) && !warm_up.is_cold(window_ps) && warm_up.is_cold(2 * window_ps));
        assert!(!WarmUp::new(TargetName::Trn1.target()).is_cold(0));
    }
}
