//! Extraction on the e-graphs of the extraction gym: cost against the best known, bound, proof.
//!
//! Reads `../shared/benchmarks/extraction-gym` beside the repository, or the folder in
//! `NEFFUSE_GYM`; without it, says so and ends. Arguments choose files by a part of their name.
//! Costs in the files are decimals: they are scaled to integers without rounding.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use passes::fuse::extract::{Candidate, Limits, Problem, extract};
use serde_json::Value;

/// Files with the best DAG cost known, from the README of the benchmark and the notes on its
/// largest file.
const BEST_KNOWN: [(&str, f64); 17] = [
    ("dummy_examples/choice", 37.0),
    ("dummy_examples/loop", 5.0),
    ("egg/math_associate_adds", 13.0),
    ("impress/mul512", 136_680.0),
    ("own/blk_1", 684.0),
    ("own/blk_2", 1_368.0),
    ("own/blk_8", 5_472.0),
    ("own/blk_32", 21_888.0),
    ("own/blkac_1", 684.0),
    ("own/blkac_2", 1_368.0),
    ("rover/box_filter_5iteration_egraph", 1_819.0),
    ("rover/fir_8_tap_5iteration_egraph", 5_936.0),
    ("rover/mcm_3_7_21_original_8iteration_egraph", 1_050.0),
    ("tensat/resnet50", 4.39687),
    ("tensat/resnet50_acyclic", 4.41599),
    ("tensat/vgg", 4.85076),
    ("tensat/vgg_acyclic", 4.86677),
];

/// Work for each file; together below ten seconds.
const LIMITS: Limits = Limits { max_work: 12_000_000 };

fn main() {
    let folder = std::env::var_os("NEFFUSE_GYM").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/benchmarks/extraction-gym"),
        PathBuf::from,
    );
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
        let path = folder.join(format!("{name}.json"));
        let Ok(bytes) = std::fs::read(&path) else {
            println!("{name:<44} is missing");
            continue;
        };
        let (problem, scale) = read(&serde_json::from_slice(&bytes).expect("the file is JSON"));
        let n_nodes: usize = problem.classes.iter().map(Vec::len).sum();
        let start = Instant::now();
        let found = extract(&problem, LIMITS).expect("every file has an extraction");
        let elapsed_ms = start.elapsed().as_secs_f64() * 1e3;
        assert_eq!(problem.cost_of(&found.choice), Some(found.cost), "{name}: the cost is what the choice costs");
        total_ms += elapsed_ms;
        let (cost, bound) = (found.cost as f64 / scale, found.bound as f64 / scale);
        // The best known costs are given with five decimals.
        let verdict = if cost > best_known + 5e-6 { "  ABOVE" } else { "" };
        let proof = if found.is_optimal() { "optimal" } else { "open" };
        println!(
            "{name:<44} {n_nodes:>7} {:>7} {cost:>12.5} {best_known:>12.5} {bound:>12.5} {proof:<9} {:>8} {elapsed_ms:>8.1}{verdict}",
            problem.classes.len(),
            found.n_branches,
        );
    }
    println!("total {total_ms:.1} ms");
}

/// The problem of a file, and what its costs were multiplied by.
fn read(document: &Value) -> (Problem, f64) {
    let nodes = document["nodes"].as_object().expect("a file has nodes");
    let mut number_of: HashMap<&str, usize> = HashMap::new();
    let class_of = |node: &Value| node["eclass"].as_str().expect("a node has a class").to_owned();
    let classes: HashMap<&str, String> = nodes.iter().map(|(id, node)| (id.as_str(), class_of(node))).collect();
    let mut names: Vec<&str> = Vec::new();
    for id in nodes.keys() {
        let class = classes[id.as_str()].as_str();
        number_of.entry(class).or_insert_with(|| {
            names.push(class);
            names.len() - 1
        });
    }
    let costs: Vec<f64> = nodes.values().map(|node| exact(node["cost"].as_f64().expect("a node has a cost"))).collect();
    let scale = binary_scale(&costs);
    let mut problem = Problem { classes: vec![Vec::new(); names.len()], roots: Vec::new() };
    for (position, (id, node)) in nodes.iter().enumerate() {
        let children = node["children"].as_array().expect("a node has children");
        let mut candidate =
            Candidate { cost: (costs[position] * scale) as u64, children: Default::default(), term: position };
        for child in children {
            let child = number_of[classes[child.as_str().expect("a child is a node")].as_str()];
            if !candidate.children.contains(&child) {
                candidate.children.push(child);
            }
        }
        problem.classes[number_of[classes[id.as_str()].as_str()]].push(candidate);
    }
    let roots = document["root_eclasses"].as_array().expect("a file has roots");
    problem.roots = roots.iter().map(|root| number_of[root.as_str().expect("a root is a class")]).collect();
    (problem, scale)
}

/// The 32-bit float that a decimal was printed from, where there is one: the JSON reader may be off
/// in the last place of 64 bits.
fn exact(cost: f64) -> f64 {
    let single = f64::from(cost as f32);
    if (single - cost).abs() <= 4.0 * f64::EPSILON * cost.abs() { single } else { cost }
}

/// The least power of two that makes all costs integers: the files' fractions are 32-bit floats.
fn binary_scale(costs: &[f64]) -> f64 {
    let mut scale = 1.0;
    while costs.iter().any(|cost| (cost * scale).fract() != 0.0) {
        scale *= 2.0;
    }
    let sum: f64 = costs.iter().map(|cost| cost * scale).sum();
    assert!(sum < 2f64.powi(63), "the costs are no 32-bit floats");
    scale
}
