//! Rules of whole streams.

use super::{Rule, Violation};
use crate::program::{Engine, Instruction, InstructionKind, Space, TableSet, Tile, TileView};
use crate::target::Target;

/// Activation functions whose table set is not the loaded one. Positions are the stream's own.
pub fn check_activation_tables<'a>(stream: impl IntoIterator<Item = &'a Instruction>) -> Vec<(usize, Violation)> {
    let mut loaded: Option<TableSet> = None;
    let mut found = Vec::new();
    for (position, instruction) in stream.into_iter().enumerate() {
        if let InstructionKind::LoadTable { set } = &instruction.kind {
            loaded = Some(*set);
        }
        let InstructionKind::Activation { function, .. } = &instruction.kind else { continue };
        let sets = function.table_sets();
        if !sets.is_empty() && !loaded.is_some_and(|set| sets.contains(&set)) {
            let message = format!("`activation` of {function:?} needs one of {sets:?}, but {loaded:?} is loaded");
            found.push((position, Violation { rule: Rule::Table, message }));
        }
    }
    found
}

/// A rectangle of PSUM that the latest matmuls have written.
struct Group {
    partitions: (u32, u32),
    bytes: (i64, i64),
    /// A later matmul has started another group in one of its banks.
    interrupted: bool,
}

/// Matmuls that add to what no matmul has started, or whose group another one has interrupted in
/// the same bank. `stream` is the tensor engine's; positions are its own. Tiles without an address
/// are told apart by their ids and not by banks.
///
/// Writes of other engines end a group too, but their order is not visible in one stream.
pub fn check_psum_groups<'a>(
    target: &Target,
    stream: impl IntoIterator<Item = &'a Instruction>,
    tiles: &[Tile],
) -> Vec<(usize, Violation)> {
    let mut groups: Vec<Group> = Vec::new();
    let mut found = Vec::new();
    for (position, instruction) in stream.into_iter().enumerate() {
        let accumulate = matches!(instruction.kind, InstructionKind::Matmul { accumulate: true, .. });
        let accesses = instruction.kind.accesses();
        let Some(dst) = accesses.tile_writes.first() else { continue };
        let (partitions, bytes) = place(dst, tiles);
        let bank = i64::from(target.psum_bank_bytes);
        let banks = |(low, high): (i64, i64)| (low.div_euclid(bank), (high - 1).div_euclid(bank) + 1);
        if accumulate {
            let group = groups.iter().rev().find(|group| {
                contains(group.partitions, partitions) && group.bytes.0 <= bytes.0 && bytes.1 <= group.bytes.1
            });
            let message = match group {
                None => "`nc_matmul` accumulates where no matmul has written",
                Some(group) if group.interrupted => {
                    "`nc_matmul` accumulates in a bank where another group has started since"
                }
                Some(_) => continue,
            };
            found.push((position, Violation { rule: Rule::PsumGroup, message: message.to_owned() }));
            continue;
        }
        groups.retain(|group| {
            !(contains(partitions, group.partitions) && bytes.0 <= group.bytes.0 && group.bytes.1 <= bytes.1)
        });
        for group in &mut groups {
            group.interrupted |= overlaps(group.partitions, partitions) && overlaps(banks(group.bytes), banks(bytes));
        }
        groups.push(Group { partitions, bytes, interrupted: false });
    }
    found
}

fn overlaps<Bound: PartialOrd>(lhs: (Bound, Bound), rhs: (Bound, Bound)) -> bool {
    lhs.0 < rhs.1 && rhs.0 < lhs.1
}

fn contains(outer: (u32, u32), inner: (u32, u32)) -> bool {
    outer.0 <= inner.0 && inner.1 <= outer.1
}

/// Partitions and bytes of a view; a tile without an address gets a range of its own.
fn place(view: &TileView, tiles: &[Tile]) -> ((u32, u32), (i64, i64)) {
    let address = tiles.get(view.tile.index()).and_then(|tile| tile.address);
    let (base_partition, base_byte) = match address {
        Some(address) => (u32::from(address.partition), i64::from(address.start_byte)),
        None => (0, i64::from(view.tile.0) << 32),
    };
    let first = base_partition + u32::from(view.partition);
    let (low, high) = view.byte_range();
    ((first, first + u32::from(view.n_partitions)), (low + base_byte, high + base_byte))
}

/// A way into a memory that two engines of the first generation share: whole instructions must not
/// overlap on it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Port {
    /// Of DVE and Pool to SBUF.
    Sbuf,
    /// Of DVE and ACT to PSUM.
    Psum,
}

/// The shared ports that an instruction occupies. Two instructions of different engines with a
/// common port must be ordered by semaphores.
pub fn exclusive_ports(target: &Target, instruction: &Instruction, tiles: &[Tile]) -> Vec<Port> {
    let mut ports = Vec::new();
    if !instruction.is_compute() {
        return ports;
    }
    let accesses = instruction.kind.accesses();
    let touches = |space: Space| {
        let mut views = accesses.tile_reads.iter().chain(&accesses.tile_writes);
        views.any(|view| tiles.get(view.tile.index()).is_some_and(|tile| tile.space == space))
    };
    let engine = instruction.engine;
    if !target.dve_pool_parallel && matches!(engine, Engine::Dve | Engine::Pool) && touches(Space::Sbuf) {
        ports.push(Port::Sbuf);
    }
    if !target.dve_act_parallel && matches!(engine, Engine::Dve | Engine::Act) && touches(Space::Psum) {
        ports.push(Port::Psum);
    }
    ports
}
