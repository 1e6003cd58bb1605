//! Numbers fitted to measured kernels, and how well predictions agree with them. Written by
//! `make fit`; `docs/timing.md` says what was fitted to what. Not for editing by hand.

use super::accuracy::Accuracy;

pub(super) const TRN1_DMA_RING_ISSUE_PS: u64 = 336_000;
pub(super) const TRN1_NC_OVERHEAD_PS: u64 = 8_592_000;
pub(super) const TRN1_DMA_SOFTWARE_ISSUE_PS: u64 = 485_000;
pub(super) const TRN1_DMA_PACKET_PS: u64 = 6_000;
pub(super) const TRN1_DMA_KIB_PS: u64 = 61_050;
pub(super) const TRN2_NC_OVERHEAD_PS: u64 = 10_862_000;
pub(super) const TRN2_DMA_HARDWARE_ISSUE_PS: u64 = 500_000;
pub(super) const TRN2_DMA_HARDWARE_GAP_PS: u64 = 60_000;
pub(super) const TRN2_DMA_HARDWARE_STORE_PS: u64 = 1_414_200;
pub(super) const TRN2_DMA_SOFTWARE_ISSUE_PS: u64 = 476_680;
pub(super) const TRN2_DMA_SOFTWARE_ROW_PS: u64 = 800;
pub(super) const TRN2_DMA_SOFTWARE_START_PS: u64 = 402_800;
pub(super) const TRN2_DMA_PACKET_PS: u64 = 8_890;
pub(super) const TRN2_DMA_KIB_PS: u64 = 37_795;
pub(super) const TRN2_PE_WARM_PERCENT: u64 = 48;

/// Chip by chip, in the order of compute, transfers and latency.
pub(super) const ACCURACY: [[Accuracy; 3]; 3] = [
    [
        Accuracy::NONE,
        Accuracy { n_rows: 5, median_permille: 90, p90_permille: 243 },
        Accuracy { n_rows: 3, median_permille: 199, p90_permille: 368 },
    ],
    [
        Accuracy { n_rows: 42, median_permille: 62, p90_permille: 132 },
        Accuracy { n_rows: 44, median_permille: 52, p90_permille: 107 },
        Accuracy { n_rows: 38, median_permille: 44, p90_permille: 96 },
    ],
    [Accuracy::NONE, Accuracy::NONE, Accuracy::NONE],
];
