//! Attribute values and how ops read them.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::types::{Axes, Dtype, F32Bits, F64Bits};

/// The value of one attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attr {
    Int(i64),
    Ints(SmallVec<[i64; 6]>),
    /// Bits of an f32.
    F32(u32),
    /// Bits of an f64.
    F64(u64),
    Dtype(Dtype),
    /// A word from a closed list that the op checks.
    Word(String),
    /// Little-endian elements of a constant.
    Bytes(Arc<[u8]>),
}

/// The kind of an attribute, declared in [`super::OpDef::ATTRS`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AttrKind {
    Int,
    Ints,
    F32,
    F64,
    Dtype,
    Word,
    Bytes,
}

/// Named attributes in the order in which the op declares them.
pub type Attrs = SmallVec<[(&'static str, Attr); 2]>;

impl Attr {
    /// The kind of this value.
    pub fn kind(&self) -> AttrKind {
        match self {
            Attr::Int(_) => AttrKind::Int,
            Attr::Ints(_) => AttrKind::Ints,
            Attr::F32(_) => AttrKind::F32,
            Attr::F64(_) => AttrKind::F64,
            Attr::Dtype(_) => AttrKind::Dtype,
            Attr::Word(_) => AttrKind::Word,
            Attr::Bytes(_) => AttrKind::Bytes,
        }
    }

    /// The number, when this is an `Int`.
    pub fn as_int(&self) -> Option<i64> {
        let Attr::Int(number) = self else { return None };
        Some(*number)
    }

    /// The number, when this is a non-negative `Int`.
    pub fn as_size(&self) -> Option<usize> {
        usize::try_from(self.as_int()?).ok()
    }

    /// False for 0 and true for 1.
    pub fn as_flag(&self) -> Option<bool> {
        match self.as_int()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// The numbers, when this is an `Ints` of non-negative numbers.
    pub fn as_sizes(&self) -> Option<Axes> {
        let Attr::Ints(numbers) = self else { return None };
        numbers.iter().map(|&number| usize::try_from(number).ok()).collect()
    }

    /// The number, when this is an `F32`.
    pub fn as_f32(&self) -> Option<F32Bits> {
        let Attr::F32(bits) = self else { return None };
        Some(F32Bits(*bits))
    }

    /// The number, when this is an `F64`.
    pub fn as_f64(&self) -> Option<F64Bits> {
        let Attr::F64(bits) = self else { return None };
        Some(F64Bits(*bits))
    }

    /// The element type, when this is a `Dtype`.
    pub fn as_dtype(&self) -> Option<Dtype> {
        let Attr::Dtype(dtype) = self else { return None };
        Some(*dtype)
    }

    /// The word, when this is a `Word`.
    pub fn as_word(&self) -> Option<&str> {
        let Attr::Word(word) = self else { return None };
        Some(word)
    }

    /// The bytes, when this is a `Bytes`.
    pub fn as_bytes(&self) -> Option<Arc<[u8]>> {
        let Attr::Bytes(bytes) = self else { return None };
        Some(Arc::clone(bytes))
    }
}

/// An attribute of one number. Saturates, so that a size no tensor can have stays refused.
pub(super) fn int(number: usize) -> Attr {
    Attr::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

/// An attribute of several numbers.
pub(super) fn ints(numbers: &[usize]) -> Attr {
    Attr::Ints(numbers.iter().map(|&number| i64::try_from(number).unwrap_or(i64::MAX)).collect())
}

/// The values of exactly these attributes, given in any order; `None` where one is missing,
/// unknown or given twice.
pub(super) fn named<'a, const N: usize>(attrs: &'a [(&str, Attr)], names: [&str; N]) -> Option<[&'a Attr; N]> {
    if attrs.len() != N {
        return None;
    }
    let mut values = SmallVec::<[&Attr; 4]>::new();
    for name in names {
        values.push(attrs.iter().find(|(given, _)| *given == name).map(|(_, value)| value)?);
    }
    values.as_slice().try_into().ok()
}
