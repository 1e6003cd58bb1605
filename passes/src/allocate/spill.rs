//! Moves tiles to HBM scratch and back where SBUF cannot hold all that are live.
//!
//! The program is walked once. Where the tiles of the next instruction do not fit, the tile goes
//! that frees most bytes for the longest time, at half the price if its contents are also
//! elsewhere: an unmodified load is loaded again instead of stored. A tile that comes back is a new
//! tile, so that it may lie elsewhere.

use std::collections::BTreeSet;

use ir::Program;
use ir::program::{
    DmaAccess, DmaDim, DmaPlace, DmaQueue, Engine, HbmId, HbmKind, HbmTensor, Instruction, InstructionKind, Space,
    TileId,
};
use ir::target::Target;
use ir::types::Dtype;
use smallvec::smallvec;

use super::AllocateError;
use super::live::accessed_tiles;
use crate::footprint::{AccessKind, Addressing, Footprint, Memory, footprints};

/// Regions that one tile may be stored as.
const MAX_REGIONS: usize = 8;

/// What spilling added.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spills {
    pub n_tiles: usize,
    pub n_transfers: usize,
    pub bytes: u64,
}

/// A program whose live SBUF tiles need at most `capacity` bytes per partition at every position.
pub(super) fn spill(program: &Program, target: &Target, capacity: u64) -> Result<(Program, Spills), AllocateError> {
    let mut spiller = Spiller::new(program, target, capacity);
    for position in 0..program.instructions.len() {
        spiller.step(position)?;
    }
    Ok((spiller.result, spiller.spills))
}

/// Where a tile's contents can be had besides the tile.
#[derive(Clone, Debug)]
enum Copies {
    /// Nowhere.
    None,
    /// These instructions loaded them from tensors that the program does not write.
    Loads(Vec<usize>),
    /// In these scratch tensors, one per region.
    Scratch(Vec<HbmId>),
}

struct Content {
    size: u64,
    /// Positions that access the tile, the next one last.
    uses: Vec<usize>,
    /// The tile that holds the contents now.
    resident: Option<TileId>,
    /// What has been written, each part dense.
    regions: Vec<Footprint>,
    copies: Copies,
    is_spillable: bool,
    was_spilled: bool,
}

struct Spiller<'a> {
    program: &'a Program,
    target: &'a Target,
    capacity: u64,
    contents: Vec<Content>,
    /// SBUF tiles of the given program whose contents are resident.
    resident: BTreeSet<usize>,
    used: u64,
    /// HBM tensors that the program writes.
    written: BTreeSet<HbmId>,
    result: Program,
    spills: Spills,
}

impl<'a> Spiller<'a> {
    fn new(program: &'a Program, target: &'a Target, capacity: u64) -> Self {
        let content = |tile: &ir::program::Tile| {
            let alignment = u64::from(tile.alignment_bytes.max(target.tile_alignment_bytes));
            Content {
                size: u64::from(tile.bytes_per_partition).next_multiple_of(alignment),
                uses: Vec::new(),
                resident: None,
                regions: Vec::new(),
                copies: Copies::Loads(Vec::new()),
                is_spillable: true,
                was_spilled: false,
            }
        };
        let mut contents: Vec<Content> = program.tiles.iter().map(content).collect();
        for (position, instruction) in program.instructions.iter().enumerate().rev() {
            for tile in accessed_tiles(&instruction.kind) {
                contents[tile.index()].uses.push(position);
            }
        }
        let written =
            program.instructions.iter().filter_map(|instruction| instruction.kind.accesses().dma_write?.hbm());
        Spiller {
            program,
            target,
            capacity,
            contents,
            resident: BTreeSet::new(),
            used: 0,
            written: written.collect(),
            result: Program { instructions: Vec::with_capacity(program.instructions.len()), ..program.clone() },
            spills: Spills::default(),
        }
    }

    fn step(&mut self, position: usize) -> Result<(), AllocateError> {
        let mut instruction = self.program.instructions[position].clone();
        let tiles = accessed_tiles(&instruction.kind);
        let needed: Vec<usize> = tiles
            .iter()
            .filter(|tile| self.program.tile(**tile).space == Space::Sbuf)
            .map(|tile| tile.index())
            .collect();
        self.make_room(position, &needed)?;
        for &idx in &needed {
            if self.resident.insert(idx) {
                self.used += self.contents[idx].size;
                self.bring_in(idx);
            }
        }
        instruction.kind.for_each_tile_mut(&mut |tile| *tile = self.contents[tile.index()].resident.unwrap_or(*tile));
        self.result.instructions.push(instruction);
        self.note_writes(position);
        for tile in tiles {
            let content = &mut self.contents[tile.index()];
            content.uses.pop();
            if content.uses.is_empty() && self.resident.remove(&tile.index()) {
                self.used -= content.size;
            }
        }
        Ok(())
    }

    /// Evicts tiles until those of the instruction at `position` fit.
    fn make_room(&mut self, position: usize, needed: &[usize]) -> Result<(), AllocateError> {
        let own: u64 = needed.iter().map(|&idx| self.contents[idx].size).sum();
        if own > self.capacity {
            let line = self.program.instruction_text(&self.program.instructions[position]);
            return Err(AllocateError::InstructionTooLarge { position, line, needed: own, usable: self.capacity });
        }
        let missing = needed.iter().filter(|idx| !self.resident.contains(idx));
        let wanted: u64 = missing.map(|&idx| self.contents[idx].size).sum();
        while self.used + wanted > self.capacity {
            let candidates =
                self.resident.iter().copied().filter(|idx| !needed.contains(idx) && self.contents[*idx].is_spillable);
            let victim = candidates.max_by_key(|&idx| (self.gain(position, idx), idx));
            let Some(victim) = victim else {
                let needed = self.used + wanted;
                return Err(AllocateError::NothingToSpill { position, needed, usable: self.capacity });
            };
            self.evict(victim);
        }
        Ok(())
    }

    /// Bytes times positions that evicting this tile frees, per transfer that it costs.
    fn gain(&self, position: usize, idx: usize) -> u64 {
        let content = &self.contents[idx];
        let next = content.uses.last().map_or(usize::MAX / 2, |&next| next);
        let n_transfers = match content.copies {
            Copies::None => 2,
            Copies::Loads(_) | Copies::Scratch(_) => 1,
        };
        content.size.saturating_mul((next - position) as u64) / n_transfers
    }

    fn evict(&mut self, idx: usize) {
        if matches!(self.contents[idx].copies, Copies::None) {
            let regions = self.contents[idx].regions.clone();
            let scratch: Vec<HbmId> = regions.iter().map(|region| self.store(idx, region)).collect();
            self.contents[idx].copies = Copies::Scratch(scratch);
        }
        let content = &mut self.contents[idx];
        self.used -= content.size;
        self.resident.remove(&idx);
        if !content.was_spilled {
            content.was_spilled = true;
            self.spills.n_tiles += 1;
        }
    }

    /// Gives the contents a tile again, and refills it if it had been evicted.
    fn bring_in(&mut self, idx: usize) {
        let given = TileId(u32::try_from(idx).expect("tile ids are 32 bits wide"));
        if !self.contents[idx].was_spilled {
            self.contents[idx].resident = Some(given);
            return;
        }
        let tile = TileId(u32::try_from(self.result.tiles.len()).expect("tile ids are 32 bits wide"));
        self.result.tiles.push(self.program.tile(given).clone());
        self.contents[idx].resident = Some(tile);
        match self.contents[idx].copies.clone() {
            Copies::None => {}
            Copies::Loads(positions) => {
                for position in positions {
                    let mut load = self.program.instructions[position].clone();
                    load.kind.for_each_tile_mut(&mut |loaded| *loaded = tile);
                    self.count_transfer(&load.kind);
                    self.result.instructions.push(load);
                }
            }
            Copies::Scratch(scratch) => {
                let regions = self.contents[idx].regions.clone();
                for (region, tensor) in regions.iter().zip(scratch) {
                    let (on_chip, in_hbm) = self.sides(idx, region, tensor);
                    self.push_transfer(on_chip, in_hbm);
                }
            }
        }
    }

    /// Stores one region of a tile in a new scratch tensor.
    fn store(&mut self, idx: usize, region: &Footprint) -> HbmId {
        let tensor = HbmId(u32::try_from(self.result.tensors.len()).expect("tensor ids are 32 bits wide"));
        let dtype = self.element_type(idx, region);
        let n_elements = region.bytes.run as usize / dtype.size_bytes();
        let n_partitions = usize::from(region.end_partition - region.first_partition);
        self.result.tensors.push(HbmTensor {
            name: format!("spill_{}", self.spills.n_transfers),
            kind: HbmKind::Scratch,
            dtype,
            shape: [n_partitions, n_elements].into_iter().collect(),
            size_bytes: n_partitions as u64 * region.bytes.run as u64,
        });
        let (on_chip, in_hbm) = self.sides(idx, region, tensor);
        self.push_transfer(in_hbm, on_chip);
        tensor
    }

    /// The tile's type where the region holds whole elements of it, else bytes.
    fn element_type(&self, idx: usize, region: &Footprint) -> Dtype {
        let dtype = self.program.tiles[idx].dtype;
        let size = dtype.size_bytes() as i64;
        if region.bytes.low % size == 0 && region.bytes.run % size == 0 { dtype } else { Dtype::U8 }
    }

    /// The two sides of a transfer between a region of a resident tile and its scratch tensor.
    fn sides(&self, idx: usize, region: &Footprint, tensor: HbmId) -> (DmaAccess, DmaAccess) {
        let dtype = self.element_type(idx, region);
        let size = dtype.size_bytes() as i64;
        let n_partitions = u32::from(region.end_partition - region.first_partition);
        let n_elements = u32::try_from(region.bytes.run / size).expect("a partition has fewer than 2^32 bytes");
        let rows = |partition_step, step| DmaDim { partition_step, step, count: n_partitions };
        let row = DmaDim { partition_step: 0, step: 1, count: n_elements };
        let partition = u8::try_from(region.first_partition).expect("a tile has at most 128 partitions");
        let tile = self.contents[idx].resident.expect("only resident tiles are stored or filled");
        let on_chip = DmaAccess {
            place: DmaPlace::Tile { tile, partition },
            offset: (region.bytes.low / size) as u64,
            dims: smallvec![rows(1, 0), row],
            dtype,
        };
        let place = DmaPlace::Hbm { tensor };
        let in_hbm = DmaAccess { place, offset: 0, dims: smallvec![rows(0, i64::from(n_elements)), row], dtype };
        (on_chip, in_hbm)
    }

    fn push_transfer(&mut self, dst: DmaAccess, src: DmaAccess) {
        let queue = if self.target.hardware_dge { DmaQueue::Hardware } else { DmaQueue::Ring };
        let kind = InstructionKind::Dma { dst, src, queue, gather: None };
        self.count_transfer(&kind);
        self.result.instructions.push(Instruction::new(Engine::Sp, kind));
    }

    fn count_transfer(&mut self, kind: &InstructionKind) {
        if let InstructionKind::Dma { dst, .. } = kind {
            self.spills.n_transfers += 1;
            self.spills.bytes += dst.n_elements() * dst.dtype.size_bytes() as u64;
        }
    }

    /// Keeps account of what the tiles hold and whether it is elsewhere too.
    fn note_writes(&mut self, position: usize) {
        let instruction = &self.program.instructions[position];
        let repeats = if let InstructionKind::Dma { src, gather: None, .. } = &instruction.kind {
            src.hbm().is_some_and(|tensor| !self.written.contains(&tensor))
        } else {
            false
        };
        for (kind, footprint) in footprints(self.program, instruction, Addressing::Virtual) {
            let (AccessKind::Write, Memory::Tile(tile)) = (kind, footprint.memory) else { continue };
            let content = &mut self.contents[tile.index()];
            match &mut content.copies {
                Copies::Loads(positions) if repeats => positions.push(position),
                copies => *copies = Copies::None,
            }
            if content.regions.iter().any(|region| region.covers(&footprint)) {
                continue;
            }
            content.regions.retain(|region| !footprint.covers(region));
            content.is_spillable &= footprint.bytes.is_dense() && content.regions.len() < MAX_REGIONS;
            content.regions.push(footprint);
        }
    }
}
