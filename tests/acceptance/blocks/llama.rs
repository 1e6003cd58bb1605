//! A Llama block written down by hand, for some of its rows: what neither the importer nor the reference
//! evaluator of graphs has a part in. Only keys and values are computed for all rows.
//!
//! Values are f64; what has the model's element type is rounded by `round`, so that one function gives
//! the truth and what eager computes.

use std::thread;

use ir::reference::Value;

/// Added to mean squares.
const EPSILON: f64 = 1e-6;

/// Of heads of 128 elements, whatever a document was scaled to: it stands in the graph as a number.
const SCALE: f64 = 0.088_388_347_648_318_45;

/// Inputs of a block in the order of the captured graphs.
pub struct Block<'a> {
    x: &'a [f64],
    input_norm: &'a [f64],
    query: &'a [f64],
    key: &'a [f64],
    value: &'a [f64],
    cosine: &'a [f64],
    sine: &'a [f64],
    output: &'a [f64],
    mlp_norm: &'a [f64],
    gate: &'a [f64],
    up: &'a [f64],
    down: &'a [f64],
    hidden: usize,
    head: usize,
}

/// Rounds to an element type, or not.
pub type Round = fn(f64) -> f64;

impl<'a> Block<'a> {
    pub fn new(inputs: &'a [Value]) -> Block<'a> {
        let lanes: Vec<&[f64]> = inputs.iter().map(|input| input.as_floats().expect("inputs are floats")).collect();
        let [x, input_norm, query, key, value, cosine, sine, output, mlp_norm, gate, up, down] = lanes[..] else {
            panic!("a block has twelve inputs, not {}", lanes.len());
        };
        let (hidden, head) = (inputs[0].shape[2], inputs[5].shape[2]);
        Block { x, input_norm, query, key, value, cosine, sine, output, mlp_norm, gate, up, down, hidden, head }
    }

    /// The block's result in these rows.
    pub fn rows(&self, rows: &[usize], round: Round) -> Vec<f64> {
        let Block { hidden, head, .. } = *self;
        let n_tokens = rows.iter().max().map_or(0, |last| last + 1);
        let all: Vec<usize> = (0..n_tokens).collect();
        let normed = self.norm(&self.x[..n_tokens * hidden], self.input_norm, round);
        let key = self.turned(&rounded(product(&normed, self.key, hidden), round), &all, round);
        let value = rounded(product(&normed, self.value, hidden), round);
        let query = rounded(product(&picked(&normed, rows, hidden), self.query, hidden), round);
        let query = self.turned(&query, rows, round);
        let n_shared = self.key.len() / hidden / head;
        let attended = self.attended(&query, &key, &value, rows, n_shared, round);
        let projected = rounded(product(&attended, self.output, hidden), round);
        let stream = sum(&picked(self.x, rows, hidden), &projected, round);
        let normed = self.norm(&stream, self.mlp_norm, round);
        let gate = rounded(product(&normed, self.gate, hidden), round);
        let up = rounded(product(&normed, self.up, hidden), round);
        let weighed = |(gate, up): (&f64, &f64)| round(round(gate / (1.0 + (-gate).exp())) * up);
        let inner: Vec<f64> = gate.iter().zip(&up).map(weighed).collect();
        let down = rounded(product(&inner, self.down, self.down.len() / hidden), round);
        sum(&stream, &down, round)
    }

    fn norm(&self, x: &[f64], weight: &[f64], round: Round) -> Vec<f64> {
        let row = |row: &[f64]| {
            let mean = row.iter().map(|number| number * number).sum::<f64>() / row.len() as f64;
            let factor = 1.0 / (mean + EPSILON).sqrt();
            row.iter().zip(weight).map(|(number, weight)| round(round(number * factor) * weight)).collect::<Vec<_>>()
        };
        x.chunks(self.hidden).flat_map(row).collect()
    }

    /// Rotary embedding of heads side by side, in rows that stand for these tokens.
    fn turned(&self, x: &[f64], tokens: &[usize], round: Round) -> Vec<f64> {
        let (head, half) = (self.head, self.head / 2);
        let width = x.len() / tokens.len();
        let mut turned = Vec::with_capacity(x.len());
        for (row, &token) in x.chunks(width).zip(tokens) {
            for heads in row.chunks(head) {
                for (at, &number) in heads.iter().enumerate() {
                    let other = if at < half { -heads[at + half] } else { heads[at - half] };
                    let (cosine, sine) = (self.cosine[token * head + at], self.sine[token * head + at]);
                    turned.push(round(round(number * cosine) + round(other * sine)));
                }
            }
        }
        turned
    }

    fn attended(
        &self,
        query: &[f64],
        key: &[f64],
        value: &[f64],
        rows: &[usize],
        n_shared: usize,
        round: Round,
    ) -> Vec<f64> {
        let (head, hidden, width) = (self.head, self.hidden, n_shared * self.head);
        let n_group = hidden / width;
        let mut attended = Vec::with_capacity(query.len());
        for (row, &token) in query.chunks(hidden).zip(rows) {
            for (number, query) in row.chunks(head).enumerate() {
                let start = number / n_group * head;
                let part = |token: usize| token * width + start..token * width + start + head;
                let score = |token: usize| key[part(token)].iter().zip(query).map(|(k, q)| k * q).sum::<f64>() * SCALE;
                let scores: Vec<f64> = (0..=token).map(score).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mut average = vec![0.0; head];
                for (token, weight) in weights.iter().enumerate() {
                    average.iter_mut().zip(&value[part(token)]).for_each(|(sum, value)| *sum += weight * value);
                }
                attended.extend(average.iter().map(|sum| round(sum / total)));
            }
        }
        attended
    }
}

fn rounded(mut numbers: Vec<f64>, round: Round) -> Vec<f64> {
    numbers.iter_mut().for_each(|number| *number = round(*number));
    numbers
}

fn sum(lhs: &[f64], rhs: &[f64], round: Round) -> Vec<f64> {
    lhs.iter().zip(rhs).map(|(lhs, rhs)| round(lhs + rhs)).collect()
}

fn picked(x: &[f64], rows: &[usize], width: usize) -> Vec<f64> {
    rows.iter().flat_map(|&row| &x[row * width..][..width]).copied().collect()
}

/// x[M, K] by weights[N, K] transposed, on all cores.
fn product(x: &[f64], weights: &[f64], n_inner: usize) -> Vec<f64> {
    /// Rows that share the columns of weights that lie packed.
    const ROWS: usize = 64;
    let n_columns = weights.len() / n_inner;
    let mut result = vec![0.0; x.len() / n_inner * n_columns];
    let n_threads = thread::available_parallelism().map_or(1, usize::from);
    let blocks: Vec<(&[f64], &mut [f64])> = x.chunks(ROWS * n_inner).zip(result.chunks_mut(ROWS * n_columns)).collect();
    let n_each = blocks.len().div_ceil(n_threads).max(1);
    thread::scope(|scope| {
        let mut blocks = blocks.into_iter().peekable();
        while blocks.peek().is_some() {
            let own: Vec<_> = blocks.by_ref().take(n_each).collect();
            scope.spawn(move || own.into_iter().for_each(|(x, result)| block_product(x, weights, n_inner, result)));
        }
    });
    result
}

fn block_product(x: &[f64], weights: &[f64], n_inner: usize, result: &mut [f64]) {
    /// Columns and rows whose sums stay in registers.
    const COLUMNS: usize = 8;
    const ROWS: usize = 2;
    let n_columns = weights.len() / n_inner;
    let mut packed = vec![[0.0; COLUMNS]; n_inner];
    for first in (0..n_columns).step_by(COLUMNS) {
        let count = COLUMNS.min(n_columns - first);
        for column in 0..count {
            let weights = &weights[(first + column) * n_inner..][..n_inner];
            packed.iter_mut().zip(weights).for_each(|(packed, &weight)| packed[column] = weight);
        }
        for (rows, results) in x.chunks(ROWS * n_inner).zip(result.chunks_mut(ROWS * n_columns)) {
            // An odd last row is computed twice.
            let (one, other) = (&rows[..n_inner], &rows[rows.len() - n_inner..]);
            let mut sums = [[0.0; COLUMNS]; ROWS];
            for ((packed, one), other) in packed.iter().zip(one).zip(other) {
                for column in 0..COLUMNS {
                    sums[0][column] += packed[column] * one;
                    sums[1][column] += packed[column] * other;
                }
            }
            for (results, sums) in results.chunks_mut(n_columns).zip(&sums) {
                results[first..first + count].copy_from_slice(&sums[..count]);
            }
        }
    }
}
