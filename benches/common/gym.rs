//! E-graphs of the extraction gym, one file extracted and checked.
//!
//! Costs in the files are decimals: they are scaled to integers without rounding.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use passes::fuse::extract::{Candidate, Limits, Problem, extract};
use serde_json::Value;

/// Files with the best DAG cost known, from the README of the benchmark and the notes on its
/// largest file.
pub const BEST_KNOWN: [(&str, f64); 17] = [
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

/// Beside the repository, or what `NEFFUSE_GYM` names.
pub fn folder() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/benchmarks/extraction-gym");
    std::env::var_os("NEFFUSE_GYM").map_or_else(beside, PathBuf::from)
}

/// What extraction from one file gave; costs are in the file's unit.
pub struct Extracted {
    pub n_nodes: usize,
    pub n_classes: usize,
    pub cost: f64,
    pub bound: f64,
    pub is_optimal: bool,
    pub n_branches: u64,
    pub taken: Duration,
}

impl Extracted {
    /// True where a choice is known that costs less. The best known costs are given with five decimals.
    pub fn is_above(&self, best_known: f64) -> bool {
        self.cost > best_known + 5e-6
    }
}

/// Extracts from a file of the folder; `None` where there is no such file.
pub fn extract_file(folder: &Path, name: &str) -> Option<Extracted> {
    let bytes = std::fs::read(folder.join(format!("{name}.json"))).ok()?;
    let (problem, scale) = read(&serde_json::from_slice(&bytes).expect("the file is JSON"));
    let start = Instant::now();
    let found = extract(&problem, LIMITS).expect("every file has an extraction");
    let taken = start.elapsed();
    assert_eq!(problem.cost_of(&found.choice), Some(found.cost), "{name}: the cost is what the choice costs");
    Some(Extracted {
        n_nodes: problem.classes.iter().map(Vec::len).sum(),
        n_classes: problem.classes.len(),
        cost: found.cost as f64 / scale,
        bound: found.bound as f64 / scale,
        is_optimal: found.is_optimal(),
        n_branches: found.n_branches,
        taken,
    })
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
