//! A fingerprint of the sources that decide what a compilation gives.
//!
//! It is part of the compile cache's keys, so that a rebuilt development compiler, whose version has
//! not changed, never takes the results of an earlier one.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

/// What a compilation passes through, below the workspace's folder.
const SOURCES: [&str; 6] = ["Cargo.lock", "codegen/src", "compiler/src", "ir/src", "neff/src", "passes/src"];

fn main() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for source in SOURCES {
        let path = workspace.join(source);
        println!("cargo:rerun-if-changed={}", path.display());
        collect(&path, &mut files);
    }
    files.sort();
    // This hasher's keys are fixed; another Rust version may give another fingerprint, as it should.
    let mut hasher = DefaultHasher::new();
    for file in &files {
        file.strip_prefix(&workspace).unwrap_or(file).hash(&mut hasher);
        fs::read(file).unwrap_or_default().hash(&mut hasher);
    }
    println!("cargo:rustc-env=NEFFUSE_FINGERPRINT={:016x}", hasher.finish());
}

/// All files at or below this path that the compiler is built from.
fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    let Ok(folder) = fs::read_dir(path) else {
        files.push(path.to_owned());
        return;
    };
    for entry in folder.flatten() {
        let path = entry.path();
        if path.is_dir() || path.extension().is_some_and(|extension| extension == "rs") {
            collect(&path, files);
        }
    }
}
