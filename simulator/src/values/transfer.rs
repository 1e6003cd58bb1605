//! Data of a transfer: pattern to pattern, cast through f32 where the types differ.

use ir::program::{DmaAccess, Gather};

use super::convert::Element;
use super::convert::with_element;
use super::memory::Memory;

/// Why a transfer cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TransferError {
    /// An index outside its table: bad input, not a bad program.
    Index {
        /// Which row of the transfer.
        row: usize,
        index: i32,
        n_rows: u32,
    },
    /// More data than this machine has room for.
    Memory { bytes: u64 },
}

pub(crate) fn execute(
    memory: &mut Memory,
    dst: &DmaAccess,
    src: &DmaAccess,
    gather: Option<&Gather>,
) -> Result<(), TransferError> {
    let starts = gather.map(|gather| row_starts(memory, gather)).transpose()?;
    let bytes = src.n_elements() * src.dtype.size_bytes() as u64;
    let mut moved = Vec::new();
    let n_bytes = usize::try_from(bytes).map_err(|_| TransferError::Memory { bytes })?;
    moved.try_reserve_exact(n_bytes).map_err(|_| TransferError::Memory { bytes })?;
    let (dst_starts, src_starts) = if Gather::scatters(src) { (starts, None) } else { (None, starts) };
    memory.for_each_transfer_run(src, src_starts.as_deref(), |run| moved.extend_from_slice(run));
    if dst.dtype != src.dtype {
        moved = cast(&moved, src.dtype, dst.dtype);
    }
    let mut rest = &moved[..];
    memory.for_each_transfer_run(dst, dst_starts.as_deref(), |run| {
        let (part, left) = rest.split_at(run.len());
        run.copy_from_slice(part);
        rest = left;
    });
    Ok(())
}

/// First elements of the indexed rows, relative to the offset of their side.
fn row_starts(memory: &Memory, gather: &Gather) -> Result<Vec<i64>, TransferError> {
    let mut raw = Vec::new();
    (0..usize::from(gather.index.n_partitions))
        .map(|row| {
            memory.read_raw(&gather.index, row, &mut raw);
            let index = i32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
            if index < 0 || index as u32 >= gather.n_rows {
                return Err(TransferError::Index { row, index, n_rows: gather.n_rows });
            }
            Ok(i64::from(index) * i64::from(gather.row_elements))
        })
        .collect()
}

fn cast(bytes: &[u8], from: ir::Dtype, to: ir::Dtype) -> Vec<u8> {
    let values: Vec<f32> = with_element!(from, Kind => bytes.chunks_exact(Kind::SIZE).map(Kind::decode).collect());
    with_element!(to, Kind => {
        let mut cast = vec![0; values.len() * Kind::SIZE];
        for (slot, &value) in cast.chunks_exact_mut(Kind::SIZE).zip(&values) {
            Kind::encode(value, slot);
        }
        cast
    })
}
