//! What every instruction of an allocated program must follow, by address.

use ir::Program;
use ir::program::{Engine, Instruction, InstructionKind, Space};
use ir::target::Target;

use crate::footprint::Addressing;
use crate::hazard::History;
use crate::lists::Lists;

/// Per instruction, the positions of earlier ones that must be complete when it is issued and that
/// its engine does not order by itself.
pub(super) fn hazards(program: &Program) -> Lists<u32> {
    let target = program.target.target();
    let mut history = History::new(program, Addressing::Physical);
    let mut ports = Ports::default();
    let mut all = Lists::with_capacity(program.instructions.len());
    let (mut followed, mut found) = (Vec::new(), Vec::new());
    for (position, instruction) in (0u32..).zip(&program.instructions) {
        let in_order_on = instruction.is_compute().then_some(instruction.engine);
        history.access(program, position, in_order_on, &mut followed);
        found.clear();
        found.extend(followed.iter().map(|&(predecessor, _)| predecessor));
        ports.access(program, target, position, &mut found);
        found.retain(|&predecessor| !is_ordered_by_engine(&program.instructions[predecessor as usize], instruction));
        found.sort_unstable();
        found.dedup();
        all.push(&found);
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
    fn access(&mut self, program: &Program, target: &Target, position: u32, found: &mut Vec<u32>) {
        let instruction = &program.instructions[position as usize];
        if !instruction.is_compute() {
            return;
        }
        if !target.dve_pool_parallel && uses(program, &instruction.kind, Space::Sbuf) {
            found.extend(self.sbuf.access(position, instruction.engine, [Engine::Dve, Engine::Pool]));
        }
        if !target.dve_act_parallel && uses(program, &instruction.kind, Space::Psum) {
            found.extend(self.psum.access(position, instruction.engine, [Engine::Dve, Engine::Act]));
        }
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
