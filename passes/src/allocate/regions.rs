//! What has been written of a tile, as rectangles that can be stored and loaded.

use ir::types::Dtype;

use crate::footprint::{Footprint, Pattern};

/// Regions that one tile may be stored as.
const MAX_REGIONS: usize = 8;

/// Elements of some partitions of a tile.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub partition: u8,
    pub n_partitions: u8,
    pub first_element: u32,
    pub n_elements: u32,
    pub dtype: Dtype,
}

impl Region {
    pub(super) fn size_bytes(&self) -> u64 {
        u64::from(self.n_partitions) * u64::from(self.n_elements) * self.dtype.size_bytes() as u64
    }

    /// Bytes `low..high` of these partitions; in elements of `dtype` where they are whole ones.
    fn new(partitions: (i64, i64), (low, high): (i64, i64), dtype: Dtype) -> Option<Self> {
        let size = dtype.size_bytes() as i64;
        let (dtype, size) = if low % size == 0 && high % size == 0 { (dtype, size) } else { (Dtype::U8, 1) };
        Some(Region {
            partition: u8::try_from(partitions.0).ok()?,
            n_partitions: u8::try_from(partitions.1 - partitions.0).ok()?,
            first_element: u32::try_from(low / size).ok()?,
            n_elements: u32::try_from((high - low) / size).ok()?,
            dtype,
        })
    }
}

/// Regions that hold all written bytes and no others; `None` if that takes too many.
///
/// Patterns with gaps count only if together they leave none.
pub(super) fn dense_regions(written: &[Footprint], dtype: Dtype) -> Option<Vec<Region>> {
    let is_dense = |footprint: &Footprint| footprint.bytes.is_dense() && footprint.partitions.is_dense();
    if written.len() > MAX_REGIONS || !written.iter().all(is_dense) {
        return one_region(written, dtype).map(|region| vec![region]);
    }
    let ends = |pattern: &Pattern| (pattern.low, pattern.high());
    let region = |footprint: &Footprint| Region::new(ends(&footprint.partitions), ends(&footprint.bytes), dtype);
    written.iter().map(region).collect()
}

/// The rectangle around all patterns, if they fill it.
fn one_region(written: &[Footprint], dtype: Dtype) -> Option<Region> {
    let around = |pattern: fn(&Footprint) -> &Pattern| {
        let low = written.iter().map(|footprint| pattern(footprint).low).min()?;
        Some((low, written.iter().map(|footprint| pattern(footprint).high()).max()?))
    };
    let (partitions, bytes) = (around(|footprint| &footprint.partitions)?, around(|footprint| &footprint.bytes)?);
    // Which patterns a partition has; partitions with the same ones are looked at once.
    let mut writers: Vec<Vec<usize>> = vec![Vec::new(); usize::try_from(partitions.1 - partitions.0).ok()?];
    for (number, footprint) in written.iter().enumerate() {
        for low in footprint.partitions.run_starts() {
            let first = usize::try_from(low - partitions.0).ok()?;
            let run = usize::try_from(footprint.partitions.run).ok()?;
            writers[first..first + run].iter_mut().for_each(|writers| writers.push(number));
        }
    }
    writers.sort_unstable();
    writers.dedup();
    let is_filled = writers.iter().all(|writers| fills(writers.iter().map(|&number| &written[number].bytes), bytes));
    if is_filled { Region::new(partitions, bytes, dtype) } else { None }
}

/// True if the patterns leave no byte of the range out.
fn fills<'a>(patterns: impl Iterator<Item = &'a Pattern>, (low, high): (i64, i64)) -> bool {
    let mut is_written = vec![false; usize::try_from(high - low).unwrap_or(0)];
    for pattern in patterns {
        for start in pattern.run_starts() {
            let first = usize::try_from(start - low).unwrap_or(0);
            let run = usize::try_from(pattern.run).unwrap_or(0);
            is_written[first..first + run].fill(true);
        }
    }
    !is_written.contains(&false)
}
