//! A program in the few bytes per instruction that the checks of order need: semaphores, and the
//! bytes that are touched.
//!
//! Made in one pass with the operand rules, because instructions are large and their operands must
//! be legal before places are computed from them. The side of a transfer in device memory is left
//! out; the check of memory walks it when it comes to the transfer.

use ir::program::rules::{self, Port};
use ir::program::{Accesses, DmaAccess, DmaPlace, Engine, Instruction, InstructionKind, PSUM_TILE, TileView};

use super::streams::Streams;
use crate::finding::Findings;
use crate::footprint::{self, Area, Rect};
use crate::machine::Machine;
use crate::values::memory::Walk;

/// An instruction without what the checks of order do not ask.
#[derive(Copy, Clone, Debug)]
pub(super) struct Step {
    /// Semaphore and least value. Unused ones are for the value 0, which always holds.
    pub waits: [(u16, u16); 2],
    /// Semaphore and what is added, 0 for none.
    pub update: (u16, u16),
    pub engine: u8,
    pub class: StepClass,
    /// Position in its engine's stream.
    pub position: u32,
    /// Number among transfers, for those.
    pub transfer: u32,
    /// Its reads on chip start here; its writes follow, up to the next step's reads.
    first_read: u32,
    first_write: u32,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum StepClass {
    Transfer,
    /// A matmul that adds to its destination.
    Accumulates,
    /// Anything else in the engine's pipeline.
    Other,
}

impl Step {
    pub fn is_transfer(&self) -> bool {
        self.class == StepClass::Transfer
    }
}

/// Some bytes of some partitions of SBUF or PSUM; ends are exclusive.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct ChipRect {
    pub in_psum: bool,
    /// The access leaves some of the bytes out.
    pub has_gaps: bool,
    pub partitions: (u8, u8),
    pub bytes: (u32, u32),
}

impl ChipRect {
    pub fn rect(&self) -> Rect {
        let area = if self.in_psum { Area::Psum } else { Area::Sbuf };
        let wide = |(first, end): (u8, u8)| (u32::from(first), u32::from(end));
        Rect { area, partitions: wide(self.partitions), bytes: (self.bytes.0.into(), self.bytes.1.into()) }
    }
}

/// Who updates a semaphore.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Updaters {
    #[default]
    Nobody,
    /// The pipeline of one engine, in its order.
    Engine(u8),
    /// Transfers, each in parts.
    Transfers,
    /// Anything else.
    Several,
}

/// All updates of one semaphore.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Semaphore {
    pub updaters: Updaters,
    pub total: u64,
    pub n_updates: u64,
    pub n_waits: u64,
    /// The update that takes it beyond its width, in stream order.
    pub overflows_at: Option<u32>,
}

/// The whole program, by flat number.
pub(super) struct Digest {
    pub steps: Vec<Step>,
    rects: Vec<ChipRect>,
    pub n_transfers: usize,
    /// Tensors in device memory that some transfer writes.
    pub is_written: Vec<bool>,
    /// By number, up to the last that is named; there is at least one.
    pub semaphores: Vec<Semaphore>,
    /// Ports that instructions must take turns at, where the chip has such: instruction, port.
    pub ports: Vec<(u32, Port)>,
}

/// Separate runs of bytes that one side of a transfer may have.
pub(super) const MOST_RUNS: u64 = 1 << 20;

impl Digest {
    /// Checks the operand rules, and reads the program as far as they hold. The second findings are
    /// those of streams.
    pub fn read(machine: &Machine) -> (Digest, Findings, Findings) {
        let n_instructions = machine.instructions.len();
        let mut digest = Digest {
            steps: Vec::with_capacity(n_instructions),
            rects: Vec::with_capacity(4 * n_instructions),
            n_transfers: 0,
            is_written: vec![false; machine.tensors.len()],
            semaphores: vec![Semaphore::default()],
            ports: Vec::new(),
        };
        let mut findings = Findings::default();
        let mut streams = Streams::new(machine);
        let takes_turns = !machine.target.dve_pool_parallel || !machine.target.dve_act_parallel;
        for engine in Engine::ALL {
            let range = machine.stream_range(engine);
            for (position, flat) in (0..).zip(range) {
                let instruction = &machine.instructions[flat];
                digest.note_update(machine, flat, instruction);
                let accesses = instruction.kind.accesses();
                let violations =
                    rules::check_accesses(machine.target, instruction, &accesses, &machine.tiles, &machine.tensors);
                if !violations.is_empty() {
                    for violation in violations {
                        findings.push(machine.rule_finding(flat, violation));
                    }
                } else if findings.is_empty() {
                    digest.push(instruction, &accesses, position);
                    streams.add(flat, instruction);
                    if takes_turns {
                        let ports = rules::exclusive_ports(machine.target, instruction, &machine.tiles);
                        digest.ports.extend(ports.into_iter().map(|port| (flat as u32, port)));
                    }
                }
            }
        }
        (digest, findings, streams.findings)
    }

    pub fn reads(&self, flat: usize) -> &[ChipRect] {
        let Step { first_read, first_write, .. } = self.steps[flat];
        &self.rects[first_read as usize..first_write as usize]
    }

    pub fn writes(&self, flat: usize) -> &[ChipRect] {
        let end = self.steps.get(flat + 1).map_or(self.rects.len(), |next| next.first_read as usize);
        &self.rects[self.steps[flat].first_write as usize..end]
    }

    fn note_update(&mut self, machine: &Machine, flat: usize, instruction: &Instruction) {
        let Some(update) = instruction.update else { return };
        let semaphore = self.semaphore(update.semaphore);
        let own = match instruction.kind {
            InstructionKind::Dma { .. } => Updaters::Transfers,
            _ => Updaters::Engine(instruction.engine as u8),
        };
        if semaphore.updaters != own {
            semaphore.updaters = if semaphore.updaters == Updaters::Nobody { own } else { Updaters::Several };
        }
        semaphore.total += u64::from(update.add);
        semaphore.n_updates += 1;
        if semaphore.overflows_at.is_none() && semaphore.total > u64::from(machine.target.semaphore_max) {
            semaphore.overflows_at = Some(flat as u32);
        }
    }

    fn semaphore(&mut self, number: u16) -> &mut Semaphore {
        let number = usize::from(number);
        if self.semaphores.len() <= number {
            self.semaphores.resize(number + 1, Semaphore::default());
        }
        &mut self.semaphores[number]
    }

    fn push(&mut self, instruction: &Instruction, accesses: &Accesses<'_>, position: u32) {
        let mut waits = [(0, 0); 2];
        for (slot, wait) in waits.iter_mut().zip(&instruction.waits) {
            self.semaphore(wait.semaphore).n_waits += 1;
            *slot = (wait.semaphore, wait.at_least);
        }
        let class = match &instruction.kind {
            InstructionKind::Dma { .. } => StepClass::Transfer,
            InstructionKind::Matmul { accumulate: true, .. } => StepClass::Accumulates,
            _ => StepClass::Other,
        };
        let first_read = self.rects.len() as u32;
        accesses.tile_reads.iter().for_each(|view| self.add_view(view));
        accesses.dma_read.iter().for_each(|side| self.add_side(side));
        let first_write = self.rects.len() as u32;
        accesses.tile_writes.iter().for_each(|view| self.add_view(view));
        accesses.dma_write.iter().for_each(|side| self.add_side(side));
        if let Some(tensor) = accesses.dma_write.and_then(DmaAccess::hbm) {
            self.is_written[tensor.index()] = true;
        }
        let update = instruction.update.map_or((0, 0), |update| (update.semaphore, update.add));
        let transfer = self.n_transfers as u32;
        self.n_transfers += usize::from(class == StepClass::Transfer);
        let engine = instruction.engine as u8;
        self.steps.push(Step { waits, update, engine, class, position, transfer, first_read, first_write });
    }

    fn add_view(&mut self, view: &TileView) {
        let in_psum = view.tile == PSUM_TILE;
        let partitions = (view.partition, view.partition + view.n_partitions);
        let size = view.dtype.size_bytes() as u32;
        if let [dim] = view.dims[..]
            && dim.step == 1
        {
            let low = view.offset * size;
            let bytes = (low, low + u32::from(dim.count) * size);
            self.rects.push(ChipRect { in_psum, has_gaps: false, partitions, bytes });
            return;
        }
        let (low, high) = view.byte_range();
        let has_gaps = !walk_of_view(view).outer.is_empty();
        self.rects.push(ChipRect { in_psum, has_gaps, partitions, bytes: (low as u32, high as u32) });
    }

    /// The side of a transfer that lies in SBUF.
    fn add_side(&mut self, side: &DmaAccess) {
        let DmaPlace::Tile { tile: _, partition } = side.place else { return };
        let has_gaps = same_bytes(side).is_none_or(|(_, walk)| !walk.outer.is_empty());
        self.rects.push(ChipRect { has_gaps, ..around(side, partition) });
    }
}

/// The rectangles without gaps that a view touches.
pub(super) fn runs_of_view(view: &TileView) -> Vec<ChipRect> {
    let in_psum = view.tile == PSUM_TILE;
    let partitions = (view.partition, view.partition + view.n_partitions);
    let runs = runs(&walk_of_view(view), i64::from(view.offset), view.dtype.size_bytes() as u32);
    runs.into_iter().map(|bytes| ChipRect { in_psum, has_gaps: false, partitions, bytes }).collect()
}

/// The rectangles without gaps that the side of a transfer in SBUF touches; `None` where they are
/// more than one access may have.
pub(super) fn runs_of_side(side: &DmaAccess) -> Option<Vec<ChipRect>> {
    let DmaPlace::Tile { tile: _, partition } = side.place else { return Some(Vec::new()) };
    let rect = |(partitions, bytes)| ChipRect { in_psum: false, has_gaps: false, partitions, bytes };
    if let Some((n_partitions, walk)) = same_bytes(side) {
        if walk.n_runs() > MOST_RUNS {
            return None;
        }
        let partitions = (partition, partition + n_partitions);
        let runs = runs(&walk, side.offset as i64, side.dtype.size_bytes() as u32);
        return Some(runs.into_iter().map(|bytes| rect((partitions, bytes))).collect());
    }
    let walk = footprint::tile_walk(side);
    let is_short = walk.n_runs() <= MOST_RUNS;
    is_short.then(|| footprint::tile_side(side, partition, &walk).into_iter().map(rect).collect())
}

fn walk_of_view(view: &TileView) -> Walk {
    Walk::new(footprint::distinct(view.dims.iter().map(|dim| (i64::from(dim.step), usize::from(dim.count)))))
}

fn runs(walk: &Walk, start: i64, size: u32) -> Vec<(u32, u32)> {
    let mut runs = Vec::with_capacity(walk.n_runs() as usize);
    walk.for_each_run(start, |first| runs.push((first as u32 * size, (first + walk.run) as u32 * size)));
    footprint::joined(runs)
}

/// How many partitions next to each other the side touches, and which elements of each, where these
/// are the same.
fn same_bytes(side: &DmaAccess) -> Option<(u8, Walk)> {
    let mut over_partitions = side.dims.iter().filter(|dim| dim.partition_step != 0);
    let n_partitions = match (over_partitions.next(), over_partitions.next()) {
        (None, _) => 1,
        (Some(rows), None) if (rows.partition_step, rows.step) == (1, 0) => rows.count as u8,
        (Some(_), _) => return None,
    };
    let within = side.dims.iter().filter(|dim| dim.partition_step == 0);
    Some((n_partitions, Walk::new(footprint::distinct(within.map(|dim| (dim.step, dim.count as usize))))))
}

/// Everything between the ends of a side.
fn around(side: &DmaAccess, partition: u8) -> ChipRect {
    let ends = |start: i64, steps: &mut dyn Iterator<Item = (i64, u32)>| {
        steps.fold((start, start), |(low, high), (step, count)| {
            let span = step * (i64::from(count) - 1);
            (low + span.min(0), high + span.max(0))
        })
    };
    let size = side.dtype.size_bytes() as u32;
    let steps = &mut side.dims.iter().map(|dim| (i64::from(dim.partition_step), dim.count));
    let (first, last) = ends(i64::from(partition), steps);
    let (low, high) = ends(side.offset as i64, &mut side.dims.iter().map(|dim| (dim.step, dim.count)));
    let bytes = (low as u32 * size, (high as u32 + 1) * size);
    ChipRect { in_psum: false, has_gaps: true, partitions: (first as u8, last as u8 + 1), bytes }
}
