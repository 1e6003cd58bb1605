//! Whether one value is the same on two sides.

use ir::Dtype;
use ir::reference::{Comparison, Lanes, Value, compare};
use ir::types::{Shape, packed_strides};

/// What counts as the same.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Sameness {
    /// As `check` judges: the one side is not further from the truth than eager, or the other side
    /// where neither is evaluated, within one rounding.
    Standard,
    /// The same bits of the value's element type; all NaNs are one.
    Bits,
}

/// How a value differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The element with the largest difference, with what either side has there.
    pub worst: Option<(Shape, f64, f64)>,
    /// What is allowed between the judged side and the truth; 0 where bits are compared.
    pub allowed: f64,
    /// In a sentence.
    pub reason: String,
}

impl Difference {
    /// The worst difference in units of what is allowed; infinite where nothing is, or where one side
    /// has no number.
    pub fn severity(&self) -> f64 {
        let ratio = self.worst.as_ref().map_or(f64::INFINITY, |(_, a, b)| (a - b).abs() / self.allowed);
        if ratio.is_nan() { f64::INFINITY } else { ratio }
    }
}

/// Values of both sides, and what judges them.
pub(super) struct Pair<'a> {
    pub a: &'a Value,
    pub b: &'a Value,
    pub judged: &'a Value,
    pub eager: &'a Value,
    pub truth: &'a Value,
}

/// The difference by the standard; `None` within it.
pub(super) fn by_standard(pair: &Pair<'_>, dtype: Dtype) -> Option<Difference> {
    let Comparison { worst, allowed_abs_error, failure, .. } = compare(pair.judged, pair.eager, pair.truth, dtype);
    let reason = failure?;
    let worst = worst.map(|worst| {
        let flat = packed_strides(&pair.a.shape).iter().zip(&worst.position).map(|(stride, at)| stride * at).sum();
        (worst.position, number(pair.a, flat), number(pair.b, flat))
    });
    Some(Difference { worst, allowed: allowed_abs_error, reason })
}

/// The difference in bits; `None` without one.
pub(super) fn by_bits(a: &Value, b: &Value, dtype: Dtype) -> Option<Difference> {
    let (a, b) = (a.clone().rounded(dtype), b.clone().rounded(dtype));
    if a.shape != b.shape || a.lanes.len() != b.lanes.len() {
        let reason = format!("shapes differ: {:?} and {:?}", a.shape, b.shape);
        return Some(Difference { worst: None, allowed: 0.0, reason });
    }
    let differing: Vec<usize> = (0..a.lanes.len()).filter(|&flat| bits(&a, flat) != bits(&b, flat)).collect();
    let distance = |flat: usize| {
        let distance = (number(&a, flat) - number(&b, flat)).abs();
        // A NaN on one side only is as far as can be.
        if distance.is_nan() { f64::INFINITY } else { distance }
    };
    let worst =
        differing.iter().copied().reduce(|worst, flat| if distance(flat) > distance(worst) { flat } else { worst })?;
    let strides = packed_strides(&a.shape);
    let position = strides.iter().zip(&a.shape).map(|(&stride, &dim)| worst / stride.max(1) % dim.max(1)).collect();
    let reason = format!("{} of {} elements differ in their bits", differing.len(), a.lanes.len());
    Some(Difference { worst: Some((position, number(&a, worst), number(&b, worst))), allowed: 0.0, reason })
}

fn number(value: &Value, flat: usize) -> f64 {
    match &value.lanes {
        Lanes::Float(lanes) => lanes[flat],
        Lanes::Int(lanes) => lanes[flat] as f64,
        Lanes::Bool(lanes) => f64::from(u8::from(lanes[flat])),
    }
}

fn bits(value: &Value, flat: usize) -> u64 {
    match &value.lanes {
        Lanes::Float(lanes) if lanes[flat].is_nan() => f64::NAN.to_bits(),
        Lanes::Float(lanes) => lanes[flat].to_bits(),
        Lanes::Int(lanes) => lanes[flat] as u64,
        Lanes::Bool(lanes) => u64::from(lanes[flat]),
    }
}

#[cfg(test)]
mod tests {
    use ir::Dtype;
    use ir::reference::Value;

    use super::by_bits;

    #[test]
    fn bits_differ_by_signs_of_zeros_and_not_by_nans_or_what_the_type_does_not_hold() {
        let value = |lanes: &[f64]| Value::floats(&[2, 2], lanes);
        let one = value(&[1.0, f64::NAN, 0.0, 2.0]);
        assert_eq!(by_bits(&one, &value(&[1.0 + 1e-12, -f64::NAN, 0.0, 2.0]), Dtype::F32), None);
        let found = by_bits(&one, &value(&[1.0, f64::NAN, -0.0, 2.25]), Dtype::F32).unwrap();
        assert_eq!(found.worst, Some(([1, 1].into_iter().collect(), 2.0, 2.25)));
        assert_eq!(found.reason, "2 of 4 elements differ in their bits");
        let zero = by_bits(&one, &value(&[1.0, f64::NAN, -0.0, 2.0]), Dtype::F32).unwrap();
        assert_eq!(zero.worst.map(|(at, ..)| at), Some([1, 0].into_iter().collect()));
        let nan = by_bits(&one, &value(&[1.5, 1.0, 0.0, 2.0]), Dtype::F32).unwrap();
        assert_eq!(nan.worst.map(|(at, ..)| at), Some([0, 1].into_iter().collect()));
    }
}
