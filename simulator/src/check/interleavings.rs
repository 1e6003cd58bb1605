//! What the clocks call ordered holds in every interleaving: random programs, run many times with
//! engines, pipelines and the parts of transfers at random speeds.

use ir::Dtype;
use ir::program::{DmaQueue, Engine, InstructionKind};
use ir::target::TargetName;
use proptest::prelude::{ProptestConfig, prop_assert};
use proptest::proptest;

use super::clocks::{Clocks, Proof};
use super::digest::Digest;
use super::exact::ExactClocks;
use super::order::execution_order;
use crate::machine::Machine;
use crate::testing::{Builder, Order, dma, lanes, rows, sbuf};

/// A small generator with a fixed sequence per seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }
}

/// Computes and transfers on three engines with waits and updates anywhere; some of these programs
/// never end.
fn random_machine(random: &mut Random) -> Machine {
    let mut builder = Builder::new(TargetName::Trn2);
    let input = builder.input(Dtype::F32, &[128, 8]);
    let engines = [Engine::Sp, Engine::Dve, Engine::Act];
    let mut counts = [0u16; 2];
    for _ in 0..2 + random.below(9) {
        let engine = engines[random.below(3)];
        let is_transfer = engine == Engine::Sp || random.below(3) == 0;
        let instruction = if is_transfer {
            let load = dma(lanes(0, 128, 0, 8, Dtype::F32), rows(input, 128, 8, Dtype::F32), DmaQueue::Ring);
            builder.push(engine, load)
        } else {
            let view = sbuf((0, 128), 0, 8, Dtype::F32);
            builder.push(engine, InstructionKind::TensorCopy { dst: view.clone(), src: view })
        };
        let unit = if is_transfer { 16 } else { 1 };
        let before = counts;
        if random.below(5) > 0 {
            let semaphore = random.below(2);
            // Transfers that take turns, as compiled programs do it.
            if is_transfer && counts[semaphore] > 0 && random.below(2) == 0 {
                instruction.wait(semaphore as u16, counts[semaphore]);
            }
            instruction.update(semaphore as u16, unit);
            counts[semaphore] += unit;
        }
        for _ in instruction.waits.len()..random.below(3) {
            let semaphore = random.below(2);
            let at_least = [1, 2, 15, 16, 17, 31, 32, 33, 48][random.below(9)];
            // Mostly for what has been counted by then.
            if at_least <= before[semaphore] || random.below(20) == 0 {
                instruction.wait(semaphore as u16, at_least);
            }
        }
    }
    builder.machine()
}

/// One run: when each instruction was issued and when it was complete, in steps.
fn interleave(machine: &Machine, random: &mut Random) -> Vec<(usize, usize)> {
    let n_instructions = machine.instructions.len();
    let is_transfer = |flat: usize| matches!(machine.instructions[flat].kind, InstructionKind::Dma { .. });
    let mut next: Vec<_> = Engine::ALL.map(|engine| machine.stream_range(engine)).into_iter().collect();
    let mut pipelines: Vec<Vec<usize>> = vec![Vec::new(); Engine::ALL.len()];
    let mut parts: Vec<(usize, u16)> = Vec::new();
    let mut semaphores = [0u64; 2];
    let mut times = vec![(usize::MAX, usize::MAX); n_instructions];
    let mut step = 0;
    while times.iter().any(|&(_, complete)| complete == usize::MAX) {
        step += 1;
        let count = |semaphores: &mut [u64; 2], flat: usize, add: u64| {
            if let Some(update) = machine.instructions[flat].update {
                semaphores[usize::from(update.semaphore)] += add;
            }
        };
        match random.below(3) {
            0 => {
                let engine = random.below(Engine::ALL.len());
                let flat = next[engine].start;
                let waits = machine.instructions.get(flat).map(|found| found.waits.as_slice()).unwrap_or_default();
                let met = waits.iter().all(|wait| semaphores[usize::from(wait.semaphore)] >= wait.at_least.into());
                if next[engine].is_empty() || !met {
                    continue;
                }
                next[engine].start += 1;
                times[flat].0 = step;
                if is_transfer(flat) { parts.push((flat, 0)) } else { pipelines[engine].push(flat) }
            }
            1 => {
                let engine = random.below(Engine::ALL.len());
                if !pipelines[engine].is_empty() {
                    let flat = pipelines[engine].remove(0);
                    times[flat].1 = step;
                    count(&mut semaphores, flat, 1);
                }
            }
            _ if !parts.is_empty() => {
                let number = random.below(parts.len());
                let (flat, done) = parts[number];
                count(&mut semaphores, flat, 1);
                parts[number].1 = done + 1;
                if done + 1 == 16 {
                    times[flat].1 = step;
                    parts.remove(number);
                }
            }
            _ => {}
        }
    }
    times
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn order_holds_in_every_interleaving(seed in 0u64..1 << 48) {
        let mut random = Random(seed);
        let machine = random_machine(&mut random);
        let (digest, broken, _) = Digest::read(&machine);
        prop_assert!(broken.is_empty(), "{broken}");
        let Ok(order) = execution_order(&machine, &digest) else { return Ok(()) };
        let exact = ExactClocks::new(&machine, &order);
        let quick = Clocks::new(&digest, order.iter().copied(), &[]);
        let careful = Clocks::without_unclear(&digest, &order);
        let is_ordered = |earlier: usize, later: usize| {
            let (earlier, later) = (earlier as u32, later as u32);
            exact.ordered(earlier, later)
                || quick.as_ref().is_ok_and(|clocks| clocks.ordered(earlier, later))
                || careful.ordered(earlier, later)
        };
        // Where semaphores are used the plain way, the quick clocks see all that the exact ones do.
        if let Ok(quick) = &quick {
            let n_steps = order.len() as u32;
            let pairs = (0..n_steps).flat_map(|earlier| (0..n_steps).map(move |later| (earlier, later)));
            for (earlier, later) in pairs.filter(|(earlier, later)| earlier != later) {
                prop_assert!(quick.ordered(earlier, later) || !exact.ordered(earlier, later));
            }
        }
        for _ in 0..30 {
            let times = interleave(&machine, &mut random);
            for earlier in 0..times.len() {
                for later in (0..times.len()).filter(|&later| later != earlier && is_ordered(earlier, later)) {
                    let same_pipeline = machine.instructions[earlier].engine == machine.instructions[later].engine
                        && [earlier, later].iter().all(|&flat| machine.instructions[flat].is_compute());
                    // In a pipeline results take effect in order, though the later one is issued before.
                    let holds = if same_pipeline {
                        times[earlier].1 < times[later].1
                    } else {
                        times[earlier].1 < times[later].0
                    };
                    let names = (machine.id(earlier), machine.id(later));
                    prop_assert!(holds, "{} before {}: {:?}", names.0, names.1, machine.instructions);
                }
            }
        }
    }
}
