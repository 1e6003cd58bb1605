//! Order and initialisation of every byte: read after write, write after read, write after write.
//!
//! Instructions are taken in the order of their start. A conflict with an earlier one must be
//! ordered by the clocks; comparing with the last writer and the readers since is enough, because
//! order is transitive.

use std::collections::{BTreeMap, BTreeSet};

use ir::program::rules::Rule;
use ir::program::{Engine, InstructionKind};

use super::clocks::Clocks;
use super::shadow::{Met, Shadow, Writer};
use crate::finding::{Finding, FindingKind, Findings};
use crate::footprint::{self, Area, Rect};
use crate::machine::Machine;
use crate::timeline::Schedule;
use crate::values::memory::Walk;

pub(super) fn check_memory(machine: &Machine, schedule: &Schedule, clocks: &Clocks<'_>, findings: &mut Findings) {
    let mut checker = MemoryChecker {
        machine,
        clocks,
        shadow: Shadow::default(),
        written_buffers: written_buffers(machine),
        seen: BTreeSet::new(),
        uninitialised: BTreeMap::new(),
        findings,
    };
    checker.initialise();
    for &flat in &schedule.start_order {
        checker.visit(flat);
    }
    checker.report_uninitialised();
    checker.check_outputs();
}

struct MemoryChecker<'a> {
    machine: &'a Machine,
    clocks: &'a Clocks<'a>,
    shadow: Shadow,
    /// Buffers that some transfer writes; the others keep what they hold.
    written_buffers: BTreeSet<u32>,
    /// Pairs that have been reported.
    seen: BTreeSet<(usize, usize, FindingKind)>,
    /// First byte that each reader found uninitialised. A reader that races with the writer is
    /// reported as such instead.
    uninitialised: BTreeMap<usize, Rect>,
    findings: &'a mut Findings,
}

fn written_buffers(machine: &Machine) -> BTreeSet<u32> {
    let written = machine.instructions.iter().filter_map(|found| found.kind.accesses().dma_write?.hbm());
    written.map(|id| machine.device.places[id.index()].buffer as u32).collect()
}

impl MemoryChecker<'_> {
    /// Inputs and constants hold data from the start.
    fn initialise(&mut self) {
        for (tensor, described) in self.machine.tensors.iter().enumerate() {
            if described.kind.is_given() && described.size_bytes > 0 {
                let rect = self.tensor_rect(tensor);
                self.shadow.initialise(&rect);
            }
        }
    }

    fn tensor_rect(&self, tensor: usize) -> Rect {
        let place = self.machine.device.places[tensor];
        let start = place.start_byte as u64;
        let bytes = (start, start + self.machine.tensors[tensor].size_bytes);
        Rect { area: Area::Buffer(place.buffer as u32), partitions: (0, 1), bytes }
    }

    fn visit(&mut self, flat: usize) {
        let machine = self.machine;
        let instruction = &machine.instructions[flat];
        let touched = footprint::of_instruction(machine, instruction);
        let accumulates = matches!(instruction.kind, InstructionKind::Matmul { accumulate: true, .. });
        let mut met = Vec::new();
        let clocks = self.clocks;
        for rect in &touched.reads {
            if let Area::Buffer(buffer) = rect.area
                && !self.written_buffers.contains(&buffer)
                && self.shadow.first_gap(rect).is_none()
            {
                continue;
            }
            if accumulates && rect.area == Area::Psum {
                for reader in self.shadow.readers(rect) {
                    self.read_before_the_end(reader as usize, flat);
                }
            }
            let stands_for = |later: u32, earlier: u32| clocks.ordered(earlier as usize, later as usize);
            self.shadow.read(rect, flat as u32, stands_for, |found| met.push((*rect, found)));
        }
        for rect in &touched.writes {
            self.shadow.write(rect, flat as u32, |found| met.push((*rect, found)));
        }
        for (rect, found) in met {
            match found {
                Met::WrittenBy(writer) => {
                    self.conflict(writer, flat, FindingKind::ReadAfterWrite, &rect);
                    if accumulates && rect.area == Area::Psum {
                        self.accumulates_onto(writer, flat);
                    }
                }
                Met::OverwritesWrite(writer) => self.conflict(writer, flat, FindingKind::WriteAfterWrite, &rect),
                Met::ReadBy(reader) => {
                    self.conflict(Writer::Instruction(reader), flat, FindingKind::WriteAfterRead, &rect);
                }
                Met::Uninitialised(partition, byte) => {
                    let first = Rect { partitions: (partition, partition + 1), bytes: (byte, byte + 1), ..rect };
                    self.uninitialised.entry(flat).or_insert(first);
                }
                Met::ReadTooEarlyBy(reader) => {
                    let reader = reader as usize;
                    if reader != flat && !self.clocks.ordered(reader, flat) {
                        self.race(flat, reader, FindingKind::ReadAfterWrite, &rect);
                        self.uninitialised.remove(&reader);
                    }
                }
            }
        }
    }

    fn conflict(&mut self, earlier: Writer, later: usize, kind: FindingKind, rect: &Rect) {
        let Writer::Instruction(earlier) = earlier else { return };
        let earlier = earlier as usize;
        if earlier != later && !self.clocks.ordered(earlier, later) {
            self.race(earlier, later, kind, rect);
        }
    }

    fn race(&mut self, earlier: usize, later: usize, kind: FindingKind, rect: &Rect) {
        if !self.seen.insert((earlier, later, kind)) {
            return;
        }
        let what = if kind == FindingKind::ReadAfterWrite {
            "reads what another instruction writes"
        } else if kind == FindingKind::WriteAfterRead {
            "overwrites what another instruction reads"
        } else {
            "overwrites what another instruction writes"
        };
        let message = format!("{what}, in {}, and no semaphore orders the two", place_text(self.machine, rect));
        let sites = vec![self.machine.site(earlier), self.machine.site(later)];
        self.findings.push(Finding { kind, message, sites });
    }

    /// PSUM adds to what a matmul stored; only the last generation adds to anything else.
    fn accumulates_onto(&mut self, writer: Writer, flat: usize) {
        let Writer::Instruction(writer) = writer else { return };
        let (writer, kind) = (writer as usize, FindingKind::Rule(Rule::PsumGroup));
        let is_pe = self.machine.instructions[writer].engine == Engine::Pe;
        if is_pe || self.machine.target.psum_bf16_accumulate || !self.seen.insert((writer, flat, kind)) {
            return;
        }
        let message = "`nc_matmul` accumulates onto what another engine has written".to_owned();
        let sites = vec![self.machine.site(writer), self.machine.site(flat)];
        self.findings.push(Finding { kind, message, sites });
    }

    /// A sum may be read when its group is complete, not between two matmuls of it.
    fn read_before_the_end(&mut self, reader: usize, flat: usize) {
        let kind = FindingKind::OpenGroup;
        if self.machine.instructions[reader].engine == Engine::Pe || !self.seen.insert((reader, flat, kind)) {
            return;
        }
        let message = "reads a sum in PSUM that a later matmul still adds to".to_owned();
        let sites = vec![self.machine.site(reader), self.machine.site(flat)];
        self.findings.push(Finding { kind, message, sites });
    }

    fn report_uninitialised(&mut self) {
        for (flat, first) in std::mem::take(&mut self.uninitialised) {
            let message = format!("reads {}, which nothing has written", place_text(self.machine, &first));
            let sites = vec![self.machine.site(flat)];
            self.findings.push(Finding { kind: FindingKind::Uninitialised, message, sites });
        }
    }

    /// Every element of every output is written, or was there before.
    fn check_outputs(&mut self) {
        let machine = self.machine;
        for (tensor, strides) in machine.output_layouts() {
            let described = &machine.tensors[tensor];
            let element = described.dtype.size_bytes() as u64;
            let whole = self.tensor_rect(tensor);
            let walk = Walk::new(described.shape.iter().zip(&strides).map(|(&count, &step)| (step, count)));
            let is_empty = described.shape.contains(&0);
            let mut gap = None;
            if !is_empty {
                walk.for_each_run(0, |first| {
                    let start = whole.bytes.0 + first as u64 * element;
                    let rect = Rect { bytes: (start, start + walk.run as u64 * element), ..whole };
                    if gap.is_none() {
                        gap = self.shadow.first_gap(&rect);
                    }
                });
            }
            if let Some(byte) = gap {
                let message = format!("byte {} of `{}` is never written", byte - whole.bytes.0, described.name);
                self.findings.push(Finding { kind: FindingKind::UnwrittenOutput, message, sites: Vec::new() });
            }
        }
    }
}

/// A rectangle in words.
fn place_text(machine: &Machine, rect: &Rect) -> String {
    let (low, high) = rect.bytes;
    let memory = match rect.area {
        Area::Sbuf => "SBUF",
        Area::Psum => "PSUM",
        Area::Buffer(buffer) => {
            let in_buffer = |tensor: &usize| {
                let place = machine.device.places[*tensor];
                let start = place.start_byte as u64;
                place.buffer == buffer as usize && start <= low && low < start + machine.tensors[*tensor].size_bytes
            };
            let tensor = (0..machine.tensors.len()).find(in_buffer);
            let (name, start) = tensor.map_or(("device memory", 0), |tensor| {
                (machine.tensors[tensor].name.as_str(), machine.device.places[tensor].start_byte as u64)
            });
            return format!("bytes {}..{} of `{name}`", low - start, high - start);
        }
    };
    let (first, last) = rect.partitions;
    format!("bytes {low}..{high} of {memory} on partitions {first}..{last}")
}
