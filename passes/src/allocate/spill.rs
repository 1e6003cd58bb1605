//! Moves tiles to HBM scratch and back where SBUF cannot hold all that are live.
//!
//! The program is walked once. Where the tiles of the next instruction do not fit, the tile goes
//! that frees most bytes for the longest time, at half the price if its contents are also
//! elsewhere: an unmodified load is loaded again instead of stored, and a load that nothing has
//! read yet is put off. A tile that comes back is a new tile, so that it may lie elsewhere, and it
//! comes as early as there is room for it.

use std::collections::BTreeSet;

use ir::Program;
use ir::program::{
    DmaAccess, DmaDim, DmaPlace, DmaQueue, Engine, HbmId, HbmKind, HbmTensor, Instruction, InstructionKind, Space,
    TileId,
};
use ir::target::Target;
use smallvec::smallvec;

use super::AllocateError;
use super::live::accessed_tiles;
use super::regions::{Region, dense_regions};
use crate::footprint::{AccessKind, Addressing, Footprint, Memory, footprints};

/// Instructions that a tile comes back ahead of its use, where there is room.
const MAX_AHEAD: usize = 48;

/// What spilling added.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spills {
    pub n_tiles: usize,
    /// Negative while transfers have been put off and not yet come back.
    pub n_transfers: i64,
    pub bytes: i64,
}

/// A program whose live SBUF tiles need at most `capacity` bytes per partition at every position.
///
/// # Errors
/// When the tiles of one instruction, or tiles that cannot be stored, need more.
pub(super) fn spill(program: &Program, target: &Target, capacity: u64) -> Result<(Program, Spills), AllocateError> {
    let mut spiller = Spiller::new(program, target, capacity);
    for position in 0..program.instructions.len() {
        spiller.step(position)?;
    }
    let instructions = spiller.slots.into_iter().flat_map(|slot| slot.before.into_iter().chain([slot.own]).flatten());
    let spilled = Program {
        tensors: spiller.tensors,
        tiles: spiller.tiles,
        instructions: instructions.collect(),
        ..program.clone()
    };
    Ok((spilled, spiller.spills))
}

/// Where a tile's contents can be had besides the tile.
#[derive(Clone, Debug)]
enum Copies {
    /// Nowhere.
    None,
    /// These instructions loaded them from tensors that the program does not write.
    Loads(Vec<usize>),
    /// In these scratch tensors.
    Scratch(Vec<(Region, HbmId)>),
}

/// What one tile of the given program holds.
struct Content {
    size: u64,
    /// Positions that access the tile, the next one last.
    uses: Vec<usize>,
    /// The tile that holds the contents now.
    tile: TileId,
    written: Vec<Footprint>,
    copies: Copies,
    /// Loads since the tile got its present bytes, while nothing has read them.
    unread_loads: Vec<Emitted>,
    was_evicted: bool,
    /// Position before which it was last evicted.
    evicted_at: usize,
    cannot_store: bool,
}

/// An instruction of the result.
#[derive(Copy, Clone, Debug)]
enum Emitted {
    Own(usize),
    Before(usize, usize),
}

/// An instruction of the given program and what was added before it.
#[derive(Default)]
struct Slot {
    before: Vec<Option<Instruction>>,
    own: Option<Instruction>,
}

struct Spiller<'a> {
    program: &'a Program,
    target: &'a Target,
    capacity: u64,
    contents: Vec<Content>,
    /// SBUF tiles of the given program whose contents are resident.
    resident: BTreeSet<usize>,
    used: u64,
    /// Bytes live at each position walked.
    live_at: Vec<u64>,
    /// HBM tensors that the program writes.
    written_tensors: BTreeSet<HbmId>,
    slots: Vec<Slot>,
    tiles: Vec<ir::program::Tile>,
    tensors: Vec<HbmTensor>,
    spills: Spills,
}

impl<'a> Spiller<'a> {
    fn new(program: &'a Program, target: &'a Target, capacity: u64) -> Self {
        let content = |(idx, tile): (usize, &ir::program::Tile)| {
            let alignment = u64::from(tile.alignment_bytes.max(target.tile_alignment_bytes));
            Content {
                size: u64::from(tile.bytes_per_partition).next_multiple_of(alignment),
                uses: Vec::new(),
                tile: tile_id(idx),
                written: Vec::new(),
                copies: Copies::Loads(Vec::new()),
                unread_loads: Vec::new(),
                was_evicted: false,
                evicted_at: 0,
                cannot_store: false,
            }
        };
        let mut contents: Vec<Content> = program.tiles.iter().enumerate().map(content).collect();
        for (position, instruction) in program.instructions.iter().enumerate().rev() {
            for tile in accessed_tiles(&instruction.kind) {
                contents[tile.index()].uses.push(position);
            }
        }
        let written_tensors =
            program.instructions.iter().filter_map(|instruction| instruction.kind.accesses().dma_write?.hbm());
        Spiller {
            program,
            target,
            capacity,
            contents,
            resident: BTreeSet::new(),
            used: 0,
            live_at: Vec::with_capacity(program.instructions.len()),
            written_tensors: written_tensors.collect(),
            slots: Vec::with_capacity(program.instructions.len()),
            tiles: program.tiles.clone(),
            tensors: program.tensors.clone(),
            spills: Spills::default(),
        }
    }

    fn step(&mut self, position: usize) -> Result<(), AllocateError> {
        let mut instruction = self.program.instructions[position].clone();
        let tiles = accessed_tiles(&instruction.kind);
        let in_sbuf = tiles.iter().filter(|tile| self.program.tile(**tile).space == Space::Sbuf);
        let needed: Vec<usize> = in_sbuf.map(|tile| tile.index()).collect();
        self.slots.push(Slot::default());
        self.make_room(position, &needed)?;
        for &idx in &needed {
            if self.resident.insert(idx) {
                self.used += self.contents[idx].size;
                self.bring_in(position, idx);
            }
        }
        instruction.kind.for_each_tile_mut(&mut |tile| *tile = self.contents[tile.index()].tile);
        self.slots[position].own = Some(instruction);
        self.live_at.push(self.used);
        self.note_accesses(position);
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
            let candidates = self.resident.iter().copied();
            let candidates = candidates.filter(|idx| !needed.contains(idx) && !self.contents[*idx].cannot_store);
            let Some(victim) = candidates.max_by_key(|&idx| (self.gain(position, idx), idx)) else {
                let needed = self.used + wanted;
                return Err(AllocateError::NothingToSpill { position, needed, usable: self.capacity });
            };
            self.evict(position, victim);
        }
        Ok(())
    }

    /// Bytes times positions that evicting this tile frees, per transfer that it costs.
    fn gain(&self, position: usize, idx: usize) -> u64 {
        let content = &self.contents[idx];
        let next = content.uses.last().copied().unwrap_or(self.program.instructions.len());
        let n_transfers = match content.copies {
            Copies::None => 2,
            Copies::Loads(_) | Copies::Scratch(_) => 1,
        };
        content.size.saturating_mul((next - position) as u64) / n_transfers
    }

    /// Frees a tile's bytes before `position`, unless its contents cannot be stored.
    fn evict(&mut self, position: usize, idx: usize) {
        if matches!(self.contents[idx].copies, Copies::None) {
            let tile = &self.program.tiles[idx];
            let Some(regions) = dense_regions(&self.contents[idx].written, tile.dtype) else {
                self.contents[idx].cannot_store = true;
                return;
            };
            let stored = regions.into_iter().map(|region| (region, self.store(position, idx, region))).collect();
            self.contents[idx].copies = Copies::Scratch(stored);
        }
        self.put_off_unread_loads(position, idx);
        let content = &mut self.contents[idx];
        content.evicted_at = position;
        self.used -= content.size;
        self.resident.remove(&idx);
        if !content.was_evicted {
            content.was_evicted = true;
            self.spills.n_tiles += 1;
        }
    }

    /// Loads that nothing has read need not have happened yet.
    fn put_off_unread_loads(&mut self, position: usize, idx: usize) {
        let loads = std::mem::take(&mut self.contents[idx].unread_loads);
        for &load in &loads {
            let (slot, removed) = match load {
                Emitted::Own(slot) => (slot, self.slots[slot].own.take()),
                Emitted::Before(slot, at) => (slot, self.slots[slot].before[at].take()),
            };
            if let Some(load) = removed {
                self.spills.n_transfers -= 1;
                self.spills.bytes -= moved_bytes(&load);
            }
            if loads.len() == 1 {
                let size = self.contents[idx].size;
                self.live_at[slot..position].iter_mut().for_each(|live| *live -= size);
            }
        }
    }

    /// Gives the contents a tile, and refills it if it had been evicted.
    fn bring_in(&mut self, position: usize, idx: usize) {
        if !self.contents[idx].was_evicted {
            return;
        }
        let tile = tile_id(self.tiles.len());
        self.tiles.push(self.program.tiles[idx].clone());
        self.contents[idx].tile = tile;
        let slot = self.slot_with_room(position, idx);
        match self.contents[idx].copies.clone() {
            Copies::None => {}
            Copies::Loads(positions) => {
                for load_position in positions {
                    let mut load = self.program.instructions[load_position].clone();
                    load.kind.for_each_tile_mut(&mut |loaded| *loaded = tile);
                    let emitted = self.push_transfer(slot, load);
                    self.contents[idx].unread_loads.push(emitted);
                }
            }
            Copies::Scratch(stored) => {
                for (region, tensor) in stored {
                    let (on_chip, in_hbm) = sides(tile, region, tensor);
                    self.push_transfer(slot, self.transfer(on_chip, in_hbm));
                }
            }
        }
    }

    /// The earliest slot, not far from `position`, from which there is room for a tile to wait.
    fn slot_with_room(&mut self, position: usize, idx: usize) -> usize {
        let content = &self.contents[idx];
        let first = content.evicted_at.max(position.saturating_sub(MAX_AHEAD));
        let mut slot = position;
        while slot > first && self.live_at[slot - 1] + content.size <= self.capacity {
            slot -= 1;
        }
        self.live_at[slot..position].iter_mut().for_each(|live| *live += content.size);
        slot
    }

    /// Stores one region of a tile in a new scratch tensor.
    fn store(&mut self, position: usize, idx: usize, region: Region) -> HbmId {
        let tensor = HbmId(u32::try_from(self.tensors.len()).expect("tensor ids are 32 bits wide"));
        self.tensors.push(HbmTensor {
            name: format!("spill_{}", tensor.0),
            kind: HbmKind::Scratch,
            dtype: region.dtype,
            shape: [usize::from(region.n_partitions), region.n_elements as usize].into_iter().collect(),
            size_bytes: region.size_bytes(),
        });
        let (on_chip, in_hbm) = sides(self.contents[idx].tile, region, tensor);
        self.push_transfer(position, self.transfer(in_hbm, on_chip));
        tensor
    }

    fn transfer(&self, dst: DmaAccess, src: DmaAccess) -> Instruction {
        let queue = if self.target.hardware_dge { DmaQueue::Hardware } else { DmaQueue::Ring };
        Instruction::new(Engine::Sp, InstructionKind::Dma { dst, src, queue, gather: None })
    }

    fn push_transfer(&mut self, slot: usize, transfer: Instruction) -> Emitted {
        self.spills.n_transfers += 1;
        self.spills.bytes += moved_bytes(&transfer);
        self.slots[slot].before.push(Some(transfer));
        Emitted::Before(slot, self.slots[slot].before.len() - 1)
    }

    /// Keeps account of what the tiles hold and whether it is elsewhere too.
    fn note_accesses(&mut self, position: usize) {
        let instruction = &self.program.instructions[position];
        let repeats = if let InstructionKind::Dma { src, gather: None, .. } = &instruction.kind {
            src.hbm().is_some_and(|tensor| !self.written_tensors.contains(&tensor))
        } else {
            false
        };
        for (kind, footprint) in footprints(self.program, instruction, Addressing::Virtual) {
            let Memory::Tile(tile) = footprint.memory else { continue };
            let content = &mut self.contents[tile.index()];
            if kind == AccessKind::Read {
                content.unread_loads.clear();
                continue;
            }
            match &mut content.copies {
                Copies::Loads(positions) if repeats => {
                    positions.push(position);
                    content.unread_loads.push(Emitted::Own(position));
                }
                copies => {
                    *copies = Copies::None;
                    content.unread_loads.clear();
                }
            }
            content.cannot_store = false;
            if !content.written.iter().any(|written| written.covers(&footprint)) {
                content.written.retain(|written| !footprint.covers(written));
                content.written.push(footprint);
            }
        }
    }
}

fn moved_bytes(transfer: &Instruction) -> i64 {
    let dst = transfer.kind.accesses().dma_write;
    dst.map_or(0, |dst| {
        i64::try_from(dst.n_elements()).unwrap_or(i64::MAX).saturating_mul(dst.dtype.size_bytes() as i64)
    })
}

fn tile_id(idx: usize) -> TileId {
    TileId(u32::try_from(idx).expect("tile ids are 32 bits wide"))
}

/// The two sides of a transfer between a region of a tile and its scratch tensor.
fn sides(tile: TileId, region: Region, tensor: HbmId) -> (DmaAccess, DmaAccess) {
    let Region { partition, n_partitions, first_element, n_elements, dtype } = region;
    let rows = |partition_step, step| DmaDim { partition_step, step, count: u32::from(n_partitions) };
    let row = DmaDim { partition_step: 0, step: 1, count: n_elements };
    let on_chip = DmaAccess {
        place: DmaPlace::Tile { tile, partition },
        offset: u64::from(first_element),
        dims: smallvec![rows(1, 0), row],
        dtype,
    };
    let place = DmaPlace::Hbm { tensor };
    let in_hbm = DmaAccess { place, offset: 0, dims: smallvec![rows(0, i64::from(n_elements)), row], dtype };
    (on_chip, in_hbm)
}
