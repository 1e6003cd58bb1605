//! The members of a NEFF as files in a folder, with the payload itself beside them.
//!
//! Never writes outside the folder: names were checked when the archive was read and are checked again here, and a
//! symbolic link that already lies in the folder is not followed. All members are checked before the first is written,
//! and each is written whole or not at all.

use crate::container::{Container, name_fault};
use crate::{Code, Error, Place};
use std::io;
use std::path::{Path, PathBuf};

/// The name under which the payload is written, as the vendor's tool does; no member has it.
pub const PAYLOAD_NAME: &str = "neff.tgz";

/// The name under which a file is written before it gets its own.
const TEMPORARY_NAME: &str = ".neffuse-unpack.tmp";

/// Writes every member of `container` into `folder`, which is made if need be, and the payload as `neff.tgz`.
///
/// `file` is the NEFF that `container` was read from. Returns the paths relative to the folder, in the order written.
///
/// # Errors
/// [`Code::Io`] with the member at fault; [`Code::UnsafeMember`] for a name or link that leads out of the folder, or a
/// member that another one needs as a folder.
pub fn unpack(container: &Container, file: &[u8], folder: &Path) -> Result<Vec<String>, Error> {
    for name in container.members.keys() {
        check(container, folder, name)?;
    }
    std::fs::create_dir_all(folder).map_err(|error| refused(&folder.display().to_string(), &error))?;
    let payload_at = usize::try_from(container.header.header_size).unwrap_or(usize::MAX);
    let payload = file.get(payload_at..).unwrap_or(&[]);
    let mut written = Vec::new();
    if !container.members.contains_key(PAYLOAD_NAME) {
        write_file(folder, PAYLOAD_NAME, payload)?;
        written.push(PAYLOAD_NAME.to_owned());
    }
    for (name, bytes) in &container.members {
        write_file(folder, name, bytes)?;
        written.push(name.clone());
    }
    Ok(written)
}

/// Whether a member has a place in the folder: nothing is written for it, nor for any other, before all have.
fn check(container: &Container, folder: &Path, name: &str) -> Result<(), Error> {
    let refuse = |reason: &str| Err(Error::new(Code::UnsafeMember, Place::member(name), reason));
    if let Some(fault) = name_fault(name) {
        return refuse(fault);
    }
    for (slash, _) in name.match_indices('/') {
        let parent = &name[..slash];
        if container.members.contains_key(parent) || parent == PAYLOAD_NAME {
            return refuse(&format!("`{}` is a member of its own and no folder", parent.escape_debug()));
        }
        refuse_link(&folder.join(parent), name)?;
    }
    refuse_link(&folder.join(name), name)?;
    if folder.join(name).is_dir() {
        return Err(Error::new(Code::Io, Place::member(name), "a folder stands where the member would be written"));
    }
    Ok(())
}

fn write_file(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let mut path: PathBuf = folder.to_owned();
    let components: Vec<&str> = name.split('/').collect();
    let (file_name, folders) = components.split_last().expect("a name has at least one component");
    for component in folders {
        path.push(component);
        refuse_link(&path, name)?;
        match std::fs::create_dir(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
            Err(error) => return Err(refused(name, &error)),
        }
    }
    let temporary = path.join(TEMPORARY_NAME);
    path.push(file_name);
    refuse_link(&path, name)?;
    refuse_link(&temporary, name)?;
    let written = std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, &path));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        refused(name, &error)
    })
}

fn refuse_link(path: &Path, name: &str) -> Result<(), Error> {
    let is_link = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_symlink());
    if is_link {
        let reason = "a symbolic link stands where the member would be written";
        return Err(Error::new(Code::UnsafeMember, Place::member(name), reason));
    }
    Ok(())
}

fn refused(name: &str, error: &io::Error) -> Error {
    Error::new(Code::Io, Place::member(name), error.to_string().to_lowercase())
}
