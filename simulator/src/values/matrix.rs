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

/// Rows and columns of the result that are computed together.
const BLOCK_ROWS: usize = 4;
const BLOCK_COLUMNS: usize = 8;

type Block = [[f32; BLOCK_COLUMNS]; BLOCK_ROWS];

/// dst[m, n] (+)= sum over k of stationary[k, m] * moving[k, n].
pub(crate) fn multiply(memory: &mut Memory, dst: &TileView, stationary: &TileView, moving: &TileView, onto: Onto) {
    let (n_rows, n_columns) = (stationary.n_elements(), moving.n_elements());
    let weights = panels::<BLOCK_ROWS>(memory, stationary);
    let values = panels::<BLOCK_COLUMNS>(memory, moving);
    let depth = usize::from(moving.n_partitions);
    let mut sums = vec![0.0f32; BLOCK_ROWS * n_columns];
    let mut previous = Vec::new();
    for (number, weights) in weights.chunks_exact(depth).enumerate() {
        let first_row = number * BLOCK_ROWS;
        let block_rows = BLOCK_ROWS.min(n_rows - first_row);
        for (number, values) in values.chunks_exact(depth).enumerate() {
            let block = product(weights, values);
            let first_column = number * BLOCK_COLUMNS;
            let width = BLOCK_COLUMNS.min(n_columns - first_column);
            for (row, sums) in block.iter().zip(sums.chunks_exact_mut(n_columns)).take(block_rows) {
                sums[first_column..first_column + width].copy_from_slice(&row[..width]);
            }
        }
        for (row, sum) in sums.chunks_exact_mut(n_columns).take(block_rows).enumerate() {
            if onto == Onto::Previous {
                memory.read(dst, first_row + row, &mut previous);
                sum.iter_mut().zip(&previous).for_each(|(sum, &value)| *sum += value);
            }
            memory.write(dst, first_row + row, sum);
        }
    }
}

/// An operand as panels of `WIDTH` columns, each [partitions][WIDTH], the last one filled up with
/// zeros.
fn panels<const WIDTH: usize>(memory: &Memory, view: &TileView) -> Vec<[f32; WIDTH]> {
    let depth = usize::from(view.n_partitions);
    let n_panels = view.n_elements().div_ceil(WIDTH);
    let mut panels = vec![[0.0; WIDTH]; n_panels * depth];
    let mut row = Vec::new();
    for lane in 0..depth {
        memory.read(view, lane, &mut row);
        for (panel, part) in row.chunks(WIDTH).enumerate() {
            panels[panel * depth + lane][..part.len()].copy_from_slice(part);
        }
    }
    panels
}

/// The sum of products over the partitions, one after the other, each product rounded by itself.
#[cfg(target_arch = "x86_64")]
fn product(weights: &[[f32; BLOCK_ROWS]], values: &[[f32; BLOCK_COLUMNS]]) -> Block {
    use std::arch::x86_64::{__m128, _mm_add_ps, _mm_mul_ps, _mm_set1_ps, _mm_setr_ps, _mm_setzero_ps, _mm_storeu_ps};

    #[target_feature(enable = "sse2")]
    fn sums(weights: &[[f32; BLOCK_ROWS]], values: &[[f32; BLOCK_COLUMNS]]) -> [[__m128; 2]; BLOCK_ROWS] {
        let mut sums = [[_mm_setzero_ps(); 2]; BLOCK_ROWS];
        for (weights, &[v0, v1, v2, v3, v4, v5, v6, v7]) in weights.iter().zip(values) {
            let halves = [_mm_setr_ps(v0, v1, v2, v3), _mm_setr_ps(v4, v5, v6, v7)];
            for (sums, &weight) in sums.iter_mut().zip(weights) {
                let weight = _mm_set1_ps(weight);
                sums[0] = _mm_add_ps(sums[0], _mm_mul_ps(weight, halves[0]));
                sums[1] = _mm_add_ps(sums[1], _mm_mul_ps(weight, halves[1]));
            }
        }
        sums
    }

    let mut block = Block::default();
    // SAFETY: every x86-64 processor has SSE2.
    let sums = unsafe { sums(weights, values) };
    for (row, halves) in block.iter_mut().zip(sums) {
        let (low, high) = row.split_at_mut(4);
        // SAFETY: both halves of a row have room for four floats; the store needs no alignment.
        unsafe {
            _mm_storeu_ps(low.as_mut_ptr(), halves[0]);
            _mm_storeu_ps(high.as_mut_ptr(), halves[1]);
        }
    }
    block
}

/// The sum of products over the partitions, one after the other, each product rounded by itself.
#[cfg(not(target_arch = "x86_64"))]
fn product(weights: &[[f32; BLOCK_ROWS]], values: &[[f32; BLOCK_COLUMNS]]) -> Block {
    plain_product(weights, values)
}

/// What [`product`] computes, element by element.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn plain_product(weights: &[[f32; BLOCK_ROWS]], values: &[[f32; BLOCK_COLUMNS]]) -> Block {
    let mut block = Block::default();
    for (weights, values) in weights.iter().zip(values) {
        for (row, &weight) in block.iter_mut().zip(weights) {
            row.iter_mut().zip(values).for_each(|(sum, &value)| *sum += weight * value);
        }
    }
    block
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_products_have_the_bits_of_plain_ones() {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 22) as f32 - 2.0
        };
        let weights: Vec<[f32; BLOCK_ROWS]> = (0..128).map(|_| std::array::from_fn(|_| next())).collect();
        let mut values: Vec<[f32; BLOCK_COLUMNS]> = (0..128).map(|_| std::array::from_fn(|_| next())).collect();
        values[5][1] = f32::INFINITY;
        values[9][2] = -0.0;
        let bits = |block: Block| block.map(|row| row.map(f32::to_bits));
        assert_eq!(bits(product(&weights, &values)), bits(plain_product(&weights, &values)));
    }
}
