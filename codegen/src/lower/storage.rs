//! Where values lie while a graph is lowered, and how operands get to where instructions want them.
//!
//! A value is a splat scalar, a grid of SBUF tiles, or a map. An operand request names the frame
//! (shape, layout) of the instruction; the answer is a view of an existing tile where the value
//! already lies that way, else of a new tile that DMAs fill.

use std::collections::BTreeMap;

use ir::graph::Layout;
use ir::program::{
    Dim, DmaAccess, DmaDim, DmaQueue, Engine, HbmId, HbmKind, HbmTensor, Instruction, InstructionKind, Space, Tile,
    TileId, TileView,
};
use ir::types::Shape;
use ir::{Dtype, ValueId};
use smallvec::SmallVec;

use super::Lowerer;
use crate::map::{Axis, Base, Grid, Map, Piece, boxes, tile_pieces};

/// Free dimensions that an access pattern can have.
const MAX_DIMS: usize = 4;

/// A value as a grid of tiles.
#[derive(Clone, Debug)]
pub(super) struct TileSet {
    pub shape: Shape,
    pub grid: Grid,
    /// As stored; a 64-bit integer is stored as 32 bits.
    pub dtype: Dtype,
    /// By block, then segment.
    pub tiles: Vec<TileId>,
}

impl TileSet {
    pub(super) fn map(&self) -> Map {
        Map::tiles(&self.shape, self.grid.layout, self.grid.outer_per_tile, self.dtype, &self.tiles)
    }
}

/// Where a value lies.
#[derive(Clone, Debug)]
pub(super) enum Storage {
    /// Every element is this number; an immediate wherever an instruction takes one.
    Splat(f64),
    Tiles(TileSet),
    Map(Map),
}

/// The iteration space of a row-wise instruction and the tile of it that is being emitted.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// Where a chunk is set, its length stands for the last dimension.
    pub shape: Shape,
    pub grid: Grid,
    pub block: usize,
    pub segment: usize,
    pub chunk: Option<Chunk>,
}

/// A part of rows that are too long for one tile.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Chunk {
    pub start: usize,
    pub length: usize,
    pub row_length: usize,
}

impl Frame {
    pub(super) fn n_partitions(&self) -> u8 {
        self.grid.rows(self.block).len() as u8
    }

    /// Outer indices in this tile.
    pub(super) fn n_outer(&self) -> usize {
        self.grid.outer(self.segment).len()
    }

    pub(super) fn rows_end(&self) -> usize {
        usize::from(self.grid.layout.n_outer + self.grid.layout.n_partition)
    }
}

/// An operand as an instruction takes it.
#[derive(Clone, Debug)]
pub(super) enum Operand {
    Immediate(f32),
    /// One element per partition for the whole frame tile.
    Vector(TileView),
    /// As many elements as the frame tile has.
    Full(TileView),
}

/// Identifies a filled operand tile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FilledKey {
    value: ValueId,
    dtype: Dtype,
    shape: Shape,
    layout: (u8, u8),
    outer_per_tile: usize,
    block: usize,
    segment: usize,
    chunk: Option<Chunk>,
}

impl FilledKey {
    /// True for a tile that holds only a part of its rows.
    pub(super) fn is_chunk(&self) -> bool {
        self.chunk.is_some()
    }
}

pub(super) type FilledTiles = BTreeMap<FilledKey, TileId>;

/// The element type in which a value is stored on chip.
pub(super) fn stored_dtype(dtype: Dtype) -> Dtype {
    if dtype == Dtype::I64 { Dtype::I32 } else { dtype }
}

impl Lowerer<'_> {
    /// The value whose storage this value shares.
    pub(super) fn root(&self, value: ValueId) -> ValueId {
        let mut root = value;
        while let Some(next) = self.alias[root.index()] {
            root = next;
        }
        root
    }

    pub(super) fn storage(&self, value: ValueId) -> &Storage {
        let root = self.root(value);
        self.storage[root.index()].as_ref().expect("operands are lowered before their users")
    }

    /// The map of a value; splats are written to a tile first.
    pub(super) fn map(&mut self, value: ValueId) -> Map {
        match self.storage(value).clone() {
            Storage::Tiles(set) => set.map(),
            Storage::Map(map) => map,
            Storage::Splat(number) => {
                let dtype = stored_dtype(self.graph.ty(value).dtype);
                let tile = self.splat_tile(number, dtype);
                let axes = SmallVec::new();
                let piece =
                    Piece { start: Shape::new(), base: crate::map::Base::Tile(tile), partition: 0, offset: 0, axes };
                let scalar = Map { shape: Shape::new(), dtype, pieces: vec![piece] };
                scalar.expand(&self.graph.ty(value).shape)
            }
        }
    }

    /// A tile of 128 partitions by one element that holds a number everywhere.
    pub(super) fn splat_tile(&mut self, number: f64, dtype: Dtype) -> TileId {
        let key = (number.to_bits(), dtype);
        if let Some(&tile) = self.splats.get(&key) {
            return tile;
        }
        let tile = self.new_tile("splat", Space::Sbuf, dtype, 128, 1);
        let exact = number.is_nan() || f64::from(number as f32) == number;
        if dtype.is_integer() && !exact {
            self.load_splat(tile, number as i64, dtype);
        } else {
            let dst = self.whole(tile);
            let engine = if dtype.is_integer() { Engine::Pool } else { Engine::Dve };
            self.emit(engine, InstructionKind::Memset { dst, value: number as f32 });
        }
        self.splats.insert(key, tile);
        tile
    }

    /// An integer that f32 does not hold comes from a constant instead of an immediate.
    fn load_splat(&mut self, tile: TileId, number: i64, dtype: Dtype) {
        let bytes = super::encode_integers(std::iter::once(number), dtype);
        let map = self.constant_map(bytes, dtype, &[1]).expand(&[128]);
        let axes = SmallVec::from_slice(&[Axis { count: 128, partition_step: 1, step: 0 }]);
        let dst = Piece { base: crate::map::Base::Tile(tile), partition: 0, offset: 0, axes, ..map.pieces[0].clone() };
        self.copy_piece(&dst, dtype, &map.pieces[0], dtype);
    }

    /// A per-partition vector of a number for as many partitions as the frame has.
    pub(super) fn splat_vector(&mut self, number: f64, dtype: Dtype, n_partitions: u8) -> TileView {
        let tile = self.splat_tile(number, dtype);
        TileView { tile, partition: 0, n_partitions, offset: 0, dims: SmallVec::new(), dtype }
    }

    pub(super) fn new_tile(
        &mut self,
        label: &str,
        space: Space,
        dtype: Dtype,
        n_partitions: u8,
        n_elements: usize,
    ) -> TileId {
        let tile = TileId(u32::try_from(self.program.tiles.len()).expect("fewer than 2^32 tiles"));
        let size = dtype.size_bytes();
        self.program.tiles.push(Tile {
            label: label.to_string(),
            space,
            dtype,
            n_partitions,
            bytes_per_partition: u32::try_from(n_elements * size).expect("a tile row is under 4 GiB"),
            alignment_bytes: self.target.tile_alignment_bytes.max(size as u32),
            address: None,
        });
        tile
    }

    /// A view of all elements of a tile.
    pub(super) fn whole(&self, tile: TileId) -> TileView {
        let info = self.program.tile(tile);
        let n_elements = info.bytes_per_partition as usize / info.dtype.size_bytes();
        view(tile, info.n_partitions, 0, contiguous(n_elements), info.dtype)
    }

    pub(super) fn emit(&mut self, engine: Engine, kind: InstructionKind) {
        if self.is_full() {
            return;
        }
        self.make_operands(&kind);
        let mut instruction = Instruction::new(engine, kind);
        instruction.locations = self.current_locations.clone();
        self.program.instructions.push(instruction);
    }

    pub(super) fn new_tensor(
        &mut self,
        name: String,
        kind: HbmKind,
        dtype: Dtype,
        shape: &[usize],
        size: u64,
    ) -> HbmId {
        let id = HbmId(u32::try_from(self.program.tensors.len()).expect("fewer than 2^32 tensors"));
        self.program.tensors.push(HbmTensor { name, kind, dtype, shape: Shape::from_slice(shape), size_bytes: size });
        id
    }

    /// The tile of a value for a frame, broadcast along partitions where the value is, in the
    /// element type `dtype`; with it the shape that it stores.
    pub(super) fn operand_tile(&mut self, value: ValueId, frame: &Frame, dtype: Option<Dtype>) -> (TileId, Shape) {
        let root = self.root(value);
        let stored = self.stored_shape(value, frame);
        let wanted = self.physical_dtype(value);
        let wanted = dtype.unwrap_or(wanted);
        let grid = Grid::new(&stored, frame.grid.layout, frame.grid.outer_per_tile);
        let segment = if grid.n_outer == frame.grid.n_outer { frame.segment } else { 0 };
        if let Storage::Tiles(set) = self.storage(value) {
            let same = (set.grid.n_outer, set.grid.n_rows, set.grid.n_free) == (grid.n_outer, grid.n_rows, grid.n_free);
            let n_elements: usize = set.shape.iter().product();
            let unbroadcast = n_elements == stored.iter().product::<usize>();
            if same && unbroadcast && set.grid.outer_per_tile == grid.outer_per_tile && set.dtype == wanted {
                let tile = set.tiles[frame.block * set.grid.n_segments() + segment];
                if tile != super::NOT_YET {
                    return (tile, stored);
                }
            }
        }
        let key = FilledKey {
            value: root,
            dtype: wanted,
            shape: stored.clone(),
            layout: (grid.layout.n_outer, grid.layout.n_partition),
            outer_per_tile: grid.outer_per_tile,
            block: frame.block,
            segment,
            chunk: frame.chunk,
        };
        if let Some(&tile) = self.filled.get(&key) {
            return (tile, stored);
        }
        let map = self.frame_map(value, frame);
        let tile = self.fill_from(&map, &stored, &grid, frame.block, segment, wanted);
        self.filled.insert(key, tile);
        (tile, stored)
    }

    /// Element type in which a value's elements lie.
    pub(super) fn physical_dtype(&self, value: ValueId) -> Dtype {
        match self.storage(value) {
            Storage::Splat(_) => stored_dtype(self.graph.ty(value).dtype),
            Storage::Tiles(set) => set.dtype,
            Storage::Map(map) => stored_dtype(map.dtype),
        }
    }

    /// The map of a value, cut to the frame's chunk where the value is as long as its rows.
    fn frame_map(&mut self, value: ValueId, frame: &Frame) -> Map {
        let map = self.map(value);
        match frame.chunk {
            Some(chunk) if map.shape.last() == Some(&chunk.row_length) => {
                map.slice(map.shape.len() - 1, chunk.start, chunk.start + chunk.length, 1)
            }
            Some(_) | None => map,
        }
    }

    /// A new tile with one block and segment of a map that broadcasts to `stored`, filled by DMA.
    pub(super) fn fill_from(
        &mut self,
        map: &Map,
        stored: &[usize],
        grid: &Grid,
        block: usize,
        segment: usize,
        wanted: Dtype,
    ) -> TileId {
        let map = map.expand(stored);
        let source_dtype = stored_dtype(map.dtype);
        let n_elements = grid.outer(segment).len() * grid.n_free;
        let n_partitions = grid.rows(block).len() as u8;
        let label = if map.is_hbm() { "load" } else { "move" };
        let tile = self.new_tile(label, Space::Sbuf, source_dtype, n_partitions, n_elements);
        for dst in tile_pieces(stored, grid, block, segment, tile) {
            let extents: Shape = dst.axes.iter().map(|axis| axis.count).collect();
            for src in map.cut(&dst.start, &extents) {
                let part = restrict(&dst, &src);
                if !self.copy_in_place(&part, &src, source_dtype) {
                    self.copy_piece(&part, source_dtype, &src, map.dtype);
                }
            }
        }
        if source_dtype == wanted {
            return tile;
        }
        let converted = self.new_tile("convert", Space::Sbuf, wanted, n_partitions, n_elements);
        let (dst, src) = (self.whole(converted), self.whole(tile));
        self.emit(Engine::Dve, InstructionKind::TensorCopy { dst, src });
        converted
    }

    /// Copies a box between tiles by an engine, where every element stays on its partition.
    fn copy_in_place(&mut self, dst: &Piece, src: &Piece, dtype: Dtype) -> bool {
        let (Some(to), Some(from)) = (partition_view(dst, dtype), partition_view(src, dtype)) else { return false };
        if (to.partition, to.n_partitions) != (from.partition, from.n_partitions) || to.partition != 0 {
            return false;
        }
        let stays =
            dst.axes.iter().zip(&src.axes).all(|(to, from)| to.partition_step == from.partition_step || to.count == 1);
        if stays {
            self.emit(Engine::Dve, InstructionKind::TensorCopy { dst: to, src: from });
        }
        stays
    }

    /// The queue of a DMA that neither casts nor gathers.
    pub(super) fn copy_queue(&self) -> DmaQueue {
        if self.target.hardware_dge { DmaQueue::Hardware } else { DmaQueue::Ring }
    }

    /// DMAs that copy a box to a box of the same extents.
    pub(super) fn copy_piece(&mut self, dst: &Piece, dst_dtype: Dtype, src: &Piece, src_dtype: Dtype) {
        if self.is_full() {
            return;
        }
        let words = if dst_dtype == Dtype::I64 && src_dtype == Dtype::I64 { both_words } else { low_words };
        let (to, from) = (words(dst.access(dst_dtype)), words(src.access(src_dtype)));
        if to.dims.len() <= MAX_DIMS && from.dims.len() <= MAX_DIMS {
            let queue = self.copy_queue();
            self.emit(Engine::Sp, InstructionKind::Dma { dst: to, src: from, queue, gather: None });
            return;
        }
        let split = dst.axes.iter().position(|axis| axis.count > 1).expect("many dimensions have a long one");
        for index in 0..dst.axes[split].count {
            self.copy_piece(&at_index(dst, split, index), dst_dtype, &at_index(src, split, index), src_dtype);
        }
    }

    /// The operand for a frame, as an immediate, a vector or a full view.
    pub(super) fn operand(&mut self, value: ValueId, frame: &Frame) -> Operand {
        if let Storage::Splat(number) = self.storage(value) {
            return Operand::Immediate(*number as f32);
        }
        if let Some(full) = self.direct_view(value, frame) {
            let single = full.dims.iter().all(|dim| dim.step == 0);
            return if single {
                Operand::Vector(TileView { dims: SmallVec::new(), ..full })
            } else {
                Operand::Full(full)
            };
        }
        let (tile, stored) = self.operand_tile(value, frame, None);
        let n_partitions = frame.n_partitions();
        let dtype = self.program.tile(tile).dtype;
        let Some((offset, dims)) = broadcast_dims(&stored, frame) else {
            let tile = self.expanded_tile(value, frame);
            let dtype = self.program.tile(tile).dtype;
            let n_elements = frame.n_outer() * frame.grid.n_free;
            return Operand::Full(view(tile, n_partitions, 0, contiguous(n_elements), dtype));
        };
        let full = view(tile, n_partitions, offset, dims, dtype);
        let single = full.dims.iter().all(|dim| dim.step == 0);
        if single {
            return Operand::Vector(view(tile, n_partitions, offset, SmallVec::new(), dtype));
        }
        Operand::Full(full)
    }

    /// The frame's elements of a map where they lie, if one view of one tile can address them.
    fn direct_view(&mut self, value: ValueId, frame: &Frame) -> Option<TileView> {
        match self.storage(value) {
            Storage::Map(map) if !map.is_hbm() => {}
            Storage::Tiles(set) if frame.chunk.is_some() || set.grid.outer_per_tile != frame.grid.outer_per_tile => {
                if set.tiles.contains(&super::NOT_YET) {
                    return None;
                }
            }
            Storage::Map(_) | Storage::Tiles(_) | Storage::Splat(_) => return None,
        }
        let map = self.frame_map(value, frame).expand(&frame.shape);
        let (split, rows_end) = (usize::from(frame.grid.layout.n_outer), frame.rows_end());
        let outer = boxes(&frame.shape[..split], frame.grid.outer(frame.segment));
        let rows = boxes(&frame.shape[split..rows_end], frame.grid.rows(frame.block));
        let ([(outer_start, outer_extents)], [(row_start, row_extents)]) = (&outer[..], &rows[..]) else { return None };
        let mut start = outer_start.clone();
        let mut extents = outer_extents.clone();
        start.extend(row_start.iter().copied());
        extents.extend(row_extents.iter().copied());
        start.resize(frame.shape.len(), 0);
        extents.extend(frame.shape[rows_end..].iter().copied());
        let parts = map.cut(&start, &extents);
        let [piece] = &parts[..] else { return None };
        let (Base::Tile(tile), 0) = (piece.base, piece.partition) else { return None };
        if piece.extents()[..] != extents[..] || !is_on_partitions(&piece.axes[split..rows_end]) {
            return None;
        }
        let free = piece.axes[..split].iter().chain(&piece.axes[rows_end..]);
        let dims = free_dims(free)?;
        Some(TileView {
            tile,
            partition: 0,
            n_partitions: frame.n_partitions(),
            offset: u32::try_from(piece.offset).ok()?,
            dims,
            dtype: stored_dtype(map.dtype),
        })
    }

    /// A full view of an operand in an element type, whatever its storage.
    pub(super) fn full_operand(&mut self, value: ValueId, frame: &Frame) -> TileView {
        let n_elements = frame.n_outer() * frame.grid.n_free;
        if let Storage::Splat(number) = *self.storage(value) {
            let dtype = stored_dtype(self.graph.ty(value).dtype);
            let vector = self.splat_vector(number, dtype, frame.n_partitions());
            return repeat(&vector, n_elements);
        }
        match self.operand(value, frame) {
            Operand::Immediate(_) => unreachable!("only splats are immediates"),
            Operand::Vector(vector) => repeat(&vector, n_elements),
            Operand::Full(full) => full,
        }
    }

    /// A tile that holds a broadcast operand with every element in its place.
    fn expanded_tile(&mut self, value: ValueId, frame: &Frame) -> TileId {
        let wanted = self.physical_dtype(value);
        let map = self.frame_map(value, frame);
        self.fill_from(&map, &frame.shape, &frame.grid, frame.block, frame.segment, wanted)
    }

    /// The shape of a value padded to the frame's rank, expanded along partitions.
    fn stored_shape(&self, value: ValueId, frame: &Frame) -> Shape {
        let shape = &self.graph.ty(value).shape;
        let mut padded: Shape = SmallVec::from_elem(1, frame.shape.len() - shape.len());
        padded.extend(shape.iter().copied());
        if let (Some(chunk), Some(last)) = (frame.chunk, padded.last_mut())
            && *last == chunk.row_length
        {
            *last = chunk.length;
        }
        let split = usize::from(frame.grid.layout.n_outer);
        for axis in split..frame.rows_end() {
            padded[axis] = frame.shape[axis];
        }
        let own_outer: usize = padded[..split].iter().product();
        let partial = own_outer != 1 && own_outer != frame.grid.n_outer;
        if partial && frame.grid.n_segments() > 1 {
            padded[..split].copy_from_slice(&frame.shape[..split]);
        }
        padded
    }
}

/// A piece of a tile as an engine's operand; `None` where its rows do not lie on consecutive
/// partitions or its free dimensions are too many.
fn partition_view(piece: &Piece, dtype: Dtype) -> Option<TileView> {
    let Base::Tile(tile) = piece.base else { return None };
    let on_partitions: SmallVec<[Axis; 6]> =
        piece.axes.iter().filter(|axis| axis.partition_step != 0 && axis.count != 1).copied().collect();
    if !is_on_partitions(&on_partitions) {
        return None;
    }
    let n_partitions: usize = on_partitions.iter().map(|axis| axis.count).product();
    let free = piece.axes.iter().filter(|axis| axis.partition_step == 0);
    Some(TileView {
        tile,
        partition: u8::try_from(piece.partition).ok()?,
        n_partitions: u8::try_from(n_partitions).ok()?,
        offset: u32::try_from(piece.offset).ok()?,
        dims: free_dims(free)?,
        dtype,
    })
}

/// True where rows lie one by one on partitions and nowhere else.
fn is_on_partitions(rows: &[Axis]) -> bool {
    let mut step = 1;
    rows.iter().rev().all(|axis| {
        let fits = axis.count == 1 || (axis.partition_step == step && axis.step == 0);
        step *= axis.count as i64;
        fits
    })
}

/// Axes within a partition as the dimensions of a view, neighbours merged; `None` where there are
/// too many or their steps are too long.
fn free_dims<'a>(axes: impl Iterator<Item = &'a Axis>) -> Option<SmallVec<[Dim; 4]>> {
    let mut dims: SmallVec<[Dim; 4]> = SmallVec::new();
    for axis in axes.filter(|axis| axis.count != 1) {
        if axis.partition_step != 0 {
            return None;
        }
        let (step, count) = (i16::try_from(axis.step).ok()?, u16::try_from(axis.count).ok()?);
        match dims.last_mut() {
            Some(outer) if i64::from(outer.step) == axis.step * axis.count as i64 => {
                *outer = Dim { step, count: outer.count.checked_mul(count)? };
            }
            Some(_) | None => dims.push(Dim { step, count }),
        }
    }
    (dims.len() <= MAX_DIMS).then_some(dims)
}

/// A dst box cut to the part that a source piece covers.
pub(super) fn restrict(dst: &Piece, src: &Piece) -> Piece {
    let mut part = dst.clone();
    for axis in 0..dst.axes.len() {
        let skipped = (src.start[axis] - dst.start[axis]) as i64;
        part.offset += skipped * dst.axes[axis].step;
        part.partition += skipped * dst.axes[axis].partition_step;
        part.start[axis] = src.start[axis];
        part.axes[axis].count = src.axes[axis].count;
    }
    part
}

pub(super) fn at_index(piece: &Piece, axis: usize, index: usize) -> Piece {
    let mut part = piece.clone();
    part.offset += index as i64 * piece.axes[axis].step;
    part.partition += index as i64 * piece.axes[axis].partition_step;
    part.axes[axis] = Axis { count: 1, partition_step: 0, step: 0 };
    part
}

/// A 64-bit integer access as an access to the low 32-bit words.
fn low_words(mut access: DmaAccess) -> DmaAccess {
    if access.dtype != Dtype::I64 {
        return access;
    }
    access.dtype = Dtype::I32;
    access.offset *= 2;
    for dim in &mut access.dims {
        dim.step *= 2;
    }
    access
}

/// A 64-bit integer access as an access to both 32-bit words of every element.
fn both_words(access: DmaAccess) -> DmaAccess {
    let mut access = low_words(access);
    match access.dims.last_mut() {
        Some(last) if last.step == 2 && last.partition_step == 0 => {
            *last = DmaDim { step: 1, count: 2 * last.count, ..*last };
        }
        Some(_) | None => access.dims.push(DmaDim { partition_step: 0, step: 1, count: 2 }),
    }
    access
}

/// The high 32-bit words of a 64-bit integer access.
pub(super) fn high_words(access: DmaAccess) -> DmaAccess {
    let mut access = low_words(access);
    access.offset += 1;
    access
}

/// First element and free dimensions of an operand stored as `stored` in a frame tile; `None` where
/// four dimensions do not suffice.
fn broadcast_dims(stored: &[usize], frame: &Frame) -> Option<(u32, SmallVec<[Dim; 4]>)> {
    let split = usize::from(frame.grid.layout.n_outer);
    let free_axes = frame.rows_end()..frame.shape.len();
    let mut pairs: SmallVec<[(usize, usize); 8]> = SmallVec::new();
    let own_outer: usize = stored[..split].iter().product();
    if own_outer == frame.grid.n_outer {
        pairs.push((frame.n_outer(), frame.n_outer()));
    } else if frame.grid.n_segments() == 1 {
        pairs.extend(stored[..split].iter().copied().zip(frame.shape[..split].iter().copied()));
    } else {
        pairs.push((1, frame.n_outer()));
    }
    pairs.extend(free_axes.map(|axis| (stored[axis], frame.shape[axis])));
    let mut dims: SmallVec<[DmaDim; 4]> = SmallVec::new();
    let mut step = 1;
    let mut reversed: SmallVec<[(i64, usize); 8]> = SmallVec::new();
    for &(own, wanted) in pairs.iter().rev() {
        if wanted != 1 {
            reversed.push((if own == 1 { 0 } else { step as i64 }, wanted));
        }
        step *= own;
    }
    for &(step, count) in reversed.iter().rev() {
        match dims.last_mut() {
            Some(outer) if outer.step == step * count as i64 => {
                *outer = DmaDim { partition_step: 0, step, count: outer.count * count as u32 };
            }
            Some(_) | None => dims.push(DmaDim { partition_step: 0, step, count: count as u32 }),
        }
    }
    if dims.len() > MAX_DIMS {
        return None;
    }
    let dims: Option<SmallVec<[Dim; 4]>> = dims
        .iter()
        .map(|dim| Some(Dim { step: i16::try_from(dim.step).ok()?, count: u16::try_from(dim.count).ok()? }))
        .collect();
    Some((0, dims?))
}

pub(super) fn view(tile: TileId, n_partitions: u8, offset: u32, dims: SmallVec<[Dim; 4]>, dtype: Dtype) -> TileView {
    TileView { tile, partition: 0, n_partitions, offset, dims, dtype }
}

/// Elements after which PE may write again: it writes whole words of PSUM.
pub(super) fn padded(n_elements: usize, dtype: Dtype) -> usize {
    n_elements.next_multiple_of((4 / dtype.size_bytes()).max(1))
}

/// The dimensions of a packed run.
pub(super) fn contiguous(n_elements: usize) -> SmallVec<[Dim; 4]> {
    let mut dims = SmallVec::new();
    if n_elements != 1 {
        dims.push(Dim { step: 1, count: u16::try_from(n_elements).expect("tiles are cut to 65,535 elements") });
    }
    dims
}

/// A vector read again for every element.
pub(super) fn repeat(vector: &TileView, n_elements: usize) -> TileView {
    let mut full = vector.clone();
    full.dims = SmallVec::new();
    if n_elements != 1 {
        full.dims.push(Dim { step: 0, count: u16::try_from(n_elements).expect("tiles are cut to 65,535 elements") });
    }
    full
}

/// Builds a layout for use in tests and frames.
pub(super) fn layout(n_outer: usize, n_partition: usize) -> Layout {
    Layout { n_outer: n_outer as u8, n_partition: n_partition as u8 }
}
