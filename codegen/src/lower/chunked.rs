//! Rows too long for one tile: a group is emitted in passes over chunks of its rows.
//!
//! Pass k computes the reductions that depend on k earlier ones, chunk by chunk, reading its inputs
//! again; the last pass computes and stores the results as long as the rows. Nothing as long as a
//! row stays on chip. Fused ops were taken apart before (`expand_long_rows`).

use std::collections::{BTreeMap, BTreeSet};

use ir::graph::NodeId;
use ir::ops::{Add, Div, Exp, Log, Mul, OpClass, ReduceMax, ReduceMean, ReduceSum, Rsqrt, Sub};
use ir::program::{AluOp, HbmKind, Space, TileId, TileView};
use ir::types::{Axes, TypeError};
use ir::{Dtype, Graph, Node, Op, ValueId};

use super::rowwise::{GroupPlan, ROW_ELEMENTS};
use super::selection::selects;
use super::storage::{Chunk, Frame, Storage, TileSet, stored_dtype};
use super::{Lowerer, NOT_YET, Unsupported};
use crate::map::{Grid, Map};

/// Elements of a row that are processed at a time.
pub(super) const CHUNK_ELEMENTS: usize = 2048;

/// Replaces softmax and the norms over long rows, and gathers with an index for each row, by pointwise
/// ops and reductions.
///
/// # Errors
/// When the expansion does not type, which would be a fault of this function.
pub fn expand_long_rows(graph: &Graph) -> Result<Graph, TypeError> {
    let is_long = |node: &Node| {
        let fused = matches!(node.op, Op::Softmax(_) | Op::LogSoftmax(_) | Op::RmsNorm(_) | Op::LayerNorm(_));
        fused && graph.ty(node.results[0]).shape.last().is_some_and(|&length| length > ROW_ELEMENTS)
    };
    let is_expanded = |node: &Node| is_long(node) || selects(graph, node);
    if !graph.nodes().any(|(_, node)| is_expanded(node)) {
        return Ok(graph.clone());
    }
    let mut expanded = graph.with_same_inputs();
    let mut values: Vec<Option<ValueId>> = vec![None; graph.n_values()];
    for (old, new) in graph.inputs.iter().zip(expanded.inputs.clone()) {
        values[old.value.index()] = Some(new.value);
    }
    for (_, node) in graph.nodes() {
        let operands: Vec<ValueId> =
            node.operands.iter().map(|operand| values[operand.index()].expect("operands come first")).collect();
        let results = if is_expanded(node) {
            Expansion { graph: &mut expanded, node }.results(&operands)?
        } else {
            let id = expanded.push(node.op.clone(), &operands, &node.locations)?;
            expanded.node(id).results.to_vec()
        };
        for (&old, new) in node.results.iter().zip(results) {
            values[old.index()] = Some(new);
        }
    }
    expanded.outputs = graph.outputs.clone();
    for output in &mut expanded.outputs {
        output.value = output.value.and_then(|value| values[value.index()]);
    }
    Ok(expanded)
}

pub(super) struct Expansion<'a> {
    pub graph: &'a mut Graph,
    node: &'a Node,
}

impl Expansion<'_> {
    pub(super) fn op(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> Result<ValueId, TypeError> {
        self.graph.push_value_of(op.into(), operands, &self.node.locations)
    }

    fn scalar(&mut self, number: f32) -> Result<ValueId, TypeError> {
        self.op(ir::ops::Full::new(f64::from(number), Dtype::F32, []), &[])
    }

    fn results(&mut self, operands: &[ValueId]) -> Result<Vec<ValueId>, TypeError> {
        let data = operands[0];
        let axes: Axes = std::iter::once(self.graph.ty(data).rank() - 1).collect();
        match &self.node.op {
            Op::Softmax(_) | Op::LogSoftmax(_) => {
                let max = self.op(ReduceMax { axes: axes.clone() }, &[data])?;
                let shifted = self.op(Sub, &[data, max])?;
                let exponentials = self.op(Exp, &[shifted])?;
                let sum = self.op(ReduceSum { axes }, &[exponentials])?;
                if matches!(self.node.op, Op::Softmax(_)) {
                    return Ok(vec![self.op(Div, &[exponentials, sum])?]);
                }
                let log = self.op(Log, &[sum])?;
                Ok(vec![self.op(Sub, &[shifted, log])?])
            }
            Op::RmsNorm(norm) => {
                let squares = self.op(Mul, &[data, data])?;
                let mean = self.op(ReduceMean { axes }, &[squares])?;
                let rstd = self.inverse_root(mean, norm.eps.get())?;
                let scaled = self.op(Mul, &[data, rstd])?;
                Ok(vec![self.affine(scaled, operands.get(1), None)?])
            }
            Op::LayerNorm(norm) => {
                let mean = self.op(ReduceMean { axes: axes.clone() }, &[data])?;
                let centered = self.op(Sub, &[data, mean])?;
                let squares = self.op(Mul, &[centered, centered])?;
                let variance = self.op(ReduceMean { axes }, &[squares])?;
                let rstd = self.inverse_root(variance, norm.eps.get())?;
                let scaled = self.op(Mul, &[centered, rstd])?;
                Ok(vec![self.affine(scaled, operands.get(1), operands.get(2))?, mean, rstd])
            }
            Op::Gather(gather) => Ok(vec![self.selected(gather.axis, operands)?]),
            op => unreachable!("`{}` is not expanded", op.name()),
        }
    }

    fn inverse_root(&mut self, mean: ValueId, eps: f32) -> Result<ValueId, TypeError> {
        let eps = self.scalar(eps)?;
        let shifted = self.op(Add, &[mean, eps])?;
        self.op(Rsqrt, &[shifted])
    }

    fn affine(
        &mut self,
        value: ValueId,
        gamma: Option<&ValueId>,
        beta: Option<&ValueId>,
    ) -> Result<ValueId, TypeError> {
        let mut result = value;
        if let Some(&gamma) = gamma {
            result = self.op(Mul, &[result, gamma])?;
        }
        if let Some(&beta) = beta {
            result = self.op(Add, &[result, beta])?;
        }
        Ok(result)
    }
}

/// A chunked group while it is emitted.
struct Chunked {
    nodes: Vec<NodeId>,
    /// By node: how many reductions lie between it and the inputs, at most.
    levels: BTreeMap<NodeId, usize>,
    by_value: BTreeMap<ValueId, NodeId>,
    long: BTreeSet<NodeId>,
    row_length: usize,
}

impl Lowerer<'_> {
    pub(super) fn chunked_group(&mut self, nodes: &[NodeId]) -> Result<(), Vec<Unsupported>> {
        let group = self.describe_chunked(nodes)?;
        let results = self.long_results(&group);
        let n_levels = group.levels.values().copied().max().unwrap_or(0) + 1;
        for &id in nodes.iter().filter(|id| !group.long.contains(id)) {
            self.declare_column(id);
        }
        let n_blocks = self.frame(nodes[0], 1).grid.n_blocks();
        for block in 0..n_blocks {
            for level in 0..n_levels {
                self.columns_at(&group, block, level);
                self.reductions_at(&group, block, level);
            }
            self.columns_at(&group, block, n_levels);
            self.store_long(&group, block, &results);
        }
        for (value, map) in results {
            self.storage[value.index()] = Some(Storage::Map(map));
        }
        Ok(())
    }

    fn describe_chunked(&self, nodes: &[NodeId]) -> Result<Chunked, Vec<Unsupported>> {
        let mut group = Chunked {
            nodes: nodes.to_vec(),
            levels: BTreeMap::new(),
            by_value: BTreeMap::new(),
            long: BTreeSet::new(),
            row_length: 0,
        };
        let mut faults = Vec::new();
        for &id in nodes {
            let frame = self.frame(id, 1);
            let length = frame.shape.last().copied().unwrap_or(1);
            let single = frame.grid.n_free == length && frame.grid.n_outer == 1;
            let node = self.graph.node(id);
            if !single
                || matches!(node.op, Op::Cumsum(_))
                || (group.row_length > 1 && length > 1 && length != group.row_length)
            {
                let reason = format!("rows of {length} elements in this layout are too long for one tile");
                faults.push(Unsupported { node: Some(id), reason });
                continue;
            }
            group.row_length = group.row_length.max(length);
            let own = self.graph.ty(node.results[0]).shape.last().copied().unwrap_or(1);
            if own > 1 {
                group.long.insert(id);
            }
            let reduces = usize::from(node.op.class() == OpClass::Reduction);
            let below = node.operands.iter().filter_map(|&operand| {
                let producer = group.by_value.get(&self.root(operand))?;
                group.levels.get(producer)
            });
            group.levels.insert(id, below.copied().max().unwrap_or(0) + reduces);
            group.by_value.insert(node.results[0], id);
        }
        if faults.is_empty() { Ok(group) } else { Err(faults) }
    }

    /// Row-long results that are read outside the group, with where they go.
    fn long_results(&mut self, group: &Chunked) -> BTreeMap<ValueId, Map> {
        let mut inside: BTreeMap<ValueId, u32> = BTreeMap::new();
        for &id in &group.nodes {
            for &operand in &self.graph.node(id).operands {
                *inside.entry(self.root(operand)).or_default() += 1;
            }
        }
        let mut results = BTreeMap::new();
        for &id in &group.long {
            let value = self.graph.node(id).results[0];
            let aliases: u32 = self.alias_uses(value);
            if aliases <= inside.get(&value).copied().unwrap_or(0) {
                continue;
            }
            let ty = self.graph.ty(value).clone();
            let dtype = stored_dtype(ty.dtype);
            let size = (ty.n_elements() * dtype.size_bytes()) as u64;
            let map = match self.output_of(value) {
                Some(map) => map,
                None => {
                    let name = format!("scratch_{}", self.program.tensors.len());
                    let tensor = self.new_tensor(name, HbmKind::Scratch, dtype, &ty.shape, size);
                    Map::hbm_packed(tensor, dtype, &ty.shape)
                }
            };
            results.insert(value, map);
        }
        results
    }

    /// Uses of a value and of the casts that share its storage.
    fn alias_uses(&self, value: ValueId) -> u32 {
        let mut count = self.uses[value.index()];
        for (position, alias) in self.alias.iter().enumerate() {
            if *alias == Some(value) {
                count = count - 1 + self.alias_uses(ValueId(position as u32));
            }
        }
        count
    }

    fn declare_column(&mut self, id: NodeId) {
        let result = self.graph.node(id).results[0];
        let ty = self.graph.ty(result).clone();
        let layout = self.graph.layouts[result.index()].expect("row-wise results are placed");
        let grid = Grid::new(&ty.shape, layout, 1);
        let tiles = vec![NOT_YET; grid.n_blocks()];
        self.define_tiles(result, TileSet { shape: ty.shape, grid, dtype: stored_dtype(ty.dtype), tiles });
    }

    /// Emits the pointwise ops on columns of a level.
    fn columns_at(&mut self, group: &Chunked, block: usize, level: usize) {
        for &id in &group.nodes {
            let node = self.graph.node(id);
            let is_column = !group.long.contains(&id) && node.op.class() != OpClass::Reduction;
            if is_column && group.levels[&id] == level {
                self.current_locations = node.locations.clone();
                let frame = Frame { block, ..self.frame(id, 1) };
                self.row_instructions(node, &frame, &GroupPlan::default());
            }
        }
    }

    /// Emits the reductions whose operands are of a level, over all chunks.
    fn reductions_at(&mut self, group: &Chunked, block: usize, level: usize) {
        let due: Vec<NodeId> = group
            .nodes
            .iter()
            .copied()
            .filter(|id| self.graph.node(*id).op.class() == OpClass::Reduction && group.levels[id] == level + 1)
            .collect();
        if due.is_empty() {
            return;
        }
        let mut rests = BTreeMap::new();
        for start in (0..group.row_length).step_by(CHUNK_ELEMENTS) {
            let chunk =
                Chunk { start, length: CHUNK_ELEMENTS.min(group.row_length - start), row_length: group.row_length };
            for &id in &due {
                self.long_operands(group, block, chunk, id);
                self.accumulate(block, chunk, id, &mut rests);
            }
            self.forget_chunk(group);
        }
        for &id in &due {
            self.finish_sum(block, id, group.row_length, rests.remove(&id));
        }
    }

    /// Emits the row-long operands of a node for a chunk, and theirs.
    fn long_operands(&mut self, group: &Chunked, block: usize, chunk: Chunk, id: NodeId) {
        let node = self.graph.node(id);
        for &operand in &node.operands {
            let root = self.root(operand);
            let Some(&producer) = group.by_value.get(&root) else { continue };
            if !group.long.contains(&producer) || self.storage[root.index()].is_some() {
                continue;
            }
            self.long_operands(group, block, chunk, producer);
            self.long_node(block, chunk, producer);
        }
    }

    fn long_node(&mut self, block: usize, chunk: Chunk, id: NodeId) {
        let node = self.graph.node(id);
        let result = node.results[0];
        let frame = self.chunk_frame(id, block, chunk);
        let grid = Grid::new(&frame.shape, frame.grid.layout, 1);
        let tiles = vec![NOT_YET; grid.n_blocks()];
        let dtype = stored_dtype(self.graph.ty(result).dtype);
        self.define_tiles(result, TileSet { shape: frame.shape.clone(), grid, dtype, tiles });
        self.current_locations = node.locations.clone();
        self.row_instructions(node, &frame, &GroupPlan::default());
    }

    fn chunk_frame(&self, id: NodeId, block: usize, chunk: Chunk) -> Frame {
        let mut frame = self.frame(id, 1);
        let last = frame.shape.len() - 1;
        frame.shape[last] = chunk.length;
        frame.grid = Grid::new(&frame.shape, frame.grid.layout, 1);
        frame.block = block;
        frame.chunk = Some(chunk);
        frame
    }

    /// Reduces a chunk and combines it with what the earlier chunks gave. Sums of f32 keep the rests
    /// of their elements apart, as sums of short rows do.
    fn accumulate(&mut self, block: usize, chunk: Chunk, id: NodeId, rests: &mut BTreeMap<NodeId, TileView>) {
        let node = self.graph.node(id);
        let result = node.results[0];
        let frame = self.chunk_frame(id, block, chunk);
        self.current_locations = node.locations.clone();
        let op = match node.op {
            Op::ReduceSum(_) | Op::ReduceMean(_) => AluOp::Add,
            Op::ReduceMax(_) | Op::Any(_) => AluOp::Max,
            _ => AluOp::Min,
        };
        let data = self.full_operand(node.operands[0], &frame);
        let total = self.column_tile(result, block, frame.n_partitions());
        if op != AluOp::Add || data.dtype != Dtype::F32 {
            self.fold(&total, data, op, chunk);
            return;
        }
        let (high, low) = self.split(&data);
        self.fold(&total, high, op, chunk);
        let rest = match rests.get(&id) {
            Some(rest) => rest.clone(),
            None => self.column_like(&total),
        };
        self.fold(&rest, low, op, chunk);
        rests.insert(id, rest);
    }

    /// total = total op (reduction of data); the first chunk writes it.
    fn fold(&mut self, total: &TileView, data: TileView, op: AluOp, chunk: Chunk) {
        let data = self.split_rows(data, chunk.length);
        if chunk.start == 0 {
            self.emit_reduce(total.clone(), data, op, false);
            return;
        }
        let partial = self.column_like(total);
        self.emit_reduce(partial.clone(), data, op, false);
        self.pair(total, total, &partial, op);
    }

    /// Adds the rests of a sum and divides a mean.
    fn finish_sum(&mut self, block: usize, id: NodeId, row_length: usize, rest: Option<TileView>) {
        let node = self.graph.node(id);
        let n_partitions = self.frame(id, 1).grid.rows(block).len() as u8;
        let total = self.column_tile(node.results[0], block, n_partitions);
        if let Some(rest) = rest {
            self.add_rests(&total, &rest);
        }
        if matches!(node.op, Op::ReduceMean(_)) {
            self.mean_of_sum(total.clone(), total, row_length);
        }
    }

    fn column_tile(&mut self, result: ValueId, block: usize, n_partitions: u8) -> TileView {
        let Some(Storage::Tiles(set)) = &self.storage[result.index()] else {
            unreachable!("columns are declared as tiles")
        };
        let (dtype, known) = (set.dtype, set.tiles[block]);
        let tile = if known == NOT_YET { self.new_tile("value", Space::Sbuf, dtype, n_partitions, 1) } else { known };
        if let Some(Storage::Tiles(set)) = &mut self.storage[result.index()] {
            set.tiles[block] = tile;
        }
        self.whole(tile)
    }

    fn store_long(&mut self, group: &Chunked, block: usize, results: &BTreeMap<ValueId, Map>) {
        if results.is_empty() {
            return;
        }
        for start in (0..group.row_length).step_by(CHUNK_ELEMENTS) {
            let chunk =
                Chunk { start, length: CHUNK_ELEMENTS.min(group.row_length - start), row_length: group.row_length };
            for (&value, map) in results {
                let id = group.by_value[&value];
                self.long_operands(group, block, chunk, id);
                if self.storage[value.index()].is_none() {
                    self.long_node(block, chunk, id);
                }
                let Some(Storage::Tiles(set)) = &self.storage[value.index()] else { continue };
                let (tile, set) = (set.tiles[block], set.clone());
                self.store_chunk(map, chunk, &set, block, tile);
            }
            self.forget_chunk(group);
        }
    }

    fn store_chunk(&mut self, map: &Map, chunk: Chunk, set: &TileSet, block: usize, tile: TileId) {
        let last = map.shape.len() - 1;
        let dst = map.slice(last, chunk.start, chunk.start + chunk.length, 1);
        let pieces = crate::map::tile_pieces(&set.shape, &set.grid, block, 0, tile);
        let src = Map { shape: set.shape.clone(), dtype: set.dtype, pieces };
        self.copy_map(&dst, &src);
    }

    /// Drops what was computed for one chunk.
    fn forget_chunk(&mut self, group: &Chunked) {
        for &id in &group.long {
            self.storage[self.graph.node(id).results[0].index()] = None;
        }
        self.filled.retain(|key, _| !key.is_chunk());
    }
}
