//! The vector engine's operators: f32 arithmetic, bits of integers, exact 32-bit integers on Pool,
//! and reductions.

use ir::program::AluOp;

/// 1.0 or 0.0, as comparisons give.
fn truth(holds: bool) -> f32 {
    if holds { 1.0 } else { 0.0 }
}

/// The larger operand; NaN where either is.
fn max(lhs: f32, rhs: f32) -> f32 {
    if lhs.is_nan() || lhs > rhs { lhs } else { rhs }
}

/// The smaller operand; NaN where either is.
fn min(lhs: f32, rhs: f32) -> f32 {
    if lhs.is_nan() || lhs < rhs { lhs } else { rhs }
}

/// Runs `$body` with `$apply` as the f32 function of an operator, so that loops have it inline.
/// Bitwise operators do not come here; they give NaN.
macro_rules! with_operator {
    ($op:expr, $apply:ident => $body:expr) => {
        match $op {
            AluOp::Add => {
                let $apply = |lhs: f32, rhs: f32| lhs + rhs;
                $body
            }
            AluOp::Subtract => {
                let $apply = |lhs: f32, rhs: f32| lhs - rhs;
                $body
            }
            AluOp::Multiply => {
                let $apply = |lhs: f32, rhs: f32| lhs * rhs;
                $body
            }
            AluOp::Max => {
                let $apply = max;
                $body
            }
            AluOp::Min => {
                let $apply = min;
                $body
            }
            AluOp::Equal => {
                let $apply = |lhs: f32, rhs: f32| truth(lhs == rhs);
                $body
            }
            AluOp::NotEqual => {
                let $apply = |lhs: f32, rhs: f32| truth(lhs != rhs);
                $body
            }
            AluOp::Greater => {
                let $apply = |lhs: f32, rhs: f32| truth(lhs > rhs);
                $body
            }
            AluOp::GreaterEqual => {
                let $apply = |lhs: f32, rhs: f32| truth(lhs >= rhs);
                $body
            }
            AluOp::Less => {
                let $apply = |lhs: f32, rhs: f32| truth(lhs < rhs);
                $body
            }
            AluOp::LessEqual => {
                let $apply = |lhs: f32, rhs: f32| truth(lhs <= rhs);
                $body
            }
            AluOp::LogicalAnd => {
                let $apply = |lhs: f32, rhs: f32| truth(lhs != 0.0 && rhs != 0.0);
                $body
            }
            AluOp::LogicalOr => {
                let $apply = |lhs: f32, rhs: f32| truth(lhs != 0.0 || rhs != 0.0);
                $body
            }
            AluOp::LogicalXor => {
                let $apply = |lhs: f32, rhs: f32| truth((lhs != 0.0) != (rhs != 0.0));
                $body
            }
            AluOp::Power => {
                let $apply = |lhs: f32, rhs: f32| libm::pow(f64::from(lhs), f64::from(rhs)) as f32;
                $body
            }
            AluOp::Abs => {
                let $apply = |lhs: f32, _: f32| lhs.abs();
                $body
            }
            AluOp::LogicalNot => {
                let $apply = |lhs: f32, _: f32| truth(lhs == 0.0);
                $body
            }
            AluOp::BitwiseAnd | AluOp::BitwiseOr | AluOp::BitwiseXor | AluOp::ShiftLeft | AluOp::ShiftRight => {
                let $apply = |_: f32, _: f32| f32::NAN;
                $body
            }
        }
    };
}

/// One application.
pub(crate) fn apply(op: AluOp, lhs: f32, rhs: f32) -> f32 {
    with_operator!(op, function => function(lhs, rhs))
}

/// values[i] = values[i] op operand, or the other way round.
pub(crate) fn with_scalar(op: AluOp, values: &mut [f32], operand: f32, reverse: Order) {
    with_operator!(op, function => match reverse {
        Order::TensorFirst => values.iter_mut().for_each(|value| *value = function(*value, operand)),
        Order::ScalarFirst => values.iter_mut().for_each(|value| *value = function(operand, *value)),
    });
}

/// values[i] = values[i] op others[i], or the other way round.
pub(crate) fn with_tensor(op: AluOp, values: &mut [f32], others: &[f32], reverse: Order) {
    with_operator!(op, function => match reverse {
        Order::TensorFirst => {
            values.iter_mut().zip(others).for_each(|(value, &other)| *value = function(*value, other));
        }
        Order::ScalarFirst => {
            values.iter_mut().zip(others).for_each(|(value, &other)| *value = function(other, *value));
        }
    });
}

/// Which side of an operator the first operand stands on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    TensorFirst,
    ScalarFirst,
}

impl Order {
    /// From an instruction's flag.
    pub fn reversed_if(reverse: bool) -> Order {
        if reverse { Order::ScalarFirst } else { Order::TensorFirst }
    }
}

/// Partial results that a reduction keeps side by side.
const N_PARTIALS: usize = 32;

/// The value that leaves others unchanged.
fn identity(op: AluOp) -> f32 {
    match op {
        AluOp::Multiply | AluOp::LogicalAnd => 1.0,
        AluOp::Max => f32::NEG_INFINITY,
        AluOp::Min => f32::INFINITY,
        AluOp::Add
        | AluOp::Subtract
        | AluOp::Equal
        | AluOp::NotEqual
        | AluOp::Greater
        | AluOp::GreaterEqual
        | AluOp::Less
        | AluOp::LessEqual
        | AluOp::LogicalOr
        | AluOp::LogicalXor
        | AluOp::Power
        | AluOp::Abs
        | AluOp::LogicalNot
        | AluOp::BitwiseAnd
        | AluOp::BitwiseOr
        | AluOp::BitwiseXor
        | AluOp::ShiftLeft
        | AluOp::ShiftRight => 0.0,
    }
}

/// Reduces a row: element i goes to partial i mod 32, and the partials are folded by halves. A
/// subtraction takes every later element from the first.
pub(crate) fn reduce(op: AluOp, values: &[f32]) -> f32 {
    if op == AluOp::Subtract {
        let Some((first, rest)) = values.split_first() else { return 0.0 };
        return first - reduce(AluOp::Add, rest);
    }
    let mut partials = [identity(op); N_PARTIALS];
    with_operator!(op, function => {
        for chunk in values.chunks(N_PARTIALS) {
            for (partial, &value) in partials.iter_mut().zip(chunk) {
                *partial = function(*partial, value);
            }
        }
        let mut n_left = N_PARTIALS;
        while n_left > 1 {
            n_left /= 2;
            for position in 0..n_left {
                partials[position] = function(partials[position], partials[position + n_left]);
            }
        }
    });
    partials[0]
}

/// A bitwise operator on raw bits of `n_bits`; shifts are logical, and shift in zeros.
pub(crate) fn apply_bits(op: AluOp, lhs: u32, rhs: u32, n_bits: u32) -> u32 {
    let mask = if n_bits == 32 { u32::MAX } else { (1 << n_bits) - 1 };
    let result = match op {
        AluOp::BitwiseAnd => lhs & rhs,
        AluOp::BitwiseOr => lhs | rhs,
        AluOp::BitwiseXor => lhs ^ rhs,
        AluOp::ShiftLeft => lhs.checked_shl(rhs).unwrap_or(0),
        AluOp::ShiftRight => lhs.checked_shr(rhs).unwrap_or(0),
        AluOp::Add
        | AluOp::Subtract
        | AluOp::Multiply
        | AluOp::Max
        | AluOp::Min
        | AluOp::Equal
        | AluOp::NotEqual
        | AluOp::Greater
        | AluOp::GreaterEqual
        | AluOp::Less
        | AluOp::LessEqual
        | AluOp::LogicalAnd
        | AluOp::LogicalOr
        | AluOp::LogicalXor
        | AluOp::Power
        | AluOp::Abs
        | AluOp::LogicalNot => lhs,
    };
    result & mask
}

/// True for operators on raw bits.
pub(crate) fn is_bitwise(op: AluOp) -> bool {
    matches!(op, AluOp::BitwiseAnd | AluOp::BitwiseOr | AluOp::BitwiseXor | AluOp::ShiftLeft | AluOp::ShiftRight)
}

/// Pool's exact 32-bit integers; results wrap.
pub(crate) fn apply_integer(op: AluOp, lhs: i32, rhs: i32) -> i32 {
    match op {
        AluOp::Add => lhs.wrapping_add(rhs),
        AluOp::Subtract => lhs.wrapping_sub(rhs),
        AluOp::Multiply => lhs.wrapping_mul(rhs),
        AluOp::Max => lhs.max(rhs),
        AluOp::Min => lhs.min(rhs),
        AluOp::Equal => i32::from(lhs == rhs),
        AluOp::NotEqual => i32::from(lhs != rhs),
        AluOp::Greater => i32::from(lhs > rhs),
        AluOp::GreaterEqual => i32::from(lhs >= rhs),
        AluOp::Less => i32::from(lhs < rhs),
        AluOp::LessEqual => i32::from(lhs <= rhs),
        AluOp::LogicalAnd => i32::from(lhs != 0 && rhs != 0),
        AluOp::LogicalOr => i32::from(lhs != 0 || rhs != 0),
        AluOp::LogicalXor => i32::from((lhs != 0) != (rhs != 0)),
        AluOp::Power => u32::try_from(rhs).map_or(0, |exponent| lhs.wrapping_pow(exponent)),
        AluOp::Abs => lhs.wrapping_abs(),
        AluOp::LogicalNot => i32::from(lhs == 0),
        AluOp::BitwiseAnd | AluOp::BitwiseOr | AluOp::BitwiseXor | AluOp::ShiftLeft | AluOp::ShiftRight => {
            apply_bits(op, lhs as u32, rhs as u32, 32) as i32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_keep_32_partials() {
        // One large value absorbs what shares its partial, and nothing else.
        let mut values = vec![1.0f32; 64];
        values[0] = 16_777_216.0;
        assert_eq!(reduce(AluOp::Add, &values), 16_777_216.0 + 62.0f32);
        let tiny: Vec<f32> = (0..100).map(|i| i as f32).collect();
        assert_eq!(reduce(AluOp::Add, &tiny), 4950.0);
        assert_eq!(reduce(AluOp::Max, &tiny), 99.0);
        assert_eq!(reduce(AluOp::Multiply, &[2.0, 3.0]), 6.0);
        assert_eq!(reduce(AluOp::Subtract, &[10.0, 3.0, 2.0]), 5.0);
        assert_eq!(reduce(AluOp::Add, &[]), 0.0);
    }

    #[test]
    fn nan_wins_in_max_and_min() {
        for op in [AluOp::Max, AluOp::Min] {
            assert!(apply(op, f32::NAN, 1.0).is_nan() && apply(op, 1.0, f32::NAN).is_nan());
            assert!(reduce(op, &[1.0, f32::NAN, 2.0]).is_nan());
        }
        assert_eq!(apply(AluOp::Max, -1.0, 0.0), 0.0);
    }

    #[test]
    fn operators_take_their_order() {
        let mut values = [1.0, 2.0];
        with_scalar(AluOp::Subtract, &mut values, 5.0, Order::ScalarFirst);
        assert_eq!(values, [4.0, 3.0]);
        with_tensor(AluOp::Subtract, &mut values, &[1.0, 1.0], Order::TensorFirst);
        assert_eq!(values, [3.0, 2.0]);
        assert_eq!(apply(AluOp::LogicalXor, 2.0, 0.0), 1.0);
        assert_eq!(apply(AluOp::LessEqual, f32::NAN, 0.0), 0.0);
    }

    #[test]
    fn integers_are_exact_and_bits_stay_in_their_width() {
        assert_eq!(apply_integer(AluOp::Add, 16_777_216, 1), 16_777_217);
        assert_eq!(apply_integer(AluOp::Multiply, i32::MAX, 2), -2);
        assert_eq!(apply_bits(AluOp::ShiftLeft, 0x81, 1, 8), 0x02);
        assert_eq!(apply_bits(AluOp::ShiftRight, 0xffff_ffff, 40, 32), 0);
    }
}
