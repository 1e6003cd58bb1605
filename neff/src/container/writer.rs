//! The writer: the same draft gives the same bytes, on any machine.
//!
//! Sorted ustar members without times or owners of the host, one gzip member by the pinned pure-Rust deflate, zero
//! padding to a multiple of 10,240 bytes, word-swapped MD5, and an identity derived from the members.

use super::header::{HEADER_BYTES, Header};
use super::{Limits, Members, hash, name_fault};
use crate::{Code, Error, Place};
use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};
use std::io::Write;

/// What becomes a NEFF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// Name of the network, at most 255 bytes; `info.json` must say the same.
    pub name: String,
    /// The feature bits of the header. A file in the open encoding must have
    /// [`OPEN_ENCODING_BIT`](super::OPEN_ENCODING_BIT) among them.
    pub feature_bits: u64,
    /// Physical cores per logical core: 1 or 2, the number of subgraphs.
    pub lnc_size: u32,
    /// The archive's content.
    pub members: Members,
}

const PKG_VERSION_MD5: u64 = 2;
const NEFF_VERSION_MAJOR: u64 = 2;
const PADDING_BYTES: usize = 10_240;
const TAR_BLOCK_BYTES: usize = 512;
const OS_UNIX: u8 = 3;

/// Writes a NEFF.
///
/// # Errors
/// [`Code::Unwritable`] for a name or size that the format has no room for; [`Code::UnsafeMember`] for a member
/// name that the reader would refuse.
pub fn write(draft: &Draft) -> Result<Vec<u8>, Error> {
    let name = name_field(&draft.name)?;
    let archive = archive(draft)?;
    let payload = payload(archive);
    let mut tpb_per_node = [0; 64];
    tpb_per_node[0] = 1;
    let header = Header {
        pkg_version: PKG_VERSION_MD5,
        header_size: HEADER_BYTES as u64,
        data_size: payload.len() as u64,
        neff_version_major: NEFF_VERSION_MAJOR,
        neff_version_minor: 0,
        build_version: [0; 128],
        num_tpb: 1,
        hash: hash::field_for(&payload),
        uuid: content_uuid(&draft.members),
        name,
        requested_tpb_count: 1,
        tpb_per_node,
        feature_bits: draft.feature_bits,
        lnc_size: draft.lnc_size,
        pad: [0; 468],
        pad_is_zero: true,
    };
    let mut file = Vec::with_capacity(HEADER_BYTES + payload.len());
    file.extend_from_slice(&header.to_bytes());
    file.extend_from_slice(&payload);
    Ok(file)
}

/// SHA-256 over names and bytes of the given members, each preceded by its length as a u64. Members go in sorted.
pub fn content_sha256<'a>(members: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> [u8; 32] {
    let mut digest = Sha256::new();
    for (name, bytes) in members {
        digest.update((name.len() as u64).to_le_bytes());
        digest.update(name.as_bytes());
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    }
    digest.finalize().into()
}

/// The identity of a NEFF: the first 16 bytes of [`content_sha256`] in the shape of a version 4 UUID.
pub fn content_uuid(members: &Members) -> [u8; 16] {
    let mut uuid = [0; 16];
    let members = members.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    uuid.copy_from_slice(&content_sha256(members)[..16]);
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

fn name_field(name: &str) -> Result<[u8; 256], Error> {
    let mut field = [0; 256];
    if name.len() >= field.len() || name.contains('\0') {
        let reason = format!("network name of {} bytes: the header holds 255 without a NUL", name.len());
        return Err(Error::new(Code::Unwritable, Place::default(), reason));
    }
    field[..name.len()].copy_from_slice(name.as_bytes());
    Ok(field)
}

fn payload(archive: Vec<u8>) -> Vec<u8> {
    let packed = gzip(&archive);
    let padded_bytes = packed.len().next_multiple_of(PADDING_BYTES);
    // Long runs of one value pack so well that a bounded reader would take them for a bomb: store those as they are.
    let limit = Limits::for_file((HEADER_BYTES + padded_bytes) as u64).unpacked_bytes;
    let mut payload = if archive.len() as u64 >= limit { archive } else { packed };
    payload.resize(payload.len().next_multiple_of(PADDING_BYTES), 0);
    payload
}

fn gzip(archive: &[u8]) -> Vec<u8> {
    // `fast` makes the header say XFL 4, as vendor files do, and keeps packaging out of the compile time.
    let mut encoder = GzBuilder::new().mtime(0).operating_system(OS_UNIX).write(Vec::new(), Compression::fast());
    encoder.write_all(archive).expect("writing to a vector cannot fail");
    encoder.finish().expect("writing to a vector cannot fail")
}

fn archive(draft: &Draft) -> Result<Vec<u8>, Error> {
    // Vendor files of two subgraphs have the graph member last, all others are sorted throughout.
    let last = (draft.lnc_size > 1).then_some("neff.json");
    let mut tar = Vec::new();
    for (name, bytes) in draft.members.iter().filter(|(name, _)| Some(name.as_str()) != last) {
        append(&mut tar, name, bytes)?;
    }
    if let Some((name, bytes)) = last.and_then(|name| draft.members.get_key_value(name)) {
        append(&mut tar, name, bytes)?;
    }
    tar.resize(tar.len() + 2 * TAR_BLOCK_BYTES, 0);
    Ok(tar)
}

/// One ustar entry: mode 0664, user and group 1000 `nobody`, time 0.
fn append(tar: &mut Vec<u8>, name: &str, bytes: &[u8]) -> Result<(), Error> {
    if let Some(fault) = name_fault(name) {
        return Err(Error::new(Code::UnsafeMember, Place::member(name), fault));
    }
    let (prefix, base) = split_name(name)?;
    // Eleven octal digits.
    if bytes.len() as u64 >= 1 << 33 {
        let reason = format!("a ustar member of {} bytes: the limit is 8 GiB", bytes.len());
        return Err(Error::new(Code::Unwritable, Place::member(name), reason));
    }
    let mut block = [0; TAR_BLOCK_BYTES];
    let mut put = |at: usize, field: &[u8]| block[at..at + field.len()].copy_from_slice(field);
    put(0, base.as_bytes());
    put(100, b"0000664\0");
    put(108, b"0001750\0");
    put(116, b"0001750\0");
    put(124, format!("{:011o}\0", bytes.len()).as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    put(265, b"nobody");
    put(297, b"nobody");
    put(345, prefix.as_bytes());
    let checksum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{checksum:06o}\0 ").as_bytes());
    tar.extend_from_slice(&block);
    tar.extend_from_slice(bytes);
    tar.resize(tar.len().next_multiple_of(TAR_BLOCK_BYTES), 0);
    Ok(())
}

/// Splits a name into the ustar prefix (at most 155 bytes) and the rest (at most 100).
fn split_name(name: &str) -> Result<(&str, &str), Error> {
    if name.len() <= 100 {
        return Ok(("", name));
    }
    for (slash, _) in name.match_indices('/') {
        let (prefix, base) = (&name[..slash], &name[slash + 1..]);
        if prefix.len() <= 155 && base.len() <= 100 {
            return Ok((prefix, base));
        }
    }
    let reason = format!("a member name of {} bytes does not fit a ustar header", name.len());
    Err(Error::new(Code::Unwritable, Place::member(name), reason))
}
