//! Tile programs: instructions in nki.isa terms over tiles in SBUF and PSUM and tensors in HBM.
//!
//! A program is one list of instructions in an order that keeps its meaning when executed one by
//! one; each engine's stream is the subsequence of its own instructions. Lowering makes virtual
//! tiles without addresses, `schedule` reorders, `allocate` gives addresses, `synchronize` adds
//! waits and updates. Which of these holds is the program's [`ProgramPhase`].

use std::sync::Arc;

use smallvec::SmallVec;

use crate::graph::Location;
use crate::target::TargetName;
use crate::types::{Dtype, Shape};

mod absolute;
mod instruction;
pub mod module;
mod names;
pub mod rules;
pub mod text;
pub mod verify;

pub use absolute::{AbsoluteError, PSUM_TILE, SBUF_TILE, memory_tiles};
pub use instruction::{
    Accesses, ActivationFunction, AluOp, DmaQueue, Gather, Instruction, InstructionKind, ReduceCommand, ScalarOperand,
    TableSet,
};
pub use module::{Call, Kernel, KernelPlace, Module};

/// One of the five instruction streams of a NeuronCore.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Engine {
    Pe,
    Act,
    Dve,
    Pool,
    Sp,
}

impl Engine {
    /// Every engine, in stream order.
    pub const ALL: [Engine; 5] = [Engine::Pe, Engine::Act, Engine::Dve, Engine::Pool, Engine::Sp];

    /// Name in the text form and in `def.json`.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Pe => "pe",
            Engine::Act => "act",
            Engine::Dve => "dve",
            Engine::Pool => "pool",
            Engine::Sp => "sp",
        }
    }
}

/// What has been established of a program.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProgramPhase {
    /// Virtual tiles, no addresses, no semaphores.
    Lowered,
    /// Order and engine of every instruction are final; table loads are in place.
    Scheduled,
    /// Every tile has an address.
    Allocated,
    /// Every hazard is ordered by waits and updates.
    Synchronized,
}

/// On-chip memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    Sbuf,
    Psum,
}

/// Names a tile of one program.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TileId(pub u32);

/// Names an HBM tensor of one program.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HbmId(pub u32);

impl TileId {
    /// Position in [`Program::tiles`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl HbmId {
    /// Marks ids of the binding register's.
    const BOUND: u32 = 1 << 31;

    /// Position in [`Program::tensors`].
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The tensor in this place after the binding register, as records of kernels name it. No
    /// program has it among its tensors: it is another one in each call.
    pub fn bound(place: u32) -> HbmId {
        HbmId(place | HbmId::BOUND)
    }

    /// The place after the binding register; `None` for a tensor of a program.
    pub fn bound_place(self) -> Option<u32> {
        (self.0 & HbmId::BOUND != 0).then_some(self.0 & !HbmId::BOUND)
    }
}

/// Where a tile starts.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TileAddress {
    pub partition: u8,
    /// Offset within the partition; in PSUM, bank b starts at 2048 b.
    pub start_byte: u32,
}

/// A rectangle of on-chip memory: some partitions by some bytes of each.
#[derive(Clone, Debug, PartialEq)]
pub struct Tile {
    /// For people: what it holds. Not unique.
    pub label: String,
    pub space: Space,
    /// Element type that views have unless they say otherwise.
    pub dtype: Dtype,
    pub n_partitions: u8,
    pub bytes_per_partition: u32,
    /// Required alignment of the start byte.
    pub alignment_bytes: u32,
    /// `None` while virtual.
    pub address: Option<TileAddress>,
}

/// One free dimension of an access pattern, in elements of the view's element type.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    pub step: i16,
    pub count: u16,
}

/// What an instruction reads or writes of a tile. Elements are visited row-major over `dims`, the
/// last one fastest, on every partition at the same offsets.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct TileView {
    pub tile: TileId,
    /// First partition, counted from the tile's first.
    pub partition: u8,
    pub n_partitions: u8,
    /// First element within the tile's partition, in elements of `dtype`.
    pub offset: u32,
    /// At most four; none means one element.
    pub dims: SmallVec<[Dim; 4]>,
    pub dtype: Dtype,
}

impl Clone for TileView {
    fn clone(&self) -> Self {
        // Much cheaper than the derived clone, which goes dimension by dimension.
        let TileView { tile, partition, n_partitions, offset, ref dims, dtype } = *self;
        TileView { tile, partition, n_partitions, offset, dims: SmallVec::from_slice(dims), dtype }
    }
}

impl TileView {
    /// Elements per partition.
    pub fn n_elements(&self) -> usize {
        self.dims.iter().map(|dim| usize::from(dim.count)).product()
    }

    /// First and one past the last byte touched within the tile's partition.
    pub fn byte_range(&self) -> (i64, i64) {
        let size = self.dtype.size_bytes() as i64;
        let (mut low, mut high) = (i64::from(self.offset), i64::from(self.offset));
        for dim in &self.dims {
            let span = i64::from(dim.step) * (i64::from(dim.count) - 1);
            if span < 0 {
                low += span;
            } else {
                high += span;
            }
        }
        (low * size, (high + 1) * size)
    }
}

/// What an HBM tensor is.
#[derive(Clone, Debug, PartialEq)]
pub enum HbmKind {
    /// Position in the graph's inputs.
    Input(u32),
    /// Position in the graph's outputs.
    Output(u32),
    /// An input that an output updates in place: positions in the graph's inputs and outputs.
    Updated { input: u32, output: u32 },
    /// Stored in the NEFF; little-endian elements.
    Constant(Arc<[u8]>),
    /// Made by `allocate` for spills.
    Scratch,
}

impl HbmKind {
    /// Position in the graph's inputs.
    pub fn input(&self) -> Option<u32> {
        match self {
            HbmKind::Input(position) | HbmKind::Updated { input: position, output: _ } => Some(*position),
            HbmKind::Output(_) | HbmKind::Constant(_) | HbmKind::Scratch => None,
        }
    }

    /// Position in the graph's outputs.
    pub fn output(&self) -> Option<u32> {
        match self {
            HbmKind::Output(position) | HbmKind::Updated { input: _, output: position } => Some(*position),
            HbmKind::Input(_) | HbmKind::Constant(_) | HbmKind::Scratch => None,
        }
    }

    /// True for tensors that have contents before the program starts.
    pub fn is_given(&self) -> bool {
        match self {
            HbmKind::Input(_) | HbmKind::Updated { .. } | HbmKind::Constant(_) => true,
            HbmKind::Output(_) | HbmKind::Scratch => false,
        }
    }
}

/// A tensor in device memory. A 64-bit integer is two little-endian 32-bit words.
#[derive(Clone, Debug, PartialEq)]
pub struct HbmTensor {
    pub name: String,
    pub kind: HbmKind,
    pub dtype: Dtype,
    pub shape: Shape,
    /// Size of the buffer, which strides may make larger than the packed tensor.
    pub size_bytes: u64,
}

/// One dimension of a DMA access. HBM sides use `step` in elements; tile sides move by whole
/// partitions and by elements at once.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct DmaDim {
    /// Partitions per step; 0 on HBM sides.
    pub partition_step: i16,
    /// Elements per step.
    pub step: i64,
    pub count: u32,
}

/// Where one side of a DMA lies.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum DmaPlace {
    Hbm {
        tensor: HbmId,
    },
    Tile {
        tile: TileId,
        /// First partition, counted from the tile's first.
        partition: u8,
    },
}

/// One side of a DMA. Elements are visited row-major over `dims`, the last one fastest; both sides
/// of a DMA visit the same number of elements, however they are split into dimensions.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct DmaAccess {
    pub place: DmaPlace,
    /// First element: within the HBM tensor, or within the tile's partition.
    pub offset: u64,
    /// At most four; none means one element.
    pub dims: SmallVec<[DmaDim; 4]>,
    pub dtype: Dtype,
}

impl Clone for DmaAccess {
    fn clone(&self) -> Self {
        // As for `TileView`.
        let DmaAccess { place, offset, ref dims, dtype } = *self;
        DmaAccess { place, offset, dims: SmallVec::from_slice(dims), dtype }
    }
}

impl DmaAccess {
    /// Elements moved. Saturates, so that hostile counts stay comparable.
    pub fn n_elements(&self) -> u64 {
        self.dims.iter().fold(1, |count: u64, dim| count.saturating_mul(u64::from(dim.count)))
    }
}

/// A condition that must hold before an instruction is issued: semaphore >= value.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Wait {
    pub semaphore: u16,
    pub at_least: u16,
}

/// What an instruction adds to a semaphore when it completes. A DMA adds 1 per engine, 16 in all.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Update {
    pub semaphore: u16,
    pub add: u16,
}

/// Instructions for one NeuronCore.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub name: String,
    pub target: TargetName,
    pub phase: ProgramPhase,
    pub tensors: Vec<HbmTensor>,
    pub tiles: Vec<Tile>,
    pub instructions: Vec<Instruction>,
    /// Source nodes, named by [`Instruction::locations`].
    pub locations: Vec<Location>,
}

impl Program {
    /// An empty program.
    pub fn new(name: impl Into<String>, target: TargetName) -> Self {
        Program {
            name: name.into(),
            target,
            phase: ProgramPhase::Lowered,
            tensors: Vec::new(),
            tiles: Vec::new(),
            instructions: Vec::new(),
            locations: Vec::new(),
        }
    }

    /// The tile of this name.
    pub fn tile(&self, tile: TileId) -> &Tile {
        &self.tiles[tile.index()]
    }

    /// The HBM tensor of this name.
    pub fn tensor(&self, tensor: HbmId) -> &HbmTensor {
        &self.tensors[tensor.index()]
    }

    /// One engine's instructions with their positions in the program.
    pub fn stream(&self, engine: Engine) -> impl Iterator<Item = (usize, &Instruction)> {
        self.instructions.iter().enumerate().filter(move |(_, instruction)| instruction.engine == engine)
    }
}
