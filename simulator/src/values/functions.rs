//! Activation functions: f32 in, computed in f64 and rounded once to f32.
//!
//! The chip evaluates piecewise polynomials whose coefficients are not published; what it loses
//! against the exact value is unknown and not modelled. Infinities and NaN pass as mathematics has
//! them. Inputs outside the valid range are the caller's business.

use ir::program::ActivationFunction;

/// The function's values, in place.
pub(crate) fn evaluate(function: ActivationFunction, values: &mut [f32]) {
    // One loop per function: the choice is made once per row.
    let each = |values: &mut [f32], evaluate: fn(f64) -> f32| {
        values.iter_mut().for_each(|value| *value = evaluate(f64::from(*value)));
    };
    match function {
        ActivationFunction::Copy => {}
        ActivationFunction::Square => values.iter_mut().for_each(|value| *value *= *value),
        ActivationFunction::Relu => {
            // A NaN is not below zero and stays.
            values.iter_mut().filter(|value| **value < 0.0).for_each(|value| *value = 0.0);
        }
        ActivationFunction::Abs => values.iter_mut().for_each(|value| *value = value.abs()),
        ActivationFunction::Sign => {
            // Zeros and NaN are their own sign.
            let signed = values.iter_mut().filter(|value| **value != 0.0 && !value.is_nan());
            signed.for_each(|value| *value = value.signum());
        }
        ActivationFunction::Exp => each(values, |x| libm::exp(x) as f32),
        ActivationFunction::Tanh => each(values, |x| libm::tanh(x) as f32),
        ActivationFunction::Sigmoid => each(values, |x| sigmoid(x) as f32),
        ActivationFunction::Log => each(values, |x| libm::log(x) as f32),
        ActivationFunction::Softplus => each(values, |x| softplus(x) as f32),
        ActivationFunction::Sqrt => each(values, |x| x.sqrt() as f32),
        ActivationFunction::Rsqrt => each(values, |x| (1.0 / x.sqrt()) as f32),
        ActivationFunction::Reciprocal => each(values, |x| (1.0 / x) as f32),
        ActivationFunction::Gelu => {
            each(values, |x| gated(x, 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)));
        }
        ActivationFunction::GeluTanh => each(values, |x| gated(x, 0.5 * (1.0 + libm::tanh(gelu_inner(x))))),
        ActivationFunction::Erf => each(values, |x| libm::erf(x) as f32),
        ActivationFunction::Silu => each(values, |x| gated(x, sigmoid(x))),
        ActivationFunction::Mish => each(values, |x| gated(x, libm::tanh(softplus(x)))),
        ActivationFunction::Sin => each(values, |x| libm::sin(x) as f32),
        ActivationFunction::Arctan => each(values, |x| libm::atan(x) as f32),
    }
}

/// x times a gate in 0..=1. A closed gate gives zero, also where x is infinite.
fn gated(x: f64, gate: f64) -> f32 {
    if gate == 0.0 { 0.0 * x.signum() as f32 } else { (x * gate) as f32 }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// log(1 + e^x), without overflow.
fn softplus(x: f64) -> f64 {
    if x > 0.0 { x + libm::log1p(libm::exp(-x)) } else { libm::log1p(libm::exp(x)) }
}

/// sqrt(2/pi) (x + 0.044715 x^3).
fn gelu_inner(x: f64) -> f64 {
    std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2 * (x + 0.044715 * x * x * x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluate(function: ActivationFunction, input: f32) -> f32 {
        let mut values = [input];
        super::evaluate(function, &mut values);
        values[0]
    }

    #[test]
    fn values_against_known_constants() {
        let cases = [
            (ActivationFunction::Exp, 1.0, std::f32::consts::E),
            (ActivationFunction::Sigmoid, 0.0, 0.5),
            (ActivationFunction::Rsqrt, 4.0, 0.5),
            (ActivationFunction::Gelu, 1.0, 0.841_344_7),
            (ActivationFunction::GeluTanh, 1.0, 0.841_192),
            (ActivationFunction::Silu, 1.0, 0.731_058_6),
            (ActivationFunction::Mish, 1.0, 0.865_098_4),
            (ActivationFunction::Softplus, 100.0, 100.0),
            (ActivationFunction::Erf, 0.5, 0.520_499_9),
            (ActivationFunction::Arctan, 1.0, std::f32::consts::FRAC_PI_4),
            (ActivationFunction::Sin, std::f32::consts::FRAC_PI_2, 1.0),
            (ActivationFunction::Log, 2.0, std::f32::consts::LN_2),
            (ActivationFunction::Sign, -3.0, -1.0),
        ];
        for (function, input, expected) in cases {
            let value = evaluate(function, input);
            assert!((value - expected).abs() <= expected.abs() * 1e-6, "{function:?}({input}) = {value}");
        }
    }

    #[test]
    fn infinities_and_nan_pass() {
        assert_eq!(evaluate(ActivationFunction::Exp, f32::NEG_INFINITY), 0.0);
        assert_eq!(evaluate(ActivationFunction::Exp, 100.0), f32::INFINITY);
        assert_eq!(evaluate(ActivationFunction::Rsqrt, f32::INFINITY), 0.0);
        assert_eq!(evaluate(ActivationFunction::Gelu, f32::NEG_INFINITY), 0.0);
        assert_eq!(evaluate(ActivationFunction::Silu, f32::NEG_INFINITY), 0.0);
        assert_eq!(evaluate(ActivationFunction::Silu, f32::INFINITY), f32::INFINITY);
        for function in [ActivationFunction::Relu, ActivationFunction::Sign, ActivationFunction::Gelu] {
            assert!(evaluate(function, f32::NAN).is_nan(), "{function:?}");
        }
    }
}
