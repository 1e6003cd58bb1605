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
use ir::program::{ProgramPhase, Space, Tile, TileAddress, TileId};
use ir::target::Target;

use banks::color_banks;
use live::{LiveRange, Uses};
use packing::{Block, Boundaries, Packing, live_bound, pack_within};
use scratch::share_scratch;
use spill::plan_spills;

pub use check::check_allocation;
pub use residency::spill_bound;
pub use scratch::is_spill;

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
    /// HBM scratch that holds spilled tiles.
    pub spill_scratch_bytes: u64,
}

impl fmt::Display for AllocateStatistics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} tiles, {} in psum, sbuf peak {} B/partition (bound {}), {} spilled with {} transfers of {} B",
            self.n_tiles,
            self.n_psum_tiles,
            self.sbuf_peak_bytes_per_partition,
            self.sbuf_live_bound_bytes,
            self.n_spilled_tiles,
            self.n_spill_transfers,
            self.spill_bytes
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
pub fn allocate(program: Program) -> Result<(Program, AllocateStatistics), AllocateError> {
    let target = program.target.target();
    let usable = u64::from(target.sbuf_usable_bytes);
    let uses = Uses::of(&program);
    let ranges = uses.live_ranges();
    let sbuf = SbufTiles::of(program.tiles.iter(), target, &ranges);
    if sbuf.bound <= usable
        && let Some(packing) = sbuf.pack(usable)
    {
        return place(program, target, &ranges, &sbuf, &packing);
    }
    // Fragmentation may need a few percent of the memory; spill a little more until all fits.
    for percent in [100, 95, 90, 85, 80, 70, 60, 50] {
        let capacity = usable * percent / 100;
        if sbuf.bound <= capacity {
            continue;
        }
        let plan = plan_spills(&program, target, &uses, capacity)?;
        let ranges = plan.live_ranges(&program, &uses);
        let sbuf = SbufTiles::of(plan.tiles(&program), target, &ranges);
        let Some(packing) = sbuf.pack(usable) else { continue };
        let spills = plan.spills;
        let n_tensors = program.tensors.len();
        let mut spilled = plan.apply(program, target, &uses);
        share_scratch(&mut spilled, target, n_tensors);
        let (placed, statistics) = place(spilled, target, &ranges, &sbuf, &packing)?;
        let statistics = AllocateStatistics {
            n_spilled_tiles: spills.n_tiles,
            n_spill_transfers: usize::try_from(spills.n_transfers).unwrap_or(0),
            spill_bytes: u64::try_from(spills.bytes).unwrap_or(0),
            spill_scratch_bytes: placed.tensors[n_tensors..].iter().map(|tensor| tensor.size_bytes).sum(),
            ..statistics
        };
        return Ok((placed, statistics));
    }
    Err(AllocateError::Fragmented { usable })
}

/// The SBUF tiles that something uses.
struct SbufTiles {
    tiles: Vec<TileId>,
    /// What each of them needs, in bytes per partition.
    blocks: Vec<Block>,
    /// Most bytes of tiles live together.
    bound: u64,
}

impl SbufTiles {
    fn of<'a>(all: impl Iterator<Item = &'a Tile>, target: &Target, ranges: &[Option<LiveRange>]) -> Self {
        let (mut tiles, mut blocks) = (Vec::new(), Vec::new());
        for ((idx, tile), range) in (0u32..).zip(all).zip(ranges) {
            if let (Space::Sbuf, &Some(live)) = (tile.space, range) {
                let alignment = u64::from(tile.alignment_bytes.max(target.tile_alignment_bytes));
                let size = u64::from(tile.bytes_per_partition).next_multiple_of(alignment);
                tiles.push(TileId(idx));
                blocks.push(Block { live, size, alignment });
            }
        }
        SbufTiles { bound: live_bound(&blocks), tiles, blocks }
    }

    fn pack(&self, usable: u64) -> Option<Packing> {
        pack_within(&self.blocks, usable, Boundaries::None)
    }
}

/// The program with an address for each tile.
fn place(
    mut program: Program,
    target: &Target,
    ranges: &[Option<LiveRange>],
    sbuf: &SbufTiles,
    packing: &Packing,
) -> Result<(Program, AllocateStatistics), AllocateError> {
    for (tile, &offset) in sbuf.tiles.iter().zip(&packing.offsets) {
        set_address(&mut program, *tile, offset);
    }
    place_psum(&mut program, target, ranges)?;
    place_unused(&mut program, ranges);
    program.phase = ProgramPhase::Allocated;
    let statistics = AllocateStatistics {
        n_tiles: program.tiles.len(),
        sbuf_peak_bytes_per_partition: packing.peak,
        sbuf_live_bound_bytes: sbuf.bound,
        n_psum_tiles: program.tiles.iter().filter(|tile| tile.space == Space::Psum).count(),
        ..AllocateStatistics::default()
    };
    Ok((program, statistics))
}

fn place_psum(program: &mut Program, target: &Target, ranges: &[Option<LiveRange>]) -> Result<(), AllocateError> {
    let used = (0u32..).zip(ranges).filter_map(|(tile, range)| Some((TileId(tile), (*range)?)));
    let tiles: Vec<(TileId, LiveRange)> = used.filter(|(tile, _)| program.tile(*tile).space == Space::Psum).collect();
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
