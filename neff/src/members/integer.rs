//! Integers that a file may spell as a number or as a numeric string.
//!
//! For `#[serde(with = "...")]`: [`number`] writes numbers, [`text`] strings; [`optional`] and [`list`] are `number`
//! for `Option` and `Vec`.

use serde::de::{self, Deserialize, Deserializer, Visitor};
use std::fmt;
use std::marker::PhantomData;

struct Lenient<T>(T);

impl<'de, T: TryFrom<i128>> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LenientVisitor(PhantomData)).map(Lenient)
    }
}

struct LenientVisitor<T>(PhantomData<T>);

impl<T: TryFrom<i128>> Visitor<'_> for LenientVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer or a string of one")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
        narrow(i128::from(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
        narrow(i128::from(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<T, E> {
        // Beyond 2^53 a float does not say which integer was meant.
        if value.fract() != 0.0 || value.abs() > 9_007_199_254_740_992.0 {
            return Err(E::invalid_value(de::Unexpected::Float(value), &self));
        }
        narrow(value as i128)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<T, E> {
        match value.trim().parse::<i128>() {
            Ok(integer) => narrow(integer),
            Err(_) => Err(E::invalid_value(de::Unexpected::Str(value), &self)),
        }
    }
}

fn narrow<T: TryFrom<i128>, E: de::Error>(value: i128) -> Result<T, E> {
    T::try_from(value).map_err(|_| E::custom(format_args!("integer {value} is out of range")))
}

pub(super) mod number {
    use super::{Deserialize, Deserializer, Lenient};
    use serde::{Serialize, Serializer};

    pub(in crate::members) fn serialize<T: Serialize, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        value.serialize(to)
    }

    pub(in crate::members) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: TryFrom<i128>,
        D: Deserializer<'de>,
    {
        Lenient::deserialize(from).map(|lenient| lenient.0)
    }
}

pub(super) mod text {
    use super::{Deserialize, Deserializer, Lenient};
    use serde::Serializer;
    use std::fmt::Display;

    pub(in crate::members) fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }

    pub(in crate::members) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: TryFrom<i128>,
        D: Deserializer<'de>,
    {
        Ok(Option::<Lenient<T>>::deserialize(from)?.map(|lenient| lenient.0))
    }
}

pub(super) mod optional {
    use super::{Deserialize, Deserializer, Lenient};
    use serde::{Serialize, Serializer};

    pub(in crate::members) fn serialize<T: Serialize, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.serialize(to)
    }

    pub(in crate::members) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: TryFrom<i128>,
        D: Deserializer<'de>,
    {
        Ok(Option::<Lenient<T>>::deserialize(from)?.map(|lenient| lenient.0))
    }
}

pub(super) mod list {
    use super::{Deserialize, Deserializer, Lenient};
    use serde::{Serialize, Serializer};

    pub(in crate::members) fn serialize<T: Serialize, S: Serializer>(value: &[T], to: S) -> Result<S::Ok, S::Error> {
        value.serialize(to)
    }

    pub(in crate::members) fn deserialize<'de, T, D>(from: D) -> Result<Vec<T>, D::Error>
    where
        T: TryFrom<i128>,
        D: Deserializer<'de>,
    {
        Ok(Vec::<Lenient<T>>::deserialize(from)?.into_iter().map(|lenient| lenient.0).collect())
    }
}

pub(super) mod optional_list {
    use super::{Deserialize, Deserializer, Lenient};
    use serde::{Serialize, Serializer};

    pub(in crate::members) fn serialize<T: Serialize, S: Serializer>(
        value: &Option<Vec<T>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.serialize(to)
    }

    pub(in crate::members) fn deserialize<'de, T, D>(from: D) -> Result<Option<Vec<T>>, D::Error>
    where
        T: TryFrom<i128>,
        D: Deserializer<'de>,
    {
        let list = Option::<Vec<Lenient<T>>>::deserialize(from)?;
        Ok(list.map(|list| list.into_iter().map(|lenient| lenient.0).collect()))
    }
}

pub(super) mod table {
    use super::{Deserialize, Deserializer, Lenient};
    use serde::{Serialize, Serializer};

    pub(in crate::members) fn serialize<T: Serialize, S: Serializer>(
        value: &[Vec<T>],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.serialize(to)
    }

    pub(in crate::members) fn deserialize<'de, T, D>(from: D) -> Result<Vec<Vec<T>>, D::Error>
    where
        T: TryFrom<i128>,
        D: Deserializer<'de>,
    {
        let rows = Vec::<Vec<Lenient<T>>>::deserialize(from)?;
        Ok(rows.into_iter().map(|row| row.into_iter().map(|lenient| lenient.0).collect()).collect())
    }
}
