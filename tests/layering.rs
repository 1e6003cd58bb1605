//! Crates depend on each other only as ARCHITECTURE.md says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Crate and the crates of this workspace that it may depend on.
const ALLOWED: [(&str, &[&str]); 8] = [
    ("ir", &[]),
    ("neff", &["ir"]),
    ("passes", &["ir"]),
    ("codegen", &["ir", "neff"]),
    ("simulator", &["ir", "neff"]),
    ("compiler", &["codegen", "ir", "neff", "passes", "simulator"]),
    ("python", &["compiler", "ir"]),
    ("timing", &["ir", "passes", "simulator"]),
];

#[test]
fn dependencies_point_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.into_iter().collect();
    for (name, may_use) in &allowed {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join(name).join("Cargo.toml");
        let text = std::fs::read_to_string(&manifest).expect("every crate has a manifest");
        let used = dependencies(&text).into_iter().filter(|used| allowed.contains_key(used.as_str()));
        let forbidden: Vec<String> = used.filter(|used| !may_use.contains(&used.as_str())).collect();
        assert!(forbidden.is_empty(), "{name} may not depend on {forbidden:?}");
    }
}

/// Names in the `[dependencies]` table of a manifest.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let lines = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let entries = lines.take_while(|line| !line.starts_with('['));
    entries.filter_map(|line| line.split_once('=')).map(|(name, _)| name.trim().to_string()).collect()
}
