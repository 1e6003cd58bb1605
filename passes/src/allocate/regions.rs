//! What has been written of a tile, as rectangles that can be stored and loaded.

use ir::types::Dtype;

use crate::footprint::Footprint;

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
    fn new(partitions: (u16, u16), (low, high): (i64, i64), dtype: Dtype) -> Option<Self> {
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
    let rows = |footprint: &Footprint| (footprint.first_partition, footprint.end_partition);
    if written.iter().all(|footprint| footprint.bytes.is_dense()) {
        if written.len() > MAX_REGIONS {
            return one_region(written, dtype).map(|region| vec![region]);
        }
        let region =
            |footprint: &Footprint| Region::new(rows(footprint), (footprint.bytes.low, footprint.bytes.high()), dtype);
        return written.iter().map(region).collect();
    }
    one_region(written, dtype).map(|region| vec![region])
}

/// The rectangle around all patterns, if they are on the same partitions and fill it.
fn one_region(written: &[Footprint], dtype: Dtype) -> Option<Region> {
    let first = written.first()?;
    let rows = (first.first_partition, first.end_partition);
    if written.iter().any(|footprint| (footprint.first_partition, footprint.end_partition) != rows) {
        return None;
    }
    let low = written.iter().map(|footprint| footprint.bytes.low).min()?;
    let high = written.iter().map(|footprint| footprint.bytes.high()).max()?;
    let mut is_written = vec![false; usize::try_from(high - low).ok()?];
    for footprint in written {
        for run_low in footprint.bytes.run_starts() {
            let start = usize::try_from(run_low - low).ok()?;
            let run = usize::try_from(footprint.bytes.run).ok()?;
            is_written[start..start + run].fill(true);
        }
    }
    if is_written.contains(&false) { None } else { Region::new(rows, (low, high), dtype) }
}
