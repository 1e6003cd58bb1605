//! From a schedule to a report.

use ir::program::{DmaQueue, Engine, InstructionKind};
use ir::target::cost::doubtful_numbers;
use ir::target::{Grade, Target};

use super::simulate::{Schedule, Slot, SlotCause};
use super::{Bound, Busy, Cause, CriticalStep, Span, Timeline, TransferSpan};
use crate::footprint;
use crate::machine::Machine;

/// An engine that is busy for this share of the body decides its length; below it, fixed times do.
const BOUND_PERCENT: u64 = 60;

pub(crate) fn summarise(machine: &Machine, target: &Target, schedule: &Schedule) -> Timeline {
    let transfers = || schedule.slots.iter().filter_map(|slot| slot.transfer.as_ref());
    let origin_ps = origin_ps(schedule);
    let last_ps = schedule.slots.iter().map(|slot| finish(target, slot)).max().unwrap_or(0);
    let body_ps = last_ps - origin_ps;
    let busy = busy(machine, target, schedule);
    let bound = bound(&busy, body_ps);
    Timeline {
        calls: Vec::new(),
        spans: schedule.slots.iter().enumerate().map(|(flat, slot)| span(machine, flat, slot, origin_ps)).collect(),
        body_ps,
        nc_ps: body_ps + target.nc_overhead_ps,
        total_ps: body_ps + target.preamble_ps + target.epilogue_ps,
        busy,
        bound,
        accuracy: target.name.accuracy(bound.work()),
        assumed: assumed(machine, target),
        critical_path: critical_path(machine, target, schedule, origin_ps),
        hbm_read_bytes: transfers().map(|transfer| transfer.read_bytes).sum(),
        hbm_write_bytes: transfers().map(|transfer| transfer.write_bytes).sum(),
        sbuf_peak_bytes: footprint::sbuf_peak_bytes(machine),
    }
}

/// The first trigger, or the first instruction where there is no transfer.
pub(super) fn origin_ps(schedule: &Schedule) -> u64 {
    let transfers = schedule.slots.iter().filter_map(|slot| slot.transfer.as_ref());
    let first_trigger = transfers.map(|transfer| transfer.trigger_ps).min();
    first_trigger.or(schedule.slots.iter().map(|slot| slot.start_ps).min()).unwrap_or(0)
}

fn assumed(machine: &Machine, target: &Target) -> Vec<&'static str> {
    let mut names: Vec<&'static str> =
        machine.instructions.iter().flat_map(|instruction| doubtful_numbers(target, instruction)).collect();
    names.sort_unstable();
    names.dedup();
    if !names.is_empty() {
        let numbers = target.numbers();
        names.retain(|name| numbers.iter().any(|number| number.name == *name && number.grade == Grade::A));
    }
    names
}

/// When an instruction and its data are complete.
fn finish(target: &Target, slot: &Slot) -> u64 {
    let data_ps = slot.transfer.as_ref().map(|transfer| transfer.last_ps + target.dma_completion_write_ps);
    data_ps.unwrap_or(slot.done_ps)
}

fn relative(ps: u64, origin_ps: u64) -> i64 {
    ps as i64 - origin_ps as i64
}

fn span(machine: &Machine, flat: usize, slot: &Slot, origin_ps: u64) -> Span {
    let cause = match slot.cause {
        SlotCause::Start => Cause::Start,
        SlotCause::Engine(other) => Cause::Engine(machine.id(other)),
        SlotCause::Semaphore(other) => Cause::Semaphore(machine.id(other)),
        SlotCause::Operand(other) => Cause::Operand(machine.id(other)),
        SlotCause::Generator(other) => Cause::Generator(machine.id(other)),
    };
    let transfer = slot.transfer.as_ref().map(|transfer| TransferSpan {
        first_data_ps: relative(transfer.first_ps, origin_ps),
        last_data_ps: relative(transfer.last_ps, origin_ps),
        n_engines: transfer.n_engines,
        bytes: transfer.read_bytes.max(transfer.write_bytes),
        behind: transfer.behind.map(|other| machine.id(other)),
    });
    Span {
        instruction: machine.id(flat),
        name: machine.instructions[flat].kind.name(),
        start_ps: relative(slot.start_ps, origin_ps),
        end_ps: relative(slot.end_ps, origin_ps),
        done_ps: relative(slot.done_ps, origin_ps),
        cause,
        transfer,
    }
}

/// Time that a set of intervals covers.
fn covered_ps(mut intervals: Vec<(u64, u64)>) -> u64 {
    intervals.sort_unstable();
    let (mut total_ps, mut covered_ps) = (0, 0);
    for (first, last) in intervals {
        total_ps += last.saturating_sub(first.max(covered_ps));
        covered_ps = covered_ps.max(last);
    }
    total_ps
}

/// As the vendor's profiler counts: an instruction is active until its result is there, a trigger of
/// a hardware queue until its descriptors are handed over.
fn busy(machine: &Machine, target: &Target, schedule: &Schedule) -> Busy {
    let of = |engine: Engine| -> u64 {
        let range = machine.stream_range(engine);
        let active = range.filter_map(|flat| {
            let slot = &schedule.slots[flat];
            match &machine.instructions[flat].kind {
                _ if machine.instructions[flat].is_control() => None,
                InstructionKind::Dma { queue: DmaQueue::Hardware | DmaQueue::HardwareTranspose, .. } => {
                    Some((slot.start_ps, slot.start_ps + target.dma_hardware_issue_ps))
                }
                _ => Some((slot.start_ps, slot.done_ps.max(slot.end_ps))),
            }
        });
        covered_ps(active.collect())
    };
    let moving = schedule.slots.iter().filter_map(|slot| slot.transfer.as_ref());
    let dma_ps = covered_ps(moving.map(|transfer| (transfer.first_ps, transfer.last_ps)).collect());
    Busy {
        pe_ps: of(Engine::Pe),
        act_ps: of(Engine::Act),
        dve_ps: of(Engine::Dve),
        pool_ps: of(Engine::Pool),
        sp_ps: of(Engine::Sp),
        dma_ps,
        dma_engine_ps: schedule.dma_engine_ps.iter().copied().max().unwrap_or(0),
    }
}

pub(super) fn bound(busy: &Busy, body_ps: u64) -> Bound {
    let shares = [
        (busy.pe_ps, Bound::Pe),
        (busy.act_ps, Bound::Act),
        (busy.dve_ps, Bound::Dve),
        (busy.pool_ps, Bound::Pool),
        (busy.dma_engine_ps, Bound::Dma),
    ];
    let (busiest_ps, bound) =
        shares.into_iter().max_by_key(|&(ps, bound)| (ps, std::cmp::Reverse(bound))).unwrap_or((0, Bound::Latency));
    if busiest_ps * 100 >= body_ps * BOUND_PERCENT && busiest_ps > 0 { bound } else { Bound::Latency }
}

/// Follows causes back from what ends last.
fn critical_path(machine: &Machine, target: &Target, schedule: &Schedule, origin_ps: u64) -> Vec<CriticalStep> {
    let slots = &schedule.slots;
    let Some(last) = (0..slots.len()).max_by_key(|&flat| (finish(target, &slots[flat]), flat)) else {
        return Vec::new();
    };
    let mut steps = Vec::new();
    let mut add = |flat: usize, from_ps: u64, to_ps: u64, what: &'static str| {
        if to_ps > from_ps {
            let (from_ps, to_ps) = (relative(from_ps, origin_ps), relative(to_ps, origin_ps));
            steps.push(CriticalStep { instruction: machine.id(flat), from_ps, to_ps, what });
        }
    };
    // The path reaches `until_ps` of instruction `flat`; the data of a transfer may be what it needs.
    let (mut flat, mut until_ps, mut at_data) = (last, finish(target, &slots[last]), slots[last].transfer.is_some());
    loop {
        let slot = &slots[flat];
        if let Some(transfer) = slot.transfer.as_ref().filter(|_| at_data) {
            add(flat, transfer.last_ps, until_ps, "completion");
            if let Some(other) = transfer.behind
                && let Some(before) = &slots[other].transfer
            {
                add(flat, before.last_ps.min(transfer.last_ps), transfer.last_ps, "data");
                (flat, until_ps) = (other, before.last_ps.min(transfer.last_ps));
                continue;
            }
            add(flat, transfer.first_ps, transfer.last_ps, "data");
            add(flat, transfer.trigger_ps, transfer.first_ps, "first data");
            until_ps = transfer.trigger_ps;
        }
        let what = if slot.transfer.is_some() { "descriptors" } else { machine.instructions[flat].kind.name() };
        add(flat, slot.start_ps, until_ps, what);
        let from = match slot.cause {
            SlotCause::Start => break,
            SlotCause::Semaphore(other) => (other, true),
            SlotCause::Engine(other) | SlotCause::Operand(other) | SlotCause::Generator(other) => (other, false),
        };
        until_ps = slot.start_ps;
        (flat, at_data) = from;
    }
    steps.reverse();
    steps
}
