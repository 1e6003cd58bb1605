//! Where the elements of a logical tensor lie, as affine pieces.
//!
//! A movement op (reshape, transpose, slice, expand, concat) costs nothing by itself: it rewrites
//! the map. Elements move only when a consumer needs them somewhere else, in one DMA per piece.

use ir::program::{DmaAccess, DmaDim, DmaPlace, HbmId, TileId};
use ir::types::{Shape, packed_strides};
use ir::{Dtype, graph::Layout};
use smallvec::SmallVec;

/// Partitions of SBUF and PSUM.
pub const N_PARTITIONS: usize = 128;

/// One dimension of a piece: moving one element along it moves by these steps.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    pub count: usize,
    pub partition_step: i64,
    /// In elements.
    pub step: i64,
}

/// Memory that a piece lies in.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Base {
    Hbm(HbmId),
    Tile(TileId),
}

/// A box of the logical tensor whose elements lie at affine places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First coordinate of the box, by dimension.
    pub start: Shape,
    pub base: Base,
    pub partition: i64,
    /// In elements.
    pub offset: i64,
    /// One per dimension of the tensor; the counts are the extents of the box.
    pub axes: SmallVec<[Axis; 6]>,
}

/// Where a logical tensor lies. The pieces are disjoint boxes that cover it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    pub shape: Shape,
    /// Element type as stored; exact widening casts share their operand's storage.
    pub dtype: Dtype,
    pub pieces: Vec<Piece>,
}

impl Piece {
    /// Extents of the box, by dimension.
    pub fn extents(&self) -> SmallVec<[usize; 6]> {
        self.axes.iter().map(|axis| axis.count).collect()
    }

    /// True where both put every element of their equal boxes at the same place.
    pub fn is_same_place(&self, other: &Piece) -> bool {
        let same_axis = |one: &Axis, other: &Axis| one == other || (one.count == 1 && other.count == 1);
        (self.base, self.partition, self.offset) == (other.base, other.partition, other.offset)
            && self.axes.len() == other.axes.len()
            && self.axes.iter().zip(&other.axes).all(|(one, other)| same_axis(one, other))
    }
}

impl Map {
    /// A tensor in HBM with these steps in elements.
    pub fn hbm(tensor: HbmId, dtype: Dtype, shape: &[usize], strides: &[i64]) -> Map {
        let axes = shape.iter().zip(strides).map(|(&count, &step)| Axis { count, partition_step: 0, step }).collect();
        let start = SmallVec::from_elem(0, shape.len());
        let piece = Piece { start, base: Base::Hbm(tensor), partition: 0, offset: 0, axes };
        Map { shape: Shape::from_slice(shape), dtype, pieces: vec![piece] }
    }

    /// A tensor packed row-major in HBM.
    pub fn hbm_packed(tensor: HbmId, dtype: Dtype, shape: &[usize]) -> Map {
        let strides: SmallVec<[i64; 6]> = packed_strides(shape).iter().map(|&step| step as i64).collect();
        Map::hbm(tensor, dtype, shape, &strides)
    }

    /// A tensor in SBUF tiles: `tiles[block * n_segments + segment]` holds rows 128 * block and on of
    /// outer indices `outer_per_tile * segment` and on.
    pub fn tiles(shape: &[usize], layout: Layout, outer_per_tile: usize, dtype: Dtype, tiles: &[TileId]) -> Map {
        let grid = Grid::new(shape, layout, outer_per_tile);
        let pieces = tiles.iter().enumerate().flat_map(|(position, &tile)| {
            let (block, segment) = (position / grid.n_segments(), position % grid.n_segments());
            tile_pieces(shape, &grid, block, segment, tile)
        });
        Map { shape: Shape::from_slice(shape), dtype, pieces: pieces.collect() }
    }

    /// The map after permuting dimensions: new dimension i is old dimension `perm[i]`.
    pub fn transpose(&self, perm: &[usize]) -> Map {
        let permuted = |dims: &[usize]| -> Shape { perm.iter().map(|&axis| dims[axis]).collect() };
        let pieces = self.pieces.iter().map(|piece| Piece {
            start: permuted(&piece.start),
            axes: perm.iter().map(|&axis| piece.axes[axis]).collect(),
            ..piece.clone()
        });
        Map { shape: permuted(&self.shape), dtype: self.dtype, pieces: pieces.collect() }
    }

    /// The map of every `step`-th element of `start..end` along an axis.
    pub fn slice(&self, axis: usize, start: usize, end: usize, step: usize) -> Map {
        let count = end.saturating_sub(start).div_ceil(step);
        let mut shape = self.shape.clone();
        shape[axis] = count;
        let mut pieces = Vec::new();
        for piece in &self.pieces {
            let (low, high) = (piece.start[axis], piece.start[axis] + piece.axes[axis].count);
            // First and one past the last taken index inside the piece.
            let first = low.saturating_sub(start).div_ceil(step);
            let last = high.saturating_sub(start).div_ceil(step).min(count);
            if first >= last {
                continue;
            }
            let mut cut = piece.clone();
            let skipped = (start + first * step - low) as i64;
            cut.offset += skipped * piece.axes[axis].step;
            cut.partition += skipped * piece.axes[axis].partition_step;
            cut.start[axis] = first;
            cut.axes[axis] = Axis {
                count: last - first,
                partition_step: piece.axes[axis].partition_step * step as i64,
                step: piece.axes[axis].step * step as i64,
            };
            pieces.push(cut);
        }
        Map { shape, dtype: self.dtype, pieces }
    }

    /// The map broadcast to `shape`, right-aligned.
    pub fn expand(&self, shape: &[usize]) -> Map {
        let missing = shape.len() - self.shape.len();
        let pieces = self.pieces.iter().map(|piece| {
            let mut start: Shape = SmallVec::from_elem(0, missing);
            start.extend(piece.start.iter().copied());
            let repeated = |count| Axis { count, partition_step: 0, step: 0 };
            let mut axes: SmallVec<[Axis; 6]> = shape[..missing].iter().map(|&count| repeated(count)).collect();
            for ((axis, &from), &to) in piece.axes.iter().zip(&self.shape).zip(&shape[missing..]) {
                axes.push(if from == 1 { repeated(to) } else { *axis });
            }
            Piece { start, axes, ..piece.clone() }
        });
        Map { shape: Shape::from_slice(shape), dtype: self.dtype, pieces: pieces.collect() }
    }

    /// The map with another shape of as many elements; `None` where it would not be affine.
    pub fn reshape(&self, shape: &[usize]) -> Option<Map> {
        if self.shape.as_slice() == shape {
            return Some(self.clone());
        }
        if self.shape.contains(&0) {
            return Some(Map { shape: Shape::from_slice(shape), dtype: self.dtype, pieces: Vec::new() });
        }
        let groups = aligned_groups(&self.shape, shape);
        let mut pieces = Vec::new();
        for piece in &self.pieces {
            let mut start = Shape::new();
            let mut axes: SmallVec<[Axis; 6]> = SmallVec::new();
            for (old, new) in &groups {
                regroup(piece, &self.shape, old.clone(), &shape[new.clone()], &mut start, &mut axes)?;
            }
            pieces.push(Piece { start, axes, ..piece.clone() });
        }
        Some(Map { shape: Shape::from_slice(shape), dtype: self.dtype, pieces })
    }

    /// The maps of several tensors joined along an axis.
    pub fn concat(maps: &[Map], axis: usize) -> Map {
        let mut joined = maps[0].clone();
        joined.pieces.clear();
        joined.shape[axis] = 0;
        for map in maps {
            for piece in &map.pieces {
                let mut piece = piece.clone();
                piece.start[axis] += joined.shape[axis];
                joined.pieces.push(piece);
            }
            joined.shape[axis] += map.shape[axis];
        }
        joined
    }

    /// The tiles that hold elements.
    pub fn tiles_read(&self) -> impl Iterator<Item = TileId> + '_ {
        self.pieces.iter().filter_map(|piece| match piece.base {
            Base::Tile(tile) => Some(tile),
            Base::Hbm(_) => None,
        })
    }

    /// True when every piece lies in HBM.
    pub fn is_hbm(&self) -> bool {
        self.pieces.iter().all(|piece| matches!(piece.base, Base::Hbm(_)))
    }

    /// The part of a box that lies in each piece, as (box-relative start, piece cut to the part).
    pub fn cut(&self, start: &[usize], extents: &[usize]) -> Vec<Piece> {
        let mut parts = Vec::new();
        'pieces: for piece in &self.pieces {
            let mut part = piece.clone();
            for axis in 0..self.shape.len() {
                let low = start[axis].max(piece.start[axis]);
                let high = (start[axis] + extents[axis]).min(piece.start[axis] + piece.axes[axis].count);
                if low >= high {
                    continue 'pieces;
                }
                let skipped = (low - piece.start[axis]) as i64;
                part.offset += skipped * piece.axes[axis].step;
                part.partition += skipped * piece.axes[axis].partition_step;
                part.start[axis] = low;
                part.axes[axis].count = high - low;
            }
            parts.push(part);
        }
        parts
    }
}

impl Piece {
    /// The piece as one side of a DMA, with neighbouring dimensions merged; may have more than four
    /// dimensions.
    pub fn access(&self, dtype: Dtype) -> DmaAccess {
        let mut access = self.access_by_axis(dtype);
        let mut dims: SmallVec<[DmaDim; 4]> = SmallVec::new();
        for dim in access.dims.into_iter().filter(|dim| dim.count != 1) {
            match dims.last_mut() {
                Some(outer) if merges(outer, &dim) => {
                    *outer = DmaDim { count: outer.count * dim.count, ..dim };
                }
                Some(_) | None => dims.push(dim),
            }
        }
        access.dims = dims;
        access
    }

    /// The box as one side of a transfer with a dimension for every axis.
    pub fn access_by_axis(&self, dtype: Dtype) -> DmaAccess {
        let place = match self.base {
            Base::Hbm(tensor) => DmaPlace::Hbm { tensor },
            Base::Tile(tile) => DmaPlace::Tile { tile, partition: self.partition as u8 },
        };
        let dim = |axis: &Axis| DmaDim {
            partition_step: axis.partition_step as i16,
            step: axis.step,
            count: axis.count as u32,
        };
        let dims = self.axes.iter().map(dim).collect();
        DmaAccess { place, offset: self.offset as u64, dims, dtype }
    }
}

/// How a tensor is cut into tiles: blocks of 128 rows by segments of outer indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    pub layout: Layout,
    pub n_outer: usize,
    pub n_rows: usize,
    pub n_free: usize,
    pub outer_per_tile: usize,
}

impl Grid {
    /// The grid of a shape under a layout.
    pub fn new(shape: &[usize], layout: Layout, outer_per_tile: usize) -> Grid {
        let (n_outer, n_rows, n_free) = layout.extents(shape);
        Grid { layout, n_outer, n_rows, n_free, outer_per_tile: outer_per_tile.clamp(1, n_outer.max(1)) }
    }

    /// Tiles along the rows.
    pub fn n_blocks(&self) -> usize {
        self.n_rows.div_ceil(N_PARTITIONS)
    }

    /// Tiles along the outer indices.
    pub fn n_segments(&self) -> usize {
        self.n_outer.div_ceil(self.outer_per_tile)
    }

    /// Rows of a block.
    pub fn rows(&self, block: usize) -> std::ops::Range<usize> {
        block * N_PARTITIONS..self.n_rows.min((block + 1) * N_PARTITIONS)
    }

    /// Outer indices of a segment.
    pub fn outer(&self, segment: usize) -> std::ops::Range<usize> {
        segment * self.outer_per_tile..self.n_outer.min((segment + 1) * self.outer_per_tile)
    }
}

/// The boxes of a tensor that one tile of its grid holds.
pub fn tile_pieces(shape: &[usize], grid: &Grid, block: usize, segment: usize, tile: TileId) -> Vec<Piece> {
    let split = usize::from(grid.layout.n_outer);
    let rows_end = split + usize::from(grid.layout.n_partition);
    let free_strides = packed_strides(&shape[rows_end..]);
    let outer_strides = packed_strides(&shape[..split]);
    let row_strides = packed_strides(&shape[split..rows_end]);
    let (rows, outer) = (grid.rows(block), grid.outer(segment));
    let axis = |count, partition_step: usize, step: usize| Axis {
        count,
        partition_step: partition_step as i64,
        step: step as i64,
    };
    let mut pieces = Vec::new();
    for (outer_start, outer_extents) in boxes(&shape[..split], outer.clone()) {
        for (row_start, row_extents) in boxes(&shape[split..rows_end], rows.clone()) {
            let first_outer = flat(&outer_start, &outer_strides) - outer.start;
            let first_row = flat(&row_start, &row_strides) - rows.start;
            let mut axes: SmallVec<[Axis; 6]> = SmallVec::new();
            let outer_axes = outer_extents.iter().zip(&outer_strides);
            axes.extend(outer_axes.map(|(&count, &stride)| axis(count, 0, stride * grid.n_free)));
            axes.extend(row_extents.iter().zip(&row_strides).map(|(&count, &stride)| axis(count, stride, 0)));
            axes.extend(shape[rows_end..].iter().zip(&free_strides).map(|(&count, &stride)| axis(count, 0, stride)));
            let mut start = outer_start.clone();
            start.extend(row_start);
            start.resize(shape.len(), 0);
            let offset = (first_outer * grid.n_free) as i64;
            pieces.push(Piece { start, base: Base::Tile(tile), partition: first_row as i64, offset, axes });
        }
    }
    pieces
}

fn merges(outer: &DmaDim, inner: &DmaDim) -> bool {
    let count = i64::from(inner.count);
    outer.step == inner.step * count && i64::from(outer.partition_step) == i64::from(inner.partition_step) * count
}

fn flat(index: &[usize], strides: &[usize]) -> usize {
    index.iter().zip(strides).map(|(&coordinate, &stride)| coordinate * stride).sum()
}

/// A range of row-major positions of `shape` as boxes (start, extents), in order.
pub fn boxes(shape: &[usize], range: std::ops::Range<usize>) -> Vec<(Shape, Shape)> {
    if range.is_empty() {
        return Vec::new();
    }
    let Some((&first, rest)) = shape.split_first() else { return vec![(Shape::new(), Shape::new())] };
    let inner: usize = rest.iter().product();
    let whole = range.start.div_ceil(inner)..range.end / inner;
    let mut found = Vec::new();
    let prepend = |index: usize, count: usize, (start, extents): (Shape, Shape)| {
        let mut full_start: Shape = SmallVec::from_slice(&[index]);
        full_start.extend(start);
        let mut full_extents: Shape = SmallVec::from_slice(&[count]);
        full_extents.extend(extents);
        (full_start, full_extents)
    };
    debug_assert!(range.end <= first * inner);
    if whole.start > whole.end || (whole.is_empty() && range.start / inner == (range.end - 1) / inner) {
        let index = range.start / inner;
        let local = range.start - index * inner..range.end - index * inner;
        return boxes(rest, local).into_iter().map(|part| prepend(index, 1, part)).collect();
    }
    if range.start < whole.start * inner {
        let index = whole.start - 1;
        let parts = boxes(rest, range.start - index * inner..inner);
        found.extend(parts.into_iter().map(|part| prepend(index, 1, part)));
    }
    if !whole.is_empty() {
        let start = SmallVec::from_elem(0, rest.len());
        found.push(prepend(whole.start, whole.len(), (start, Shape::from_slice(rest))));
    }
    if range.end > whole.end * inner {
        let parts = boxes(rest, 0..range.end - whole.end * inner);
        found.extend(parts.into_iter().map(|part| prepend(whole.end, 1, part)));
    }
    found
}

type DimRange = std::ops::Range<usize>;

/// The finest grouping of dimensions such that each old group has as many elements as its new one.
fn aligned_groups(old: &[usize], new: &[usize]) -> Vec<(DimRange, DimRange)> {
    let mut groups = Vec::new();
    let (mut old_at, mut new_at) = (0, 0);
    while old_at < old.len() || new_at < new.len() {
        let (old_start, new_start) = (old_at, new_at);
        let (mut old_count, mut new_count) = (1usize, 1usize);
        if old_at < old.len() {
            old_count = old[old_at];
            old_at += 1;
        }
        if new_at < new.len() {
            new_count = new[new_at];
            new_at += 1;
        }
        while old_count != new_count {
            if old_count < new_count {
                old_count *= old[old_at];
                old_at += 1;
            } else {
                new_count *= new[new_at];
                new_at += 1;
            }
        }
        groups.push((old_start..old_at, new_start..new_at));
    }
    groups
}

/// Appends the new dimensions of one group to a piece; `None` where they are not affine.
fn regroup(
    piece: &Piece,
    old_shape: &[usize],
    old: DimRange,
    new: &[usize],
    start: &mut Shape,
    axes: &mut SmallVec<[Axis; 6]>,
) -> Option<()> {
    let same = old.len() == new.len() && old_shape[old.clone()] == *new;
    if same {
        start.extend(piece.start[old.clone()].iter().copied());
        axes.extend(piece.axes[old].iter().copied());
        return Some(());
    }
    // The group as one axis: dimensions of size 1 vanish, the others must be nested.
    let mut merged: Option<(Axis, usize)> = None;
    for axis in old.clone() {
        if old_shape[axis] == 1 {
            continue;
        }
        let this = piece.axes[axis];
        merged = Some(match merged {
            None => (this, piece.start[axis]),
            Some((outer, first)) if outer.count == 1 => (this, first * old_shape[axis] + piece.start[axis]),
            Some((outer, first)) => {
                let count = old_shape[axis] as i64;
                let whole = this.count == old_shape[axis];
                if !whole || outer.step != this.step * count || outer.partition_step != this.partition_step * count {
                    return regroup_splitting(piece, old_shape, old, new, start, axes);
                }
                (Axis { count: outer.count * this.count, ..this }, first * old_shape[axis])
            }
        });
    }
    let (merged, first) = merged.unwrap_or((Axis { count: 1, partition_step: 0, step: 0 }, 0));
    split_axis(merged, first, new, start, axes)
}

/// Cuts one axis covering `first..first + count` of a group into the group's new dimensions.
fn split_axis(
    merged: Axis,
    first: usize,
    new: &[usize],
    start: &mut Shape,
    axes: &mut SmallVec<[Axis; 6]>,
) -> Option<()> {
    let found = boxes(new, first..first + merged.count);
    let [(box_start, box_extents)] = found.as_slice() else { return None };
    let strides = packed_strides(new);
    for ((&count, &stride), &at) in box_extents.iter().zip(&strides).zip(box_start) {
        start.push(at);
        axes.push(Axis {
            count,
            partition_step: merged.partition_step * stride as i64,
            step: merged.step * stride as i64,
        });
    }
    Some(())
}

/// A group whose dimensions are not nested: works where the new dimensions are only further cuts of
/// the old ones.
fn regroup_splitting(
    piece: &Piece,
    old_shape: &[usize],
    old: DimRange,
    new: &[usize],
    start: &mut Shape,
    axes: &mut SmallVec<[Axis; 6]>,
) -> Option<()> {
    // Dimensions of size 1 do not matter; compare what is left.
    let mut rest = new;
    for axis in old {
        if old_shape[axis] == 1 {
            continue;
        }
        let mut count = 1;
        let mut taken = 0;
        while count != old_shape[axis] || (taken < rest.len() && rest[taken] == 1) {
            count *= rest.get(taken)?;
            taken += 1;
            if count > old_shape[axis] {
                return None;
            }
        }
        split_axis(piece.axes[axis], piece.start[axis], &rest[..taken], start, axes)?;
        rest = &rest[taken..];
    }
    for _ in rest {
        start.push(0);
        axes.push(Axis { count: 1, partition_step: 0, step: 0 });
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::{Base, Layout, Map, boxes};
    use ir::Dtype;
    use ir::program::{HbmId, TileId};

    /// Places of all elements in row-major order.
    fn places(map: &Map) -> Vec<(u32, i64, i64)> {
        let n_elements: usize = map.shape.iter().product();
        let strides = ir::types::packed_strides(&map.shape);
        let mut found = vec![None; n_elements];
        for piece in &map.pieces {
            let extents: Vec<usize> = piece.axes.iter().map(|axis| axis.count).collect();
            for position in 0..extents.iter().product() {
                let (mut rest, mut at, mut partition, mut offset) = (position, 0, piece.partition, piece.offset);
                for axis in (0..extents.len()).rev() {
                    let coordinate = rest % extents[axis];
                    rest /= extents[axis];
                    at += (piece.start[axis] + coordinate) * strides[axis];
                    partition += coordinate as i64 * piece.axes[axis].partition_step;
                    offset += coordinate as i64 * piece.axes[axis].step;
                }
                let base = match piece.base {
                    Base::Hbm(tensor) => tensor.0,
                    Base::Tile(tile) => tile.0,
                };
                assert!(found[at].is_none(), "pieces overlap at element {at}");
                found[at] = Some((base, partition, offset));
            }
        }
        found.into_iter().map(|place| place.expect("pieces cover the tensor")).collect()
    }

    #[test]
    fn boxes_cover_a_range_in_order() {
        for shape in [vec![6], vec![3, 4], vec![2, 3, 5], vec![2, 1, 4], vec![]] {
            let n_elements: usize = shape.iter().product();
            let strides = ir::types::packed_strides(&shape);
            for low in 0..n_elements {
                for high in low + 1..=n_elements {
                    let mut seen = Vec::new();
                    for (start, extents) in boxes(&shape, low..high) {
                        for position in 0..extents.iter().product::<usize>() {
                            let (mut rest, mut at) = (position, 0);
                            for axis in (0..shape.len()).rev() {
                                at += (start[axis] + rest % extents[axis]) * strides[axis];
                                rest /= extents[axis];
                            }
                            seen.push(at);
                        }
                    }
                    assert_eq!(seen, (low..high).collect::<Vec<_>>(), "{shape:?} {low}..{high}");
                }
            }
        }
    }

    #[test]
    fn tiles_split_rows_by_128_across_dimensions() {
        let map =
            Map::tiles(&[2, 100, 3], Layout { n_outer: 0, n_partition: 2 }, 1, Dtype::F32, &[TileId(0), TileId(1)]);
        let places = places(&map);
        assert_eq!(places[0], (0, 0, 0));
        assert_eq!(places[127 * 3 + 2], (0, 127, 2));
        assert_eq!(places[128 * 3], (1, 0, 0));
        assert_eq!(places[199 * 3 + 1], (1, 71, 1));
    }

    #[test]
    fn outer_dimensions_lie_on_the_free_axis() {
        let map = Map::tiles(&[2, 3, 4], Layout { n_outer: 1, n_partition: 1 }, 2, Dtype::F32, &[TileId(7)]);
        assert_eq!(places(&map)[12 + 4 + 3], (7, 1, 7));
    }

    #[test]
    fn movement_keeps_every_element() {
        let map = Map::hbm_packed(HbmId(0), Dtype::F32, &[2, 6, 4]);
        let split = map.reshape(&[2, 2, 3, 4]).expect("splits an axis");
        assert_eq!(places(&split), places(&map));
        let moved = split.transpose(&[0, 2, 1, 3]);
        assert_eq!(places(&moved)[4].2, 12);
        assert!(moved.reshape(&[2, 6, 4]).is_none(), "not affine after the transpose");
        let back = moved.transpose(&[0, 2, 1, 3]).reshape(&[12, 4]).expect("nested again");
        assert_eq!(places(&back), places(&map));
        let odd = map.slice(1, 1, 6, 2);
        assert_eq!(places(&odd).iter().map(|place| place.2).take(5).collect::<Vec<_>>(), [4, 5, 6, 7, 12]);
        let joined = Map::concat(&[map.slice(1, 0, 2, 1), map.slice(1, 2, 6, 1)], 1);
        assert_eq!(places(&joined), places(&map));
        let repeated = map.slice(1, 0, 1, 1).expand(&[3, 2, 2, 4]);
        assert_eq!(places(&repeated)[4].2, 0);
    }
}
