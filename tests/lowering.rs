//! Lowered programs give the right values when their instructions run one after the other.
//!
//! Scheduling, allocation and synchronisation are left out: every tile has a place of its own, and
//! every instruction waits for the one before it.

use std::path::Path;

use ir::program::{Engine, Instruction, InstructionKind, ProgramPhase, Space, TableSet, TileAddress, Update, Wait};
use ir::random_graph::{RandomGraphOptions, random_graph, random_inputs};
use ir::reference::Value;
use ir::target::TargetName;
use ir::{Graph, Program};
use passes::Numerics;
use passes::fuse::{FuseOptions, fuse};

use compiler::samples::{DEFAULT_SEED, Samples, samples_for, seeded};
use compiler::verdict::Standard;

/// Semaphores that the chain of instructions goes through.
const N_SEMAPHORES: usize = 200;
const FIRST_SEMAPHORE: u16 = 10;

/// A program whose tiles have places of their own and whose instructions run one by one.
fn sequential(mut program: Program) -> Program {
    let (mut next_byte, mut next_bank) = (0, 0);
    for tile in &mut program.tiles {
        let start_byte = match tile.space {
            Space::Sbuf => {
                next_byte = u32::next_multiple_of(next_byte, tile.alignment_bytes);
                next_byte += tile.bytes_per_partition;
                next_byte - tile.bytes_per_partition
            }
            Space::Psum => {
                next_bank = (next_bank + 1) % 8;
                next_bank * 2048
            }
        };
        tile.address = Some(TileAddress { partition: 0, start_byte });
    }
    let mut loaded: Option<TableSet> = None;
    let mut with_tables = Vec::new();
    for instruction in std::mem::take(&mut program.instructions) {
        if let InstructionKind::Activation { function, .. } = &instruction.kind {
            let sets = function.table_sets();
            if !sets.is_empty() && !sets.iter().any(|&set| loaded == Some(set)) {
                loaded = Some(sets[0]);
                with_tables.push(Instruction::new(Engine::Act, InstructionKind::LoadTable { set: sets[0] }));
            }
        }
        with_tables.push(instruction);
    }
    let mut counts = [0u16; N_SEMAPHORES];
    for (position, instruction) in with_tables.iter_mut().enumerate() {
        if let Some(before) = position.checked_sub(1) {
            let slot = before % N_SEMAPHORES;
            let semaphore = FIRST_SEMAPHORE + slot as u16;
            instruction.waits.push(Wait { semaphore, at_least: counts[slot] });
        }
        let slot = position % N_SEMAPHORES;
        let add = if matches!(instruction.kind, InstructionKind::Dma { .. }) { 16 } else { 1 };
        counts[slot] += add;
        instruction.update = Some(Update { semaphore: FIRST_SEMAPHORE + slot as u16, add });
    }
    program.instructions = with_tables;
    program.phase = ProgramPhase::Synchronized;
    program
}

/// Lowers a graph as the pipeline does and judges what the simulator computes.
fn judge(graph: &Graph, samples: &Samples, numerics: Numerics, target: TargetName) -> Result<(), String> {
    let standard = Standard::of(graph, samples).map_err(|error| format!("standard: {error:?}"))?;
    let (canonical, _) = passes::canonicalize::canonicalize(graph, numerics).map_err(|error| format!("{error:?}"))?;
    let options = FuseOptions { target, ..FuseOptions::new(numerics) };
    let (fused, _) = fuse(&canonical, &options).map_err(|error| format!("{error:?}"))?;
    let expanded = codegen::expand_long_rows(&fused).map_err(|error| error.to_string())?;
    let placed = codegen::place(&expanded).map_err(|faults| format!("{faults:?}"))?;
    let (program, _) = codegen::lower(&placed, target).map_err(|faults| format!("{faults:?}"))?;
    let machine = simulator::Machine::from_program(&sequential(program)).map_err(|error| format!("{error:?}"))?;
    let bytes: Vec<Vec<u8>> = samples
        .inputs
        .iter()
        .zip(&graph.inputs)
        .map(|(value, input)| value.to_bytes(graph.ty(input.value).dtype).expect("inputs are of their types"))
        .collect();
    let inputs: Vec<Option<&[u8]>> = bytes.iter().map(|bytes| Some(bytes.as_slice())).collect();
    let outputs = machine.run(&inputs).map_err(|error| format!("{error}"))?;
    if !outputs.findings.is_empty() {
        return Err(format!("{:?}", outputs.findings));
    }
    let values: Vec<Option<Value>> = outputs
        .tensors
        .iter()
        .zip(&graph.outputs)
        .map(|(tensor, output)| {
            let ty = graph.ty(output.value?);
            Some(Value::from_bytes(ty, &tensor.as_ref()?.bytes).expect("outputs are of their types"))
        })
        .collect();
    match standard.judge(graph, &values).failure() {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

/// Small graphs with recorded values.
const GRAPHS: [&str; 14] = [
    "rms_norm_naive_bf16",
    "rms_norm_builtin_bf16",
    "rms_norm_naive_f32_ragged",
    "softmax_naive_f32",
    "softmax_builtin_f32",
    "mlp",
    "elementwise_broadcast",
    "bert_layer_none",
    "bert_layer_core",
    "tiny_vit",
    "tiny_bert_mlm",
    "tiny_llama_none",
    "tiny_llama_core",
    "tiny_llama_bf16",
];

#[test]
fn sample_graphs_pass_on_every_target_and_numerics_class() {
    let mut faults = Vec::new();
    for name in GRAPHS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/graphs/{name}.inf.json"));
        let text = std::fs::read(&path).expect("the graph is in the repository");
        let graph = compiler::import::parse_json(&text).expect("the graph imports");
        let samples = samples_for(&graph, &path).expect("values are recorded");
        for target in TargetName::ALL {
            for numerics in [Numerics::Contract, Numerics::Reassoc, Numerics::Exact] {
                if let Err(fault) = judge(&graph, &samples, numerics, target) {
                    faults.push(format!("{name} {target} {numerics:?}: {fault}"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn cases_pass_on_every_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("there are cases").map(|entry| entry.expect("readable").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "ir"));
    // Programs over long rows only fit SBUF once tiles share addresses.
    paths.retain(|path| !path.to_string_lossy().contains("long_rows"));
    paths.sort();
    let mut faults = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("cases are text");
        let name = path.file_stem().expect("cases have names").to_string_lossy().into_owned();
        let graph = ir::text::parse_graph(&name, &text).unwrap_or_else(|faults| panic!("{name}: {faults}"));
        let samples = seeded(&graph, DEFAULT_SEED);
        for target in TargetName::ALL {
            if let Err(fault) = judge(&graph, &samples, Numerics::Contract, target) {
                faults.push(format!("{name} {target}: {}", fault.chars().take(400).collect::<String>()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn random_graphs_pass() {
    let mut faults = Vec::new();
    for seed in 0..300 {
        let graph = random_graph(seed, &RandomGraphOptions::default());
        let samples = Samples { inputs: random_inputs(&graph, seed), outputs: None, recorded_in: None };
        let target = TargetName::ALL[seed as usize % 3];
        if let Err(fault) = judge(&graph, &samples, Numerics::Contract, target) {
            faults.push(format!("seed {seed} {target}: {}", fault.chars().take(300).collect::<String>()));
        }
    }
    assert!(faults.is_empty(), "{} of 300\n{}", faults.len(), faults.join("\n"));
}
