//! Ways to damage a synchronized program, one fault at a time.

use ir::Program;
use ir::program::{DmaAccess, DmaPlace, Engine, InstructionKind, TileAddress, TileId};

/// Instructions between two that swap tiles.
const MOST_BETWEEN: usize = 100;

/// A damaged program.
pub struct Mutant {
    pub what: String,
    pub program: Program,
    /// Two groups were given the same bytes.
    pub overlaps: bool,
    /// The wait is for the transfer before on the instruction's own semaphore, so that the two are told
    /// apart. Nobody may need that.
    pub is_turn: bool,
}

/// All places where one kind of damage can be done; the program is copied only when one is taken.
pub struct Places<'a> {
    program: &'a Program,
    places: Vec<Damage>,
}

#[derive(Clone, Debug)]
enum Damage {
    DropWait {
        at: usize,
        wait: usize,
    },
    /// A wait for a transfer that is met too early.
    ShortenWait {
        at: usize,
        wait: usize,
        by: u16,
    },
    MoveTile {
        moved: usize,
        onto: usize,
    },
    /// The operand's first element is the next one; operands are counted over views, then sides.
    ShiftOperand {
        at: usize,
        operand: usize,
    },
    SwapStores {
        first: usize,
        second: usize,
    },
    /// Two instructions of one kind take each other's tile for one of their operands.
    SwapTiles {
        first: usize,
        second: usize,
        operand: usize,
    },
    /// The second matmul starts a group in the bank of the first one's, just before it.
    InterleaveGroups {
        last: usize,
        start: usize,
        address: TileAddress,
        is_beside: bool,
    },
}

impl<'a> Places<'a> {
    /// At most so many mutants, spread evenly over the program.
    pub fn sample(&self, most: usize) -> impl Iterator<Item = Mutant> {
        let n_places = self.places.len();
        let n_taken = n_places.min(most);
        // An odd step within each share, so that a regular program is not met at one phase alone.
        let at = move |number: usize| {
            let (first, end) = (number * n_places / n_taken, (number + 1) * n_places / n_taken);
            first + (number * 7919) % (end - first)
        };
        (0..n_taken).map(move |number| self.mutant(at(number)))
    }

    fn mutant(&self, number: usize) -> Mutant {
        let damage = &self.places[number];
        let mut program = self.program.clone();
        apply(damage, &mut program);
        let overlaps = matches!(damage, Damage::InterleaveGroups { is_beside: false, .. });
        let is_turn = match *damage {
            Damage::DropWait { at, wait } | Damage::ShortenWait { at, wait, .. } => {
                let instruction = &self.program.instructions[at];
                instruction.update.is_some_and(|update| update.semaphore == instruction.waits[wait].semaphore)
            }
            _ => false,
        };
        Mutant { what: format!("{damage:?}"), program, overlaps, is_turn }
    }
}

fn apply(damage: &Damage, program: &mut Program) {
    match *damage {
        Damage::DropWait { at, wait } => drop(program.instructions[at].waits.remove(wait)),
        Damage::ShortenWait { at, wait, by } => program.instructions[at].waits[wait].at_least -= by,
        Damage::MoveTile { moved, onto } => program.tiles[moved].address = program.tiles[onto].address,
        Damage::ShiftOperand { at, operand } => shift(&mut program.instructions[at].kind, operand),
        Damage::SwapStores { first, second } => swap_sources(program, first, second),
        Damage::SwapTiles { first, second, operand } => {
            let kinds = program.instructions.get_disjoint_mut([first, second]);
            let [first, second] = kinds.expect("two instructions are apart");
            let (mut first, mut second) = (first.kind.views_mut(), second.kind.views_mut());
            std::mem::swap(&mut first[operand].tile, &mut second[operand].tile);
        }
        Damage::InterleaveGroups { last, start, address, is_beside: _ } => {
            let InstructionKind::Matmul { dst, .. } = &program.instructions[start].kind else { return };
            let tile = dst.tile.index();
            program.tiles[tile].address = Some(address);
            let [first, second] =
                program.instructions.get_disjoint_mut([last, start]).expect("two matmuls are two instructions");
            std::mem::swap(&mut first.kind, &mut second.kind);
        }
    }
}

pub fn dropped_waits(program: &Program) -> Places<'_> {
    let waits = (0..program.instructions.len())
        .flat_map(|at| (0..program.instructions[at].waits.len()).map(move |wait| Damage::DropWait { at, wait }));
    Places { program, places: waits.collect() }
}

/// Waits for transfers that are met by 15 of 16 engines, or by one transfer less.
pub fn shortened_waits(program: &Program) -> Places<'_> {
    let of_transfers: std::collections::BTreeSet<u16> = program
        .instructions
        .iter()
        .filter(|instruction| matches!(instruction.kind, InstructionKind::Dma { .. }))
        .filter_map(|instruction| instruction.update.map(|update| update.semaphore))
        .collect();
    let n_engines = program.target.target().dma_engines as u16;
    let mut places = Vec::new();
    for (at, instruction) in program.instructions.iter().enumerate() {
        for (wait, awaited) in instruction.waits.iter().enumerate() {
            let shorter = [1, n_engines].into_iter().filter(|&by| by <= awaited.at_least);
            if of_transfers.contains(&awaited.semaphore) {
                places.extend(shorter.map(|by| Damage::ShortenWait { at, wait, by }));
            }
        }
    }
    Places { program, places }
}

/// Tiles that are moved onto another one of their memory which is written while they are in use.
pub fn moved_tiles(program: &Program) -> Places<'_> {
    let live = live_ranges(program);
    let onto = |moved: usize| {
        (0..program.tiles.len()).find(|&other| {
            let (lhs, rhs) = (&program.tiles[moved], &program.tiles[other]);
            let overlap = live[moved].0 < live[other].0 && live[other].0 < live[moved].1;
            moved != other && lhs.space == rhs.space && overlap && lhs.address != rhs.address
        })
    };
    let moves = (0..program.tiles.len()).filter_map(|moved| Some(Damage::MoveTile { moved, onto: onto(moved)? }));
    Places { program, places: moves.collect() }
}

/// First write and last use of each tile, as positions in the program.
fn live_ranges(program: &Program) -> Vec<(usize, usize)> {
    let mut ranges = vec![(usize::MAX, 0); program.tiles.len()];
    for (position, instruction) in program.instructions.iter().enumerate() {
        let accesses = instruction.kind.accesses();
        let mut touch = |tile: TileId| {
            let range = &mut ranges[tile.index()];
            *range = (range.0.min(position), range.1.max(position));
        };
        accesses.tile_reads.iter().chain(&accesses.tile_writes).for_each(|view| touch(view.tile));
        for side in [accesses.dma_read, accesses.dma_write].into_iter().flatten() {
            if let DmaPlace::Tile { tile, .. } = side.place {
                touch(tile);
            }
        }
    }
    ranges
}

/// One operand of one instruction a single element further.
pub fn shifted_operands(program: &Program) -> Places<'_> {
    let mut places = Vec::new();
    for (at, instruction) in program.instructions.iter().enumerate() {
        let n_sides = if matches!(instruction.kind, InstructionKind::Dma { .. }) { 2 } else { 0 };
        let n_operands = instruction.kind.clone().views_mut().len() + n_sides;
        places.extend((0..n_operands).map(|operand| Damage::ShiftOperand { at, operand }));
    }
    Places { program, places }
}

fn shift(kind: &mut InstructionKind, operand: usize) {
    let n_views = kind.views_mut().len();
    if let Some(view) = kind.views_mut().get_mut(operand) {
        view.offset += 1;
    } else if let InstructionKind::Dma { dst, src, .. } = kind {
        let side = if operand == n_views { dst } else { src };
        side.offset += 1;
    }
}

/// Neighbouring stores to device memory that store each other's source.
pub fn swapped_stores(program: &Program) -> Places<'_> {
    let is_store = |kind: &InstructionKind| match kind {
        InstructionKind::Dma { dst, .. } => dst.hbm().is_some(),
        _ => false,
    };
    let stores: Vec<usize> =
        (0..program.instructions.len()).filter(|&at| is_store(&program.instructions[at].kind)).collect();
    // Two tiles that lie in one place one after the other are one source to the hardware.
    let pairs = stores.windows(2).filter(|pair| source_bytes(program, pair[0]) != source_bytes(program, pair[1]));
    let places = pairs.map(|pair| Damage::SwapStores { first: pair[0], second: pair[1] });
    Places { program, places: places.collect() }
}

/// Each operand of each instruction with that of the next one of its kind which has another tile of the
/// same form there, in another place.
pub fn swapped_tiles(program: &Program) -> Places<'_> {
    let operands: Vec<Vec<TileId>> = program
        .instructions
        .iter()
        .map(|instruction| instruction.kind.clone().views_mut().iter().map(|view| view.tile).collect())
        .collect();
    let are_alike = |one: TileId, other: TileId| {
        let (one, other) = (program.tile(one), program.tile(other));
        let form = |tile: &ir::program::Tile| (tile.space, tile.dtype, tile.n_partitions, tile.bytes_per_partition);
        form(one) == form(other) && one.address != other.address
    };
    let mut places = Vec::new();
    for (first, tiles) in operands.iter().enumerate() {
        let kind = std::mem::discriminant(&program.instructions[first].kind);
        for (operand, &tile) in tiles.iter().enumerate() {
            let second = (first + 1..operands.len()).take(MOST_BETWEEN).find(|&second| {
                let is_same = std::mem::discriminant(&program.instructions[second].kind) == kind;
                is_same && operands[second].get(operand).is_some_and(|&other| are_alike(tile, other))
            });
            places.extend(second.map(|second| Damage::SwapTiles { first, second, operand }));
        }
    }
    Places { program, places }
}

/// Where a store reads, whatever the tile is called.
fn source_bytes(program: &Program, at: usize) -> Option<(Option<TileAddress>, DmaAccess)> {
    let InstructionKind::Dma { src, .. } = &program.instructions[at].kind else { return None };
    let mut source = src.clone();
    let DmaPlace::Tile { tile, partition } = src.place else { return Some((None, source)) };
    source.place = DmaPlace::Tile { tile: TileId(0), partition };
    Some((program.tiles[tile.index()].address, source))
}

fn swap_sources(program: &mut Program, first: usize, second: usize) {
    let [first, second] =
        program.instructions.get_disjoint_mut([first, second]).expect("two stores are two instructions");
    if let (InstructionKind::Dma { src: one, .. }, InstructionKind::Dma { src: other, .. }) =
        (&mut first.kind, &mut second.kind)
    {
        std::mem::swap(one, other);
    }
}

/// Starts of groups that are moved into the bank of an open group, before its last matmul: for each
/// last matmul the groups that start nearest after it, beside it in the bank where there is room.
pub fn interleaved_groups(program: &Program) -> Places<'_> {
    const MOST_STARTS: usize = 8;
    let bank_bytes = program.target.target().psum_bank_bytes;
    let matmuls: Vec<(usize, TileId, bool)> = program
        .stream(Engine::Pe)
        .filter_map(|(at, instruction)| match &instruction.kind {
            InstructionKind::Matmul { dst, accumulate, .. } => Some((at, dst.tile, *accumulate)),
            _ => None,
        })
        .collect();
    let mut places = Vec::new();
    for (number, &(last, one, accumulates)) in matmuls.iter().enumerate() {
        let Some(address) = program.tile(one).address.filter(|_| accumulates) else { continue };
        // Once another group has taken its place, a late matmul adds to that one.
        let end = taken_at(program, last, one);
        let later = matmuls[number + 1..].iter().take_while(|&&(at, _, _)| at <= end);
        let starts = later.filter(|&&(_, other, accumulates)| !accumulates && other != one).take(MOST_STARTS);
        for &(start, other, _) in starts {
            let beside = address.start_byte + program.tile(one).bytes_per_partition.next_multiple_of(4);
            let end = beside + program.tile(other).bytes_per_partition;
            let fits = address.start_byte / bank_bytes == (end - 1) / bank_bytes;
            let start_byte = if fits { beside } else { address.start_byte };
            let address = TileAddress { start_byte, ..address };
            places.push(Damage::InterleaveGroups { last, start, address, is_beside: fits });
        }
    }
    Places { program, places }
}

/// The first instruction of PE after `last` that writes another tile where this one lies.
fn taken_at(program: &Program, last: usize, one: TileId) -> usize {
    let range = |tile: TileId| {
        let tile = program.tile(tile);
        let start = tile.address.map_or(0, |address| address.start_byte);
        start..start + tile.bytes_per_partition
    };
    let own = range(one);
    let takes = |kind: &InstructionKind| {
        kind.accesses().tile_writes.iter().any(|view| {
            let other = range(view.tile);
            view.tile != one && own.start < other.end && other.start < own.end
        })
    };
    let mut later = program.stream(Engine::Pe).filter(|(at, instruction)| *at > last && takes(&instruction.kind));
    later.next().map_or(program.instructions.len(), |(at, _)| at)
}
