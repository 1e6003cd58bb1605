//! Rules of transfers.

use super::{Checker, Rule};
use crate::program::{DmaAccess, DmaPlace, DmaQueue, Engine, Gather, Space};
use crate::types::Dtype;

/// One transfer moves no more than this; larger counts are no program's but a damaged file's.
const MOST_ELEMENTS: u128 = 1 << 30;

pub(super) fn check_transfer(
    checker: &mut Checker<'_>,
    engine: Engine,
    dst: &DmaAccess,
    src: &DmaAccess,
    queue: DmaQueue,
    gather: Option<&Gather>,
) {
    check_queue(checker, engine, dst, src, queue, gather);
    if queue == DmaQueue::HardwareTranspose {
        check_turning(checker, dst, src);
    }
    let scatters = Gather::scatters(src);
    check_side(checker, dst, gather.filter(|_| scatters));
    check_side(checker, src, gather.filter(|_| !scatters));
    let (written, read) = (n_elements(dst), n_elements(src));
    checker.require(written == read, Rule::Shape, || format!("writes {written} elements but reads {read}"));
    if let Some(gather) = gather {
        check_gather(checker, if scatters { dst } else { src }, gather);
    }
}

fn check_queue(
    checker: &mut Checker<'_>,
    engine: Engine,
    dst: &DmaAccess,
    src: &DmaAccess,
    queue: DmaQueue,
    gather: Option<&Gather>,
) {
    let target = checker.target;
    let engine_fits = match queue {
        DmaQueue::Hardware => target.hardware_dge && matches!(engine, Engine::Sp | Engine::Act),
        DmaQueue::HardwareTranspose => target.dma_transpose && matches!(engine, Engine::Sp | Engine::Act),
        DmaQueue::Software => engine == Engine::Pool,
        DmaQueue::Ring => true,
    };
    checker.require(engine_fits, Rule::Queue, || {
        format!("uses a {queue:?} queue from {} on {}", engine.name(), target.name)
    });
    let casts = dst.dtype != src.dtype;
    let hardware = matches!(queue, DmaQueue::Hardware | DmaQueue::HardwareTranspose);
    checker.require(!casts || !hardware, Rule::Queue, || {
        format!("casts {} to {} on a hardware queue", src.dtype, dst.dtype)
    });
    checker.require(gather.is_none() || queue == DmaQueue::Software, Rule::Queue, || {
        format!("gathers on a {queue:?} queue")
    });
}

/// A turning transfer writes [columns, blocks, rows] of 2-byte elements with the columns on partitions and
/// reads [blocks, rows, columns] with the columns in a row; its rows come in whole blocks
/// (machine-model.md 3.7, `dma_transpose`).
fn check_turning(checker: &mut Checker<'_>, dst: &DmaAccess, src: &DmaAccess) {
    let target = checker.target;
    checker.require(dst.dtype.size_bytes() == 2, Rule::Type, || format!("turns {}; only 2-byte types turn", dst.dtype));
    checker.require(matches!(dst.place, DmaPlace::Tile { .. }), Rule::Memory, || "turns into HBM");
    let counts = |side: &DmaAccess| side.dims.iter().map(|dim| dim.count).collect::<Vec<_>>();
    let (&[.., rows, columns], &[.., read_rows, read_columns]) = (&dst.dims[..], &src.dims[..]) else {
        checker.broken(Rule::Shape, "turns fewer than two dimensions".to_owned());
        return;
    };
    let equal = counts(dst) == counts(src) && dst.dims.len() <= 3;
    checker.require(equal, Rule::Shape, || {
        format!("turns {:?} to {:?}; both are [blocks, rows, columns]", counts(src), counts(dst))
    });
    let others_stay = dst.dims[..dst.dims.len() - 1].iter().all(|dim| dim.partition_step == 0);
    let turns = columns.partition_step == 1 && columns.step == 0 && rows.step == 1 && others_stay;
    let reads_rows = read_columns.step == 1 && read_columns.partition_step == 0;
    checker.require(turns && reads_rows, Rule::Shape, || "does not turn rows of the source into partitions");
    let block = target.dma_transpose_rows;
    let fits = rows.count.is_multiple_of(block) && columns.count <= target.partitions && read_rows.count == rows.count;
    checker.require(fits, Rule::Shape, || {
        format!(
            "turns {} rows of {} elements; they are a multiple of {block} rows and at most {} elements",
            rows.count, columns.count, target.partitions
        )
    });
    let bytes = dst.dtype.size_bytes() as u64;
    let start = match dst.place {
        DmaPlace::Tile { tile, .. } => checker.tiles.get(tile.index()).and_then(|tile| tile.address),
        DmaPlace::Hbm { .. } => None,
    };
    let steps = dst.dims[..dst.dims.len() - 2].iter().map(|dim| dim.step.unsigned_abs());
    let places = steps.chain([dst.offset]).map(|elements| elements * bytes);
    let alignment = u64::from(target.dma_transpose_alignment_bytes);
    let aligned =
        places.chain(start.map(|address| u64::from(address.start_byte))).all(|at| at.is_multiple_of(alignment));
    checker.require(aligned, Rule::Alignment, || format!("turns to bytes that are no multiple of {alignment}"));
}

fn check_side(checker: &mut Checker<'_>, side: &DmaAccess, gather: Option<&Gather>) {
    let wide = matches!(side.dtype, Dtype::F64 | Dtype::I64);
    checker.require(!wide, Rule::Type, || format!("moves {}; 64-bit elements move as two 32-bit words", side.dtype));
    let has_extent = side.dims.len() <= 4 && n_elements(side) > 0 && n_elements(side) <= MOST_ELEMENTS;
    checker.require(has_extent, Rule::Extent, || {
        format!("has the dimensions {:?}; at most four and {MOST_ELEMENTS} elements, none empty", side.dims)
    });
    match side.place {
        DmaPlace::Hbm { .. } => check_hbm_side(checker, side, gather),
        DmaPlace::Tile { .. } => check_tile_side(checker, side),
    }
}

/// Elements of one side; wider than any count that a hostile file can hold.
fn n_elements(side: &DmaAccess) -> u128 {
    side.dims.iter().map(|dim| u128::from(dim.count)).product()
}

/// Lowest and highest value of `offset + sum of index * step`.
fn extent(offset: i128, steps: impl Iterator<Item = (i128, u32)>) -> (i128, i128) {
    steps.fold((offset, offset), |(low, high), (step, count)| {
        let span = step * (i128::from(count) - 1);
        (low + span.min(0), high + span.max(0))
    })
}

fn check_hbm_side(checker: &mut Checker<'_>, side: &DmaAccess, gather: Option<&Gather>) {
    let Some(id) = side.hbm() else { return };
    let Some(tensor) = checker.tensors.get(id.index()) else {
        checker.broken(Rule::Extent, format!("names HBM tensor {} of {}", id.0, checker.tensors.len()));
        return;
    };
    let (name, size) = (&tensor.name, i128::from(tensor.size_bytes));
    let steps_partitions = side.dims.iter().any(|dim| dim.partition_step != 0);
    checker.require(!steps_partitions, Rule::Extent, || "steps over partitions in HBM");
    let skipped = usize::from(gather.is_some()).min(side.dims.len());
    let steps = side.dims[skipped..].iter().map(|dim| (i128::from(dim.step), dim.count));
    let (low, mut high) = extent(i128::from(side.offset), steps);
    if let Some(gather) = gather {
        high += i128::from(gather.n_rows.max(1) - 1) * i128::from(gather.row_elements);
    }
    let bytes = side.dtype.size_bytes() as i128;
    checker.require(low >= 0 && (high + 1) * bytes <= size, Rule::Extent, || {
        format!("touches bytes {}..{} of `{name}`, which has {size}", low * bytes, (high + 1) * bytes)
    });
}

fn check_tile_side(checker: &mut Checker<'_>, side: &DmaAccess) {
    let DmaPlace::Tile { tile: id, partition } = side.place else { return };
    let Some(tile) = checker.tiles.get(id.index()) else {
        checker.broken(Rule::Extent, format!("names tile {} of {}", id.0, checker.tiles.len()));
        return;
    };
    checker.require(tile.space == Space::Sbuf, Rule::Memory, || "moves data of PSUM, which DMA engines cannot reach");
    let partition_steps = side.dims.iter().map(|dim| (i128::from(dim.partition_step), dim.count));
    let (first, last) = extent(i128::from(partition), partition_steps);
    checker.require(first >= 0 && last < i128::from(tile.n_partitions), Rule::Partitions, || {
        format!("touches partitions {first}..{} of a tile with {}", last + 1, tile.n_partitions)
    });
    let (low, high) = extent(i128::from(side.offset), side.dims.iter().map(|dim| (i128::from(dim.step), dim.count)));
    let bytes = side.dtype.size_bytes() as i128;
    let limit = i128::from(tile.bytes_per_partition);
    checker.require(low >= 0 && (high + 1) * bytes <= limit, Rule::Extent, || {
        format!("touches bytes {}..{} of a tile with {limit} bytes per partition", low * bytes, (high + 1) * bytes)
    });
    if let Some(address) = tile.address {
        let start = i64::from(address.start_byte);
        checker.require(start % bytes as i64 == 0, Rule::Alignment, || format!("moves {} at byte {start}", side.dtype));
    }
}

fn check_gather(checker: &mut Checker<'_>, indexed: &DmaAccess, gather: &Gather) {
    let index = &gather.index;
    checker.require(indexed.hbm().is_some(), Rule::Memory, || "has row indices and no side in HBM");
    let rows = indexed.dims.first().map_or(0, |dim| dim.count);
    let fits = index.n_elements() == 1 && u32::from(index.n_partitions) == rows;
    checker.require(fits, Rule::Shape, || {
        format!("moves {rows} rows with {} indices on {} partitions", index.n_elements(), index.n_partitions)
    });
    checker.require(index.dtype == Dtype::I32, Rule::Type, || format!("takes {} indices; they are i32", index.dtype));
    let in_sbuf = !checker.in_psum(index);
    checker.require(in_sbuf, Rule::Memory, || "reads its indices from PSUM");
    checker.require(gather.n_rows > 0, Rule::Shape, || "has indices into no rows");
}
