//! The header's hash: MD5 (packaging version 2) or SHA-256 (version 1) of the payload, padding included.
//!
//! Current vendor compilers store the digest with the bytes of every 32-bit word reversed; older ones store it in
//! digest order. Both are accepted, and which one matched is reported.

use super::header::Header;
use md5::{Digest, Md5};
use sha2::Sha256;

/// Which reading of the stored hash matches the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashOrder {
    /// MD5 with the bytes of each 32-bit word reversed.
    WordSwapped,
    /// MD5 in digest order.
    Plain,
    /// SHA-256 with the bytes of each 32-bit word reversed.
    Sha256WordSwapped,
    /// SHA-256 in digest order.
    Sha256Plain,
    /// No hash is stored: all 32 bytes are zero.
    Absent,
    /// A hash is stored that none of these explains.
    Mismatch,
}

impl HashOrder {
    /// The order as reports print it.
    pub fn as_str(self) -> &'static str {
        match self {
            HashOrder::WordSwapped => "word-swapped",
            HashOrder::Plain => "plain",
            HashOrder::Sha256WordSwapped => "sha256 word-swapped",
            HashOrder::Sha256Plain => "sha256 plain",
            HashOrder::Absent => "absent",
            HashOrder::Mismatch => "mismatch",
        }
    }
}

/// MD5 of some bytes, in digest order.
pub fn md5(bytes: &[u8]) -> [u8; 16] {
    Md5::digest(bytes).into()
}

/// The header's hash field for a payload: word-swapped MD5, then 16 zero bytes.
pub(super) fn field_for(payload: &[u8]) -> [u8; 32] {
    let mut field = [0; 32];
    field[..16].copy_from_slice(&swap_words(md5(payload)));
    field
}

/// Finds the reading of the stored hash that matches, whatever the packaging version says: a file whose version and
/// algorithm disagree is still recognised.
pub(super) fn check(header: &Header, payload: &[u8]) -> HashOrder {
    if header.hash == [0; 32] {
        return HashOrder::Absent;
    }
    let digest = md5(payload);
    if header.hash[..16] == swap_words(digest) {
        return HashOrder::WordSwapped;
    }
    if header.hash[..16] == digest {
        return HashOrder::Plain;
    }
    let digest: [u8; 32] = Sha256::digest(payload).into();
    if header.hash == swap_words(digest) {
        return HashOrder::Sha256WordSwapped;
    }
    if header.hash == digest {
        return HashOrder::Sha256Plain;
    }
    HashOrder::Mismatch
}

fn swap_words<const N: usize>(mut digest: [u8; N]) -> [u8; N] {
    for word in digest.chunks_exact_mut(4) {
        word.reverse();
    }
    digest
}
