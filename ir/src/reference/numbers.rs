//! Element types as sets of numbers: rounding into them, and their little-endian bytes.
//!
//! Rounding is to nearest, ties to even (machine-model appendix A). Above the largest finite value
//! a float becomes infinite; integers wrap.

use super::{EvalError, Lanes, Value};
use crate::types::{Dtype, TensorType};

/// Layout of a binary floating point type with subnormals and infinities.
struct FloatFormat {
    /// Stored bits of the mantissa.
    mantissa_bits: i32,
    /// Exponent of the smallest normal number.
    min_exponent: i32,
    max_finite: f64,
}

/// Smallest and largest number of an integer type; `None` for floats and bool.
pub fn integer_range(dtype: Dtype) -> Option<(i64, i64)> {
    match dtype {
        Dtype::I64 => Some((i64::MIN, i64::MAX)),
        Dtype::I32 => Some((i64::from(i32::MIN), i64::from(i32::MAX))),
        Dtype::I16 => Some((i64::from(i16::MIN), i64::from(i16::MAX))),
        Dtype::I8 => Some((i64::from(i8::MIN), i64::from(i8::MAX))),
        Dtype::U8 => Some((0, i64::from(u8::MAX))),
        Dtype::F64 | Dtype::F32 | Dtype::Bf16 | Dtype::F16 | Dtype::F8E4m3 | Dtype::F8E5m2 | Dtype::Bool => None,
    }
}

/// The number modulo the width of an integer type; unchanged for other types.
pub fn wrap_integer(dtype: Dtype, number: i64) -> i64 {
    match dtype {
        Dtype::I32 => i64::from(number as i32),
        Dtype::I16 => i64::from(number as i16),
        Dtype::I8 => i64::from(number as i8),
        Dtype::U8 => i64::from(number as u8),
        Dtype::I64
        | Dtype::F64
        | Dtype::F32
        | Dtype::Bf16
        | Dtype::F16
        | Dtype::F8E4m3
        | Dtype::F8E5m2
        | Dtype::Bool => number,
    }
}

/// The nearest number of a float type; unchanged for types that are no floats.
pub fn round_float(dtype: Dtype, number: f64) -> f64 {
    match float_format(dtype) {
        Some(format) => format.round(number),
        None if dtype == Dtype::F32 => f64::from(number as f32),
        None => number,
    }
}

/// Formats that Rust has no type for; `None` for all others.
fn float_format(dtype: Dtype) -> Option<FloatFormat> {
    let (mantissa_bits, min_exponent, max_finite) = match dtype {
        Dtype::Bf16 => (7, -126, f64::from(half::bf16::MAX)),
        Dtype::F16 => (10, -14, f64::from(half::f16::MAX)),
        Dtype::F8E4m3 => (3, -6, 240.0),
        Dtype::F8E5m2 => (2, -14, 57344.0),
        Dtype::F64 | Dtype::F32 | Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 | Dtype::U8 | Dtype::Bool => {
            return None;
        }
    };
    Some(FloatFormat { mantissa_bits, min_exponent, max_finite })
}

impl FloatFormat {
    fn round(&self, number: f64) -> f64 {
        let bits = number.to_bits();
        let exponent = ((bits >> 52) & 0x7ff) as i32 - 1023;
        if exponent == 1024 {
            return number;
        }
        let rounded = if exponent < self.min_exponent {
            // Below the normal numbers all steps are equal. Scaling by a power of two is exact.
            let quantum = self.min_exponent - self.mantissa_bits;
            (number * power_of_two(-quantum)).round_ties_even() * power_of_two(quantum)
        } else {
            // Adding just under half a step, or half where the kept part is odd, carries as rounding
            // does, from the mantissa into the exponent too.
            let dropped = 52 - self.mantissa_bits;
            let odd = (bits >> dropped) & 1;
            let carried = bits + (1 << (dropped - 1)) - 1 + odd;
            f64::from_bits(carried >> dropped << dropped)
        };
        if rounded.abs() > self.max_finite { f64::INFINITY.copysign(number) } else { rounded }
    }

    /// Sign, exponent and mantissa of a number of this format, packed into its low bits.
    fn encode(&self, number: f64) -> u32 {
        let exponent_ones = (1 << self.exponent_bits()) - 1;
        let sign = u32::from(number.is_sign_negative()) << (self.exponent_bits() + self.mantissa_bits);
        let magnitude = number.abs();
        let (exponent, mantissa) = if number.is_nan() {
            (exponent_ones, 1 << (self.mantissa_bits - 1))
        } else if magnitude.is_infinite() {
            (exponent_ones, 0)
        } else if magnitude < power_of_two(self.min_exponent) {
            (0, (magnitude / power_of_two(self.min_exponent - self.mantissa_bits)) as u32)
        } else {
            let exponent = ((magnitude.to_bits() >> 52) & 0x7ff) as i32 - 1023;
            let mantissa = (magnitude / power_of_two(exponent - self.mantissa_bits)) as u32 - (1 << self.mantissa_bits);
            ((exponent - self.min_exponent + 1) as u32, mantissa)
        };
        sign | (exponent << self.mantissa_bits) | mantissa
    }

    /// The number that `bits` encode.
    fn decode(&self, bits: u32) -> f64 {
        let exponent_ones = (1 << self.exponent_bits()) - 1;
        let mantissa = bits & ((1 << self.mantissa_bits) - 1);
        let exponent = (bits >> self.mantissa_bits) & exponent_ones;
        let magnitude = if exponent == exponent_ones {
            if mantissa == 0 { f64::INFINITY } else { f64::NAN }
        } else if exponent == 0 {
            f64::from(mantissa) * power_of_two(self.min_exponent - self.mantissa_bits)
        } else {
            let significand = f64::from(mantissa + (1 << self.mantissa_bits));
            significand * power_of_two(exponent as i32 - 1 + self.min_exponent - self.mantissa_bits)
        };
        let negative = (bits >> (self.exponent_bits() + self.mantissa_bits)) & 1 == 1;
        if negative { -magnitude } else { magnitude }
    }

    /// The smallest normal exponent is 2 - 2^(bits - 1).
    fn exponent_bits(&self) -> i32 {
        (2 - self.min_exponent).ilog2() as i32 + 1
    }
}

/// 2 to a power within the normal range of f64.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

impl Value {
    /// Every lane as the nearest element of `dtype`: floats round, integers wrap.
    pub fn rounded(mut self, dtype: Dtype) -> Value {
        match &mut self.lanes {
            Lanes::Float(lanes) if dtype == Dtype::F32 => {
                lanes.iter_mut().for_each(|lane| *lane = f64::from(*lane as f32));
            }
            Lanes::Float(lanes) => {
                if let Some(format) = float_format(dtype) {
                    lanes.iter_mut().for_each(|lane| *lane = format.round(*lane));
                }
            }
            Lanes::Int(lanes) => lanes.iter_mut().for_each(|lane| *lane = wrap_integer(dtype, *lane)),
            Lanes::Bool(_) => {}
        }
        self
    }

    /// The tensor whose packed little-endian elements are `bytes`. A bool byte other than 0 is true.
    ///
    /// # Errors
    /// When the number of bytes is not that of the type.
    pub fn from_bytes(ty: &TensorType, bytes: &[u8]) -> Result<Value, EvalError> {
        if ty.size_bytes() != bytes.len() {
            return Err(EvalError::new(format!("{} bytes are no tensor of {ty}", bytes.len())));
        }
        let lanes = match ty.dtype {
            Dtype::F64 => Lanes::Float(decode(bytes, f64::from_le_bytes)),
            Dtype::F32 => Lanes::Float(decode(bytes, |word| f64::from(f32::from_le_bytes(word)))),
            Dtype::Bf16 => Lanes::Float(decode(bytes, |word| f64::from(half::bf16::from_le_bytes(word)))),
            Dtype::F16 => Lanes::Float(decode(bytes, |word| f64::from(half::f16::from_le_bytes(word)))),
            Dtype::F8E4m3 | Dtype::F8E5m2 => {
                let format = float_format(ty.dtype).expect("8-bit floats have a format");
                Lanes::Float(decode(bytes, |[byte]: [u8; 1]| format.decode(u32::from(byte))))
            }
            Dtype::I64 => Lanes::Int(decode(bytes, i64::from_le_bytes)),
            Dtype::I32 => Lanes::Int(decode(bytes, |word| i64::from(i32::from_le_bytes(word)))),
            Dtype::I16 => Lanes::Int(decode(bytes, |word| i64::from(i16::from_le_bytes(word)))),
            Dtype::I8 => Lanes::Int(decode(bytes, |word| i64::from(i8::from_le_bytes(word)))),
            Dtype::U8 => Lanes::Int(decode(bytes, |word| i64::from(u8::from_le_bytes(word)))),
            Dtype::Bool => Lanes::Bool(decode(bytes, |[byte]: [u8; 1]| byte != 0)),
        };
        Ok(Value { shape: ty.shape.clone(), lanes })
    }

    /// The packed little-endian elements as `dtype`: floats round, integers wrap.
    ///
    /// # Errors
    /// When the lanes are of another kind than `dtype`.
    pub fn to_bytes(&self, dtype: Dtype) -> Result<Vec<u8>, EvalError> {
        let bytes = match dtype {
            Dtype::F64 => encode(self.as_floats()?, f64::to_le_bytes),
            Dtype::F32 => encode(self.as_floats()?, |lane| (lane as f32).to_le_bytes()),
            Dtype::Bf16 | Dtype::F16 => {
                let format = float_format(dtype).expect("16-bit floats have a format");
                encode(self.as_floats()?, |lane| (format.encode(format.round(lane)) as u16).to_le_bytes())
            }
            Dtype::F8E4m3 | Dtype::F8E5m2 => {
                let format = float_format(dtype).expect("8-bit floats have a format");
                encode(self.as_floats()?, |lane| [format.encode(format.round(lane)) as u8])
            }
            Dtype::I64 => encode(self.as_ints()?, i64::to_le_bytes),
            Dtype::I32 => encode(self.as_ints()?, |lane| (lane as i32).to_le_bytes()),
            Dtype::I16 => encode(self.as_ints()?, |lane| (lane as i16).to_le_bytes()),
            Dtype::I8 | Dtype::U8 => encode(self.as_ints()?, |lane| [lane as u8]),
            Dtype::Bool => encode(self.as_bools()?, |lane| [u8::from(lane)]),
        };
        Ok(bytes)
    }
}

fn decode<const N: usize, T>(bytes: &[u8], element: impl Fn([u8; N]) -> T) -> Vec<T> {
    let words = bytes.chunks_exact(N);
    words.map(|word| element(word.try_into().expect("chunks of N bytes have N bytes"))).collect()
}

fn encode<const N: usize, T: Copy>(lanes: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    lanes.iter().flat_map(|&lane| bytes(lane)).collect()
}
