//! Proves that waits and updates order every hazard of a program, in the direction of the
//! program's order, and that no engine waits forever. Shares no code with what places the waits:
//! semaphores, knowledge and memory are derived from the program alone.
//!
//! What a wait proves: on a semaphore that one engine's compute instructions count, the first ones
//! whose sum reaches the value. On a semaphore of transfers the same, provided that each of them is
//! issued after the one before is known to be complete; otherwise only the sum of all updates in
//! the program proves anything, and proves all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ir::Program;
use ir::program::verify::ProgramFault;
use ir::program::{DmaAccess, DmaPlace, Engine, Instruction, InstructionKind, Space, TileView};
use smallvec::{SmallVec, smallvec};

/// Every unordered hazard and every endless wait of a synchronized program.
pub fn check_synchronization(program: &Program) -> Vec<ProgramFault> {
    let order = match execute(program) {
        Ok(order) => order,
        Err(faults) => return faults,
    };
    let semaphores = Semaphores::of(program, &order);
    let knowledge = semaphores.knowledge(program, &order);
    let mut faults = races(program, &knowledge);
    faults.extend(shared_ports(program, &knowledge));
    faults.extend(unfinished_transfers(program, &knowledge));
    faults
}

/// Positions in an order in which the engines can issue; or the waits at which they get stuck.
fn execute(program: &Program) -> Result<Vec<usize>, Vec<ProgramFault>> {
    let limit = program.target.target().semaphore_max;
    let streams: Vec<Vec<usize>> =
        Engine::ALL.iter().map(|&engine| program.stream(engine).map(|(position, _)| position).collect()).collect();
    let mut next = [0usize; Engine::ALL.len()];
    let mut counts: BTreeMap<u16, u32> = BTreeMap::new();
    let mut order = Vec::with_capacity(program.instructions.len());
    let mut faults = Vec::new();
    loop {
        let n_before = order.len();
        for engine in 0..Engine::ALL.len() {
            while let Some(&position) = streams[engine].get(next[engine]) {
                let instruction = &program.instructions[position];
                let holds = |wait: &ir::program::Wait| {
                    counts.get(&wait.semaphore).copied().unwrap_or(0) >= u32::from(wait.at_least)
                };
                if !instruction.waits.iter().all(holds) {
                    break;
                }
                if let Some(update) = instruction.update {
                    let count = counts.entry(update.semaphore).or_default();
                    *count += u32::from(update.add);
                    if *count > limit {
                        let message = format!("semaphore s{} exceeds {limit}", update.semaphore);
                        faults.push(ProgramFault::at(program, position, message));
                    }
                }
                order.push(position);
                next[engine] += 1;
            }
        }
        if order.len() == n_before {
            break;
        }
    }
    let stuck = (0..Engine::ALL.len()).filter_map(|engine| streams[engine].get(next[engine]));
    faults.extend(stuck.map(|&position| ProgramFault::at(program, position, "waits forever")));
    if faults.is_empty() { Ok(order) } else { Err(faults) }
}

/// What is known to be complete: per engine a number of its first compute instructions, counted in
/// its whole stream, and per semaphore of transfers a number of its first updates.
#[derive(Clone, Debug)]
struct Knowledge {
    complete: [usize; Engine::ALL.len()],
    updates: Rc<Vec<u32>>,
}

impl Knowledge {
    fn join(&mut self, other: &Knowledge) {
        for (own, theirs) in self.complete.iter_mut().zip(&other.complete) {
            *own = (*own).max(*theirs);
        }
        if Rc::ptr_eq(&self.updates, &other.updates) {
            return;
        }
        if self.updates.iter().zip(other.updates.iter()).any(|(own, theirs)| own < theirs) {
            for (own, theirs) in Rc::make_mut(&mut self.updates).iter_mut().zip(other.updates.iter()) {
                *own = (*own).max(*theirs);
            }
        }
    }

    fn learn_updates(&mut self, semaphore_idx: usize, n_updates: u32) {
        if self.updates[semaphore_idx] < n_updates {
            Rc::make_mut(&mut self.updates)[semaphore_idx] = n_updates;
        }
    }
}

/// How the values of one semaphore are to be read.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Reading {
    /// Updates come in the order of `updaters`; any value proves the first ones that reach it.
    InSequence,
    /// Updates come in any order; only the sum of all proves anything.
    OnlyTotal,
}

struct Semaphore {
    reading: Reading,
    /// The first update is a transfer's; in a sequence all are.
    is_of_transfers: bool,
    /// Instructions that update it, in the order of execution.
    updaters: Vec<usize>,
    /// Sums of the updates up to each updater.
    sums: Vec<u32>,
}

struct Semaphores {
    all: Vec<Semaphore>,
    idx_of: BTreeMap<u16, usize>,
    /// Per instruction, its place among the updaters of its semaphore, from 1.
    rank: Vec<u32>,
    /// Per instruction, its place in its engine's stream, from 1.
    stream_rank: Vec<usize>,
}

impl Semaphores {
    fn of(program: &Program, order: &[usize]) -> Self {
        let mut all: Vec<Semaphore> = Vec::new();
        let mut idx_of = BTreeMap::new();
        let mut rank = vec![0; program.instructions.len()];
        let mut stream_rank = vec![0; program.instructions.len()];
        let mut stream_lens = [0; Engine::ALL.len()];
        for (position, instruction) in program.instructions.iter().enumerate() {
            stream_lens[instruction.engine as usize] += 1;
            stream_rank[position] = stream_lens[instruction.engine as usize];
        }
        for &position in order {
            let Some(update) = program.instructions[position].update else { continue };
            let idx = *idx_of.entry(update.semaphore).or_insert_with(|| {
                let is_of_transfers = counting_engine(&program.instructions[position]).is_none();
                let (reading, updaters, sums) = (Reading::InSequence, Vec::new(), Vec::new());
                all.push(Semaphore { reading, is_of_transfers, updaters, sums });
                all.len() - 1
            });
            let semaphore = &mut all[idx];
            let before = semaphore.sums.last().copied().unwrap_or(0);
            semaphore.updaters.push(position);
            semaphore.sums.push(before + u32::from(update.add));
            rank[position] =
                u32::try_from(semaphore.updaters.len()).expect("a program has fewer than 2^32 instructions");
        }
        for semaphore in &mut all {
            // Transfers must prove their sequence; a mixture of engines has none.
            let engine_of = |position: usize| counting_engine(&program.instructions[position]);
            let first = engine_of(semaphore.updaters[0]);
            let uniform = semaphore.updaters.iter().all(|&position| engine_of(position) == first);
            semaphore.reading = if uniform { Reading::InSequence } else { Reading::OnlyTotal };
        }
        Semaphores { all, idx_of, rank, stream_rank }
    }

    /// What every instruction knows when it is issued.
    fn knowledge(mut self, program: &Program, order: &[usize]) -> Known {
        loop {
            let (at_issue, ends, out_of_sequence) = self.run(program, order);
            if out_of_sequence.is_empty() {
                return Known { at_issue, ends, semaphores: self };
            }
            // What was concluded from these sequences may be wrong: conclude again without them.
            for idx in out_of_sequence {
                self.all[idx].reading = Reading::OnlyTotal;
            }
        }
    }

    fn run(&self, program: &Program, order: &[usize]) -> (Vec<Knowledge>, Vec<Knowledge>, Vec<usize>) {
        let nothing = Knowledge { complete: [0; Engine::ALL.len()], updates: Rc::new(vec![0; self.all.len()]) };
        let mut ends = vec![nothing.clone(); Engine::ALL.len()];
        let mut at_issue = vec![nothing; program.instructions.len()];
        let mut out_of_sequence = Vec::new();
        for &position in order {
            let instruction = &program.instructions[position];
            let mut known = ends[instruction.engine as usize].clone();
            for wait in &instruction.waits {
                let Some(&idx) = self.idx_of.get(&wait.semaphore) else { continue };
                for &updater in self.proven(idx, u32::from(wait.at_least)) {
                    known.join(&at_issue[updater]);
                    self.learn(program, updater, &mut known);
                }
            }
            if let Some(update) = instruction.update
                && counting_engine(instruction).is_none()
            {
                let idx = self.idx_of[&update.semaphore];
                let follows_all = known.updates[idx] + 1 == self.rank[position];
                if self.all[idx].reading == Reading::InSequence && !follows_all {
                    out_of_sequence.push(idx);
                }
            }
            ends[instruction.engine as usize] = known.clone();
            at_issue[position] = known;
        }
        out_of_sequence.sort_unstable();
        out_of_sequence.dedup();
        (at_issue, ends, out_of_sequence)
    }

    /// Updaters that are complete when the semaphore has this value and whose completion implies
    /// the rest of what it proves.
    fn proven(&self, idx: usize, at_least: u32) -> &[usize] {
        let Semaphore { reading, is_of_transfers, updaters, sums } = &self.all[idx];
        match reading {
            Reading::InSequence if *is_of_transfers => {
                // Fifteen of sixteen engines say nothing of the transfer that they belong to.
                let n_complete = sums.partition_point(|&sum| sum <= at_least);
                &updaters[n_complete.saturating_sub(1)..n_complete]
            }
            Reading::InSequence => {
                let last = sums.partition_point(|&sum| sum < at_least);
                if at_least == 0 { &[] } else { updaters.get(last..=last).unwrap_or(&[]) }
            }
            Reading::OnlyTotal => {
                let total = sums.last().copied().unwrap_or(0);
                if at_least >= total { updaters } else { &[] }
            }
        }
    }

    /// Adds that this updater is complete.
    fn learn(&self, program: &Program, updater: usize, known: &mut Knowledge) {
        let instruction = &program.instructions[updater];
        match counting_engine(instruction) {
            Some(engine) => {
                let complete = &mut known.complete[engine as usize];
                *complete = (*complete).max(self.stream_rank[updater]);
            }
            None => {
                if let Some(update) = instruction.update {
                    known.learn_updates(self.idx_of[&update.semaphore], self.rank[updater]);
                }
            }
        }
    }
}

/// The engine whose order of completion an instruction follows; none for transfers.
fn counting_engine(instruction: &Instruction) -> Option<Engine> {
    (!matches!(instruction.kind, InstructionKind::Dma { .. })).then_some(instruction.engine)
}

/// What is known where.
struct Known {
    at_issue: Vec<Knowledge>,
    /// Per engine, after its last instruction.
    ends: Vec<Knowledge>,
    semaphores: Semaphores,
}

impl Known {
    /// True if a holder of this knowledge knows the instruction to be complete.
    fn covers(&self, program: &Program, knowledge: &Knowledge, position: usize) -> bool {
        let instruction = &program.instructions[position];
        match (counting_engine(instruction), instruction.update) {
            (Some(engine), _) => knowledge.complete[engine as usize] >= self.semaphores.stream_rank[position],
            (None, None) => false,
            (None, Some(update)) => {
                let idx = self.semaphores.idx_of[&update.semaphore];
                knowledge.updates[idx] >= self.semaphores.rank[position]
            }
        }
    }

    /// True if `later` takes effect after `earlier` is complete.
    fn orders(&self, program: &Program, earlier: usize, later: usize) -> bool {
        let (first, second) = (&program.instructions[earlier], &program.instructions[later]);
        let same_stream = first.engine == second.engine && first.is_compute() && second.is_compute();
        same_stream || self.covers(program, &self.at_issue[later], earlier)
    }
}

/// Bytes that one instruction reads or writes.
#[derive(Clone, Debug)]
struct Touch {
    position: usize,
    writes: bool,
    /// Partitions. Sorted, apart from each other, as the runs of bytes.
    rows: SmallVec<[(i64, i64); 1]>,
    /// Bytes of each.
    runs: Vec<(i64, i64)>,
}

impl Touch {
    fn meets(&self, other: &Touch) -> bool {
        meet(&self.runs, &other.runs) && meet(&self.rows, &other.rows)
    }

    /// True if every byte of `other` is one of these.
    fn contains(&self, other: &Touch) -> bool {
        contain(&self.rows, &other.rows) && contain(&self.runs, &other.runs)
    }
}

/// True if some number is in both. The runs of each are sorted and apart from each other.
fn meet(own: &[(i64, i64)], theirs: &[(i64, i64)]) -> bool {
    let ends = |runs: &[(i64, i64)]| (runs.first().map_or(0, |run| run.0), runs.last().map_or(0, |run| run.1));
    let ((low, high), (other_low, other_high)) = (ends(own), ends(theirs));
    if low >= other_high || other_low >= high {
        return false;
    }
    let (mut own, mut theirs) = (own.iter().peekable(), theirs.iter().peekable());
    while let (Some(left), Some(right)) = (own.peek(), theirs.peek()) {
        if left.0 < right.1 && right.0 < left.1 {
            return true;
        }
        if left.1 <= right.1 {
            own.next();
        } else {
            theirs.next();
        }
    }
    false
}

/// True if every number of `inner` is in `outer`.
fn contain(outer: &[(i64, i64)], inner: &[(i64, i64)]) -> bool {
    inner.iter().all(|run| {
        let after = outer.partition_point(|own| own.1 < run.1);
        outer.get(after).is_some_and(|own| own.0 <= run.0)
    })
}

/// A memory: SBUF, PSUM or one tensor.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    OnChip(Space),
    Tensor(u32),
}

fn touches(program: &Program, position: usize) -> Vec<(Place, Touch)> {
    let instruction = &program.instructions[position];
    let accesses = instruction.kind.accesses();
    let mut found = Vec::new();
    found.extend(accesses.tile_reads.iter().filter_map(|view| view_touch(program, position, view, false)));
    found.extend(accesses.tile_writes.iter().filter_map(|view| view_touch(program, position, view, true)));
    // Of the side in HBM any row may be meant.
    let is_indexed = matches!(instruction.kind, InstructionKind::Dma { gather: Some(_), .. });
    if let Some(side) = accesses.dma_read {
        found.extend(side_touch(program, position, side, (false, is_indexed)));
    }
    if let Some(side) = accesses.dma_write {
        found.extend(side_touch(program, position, side, (true, is_indexed)));
    }
    found
}

fn view_touch(program: &Program, position: usize, view: &TileView, writes: bool) -> Option<(Place, Touch)> {
    let tile = program.tile(view.tile);
    let address = tile.address?;
    let size = view.dtype.size_bytes() as i64;
    let dims: Vec<(i64, i64)> =
        view.dims.iter().map(|dim| (i64::from(dim.step) * size, i64::from(dim.count))).collect();
    let start = i64::from(address.start_byte) + i64::from(view.offset) * size;
    let row = i64::from(address.partition) + i64::from(view.partition);
    let rows = smallvec![(row, row + i64::from(view.n_partitions))];
    Some((Place::OnChip(tile.space), Touch { position, writes, rows, runs: runs(start, &dims, size) }))
}

fn side_touch(
    program: &Program,
    position: usize,
    side: &DmaAccess,
    (writes, is_indexed): (bool, bool),
) -> Option<(Place, Touch)> {
    let size = side.dtype.size_bytes() as i64;
    let start = (side.offset as i64).saturating_mul(size);
    let dims: Vec<(i64, i64)> =
        side.dims.iter().map(|dim| (dim.step.saturating_mul(size), i64::from(dim.count))).collect();
    match side.place {
        DmaPlace::Hbm { tensor } if is_indexed => {
            let all = (0, program.tensor(tensor).size_bytes as i64);
            Some((Place::Tensor(tensor.0), Touch { position, writes, rows: smallvec![(0, 1)], runs: vec![all] }))
        }
        DmaPlace::Hbm { tensor } => Some((
            Place::Tensor(tensor.0),
            Touch { position, writes, rows: smallvec![(0, 1)], runs: runs(start, &dims, size) },
        )),
        DmaPlace::Tile { tile, partition } => {
            let tile = program.tile(tile);
            let address = tile.address?;
            let row = i64::from(address.partition) + i64::from(partition);
            let steps: Vec<(i64, i64)> =
                side.dims.iter().map(|dim| (i64::from(dim.partition_step), i64::from(dim.count))).collect();
            let start = i64::from(address.start_byte).saturating_add(start);
            let touch = Touch { position, writes, rows: runs(row, &steps, 1).into(), runs: runs(start, &dims, size) };
            Some((Place::OnChip(tile.space), touch))
        }
    }
}

/// Runs that one access may be told apart into; longer lists count as one run from end to end.
const MAX_RUNS: usize = 1 << 16;

/// The bytes of all elements, merged.
fn runs(start: i64, dims: &[(i64, i64)], size: i64) -> Vec<(i64, i64)> {
    let mut sorted: Vec<(i64, i64)> = dims.iter().copied().filter(|&(step, count)| step != 0 && count > 1).collect();
    sorted.sort_unstable_by_key(|(step, _)| step.unsigned_abs());
    let mut found = vec![(start, start.saturating_add(size))];
    for (step, count) in sorted {
        let span = step.saturating_mul(count - 1);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if found.len().saturating_mul(count) > MAX_RUNS {
            let (low, high) = (found[0].0, found[found.len() - 1].1);
            found = vec![(low.saturating_add(span.min(0)), high.saturating_add(span.max(0)))];
            continue;
        }
        let mut moved: Vec<(i64, i64)> = Vec::with_capacity(found.len() * count);
        for at in 0..count as i64 {
            moved.extend(found.iter().map(|&(low, high)| (low + at * step, high + at * step)));
        }
        moved.sort_unstable();
        found.clear();
        for (low, high) in moved {
            match found.last_mut() {
                Some(last) if low <= last.1 => last.1 = last.1.max(high),
                Some(_) | None => found.push((low, high)),
            }
        }
    }
    found
}

/// Bytes of SBUF and PSUM that are looked at together.
const CHIP_BLOCK_BYTES: i64 = 2048;
/// Blocks of one tensor.
const TENSOR_BLOCKS: i64 = 64;

/// The parts of an access that lie in each block of its memory.
fn blocks(program: &Program, place: Place, touch: &Touch) -> Vec<(i64, Touch)> {
    let length = match place {
        Place::OnChip(_) => CHIP_BLOCK_BYTES,
        Place::Tensor(tensor) => {
            (program.tensors[tensor as usize].size_bytes as i64 / TENSOR_BLOCKS).max(CHIP_BLOCK_BYTES)
        }
    };
    let mut parts: Vec<(i64, Touch)> = Vec::new();
    for &(mut low, high) in &touch.runs {
        while low < high {
            let block = low.div_euclid(length);
            let end = high.min((block + 1) * length);
            if parts.last().is_none_or(|(latest, _)| *latest != block) {
                let Touch { position, writes, rows, runs: _ } = touch;
                let (position, writes, rows) = (*position, *writes, rows.clone());
                parts.push((block, Touch { position, writes, rows, runs: Vec::new() }));
            }
            if let Some((_, part)) = parts.last_mut() {
                part.runs.push((low, end));
            }
            low = end;
        }
    }
    parts
}

/// Conflicting accesses that nothing orders.
fn races(program: &Program, known: &Known) -> Vec<ProgramFault> {
    let mut open: BTreeMap<(Place, i64), Vec<Touch>> = BTreeMap::new();
    let mut found: BTreeMap<(usize, usize), ProgramFault> = BTreeMap::new();
    let all = || (0..program.instructions.len()).flat_map(|position| touches(program, position));
    let written: BTreeSet<Place> = all().filter(|(_, touch)| touch.writes).map(|(place, _)| place).collect();
    for position in 0..program.instructions.len() {
        for (place, whole) in touches(program, position) {
            if !written.contains(&place) {
                continue;
            }
            for (block, touch) in blocks(program, place, &whole) {
                let earlier = open.entry((place, block)).or_default();
                earlier.retain(|other| {
                    if other.position == position {
                        return true;
                    }
                    if !touch.writes && !other.writes {
                        // Whoever follows this read follows the same engine's earlier ones.
                        return !(same_stream(program, other.position, position) && touch.contains(other));
                    }
                    if !touch.meets(other) {
                        return true;
                    }
                    if !known.orders(program, other.position, position) {
                        found.entry((position, other.position)).or_insert_with(|| race(program, other, &touch));
                        return true;
                    }
                    // Whoever follows this write follows what it covers.
                    !(touch.writes && touch.contains(other))
                });
                earlier.push(touch);
            }
        }
    }
    found.into_values().collect()
}

fn same_stream(program: &Program, earlier: usize, later: usize) -> bool {
    let (first, second) = (&program.instructions[earlier], &program.instructions[later]);
    first.engine == second.engine && first.is_compute() && second.is_compute()
}

fn race(program: &Program, earlier: &Touch, later: &Touch) -> ProgramFault {
    let verb = |writes: bool| if writes { "writes" } else { "reads" };
    let message = format!(
        "{} what instruction {} {}, and nothing makes it wait for `{}`",
        verb(later.writes),
        earlier.position,
        verb(earlier.writes),
        program.instruction_text(&program.instructions[earlier.position])
    );
    ProgramFault::at(program, later.position, message)
}

/// Pairs of engines that must take turns on a memory and do not.
fn shared_ports(program: &Program, known: &Known) -> Vec<ProgramFault> {
    let target = program.target.target();
    let mut rules = Vec::new();
    if !target.dve_pool_parallel {
        rules.push((Space::Sbuf, [Engine::Dve, Engine::Pool]));
    }
    if !target.dve_act_parallel {
        rules.push((Space::Psum, [Engine::Dve, Engine::Act]));
    }
    let mut faults = Vec::new();
    for (space, pair) in rules {
        let mut latest: [Option<usize>; 2] = [None; 2];
        for (position, instruction) in program.instructions.iter().enumerate() {
            let Some(side) = pair.iter().position(|&engine| engine == instruction.engine) else { continue };
            let accesses = instruction.kind.accesses();
            let mut views = accesses.tile_reads.iter().chain(&accesses.tile_writes);
            if !instruction.is_compute() || !views.any(|view| program.tile(view.tile).space == space) {
                continue;
            }
            latest[side] = Some(position);
            if let Some(other) = latest[1 - side].filter(|&other| !known.orders(program, other, position)) {
                let message = format!("uses {space} while instruction {other} may still use it");
                faults.push(ProgramFault::at(program, position, message));
            }
        }
    }
    faults
}

/// Transfers that the last instruction of SP does not wait for.
fn unfinished_transfers(program: &Program, known: &Known) -> Vec<ProgramFault> {
    let end = &known.ends[Engine::Sp as usize];
    let transfers =
        program.instructions.iter().enumerate().filter(|(_, instruction)| counting_engine(instruction).is_none());
    let unfinished = transfers.filter(|(position, _)| !known.covers(program, end, *position));
    unfinished
        .map(|(position, _)| ProgramFault::at(program, position, "the program may end before this is complete"))
        .collect()
}
