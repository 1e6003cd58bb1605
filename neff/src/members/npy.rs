//! NumPy `.npy` arrays: any header of versions 1 to 3 is read, version 1 with a 128-byte header is written.
//!
//! Bytes only: elements are never converted, since a constant's type need not be one that NumPy knows.

use crate::{Code, Error, Place};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Bytes before the data of every array that the vendor's compiler and this crate write.
pub const HEADER_BYTES: usize = 128;

/// A parsed array that borrows its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NpyArray<'a> {
    /// NumPy's type text, such as `<f4`; for a structured type the text of its list.
    pub descr: String,
    /// Whether the first axis runs fastest.
    pub fortran_order: bool,
    /// Shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Everything after the header.
    pub data: &'a [u8],
}

impl NpyArray<'_> {
    /// Number of elements.
    pub fn n_elements(&self) -> u64 {
        self.shape.iter().fold(1, |product, dim| product.saturating_mul(*dim))
    }
}

/// Reads an array. `member` is its name for errors.
///
/// # Errors
/// [`Code::BadArray`] with the byte of the fault.
pub fn read<'a>(member: &str, bytes: &'a [u8]) -> Result<NpyArray<'a>, Error> {
    let fault = |at: usize, reason: &str| Error::new(Code::BadArray, Place::member_byte(member, at as u64), reason);
    if !bytes.starts_with(MAGIC) {
        return Err(fault(0, "not an npy array"));
    }
    let version = *bytes.get(6).ok_or_else(|| fault(6, "the array ends in its header"))?;
    let (text_at, text_bytes): (usize, usize) = match version {
        1 => match bytes.get(8..10) {
            Some(field) => (10, usize::from(u16::from_le_bytes([field[0], field[1]]))),
            None => return Err(fault(8, "the array ends in its header")),
        },
        2 | 3 => match bytes.get(8..12) {
            Some(field) => (12, u32::from_le_bytes([field[0], field[1], field[2], field[3]]) as usize),
            None => return Err(fault(8, "the array ends in its header")),
        },
        _ => return Err(fault(6, "npy version is not 1, 2 or 3")),
    };
    let data_at = text_at.saturating_add(text_bytes);
    let (Some(text), Some(data)) = (bytes.get(text_at..data_at), bytes.get(data_at..)) else {
        return Err(fault(text_at, "the array ends in its header"));
    };
    let text = String::from_utf8_lossy(text);
    let fields = Fields::parse(&text).map_err(|(at, reason)| fault(text_at + at, reason))?;
    Ok(NpyArray { descr: fields.descr, fortran_order: fields.fortran_order, shape: fields.shape, data })
}

/// Writes a C-ordered array. `descr` is NumPy's type text; `data` holds the elements as they lie in memory.
pub fn write(descr: &str, shape: &[u64], data: &[u8]) -> Vec<u8> {
    let dims = match shape {
        [] => String::new(),
        [dim] => format!("{dim},"),
        _ => shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
    };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    // NumPy pads so that the data begin at a multiple of 64; a rank beyond what fits 128 takes the next one.
    let header_bytes = (10 + text.len() + 1).next_multiple_of(64).max(HEADER_BYTES);
    text.extend(std::iter::repeat_n(' ', header_bytes - 11 - text.len()));
    text.push('\n');
    let text_bytes = u16::try_from(text.len()).expect("a shape takes far less than 64 KiB of text");
    let mut bytes = Vec::with_capacity(header_bytes + data.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&[1, 0]);
    bytes.extend_from_slice(&text_bytes.to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// The three keys of the header's dictionary, which is a Python literal.
struct Fields {
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

type LiteralFault = (usize, &'static str);

impl Fields {
    fn parse(text: &str) -> Result<Self, LiteralFault> {
        let mut cursor = Cursor { text, at: 0 };
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        cursor.expect('{')?;
        while !cursor.accept('}') {
            let key = cursor.string()?;
            cursor.expect(':')?;
            match key {
                "descr" => descr = Some(cursor.type_text()?),
                "fortran_order" => fortran_order = Some(cursor.truth()?),
                "shape" => shape = Some(cursor.tuple()?),
                _ => return Err((cursor.at, "unknown key in the array header")),
            }
            if !cursor.accept(',') {
                cursor.expect('}')?;
                break;
            }
        }
        let missing = (text.len(), "the array header lacks descr, fortran_order or shape");
        Ok(Fields {
            descr: descr.ok_or(missing)?,
            fortran_order: fortran_order.ok_or(missing)?,
            shape: shape.ok_or(missing)?,
        })
    }
}

struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        trimmed
    }

    fn accept(&mut self, wanted: char) -> bool {
        let accepted = self.rest().starts_with(wanted);
        if accepted {
            self.at += wanted.len_utf8();
        }
        accepted
    }

    fn expect(&mut self, wanted: char) -> Result<(), LiteralFault> {
        if self.accept(wanted) { Ok(()) } else { Err((self.at, "the array header is not a dictionary")) }
    }

    fn string(&mut self) -> Result<&'a str, LiteralFault> {
        let rest = self.rest();
        let fault = (self.at, "a quoted string was expected in the array header");
        let quote = rest.chars().next().filter(|first| matches!(first, '\'' | '"')).ok_or(fault)?;
        let length = rest[1..].find(quote).ok_or(fault)?;
        self.at += length + 2;
        Ok(&rest[1..=length])
    }

    /// A quoted type, or the bracketed list of a structured one as it stands.
    fn type_text(&mut self) -> Result<String, LiteralFault> {
        let rest = self.rest();
        if !rest.starts_with('[') {
            return self.string().map(str::to_owned);
        }
        let mut depth = 0_usize;
        for (at, character) in rest.char_indices() {
            match character {
                '[' => depth += 1,
                ']' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                self.at += at + 1;
                return Ok(rest[..=at].to_owned());
            }
        }
        Err((self.at, "the list of a structured type does not end"))
    }

    fn truth(&mut self) -> Result<bool, LiteralFault> {
        let rest = self.rest();
        for (word, value) in [("True", true), ("False", false)] {
            if rest.starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err((self.at, "fortran_order is neither True nor False"))
    }

    fn tuple(&mut self) -> Result<Vec<u64>, LiteralFault> {
        let mut dims = Vec::new();
        self.expect('(')?;
        while !self.accept(')') {
            let rest = self.rest();
            let length = rest.bytes().take_while(u8::is_ascii_digit).count();
            let dim = rest[..length].parse().map_err(|_| (self.at, "a dimension is not an unsigned 64-bit integer"))?;
            dims.push(dim);
            self.at += length;
            // Python 2 wrote long integers with a suffix.
            self.accept('L');
            if !self.accept(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(dims)
    }
}
