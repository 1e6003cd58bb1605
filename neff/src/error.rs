//! The one error type of this crate: a code that tools can test, the place in the file, and the reason.
//!
//! Leaves out source spans and rendering: these files are binary, a member name and a byte are the place.

use std::fmt;

/// What kind of fault a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The file ends before its content does.
    Truncated,
    /// The header cannot be that of a NEFF, or contradicts the file.
    BadHeader,
    /// The gzip stream is damaged.
    BadGzip,
    /// The tar archive is damaged.
    BadTar,
    /// A member that no NEFF holds: a link, a device, or a path that leaves the folder.
    UnsafeMember,
    /// More bytes, members or nesting than the reader's limits allow.
    TooLarge,
    /// The stored hash is not that of the payload.
    HashMismatch,
    /// A member that another one names is absent.
    MissingMember,
    /// A JSON member does not parse or has not the documented form.
    BadJson,
    /// A `.npy` member does not parse.
    BadArray,
    /// An ELF kernel object does not parse or has not the documented form.
    BadObject,
    /// An instruction record does not decode.
    BadInstruction,
    /// Something that the format has no room for.
    Unwritable,
    /// The operating system refused.
    Io,
}

impl Code {
    /// The code as printed: lower case with hyphens, stable.
    pub fn as_str(self) -> &'static str {
        match self {
            Code::Truncated => "truncated",
            Code::BadHeader => "bad-header",
            Code::BadGzip => "bad-gzip",
            Code::BadTar => "bad-tar",
            Code::UnsafeMember => "unsafe-member",
            Code::TooLarge => "too-large",
            Code::HashMismatch => "hash-mismatch",
            Code::MissingMember => "missing-member",
            Code::BadJson => "bad-json",
            Code::BadArray => "bad-array",
            Code::BadObject => "bad-object",
            Code::BadInstruction => "bad-instruction",
            Code::Unwritable => "unwritable",
            Code::Io => "io",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a fault lies: in which member (or the file itself) and at which byte of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The member's path in the archive; `None` means the NEFF file itself.
    pub member: Option<String>,
    /// Offset in bytes from the start of the member or file.
    pub byte: Option<u64>,
}

impl Place {
    /// A byte of the NEFF file.
    pub fn byte(byte: u64) -> Self {
        Place { member: None, byte: Some(byte) }
    }

    /// A member as a whole.
    pub fn member(name: impl Into<String>) -> Self {
        Place { member: Some(name.into()), byte: None }
    }

    /// A byte of a member.
    pub fn member_byte(name: impl Into<String>, byte: u64) -> Self {
        Place { member: Some(name.into()), byte: Some(byte) }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.member, self.byte) {
            (Some(member), Some(byte)) => write!(f, "{member}, byte {byte}: "),
            (Some(member), None) => write!(f, "{member}: "),
            (None, Some(byte)) => write!(f, "byte {byte}: "),
            (None, None) => Ok(()),
        }
    }
}

/// A fault of a file, or of what was to be written: code, place, and the reason in one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}{reason} [{code}]")]
pub struct Error {
    /// What kind of fault.
    pub code: Code,
    /// Where.
    pub place: Place,
    /// Why, in lower case and without a final dot.
    pub reason: String,
}

impl Error {
    /// An error from its three parts.
    pub fn new(code: Code, place: Place, reason: impl Into<String>) -> Self {
        Error { code, place, reason: reason.into() }
    }
}
