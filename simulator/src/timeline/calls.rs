//! When calls of kernels happen.
//!
//! Nothing overlaps a call, so that a kernel takes the same time whenever its engines begin alike: each is
//! simulated once for every way in which it begins, and the results are set behind each other. The clock
//! that the tensor engine's warm-up is counted by has no known phase; here every call begins a window.

use std::collections::BTreeMap;
use std::sync::Arc;

use ir::program::{Engine, InstructionKind};
use ir::target::Target;

use super::simulate::{Start, simulate_from};
use super::summary::{bound, origin_ps, summarise};
use super::{Busy, CallSpan, CriticalStep, Timeline};
use crate::applied::Applied;
use crate::check::deadlock;
use crate::finding::Finding;
use crate::machine::{InstructionId, Machine};

const N_ENGINES: usize = Engine::ALL.len();

/// Calls in time, from the first instruction on.
pub(crate) struct CallTimes {
    calls: Vec<CallTime>,
}

struct CallTime {
    kernel: usize,
    start_ps: u64,
    end_ps: u64,
    /// The record of the engine that ends last.
    instruction: InstructionId,
    run: Arc<Run>,
}

/// A kernel that began in some way; times count from when its first engine began.
struct Run {
    timeline: Arc<Timeline>,
    origin_ps: u64,
    end_ps: [u64; N_ENGINES],
    /// When each engine's data path is done.
    done_ps: [u64; N_ENGINES],
    warm_up: super::tensor_engine::WarmUp,
}

impl Run {
    fn of(machine: &Machine, target: &Target, start: Start) -> Result<Run, Finding> {
        let schedule = simulate_from(machine, target, start)?;
        let mut done_ps = [0; N_ENGINES];
        for engine in Engine::ALL {
            let compute = machine.stream_range(engine).filter(|&flat| machine.instructions[flat].is_compute());
            done_ps[engine as usize] = compute.map(|flat| schedule.slots[flat].done_ps).max().unwrap_or(0);
        }
        Ok(Run {
            timeline: Arc::new(summarise(machine, target, &schedule)),
            origin_ps: origin_ps(&schedule),
            end_ps: schedule.end_ps,
            done_ps,
            warm_up: schedule.warm_up,
        })
    }
}

/// Finds when every call begins and ends.
///
/// # Errors
/// A deadlock, in a kernel or between calls.
pub(crate) fn call_times(machine: &Machine, applied: &Applied, target: &Target) -> Result<CallTimes, Finding> {
    let mut clock = Clock {
        machine,
        applied,
        target,
        runs: BTreeMap::new(),
        next: [0; N_ENGINES],
        now_ps: [0; N_ENGINES],
        done_ps: [0; N_ENGINES],
        updates: BTreeMap::new(),
        calls: Vec::with_capacity(applied.calls.len()),
    };
    loop {
        let mut is_stuck = true;
        for engine in Engine::ALL {
            while clock.control(engine) {
                is_stuck = false;
            }
        }
        if Engine::ALL.into_iter().all(|engine| clock.next[engine as usize] == machine.stream(engine).len()) {
            return Ok(CallTimes { calls: clock.calls });
        }
        if clock.call()? {
            continue;
        }
        if is_stuck {
            return Err(clock.deadlock());
        }
    }
}

/// The sequencers between calls.
struct Clock<'a> {
    machine: &'a Machine,
    applied: &'a Applied,
    target: &'a Target,
    runs: BTreeMap<(usize, Start), Arc<Run>>,
    next: [usize; N_ENGINES],
    now_ps: [u64; N_ENGINES],
    done_ps: [u64; N_ENGINES],
    /// By semaphore: when updates become visible, and what they add.
    updates: BTreeMap<u16, Vec<(u64, u64)>>,
    calls: Vec<CallTime>,
}

impl Clock<'_> {
    /// When an engine's next record is issued; `None` where it has none, or waits for what is yet to come.
    fn issue_ps(&self, engine: Engine) -> Option<u64> {
        let number = engine as usize;
        let instruction = self.machine.stream(engine).get(self.next[number])?;
        let mut now_ps = self.now_ps[number];
        for wait in &instruction.waits {
            let updates = self.updates.get(&wait.semaphore).map_or(&[][..], Vec::as_slice);
            let met_ps = met_ps(updates, u64::from(wait.at_least))?;
            if met_ps > self.now_ps[number] {
                now_ps = now_ps.max(met_ps + wake_ps(self.target, engine));
            }
        }
        Some(now_ps)
    }

    /// An engine's next record, unless it is a call; false where nothing happens.
    fn control(&mut self, engine: Engine) -> bool {
        let number = engine as usize;
        let Some(issue_ps) = self.issue_ps(engine) else { return false };
        let instruction = &self.machine.stream(engine)[self.next[number]];
        if matches!(instruction.kind, InstructionKind::Call { .. }) {
            return false;
        }
        let end_ps = issue_ps + self.target.control_ps;
        if let Some(update) = instruction.update {
            let visible_ps = end_ps.max(self.done_ps[number]);
            self.updates.entry(update.semaphore).or_default().push((visible_ps, u64::from(update.add)));
        }
        self.now_ps[number] = end_ps;
        self.next[number] += 1;
        true
    }

    /// The next call, where every engine has come to it; false where some have not.
    fn call(&mut self) -> Result<bool, Finding> {
        let Some(call) = self.applied.calls.get(self.calls.len()) else { return Ok(false) };
        let mut begins_ps = [None; N_ENGINES];
        for engine in Engine::ALL {
            let number = engine as usize;
            let Some(instruction) = self.machine.stream(engine).get(self.next[number]) else { continue };
            let is_call = matches!(instruction.kind, InstructionKind::Call { .. });
            let Some(issue_ps) = self.issue_ps(engine).filter(|_| is_call) else { return Ok(false) };
            begins_ps[number] = Some(issue_ps + self.target.control_ps);
        }
        let Some(start_ps) = begins_ps.iter().flatten().copied().min() else { return Ok(false) };
        let latest = self.calls.last();
        let is_warm = latest.is_some_and(|before| before.run.warm_up.factor(start_ps - before.start_ps) == 1);
        let engine_ps = begins_ps.map(|begin_ps| begin_ps.map_or(0, |begin_ps| begin_ps - start_ps));
        let key = (call.kernel, Start { engine_ps, is_warm });
        let run = match self.runs.get(&key) {
            Some(run) => run.clone(),
            None => {
                let run = Arc::new(Run::of(&self.applied.kernels[call.kernel].machine, self.target, key.1)?);
                self.runs.insert(key, run.clone());
                run
            }
        };
        let mut last = (0, InstructionId { engine: Engine::Sp, position: 0 });
        for engine in Engine::ALL.into_iter().filter(|&engine| begins_ps[engine as usize].is_some()) {
            let number = engine as usize;
            // The record that returns.
            self.now_ps[number] = start_ps + run.end_ps[number] + self.target.control_ps;
            self.done_ps[number] = start_ps + run.done_ps[number];
            let position = self.next[number] as u32;
            last = last.max((self.now_ps[number].max(self.done_ps[number]), InstructionId { engine, position }));
            self.next[number] += 1;
        }
        let (end_ps, instruction) = last;
        self.calls.push(CallTime { kernel: call.kernel, start_ps, end_ps, instruction, run });
        Ok(true)
    }

    fn deadlock(&self) -> Finding {
        let next =
            std::array::from_fn(|number| self.machine.stream_range(Engine::ALL[number]).start + self.next[number]);
        let mut counts = vec![0; 1 + usize::from(u16::MAX)];
        for (&semaphore, updates) in &self.updates {
            counts[usize::from(semaphore)] = updates.iter().map(|&(_, add)| add).sum();
        }
        deadlock(self.machine, &next, &counts)
    }
}

/// When updates have added up to a value; 0 at once.
fn met_ps(updates: &[(u64, u64)], at_least: u64) -> Option<u64> {
    if at_least == 0 {
        return Some(0);
    }
    // One engine's updates come in order of time.
    let mut sorted;
    let in_order = if updates.is_sorted() {
        updates
    } else {
        sorted = updates.to_vec();
        sorted.sort_unstable();
        &sorted
    };
    let mut sum = 0;
    in_order.iter().find_map(|&(visible_ps, add)| {
        sum += add;
        (sum >= at_least).then_some(visible_ps)
    })
}

fn wake_ps(target: &Target, engine: Engine) -> u64 {
    match engine {
        Engine::Pe => target.wake_pe_ps,
        Engine::Act | Engine::Dve => target.wake_ps,
        Engine::Pool | Engine::Sp => target.wake_other_ps,
    }
}

/// Predicts the time of a program of calls.
///
/// # Errors
/// A deadlock.
pub(crate) fn of_calls(machine: &Machine, applied: &Applied, target: &Target) -> Result<Timeline, Finding> {
    let CallTimes { calls } = call_times(machine, applied, target)?;
    // The body begins with the first trigger.
    let first = calls.first().map_or(0, |call| call.start_ps + call.run.origin_ps);
    let relative = |ps: u64| ps as i64 - first as i64;
    let mut busy = Busy::default();
    let mut last_ps = first;
    let (mut hbm_read_bytes, mut hbm_write_bytes, mut sbuf_peak_bytes) = (0, 0, 0);
    let mut assumed = Vec::new();
    let mut critical_path: Vec<CriticalStep> = Vec::new();
    let mut spans = Vec::with_capacity(calls.len());
    for call in &calls {
        let CallTime { kernel, start_ps, end_ps, instruction, run } = call;
        let timeline = &run.timeline;
        add(&mut busy, &timeline.busy);
        last_ps = last_ps.max(start_ps + run.origin_ps + timeline.body_ps);
        hbm_read_bytes += timeline.hbm_read_bytes;
        hbm_write_bytes += timeline.hbm_write_bytes;
        sbuf_peak_bytes = timeline.sbuf_peak_bytes.max(sbuf_peak_bytes);
        assumed.extend(&timeline.assumed);
        let (from_ps, to_ps) = (relative(*start_ps), relative(*end_ps));
        if let Some(before) = critical_path.last()
            && before.to_ps < from_ps
        {
            let (instruction, before_ps) = (before.instruction, before.to_ps);
            critical_path.push(CriticalStep { instruction, from_ps: before_ps, to_ps: from_ps, what: "barrier" });
        }
        critical_path.push(CriticalStep { instruction: *instruction, from_ps, to_ps, what: "kernel" });
        let origin_ps = relative(start_ps + run.origin_ps);
        let (start_ps, end_ps) = (from_ps, to_ps);
        spans.push(CallSpan { kernel: *kernel, origin_ps, start_ps, end_ps, timeline: timeline.clone() });
    }
    assumed.sort_unstable();
    assumed.dedup();
    let body_ps = last_ps - first;
    let bound = bound(&busy, body_ps);
    Ok(Timeline {
        spans: Vec::new(),
        calls: spans,
        body_ps,
        nc_ps: body_ps + target.nc_overhead_ps,
        total_ps: body_ps + target.preamble_ps + target.epilogue_ps,
        busy,
        bound,
        accuracy: target.name.accuracy(bound.work()),
        assumed,
        critical_path,
        hbm_read_bytes,
        hbm_write_bytes,
        sbuf_peak_bytes,
    })
}

fn add(sum: &mut Busy, busy: &Busy) {
    sum.pe_ps += busy.pe_ps;
    sum.act_ps += busy.act_ps;
    sum.dve_ps += busy.dve_ps;
    sum.pool_ps += busy.pool_ps;
    sum.sp_ps += busy.sp_ps;
    sum.dma_ps += busy.dma_ps;
    sum.dma_engine_ps += busy.dma_engine_ps;
}
