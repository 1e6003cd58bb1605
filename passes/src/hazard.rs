//! Which earlier accesses a new access to memory must follow.
//!
//! Used by `schedule` and `synchronize`; their checkers derive hazards on their own.

use ir::Program;
use ir::program::{DmaPlace, Engine, InstructionKind, Space};

use crate::footprint::{AccessKind, Addressing, Footprint, Memory, for_each_footprint};

/// Bytes of a tile, of SBUF or of PSUM that share a bucket.
const CHIP_BUCKET_BYTES: i64 = 2048;
/// Most buckets of one HBM tensor.
const MAX_HBM_BUCKETS: u32 = 64;

/// Why one instruction must follow another.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HazardKind {
    /// It reads what the other writes.
    Flow,
    /// It overwrites what the other reads or writes, or shares something else with it.
    Reuse,
}

/// A predecessor's position and why it is one.
pub(crate) type Hazard = (u32, HazardKind);

/// Accesses that later ones may still have to follow, by place.
pub(crate) struct History {
    addressing: Addressing,
    spans: Spans,
    buckets: Vec<Bucket>,
}

/// The buckets of every memory; tensors that the program does not write order nothing and have none.
struct Spans {
    /// By tile, or of SBUF and PSUM.
    on_chip: Vec<Span>,
    tensors: Vec<Option<Span>>,
}

#[derive(Copy, Clone)]
struct Span {
    first_bucket: usize,
    n_buckets: i64,
    bucket_bytes: i64,
}

#[derive(Clone, Default)]
struct Bucket {
    reads: Vec<Access>,
    writes: Vec<Access>,
}

#[derive(Clone)]
struct Access {
    position: u32,
    /// The engine, where it completes its accesses in order.
    in_order_on: Option<Engine>,
    footprint: Footprint,
}

impl History {
    pub(crate) fn new(program: &Program, addressing: Addressing) -> Self {
        let mut n_buckets = 0;
        let mut cut = |size_bytes: i64, bucket_bytes: i64| {
            let n_own = (size_bytes - 1).max(0) / bucket_bytes + 1;
            let span = Span { first_bucket: n_buckets, n_buckets: n_own, bucket_bytes };
            n_buckets += n_own as usize;
            span
        };
        let target = program.target.target();
        let on_chip = match addressing {
            Addressing::Virtual => {
                program.tiles.iter().map(|tile| cut(i64::from(tile.bytes_per_partition), CHIP_BUCKET_BYTES)).collect()
            }
            Addressing::Physical => [target.sbuf_usable_bytes, target.psum_bytes()]
                .map(|size_bytes| cut(i64::from(size_bytes), CHIP_BUCKET_BYTES))
                .into(),
        };
        let mut tensors = Vec::with_capacity(program.tensors.len());
        for (tensor, n_accesses) in program.tensors.iter().zip(accesses_of_written(program)) {
            let size_bytes = i64::try_from(tensor.size_bytes).unwrap_or(i64::MAX);
            let bucket_bytes = |n_wanted| (size_bytes / i64::from(n_wanted)).max(CHIP_BUCKET_BYTES);
            tensors.push(n_accesses.map(|n_wanted| cut(size_bytes, bucket_bytes(n_wanted))));
        }
        History { addressing, spans: Spans { on_chip, tensors }, buckets: vec![Bucket::default(); n_buckets] }
    }

    /// Adds the accesses of the instruction at `position` and puts what they must follow into
    /// `found`, ascending.
    ///
    /// Where successors are known to follow a later access to all the same bytes, earlier ones are
    /// left out. `in_order_on` says that the instruction's engine completes such accesses in order.
    pub(crate) fn access(
        &mut self,
        program: &Program,
        position: u32,
        in_order_on: Option<Engine>,
        found: &mut Vec<Hazard>,
    ) {
        found.clear();
        let History { addressing, spans, buckets } = self;
        let instruction = &program.instructions[position as usize];
        let is_wanted = |memory| spans.of(memory).is_some();
        for_each_footprint(program, instruction, *addressing, is_wanted, |kind, footprint| {
            let Some(span) = spans.of(footprint.memory) else { return };
            let access = Access { position, in_order_on, footprint };
            access.footprint.bytes.for_each_block(span.bucket_bytes, |bucket_idx| {
                // What lies outside of the memory belongs to its ends.
                let bucket_idx = bucket_idx.clamp(0, span.n_buckets - 1);
                let is_last = bucket_idx == span.n_buckets - 1;
                let low = if bucket_idx == 0 { i64::MIN } else { bucket_idx * span.bucket_bytes };
                let high = if is_last { i64::MAX } else { (bucket_idx + 1) * span.bucket_bytes };
                buckets[span.first_bucket + bucket_idx as usize].access(kind, &access, (low, high), found);
            });
        });
        found.retain(|&(predecessor, _)| predecessor != position);
        // Of several reasons the stronger one sorts first.
        found.sort_unstable();
        found.dedup_by_key(|(predecessor, _)| *predecessor);
    }
}

/// Per tensor that the program writes, how many buckets it may have: as many as it is accessed.
fn accesses_of_written(program: &Program) -> Vec<Option<u32>> {
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
    let wanted = n_accesses.into_iter().zip(is_written);
    wanted.map(|(n_accesses, is_written)| is_written.then(|| n_accesses.min(MAX_HBM_BUCKETS))).collect()
}

impl Spans {
    fn of(&self, memory: Memory) -> Option<Span> {
        match memory {
            Memory::Tile(tile) => self.on_chip.get(tile.index()).copied(),
            Memory::Chip(Space::Sbuf) => self.on_chip.first().copied(),
            Memory::Chip(Space::Psum) => self.on_chip.get(1).copied(),
            Memory::Hbm(tensor) => self.tensors[tensor.index()],
        }
    }
}

impl Bucket {
    fn access(&mut self, kind: AccessKind, access: &Access, bounds: (i64, i64), found: &mut Vec<Hazard>) {
        let meeting = |earlier: &[Access], why: HazardKind, found: &mut Vec<Hazard>| {
            let meets = earlier.iter().filter(|earlier| access.footprint.meets(&earlier.footprint));
            found.extend(meets.map(|earlier| (earlier.position, why)));
        };
        match kind {
            AccessKind::Read => {
                meeting(&self.writes, HazardKind::Flow, found);
                if access.in_order_on.is_some() {
                    let follows = |earlier: &Access| earlier.in_order_on == access.in_order_on;
                    self.reads.retain(|earlier| !(follows(earlier) && covers(access, earlier, bounds)));
                }
                self.reads.push(access.clone());
            }
            AccessKind::Write => {
                for earlier in [&mut self.writes, &mut self.reads] {
                    meeting(earlier, HazardKind::Reuse, found);
                    earlier.retain(|earlier| !covers(access, earlier, bounds));
                }
                self.writes.push(access.clone());
            }
        }
    }
}

/// True only if every byte of `earlier` within the bounds is also in `access`.
fn covers(access: &Access, earlier: &Access, (low, high): (i64, i64)) -> bool {
    let (new, old) = (&access.footprint, &earlier.footprint);
    let spans_rows = new.partitions.covers(&old.partitions);
    let spans_bytes = new.bytes.is_dense()
        && new.bytes.low <= old.bytes.low.max(low)
        && old.bytes.high().min(high) <= new.bytes.high();
    (spans_rows && spans_bytes) || new.covers(old)
}
