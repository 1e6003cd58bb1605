//! Rules of whole streams.

use smallvec::SmallVec;

use super::{Rule, Violation};
use crate::program::{Engine, Instruction, InstructionKind, Space, TableSet, Tile, TileView};
use crate::target::Target;

/// Activation functions whose table set is not the loaded one. Positions are the stream's own.
pub fn check_activation_tables<'a>(stream: impl IntoIterator<Item = &'a Instruction>) -> Vec<(usize, Violation)> {
    let mut tables = LoadedTables::default();
    let found = stream.into_iter().enumerate();
    found.filter_map(|(position, instruction)| Some((position, tables.add(instruction)?))).collect()
}

/// The activation engine's stream so far.
#[derive(Clone, Debug, Default)]
pub struct LoadedTables {
    loaded: Option<TableSet>,
}

impl LoadedTables {
    /// Takes the next instruction; what is wrong with it.
    pub fn add(&mut self, instruction: &Instruction) -> Option<Violation> {
        if let InstructionKind::LoadTable { set } = &instruction.kind {
            self.loaded = Some(*set);
        }
        let InstructionKind::Activation { function, .. } = &instruction.kind else { return None };
        let (sets, loaded) = (function.table_sets(), self.loaded);
        if sets.is_empty() || loaded.is_some_and(|set| sets.contains(&set)) {
            return None;
        }
        let message = format!("`activation` of {function:?} needs one of {sets:?}, but {loaded:?} is loaded");
        Some(Violation { rule: Rule::Table, message })
    }
}

/// A broken rule of a stream, by positions in that stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamViolation {
    pub position: usize,
    /// The earlier instruction that the later one clashes with, where there is one.
    pub earlier: Option<usize>,
    pub violation: Violation,
}

/// Some partitions by some bytes of each in PSUM; ends are exclusive.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Region {
    partitions: (u32, u32),
    bytes: (i64, i64),
}

impl Region {
    /// The smallest one around a view; a tile without an address gets a range of its own.
    fn around(view: &TileView, tiles: &[Tile]) -> Region {
        let address = tiles.get(view.tile.index()).and_then(|tile| tile.address);
        let (base_partition, base_byte) = match address {
            Some(address) => (u32::from(address.partition), i64::from(address.start_byte)),
            None => (0, i64::from(view.tile.0) << 32),
        };
        let first = base_partition + u32::from(view.partition);
        let (low, high) = view.byte_range();
        Region { partitions: (first, first + u32::from(view.n_partitions)), bytes: (low + base_byte, high + base_byte) }
    }

    fn contains(&self, other: &Region) -> bool {
        let contains = |outer: (i64, i64), inner: (i64, i64)| outer.0 <= inner.0 && inner.1 <= outer.1;
        let wide = |(first, last): (u32, u32)| (i64::from(first), i64::from(last));
        contains(wide(self.partitions), wide(other.partitions)) && contains(self.bytes, other.bytes)
    }

    fn overlaps(&self, other: &Region) -> bool {
        overlaps(self.partitions, other.partitions) && overlaps(self.bytes, other.bytes)
    }

    /// The same partitions of all banks that the region touches.
    fn zone(&self, bank_bytes: i64) -> Region {
        // Banks have powers of two of bytes.
        let (low, high) = self.bytes;
        let within = bank_bytes - 1;
        Region { partitions: self.partitions, bytes: (low & !within, ((high - 1) | within) + 1) }
    }

    /// What is left of the region without another that overlaps it.
    fn without(&self, other: &Region, rest: &mut Vec<Region>) {
        let (partitions, bytes) = (self.partitions, self.bytes);
        let middle = (partitions.0.max(other.partitions.0), partitions.1.min(other.partitions.1));
        let pieces = [
            Region { partitions: (partitions.0, middle.0), bytes },
            Region { partitions: (middle.1, partitions.1), bytes },
            Region { partitions: middle, bytes: (bytes.0, other.bytes.0.max(bytes.0)) },
            Region { partitions: middle, bytes: (other.bytes.1.min(bytes.1), bytes.1) },
        ];
        let is_empty = |piece: &Region| piece.partitions.0 >= piece.partitions.1 || piece.bytes.0 >= piece.bytes.1;
        rest.extend(pieces.into_iter().filter(|piece| !is_empty(piece)));
    }
}

/// An accumulation group: what a matmul without accumulation has started.
struct Group<'a> {
    /// Of the matmul that has started it.
    position: usize,
    region: Region,
    /// Its partitions of the banks that it lies in.
    zone: Region,
    /// The view, where it leaves bytes of the region out.
    strided: Option<&'a TileView>,
    /// Position of the matmul that has started another group in one of its banks since.
    interrupted_by: Option<usize>,
}

impl Group<'_> {
    /// True where the group holds every element of the view that lies in its region.
    fn holds(&self, view: &TileView) -> bool {
        let same = |own: &TileView| (own.offset, &own.dims, own.dtype) == (view.offset, &view.dims, view.dtype);
        self.strided.is_none_or(same)
    }
}

/// Matmuls that add to what no matmul has started, or whose group another one has interrupted in
/// the same bank. `stream` is the tensor engine's; positions are its own.
pub fn check_psum_groups<'a>(
    target: &'a Target,
    stream: impl IntoIterator<Item = &'a Instruction>,
    tiles: &'a [Tile],
) -> Vec<StreamViolation> {
    let mut groups = PsumGroups::new(target, tiles);
    stream.into_iter().enumerate().filter_map(|(position, instruction)| groups.add(position, instruction)).collect()
}

/// The accumulation groups of the tensor engine's stream so far. Tiles without an address are told
/// apart by their ids and not by banks.
///
/// A group is open from the matmul that overwrites to the last one that adds to the same place.
/// Starting another group on common partitions of a bank ends every open one there, wherever in the
/// bank it lies. Reads and writes of other engines are not visible in one stream.
pub struct PsumGroups<'a> {
    bank_bytes: i64,
    tiles: &'a [Tile],
    /// By bank, or by tile where it has no address.
    groups: Vec<Vec<Group<'a>>>,
    /// Some group lies in more than one bank.
    is_any_wide: bool,
}

/// As many as any chip has banks.
const N_BANKS: usize = 8;

impl<'a> PsumGroups<'a> {
    /// No groups.
    pub fn new(target: &Target, tiles: &'a [Tile]) -> PsumGroups<'a> {
        let bank_bytes = i64::from(target.psum_bank_bytes);
        let is_placed = tiles.iter().all(|tile| tile.address.is_some());
        let n_buckets = if is_placed { N_BANKS } else { tiles.len().max(N_BANKS) };
        let groups = std::iter::repeat_with(Vec::new).take(n_buckets).collect();
        PsumGroups { bank_bytes, tiles, groups, is_any_wide: false }
    }

    /// Takes the next instruction; what is wrong with it.
    pub fn add(&mut self, position: usize, instruction: &'a Instruction) -> Option<StreamViolation> {
        let (dst, accumulates) = match &instruction.kind {
            InstructionKind::Matmul { dst, accumulate, .. } => (dst, *accumulate),
            InstructionKind::Transpose { dst, .. } => (dst, false),
            _ => return None,
        };
        let region = Region::around(dst, self.tiles);
        let zone = region.zone(self.bank_bytes);
        let is_placed = self.tiles.get(dst.tile.index()).is_none_or(|tile| tile.address.is_some());
        self.is_any_wide |= is_placed && zone.bytes.1 - zone.bytes.0 > self.bank_bytes;
        let own = if is_placed { (zone.bytes.0 / self.bank_bytes) as usize % N_BANKS } else { dst.tile.index() };
        let buckets = if is_placed && self.is_any_wide { 0..N_BANKS } else { own..own + 1 };
        if accumulates {
            let groups = self.groups[buckets].iter().flatten();
            let (message, earlier) = continuation_fault(groups, dst, region)?;
            let violation = Violation { rule: Rule::PsumGroup, message: message.to_owned() };
            return Some(StreamViolation { position, earlier, violation });
        }
        let started = Group { region, zone, position, strided: is_strided(dst).then_some(dst), interrupted_by: None };
        for groups in &mut self.groups[buckets] {
            groups.retain_mut(|group| {
                if !zone.overlaps(&group.zone) {
                    return true;
                }
                group.interrupted_by.get_or_insert(position);
                !(region.contains(&group.region) && (started.strided.is_none() || group.holds(dst)))
            });
        }
        self.groups[own].push(started);
        None
    }
}

/// What is wrong with adding to a region, and the matmul that has made it wrong.
fn continuation_fault<'a>(
    groups: impl Iterator<Item = &'a Group<'a>>,
    dst: &TileView,
    region: Region,
) -> Option<(&'static str, Option<usize>)> {
    let mut own: SmallVec<[&Group<'_>; 4]> =
        groups.filter(|group| group.region.overlaps(&region) && group.holds(dst)).collect();
    // The latest one decides for what it holds.
    own.sort_unstable_by_key(|group| std::cmp::Reverse(group.position));
    if own.first().is_some_and(|group| group.interrupted_by.is_none() && group.region.contains(&region)) {
        return None;
    }
    let mut rest = vec![region];
    let mut next = Vec::new();
    for group in own {
        for piece in std::mem::take(&mut rest) {
            if !piece.overlaps(&group.region) {
                next.push(piece);
                continue;
            }
            if group.interrupted_by.is_some() {
                let message = "`nc_matmul` accumulates in a bank where another group has started since";
                return Some((message, group.interrupted_by));
            }
            piece.without(&group.region, &mut next);
        }
        std::mem::swap(&mut rest, &mut next);
        if rest.is_empty() {
            return None;
        }
    }
    Some(("`nc_matmul` accumulates where no matmul has written", None))
}

fn is_strided(view: &TileView) -> bool {
    let (low, high) = view.byte_range();
    (high - low) as usize != view.n_elements() * view.dtype.size_bytes()
}

fn overlaps<Bound: PartialOrd>(lhs: (Bound, Bound), rhs: (Bound, Bound)) -> bool {
    lhs.0 < rhs.1 && rhs.0 < lhs.1
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
