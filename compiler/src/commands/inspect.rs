//! `neffuse info`, `unpack` and `objdump`: what is in a NEFF.

use std::path::PathBuf;

use clap::Args;
use neff::container::{Container, read};
use neff::info;

use super::{Outcome, ReportArgs, read_file};
use crate::error::Error;

/// Show what is in a NEFF, the vendor's included
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  neffuse info model.neff
  neffuse info vendor.neff --report json | jq .")]
pub(super) struct InfoArgs {
    /// The NEFF
    neff: PathBuf,
    #[command(flatten)]
    report: ReportArgs,
}

/// Write the members of a NEFF into a folder
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  neffuse unpack model.neff model")]
pub(super) struct UnpackArgs {
    /// The NEFF
    neff: PathBuf,
    /// The folder; it is made if need be
    folder: PathBuf,
}

/// Print the instructions of a NEFF
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  neffuse objdump model.neff
  neffuse objdump model.neff | grep '^pe:'            what the tensor engine does")]
pub(super) struct ObjdumpArgs {
    /// The NEFF
    neff: PathBuf,
}

pub(super) fn info(arguments: &InfoArgs) -> Result<Outcome, Error> {
    let file = read_file(&arguments.neff)?;
    let report = info::Report::of(&container(arguments.neff.display(), &file)?);
    let stdout = if arguments.report.is_json() { report.to_json_text() + "\n" } else { report.to_string() };
    Ok(Outcome::text(stdout))
}

pub(super) fn unpack(arguments: &UnpackArgs) -> Result<Outcome, Error> {
    let file = read_file(&arguments.neff)?;
    let container = container(arguments.neff.display(), &file)?;
    let written = neff::unpack::unpack(&container, &file, &arguments.folder);
    let written = written.map_err(|error| Error::Input(error.to_string()))?;
    Ok(Outcome::text(written.iter().map(|name| format!("{name}\n")).collect()))
}

pub(super) fn objdump(arguments: &ObjdumpArgs) -> Result<Outcome, Error> {
    let file = read_file(&arguments.neff)?;
    let container = container(arguments.neff.display(), &file)?;
    let program = neff::decoded::program(&container).map_err(|error| Error::Input(error.to_string()))?;
    // Streams, instructions and text are about as large as each other: keep two at a time.
    drop((container, file));
    Ok(Outcome::text(program.to_string()))
}

fn container(name: impl std::fmt::Display, file: &[u8]) -> Result<Container, Error> {
    read(file).map_err(|failure| Error::Input(format!("{name}: {}", failure.error)))
}
