//! The tensor engine: products, and transposes of PE and DVE.
//!
//! A matmul multiplies in f32 and adds over the contraction in partition order; the sum is then
//! added to PSUM. The chip's order within one matmul is not specified.

use ir::program::TileView;

use super::memory::Memory;

/// What a product is added to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Onto {
    Nothing,
    Previous,
}

/// dst[m, n] (+)= sum over k of stationary[k, m] * moving[k, n].
pub(crate) fn multiply(memory: &mut Memory, dst: &TileView, stationary: &TileView, moving: &TileView, onto: Onto) {
    let (columns, rows) = (moving.n_elements(), stationary.n_elements());
    let mut sums = vec![0.0f32; rows * columns];
    let (mut weights, mut values) = (Vec::new(), Vec::new());
    for lane in 0..usize::from(moving.n_partitions) {
        memory.read(stationary, lane, &mut weights);
        memory.read(moving, lane, &mut values);
        for (&weight, sum) in weights.iter().zip(sums.chunks_exact_mut(columns)) {
            add_scaled(sum, weight, &values);
        }
    }
    for (row, sum) in sums.chunks_exact_mut(columns).enumerate() {
        if onto == Onto::Previous {
            memory.read(dst, row, &mut values);
            // The stored value comes first: it is what PSUM adds to.
            sum.iter_mut().zip(&values).for_each(|(sum, &value)| *sum += value);
        }
        memory.write(dst, row, sum);
    }
}

/// sums[i] += weight * values[i].
fn add_scaled(sums: &mut [f32], weight: f32, values: &[f32]) {
    let (sum_blocks, value_blocks) = (sums.chunks_exact_mut(8), values.chunks_exact(8));
    let tail = value_blocks.remainder();
    let tail_start = values.len() - tail.len();
    for (block, values) in sum_blocks.zip(value_blocks) {
        // A fixed width lets the compiler use vector registers at any optimisation level.
        let block: &mut [f32; 8] = block.try_into().expect("blocks have eight elements");
        let values: &[f32; 8] = values.try_into().expect("blocks have eight elements");
        for lane in 0..8 {
            block[lane] += weight * values[lane];
        }
    }
    sums[tail_start..].iter_mut().zip(tail).for_each(|(sum, &value)| *sum += weight * value);
}

/// dst[f, p] = data[p, f], bit by bit.
pub(crate) fn transpose_bits(memory: &mut Memory, dst: &TileView, data: &TileView) {
    let size = data.dtype.size_bytes();
    let (rows, columns) = (usize::from(data.n_partitions), data.n_elements());
    let (mut all, mut row) = (Vec::with_capacity(rows * columns * size), Vec::new());
    for lane in 0..rows {
        memory.read_raw(data, lane, &mut row);
        all.extend_from_slice(&row);
    }
    for column in 0..columns {
        row.clear();
        row.extend((0..rows).flat_map(|lane| {
            let at = (lane * columns + column) * size;
            all[at..at + size].iter().copied()
        }));
        memory.write_raw(dst, column, &row);
    }
}

/// dst[f, p] = sum over k of data[k, f] * identity[k, p]: NaN and infinity of one element spread
/// over its row.
pub(crate) fn transpose_by_identity(memory: &mut Memory, dst: &TileView, data: &TileView) {
    let (rows, columns) = (usize::from(data.n_partitions), data.n_elements());
    let mut sums = vec![0.0f32; rows * columns];
    let mut values = Vec::new();
    for lane in 0..rows {
        memory.read(data, lane, &mut values);
        for (&value, sum) in values.iter().zip(sums.chunks_exact_mut(rows)) {
            for (column, slot) in sum.iter_mut().enumerate() {
                *slot += value * if column == lane { 1.0 } else { 0.0 };
            }
        }
    }
    for (column, sum) in sums.chunks_exact(rows).enumerate() {
        memory.write(dst, column, sum);
    }
}
