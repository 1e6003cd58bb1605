//! The numbers that rules are tried on.

use ir::reference::Value;
use ir::{Dtype, TensorType};

/// What the numbers of a set are like.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// In -2..2.
    Uniform,
    /// Of all magnitudes from 10^-4 to 10^4.
    Spread,
    /// Half of them zeros of either sign.
    Zeros,
    /// 10^-42 to 10^-25: their squares are no f32.
    Tiny,
    /// 10^3 to 10^12.
    Large,
    /// Below zero.
    Negative,
    /// Rows of one number, so that maxima are met often and variances are zero.
    Constant,
    /// A few infinities and NaN.
    Infinite,
}

/// Half of what is drawn has no special numbers.
pub const KINDS: [Kind; 14] = [
    Kind::Uniform,
    Kind::Spread,
    Kind::Uniform,
    Kind::Zeros,
    Kind::Uniform,
    Kind::Tiny,
    Kind::Uniform,
    Kind::Large,
    Kind::Uniform,
    Kind::Negative,
    Kind::Uniform,
    Kind::Constant,
    Kind::Uniform,
    Kind::Infinite,
];

/// Values of the leaves of these names, as their element types hold them. Of masks, which are named m,
/// half have rows without any key.
pub fn draw(leaves: &[TensorType], names: &[String], kind: Kind, seed: u64) -> Vec<Value> {
    let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let values = leaves.iter().zip(names).map(|(ty, name)| {
        let n_columns = ty.shape.last().copied().unwrap_or(1).max(1);
        let closes_rows = name == "m" && random.below(2) == 0;
        let closed = if random.below(2) == 0 { f64::NEG_INFINITY } else { f64::from(f32::MIN) };
        let (mut conditions, mut numbers) = (Vec::new(), Vec::new());
        for _ in 0..ty.n_elements() / n_columns {
            let is_closed = closes_rows && random.below(3) == 0;
            let constant = random.unit();
            for _ in 0..n_columns {
                let is_open = !is_closed && random.below(3) > 0;
                conditions.push(is_open);
                numbers.push(match closes_rows {
                    true if is_open => 0.0,
                    true => closed,
                    false => random.number(kind, constant),
                });
            }
        }
        let value = if ty.dtype == Dtype::Bool {
            Value::bools(&ty.shape, conditions)
        } else {
            Value::floats(&ty.shape, numbers)
        };
        value.rounded(ty.dtype)
    });
    values.collect()
}

/// The splitmix64 sequence.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn in_range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * ((self.next() >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// In -2..2.
    fn unit(&mut self) -> f64 {
        self.in_range(-2.0, 2.0)
    }

    fn signed(&mut self, magnitude: f64) -> f64 {
        if self.below(2) == 0 { magnitude } else { -magnitude }
    }

    fn power(&mut self, low: f64, high: f64) -> f64 {
        let exponent = self.in_range(low, high);
        let magnitude = 10f64.powf(exponent);
        self.signed(magnitude)
    }

    fn number(&mut self, kind: Kind, constant: f64) -> f64 {
        match kind {
            Kind::Uniform => self.unit(),
            Kind::Spread => self.power(-4.0, 4.0),
            Kind::Zeros if self.below(2) == 0 => self.signed(0.0),
            Kind::Zeros => self.unit(),
            Kind::Tiny => self.power(-42.0, -25.0),
            Kind::Large => self.power(3.0, 12.0),
            Kind::Negative => self.in_range(-2.0, 0.0),
            Kind::Constant => constant,
            Kind::Infinite => match self.below(12) {
                0 => f64::INFINITY,
                1 => f64::NEG_INFINITY,
                2 => f64::NAN,
                _ => self.unit(),
            },
        }
    }
}
