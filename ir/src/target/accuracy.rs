//! How far predictions are from measured kernels.

use super::{TargetName, fitted};

/// What a program's time goes into, as far as the accuracy of its prediction is concerned.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Work {
    /// An engine computes most of the time.
    Compute,
    /// Data moves most of the time.
    Transfers,
    /// Fixed times of transfers, hand-overs and launches.
    Latency,
}

/// Agreement with measured kernels of one kind of work.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Accuracy {
    /// Measured kernels; 0 where there are none, and then the errors say nothing.
    pub n_rows: u32,
    /// Half of the predictions are at most this far from the measured values, in thousandths. Each
    /// was made by a fit that had not seen the row's family of kernels.
    pub median_permille: u32,
    /// Nine of ten predictions.
    pub p90_permille: u32,
}

impl Accuracy {
    pub(super) const NONE: Accuracy = Accuracy { n_rows: 0, median_permille: 0, p90_permille: 0 };
}

impl Work {
    /// Every kind.
    pub const ALL: [Work; 3] = [Work::Compute, Work::Transfers, Work::Latency];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Work::Compute => "compute",
            Work::Transfers => "transfers",
            Work::Latency => "latency",
        }
    }
}

impl TargetName {
    /// How far predictions for this kind of work are from measured kernels of this chip.
    pub fn accuracy(self, work: Work) -> Accuracy {
        fitted::ACCURACY[self as usize][work as usize]
    }
}
