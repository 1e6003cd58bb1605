//! Damaged programs are reported: a dropped wait, a moved tile, swapped stores.

use ir::Program;
use ir::program::{InstructionKind, Space};
use ir::target::TargetName;
use passes::Numerics;
use passes::allocate::check_allocation;
use passes::synchronize::check_synchronization;
use simulator::Machine;

use crate::support::{GRAPHS, compiled, options, recorded, sample_graph};

fn synchronized(name: &str, target: TargetName) -> Program {
    compiled(&sample_graph(name), &options(target, Numerics::Contract)).program.expect("the pipeline runs to its end")
}

/// What either independent checker says of a program: the passes' own, and the simulator.
fn is_reported(program: &Program) -> (bool, bool) {
    let by_passes = !check_synchronization(program).is_empty() || !check_allocation(program).is_empty();
    let by_simulator = match Machine::from_program(program) {
        Ok(machine) => !machine.check().is_empty(),
        Err(_) => true,
    };
    (by_passes, by_simulator)
}

#[test]
fn sound_programs_are_not_reported() {
    for name in GRAPHS {
        for target in TargetName::ALL {
            assert_eq!(is_reported(&synchronized(name, target)), (false, false), "{name} on {target}");
        }
    }
}

#[test]
fn every_dropped_wait_is_reported() {
    for (position, name) in GRAPHS.into_iter().enumerate() {
        let program = synchronized(name, TargetName::ALL[position % 3]);
        let mut missed = Vec::new();
        for at in 0..program.instructions.len() {
            for wait in 0..program.instructions[at].waits.len() {
                let mut damaged = program.clone();
                damaged.instructions[at].waits.remove(wait);
                if is_reported(&damaged) != (true, true) {
                    missed.push(format!("wait {wait} of instruction {at}: {:?}", is_reported(&damaged)));
                }
            }
        }
        assert!(missed.is_empty(), "{name}: {}", missed.join("; "));
    }
}

/// Tiles that are moved onto another tile which lives at the same time.
#[test]
fn every_tile_moved_onto_a_live_one_is_reported() {
    for name in GRAPHS {
        let program = synchronized(name, TargetName::Trn2);
        let live = live_ranges(&program);
        let mut missed = Vec::new();
        for moved in 0..program.tiles.len() {
            let neighbour = (0..program.tiles.len()).find(|&other| {
                let (a, b) = (&program.tiles[moved], &program.tiles[other]);
                let same_memory = a.space == b.space && a.space == Space::Sbuf;
                // A neighbour that is written while the moved tile is in use, or the other way round.
                let overlap = live[moved].0 < live[other].0 && live[other].0 < live[moved].1;
                moved != other && same_memory && overlap && a.address != b.address
            });
            let Some(neighbour) = neighbour else { continue };
            let mut damaged = program.clone();
            damaged.tiles[moved].address = program.tiles[neighbour].address;
            let (by_passes, by_simulator) = is_reported(&damaged);
            if !by_passes && !by_simulator {
                missed.push(format!("tile {moved} onto {neighbour}"));
            }
        }
        assert!(missed.is_empty(), "{name}: {}", missed.join("; "));
    }
}

/// First write and last use of each tile, as positions in the program.
fn live_ranges(program: &Program) -> Vec<(usize, usize)> {
    let mut ranges = vec![(usize::MAX, 0); program.tiles.len()];
    for (position, instruction) in program.instructions.iter().enumerate() {
        let accesses = instruction.kind.accesses();
        let mut touch = |tile: ir::program::TileId| {
            let range = &mut ranges[tile.index()];
            *range = (range.0.min(position), range.1.max(position));
        };
        accesses.tile_reads.iter().chain(&accesses.tile_writes).for_each(|view| touch(view.tile));
        for side in [accesses.dma_read, accesses.dma_write].into_iter().flatten() {
            if let ir::program::DmaPlace::Tile { tile, .. } = side.place {
                touch(tile);
            }
        }
    }
    ranges
}

/// Two stores that change places give wrong values, or leave bytes unwritten.
#[test]
fn swapped_stores_are_reported() {
    for name in GRAPHS {
        let graph = sample_graph(name);
        let program = synchronized(name, TargetName::Trn2);
        let is_store = |kind: &InstructionKind| match kind {
            InstructionKind::Dma { dst, .. } => dst.hbm().is_some(),
            _ => false,
        };
        let stores: Vec<usize> =
            (0..program.instructions.len()).filter(|&at| is_store(&program.instructions[at].kind)).collect();
        for pair in stores.windows(2) {
            let mut damaged = program.clone();
            let (first, second) =
                (program.instructions[pair[0]].kind.clone(), program.instructions[pair[1]].kind.clone());
            let (InstructionKind::Dma { src: source0, .. }, InstructionKind::Dma { src: source1, .. }) =
                (&first, &second)
            else {
                continue;
            };
            for (at, source) in [(pair[0], source1.clone()), (pair[1], source0.clone())] {
                if let InstructionKind::Dma { src, .. } = &mut damaged.instructions[at].kind {
                    *src = source;
                }
            }
            assert!(is_reported(&damaged).1 || gives_wrong_values(name, &graph, &damaged), "{name}: stores {pair:?}");
        }
    }
}

fn gives_wrong_values(name: &str, graph: &ir::Graph, program: &Program) -> bool {
    let samples = recorded(name, graph);
    let standard = compiler::verdict::Standard::of(graph, &samples).expect("the graph evaluates");
    let Ok(machine) = Machine::from_program(program) else { return true };
    let bytes: Vec<Vec<u8>> = samples
        .inputs
        .iter()
        .zip(&graph.inputs)
        .map(|(value, input)| value.to_bytes(graph.ty(input.value).dtype).expect("inputs are of their types"))
        .collect();
    let inputs: Vec<Option<&[u8]>> = bytes.iter().map(|bytes| Some(bytes.as_slice())).collect();
    let Ok(outputs) = machine.run(&inputs) else { return true };
    let values: Vec<Option<ir::reference::Value>> = outputs
        .tensors
        .iter()
        .zip(&graph.outputs)
        .map(|(tensor, output)| {
            let ty = graph.ty(output.value?);
            ir::reference::Value::from_bytes(ty, &tensor.as_ref()?.bytes).ok()
        })
        .collect();
    !standard.judge(graph, &values).passes()
}
