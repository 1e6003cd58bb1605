//! The causes of traffic sum to what the simulator measures on the NEFF; loops and transposes have all that
//! the program has.

use compiler::execute::Executable;
use compiler::pipeline::Options;
use compiler::report::Report;
use compiler::transposes::transposes;
use ir::Graph;
use ir::target::TargetName;

use crate::support::{GRAPHS, cases, compiled, document, imported, sample_graph, stacked};

fn bytes_of(report: &Report, causes: &[&str]) -> [u64; 2] {
    let entries = report.hbm_causes.iter().filter(|entry| causes.is_empty() || causes.contains(&entry.cause.as_str()));
    entries.fold([0, 0], |[read, write], entry| [read + entry.read_bytes, write + entry.write_bytes])
}

fn report(graph: &Graph, target: TargetName) -> Report {
    let compiled = compiled(graph, &Options { target, ..Options::default() });
    let executable = Executable::load(compiled.neff.as_ref().expect("the pipeline runs to its end"));
    let timeline = executable.expect("the program is sound").timeline().expect("it runs to its end");
    let mut report = Report::new(graph.name.clone());
    report.note_compiled(graph, &compiled);
    let measured = [timeline.hbm_read_bytes, timeline.hbm_write_bytes];
    assert_eq!([report.hbm_read_bytes, report.hbm_write_bytes], measured.map(Some), "{} on {target}", graph.name);
    assert_eq!(bytes_of(&report, &[]), measured, "{} on {target}: {:?}", graph.name, report.hbm_causes);
    report
}

#[test]
fn causes_of_traffic_sum_to_what_is_measured() {
    let graphs = GRAPHS.into_iter().map(sample_graph).chain(cases().into_iter().map(|(_, graph)| graph));
    for graph in graphs {
        for target in TargetName::ALL {
            let report = report(&graph, target);
            // Small graphs need no room, and write their outputs once.
            let [read, written] = bytes_of(&report, &["spill"]);
            assert_eq!((Some(read + written), report.spills.len()), (report.spill_bytes, 0), "{}", graph.name);
        }
    }
}

#[test]
fn loops_have_all_instructions_and_no_bound_above_what_is_taken() {
    for graph in GRAPHS.into_iter().map(sample_graph) {
        for target in TargetName::ALL {
            let compiled = compiled(&graph, &Options { target, ..Options::default() });
            let count = |pass: &str, name: &str| {
                let found = compiled.passes.iter().find(|report| report.name == pass);
                found.map_or(0, |report| report.statistics.get(name)) as usize
            };
            let in_loops: usize = compiled.loops.iter().map(|entry| entry.n_instructions).sum();
            assert_eq!(in_loops, count("lower", "instructions"), "{} on {target}", graph.name);
            let estimated_ps = count("schedule", "estimated_ps") as u64;
            for entry in &compiled.loops {
                assert!(
                    0 < entry.bound_ps && entry.bound_ps <= entry.taken_ps,
                    "{} on {target}: {entry:?}",
                    graph.name
                );
                assert!(entry.taken_ps <= estimated_ps, "{} on {target}: {entry:?}", graph.name);
            }
            let transposed: u64 = transposes(compiled.program.as_ref().expect("it is one kernel"))
                .iter()
                .filter(|entry| entry.by != "dma")
                .map(|entry| entry.n_instructions)
                .sum();
            assert_eq!(transposed as usize, count("lower", "transposes"), "{} on {target}", graph.name);
        }
    }
}

#[test]
fn calls_read_weights_of_their_own_once_and_values_between_them() {
    let layer = stacked::scaled(&document("benches/graphs/llama7b_block_core.inf.json"), &stacked::SMALL_LLAMA);
    let graph = imported(&stacked::stacked(&layer, 6, |_, _| {}));
    let report = report(&graph, TargetName::Trn2);
    let weights: u64 = graph
        .inputs
        .iter()
        .filter(|input| input.role == ir::graph::InputRole::Static)
        .map(|input| graph.ty(input.value).size_bytes() as u64)
        .sum();
    assert_eq!(bytes_of(&report, &["weights"]), [weights, 0]);
    // The stream of 64 tokens of 128 bf16, written by every layer but the last.
    let [read, written] = bytes_of(&report, &["between calls"]);
    assert_eq!(written, 5 * 64 * 128 * 2);
    assert!(read >= written && read.is_multiple_of(written), "{read}");
    assert_eq!(bytes_of(&report, &["outputs"]), [0, 64 * 128 * 2]);
}

#[test]
fn large_blocks_say_what_they_spill() {
    let graph = imported(&document("benches/graphs/llama7b_block_core.inf.json"));
    let report = report(&graph, TargetName::Trn2);
    let [read, written] = bytes_of(&report, &["spill"]);
    let sum = |part: fn(&compiler::traffic::SpillEntry) -> u64| report.spills.iter().map(part).sum::<u64>();
    assert_eq!([read, written], [sum(|spill| spill.read_bytes), sum(|spill| spill.write_bytes)]);
    // Loads that are repeated instead of stored are spills to `allocate`.
    assert!(report.spill_bytes >= Some(read + written), "{:?}", report.spill_bytes);
    let compulsory: u64 = bytes_of(&report, &["inputs", "weights", "constants", "outputs"]).iter().sum();
    let constants: u64 = bytes_of(&report, &["constants"]).iter().sum();
    assert_eq!(Some(compulsory - constants), report.compulsory_bytes);
    assert!(report.eager_bytes > report.compulsory_bytes.map(|bytes| 10 * bytes), "{:?}", report.eager_bytes);
}
