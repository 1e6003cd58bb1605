//! Program passes on PyTorch's own graphs: what comes out is proved sound by the passes' checkers
//! and by the simulator's, gives the recorded values, and stops being sound when a wait or an
//! address is taken away.

use std::path::Path;

use ir::Program;
use ir::program::verify::verify;
use ir::reference::Value;
use ir::target::TargetName;
use ir::types::{TensorType, packed_strides};
use passes::Numerics;
use passes::allocate::{allocate, check_allocation};
use passes::fuse::{FuseOptions, fuse};
use passes::schedule::{ScheduleOptions, schedule};
use passes::synchronize::{check_synchronization, synchronize};

use compiler::samples::{Samples, samples_for};
use compiler::strided::{View, ViewMut, extent_bytes};
use compiler::verdict::Standard;

#[path = "graphs/list.rs"]
mod list;

use list::GRAPHS;

fn imported(name: &str) -> (ir::Graph, Samples) {
    let path = list::graph_path(Path::new(env!("CARGO_MANIFEST_DIR")), name);
    let text = std::fs::read(&path).expect("the graph is in the repository");
    let graph = compiler::import::parse_json(&text).expect("the graph imports");
    let samples = samples_for(&graph, &path).expect("values are recorded");
    (graph, samples)
}

/// The placed graph, whose inputs may have a layout of the device's, and its program.
fn lowered(graph: &ir::Graph, target: TargetName) -> (ir::Graph, Program) {
    let (canonical, _) = passes::canonicalize::canonicalize(graph, Numerics::Contract).expect("canonicalizes");
    let (fused, _) = fuse(&canonical, &FuseOptions { target, ..FuseOptions::new(Numerics::Contract) }).expect("fuses");
    let expanded = codegen::expand_long_rows(&fused).expect("expands");
    let placed = codegen::place(&expanded).expect("places");
    let (program, _) = codegen::lower(&placed, target).expect("lowers");
    (placed, program)
}

/// The bytes of an input as the device takes them.
fn input_bytes(placed: &ir::Graph, position: usize, value: &Value) -> Vec<u8> {
    let input = &placed.inputs[position];
    let ty = placed.ty(input.value);
    let packed = value.to_bytes(ty.dtype).expect("inputs are of their types");
    let Some(strides) = &input.strides else { return packed };
    let strides: Vec<usize> = strides.iter().map(|&step| step as usize).collect();
    let mut bytes = vec![0; extent_bytes(ty, &strides).expect("the input fits memory")];
    let view = View { ty, strides: &packed_strides(&ty.shape), bytes: &packed };
    view.copy_to(&mut ViewMut { ty, strides: &strides, bytes: &mut bytes });
    bytes
}

/// An output as the device leaves it.
fn output_value(ty: &TensorType, strides: Option<&[i64]>, bytes: &[u8]) -> Value {
    let packed = packed_strides(&ty.shape);
    let strides = strides.map_or(packed.to_vec(), |strides| strides.iter().map(|&step| step as usize).collect());
    let mut elements = vec![0; ty.size_bytes()];
    let view = View { ty, strides: &strides, bytes };
    view.copy_to(&mut ViewMut { ty, strides: &packed, bytes: &mut elements });
    Value::from_bytes(ty, &elements).expect("outputs are of their types")
}

fn compiled(name: &str, lowered: &Program) -> Program {
    let (scheduled, _) = schedule(lowered.clone(), &ScheduleOptions::default());
    let (allocated, _) = allocate(scheduled.clone()).expect("sample graphs fit");
    let (synchronized, _) = synchronize(allocated.clone()).expect("sample graphs need few semaphores");
    for program in [lowered, &scheduled, &allocated, &synchronized] {
        let faults = verify(program);
        assert!(faults.is_empty(), "{name} {}: {}", program.phase, faults[0]);
    }
    let mut faults = check_allocation(&synchronized);
    faults.extend(check_synchronization(&synchronized));
    assert!(faults.is_empty(), "{name}: {}", faults[0]);
    synchronized
}

#[test]
fn sample_graphs_keep_their_values() {
    for name in GRAPHS {
        let (graph, samples) = imported(name);
        let standard = Standard::of(&graph, &samples).expect("the graph evaluates");
        for target in TargetName::ALL {
            let (placed, lowered) = lowered(&graph, target);
            let program = compiled(name, &lowered);
            let machine = simulator::Machine::from_program(&program).expect("every tile has an address");
            let findings = machine.check();
            assert!(findings.is_empty(), "{name} {target}: {findings:?}");
            let values = samples.inputs.iter().enumerate();
            let bytes: Vec<Vec<u8>> = values.map(|(position, value)| input_bytes(&placed, position, value)).collect();
            let inputs: Vec<Option<&[u8]>> = bytes.iter().map(|bytes| Some(bytes.as_slice())).collect();
            let outputs = machine.run(&inputs).expect("the program runs");
            let values: Vec<Option<Value>> = outputs
                .tensors
                .iter()
                .zip(&graph.outputs)
                .map(|(tensor, output)| {
                    Some(output_value(graph.ty(output.value?), output.strides.as_deref(), &tensor.as_ref()?.bytes))
                })
                .collect();
            assert_eq!(standard.judge(&graph, &values).failure(), None, "{name} {target}");
        }
    }
}

/// Of the waits and addresses of larger programs, every n-th is taken away.
const MUTATION_STRIDE: usize = 7;

#[test]
fn a_wait_or_an_address_less_is_reported() {
    for name in GRAPHS {
        let (graph, _) = imported(name);
        let program = compiled(name, &lowered(&graph, TargetName::Trn2).1);
        let stride = if program.instructions.len() < 60 { 1 } else { MUTATION_STRIDE };
        let waits = program.instructions.iter().enumerate();
        let waits =
            waits.flat_map(|(position, instruction)| (0..instruction.waits.len()).map(move |wait| (position, wait)));
        for (position, wait) in waits.step_by(stride) {
            let mut mutant = program.clone();
            mutant.instructions[position].waits.remove(wait);
            let line = program.instruction_text(&program.instructions[position]);
            assert!(!check_synchronization(&mutant).is_empty(), "{name}: wait {wait} of {line}");
        }
        for (tile, other) in collisions(&program).into_iter().step_by(stride) {
            let mut mutant = program.clone();
            mutant.tiles[tile].address = program.tiles[other].address;
            assert!(!check_allocation(&mutant).is_empty(), "{name}: %t{tile} on %t{other}");
        }
    }
}

/// For every tile, one of the same memory that some instruction uses together with it.
fn collisions(program: &Program) -> Vec<(usize, usize)> {
    let mut partners: Vec<Option<usize>> = vec![None; program.tiles.len()];
    for instruction in &program.instructions {
        let mut tiles = Vec::new();
        instruction.kind.clone().for_each_tile_mut(&mut |tile| tiles.push(tile.index()));
        for &tile in &tiles {
            let partner =
                tiles.iter().find(|&&other| other != tile && program.tiles[other].space == program.tiles[tile].space);
            partners[tile] = partners[tile].or(partner.copied());
        }
    }
    partners.into_iter().enumerate().filter_map(|(tile, partner)| Some((tile, partner?))).collect()
}
