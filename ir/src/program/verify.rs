//! Checks what a program's phase promises and reports every fault with the printed line.
//!
//! What instructions may do is written in [`rules`](super::rules); here are the declarations, what
//! each phase adds, and that nothing is read before it is written. That tiles do not collide and
//! that hazards are ordered is proved by the checkers beside the passes that establish it.

use std::collections::BTreeSet;
use std::fmt;

use super::rules::{LoadedTables, PsumGroups, Violation, check_instruction};
use super::{DmaPlace, Engine, HbmKind, InstructionKind, Program, ProgramPhase, Space, Tile};

/// Something wrong with a program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramFault {
    /// Position of the instruction; `None` for faults of the whole program or of a declaration.
    pub instruction: Option<usize>,
    /// Lower case, no final dot.
    pub message: String,
    /// The instruction or declaration as the text form prints it; may be empty.
    pub line: String,
}

impl ProgramFault {
    /// A fault of the instruction at this position.
    pub fn at(program: &Program, position: usize, message: impl Into<String>) -> Self {
        let line = program.instructions.get(position).map(|instruction| program.instruction_text(instruction));
        ProgramFault { instruction: Some(position), message: message.into(), line: line.unwrap_or_default() }
    }

    /// A fault of a declaration or of the whole program.
    pub fn of_program(line: impl Into<String>, message: impl Into<String>) -> Self {
        ProgramFault { instruction: None, message: message.into(), line: line.into() }
    }
}

impl fmt::Display for ProgramFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.instruction, self.line.is_empty()) {
            (Some(position), _) => write!(formatter, "instruction {position}: {}: {}", self.message, self.line),
            (None, false) => write!(formatter, "{}: {}", self.message, self.line),
            (None, true) => formatter.write_str(&self.message),
        }
    }
}

/// Every fault of a program, judged by the phase that it says it is in; empty when it is sound.
pub fn verify(program: &Program) -> Vec<ProgramFault> {
    let mut faults = Vec::new();
    check_tensors(program, &mut faults);
    check_tiles(program, &mut faults);
    let target = program.target.target();
    for (position, instruction) in program.instructions.iter().enumerate() {
        let violations = check_instruction(target, instruction, &program.tiles, &program.tensors);
        faults.extend(violations.into_iter().map(|violation| of_rule(program, position, violation)));
        for location in &instruction.locations {
            if location.index() >= program.locations.len() {
                let message = format!("names location {} of {}", location.0, program.locations.len());
                faults.push(ProgramFault::at(program, position, message));
            }
        }
        faults.extend(
            phase_fault(program, position).map(|message| ProgramFault::at(program, position, message.to_owned())),
        );
    }
    if faults.is_empty() {
        // These follow operands without looking whether they exist.
        check_streams(program, &mut faults);
        check_first_writes(program, &mut faults);
    }
    faults
}

fn of_rule(program: &Program, position: usize, violation: Violation) -> ProgramFault {
    ProgramFault::at(program, position, violation.to_string())
}

fn check_tensors(program: &Program, faults: &mut Vec<ProgramFault>) {
    let mut bound = BTreeSet::new();
    for (idx, tensor) in program.tensors.iter().enumerate() {
        let mut fault = |message: String| {
            faults.push(ProgramFault::of_program(format!("%h{idx} \"{}\"", tensor.name), message));
        };
        if let HbmKind::Constant(bytes) = &tensor.kind
            && bytes.len() as u64 != tensor.size_bytes
        {
            fault(format!("tensor has {} bytes but holds {}", tensor.size_bytes, bytes.len()));
        }
        if let Some(position) = tensor.kind.input()
            && !bound.insert(("input", position))
        {
            fault(format!("input {position} is declared twice"));
        }
        if let Some(position) = tensor.kind.output()
            && !bound.insert(("output", position))
        {
            fault(format!("output {position} is declared twice"));
        }
    }
}

fn check_tiles(program: &Program, faults: &mut Vec<ProgramFault>) {
    for (idx, tile) in program.tiles.iter().enumerate() {
        let messages = [tile_size_fault(program, tile), tile_address_fault(program, tile)];
        let line = || format!("%t{idx} \"{}\"", tile.label);
        faults.extend(messages.into_iter().flatten().map(|message| ProgramFault::of_program(line(), message)));
    }
}

fn tile_size_fault(program: &Program, tile: &Tile) -> Option<String> {
    let target = program.target.target();
    let limit = match tile.space {
        Space::Sbuf => target.sbuf_usable_bytes,
        Space::Psum if target.matmul_spans_banks => target.psum_bytes(),
        Space::Psum => target.psum_bank_bytes,
    };
    // The absolute form has one tile for each whole memory.
    let limit = if tile.address.is_some() && tile.space == Space::Psum { target.psum_bytes() } else { limit };
    if tile.n_partitions == 0 || u32::from(tile.n_partitions) > target.partitions {
        return Some(format!("tile has {} partitions, not 1 to {}", tile.n_partitions, target.partitions));
    }
    if tile.bytes_per_partition == 0 || tile.bytes_per_partition > limit {
        return Some(format!("tile has {} bytes per partition, not 1 to {limit}", tile.bytes_per_partition));
    }
    if tile.alignment_bytes != 0 && !tile.alignment_bytes.is_power_of_two() {
        return Some(format!("alignment {} is no power of two", tile.alignment_bytes));
    }
    None
}

fn tile_address_fault(program: &Program, tile: &Tile) -> Option<String> {
    match (program.phase, tile.address) {
        (ProgramPhase::Lowered | ProgramPhase::Scheduled, Some(_)) => Some("tile has an address too early".to_owned()),
        (ProgramPhase::Allocated | ProgramPhase::Synchronized, None) => Some("tile has no address".to_owned()),
        (ProgramPhase::Lowered | ProgramPhase::Scheduled, None)
        | (ProgramPhase::Allocated | ProgramPhase::Synchronized, Some(_)) => None,
    }
}

/// What an instruction has that its program's phase does not allow yet.
fn phase_fault(program: &Program, position: usize) -> Option<&'static str> {
    let instruction = &program.instructions[position];
    let is_synchronized = match program.phase {
        ProgramPhase::Lowered | ProgramPhase::Scheduled | ProgramPhase::Allocated => false,
        ProgramPhase::Synchronized => true,
    };
    let is_scheduled = program.phase != ProgramPhase::Lowered;
    let has_semaphores = !instruction.waits.is_empty() || instruction.update.is_some();
    if matches!(instruction.kind, InstructionKind::LoadTable { .. }) && !is_scheduled {
        return Some("tables are loaded before scheduling");
    }
    if instruction.is_control() && !is_synchronized {
        return Some("waits before synchronization");
    }
    (has_semaphores && !is_synchronized).then_some("uses semaphores before synchronization")
}

/// Rules of whole streams; table loads are there from scheduling on.
fn check_streams(program: &Program, faults: &mut Vec<ProgramFault>) {
    let target = program.target.target();
    let mut groups = PsumGroups::new(target, &program.tiles);
    let mut tables = LoadedTables::default();
    for (position, instruction) in program.instructions.iter().enumerate() {
        let broken = match instruction.engine {
            Engine::Pe => groups.add(position, instruction).map(|found| found.violation),
            Engine::Act if program.phase != ProgramPhase::Lowered => tables.add(instruction),
            Engine::Act | Engine::Dve | Engine::Pool | Engine::Sp => None,
        };
        faults.extend(broken.map(|violation| of_rule(program, position, violation)));
    }
}

/// Reads of tiles and scratch tensors that nothing has written, and outputs that nothing writes.
fn check_first_writes(program: &Program, faults: &mut Vec<ProgramFault>) {
    let mut tiles = vec![false; program.tiles.len()];
    let mut tensors: Vec<bool> = program.tensors.iter().map(|tensor| tensor.kind.is_given()).collect();
    for (position, instruction) in program.instructions.iter().enumerate() {
        let accesses = instruction.kind.accesses();
        let mut unwritten = |is_written: bool, kind: char, number: u32| {
            if !is_written {
                let message = format!("reads %{kind}{number}, which nothing has written");
                faults.push(ProgramFault::at(program, position, message));
            }
        };
        for view in &accesses.tile_reads {
            unwritten(tiles[view.tile.index()], 't', view.tile.0);
        }
        match accesses.dma_read.map(|side| side.place) {
            Some(DmaPlace::Hbm { tensor }) => unwritten(tensors[tensor.index()], 'h', tensor.0),
            Some(DmaPlace::Tile { tile, .. }) => unwritten(tiles[tile.index()], 't', tile.0),
            None => {}
        }
        for view in &accesses.tile_writes {
            tiles[view.tile.index()] = true;
        }
        match accesses.dma_write.map(|side| side.place) {
            Some(DmaPlace::Hbm { tensor }) => tensors[tensor.index()] = true,
            Some(DmaPlace::Tile { tile, .. }) => tiles[tile.index()] = true,
            None => {}
        }
    }
    for (idx, tensor) in program.tensors.iter().enumerate() {
        if !tensors[idx] && tensor.size_bytes > 0 && matches!(tensor.kind, HbmKind::Output(_)) {
            let line = format!("%h{idx} \"{}\"", tensor.name);
            faults.push(ProgramFault::of_program(line, "nothing writes this output"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::verify;
    use crate::program::text::parse;

    const SOUND: &str = "\
program \"copy\" target trn2 phase lowered
tensor %h0 \"x\" f32[4, 8] 128 bytes input 0
tensor %h1 \"y\" f32[4, 8] 128 bytes output 0
tile %t0 \"x\" sbuf f32 4x32 align 4
tile %t1 \"y\" sbuf f32 4x32 align 4
sp: dma_copy dst=%t0[0, 0+1p+0x4+1x8] src=%h0[0+8x4+1x8] queue=hardware
act: activation exp dst=%t1[0:4, 0+1x8] data=%t0[0:4, 0+1x8] scale=1.0 bias=0.0
sp: dma_copy dst=%h1[0+8x4+1x8] src=%t1[0, 0+1p+0x4+1x8] queue=hardware
";

    fn faults(text: &str) -> Vec<String> {
        verify(&parse(text).expect("the text is well formed")).iter().map(ToString::to_string).collect()
    }

    #[track_caller]
    fn expect_fault(from: &str, to: &str, message: &str) {
        assert!(SOUND.contains(from), "{from}");
        let found = faults(&SOUND.replacen(from, to, 1));
        assert!(found.iter().any(|fault| fault.contains(message)), "{found:?}");
    }

    #[test]
    fn a_sound_program_has_no_faults() {
        assert_eq!(faults(SOUND), Vec::<String>::new());
    }

    #[test]
    fn faults_name_the_instruction_and_print_it() {
        let found = faults(&SOUND.replace("data=%t0[0:4", "data=%t0[0:5"));
        let line = "act: activation exp dst=%t1[0:4, 0+1x8] data=%t0[0:5, 0+1x8] scale=1.0 bias=0.0";
        assert!(
            !found.is_empty()
                && found.iter().all(|fault| fault.starts_with("instruction 1: ") && fault.ends_with(line)),
            "{found:?}"
        );
    }

    #[test]
    fn each_phase_adds_its_promises() {
        expect_fault("phase lowered", "phase scheduled", "activation-table");
        expect_fault("phase lowered", "phase allocated", "tile has no address");
        expect_fault("align 4\n", "align 4 at 0+0\n", "tile has an address too early");
        expect_fault("sp: dma", "act: load_table exp_and_others\nsp: dma", "tables are loaded before scheduling");
        expect_fault("sp: dma", "sp: sync\nsp: dma", "waits before synchronization");
        expect_fault("bias=0.0", "bias=0.0 update s3+1", "uses semaphores before synchronization");
    }

    #[test]
    fn declarations_are_checked() {
        expect_fault("4x32 align 4", "4x32 align 3", "alignment 3 is no power of two");
        expect_fault("4x32 align", "129x32 align", "tile has 129 partitions");
        expect_fault("output 0", "input 0", "input 0 is declared twice");
        expect_fault("input 0", "constant x\"00\"", "tensor has 128 bytes but holds 1");
        expect_fault("bias=0.0", "bias=0.0 #0", "names location 0 of 0");
    }

    #[test]
    fn nothing_is_read_before_it_is_written() {
        expect_fault("data=%t0", "data=%t1", "reads %t1, which nothing has written");
        expect_fault("dst=%h1[0+8x4+1x8]", "dst=%t0[0, 0+1p+0x4+1x8]", "nothing writes this output");
    }
}
