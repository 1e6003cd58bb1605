//! `attention(query, key, value, mask?) {scale, causal, empty, logsumexp, dtype}` = the rows of value,
//! averaged with weights softmax(scale * query x key^T + mask).
//!
//! query[..B, H, S, D], key[..B, G, T, D] and value[..B, G, T, E] give [..B, H, S, E]; of H heads,
//! H / G in a row share one of G. Rank 2 has no head axis. The mask broadcasts to [..B, H, S, T]:
//! floats are added, bools say which keys count. `causal = [k]` excludes keys after i + k for query
//! i, `causal = []` none. A row without any key is `empty`: `zero` or `nan`. With `logsumexp = 1` a
//! second result f32[..B, H, S] is the logarithm of each row's sum of exponentials, 0 for a row of
//! zeros. The first result has the attribute's element type.

use smallvec::smallvec;

use super::attributes::named;
use super::matmul::{Sum, matrix, multiply};
use super::maximum::larger;
use super::operands::{Accepts, check_kind};
use super::{Arity, Attr, AttrKind, Attrs, Example, OpClass, OpDef, ResultTypes};
use crate::reference::{EvalError, Lanes, Value};
use crate::types::{Dtype, F32Bits, TensorType, TypeError, broadcast_shapes};

/// What a row is that has no key to attend to.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum EmptyRow {
    /// Zeros, as PyTorch's kernels give.
    Zero,
    /// NaN, as softmax gives.
    Nan,
}

impl EmptyRow {
    /// Word in the text form.
    pub const fn word(self) -> &'static str {
        match self {
            EmptyRow::Zero => "zero",
            EmptyRow::Nan => "nan",
        }
    }

    /// The rule of this word.
    pub fn from_word(word: &str) -> Option<EmptyRow> {
        [EmptyRow::Zero, EmptyRow::Nan].into_iter().find(|empty| empty.word() == word)
    }
}

/// Averages of value rows, weighted by the softmax of products of queries and keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    pub scale: F32Bits,
    /// Query i sees key j where j <= i + this.
    pub causal: Option<i64>,
    pub empty: EmptyRow,
    /// There is a second result.
    pub logsumexp: bool,
    /// Element type of the first result.
    pub dtype: Dtype,
}

/// Extents of an attention: `n_heads` counts heads of all batches, of which `n_group` in a row share
/// keys and values.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AttentionExtents {
    pub n_heads: usize,
    pub n_group: usize,
    /// S.
    pub n_queries: usize,
    /// T.
    pub n_keys: usize,
    /// D.
    pub n_features: usize,
    /// E.
    pub n_values: usize,
}

impl AttentionExtents {
    /// The extents for query, key and value of an attention that [`Attention::infer`] accepts.
    pub fn of(query: &TensorType, key: &TensorType, value: &TensorType) -> AttentionExtents {
        let rank = query.rank();
        let n_heads = query.shape[..rank - 2].iter().product();
        let n_shared: usize = key.shape[..rank - 2].iter().product();
        AttentionExtents {
            n_heads,
            n_group: n_heads / n_shared.max(1),
            n_queries: query.shape[rank - 2],
            n_keys: key.shape[rank - 2],
            n_features: query.shape[rank - 1],
            n_values: value.shape[rank - 1],
        }
    }

    /// True where query `row` sees key `column` under a causal bound.
    pub fn sees(causal: Option<i64>, row: usize, column: usize) -> bool {
        causal.is_none_or(|offset| column as i64 <= (row as i64).saturating_add(offset))
    }
}

impl Attention {
    fn evaluate(&self, operands: &[&Value], results: &[TensorType], sum: Sum) -> Result<Vec<Value>, EvalError> {
        let lanes = |position: usize| operands[position].as_floats();
        let (query, key, value) = (lanes(0)?, lanes(1)?, lanes(2)?);
        let ty = |position: usize| TensorType::new(self.dtype, operands[position].shape.iter().copied());
        let extents = AttentionExtents::of(&ty(0), &ty(1), &ty(2));
        let AttentionExtents { n_heads, n_group, n_queries, n_keys, n_features, n_values } = extents;
        let lead = &operands[0].shape[..operands[0].shape.len() - 2];
        let mask = operands.get(3).map(|mask| Mask::new(mask, lead, n_queries, n_keys)).transpose()?;
        let mut output = vec![0.0; n_heads * n_queries * n_values];
        let mut logarithms = Vec::with_capacity(n_heads * n_queries);
        for head in 0..n_heads {
            let rows = matrix(query, head, n_queries, n_features, false);
            let columns = matrix(key, head / n_group, n_features, n_keys, true);
            let values = matrix(value, head / n_group, n_keys, n_values, false);
            let mut scores = vec![0.0; n_queries * n_keys];
            multiply(&rows, &columns, &mut scores, n_features, n_keys, sum);
            let totals = &mut output[head * n_queries * n_values..(head + 1) * n_queries * n_values];
            let mut sums = Vec::with_capacity(n_queries);
            for (row, scores) in scores.chunks_exact_mut(n_keys).enumerate() {
                for (column, score) in scores.iter_mut().enumerate() {
                    *score *= f64::from(self.scale.get());
                    if let Some(mask) = &mask {
                        *score = mask.apply(*score, head, row, column);
                    }
                    if !AttentionExtents::sees(self.causal, row, column) {
                        *score = f64::NEG_INFINITY;
                    }
                }
                let (total, logarithm) = self.exponentials(scores, sum);
                sums.push(total);
                logarithms.push(logarithm);
            }
            multiply(&scores, &values, totals, n_keys, n_values, sum);
            if n_values > 0 {
                for (row, total) in totals.chunks_exact_mut(n_values).zip(&sums) {
                    row.iter_mut().for_each(|lane| *lane /= total);
                }
            }
        }
        let mut found = vec![Value::floats(&results[0].shape, output)];
        found.extend(results.get(1).map(|ty| Value::floats(&ty.shape, logarithms)));
        Ok(found)
    }

    /// Replaces the scores of a row by their exponentials; their sum and its logarithm.
    fn exponentials(&self, scores: &mut [f64], sum: Sum) -> (f64, f64) {
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, larger);
        if largest == f64::NEG_INFINITY && self.empty == EmptyRow::Zero {
            scores.fill(0.0);
            return (1.0, 0.0);
        }
        scores.iter_mut().for_each(|score| *score = libm::exp(*score - largest));
        let total: f64 = scores.iter().sum();
        if sum == Sum::F32 && self.dtype.is_half() {
            // Kernels of every device multiply values with 16-bit weights where they give 16 bits.
            let rounded = Value::floats(&[scores.len()], &*scores).rounded(self.dtype);
            if let Lanes::Float(rounded) = rounded.lanes {
                scores.copy_from_slice(&rounded);
            }
        }
        (total, largest + libm::log(total))
    }
}

/// A mask with its strides over heads, rows and columns.
struct Mask<'a> {
    lanes: &'a Lanes,
    /// First lane of each head.
    starts: Vec<usize>,
    row_step: usize,
    column_step: usize,
}

impl<'a> Mask<'a> {
    fn new(mask: &'a Value, lead: &[usize], n_rows: usize, n_columns: usize) -> Result<Self, EvalError> {
        if let Lanes::Int(_) = mask.lanes {
            return Err(EvalError::new("a mask is of floats or bools"));
        }
        let full: Vec<usize> = lead.iter().copied().chain([n_rows, n_columns]).collect();
        let n_missing = full.len() - mask.shape.len();
        let mut steps = vec![0; full.len()];
        let mut step = 1;
        for axis in (0..mask.shape.len()).rev() {
            if mask.shape[axis] != 1 {
                steps[n_missing + axis] = step;
            }
            step *= mask.shape[axis];
        }
        let mut starts = vec![0];
        for (&extent, &step) in lead.iter().zip(&steps) {
            starts = starts.iter().flat_map(|start| (0..extent).map(move |index| start + index * step)).collect();
        }
        let [.., row_step, column_step] = steps[..] else { return Err(EvalError::new("attention of vectors")) };
        Ok(Mask { lanes: &mask.lanes, starts, row_step, column_step })
    }

    fn apply(&self, score: f64, head: usize, row: usize, column: usize) -> f64 {
        let at = self.starts[head] + row * self.row_step + column * self.column_step;
        match self.lanes {
            Lanes::Float(lanes) => score + lanes[at],
            Lanes::Bool(lanes) if lanes[at] => score,
            Lanes::Bool(_) | Lanes::Int(_) => f64::NEG_INFINITY,
        }
    }
}

impl OpDef for Attention {
    const NAME: &'static str = "attention";
    const ARITY: Arity = Arity::Between(3, 4);
    const CLASS: OpClass = OpClass::Contraction;
    const ATTRS: &'static [(&'static str, AttrKind)] = &[
        ("scale", AttrKind::F32),
        ("causal", AttrKind::Ints),
        ("empty", AttrKind::Word),
        ("logsumexp", AttrKind::Int),
        ("dtype", AttrKind::Dtype),
    ];

    fn infer(&self, operands: &[TensorType]) -> Result<ResultTypes, TypeError> {
        let (query, key, value) = (&operands[0], &operands[1], &operands[2]);
        operands[..3].iter().try_for_each(|operand| check_kind::<Self>(Accepts::Float, operand))?;
        if !self.dtype.is_float() {
            return Err(TypeError::new(format!("`{}` has a float result, not {}", Self::NAME, self.dtype)));
        }
        let clash = || TypeError::new(format!("`{}` of {query}, {key} and {value}: shapes do not fit", Self::NAME));
        let rank = query.rank();
        if rank < 2 || key.rank() != rank || value.rank() != rank {
            return Err(clash());
        }
        let (lead, shared) = (&query.shape[..rank - 2], &key.shape[..rank - 2]);
        let same_batches = lead.is_empty() || lead[..rank - 3] == shared[..rank - 3];
        let is_grouped = match (lead.last(), shared.last()) {
            (Some(&n_heads), Some(&n_shared)) => n_heads == n_shared || n_shared > 0 && n_heads % n_shared == 0,
            (_, _) => true,
        };
        let fits = *shared == value.shape[..rank - 2]
            && key.shape[rank - 2] == value.shape[rank - 2]
            && query.shape[rank - 1] == key.shape[rank - 1];
        if !same_batches || !is_grouped || !fits || key.shape[rank - 2] == 0 {
            return Err(clash());
        }
        let scores: Vec<usize> = query.shape[..rank - 1].iter().copied().chain([key.shape[rank - 2]]).collect();
        if let Some(mask) = operands.get(3) {
            let kind_fits = mask.dtype.is_float() || mask.dtype == Dtype::Bool;
            let fits = broadcast_shapes(&mask.shape, &scores).is_ok_and(|shape| shape[..] == scores[..]);
            if !kind_fits || !fits {
                return Err(TypeError::new(format!("`{}`: {mask} does not mask {scores:?}", Self::NAME)));
            }
        }
        let mut results: ResultTypes = smallvec![query.with_dtype(self.dtype)];
        results[0].shape[rank - 1] = value.shape[rank - 1];
        if self.logsumexp {
            results.push(TensorType::new(Dtype::F32, query.shape[..rank - 1].iter().copied()));
        }
        Ok(results)
    }

    fn eval(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        self.evaluate(operands, results, Sum::Wide)
    }

    fn eval_eager(&self, operands: &[&Value], results: &[TensorType]) -> Result<Vec<Value>, EvalError> {
        self.evaluate(operands, results, Sum::F32)
    }

    fn attrs(&self) -> Attrs {
        smallvec![
            ("scale", Attr::F32(self.scale.0)),
            ("causal", Attr::Ints(self.causal.into_iter().collect())),
            ("empty", Attr::Word(self.empty.word().to_string())),
            ("logsumexp", Attr::Int(self.logsumexp.into())),
            ("dtype", Attr::Dtype(self.dtype))
        ]
    }

    fn from_attrs(attrs: &[(&str, Attr)]) -> Option<Self> {
        let [scale, causal, empty, logsumexp, dtype] =
            named(attrs, ["scale", "causal", "empty", "logsumexp", "dtype"])?;
        let Attr::Ints(causal) = causal else { return None };
        let causal = match causal.as_slice() {
            [] => None,
            [offset] => Some(*offset),
            _ => return None,
        };
        Some(Attention {
            scale: scale.as_f32()?,
            causal,
            empty: EmptyRow::from_word(empty.as_word()?)?,
            logsumexp: logsumexp.as_flag()?,
            dtype: dtype.as_dtype()?,
        })
    }

    fn examples() -> Vec<Example> {
        // e^(2 * 0.5 * ln 3) = 3: weights 1/4 and 3/4.
        let ln3 = 3.0f64.ln();
        let plain = Attention {
            scale: F32Bits::new(0.5),
            causal: None,
            empty: EmptyRow::Nan,
            logsumexp: false,
            dtype: Dtype::F32,
        };
        let with = |op: Attention| {
            Example::new(op)
                .floats(&[2, 1], &[2.0, 0.0])
                .floats(&[2, 1], &[0.0, ln3])
                .floats(&[2, 2], &[4.0, 0.0, 8.0, 4.0])
        };
        let (low, nan) = (f64::NEG_INFINITY, f64::NAN);
        let saved = Attention { logsumexp: true, ..plain.clone() };
        let zero = Attention { empty: EmptyRow::Zero, ..saved.clone() };
        vec![
            with(plain.clone()).gives_floats(&[2, 2], &[7.0, 3.0, 6.0, 2.0]),
            with(Attention { causal: Some(0), ..plain.clone() }).gives_floats(&[2, 2], &[4.0, 0.0, 6.0, 2.0]),
            with(saved)
                .floats(&[2], &[ln3, 0.0])
                .gives_floats(&[2, 2], &[6.0, 2.0, 5.0, 1.0])
                .gives_floats(&[2], &[6.0f64.ln(), 4.0f64.ln()]),
            with(plain.clone())
                .bools(&[2, 2], &[false, false, true, false])
                .gives_floats(&[2, 2], &[nan, nan, 4.0, 0.0]),
            with(zero)
                .floats(&[2, 1], &[low, 0.0])
                .gives_floats(&[2, 2], &[0.0, 0.0, 6.0, 2.0])
                .gives_floats(&[2], &[0.0, 2.0f64.ln()]),
            Example::new(Attention { causal: Some(-1), empty: EmptyRow::Zero, ..plain })
                .floats(&[2, 2, 1], &[1.0, 0.0, 5.0, 0.0])
                .floats(&[1, 2, 1], &[1.0, 2.0])
                .floats(&[1, 2, 1], &[3.0, 5.0])
                .gives_floats(&[2, 2, 1], &[0.0, 3.0, 0.0, 3.0]),
        ]
    }
}
