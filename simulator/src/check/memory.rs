//! Proof and initialisation of every byte: read after write, write after read, write after write.
//!
//! Instructions are taken in an order that the waits allow. A conflict with an earlier one must be
//! ordered by the clocks; comparing with the last writer and the readers since is enough, because
//! order is transitive.

use std::collections::{BTreeMap, BTreeSet};

use ir::program::rules::Rule;
use ir::program::{DmaAccess, Engine, InstructionKind, Wait};

use super::chip::ChipShadow;
use super::clocks::Proof;
use super::digest::{self, ChipRect, Digest, MOST_RUNS, StepClass};
use super::shadow::{BufferShadow, Met, Writer};
use crate::finding::{Finding, FindingKind, Findings};
use crate::footprint::{self, Area, Rect};
use crate::machine::Machine;
use crate::values::memory::Walk;

/// Pieces of all memories with histories of their own.
const MOST_PIECES: usize = 1 << 21;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum AccessKind {
    Read,
    Write,
}

/// How reads with gaps are looked at.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// As reads of everything between their ends: what is right then is right. Takes less time.
    WithGaps,
    /// Byte by byte.
    Exact,
}

/// Takes instructions in `order` and adds what is wrong to the findings.
pub(super) fn check_memory(
    machine: &Machine,
    digest: &Digest,
    clocks: &impl Proof,
    order: impl Iterator<Item = usize>,
    reads: Reads,
    memory: &mut super::Memory<'_>,
    findings: &mut Findings,
) {
    let n_buffers = machine.device.buffer_bytes.len();
    let mut checker = MemoryChecker {
        machine,
        digest,
        clocks,
        sbuf: ChipShadow::new(machine.target.sbuf_usable_bytes),
        psum: ChipShadow::new(machine.target.psum_bytes()),
        buffers: std::iter::repeat_with(BufferShadow::default).take(n_buffers).collect(),
        keeps: keeps(machine, digest, memory.given),
        given: memory.given,
        unset: memory.unset,
        reads,
        n_device_cells: 0,
        too_fine: None,
        met: Vec::new(),
        seen: BTreeSet::new(),
        uninitialised: BTreeMap::new(),
        findings,
    };
    checker.initialise();
    for flat in order {
        checker.visit(flat);
        if checker.too_fine.is_some() {
            break;
        }
    }
    checker.report_uninitialised();
    match checker.too_fine {
        Some(flat) => checker.report_too_fine(flat),
        None => checker.check_outputs(),
    }
}

struct MemoryChecker<'a, Clocks> {
    machine: &'a Machine,
    digest: &'a Digest,
    clocks: &'a Clocks,
    sbuf: ChipShadow,
    psum: ChipShadow,
    buffers: Vec<BufferShadow>,
    /// Buffers that hold data from the start and that no transfer writes: every read is right.
    keeps: Vec<bool>,
    /// Tensors that hold data before the program starts.
    given: &'a [bool],
    /// Buffers of which something is read that nothing has written.
    unset: &'a mut BTreeSet<u32>,
    reads: Reads,
    /// Cells of all device buffers.
    n_device_cells: usize,
    /// The first instruction whose accesses are in more pieces than are followed.
    too_fine: Option<usize>,
    /// What one instruction meets and must be looked at.
    met: Vec<(Rect, Met)>,
    /// Pairs that have been reported.
    seen: BTreeSet<(usize, usize, FindingKind)>,
    /// First byte that each reader found uninitialised. A reader that races with the writer is
    /// reported as such instead.
    uninitialised: BTreeMap<usize, Rect>,
    findings: &'a mut Findings,
}

fn keeps(machine: &Machine, digest: &Digest, given: &[bool]) -> Vec<bool> {
    let mut keeps = vec![false; machine.device.buffer_bytes.len()];
    for ((place, tensor), given) in machine.device.places.iter().zip(&machine.tensors).zip(given) {
        let is_whole = place.start_byte == 0 && tensor.size_bytes == machine.device.buffer_bytes[place.buffer];
        keeps[place.buffer] |= is_whole && *given;
    }
    let written = digest.is_written.iter().zip(&machine.device.places).filter(|(is_written, _)| **is_written);
    written.for_each(|(_, place)| keeps[place.buffer] = false);
    keeps
}

impl<Clocks: Proof> MemoryChecker<'_, Clocks> {
    /// Inputs and constants hold data from the start.
    fn initialise(&mut self) {
        for (tensor, described) in self.machine.tensors.iter().enumerate() {
            let rect = self.tensor_rect(tensor);
            let buffer = self.machine.device.places[tensor].buffer;
            if self.given[tensor] && described.size_bytes > 0 && !self.keeps[buffer] {
                self.buffers[buffer].initialise(rect.bytes);
                self.n_device_cells += 1;
            }
        }
    }

    fn tensor_rect(&self, tensor: usize) -> Rect {
        let place = self.machine.device.places[tensor];
        let start = place.start_byte as u64;
        let bytes = (start, start + self.machine.tensors[tensor].size_bytes);
        Rect { area: Area::Buffer(place.buffer as u32), partitions: (0, 1), bytes }
    }

    #[inline]
    fn visit(&mut self, flat: usize) {
        let (digest, clocks) = (self.digest, self.clocks);
        let class = digest.steps[flat].class;
        let later = flat as u32;
        let is_ordered = |earlier: u32| earlier == later || clocks.ordered(earlier, later);
        let stands_for = |later: u32, earlier: u32| clocks.ordered(earlier, later);
        let mut met = std::mem::take(&mut self.met);
        for (number, rect) in digest.reads(flat).iter().enumerate() {
            if rect.in_psum && class == StepClass::Accumulates {
                self.visit_sum(rect, flat);
            }
            let mut read = |shadow: &mut ChipShadow, rect: &ChipRect| {
                shadow.read(rect, later, stands_for, |found| note(&mut met, rect, found, is_ordered));
            };
            if rect.has_gaps && self.reads == Reads::Exact {
                let runs = self.runs(flat, AccessKind::Read, number);
                runs.iter().for_each(|run| read(self.shadow(run), run));
            } else {
                read(self.shadow(rect), rect);
            }
        }
        if class == StepClass::Transfer {
            self.visit_device(flat, &mut met);
        }
        for (number, rect) in digest.writes(flat).iter().enumerate() {
            let mut write = |shadow: &mut ChipShadow, rect: &ChipRect| {
                shadow.write(rect, later, |found| note(&mut met, rect, found, is_ordered));
            };
            if rect.has_gaps {
                let runs = self.runs(flat, AccessKind::Write, number);
                runs.iter().for_each(|run| write(self.shadow(run), run));
                self.limit_pieces(flat);
            } else {
                write(self.shadow(rect), rect);
            }
        }
        if !met.is_empty() {
            met.drain(..).for_each(|(rect, found)| self.judge(flat, &rect, found));
        }
        self.met = met;
    }

    fn shadow(&mut self, rect: &ChipRect) -> &mut ChipShadow {
        if rect.in_psum { &mut self.psum } else { &mut self.sbuf }
    }

    /// Stops where histories take more memory than those of any real program do.
    fn limit_pieces(&mut self, flat: usize) {
        let n_cells = self.sbuf.n_cells() + self.psum.n_cells() + self.n_device_cells;
        if n_cells > MOST_PIECES {
            self.too_fine.get_or_insert(flat);
        }
    }

    /// What an access with gaps touches, run by run. `number` counts reads or writes on chip.
    fn runs(&mut self, flat: usize, kind: AccessKind, number: usize) -> Vec<ChipRect> {
        let accesses = self.machine.instructions[flat].kind.accesses();
        let (views, side) = match kind {
            AccessKind::Read => (&accesses.tile_reads[..], accesses.dma_read),
            AccessKind::Write => (&accesses.tile_writes[..], accesses.dma_write),
        };
        let runs = match views.get(number) {
            Some(view) => Some(digest::runs_of_view(view)),
            None => side.map_or(Some(Vec::new()), digest::runs_of_side),
        };
        runs.unwrap_or_else(|| {
            self.too_fine.get_or_insert(flat);
            Vec::new()
        })
    }

    /// The sides of a transfer in device memory.
    fn visit_device(&mut self, flat: usize, met: &mut Vec<(Rect, Met)>) {
        let clocks = self.clocks;
        let InstructionKind::Dma { dst, src, queue: _, gather } = &self.machine.instructions[flat].kind else { return };
        for (side, writes) in [(src, false), (dst, true)] {
            let Some(tensor) = side.hbm() else { continue };
            let place = self.machine.device.places[tensor.index()];
            if self.keeps[place.buffer] {
                continue;
            }
            // Any row may be meant.
            let all = gather.as_ref().map(|gather| footprint::all_rows(side, gather));
            let Some(runs) = device_runs(all.as_ref().unwrap_or(side), place.start_byte as u64) else {
                self.too_fine.get_or_insert(flat);
                return;
            };
            let shadow = &mut self.buffers[place.buffer];
            self.n_device_cells -= shadow.n_cells();
            for bytes in runs {
                let rect = Rect { area: Area::Buffer(place.buffer as u32), partitions: (0, 1), bytes };
                let mut meet = |found| met.push((rect, found));
                if writes {
                    shadow.write(bytes, flat as u32, &mut meet);
                } else {
                    let stands_for = |later: u32, earlier: u32| clocks.ordered(earlier, later);
                    shadow.read(bytes, flat as u32, stands_for, &mut meet);
                }
            }
            self.n_device_cells += shadow.n_cells();
            self.limit_pieces(flat);
        }
    }

    /// What is wrong with adding to a sum: readers of a part of it, and writers that are no matmuls.
    #[inline]
    fn visit_sum(&mut self, rect: &ChipRect, flat: usize) {
        let steps = &self.digest.steps;
        let is_other = |instruction: u32| steps[instruction as usize].engine != Engine::Pe as u8;
        let (mut writers, mut readers) = (BTreeSet::new(), BTreeSet::new());
        self.psum.histories(rect, |writer, all_readers| {
            if let Writer::Instruction(writer) = writer
                && is_other(writer)
            {
                writers.insert(writer as usize);
            }
            readers.extend(all_readers.iter().filter(|&&reader| is_other(reader)).map(|&reader| reader as usize));
        });
        readers.into_iter().for_each(|reader| self.read_before_the_end(reader, flat));
        writers.into_iter().for_each(|writer| self.accumulates_onto(writer, flat));
    }

    fn judge(&mut self, flat: usize, rect: &Rect, found: Met) {
        match found {
            Met::WrittenBy(writer) => self.conflict(writer, flat, FindingKind::ReadAfterWrite, rect),
            Met::OverwritesWrite(writer) => self.conflict(writer, flat, FindingKind::WriteAfterWrite, rect),
            Met::ReadBy(reader) => {
                self.conflict(Writer::Instruction(reader), flat, FindingKind::WriteAfterRead, rect);
            }
            Met::Uninitialised(partition, byte) => {
                let first = Rect { partitions: (partition, partition + 1), bytes: (byte, byte + 1), ..*rect };
                self.uninitialised.entry(flat).or_insert(first);
                if let Area::Buffer(buffer) = rect.area {
                    self.unset.insert(buffer);
                }
            }
            Met::ReadTooEarlyBy(reader) => {
                let reader = reader as usize;
                if reader != flat && !self.clocks.ordered(reader as u32, flat as u32) {
                    self.race(flat, reader, FindingKind::ReadAfterWrite, rect);
                    self.uninitialised.remove(&reader);
                }
            }
        }
    }

    fn conflict(&mut self, earlier: Writer, later: usize, kind: FindingKind, rect: &Rect) {
        let Writer::Instruction(earlier) = earlier else { return };
        if earlier as usize != later && !self.clocks.ordered(earlier, later as u32) {
            self.race(earlier as usize, later, kind, rect);
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
        let place = place_text(self.machine, rect);
        let sites = vec![self.machine.site(earlier), self.machine.site(later)];
        let (kind, message) = match self.wait_for_a_part(earlier, later) {
            Some(wait) => {
                let Wait { semaphore, at_least } = wait;
                let n_engines = self.machine.target.dma_engines;
                let why =
                    format!("semaphore {semaphore} reaches {at_least} before all of its {n_engines} engines have");
                (FindingKind::PartOfTransfer, format!("{what}, in {place}: a transfer, and {why} ended"))
            }
            None => (kind, format!("{what}, in {place}, and no semaphore orders the two")),
        };
        self.findings.push(Finding { kind, message, sites });
    }

    /// The latest wait before `later` for some engines of a transfer, but not for all of them.
    fn wait_for_a_part(&self, earlier: usize, later: usize) -> Option<Wait> {
        let machine = self.machine;
        let semaphore = machine.instructions[earlier].update?.semaphore;
        if !self.digest.steps[earlier].is_transfer() {
            return None;
        }
        let before = machine.stream_range(machine.instructions[later].engine).start..later + 1;
        let waits = before.rev().flat_map(|flat| &machine.instructions[flat].waits);
        let latest = waits.filter(|wait| wait.semaphore == semaphore).max_by_key(|wait| wait.at_least)?;
        let is_part = u32::from(latest.at_least) % machine.target.dma_engines != 0;
        is_part.then_some(*latest)
    }

    /// PSUM adds to what a matmul stored; only the last generation adds to anything else.
    fn accumulates_onto(&mut self, writer: usize, flat: usize) {
        let kind = FindingKind::Rule(Rule::PsumGroup);
        if !self.machine.target.psum_bf16_accumulate {
            self.report(kind, "`nc_matmul` accumulates onto what another engine has written", (writer, flat));
        }
    }

    /// A sum may be read when its group is complete, not between two matmuls of it.
    fn read_before_the_end(&mut self, reader: usize, flat: usize) {
        self.report(FindingKind::OpenGroup, "reads a sum in PSUM that a later matmul still adds to", (reader, flat));
    }

    /// Reports a pair of instructions once.
    fn report(&mut self, kind: FindingKind, message: &str, (earlier, later): (usize, usize)) {
        if self.seen.insert((earlier, later, kind)) {
            let sites = vec![self.machine.site(earlier), self.machine.site(later)];
            self.findings.push(Finding { kind, message: message.to_owned(), sites });
        }
    }

    fn report_too_fine(&mut self, flat: usize) {
        let message = "the memory that it and others touch is in more pieces than a check follows".to_owned();
        self.findings.push(Finding { kind: FindingKind::TooFine, message, sites: vec![self.machine.site(flat)] });
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
            let buffer = machine.device.places[tensor].buffer;
            if self.keeps[buffer] || described.shape.contains(&0) {
                continue;
            }
            let element = described.dtype.size_bytes() as u64;
            let (first_byte, _) = self.tensor_rect(tensor).bytes;
            let walk = Walk::new(described.shape.iter().zip(&strides).map(|(&count, &step)| (step, count)));
            let mut gap = None;
            walk.for_each_run(0, |first| {
                let start = first_byte + first as u64 * element;
                if gap.is_none() {
                    gap = self.buffers[buffer].first_gap((start, start + walk.run as u64 * element));
                }
            });
            if let Some(byte) = gap {
                let message = format!("byte {} of `{}` is never written", byte - first_byte, described.name);
                self.findings.push(Finding { kind: FindingKind::UnwrittenOutput, message, sites: Vec::new() });
            }
        }
    }
}

/// Keeps what an access has met, unless it is an earlier instruction that is known to be complete.
#[inline(always)]
fn note(met: &mut Vec<(Rect, Met)>, rect: &ChipRect, found: Met, is_ordered: impl Fn(u32) -> bool) {
    let is_right = match found {
        Met::WrittenBy(Writer::Instruction(earlier))
        | Met::OverwritesWrite(Writer::Instruction(earlier))
        | Met::ReadBy(earlier) => is_ordered(earlier),
        Met::WrittenBy(_) | Met::OverwritesWrite(_) => true,
        Met::Uninitialised(..) | Met::ReadTooEarlyBy(_) => false,
    };
    if !is_right {
        met.push((rect.rect(), found));
    }
}

/// Runs of bytes that a side of a transfer touches in its buffer; `None` where they are more than one
/// access may have.
pub(super) fn device_runs(side: &DmaAccess, start_byte: u64) -> Option<Vec<(u64, u64)>> {
    let size = side.dtype.size_bytes() as u64;
    let walk = Walk::new(footprint::distinct(side.dims.iter().map(|dim| (dim.step, dim.count as usize))));
    if walk.n_runs() > MOST_RUNS {
        return None;
    }
    let mut runs = Vec::with_capacity(walk.n_runs() as usize);
    walk.for_each_run(side.offset as i64, |first| {
        runs.push((start_byte + first as u64 * size, start_byte + (first + walk.run) as u64 * size));
    });
    Some(footprint::joined(runs))
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
