//! Moves tiles to HBM scratch and back where SBUF cannot hold all that are live.
//!
//! The program is walked once. Where the tiles of the next instruction do not fit, the tile goes
//! that frees most bytes for the longest time, at half the price if its contents are also
//! elsewhere: an unmodified load is loaded again instead of stored, and a load that nothing has
//! read yet is put off. A tile that comes back is a new tile, so that it may lie elsewhere, and it
//! comes as early as there is room for it.
//!
//! What is decided is a plan: whether it fits is known before any instruction is written.

use ir::Program;
use ir::program::{
    DmaAccess, DmaDim, DmaPlace, DmaQueue, Engine, HbmId, HbmKind, HbmTensor, Instruction, InstructionKind, Space,
    Tile, TileId,
};
use ir::target::Target;
use smallvec::{SmallVec, smallvec};

use super::AllocateError;
use super::live::{LiveRange, Uses};
use super::regions::{Region, dense_regions};
use super::scratch::spill_name;
use crate::footprint::{AccessKind, Addressing, Footprint, Memory, footprints};
use crate::lists::Lists;

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

/// What spilling changes in a program.
pub(super) struct SpillPlan {
    pub spills: Spills,
    /// By tile that is added, behind those of the program, the tile that it is a copy of.
    copied_tiles: Vec<TileId>,
    /// Tensors that are added behind those of the program.
    tensors: Vec<HbmTensor>,
    /// The tiles that take the places of those in [`Uses::of_instruction`].
    tiles: Vec<TileId>,
    /// Instructions that are left out where they stand.
    is_put_off: Vec<bool>,
    transfers: Vec<Transfer>,
    /// By instruction, the transfers that come before it.
    before: Lists<u32>,
}

/// A transfer that spilling adds.
#[derive(Copy, Clone, Debug)]
struct Transfer {
    kind: TransferKind,
    tile: TileId,
    is_put_off: bool,
}

#[derive(Copy, Clone, Debug)]
enum TransferKind {
    /// What the instruction at this position loads.
    LoadAgain(u32),
    Store(Region, HbmId),
    Reload(Region, HbmId),
}

/// Plans which tiles go and come back, so that live SBUF tiles need at most `capacity` bytes per
/// partition at every position.
///
/// # Errors
/// When the tiles of one instruction, or tiles that cannot be stored, need more.
pub(super) fn plan_spills(
    program: &Program,
    target: &Target,
    uses: &Uses,
    capacity: u64,
) -> Result<SpillPlan, AllocateError> {
    let mut spiller = Spiller::new(program, target, uses, capacity);
    for position in 0..program.instructions.len() {
        spiller.step(position)?;
    }
    Ok(spiller.plan())
}

impl SpillPlan {
    /// All tiles that there will be.
    pub(super) fn tiles<'a>(&'a self, program: &'a Program) -> impl Iterator<Item = &'a Tile> {
        program.tiles.iter().chain(self.copied_tiles.iter().map(|&copied| program.tile(copied)))
    }

    /// The live range of every tile; `None` for tiles that nothing uses.
    pub(super) fn live_ranges(&self, program: &Program, uses: &Uses) -> Vec<Option<LiveRange>> {
        let mut ranges = vec![None; program.tiles.len() + self.copied_tiles.len()];
        let mut next = 0;
        for (position, (before, &is_put_off)) in self.before.iter().zip(&self.is_put_off).enumerate() {
            let transfers = before.iter().map(|&at| &self.transfers[at as usize]);
            for transfer in transfers.filter(|transfer| !transfer.is_put_off) {
                LiveRange::extend(&mut ranges[transfer.tile.index()], next);
                next += 1;
            }
            if !is_put_off {
                for tile in &self.tiles[uses.of_instruction.range(position)] {
                    LiveRange::extend(&mut ranges[tile.index()], next);
                }
                next += 1;
            }
        }
        ranges
    }

    /// The program with the changes.
    pub(super) fn apply(self, mut program: Program, target: &Target, uses: &Uses) -> Program {
        // The loads that are repeated are copied while they are in their places.
        let transfers = self.before.items().iter().map(|&at| &self.transfers[at as usize]);
        let transfers = transfers.map(|found| (!found.is_put_off).then(|| found.instruction(&program, target)));
        let mut transfers = transfers.collect::<Vec<_>>().into_iter();
        let mut instructions = Vec::with_capacity(program.instructions.len() + transfers.len());
        for (position, mut instruction) in std::mem::take(&mut program.instructions).into_iter().enumerate() {
            instructions.extend(transfers.by_ref().take(self.before.get(position).len()).flatten());
            if self.is_put_off[position] {
                continue;
            }
            let (old, new) = (uses.of_instruction.get(position), &self.tiles[uses.of_instruction.range(position)]);
            if old.iter().zip(new).any(|(old, new)| old.tile != *new) {
                instruction.kind.for_each_tile_mut(&mut |tile| {
                    let at = old.iter().position(|old| old.tile == *tile).expect("the uses are those of all tiles");
                    *tile = new[at];
                });
            }
            instructions.push(instruction);
        }
        program.instructions = instructions;
        program.tensors.extend(self.tensors);
        for copied in self.copied_tiles {
            program.tiles.push(program.tile(copied).clone());
        }
        program
    }
}

impl Transfer {
    fn instruction(&self, program: &Program, target: &Target) -> Instruction {
        let (dst, src) = match self.kind {
            TransferKind::LoadAgain(position) => {
                let mut load = program.instructions[position as usize].clone();
                load.kind.for_each_tile_mut(&mut |loaded| *loaded = self.tile);
                return load;
            }
            TransferKind::Store(region, tensor) => {
                let (on_chip, in_hbm) = sides(self.tile, region, tensor);
                (in_hbm, on_chip)
            }
            TransferKind::Reload(region, tensor) => sides(self.tile, region, tensor),
        };
        let queue = if target.hardware_dge { DmaQueue::Hardware } else { DmaQueue::Ring };
        Instruction::new(Engine::Sp, InstructionKind::Dma { dst, src, queue, gather: None })
    }
}

/// Where a tile's contents can be had besides the tile.
#[derive(Clone, Debug)]
enum Copies {
    /// Nowhere.
    None,
    /// These instructions loaded them from tensors that the program does not write.
    Loads(SmallVec<[u32; 4]>),
    /// In these scratch tensors.
    Scratch(Vec<(Region, HbmId)>),
}

/// What one tile of the given program holds.
struct Content {
    size: u64,
    /// How many of its uses are over, and the position of the next one.
    n_uses: usize,
    next_use: u32,
    /// The tile that holds the contents now.
    tile: TileId,
    copies: Copies,
    /// Loads since the tile got its present bytes, while nothing has read them.
    unread_loads: SmallVec<[Emitted; 4]>,
    was_evicted: bool,
    /// Position before which it was last evicted.
    evicted_at: usize,
    cannot_store: bool,
    /// Place among the resident ones.
    resident_at: Option<u32>,
    written: Written,
}

/// What has been written of a tile; found out when it must be known.
#[derive(Default)]
struct Written {
    /// Uses of the tile that are accounted for.
    n_uses: usize,
    footprints: Vec<Footprint>,
}

/// An instruction of the result.
#[derive(Copy, Clone, Debug)]
enum Emitted {
    /// The instruction at this position of the given program.
    Own(u32),
    /// The transfer with this number.
    Added(u32),
}

struct Spiller<'a> {
    program: &'a Program,
    uses: &'a Uses,
    capacity: u64,
    contents: Vec<Content>,
    /// SBUF tiles of the given program whose contents are resident.
    resident: Vec<u32>,
    used: u64,
    /// Bytes live at each position walked.
    live_at: Vec<u64>,
    /// By HBM tensor, whether the program writes it.
    is_written: Vec<bool>,
    copied_tiles: Vec<TileId>,
    tensors: Vec<HbmTensor>,
    tiles: Vec<TileId>,
    is_put_off: Vec<bool>,
    transfers: Vec<Transfer>,
    /// By transfer, the instruction before which it comes.
    slots: Vec<u32>,
    spills: Spills,
}

impl<'a> Spiller<'a> {
    fn new(program: &'a Program, target: &Target, uses: &'a Uses, capacity: u64) -> Self {
        let content = |(idx, tile): (usize, &Tile)| {
            let alignment = u64::from(tile.alignment_bytes.max(target.tile_alignment_bytes));
            Content {
                size: u64::from(tile.bytes_per_partition).next_multiple_of(alignment),
                n_uses: 0,
                next_use: uses.of_tile.get(idx).first().copied().unwrap_or(NEVER),
                tile: tile_id(idx),
                copies: Copies::Loads(SmallVec::new()),
                unread_loads: SmallVec::new(),
                was_evicted: false,
                evicted_at: 0,
                cannot_store: false,
                resident_at: None,
                written: Written::default(),
            }
        };
        let mut is_written = vec![false; program.tensors.len()];
        for instruction in &program.instructions {
            if let InstructionKind::Dma { dst, .. } = &instruction.kind
                && let Some(tensor) = dst.hbm()
            {
                is_written[tensor.index()] = true;
            }
        }
        let n_instructions = program.instructions.len();
        Spiller {
            program,
            uses,
            capacity,
            contents: program.tiles.iter().enumerate().map(content).collect(),
            resident: Vec::new(),
            used: 0,
            live_at: Vec::with_capacity(n_instructions),
            is_written,
            copied_tiles: Vec::new(),
            tensors: Vec::new(),
            tiles: Vec::with_capacity(uses.of_instruction.items().len()),
            is_put_off: vec![false; n_instructions],
            transfers: Vec::new(),
            slots: Vec::new(),
            spills: Spills::default(),
        }
    }

    fn plan(self) -> SpillPlan {
        let pairs = self.slots.iter().copied().zip(0u32..);
        SpillPlan {
            spills: self.spills,
            copied_tiles: self.copied_tiles,
            tensors: self.tensors,
            tiles: self.tiles,
            before: Lists::collect(self.is_put_off.len(), pairs),
            is_put_off: self.is_put_off,
            transfers: self.transfers,
        }
    }

    fn step(&mut self, position: usize) -> Result<(), AllocateError> {
        let uses = self.uses.of_instruction.get(position);
        let tiles = uses.iter().map(|found| found.tile);
        let in_sbuf = tiles.filter(|tile| self.program.tile(*tile).space == Space::Sbuf);
        let needed: SmallVec<[usize; 6]> = in_sbuf.map(TileId::index).collect();
        self.make_room(position, &needed)?;
        for &idx in &needed {
            if self.contents[idx].resident_at.is_none() {
                self.contents[idx].resident_at = Some(self.resident.len() as u32);
                self.resident.push(idx as u32);
                self.used += self.contents[idx].size;
                self.bring_in(position, idx);
            }
        }
        self.tiles.extend(uses.iter().map(|found| self.contents[found.tile.index()].tile));
        self.live_at.push(self.used);
        self.note_uses(position);
        for found in uses {
            let idx = found.tile.index();
            let content = &mut self.contents[idx];
            content.n_uses += 1;
            let next_use = self.uses.of_tile.get(idx).get(content.n_uses);
            content.next_use = next_use.copied().unwrap_or(NEVER);
            if next_use.is_none() {
                self.leave(idx);
            }
        }
        Ok(())
    }

    /// Takes a tile out of the resident ones, if it is one of them.
    fn leave(&mut self, idx: usize) {
        let Some(at) = self.contents[idx].resident_at.take() else { return };
        self.used -= self.contents[idx].size;
        self.resident.swap_remove(at as usize);
        if let Some(&moved) = self.resident.get(at as usize) {
            self.contents[moved as usize].resident_at = Some(at);
        }
    }

    /// Evicts tiles until those of the instruction at `position` fit.
    fn make_room(&mut self, position: usize, needed: &[usize]) -> Result<(), AllocateError> {
        let own: u64 = needed.iter().map(|&idx| self.contents[idx].size).sum();
        if own > self.capacity {
            let line = self.program.instruction_text(&self.program.instructions[position]);
            return Err(AllocateError::InstructionTooLarge { position, line, needed: own, usable: self.capacity });
        }
        let missing = needed.iter().filter(|&&idx| self.contents[idx].resident_at.is_none());
        let wanted: u64 = missing.map(|&idx| self.contents[idx].size).sum();
        while self.used + wanted > self.capacity {
            let candidates = self.resident.iter().map(|&idx| idx as usize);
            let candidates = candidates.filter(|idx| !self.contents[*idx].cannot_store && !needed.contains(idx));
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
        let n_transfers = match content.copies {
            Copies::None => 2,
            Copies::Loads(_) | Copies::Scratch(_) => 1,
        };
        content.size.saturating_mul(u64::from(content.next_use) - position as u64) / n_transfers
    }

    /// Frees a tile's bytes before `position`, unless its contents cannot be stored.
    fn evict(&mut self, position: usize, idx: usize) {
        if matches!(self.contents[idx].copies, Copies::None) {
            let tile = &self.program.tiles[idx];
            self.note_written(idx);
            let Some(regions) = dense_regions(&self.contents[idx].written.footprints, tile.dtype) else {
                self.contents[idx].cannot_store = true;
                return;
            };
            let stored = regions.into_iter().map(|region| (region, self.store(position, idx, region))).collect();
            self.contents[idx].copies = Copies::Scratch(stored);
        }
        self.put_off_unread_loads(position, idx);
        self.leave(idx);
        let content = &mut self.contents[idx];
        content.evicted_at = position;
        if !content.was_evicted {
            content.was_evicted = true;
            self.spills.n_tiles += 1;
        }
    }

    /// Loads that nothing has read need not have happened yet.
    fn put_off_unread_loads(&mut self, position: usize, idx: usize) {
        let loads = std::mem::take(&mut self.contents[idx].unread_loads);
        for &load in &loads {
            let slot = match load {
                Emitted::Own(own) => {
                    self.is_put_off[own as usize] = true;
                    self.spills.bytes -= moved_bytes(&self.program.instructions[own as usize]);
                    own as usize
                }
                Emitted::Added(added) => {
                    let transfer = &mut self.transfers[added as usize];
                    transfer.is_put_off = true;
                    self.spills.bytes -= transfer.moved_bytes(self.program);
                    self.slots[added as usize] as usize
                }
            };
            self.spills.n_transfers -= 1;
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
        let tile = tile_id(self.program.tiles.len() + self.copied_tiles.len());
        self.copied_tiles.push(tile_id(idx));
        self.contents[idx].tile = tile;
        let slot = self.slot_with_room(position, idx);
        match self.contents[idx].copies.clone() {
            Copies::None => {}
            Copies::Loads(positions) => {
                for load in positions {
                    let emitted = self.push_transfer(slot, tile, TransferKind::LoadAgain(load));
                    self.contents[idx].unread_loads.push(emitted);
                }
            }
            Copies::Scratch(stored) => {
                for (region, tensor) in stored {
                    self.push_transfer(slot, tile, TransferKind::Reload(region, tensor));
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
        let number = self.program.tensors.len() + self.tensors.len();
        let tensor = HbmId(u32::try_from(number).expect("tensor ids are 32 bits wide"));
        self.tensors.push(HbmTensor {
            name: spill_name(u64::from(tensor.0)),
            kind: HbmKind::Scratch,
            dtype: region.dtype,
            shape: [usize::from(region.n_partitions), region.n_elements as usize].into_iter().collect(),
            size_bytes: region.size_bytes(),
        });
        self.push_transfer(position, self.contents[idx].tile, TransferKind::Store(region, tensor));
        tensor
    }

    fn push_transfer(&mut self, slot: usize, tile: TileId, kind: TransferKind) -> Emitted {
        let transfer = Transfer { kind, tile, is_put_off: false };
        self.spills.n_transfers += 1;
        self.spills.bytes += transfer.moved_bytes(self.program);
        self.transfers.push(transfer);
        self.slots.push(slot as u32);
        Emitted::Added(self.transfers.len() as u32 - 1)
    }

    /// Keeps account of where else there is what the tiles hold.
    fn note_uses(&mut self, position: usize) {
        let repeats = match &self.program.instructions[position].kind {
            InstructionKind::Dma { src, gather: None, .. } => {
                src.hbm().is_some_and(|tensor| !self.is_written[tensor.index()])
            }
            _ => false,
        };
        // An instruction reads before it writes.
        for found in self.uses.of_instruction.get(position) {
            let content = &mut self.contents[found.tile.index()];
            if found.reads {
                content.unread_loads.clear();
            }
            if !found.writes {
                continue;
            }
            content.cannot_store = false;
            match &mut content.copies {
                Copies::Loads(positions) if repeats => {
                    positions.push(position as u32);
                    content.unread_loads.push(Emitted::Own(position as u32));
                }
                copies => {
                    *copies = Copies::None;
                    content.unread_loads.clear();
                }
            }
        }
    }

    /// Brings the account of what has been written of a tile up to date.
    fn note_written(&mut self, idx: usize) {
        let content = &mut self.contents[idx];
        let over = &self.uses.of_tile.get(idx)[content.written.n_uses..content.n_uses];
        content.written.n_uses = content.n_uses;
        let written = &mut content.written.footprints;
        for &position in over {
            let instruction = &self.program.instructions[position as usize];
            for (kind, footprint) in footprints(self.program, instruction, Addressing::Virtual) {
                let is_own = kind == AccessKind::Write && footprint.memory == Memory::Tile(tile_id(idx));
                if is_own && !written.iter().any(|earlier| earlier.covers(&footprint)) {
                    written.retain(|earlier| !footprint.covers(earlier));
                    written.push(footprint);
                }
            }
        }
    }
}

/// Position of the next use of what is not used again.
const NEVER: u32 = u32::MAX;

impl Transfer {
    fn moved_bytes(&self, program: &Program) -> i64 {
        match self.kind {
            TransferKind::LoadAgain(position) => moved_bytes(&program.instructions[position as usize]),
            TransferKind::Store(region, _) | TransferKind::Reload(region, _) => {
                i64::try_from(region.size_bytes()).unwrap_or(i64::MAX)
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
