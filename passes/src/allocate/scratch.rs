//! HBM scratch of spilled tiles, shared by those that are not needed at the same time.
//!
//! What was stored in scratch tensors of its own moves into as few tensors as there are pages. A
//! tensor lies within one page of the scratchpad, and nothing crosses a page's end.

use ir::Program;
use ir::program::{DmaAccess, DmaPlace, HbmId, HbmKind, HbmTensor, InstructionKind};
use ir::target::Target;
use ir::types::{Dtype, Shape};

use super::live::LiveRange;
use super::packing::{Block, Boundaries, pack_low};

/// Of offsets: no element type is longer.
const ALIGNMENT_BYTES: u64 = 8;

/// Positions that bytes rest before others are stored there, which would have to wait.
const REST_POSITIONS: usize = 64;

/// Placements of single blocks that may be spent: HBM is not scarce.
const MAX_PLACEMENTS: usize = 8_000;

/// What names of tensors that hold spilled tiles begin with; no other scratch has such a name.
const SPILL_PREFIX: &str = "spill_";

/// Name of a tensor that holds spilled tiles.
pub(super) fn spill_name(number: u64) -> String {
    format!("{SPILL_PREFIX}{number}")
}

/// True for scratch that holds spilled tiles.
pub fn is_spill(tensor: &HbmTensor) -> bool {
    matches!(tensor.kind, HbmKind::Scratch) && tensor.name.starts_with(SPILL_PREFIX)
}

/// Shares scratch between the tensors from `first_spill` on, which only direct transfers access.
pub(super) fn share_scratch(program: &mut Program, target: &Target, first_spill: usize) {
    let page_bytes = u64::from(target.scratchpad_page_bytes);
    let lives = lives(program, first_spill);
    let block = |(tensor, live): (&HbmTensor, &Option<LiveRange>)| {
        // What nothing accesses is left out.
        let size = if live.is_some() { tensor.size_bytes.next_multiple_of(ALIGNMENT_BYTES) } else { 0 };
        let live = live.map_or(LiveRange { first: 0, last: 0 }, |live| live);
        let live = LiveRange { last: live.last + REST_POSITIONS, ..live };
        Block { live, size, alignment: ALIGNMENT_BYTES }
    };
    let blocks: Vec<Block> = program.tensors[first_spill..].iter().zip(&lives).map(block).collect();
    if blocks.is_empty() || blocks.iter().any(|block| block.size > page_bytes) {
        return;
    }
    let packing = pack_low(&blocks, Boundaries::Every(page_bytes), MAX_PLACEMENTS);
    let move_access = |access: &mut DmaAccess| {
        let DmaPlace::Hbm { tensor } = &mut access.place else { return };
        let Some(spill) = tensor.index().checked_sub(first_spill) else { return };
        let (page, offset) = (packing.offsets[spill] / page_bytes, packing.offsets[spill] % page_bytes);
        *tensor = HbmId(u32::try_from(first_spill as u64 + page).expect("there are fewer pages than tensors"));
        access.offset += offset / access.dtype.size_bytes() as u64;
    };
    for instruction in &mut program.instructions {
        if let InstructionKind::Dma { dst, src, .. } = &mut instruction.kind {
            move_access(dst);
            move_access(src);
        }
    }
    program.tensors.truncate(first_spill);
    for page in 0..packing.peak.div_ceil(page_bytes) {
        let size_bytes = (packing.peak - page * page_bytes).min(page_bytes);
        program.tensors.push(HbmTensor {
            name: spill_name(page),
            kind: HbmKind::Scratch,
            dtype: Dtype::U8,
            shape: Shape::from_slice(&[usize::try_from(size_bytes).expect("pages are small")]),
            size_bytes,
        });
    }
}

/// First and last access of each tensor from `first_spill` on.
fn lives(program: &Program, first_spill: usize) -> Vec<Option<LiveRange>> {
    let mut lives: Vec<Option<LiveRange>> = vec![None; program.tensors.len() - first_spill];
    for (position, instruction) in program.instructions.iter().enumerate() {
        let accesses = instruction.kind.accesses();
        let tensors = [accesses.dma_read, accesses.dma_write].into_iter().flatten().filter_map(DmaAccess::hbm);
        for spill in tensors.filter_map(|tensor| tensor.index().checked_sub(first_spill)) {
            let first = lives[spill].map_or(position, |live| live.first);
            lives[spill] = Some(LiveRange { first, last: position });
        }
    }
    lives
}
