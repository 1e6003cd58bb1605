//! One function per kind of file: it does what the commands do with such a file and panics where an answer is not one
//! that a command may give.
//!
//! An answer is either a result or a diagnostic about the input (exit code 1 or 2). A panic, an internal error, and text
//! that does not read back to what was printed are findings. What a valid file asks for is done only while it is small:
//! how fast large inputs are is no question of robustness.
//!
//! `fuzz_targets/` hand bytes of libFuzzer to these functions, and the tests of `compiler` bytes of their own.

use compiler::Error;
use compiler::execute::Executable;
use compiler::import::parse_json;
use compiler::import::pt2::parse as parse_archive;
use compiler::npz::Archive;
use compiler::pipeline::{Options, Unwatched, compile};
use ir::graph::Graph;
use ir::program::rules::check_instruction;
use ir::program::{DmaAccess, Engine, Instruction, ProgramPhase, memory_tiles, verify};
use ir::reference::{Value, evaluation_bytes};
use ir::target::TargetName;
use ir::text::parse_graph;
use ir::{Dtype, TensorType};
use neff::isa::{Addresses, RECORD_BYTES, decode_record, encode_record};
use simulator::Machine;

/// What a reader says to bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// They are a file of the kind.
    Accepted,
    /// They are not, or they ask for what is not supported; the user is told why.
    Refused,
}

/// Memory that an accepted file may ask for and still be run here.
const SMALL_BYTES: u64 = 1 << 20;

/// Elements that an accepted program may read and write and still be run here.
const SMALL_WORK: u64 = 1 << 23;

/// Nodes or instructions up to which an accepted file is compiled or run here.
const SMALL_LENGTH: usize = 200;

/// An fxg-json/1 graph.
pub fn fxg(bytes: &[u8]) -> Answer {
    match parse_json(bytes) {
        Ok(graph) => compiled(&graph),
        Err(_) => Answer::Refused,
    }
}

/// A torch.export archive.
pub fn pt2(bytes: &[u8]) -> Answer {
    match parse_archive("fuzz", bytes) {
        Ok(graph) => compiled(&graph),
        Err(_) => Answer::Refused,
    }
}

/// A graph in text form.
pub fn ir_graph(bytes: &[u8]) -> Answer {
    let Ok(text) = std::str::from_utf8(bytes) else { return Answer::Refused };
    let graph = match parse_graph("fuzz.ir", text) {
        Ok(graph) => graph,
        Err(faults) => {
            assert!(!faults.is_empty(), "a text is refused without a reason");
            return Answer::Refused;
        }
    };
    let printed = graph.to_string();
    let again = parse_graph("printed.ir", &printed).unwrap_or_else(|faults| panic!("{faults}\n{printed}"));
    assert_eq!(again.to_string(), printed, "a graph prints differently after parsing");
    compiled(&graph)
}

/// A program in text form.
pub fn ir_program(bytes: &[u8]) -> Answer {
    let Ok(text) = std::str::from_utf8(bytes) else { return Answer::Refused };
    let Ok(program) = ir::program::text::parse(text) else { return Answer::Refused };
    let printed = program.to_string();
    let again = ir::program::text::parse(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(again.to_string(), printed, "a program prints differently after parsing");
    if !verify::verify(&program).is_empty() || program.phase != ProgramPhase::Synchronized {
        return Answer::Refused;
    }
    let Ok(machine) = Machine::from_program(&program) else { return Answer::Refused };
    ran(&machine)
}

/// An archive of arrays. What it holds is read as each of a few types.
pub fn npz(bytes: &[u8]) -> Answer {
    let Ok(mut archive) = Archive::open(bytes) else { return Answer::Refused };
    let mut answer = Answer::Accepted;
    for (name, ty) in npz_types() {
        if !archive.contains(name) {
            continue;
        }
        match archive.tensor(name, &ty) {
            Ok(data) => assert_eq!(data.len(), ty.size_bytes(), "an array of another size"),
            Err(_) => answer = Answer::Refused,
        }
    }
    answer
}

/// The arrays that [`npz`] asks for.
pub fn npz_types() -> [(&'static str, TensorType); 4] {
    [
        ("in_0", TensorType::new(Dtype::F32, [2, 3])),
        ("in_1", TensorType::new(Dtype::I64, [4])),
        ("in_2", TensorType::new(Dtype::Bf16, [2, 2])),
        ("out_0", TensorType::scalar(Dtype::Bool)),
    ]
}

/// A NEFF.
pub fn neff(bytes: &[u8]) -> Answer {
    let Ok(container) = neff::container::read(bytes) else { return Answer::Refused };
    let report = neff::info::Report::of(&container);
    assert!(!report.to_json_text().is_empty() && !report.to_string().is_empty(), "an empty report");
    if let Ok(program) = neff::decoded::program(&container) {
        assert!(!program.to_string().is_empty(), "an empty listing");
    }
    let _ = neff::objdump::objdump(&container);
    let executable = match Executable::load_file(bytes) {
        Ok(executable) => executable,
        Err(error) => return refused(&error),
    };
    for slot in executable.inputs().iter().chain(executable.outputs()).flatten() {
        assert!(slot.ty.size_bytes() as u64 <= executable.machine().device_bytes(), "a tensor outside of its buffer");
    }
    if !is_small(executable.machine()) {
        return Answer::Accepted;
    }
    if let Err(error) = executable.timeline() {
        refused(&error);
    }
    let zeros = executable.inputs().iter().map(|slot| slot.as_ref().map(|slot| vec![0; slot.ty.size_bytes()]));
    match executable.run(&zeros.collect::<Vec<_>>()) {
        Ok(_) => Answer::Accepted,
        Err(error) => refused(&error),
    }
}

/// Records of the open instruction encoding; the first byte names the engine.
pub fn instruction(bytes: &[u8]) -> Answer {
    let Some((&first, records)) = bytes.split_first() else { return Answer::Refused };
    let engine = Engine::ALL[usize::from(first) % Engine::ALL.len()];
    let mut answer = Answer::Accepted;
    for record in records.as_chunks::<RECORD_BYTES>().0 {
        let Ok(instruction) = decode_record(engine, record) else {
            answer = Answer::Refused;
            continue;
        };
        let again = encode_record(&instruction, Addresses::Decoded);
        assert_eq!(again.as_ref(), Ok(record), "a record that decodes does not encode to the same bytes");
        for target in TargetName::ALL {
            let target = target.target();
            check_instruction(target, &instruction, &memory_tiles(target), &[]);
        }
    }
    answer
}

/// A graph through the pipeline, and the result through the simulator.
fn compiled(graph: &Graph) -> Answer {
    if graph.n_nodes() > SMALL_LENGTH || evaluation_bytes(graph) > SMALL_BYTES {
        return Answer::Accepted;
    }
    let compiled = match compile(graph, &Options::default(), &mut Unwatched) {
        Ok(compiled) => compiled,
        Err(error) => return refused(&error),
    };
    let neff = compiled.neff.expect("the pipeline runs to its end");
    let executable = Executable::load(&neff).unwrap_or_else(|error| panic!("{error}\n{graph}"));
    let inputs: Vec<Value> = compiler::samples::seeded(graph, compiler::samples::DEFAULT_SEED).inputs;
    match executable.run_values(&inputs) {
        Ok(_) => Answer::Accepted,
        Err(error) => refused(&error),
    }
}

fn ran(machine: &Machine) -> Answer {
    if !is_small(machine) {
        return Answer::Accepted;
    }
    let _ = machine.check();
    let _ = machine.timeline();
    let zeros: Vec<Option<Vec<u8>>> =
        machine.inputs().iter().map(|slot| slot.as_ref().map(|info| vec![0; info.size_bytes as usize])).collect();
    let inputs: Vec<Option<&[u8]>> = zeros.iter().map(Option::as_deref).collect();
    if machine.run(&inputs).is_ok() { Answer::Accepted } else { Answer::Refused }
}

/// Whether a program may be run here: it is short, and moves and computes few elements.
fn is_small(machine: &Machine) -> bool {
    let instructions = || Engine::ALL.into_iter().flat_map(|engine| machine.stream(engine));
    let n_elements = |instruction: &Instruction| {
        let accesses = instruction.kind.accesses();
        let views = accesses.tile_writes.iter().chain(&accesses.tile_reads);
        let computed = views.map(|view| view.n_elements().saturating_mul(usize::from(view.n_partitions)) as u64);
        let moved = accesses.dma_write.map_or(0, DmaAccess::n_elements);
        computed.fold(moved, u64::saturating_add)
    };
    machine.device_bytes() <= SMALL_BYTES
        && instructions().count() <= SMALL_LENGTH
        && instructions().map(n_elements).fold(0, u64::saturating_add) <= SMALL_WORK
}

/// Panics unless the error is one about the input.
fn refused(error: &Error) -> Answer {
    assert!(matches!(error.exit_code(), 1 | 2), "{error}");
    assert!(!error.to_string().lines().next().unwrap_or_default().is_empty(), "an error without words");
    Answer::Refused
}
