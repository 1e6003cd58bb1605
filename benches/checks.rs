//! Checks of whole programs: operand rules, order of all accesses, initialisation, semaphores.
//!
//! Items are instructions, so that the last column is instructions per second. A fifth of a
//! microsecond for each is the target: 5 Mitem/s.

use std::path::Path;
use std::sync::LazyLock;

use compiler::import::read_graph;
use compiler::pipeline::{Options, Outlining, Unwatched, compile};
use divan::Bencher;
use divan::counter::ItemsCount;
use ir::program::Engine;
use simulator::Machine;

#[path = "common/perceptron.rs"]
mod perceptron;

use perceptron::perceptron;

const PROGRAMS: [&str; 3] = ["tiny_llama_core", "bert_layer_none", "stack"];

fn main() {
    divan::main();
}

fn machine_of(name: &str) -> Machine {
    let graph = match name {
        "stack" => perceptron(),
        name => {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/graphs/{name}.inf.json"));
            read_graph(&path).expect("the graph imports")
        }
    };
    let options = Options { outline: Outlining::Off, ..Options::default() };
    let compiled = compile(&graph, &options, &mut Unwatched).expect("the graph compiles");
    // A machine without a file is checked every time.
    Machine::from_program(&compiled.program.expect("the pipeline runs to its end")).expect("every tile has an address")
}

static MACHINES: LazyLock<Vec<Machine>> = LazyLock::new(|| PROGRAMS.into_iter().map(machine_of).collect());

#[divan::bench(args = PROGRAMS)]
fn check(bencher: Bencher<'_, '_>, name: &str) {
    let position = PROGRAMS.iter().position(|&program| program == name).expect("it is one of them");
    let machine = &MACHINES[position];
    let n_instructions: usize = Engine::ALL.iter().map(|&engine| machine.stream(engine).len()).sum();
    assert!(name != "stack" || n_instructions > 100_000, "{n_instructions} instructions");
    bencher.counter(ItemsCount::new(n_instructions)).bench(|| {
        let findings = machine.check();
        assert!(findings.is_empty(), "{findings}");
    });
}
