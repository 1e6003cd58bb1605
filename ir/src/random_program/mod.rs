//! Random lowered programs for tests: every instruction, engine and queue, PSUM groups, gathers and
//! updates of inputs, on operands of all types and patterns.
//!
//! One seed gives one program, on every machine. Instructions are proposed and taken if the operand
//! rules allow them, so that new rules need no change here. Every byte that is read has been written,
//! and every byte of an output is written; values mean nothing, and may be infinite or NaN.

mod instructions;
mod transfers;

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::program::rules::check_instruction;
use crate::program::{
    Dim, Engine, HbmId, HbmKind, HbmTensor, Instruction, InstructionKind, Program, Space, Tile, TileId, TileView,
};
use crate::random::Random;
use crate::reference::Value;
use crate::target::TargetName;
use crate::types::{Dtype, TensorType};

/// Types that tiles have.
const ON_CHIP: [Dtype; 12] = [
    Dtype::F32,
    Dtype::F32,
    Dtype::F32,
    Dtype::Bf16,
    Dtype::F16,
    Dtype::F8E4m3,
    Dtype::F8E5m2,
    Dtype::I32,
    Dtype::I16,
    Dtype::I8,
    Dtype::U8,
    Dtype::Bool,
];

const PARTITIONS: [u8; 8] = [1, 4, 7, 32, 33, 64, 100, 128];

/// Columns of a tile at most.
const MAX_COLUMNS: usize = 24;

/// PSUM tiles that instructions read; older ones are dead. The smallest memory has eight banks.
const MOST_PSUM_TILES: usize = 3;

/// What random programs look like.
#[derive(Clone, Debug)]
pub struct RandomProgramOptions {
    pub target: TargetName,
    /// Instructions to propose; some more come out, for what they need.
    pub n_steps: usize,
}

/// The program of a seed, before scheduling.
pub fn random_program(seed: u64, options: &RandomProgramOptions) -> Program {
    let mut generator = Generator::new(seed, options.target);
    generator.declare_tensors();
    generator.fill_outputs();
    for _ in 0..options.n_steps {
        generator.step();
    }
    generator.close_groups();
    generator.store_last();
    generator.program
}

/// Bytes for each input of a program, by position.
pub fn random_input_bytes(program: &Program, seed: u64) -> Vec<Vec<u8>> {
    let mut random = Random { state: seed };
    let mut inputs: Vec<(u32, &HbmTensor)> =
        program.tensors.iter().filter_map(|tensor| Some((tensor.kind.input()?, tensor))).collect();
    inputs.sort_by_key(|(position, _)| *position);
    let mut bytes_of = |tensor: &HbmTensor| {
        let ty = TensorType::new(tensor.dtype, tensor.shape.iter().copied());
        let n_elements = ty.n_elements();
        let value = if tensor.dtype.is_float() {
            Value::floats(&ty.shape, (0..n_elements).map(|_| random.in_range(-4.0, 4.0)).collect::<Vec<_>>())
        } else {
            Value::ints(&ty.shape, (0..n_elements).map(|_| random.below(200) as i64 - 100).collect::<Vec<_>>())
        };
        value.to_bytes(tensor.dtype).expect("floats for float types, integers for the others")
    };
    inputs.into_iter().map(|(_, tensor)| bytes_of(tensor)).collect()
}

/// Matmuls into one PSUM tile that may be continued.
struct Group {
    tile: TileId,
    dst: TileView,
    n_rows: usize,
    n_columns: usize,
    /// Whether operands are f32; both are or none.
    is_f32: bool,
    n_left: usize,
}

struct Generator {
    random: Random,
    program: Program,
    /// Tiles in SBUF that are written whole.
    sbuf: Vec<TileId>,
    /// The same in PSUM, without open groups.
    psum: Vec<TileId>,
    groups: Vec<Group>,
    /// Indices within the rows of `indexed`, one to a partition.
    indices: Option<TileId>,
    inputs: Vec<HbmId>,
    outputs: Vec<HbmId>,
    /// Written whole once it is used.
    scratch: Option<HbmId>,
    index_constant: HbmId,
}

impl Generator {
    fn new(seed: u64, target: TargetName) -> Self {
        Generator {
            random: Random { state: seed },
            program: Program::new(format!("random_{seed}"), target),
            sbuf: Vec::new(),
            psum: Vec::new(),
            groups: Vec::new(),
            indices: None,
            inputs: Vec::new(),
            outputs: Vec::new(),
            scratch: None,
            index_constant: HbmId(0),
        }
    }

    fn declare_tensors(&mut self) {
        let rows: Vec<u8> = (0..128).map(|_| self.random.below(transfers::INDEXED_ROWS as usize) as u8).collect();
        let indices: Vec<u8> = rows.iter().flat_map(|&row| i32::from(row).to_le_bytes()).collect();
        self.index_constant = self.tensor(HbmKind::Constant(Arc::from(indices)), Dtype::I32, [128, 1]);
        let updated = HbmKind::Updated { input: 3, output: 3 };
        let declared = [
            (HbmKind::Input(0), Dtype::F32, [128, 32]),
            (HbmKind::Input(1), Dtype::Bf16, [64, 48]),
            (HbmKind::Input(2), Dtype::I32, [32, 16]),
            (updated, Dtype::F32, [32, 8]),
            (HbmKind::Output(0), Dtype::F32, [128, 32]),
            (HbmKind::Output(1), Dtype::Bf16, [64, 24]),
            (HbmKind::Output(2), Dtype::I32, [32, 16]),
        ];
        for (kind, dtype, shape) in declared {
            let (is_input, is_output) = (kind.input().is_some(), kind.output().is_some());
            let id = self.tensor(kind, dtype, shape);
            self.inputs.extend(is_input.then_some(id));
            self.outputs.extend(is_output.then_some(id));
        }
    }

    fn tensor(&mut self, kind: HbmKind, dtype: Dtype, shape: [usize; 2]) -> HbmId {
        let id = HbmId(self.program.tensors.len() as u32);
        self.program.tensors.push(HbmTensor {
            name: format!("tensor_{}", id.0),
            kind,
            dtype,
            shape: shape.into_iter().collect(),
            size_bytes: (shape[0] * shape[1] * dtype.size_bytes()) as u64,
        });
        id
    }

    fn tile(&mut self, space: Space, dtype: Dtype, n_partitions: u8, n_columns: usize) -> TileId {
        let id = TileId(self.program.tiles.len() as u32);
        self.program.tiles.push(Tile {
            label: format!("tile_{}", id.0),
            space,
            dtype,
            n_partitions,
            bytes_per_partition: (n_columns * dtype.size_bytes()) as u32,
            alignment_bytes: self.program.target.target().tile_alignment_bytes,
            address: None,
        });
        id
    }

    /// Takes an instruction if the rules allow it; without it, new tiles are left out again.
    fn emit(&mut self, engine: Engine, kind: InstructionKind) -> bool {
        let instruction = Instruction::new(engine, kind);
        let target = self.program.target.target();
        let is_legal = check_instruction(target, &instruction, &self.program.tiles, &self.program.tensors).is_empty();
        if is_legal {
            self.program.instructions.push(instruction);
        }
        is_legal
    }

    /// Takes an instruction that writes a whole new tile, which later ones may read.
    fn emit_new(&mut self, tile: TileId, engine: Engine, kind: InstructionKind) {
        if !self.emit(engine, kind) {
            debug_assert_eq!(tile.index() + 1, self.program.tiles.len());
            self.program.tiles.pop();
            return;
        }
        match self.program.tile(tile).space {
            Space::Sbuf => self.sbuf.push(tile),
            Space::Psum => self.psum.push(tile),
        }
        while self.psum.len() > MOST_PSUM_TILES {
            self.psum.remove(0);
        }
    }

    fn n_columns(&self, tile: TileId) -> usize {
        let tile = self.program.tile(tile);
        tile.bytes_per_partition as usize / tile.dtype.size_bytes()
    }

    fn n_partitions(&self, tile: TileId) -> u8 {
        self.program.tile(tile).n_partitions
    }

    fn dtype(&self, tile: TileId) -> Dtype {
        self.program.tile(tile).dtype
    }

    /// All of a tile.
    fn whole(&self, tile: TileId) -> TileView {
        let dims = smallvec![Dim { step: 1, count: self.n_columns(tile) as u16 }];
        self.view(tile, 0, dims)
    }

    fn view(&self, tile: TileId, offset: usize, dims: SmallVec<[Dim; 4]>) -> TileView {
        let Tile { n_partitions, dtype, .. } = *self.program.tile(tile);
        TileView { tile, partition: 0, n_partitions, offset: offset as u32, dims, dtype }
    }

    /// A tile that is read: one of SBUF, or sometimes of PSUM.
    fn source(&mut self) -> TileId {
        if !self.psum.is_empty() && self.random.once_in(4) {
            return self.random.one_of(&self.psum);
        }
        // The newer the likelier.
        let from = if self.random.once_in(2) { self.sbuf.len().saturating_sub(4) } else { 0 };
        self.random.one_of(&self.sbuf[from..])
    }

    fn sbuf_source(&mut self) -> TileId {
        self.random.one_of(&self.sbuf)
    }

    /// `n` elements of a tile on `n_partitions`, in some order; repeated ones only where they are read.
    /// `None` where the tile is too small.
    fn part(&mut self, tile: TileId, n_partitions: u8, n: usize, access: Access) -> Option<TileView> {
        let n_columns = self.n_columns(tile);
        let slack = n_columns.checked_sub(n)?;
        if self.n_partitions(tile) < n_partitions {
            return None;
        }
        let count = n as u16;
        let (offset, dims): (usize, SmallVec<[Dim; 4]>) = match self.random.below(6) {
            0 if n_columns >= 2 * n - 1 => {
                (self.random.below(n_columns + 2 - 2 * n), smallvec![Dim { step: 2, count }])
            }
            1 => (n - 1 + self.random.below(slack + 1), smallvec![Dim { step: -1, count }]),
            2 if access == Access::Read => (self.random.below(n_columns), smallvec![Dim { step: 0, count }]),
            3 if n.is_multiple_of(2) => {
                let dims = smallvec![Dim { step: 1, count: 2 }, Dim { step: 2, count: count / 2 }];
                (self.random.below(slack + 1), dims)
            }
            4 if n.is_multiple_of(3) => {
                let (step, count) = ((n / 3) as i16, count / 3);
                (self.random.below(slack + 1), smallvec![Dim { step, count: 3 }, Dim { step: 1, count }])
            }
            _ => (self.random.below(slack + 1), smallvec![Dim { step: 1, count }]),
        };
        let mut view = self.view(tile, offset, dims);
        view.n_partitions = n_partitions;
        if n_partitions <= 32 && self.n_partitions(tile) >= 64 && self.random.once_in(3) {
            view.partition = 32;
        }
        Some(view)
    }

    /// A place to write `n` elements on `n_partitions` of SBUF: a new tile, or a part of an old one.
    fn destination(&mut self, dtype: Dtype, n_partitions: u8, n: usize) -> (TileView, Option<TileId>) {
        if !self.sbuf.is_empty() && self.random.once_in(3) {
            let tile = self.sbuf_source();
            if let Some(view) = self.part(tile, n_partitions, n, Access::Write) {
                return (view, None);
            }
        }
        let tile = self.tile(Space::Sbuf, dtype, n_partitions, n);
        (self.whole(tile), Some(tile))
    }

    /// Takes an instruction that writes what [`Generator::destination`] gave.
    fn emit_to(&mut self, created: Option<TileId>, engine: Engine, kind: InstructionKind) {
        match created {
            Some(tile) => self.emit_new(tile, engine, kind),
            None => {
                self.emit(engine, kind);
            }
        }
    }

    fn step(&mut self) {
        match self.random.below(15) {
            0 => self.load(),
            1 => self.store(),
            2 => self.move_in_memory(),
            3 => self.indexed_rows(),
            4..=6 => self.matrix(),
            7 => self.turn(),
            _ => self.compute(),
        }
    }
}

/// What a view is for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{RandomProgramOptions, random_program};
    use crate::program::verify::verify;
    use crate::program::{DmaQueue, InstructionKind};
    use crate::target::TargetName;

    #[test]
    fn programs_are_sound_and_have_every_instruction_engine_and_queue() {
        let (mut kinds, mut queues, mut engines) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut n_groups = 0;
        for seed in 0..300 {
            let target = TargetName::ALL[seed as usize % 3];
            let program = random_program(seed, &RandomProgramOptions { target, n_steps: 40 });
            assert_eq!(verify(&program), [], "seed {seed} on {target}");
            assert!(program.instructions.len() > 20, "seed {seed}");
            for instruction in &program.instructions {
                kinds.insert(instruction.kind.name());
                engines.insert(instruction.engine);
                if let InstructionKind::Dma { queue, gather, .. } = &instruction.kind {
                    queues.insert((*queue, gather.is_some()));
                }
                n_groups += usize::from(matches!(instruction.kind, InstructionKind::Matmul { accumulate: true, .. }));
            }
        }
        let expected = [
            "activation",
            "bn_aggr",
            "bn_stats",
            "dma_copy",
            "iota",
            "memset",
            "nc_matmul",
            "nc_transpose",
            "reciprocal",
            "scalar_tensor_tensor",
            "tensor_copy",
            "tensor_copy_predicated",
            "tensor_reduce",
            "tensor_scalar",
            "tensor_scalar_reduce",
            "tensor_tensor",
            "tensor_tensor_scan",
        ];
        assert_eq!(kinds.into_iter().collect::<Vec<_>>(), expected);
        assert_eq!(engines.len(), 5);
        let all = [
            (DmaQueue::Hardware, false),
            (DmaQueue::HardwareTranspose, false),
            (DmaQueue::Software, false),
            (DmaQueue::Software, true),
            (DmaQueue::Ring, false),
        ];
        assert_eq!(queues.into_iter().collect::<Vec<_>>(), all);
        assert!(n_groups > 100, "{n_groups} matmuls that accumulate");
    }
}
