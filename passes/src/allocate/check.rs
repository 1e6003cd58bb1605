//! Proves that no two tiles that are live at the same position share a byte, and that every tile
//! lies where its memory allows. Shares no code with the placement.

use std::ops::Range;

use ir::Program;
use ir::program::verify::ProgramFault;
use ir::program::{DmaPlace, Space, Tile, TileAddress};

/// Every fault of an allocated program's addresses.
pub fn check_allocation(program: &Program) -> Vec<ProgramFault> {
    let mut faults = Vec::new();
    let uses = uses(program);
    for (tile_idx, tile) in program.tiles.iter().enumerate() {
        match tile.address {
            None if uses[tile_idx].is_some() => faults.push(fault(program, tile_idx, "tile has no address".into())),
            Some(address) if uses[tile_idx].is_some() => {
                faults.extend(misplacement(program, tile, address).map(|message| fault(program, tile_idx, message)));
            }
            None | Some(_) => {}
        }
    }
    // Sweep over the program: a tile is compared with those still live when its first access comes.
    let mut starting: Vec<(usize, usize, usize)> = uses
        .iter()
        .enumerate()
        .filter_map(|(tile_idx, range)| range.map(|(first, last)| (first, tile_idx, last)))
        .collect();
    starting.sort_unstable();
    let mut live = Live::default();
    for (first, tile_idx, last) in starting {
        let Some(placed) = Placed::of(&program.tiles[tile_idx], tile_idx, last) else { continue };
        live.add(placed, first, |other| {
            let message = format!("tiles %t{} and %t{tile_idx} share bytes while both are live", other.tile_idx);
            faults.push(ProgramFault::at(program, first, message));
        });
    }
    faults
}

/// The tiles live at one position, by the blocks of bytes that they have parts of.
#[derive(Default)]
struct Live {
    sbuf: Vec<Vec<Placed>>,
    psum: Vec<Vec<Placed>>,
}

impl Live {
    /// Adds a tile that is live from position `first` on; calls `collide` with each one that shares
    /// bytes with it then.
    fn add(&mut self, placed: Placed, first: usize, mut collide: impl FnMut(&Placed)) {
        let blocks = match placed.space {
            Space::Sbuf => &mut self.sbuf,
            Space::Psum => &mut self.psum,
        };
        let (low, high) = (placed.first_block(), placed.last_block());
        if blocks.len() <= high {
            blocks.resize_with(high + 1, Vec::new);
        }
        for (block, members) in (low..=high).zip(&mut blocks[low..=high]) {
            members.retain(|other| other.last >= first);
            // Two tiles that have several blocks in common meet in the first of these.
            let met = members.iter().filter(|other| low.max(other.first_block()) == block);
            met.filter(|other| placed.shares_bytes(other)).for_each(&mut collide);
            members.push(placed.clone());
        }
    }
}

fn fault(program: &Program, tile_idx: usize, message: String) -> ProgramFault {
    ProgramFault::of_program(format!("%t{tile_idx} \"{}\"", program.tiles[tile_idx].label), message)
}

/// First and last position that names each tile.
fn uses(program: &Program) -> Vec<Option<(usize, usize)>> {
    let mut uses: Vec<Option<(usize, usize)>> = vec![None; program.tiles.len()];
    for (position, instruction) in program.instructions.iter().enumerate() {
        let accesses = instruction.kind.accesses();
        let mut note = |tile_idx: usize| match &mut uses[tile_idx] {
            Some((_, last)) => *last = position,
            unused => *unused = Some((position, position)),
        };
        for view in accesses.tile_reads.iter().chain(&accesses.tile_writes) {
            note(view.tile.index());
        }
        for side in [accesses.dma_read, accesses.dma_write].into_iter().flatten() {
            if let DmaPlace::Tile { tile, .. } = side.place {
                note(tile.index());
            }
        }
    }
    uses
}

/// What is wrong with where one tile lies.
fn misplacement(program: &Program, tile: &Tile, address: TileAddress) -> Option<String> {
    let target = program.target.target();
    let TileAddress { partition, start_byte } = address;
    let start = u64::from(start_byte);
    let end = start + u64::from(tile.bytes_per_partition);
    let memory_bytes = match tile.space {
        Space::Sbuf => target.sbuf_usable_bytes,
        Space::Psum => target.psum_bytes(),
    };
    if u32::from(partition) + u32::from(tile.n_partitions) > target.partitions {
        return Some(format!("partitions {partition}+{} are out of range", tile.n_partitions));
    }
    if end > u64::from(memory_bytes) {
        return Some(format!("bytes {start}..{end} are out of {}'s {memory_bytes}", tile.space));
    }
    if tile.alignment_bytes > 1 && start_byte % tile.alignment_bytes != 0 {
        return Some(format!("start byte {start} is no multiple of {}", tile.alignment_bytes));
    }
    let bank = u64::from(target.psum_bank_bytes);
    let crosses = tile.space == Space::Psum && end > start && start / bank != (end - 1) / bank;
    if crosses && !(target.matmul_spans_banks && start.is_multiple_of(bank)) {
        return Some(format!("bytes {start}..{end} cross a bank"));
    }
    None
}

/// Bytes of a partition that are looked at together.
const BLOCK_BYTES: u64 = 2048;

/// The last block; what lies beyond, outside of every memory, belongs to it.
const LAST_BLOCK: u64 = 1023;

fn block_of(byte: u64) -> usize {
    (byte / BLOCK_BYTES).min(LAST_BLOCK) as usize
}

/// A tile's rectangle and the last position that names it.
#[derive(Clone)]
struct Placed {
    tile_idx: usize,
    last: usize,
    space: Space,
    bytes: Range<u64>,
    partitions: Range<u32>,
}

impl Placed {
    fn of(tile: &Tile, tile_idx: usize, last: usize) -> Option<Self> {
        let TileAddress { partition, start_byte } = tile.address?;
        let (start, row) = (u64::from(start_byte), u32::from(partition));
        let bytes = start..start + u64::from(tile.bytes_per_partition);
        Some(Placed { tile_idx, last, space: tile.space, bytes, partitions: row..row + u32::from(tile.n_partitions) })
    }

    fn first_block(&self) -> usize {
        block_of(self.bytes.start)
    }

    fn last_block(&self) -> usize {
        block_of(self.bytes.end.saturating_sub(1).max(self.bytes.start))
    }

    fn shares_bytes(&self, other: &Placed) -> bool {
        self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
            && self.space == other.space
            && self.partitions.start < other.partitions.end
            && other.partitions.start < self.partitions.end
    }
}
