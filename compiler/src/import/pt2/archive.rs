//! The members of a `.pt2` file, which is a zip archive of stored members under one folder.
//!
//! Places and sizes come from the central directory: local headers leave sizes to descriptors after
//! the data. Nothing is copied; a member's checksum is verified where the member is taken.

use std::collections::BTreeMap;
use std::ops::Range;

use super::directory::entries;

/// The graph's member.
pub const MODEL: &str = "models/model.json";

/// Where PyTorch before 2.8 kept the graph, in an archive of another form.
const OLD_MODEL: &str = "serialized_exported_program.json";

/// An opened archive.
pub struct Archive<'a> {
    bytes: &'a [u8],
    /// By name without the folder.
    members: BTreeMap<String, Member>,
}

#[derive(Clone, Debug)]
struct Member {
    place: Range<usize>,
    checksum: u32,
}

impl<'a> Archive<'a> {
    /// Opens an archive.
    ///
    /// # Errors
    /// When it is no archive that `torch.export.save` writes.
    pub fn open(bytes: &'a [u8]) -> Result<Self, String> {
        let entries = entries(bytes).map_err(|reason| format!("no .pt2 archive, which is a zip: {reason}"))?;
        let mut members = BTreeMap::new();
        for (position, entry) in entries.into_iter().enumerate() {
            let name = std::str::from_utf8(entry.name);
            let name = name.map_err(|_| format!("member {position}: its name is no UTF-8"))?;
            if !entry.is_plain {
                let reason = "it is compressed or encrypted; torch.export.save stores members as they are";
                return Err(format!("member `{name}`: {reason}"));
            }
            // The folder is named after the file that was saved.
            let inner = name.split_once('/').map_or(name, |(_, inner)| inner);
            let member = Member { place: entry.place, checksum: entry.checksum };
            if members.insert(inner.to_owned(), member).is_some() {
                return Err(format!("member `{name}` is there twice"));
            }
        }
        let archive = Archive { bytes, members };
        archive.check_form()?;
        Ok(archive)
    }

    fn check_form(&self) -> Result<(), String> {
        if self.members.contains_key(OLD_MODEL) {
            return Err(format!("the form of PyTorch before 2.8 (`{OLD_MODEL}`): load it there and save it with 2.8"));
        }
        if !self.members.contains_key(MODEL) {
            return Err(format!("there is no member `{MODEL}`: torch.export.save writes one"));
        }
        for (name, expected) in [("archive_format", "pt2"), ("archive_version", "0"), ("byteorder", "little")] {
            let found = if self.members.contains_key(name) { self.text(name)?.trim() } else { expected };
            if found != expected {
                return Err(format!("`{name}` is `{found}`; only `{expected}` is read"));
            }
        }
        Ok(())
    }

    /// Size of the whole file.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// True where there is such a member.
    pub fn contains(&self, name: &str) -> bool {
        self.members.contains_key(name)
    }

    /// Size of a member, where it is there.
    pub fn member_size(&self, name: &str) -> Option<usize> {
        self.members.get(name).map(|member| member.place.len())
    }

    /// Bytes of a member.
    ///
    /// # Errors
    /// When it is missing or damaged.
    pub fn member(&self, name: &str) -> Result<&'a [u8], String> {
        let member = self.members.get(name).ok_or_else(|| format!("there is no member `{name}`"))?;
        let bytes = &self.bytes[member.place.clone()];
        if crc32fast::hash(bytes) != member.checksum {
            return Err(format!("member `{name}` is damaged: its checksum is another"));
        }
        Ok(bytes)
    }

    /// A member that is text.
    ///
    /// # Errors
    /// When it is missing, damaged or no text.
    pub fn text(&self, name: &str) -> Result<&'a str, String> {
        std::str::from_utf8(self.member(name)?).map_err(|error| format!("member `{name}` is no text: {error}"))
    }
}
