//! Checks of programs that call kernels.
//!
//! A kernel is checked once, by itself: nothing else runs during a call. That this is so is then proved of
//! the calls. Between two calls, every engine must know that all engines have ended the earlier one, and
//! that the semaphores which it used have been set back to 0; what one call writes and another reads is
//! followed by whole tensors. All of it takes time in proportion to the distinct kernels and the calls.

use std::collections::BTreeSet;

use ir::program::{Engine, InstructionKind};

use super::check_given;
use super::clocks::N_ENGINES;
use super::memory::device_runs;
use super::order::deadlock;
use super::shadow::BufferShadow;
use crate::applied::{Applied, KernelMachine, TensorSource};
use crate::finding::{Finding, FindingKind, Findings};
use crate::machine::Machine;
use crate::values::memory::Walk;

/// Everything that is wrong with a program of calls.
pub(crate) fn check_calls(machine: &Machine, applied: &Applied) -> Findings {
    let mut findings = Findings::default();
    let kernels: Vec<Facts> = applied.kernels.iter().map(|kernel| Facts::of(machine, kernel, &mut findings)).collect();
    if findings.is_empty() {
        Control::new(machine, applied, &kernels).check(&mut findings);
    }
    if findings.is_empty() {
        check_values(machine, applied, &kernels, &mut findings);
    }
    findings
}

/// What the check of a kernel tells its calls.
struct Facts {
    /// By tensor: it must hold data when a call begins.
    needs: Vec<bool>,
    /// Semaphores that it uses.
    semaphores: BTreeSet<u16>,
}

impl Facts {
    /// Checks a kernel.
    fn of(machine: &Machine, kernel: &KernelMachine, findings: &mut Findings) -> Facts {
        let places = &kernel.machine.device.places;
        // What is only read must be there. Of the rest, what is read before it is written; scratch is
        // nobody's but the kernel's.
        let may_hold = |source: TensorSource| match source {
            TensorSource::Bound(_) => true,
            TensorSource::Fixed(tensor) => machine.tensors[tensor].kind.is_given(),
        };
        let mut needs: Vec<bool> =
            kernel.tensors.iter().map(|tensor| !tensor.writes && may_hold(tensor.source)).collect();
        let found = loop {
            let mut unset = BTreeSet::new();
            let found = check_given(&kernel.machine, &needs, &mut unset);
            let mut is_known = true;
            for (number, tensor) in kernel.tensors.iter().enumerate() {
                let is_unset = unset.contains(&(places[number].buffer as u32));
                if is_unset && !needs[number] && may_hold(tensor.source) {
                    (needs[number], is_known) = (true, false);
                }
            }
            if is_known {
                break found;
            }
        };
        findings.extend(found);
        let instructions = &kernel.machine.instructions;
        let waits = instructions.iter().flat_map(|instruction| &instruction.waits).map(|wait| wait.semaphore);
        let updates = instructions.iter().filter_map(|instruction| Some(instruction.update?.semaphore));
        Facts { needs, semaphores: waits.chain(updates).collect() }
    }
}

/// How many records of each engine are complete, as some engine knows.
type Knowledge = [usize; N_ENGINES];

/// An update of a semaphore by the only engine that updates it.
struct Said {
    /// The semaphore's value then.
    value: u64,
    knows: Knowledge,
}

/// Semaphores that an engine has set to 0.
struct Cleared {
    engine: usize,
    position: usize,
    range: std::ops::Range<u32>,
    /// Calls that all engines had then ended, as it knew.
    n_calls: usize,
}

/// The streams without kernels, walked in an order that the waits allow.
struct Control<'a> {
    machine: &'a Machine,
    applied: &'a Applied,
    kernels: &'a [Facts],
    next: [usize; N_ENGINES],
    n_calls: [usize; N_ENGINES],
    /// By engine: positions of its calls.
    calls: [Vec<usize>; N_ENGINES],
    knows: [Knowledge; N_ENGINES],
    counts: Vec<u64>,
    said: Vec<Vec<Said>>,
    updater: Vec<Option<usize>>,
    cleared: Vec<Cleared>,
}

impl<'a> Control<'a> {
    fn new(machine: &'a Machine, applied: &'a Applied, kernels: &'a [Facts]) -> Control<'a> {
        let n_semaphores = 1 + usize::from(u16::MAX);
        let is_call = |(_, instruction): &(usize, &ir::program::Instruction)| {
            matches!(instruction.kind, InstructionKind::Call { .. })
        };
        Control {
            machine,
            applied,
            kernels,
            next: [0; N_ENGINES],
            n_calls: [0; N_ENGINES],
            calls: Engine::ALL.map(|engine| {
                machine.stream(engine).iter().enumerate().filter(is_call).map(|(position, _)| position).collect()
            }),
            knows: [[0; N_ENGINES]; N_ENGINES],
            counts: vec![0; n_semaphores],
            said: std::iter::repeat_with(Vec::new).take(n_semaphores).collect(),
            updater: vec![None; n_semaphores],
            cleared: Vec::new(),
        }
    }

    fn check(mut self, findings: &mut Findings) {
        self.check_rules(findings);
        self.check_semaphores(findings);
        if !findings.is_empty() {
            return;
        }
        loop {
            let mut is_done = true;
            let mut is_stuck = true;
            for engine in Engine::ALL {
                while self.step(engine, findings) {
                    is_stuck = false;
                }
                is_done &= self.next[engine as usize] == self.machine.stream(engine).len();
            }
            if is_done {
                return;
            }
            if is_stuck {
                let next = std::array::from_fn(|number| {
                    self.machine.stream_range(Engine::ALL[number]).start + self.next[number]
                });
                findings.push(deadlock(self.machine, &next, &self.counts));
                return;
            }
        }
    }

    /// What any instruction must keep to.
    fn check_rules(&self, findings: &mut Findings) {
        for (flat, instruction) in self.machine.instructions.iter().enumerate() {
            let rules = ir::program::rules::check_instruction(
                self.machine.target,
                instruction,
                &self.machine.tiles,
                &self.machine.tensors,
            );
            rules.into_iter().for_each(|violation| findings.push(self.machine.rule_finding(flat, violation)));
        }
    }

    /// Semaphores between calls are none of kernels, and each is one engine's.
    fn check_semaphores(&mut self, findings: &mut Findings) {
        let of_kernels: BTreeSet<u16> =
            self.kernels.iter().flat_map(|facts| facts.semaphores.iter().copied()).collect();
        let limit = self.machine.target.semaphore_max;
        let mut totals = vec![0u64; self.counts.len()];
        for (flat, instruction) in self.machine.instructions.iter().enumerate() {
            let mut report = |kind: FindingKind, message: String| {
                findings.push(Finding { kind, message, sites: vec![self.machine.site(flat)] });
            };
            let update = instruction.update;
            let named =
                instruction.waits.iter().map(|wait| wait.semaphore).chain(update.map(|update| update.semaphore));
            for semaphore in named.filter(|semaphore| of_kernels.contains(semaphore)) {
                report(FindingKind::Calls, format!("semaphore {semaphore} is used between calls and in a kernel"));
            }
            let Some(update) = update else { continue };
            let number = usize::from(update.semaphore);
            let engine = instruction.engine as usize;
            if *self.updater[number].get_or_insert(engine) != engine {
                let message = format!("semaphore {number} is updated by two engines between calls");
                report(FindingKind::Calls, message);
            }
            totals[number] += u64::from(update.add);
            if totals[number] > u64::from(limit) && totals[number] - u64::from(update.add) <= u64::from(limit) {
                report(FindingKind::SemaphoreOverflow, format!("semaphore {number} counts beyond {limit}"));
            }
        }
        for (flat, instruction) in self.machine.instructions.iter().enumerate() {
            let InstructionKind::ClearSemaphores { first, count } = instruction.kind else { continue };
            let range = u32::from(first)..u32::from(first) + u32::from(count);
            let end = range.end.min(self.updater.len() as u32) as usize;
            if let Some(number) = (usize::from(first)..end).find(|&number| self.updater[number].is_some()) {
                let message = format!("sets semaphore {number} to 0, which counts between calls");
                findings.push(Finding { kind: FindingKind::Calls, message, sites: vec![self.machine.site(flat)] });
            }
        }
    }

    /// An engine's next record; false where it has none or waits.
    fn step(&mut self, engine: Engine, findings: &mut Findings) -> bool {
        let number = engine as usize;
        let position = self.next[number];
        let machine = self.machine;
        let Some(instruction) = machine.stream(engine).get(position) else { return false };
        let holds = |wait: &ir::program::Wait| self.counts[usize::from(wait.semaphore)] >= u64::from(wait.at_least);
        if !instruction.waits.iter().all(holds) {
            return false;
        }
        // A wait for 0 says nothing.
        for wait in instruction.waits.iter().filter(|wait| wait.at_least > 0) {
            let said = &self.said[usize::from(wait.semaphore)];
            // The semaphore has one updater, whose updates come in order: the value tells how many there were.
            if let Some(first) = said.get(said.partition_point(|said| said.value < u64::from(wait.at_least))) {
                let learned = first.knows;
                for (known, learned) in self.knows[number].iter_mut().zip(learned) {
                    *known = learned.max(*known);
                }
            }
        }
        match instruction.kind {
            InstructionKind::Call { .. } => {
                self.check_call(number, position, findings);
                self.n_calls[number] += 1;
            }
            InstructionKind::ClearSemaphores { first, count } => {
                let range = u32::from(first)..u32::from(first) + u32::from(count);
                // Its own calls are complete when its sequencer has come this far with what it knows of others.
                let n_calls = self.n_known_calls(number, position);
                self.cleared.push(Cleared { engine: number, position, range, n_calls });
            }
            _ => {}
        }
        self.knows[number][number] = position + 1;
        if let Some(update) = instruction.update {
            let semaphore = usize::from(update.semaphore);
            self.counts[semaphore] += u64::from(update.add);
            self.said[semaphore].push(Said { value: self.counts[semaphore], knows: self.knows[number] });
        }
        self.next[number] += 1;
        true
    }

    /// Calls that all engines have ended, as one knows before its record at `position`.
    fn n_known_calls(&self, number: usize, position: usize) -> usize {
        let engines = (0..N_ENGINES).filter(|&engine| !self.calls[engine].is_empty());
        let known = engines.map(|engine| {
            let n_records = if engine == number { position } else { self.knows[number][engine] };
            self.calls[engine].partition_point(|&call| call < n_records)
        });
        known.min().unwrap_or(0)
    }

    /// A call begins after the one before it has ended everywhere, with its semaphores at 0.
    fn check_call(&self, number: usize, position: usize, findings: &mut Findings) {
        let call = self.n_calls[number];
        let Some(before) = call.checked_sub(1) else { return };
        let site = self.machine.site(self.machine.stream_range(Engine::ALL[number]).start + position);
        let mut report = |message: String| {
            findings.push(Finding { kind: FindingKind::Calls, message, sites: vec![site.clone()] });
        };
        if self.n_known_calls(number, position) < call {
            report(format!("call {call} may begin before call {before} has ended on every engine"));
            return;
        }
        let is_known = |cleared: &&Cleared| {
            let known = if cleared.engine == number { position } else { self.knows[number][cleared.engine] };
            cleared.n_calls >= call && cleared.position < known
        };
        let cleared: Vec<&Cleared> = self.cleared.iter().rev().take_while(|cleared| cleared.n_calls >= call).collect();
        let used = &self.kernels[self.applied.calls[before].kernel].semaphores;
        let is_left = |semaphore: &&u16| {
            !cleared
                .iter()
                .filter(|cleared| is_known(cleared))
                .any(|cleared| cleared.range.contains(&u32::from(**semaphore)))
        };
        if let Some(semaphore) = used.iter().find(is_left) {
            report(format!("call {call} may begin with semaphore {semaphore} as call {before} has left it"));
        }
    }
}

/// Follows tensors from call to call.
fn check_values(machine: &Machine, applied: &Applied, kernels: &[Facts], findings: &mut Findings) {
    let mut holds: Vec<bool> = machine.tensors.iter().map(|tensor| tensor.kind.is_given()).collect();
    let overlaps = Overlaps::of(machine);
    for group in &overlaps.same {
        let any = group.iter().any(|&tensor| holds[tensor]);
        group.iter().for_each(|&tensor| holds[tensor] = any);
    }
    let mut filled: Vec<Vec<Option<(usize, bool)>>> =
        applied.kernels.iter().map(|kernel| vec![None; kernel.tensors.len()]).collect();
    for (number, call) in applied.calls.iter().enumerate() {
        let kernel = &applied.kernels[call.kernel];
        let mut report = |kind: FindingKind, message: String| {
            findings.push(Finding { kind, message, sites: Vec::new() });
        };
        let bound: Vec<usize> = kernel.tensors.iter().map(|tensor| applied.tensor(call, tensor.source)).collect();
        let mut is_apart = BTreeSet::new();
        for (_, &module_tensor) in kernel.tensors.iter().zip(&bound).filter(|(tensor, _)| tensor.writes) {
            let is_twice = bound.iter().filter(|&&other| overlaps.touch(machine, module_tensor, other)).count() > 1;
            if is_twice && is_apart.insert(module_tensor) {
                let name = &machine.tensors[module_tensor].name;
                report(FindingKind::Calls, format!("call {number} writes `{name}`, which it has by another name too"));
            }
        }
        for (position, &module_tensor) in bound.iter().enumerate() {
            if kernels[call.kernel].needs[position] && !holds[module_tensor] {
                let name = &machine.tensors[module_tensor].name;
                report(FindingKind::Uninitialised, format!("call {number} reads `{name}`, which nothing has written"));
            }
        }
        for (position, &module_tensor) in bound.iter().enumerate() {
            if !kernel.tensors[position].writes || !matches!(kernel.tensors[position].source, TensorSource::Bound(_)) {
                continue;
            }
            let memo = &mut filled[call.kernel][position];
            let is_alike = |&(other, _): &(usize, bool)| machine.has_equal_layout(other, module_tensor);
            let fills = match memo.filter(is_alike) {
                Some((_, fills)) => fills,
                None => fills(machine, kernel, position, module_tensor),
            };
            *memo = Some((module_tensor, fills));
            overlaps.write(machine, module_tensor, fills, &mut holds);
        }
    }
    for tensor in machine.output_tensors().filter(|&tensor| !holds[tensor]) {
        let described = &machine.tensors[tensor];
        if !described.shape.contains(&0) {
            let message = format!("`{}` is not written, or not all of it by one call", described.name);
            findings.push(Finding { kind: FindingKind::UnwrittenOutput, message, sites: Vec::new() });
        }
    }
}

/// True where a kernel writes every element of one of its tensors, which stands for another in a call.
fn fills(machine: &Machine, kernel: &KernelMachine, position: usize, stands_for: usize) -> bool {
    if machine.tensors[stands_for].shape.contains(&0) {
        return true;
    }
    let mut shadow = BufferShadow::default();
    for instruction in &kernel.machine.instructions {
        let InstructionKind::Dma { dst, gather, .. } = &instruction.kind else { continue };
        // A scatter may write any rows.
        if gather.is_some() || dst.hbm().is_none_or(|tensor| tensor.index() != position) {
            continue;
        }
        let Some(runs) = device_runs(dst, 0) else { return false };
        runs.into_iter().for_each(|run| shadow.initialise(run));
    }
    let described = &machine.tensors[stands_for];
    let Some(strides) = machine.layout(stands_for) else {
        return shadow.first_gap((0, described.size_bytes)).is_none();
    };
    let element = described.dtype.size_bytes() as u64;
    let walk = Walk::new(described.shape.iter().zip(&strides).map(|(&count, &step)| (step, count)));
    let mut is_filled = true;
    walk.for_each_run(0, |first| {
        let start = first as u64 * element;
        is_filled &= shadow.first_gap((start, start + walk.run as u64 * element)).is_none();
    });
    is_filled
}

/// Tensors that share memory.
struct Overlaps {
    /// Tensors of one place and size.
    same: Vec<Vec<usize>>,
    /// By buffer: its tensors.
    of_buffer: Vec<Vec<usize>>,
}

impl Overlaps {
    fn of(machine: &Machine) -> Overlaps {
        let mut of_buffer = vec![Vec::new(); machine.device.buffer_bytes.len()];
        for (tensor, place) in machine.device.places.iter().enumerate() {
            of_buffer[place.buffer].push(tensor);
        }
        let mut same: Vec<Vec<usize>> = Vec::new();
        for tensors in of_buffer.iter().filter(|tensors| tensors.len() > 1) {
            let mut by_range = std::collections::BTreeMap::new();
            for &tensor in tensors {
                by_range.entry(range(machine, tensor)).or_insert_with(Vec::new).push(tensor);
            }
            same.extend(by_range.into_values().filter(|group| group.len() > 1));
        }
        Overlaps { same, of_buffer }
    }

    fn touch(&self, machine: &Machine, one: usize, other: usize) -> bool {
        let ((first, start, end), (second, low, high)) = (range(machine, one), range(machine, other));
        first == second && (start < high && low < end || one == other)
    }

    /// Notes that a call writes a tensor, whole or in part.
    fn write(&self, machine: &Machine, tensor: usize, is_whole: bool, holds: &mut [bool]) {
        let place = range(machine, tensor);
        for &other in &self.of_buffer[place.0] {
            if range(machine, other) == place {
                holds[other] |= is_whole;
            } else if self.touch(machine, tensor, other) {
                holds[other] = false;
            }
        }
    }
}

/// Buffer, first byte and end of a tensor.
fn range(machine: &Machine, tensor: usize) -> (usize, u64, u64) {
    let place = machine.device.places[tensor];
    let start = place.start_byte as u64;
    (place.buffer, start, start + machine.tensors[tensor].size_bytes)
}
