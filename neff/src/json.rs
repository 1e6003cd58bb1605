//! JSON within a budget of memory.
//!
//! Three characters of text can stand for a list element of several hundred bytes. The parser therefore counts what the
//! values take while it makes them, and gives up where that exceeds what the caller allows. Nesting is bounded by
//! `serde_json` at 128.
//!
//! The count is an estimate from above for lists, which grow by doubling, and for maps, whose entries have overhead;
//! memory that is given back meanwhile still counts.

use serde::de::{Deserialize, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, Visitor};
use std::cell::Cell;
use std::fmt;

/// Memory of one allocation beside its content.
const ALLOCATION_BYTES: usize = 32;

/// Least memory of a map that has entries.
const MAP_BYTES: usize = 256;

/// Why a text gives no value.
#[derive(Debug)]
pub struct JsonError {
    /// The parser's own reason, with line and column.
    pub error: serde_json::Error,
    /// The text may be right, but its values take more memory than allowed.
    pub is_over_budget: bool,
}

/// Parses a text whose values take about `budget_bytes` at most.
///
/// # Errors
/// When the text is no JSON, is not of the wanted form, or exceeds the budget.
pub fn from_slice_within<'a, T: Deserialize<'a>>(text: &'a [u8], budget_bytes: usize) -> Result<T, JsonError> {
    let budget = Budget { left: Cell::new(budget_bytes), is_exceeded: Cell::new(false), total: budget_bytes };
    let mut parser = serde_json::Deserializer::from_slice(text);
    let value = T::deserialize(Counted { inner: &mut parser, budget: &budget });
    let value = value.and_then(|value| parser.end().map(|()| value));
    value.map_err(|error| JsonError { error, is_over_budget: budget.is_exceeded.get() })
}

struct Budget {
    left: Cell<usize>,
    is_exceeded: Cell<bool>,
    total: usize,
}

impl Budget {
    fn spend<E: serde::de::Error>(&self, n_bytes: usize) -> Result<(), E> {
        match self.left.get().checked_sub(n_bytes) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.is_exceeded.set(true);
                Err(E::custom(format_args!("its values take more than the {} bytes allowed", self.total)))
            }
        }
    }
}

/// A deserializer, visitor, seed or access whose values are counted.
struct Counted<'b, T> {
    inner: T,
    budget: &'b Budget,
}

macro_rules! forward {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method(Counted { inner: visitor, budget: self.budget })
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Counted<'_, D> {
    type Error = D::Error;

    forward! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string deserialize_bytes
        deserialize_byte_buf deserialize_option deserialize_unit deserialize_seq deserialize_map
        deserialize_identifier deserialize_ignored_any
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, Counted { inner: visitor, budget: self.budget })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_newtype_struct(name, Counted { inner: visitor, budget: self.budget })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_tuple(len, Counted { inner: visitor, budget: self.budget })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_tuple_struct(name, len, Counted { inner: visitor, budget: self.budget })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_struct(name, fields, Counted { inner: visitor, budget: self.budget })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_enum(name, variants, Counted { inner: visitor, budget: self.budget })
    }
}

macro_rules! forward_values {
    ($($method:ident: $kind:ty),* $(,)?) => {
        $(fn $method<E: serde::de::Error>(self, value: $kind) -> Result<V::Value, E> {
            self.inner.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Counted<'_, V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(formatter)
    }

    forward_values! {
        visit_bool: bool, visit_i8: i8, visit_i16: i16, visit_i32: i32, visit_i64: i64, visit_i128: i128,
        visit_u8: u8, visit_u16: u16, visit_u32: u32, visit_u64: u64, visit_u128: u128,
        visit_f32: f32, visit_f64: f64, visit_char: char,
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<V::Value, E> {
        self.budget.spend(text.len() + ALLOCATION_BYTES)?;
        self.inner.visit_str(text)
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, text: &'de str) -> Result<V::Value, E> {
        self.budget.spend(text.len() + ALLOCATION_BYTES)?;
        self.inner.visit_borrowed_str(text)
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<V::Value, E> {
        self.budget.spend(text.len() + ALLOCATION_BYTES)?;
        self.inner.visit_string(text)
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<V::Value, E> {
        self.budget.spend(bytes.len() + ALLOCATION_BYTES)?;
        self.inner.visit_bytes(bytes)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Counted { inner: deserializer, budget: self.budget })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Counted { inner: deserializer, budget: self.budget })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.budget.spend::<A::Error>(ALLOCATION_BYTES)?;
        self.inner.visit_seq(Counted { inner: access, budget: self.budget })
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.budget.spend::<A::Error>(MAP_BYTES)?;
        self.inner.visit_map(Counted { inner: access, budget: self.budget })
    }

    // Enums hold one value each, which counts where it stands.
    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(access)
    }
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for Counted<'_, T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T::Value, D::Error> {
        self.inner.deserialize(Counted { inner: deserializer, budget: self.budget })
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Counted<'_, A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, A::Error> {
        let element = self.inner.next_element_seed(Counted { inner: seed, budget: self.budget })?;
        if element.is_some() {
            self.budget.spend::<A::Error>(2 * size_of::<T::Value>())?;
        }
        Ok(element)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Counted<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let key = self.inner.next_key_seed(Counted { inner: seed, budget: self.budget })?;
        if key.is_some() {
            self.budget.spend::<A::Error>(2 * size_of::<K::Value>())?;
        }
        Ok(key)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        let value = self.inner.next_value_seed(Counted { inner: seed, budget: self.budget })?;
        self.budget.spend::<A::Error>(2 * size_of::<T::Value>())?;
        Ok(value)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::from_slice_within;
    use serde_json::Value;

    #[test]
    fn values_are_those_of_the_plain_parser() {
        let text = br#"{"a": [1, -2, 0.5, null, true, {"b": "text"}], "c": {}}"#;
        let plain: Value = serde_json::from_slice(text).unwrap();
        assert_eq!(from_slice_within::<Value>(text, 1 << 16).unwrap(), plain);
        assert!(!from_slice_within::<Value>(b"{} x", 1 << 16).unwrap_err().is_over_budget);
        assert!(from_slice_within::<Vec<u8>>(b"[300]", 1 << 16).is_err());
    }

    #[test]
    fn short_text_of_many_values_exceeds_the_budget() {
        let lists = format!("[{}[]]", "[],".repeat(100_000));
        let objects = format!("[{}{{}}]", r#"{"":0},"#.repeat(100_000));
        for text in [lists, objects] {
            let error = from_slice_within::<Value>(text.as_bytes(), 4 << 20).unwrap_err();
            assert!(error.is_over_budget);
            assert!(error.error.to_string().contains("take more than the 4194304 bytes allowed"), "{}", error.error);
            assert!(from_slice_within::<Value>(text.as_bytes(), 128 << 20).is_ok());
        }
        assert!(from_slice_within::<Vec<[u64; 32]>>(b"[]", 64).is_ok());
    }
}
