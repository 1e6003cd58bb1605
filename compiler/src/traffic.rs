//! Why bytes cross the border of device memory: what a program's transfers move, by cause.
//!
//! Every byte that a transfer reads or writes has one cause, so that the causes sum to what is measured.
//! Which elements of an input a transfer reads for the first time is found out element by element; of
//! gathers, whose rows nobody knows, as many rows count as different as there are.

use std::collections::BTreeMap;

use ir::graph::InputRole;
use ir::program::{DmaAccess, DmaPlace, HbmId, HbmKind, HbmTensor, Instruction, InstructionKind, KernelPlace, TileId};
use ir::{Graph, Program};
use passes::allocate::is_spill;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::naming::main_name;
use crate::pipeline::Outlined;

/// What a tensor in device memory is to a model.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Activation,
    Weight,
    Constant,
    Output,
    /// A result of one call that another one reads.
    Between,
    Spill,
    Scratch,
}

/// Bytes of one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CauseEntry {
    /// Words of [`CAUSES`].
    pub cause: String,
    pub read_bytes: u64,
    pub write_bytes: u64,
}

/// Causes in the order of reports. The first four are what no program can do without.
pub const CAUSES: [&str; 13] = [
    "inputs",
    "weights",
    "constants",
    "outputs",
    "inputs again",
    "weights again",
    "constants again",
    "outputs again",
    "between calls",
    "spill",
    "scratch",
    "broadcast",
    "padding",
];

/// Position of a cause in [`CAUSES`].
fn cause(name: &str) -> usize {
    CAUSES.iter().position(|known| *known == name).expect("causes are named as listed")
}

/// Bytes read and written of each cause, in the order of [`CAUSES`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
struct Traffic([[u64; 2]; CAUSES.len()]);

/// Bytes that move of one tensor in one direction.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
struct Moved {
    /// Elements of the tensor, each for the first time.
    once: u64,
    again: u64,
    /// Repeated within one transfer.
    broadcast: u64,
    /// Bytes of the buffer between the elements of the tensor.
    padding: u64,
}

/// What a program moves, by its tensors: read, written.
type ByTensor = Vec<[Moved; 2]>;

/// What a compiled graph's only program moves.
pub fn program_traffic(graph: &Graph, program: &Program) -> Vec<CauseEntry> {
    let mut traffic = Traffic::default();
    for (tensor, moved) in program.tensors.iter().zip(moved(program)) {
        traffic.add(class(graph, tensor), moved);
    }
    traffic.entries()
}

/// What all calls of an outlined graph move; empty where its calls are not known.
pub fn outlined_traffic(outlined: &Outlined) -> Vec<CauseEntry> {
    let Some(module) = &outlined.module else { return Vec::new() };
    let of_kernels: Vec<ByTensor> = module.kernels.iter().map(|kernel| moved(&kernel.program)).collect();
    let mut traffic = Traffic::default();
    // What an earlier call has read of weights that calls share.
    let mut known: BTreeMap<usize, [u64; 2]> = BTreeMap::new();
    for call in &module.calls {
        let (kernel, graph) = (&module.kernels[call.kernel], &outlined.functions[call.kernel]);
        for ((tensor, place), moved) in kernel.program.tensors.iter().zip(&kernel.places).zip(&of_kernels[call.kernel])
        {
            let bound = match *place {
                KernelPlace::Bound(position) => call.bindings[position as usize],
                KernelPlace::Fixed(tensor) => tensor,
            };
            let is_bound = matches!(place, KernelPlace::Bound(_));
            let class = match module.tensors[bound.index()].kind {
                HbmKind::Scratch if is_bound => Class::Between,
                HbmKind::Constant(_) => Class::Constant,
                HbmKind::Input(_) | HbmKind::Output(_) | HbmKind::Updated { .. } | HbmKind::Scratch => {
                    class(graph, tensor)
                }
            };
            let mut moved = *moved;
            let earlier = known.entry(bound.index()).or_default();
            for (moved, earlier) in moved.iter_mut().zip(earlier) {
                let repeated = moved.once.min(*earlier);
                *earlier = (*earlier).max(moved.once);
                moved.once -= repeated;
                moved.again += repeated;
            }
            traffic.add(class, moved);
        }
    }
    traffic.entries()
}

fn class(graph: &Graph, tensor: &HbmTensor) -> Class {
    match tensor.kind {
        HbmKind::Input(position) | HbmKind::Updated { input: position, output: _ } => {
            match graph.inputs.get(position as usize).map(|input| input.role) {
                Some(InputRole::Static) => Class::Weight,
                Some(InputRole::Dynamic | InputRole::Saved | InputRole::Tangent) | None => Class::Activation,
            }
        }
        HbmKind::Output(_) => Class::Output,
        HbmKind::Constant(_) => Class::Constant,
        HbmKind::Scratch if is_spill(tensor) => Class::Spill,
        HbmKind::Scratch => Class::Scratch,
    }
}

impl Traffic {
    fn add(&mut self, class: Class, moved: [Moved; 2]) {
        let [read, write] = [0, 1];
        for (direction, moved) in moved.into_iter().enumerate() {
            let Moved { once, again, broadcast, padding } = moved;
            let is_write = direction == write;
            let [first, repeated] = match class {
                // What is written of an input that is updated in place is an output.
                Class::Activation | Class::Weight | Class::Output if is_write => ["outputs", "outputs again"],
                Class::Activation => ["inputs", "inputs again"],
                Class::Weight => ["weights", "weights again"],
                Class::Constant => ["constants", "constants again"],
                Class::Output => ["outputs again", "outputs again"],
                Class::Between => ["between calls", "between calls"],
                Class::Spill => ["spill", "spill"],
                Class::Scratch => ["scratch", "scratch"],
            };
            debug_assert!(is_write || direction == read);
            for (name, bytes) in [(first, once), (repeated, again), ("broadcast", broadcast), ("padding", padding)] {
                self.0[cause(name)][direction] += bytes;
            }
        }
    }

    fn entries(&self) -> Vec<CauseEntry> {
        let named = CAUSES.iter().zip(self.0).filter(|(_, bytes)| *bytes != [0, 0]);
        let entry = |(cause, [read_bytes, write_bytes]): (&&str, [u64; 2])| CauseEntry {
            cause: (*cause).to_owned(),
            read_bytes,
            write_bytes,
        };
        named.map(entry).collect()
    }
}

/// A transfer's side in device memory.
struct Access<'a> {
    access: &'a DmaAccess,
    /// Its rows are known when the program runs.
    is_indexed: bool,
}

/// What each tensor of a program is moved of, read and written.
fn moved(program: &Program) -> ByTensor {
    let mut accesses: Vec<[Vec<Access<'_>>; 2]> = program.tensors.iter().map(|_| [Vec::new(), Vec::new()]).collect();
    for instruction in &program.instructions {
        let InstructionKind::Dma { dst, src, gather, .. } = &instruction.kind else { continue };
        let scatters = ir::program::Gather::scatters(src);
        for (direction, access) in [src, dst].into_iter().enumerate() {
            let Some(tensor) = access.hbm() else { continue };
            let is_indexed = gather.is_some() && scatters == (direction == 1);
            accesses[tensor.index()][direction].push(Access { access, is_indexed });
        }
    }
    let of_tensor =
        |(tensor, accesses): (&HbmTensor, [Vec<Access<'_>>; 2])| accesses.map(|accesses| moved_of(tensor, &accesses));
    program.tensors.iter().zip(accesses).map(of_tensor).collect()
}

fn moved_of(tensor: &HbmTensor, accesses: &[Access<'_>]) -> Moved {
    let mut moved = Moved::default();
    let sizes = accesses.iter().map(|access| access.access.dtype.size_bytes());
    let Some(unit) = sizes.min().map(|size| size as u64).filter(|&unit| unit > 0) else { return moved };
    let mut indexed_bytes = 0;
    let mut different_bytes = 0;
    let mut runs: Vec<Runs> = Vec::new();
    for Access { access, is_indexed } in accesses {
        let size = access.dtype.size_bytes() as u64;
        // A dimension without a step repeats what the others visit.
        let n_elements = access.n_elements();
        let repeats = access.dims.iter().filter(|dim| dim.step == 0).map(|dim| u64::from(dim.count)).product::<u64>();
        let n_different = n_elements.checked_div(repeats).unwrap_or(0);
        moved.broadcast += (n_elements - n_different) * size;
        if *is_indexed {
            indexed_bytes += n_different * size;
        } else {
            different_bytes += n_different * size;
            runs.push(Runs::of(access, size / unit));
        }
    }
    moved.once = n_visited(&runs, tensor.size_bytes.div_ceil(unit)) * unit;
    moved.again = different_bytes - moved.once;
    // As many rows of gathers are different as the tensor has.
    let different = indexed_bytes.min(tensor.size_bytes.saturating_sub(moved.once));
    moved.once += different;
    moved.again += indexed_bytes - different;
    let own = tensor.shape.iter().product::<usize>() as u64 * tensor.dtype.size_bytes() as u64;
    moved.padding = moved.once.saturating_sub(own);
    moved.once -= moved.padding;
    moved
}

/// Values of one node that were moved out of SBUF for another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpillEntry {
    /// The node whose value was stored, the first one where several are one, with its module; empty
    /// where it is none of the model's.
    pub value_of: String,
    /// The node whose tiles needed the room.
    pub room_for: String,
    pub n_tiles: u64,
    pub write_bytes: u64,
    /// Bytes that were read back of it, in all.
    pub read_bytes: u64,
}

/// What a program spills, most bytes first.
pub fn spills(program: &Program) -> Vec<SpillEntry> {
    let node = |instruction: &Instruction| {
        let has_source = !instruction.locations.is_empty();
        has_source.then(|| main_name(&program.locations, &instruction.locations))
    };
    let spilled = |access: &DmaAccess| access.hbm().filter(|tensor| is_spill(&program.tensors[tensor.index()]));
    let bytes = |access: &DmaAccess| access.n_elements() * access.dtype.size_bytes() as u64;
    let mut entries: BTreeMap<(String, String), SpillEntry> = BTreeMap::new();
    // By tile, who wrote it last; by place in scratch, whose value is there.
    let mut writers: BTreeMap<TileId, String> = BTreeMap::new();
    let mut stored: BTreeMap<(HbmId, u64), (String, String)> = BTreeMap::new();
    for (position, instruction) in program.instructions.iter().enumerate() {
        if let InstructionKind::Dma { dst, src, .. } = &instruction.kind {
            if let (Some(tensor), DmaPlace::Tile { tile, .. }) = (spilled(dst), src.place) {
                let following = program.instructions[position..].iter().find_map(node);
                let key = (writers.get(&tile).cloned().unwrap_or_default(), following.unwrap_or_default());
                let entry = entries.entry(key.clone()).or_default();
                (entry.value_of, entry.room_for) = key.clone();
                entry.n_tiles += 1;
                entry.write_bytes += bytes(dst);
                stored.insert((tensor, dst.offset * dst.dtype.size_bytes() as u64), key);
                continue;
            }
            if let (Some(tensor), DmaPlace::Tile { tile, .. }) = (spilled(src), dst.place) {
                let key = stored.get(&(tensor, src.offset * src.dtype.size_bytes() as u64)).cloned();
                let key = key.unwrap_or_default();
                writers.insert(tile, key.0.clone());
                entries.entry(key).or_default().read_bytes += bytes(src);
                continue;
            }
        }
        let Some(node) = node(instruction) else { continue };
        let accesses = instruction.kind.accesses();
        let mut written: Vec<TileId> = accesses.tile_writes.iter().map(|view| view.tile).collect();
        if let Some(DmaPlace::Tile { tile, .. }) = accesses.dma_write.map(|access| access.place) {
            written.push(tile);
        }
        writers.extend(written.into_iter().map(|tile| (tile, node.clone())));
    }
    let mut entries: Vec<SpillEntry> = entries.into_values().collect();
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.write_bytes + entry.read_bytes));
    entries
}

/// What an access visits, in bits of so many to an element: runs side by side of one length.
struct Runs {
    first: i64,
    n_bits: u64,
    /// Steps in bits and counts, the last one fastest.
    dims: SmallVec<[(i64, u64); 4]>,
}

impl Runs {
    fn of(access: &DmaAccess, bits: u64) -> Runs {
        let steps = access.dims.iter().filter(|dim| dim.step != 0);
        let mut dims: SmallVec<[(i64, u64); 4]> =
            steps.map(|dim| (dim.step * bits as i64, u64::from(dim.count))).collect();
        let mut n_bits = bits;
        while let Some(&(_, count)) = dims.last().filter(|&&(step, _)| u64::try_from(step) == Ok(n_bits)) {
            n_bits *= count;
            dims.pop();
        }
        Runs { first: access.offset as i64 * bits as i64, n_bits, dims }
    }

    fn starts(&self) -> impl Iterator<Item = i64> + '_ {
        let n_runs: u64 = self.dims.iter().map(|&(_, count)| count).product();
        (0..n_runs).map(|number| {
            let mut rest = number;
            self.dims.iter().rev().fold(self.first, |start, &(step, count)| {
                let at = rest % count;
                rest /= count;
                start + step * at as i64
            })
        })
    }
}

/// How many of a tensor's bits any run visits.
fn n_visited(runs: &[Runs], n_bits: u64) -> u64 {
    /// Bits that are looked at together; more would take memory that large tensors have and we do not.
    const WINDOW: u64 = 1 << 27;
    let windows = (0..n_bits).step_by(WINDOW as usize);
    let of_window = |first: u64| {
        let mut bits = vec![0u64; WINDOW.min(n_bits - first).div_ceil(64) as usize];
        let n_own = bits.len() as u64 * 64;
        for run in runs {
            for start in run.starts() {
                let end = (start + run.n_bits as i64 - first as i64).max(0) as u64;
                mark(&mut bits, (start - first as i64).max(0) as u64, end.min(n_own));
            }
        }
        bits.iter().map(|word| u64::from(word.count_ones())).sum::<u64>()
    };
    windows.map(of_window).sum()
}

/// Sets the bits from `start` to before `end`.
fn mark(bits: &mut [u64], start: u64, end: u64) {
    let mut at = start;
    while at < end {
        let first = at % 64;
        let count = (64 - first).min(end - at);
        bits[(at / 64) as usize] |= (u64::MAX >> (64 - count)) << first;
        at += count;
    }
}

#[cfg(test)]
mod tests {
    use ir::graph::InputRole;
    use ir::program::{
        DmaAccess, DmaDim, DmaPlace, DmaQueue, Engine, Gather, HbmId, HbmKind, HbmTensor, Instruction, InstructionKind,
        TileId, TileView,
    };
    use ir::target::TargetName;
    use ir::types::Shape;
    use ir::{Dtype, Graph, Program, TensorType};
    use smallvec::{SmallVec, smallvec};

    use super::{program_traffic, spills};

    fn access(place: DmaPlace, offset: u64, dims: &[(i64, u32)]) -> DmaAccess {
        let dims = dims.iter().map(|&(step, count)| DmaDim { partition_step: 0, step, count }).collect();
        DmaAccess { place, offset, dims, dtype: Dtype::F32 }
    }

    fn hbm(tensor: u32, offset: u64, dims: &[(i64, u32)]) -> DmaAccess {
        access(DmaPlace::Hbm { tensor: HbmId(tensor) }, offset, dims)
    }

    fn tile(n_elements: u32) -> DmaAccess {
        access(DmaPlace::Tile { tile: TileId(0), partition: 0 }, 0, &[(1, n_elements)])
    }

    /// An input x of 4 x 8 f32 with 12 to a row, a weight w and an output y of 64, and a spill.
    fn program(transfers: &[(DmaAccess, DmaAccess, Option<Gather>)]) -> Vec<(String, u64, u64)> {
        let mut graph = Graph::new("g");
        graph.push_input("x", TensorType::new(Dtype::F32, [4, 8]), InputRole::Dynamic);
        graph.push_input("w", TensorType::new(Dtype::F32, [64]), InputRole::Static);
        let mut program = Program::new("g", TargetName::Trn2);
        let tensors: [(HbmKind, &str, &[usize], u64); 4] = [
            (HbmKind::Input(0), "x", &[4, 8], 4 * 12 * 4),
            (HbmKind::Input(1), "w", &[64], 256),
            (HbmKind::Output(0), "y", &[64], 256),
            (HbmKind::Scratch, "spill_3", &[64], 256),
        ];
        for (kind, name, shape, size_bytes) in tensors {
            let shape = Shape::from_slice(shape);
            program.tensors.push(HbmTensor { name: name.to_owned(), kind, dtype: Dtype::F32, shape, size_bytes });
        }
        for (dst, src, gather) in transfers.iter().cloned() {
            let kind = InstructionKind::Dma { dst, src, queue: DmaQueue::Hardware, gather };
            program.instructions.push(Instruction::new(Engine::Sp, kind));
        }
        let entries = program_traffic(&graph, &program);
        entries.into_iter().map(|entry| (entry.cause, entry.read_bytes, entry.write_bytes)).collect()
    }

    fn expected(entries: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
        entries.iter().map(|&(cause, read, write)| (cause.to_owned(), read, write)).collect()
    }

    #[test]
    fn elements_count_once_and_then_again() {
        let all = || hbm(1, 0, &[(1, 64)]);
        // Every other element, then all, then the first half backwards.
        let transfers = [
            (tile(32), hbm(1, 0, &[(2, 32)]), None),
            (tile(64), all(), None),
            (tile(32), hbm(1, 31, &[(-1, 32)]), None),
        ];
        assert_eq!(program(&transfers), expected(&[("weights", 256, 0), ("weights again", 256, 0)]));
    }

    #[test]
    fn repeats_of_one_transfer_and_gaps_between_rows_are_told_apart() {
        let rows = hbm(0, 0, &[(12, 4), (0, 3), (1, 8)]);
        let transfers = [(tile(96), rows, None), (tile(48), hbm(0, 0, &[(1, 48)]), None)];
        // Of the second transfer 32 elements were read before, and 16 are gaps.
        let causes = [("inputs", 128, 0), ("inputs again", 128, 0), ("broadcast", 256, 0), ("padding", 64, 0)];
        assert_eq!(program(&transfers), expected(&causes));
    }

    #[test]
    fn gathers_read_different_rows_as_far_as_there_are() {
        let index = TileView {
            tile: TileId(0),
            partition: 0,
            n_partitions: 10,
            offset: 0,
            dims: SmallVec::new(),
            dtype: Dtype::I32,
        };
        let gather = |n_rows: u32| Some(Gather { index: index.clone(), row_elements: 8, n_rows });
        let transfers = [(tile(80), hbm(1, 0, &[(8, 10), (1, 8)]), gather(8))];
        assert_eq!(program(&transfers), expected(&[("weights", 256, 0), ("weights again", 64, 0)]));
    }

    #[test]
    fn outputs_are_written_once_and_spills_are_no_outputs() {
        let y = || hbm(2, 0, &[(1, 64)]);
        let spill = || hbm(3, 0, &[(1, 64)]);
        let transfers = [
            (spill(), tile(64), None),
            (tile(64), spill(), None),
            (y(), tile(64), None),
            (y(), tile(64), None),
            (tile(64), y(), None),
        ];
        let causes = [("outputs", 0, 256), ("outputs again", 256, 256), ("spill", 256, 256)];
        assert_eq!(program(&transfers), expected(&causes));
    }

    #[test]
    fn spills_name_whose_value_made_room_for_whom() {
        let location = |node: &str| ir::graph::Location { node: node.to_owned(), ..Default::default() };
        let mut program = Program::new("g", TargetName::Trn2);
        program.locations = vec![location("first"), location("second")];
        let (name, shape) = ("spill_0".to_owned(), Shape::from_slice(&[64]));
        program.tensors = vec![HbmTensor { name, kind: HbmKind::Scratch, dtype: Dtype::F32, shape, size_bytes: 256 }];
        let view = |tile: u32| TileView {
            tile: TileId(tile),
            partition: 0,
            n_partitions: 1,
            offset: 0,
            dims: SmallVec::new(),
            dtype: Dtype::F32,
        };
        let fill = |tile: u32, location: u32| {
            let kind = InstructionKind::Memset { dst: view(tile), value: 0.0 };
            let locations = smallvec![ir::graph::LocationId(location)];
            Instruction { locations, ..Instruction::new(Engine::Dve, kind) }
        };
        let transfer = |dst: DmaAccess, src: DmaAccess| {
            let kind = InstructionKind::Dma { dst, src, queue: DmaQueue::Hardware, gather: None };
            Instruction::new(Engine::Sp, kind)
        };
        let spill = || hbm(0, 0, &[(1, 64)]);
        program.instructions = vec![
            fill(0, 0),
            transfer(spill(), tile(64)),
            fill(1, 1),
            transfer(tile(64), spill()),
            transfer(tile(64), spill()),
        ];
        let [entry] = &spills(&program)[..] else { panic!("one value is spilled") };
        assert_eq!((entry.value_of.as_str(), entry.room_for.as_str()), ("first", "second"));
        assert_eq!((entry.n_tiles, entry.write_bytes, entry.read_bytes), (1, 256, 512));
    }
}
