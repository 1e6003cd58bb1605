//! `neffuse run`: a NEFF on arrays from files.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use clap::Args;

use super::progress::Terminal;
use super::{Outcome, read_file, stem, write_atomically};
use crate::error::Error;
use crate::execute::{Executable, Slot};
use crate::import::is_archive;
use crate::import::pt2::{ArchiveFile, StoredTensors};
use crate::npz::{self, Archive};

/// Run a NEFF on the simulator
///
/// Arrays are named in_0, in_1, ... and out_0, out_1, ... by position in the graph's inputs and
/// outputs; an input may also go by its own name, which `neffuse info` shows. 16-bit and 8-bit floats
/// are unsigned bit patterns of their width.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  neffuse run model.neff --inputs x.npz --outputs y.npz
  neffuse run model.neff --inputs x.npz --weights model.pt2 --outputs y.npz
  neffuse run model.neff --inputs x.npz --weights w.npz --outputs y.npz")]
pub(super) struct RunArgs {
    /// The NEFF
    neff: PathBuf,
    /// NPZ file with the inputs
    #[arg(long, value_name = "X.NPZ")]
    inputs: PathBuf,
    /// The .pt2 archive that the NEFF was compiled from, whose parameters are taken by name; or an
    /// NPZ file with inputs that --inputs lacks
    #[arg(long, value_name = "MODEL.PT2|W.NPZ")]
    weights: Option<PathBuf>,
    /// NPZ file to write
    #[arg(long, value_name = "Y.NPZ")]
    outputs: PathBuf,
    /// Device memory that the program may declare; by default 64 MiB, or 32 times the files where
    /// that is more
    #[arg(long, value_name = "MIB")]
    memory_limit: Option<u64>,
}

/// Device memory that a program may declare without being asked, however small its files are.
const MIN_DEVICE_BYTES: u64 = 64 << 20;

/// Times the bytes of the files that a program may declare as device memory.
const DEVICE_RATIO: u64 = 32;

/// Device memory that a program may declare: what the caller says, or what its files make likely.
fn device_limit_bytes(allowed_mebibytes: Option<u64>, file_bytes: u64) -> u64 {
    match allowed_mebibytes {
        Some(mebibytes) => mebibytes.saturating_mul(1 << 20),
        None => file_bytes.saturating_mul(DEVICE_RATIO).max(MIN_DEVICE_BYTES),
    }
}

/// Where inputs come from.
pub enum Source<'a> {
    /// Arrays by position or name.
    Arrays(Archive<'a>),
    /// Parameters by name.
    Stored(&'a StoredTensors<'a>),
}

impl Source<'_> {
    /// Elements of an input; `None` where the source does not have it.
    fn elements(&mut self, position: usize, slot: &Slot) -> Option<Result<Cow<'_, [u8]>, String>> {
        match self {
            Source::Arrays(archive) => {
                let by_position = format!("in_{position}");
                let name = [by_position, slot.name.clone()].into_iter().find(|name| archive.contains(name))?;
                Some(archive.tensor(&name, &slot.ty).map(Cow::Owned).map_err(|error| error.message))
            }
            Source::Stored(tensors) => {
                let stored = tensors.ty(&slot.name)?;
                if *stored != slot.ty {
                    return Some(Err(format!("tensor `{}` is {stored}, {} is needed", slot.name, slot.ty)));
                }
                Some(tensors.elements(&slot.name))
            }
        }
    }
}

/// Runs a NEFF on archives of inputs, the first that has an array deciding; gives the archive of
/// outputs. A program that declares more device memory than its files make likely does not run.
///
/// # Errors
/// Missing or ill-typed arrays, and what [`Executable`] refuses.
pub fn run_npz(neff: &[u8], archives: &[&[u8]]) -> Result<Vec<u8>, Error> {
    let sources = archives.iter().map(|bytes| Archive::open(bytes).map(Source::Arrays)).collect::<Result<Vec<_>, _>>();
    let sources = sources.map_err(|error| Error::Input(error.message))?;
    let file_bytes = [neff].iter().chain(archives).map(|bytes| bytes.len() as u64).sum();
    run_sources(neff, sources, device_limit_bytes(None, file_bytes))
}

/// Runs a NEFF on inputs from sources, the first that has an input deciding; gives the archive of
/// outputs. A program that declares more than `limit_bytes` of device memory does not run.
///
/// # Errors
/// All inputs that are missing or of another type, and what [`Executable`] refuses.
pub fn run_sources(neff: &[u8], mut sources: Vec<Source<'_>>, limit_bytes: u64) -> Result<Vec<u8>, Error> {
    let executable = Executable::load_file(neff)?;
    let declared = executable.machine().device_bytes();
    if declared > limit_bytes {
        let message = format!("the program declares {declared} bytes of device memory; the limit is {limit_bytes}");
        return Err(
            Error::Input(message).with_help(&format!("--memory-limit {} allows it", declared.div_ceil(1 << 20)))
        );
    }
    let mut inputs = Vec::new();
    let mut faults = Vec::new();
    for (position, slot) in executable.inputs().iter().enumerate() {
        let found = slot.as_ref().map(|slot| {
            let found = sources.iter_mut().find_map(|source| source.elements(position, slot));
            let missing = || format!("array `in_{position}` (`{}`, {}) is missing", slot.name, slot.ty);
            found.unwrap_or_else(|| Err(missing())).map(Cow::into_owned)
        });
        inputs.push(found.transpose().unwrap_or_else(|fault| {
            faults.push(fault);
            None
        }));
    }
    match &faults[..] {
        [] => {}
        [fault] => return Err(Error::Input(fault.clone())),
        faults => {
            let all = faults.join("\n  ");
            return Err(Error::Input(format!("{} inputs are missing or of another type\n  {all}", faults.len())));
        }
    }
    let outputs = executable.run(&inputs)?;
    let mut arrays = Vec::new();
    for (position, (bytes, slot)) in outputs.iter().zip(executable.outputs()).enumerate() {
        if let (Some(bytes), Some(slot)) = (bytes, slot) {
            arrays.push((format!("out_{position}"), &slot.ty, bytes.as_slice()));
        }
    }
    let arrays = arrays.iter().map(|(name, ty, bytes)| (name.as_str(), *ty, *bytes));
    npz::write(arrays).map_err(|error| Error::Internal(error.message))
}

fn arrays<'a>(path: &Path, bytes: &'a [u8]) -> Result<Source<'a>, Error> {
    let archive =
        Archive::open(bytes).map_err(|error| Error::Input(format!("{}: {}", path.display(), error.message)))?;
    Ok(Source::Arrays(archive))
}

fn run(arguments: &RunArgs) -> Result<Vec<u8>, Error> {
    let neff = read_file(&arguments.neff)?;
    let inputs = read_file(&arguments.inputs)?;
    let n_bytes = neff.len() as u64 + inputs.len() as u64;
    let inputs = arrays(&arguments.inputs, &inputs)?;
    let limit_bytes = |weights_bytes: u64| device_limit_bytes(arguments.memory_limit, n_bytes + weights_bytes);
    let _bar = Terminal::new(&format!("running {}", stem(&arguments.neff)));
    let run = |sources: Vec<Source<'_>>, limit_bytes: u64| {
        run_sources(&neff, sources, limit_bytes).map_err(|error| error.in_file(&arguments.neff))
    };
    match &arguments.weights {
        None => run(vec![inputs], limit_bytes(0)),
        Some(path) if is_archive(path) => {
            let file = ArchiveFile::open(path)?;
            let limit_bytes = limit_bytes(file.bytes().len() as u64);
            file.with_tensors(|tensors| run(vec![inputs, Source::Stored(tensors)], limit_bytes))
        }
        Some(path) => {
            let weights = read_file(path)?;
            run(vec![inputs, arrays(path, &weights)?], limit_bytes(weights.len() as u64))
        }
    }
}

pub(super) fn command(arguments: &RunArgs) -> Result<Outcome, Error> {
    let outputs = run(arguments)?;
    write_atomically(&arguments.outputs, &outputs)?;
    let stderr = format!("wrote {}\n", arguments.outputs.display());
    Ok(Outcome { stdout: String::new(), stderr, exit_code: 0 })
}
