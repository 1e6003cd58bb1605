//! Rules of one on-chip operand.

use super::{Checker, Rule};
use crate::program::{Space, TileView};
use crate::types::Dtype;

/// First partitions that an operand of `n_partitions` may have.
pub(super) fn start_is_legal(first: u32, n_partitions: u32) -> bool {
    match n_partitions {
        0..=32 => first.is_multiple_of(32),
        33..=64 => first.is_multiple_of(64),
        _ => first == 0,
    }
}

pub(super) fn check_view(checker: &mut Checker<'_>, view: &TileView) {
    let Some(tile) = checker.tiles.get(view.tile.index()) else {
        checker.broken(Rule::Extent, format!("names tile {} of {}", view.tile.0, checker.tiles.len()));
        return;
    };
    let (target, n_partitions) = (checker.target, u32::from(view.n_partitions));
    let last = u32::from(view.partition) + n_partitions;
    checker.require(n_partitions > 0 && last <= u32::from(tile.n_partitions), Rule::Partitions, || {
        format!("touches partitions {}..{last} of a tile with {}", view.partition, tile.n_partitions)
    });
    let has_extent = view.dims.len() <= 4 && view.dims.iter().all(|dim| dim.count > 0);
    checker.require(has_extent, Rule::Extent, || {
        format!("has the free dimensions {:?}; one to four, none empty", view.dims)
    });
    let (low, high) = view.byte_range();
    checker.require(low >= 0 && high <= i64::from(tile.bytes_per_partition), Rule::Extent, || {
        format!("touches bytes {low}..{high} of a tile with {} bytes per partition", tile.bytes_per_partition)
    });
    let on_chip = !matches!(view.dtype, Dtype::F64 | Dtype::I64);
    checker.require(on_chip, Rule::Type, || format!("takes {}, which no engine does", view.dtype));
    let free_max = match tile.space {
        Space::Sbuf => target.sbuf_free_max,
        Space::Psum => target.psum_free_max,
    };
    let n_elements = view.dims.iter().fold(1u64, |count, dim| count * u64::from(dim.count));
    checker.require(n_elements <= u64::from(free_max), Rule::Extent, || {
        format!("has {n_elements} elements per partition; at most {free_max} in this memory")
    });
    check_address(checker, view);
}

/// Rules that need the tile's place in its memory.
fn check_address(checker: &mut Checker<'_>, view: &TileView) {
    let tile = &checker.tiles[view.tile.index()];
    let Some(address) = tile.address else { return };
    let target = checker.target;
    let first = u32::from(address.partition) + u32::from(view.partition);
    let n_partitions = u32::from(view.n_partitions);
    checker.require(start_is_legal(first, n_partitions), Rule::Partitions, || {
        format!("starts at partition {first} with {n_partitions} partitions")
    });
    checker.require(first + n_partitions <= target.partitions, Rule::Partitions, || {
        format!("touches partitions {first}..{}", first + n_partitions)
    });
    let (low, high) = view.byte_range();
    let (low, high) = (low + i64::from(address.start_byte), high + i64::from(address.start_byte));
    // Sizes are powers of two.
    checker.require(low & (view.dtype.size_bytes() as i64 - 1) == 0, Rule::Alignment, || {
        format!("reads {} at byte {low}", view.dtype)
    });
    let usable = match tile.space {
        Space::Sbuf => target.sbuf_usable_bytes,
        Space::Psum => target.psum_bytes(),
    };
    checker.require(high <= i64::from(usable), Rule::Extent, || format!("touches bytes up to {high} of {usable}"));
    // Both ends of an operand within a bank, whose size is a power of two, differ in low bits only.
    let bank = i64::from(target.psum_bank_bytes);
    let crosses = tile.space == Space::Psum && !target.matmul_spans_banks && low ^ (high - 1) >= bank;
    checker
        .require(!crosses, Rule::Bank, || format!("touches PSUM bytes {low}..{high}, in more than one bank of {bank}"));
}
