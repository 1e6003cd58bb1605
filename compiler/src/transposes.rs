//! Which values a program turns from rows on partitions to columns on partitions, how, and why.

use std::collections::BTreeMap;

use ir::Program;
use ir::program::{
    Accesses, DmaAccess, DmaPlace, DmaQueue, HbmId, HbmKind, Instruction, InstructionKind, Space, TileId,
};
use ir::target::cost::{cost_on, dma_cost};
use serde::{Deserialize, Serialize};

use crate::naming::main_name;

/// The turns of one value for one reader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransposeEntry {
    /// What is turned: a node with its module, or an input or constant by its name.
    pub value_of: String,
    /// The node that reads it turned.
    pub for_node: String,
    /// What turns it: `pe` or `dve` by an instruction, `dma` while it is loaded.
    pub by: String,
    pub n_instructions: u64,
    pub bytes: u64,
    /// Time of the engine, without the copies out of PSUM; of DMA engines the share of one.
    pub busy_ps: u64,
    pub reason: String,
}

/// How a value that was turned is read.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Stationary,
    Moving,
    Stored,
    Other,
}

/// Where a tile's contents come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Nothing,
    /// Position of a tensor.
    Loaded(u32),
    /// Position of an instruction.
    Made(u32),
}

/// Turns of equal source, queue and reader.
#[derive(Default)]
struct Count {
    n_instructions: u64,
    bytes: u64,
    busy_ps: u64,
}

/// One instruction that turns.
struct Turn {
    position: u32,
    source: Source,
    /// Those whose results lie in one tile have one reader.
    group: u32,
}

/// What a program turns, most time first.
pub fn transposes(program: &Program) -> Vec<TransposeEntry> {
    let (turns, readers) = turns(program);
    let target = program.target.target();
    let name = |position: u32| main_name(&program.locations, &program.instructions[position as usize].locations);
    let mut counts: BTreeMap<(String, bool, String, Role, &str), Count> = BTreeMap::new();
    for Turn { position, source, group } in turns {
        let reader = readers[group as usize];
        let instruction = &program.instructions[position as usize];
        let (value_of, is_loaded) = match source {
            Source::Loaded(tensor) => (program.tensors[tensor as usize].name.clone(), true),
            Source::Made(position) => (name(position), false),
            Source::Nothing => (String::new(), false),
        };
        let (for_node, role) = reader.map_or((String::new(), Role::Other), |(reader, role)| match role {
            Role::Stored => (stored_name(program, reader), role),
            Role::Stationary | Role::Moving | Role::Other => (name(reader), role),
        });
        let (by, bytes, busy_ps) = match &instruction.kind {
            InstructionKind::Dma { dst, src, queue, gather } => {
                let cost = dma_cost(target, dst, src, *queue, gather.as_ref(), &program.tiles);
                let n_engines = u64::from(target.dma_engines).max(1);
                let busy_ps = cost.engine_ps.iter().sum::<u64>() / n_engines;
                ("dma", src.n_elements() * src.dtype.size_bytes() as u64, busy_ps)
            }
            InstructionKind::Transpose { data, .. } => {
                let cost = cost_on(target, instruction.engine, &instruction.kind, &program.tiles);
                let n_elements = data.n_elements() * usize::from(data.n_partitions);
                (instruction.engine.name(), (n_elements * data.dtype.size_bytes()) as u64, cost.interval_ps)
            }
            _ => continue,
        };
        let count = counts.entry((value_of, is_loaded, for_node, role, by)).or_default();
        count.n_instructions += 1;
        count.bytes += bytes;
        count.busy_ps += busy_ps;
    }
    let entry = |((value_of, is_loaded, for_node, role, by), count): ((String, bool, String, Role, &str), Count)| {
        let reason = reason(&value_of, is_loaded, &for_node, role);
        let Count { n_instructions, bytes, busy_ps } = count;
        TransposeEntry { value_of, for_node, by: by.to_owned(), n_instructions, bytes, busy_ps, reason }
    };
    let mut entries: Vec<TransposeEntry> = counts.into_iter().map(entry).collect();
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.busy_ps));
    entries
}

fn reason(value: &str, is_loaded: bool, reader: &str, role: Role) -> String {
    let has = if is_loaded { "is stored" } else { "is made" };
    match role {
        Role::Stationary | Role::Moving => {
            let operand = if role == Role::Stationary { "stationary" } else { "moving" };
            format!(
                "{reader} sums along the axis that must lie on partitions, here of its {operand} operand; \
                 {value} {has} with the other axis there"
            )
        }
        Role::Stored => format!("{reader} is stored along the other axis than {value} {has}"),
        Role::Other if reader.is_empty() => format!("nothing reads {value} turned"),
        Role::Other => format!("{reader} works along the other axis than {value} {has}"),
    }
}

/// Name of the tensor that a transfer writes.
fn stored_name(program: &Program, position: u32) -> String {
    let InstructionKind::Dma { dst, .. } = &program.instructions[position as usize].kind else { return String::new() };
    dst.hbm().map(|tensor| program.tensors[tensor.index()].name.clone()).unwrap_or_default()
}

/// Every instruction that turns, and who reads the results of each group first.
fn turns(program: &Program) -> (Vec<Turn>, Vec<Option<(u32, Role)>>) {
    let mut turns: Vec<Turn> = Vec::new();
    let mut readers: Vec<Option<(u32, Role)>> = Vec::new();
    let mut sources = vec![Source::Nothing; program.tiles.len()];
    // A later group that a group has the same reader as.
    let mut joined: Vec<Option<u32>> = Vec::new();
    // By tile, which group's results it has, plus 1.
    let mut turned = vec![0u32; program.tiles.len()];
    // What is in scratch, by its first byte.
    let mut stored: BTreeMap<(HbmId, u64), Source> = BTreeMap::new();
    for (position, instruction) in (0u32..).zip(&program.instructions) {
        let accesses = instruction.kind.accesses();
        let source = source_of(program, instruction, position, &accesses, &sources, &stored);
        if let (Some(tensor), Some(write)) = (accesses.dma_write.and_then(DmaAccess::hbm), accesses.dma_write)
            && program.tensors[tensor.index()].kind == HbmKind::Scratch
        {
            stored.insert((tensor, first_byte(write)), source);
        }
        let sides = accesses.dma_write.into_iter().filter_map(tile_of);
        let written: Vec<TileId> = accesses.tile_writes.iter().map(|view| view.tile).chain(sides).collect();
        let passed_on = if let Some(data) = turned_data(instruction) {
            let source = match data {
                Data::Tile(tile) => sources[tile.index()],
                Data::Tensor(tensor) => Source::Loaded(tensor),
            };
            // Several turn into parts of one tile before it is read.
            let known = written.iter().map(|tile| turned[tile.index()]).max().unwrap_or(0);
            let group = match known.checked_sub(1).filter(|&group| readers[group as usize].is_none()) {
                Some(group) => group,
                None => {
                    readers.push(None);
                    joined.push(None);
                    readers.len() as u32 - 1
                }
            };
            turns.push(Turn { position, source, group });
            group + 1
        } else {
            let mut passed_on = 0;
            for (tile, role) in reads(&instruction.kind, &accesses) {
                let Some(group) = turned[tile.index()].checked_sub(1) else { continue };
                // What only takes a result out of PSUM passes it on.
                if evicts(program, instruction, tile) {
                    passed_on = group + 1;
                } else {
                    readers[group as usize].get_or_insert((position, role));
                }
            }
            passed_on
        };
        for tile in written {
            sources[tile.index()] = source;
            // Results that wait side by side in a tile have one reader.
            if let (Some(before), Some(now)) = (turned[tile.index()].checked_sub(1), passed_on.checked_sub(1))
                && before != now
                && readers[before as usize].is_none()
            {
                joined[before.min(now) as usize] = Some(before.max(now));
            }
            turned[tile.index()] = passed_on;
        }
    }
    for group in (0..readers.len()).rev() {
        if let (None, Some(later)) = (readers[group], joined[group]) {
            readers[group] = readers[later as usize];
        }
    }
    (turns, readers)
}

/// What an instruction turns.
enum Data {
    Tile(TileId),
    Tensor(u32),
}

fn turned_data(instruction: &Instruction) -> Option<Data> {
    match &instruction.kind {
        InstructionKind::Transpose { data, .. } => Some(Data::Tile(data.tile)),
        InstructionKind::Dma { src, queue: DmaQueue::HardwareTranspose, .. } => Some(match src.place {
            DmaPlace::Tile { tile, .. } => Data::Tile(tile),
            DmaPlace::Hbm { tensor } => Data::Tensor(tensor.0),
        }),
        _ => None,
    }
}

/// True where all that an instruction does with a tile in PSUM is to take it out.
fn evicts(program: &Program, instruction: &Instruction, tile: TileId) -> bool {
    program.tile(tile).space == Space::Psum && matches!(instruction.kind, InstructionKind::TensorCopy { .. })
}

/// What a written tile then has.
fn source_of(
    program: &Program,
    instruction: &Instruction,
    position: u32,
    accesses: &Accesses<'_>,
    sources: &[Source],
    stored: &BTreeMap<(HbmId, u64), Source>,
) -> Source {
    match &instruction.kind {
        InstructionKind::Dma { src, .. } => match src.place {
            DmaPlace::Tile { tile, .. } => sources[tile.index()],
            DmaPlace::Hbm { tensor } => match program.tensors[tensor.index()].kind {
                HbmKind::Scratch => stored.get(&(tensor, first_byte(src))).copied().unwrap_or(Source::Made(position)),
                HbmKind::Input(_) | HbmKind::Output(_) | HbmKind::Updated { .. } | HbmKind::Constant(_) => {
                    Source::Loaded(tensor.0)
                }
            },
        },
        // Conversions keep whose value it is.
        InstructionKind::TensorCopy { .. } => {
            accesses.tile_reads.first().map_or(Source::Made(position), |view| match sources[view.tile.index()] {
                Source::Nothing => Source::Made(position),
                known => known,
            })
        }
        _ => Source::Made(position),
    }
}

fn first_byte(access: &DmaAccess) -> u64 {
    access.offset * access.dtype.size_bytes() as u64
}

fn tile_of(access: &DmaAccess) -> Option<TileId> {
    match access.place {
        DmaPlace::Tile { tile, .. } => Some(tile),
        DmaPlace::Hbm { .. } => None,
    }
}

/// Tiles that an instruction reads, and as what.
fn reads(kind: &InstructionKind, accesses: &Accesses<'_>) -> Vec<(TileId, Role)> {
    if let InstructionKind::Matmul { stationary, moving, .. } = kind {
        return vec![(stationary.tile, Role::Stationary), (moving.tile, Role::Moving)];
    }
    let stored = accesses.dma_read.and_then(tile_of).map(|tile| (tile, Role::Stored));
    accesses.tile_reads.iter().map(|view| (view.tile, Role::Other)).chain(stored).collect()
}

#[cfg(test)]
mod tests {
    use ir::graph::InputRole;
    use ir::ops::Matmul;
    use ir::target::TargetName;
    use ir::{Dtype, Graph, TensorType};

    use super::transposes;
    use crate::pipeline::{Options, Unwatched, compile};

    /// f32 rows, which transfers cannot turn: the left operand is turned on PE, or on DVE by trn1.
    #[test]
    fn the_left_operand_of_a_row_major_product_is_turned_for_the_sum() {
        for (target, by, n_instructions) in [(TargetName::Trn1, "dve", 16), (TargetName::Trn2, "pe", 1)] {
            let mut graph = Graph::new("g");
            let x = graph.push_input("x", TensorType::new(Dtype::F32, [128, 128]), InputRole::Dynamic);
            let w = graph.push_input("w", TensorType::new(Dtype::F32, [128, 64]), InputRole::Dynamic);
            let y = graph.push_value_of(
                Matmul { transpose_lhs: false, transpose_rhs: false, dtype: Dtype::F32 }.into(),
                &[x, w],
                &[],
            );
            graph.push_output(y.unwrap());
            let options = Options { target, ..Options::default() };
            let compiled = compile(&graph, &options, &mut Unwatched).unwrap();
            let found = transposes(&compiled.program.unwrap());
            let [entry] = &found[..] else { panic!("one operand is turned: {found:?}") };
            assert_eq!((entry.value_of.as_str(), entry.by.as_str()), ("x", by));
            assert_eq!((entry.n_instructions, entry.bytes), (n_instructions, 128 * 128 * 4));
            assert!(entry.reason.contains("x is stored with the other axis there"), "{}", entry.reason);
        }
    }
}
