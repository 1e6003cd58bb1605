//! The part of each stream that calls kernels.
//!
//! Every engine that has work in any kernel makes all calls, in the same order. Between two calls stands a
//! barrier: each engine but the leader says that its part of the kernel is complete, the leader then knows
//! that all of it is, sets the kernels' semaphores back to 0 and lets the others go on. A kernel itself
//! waits for its transfers before it ends. The semaphores of the barrier lie above those of kernels and
//! count calls, each updated by one engine alone.
//!
//! Relies on kernels that use the semaphores below [`kernel_semaphores`] and no others.

use std::collections::BTreeMap;

use ir::program::{Engine, Instruction, InstructionKind, Module, Update, Wait};
use ir::target::{Target, TargetName};
use neff::isa::{Addresses, RECORD_BYTES, encode_record};

/// One for each engine that arrives, and one that the leader lets the others go on by.
const N_BARRIER_SEMAPHORES: u16 = Engine::ALL.len() as u16;

/// Why calls cannot be written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ControlError {
    #[error("{0}")]
    Neff(#[from] neff::Error),
    #[error("the table of bindings has more entries than records can name")]
    TooManyBindings,
    #[error("the stream of an engine has more records than calls can name")]
    TooManyRecords,
    #[error("{n_calls} calls, a semaphore counts up to {most}")]
    TooManyCalls { n_calls: usize, most: usize },
}

/// How many semaphores a kernel that is called may use: those below this number.
pub fn kernel_semaphores(target: TargetName) -> u16 {
    barrier_base(target.target())
}

fn barrier_base(target: &Target) -> u16 {
    (target.semaphores as u16).saturating_sub(N_BARRIER_SEMAPHORES)
}

/// Each engine's calls, followed by its part of each kernel. `kernels` are the linked streams, `bindings`
/// where each call's bindings start in the table.
pub(crate) fn control_streams(
    module: &Module,
    kernels: &[BTreeMap<Engine, Vec<u8>>],
    bindings: &[u32],
) -> Result<BTreeMap<Engine, Vec<u8>>, ControlError> {
    let target = module.target.target();
    let most = target.semaphore_max as usize;
    if module.calls.len() > most {
        return Err(ControlError::TooManyCalls { n_calls: module.calls.len(), most });
    }
    let engines: Vec<Engine> =
        Engine::ALL.into_iter().filter(|engine| kernels.iter().any(|streams| streams.contains_key(engine))).collect();
    let Some(&leader) = engines.iter().find(|&&engine| engine == Engine::Sp).or(engines.first()) else {
        return Ok(BTreeMap::new());
    };
    let barrier = Barrier { engines: &engines, leader, base: barrier_base(target), n_used: n_used_semaphores(module) };
    let mut streams = BTreeMap::new();
    for &engine in &engines {
        let control = barrier.control(module, engine, bindings);
        let mut entries = Vec::with_capacity(kernels.len());
        let mut next = control.len();
        for streams in kernels {
            entries.push(u32::try_from(next).map_err(|_| ControlError::TooManyRecords)?);
            next += streams.get(&engine).map_or(0, Vec::len) / RECORD_BYTES + 1;
        }
        let mut bytes = Vec::with_capacity(next * RECORD_BYTES);
        for mut instruction in control {
            if let InstructionKind::Call { entry, bindings: _ } = &mut instruction.kind {
                *entry = entries[*entry as usize];
            }
            bytes.extend_from_slice(&encode_record(&instruction, Addresses::Decoded)?);
        }
        let end = encode_record(&Instruction::new(engine, InstructionKind::Return), Addresses::Decoded)?;
        for streams in kernels {
            bytes.extend_from_slice(streams.get(&engine).map_or(&[], Vec::as_slice));
            bytes.extend_from_slice(&end);
        }
        streams.insert(engine, bytes);
    }
    Ok(streams)
}

/// One more than the highest semaphore of any kernel.
fn n_used_semaphores(module: &Module) -> u16 {
    let instructions = module.kernels.iter().flat_map(|kernel| &kernel.program.instructions);
    let used = instructions.filter_map(|instruction| Some(instruction.update?.semaphore + 1));
    used.max().unwrap_or(0)
}

struct Barrier<'a> {
    engines: &'a [Engine],
    leader: Engine,
    /// First semaphore of barriers: the one of the leader.
    base: u16,
    /// Semaphores of kernels.
    n_used: u16,
}

impl Barrier<'_> {
    /// An engine's calls; each names its kernel by number in place of a record.
    fn control(&self, module: &Module, engine: Engine, bindings: &[u32]) -> Vec<Instruction> {
        let mut control = Vec::with_capacity(3 * module.calls.len() + 1);
        for (number, (call, &bindings)) in module.calls.iter().zip(bindings).enumerate() {
            let kind = InstructionKind::Call { entry: call.kernel as u32, bindings };
            let mut call = Instruction::new(engine, kind);
            if number > 0 {
                self.between(engine, number as u16, &mut control, &mut call);
            }
            control.push(call);
        }
        control.push(Instruction::new(engine, InstructionKind::Return));
        control
    }

    /// What an engine does between its call before `number` and the call itself.
    fn between(&self, engine: Engine, number: u16, control: &mut Vec<Instruction>, call: &mut Instruction) {
        if engine != self.leader {
            let mut arrive = Instruction::new(engine, InstructionKind::Sync);
            arrive.update = Some(Update { semaphore: self.arrival(engine), add: 1 });
            control.push(arrive);
            call.waits.push(Wait { semaphore: self.base, at_least: number });
            return;
        }
        let others = self.engines.iter().filter(|&&other| other != self.leader);
        let mut waits: Vec<Wait> =
            others.map(|&other| Wait { semaphore: self.arrival(other), at_least: number }).collect();
        let mut clear = Instruction::new(engine, InstructionKind::ClearSemaphores { first: 0, count: self.n_used });
        let carried = waits.split_off(waits.len().saturating_sub(2));
        clear.waits = carried.into_iter().collect();
        clear.update = Some(Update { semaphore: self.base, add: 1 });
        for pair in waits.chunks(2) {
            let mut wait = Instruction::new(engine, InstructionKind::Sync);
            wait.waits = pair.iter().copied().collect();
            control.push(wait);
        }
        control.push(clear);
    }

    fn arrival(&self, engine: Engine) -> u16 {
        let others = self.engines.iter().filter(|&&other| other != self.leader);
        let position = others.into_iter().position(|&other| other == engine).unwrap_or(0);
        self.base + 1 + position as u16
    }
}
