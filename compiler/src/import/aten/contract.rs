//! Overloads that sum products over a shared axis.
//!
//! Products of 16-bit tensors are summed in f32; what is added to them is added before the one
//! rounding, as PyTorch's kernels do.

use ir::ops::{Add, Matmul, Mul};
use ir::types::{Axes, Shape, broadcast_shapes};
use ir::{Dtype, ValueId};

use super::call::{Built, Call, Number, Refusal};
use super::pointwise::wide_dtype;

type Outcome = Result<Built, Refusal>;

/// `mm` and `bmm`.
pub fn product(call: &mut Call<'_>) -> Outcome {
    let (lhs, rhs) = (call.tensor("self")?, call.tensor("mat2")?);
    let dtype = float_dtype(call, lhs)?;
    matmul(call, lhs, rhs, dtype).map(Built::One)
}

/// `matmul` with vectors and broadcast batches.
pub fn matmul_any(call: &mut Call<'_>) -> Outcome {
    let (lhs, rhs) = (call.tensor("self")?, call.tensor("other")?);
    let dtype = float_dtype(call, lhs)?;
    let (lhs_shape, rhs_shape) = (call.shape(lhs), call.shape(rhs));
    if lhs_shape.is_empty() || rhs_shape.is_empty() {
        return Err(Refusal::Malformed("a product of tensors of rank 0".to_owned()));
    }
    let lhs_matrix = if lhs_shape.len() == 1 { call.reshape(lhs, [1, lhs_shape[0]])? } else { lhs };
    let rhs_matrix = if rhs_shape.len() == 1 { call.reshape(rhs, [rhs_shape[0], 1])? } else { rhs };
    let (lhs_matrix, rhs_matrix) = broadcast_batches(call, lhs_matrix, rhs_matrix)?;
    let result = matmul(call, lhs_matrix, rhs_matrix, dtype)?;
    let mut shape = call.shape(result);
    if rhs_shape.len() == 1 {
        shape.pop();
    }
    if lhs_shape.len() == 1 {
        shape.remove(shape.len() - 1 - usize::from(rhs_shape.len() > 1));
    }
    call.reshape(result, shape).map(Built::One)
}

/// Operands with equal leading axes; a matrix on the right serves all batches as it is.
fn broadcast_batches(call: &mut Call<'_>, lhs: ValueId, rhs: ValueId) -> Result<(ValueId, ValueId), Refusal> {
    let (lhs_shape, rhs_shape) = (call.shape(lhs), call.shape(rhs));
    if rhs_shape.len() == 2 {
        return Ok((lhs, rhs));
    }
    let (lhs_batch, lhs_matrix) = lhs_shape.split_at(lhs_shape.len() - 2);
    let (rhs_batch, rhs_matrix) = rhs_shape.split_at(rhs_shape.len() - 2);
    let batch = broadcast_shapes(lhs_batch, rhs_batch)?;
    let full = |matrix: &[usize]| batch.iter().chain(matrix).copied().collect::<Shape>();
    Ok((call.expand(lhs, &full(lhs_matrix))?, call.expand(rhs, &full(rhs_matrix))?))
}

/// `mv` and `dot`: the second operand is a vector.
pub fn vector_product(call: &mut Call<'_>, second: &'static str) -> Outcome {
    let (lhs, rhs) = (call.tensor("self")?, call.tensor(second)?);
    let dtype = float_dtype(call, lhs)?;
    let (lhs_shape, length) = (call.shape(lhs), call.ty(rhs).n_elements());
    let lhs = if lhs_shape.len() == 1 { call.reshape(lhs, [1, lhs_shape[0]])? } else { lhs };
    let rhs = call.reshape(rhs, [length, 1])?;
    let result = matmul(call, lhs, rhs, dtype)?;
    let kept = lhs_shape.len().saturating_sub(1);
    call.reshape(result, lhs_shape[..kept].iter().copied()).map(Built::One)
}

/// `addmm` and `baddbmm`: beta * self + alpha * (first x second).
pub fn add_product(call: &mut Call<'_>, names: [&'static str; 2]) -> Outcome {
    let (bias, lhs, rhs) = (call.tensor("self")?, call.tensor(names[0])?, call.tensor(names[1])?);
    let beta = call.number_or("beta", Number::Int(1))?;
    let alpha = call.number_or("alpha", Number::Int(1))?;
    let dtype = float_dtype(call, lhs)?;
    let compute = wide_dtype(dtype);
    let mut sum = matmul(call, lhs, rhs, compute)?;
    if alpha.as_f64() != 1.0 {
        let alpha = call.scalar(alpha, compute)?;
        sum = call.apply(Mul, &[sum, alpha])?;
    }
    // With beta 0 the bias is not read: its infinities and NaNs stay out.
    if beta.as_f64() != 0.0 {
        let mut bias = call.cast(bias, compute)?;
        if beta.as_f64() != 1.0 {
            let beta = call.scalar(beta, compute)?;
            bias = call.apply(Mul, &[bias, beta])?;
        }
        sum = call.apply(Add, &[sum, bias])?;
    }
    call.cast(sum, dtype).map(Built::One)
}

/// `linear`: input x weight^T + bias.
pub fn linear(call: &mut Call<'_>) -> Outcome {
    let (operand, weight, bias) = (call.tensor("input")?, call.tensor("weight")?, call.optional_tensor("bias")?);
    let dtype = float_dtype(call, operand)?;
    if call.rank(weight) != 2 || call.rank(operand) == 0 {
        return Err(Refusal::Unsupported("a linear layer whose weight is no matrix".to_owned()));
    }
    let shape = call.shape(operand);
    let operand = if shape.len() == 1 { call.reshape(operand, [1, shape[0]])? } else { operand };
    let n_columns = call.shape(weight)[0];
    let result = biased_product(call, operand, weight, bias, dtype)?;
    let kept = shape[..shape.len() - 1].iter().copied().chain([n_columns]);
    call.reshape(result, kept.collect::<Shape>()).map(Built::One)
}

/// operand x weight^T + bias, rounded once.
fn biased_product(
    call: &mut Call<'_>,
    operand: ValueId,
    weight: ValueId,
    bias: Option<ValueId>,
    dtype: Dtype,
) -> Result<ValueId, Refusal> {
    let Some(bias) = bias else {
        return call.apply(Matmul { transpose_lhs: false, transpose_rhs: true, dtype }, &[operand, weight]);
    };
    let compute = wide_dtype(dtype);
    let op = Matmul { transpose_lhs: false, transpose_rhs: true, dtype: compute };
    let product = call.apply(op, &[operand, weight])?;
    let bias = call.cast(bias, compute)?;
    let sum = call.apply(Add, &[product, bias])?;
    call.cast(sum, dtype)
}

/// `convolution` whose windows do not overlap: a matrix product over the windows.
pub fn convolution(call: &mut Call<'_>) -> Outcome {
    let (operand, weight, bias) = (call.tensor("input")?, call.tensor("weight")?, call.optional_tensor("bias")?);
    let dtype = float_dtype(call, operand)?;
    let (shape, kernel) = (call.shape(operand), call.shape(weight));
    let n_spatial = kernel.len().saturating_sub(2);
    if n_spatial == 0 || shape.len() != kernel.len() {
        return Err(Refusal::Unsupported(format!("a convolution of {shape:?} by {kernel:?}")));
    }
    let per_axis = |name, default: i64| -> Result<Vec<i64>, Refusal> {
        let given = call.optional_ints(name)?.unwrap_or_else(|| vec![default]);
        Ok(if given.len() == 1 { vec![given[0]; n_spatial] } else { given })
    };
    let (stride, padding, dilation) = (per_axis("stride", 1)?, per_axis("padding", 0)?, per_axis("dilation", 1)?);
    let groups = call.optional_int("groups")?.unwrap_or(1);
    let transposed = call.flag_or("transposed", false)?;
    let is_patchwise = stride.iter().map(|&step| usize::try_from(step).ok()).eq(kernel[2..].iter().copied().map(Some));
    let is_plain = padding.iter().all(|&pad| pad == 0) && dilation.iter().all(|&step| step == 1);
    if !is_patchwise || !is_plain || groups != 1 || transposed || kernel[2..].contains(&0) {
        return Err(Refusal::Unsupported(format!(
            "a convolution with kernel {:?}, stride {stride:?}, padding {padding:?}, dilation {dilation:?}, groups \
             {groups}, transposed {transposed}; only kernel = stride with no padding, dilation or groups is supported",
            &kernel[2..]
        )));
    }
    let patches = patches(call, operand, &kernel[2..])?;
    let n_outputs = kernel[0];
    let window: usize = kernel[1..].iter().product();
    let weight = call.reshape(weight, [n_outputs, window])?;
    let product = biased_product(call, patches, weight, bias, dtype)?;
    let rank = shape.len();
    let counts = shape[2..].iter().zip(&kernel[2..]).map(|(size, window)| size / window);
    let unfolded: Shape = [shape[0]].into_iter().chain(counts).chain([n_outputs]).collect();
    let product = call.reshape(product, unfolded)?;
    call.transpose(product, [0, rank - 1].into_iter().chain(1..rank - 1)).map(Built::One)
}

/// The windows of [N, C, ...] as rows [N * windows, C * window].
fn patches(call: &mut Call<'_>, operand: ValueId, kernel: &[usize]) -> Result<ValueId, Refusal> {
    let shape = call.shape(operand);
    let n_spatial = kernel.len();
    let mut whole = operand;
    let mut split = Shape::from_slice(&shape[..2]);
    for (position, &window) in kernel.iter().enumerate() {
        let count = shape[position + 2] / window;
        whole = call.slice(whole, position + 2, 0..count * window, 1)?;
        split.extend([count, window]);
    }
    let counts: Axes = (0..n_spatial).map(|position| 2 + 2 * position).collect();
    let windows: Axes = (0..n_spatial).map(|position| 3 + 2 * position).collect();
    let perm: Axes = [0].into_iter().chain(counts.iter().copied()).chain([1]).chain(windows).collect();
    let n_windows: usize = shape[0] * counts.iter().map(|&axis| split[axis]).product::<usize>();
    let window: usize = shape[1] * kernel.iter().product::<usize>();
    let operand = call.reshape(whole, split)?;
    let operand = call.transpose(operand, perm)?;
    call.reshape(operand, [n_windows, window])
}

/// lhs x rhs with the element type of the result.
pub fn matmul(call: &mut Call<'_>, lhs: ValueId, rhs: ValueId, dtype: Dtype) -> Result<ValueId, Refusal> {
    call.apply(Matmul { transpose_lhs: false, transpose_rhs: false, dtype }, &[lhs, rhs])
}

fn float_dtype(call: &Call<'_>, operand: ValueId) -> Result<Dtype, Refusal> {
    let dtype = call.dtype(operand);
    if dtype.is_float() {
        return Ok(dtype);
    }
    Err(Refusal::Unsupported(format!("a matrix product of {dtype}")))
}
