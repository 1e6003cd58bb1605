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

pub use debug_lines::{DebugCall, DebugLines};
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

use crate::container::Container;
use crate::json::{JsonError, from_slice_within};
use crate::{Code, Error, Place};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Path of the table that calls of kernels bind: variable ids as little-endian u32.
pub const BINDINGS_MEMBER: &str = "sg00/bindings.bin";

/// Keys of a JSON object that this crate has no field for.
pub type Extra = serde_json::Map<String, serde_json::Value>;

/// Memory that the values of one JSON member may take beyond the archive's own size.
const JSON_BUDGET_BYTES: usize = 32 << 20;

/// Parses a JSON member of an archive. Nesting deeper than 128 is an error.
///
/// # Errors
/// [`Code::MissingMember`]; otherwise as [`from_json`].
pub fn read_json<T: DeserializeOwned>(container: &Container, member: &str) -> Result<T, Error> {
    from_json_within(member, container.member(member)?, JSON_BUDGET_BYTES + container.unpacked_bytes())
}

/// Parses a JSON member by itself.
///
/// # Errors
/// [`Code::BadJson`] with the byte of the fault, [`Code::TooLarge`] where the values take far more memory than the text.
pub fn from_json<T: DeserializeOwned>(member: &str, bytes: &[u8]) -> Result<T, Error> {
    from_json_within(member, bytes, JSON_BUDGET_BYTES + bytes.len())
}

fn from_json_within<T: DeserializeOwned>(member: &str, bytes: &[u8], budget_bytes: usize) -> Result<T, Error> {
    from_slice_within(bytes, budget_bytes).map_err(|JsonError { error, is_over_budget }| {
        let byte = byte_of(bytes, error.line(), error.column());
        // The message ends in its line and column, which for one-line members say nothing that the byte does not.
        let message = error.to_string();
        let reason = message.rsplit_once(" at line ").map_or(message.as_str(), |(reason, _)| reason);
        let code = if is_over_budget { Code::TooLarge } else { Code::BadJson };
        Error::new(code, Place::member_byte(member, byte), reason)
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
