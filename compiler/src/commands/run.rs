//! `neffuse run`: a NEFF on arrays from a file.

use std::path::PathBuf;

use clap::Args;

use super::{Outcome, read_file, write_atomically};
use crate::error::Error;
use crate::execute::Executable;
use crate::npz::{self, Archive};

/// Run a NEFF on the simulator
///
/// Arrays are named in_0, in_1, ... and out_0, out_1, ... by position in the graph's inputs and
/// outputs. 16-bit and 8-bit floats are unsigned bit patterns of their width.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  neffuse run model.neff --inputs x.npz --outputs y.npz
  neffuse run model.neff --inputs x.npz --weights parameters.npz --outputs y.npz")]
pub(super) struct RunArgs {
    /// The NEFF
    neff: PathBuf,
    /// NPZ file with the inputs
    #[arg(long, value_name = "X.NPZ")]
    inputs: PathBuf,
    /// NPZ file with inputs that --inputs lacks, usually the parameters
    #[arg(long, value_name = "W.NPZ")]
    weights: Option<PathBuf>,
    /// NPZ file to write
    #[arg(long, value_name = "Y.NPZ")]
    outputs: PathBuf,
}

/// Runs a NEFF on archives of inputs, the first that has an array deciding; gives the archive of
/// outputs.
///
/// # Errors
/// Missing or ill-typed arrays, and what [`Executable`] refuses.
pub fn run_npz(neff: &[u8], archives: &[&[u8]]) -> Result<Vec<u8>, Error> {
    let executable = Executable::load(neff)?;
    let archives = archives.iter().map(|bytes| Archive::open(bytes)).collect::<Result<Vec<_>, _>>();
    let mut archives = archives.map_err(|error| Error::Input(error.message))?;
    let mut inputs = Vec::new();
    for (position, slot) in executable.inputs().iter().enumerate() {
        let Some(slot) = slot else {
            inputs.push(None);
            continue;
        };
        let name = format!("in_{position}");
        let Some(archive) = archives.iter_mut().find(|archive| archive.contains(&name)) else {
            return Err(Error::Input(format!("array `{name}` (`{}`, {}) is missing", slot.name, slot.ty)));
        };
        inputs.push(Some(archive.tensor(&name, &slot.ty).map_err(|error| Error::Input(error.message))?));
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

pub(super) fn command(arguments: &RunArgs) -> Result<Outcome, Error> {
    let neff = read_file(&arguments.neff)?;
    let mut files = vec![read_file(&arguments.inputs)?];
    if let Some(weights) = &arguments.weights {
        files.push(read_file(weights)?);
    }
    let archives: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
    let outputs = run_npz(&neff, &archives)?;
    write_atomically(&arguments.outputs, &outputs)?;
    let stderr = format!("wrote {}\n", arguments.outputs.display());
    Ok(Outcome { stdout: String::new(), stderr, exit_code: 0 })
}
