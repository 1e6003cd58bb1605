//! Attention: scores, softmax and weighted sum of one block of query rows after the other, so that
//! scores never leave the chip.
//!
//! Keys with their features on partitions, and values with their keys on partitions, serve all query
//! heads of a group. A block's scores lie in PSUM; their row maximum and the row sums of their
//! exponentials cost one pass each. The weights are transposed on PE for the second product, which
//! accumulates in PSUM, and rows are divided by their sums on the way out. Keys that PSUM does not
//! hold scores for are taken in chunks, whose sums and products are rescaled to the larger maximum
//! (online softmax); statistics are f32 throughout.

mod masks;
mod operands;
mod rows;

use std::collections::BTreeMap;
use std::ops::Range;

use ir::ops::{Attention, AttentionExtents, EmptyRow};
use ir::program::{AluOp, Engine, InstructionKind, Space, TileId, TileView};
use ir::types::Shape;
use ir::{Dtype, Node, Op};
use smallvec::SmallVec;

use super::Lowerer;
use super::storage::{Storage, contiguous, stored_dtype, view};
use crate::map::{Axis, Base, Map, N_PARTITIONS, Piece};

/// Columns of a result tile that several heads share: enough for DMAs, few enough to spill.
const RESULT_COLUMNS: usize = 512;

/// Banks of PSUM that the scores of a block take at most: half of them, so that the products of the
/// next block need not wait.
const SCORE_BANKS: usize = 4;

/// Query rows that are computed together: consecutive heads of one group, and the same queries of each.
#[derive(Clone, Debug)]
struct RowBlock {
    heads: Range<usize>,
    queries: Range<usize>,
}

impl RowBlock {
    fn n_rows(&self) -> usize {
        self.heads.len() * self.queries.len()
    }
}

/// Rows of a matrix with their columns on partitions, by 128 columns.
type Columns = SmallVec<[TileView; 1]>;

/// Keys and values of one head that a group of query heads shares.
struct Shared {
    head: usize,
    /// By 512 keys, then by 128 features: features on partitions.
    keys: Vec<Columns>,
    /// By 128 keys: keys on partitions.
    values: Vec<TileView>,
}

/// An attention while it is lowered.
struct Context {
    op: Attention,
    extents: AttentionExtents,
    /// Leading dimensions of the query.
    lead: Shape,
    /// Maps of query, key and value with their leading dimensions.
    operands: [Map; 3],
    mask: Option<Map>,
    /// Element types of the first product's operands and of the weights.
    score_dtype: Dtype,
    weight_dtype: Dtype,
    /// Keys whose scores PSUM holds at a time, and columns of one bank.
    n_chunk: usize,
    n_bank: usize,
    /// Exponentials read PSUM and apply the scale; else scores are scaled and masked in SBUF first.
    is_direct: bool,
    triangle: Option<masks::Triangle>,
    /// Columns of the queries that several blocks share, with their head and first query.
    queries: Option<((usize, usize), Columns)>,
    /// Masks on chip, by what they depend on.
    masks: BTreeMap<masks::MaskKey, TileView>,
    results: Results,
}

/// The results while they are written.
struct Results {
    /// Where the first result is stored, if it is an output.
    output: Option<Map>,
    pieces: Vec<Piece>,
    logarithms: Vec<Piece>,
    /// By first query and group of heads: the tile that they share.
    tiles: BTreeMap<(usize, usize), TileId>,
}

impl Lowerer<'_> {
    /// Lowers an attention node.
    pub(super) fn attention(&mut self, node: &Node) {
        let Op::Attention(op) = &node.op else { unreachable!("`{}` is no attention", node.op.name()) };
        let mut context = self.attention_context(node, op);
        let extents = context.extents;
        for first_head in (0..extents.n_heads).step_by(extents.n_group) {
            let head = first_head / extents.n_group;
            let mut shared = Shared { head, keys: Vec::new(), values: Vec::new() };
            for block in row_blocks(&context, first_head) {
                self.row_block(&mut context, &mut shared, &block);
            }
        }
        self.define_results(node, context);
    }

    fn attention_context(&mut self, node: &Node, op: &Attention) -> Context {
        let ty = |position: usize| self.graph.ty(node.operands[position]).clone();
        let (query, key, value) = (ty(0), ty(1), ty(2));
        let dtypes = [0, 1, 2].map(|position| self.physical_dtype(node.operands[position]));
        let half = |dtype: Dtype| dtype.is_half().then_some(dtype);
        let score_dtype = half(dtypes[0]).filter(|_| dtypes[0] == dtypes[1]).unwrap_or(Dtype::F32);
        // Weights of 16 bits are as exact as a result of 16 bits asks for.
        let weight_dtype = half(dtypes[2]).filter(|_| op.dtype.is_half()).unwrap_or(Dtype::F32);
        let n_bank = (self.target.psum_bank_bytes as usize / 4).min(operands::ROWS_TOGETHER);
        let lead = Shape::from_slice(&query.shape[..query.rank() - 2]);
        let mask = node.operands.get(3).map(|&mask| {
            let mut scores = lead.clone();
            scores.extend([query.shape[query.rank() - 2], key.shape[key.rank() - 2]]);
            self.map(mask).expand(&scores)
        });
        let operands = [0, 1, 2].map(|position| self.map(node.operands[position]));
        let output = self.output_of(node.results[0]);
        let mut context = Context {
            op: op.clone(),
            extents: AttentionExtents::of(&query, &key, &value),
            lead,
            operands,
            score_dtype,
            weight_dtype,
            n_chunk: n_bank * SCORE_BANKS,
            n_bank,
            is_direct: mask.is_none() && rows::is_plain_scale(op.scale.get()),
            mask,
            triangle: None,
            queries: None,
            masks: BTreeMap::new(),
            results: Results { output, pieces: Vec::new(), logarithms: Vec::new(), tiles: BTreeMap::new() },
        };
        if op.causal.is_some() {
            context.triangle = Some(self.triangle(&context));
        }
        context
    }

    /// Where a block writes its result rows.
    fn attended_view(&mut self, context: &mut Context, block: &RowBlock) -> TileView {
        let n_values = context.extents.n_values;
        let dtype = stored_dtype(context.op.dtype);
        let n_rows = block.n_rows();
        if block.heads.len() > 1 {
            let tile = self.new_tile("attended", Space::Sbuf, dtype, n_rows as u8, n_values);
            for (position, head) in block.heads.clone().enumerate() {
                let partition = position * block.queries.len();
                context.results.pieces.push(result_piece(context, head, &block.queries, (tile, partition, 0)));
            }
            return view(tile, n_rows as u8, 0, contiguous(n_values), dtype);
        }
        let n_axis = context.lead.last().copied().unwrap_or(1);
        let head = block.heads.start;
        let (batch, at) = (head / n_axis, head % n_axis);
        let n_together = (RESULT_COLUMNS / n_values.max(1)).clamp(1, n_axis);
        let first = at / n_together * n_together;
        let n_columns = n_together.min(n_axis - first) * n_values;
        let key = (block.queries.start, batch * n_axis + first);
        let tile = match context.results.tiles.get(&key) {
            Some(&tile) => tile,
            None => {
                let tile = self.new_tile("attended", Space::Sbuf, dtype, n_rows as u8, n_columns);
                context.results.tiles.insert(key, tile);
                tile
            }
        };
        let offset = (at - first) * n_values;
        context.results.pieces.push(result_piece(context, head, &block.queries, (tile, 0, offset)));
        view(tile, n_rows as u8, offset as u32, contiguous(n_values), dtype)
    }

    /// Stores the last `n_heads` result pieces, if the result is an output.
    fn store_rows(&mut self, context: &Context, n_heads: usize) {
        let Some(output) = &context.results.output else { return };
        let pieces = &context.results.pieces;
        for piece in &pieces[pieces.len() - n_heads..] {
            let src = Map { shape: output.shape.clone(), dtype: context.op.dtype, pieces: vec![piece.clone()] };
            self.copy_map(output, &src);
        }
    }

    fn define_results(&mut self, node: &Node, context: Context) {
        let dtype = stored_dtype(context.op.dtype);
        let Results { pieces, logarithms, .. } = context.results;
        let shape = self.graph.ty(node.results[0]).shape.clone();
        self.storage[node.results[0].index()] = Some(Storage::Map(Map { shape, dtype, pieces }));
        if let Some(&result) = node.results.get(1) {
            let shape = self.graph.ty(result).shape.clone();
            self.storage[result.index()] = Some(Storage::Map(Map { shape, dtype: Dtype::F32, pieces: logarithms }));
        }
    }

    /// Rows without a key, all of a block.
    fn empty_block(&mut self, context: &mut Context, block: &RowBlock) {
        let dst = self.attended_view(context, block);
        let (value, logarithm) = match context.op.empty {
            EmptyRow::Zero => (0.0, 0.0),
            EmptyRow::Nan => (f32::NAN, f32::NAN),
        };
        self.emit(Engine::Dve, InstructionKind::Memset { dst, value });
        if context.op.logsumexp {
            let dst = self.logarithm_view(context, block);
            self.emit(Engine::Dve, InstructionKind::Memset { dst, value: logarithm });
        }
        self.store_rows(context, block.heads.len());
    }

    /// Where a block writes the logarithms of its sums.
    fn logarithm_view(&mut self, context: &mut Context, block: &RowBlock) -> TileView {
        let n_rows = block.n_rows();
        let tile = self.new_tile("logarithms", Space::Sbuf, Dtype::F32, n_rows as u8, 1);
        for (position, head) in block.heads.clone().enumerate() {
            let mut piece = result_piece(context, head, &block.queries, (tile, position * block.queries.len(), 0));
            piece.start.pop();
            piece.axes.pop();
            context.results.logarithms.push(piece);
        }
        view(tile, n_rows as u8, 0, SmallVec::new(), Dtype::F32)
    }
}

/// The queries of a group of heads, at most 128 rows at a time.
fn row_blocks(context: &Context, first_head: usize) -> Vec<RowBlock> {
    let AttentionExtents { n_group, n_queries, .. } = context.extents;
    let last_head = first_head + n_group;
    // A block with rows that see nothing, or with masks of two kinds, is one head's.
    let is_simple = context.op.causal.is_none_or(|offset| offset >= 0 && context.is_direct);
    let n_together = if is_simple { (N_PARTITIONS / n_queries.max(1)).clamp(1, n_group) } else { 1 };
    let mut blocks = Vec::new();
    for head in (first_head..last_head).step_by(n_together) {
        let heads = head..last_head.min(head + n_together);
        for start in (0..n_queries).step_by(N_PARTITIONS) {
            blocks.push(RowBlock { heads: heads.clone(), queries: start..n_queries.min(start + N_PARTITIONS) });
        }
    }
    blocks
}

/// The queries of one head in a tile, from this partition and element on.
fn result_piece(
    context: &Context,
    head: usize,
    queries: &Range<usize>,
    (tile, partition, offset): (TileId, usize, usize),
) -> Piece {
    let mut start = operands::lead_index(&context.lead, head);
    start.extend([queries.start, 0]);
    let one = Axis { count: 1, partition_step: 0, step: 0 };
    let mut axes: SmallVec<[Axis; 6]> = SmallVec::from_elem(one, context.lead.len());
    axes.push(Axis { count: queries.len(), partition_step: 1, step: 0 });
    axes.push(Axis { count: context.extents.n_values, partition_step: 0, step: 1 });
    Piece { start, base: Base::Tile(tile), partition: partition as i64, offset: offset as i64, axes }
}

/// dst = data op number, for vectors of one element per partition too.
pub(super) fn scalar(dst: &TileView, data: &TileView, op0: AluOp, number: f32) -> InstructionKind {
    InstructionKind::TensorScalar {
        dst: dst.clone(),
        data: data.clone(),
        op0,
        operand0: ir::program::ScalarOperand::Immediate(number),
        reverse0: false,
        second: None,
    }
}
