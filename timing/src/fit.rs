//! Fits the free numbers of each chip to the measurements.
//!
//! The loss is the mean over families of kernels of the mean Huber loss of the logarithm of
//! predicted over measured, so that a family with many rows counts as much as one with few.
//! Single instructions count as three families: what was measured directly stays near its value.
//! A pattern search moves one number at a time by shrinking shares of its range; it is slow, sure
//! and gives the same result everywhere.

use std::collections::BTreeMap;

use ir::target::{Target, TargetName};

use crate::replay::{Case, Outcome, Timelines};

/// A number that may move, within what its mechanism allows.
pub struct Free {
    pub name: &'static str,
    /// Where the search starts.
    pub prior: u64,
    pub low: u64,
    pub high: u64,
    /// What in the machine takes this time.
    pub mechanism: &'static str,
    /// Of the prior value.
    pub source: &'static str,
}

/// The free numbers of trn2. All others are measured directly or documented.
pub const TRN2: &[Free] = &[
    Free {
        name: "nc_overhead_ps",
        prior: 8_000_000,
        low: 6_000_000,
        high: 12_000_000,
        mechanism: "launch: device latency beyond the body",
        source: "five kernels: nc latency less body, 5.8 to 10.8 us",
    },
    Free {
        name: "dma_hardware_issue_ps",
        prior: 570_000,
        low: 500_000,
        high: 620_000,
        mechanism: "hardware descriptor generator: one transfer",
        source: "TM0046: 541 to 600 ns",
    },
    Free {
        name: "dma_hardware_gap_ps",
        prior: 0,
        low: 0,
        high: 800_000,
        mechanism: "hardware queue: between two transfers' data",
        source: "attention profiles show 690 to 740 ns; the sweeps contradict",
    },
    Free {
        name: "dma_hardware_store_ps",
        prior: 1_200_000,
        low: 900_000,
        high: 1_500_000,
        mechanism: "hardware queue: trigger of a store to its data",
        source: "TM0046 less the load/store difference of TM0047",
    },
    Free {
        name: "dma_software_issue_ps",
        prior: 485_000,
        low: 440_000,
        high: 600_000,
        mechanism: "Pool: descriptors of one transfer",
        source: "TM0497: 486 ns a transfer of one row",
    },
    Free {
        name: "dma_software_row_ps",
        prior: 800,
        low: 200,
        high: 2_000,
        mechanism: "Pool: descriptors of one row",
        source: "attention profiles: 581 ns for 128 rows, 1,190 for 512",
    },
    Free {
        name: "dma_software_start_ps",
        prior: 400_000,
        low: 300_000,
        high: 650_000,
        mechanism: "Pool: first transfer after other work",
        source: "attention profiles: 600 ns beyond a transfer in a row; exp [128, 128] profile: 250 ns",
    },
    Free {
        name: "dma_packet_ps",
        prior: 8_850,
        low: 6_000,
        high: 10_000,
        mechanism: "DMA engine: fixed part of a packet",
        source: "TM0040 to TM0045",
    },
    Free {
        name: "dma_kib_ps",
        prior: 37_270,
        low: 35_000,
        high: 42_000,
        mechanism: "DMA engine: 1,024 bytes of a packet",
        source: "TM0040 to TM0045",
    },
    Free {
        name: "pe_warm_percent",
        prior: 45,
        low: 37,
        high: 50,
        mechanism: "PE: activity that ends the throttling",
        source: "attention profiles: 36 % does not warm, 50 % does; TM0691 says 50",
    },
];

/// The free numbers of trn1; what no replayed row depends on is not among them.
pub const TRN1: &[Free] = &[
    Free {
        name: "dma_ring_issue_ps",
        prior: 330_000,
        low: 100_000,
        high: 500_000,
        mechanism: "descriptor ring: one transfer",
        source: "TM0405 to TM0410 allow at most 360 ns a transfer",
    },
    Free {
        name: "nc_overhead_ps",
        prior: 8_000_000,
        low: 4_000_000,
        high: 20_000_000,
        mechanism: "launch: device latency beyond the body",
        source: "five kernels: nc latency less body, 5.8 to 10.8 us",
    },
    Free {
        name: "dma_software_issue_ps",
        prior: 485_000,
        low: 200_000,
        high: 900_000,
        mechanism: "Pool: descriptors of one transfer",
        source: "TM0497: 486 ns a transfer of one row",
    },
    Free {
        name: "dma_packet_ps",
        prior: 8_850,
        low: 6_000,
        high: 30_000,
        mechanism: "DMA engine: fixed part of a packet",
        source: "TM0040 to TM0045",
    },
    Free {
        name: "dma_kib_ps",
        prior: 58_021,
        low: 37_000,
        high: 62_000,
        mechanism: "DMA engine: 1,024 bytes of a packet",
        source: "TM0684: 17 B/ns with 4 KiB packets",
    },
];

/// Free numbers of a chip; trn3 has too few rows for any.
pub fn free(chip: TargetName) -> &'static [Free] {
    match chip {
        TargetName::Trn1 => TRN1,
        TargetName::Trn2 => TRN2,
        TargetName::Trn3 => &[],
    }
}

/// Beyond this logarithm the loss grows linearly.
const HUBER: f64 = 0.1;
/// Families that single instructions count as.
const INSTRUCTION_WEIGHT: f64 = 3.0;
/// Shares of a range that a number moves by, in turn.
pub const STEPS: [f64; 6] = [0.25, 0.12, 0.06, 0.03, 0.015, 0.008];
/// Sweeps over all numbers with one step.
pub const MOST_SWEEPS: usize = 3;

/// Loss of some outcomes.
pub fn loss(cases: &[&Case], outcomes: &[Outcome]) -> f64 {
    let mut families: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (case, outcome) in cases.iter().zip(outcomes).filter(|(case, _)| !case.is_apart()) {
        let distance = (outcome.predicted.max(1e-9) / outcome.measured).ln().abs();
        let huber = if distance < HUBER { distance * distance / 2.0 } else { HUBER * (distance - HUBER / 2.0) };
        let family = families.entry(case.family()).or_default();
        family.0 += huber;
        family.1 += 1.0;
    }
    let weight = |name: &str| if name == "instruction" { INSTRUCTION_WEIGHT } else { 1.0 };
    let total: f64 = families.iter().map(|(name, (sum, count))| weight(name) * sum / count).sum();
    total / families.keys().map(|name| weight(name)).sum::<f64>().max(1.0)
}

/// Every chip's numbers with the priors in place of the fitted ones.
pub fn priors() -> [Target; 3] {
    TargetName::ALL.map(|chip| {
        let mut target = chip.target().clone();
        for free in free(chip) {
            target.set(free.name, free.prior);
        }
        target
    })
}

/// A number of a chip by its name; 0 where there is none.
pub fn value(target: &Target, name: &str) -> u64 {
    target.numbers().iter().find(|number| number.name == name).map_or(0, |number| number.value)
}

/// Fits one chip's numbers to its cases, starting from `targets`.
///
/// # Errors
/// As [`Timelines::of`].
pub fn fit(
    cases: &[&Case],
    chip: TargetName,
    targets: &[Target; 3],
    steps: &[f64],
    most_sweeps: usize,
    progress: &dyn Fn(f64),
) -> Result<[Target; 3], String> {
    let cases: Vec<&Case> =
        cases.iter().copied().filter(|case| case.measured.chip == chip && !case.is_apart()).collect();
    let mut best = targets.clone();
    let mut timelines = Timelines::of(&cases, &best)?;
    let mut best_loss = loss(&cases, &timelines.outcomes(&cases, &best)?);
    for step in steps {
        for _ in 0..most_sweeps {
            let before = best_loss;
            for free in free(chip) {
                let range = (free.high - free.low) as f64;
                let distance = (range * step).round().max(1.0) as i64;
                for direction in [distance, -distance] {
                    let current = value(&best[chip as usize], free.name) as i64;
                    let moved = (current + direction).clamp(free.low as i64, free.high as i64) as u64;
                    if moved as i64 == current {
                        continue;
                    }
                    let mut tried = best.clone();
                    if !tried[chip as usize].set(free.name, moved) {
                        return Err(format!("there is no number `{}`", free.name));
                    }
                    let changed = timelines.changed(&cases, &tried, free.name)?;
                    let tried_loss = loss(&cases, &changed.outcomes(&cases, &tried)?);
                    progress(best_loss);
                    if tried_loss < best_loss {
                        (best, best_loss, timelines) = (tried, tried_loss, changed);
                        break;
                    }
                }
            }
            if best_loss > before * 0.995 {
                break;
            }
        }
    }
    Ok(best)
}

/// Steps that correct a fit after some rows were taken away.
pub const CORRECTION: [f64; 2] = [0.1, 0.03];
