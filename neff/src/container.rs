//! The NEFF container: a 1024-byte header and a tar, usually gzip-compressed.
//!
//! [`read`] takes any NEFF, the vendor's of every version too; [`write()`] makes ours, the same bytes for the same
//! content. Knows nothing of what the members mean: that is `members`.

mod hash;
mod header;
mod payload;
mod writer;

pub use hash::{HashOrder, md5};
pub use header::{HEADER_BYTES, Header, MIN_HEADER_BYTES};
pub use payload::{Limits, PayloadForm};
pub use writer::{Draft, content_sha256, content_uuid, write};

use crate::{Code, Error, Place};
use std::collections::BTreeMap;

/// The feature bit of every NEFF that holds this project's open instruction encoding.
///
/// It lies outside each feature mask that a runtime is known to support, so a device refuses the file at load
/// instead of executing streams that it cannot understand.
pub const OPEN_ENCODING_BIT: u32 = 62;

/// The members of an archive by path, sorted.
pub type Members = BTreeMap<String, Vec<u8>>;

/// A NEFF that was read to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// The header's fields as stored.
    pub header: Header,
    /// How the payload is stored, and whether its hash holds.
    pub payload: Payload,
    /// Every regular file of the archive.
    pub members: Members,
    /// Faults that do not keep anyone from reading the file, in the order found.
    pub warnings: Vec<Error>,
}

/// Facts about the payload as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload {
    /// Bytes of the whole NEFF file.
    pub file_bytes: u64,
    /// gzip or plain tar.
    pub form: PayloadForm,
    /// MD5 of the payload bytes in digest order, whatever the header stores.
    pub md5: [u8; 16],
    /// Which reading of the header's hash matches the payload.
    pub hash_order: HashOrder,
    /// Zero bytes between the end of the gzip stream and the end of the file; 0 for a plain tar.
    pub gzip_trailing_zero_bytes: u64,
}

/// A NEFF that could not be read to its end: what is known of it, and the fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct ReadFailure {
    /// The header, where the file is long enough to hold one.
    pub header: Option<Box<Header>>,
    /// The fault, with its byte in the file.
    #[source]
    pub error: Error,
}

impl From<ReadFailure> for Error {
    fn from(failure: ReadFailure) -> Self {
        failure.error
    }
}

impl Container {
    /// A member's bytes.
    ///
    /// # Errors
    /// [`Code::MissingMember`] when the archive has none of this name.
    pub fn member(&self, name: &str) -> Result<&[u8], Error> {
        match self.members.get(name) {
            Some(bytes) => Ok(bytes),
            None => Err(Error::new(Code::MissingMember, Place::member(name), "the archive has no such member")),
        }
    }

    /// Bytes of all members.
    pub fn unpacked_bytes(&self) -> usize {
        self.members.values().map(Vec::len).sum()
    }

    /// Whether the engine streams are in this project's open encoding.
    pub fn has_open_encoding(&self) -> bool {
        self.header.feature_bits >> OPEN_ENCODING_BIT & 1 == 1
    }
}

/// Reads a NEFF with the default [`Limits`].
///
/// # Errors
/// A [`ReadFailure`] with the header, where there is one, and the byte at which reading stopped.
pub fn read(file: &[u8]) -> Result<Container, ReadFailure> {
    read_with_limits(file, &Limits::for_file(file.len() as u64))
}

/// Reads a NEFF within the given limits.
///
/// # Errors
/// As [`read`].
pub fn read_with_limits(file: &[u8], limits: &Limits) -> Result<Container, ReadFailure> {
    let header = Header::parse(file).map_err(|error| ReadFailure { header: None, error })?;
    let with_header = |error| ReadFailure { header: Some(Box::new(header.clone())), error };
    let stored = header.payload_of(file).map_err(with_header)?;
    let mut warnings = header.warnings(file.len() as u64);
    let unpacked = payload::unpack(stored, header.header_size, limits).map_err(with_header)?;
    warnings.extend(unpacked.warnings);
    let hash_order = hash::check(&header, stored);
    if hash_order == HashOrder::Mismatch {
        let reason = "the stored hash is neither MD5 nor SHA-256 of the payload";
        warnings.push(Error::new(Code::HashMismatch, Place::byte(header::HASH_AT as u64), reason));
    }
    Ok(Container {
        payload: Payload {
            file_bytes: file.len() as u64,
            form: unpacked.form,
            md5: md5(stored),
            hash_order,
            gzip_trailing_zero_bytes: unpacked.trailing_zero_bytes,
        },
        header,
        members: unpacked.members,
        warnings,
    })
}

/// Why a member name is not one that may be written into a folder; `None` when it is fine.
///
/// A name is a relative path of plain components: no root, no drive, no `.` or `..`, nothing empty, no NUL.
pub fn name_fault(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("the name is empty");
    }
    if name.contains('\0') {
        return Some("the name holds a NUL");
    }
    if name.starts_with('/') || name.starts_with('\\') || name.as_bytes().get(1) == Some(&b':') {
        return Some("the path is absolute");
    }
    for component in name.split(['/', '\\']) {
        match component {
            ".." => return Some("the path leaves its folder"),
            "" | "." => return Some("the path has an empty component"),
            _ => {}
        }
    }
    None
}
