//! Which earlier accesses a new access to memory must follow.
//!
//! Used by `schedule` and `synchronize`; their checkers derive hazards on their own.

use std::collections::BTreeMap;

use ir::Program;
use ir::program::Engine;

use crate::footprint::{AccessKind, Addressing, Footprint, Memory, footprints};

/// Bytes of a tile, of SBUF or of PSUM that share a bucket.
const CHIP_BUCKET_BYTES: i64 = 2048;
/// Buckets of one HBM tensor.
const HBM_BUCKETS: i64 = 64;

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
    /// Memories that the program writes, ascending, with the bytes per bucket; all others order nothing.
    written: BTreeMap<Memory, i64>,
    buckets: BTreeMap<(Memory, i64), Bucket>,
}

#[derive(Default)]
struct Bucket {
    reads: Vec<Access>,
    writes: Vec<Access>,
}

struct Access {
    position: u32,
    /// The engine, where it completes its accesses in order.
    in_order_on: Option<Engine>,
    footprint: Footprint,
}

impl History {
    pub(crate) fn new(program: &Program, addressing: Addressing) -> Self {
        let mut written = BTreeMap::new();
        for instruction in &program.instructions {
            for (kind, footprint) in footprints(program, instruction, addressing) {
                if kind == AccessKind::Write {
                    let bucket_bytes = match footprint.memory {
                        Memory::Tile(_) | Memory::Chip(_) => CHIP_BUCKET_BYTES,
                        Memory::Hbm(tensor) => {
                            let size = i64::try_from(program.tensor(tensor).size_bytes).unwrap_or(i64::MAX);
                            (size / HBM_BUCKETS).max(CHIP_BUCKET_BYTES)
                        }
                    };
                    written.insert(footprint.memory, bucket_bytes);
                }
            }
        }
        History { addressing, written, buckets: BTreeMap::new() }
    }

    /// Adds the accesses of the instruction at `position` and gives what they must follow, ascending.
    ///
    /// Where successors are known to follow a later access to all the same bytes, earlier ones are
    /// left out. `in_order_on` says that the instruction's engine completes such accesses in order.
    pub(crate) fn access(&mut self, program: &Program, position: u32, in_order_on: Option<Engine>) -> Vec<Hazard> {
        let mut found = Vec::new();
        let instruction = &program.instructions[position as usize];
        for (kind, footprint) in footprints(program, instruction, self.addressing) {
            let Some(&bucket_bytes) = self.written.get(&footprint.memory) else { continue };
            for bucket_idx in footprint.bytes.blocks(bucket_bytes) {
                let bounds = (bucket_idx * bucket_bytes, (bucket_idx + 1).saturating_mul(bucket_bytes));
                let access = Access { position, in_order_on, footprint: footprint.clone() };
                let bucket = self.buckets.entry((footprint.memory, bucket_idx)).or_default();
                bucket.access(kind, access, bounds, &mut found);
            }
        }
        found.retain(|&(predecessor, _)| predecessor != position);
        // Of several reasons the stronger one sorts first.
        found.sort_unstable();
        found.dedup_by_key(|(predecessor, _)| *predecessor);
        found
    }
}

impl Bucket {
    fn access(&mut self, kind: AccessKind, access: Access, bounds: (i64, i64), found: &mut Vec<Hazard>) {
        let meeting = |earlier: &[Access], why: HazardKind, found: &mut Vec<Hazard>| {
            let meets = earlier.iter().filter(|earlier| access.footprint.meets(&earlier.footprint));
            found.extend(meets.map(|earlier| (earlier.position, why)));
        };
        match kind {
            AccessKind::Read => {
                meeting(&self.writes, HazardKind::Flow, found);
                let follows =
                    |earlier: &Access| access.in_order_on.is_some() && earlier.in_order_on == access.in_order_on;
                self.reads.retain(|earlier| !(follows(earlier) && covers(&access, earlier, bounds)));
                self.reads.push(access);
            }
            AccessKind::Write => {
                meeting(&self.writes, HazardKind::Reuse, found);
                meeting(&self.reads, HazardKind::Reuse, found);
                self.reads.retain(|earlier| !covers(&access, earlier, bounds));
                self.writes.retain(|earlier| !covers(&access, earlier, bounds));
                self.writes.push(access);
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
