//! An entry as a file: magic, length of the header, header as JSON, NEFF, SHA-256 of all before.
//!
//! The header tells what a listing shows without reading the rest. Entries are read with suspicion:
//! whatever is not exactly what was written is damage, and damage is a miss.

use std::fmt;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::key::Key;
use crate::report::Report;

/// First bytes of an entry; the number grows with the form.
const MAGIC: &[u8; 16] = b"neffuse-cache 1\n";
const CHECKSUM_BYTES: usize = 32;
/// Magic and the length of the header.
const PREFIX_BYTES: usize = MAGIC.len() + 4;
/// Longest header that is written or read. Headers hold a line for each fusion.
const MAX_HEADER_BYTES: usize = 64 << 20;

/// What a compilation gave and what it depended on.
#[derive(Clone, Debug)]
pub struct Entry {
    pub key: Key,
    pub report: Report,
    pub neff: Vec<u8>,
}

/// What stands before the NEFF.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    key: Key,
    report: Report,
    neff_bytes: usize,
}

/// Why a file is no entry.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// It is of another form or no entry at all.
    Foreign,
    /// It ends too early.
    Truncated,
    /// Its bytes are not the ones that were written.
    Checksum,
    /// It answers for another key than its name says.
    WrongKey,
}

impl fmt::Display for Damage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Damage::Foreign => "it is no entry of this form",
            Damage::Truncated => "it is cut off",
            Damage::Checksum => "its checksum is wrong",
            Damage::WrongKey => "it belongs to another key",
        })
    }
}

impl Entry {
    /// The file's bytes; `None` when the header is longer than readers take.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        let Entry { key, report, neff } = self;
        let header = Header { key: key.clone(), report: report.clone(), neff_bytes: neff.len() };
        let header = serde_json::to_vec(&header).expect("a header has string keys only");
        let header_bytes = u32::try_from(header.len()).ok().filter(|&length| length as usize <= MAX_HEADER_BYTES)?;
        let mut bytes = Vec::with_capacity(PREFIX_BYTES + header.len() + neff.len() + CHECKSUM_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&header_bytes.to_le_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(neff);
        let checksum = Sha256::digest(&bytes);
        bytes.extend_from_slice(&checksum);
        Some(bytes)
    }

    /// Reads a whole entry.
    ///
    /// # Errors
    /// How the bytes differ from what was written.
    pub fn from_bytes(bytes: &[u8]) -> Result<Entry, Damage> {
        let prefix = bytes.first_chunk::<PREFIX_BYTES>().ok_or(Damage::Truncated)?;
        let header_bytes = header_length(prefix)?;
        let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(Damage::Truncated)?;
        if Sha256::digest(body).as_slice() != checksum {
            return Err(Damage::Checksum);
        }
        let rest = body.get(PREFIX_BYTES..).ok_or(Damage::Truncated)?;
        let (header, neff) = rest.split_at_checked(header_bytes).ok_or(Damage::Truncated)?;
        let Header { key, report, neff_bytes } = serde_json::from_slice(header).map_err(|_| Damage::Foreign)?;
        if neff_bytes != neff.len() {
            return Err(Damage::Truncated);
        }
        Ok(Entry { key, report, neff: neff.to_vec() })
    }

    /// Reads only what stands before the NEFF; the checksum is not verified.
    ///
    /// # Errors
    /// Those of the reader, or none of ours: `Ok(Err(damage))`.
    pub fn read_header(reader: &mut impl Read) -> io::Result<Result<(Key, Report), Damage>> {
        let mut prefix = [0; PREFIX_BYTES];
        if let Err(error) = reader.read_exact(&mut prefix) {
            return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(Err(Damage::Truncated)) } else { Err(error) };
        }
        let header_bytes = match header_length(&prefix) {
            Ok(length) => length,
            Err(damage) => return Ok(Err(damage)),
        };
        let mut header = Vec::new();
        reader.by_ref().take(header_bytes as u64).read_to_end(&mut header)?;
        if header.len() < header_bytes {
            return Ok(Err(Damage::Truncated));
        }
        let header: Result<Header, _> = serde_json::from_slice(&header);
        Ok(header.map(|header| (header.key, header.report)).map_err(|_| Damage::Foreign))
    }
}

fn header_length(prefix: &[u8; PREFIX_BYTES]) -> Result<usize, Damage> {
    let (magic, length) = prefix.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(Damage::Foreign);
    }
    let length = u32::from_le_bytes(length.try_into().expect("the prefix ends in four bytes")) as usize;
    if length > MAX_HEADER_BYTES { Err(Damage::Foreign) } else { Ok(length) }
}

#[cfg(test)]
mod tests {
    use ir::Graph;

    use super::{Damage, Entry};
    use crate::cache::key::Key;
    use crate::pipeline::Options;
    use crate::report::Report;

    fn entry() -> Entry {
        let key = Key::new(&Graph::new("g"), &Options::default());
        Entry { key, report: Report::new("g"), neff: vec![7; 1000] }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let bytes = entry().to_bytes().unwrap();
        let read = Entry::from_bytes(&bytes).unwrap();
        assert_eq!((read.key, read.neff), (entry().key, entry().neff));
        assert_eq!(read.report.to_json(), entry().report.to_json());
        let (key, report) = Entry::read_header(&mut bytes.as_slice()).unwrap().unwrap();
        assert_eq!((key, report.graph.as_str()), (entry().key, "g"));
    }

    #[test]
    fn every_flipped_byte_and_every_truncation_is_damage() {
        let bytes = entry().to_bytes().unwrap();
        for position in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[position] ^= 0x10;
            assert!(Entry::from_bytes(&flipped).is_err(), "byte {position}");
            assert!(Entry::from_bytes(&bytes[..position]).is_err(), "{position} bytes");
            // Headers have no checksum of their own, but must not be trusted either.
            let _ = Entry::read_header(&mut flipped.as_slice()).unwrap();
        }
        assert_eq!(Entry::from_bytes(b"not an entry, but longer than a prefix").unwrap_err(), Damage::Foreign);
    }
}
