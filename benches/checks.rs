//! Checks of whole programs: operand rules, order of all accesses, initialisation, semaphores.
//!
//! Items are instructions, so that the last column is instructions per second. A fifth of a
//! microsecond for each is the target: 5 Mitem/s.

use std::fmt::Write;
use std::path::Path;
use std::sync::LazyLock;

use compiler::import::read_graph;
use compiler::pipeline::{Options, Outlining, Unwatched, compile};
use divan::Bencher;
use divan::counter::ItemsCount;
use ir::Graph;
use ir::program::Engine;
use ir::text::parse_graph;
use simulator::Machine;

/// Layers of the largest program, which has more than 100,000 instructions.
const N_LAYERS: usize = 900;

const PROGRAMS: [&str; 3] = ["tiny_llama_core", "bert_layer_none", "stack"];

fn main() {
    divan::main();
}

/// Layers of a perceptron, every second one with a residual.
fn stack() -> Graph {
    let mut text = String::from("graph @stack {\n  input %0 \"x\": bf16[1024, 512] dynamic\n");
    for layer in 0..N_LAYERS {
        writeln!(text, "  input %{} \"w{layer}\": bf16[512, 512] static", layer + 1).expect("strings grow");
    }
    let (mut last, mut next) = (0, N_LAYERS + 1);
    for layer in 0..N_LAYERS {
        let activation = ["none", "gelu", "silu", "none"][layer % 4];
        let weight = layer + 1;
        writeln!(
            text,
            "  %{next} = fused_matmul %{last}, %{weight} {{transpose_lhs = 0, transpose_rhs = 0, activation = \
             {activation}, dtype = bf16}} : bf16[1024, 512]"
        )
        .expect("strings grow");
        let mut result = next;
        if layer % 2 == 1 {
            next += 1;
            writeln!(text, "  %{next} = add %{last}, %{result} : bf16[1024, 512]").expect("strings grow");
            result = next;
        }
        (last, next) = (result, next + 1);
    }
    writeln!(text, "  output %{last} \"\"\n}}").expect("strings grow");
    parse_graph("stack", &text).expect("the text is well formed")
}

fn machine_of(name: &str) -> Machine {
    let graph = match name {
        "stack" => stack(),
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
