//! What the tables of the activation engine can do: input ranges of its functions.
//!
//! Which functions share a table set stands with [`ActivationFunction`].

use crate::program::ActivationFunction;

/// Inputs for which a function gives valid results. What a NaN gives is documented for no function.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum ValidRange {
    /// Every real number.
    All,
    /// Lowest and highest, both valid.
    Between(f32, f32),
    /// The same for the magnitude; either sign.
    Magnitude(f32, f32),
}

impl ValidRange {
    /// The inputs for which `function` is valid. Outside them the engine returns wrong values
    /// without an exception.
    pub fn of(function: ActivationFunction) -> ValidRange {
        match function {
            ActivationFunction::Log => ValidRange::Between(power_of_two(-64), power_of_two(64)),
            ActivationFunction::Sqrt => ValidRange::Between(power_of_two(-116), power_of_two(118)),
            ActivationFunction::Rsqrt => ValidRange::Between(power_of_two(-87), power_of_two(97)),
            ActivationFunction::Reciprocal => ValidRange::Magnitude(power_of_two(-42), power_of_two(42)),
            ActivationFunction::Sin => ValidRange::Between(-std::f32::consts::PI, std::f32::consts::PI),
            ActivationFunction::Arctan => {
                ValidRange::Between(-std::f32::consts::FRAC_PI_2, std::f32::consts::FRAC_PI_2)
            }
            ActivationFunction::Copy
            | ActivationFunction::Square
            | ActivationFunction::Relu
            | ActivationFunction::Abs
            | ActivationFunction::Sign
            | ActivationFunction::Exp
            | ActivationFunction::Tanh
            | ActivationFunction::Sigmoid
            | ActivationFunction::Softplus
            | ActivationFunction::Gelu
            | ActivationFunction::GeluTanh
            | ActivationFunction::Erf
            | ActivationFunction::Silu
            | ActivationFunction::Mish => ValidRange::All,
        }
    }

    /// True where `input` is a number or an infinity outside the range.
    pub fn excludes(self, input: f32) -> bool {
        match self {
            ValidRange::All => false,
            ValidRange::Between(low, high) => !input.is_nan() && !(low..=high).contains(&input),
            ValidRange::Magnitude(low, high) => !input.is_nan() && !(low..=high).contains(&input.abs()),
        }
    }
}

/// 2^exponent for exponents of normal numbers.
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_include_their_ends_and_no_infinities() {
        let log = ValidRange::of(ActivationFunction::Log);
        assert!(!log.excludes(2f32.powi(-64)) && !log.excludes(2f32.powi(64)));
        assert!(log.excludes(0.0) && log.excludes(2f32.powi(-65)) && log.excludes(-1.0));
        assert!(log.excludes(f32::INFINITY) && !log.excludes(f32::NAN));
        let reciprocal = ValidRange::of(ActivationFunction::Reciprocal);
        assert!(!reciprocal.excludes(-1.0) && reciprocal.excludes(0.0) && reciprocal.excludes(-2f32.powi(43)));
        assert!(ValidRange::of(ActivationFunction::Sin).excludes(3.2));
        assert!(reciprocal.excludes(f32::NEG_INFINITY));
        assert!(!ValidRange::of(ActivationFunction::Exp).excludes(f32::INFINITY));
    }
}
