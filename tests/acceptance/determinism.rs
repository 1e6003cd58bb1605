//! The same input gives the same bytes.

use ir::target::TargetName;
use passes::Numerics;

use crate::support::{GRAPHS, neff_of, options, sample_graph};

#[test]
fn two_compilations_give_the_same_bytes_whatever_runs_beside_them() {
    for name in GRAPHS {
        let graph = sample_graph(name);
        let settings = options(TargetName::Trn2, Numerics::Contract);
        let alone = neff_of(&graph, &settings);
        let together: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| neff_of(&graph, &settings))).collect();
            threads.into_iter().map(|thread| thread.join().expect("compiles")).collect()
        });
        assert!(together.iter().all(|bytes| *bytes == alone), "{name}");
    }
}

/// A change of these hashes is a change of what users get: say why in the commit that makes it.
#[test]
fn golden_hashes() {
    let hash = |name: &str, target| {
        let bytes = neff_of(&sample_graph(name), &options(target, Numerics::Contract));
        let digest = neff::container::md5(&bytes);
        digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let mut lines = String::new();
    for name in ["rms_norm_naive_bf16", "softmax_naive_f32", "bert_layer_none", "tiny_llama_core"] {
        for target in TargetName::ALL {
            lines += &format!("{name} {target} {}\n", hash(name, target));
        }
    }
    insta::with_settings!({snapshot_path => "../../snapshots", prepend_module_to_snapshot => false}, {
        insta::assert_snapshot!("golden_hashes", lines);
    });
}
