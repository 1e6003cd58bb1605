//! Graph to program: each placed node becomes tile operations over virtual tiles, with loads of
//! graph inputs and constants and stores of graph outputs and nothing else in HBM.
//!
//! Runs of row-wise nodes over the same rows are emitted tile by tile, so that their intermediates
//! die early (`rowwise`). Movement ops only rewrite maps. Contractions and gathers have files of
//! their own. Scheduling, addresses and semaphores come later, in `passes`.

use std::collections::BTreeMap;
use std::sync::Arc;

use ir::graph::{LocationId, NodeId, ValueDef};
use ir::ops::OpClass;
use ir::program::{Engine, HbmKind, InstructionKind, TileId};
use ir::target::{Target, TargetName};
use ir::types::packed_strides;
use ir::{Dtype, Graph, Node, Op, Program, ValueId};
use smallvec::SmallVec;

use crate::map::{Base, Map, Piece};
use crate::place::{Unsupported, layout_with_extents};
pub use chunked::expand_long_rows;
use lazy::Units;
use panels::Panels;
use rowwise::Group;
pub(crate) use rowwise::ROW_ELEMENTS;
pub use sine::LIMIT as SINE_LIMIT;
use storage::{FilledTiles, Storage, TileSet, high_words, stored_dtype};

mod attention;
mod blocked;
mod chunked;
mod contraction;
mod functions;
mod indexing;
mod integer;
mod lazy;
mod normalize;
mod panels;
mod pointwise;
mod reduce;
mod rowwise;
mod selection;
mod sine;
mod storage;

/// Most instructions of a program. Copies of tensors with many dimensions are unrolled, so that only
/// counting tells.
const MAX_INSTRUCTIONS: usize = 1 << 22;

/// Pieces up to which a concatenation stays a map; beyond, it is copied into one. Each doubling of a
/// value by concatenation doubles its pieces.
const MAX_PIECES: usize = 1024;

/// Stands for a tile that its group has not emitted yet.
const NOT_YET: TileId = TileId(u32::MAX);

/// What lowering did, for the statistics line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LowerStats {
    pub n_instructions: usize,
    pub n_tiles: usize,
    /// DMAs inside SBUF: layouts that producers and consumers did not agree on.
    pub n_moves: usize,
    pub n_transposes: usize,
}

/// Lowers a placed graph.
///
/// # Errors
/// Nodes whose shapes have no lowering, with the reason.
pub fn lower(graph: &Graph, target: TargetName) -> Result<(Program, LowerStats), Vec<Unsupported>> {
    let mut lowerer = Lowerer::new(graph, target);
    lowerer.declare_inputs();
    lowerer.alias_widening_casts();
    for (id, node) in graph.nodes() {
        lowerer.node(id, node)?;
        lowerer.check_length(Some(id))?;
    }
    lowerer.flush()?;
    lowerer.store_outputs();
    lowerer.check_length(None)?;
    lowerer.drop_unused_tiles();
    let stats = lowerer.stats();
    Ok((lowerer.program, stats))
}

/// Value, element type, (batches, rows, columns) as stored, batch, block of columns, first row.
type TransposeKey = (ValueId, Dtype, (usize, usize, usize), usize, usize, usize);

struct Lowerer<'g> {
    graph: &'g Graph,
    target: &'static Target,
    program: Program,
    uses: Vec<u32>,
    /// By value: the value whose storage it shares.
    alias: Vec<Option<ValueId>>,
    /// By value; `None` before its node is lowered.
    storage: Vec<Option<Storage>>,
    filled: FilledTiles,
    splats: BTreeMap<(u64, Dtype), TileId>,
    /// Tiles copied to another element type.
    converted: BTreeMap<(TileId, Dtype), TileId>,
    /// Contraction operands with their columns on partitions.
    transposes: BTreeMap<TransposeKey, TileId>,
    /// Outputs that were stored while they were computed.
    stored_outputs: BTreeMap<usize, ValueId>,
    group: Option<Group>,
    /// By value: the nodes that read it.
    readers: Vec<SmallVec<[NodeId; 2]>>,
    /// What large contractions read.
    panels: Panels,
    /// What is made when it is first read.
    units: Units,
    /// Tiles of results that are cut along their rows: value, block, first column.
    column_tiles: BTreeMap<(ValueId, usize, usize), TileId>,
    current_locations: SmallVec<[LocationId; 2]>,
}

impl<'g> Lowerer<'g> {
    fn new(graph: &'g Graph, target: TargetName) -> Self {
        let mut program = Program::new(without_nul(&graph.name), target);
        program.locations = graph.locations.clone();
        Lowerer {
            graph,
            target: target.target(),
            program,
            uses: graph.use_counts(),
            alias: vec![None; graph.n_values()],
            storage: vec![None; graph.n_values()],
            filled: FilledTiles::new(),
            splats: BTreeMap::new(),
            converted: BTreeMap::new(),
            transposes: BTreeMap::new(),
            stored_outputs: BTreeMap::new(),
            group: None,
            readers: readers(graph),
            panels: Panels::default(),
            units: Units::default(),
            column_tiles: BTreeMap::new(),
            current_locations: SmallVec::new(),
        }
    }

    fn declare_inputs(&mut self) {
        for (position, input) in self.graph.inputs.iter().enumerate() {
            let updated_by = self.graph.outputs.iter().position(|output| output.alias == Some(position as u32));
            // What nothing reads or updates, such as a frozen parameter, is no input of the program.
            if self.uses[input.value.index()] == 0 && updated_by.is_none() {
                continue;
            }
            let ty = self.graph.ty(input.value);
            let strides = strides_or_packed(input.strides.as_deref(), &ty.shape);
            let size = buffer_bytes(&ty.shape, &strides, ty.dtype);
            let kind = match updated_by {
                Some(output) => HbmKind::Updated { input: position as u32, output: output as u32 },
                None => HbmKind::Input(position as u32),
            };
            let tensor = self.new_tensor(without_nul(&input.name), kind, ty.dtype, &ty.shape, size);
            let map = Map::hbm(tensor, ty.dtype, &ty.shape, &strides);
            self.storage[input.value.index()] = Some(Storage::Map(map));
        }
    }

    /// A cast that only widens costs nothing: engines widen on reading.
    fn alias_widening_casts(&mut self) {
        for (_, node) in self.graph.nodes() {
            let Op::Cast(cast) = &node.op else { continue };
            let from = self.graph.ty(node.operands[0]).dtype;
            let free = match (from, cast.dtype) {
                (Dtype::Bf16 | Dtype::F16 | Dtype::Bool | Dtype::I32 | Dtype::I64, Dtype::F32) => true,
                (Dtype::I64, Dtype::I32) | (Dtype::I32, Dtype::I64) => true,
                (from, to) => from == to,
            };
            if free {
                self.alias[node.results[0].index()] = Some(node.operands[0]);
            }
        }
    }

    fn check_length(&self, node: Option<NodeId>) -> Result<(), Vec<Unsupported>> {
        if !self.is_full() {
            return Ok(());
        }
        Err(vec![Unsupported { node, reason: format!("the program has more than {MAX_INSTRUCTIONS} instructions") }])
    }

    /// No instruction is added any more, and the program will be refused.
    fn is_full(&self) -> bool {
        self.program.instructions.len() >= MAX_INSTRUCTIONS
    }

    fn node(&mut self, id: NodeId, node: &Node) -> Result<(), Vec<Unsupported>> {
        if self.alias[node.results[0].index()].is_some() {
            return Ok(());
        }
        if self.graph.ty(node.results[0]).n_elements() == 0 {
            let ty = self.graph.ty(node.results[0]);
            let map = Map { shape: ty.shape.clone(), dtype: ty.dtype, pieces: Vec::new() };
            self.storage[node.results[0].index()] = Some(Storage::Map(map));
            return Ok(());
        }
        match node.op.class() {
            OpClass::Pointwise | OpClass::Reduction | OpClass::Scan | OpClass::Fused => return self.row_node(id, node),
            OpClass::Movement | OpClass::Indexing | OpClass::Creation | OpClass::Contraction => {}
        }
        if node.operands.iter().any(|&operand| self.in_group(operand)) {
            self.flush()?;
        }
        self.current_locations = node.locations.clone();
        match node.op.class() {
            OpClass::Movement => self.movement(node),
            OpClass::Creation => self.creation(node),
            OpClass::Contraction if matches!(node.op, Op::Attention(_)) => self.attention(node),
            OpClass::Contraction => match self.too_wide(node) {
                Some(reason) => return Err(vec![Unsupported { node: Some(id), reason }]),
                None => self.contraction(id, node),
            },
            OpClass::Indexing => self.indexing(id, node)?,
            OpClass::Pointwise | OpClass::Reduction | OpClass::Scan | OpClass::Fused => unreachable!("handled above"),
        }
        Ok(())
    }

    /// Why the result of a contraction does not fit on chip, if it does not: one batch of 128 rows
    /// lies in one tile where several batches do not share the right operand.
    fn too_wide(&self, node: &Node) -> Option<String> {
        let ty = self.graph.ty(node.results[0]);
        let n_bytes = ty.shape.last().copied().unwrap_or(1) * stored_dtype(ty.dtype).size_bytes();
        let limit = self.target.sbuf_usable_bytes as usize;
        let is_batched = self.graph.ty(node.operands[1]).rank() > 2;
        (is_batched && n_bytes > limit)
            .then(|| format!("a result of {n_bytes} bytes per partition; SBUF holds {limit}"))
    }

    fn creation(&mut self, node: &Node) {
        let result = node.results[0];
        let ty = self.graph.ty(result);
        let storage = match &node.op {
            Op::Full(full) => Storage::Splat(full.value.get()),
            Op::Constant(constant) => Storage::Map(self.constant_map(constant.data.clone(), ty.dtype, &ty.shape)),
            Op::Iota(iota) => {
                let value = |index: usize| iota.start.wrapping_add(iota.step.wrapping_mul(index as i64));
                let bytes = encode_integers((0..iota.length).map(value), ty.dtype);
                Storage::Map(self.constant_map(bytes, ty.dtype, &ty.shape))
            }
            _ => unreachable!("every creation op has a row"),
        };
        self.storage[result.index()] = Some(storage);
    }

    fn constant_map(&mut self, data: Arc<[u8]>, dtype: Dtype, shape: &[usize]) -> Map {
        let same = |tensor: &ir::program::HbmTensor| {
            tensor.dtype == dtype && matches!(&tensor.kind, HbmKind::Constant(held) if *held == data)
        };
        let found = self.program.tensors.iter().position(same);
        let tensor = match found {
            Some(position) => ir::program::HbmId(position as u32),
            None => {
                let name = format!("constant_{}", self.program.tensors.len());
                let size = data.len() as u64;
                self.new_tensor(name, HbmKind::Constant(data), dtype, shape, size)
            }
        };
        Map::hbm_packed(tensor, dtype, shape)
    }

    fn movement(&mut self, node: &Node) {
        let (operand, result) = (node.operands[0], node.results[0]);
        let shape = self.graph.ty(result).shape.clone();
        if let Storage::Splat(number) = *self.storage(operand)
            && !matches!(node.op, Op::Concat(_))
        {
            self.storage[result.index()] = Some(Storage::Splat(number));
            return;
        }
        let moved = match &node.op {
            Op::Reshape(_) => self.reshape(operand, &shape),
            Op::Transpose(op) => {
                let perm: SmallVec<[usize; 6]> = op.perm.iter().copied().collect();
                Storage::Map(self.map(operand).transpose(&perm))
            }
            Op::Expand(_) => Storage::Map(self.map(operand).expand(&shape)),
            Op::Slice(op) => Storage::Map(self.map(operand).slice(op.axis, op.start, op.end, op.step)),
            Op::Concat(op) => {
                let joined = Map::concat(&self.stored_maps(&node.operands), op.axis);
                Storage::Map(if joined.pieces.len() > MAX_PIECES { self.packed_in_hbm(&joined) } else { joined })
            }
            Op::Relayout(_) => self.storage(operand).clone(),
            _ => unreachable!("every movement op has a row"),
        };
        self.storage[result.index()] = Some(moved);
    }

    fn reshape(&mut self, operand: ValueId, shape: &[usize]) -> Storage {
        if let Storage::Tiles(set) = self.storage(operand) {
            let extents = (set.grid.n_outer, set.grid.n_rows, set.grid.n_free);
            if let Some(layout) = layout_with_extents(shape, extents) {
                let mut set = set.clone();
                set.shape = shape.iter().copied().collect();
                set.grid.layout = layout;
                return Storage::Tiles(set);
            }
        }
        let map = self.map(operand);
        if let Some(reshaped) = map.reshape(shape) {
            return Storage::Map(reshaped);
        }
        Storage::Map(self.packed_in_hbm(&map).reshape(shape).expect("a packed tensor has every shape"))
    }

    /// A copy of a value in packed HBM scratch, for the rare use that no access pattern expresses.
    fn packed_in_hbm(&mut self, map: &Map) -> Map {
        let n_elements: usize = map.shape.iter().product();
        let dtype = map.dtype;
        let size = (n_elements * dtype.size_bytes()) as u64;
        let name = format!("scratch_{}", self.program.tensors.len());
        let tensor = self.new_tensor(name, HbmKind::Scratch, dtype, &map.shape, size);
        let packed = Map::hbm_packed(tensor, dtype, &map.shape);
        self.copy_map(&packed, map);
        packed
    }

    /// DMAs that copy one map to another of the same shape, in the order in which the source is made.
    fn copy_map(&mut self, dst: &Map, src: &Map) {
        let parts = dst.pieces.iter().flat_map(|to| {
            let cut = src.cut(&to.start, &to.extents());
            cut.into_iter().map(|from| (storage::restrict(to, &from), from))
        });
        // Of an updated input, what stays the same is where it belongs.
        let mut parts: Vec<(Piece, Piece)> = parts.filter(|(part, from)| !part.is_same_place(from)).collect();
        parts.sort_by_key(|(_, from)| match from.base {
            Base::Tile(tile) => self.units.rank_of(tile),
            Base::Hbm(_) => 0,
        });
        for (part, from) in parts {
            self.copy_piece(&part, dst.dtype, &from, src.dtype);
        }
    }

    /// The map of a value whose stored element type is that of the graph.
    fn stored_map(&mut self, value: ValueId) -> Map {
        let wanted = stored_dtype(self.graph.ty(value).dtype);
        let map = self.map(value);
        if stored_dtype(map.dtype) == wanted {
            return map;
        }
        // The value shares the storage of a narrower one: write it out in its own type.
        self.tiled(&map, wanted)
    }

    /// A copy of a value in tiles, in an element type of the chip.
    fn tiled(&mut self, map: &Map, dtype: Dtype) -> Map {
        let layout = storage::layout(0, map.shape.len().saturating_sub(1));
        let grid = crate::map::Grid::new(&map.shape, layout, 1);
        let mut tiles = Vec::new();
        for block in 0..grid.n_blocks() {
            tiles.push(self.fill_from(map, &map.shape, &grid, block, 0, dtype));
        }
        Map::tiles(&map.shape, layout, 1, dtype, &tiles)
    }

    /// The maps of values in one element type: 64-bit integers in HBM are narrowed where others are
    /// on chip.
    fn stored_maps(&mut self, values: &[ValueId]) -> Vec<Map> {
        let mut maps: Vec<Map> = values.iter().map(|&value| self.stored_map(value)).collect();
        let n_wide = maps.iter().filter(|map| map.dtype == Dtype::I64).count();
        if n_wide > 0 && n_wide < maps.len() {
            for map in maps.iter_mut().filter(|map| map.dtype == Dtype::I64) {
                *map = self.tiled(map, Dtype::I32);
            }
        }
        maps
    }

    /// Stores what no group has stored. Updates of inputs come last, after everything that reads the
    /// inputs; what an update itself reads of an updated input elsewhere is copied away before.
    fn store_outputs(&mut self) {
        let is_update = |position: usize| self.graph.outputs[position].alias.is_some();
        let (updates, plain): (Vec<usize>, Vec<usize>) = (0..self.graph.outputs.len()).partition(|&at| is_update(at));
        for position in plain {
            let Some(map) = self.begin_output(position) else { continue };
            let dst = self.output_map(position);
            self.store(&dst, &map);
        }
        let mut stores = Vec::new();
        for &position in &updates {
            let Some(map) = self.begin_output(position) else { continue };
            let dst = self.output_map(position);
            let map = if self.reads_updated(&dst, &map) { self.packed_in_hbm(&map) } else { map };
            stores.push((position, dst, map));
        }
        for (position, dst, map) in stores {
            self.locate_output(position);
            self.store(&dst, &map);
        }
    }

    /// The map of an output that is still to be stored.
    fn begin_output(&mut self, position: usize) -> Option<Map> {
        let value = self.graph.outputs[position].value?;
        if self.stored_outputs.contains_key(&position) {
            return None;
        }
        self.locate_output(position);
        Some(self.stored_map(value))
    }

    /// What is emitted next belongs to the node that computes an output.
    fn locate_output(&mut self, position: usize) {
        let value = self.graph.outputs[position].value;
        let producer = value.and_then(|value| self.graph.producer(value));
        self.current_locations = producer.map(|(_, node)| node.locations.clone()).unwrap_or_default();
    }

    fn store(&mut self, dst: &Map, map: &Map) {
        if dst.dtype != Dtype::I64 || map.dtype == Dtype::I64 {
            return self.copy_map(dst, map);
        }
        // Sign words are computed on chip.
        let on_chip = map.pieces.iter().all(|piece| matches!(piece.base, Base::Tile(_)));
        let map = if on_chip { map.clone() } else { self.tiled(map, map.dtype) };
        self.copy_map(dst, &map);
        self.store_high_words(dst, &map);
    }

    /// True where a map reads an element of an updated input from another place than it is stored to.
    fn reads_updated(&self, dst: &Map, map: &Map) -> bool {
        let is_updated = |piece: &Piece| match piece.base {
            Base::Hbm(tensor) => matches!(self.program.tensor(tensor).kind, HbmKind::Updated { .. }),
            Base::Tile(_) => false,
        };
        dst.pieces.iter().any(|to| {
            let from = map.cut(&to.start, &to.extents());
            from.iter().any(|from| is_updated(from) && !storage::restrict(to, from).is_same_place(from))
        })
    }

    /// Declares the tensor of an output, which is an input's where the output updates it, and gives
    /// its map.
    fn output_map(&mut self, position: usize) -> Map {
        let output = &self.graph.outputs[position];
        let value = output.value.expect("only outputs with a value are stored");
        let ty = self.graph.ty(value);
        let strides = strides_or_packed(output.strides.as_deref(), &ty.shape);
        let is_updated = |tensor: &ir::program::HbmTensor| matches!(tensor.kind, HbmKind::Updated { input: _, output } if output as usize == position);
        if let Some(updated) = output.alias.and_then(|_| self.program.tensors.iter().position(is_updated)) {
            return Map::hbm(ir::program::HbmId(updated as u32), ty.dtype, &ty.shape, &strides);
        }
        let size = buffer_bytes(&ty.shape, &strides, ty.dtype);
        let kind = HbmKind::Output(position as u32);
        let tensor = self.new_tensor(format!("output{position}"), kind, ty.dtype, &ty.shape, size);
        Map::hbm(tensor, ty.dtype, &ty.shape, &strides)
    }

    /// Where a value is stored as an output while it is computed; `None` where it is no output, or
    /// one that updates an input that may still be read.
    fn output_of(&mut self, value: ValueId) -> Option<Map> {
        let is_plain = |output: &ir::graph::GraphOutput| output.value == Some(value) && output.alias.is_none();
        let position = self.graph.outputs.iter().position(is_plain)?;
        let map = self.output_map(position);
        self.stored_outputs.insert(position, value);
        Some(map)
    }

    /// The sign words of 64-bit integers that are 32 bits wide on chip.
    fn store_high_words(&mut self, dst: &Map, src: &Map) {
        for to in &dst.pieces {
            for from in src.cut(&to.start, &to.extents()) {
                let part = storage::restrict(to, &from);
                self.store_sign_words(&part, &from);
            }
        }
    }

    fn store_sign_words(&mut self, to: &Piece, from: &Piece) {
        let Base::Tile(tile) = from.base else { return };
        let info = self.program.tile(tile).clone();
        let n_elements = info.bytes_per_partition as usize / 4;
        let signs = self.new_tile("sign", ir::program::Space::Sbuf, Dtype::I32, info.n_partitions, n_elements);
        let (dst, data) = (self.whole(signs), self.whole(tile));
        let zero = ir::program::ScalarOperand::Immediate(0.0);
        let minus_one = ir::program::ScalarOperand::Immediate(-1.0);
        let kind = InstructionKind::TensorScalar {
            dst,
            data,
            op0: ir::program::AluOp::Less,
            operand0: zero,
            reverse0: false,
            second: Some((ir::program::AluOp::Multiply, minus_one, false)),
        };
        self.emit(Engine::Dve, kind);
        let source = Piece { base: Base::Tile(signs), ..from.clone() };
        let dst = high_words(to.access(Dtype::I64));
        let src = source.access(Dtype::I32);
        let queue = self.copy_queue();
        self.emit(Engine::Sp, InstructionKind::Dma { dst, src, queue, gather: None });
    }

    /// Removes tiles that nothing made: parts of results that nothing reads.
    fn drop_unused_tiles(&mut self) {
        let n_tiles = self.program.tiles.len();
        let mut is_used = vec![false; n_tiles];
        for instruction in &mut self.program.instructions {
            instruction.kind.for_each_tile_mut(&mut |tile| is_used[tile.index()] = true);
        }
        let mut next = 0;
        let numbers: Vec<u32> = is_used
            .iter()
            .map(|&used| {
                next += u32::from(used);
                next.wrapping_sub(1)
            })
            .collect();
        if next as usize == n_tiles {
            return;
        }
        let mut used = is_used.into_iter();
        self.program.tiles.retain(|_| used.next().unwrap_or(false));
        for instruction in &mut self.program.instructions {
            instruction.kind.for_each_tile_mut(&mut |tile| *tile = TileId(numbers[tile.index()]));
        }
    }

    fn stats(&self) -> LowerStats {
        let instructions = &self.program.instructions;
        let is_move = |kind: &InstructionKind| match kind {
            InstructionKind::Dma { dst, src, .. } => dst.hbm().is_none() && src.hbm().is_none(),
            _ => false,
        };
        LowerStats {
            n_instructions: instructions.len(),
            n_tiles: self.program.tiles.len(),
            n_moves: instructions.iter().filter(|instruction| is_move(&instruction.kind)).count(),
            n_transposes: instructions
                .iter()
                .filter(|instruction| matches!(instruction.kind, InstructionKind::Transpose { .. }))
                .count(),
        }
    }

    /// True where a value is computed by the group that has not been emitted yet.
    fn in_group(&self, value: ValueId) -> bool {
        let ValueDef::Result { node, .. } = self.graph.def(self.root(value)) else { return false };
        self.group.as_ref().is_some_and(|group| group.nodes.contains(&node))
    }

    fn define_tiles(&mut self, value: ValueId, set: TileSet) {
        self.storage[value.index()] = Some(Storage::Tiles(set));
    }
}

/// By value: the nodes that read it, each once.
fn readers(graph: &Graph) -> Vec<SmallVec<[NodeId; 2]>> {
    let mut readers: Vec<SmallVec<[NodeId; 2]>> = vec![SmallVec::new(); graph.n_values()];
    for (id, node) in graph.nodes() {
        for &operand in &node.operands {
            if readers[operand.index()].last() != Some(&id) {
                readers[operand.index()].push(id);
            }
        }
    }
    readers
}

/// A name as kernel objects can hold it: a NUL ends their names.
fn without_nul(name: &str) -> String {
    name.replace('\0', "\u{fffd}")
}

fn strides_or_packed(strides: Option<&[i64]>, shape: &[usize]) -> SmallVec<[i64; 6]> {
    match strides {
        Some(strides) => SmallVec::from_slice(strides),
        None => packed_strides(shape).iter().map(|&step| step as i64).collect(),
    }
}

/// Bytes from the first to one past the last element.
fn buffer_bytes(shape: &[usize], strides: &[i64], dtype: Dtype) -> u64 {
    if shape.contains(&0) {
        return 0;
    }
    let last: i64 = shape.iter().zip(strides).map(|(&count, &step)| (count as i64 - 1) * step).sum();
    (last as u64 + 1) * dtype.size_bytes() as u64
}

/// Little-endian elements of an integer or float type.
fn encode_integers(values: impl Iterator<Item = i64>, dtype: Dtype) -> Arc<[u8]> {
    let mut bytes = Vec::new();
    for value in values {
        match dtype {
            Dtype::F32 => bytes.extend((value as f32).to_le_bytes()),
            _ => bytes.extend(&value.to_le_bytes()[..dtype.size_bytes()]),
        }
    }
    bytes.into()
}
