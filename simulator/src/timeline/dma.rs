//! The 16 DMA engines: each serves the parts of transfers in the order of their arrival, and device
//! memory has a rate of its own.

use ir::target::Target;
use ir::target::cost::DmaCost;

pub(super) struct DmaEngines {
    /// When each engine is free, and after whom.
    free: Vec<(u64, Option<usize>)>,
    hbm_free_ps: u64,
    /// When the latest transfer of each queue ends on each engine.
    ring_free_ps: [Vec<u64>; ir::program::Engine::ALL.len()],
    /// Work of each engine so far.
    pub busy_ps: Vec<u64>,
}

/// When a transfer's data moved.
pub(super) struct Carried {
    pub first_ps: u64,
    pub last_ps: u64,
    pub n_engines: u32,
    /// The transfer that held the slowest engine.
    pub behind: Option<usize>,
}

impl DmaEngines {
    pub fn new(target: &Target) -> DmaEngines {
        let n_engines = target.dma_engines as usize;
        DmaEngines {
            free: vec![(0, None); n_engines],
            hbm_free_ps: 0,
            ring_free_ps: std::array::from_fn(|_| vec![0; n_engines]),
            busy_ps: vec![0; n_engines],
        }
    }

    /// Carries a transfer whose first data is ready at `now_ps`; `ring` is the position of the engine
    /// that triggered it. Calls come in order of time.
    pub fn carry(&mut self, target: &Target, transfer: usize, ring: usize, cost: &DmaCost, now_ps: u64) -> Carried {
        let mut carried = Carried { first_ps: u64::MAX, last_ps: now_ps, n_engines: 0, behind: None };
        for (engine, &work_ps) in cost.engine_ps.iter().enumerate().filter(|&(_, &work_ps)| work_ps > 0) {
            let ready_ps = now_ps + u64::from(carried.n_engines) * cost.stagger_ps;
            let (free_ps, holder) = self.free[engine];
            let ring_free_ps = if cost.gap_ps > 0 { self.ring_free_ps[ring][engine] + cost.gap_ps } else { 0 };
            let begin_ps = ready_ps.max(free_ps).max(ring_free_ps);
            let end_ps = begin_ps + work_ps;
            carried.n_engines += 1;
            carried.first_ps = carried.first_ps.min(begin_ps);
            if end_ps >= carried.last_ps {
                carried.last_ps = end_ps;
                carried.behind = holder.filter(|_| free_ps > ready_ps);
            }
            self.free[engine] = (end_ps, Some(transfer));
            self.ring_free_ps[ring][engine] = end_ps;
            self.busy_ps[engine] += work_ps;
        }
        carried.first_ps = carried.first_ps.min(carried.last_ps);
        self.hbm_free_ps = self.hbm_free_ps.max(now_ps) + cost.hbm_ps(target);
        carried.last_ps = carried.last_ps.max(self.hbm_free_ps);
        carried
    }
}
