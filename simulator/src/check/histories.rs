//! The history of on-chip memory is that of every single byte: random accesses, compared with a table
//! of all bytes.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::prop_assert_eq;

use super::chip::ChipShadow;
use super::digest::ChipRect;
use super::shadow::{Met, Writer};

/// Writer and readers of a byte.
type History = (Option<u32>, BTreeSet<u32>);

#[derive(Default)]
struct Table {
    bytes: BTreeMap<(u8, u32), History>,
}

/// What an access has met, without places.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    WrittenBy(u32),
    ReadBy(u32),
    ReadTooEarlyBy(u32),
    Overwrites(u32),
    Uninitialised(u8, u32),
}

impl Table {
    fn access(&mut self, rect: &ChipRect, number: u32, writes: bool) -> BTreeSet<Kind> {
        let mut met = BTreeSet::new();
        for partition in rect.partitions.0..rect.partitions.1 {
            for byte in rect.bytes.0..rect.bytes.1 {
                let (writer, readers) = self.bytes.entry((partition, byte)).or_default();
                match (writes, &writer) {
                    (false, None) => drop(met.insert(Kind::Uninitialised(partition, byte))),
                    (false, Some(writer)) => drop(met.insert(Kind::WrittenBy(*writer))),
                    (true, None) => met.extend(readers.iter().map(|&reader| Kind::ReadTooEarlyBy(reader))),
                    (true, Some(writer)) => {
                        met.insert(Kind::Overwrites(*writer));
                        met.extend(readers.iter().map(|&reader| Kind::ReadBy(reader)));
                    }
                }
                if writes {
                    (*writer, *readers) = (Some(number), BTreeSet::new());
                } else {
                    readers.insert(number);
                }
            }
        }
        met
    }
}

fn kind(met: Met) -> Option<Kind> {
    match met {
        Met::WrittenBy(Writer::Instruction(writer)) => Some(Kind::WrittenBy(writer)),
        Met::OverwritesWrite(Writer::Instruction(writer)) => Some(Kind::Overwrites(writer)),
        Met::ReadBy(reader) => Some(Kind::ReadBy(reader)),
        Met::ReadTooEarlyBy(reader) => Some(Kind::ReadTooEarlyBy(reader)),
        Met::Uninitialised(partition, byte) => Some(Kind::Uninitialised(partition as u8, byte as u32)),
        Met::WrittenBy(_) | Met::OverwritesWrite(_) => None,
    }
}

proptest::proptest! {
    #[test]
    fn an_access_meets_what_single_bytes_remember(
        accesses in proptest::collection::vec(((0u8..8, 1u8..9), (0u32..40, 1u32..24), proptest::bool::ANY), 1..60),
    ) {
        let (mut shadow, mut table) = (ChipShadow::new(64), Table::default());
        for (number, ((partition, n_partitions), (byte, n_bytes), writes)) in (0..).zip(accesses) {
            let partitions = (partition, partition + n_partitions);
            let rect = ChipRect { in_psum: false, has_gaps: false, partitions, bytes: (byte, byte + n_bytes) };
            let mut met = BTreeSet::new();
            if writes {
                shadow.write(&rect, number, |found| met.extend(kind(found)));
            } else {
                shadow.read(&rect, number, |_, _| false, |found| met.extend(kind(found)));
            }
            let expected = table.access(&rect, number, writes);
            let is_place = |kind: &&Kind| matches!(kind, Kind::Uninitialised(..));
            let others = |kinds: &BTreeSet<Kind>| -> BTreeSet<Kind> {
                kinds.iter().filter(|kind| !is_place(kind)).copied().collect()
            };
            prop_assert_eq!(others(&met), others(&expected));
            // Of bytes that nothing wrote, first ones are named.
            prop_assert_eq!(met.iter().any(|kind| is_place(&kind)), expected.iter().any(|kind| is_place(&kind)));
            prop_assert_eq!(met.iter().find(is_place), expected.iter().find(is_place));
        }
        let whole = ChipRect { in_psum: false, has_gaps: false, partitions: (0, 32), bytes: (0, 64) };
        shadow.write(&whole, 1000, |_| ());
        prop_assert_eq!(shadow.n_cells(), 1);
    }
}
