//! Elements of every on-chip type to and from f32.
//!
//! Widening is exact, except for 32-bit integers beyond 24 bits, which round to nearest even as the
//! engines do. Narrowing rounds to nearest even; floats overflow to infinity, integers saturate and
//! take NaN as 0. `bool` is an unsigned byte to the hardware.

use half::{bf16, f16};
use ir::Dtype;

/// An element type as bytes in memory.
pub(crate) trait Element {
    const SIZE: usize;
    fn decode(bytes: &[u8]) -> f32;
    fn encode(value: f32, bytes: &mut [u8]);
}

pub(crate) struct F32;
pub(crate) struct Bf16;
pub(crate) struct F16;
pub(crate) struct F8E4m3;
pub(crate) struct F8E5m2;
pub(crate) struct I32;
pub(crate) struct I16;
pub(crate) struct I8;
pub(crate) struct U8;

macro_rules! elements {
    ($($name:ident, $size:literal, $raw:ident, $bytes:ident => $decode:expr, $value:ident => $encode:expr;)*) => {
        $(impl Element for $name {
            const SIZE: usize = $size;
            #[inline(always)]
            fn decode($bytes: &[u8]) -> f32 {
                $decode
            }
            #[inline(always)]
            fn encode($value: f32, bytes: &mut [u8]) {
                let raw: $raw = $encode;
                bytes.copy_from_slice(&raw.to_le_bytes());
            }
        })*
    };
}

elements! {
    F32, 4, f32, bytes => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]), value => value;
    Bf16, 2, u16, bytes => f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16),
        value => bf16::from_f32(value).to_bits();
    F16, 2, u16, bytes => f16::from_bits(u16::from_le_bytes([bytes[0], bytes[1]])).to_f32(),
        value => f16::from_f32(value).to_bits();
    F8E4m3, 1, u8, bytes => decode_small(bytes[0], 3), value => encode_small(value, 3);
    F8E5m2, 1, u8, bytes => decode_small(bytes[0], 2), value => encode_small(value, 2);
    I32, 4, i32, bytes => i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as f32,
        value => value.round_ties_even() as i32;
    I16, 2, i16, bytes => f32::from(i16::from_le_bytes([bytes[0], bytes[1]])), value => value.round_ties_even() as i16;
    I8, 1, i8, bytes => f32::from(bytes[0] as i8), value => value.round_ties_even() as i8;
    U8, 1, u8, bytes => f32::from(bytes[0]), value => value.round_ties_even() as u8;
}

/// Runs `$body` with `$element` naming the type of `$dtype`. 64-bit types do not reach the engines;
/// the operand rules keep them out, and here they read as bytes.
macro_rules! with_element {
    ($dtype:expr, $element:ident => $body:expr) => {{
        use $crate::values::convert as elements;
        match $dtype {
            ir::Dtype::F32 => {
                type $element = elements::F32;
                $body
            }
            ir::Dtype::Bf16 => {
                type $element = elements::Bf16;
                $body
            }
            ir::Dtype::F16 => {
                type $element = elements::F16;
                $body
            }
            ir::Dtype::F8E4m3 => {
                type $element = elements::F8E4m3;
                $body
            }
            ir::Dtype::F8E5m2 => {
                type $element = elements::F8E5m2;
                $body
            }
            ir::Dtype::I32 => {
                type $element = elements::I32;
                $body
            }
            ir::Dtype::I16 => {
                type $element = elements::I16;
                $body
            }
            ir::Dtype::I8 => {
                type $element = elements::I8;
                $body
            }
            ir::Dtype::U8 | ir::Dtype::Bool | ir::Dtype::F64 | ir::Dtype::I64 => {
                type $element = elements::U8;
                $body
            }
        }
    }};
}
pub(crate) use with_element;

/// 2^exponent for exponents of normal numbers.
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// An 8-bit float of the IEEE pattern: all exponent bits set means infinity or NaN.
fn decode_small(code: u8, mantissa_bits: u32) -> f32 {
    let exponent_bits = 7 - mantissa_bits;
    let bias = (1 << (exponent_bits - 1)) - 1;
    let mantissa = u32::from(code) & ((1 << mantissa_bits) - 1);
    let exponent = (u32::from(code) >> mantissa_bits) & ((1 << exponent_bits) - 1);
    let one = 1u32 << mantissa_bits;
    let magnitude = if exponent == 0 {
        mantissa as f32 * power_of_two(1 - bias - mantissa_bits as i32)
    } else if exponent == (1 << exponent_bits) - 1 {
        if mantissa == 0 { f32::INFINITY } else { f32::NAN }
    } else {
        (one + mantissa) as f32 * power_of_two(exponent as i32 - bias - mantissa_bits as i32)
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

fn encode_small(value: f32, mantissa_bits: u32) -> u8 {
    let exponent_bits = 7 - mantissa_bits;
    let bias = (1 << (exponent_bits - 1)) - 1;
    let infinity = ((1u32 << exponent_bits) - 1) << mantissa_bits;
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return sign | (infinity as u8) | 1 << (mantissa_bits - 1);
    }
    let magnitude = value.abs();
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(1 - bias);
    if exponent > bias + 1 {
        return sign | infinity as u8;
    }
    // Exact: a power of two scales; rounding happens in the next step alone.
    let quanta = (magnitude * power_of_two(mantissa_bits as i32 - exponent)).round_ties_even() as u32;
    // A subnormal has no implicit one; its quanta are the code, and a carry makes it normal.
    let code = ((exponent + bias - 1) as u32) * (1 << mantissa_bits) + quanta;
    sign | code.min(infinity) as u8
}

/// One element's raw bits, zero-extended.
pub(crate) fn raw_bits(dtype: Dtype, bytes: &[u8]) -> u32 {
    let mut raw = [0u8; 4];
    let size = dtype.size_bytes().min(4);
    raw[..size].copy_from_slice(&bytes[..size]);
    u32::from_le_bytes(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<Kind: Element>(value: f32) -> f32 {
        let mut bytes = vec![0; Kind::SIZE];
        Kind::encode(value, &mut bytes);
        Kind::decode(&bytes)
    }

    #[test]
    fn floats_round_to_nearest_even() {
        assert_eq!(round_trip::<Bf16>(1.0 + 1.0 / 256.0), 1.0);
        assert_eq!(round_trip::<Bf16>(1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0);
        assert_eq!(round_trip::<F16>(65_520.0), f32::INFINITY);
        assert_eq!(round_trip::<F16>(65_519.0), 65_504.0);
        assert_eq!(round_trip::<F8E4m3>(240.0), 240.0);
        assert_eq!(round_trip::<F8E4m3>(248.0), f32::INFINITY);
        assert_eq!(round_trip::<F8E4m3>(247.9), 240.0);
        assert_eq!(round_trip::<F8E4m3>(1.0625), 1.0);
        assert_eq!(round_trip::<F8E4m3>(-1.1875), -1.25);
        assert_eq!(round_trip::<F8E5m2>(57_344.0), 57_344.0);
        assert_eq!(round_trip::<F8E5m2>(61_440.0), f32::INFINITY);
        assert_eq!(round_trip::<F8E5m2>(f32::NEG_INFINITY), f32::NEG_INFINITY);
        assert!(round_trip::<F8E4m3>(f32::NAN).is_nan() && round_trip::<F8E5m2>(f32::NAN).is_nan());
        // Half of the smallest subnormal is a tie and goes to zero; a little more does not.
        assert_eq!(round_trip::<F8E4m3>(power_of_two(-10)), 0.0);
        assert_eq!(round_trip::<F8E4m3>(power_of_two(-10) * 1.01), power_of_two(-9));
    }

    #[test]
    fn every_8_bit_float_survives() {
        for code in 0..=255u8 {
            for mantissa_bits in [2, 3] {
                let value = decode_small(code, mantissa_bits);
                assert!(value.is_nan() || encode_small(value, mantissa_bits) == code, "{code:#x}");
            }
        }
    }

    #[test]
    fn integers_round_and_saturate() {
        assert_eq!(round_trip::<I8>(126.5), 126.0);
        assert_eq!(round_trip::<I8>(127.5), 127.0);
        assert_eq!(round_trip::<I8>(-1e9), -128.0);
        assert_eq!(round_trip::<U8>(-3.0), 0.0);
        assert_eq!(round_trip::<I16>(f32::INFINITY), 32_767.0);
        assert_eq!(round_trip::<I32>(f32::NAN), 0.0);
        assert_eq!(I32::decode(&16_777_217i32.to_le_bytes()), 16_777_216.0);
    }
}
