//! Reductions and scans along the free axis.

use ir::program::{AluOp, Dim, Engine, InstructionKind, ScalarOperand, Space, TileView};
use ir::{Dtype, Node, Op};
use smallvec::SmallVec;

use super::Lowerer;
use super::rowwise::GroupPlan;
use super::storage::{Frame, contiguous, repeat, view};

impl Lowerer<'_> {
    /// Sum, mean or extreme over the last axes of every row of the tile.
    pub(super) fn reduce_rows(&mut self, node: &Node, frame: &Frame, plan: &GroupPlan) {
        let data = self.full_operand(node.operands[0], frame);
        let axes = crate::place::combined_axes(self.graph, node);
        let n_reduced: usize = axes.iter().map(|&axis| frame.shape[axis]).product();
        let dst = self.dst(node, frame, plan);
        self.reduce_view(node, dst, data, n_reduced);
    }

    /// Reduces runs of `n_reduced` elements of a view to one element of `dst` each.
    pub(super) fn reduce_view(&mut self, node: &Node, dst: TileView, data: TileView, n_reduced: usize) {
        let op = match node.op {
            Op::ReduceSum(_) | Op::ReduceMean(_) => AluOp::Add,
            Op::ReduceMax(_) | Op::Any(_) => AluOp::Max,
            Op::ReduceMin(_) | Op::All(_) => AluOp::Min,
            _ => unreachable!("`{}` is not a reduction", node.op.name()),
        };
        if op != AluOp::Add {
            let data = self.split_rows(data, n_reduced);
            self.emit_reduce(dst, data, op, false);
            return;
        }
        if !matches!(node.op, Op::ReduceMean(_)) {
            self.sum(dst, data, n_reduced);
            return;
        }
        let sum = self.column_like(&dst);
        self.sum(sum.clone(), data, n_reduced);
        self.mean_of_sum(dst, sum, n_reduced);
    }

    /// Sums of runs of `n_reduced` elements. f32 elements are summed as bf16 parts, whose sum hardly
    /// ever rounds, and rests: a sum in f32 alone loses what cancels. Where the rests' sum is not a
    /// number (infinite elements), the parts' sum stands.
    fn sum(&mut self, dst: TileView, data: TileView, n_reduced: usize) {
        if data.dtype != Dtype::F32 || n_reduced <= 2 {
            let data = self.split_rows(data, n_reduced);
            self.emit_reduce(dst, data, AluOp::Add, false);
            return;
        }
        let (high, low) = self.split(&data);
        let [total, rests] = std::array::from_fn(|_| self.column_like(&dst));
        for (result, part) in [(&total, high), (&rests, low)] {
            let part = self.split_rows(part, n_reduced);
            self.emit_reduce(result.clone(), part, AluOp::Add, false);
        }
        self.add_rests(&total, &rests);
        self.emit(Engine::Dve, InstructionKind::TensorCopy { dst, src: total });
    }

    /// total = total + rests, where the rests are numbers.
    pub(super) fn add_rests(&mut self, total: &TileView, rests: &TileView) {
        let corrected = self.column_like(total);
        self.pair(&corrected, total, rests, AluOp::Add);
        let tile = self.new_tile("scratch", Space::Sbuf, Dtype::Bool, total.n_partitions, total.n_elements());
        let predicate = self.whole(tile);
        self.pair(&predicate, rests, rests, AluOp::Equal);
        let kind = InstructionKind::TensorCopyPredicated { dst: total.clone(), src: corrected, predicate };
        self.emit(Engine::Dve, kind);
    }

    /// A new f32 tile with as many elements as a view.
    pub(super) fn column_like(&mut self, like: &TileView) -> TileView {
        let tile = self.new_tile("scratch", Space::Sbuf, Dtype::F32, like.n_partitions, like.n_elements());
        self.whole(tile)
    }

    /// dst = sum / n, as exact as a division.
    pub(super) fn mean_of_sum(&mut self, dst: TileView, sum: TileView, n_summed: usize) {
        if n_summed.is_power_of_two() {
            let operand0 = ScalarOperand::Immediate(1.0 / n_summed as f32);
            let op0 = AluOp::Multiply;
            let kind = InstructionKind::TensorScalar { dst, data: sum, op0, operand0, reverse0: false, second: None };
            self.emit(Engine::Dve, kind);
            return;
        }
        let divisor = self.splat_vector(n_summed as f64, Dtype::F32, dst.n_partitions);
        let divisor = repeat(&divisor, dst.n_elements());
        self.plain_quotient(dst, sum, divisor);
    }

    pub(super) fn emit_reduce(&mut self, dst: TileView, data: TileView, op: AluOp, negate: bool) {
        self.emit(Engine::Dve, InstructionKind::TensorReduce { dst, data, op, n_reduced_dims: 1, negate });
    }

    /// A view whose last dimension is a run of `n_reduced` elements; copied where its dimensions do
    /// not allow that.
    pub(super) fn split_rows(&mut self, data: TileView, n_reduced: usize) -> TileView {
        let n_elements = data.n_elements();
        let n_kept = n_elements / n_reduced;
        let (first, rest) = match data.dims.as_slice() {
            [] => (Dim { step: 1, count: 1 }, None),
            [only] => (*only, None),
            [.., last] if usize::from(last.count) == n_reduced => return data,
            [outer, last] => (*outer, Some(*last)),
            _ => return self.packed_rows(data, n_reduced),
        };
        if rest.is_some() {
            return self.packed_rows(data, n_reduced);
        }
        let mut dims: SmallVec<[Dim; 4]> = SmallVec::new();
        let Ok(step) = i16::try_from(i64::from(first.step) * n_reduced as i64) else {
            return self.packed_rows(data, n_reduced);
        };
        if n_kept != 1 {
            dims.push(Dim { step, count: n_kept as u16 });
        }
        dims.push(Dim { step: first.step, count: n_reduced as u16 });
        TileView { dims, ..data }
    }

    fn packed_rows(&mut self, data: TileView, n_reduced: usize) -> TileView {
        let n_elements = data.n_elements();
        let tile = self.new_tile("scratch", Space::Sbuf, data.dtype, data.n_partitions, n_elements);
        let packed = view(tile, data.n_partitions, 0, contiguous(n_elements), data.dtype);
        self.emit(Engine::Dve, InstructionKind::TensorCopy { dst: packed.clone(), src: data });
        let dims = [
            Dim { step: n_reduced as i16, count: (n_elements / n_reduced) as u16 },
            Dim { step: 1, count: n_reduced as u16 },
        ];
        TileView { dims: SmallVec::from_slice(&dims), ..packed }
    }

    /// Running sums: r[i] = 1 * r[i-1] + x[i], one scan per row.
    pub(super) fn cumsum(&mut self, node: &Node, frame: &Frame, plan: &GroupPlan) {
        let data = self.full_operand(node.operands[0], frame);
        let dst = self.dst(node, frame, plan);
        let n_row = frame.shape[frame.shape.len() - 1];
        let ones = self.splat_vector(1.0, Dtype::F32, frame.n_partitions());
        for row in 0..data.n_elements() / n_row {
            let (Some(data1), Some(dst)) = (row_of(&data, row, n_row), row_of(&dst, row, n_row)) else {
                let packed = self.packed_rows(data, n_row);
                let packed = TileView { dims: contiguous(packed.n_elements()), ..packed };
                return self.cumsum_packed(&packed, &dst, n_row, &ones);
            };
            self.scan(dst, data1, repeat(&ones, n_row));
        }
    }

    fn cumsum_packed(&mut self, data: &TileView, dst: &TileView, n_row: usize, ones: &TileView) {
        for row in 0..data.n_elements() / n_row {
            let data1 = row_of(data, row, n_row).expect("a packed view has rows");
            let dst = row_of(dst, row, n_row).expect("a packed view has rows");
            self.scan(dst, data1, repeat(ones, n_row));
        }
    }

    fn scan(&mut self, dst: TileView, data1: TileView, data0: TileView) {
        let kind = InstructionKind::TensorTensorScan {
            dst,
            data0,
            data1,
            initial: ScalarOperand::Immediate(0.0),
            op0: AluOp::Multiply,
            op1: AluOp::Add,
        };
        self.emit(Engine::Dve, kind);
    }
}

/// Run `row` of `n_row` elements of a view of one dimension.
pub(super) fn row_of(data: &TileView, row: usize, n_row: usize) -> Option<TileView> {
    let step = match data.dims.as_slice() {
        [] => 1,
        [only] => only.step,
        _ => return None,
    };
    let offset = i64::from(data.offset) + row as i64 * n_row as i64 * i64::from(step);
    let mut dims = SmallVec::new();
    if n_row != 1 {
        dims.push(Dim { step, count: n_row as u16 });
    }
    Some(TileView { offset: offset as u32, dims, ..data.clone() })
}
