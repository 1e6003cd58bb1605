//! The chips that programs are compiled for. Hardware numbers stand here and nowhere else, each
//! with its grade and source.
//!
//! [`Target`] has one named field per number; [`Target::numbers`] lists them with where they come
//! from. [`cost`] turns them into times of instructions and transfers, [`host`] holds what a
//! runtime adds outside the device, [`activation`] what the activation tables can do.

use std::fmt;
use std::str::FromStr;

use crate::types::TypeError;

pub mod accuracy;
pub mod activation;
pub mod cost;
mod fitted;
pub mod host;
mod numbers;

pub use numbers::{Grade, Number, Target};

/// A chip generation.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TargetName {
    /// NeuronCore v2.
    Trn1,
    /// NeuronCore v3.
    Trn2,
    /// NeuronCore v4.
    Trn3,
}

impl TargetName {
    /// Every target, oldest first.
    pub const ALL: [TargetName; 3] = [TargetName::Trn1, TargetName::Trn2, TargetName::Trn3];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            TargetName::Trn1 => "trn1",
            TargetName::Trn2 => "trn2",
            TargetName::Trn3 => "trn3",
        }
    }

    /// The numbers of this chip.
    pub fn target(self) -> &'static Target {
        Target::of(self)
    }
}

impl fmt::Display for TargetName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for TargetName {
    type Err = TypeError;

    fn from_str(text: &str) -> Result<Self, TypeError> {
        let found = TargetName::ALL.into_iter().find(|target| target.name() == text);
        found.ok_or_else(|| TypeError::new(format!("no target is named `{text}`; there are trn1, trn2 and trn3")))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn numbers_with_grades_and_sources() {
        for name in TargetName::ALL {
            let mut text = String::new();
            for number in name.target().numbers() {
                let Number { name, value, unit, grade, source } = number;
                writeln!(text, "{name:<30} {value:>12} {unit:<15} {grade:<4} {source}").expect("strings accept text");
            }
            insta::assert_snapshot!(format!("numbers_{name}"), text);
        }
    }

    #[test]
    fn all_engines_reach_the_peak_of_transfers_with_full_packets() {
        for target in TargetName::ALL.map(TargetName::target) {
            let packet_ps = target.dma_packet_ps + target.dma_packet_bytes * target.dma_kib_ps / 1024;
            let reached = u64::from(target.dma_engines) * target.dma_packet_bytes * 1000 / packet_ps;
            let peak = target.dma_peak_bytes_per_ns;
            assert!(peak.abs_diff(reached) * 50 <= peak, "{}: {reached} and {peak} B/ns", target.name);
        }
    }

    #[test]
    fn measured_numbers_name_their_rows() {
        for number in TargetName::Trn2.target().numbers() {
            // A row of the measurement table, or the public profiles that its rows were extracted from.
            let names_row = ["TM0", "41 ns", "attention profiles"].iter().any(|name| number.source.contains(name));
            assert!(number.grade != Grade::M || names_row, "{number:?}");
        }
    }
}
