//! Output files: written whole or not at all.

use std::io::Write;
use std::path::Path;

use crate::error::Error;

/// Writes a file under a temporary name beside its place and renames it, so that no reader ever
/// sees a part of it.
///
/// # Errors
/// When the folder does not take files, with the path.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let fail = |error: std::io::Error| Error::File(format!("{}: {error}", path.display()));
    let Some(name) = path.file_name() else {
        return Err(Error::File(format!("{}: not the name of a file", path.display())));
    };
    if path.is_dir() {
        return Err(Error::File(format!("{}: is a folder", path.display())));
    }
    // Special files such as /dev/null or /dev/stdout are written in place.
    if path.exists() && !path.is_file() {
        return std::fs::write(path, bytes).map_err(fail);
    }
    let mut temporary_name = std::ffi::OsString::from(".");
    temporary_name.push(name);
    temporary_name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary_name);
    let written = std::fs::File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        fail(error)
    })
}

#[cfg(test)]
mod tests {
    use super::write_atomically;

    #[test]
    fn files_are_replaced_and_nothing_else_is_left() {
        let folder = std::env::temp_dir().join(format!("neffuse-output-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("x.neff");
        write_atomically(&path, b"first").unwrap();
        write_atomically(&path, b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        assert!(write_atomically(&folder, b"").is_err());
        assert!(write_atomically(&folder.join("missing/x"), b"").is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
