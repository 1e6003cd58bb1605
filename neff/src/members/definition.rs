//! `sgNN/def.json`: the root of a subgraph. It names the engine files, the DMA queues and the device variables.

use super::{Extra, integer, open_enum};
use ir::program::Engine;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A subgraph. File names are relative to the subgraph's folder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Definition {
    /// Ranks of a distributed model; a comment key, 0 in all known files.
    #[serde(rename = "#rank_world_size", with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub rank_world_size: Option<u64>,
    /// Scalar engine: JSON member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub act: Option<String>,
    /// Scalar engine: instruction-level debug members.
    pub act_asm_dbg: Vec<String>,
    /// Scalar engine: compiler-level debug members.
    pub act_dbg: Vec<String>,
    /// Scalar engine: instruction stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub act_instr: Option<String>,
    /// Streams of collectives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cc_streams: Option<CcStreams>,
    /// Empty in all known files.
    pub debug_info: Extra,
    /// DMA debug members.
    pub dma_dbg: Vec<String>,
    /// DMA queue sets by name.
    pub dma_queue: BTreeMap<String, Queue>,
    /// Vector engine: JSON member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dve: Option<String>,
    /// Vector engine: instruction-level debug members.
    pub dve_asm_dbg: Vec<String>,
    /// Vector engine: compiler-level debug members.
    pub dve_dbg: Vec<String>,
    /// Vector engine: instruction stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dve_instr: Option<String>,
    /// How 8-bit floats are converted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp8_conversion_config: Option<Extra>,
    /// `definition` in all known files.
    pub name: String,
    /// Features by name; `neff_feature_vnc` when two physical cores form one.
    pub neff_features: Vec<String>,
    /// Tensor engine: JSON member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pe: Option<String>,
    /// Tensor engine: instruction-level debug members.
    pub pe_asm_dbg: Vec<String>,
    /// Tensor engine: compiler-level debug members.
    pub pe_dbg: Vec<String>,
    /// Tensor engine: instruction stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pe_instr: Option<String>,
    /// GpSimd engine: JSON member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// GpSimd engine: instruction-level debug members.
    pub pool_asm_dbg: Vec<String>,
    /// GpSimd engine: compiler-level debug members.
    pub pool_dbg: Vec<String>,
    /// GpSimd engine: instruction stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_instr: Option<String>,
    /// Events of the runtime; 12 in all known files.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub runtime_event_count: Option<u64>,
    /// Semaphores of the runtime; 3 in all known files.
    #[serde(with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub runtime_semaphore_count: Option<u64>,
    /// Parts of the state buffer that the runtime keeps for itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runtime_statebuffer_reservation: Vec<StatebufferReservation>,
    /// Sync engine: JSON member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sp: Option<String>,
    /// Sync engine: instruction-level debug members.
    pub sp_asm_dbg: Vec<String>,
    /// Sync engine: compiler-level debug members.
    pub sp_dbg: Vec<String>,
    /// Sync engine: instruction stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sp_instr: Option<String>,
    /// Device variables by name.
    pub var: BTreeMap<String, Variable>,
    /// Version of this member's form; `0.6` in all known files.
    pub version: String,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The stem of an engine's members as the vendor's compiler names them.
pub fn engine_file_stem(engine: Engine) -> &'static str {
    match engine {
        Engine::Pe => "PE",
        Engine::Act => "Activation",
        Engine::Pool => "Pool",
        Engine::Dve => "DVE",
        Engine::Sp => "SP",
    }
}

impl Definition {
    /// The JSON member of an engine, as the definition names it.
    pub fn engine_json(&self, engine: Engine) -> Option<&str> {
        match engine {
            Engine::Pe => self.pe.as_deref(),
            Engine::Act => self.act.as_deref(),
            Engine::Pool => self.pool.as_deref(),
            Engine::Dve => self.dve.as_deref(),
            Engine::Sp => self.sp.as_deref(),
        }
    }

    /// The instruction stream of an engine, as the definition names it.
    pub fn engine_instr(&self, engine: Engine) -> Option<&str> {
        match engine {
            Engine::Pe => self.pe_instr.as_deref(),
            Engine::Act => self.act_instr.as_deref(),
            Engine::Pool => self.pool_instr.as_deref(),
            Engine::Dve => self.dve_instr.as_deref(),
            Engine::Sp => self.sp_instr.as_deref(),
        }
    }

    /// An empty subgraph for one physical core with the usual names of all five engines.
    pub fn with_default_names() -> Self {
        let json = |engine: Engine| Some(format!("{}.json", engine_file_stem(engine)));
        let instr = |engine: Engine| Some(format!("{}.bin", engine_file_stem(engine)));
        Definition {
            rank_world_size: Some(0),
            pe: json(Engine::Pe),
            pe_instr: instr(Engine::Pe),
            act: json(Engine::Act),
            act_instr: instr(Engine::Act),
            pool: json(Engine::Pool),
            pool_instr: instr(Engine::Pool),
            dve: json(Engine::Dve),
            dve_instr: instr(Engine::Dve),
            sp: json(Engine::Sp),
            sp_instr: instr(Engine::Sp),
            cc_streams: Some(CcStreams { num_streams: 0, extra: Extra::new() }),
            name: "definition".to_owned(),
            runtime_event_count: Some(12),
            runtime_semaphore_count: Some(3),
            version: "0.6".to_owned(),
            ..Definition::default()
        }
    }
}

/// Streams of collectives.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CcStreams {
    /// Number of streams.
    #[serde(with = "integer::number")]
    pub num_streams: u64,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A part of the state buffer that the program must leave alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatebufferReservation {
    /// First partition.
    #[serde(with = "integer::number")]
    pub base_partition: u64,
    /// First byte in each partition.
    #[serde(with = "integer::number")]
    pub offset: u64,
    /// Number of partitions.
    #[serde(with = "integer::number")]
    pub partitions: u64,
    /// Bytes per partition.
    #[serde(with = "integer::number")]
    pub size: u64,
    /// What for; `evtaccel` in known files.
    #[serde(rename = "type")]
    pub kind: String,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

open_enum! {
    /// What a DMA queue set carries.
    QueueKind {
        /// Inputs.
        Input = "in",
        /// Outputs.
        Output = "out",
        /// Constants, spills and other data.
        Data = "data",
        /// Updates of an embedding table.
        EmbeddingUpdate = "embedding_update",
        /// Transfers whose descriptors the engines make while running.
        Dynamic = "dynamic",
    }
}

/// A set of DMA queues.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Scratch of dynamic descriptors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_dma: Option<DynamicDma>,
    /// `main` (also when absent) or `alt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric_path: Option<String>,
    /// Number of queues, 1 when absent.
    #[serde(default, with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub num_queues: Option<u64>,
    /// Key of the engine that triggers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Old devices only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
    /// Rings that can be swapped during execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_instances: Option<Vec<String>>,
    /// Completion semaphore of a single queue.
    #[serde(default, with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub semaphore: Option<u64>,
    /// Completion semaphores, one per queue.
    #[serde(default, with = "integer::optional_list", skip_serializing_if = "Option::is_none")]
    pub semaphore_set: Option<Vec<u64>>,
    /// What it carries.
    #[serde(rename = "type")]
    pub kind: QueueKind,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Scratch in the state buffer for descriptors made while running.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DynamicDma {
    /// First byte in each partition.
    #[serde(rename = "SB_scratch_partition_offset", with = "integer::number")]
    pub scratch_offset_bytes: u64,
    /// Bytes per partition.
    #[serde(rename = "SB_scratch_partition_size", with = "integer::number")]
    pub scratch_size_bytes: u64,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

open_enum! {
    /// What a device variable is, and so where it lives.
    VariableKind {
        /// The on-chip state buffer (SBUF).
        StateBuffer = "state-buffer",
        /// An input tensor in HBM.
        Input = "input",
        /// An output tensor in HBM.
        Output = "output",
        /// A constant in HBM, loaded from a member.
        File = "file",
        /// Scratch in HBM, private to this NEFF.
        TmpBuf = "tmp-buf",
        /// A range of the scratchpad that all loaded NEFFs share; ranges may overlap.
        Virtual = "virtual",
        /// The address of another variable.
        Pointer = "pointer",
        /// The variables that dynamic descriptors may name.
        DgeTable = "dge-table",
    }
}

/// A device variable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Variable {
    /// Power of two; none when absent or 0.
    #[serde(default, with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub alignment: Option<u64>,
    /// Name of the scratchpad area of a virtual variable, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing_buf: Option<String>,
    /// Byte offset of a virtual variable in the scratchpad.
    #[serde(default, with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub backing_variable_off: Option<u64>,
    /// `main` (also when absent) or `alt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric_path: Option<String>,
    /// Member with the content of a file variable: array data of an `.npy`, raw bytes of anything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_name: Option<String>,
    /// Ids of the variables that a table of dynamic descriptors holds.
    #[serde(default, with = "integer::optional_list", skip_serializing_if = "Option::is_none")]
    pub list: Option<Vec<u64>>,
    /// Empty in all known files, absent on the state buffer and on tables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ops: Option<Vec<Value>>,
    /// Id of the variable whose address a pointer stores.
    #[serde(default, with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub referenced_var_id: Option<u64>,
    /// Bytes; absent on the state buffer and on tables.
    #[serde(default, with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: VariableKind,
    /// Unique in the subgraph.
    #[serde(with = "integer::number")]
    pub var_id: u64,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

impl Variable {
    /// A variable of a kind that has no size: the state buffer, or a table.
    pub fn unsized_of(kind: VariableKind, var_id: u64) -> Self {
        Variable {
            alignment: None,
            backing_buf: None,
            backing_variable_off: None,
            fabric_path: None,
            file_name: None,
            list: None,
            ops: None,
            referenced_var_id: None,
            size: None,
            kind,
            var_id,
            extra: Extra::new(),
        }
    }

    /// A variable in HBM.
    pub fn sized(kind: VariableKind, var_id: u64, size_bytes: u64) -> Self {
        Variable { size: Some(size_bytes), ops: Some(Vec::new()), ..Variable::unsized_of(kind, var_id) }
    }

    /// A constant, in the vendor's form: aligned to its size, on the main fabric.
    pub fn file(var_id: u64, size_bytes: u64, file_name: impl Into<String>) -> Self {
        Variable {
            alignment: Some(size_bytes),
            fabric_path: Some("main".to_owned()),
            file_name: Some(file_name.into()),
            ..Variable::sized(VariableKind::File, var_id, size_bytes)
        }
    }
}
