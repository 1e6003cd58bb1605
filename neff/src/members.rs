//! The documented members of a NEFF as types: read tolerantly, written as the vendor writes them.
//!
//! Every type keeps keys it does not know in `extra` and writes them back. Integers may arrive as numbers or as
//! numeric strings. Members whose content is not published (activation and vector tables, `.dbg`) have no type here.

mod debug_lines;
mod definition;
mod element;
mod engine;
mod integer;
pub mod npy;
mod stats;
mod tensor_map;
mod top;

pub use debug_lines::DebugLines;
pub use definition::{
    CcStreams, Definition, DynamicDma, Queue, QueueKind, StatebufferReservation, Variable, VariableKind,
    engine_file_stem,
};
pub use element::{element_name, element_type};
pub use engine::{DmaEntry, DmaSide, DmaTransfer, DveTables, EngineFile};
pub use stats::{HloStats, Metric, Metrics};
pub use tensor_map::{TensorEntry, TensorKind, TensorMap, format_of_rank};
pub use top::{
    BuildInfo, GraphAttrs, GraphFile, GraphNode, Kelf, KelfGraph, Metadata, NodeAttrs, Signature, SignatureTensor,
    chip_name, chip_target,
};

use crate::{Code, Error, Place};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Keys of a JSON object that this crate has no field for.
pub type Extra = serde_json::Map<String, serde_json::Value>;

/// Largest JSON member that is parsed, in bytes: parsed JSON takes several times its text.
pub const MAX_JSON_BYTES: usize = 64 << 20;

/// Parses a JSON member. Nesting deeper than 128 is an error.
///
/// # Errors
/// [`Code::BadJson`] with the byte of the fault, [`Code::TooLarge`] beyond [`MAX_JSON_BYTES`].
pub fn from_json<T: DeserializeOwned>(member: &str, bytes: &[u8]) -> Result<T, Error> {
    if bytes.len() > MAX_JSON_BYTES {
        let reason = format!("a JSON member of {} bytes, at most {MAX_JSON_BYTES} are parsed", bytes.len());
        return Err(Error::new(Code::TooLarge, Place::member(member), reason));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        let byte = byte_of(bytes, error.line(), error.column());
        // The message ends in its line and column, which for one-line members say nothing that the byte does not.
        let message = error.to_string();
        let reason = message.rsplit_once(" at line ").map_or(message.as_str(), |(reason, _)| reason);
        Error::new(Code::BadJson, Place::member_byte(member, byte), reason)
    })
}

/// Writes a member in the indented form that vendor files use for top-level members and `def.json`.
pub fn to_pretty_json(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
    value.serialize(&mut serializer).expect("members have string keys and are written to memory");
    bytes
}

/// Writes a member on one line, as vendor files do for engine members.
pub fn to_compact_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("members have string keys and are written to memory")
}

fn byte_of(bytes: &[u8], line: usize, column: usize) -> u64 {
    let mut line_start = 0;
    for _ in 1..line {
        let Some(rest) = bytes.get(line_start..) else {
            break;
        };
        match rest.iter().position(|byte| *byte == b'\n') {
            Some(length) => line_start += length + 1,
            None => break,
        }
    }
    (line_start + column.saturating_sub(1)).min(bytes.len()) as u64
}

/// A string that is one of a known few, or any other: unknown kinds are kept, not refused.
macro_rules! open_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
            /// A kind that is not documented.
            Other(String),
        }

        impl $name {
            /// The kind as the file spells it.
            pub fn as_str(&self) -> &str {
                match self {
                    $($name::$variant => $text,)+
                    $name::Other(text) => text,
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Ok(match text.as_str() {
                    $($text => $name::$variant,)+
                    _ => $name::Other(text),
                })
            }
        }
    };
}
use open_enum;
