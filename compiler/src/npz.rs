//! NPZ archives: a zip of NumPy arrays, stored or deflated.
//!
//! Arrays are read one at a time against the type that is expected of them, so that no archive can
//! make the reader allocate more than the caller asked for. Floats of 16 and 8 bits are unsigned
//! bit patterns of their width, as NumPy has no types for most of them. Written archives are stored,
//! with fixed times: equal tensors give equal bytes.

use std::io::{Cursor, Read, Write};

use ir::types::packed_strides;
use ir::{Dtype, TensorType};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

/// First bytes of an array file.
const MAGIC: &[u8] = b"\x93NUMPY";

/// Bytes that an array's header may take; NumPy itself stops at ten thousand.
const MAX_HEADER_BYTES: usize = 1 << 16;

/// Why an archive or one of its arrays cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct NpzError {
    pub message: String,
}

impl NpzError {
    fn new(message: impl Into<String>) -> Self {
        NpzError { message: message.into() }
    }
}

/// An archive of arrays, read on demand.
pub struct Archive<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
}

impl<'a> Archive<'a> {
    /// Opens an archive.
    ///
    /// # Errors
    /// When it is no zip archive.
    pub fn open(bytes: &'a [u8]) -> Result<Self, NpzError> {
        let zip = ZipArchive::new(Cursor::new(bytes));
        Ok(Archive { zip: zip.map_err(|error| NpzError::new(format!("not an NPZ archive: {error}")))? })
    }

    /// True where there is an array of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.zip.index_for_name(&format!("{name}.npy")).is_some()
    }

    /// Packed little-endian elements of an array of this type.
    ///
    /// # Errors
    /// When the array is missing, malformed, or of another shape or element type.
    pub fn tensor(&mut self, name: &str, ty: &TensorType) -> Result<Vec<u8>, NpzError> {
        let fail = |what: String| NpzError::new(format!("array `{name}`: {what}"));
        let mut file =
            self.zip.by_name(&format!("{name}.npy")).map_err(|error| fail(format!("cannot be read: {error}")))?;
        let header = read_header(&mut file).map_err(fail)?;
        header.check(ty).map_err(fail)?;
        let wanted = ty.size_bytes();
        let mut data = Vec::new();
        let read = file.take(wanted as u64 + 1).read_to_end(&mut data);
        read.map_err(|error| fail(format!("cannot be read: {error}")))?;
        if data.len() != wanted {
            let found = if data.len() < wanted { data.len().to_string() } else { format!("more than {wanted}") };
            return Err(fail(format!("{ty} needs {wanted} bytes, not {found}")));
        }
        if header.big_endian {
            data.chunks_exact_mut(ty.dtype.size_bytes()).for_each(<[u8]>::reverse);
        }
        Ok(if header.column_major { row_major(&data, ty) } else { data })
    }
}

/// Packs tensors, given as packed little-endian elements, into an archive.
///
/// # Errors
/// When a tensor is larger than the format allows.
pub fn write<'a>(tensors: impl IntoIterator<Item = (&'a str, &'a TensorType, &'a [u8])>) -> Result<Vec<u8>, NpzError> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let fail = |name: &str, error: &dyn std::fmt::Display| NpzError::new(format!("array `{name}`: {error}"));
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(DateTime::default());
    for (name, ty, data) in tensors {
        let options = options.large_file(data.len() as u64 >= u64::from(u32::MAX));
        zip.start_file(format!("{name}.npy"), options).map_err(|error| fail(name, &error))?;
        zip.write_all(&header_bytes(ty)).and_then(|()| zip.write_all(data)).map_err(|error| fail(name, &error))?;
    }
    let archive = zip.finish().map_err(|error| NpzError::new(format!("the archive: {error}")))?;
    Ok(archive.into_inner())
}

/// NumPy's name of the type that an element is stored as.
fn descriptor(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F64 => "<f8",
        Dtype::F32 => "<f4",
        Dtype::Bf16 | Dtype::F16 => "<u2",
        Dtype::F8E4m3 | Dtype::F8E5m2 | Dtype::U8 => "|u1",
        Dtype::I64 => "<i8",
        Dtype::I32 => "<i4",
        Dtype::I16 => "<i2",
        Dtype::I8 => "|i1",
        Dtype::Bool => "|b1",
    }
}

fn header_bytes(ty: &TensorType) -> Vec<u8> {
    let dims: Vec<String> = ty.shape.iter().map(usize::to_string).collect();
    let shape = if let [dim] = &dims[..] { format!("({dim},)") } else { format!("({})", dims.join(", ")) };
    let mut text =
        format!("{{'descr': '{}', 'fortran_order': False, 'shape': {shape}, }}", descriptor(ty.dtype)).into_bytes();
    // Magic, version and length take 10 bytes; data start at a multiple of 64.
    let padded = (10 + text.len() + 1).next_multiple_of(64) - 10;
    text.resize(padded - 1, b' ');
    text.push(b'\n');
    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    bytes.extend(u16::try_from(text.len()).expect("a shape of fewer than a thousand dimensions").to_le_bytes());
    bytes.extend(text);
    bytes
}

/// What an array file says of its elements.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    /// NumPy's kind letter and width, for example `f4`.
    kind: String,
    big_endian: bool,
    column_major: bool,
    shape: Vec<usize>,
}

impl Header {
    fn check(&self, ty: &TensorType) -> Result<(), String> {
        let expected = &descriptor(ty.dtype)[1..];
        let same_bits = ty.dtype == Dtype::F16 && self.kind == "f2";
        if self.kind != expected && !same_bits {
            return Err(format!("elements are {}, {ty} needs {expected}", self.kind));
        }
        if self.shape != ty.shape.as_slice() {
            return Err(format!("its shape is {:?}, {ty} is needed", self.shape));
        }
        Ok(())
    }
}

fn read_header(file: &mut impl Read) -> Result<Header, String> {
    let mut start = [0; 8];
    file.read_exact(&mut start).map_err(|_| "too short for an array".to_owned())?;
    if !start.starts_with(MAGIC) {
        return Err("not a NumPy array".to_owned());
    }
    let mut length = [0; 4];
    let n_length_bytes = match start[6] {
        1 => 2,
        2 | 3 => 4,
        version => return Err(format!("array format {version} is not known")),
    };
    file.read_exact(&mut length[..n_length_bytes]).map_err(|_| "too short for a header".to_owned())?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_HEADER_BYTES {
        return Err(format!("its header of {length} bytes is too long"));
    }
    let mut text = vec![0; length];
    file.read_exact(&mut text).map_err(|_| "too short for its header".to_owned())?;
    let text = String::from_utf8(text).map_err(|_| "its header is no text".to_owned())?;
    parse_header(&text).ok_or_else(|| "its header is no dictionary of descr, fortran_order and shape".to_owned())
}

/// Reads the Python dictionary literal of three known keys.
fn parse_header(text: &str) -> Option<Header> {
    let value_of = |key: &str| {
        let start = text.find(&format!("'{key}'"))? + key.len() + 2;
        text[start..].trim_start().strip_prefix(':').map(str::trim_start)
    };
    let descr = value_of("descr")?.strip_prefix('\'')?;
    let descr = &descr[..descr.find('\'')?];
    let (order, kind) = (descr.get(..1)?, descr.get(1..)?);
    let big_endian = match order {
        "<" | "|" | "=" => false,
        ">" => true,
        _ => return None,
    };
    let order = value_of("fortran_order")?;
    let column_major = order.starts_with("True");
    if !column_major && !order.starts_with("False") {
        return None;
    }
    let shape = value_of("shape")?.strip_prefix('(')?;
    let shape = shape[..shape.find(')')?].split(',').map(str::trim).filter(|dim| !dim.is_empty());
    let shape = shape.map(|dim| dim.trim_end_matches('L').parse().ok()).collect::<Option<Vec<usize>>>()?;
    Some(Header { kind: kind.to_owned(), big_endian, column_major, shape })
}

/// Row-major elements of a column-major array.
fn row_major(data: &[u8], ty: &TensorType) -> Vec<u8> {
    let size = ty.dtype.size_bytes();
    let strides = packed_strides(&ty.shape);
    let mut result = vec![0; data.len()];
    for (flat, element) in result.chunks_exact_mut(size).enumerate() {
        let (mut source, mut step) = (0, 1);
        for (axis, &dim) in ty.shape.iter().enumerate() {
            source += flat / strides[axis] % dim * step;
            step *= dim;
        }
        element.copy_from_slice(&data[source * size..(source + 1) * size]);
    }
    result
}

#[cfg(test)]
mod tests {
    use ir::{Dtype, TensorType};

    use super::{Archive, Header, parse_header, row_major, write};

    #[test]
    fn written_tensors_are_read_back() {
        let ty = TensorType::new(Dtype::Bf16, [2, 3]);
        let data: Vec<u8> = (0..12).collect();
        let scalar = TensorType::scalar(Dtype::I64);
        let bytes = write([("in_0", &ty, &data[..]), ("in_1", &scalar, &[7, 0, 0, 0, 0, 0, 0, 0])]).unwrap();
        let mut archive = Archive::open(&bytes).unwrap();
        assert_eq!(archive.tensor("in_0", &ty).unwrap(), data);
        assert_eq!(archive.tensor("in_1", &scalar).unwrap()[0], 7);
        assert!(!archive.contains("in_2"));
        assert_eq!(write([("in_0", &ty, &data[..])]).unwrap(), write([("in_0", &ty, &data[..])]).unwrap());
    }

    #[test]
    fn arrays_of_another_type_are_refused() {
        let ty = TensorType::new(Dtype::F32, [2]);
        let bytes = write([("x", &ty, &[0; 8][..])]).unwrap();
        let mut archive = Archive::open(&bytes).unwrap();
        let error = archive.tensor("x", &TensorType::new(Dtype::I32, [2])).unwrap_err();
        assert_eq!(error.message, "array `x`: elements are f4, i32[2] needs i4");
        assert!(archive.tensor("x", &TensorType::new(Dtype::F32, [3])).unwrap_err().message.contains("shape is [2]"));
        assert!(archive.tensor("y", &ty).is_err());
    }

    #[test]
    fn headers_of_all_spellings_are_read() {
        let header = |text| parse_header(text).unwrap();
        let expected = Header { kind: "f4".to_owned(), big_endian: false, column_major: false, shape: vec![4, 512] };
        assert_eq!(header("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 512), }    \n"), expected);
        assert_eq!(header("{'shape': (4,), 'descr': '>i8', 'fortran_order': True}").shape, vec![4]);
        assert_eq!(header("{'shape': (), 'descr': '|b1', 'fortran_order': False}").shape, Vec::<usize>::new());
        for text in ["", "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}", "{'descr': '<f4'}"] {
            assert_eq!(parse_header(text), None, "{text}");
        }
    }

    #[test]
    fn column_major_arrays_are_transposed() {
        let ty = TensorType::new(Dtype::U8, [2, 3]);
        assert_eq!(row_major(&[1, 4, 2, 5, 3, 6], &ty), vec![1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn damaged_archives_are_refused_without_panic() {
        let ty = TensorType::new(Dtype::F32, [8]);
        let bytes = write([("x", &ty, &[1; 32][..])]).unwrap();
        for length in 0..bytes.len() {
            assert!(Archive::open(&bytes[..length]).is_err());
        }
        for position in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[position] ^= 0x55;
            if let Ok(mut archive) = Archive::open(&damaged) {
                let _ = archive.tensor("x", &ty);
            }
        }
    }
}
