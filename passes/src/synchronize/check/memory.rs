//! Conflicting accesses to memory that nothing orders.
//!
//! Memories are cut into blocks. Of each block the accesses are kept that later ones may conflict
//! with: an access is dropped when a later one has all its bytes and whoever follows that follows it.

use std::collections::BTreeMap;

use ir::Program;
use ir::program::verify::ProgramFault;
use ir::program::{DmaPlace, InstructionKind, Space};

use super::clocks::Known;
use super::touch::{Bytes, Place, Runs, Touch, touches};

/// Of the bytes of SBUF and PSUM that are looked at together, the logarithm to base 2; tensors have
/// no smaller blocks.
const CHIP_BLOCK_BITS: u32 = 11;
/// Most blocks of one tensor.
const MAX_TENSOR_BLOCKS: u32 = 64;

/// Conflicting accesses that nothing orders.
pub(super) fn races(program: &Program, known: &Known<'_>) -> Vec<ProgramFault> {
    let blocks = Blocks::of(program);
    let mut open: Vec<Vec<Touch>> = vec![Vec::new(); blocks.n_blocks];
    let mut found: BTreeMap<(u32, u32), ProgramFault> = BTreeMap::new();
    for (position, instruction) in (0u32..).zip(&program.instructions) {
        let is_wanted = |place: Place| blocks.memory(place).is_some();
        touches(program, position, instruction, is_wanted, |place, touch| {
            let Some(memory) = blocks.memory(place) else { return };
            memory.each_block(&touch.bytes, |block, bounds| {
                follow(program, known, &mut open[block], &touch, bounds, &mut found);
            });
        });
    }
    found.into_values().collect()
}

/// Holds an access against the earlier ones of a block and adds it to them.
fn follow(
    program: &Program,
    known: &Known<'_>,
    earlier: &mut Vec<Touch>,
    touch: &Touch,
    bounds: (i64, i64),
    found: &mut BTreeMap<(u32, u32), ProgramFault>,
) {
    earlier.retain(|other| {
        if other.position == touch.position {
            return true;
        }
        let (first, second) = (other.position as usize, touch.position as usize);
        if !touch.writes && !other.writes {
            // Whoever follows this read follows the same engine's earlier ones.
            return !(known.same_stream(first, second) && touch.contains(other, bounds));
        }
        if !touch.meets(other) {
            return true;
        }
        if !known.orders(first, second) {
            found.entry((touch.position, other.position)).or_insert_with(|| race(program, other, touch));
            return true;
        }
        // Whoever follows this write follows what it covers.
        !(touch.writes && touch.contains(other, bounds))
    });
    earlier.push(touch.clone());
}

fn race(program: &Program, earlier: &Touch, later: &Touch) -> ProgramFault {
    let verb = |writes: bool| if writes { "writes" } else { "reads" };
    let message = format!(
        "{} what instruction {} {}, and nothing makes it wait for `{}`",
        verb(later.writes),
        earlier.position,
        verb(earlier.writes),
        program.instruction_text(&program.instructions[earlier.position as usize])
    );
    ProgramFault::at(program, later.position as usize, message)
}

/// Where the blocks of every memory are that the program writes; others order nothing.
struct Blocks {
    sbuf: Memory,
    psum: Memory,
    /// By tensor.
    tensors: Vec<Option<Memory>>,
    n_blocks: usize,
}

/// The blocks of one memory.
#[derive(Copy, Clone)]
struct Memory {
    first_block: usize,
    n_blocks: i64,
    /// Of the bytes of a block, the logarithm to base 2.
    block_bits: u32,
}

impl Blocks {
    fn of(program: &Program) -> Self {
        let target = program.target.target();
        let mut n_blocks = 0;
        let mut cut = |size_bytes: i64, block_bits: u32| {
            let memory = Memory { first_block: n_blocks, n_blocks: (size_bytes >> block_bits) + 1, block_bits };
            n_blocks += memory.n_blocks as usize;
            memory
        };
        let sbuf = cut(i64::from(target.sbuf_usable_bytes), CHIP_BLOCK_BITS);
        let psum = cut(i64::from(target.psum_bytes()), CHIP_BLOCK_BITS);
        let (mut n_accesses, mut is_written) = (vec![0u32; program.tensors.len()], vec![false; program.tensors.len()]);
        for instruction in &program.instructions {
            let InstructionKind::Dma { dst, src, .. } = &instruction.kind else { continue };
            for (side, writes) in [(src, false), (dst, true)] {
                if let DmaPlace::Hbm { tensor } = side.place {
                    n_accesses[tensor.index()] += 1;
                    is_written[tensor.index()] |= writes;
                }
            }
        }
        let mut tensors = Vec::with_capacity(program.tensors.len());
        for (idx, tensor) in program.tensors.iter().enumerate() {
            let n_wanted = u64::from(n_accesses[idx].clamp(1, MAX_TENSOR_BLOCKS));
            let block_bits = (tensor.size_bytes / n_wanted).max(1).ilog2().max(CHIP_BLOCK_BITS);
            tensors.push(is_written[idx].then(|| cut(tensor.size_bytes as i64, block_bits)));
        }
        Blocks { sbuf, psum, tensors, n_blocks }
    }

    fn memory(&self, place: Place) -> Option<&Memory> {
        match place {
            Place::OnChip(Space::Sbuf) => Some(&self.sbuf),
            Place::OnChip(Space::Psum) => Some(&self.psum),
            Place::Tensor(tensor) => self.tensors[tensor as usize].as_ref(),
        }
    }
}

impl Memory {
    /// Calls `visit` with every block that may hold some of the bytes, and with where it lies.
    fn each_block(&self, bytes: &Bytes, mut visit: impl FnMut(usize, (i64, i64))) {
        let block_of = |byte: i64| (byte >> self.block_bits).clamp(0, self.n_blocks - 1);
        let mut visit_span = |from: i64, low: i64, high: i64| {
            let last = block_of(high - 1);
            for block in from.max(block_of(low))..=last {
                // What lies outside of the memory belongs to its ends.
                let low = if block == 0 { i64::MIN } else { block << self.block_bits };
                let high = if block == self.n_blocks - 1 { i64::MAX } else { (block + 1) << self.block_bits };
                visit(self.first_block + block as usize, (low, high));
            }
            last + 1
        };
        match &bytes.runs {
            Runs::Regular { length, step } if step >> self.block_bits > 0 => {
                let mut from = 0;
                let mut low = bytes.low;
                while low < bytes.high {
                    from = visit_span(from, low, low + length);
                    low += step;
                }
            }
            Runs::Listed(runs) => {
                let mut from = 0;
                for &(low, high) in runs {
                    from = visit_span(from, low, high);
                }
            }
            Runs::One | Runs::Regular { .. } => _ = visit_span(0, bytes.low, bytes.high),
        }
    }
}
