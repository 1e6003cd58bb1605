//! Programs as the hardware sees them: operands name places in SBUF and PSUM, not tiles.
//!
//! In this form there are two tiles, [`SBUF_TILE`] and [`PSUM_TILE`], each a whole memory, and
//! views count their partitions and elements from the memory's start. Encoded streams hold it.

use super::{
    DmaPlace, Instruction, InstructionKind, Program, ProgramPhase, Space, Tile, TileAddress, TileId, TileView,
};
use crate::target::Target;
use crate::types::Dtype;

/// All of SBUF.
pub const SBUF_TILE: TileId = TileId(0);
/// All of PSUM.
pub const PSUM_TILE: TileId = TileId(1);

/// The two tiles of the absolute form, in the order of their ids.
pub fn memory_tiles(target: &Target) -> Vec<Tile> {
    let whole = |label: &str, space, bytes_per_partition| Tile {
        label: label.to_owned(),
        space,
        dtype: Dtype::U8,
        n_partitions: target.partitions as u8,
        bytes_per_partition,
        alignment_bytes: target.tile_alignment_bytes,
        address: Some(TileAddress { partition: 0, start_byte: 0 }),
    };
    vec![whole("sbuf", Space::Sbuf, target.sbuf_usable_bytes), whole("psum", Space::Psum, target.psum_bytes())]
}

/// Why an operand has no absolute place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AbsoluteError {
    #[error("instruction {instruction} names tile {tile}, which does not exist")]
    NoTile { instruction: usize, tile: u32 },
    #[error("tile {tile} (`{label}`) has no address")]
    NoAddress { tile: u32, label: String },
    #[error("an operand of instruction {instruction} is at partition {partition}")]
    Partition { instruction: usize, partition: u32 },
    #[error("an operand of instruction {instruction} is {dtype} at byte {start_byte}")]
    Alignment { instruction: usize, dtype: Dtype, start_byte: u32 },
}

impl Program {
    /// The instructions in program order with absolute operands.
    ///
    /// # Errors
    /// A tile without an address, or an address that the operand's type does not divide.
    pub fn absolute_instructions(&self) -> Result<Vec<Instruction>, AbsoluteError> {
        self.instructions
            .iter()
            .enumerate()
            .map(|(position, instruction)| self.absolute_instruction(position, instruction))
            .collect()
    }

    /// The same program in the absolute form.
    ///
    /// # Errors
    /// As [`Program::absolute_instructions`].
    pub fn to_absolute(&self) -> Result<Program, AbsoluteError> {
        Ok(Program {
            name: self.name.clone(),
            target: self.target,
            phase: self.phase.max(ProgramPhase::Allocated),
            tensors: self.tensors.clone(),
            tiles: memory_tiles(self.target.target()),
            instructions: self.absolute_instructions()?,
            locations: self.locations.clone(),
        })
    }

    fn absolute_instruction(&self, position: usize, instruction: &Instruction) -> Result<Instruction, AbsoluteError> {
        let mut absolute = instruction.clone();
        for view in absolute.kind.views_mut() {
            self.make_absolute(position, view)?;
        }
        if let InstructionKind::Dma { dst, src, queue: _, gather: _ } = &mut absolute.kind {
            for side in [dst, src] {
                let DmaPlace::Tile { tile, partition } = side.place else { continue };
                let (memory, address) = self.memory_of(position, tile)?;
                side.offset += element_offset(position, side.dtype, address.start_byte)?;
                let partition = shifted(position, address.partition, partition)?;
                side.place = DmaPlace::Tile { tile: memory, partition };
            }
        }
        Ok(absolute)
    }

    fn make_absolute(&self, position: usize, view: &mut TileView) -> Result<(), AbsoluteError> {
        let (memory, address) = self.memory_of(position, view.tile)?;
        view.tile = memory;
        view.partition = shifted(position, address.partition, view.partition)?;
        view.offset += element_offset(position, view.dtype, address.start_byte)? as u32;
        Ok(())
    }

    fn memory_of(&self, instruction: usize, tile: TileId) -> Result<(TileId, TileAddress), AbsoluteError> {
        let found = self.tiles.get(tile.index()).ok_or(AbsoluteError::NoTile { instruction, tile: tile.0 })?;
        let memory = match found.space {
            Space::Sbuf => SBUF_TILE,
            Space::Psum => PSUM_TILE,
        };
        let no_address = || AbsoluteError::NoAddress { tile: tile.0, label: found.label.clone() };
        Ok((memory, found.address.ok_or_else(no_address)?))
    }
}

fn shifted(instruction: usize, base: u8, partition: u8) -> Result<u8, AbsoluteError> {
    let partition_sum = u32::from(base) + u32::from(partition);
    u8::try_from(partition_sum).map_err(|_| AbsoluteError::Partition { instruction, partition: partition_sum })
}

fn element_offset(instruction: usize, dtype: Dtype, start_byte: u32) -> Result<u64, AbsoluteError> {
    let size = dtype.size_bytes() as u32;
    if !start_byte.is_multiple_of(size) {
        return Err(AbsoluteError::Alignment { instruction, dtype, start_byte });
    }
    Ok(u64::from(start_byte / size))
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::program::{Dim, Engine};
    use crate::target::TargetName;

    #[test]
    fn views_move_to_their_tiles_addresses() {
        let mut program = Program::new("copy", TargetName::Trn2);
        for (space, address) in [(Space::Psum, (32, 2048)), (Space::Sbuf, (64, 12))] {
            program.tiles.push(Tile {
                label: String::new(),
                space,
                dtype: Dtype::Bf16,
                n_partitions: 32,
                bytes_per_partition: 64,
                alignment_bytes: 4,
                address: Some(TileAddress { partition: address.0, start_byte: address.1 }),
            });
        }
        let view = |tile, dtype| TileView {
            tile: TileId(tile),
            partition: 0,
            n_partitions: 32,
            offset: 2,
            dims: smallvec![Dim { step: 1, count: 4 }],
            dtype,
        };
        let copy = InstructionKind::TensorCopy { dst: view(1, Dtype::Bf16), src: view(0, Dtype::F32) };
        program.instructions.push(Instruction::new(Engine::Dve, copy));
        let absolute = program.to_absolute().expect("both tiles have addresses");
        let InstructionKind::TensorCopy { dst, src } = &absolute.instructions[0].kind else { panic!("a copy") };
        assert_eq!((dst.tile, dst.partition, dst.offset), (SBUF_TILE, 64, 8));
        assert_eq!((src.tile, src.partition, src.offset), (PSUM_TILE, 32, 514));
        // Absolute programs are their own absolute form.
        assert_eq!(absolute.to_absolute().expect("whole memories have addresses"), absolute);
        program.tiles[1].address = None;
        assert!(matches!(program.absolute_instructions(), Err(AbsoluteError::NoAddress { tile: 1, .. })));
    }
}
