//! The central directory of a zip archive that is in memory: which members there are, and where.
//!
//! Only what torch.export writes is understood: one disk, no encryption; sizes and offsets of 32 or
//! 64 bits. Every place is checked against the file, and nothing is allocated but the list of members.

use std::ops::Range;

const END: &[u8] = b"PK\x05\x06";
const END_64: &[u8] = b"PK\x06\x06";
const LOCATOR_64: &[u8] = b"PK\x06\x07";
const ENTRY: &[u8] = b"PK\x01\x02";
const LOCAL: &[u8] = b"PK\x03\x04";

const END_BYTES: usize = 22;
const LOCATOR_64_BYTES: usize = 20;
const ENTRY_BYTES: usize = 46;
const LOCAL_BYTES: usize = 30;

/// A comment at the end of the file has at most so many bytes.
const MAX_COMMENT_BYTES: usize = u16::MAX as usize;

/// Stands for a number that is in the 64-bit fields.
const IN_64_BITS: u64 = u32::MAX as u64;

/// The extra field with 64-bit sizes and offsets.
const EXTRA_64: u16 = 1;

/// One member as the directory describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub name: &'a [u8],
    /// Where its bytes lie in the file.
    pub place: Range<usize>,
    /// CRC-32 of the bytes.
    pub checksum: u32,
    /// Stored as it is: neither compressed nor encrypted.
    pub is_plain: bool,
}

/// All members, in the directory's order.
///
/// # Errors
/// What makes the file no zip archive, or a damaged one.
pub fn entries(bytes: &[u8]) -> Result<Vec<Entry<'_>>, String> {
    let (n_entries, start) = directory(bytes).ok_or("it has no directory of members at its end")?;
    let mut entries = Vec::new();
    let mut at = usize::try_from(start).map_err(|_| "its directory lies beyond the end of the file")?;
    for position in 0..n_entries {
        let (entry, next) = entry(bytes, at).ok_or_else(|| format!("entry {position} of its directory is damaged"))?;
        entries.push(entry);
        at = next;
    }
    Ok(entries)
}

/// Number of entries and the first one's offset.
fn directory(bytes: &[u8]) -> Option<(u64, u64)> {
    let last = bytes.len().checked_sub(END_BYTES)?;
    let first = last.saturating_sub(MAX_COMMENT_BYTES);
    // The comment must end with the file, so that no record inside of a member is taken for the end.
    let is_end = |&at: &usize| {
        bytes[at..].starts_with(END)
            && number(bytes, at + 20, 2).is_some_and(|comment| (at + END_BYTES) as u64 + comment == bytes.len() as u64)
    };
    let end = (first..=last).rev().find(is_end)?;
    if let Some(locator) = end.checked_sub(LOCATOR_64_BYTES)
        && bytes[locator..].starts_with(LOCATOR_64)
    {
        let at = usize::try_from(number(bytes, locator + 8, 8)?).ok()?;
        if !bytes.get(at..)?.starts_with(END_64) {
            return None;
        }
        return Some((number(bytes, at.checked_add(32)?, 8)?, number(bytes, at.checked_add(48)?, 8)?));
    }
    Some((number(bytes, end + 10, 2)?, number(bytes, end + 16, 4)?))
}

/// The entry at a place and the place after it.
fn entry(bytes: &[u8], at: usize) -> Option<(Entry<'_>, usize)> {
    let record = bytes.get(at..)?;
    let field = |offset: usize, size: usize| number(record, offset, size);
    if record.len() < ENTRY_BYTES || !record.starts_with(ENTRY) {
        return None;
    }
    let length = |offset: usize| field(offset, 2).map(|length| length as usize);
    let (name_length, extra_length, comment_length) = (length(28)?, length(30)?, length(32)?);
    let name = record.get(ENTRY_BYTES..ENTRY_BYTES + name_length)?;
    let extra = record.get(ENTRY_BYTES + name_length..ENTRY_BYTES + name_length + extra_length)?;
    let (size, packed_size, local) = numbers_64(extra, [field(24, 4)?, field(20, 4)?, field(42, 4)?])?;
    let (flags, method) = (field(8, 2)?, field(10, 2)?);
    let is_plain = flags & 1 == 0 && method == 0;
    let stored_size = if is_plain { size } else { packed_size };
    let entry = Entry { name, place: place(bytes, local, stored_size)?, checksum: field(16, 4)? as u32, is_plain };
    Some((entry, at + ENTRY_BYTES + name_length + extra_length + comment_length))
}

/// Size, packed size and offset: those that do not fit 32 bits stand in the extra field, in this
/// order.
fn numbers_64(extra: &[u8], numbers: [u64; 3]) -> Option<(u64, u64, u64)> {
    let mut numbers = numbers;
    let mut wide = &[][..];
    let mut at = 0;
    while at + 4 <= extra.len() {
        let length = number(extra, at + 2, 2)? as usize;
        let body = extra.get(at + 4..at + 4 + length)?;
        if number(extra, at, 2)? == u64::from(EXTRA_64) {
            wide = body;
        }
        at += 4 + length;
    }
    let mut at = 0;
    for narrow in numbers.iter_mut().filter(|narrow| **narrow == IN_64_BITS) {
        *narrow = number(wide, at, 8)?;
        at += 8;
    }
    let [size, packed_size, local] = numbers;
    Some((size, packed_size, local))
}

/// Where the bytes of a member lie: after its local header, whose name and extra field may have other
/// lengths than the directory's.
fn place(bytes: &[u8], local: u64, size: u64) -> Option<Range<usize>> {
    let local = usize::try_from(local).ok()?;
    let header = bytes.get(local..)?;
    if !header.starts_with(LOCAL) {
        return None;
    }
    let lengths = number(header, 26, 2)? + number(header, 28, 2)?;
    let start = local.checked_add(LOCAL_BYTES)?.checked_add(usize::try_from(lengths).ok()?)?;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    (end <= bytes.len()).then_some(start..end)
}

/// A little-endian number of at most eight bytes.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(size)?)?;
    Some(field.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use zip::write::SimpleFileOptions;
    use zip::{CompressionMethod, ZipWriter};

    use super::entries;

    fn archive(members: &[(&str, &[u8])], is_large: bool) -> Vec<u8> {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(is_large);
        for (name, data) in members {
            zip.start_file(*name, options).unwrap();
            zip.write_all(data).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    #[test]
    fn members_are_found_in_archives_of_both_widths() {
        for is_large in [false, true] {
            let bytes = archive(&[("a/one", b"first"), ("a/two", b"")], is_large);
            let found = entries(&bytes).unwrap();
            let found: Vec<(&[u8], &[u8])> =
                found.iter().map(|entry| (entry.name, &bytes[entry.place.clone()])).collect();
            assert_eq!(found, [(&b"a/one"[..], &b"first"[..]), (b"a/two", b"")]);
        }
    }

    #[test]
    fn an_archive_inside_of_an_archive_is_a_member() {
        let inner = archive(&[("inner", b"data")], true);
        let bytes = archive(&[("a/one", b"first"), ("a/inner.pt", &inner)], false);
        let found = entries(&bytes).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(&bytes[found[1].place.clone()], inner);
    }

    #[test]
    fn directories_that_lead_nowhere_are_refused() {
        assert!(entries(b"").is_err());
        assert!(entries(b"PK\x05\x06").is_err());
        let bytes = archive(&[("a/one", b"first")], false);
        for position in 0..bytes.len() {
            for value in [0, 0x7f, 0xff] {
                let mut damaged = bytes.clone();
                damaged[position] = value;
                if let Ok(found) = entries(&damaged) {
                    assert!(found.iter().all(|entry| entry.place.end <= damaged.len()));
                }
            }
        }
    }
}
