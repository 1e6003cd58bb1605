//! The 1024-byte header: fixed fields at fixed offsets, all little-endian.
//!
//! Parsed field by field from checked slices, never transmuted: files are short, foreign and unaligned. The offsets
//! are those of the published `struct neff_header`; `docs/neff.md` repeats the table.

use crate::{Code, Error, Place};
use std::borrow::Cow;

/// Bytes of the header that the writer makes, and of nearly every header found.
pub const HEADER_BYTES: usize = 1024;

/// Bytes that the named fields take; a header may not be shorter.
pub const MIN_HEADER_BYTES: usize = 556;

/// Offset of the hash field.
pub(super) const HASH_AT: usize = 172;

const PKG_VERSION_AT: usize = 0;
const HEADER_SIZE_AT: usize = 8;
const DATA_SIZE_AT: usize = 16;
const VERSION_MAJOR_AT: usize = 24;
const VERSION_MINOR_AT: usize = 32;
const BUILD_VERSION_AT: usize = 40;
const NUM_TPB_AT: usize = 168;
const UUID_AT: usize = 204;
const NAME_AT: usize = 220;
const REQUESTED_TPB_AT: usize = 476;
const TPB_PER_NODE_AT: usize = 480;
const FEATURE_BITS_AT: usize = 544;
const LNC_SIZE_AT: usize = 552;
const PAD_AT: usize = MIN_HEADER_BYTES;
const PAD_BYTES: usize = HEADER_BYTES - PAD_AT;

/// The fields of a header as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Packaging version; 1 means a SHA-256 hash, 2 an MD5 hash.
    pub pkg_version: u64,
    /// Bytes before the payload.
    pub header_size: u64,
    /// Bytes of the payload, padding included.
    pub data_size: u64,
    /// Major version of the format.
    pub neff_version_major: u64,
    /// Minor version of the format.
    pub neff_version_minor: u64,
    /// Build text, padded with NULs.
    pub build_version: [u8; 128],
    /// Logical NeuronCores for efficient execution.
    pub num_tpb: u32,
    /// Digest of the payload; 16 bytes for MD5, the rest zero.
    pub hash: [u8; 32],
    /// Identity of the file, bytes in text order.
    pub uuid: [u8; 16],
    /// Name of the network, padded with NULs; 256 bytes without a NUL are legal.
    pub name: [u8; 256],
    /// Logical cores asked for when it was compiled.
    pub requested_tpb_count: u32,
    /// Logical cores of each kelf node.
    pub tpb_per_node: [u8; 64],
    /// Features that a runtime must know in order to load the file.
    pub feature_bits: u64,
    /// Physical cores per logical core; 0 in files older than the field, and then means 1.
    pub lnc_size: u32,
    /// The rest up to byte 1024; zero where the file is shorter.
    pub pad: [u8; PAD_BYTES],
    /// Whether every byte between the fields and the payload is zero, those after byte 1024 too.
    pub pad_is_zero: bool,
}

impl Header {
    /// Reads the fields from the start of a file.
    ///
    /// # Errors
    /// [`Code::Truncated`] when the file is shorter than the fields. Nothing else is judged here.
    pub fn parse(file: &[u8]) -> Result<Self, Error> {
        if file.len() < MIN_HEADER_BYTES {
            let reason = format!("the file has {} bytes, a NEFF header has {HEADER_BYTES}", file.len());
            return Err(Error::new(Code::Truncated, Place::byte(file.len() as u64), reason));
        }
        let mut pad = [0; PAD_BYTES];
        let pad_end = file.len().min(HEADER_BYTES);
        pad[..pad_end - PAD_AT].copy_from_slice(&file[PAD_AT..pad_end]);
        let header_size = u64_at(file, HEADER_SIZE_AT);
        let header_end = usize::try_from(header_size).unwrap_or(usize::MAX).clamp(PAD_AT, file.len());
        Ok(Header {
            pkg_version: u64_at(file, PKG_VERSION_AT),
            header_size,
            data_size: u64_at(file, DATA_SIZE_AT),
            neff_version_major: u64_at(file, VERSION_MAJOR_AT),
            neff_version_minor: u64_at(file, VERSION_MINOR_AT),
            build_version: array_at(file, BUILD_VERSION_AT),
            num_tpb: u32_at(file, NUM_TPB_AT),
            hash: array_at(file, HASH_AT),
            uuid: array_at(file, UUID_AT),
            name: array_at(file, NAME_AT),
            requested_tpb_count: u32_at(file, REQUESTED_TPB_AT),
            tpb_per_node: array_at(file, TPB_PER_NODE_AT),
            feature_bits: u64_at(file, FEATURE_BITS_AT),
            lnc_size: u32_at(file, LNC_SIZE_AT),
            pad,
            pad_is_zero: file[PAD_AT..header_end].iter().all(|byte| *byte == 0),
        })
    }

    /// The 1024 bytes of a header. `header_size` is stored as it is, though only 1024 bytes are made.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(PKG_VERSION_AT, &self.pkg_version.to_le_bytes());
        put(HEADER_SIZE_AT, &self.header_size.to_le_bytes());
        put(DATA_SIZE_AT, &self.data_size.to_le_bytes());
        put(VERSION_MAJOR_AT, &self.neff_version_major.to_le_bytes());
        put(VERSION_MINOR_AT, &self.neff_version_minor.to_le_bytes());
        put(BUILD_VERSION_AT, &self.build_version);
        put(NUM_TPB_AT, &self.num_tpb.to_le_bytes());
        put(HASH_AT, &self.hash);
        put(UUID_AT, &self.uuid);
        put(NAME_AT, &self.name);
        put(REQUESTED_TPB_AT, &self.requested_tpb_count.to_le_bytes());
        put(TPB_PER_NODE_AT, &self.tpb_per_node);
        put(FEATURE_BITS_AT, &self.feature_bits.to_le_bytes());
        put(LNC_SIZE_AT, &self.lnc_size.to_le_bytes());
        put(PAD_AT, &self.pad);
        bytes
    }

    /// The network name up to its first NUL; bytes that are not UTF-8 are replaced.
    pub fn name_text(&self) -> Cow<'_, str> {
        text(&self.name)
    }

    /// The build text up to its first NUL.
    pub fn build_text(&self) -> Cow<'_, str> {
        text(&self.build_version)
    }

    /// Physical cores per logical core, at least 1.
    pub fn lnc(&self) -> u32 {
        self.lnc_size.max(1)
    }

    /// The payload: everything after the header. `data_size` is not trusted, as files get cut and appended to.
    pub(super) fn payload_of<'a>(&self, file: &'a [u8]) -> Result<&'a [u8], Error> {
        let place = Place::byte(HEADER_SIZE_AT as u64);
        if self.header_size < MIN_HEADER_BYTES as u64 {
            let reason =
                format!("header size {} is below the {MIN_HEADER_BYTES} bytes of its fields", self.header_size);
            return Err(Error::new(Code::BadHeader, place, reason));
        }
        let payload = usize::try_from(self.header_size).ok().and_then(|start| file.get(start..));
        match payload {
            Some(payload) if !payload.is_empty() => Ok(payload),
            Some(_) | None => {
                let reason = format!("the payload begins at byte {}, the file has {}", self.header_size, file.len());
                Err(Error::new(Code::Truncated, Place::byte(file.len() as u64), reason))
            }
        }
    }

    /// What is odd about the fields but keeps no one from reading the file.
    pub(super) fn warnings(&self, file_bytes: u64) -> Vec<Error> {
        let mut warnings = Vec::new();
        let mut warn = |at: usize, reason| warnings.push(Error::new(Code::BadHeader, Place::byte(at as u64), reason));
        if self.header_size != HEADER_BYTES as u64 {
            warn(HEADER_SIZE_AT, format!("header size is {}, not {HEADER_BYTES}", self.header_size));
        }
        if self.header_size.checked_add(self.data_size) != Some(file_bytes) {
            let sum = u128::from(self.header_size) + u128::from(self.data_size);
            warn(DATA_SIZE_AT, format!("header size and data size add up to {sum}, the file has {file_bytes} bytes"));
        }
        if !(1..=64).contains(&self.num_tpb) {
            warn(NUM_TPB_AT, format!("num_tpb is {}, not 1 to 64", self.num_tpb));
        }
        warnings
    }
}

fn text(field: &[u8]) -> Cow<'_, str> {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end])
}

// The callers pass offsets of fields that lie in the first `MIN_HEADER_BYTES` bytes, whose presence was checked.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}
