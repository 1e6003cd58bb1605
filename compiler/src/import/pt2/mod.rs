//! torch.export archives (`.pt2`): a zip with the graph as JSON and the weights as raw bytes.
//!
//! Both forms are read: as `torch.export.export` gives it, with in-place and composite ops, and
//! after `run_decompositions`. In-place ops become functional ones in `memory`; composite ones have
//! rows in the table of overloads.

use std::borrow::Cow;
use std::fs::File;
use std::path::{Path, PathBuf};

use ir::{Graph, TensorType};
use memmap2::Mmap;
use neff::json::{JsonError, from_slice_within};

use super::{ImportError, build, json_budget_bytes};
use crate::error::Error;

mod archive;
mod arguments;
mod directory;
mod graph;
mod in_place;
mod memory;
mod nodes;
mod schema;
mod source;
mod views;
mod weights;

use archive::{Archive, MODEL};
use schema::{ExportedProgram, MAJOR_VERSION, Versioned};
use weights::Weights;

/// A file that is mapped into memory.
pub struct ArchiveFile {
    path: PathBuf,
    bytes: Option<Mmap>,
}

impl ArchiveFile {
    /// Maps a file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let fail = |error: std::io::Error| Error::File(format!("{}: {error}", path.display()));
        let file = File::open(path).map_err(fail)?;
        let is_empty = file.metadata().map_err(fail)?.len() == 0;
        // SAFETY: as with every mapped file, nobody may change it while it is being read; what is
        // read is checked like any other input.
        let bytes = if is_empty { None } else { Some(unsafe { Mmap::map(&file) }.map_err(fail)?) };
        Ok(ArchiveFile { path: path.to_owned(), bytes })
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }

    /// Calls a function with the tensors that the archive stores.
    ///
    /// # Errors
    /// When the archive is damaged, and the function's errors.
    pub fn with_tensors<T>(&self, function: impl FnOnce(&StoredTensors<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let fail = |reason: String| Error::Input(format!("{}: {reason}", self.path.display()));
        let archive = Archive::open(self.bytes()).map_err(fail)?;
        let weights = Weights::read(&archive).map_err(fail)?;
        function(&StoredTensors { weights: &weights, path: &self.path })
    }
}

/// Parameters, buffers and constants by name.
pub struct StoredTensors<'a> {
    weights: &'a Weights<'a>,
    path: &'a Path,
}

impl<'a> StoredTensors<'a> {
    /// Type of a tensor, where there is one of this name.
    pub fn ty(&self, name: &str) -> Option<&TensorType> {
        self.weights.ty(name)
    }

    /// Little-endian elements of a tensor in row-major order.
    ///
    /// # Errors
    /// When there is none of this name, or it is damaged.
    pub fn elements(&self, name: &str) -> Result<Cow<'a, [u8]>, String> {
        self.weights.elements(name).map_err(|reason| format!("{}: {reason}", self.path.display()))
    }
}

/// Reads the graph of an archive, under a name.
///
/// # Errors
/// What is no archive, or every node that cannot be compiled.
pub fn parse(name: &str, bytes: &[u8]) -> Result<Graph, ImportError> {
    let archive = Archive::open(bytes).map_err(ImportError::Malformed)?;
    let weights = Weights::read(&archive).map_err(ImportError::Malformed)?;
    let fail = |reason: String| ImportError::Malformed(format!("member `{MODEL}`: {reason}"));
    let text = archive.text(MODEL).map_err(ImportError::Malformed)?;
    // The version is read alone first: another version may have other fields.
    let Versioned { schema_version, torch_version } =
        serde_json::from_str(text).map_err(|error| fail(format!("no exported program: {error}")))?;
    if schema_version.major != MAJOR_VERSION {
        let (major, minor) = (schema_version.major, schema_version.minor);
        return Err(fail(format!(
            "schema {major}.{minor}, written by PyTorch {torch_version}, is not known; {MAJOR_VERSION}.x is: \
             export again with another PyTorch"
        )));
    }
    let program: ExportedProgram<'_> = from_slice_within(text.as_bytes(), json_budget_bytes(text.len()))
        .map_err(|JsonError { error, .. }| fail(format!("no exported program of schema 8: {error}")))?;
    let captured = graph::captured(name, &program, &weights)?;
    drop(program);
    build::build(&captured)
}
