//! From a NEFF's members to a machine.

use crate::error::LoadError;
use crate::machine::Parts;

/// Reads the members that hold the program.
pub(crate) fn read(neff: &[u8]) -> Result<Parts, LoadError> {
    let _container = neff::container::read(neff).map_err(|failure| failure.error)?;
    Err(LoadError::ForeignEncoding)
}
