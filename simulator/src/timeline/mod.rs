//! When things happen: a discrete-event run over engines, semaphores and DMA engines.
//!
//! Every number comes from [`ir::target`]; costs of single instructions come from
//! [`ir::target::cost`], which the scheduler uses too. Times do not depend on data.

mod calls;
mod dma;
mod simulate;
mod summary;
mod tensor_engine;

use std::sync::Arc;

use ir::program::Engine;
use ir::target::accuracy::{Accuracy, Work};

use crate::machine::InstructionId;

pub(crate) use calls::{call_times, of_calls};
pub(crate) use simulate::{Schedule, simulate};
pub(crate) use summary::summarise;

/// Predicted times of one program. Picoseconds count from the first trigger, or from the first
/// instruction where there is no transfer.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Engine by engine, each in stream order; of kernels that are called see `calls`.
    pub spans: Vec<Span>,
    /// Calls in order; empty where the program is one kernel.
    pub calls: Vec<CallSpan>,
    /// First trigger to last completion.
    pub body_ps: u64,
    /// What the vendor's tools call device latency.
    pub nc_ps: u64,
    /// What the vendor's profiler calls total time.
    pub total_ps: u64,
    pub busy: Busy,
    pub bound: Bound,
    /// How far predictions for this kind of work are from measured kernels.
    pub accuracy: Accuracy,
    /// Assumed numbers that the prediction rests on, in the order of their names.
    pub assumed: Vec<&'static str>,
    /// What decides the body's length, first to last.
    pub critical_path: Vec<CriticalStep>,
    /// Bytes that transfers read from device memory; repeated reads count.
    pub hbm_read_bytes: u64,
    pub hbm_write_bytes: u64,
    /// Highest byte used in an SBUF partition.
    pub sbuf_peak_bytes: u64,
}

/// One call in time.
#[derive(Clone, Debug, PartialEq)]
pub struct CallSpan {
    pub kernel: usize,
    /// Where the kernel's first trigger lies; times of `timeline` count from there.
    pub origin_ps: i64,
    /// When the first engine begins the call, and when the last one has ended it.
    pub start_ps: i64,
    pub end_ps: i64,
    /// The kernel in this call. Calls that take the same time share it.
    pub timeline: Arc<Timeline>,
}

/// One instruction in time. Work before the first trigger has negative times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub instruction: InstructionId,
    pub name: &'static str,
    pub start_ps: i64,
    /// The engine may start its next instruction.
    pub end_ps: i64,
    /// Results are visible.
    pub done_ps: i64,
    pub cause: Cause,
    /// The data of a transfer.
    pub transfer: Option<TransferSpan>,
}

/// A transfer's data in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferSpan {
    pub first_data_ps: i64,
    pub last_data_ps: i64,
    /// DMA engines that carry it.
    pub n_engines: u32,
    /// Bytes moved.
    pub bytes: u64,
    /// The transfer whose data it had to wait for, where it had to.
    pub behind: Option<InstructionId>,
}

/// Why an instruction did not start earlier.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Nothing held it.
    Start,
    /// Its engine was busy with this one.
    Engine(InstructionId),
    /// It waited for this one's update.
    Semaphore(InstructionId),
    /// It reads this one's result, on the same engine.
    Operand(InstructionId),
    /// The descriptor generator was busy with this transfer.
    Generator(InstructionId),
}

/// Time in which each engine has an instruction under way, as the vendor's profiler counts it;
/// `dma` is the time in which any data moves.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Busy {
    pub pe_ps: u64,
    pub act_ps: u64,
    pub dve_ps: u64,
    pub pool_ps: u64,
    pub sp_ps: u64,
    pub dma_ps: u64,
    /// Of the busiest DMA engine.
    pub dma_engine_ps: u64,
}

impl Busy {
    /// Of one engine.
    pub fn of(&self, engine: Engine) -> u64 {
        match engine {
            Engine::Pe => self.pe_ps,
            Engine::Act => self.act_ps,
            Engine::Dve => self.dve_ps,
            Engine::Pool => self.pool_ps,
            Engine::Sp => self.sp_ps,
        }
    }
}

/// What limits the program.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bound {
    Pe,
    Act,
    Dve,
    Pool,
    /// Data movement.
    Dma,
    /// No engine: fixed times of transfers and hand-overs.
    Latency,
}

impl Bound {
    /// What the accuracy of a prediction depends on.
    pub const fn work(self) -> Work {
        match self {
            Bound::Pe | Bound::Act | Bound::Dve | Bound::Pool => Work::Compute,
            Bound::Dma => Work::Transfers,
            Bound::Latency => Work::Latency,
        }
    }

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Bound::Pe => "pe",
            Bound::Act => "act",
            Bound::Dve => "dve",
            Bound::Pool => "pool",
            Bound::Dma => "dma",
            Bound::Latency => "latency",
        }
    }
}

/// One step of the critical path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriticalStep {
    pub instruction: InstructionId,
    /// The step's part of the path.
    pub from_ps: i64,
    pub to_ps: i64,
    /// What the time goes into.
    pub what: &'static str,
}

#[cfg(test)]
mod tests;
