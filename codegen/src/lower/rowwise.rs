//! Row-wise groups: runs of pointwise ops, reductions and normalisations over the same rows.
//!
//! A group is emitted tile by tile (128 rows by a segment of outer indices), all nodes of a tile
//! before the next tile. A node whose result only feeds the next instruction is absorbed by it:
//! a scale or shift by its consumer's second ALU op or activation operand, a narrowing cast by its
//! producer's output conversion.

use std::collections::BTreeMap;
use std::rc::Rc;

use ir::graph::NodeId;
use ir::ops::OpClass;
use ir::program::{Space, TileId};
use ir::types::Shape;
use ir::{Dtype, Node, Op, ValueId};

use super::chunked::CHUNK_ELEMENTS;
use super::lazy::Unit;
use super::storage::{Chunk, Frame, Storage, TileSet, stored_dtype};
use super::{Lowerer, NOT_YET};
use crate::map::{Base, Grid, N_PARTITIONS};
use crate::place::{Unsupported, combined_axes, frame_shape, is_suffix};

/// Elements per partition of one tile of a group: more are cut along the outer indices.
const TILE_ELEMENTS: usize = 8192;

/// Longest row, in elements, that is processed whole; longer ones go chunk by chunk.
pub(crate) const ROW_ELEMENTS: usize = 8192;

/// A run of row-wise nodes that has not been emitted yet.
pub(super) struct Group {
    /// Outer and row extents that all frames share.
    extents: (usize, usize),
    pub nodes: Vec<NodeId>,
    longest_row: usize,
}

/// A group whose tiles are made one by one.
#[derive(Clone, Debug)]
pub(super) struct LazyGroup {
    nodes: Vec<NodeId>,
    plan: GroupPlan,
    outer_per_tile: usize,
    /// Columns of a tile, where rows are cut.
    column_length: Option<usize>,
}

/// What becomes of the nodes of a group.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupPlan {
    /// Nodes whose instruction is part of their only consumer's.
    pub absorbed: BTreeMap<ValueId, NodeId>,
    /// Values that are written as the result of the narrowing cast behind them.
    pub narrowed: BTreeMap<ValueId, ValueId>,
}

impl Lowerer<'_> {
    pub(super) fn row_node(&mut self, id: NodeId, node: &Node) -> Result<(), Vec<Unsupported>> {
        let shape = frame_shape(self.graph, node).clone();
        let axes = combined_axes(self.graph, node);
        if !is_suffix(&axes, shape.len()) {
            self.flush()?;
            self.current_locations = node.locations.clone();
            self.reduce_leading(node, &shape, &axes);
            return Ok(());
        }
        let layout = self.graph.layouts[node.results[0].index()].expect("row-wise results are placed");
        let (n_outer, n_rows, n_free) = layout.extents(&shape);
        let joins = self.group.as_ref().is_some_and(|group| group.extents == (n_outer, n_rows));
        if !joins {
            self.flush()?;
        }
        let group =
            self.group.get_or_insert_with(|| Group { extents: (n_outer, n_rows), nodes: Vec::new(), longest_row: 0 });
        group.nodes.push(id);
        group.longest_row = group.longest_row.max(n_free);
        Ok(())
    }

    /// Emits the pending group.
    pub(super) fn flush(&mut self) -> Result<(), Vec<Unsupported>> {
        let Some(group) = self.group.take() else { return Ok(()) };
        let plan = self.plan(&group);
        if self.put_off_group(&group, &plan) {
            return Ok(());
        }
        if group.longest_row > ROW_ELEMENTS {
            return self.chunked_group(&group.nodes);
        }
        let outer_per_tile = (TILE_ELEMENTS / group.longest_row.max(1)).clamp(1, group.extents.0.max(1));
        for &id in &group.nodes {
            self.declare_results(id, outer_per_tile, &plan);
        }
        let grid = self.frame(group.nodes[0], outer_per_tile).grid;
        let group = LazyGroup { nodes: group.nodes, plan, outer_per_tile, column_length: None };
        for block in 0..grid.n_blocks() {
            for segment in 0..grid.n_segments() {
                self.group_tile(&group, block, segment);
            }
        }
        Ok(())
    }

    /// Emits all nodes of a group for one tile.
    pub(super) fn group_tile(&mut self, group: &LazyGroup, block: usize, segment: usize) {
        for &id in &group.nodes {
            let node = self.graph.node(id);
            if group.plan.absorbed.contains_key(&node.results[0]) || self.is_narrowing_tail(node, &group.plan) {
                continue;
            }
            self.locate(id);
            let mut frame = self.frame(id, group.outer_per_tile);
            frame.block = block;
            match group.column_length {
                Some(length) => self.cut_columns(&mut frame, segment * length, length),
                None => frame.segment = segment,
            }
            self.row_instructions(node, &frame, &group.plan);
        }
    }

    fn cut_columns(&self, frame: &mut Frame, start: usize, length: usize) {
        let last = frame.shape.len() - 1;
        let row_length = frame.shape[last];
        let length = length.min(row_length - start);
        frame.shape[last] = length;
        frame.grid = Grid::new(&frame.shape, frame.grid.layout, 1);
        frame.chunk = Some(Chunk { start, length, row_length });
    }

    /// Declares the results of a group that are large enough to be made when they are read.
    fn put_off_group(&mut self, group: &Group, plan: &GroupPlan) -> bool {
        let is_made = |value: &ValueId| !plan.absorbed.contains_key(value) && !plan.narrowed.contains_key(value);
        let results: Vec<ValueId> =
            group.nodes.iter().flat_map(|&id| self.graph.node(id).results.clone()).filter(is_made).collect();
        let n_bytes: usize = results.iter().map(|&value| self.graph.ty(value).size_bytes()).sum();
        let bank = self.bank_columns();
        let column_length = self.is_cut_by_columns(group).then(|| self.column_length(group));
        if n_bytes < self.large_bytes() || (column_length.is_none() && group.longest_row > ROW_ELEMENTS) {
            return false;
        }
        let outer_per_tile = (bank / group.longest_row.max(1)).clamp(1, group.extents.0.max(1));
        for &id in &group.nodes {
            self.declare_results(id, outer_per_tile, plan);
        }
        let grid = self.frame(group.nodes[0], outer_per_tile).grid;
        let n_segments = column_length.map_or(grid.n_segments(), |length| group.longest_row.div_ceil(length));
        let mut made: Vec<Vec<TileId>> = vec![Vec::new(); grid.n_blocks() * n_segments];
        for &value in &results {
            for (position, tile) in self.declare_tiles(value, column_length).into_iter().enumerate() {
                let per_block = self.n_segments_of(value, column_length);
                let (block, segment) = (position / per_block, position % per_block);
                made[block * n_segments + segment].push(tile);
            }
        }
        let depth = self.group_depth(group);
        let ranks = match column_length {
            Some(length) => self.column_ranks(group, (grid.n_blocks(), n_segments), length),
            None => vec![0; made.len()],
        };
        let nodes = group.nodes.clone();
        let lazy = Rc::new(LazyGroup { nodes, plan: plan.clone(), outer_per_tile, column_length });
        for (position, tiles) in made.iter().enumerate() {
            let (block, segment) = (position / n_segments, position % n_segments);
            self.put_off(Unit::Rows { group: Rc::clone(&lazy), block, segment }, tiles, depth, ranks[position]);
        }
        true
    }

    /// Columns of a tile: those of contractions' results, or what large transfers fill.
    fn column_length(&self, group: &Group) -> usize {
        let operands = group.nodes.iter().flat_map(|&id| &self.graph.node(id).operands);
        let is_on_chip = |&operand: &ValueId| match &self.storage[self.root(operand).index()] {
            Some(Storage::Map(map)) => !map.is_hbm(),
            Some(Storage::Tiles(_)) => true,
            Some(Storage::Splat(_)) | None => false,
        };
        if operands.into_iter().any(is_on_chip) { self.bank_columns() } else { CHUNK_ELEMENTS }
    }

    /// True where every node is elementwise over the same long rows.
    fn is_cut_by_columns(&self, group: &Group) -> bool {
        group.extents.0 == 1
            && group.longest_row > self.bank_columns()
            && group.nodes.iter().all(|&id| {
                let node = self.graph.node(id);
                let shape = &self.graph.ty(node.results[0]).shape;
                let layout = self.graph.layouts[node.results[0].index()].expect("row-wise results are placed");
                node.op.class() == OpClass::Pointwise
                    && shape.last() == Some(&group.longest_row)
                    && layout.extents(shape).2 == group.longest_row
            })
    }

    fn n_segments_of(&self, value: ValueId, column_length: Option<usize>) -> usize {
        match (&self.storage[value.index()], column_length) {
            (Some(Storage::Tiles(set)), None) => set.grid.n_segments(),
            (_, Some(length)) => self.graph.ty(value).shape.last().map_or(1, |last| last.div_ceil(length)),
            (_, None) => unreachable!("results of a group are declared as tiles"),
        }
    }

    /// Makes the tiles of a declared result known before they are written.
    fn declare_tiles(&mut self, value: ValueId, column_length: Option<usize>) -> Vec<TileId> {
        let Some(Storage::Tiles(set)) = self.storage[value.index()].clone() else {
            unreachable!("results of a group are declared as tiles")
        };
        if let Some(length) = column_length {
            let tiles = self.declare_blocks(value, &set.grid, length);
            let per_block = self.n_segments_of(value, column_length);
            for (position, &tile) in tiles.iter().enumerate() {
                let key = (value, position / per_block, position % per_block * length);
                self.column_tiles.insert(key, tile);
            }
            return tiles;
        }
        let mut tiles = Vec::new();
        for block in 0..set.grid.n_blocks() {
            for segment in 0..set.grid.n_segments() {
                let n_elements = set.grid.outer(segment).len() * set.grid.n_free;
                let n_partitions = set.grid.rows(block).len() as u8;
                tiles.push(self.new_tile("value", Space::Sbuf, set.dtype, n_partitions, n_elements));
            }
        }
        self.define_tiles(value, TileSet { tiles: tiles.clone(), ..set });
        tiles
    }

    /// By block of rows, then range of columns: the highest rank of the operands there, for a group that
    /// is cut by columns.
    fn column_ranks(&self, group: &Group, (n_blocks, n_segments): (usize, usize), length: usize) -> Vec<u32> {
        let mut ranks = vec![0; n_blocks * n_segments];
        for &operand in group.nodes.iter().flat_map(|&id| &self.graph.node(id).operands) {
            let Some(Storage::Map(map)) = &self.storage[self.root(operand).index()] else { continue };
            let Some((&n_columns, leading)) = map.shape.split_last() else { continue };
            if n_columns != group.longest_row || leading.iter().product::<usize>() != group.extents.1 {
                continue;
            }
            for piece in &map.pieces {
                let Base::Tile(tile) = piece.base else { continue };
                let rank = self.units.rank_of(tile);
                if rank == 0 {
                    continue;
                }
                let (columns, rows) = (piece.axes[leading.len()].count, &piece.axes[..leading.len()]);
                let first_column = piece.start[leading.len()];
                let first_row = leading.iter().zip(&piece.start).fold(0, |row, (extent, at)| row * extent + at);
                let n_rows: usize = rows.iter().map(|axis| axis.count).product();
                for block in first_row / N_PARTITIONS..(first_row + n_rows).div_ceil(N_PARTITIONS).min(n_blocks) {
                    for segment in first_column / length..(first_column + columns).div_ceil(length) {
                        let slot = &mut ranks[block * n_segments + segment];
                        *slot = rank.max(*slot);
                    }
                }
            }
        }
        ranks
    }

    fn group_depth(&mut self, group: &Group) -> u32 {
        let mut depth = 0;
        for &id in &group.nodes {
            for &operand in &self.graph.node(id).operands {
                let tiles: Vec<TileId> = match &self.storage[self.root(operand).index()] {
                    Some(Storage::Tiles(set)) => set.tiles.clone(),
                    Some(Storage::Map(map)) => map.tiles_read().collect(),
                    Some(Storage::Splat(_)) | None => Vec::new(),
                };
                depth = depth.max(self.depth_above(tiles.into_iter()));
            }
        }
        depth
    }

    /// The frame of a node, at its first tile.
    pub(super) fn frame(&self, id: NodeId, outer_per_tile: usize) -> Frame {
        let node = self.graph.node(id);
        let shape = frame_shape(self.graph, node).clone();
        let layout = self.graph.layouts[node.results[0].index()].expect("row-wise results are placed");
        let grid = Grid::new(&shape, layout, outer_per_tile);
        Frame { shape, grid, block: 0, segment: 0, chunk: None }
    }

    /// Storage with tiles to come for the results that the group materialises.
    fn declare_results(&mut self, id: NodeId, outer_per_tile: usize, plan: &GroupPlan) {
        let node = self.graph.node(id);
        for &result in &node.results {
            if plan.absorbed.contains_key(&result) || plan.narrowed.contains_key(&result) {
                continue;
            }
            let ty = self.graph.ty(result);
            let layout = self.graph.layouts[result.index()].expect("row-wise results are placed");
            let grid = Grid::new(&ty.shape, layout, outer_per_tile);
            let tiles = vec![NOT_YET; grid.n_blocks() * grid.n_segments()];
            let dtype = stored_dtype(ty.dtype);
            self.define_tiles(result, TileSet { shape: ty.shape.clone(), grid, dtype, tiles });
        }
    }

    fn is_narrowing_tail(&self, node: &Node, plan: &GroupPlan) -> bool {
        plan.narrowed.values().any(|&narrow| narrow == node.results[0])
    }

    fn plan(&self, group: &Group) -> GroupPlan {
        let mut plan = GroupPlan::default();
        let consumers = self.single_consumers(group);
        for &id in &group.nodes {
            let node = self.graph.node(id);
            let result = node.results[0];
            let Some(&consumer_id) = consumers.get(&result) else { continue };
            let consumer = self.graph.node(consumer_id);
            if self.graph.ty(result).shape != self.graph.ty(consumer.results[0]).shape {
                continue;
            }
            let narrows = matches!(&consumer.op, Op::Cast(cast) if cast.dtype.is_half());
            if narrows && self.graph.ty(result).dtype == Dtype::F32 && node.results.len() == 1 {
                plan.narrowed.insert(result, consumer.results[0]);
            } else if self.can_absorb(node, consumer, &plan) {
                plan.absorbed.insert(result, id);
            }
        }
        plan
    }

    /// The nodes of a group whose only use is an operand of another node of the group.
    fn single_consumers(&self, group: &Group) -> BTreeMap<ValueId, NodeId> {
        let mut consumers = BTreeMap::new();
        for &id in &group.nodes {
            for &operand in &self.graph.node(id).operands {
                if self.uses[operand.index()] == 1 && self.alias[operand.index()].is_none() {
                    consumers.insert(operand, id);
                }
            }
        }
        consumers
    }

    /// The tile of a result for the frame's block and segment; made on first request.
    pub(super) fn result_tile(&mut self, value: ValueId, frame: &Frame) -> TileId {
        if let Some(chunk) = frame.chunk
            && let Some(&tile) = self.column_tiles.get(&(value, frame.block, chunk.start))
        {
            return tile;
        }
        let Some(Storage::Tiles(set)) = &self.storage[value.index()] else {
            unreachable!("results of a group are declared as tiles")
        };
        let position = frame.block * set.grid.n_segments() + frame.segment.min(set.grid.n_segments() - 1);
        if set.tiles[position] != NOT_YET {
            return set.tiles[position];
        }
        let (dtype, n_free) = (set.dtype, set.grid.n_free);
        let n_elements = set.grid.outer(frame.segment.min(set.grid.n_segments() - 1)).len() * n_free;
        let tile = self.new_tile("value", Space::Sbuf, dtype, frame.n_partitions(), n_elements);
        let Some(Storage::Tiles(set)) = &mut self.storage[value.index()] else {
            unreachable!("results of a group are declared as tiles")
        };
        set.tiles[position] = tile;
        tile
    }

    /// The value that an instruction for `value` writes: the narrowing cast behind it, or itself.
    pub(super) fn written(&self, value: ValueId, plan: &GroupPlan) -> ValueId {
        plan.narrowed.get(&value).copied().unwrap_or(value)
    }

    /// Sums or extremes over axes of which some are not the last: the operand is moved so that the
    /// reduced axes come last.
    fn reduce_leading(&mut self, node: &Node, shape: &Shape, axes: &[usize]) {
        let kept: Vec<usize> = (0..shape.len()).filter(|axis| !axes.contains(axis)).collect();
        let perm: Vec<usize> = kept.iter().chain(axes).copied().collect();
        let moved = self.map(node.operands[0]).transpose(&perm);
        let layout = super::storage::layout(0, kept.len());
        let grid = Grid::new(&moved.shape, layout, 1);
        let result_shape: Shape = kept.iter().map(|&axis| shape[axis]).chain(axes.iter().map(|_| 1)).collect();
        let dtype = stored_dtype(self.graph.ty(node.results[0]).dtype);
        let mut tiles = Vec::new();
        for block in 0..grid.n_blocks() {
            let filled = self.fill_from(&moved, &moved.shape, &grid, block, 0, stored_dtype(moved.dtype));
            let n_partitions = grid.rows(block).len() as u8;
            let tile = self.new_tile("value", Space::Sbuf, dtype, n_partitions, 1);
            let (dst, data) = (self.whole(tile), self.whole(filled));
            self.reduce_view(node, dst, data, grid.n_free);
            tiles.push(tile);
        }
        let map = crate::map::Map::tiles(&result_shape, layout, 1, dtype, &tiles);
        let mut back = vec![0; perm.len()];
        for (position, &axis) in perm.iter().enumerate() {
            back[axis] = position;
        }
        self.storage[node.results[0].index()] = Some(Storage::Map(map.transpose(&back)));
    }
}
