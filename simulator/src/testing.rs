//! Programs for tests, written instruction by instruction.

use ir::Dtype;
use ir::program::{
    Dim, DmaAccess, DmaDim, DmaPlace, DmaQueue, Engine, HbmId, HbmKind, HbmTensor, Instruction, InstructionKind,
    PSUM_TILE, Program, SBUF_TILE, ScalarOperand, TileView, Update, Wait, memory_tiles,
};
use ir::target::TargetName;
use neff::members::{
    Definition, GraphFile, Kelf, KelfGraph, TensorMap, Variable, VariableKind, element_name, to_pretty_json,
};
use smallvec::smallvec;
use std::collections::BTreeMap;

use crate::machine::Machine;

/// A program under construction; operands are absolute.
pub(crate) struct Builder {
    pub program: Program,
}

impl Builder {
    pub fn new(target: TargetName) -> Builder {
        let mut program = Program::new("test", target);
        program.tiles = memory_tiles(target.target());
        Builder { program }
    }

    fn tensor(&mut self, kind: HbmKind, dtype: Dtype, shape: &[usize]) -> HbmId {
        let size_bytes = (shape.iter().product::<usize>() * dtype.size_bytes()) as u64;
        let name = format!("t{}", self.program.tensors.len());
        self.program.tensors.push(HbmTensor { name, kind, dtype, shape: shape.into(), size_bytes });
        HbmId(self.program.tensors.len() as u32 - 1)
    }

    pub fn input(&mut self, dtype: Dtype, shape: &[usize]) -> HbmId {
        let position = self.program.tensors.iter().filter(|tensor| matches!(tensor.kind, HbmKind::Input(_))).count();
        self.tensor(HbmKind::Input(position as u32), dtype, shape)
    }

    pub fn output(&mut self, dtype: Dtype, shape: &[usize]) -> HbmId {
        let position = self.program.tensors.iter().filter(|tensor| matches!(tensor.kind, HbmKind::Output(_))).count();
        self.tensor(HbmKind::Output(position as u32), dtype, shape)
    }

    pub fn scratch(&mut self, dtype: Dtype, shape: &[usize]) -> HbmId {
        self.tensor(HbmKind::Scratch, dtype, shape)
    }

    pub fn constant(&mut self, dtype: Dtype, shape: &[usize], content: &[u8]) -> HbmId {
        self.tensor(HbmKind::Constant(content.into()), dtype, shape)
    }

    /// Appends an instruction and returns it for waits and updates.
    pub fn push(&mut self, engine: Engine, kind: InstructionKind) -> &mut Instruction {
        self.program.instructions.push(Instruction::new(engine, kind));
        self.program.instructions.last_mut().expect("one was just pushed")
    }

    pub fn machine(&self) -> Machine {
        Machine::from_program(&self.program).expect("operands are absolute")
    }
}

/// Waits and updates in a chain.
pub(crate) trait Order {
    fn wait(&mut self, semaphore: u16, at_least: u16) -> &mut Self;
    fn update(&mut self, semaphore: u16, add: u16) -> &mut Self;
}

impl Order for Instruction {
    fn wait(&mut self, semaphore: u16, at_least: u16) -> &mut Self {
        self.waits.push(Wait { semaphore, at_least });
        self
    }

    fn update(&mut self, semaphore: u16, add: u16) -> &mut Self {
        self.update = Some(Update { semaphore, add });
        self
    }
}

/// The members of a NEFF before they are written.
pub(crate) struct NeffDraft {
    pub feature_bits: u64,
    pub kelf: Kelf,
    pub graph: GraphFile,
    pub definition: Definition,
    pub tensor_map: TensorMap,
    members: BTreeMap<String, Vec<u8>>,
}

impl NeffDraft {
    pub fn of(program: &Program) -> NeffDraft {
        let mut definition = Definition::with_default_names();
        let mut members = BTreeMap::new();
        let ids: Vec<u32> = (1..=program.tensors.len() as u32).collect();
        let variables: Vec<HbmId> = ids.iter().map(|&id| HbmId(id)).collect();
        for (tensor, &id) in program.tensors.iter().zip(&ids) {
            let variable = match &tensor.kind {
                HbmKind::Input(_) | HbmKind::Updated { .. } => {
                    Variable::sized(VariableKind::Input, id.into(), tensor.size_bytes)
                }
                HbmKind::Output(_) => Variable::sized(VariableKind::Output, id.into(), tensor.size_bytes),
                HbmKind::Scratch => Variable::sized(VariableKind::TmpBuf, id.into(), tensor.size_bytes),
                HbmKind::Constant(content) => {
                    let file = format!("{}.raw", tensor.name);
                    members.insert(format!("sg00/{file}"), content.to_vec());
                    Variable::file(id.into(), tensor.size_bytes, file)
                }
            };
            definition.var.insert(tensor.name.clone(), variable);
        }
        for engine in Engine::ALL {
            let stream = neff::isa::encode_stream(program, engine, &variables).expect("operands are absolute");
            let name = definition.engine_instr(engine).expect("every engine has its usual name");
            members.insert(format!("sg00/{name}"), stream);
        }
        let shapes: Vec<Vec<i64>> =
            program.tensors.iter().map(|tensor| tensor.shape.iter().map(|&dim| dim as i64).collect()).collect();
        let listed = |wanted: fn(&HbmKind) -> bool| -> Vec<(&str, &str, &[i64])> {
            let tensors = program.tensors.iter().zip(&shapes).filter(|(tensor, _)| wanted(&tensor.kind));
            tensors.map(|(tensor, shape)| (&*tensor.name, element_name(tensor.dtype), &shape[..])).collect()
        };
        let (inputs, outputs) =
            (listed(|kind| matches!(kind, HbmKind::Input(_))), listed(|kind| matches!(kind, HbmKind::Output(_))));
        let subgraph =
            KelfGraph { definition: "sg00/def.json".to_owned(), name: "sg00".to_owned(), ..Default::default() };
        let chip = neff::members::chip_name(program.target);
        NeffDraft {
            feature_bits: 1 << neff::container::OPEN_ENCODING_BIT,
            kelf: Kelf { graphs: vec![subgraph], target: chip.to_owned(), ..Default::default() },
            graph: GraphFile::of_one_kelf(&inputs, &outputs, 1),
            definition,
            tensor_map: TensorMap::new(),
            members,
        }
    }

    /// The bytes of one engine's stream.
    pub fn stream_mut(&mut self, engine: Engine) -> &mut Vec<u8> {
        let name = self.definition.engine_instr(engine).expect("every engine has its usual name");
        self.members.get_mut(&format!("sg00/{name}")).expect("every engine has a stream")
    }

    pub fn write(&self) -> Vec<u8> {
        let mut members = self.members.clone();
        members.insert("kelf-0.json".to_owned(), to_pretty_json(&self.kelf));
        members.insert("neff.json".to_owned(), to_pretty_json(&self.graph));
        members.insert("sg00/def.json".to_owned(), to_pretty_json(&self.definition));
        members.insert("sg00/tensor_map.json".to_owned(), to_pretty_json(&self.tensor_map));
        let name = "test.neff".to_owned();
        let draft = neff::container::Draft { name, feature_bits: self.feature_bits, lnc_size: 1, members };
        neff::container::write(&draft).expect("the members are few and small")
    }
}

/// `n` contiguous elements on `partitions` (first, count) of SBUF from byte `start_byte`.
pub(crate) fn sbuf(partitions: (u8, u8), start_byte: u32, n: u16, dtype: Dtype) -> TileView {
    let dims = smallvec![Dim { step: 1, count: n }];
    let offset = start_byte / dtype.size_bytes() as u32;
    TileView { tile: SBUF_TILE, partition: partitions.0, n_partitions: partitions.1, offset, dims, dtype }
}

/// The same in PSUM.
pub(crate) fn psum(partitions: (u8, u8), start_byte: u32, n: u16, dtype: Dtype) -> TileView {
    TileView { tile: PSUM_TILE, ..sbuf(partitions, start_byte, n, dtype) }
}

/// Rows of a packed [rows, n] tensor.
pub(crate) fn rows(tensor: HbmId, n_rows: u32, n: u32, dtype: Dtype) -> DmaAccess {
    let dims = smallvec![
        DmaDim { partition_step: 0, step: i64::from(n), count: n_rows },
        DmaDim { partition_step: 0, step: 1, count: n }
    ];
    DmaAccess { place: DmaPlace::Hbm { tensor }, offset: 0, dims, dtype }
}

/// The SBUF side of [`rows`]: one row per partition.
pub(crate) fn lanes(partition: u8, n_rows: u32, start_byte: u32, n: u32, dtype: Dtype) -> DmaAccess {
    let dims = smallvec![
        DmaDim { partition_step: 1, step: 0, count: n_rows },
        DmaDim { partition_step: 0, step: 1, count: n }
    ];
    let offset = u64::from(start_byte) / dtype.size_bytes() as u64;
    DmaAccess { place: DmaPlace::Tile { tile: SBUF_TILE, partition }, offset, dims, dtype }
}

pub(crate) fn dma(dst: DmaAccess, src: DmaAccess, queue: DmaQueue) -> InstructionKind {
    InstructionKind::Dma { dst, src, queue, gather: None }
}

pub(crate) fn activation(function: ir::program::ActivationFunction, dst: TileView, data: TileView) -> InstructionKind {
    InstructionKind::Activation {
        function,
        dst,
        data,
        scale: ScalarOperand::Immediate(1.0),
        bias: ScalarOperand::Immediate(0.0),
        reduce: None,
        reduce_result: None,
    }
}

pub(crate) fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(crate) fn f32_values(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
}
