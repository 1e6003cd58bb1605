//! PSUM banks for tiles.
//!
//! A tile takes whole banks for itself while banks last, always the ones that have been free for
//! longest, so that the tensor engine fills one while the results of others are read. Only when
//! that does not fit do small tiles share a bank, and never with one that matmuls accumulate in:
//! a bank holds one open group.

use std::collections::BTreeSet;

use ir::Program;
use ir::program::{Instruction, InstructionKind, Space, TileId};
use ir::target::Target;

use super::live::LiveRange;
use super::packing::{Block, Boundaries, pack_within};

/// Start bytes of the PSUM tiles, in the order of `tiles`; `None` if they do not fit.
pub(super) fn color_banks(program: &Program, target: &Target, tiles: &[(TileId, LiveRange)]) -> Option<Vec<u64>> {
    debug_assert!(tiles.iter().all(|(tile, _)| program.tile(*tile).space == Space::Psum), "other tiles have no banks");
    whole_banks(program, target, tiles).or_else(|| {
        let accumulated = accumulated_tiles(program);
        let block = |&(id, live): &(TileId, LiveRange)| {
            let tile = program.tile(id);
            let alignment = u64::from(tile.alignment_bytes.max(target.tile_alignment_bytes));
            let own = u64::from(tile.bytes_per_partition).next_multiple_of(alignment);
            let size = if accumulated.contains(&id) { own.max(u64::from(target.psum_bank_bytes)) } else { own };
            Block { live, size, alignment }
        };
        let blocks: Vec<Block> = tiles.iter().map(block).collect();
        let boundaries = Boundaries::Every(u64::from(target.psum_bank_bytes));
        let fits_bank = blocks.iter().all(|block| block.size <= u64::from(target.psum_bank_bytes));
        let packing = if fits_bank { pack_within(&blocks, u64::from(target.psum_bytes()), boundaries) } else { None };
        packing.map(|packing| packing.offsets)
    })
}

/// Tiles that matmuls add to.
fn accumulated_tiles(program: &Program) -> BTreeSet<TileId> {
    let tile = |instruction: &Instruction| {
        let InstructionKind::Matmul { dst, accumulate: true, .. } = &instruction.kind else { return None };
        Some(dst.tile)
    };
    program.instructions.iter().filter_map(tile).collect()
}

fn whole_banks(program: &Program, target: &Target, tiles: &[(TileId, LiveRange)]) -> Option<Vec<u64>> {
    let n_banks = target.psum_banks as usize;
    // Per bank, the first position at which it is free again.
    let mut free_from = vec![0; n_banks];
    let mut starts = vec![0; tiles.len()];
    let mut order: Vec<usize> = (0..tiles.len()).collect();
    order.sort_by_key(|&at| (tiles[at].1.first, tiles[at].0));
    for at in order {
        let (tile, live) = tiles[at];
        let n_needed = program.tile(tile).bytes_per_partition.div_ceil(target.psum_bank_bytes).max(1) as usize;
        let free_for = |first: usize| free_from[first..first + n_needed].iter().copied().max().unwrap_or(0);
        let candidates = (0..=n_banks.checked_sub(n_needed)?).filter(|&first| free_for(first) <= live.first);
        let first = candidates.min_by_key(|&first| free_for(first))?;
        free_from[first..first + n_needed].fill(live.last + 1);
        starts[at] = first as u64 * u64::from(target.psum_bank_bytes);
    }
    Some(starts)
}
