//! What every instruction of an allocated program must follow, by address.

use ir::Program;
use ir::program::{Engine, Instruction, InstructionKind, Space};
use ir::target::Target;

use crate::footprint::Addressing;
use crate::hazard::History;

/// Per instruction, the positions of earlier ones that must be complete when it is issued and that
/// its engine does not order by itself.
pub(super) fn hazards(program: &Program) -> Vec<Vec<u32>> {
    let target = program.target.target();
    let mut history = History::new(program, Addressing::Physical);
    let mut ports = Ports::default();
    let mut all = Vec::with_capacity(program.instructions.len());
    for (idx, instruction) in program.instructions.iter().enumerate() {
        let position = u32::try_from(idx).expect("a program has fewer than 2^32 instructions");
        let in_order_on = instruction.is_compute().then_some(instruction.engine);
        let mut found: Vec<u32> =
            history.access(program, position, in_order_on).into_iter().map(|(predecessor, _)| predecessor).collect();
        found.extend(ports.access(program, target, position));
        found.retain(|&predecessor| !is_ordered_by_engine(&program.instructions[predecessor as usize], instruction));
        found.sort_unstable();
        found.dedup();
        all.push(found);
    }
    all
}

/// Compute instructions of one engine take effect in order.
fn is_ordered_by_engine(earlier: &Instruction, later: &Instruction) -> bool {
    earlier.engine == later.engine && earlier.is_compute() && later.is_compute()
}

/// Latest users of memory ports that two engines must not use at the same time.
#[derive(Default)]
struct Ports {
    /// Of DVE and Pool on SBUF.
    sbuf: Port,
    /// Of DVE and ACT on PSUM.
    psum: Port,
}

#[derive(Default)]
struct Port {
    latest: [Option<u32>; Engine::ALL.len()],
}

impl Ports {
    fn access(&mut self, program: &Program, target: &Target, position: u32) -> Vec<u32> {
        let instruction = &program.instructions[position as usize];
        let mut found = Vec::new();
        if !instruction.is_compute() {
            return found;
        }
        if !target.dve_pool_parallel && uses(program, &instruction.kind, Space::Sbuf) {
            found.extend(self.sbuf.access(position, instruction.engine, [Engine::Dve, Engine::Pool]));
        }
        if !target.dve_act_parallel && uses(program, &instruction.kind, Space::Psum) {
            found.extend(self.psum.access(position, instruction.engine, [Engine::Dve, Engine::Act]));
        }
        found
    }
}

impl Port {
    /// The other engine's latest use, where `engine` is one of the two.
    fn access(&mut self, position: u32, engine: Engine, [first, second]: [Engine; 2]) -> Option<u32> {
        let other = match engine {
            engine if engine == first => second,
            engine if engine == second => first,
            Engine::Pe | Engine::Act | Engine::Dve | Engine::Pool | Engine::Sp => return None,
        };
        self.latest[engine as usize] = Some(position);
        self.latest[other as usize]
    }
}

fn uses(program: &Program, kind: &InstructionKind, space: Space) -> bool {
    let accesses = kind.accesses();
    let mut views = accesses.tile_reads.iter().chain(&accesses.tile_writes);
    views.any(|view| program.tile(view.tile).space == space)
}
