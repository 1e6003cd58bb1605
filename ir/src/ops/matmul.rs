//! `matmul(lhs, rhs) {transpose_lhs, transpose_rhs, dtype}` = lhs x rhs over the last two axes.
//!
//! lhs[..B, M, K] and rhs[..B, K, N] with equal leading axes, or rhs[K, N] shared by all batches,
//! give [..B, M, N] of the attribute's element type. A transpose flag says that the stored operand
//! has its last two axes swapped. Products are summed wide and rounded once.

use smallvec::{SmallVec, smallvec};

use super::attributes::named;
use super::operands::{Accepts, check_kind, check_same_dtype};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Value, strided};
use crate::types::{Dtype, TensorType, TypeError};

/// Product of matrices, batch by batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Matmul {
    /// The left operand is stored as [.., K, M].
    pub transpose_lhs: bool,
    /// The right operand is stored as [.., N, K].
    pub transpose_rhs: bool,
    /// Element type of the result.
    pub dtype: Dtype,
}

impl OpDef for Matmul {
    const NAME: &'static str = "matmul";
    const ARITY: Arity = Arity::Exactly(2);
    const CLASS: OpClass = OpClass::Contraction;
    const ATTRS: &'static [(&'static str, AttrKind)] =
        &[("transpose_lhs", AttrKind::Int), ("transpose_rhs", AttrKind::Int), ("dtype", AttrKind::Dtype)];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        let result = infer_product::<Self>(self.transpose_lhs, self.transpose_rhs, self.dtype, operands)?;
        Ok(smallvec![result])
    }

    fn eval(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        Ok(vec![product(self.transpose_lhs, self.transpose_rhs, operands, &results[0], Sum::Wide)?])
    }

    fn eval_eager(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        Ok(vec![product(self.transpose_lhs, self.transpose_rhs, operands, &results[0], Sum::F32)?])
    }

    fn attrs(&self) -> Attrs {
        smallvec![
            ("transpose_lhs", Attr::Int(self.transpose_lhs.into())),
            ("transpose_rhs", Attr::Int(self.transpose_rhs.into())),
            ("dtype", Attr::Dtype(self.dtype))
        ]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [transpose_lhs, transpose_rhs, dtype] = named(attrs, ["transpose_lhs", "transpose_rhs", "dtype"])?;
        Some(Matmul {
            transpose_lhs: transpose_lhs.as_flag()?,
            transpose_rhs: transpose_rhs.as_flag()?,
            dtype: dtype.as_dtype()?,
        })
    }

    fn examples() -> Vec<Example> {
        let matmul =
            |transpose_lhs, transpose_rhs| Example::new(Matmul { transpose_lhs, transpose_rhs, dtype: Dtype::F32 });
        let (rows, columns) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        let batches = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 2.0, 0.0];
        vec![
            matmul(false, false)
                .floats(&[2, 3], &rows)
                .floats(&[3, 1], &[1.0, 0.0, -1.0])
                .gives_floats(&[2, 1], &[-2.0, -2.0]),
            matmul(true, false)
                .floats(&[3, 2], &columns)
                .floats(&[3, 1], &[1.0, 0.0, -1.0])
                .gives_floats(&[2, 1], &[-2.0, -2.0]),
            matmul(false, true)
                .floats(&[1, 3], &[1.0, 0.0, -1.0])
                .floats(&[2, 3], &rows)
                .gives_floats(&[1, 2], &[-2.0, -2.0]),
            matmul(false, false)
                .floats(&[2, 2, 2], &batches)
                .floats(&[2, 2, 1], &[3.0, 4.0, 5.0, 6.0])
                .gives_floats(&[2, 2, 1], &[3.0, 4.0, 6.0, 10.0]),
            matmul(false, false)
                .floats(&[2, 2, 2], &batches)
                .floats(&[2, 1], &[3.0, 4.0])
                .gives_floats(&[2, 2, 1], &[3.0, 4.0, 4.0, 6.0]),
        ]
    }
}

/// Type of a product of the first two operands.
pub(super) fn infer_product<O: OpDef>(
    transpose_lhs: bool,
    transpose_rhs: bool,
    dtype: Dtype,
    operands: &[TensorType],
) -> Result<TensorType, TypeError> {
    let (lhs, rhs) = (&operands[0], &operands[1]);
    check_kind::<O>(Accepts::Float, lhs)?;
    check_same_dtype::<O>(&operands[..2])?;
    if !dtype.is_float() {
        return Err(TypeError::new(format!("`{}` has a float result, not {dtype}", O::NAME)));
    }
    let clash = || TypeError::new(format!("`{}` of {lhs} and {rhs}: shapes do not fit", O::NAME));
    if lhs.rank() < 2 || rhs.rank() < 2 {
        return Err(clash());
    }
    let (lhs_batch, lhs_matrix) = lhs.shape.split_at(lhs.rank() - 2);
    let (rhs_batch, rhs_matrix) = rhs.shape.split_at(rhs.rank() - 2);
    let (rows, lhs_inner) = stored(transpose_lhs, lhs_matrix);
    let (rhs_inner, columns) = stored(transpose_rhs, rhs_matrix);
    if lhs_inner != rhs_inner || !(rhs_batch.is_empty() || rhs_batch == lhs_batch) {
        return Err(clash());
    }
    Ok(TensorType::new(dtype, lhs_batch.iter().copied().chain([rows, columns])))
}

/// In what the products of a contraction are summed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Sum {
    Wide,
    /// One fused multiply-add in f32 a step.
    F32,
}

/// The product of the first two operands.
pub(super) fn product(
    transpose_lhs: bool,
    transpose_rhs: bool,
    operands: &[&Value],
    result: &TensorType,
    sum: Sum,
) -> Result<Value, EvalError> {
    let (lhs, rhs) = (operands[0], operands[1]);
    let (lhs_lanes, rhs_lanes) = (lhs.as_floats()?, rhs.as_floats()?);
    let (n_rows, n_inner) = stored(transpose_lhs, &lhs.shape[lhs.shape.len() - 2..]);
    let n_columns = result.shape[result.rank() - 1];
    let mut lanes = vec![0.0; result.n_elements()];
    let n_batches: usize = lhs.shape[..lhs.shape.len() - 2].iter().product();
    let shared = rhs.shape.len() == 2;
    let n_rhs = if shared { 1 } else { n_batches };
    let rhs_matrices: Vec<_> =
        (0..n_rhs).map(|batch| matrix(rhs_lanes, batch, n_inner, n_columns, transpose_rhs)).collect();
    for batch in 0..n_batches {
        let lhs_matrix = matrix(lhs_lanes, batch, n_rows, n_inner, transpose_lhs);
        let rhs_matrix = &rhs_matrices[if shared { 0 } else { batch }];
        let block = &mut lanes[batch * n_rows * n_columns..(batch + 1) * n_rows * n_columns];
        multiply(&lhs_matrix, rhs_matrix, block, n_inner, n_columns, sum);
    }
    Ok(Value::floats(&result.shape, lanes))
}

/// Rows and columns of a matrix from its stored shape.
fn stored(transpose: bool, shape: &[usize]) -> (usize, usize) {
    if transpose { (shape[1], shape[0]) } else { (shape[0], shape[1]) }
}

/// Matrix `batch`, row-major and not transposed.
pub(super) fn matrix(lanes: &[f64], batch: usize, n_rows: usize, n_columns: usize, transpose: bool) -> Vec<f64> {
    let n_elements = n_rows * n_columns;
    let dims: SmallVec<[(usize, usize); 2]> =
        if transpose { smallvec![(n_rows, 1), (n_columns, n_rows)] } else { smallvec![(n_elements, 1)] };
    strided(lanes, batch * n_elements, &dims)
}

/// Adds lhs x rhs to `result`. Every sum runs over the inner axis in ascending order, one product
/// at a time, so that the bits do not depend on the machine.
pub(super) fn multiply(lhs: &[f64], rhs: &[f64], result: &mut [f64], n_inner: usize, n_columns: usize, sum: Sum) {
    const INNER_BLOCK: usize = 64;
    if n_inner == 0 || n_columns == 0 {
        return;
    }
    for block in (0..n_inner).step_by(INNER_BLOCK) {
        let end = (block + INNER_BLOCK).min(n_inner);
        for (lhs_row, result_row) in lhs.chunks_exact(n_inner).zip(result.chunks_exact_mut(n_columns)) {
            for inner in block..end {
                let factor = lhs_row[inner];
                let rhs_row = &rhs[inner * n_columns..(inner + 1) * n_columns];
                match sum {
                    Sum::Wide => add_scaled(result_row, rhs_row, |total, lane| total + factor * lane),
                    Sum::F32 => {
                        add_scaled(result_row, rhs_row, |total, lane| f64::from((total + factor * lane) as f32))
                    }
                }
            }
        }
    }
}

fn add_scaled(totals: &mut [f64], lanes: &[f64], step: impl Fn(f64, f64) -> f64) {
    for (total, &lane) in totals.iter_mut().zip(lanes) {
        *total = step(*total, lane);
    }
}
