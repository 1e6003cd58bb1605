//! The payload: a tar, plain or as one gzip member with zeros after it.
//!
//! Streams: the archive is never held unpacked as a whole besides its members, and sizes that the file claims are
//! never trusted for an allocation. Links, devices and paths that leave the folder end the reading.

use super::{Members, name_fault};
use crate::{Code, Error, Place};
use flate2::bufread::GzDecoder;
use std::cell::Cell;
use std::io::{self, BufRead, Read};

/// How much a reader is willing to take in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the unpacked archive.
    pub unpacked_bytes: u64,
    /// Entries of the archive.
    pub members: usize,
}

impl Limits {
    /// An archive may always unpack to this many bytes, however small the file is. Readers keep to 64 MiB and twice
    /// what they unpack, and the floor is part of the 64 MiB.
    pub const FLOOR_BYTES: u64 = 16 << 20;

    /// Beyond the floor, an archive may unpack to this many times the file.
    pub const RATIO: u64 = 32;

    /// The limits for a file of this many bytes.
    pub fn for_file(file_bytes: u64) -> Self {
        let unpacked_bytes = file_bytes.saturating_mul(Self::RATIO).max(Self::FLOOR_BYTES);
        Limits { unpacked_bytes, members: 1 << 16 }
    }
}

/// How the archive is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadForm {
    /// One gzip member.
    Gzip,
    /// An uncompressed tar.
    PlainTar,
}

impl PayloadForm {
    /// The form as reports print it.
    pub fn as_str(self) -> &'static str {
        match self {
            PayloadForm::Gzip => "gzip",
            PayloadForm::PlainTar => "tar",
        }
    }
}

pub(super) struct Unpacked {
    pub form: PayloadForm,
    pub members: Members,
    pub trailing_zero_bytes: u64,
    pub warnings: Vec<Error>,
}

/// Unpacks a payload that begins at byte `start` of its file.
pub(super) fn unpack(payload: &[u8], start: u64, limits: &Limits) -> Result<Unpacked, Error> {
    if payload.starts_with(&[0x1f, 0x8b]) {
        return unpack_gzip(payload, start, limits);
    }
    // A tar of one member is its header block, and `ustar` stands in every header that matters.
    if payload.get(257..262) == Some(b"ustar") {
        let consumed = Cell::new(0);
        let source = Counted { rest: payload, consumed: &consumed };
        let (members, warnings) = read_archive(source, &consumed, start, PayloadForm::PlainTar, limits)?;
        return Ok(Unpacked { form: PayloadForm::PlainTar, members, trailing_zero_bytes: 0, warnings });
    }
    Err(Error::new(Code::BadHeader, Place::byte(start), "the payload is neither gzip nor a tar"))
}

fn unpack_gzip(payload: &[u8], start: u64, limits: &Limits) -> Result<Unpacked, Error> {
    let consumed = Cell::new(0);
    // The single-member decoder: zeros that follow the stream are padding, not a damaged second member.
    let decoder = GzDecoder::new(Counted { rest: payload, consumed: &consumed });
    let (members, mut warnings) = read_archive(decoder, &consumed, start, PayloadForm::Gzip, limits)?;
    let trailing = usize::try_from(consumed.get()).ok().and_then(|end| payload.get(end..)).unwrap_or(&[]);
    if let Some(at) = trailing.iter().position(|byte| *byte != 0) {
        let place = Place::byte(start + consumed.get() + at as u64);
        warnings.push(Error::new(Code::BadGzip, place, "bytes that are not zero follow the gzip stream"));
    }
    let trailing_zero_bytes = trailing.iter().filter(|byte| **byte == 0).count() as u64;
    Ok(Unpacked { form: PayloadForm::Gzip, members, trailing_zero_bytes, warnings })
}

fn read_archive(
    source: impl Read,
    consumed: &Cell<u64>,
    start: u64,
    form: PayloadForm,
    limits: &Limits,
) -> Result<(Members, Vec<Error>), Error> {
    let left = Cell::new(limits.unpacked_bytes);
    let state = Reading { consumed, start, form, limits, left: &left };
    let mut archive = tar::Archive::new(Capped { inner: source, left: &left });
    let mut members = Members::new();
    let mut warnings = Vec::new();
    let entries = archive.entries().map_err(|error| state.fault(&error))?;
    for (n_entries, entry) in entries.enumerate() {
        if n_entries >= limits.members {
            return Err(state.too_large(format!("the archive has more than {} members", limits.members)));
        }
        let entry = entry.map_err(|error| state.fault(&error))?;
        let Some(name) = member_name(&entry, &state, &mut warnings)? else {
            continue;
        };
        let bytes = read_member(entry, &name, &state)?;
        if members.insert(name.clone(), bytes).is_some() {
            let reason = "the archive has this member twice, the last one counts";
            warnings.push(Error::new(Code::BadTar, Place::member(name), reason));
        }
    }
    // To the end of the stream, so that a cut or a wrong checksum after the last member is found too.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(|error| state.fault(&error))?;
    Ok((members, warnings))
}

/// The name under which an entry is kept, `None` for entries that hold nothing.
fn member_name<R: Read>(
    entry: &tar::Entry<'_, R>,
    state: &Reading<'_>,
    warnings: &mut Vec<Error>,
) -> Result<Option<String>, Error> {
    let raw = entry.path_bytes();
    let name = String::from_utf8_lossy(&raw).into_owned();
    if name.as_bytes() != &*raw {
        let reason = "the member name is not UTF-8, odd bytes are replaced";
        warnings.push(Error::new(Code::BadTar, Place::member(name.clone()), reason));
    }
    let mut name = name.as_str();
    while let Some(rest) = name.strip_prefix("./") {
        name = rest;
    }
    let kind = entry.header().entry_type();
    let is_folder = kind.is_dir();
    if is_folder {
        name = name.trim_end_matches('/');
        if name.is_empty() || name == "." {
            return Ok(None);
        }
    } else if kind.is_pax_global_extensions() {
        return Ok(None);
    } else if !kind.is_file() && !kind.is_contiguous() {
        let reason = format!("member `{name}` is a link, a device or of another special type");
        return Err(Error::new(Code::UnsafeMember, state.place(), reason));
    }
    if let Some(fault) = name_fault(name) {
        let reason = format!("member `{}`: {fault}", name.escape_debug());
        return Err(Error::new(Code::UnsafeMember, state.place(), reason));
    }
    Ok((!is_folder).then(|| name.to_owned()))
}

fn read_member<R: Read>(entry: tar::Entry<'_, R>, name: &str, state: &Reading<'_>) -> Result<Vec<u8>, Error> {
    let size = entry.size();
    if size > state.left.get() {
        return Err(state.too_large(format!("member `{name}` claims {size} bytes")));
    }
    let mut bytes = Vec::new();
    entry.take(size).read_to_end(&mut bytes).map_err(|error| state.fault(&error))?;
    if bytes.len() as u64 != size {
        let reason = format!("member `{name}` ends after {} of {size} bytes", bytes.len());
        return Err(Error::new(Code::Truncated, state.place(), reason));
    }
    Ok(bytes)
}

/// Where reading stands, for faults.
struct Reading<'a> {
    consumed: &'a Cell<u64>,
    start: u64,
    form: PayloadForm,
    limits: &'a Limits,
    left: &'a Cell<u64>,
}

impl Reading<'_> {
    /// The byte of the file up to which the payload was consumed.
    fn place(&self) -> Place {
        Place::byte(self.start + self.consumed.get())
    }

    fn too_large(&self, what: String) -> Error {
        let limit = self.limits.unpacked_bytes;
        Error::new(Code::TooLarge, self.place(), format!("{what}; the limit of the unpacked archive is {limit} bytes"))
    }

    fn fault(&self, error: &io::Error) -> Error {
        if self.left.get() == 0 {
            return self.too_large("the archive does not end".to_owned());
        }
        let code = match (error.kind(), self.form) {
            (io::ErrorKind::UnexpectedEof, _) => Code::Truncated,
            (_, PayloadForm::PlainTar) => Code::BadTar,
            // flate2 reports damage as invalid input or data, the archive reader as other.
            (io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData, PayloadForm::Gzip) => Code::BadGzip,
            (_, PayloadForm::Gzip) => Code::BadTar,
        };
        let reason = match code {
            Code::Truncated => "the payload ends before its archive does".to_owned(),
            _ => one_line(&error.to_string()),
        };
        Error::new(code, self.place(), reason)
    }
}

/// Foreign messages may quote member names: keep them short and printable.
fn one_line(message: &str) -> String {
    message.chars().take(200).flat_map(char::escape_debug).collect()
}

/// A slice that says how far it was read.
struct Counted<'a> {
    rest: &'a [u8],
    consumed: &'a Cell<u64>,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n_bytes = self.rest.read(buffer)?;
        self.consumed.set(self.consumed.get() + n_bytes as u64);
        Ok(n_bytes)
    }
}

impl BufRead for Counted<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        Ok(self.rest)
    }

    fn consume(&mut self, n_bytes: usize) {
        let n_bytes = n_bytes.min(self.rest.len());
        self.rest = &self.rest[n_bytes..];
        self.consumed.set(self.consumed.get() + n_bytes as u64);
    }
}

/// A reader that fails once it has given out as many bytes as the limits allow.
struct Capped<'a, R> {
    inner: R,
    left: &'a Cell<u64>,
}

impl<R: Read> Read for Capped<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 && !buffer.is_empty() {
            return Err(io::Error::other("the archive unpacks to more than the limit"));
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let n_bytes = self.inner.read(&mut buffer[..most])?;
        self.left.set(left - n_bytes as u64);
        Ok(n_bytes)
    }
}
