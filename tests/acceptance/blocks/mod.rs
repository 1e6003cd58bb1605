//! Whole transformer blocks compute what they should: at a hidden size of 512 all of their results, at
//! full size sampled rows (`make values`).

mod llama;

use std::time::Instant;

use compiler::execute::Executable;
use compiler::samples::DEFAULT_SEED;
use compiler::verdict::Standard;
use ir::Dtype;
use ir::reference::{Value, compare, round_float};
use ir::target::TargetName;
use passes::Numerics;

use self::llama::{Block, Round};
use crate::support::{document, imported, made_for_model, neff_of, options, stacked};

/// Captured blocks, and what their sizes become.
const BLOCKS: [(&str, &[(u64, u64)]); 3] = [
    ("llama7b_block_core", &[(4096, 512), (11008, 1376), (2048, 256), (32, 4)]),
    ("llama7b_block_none", &[(4096, 512), (11008, 1376), (2048, 256), (32, 4)]),
    // Eight heads of 64 elements share keys and values by fours.
    (
        "llama3_8b_block_core",
        &[(4096, 512), (14336, 1792), (1024, 128), (2048, 256), (32, 8), (8, 2), (128, 64), (64, 32)],
    ),
];

const TRUTH: Round = |number| number;
const EAGER: Round = |number| round_float(Dtype::Bf16, number);

fn captured(name: &str) -> serde_json::Value {
    document(&format!("benches/graphs/{name}.inf.json"))
}

#[test]
fn blocks_of_hidden_size_512_pass() {
    for (name, sizes) in BLOCKS {
        let graph = imported(&stacked::scaled(&captured(name), sizes));
        let samples = made_for_model(&graph, DEFAULT_SEED);
        let standard = Standard::of(&graph, &samples).expect("the graph evaluates");
        assert_is_the_block(name, &samples.inputs, &standard);
        for target in TargetName::ALL {
            let executable = Executable::load(&neff_of(&graph, &options(target, Numerics::Contract)));
            let outputs = executable.expect("the program is sound").run_values(&samples.inputs).expect("it runs");
            assert_eq!(standard.judge(&graph, &outputs).failure(), None, "{name} on {target}");
        }
    }
}

/// The block written down by hand is the graph, but for numbers that are f32 in the latter.
fn assert_is_the_block(name: &str, inputs: &[Value], standard: &Standard) {
    let n_tokens = inputs[0].shape[1];
    let block = Block::new(inputs);
    let truth = standard.truth[0].as_ref().and_then(|value| value.as_floats().ok()).expect("the result is of floats");
    let rows: Vec<usize> = (0..n_tokens).collect();
    let largest = truth.iter().fold(0.0f64, |largest, number| largest.max(number.abs()));
    for (want, got) in truth.iter().zip(block.rows(&rows, TRUTH)) {
        assert!((want - got).abs() <= 1e-7 * largest, "{name}: {got} instead of {want}");
    }
}

/// Rows at the borders of tiles and blocks of tiles, and others spread over all.
fn sampled_rows(n_tokens: usize) -> Vec<usize> {
    const N_ROWS: usize = 64;
    let borders = [0, 1, 127, 128, 511, 512, 1023, 1024, n_tokens - 129, n_tokens - 128, n_tokens - 1];
    let mut rows: Vec<usize> = borders.to_vec();
    rows.extend(
        (0..)
            .map(|number| (number * 797 + 31) % n_tokens)
            .filter(|row| !borders.contains(row))
            .take(N_ROWS - borders.len()),
    );
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows.len(), N_ROWS);
    rows
}

#[test]
#[ignore = "takes minutes and 4 GB: make values"]
fn full_size_blocks_pass_on_sampled_rows() {
    for (name, _) in BLOCKS {
        let graph = imported(&captured(name));
        let samples = made_for_model(&graph, DEFAULT_SEED);
        let executable = Executable::load(&neff_of(&graph, &options(TargetName::Trn2, Numerics::Contract)));
        let start = Instant::now();
        let outputs = executable.expect("the program is sound").run_values(&samples.inputs).expect("it runs");
        let run_seconds = start.elapsed().as_secs_f64();
        let result = outputs[0].as_ref().expect("the block has a result");
        let (n_tokens, hidden) = (result.shape[1], result.shape[2]);
        let rows = sampled_rows(n_tokens);
        let block = Block::new(&samples.inputs);
        let start = Instant::now();
        let [truth, eager] = [TRUTH, EAGER].map(|round| Value::floats(&[rows.len(), hidden], block.rows(&rows, round)));
        let reference_seconds = start.elapsed().as_secs_f64();
        let lanes = result.as_floats().expect("the result is of floats");
        let picked: Vec<f64> = rows.iter().flat_map(|&row| &lanes[row * hidden..][..hidden]).copied().collect();
        let comparison = compare(&Value::floats(&[rows.len(), hidden], picked), &eager, &truth, Dtype::Bf16);
        println!(
            "{name}: {} rows of {n_tokens}: max error {:.3e} (eager {:.3e}, allowed {:.3e}), rms {:.3e} (eager {:.3e}); \
             simulated in {run_seconds:.0} s, reference {reference_seconds:.0} s",
            rows.len(),
            comparison.max_abs_error,
            comparison.eager_abs_error,
            comparison.allowed_abs_error,
            comparison.rms_error,
            comparison.eager_rms_error,
        );
        assert_eq!(comparison.failure, None, "{name}");
    }
}
