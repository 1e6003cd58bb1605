//! Large contractions: the order of their tile loops, chosen by the traffic that it causes.
//!
//! A pass covers so many rows that the left operand of the pass fits on chip; within it the columns
//! go 512 at a time, and the weights of these columns pass by once. Where the left operand of all
//! rows does not fit, either the weights pass by several times, or the sum is cut: its parts are
//! added up on chip for a range of columns, and the left operand passes by once per range. Up to
//! four blocks of rows share what passes by, each in a PSUM bank of its own.

use std::ops::Range;
use std::rc::Rc;

use ir::graph::NodeId;
use ir::ops::OpClass;
use ir::program::{AluOp, Engine, InstructionKind, Space, TileId, TileView};
use ir::{Dtype, Node, Op, ValueId};
use smallvec::{SmallVec, smallvec};

use super::Lowerer;
use super::contraction::Contraction;
use super::lazy::Unit;
use super::panels::PanelSource;
use super::storage::{Storage, contiguous, layout, stored_dtype, view};
use crate::map::{Grid, Map, N_PARTITIONS, tile_pieces};

/// Operands and result above this share of SBUF are worth the care.
const LARGE_SHARE: usize = 16;

/// Operands and results up to which transfers are small: a short program gains more from an early
/// first product than it loses by more transfers.
const SHORT_BYTES: usize = 64 << 20;

/// Blocks of rows that read one panel of the other operand while it passes by. Twice as many PSUM
/// banks exist: the next columns begin while these are evicted.
const ROW_BLOCKS: usize = 4;

/// Rows of a pass at most, and of the left operand in one panel.
const MAX_PASS_ROWS: usize = 1024;

/// Rows up to which sums are added up on chip.
const MAX_SUM_ROWS: usize = 2048;

/// Percent of SBUF that the left operand of a pass may take: two contractions of the same operand
/// stream their right operands at the same time, and their results wait for one another.
const RESIDENT_PERCENT: usize = 40;

/// Percent of SBUF that sums may take that wait for more, and with what is added to them. The rest
/// lets the next operands come early.
const SUMS_PERCENT: usize = 50;
const ADDED_PERCENT: usize = 75;

/// Percent of SBUF that the right operand may take to stay on chip over all passes.
const KEPT_PERCENT: usize = 40;

/// A contraction whose result is made in parts.
#[derive(Debug)]
pub(super) struct Blocked {
    node: NodeId,
    contraction: Contraction,
    lhs: PanelSource,
    rhs: PanelSource,
    order: Order,
    /// By block of rows, then range of columns.
    tiles: Vec<TileId>,
    /// Columns of a tile.
    tile_columns: usize,
    /// What is made together.
    units: Vec<Vec<Part>>,
}

/// Rows and columns whose sums are formed together.
#[derive(Clone, Debug)]
struct Part {
    blocks: Range<usize>,
    columns: Range<usize>,
    /// Counts what passes by: the right operand, or where sums are added up the left one.
    pass: usize,
}

/// How the sum is formed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Order {
    /// Whole sums in PSUM, passes of so many rows.
    Whole { pass_rows: usize, keeps_rhs: bool },
    /// Sums of so many panels of the contraction axis, added up in SBUF for a range of columns.
    Added { columns: usize, n_panels: usize },
}

impl Lowerer<'_> {
    /// Declares a large contraction's result; false where it is not large or does not lie right.
    pub(super) fn blocked_contraction(&mut self, id: NodeId, node: &Node, contraction: &Contraction) -> bool {
        let Contraction { n_rows, n_inner, n_columns, n_batches, .. } = *contraction;
        let result = node.results[0];
        let ty = self.graph.ty(result).clone();
        let size = contraction.operand_dtype.size_bytes();
        let bytes = (n_rows + n_columns) * n_inner * size + ty.size_bytes();
        if n_batches != 1 || bytes < self.large_bytes() || n_inner == 0 {
            return false;
        }
        let dtype = contraction.operand_dtype;
        let (lhs_shape, rhs_shape) = contraction.stored_shapes();
        let lhs = self.panel_source(contraction.lhs, lhs_shape, contraction.transpose_lhs, dtype);
        let rhs = self.panel_source(contraction.rhs, rhs_shape, !contraction.transpose_rhs, dtype);
        let (Some(mut lhs), Some(mut rhs)) = (lhs, rhs) else { return false };
        let bank = self.bank_columns();
        let whole_rows = self.is_read_by_rows(result, n_columns);
        let order = self.order(contraction, &lhs, &rhs);
        let tile_columns = if whole_rows { n_columns } else { bank.min(n_columns) };
        rhs.free_length = bank;
        if bytes < SHORT_BYTES && n_rows >= ROW_BLOCKS * N_PARTITIONS && lhs.is_loaded() && rhs.is_loaded() {
            (lhs.inner_blocks, rhs.inner_blocks) = (1, 1);
        }
        lhs.free_length = match order {
            Order::Whole { .. } if lhs.is_in_device_memory() => ROW_BLOCKS * N_PARTITIONS,
            Order::Whole { pass_rows, .. } => pass_rows,
            Order::Added { .. } => MAX_PASS_ROWS.min(n_rows.next_multiple_of(N_PARTITIONS)),
        };
        let operands = lhs.tiles().chain(rhs.tiles());
        let grid = Grid::new(&ty.shape, layout(0, ty.rank() - 1), 1);
        let tiles = self.declare_blocks(result, &grid, tile_columns);
        let units = units(order, whole_rows, n_rows, n_columns, bank);
        let depth = self.depth_above(operands);
        let contraction = contraction.clone();
        let blocked = Rc::new(Blocked { node: id, contraction, lhs, rhs, order, tiles, tile_columns, units });
        for unit in 0..blocked.units.len() {
            let made: Vec<TileId> = blocked.units[unit].iter().flat_map(|part| blocked.tiles_of(part)).collect();
            self.put_off(Unit::Contraction { blocked: Rc::clone(&blocked), unit }, &made, depth, 0);
        }
        true
    }

    /// Bytes of operands and results from which on they are made in parts.
    pub(super) fn large_bytes(&self) -> usize {
        self.target.sbuf_usable_bytes as usize * N_PARTITIONS / LARGE_SHARE
    }

    /// Columns of f32 that a PSUM bank holds.
    pub(super) fn bank_columns(&self) -> usize {
        (self.target.psum_bank_bytes / 4) as usize
    }

    /// Tiles of 128 rows by a range of columns for a result that is a matrix but for its shape.
    pub(super) fn declare_blocks(&mut self, result: ValueId, grid: &Grid, tile_columns: usize) -> Vec<TileId> {
        let ty = self.graph.ty(result).clone();
        let (dtype, last) = (stored_dtype(ty.dtype), ty.rank() - 1);
        let n_columns = ty.shape[last];
        let mut tiles = Vec::new();
        let mut map = Map { shape: ty.shape.clone(), dtype, pieces: Vec::new() };
        for block in 0..grid.n_blocks() {
            for first in (0..n_columns).step_by(tile_columns) {
                let count = tile_columns.min(n_columns - first);
                let tile = self.new_tile("value", Space::Sbuf, dtype, grid.rows(block).len() as u8, count);
                tiles.push(tile);
                for mut piece in tile_pieces(&ty.shape, grid, block, 0, tile) {
                    piece.start[last] = first;
                    piece.axes[last].count = count;
                    map.pieces.push(piece);
                }
            }
        }
        self.storage[result.index()] = Some(Storage::Map(map));
        tiles
    }

    /// True where something that reads whole rows of a result reads it without another copy between.
    fn is_read_by_rows(&self, value: ValueId, n_columns: usize) -> bool {
        let mut pending: SmallVec<[ValueId; 8]> = smallvec![value];
        let mut seen = 0;
        while let Some(next) = pending.pop() {
            seen += 1;
            if seen > 16 {
                return true;
            }
            for &reader in &self.readers[next.index()] {
                let node = self.graph.node(reader);
                let frame = crate::place::frame_shape(self.graph, node);
                let reads_rows = frame.last() == Some(&n_columns);
                match node.op.class() {
                    OpClass::Reduction | OpClass::Scan | OpClass::Fused if reads_rows => return true,
                    OpClass::Pointwise if reads_rows => pending.push(node.results[0]),
                    OpClass::Movement if matches!(node.op, Op::Reshape(_)) => {
                        if self.graph.ty(node.results[0]).shape.last() == Some(&n_columns) {
                            pending.push(node.results[0]);
                        }
                    }
                    OpClass::Pointwise
                    | OpClass::Reduction
                    | OpClass::Scan
                    | OpClass::Movement
                    | OpClass::Indexing
                    | OpClass::Creation
                    | OpClass::Contraction
                    | OpClass::Fused => {}
                }
            }
        }
        false
    }

    /// The order that moves fewest bytes.
    fn order(&self, contraction: &Contraction, lhs: &PanelSource, rhs: &PanelSource) -> Order {
        let Contraction { n_rows, n_inner, n_columns, .. } = *contraction;
        let size = contraction.operand_dtype.size_bytes();
        let usable = self.target.sbuf_usable_bytes as usize;
        let n_inner_blocks = n_inner.div_ceil(N_PARTITIONS);
        let resident = usable * RESIDENT_PERCENT / 100;
        let group = ROW_BLOCKS * N_PARTITIONS;
        let keeps_rhs = n_inner_blocks * n_columns * size <= usable * KEPT_PERCENT / 100;
        if keeps_rhs {
            return Order::Whole { pass_rows: group, keeps_rhs };
        }
        let fitting = resident / (n_inner_blocks * size) / group * group;
        let whole = fitting.clamp(group, MAX_PASS_ROWS).min(n_rows.next_multiple_of(group));
        let n_passes = n_rows.div_ceil(whole);
        let balanced = n_rows.div_ceil(n_passes).next_multiple_of(group);
        let (lhs_bytes, rhs_bytes) = (n_rows * n_inner * size, n_inner * n_columns * size);
        let is_computed = |source: &PanelSource, bytes: usize| if source.is_in_device_memory() { 0 } else { bytes };
        let whole_bytes = lhs_bytes + n_passes * rhs_bytes + (n_passes - 1).min(1) * is_computed(rhs, rhs_bytes);

        let bank = self.bank_columns();
        let sums = n_rows.div_ceil(N_PARTITIONS) * 4;
        let columns = (usable * SUMS_PERCENT / 100 / sums / bank * bank).min(n_columns.next_multiple_of(bank));
        if columns == 0 || n_rows > MAX_SUM_ROWS || n_passes == 1 {
            return Order::Whole { pass_rows: balanced, keeps_rhs };
        }
        let n_ranges = n_columns.div_ceil(columns);
        let added_bytes = n_ranges * lhs_bytes + (n_ranges - 1).min(1) * is_computed(lhs, lhs_bytes) + rhs_bytes;
        if added_bytes >= whole_bytes {
            return Order::Whole { pass_rows: balanced, keeps_rhs };
        }
        let columns = n_columns.div_ceil(n_ranges).next_multiple_of(bank);
        // What is left of SBUF holds the parts of both operands that are being read and the next.
        let panel_bytes = lhs.inner_blocks * (n_rows + columns) * size;
        let n_panels = (usable * ADDED_PERCENT / 100 - sums * columns) / (2 * panel_bytes).max(1);
        Order::Added { columns, n_panels: n_panels.max(1) }
    }

    /// Emits a part of a contraction's result.
    pub(super) fn contraction_unit(&mut self, blocked: &Blocked, unit: usize) {
        for part in &blocked.units[unit] {
            self.contraction_part(blocked, part);
        }
    }

    fn contraction_part(&mut self, blocked: &Blocked, part: &Part) {
        self.locate(blocked.node);
        match blocked.order {
            Order::Whole { .. } => {
                for (columns, blocks) in blocked.steps(part, self.bank_columns()) {
                    let panels = 0..blocked.lhs.n_inner_panels();
                    let products = self.products(blocked, part, &panels, &columns, &blocks);
                    for (block, product) in blocks.zip(products) {
                        let dst = self.product_view(blocked, block, &columns);
                        self.evict(&blocked.contraction, dst, product, columns.start);
                    }
                }
            }
            Order::Added { n_panels, .. } => self.added_part(blocked, part, n_panels),
        }
    }

    fn added_part(&mut self, blocked: &Blocked, part: &Part, n_panels: usize) {
        let n_all = blocked.lhs.n_inner_panels();
        // The sums take most of the memory: what makes the left operand must be done with before.
        if !blocked.lhs.is_in_device_memory() && part.is_first() {
            let panel_blocks = blocked.lhs.free_length / N_PARTITIONS;
            for first in part.blocks.clone().step_by(panel_blocks) {
                let last = part.blocks.end.min(first + panel_blocks);
                for panel in 0..n_all {
                    // The PE turns what is there while the next rows are still being computed.
                    if panel + 1 < n_all {
                        self.make_rows(&blocked.lhs, panel + 1, first..last);
                    }
                    self.make_panel(blocked, 0, panel, first..last);
                    self.stash_panel(&blocked.lhs, panel, first / panel_blocks);
                }
            }
            self.locate(blocked.node);
        }
        let sums: Vec<TileId> = part
            .blocks
            .clone()
            .map(|block| {
                let n_rows = blocked.rows(block).len() as u8;
                self.new_tile("sum", Space::Sbuf, Dtype::F32, n_rows, part.columns.len())
            })
            .collect();
        for first in (0..n_all).step_by(n_panels) {
            let panels = first..n_all.min(first + n_panels);
            for (columns, blocks) in blocked.steps(part, self.bank_columns()) {
                let products = self.products(blocked, part, &panels, &columns, &blocks);
                for (block, product) in blocks.zip(products) {
                    let offset = (columns.start - part.columns.start) as u32;
                    let tile = sums[block - part.blocks.start];
                    let sum = view(tile, product.n_partitions, offset, contiguous(columns.len()), Dtype::F32);
                    self.add_product(blocked, (block, &columns), sum, product, (first == 0, panels.end == n_all));
                }
            }
        }
    }

    /// Makes what some blocks of rows of the left operand hold in a panel.
    fn make_panel(&mut self, blocked: &Blocked, pass: usize, panel: usize, blocks: Range<usize>) {
        for inner in 0..blocked.lhs.inner(panel).len().div_ceil(N_PARTITIONS) {
            for block in blocks.clone() {
                let view = self.panel_view(&blocked.lhs, pass, panel, inner, blocked.rows(block));
                self.make_tile(view.tile);
            }
        }
    }

    /// Adds a product to its sum; the first one is copied, the last one completes the result.
    fn add_product(
        &mut self,
        blocked: &Blocked,
        (block, columns): (usize, &Range<usize>),
        sum: TileView,
        product: TileView,
        (is_first, is_last): (bool, bool),
    ) {
        let dst = is_last.then(|| self.product_view(blocked, block, columns));
        match (is_first, dst) {
            (true, None) => self.emit(Engine::Dve, InstructionKind::TensorCopy { dst: sum, src: product }),
            (true, Some(dst)) => self.evict(&blocked.contraction, dst, product, columns.start),
            (false, None) => {
                let kind = InstructionKind::TensorTensor { dst: sum.clone(), lhs: product, rhs: sum, op: AluOp::Add };
                self.emit(Engine::Dve, kind);
            }
            (false, Some(dst)) if blocked.contraction.is_plain() => {
                let kind = InstructionKind::TensorTensor { dst, lhs: product, rhs: sum, op: AluOp::Add };
                self.emit(Engine::Dve, kind);
            }
            (false, Some(dst)) => {
                let total = sum.clone();
                let kind = InstructionKind::TensorTensor { dst: sum.clone(), lhs: product, rhs: sum, op: AluOp::Add };
                self.emit(Engine::Dve, kind);
                self.evict(&blocked.contraction, dst, total, columns.start);
            }
        }
    }

    /// Products of blocks of rows and columns over some panels, one in each PSUM bank.
    fn products(
        &mut self,
        blocked: &Blocked,
        part: &Part,
        panels: &Range<usize>,
        columns: &Range<usize>,
        blocks: &Range<usize>,
    ) -> Vec<TileView> {
        let (lhs, rhs) = (&blocked.lhs, &blocked.rhs);
        let rows = |block: usize| blocked.rows(block);
        let (lhs_pass, rhs_pass) = match blocked.order {
            Order::Whole { .. } => (0, part.pass),
            Order::Added { .. } => (part.pass, 0),
        };
        // Operands first: what makes them must not come between the matmuls of a sum. What is only loaded
        // comes panel by panel as the sum needs it, and not before all that is computed.
        let inner_blocks = |panel: usize| (0..lhs.inner(panel).len().div_ceil(N_PARTITIONS)).map(move |at| (panel, at));
        let places: Vec<(usize, usize)> = panels.clone().flat_map(inner_blocks).collect();
        if !self.comes_by_transfers(lhs) {
            panels.clone().for_each(|panel| self.make_panel(blocked, lhs_pass, panel, blocks.clone()));
        }
        if !self.comes_by_transfers(rhs) {
            for &(panel, inner) in &places {
                let moving = self.panel_view(rhs, rhs_pass, panel, inner, columns.clone());
                self.make_tile(moving.tile);
            }
        }
        self.locate(blocked.node);
        let products: Vec<TileView> = blocks
            .clone()
            .map(|block| {
                let tile = self.new_tile("product", Space::Psum, Dtype::F32, rows(block).len() as u8, columns.len());
                self.whole(tile)
            })
            .collect();
        let matmul = |lowerer: &mut Self, block: usize, step: usize| {
            let (panel, inner) = places[step];
            let stationary = lowerer.panel_view(lhs, lhs_pass, panel, inner, rows(blocks.start + block));
            let moving = lowerer.panel_view(rhs, rhs_pass, panel, inner, columns.clone());
            let dst = products[block].clone();
            lowerer.emit(Engine::Pe, InstructionKind::Matmul { dst, stationary, moving, accumulate: step > 0 });
        };
        // What comes from device memory for the first blocks is shared by all of them as it comes;
        // later blocks find it there, and are better done one after the other.
        let is_first = blocks.start == part.blocks.start;
        if is_first {
            for step in 0..places.len() {
                (0..products.len()).for_each(|block| matmul(self, block, step));
            }
        } else {
            for block in 0..products.len() {
                (0..places.len()).for_each(|step| matmul(self, block, step));
            }
        }
        products
    }

    fn product_view(&self, blocked: &Blocked, block: usize, columns: &Range<usize>) -> TileView {
        let tile = blocked.tile(block, columns.start);
        let offset = (columns.start % blocked.tile_columns) as u32;
        let dtype = self.program.tile(tile).dtype;
        view(tile, blocked.rows(block).len() as u8, offset, contiguous(columns.len()), dtype)
    }
}

impl Part {
    fn is_first(&self) -> bool {
        self.columns.start == 0
    }
}

impl Blocked {
    fn rows(&self, block: usize) -> Range<usize> {
        block * N_PARTITIONS..self.contraction.n_rows.min((block + 1) * N_PARTITIONS)
    }

    fn tile(&self, block: usize, column: usize) -> TileId {
        let per_block = self.contraction.n_columns.div_ceil(self.tile_columns);
        self.tiles[block * per_block + column / self.tile_columns]
    }

    fn tiles_of(&self, part: &Part) -> Vec<TileId> {
        let starts = part.columns.clone().step_by(self.tile_columns);
        part.blocks.clone().flat_map(|block| starts.clone().map(move |column| self.tile(block, column))).collect()
    }

    /// Columns of one bank by blocks of rows that are summed at a time.
    fn steps(&self, part: &Part, bank: usize) -> Vec<(Range<usize>, Range<usize>)> {
        let mut steps = Vec::new();
        for first in part.columns.clone().step_by(bank) {
            for block in part.blocks.clone().step_by(ROW_BLOCKS) {
                let columns = first..part.columns.end.min(first + bank);
                steps.push((columns, block..part.blocks.end.min(block + ROW_BLOCKS)));
            }
        }
        steps
    }
}

/// The units of a result, in order: parts that write the same tiles belong together.
fn units(order: Order, whole_rows: bool, n_rows: usize, n_columns: usize, bank: usize) -> Vec<Vec<Part>> {
    let n_blocks = n_rows.div_ceil(N_PARTITIONS);
    let (pass_blocks, columns, keeps_rhs) = match order {
        Order::Whole { pass_rows, keeps_rhs } => {
            (pass_rows / N_PARTITIONS, if whole_rows { n_columns } else { bank }, keeps_rhs)
        }
        Order::Added { columns, .. } => (n_blocks, columns, true),
    };
    let mut parts = Vec::new();
    for (pass, first) in (0..n_blocks).step_by(pass_blocks).enumerate() {
        for start in (0..n_columns).step_by(columns) {
            parts.push(Part {
                blocks: first..n_blocks.min(first + pass_blocks),
                columns: start..n_columns.min(start + columns),
                pass: match order {
                    Order::Whole { .. } if keeps_rhs => 0,
                    Order::Whole { .. } => pass,
                    // The left operand passes by once for each range of columns.
                    Order::Added { columns, .. } => 1 + start / columns,
                },
            });
        }
    }
    match order {
        Order::Added { .. } if whole_rows => vec![parts],
        Order::Added { .. } | Order::Whole { .. } => parts.into_iter().map(|part| vec![part]).collect(),
    }
}
