//! Element types, shapes and tensor types.
//!
//! Strides do not exist here: the importer turns them into explicit ops, and only graph inputs and
//! outputs carry the strides that the caller has or expects.

use std::fmt;
use std::str::FromStr;

use smallvec::SmallVec;

/// Dimensions of a tensor, outermost first. Rank 0 is a scalar.
pub type Shape = SmallVec<[usize; 6]>;

/// Positions of axes, outermost axis 0.
pub type Axes = SmallVec<[usize; 6]>;

/// An f32 that compares and hashes by its bits, so that ops can.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct F32Bits(pub u32);

/// An f64 that compares and hashes by its bits, so that ops can.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct F64Bits(pub u64);

impl F32Bits {
    /// The bits of `number`.
    pub fn new(number: f32) -> Self {
        F32Bits(number.to_bits())
    }

    /// The number with these bits.
    pub fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

impl F64Bits {
    /// The bits of `number`.
    pub fn new(number: f64) -> Self {
        F64Bits(number.to_bits())
    }

    /// The number with these bits.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl fmt::Debug for F32Bits {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.get())
    }
}

impl fmt::Debug for F64Bits {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.get())
    }
}

/// Element type of a tensor or tile.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dtype {
    /// Carried to a diagnostic or to the host; no device instruction takes it.
    F64,
    F32,
    Bf16,
    F16,
    /// 1-4-3 with infinities, largest finite value 240.
    F8E4m3,
    /// 1-5-2, largest finite value 57,344.
    F8E5m2,
    /// Two 32-bit words in HBM; device arithmetic is 32 bits wide.
    I64,
    I32,
    I16,
    I8,
    U8,
    /// One byte, 0 or 1.
    Bool,
}

impl Dtype {
    /// Every element type, in declaration order.
    pub const ALL: [Dtype; 12] = [
        Dtype::F64,
        Dtype::F32,
        Dtype::Bf16,
        Dtype::F16,
        Dtype::F8E4m3,
        Dtype::F8E5m2,
        Dtype::I64,
        Dtype::I32,
        Dtype::I16,
        Dtype::I8,
        Dtype::U8,
        Dtype::Bool,
    ];

    /// Name in the text form, for example `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F64 => "f64",
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
            Dtype::F8E4m3 => "f8e4m3",
            Dtype::F8E5m2 => "f8e5m2",
            Dtype::I64 => "i64",
            Dtype::I32 => "i32",
            Dtype::I16 => "i16",
            Dtype::I8 => "i8",
            Dtype::U8 => "u8",
            Dtype::Bool => "bool",
        }
    }

    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Dtype::F64 | Dtype::I64 => 8,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::Bf16 | Dtype::F16 | Dtype::I16 => 2,
            Dtype::F8E4m3 | Dtype::F8E5m2 | Dtype::I8 | Dtype::U8 | Dtype::Bool => 1,
        }
    }

    /// True for the floating point types.
    pub const fn is_float(self) -> bool {
        matches!(self, Dtype::F64 | Dtype::F32 | Dtype::Bf16 | Dtype::F16 | Dtype::F8E4m3 | Dtype::F8E5m2)
    }

    /// True for the integer types; `bool` is none of them.
    pub const fn is_integer(self) -> bool {
        matches!(self, Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 | Dtype::U8)
    }

    /// True for `bf16` and `f16`, whose arithmetic is done in f32 and rounded once.
    pub const fn is_half(self) -> bool {
        matches!(self, Dtype::Bf16 | Dtype::F16)
    }

    /// Distance from 1.0 to the next value: 2^-23 for f32, 2^-7 for bf16. `None` for non-floats.
    pub fn epsilon(self) -> Option<f64> {
        match self {
            Dtype::F64 => Some(f64::EPSILON),
            Dtype::F32 => Some(f64::from(f32::EPSILON)),
            Dtype::Bf16 => Some(1.0 / 128.0),
            Dtype::F16 => Some(1.0 / 1024.0),
            Dtype::F8E4m3 => Some(1.0 / 8.0),
            Dtype::F8E5m2 => Some(1.0 / 4.0),
            Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 | Dtype::U8 | Dtype::Bool => None,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = TypeError;

    fn from_str(text: &str) -> Result<Self, TypeError> {
        let found = Dtype::ALL.into_iter().find(|dtype| dtype.name() == text);
        found.ok_or_else(|| TypeError::new(format!("no element type is named `{text}`")))
    }
}

/// Element type and shape of a value. Prints as `f32[4, 512]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorType {
    pub dtype: Dtype,
    pub shape: Shape,
}

impl TensorType {
    /// The type with this element type and shape.
    pub fn new(dtype: Dtype, shape: impl IntoIterator<Item = usize>) -> Self {
        TensorType { dtype, shape: shape.into_iter().collect() }
    }

    /// A rank-0 type.
    pub fn scalar(dtype: Dtype) -> Self {
        TensorType { dtype, shape: Shape::new() }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements; 1 for a scalar. Saturates, so that hostile shapes stay comparable.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().fold(1usize, |count, &dim| count.saturating_mul(dim))
    }

    /// True when the product of all dimensions other than 0 is below 2^40, so that positions and
    /// strides can be computed without overflow. The verifier asks it of every value.
    pub fn is_addressable(&self) -> bool {
        let size = self.shape.iter().try_fold(1usize, |size, &dim| size.checked_mul(dim.max(1)));
        size.is_some_and(|size| size < 1 << 40)
    }

    /// Bytes of the packed tensor.
    pub fn size_bytes(&self) -> usize {
        self.n_elements().saturating_mul(self.dtype.size_bytes())
    }

    /// The same shape with another element type.
    pub fn with_dtype(&self, dtype: Dtype) -> Self {
        TensorType { dtype, shape: self.shape.clone() }
    }

    /// The same element type with another shape.
    pub fn with_shape(&self, shape: impl IntoIterator<Item = usize>) -> Self {
        TensorType { dtype: self.dtype, shape: shape.into_iter().collect() }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}[", self.dtype)?;
        for (position, dim) in self.shape.iter().enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            write!(formatter, "{separator}{dim}")?;
        }
        formatter.write_str("]")
    }
}

/// Steps of a packed row-major tensor of this shape, in elements, outermost first.
pub fn packed_strides(shape: &[usize]) -> SmallVec<[usize; 6]> {
    let mut strides: SmallVec<[usize; 6]> = SmallVec::from_elem(1, shape.len());
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1].saturating_mul(shape[axis + 1]);
    }
    strides
}

/// The common shape of operands under right-aligned broadcasting of dimensions of size 1.
///
/// # Errors
/// Names both shapes when a dimension differs and neither is 1.
pub fn broadcast_shapes(lhs: &[usize], rhs: &[usize]) -> Result<Shape, TypeError> {
    let rank = lhs.len().max(rhs.len());
    let dim_of = |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |at| shape[at]);
    let mut shape = Shape::new();
    for axis in 0..rank {
        match (dim_of(lhs, axis), dim_of(rhs, axis)) {
            (left, right) if left == right => shape.push(left),
            (1, right) => shape.push(right),
            (left, 1) => shape.push(left),
            (_, _) => return Err(TypeError::new(format!("shapes {lhs:?} and {rhs:?} do not broadcast"))),
        }
    }
    Ok(shape)
}

/// Why an op does not accept its operands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TypeError {
    pub message: String,
}

impl TypeError {
    /// An error with this sentence: lower case, no final dot, the clashing values named.
    pub fn new(message: impl Into<String>) -> Self {
        TypeError { message: message.into() }
    }
}
