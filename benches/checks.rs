//! Checks of whole programs: operand rules, order of all accesses, initialisation, semaphores. By the
//! simulator, and by the verifier that runs after `synchronize`.
//!
//! Items are instructions, so that the last column is instructions per second. A fifth of a
//! microsecond for each is the target: 5 Mitem/s.

use std::path::Path;
use std::sync::LazyLock;

use compiler::import::read_graph;
use compiler::pipeline::{Options, Outlining, Unwatched, compile};
use divan::Bencher;
use divan::counter::ItemsCount;
use ir::Program;
use passes::manager::{Phase, Unit};
use simulator::Machine;

#[path = "common/perceptron.rs"]
mod perceptron;

use perceptron::perceptron;

const PROGRAMS: [&str; 3] = ["tiny_llama_core", "bert_layer_none", "stack"];

fn main() {
    divan::main();
}

fn program_of(name: &str) -> Program {
    let graph = match name {
        "stack" => perceptron(),
        name => {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/graphs/{name}.inf.json"));
            read_graph(&path).expect("the graph imports")
        }
    };
    let options = Options { outline: Outlining::Off, ..Options::default() };
    let compiled = compile(&graph, &options, &mut Unwatched).expect("the graph compiles");
    compiled.program.expect("the pipeline runs to its end")
}

static COMPILED: LazyLock<Vec<Program>> = LazyLock::new(|| PROGRAMS.into_iter().map(program_of).collect());

fn compiled(name: &str) -> &'static Program {
    let position = PROGRAMS.iter().position(|&program| program == name).expect("it is one of them");
    &COMPILED[position]
}

#[divan::bench(args = PROGRAMS)]
fn verify(bencher: Bencher<'_, '_>, name: &str) {
    let program = compiled(name);
    bencher.counter(ItemsCount::new(program.instructions.len())).bench(|| {
        let faults = program.faults(Phase::Synchronized);
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    });
}

#[divan::bench(args = PROGRAMS)]
fn check(bencher: Bencher<'_, '_>, name: &str) {
    // A machine without a file is checked every time.
    let machine = Machine::from_program(compiled(name)).expect("every tile has an address");
    bencher.counter(ItemsCount::new(compiled(name).instructions.len())).bench(|| {
        let findings = machine.check();
        assert!(findings.is_empty(), "{findings}");
    });
}
