//! Random lowered programs, and a machine that runs programs of any phase on symbols.
//!
//! The machine knows nothing of arithmetic: an instruction's results are a hash of what it reads.
//! Run one instruction at a time it gives a program's meaning; run asynchronously, with every
//! choice of timing left to chance, it shows whether waits keep that meaning.

use std::collections::{BTreeMap, VecDeque};

use ir::Program;
use ir::program::{
    ActivationFunction, AluOp, Dim, DmaAccess, DmaDim, DmaPlace, DmaQueue, Engine, HbmId, HbmKind, HbmTensor,
    Instruction, InstructionKind, ReduceCommand, ScalarOperand, Space, Tile, TileId, TileView,
};
use ir::target::TargetName;
use ir::types::Dtype;
use smallvec::smallvec;

/// A small generator of numbers; the sequence depends on the seed alone.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Below `n`, which is not 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}

/// Partitions of every tile here.
const ROWS: u8 = 4;

pub(crate) struct Builder {
    pub program: Program,
}

impl Builder {
    pub(crate) fn new(target: TargetName) -> Self {
        Builder { program: Program::new("test", target) }
    }

    /// A tensor of `ROWS` rows.
    pub(crate) fn tensor(&mut self, kind: HbmKind, n_columns: u32) -> HbmId {
        let id = HbmId(self.program.tensors.len() as u32);
        self.program.tensors.push(HbmTensor {
            name: format!("tensor_{}", id.0),
            kind,
            dtype: Dtype::F32,
            shape: [usize::from(ROWS), n_columns as usize].into_iter().collect(),
            size_bytes: u64::from(ROWS) * u64::from(n_columns) * 4,
        });
        id
    }

    pub(crate) fn tile(&mut self, space: Space, n_columns: u32) -> TileId {
        let id = TileId(self.program.tiles.len() as u32);
        self.program.tiles.push(Tile {
            label: format!("tile_{}", id.0),
            space,
            dtype: Dtype::F32,
            n_partitions: ROWS,
            bytes_per_partition: n_columns * 4,
            alignment_bytes: 4,
            address: None,
        });
        id
    }

    pub(crate) fn push(&mut self, engine: Engine, kind: InstructionKind) {
        self.program.instructions.push(Instruction::new(engine, kind));
    }

    pub(crate) fn load(&mut self, tile: TileId, tensor: HbmId, first: u32, n_columns: u32) {
        let (dst, src) = (on_chip(tile, first, n_columns), in_hbm(&self.program, tensor, first, n_columns));
        self.push(Engine::Sp, InstructionKind::Dma { dst, src, queue: DmaQueue::Hardware, gather: None });
    }

    pub(crate) fn store(&mut self, tensor: HbmId, tile: TileId, first: u32, n_columns: u32) {
        let (dst, src) = (in_hbm(&self.program, tensor, first, n_columns), on_chip(tile, first, n_columns));
        self.push(Engine::Sp, InstructionKind::Dma { dst, src, queue: DmaQueue::Hardware, gather: None });
    }

    /// Columns of a tensor to the start of a tile.
    pub(crate) fn load_from(&mut self, tile: TileId, tensor: HbmId, first: u32, n_columns: u32) {
        let (dst, src) = (on_chip(tile, 0, n_columns), in_hbm(&self.program, tensor, first, n_columns));
        self.push(Engine::Sp, InstructionKind::Dma { dst, src, queue: DmaQueue::Hardware, gather: None });
    }

    /// The start of a tile to columns of a tensor.
    pub(crate) fn store_to(&mut self, tensor: HbmId, first: u32, tile: TileId, n_columns: u32) {
        let (dst, src) = (in_hbm(&self.program, tensor, first, n_columns), on_chip(tile, 0, n_columns));
        self.push(Engine::Sp, InstructionKind::Dma { dst, src, queue: DmaQueue::Hardware, gather: None });
    }

    pub(crate) fn multiply(&mut self, [dst, stationary, moving]: [TileView; 3], accumulate: bool) {
        self.push(Engine::Pe, InstructionKind::Matmul { dst, stationary, moving, accumulate });
    }

    pub(crate) fn copy(&mut self, dst: TileView, src: TileView) {
        self.push(Engine::Dve, InstructionKind::TensorCopy { dst, src });
    }

    pub(crate) fn add(&mut self, dst: TileView, lhs: TileView, rhs: TileView) {
        self.push(Engine::Dve, InstructionKind::TensorTensor { dst, lhs, rhs, op: AluOp::Add });
    }
}

pub(crate) fn activation(function: ActivationFunction, dst: TileView, data: TileView) -> InstructionKind {
    let (scale, bias) = (ScalarOperand::Immediate(1.0), ScalarOperand::Immediate(0.0));
    InstructionKind::Activation { function, dst, data, scale, bias, reduce: None, reduce_result: None }
}

/// Columns of a tile.
pub(crate) fn view(tile: TileId, first: u32, n_columns: u32) -> TileView {
    let count = u16::try_from(n_columns).expect("test tiles are small");
    let dims = smallvec![Dim { step: 1, count }];
    TileView { tile, partition: 0, n_partitions: ROWS, offset: first, dims, dtype: Dtype::F32 }
}

fn on_chip(tile: TileId, first: u32, n_columns: u32) -> DmaAccess {
    DmaAccess {
        place: DmaPlace::Tile { tile, partition: 0 },
        offset: u64::from(first),
        dims: smallvec![
            DmaDim { partition_step: 1, step: 0, count: u32::from(ROWS) },
            DmaDim { partition_step: 0, step: 1, count: n_columns }
        ],
        dtype: Dtype::F32,
    }
}

fn in_hbm(program: &Program, tensor: HbmId, first: u32, n_columns: u32) -> DmaAccess {
    let row = program.tensor(tensor).shape[1] as i64;
    DmaAccess {
        place: DmaPlace::Hbm { tensor },
        offset: u64::from(first),
        dims: smallvec![
            DmaDim { partition_step: 0, step: row, count: u32::from(ROWS) },
            DmaDim { partition_step: 0, step: 1, count: n_columns }
        ],
        dtype: Dtype::F32,
    }
}

/// A program of loads, computations on all engines and stores over tiles of up to `max_columns`
/// columns, where everything that is read has been written.
pub(crate) fn random_program(target: TargetName, seed: u64, n_steps: usize, max_columns: u32) -> Program {
    let mut chance = Chance::new(seed);
    let mut builder = Builder::new(target);
    let input = builder.tensor(HbmKind::Input(0), max_columns);
    let output = builder.tensor(HbmKind::Output(0), max_columns);
    let mut full: Vec<(TileId, u32)> = Vec::new();
    let columns = |chance: &mut Chance| 2 + chance.below(max_columns as usize - 1) as u32;
    for _ in 0..n_steps {
        match if full.is_empty() { 0 } else { chance.below(8) } {
            0 | 1 => {
                let n = columns(&mut chance);
                let tile = builder.tile(Space::Sbuf, n);
                let cut = 1 + chance.below(n as usize - 1) as u32;
                builder.load(tile, input, 0, cut);
                builder.load(tile, input, cut, n - cut);
                full.push((tile, n));
            }
            2 => {
                let (source, n) = full[chance.below(full.len())];
                let (first, len) = part(&mut chance, n);
                builder.store(output, source, first, len);
            }
            3 => {
                // Two matmuls into one bank and its eviction.
                let (source, n) = full[chance.below(full.len())];
                let bank = builder.tile(Space::Psum, n);
                for accumulate in [false, true] {
                    let (dst, stationary, moving) = (view(bank, 0, n), view(source, 0, n), view(source, 0, n));
                    builder.push(Engine::Pe, InstructionKind::Matmul { dst, stationary, moving, accumulate });
                }
                let tile = builder.tile(Space::Sbuf, n);
                builder.push(Engine::Dve, InstructionKind::TensorCopy { dst: view(tile, 0, n), src: view(bank, 0, n) });
                full.push((tile, n));
            }
            4 => {
                let functions = [ActivationFunction::Exp, ActivationFunction::Gelu, ActivationFunction::Square];
                let (source, n) = full[chance.below(full.len())];
                let tile = builder.tile(Space::Sbuf, n);
                let mut kind = activation(functions[chance.below(3)], view(tile, 0, n), view(source, 0, n));
                if let InstructionKind::Activation { reduce, .. } = &mut kind {
                    *reduce = (chance.below(3) == 0).then_some(ReduceCommand::ResetReduce);
                }
                builder.push(Engine::Act, kind);
                full.push((tile, n));
            }
            5 => {
                // Pool fills a part of an existing tile.
                let (tile, n) = full[chance.below(full.len())];
                let (first, len) = part(&mut chance, n);
                let kind = InstructionKind::Memset { dst: view(tile, first, len), value: 0.0 };
                builder.push([Engine::Pool, Engine::Dve][chance.below(2)], kind);
            }
            _ => {
                let (lhs, n) = full[chance.below(full.len())];
                let (rhs, rhs_n) = full[chance.below(full.len())];
                let (dst, dst_n) = full[chance.below(full.len())];
                let n = n.min(rhs_n).min(dst_n);
                let (first, len) = part(&mut chance, n);
                builder.add(view(dst, first, len), view(lhs, first, len), view(rhs, 0, len));
            }
        }
    }
    let (last, n) = full[full.len() - 1];
    builder.store(output, last, 0, n);
    builder.program
}

fn part(chance: &mut Chance, n: u32) -> (u32, u32) {
    let first = chance.below(n as usize) as u32;
    (first, 1 + chance.below((n - first) as usize) as u32)
}

/// One byte of memory: on-chip spaces by number, tiles and tensors by identity; row and byte.
type Cell = (u8, u32, i64, i64);

/// Symbols by place; what was never written is a symbol of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    cells: BTreeMap<Cell, u64>,
}

impl Machine {
    /// The outputs after running the instructions one by one.
    pub(crate) fn meaning(program: &Program) -> BTreeMap<Cell, u64> {
        let mut machine = Machine::default();
        for instruction in &program.instructions {
            let read = machine.read(program, &instruction.kind);
            machine.write(program, &instruction.kind, &read);
        }
        machine.outputs(program)
    }

    /// The outputs after one random asynchronous run.
    ///
    /// # Errors
    /// When nothing can happen any more although instructions are left.
    pub(crate) fn race(program: &Program, seed: u64) -> Result<BTreeMap<Cell, u64>, String> {
        let mut chance = Chance::new(seed);
        let mut machine = Machine::default();
        let mut streams: Vec<VecDeque<&Instruction>> = Engine::ALL
            .iter()
            .map(|&engine| program.stream(engine).map(|(_, instruction)| instruction).collect())
            .collect();
        // Issued and not complete: per engine in order; transfers with what they have read.
        let mut pipelines: Vec<VecDeque<&Instruction>> = vec![VecDeque::new(); Engine::ALL.len()];
        let mut transfers: Vec<(&Instruction, Option<Vec<u64>>)> = Vec::new();
        let mut counts: BTreeMap<u16, u32> = BTreeMap::new();
        let sp = Engine::Sp as usize;
        loop {
            let can_issue = |engine: &usize| {
                let holds = |wait: &ir::program::Wait| {
                    counts.get(&wait.semaphore).copied().unwrap_or(0) >= u32::from(wait.at_least)
                };
                streams[*engine].front().is_some_and(|next| next.waits.iter().all(holds))
            };
            let issuable: Vec<usize> = (0..streams.len()).filter(can_issue).collect();
            let running: Vec<usize> = (0..pipelines.len()).filter(|&engine| !pipelines[engine].is_empty()).collect();
            let n_choices = issuable.len() + running.len() + transfers.len();
            // Outputs are read once SP has nothing left, as the host would.
            if streams[sp].is_empty() && pipelines[sp].is_empty() && streams.iter().all(VecDeque::is_empty) {
                return Ok(machine.outputs(program));
            }
            if n_choices == 0 {
                return Err("nothing can happen".into());
            }
            let choice = chance.below(n_choices);
            let mut done = None;
            if let Some(&engine) = issuable.get(choice) {
                let next = streams[engine].pop_front().expect("only engines with a next instruction issue");
                match next.kind {
                    InstructionKind::Dma { .. } => transfers.push((next, None)),
                    _ => pipelines[engine].push_back(next),
                }
            } else if let Some(&engine) = running.get(choice - issuable.len()) {
                let next = pipelines[engine].pop_front().expect("only busy engines run");
                let read = machine.read(program, &next.kind);
                machine.write(program, &next.kind, &read);
                done = Some(next);
            } else {
                let at = choice - issuable.len() - running.len();
                match &transfers[at] {
                    (transfer, None) => transfers[at].1 = Some(machine.read(program, &transfer.kind)),
                    (transfer, Some(read)) => {
                        machine.write(program, &transfer.kind, read);
                        done = Some(*transfer);
                        transfers.swap_remove(at);
                    }
                }
            }
            if let Some(update) = done.and_then(|instruction| instruction.update) {
                *counts.entry(update.semaphore).or_default() += u32::from(update.add);
            }
        }
    }

    fn outputs(&self, program: &Program) -> BTreeMap<Cell, u64> {
        let is_output =
            |cell: &Cell| cell.0 == 2 && matches!(program.tensors[cell.1 as usize].kind, HbmKind::Output(_));
        self.cells.iter().filter(|(cell, _)| is_output(cell)).map(|(cell, value)| (*cell, *value)).collect()
    }

    fn read(&self, program: &Program, kind: &InstructionKind) -> Vec<u64> {
        let accesses = kind.accesses();
        let mut cells: Vec<Cell> = accesses.tile_reads.iter().flat_map(|view| view_cells(program, view)).collect();
        cells.extend(accesses.dma_read.into_iter().flat_map(|side| side_cells(program, side)));
        // Every cell of an input is a symbol; others are poison until written.
        cells.iter().map(|cell| self.cells.get(cell).copied().unwrap_or_else(|| initial(program, cell))).collect()
    }

    fn write(&mut self, program: &Program, kind: &InstructionKind, read: &[u64]) {
        let accesses = kind.accesses();
        if let Some(side) = accesses.dma_write {
            for (cell, value) in side_cells(program, side).into_iter().zip(read) {
                self.cells.insert(cell, *value);
            }
        }
        let name = kind.name().bytes().map(u64::from);
        let hash = name.chain(read.iter().copied()).fold(7, mix);
        for (at, cell) in accesses.tile_writes.iter().flat_map(|view| view_cells(program, view)).enumerate() {
            self.cells.insert(cell, mix(hash, at as u64));
        }
    }
}

fn mix(hash: u64, value: u64) -> u64 {
    (hash ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(29) ^ value.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn initial(program: &Program, cell: &Cell) -> u64 {
    let is_input = cell.0 == 2 && matches!(program.tensors[cell.1 as usize].kind, HbmKind::Input(_));
    if is_input { mix(cell.2 as u64, cell.3 as u64) } else { 0xdead }
}

fn place(program: &Program, tile: TileId) -> (u8, u32, i64, i64) {
    match (program.tile(tile).address, program.tile(tile).space) {
        (None, _) => (3, tile.0, 0, 0),
        (Some(at), Space::Sbuf) => (0, 0, i64::from(at.partition), i64::from(at.start_byte)),
        (Some(at), Space::Psum) => (1, 0, i64::from(at.partition), i64::from(at.start_byte)),
    }
}

fn view_cells(program: &Program, view: &TileView) -> Vec<Cell> {
    let (space, id, row, byte) = place(program, view.tile);
    let size = view.dtype.size_bytes() as i64;
    let mut cells = Vec::new();
    for partition in 0..i64::from(view.n_partitions) {
        let mut offsets = vec![i64::from(view.offset)];
        for dim in &view.dims {
            let steps = 0..i64::from(dim.count);
            offsets = offsets.iter().flat_map(|at| steps.clone().map(move |i| at + i * i64::from(dim.step))).collect();
        }
        for offset in offsets {
            let row = row + i64::from(view.partition) + partition;
            cells.extend((0..size).map(|part| (space, id, row, byte + offset * size + part)));
        }
    }
    cells
}

fn side_cells(program: &Program, side: &DmaAccess) -> Vec<Cell> {
    let size = side.dtype.size_bytes() as i64;
    let (space, id, row, byte) = match side.place {
        DmaPlace::Hbm { tensor } => (2, tensor.0, 0, 0),
        DmaPlace::Tile { tile, partition } => {
            let (space, id, row, byte) = place(program, tile);
            (space, id, row + i64::from(partition), byte)
        }
    };
    let mut elements = vec![(row, side.offset as i64)];
    for dim in &side.dims {
        let steps = 0..i64::from(dim.count);
        let moved = |&(row, at): &(i64, i64)| {
            steps.clone().map(move |i| (row + i * i64::from(dim.partition_step), at + i * dim.step)).collect::<Vec<_>>()
        };
        elements = elements.iter().flat_map(moved).collect();
    }
    let bytes = |(row, at): (i64, i64)| (0..size).map(move |part| (space, id, row, byte + at * size + part));
    elements.into_iter().flat_map(bytes).collect()
}
