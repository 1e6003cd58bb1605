//! Extraction on the e-graphs of the extraction gym: cost against the best known, bound, proof.
//!
//! Reads `../shared/benchmarks/extraction-gym` beside the repository, or the folder in
//! `NEFFUSE_GYM`; without it, says so and ends. Arguments choose files by a part of their name.

#[path = "common/gym.rs"]
mod gym;

use gym::{BEST_KNOWN, extract_file};

fn main() {
    let folder = gym::folder();
    if !folder.is_dir() {
        println!("no extraction gym at {}: set NEFFUSE_GYM to its folder", folder.display());
        return;
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    println!(
        "{:<44} {:>7} {:>7} {:>12} {:>12} {:>12} {:<9} {:>8} {:>8}",
        "file", "nodes", "classes", "cost", "best known", "bound", "proof", "branches", "ms"
    );
    let mut total_ms = 0.0;
    for (name, best_known) in BEST_KNOWN {
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        let Some(found) = extract_file(&folder, name) else {
            println!("{name:<44} is missing");
            continue;
        };
        let elapsed_ms = found.taken.as_secs_f64() * 1e3;
        total_ms += elapsed_ms;
        let verdict = if found.is_above(best_known) { "  ABOVE" } else { "" };
        let proof = if found.is_optimal { "optimal" } else { "open" };
        println!(
            "{name:<44} {:>7} {:>7} {:>12.5} {best_known:>12.5} {:>12.5} {proof:<9} {:>8} {elapsed_ms:>8.1}{verdict}",
            found.n_nodes, found.n_classes, found.cost, found.bound, found.n_branches,
        );
    }
    println!("total {total_ms:.1} ms");
}
