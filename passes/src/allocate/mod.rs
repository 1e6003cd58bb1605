//! Gives every tile an address, spilling to HBM scratch what does not fit into SBUF.
//!
//! Relies on a program of phase `Scheduled`, whose order decides which tiles are live together.
//! Every tile starts at its memory's first partition; tiles of few partitions do not share bytes
//! of other partitions.

mod banks;
mod check;
mod live;
pub mod packing;
mod regions;
mod residency;
mod scratch;
mod spill;

use std::fmt;

use ir::Program;
use ir::program::{ProgramPhase, Space, TileAddress, TileId};
use ir::target::Target;

use banks::color_banks;
use live::{LiveRange, live_ranges};
use packing::{Block, Boundaries, live_bound, pack_within};
use residency::spill_bound;
use scratch::share_scratch;
use spill::{Spills, spill};

pub use check::check_allocation;

/// What `allocate` did. Bytes are per partition unless they say otherwise.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct AllocateStatistics {
    pub n_tiles: usize,
    /// One past the highest SBUF byte used.
    pub sbuf_peak_bytes_per_partition: u64,
    /// Most bytes of tiles live together: no placement can use fewer.
    pub sbuf_live_bound_bytes: u64,
    pub n_psum_tiles: usize,
    pub n_spilled_tiles: usize,
    /// Transfers added to store and reload spilled tiles.
    pub n_spill_transfers: usize,
    /// Bytes that these transfers move.
    pub spill_bytes: u64,
    /// Bytes that spilling must move in this order of instructions, whatever is kept.
    pub spill_bound_bytes: u64,
    /// HBM scratch that holds spilled tiles.
    pub spill_scratch_bytes: u64,
}

impl fmt::Display for AllocateStatistics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} tiles, {} in psum, sbuf peak {} B/partition (bound {}), {} spilled with {} transfers of {} B (bound {})",
            self.n_tiles,
            self.n_psum_tiles,
            self.sbuf_peak_bytes_per_partition,
            self.sbuf_live_bound_bytes,
            self.n_spilled_tiles,
            self.n_spill_transfers,
            self.spill_bytes,
            self.spill_bound_bytes
        )
    }
}

/// Why a program has no addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    #[error("instruction {position} needs {needed} bytes per partition of sbuf at once, there are {usable}: {line}")]
    InstructionTooLarge { position: usize, line: String, needed: u64, usable: u64 },
    #[error(
        "tiles live together at instruction {position} need {needed} bytes per partition of sbuf, there are {usable}, and none of them can be spilled"
    )]
    NothingToSpill { position: usize, needed: u64, usable: u64 },
    #[error("no order of placement fits the tiles into {usable} bytes per partition of sbuf")]
    Fragmented { usable: u64 },
    #[error("the tiles live together do not fit into the {n_banks} banks of psum")]
    PsumFull { n_banks: u32 },
}

/// Places all tiles of a scheduled program.
///
/// # Errors
/// When one instruction's tiles, or PSUM tiles, which cannot be spilled, exceed the memory.
pub fn allocate(program: &Program) -> Result<(Program, AllocateStatistics), AllocateError> {
    let target = program.target.target();
    let usable = u64::from(target.sbuf_usable_bytes);
    let given_ranges = live_ranges(program);
    let needed = live_bound(&sbuf_blocks(program, target, &tiles_in(program, &given_ranges, Space::Sbuf)));
    // Fragmentation may need a few percent of the memory; spill a little more until all fits.
    for percent in [100, 95, 90, 85, 80, 70, 60, 50] {
        let capacity = usable * percent / 100;
        let (mut placed, spills, ranges) = if needed <= capacity {
            (program.clone(), Spills::default(), given_ranges.clone())
        } else {
            let (mut spilled, spills) = spill(program, target, capacity)?;
            share_scratch(&mut spilled, target, program.tensors.len());
            let ranges = live_ranges(&spilled);
            (spilled, spills, ranges)
        };
        let Some((bound, peak)) = place_sbuf(&mut placed, target, &ranges) else { continue };
        place_psum(&mut placed, target, &ranges)?;
        place_unused(&mut placed, &ranges);
        placed.phase = ProgramPhase::Allocated;
        let statistics = AllocateStatistics {
            n_tiles: placed.tiles.len(),
            sbuf_peak_bytes_per_partition: peak,
            sbuf_live_bound_bytes: bound,
            n_psum_tiles: placed.tiles.iter().filter(|tile| tile.space == Space::Psum).count(),
            n_spilled_tiles: spills.n_tiles,
            n_spill_transfers: usize::try_from(spills.n_transfers).unwrap_or(0),
            spill_bytes: u64::try_from(spills.bytes).unwrap_or(0),
            spill_bound_bytes: if needed <= usable { 0 } else { spill_bound(program, target, usable) },
            spill_scratch_bytes: placed.tensors[program.tensors.len()..].iter().map(|tensor| tensor.size_bytes).sum(),
        };
        return Ok((placed, statistics));
    }
    Err(AllocateError::Fragmented { usable })
}

/// Used tiles of one memory with their live ranges.
fn tiles_in(program: &Program, ranges: &[Option<LiveRange>], space: Space) -> Vec<(TileId, LiveRange)> {
    let ids = (0..program.tiles.len()).map(|idx| TileId(u32::try_from(idx).expect("tile ids are 32 bits wide")));
    let used = ids.filter_map(|tile| ranges[tile.index()].map(|range| (tile, range)));
    used.filter(|(tile, _)| program.tile(*tile).space == space).collect()
}

/// What SBUF tiles need, in bytes per partition.
fn sbuf_blocks(program: &Program, target: &Target, tiles: &[(TileId, LiveRange)]) -> Vec<Block> {
    let block = |&(tile, live): &(TileId, LiveRange)| {
        let tile = program.tile(tile);
        let alignment = u64::from(tile.alignment_bytes.max(target.tile_alignment_bytes));
        Block { live, size: u64::from(tile.bytes_per_partition).next_multiple_of(alignment), alignment }
    };
    tiles.iter().map(block).collect()
}

/// Lower bound and peak of the placement, if one was found.
fn place_sbuf(program: &mut Program, target: &Target, ranges: &[Option<LiveRange>]) -> Option<(u64, u64)> {
    let tiles = tiles_in(program, ranges, Space::Sbuf);
    let blocks = sbuf_blocks(program, target, &tiles);
    let packing = pack_within(&blocks, u64::from(target.sbuf_usable_bytes), Boundaries::None)?;
    for ((tile, _), &offset) in tiles.iter().zip(&packing.offsets) {
        set_address(program, *tile, offset);
    }
    Some((live_bound(&blocks), packing.peak))
}

fn place_psum(program: &mut Program, target: &Target, ranges: &[Option<LiveRange>]) -> Result<(), AllocateError> {
    let tiles = tiles_in(program, ranges, Space::Psum);
    let starts = color_banks(program, target, &tiles);
    let starts = starts.ok_or(AllocateError::PsumFull { n_banks: target.psum_banks })?;
    for ((tile, _), start) in tiles.iter().zip(starts) {
        set_address(program, *tile, start);
    }
    Ok(())
}

/// Tiles that nothing accesses lie anywhere.
fn place_unused(program: &mut Program, ranges: &[Option<LiveRange>]) {
    for (tile, range) in program.tiles.iter_mut().zip(ranges) {
        if range.is_none() {
            tile.address = Some(TileAddress { partition: 0, start_byte: 0 });
        }
    }
}

fn set_address(program: &mut Program, tile: TileId, start: u64) {
    let start_byte = u32::try_from(start).expect("a partition has fewer than 2^32 bytes");
    program.tiles[tile.index()].address = Some(TileAddress { partition: 0, start_byte });
}
