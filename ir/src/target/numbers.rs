//! The table of hardware numbers: one entry per number with its value, grade and source on each
//! chip.
//!
//! trn2 takes a measured row (`TMnnnn`, an id of the measurement table) wherever one exists. trn1
//! and trn3 take documented values; where there is none, overheads of trn2 are carried over in
//! engine cycles and memory latencies in nanoseconds. Times are integer picoseconds, so that costs
//! are the same on every machine.

use std::fmt;

use super::{TargetName, fitted};

/// How a number is known.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Grade {
    /// Documented by the vendor.
    D,
    /// Documented in the 2.26 API reference and not repeated since.
    D26,
    /// Read from openly licensed vendor code.
    L,
    /// Read off a vendor profile or plot, a few percent exact.
    P,
    /// Derived from documented or measured numbers.
    I,
    /// Assumed, so that there is a value.
    A,
    /// A measured row; the source names it.
    M,
    /// Fitted to measured kernels.
    F,
}

impl fmt::Display for Grade {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Grade::D => "D",
            Grade::D26 => "D26",
            Grade::L => "L",
            Grade::P => "P",
            Grade::I => "I",
            Grade::A => "A",
            Grade::M => "M",
            Grade::F => "F",
        })
    }
}

/// One hardware number of one chip, for printing.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Number {
    pub name: &'static str,
    /// Flags are 0 or 1.
    pub value: u64,
    pub unit: &'static str,
    pub grade: Grade,
    pub source: &'static str,
}

/// Picoseconds on another clock for the same number of cycles.
const fn rescaled(ps: u64, from_khz: u64, to_khz: u64) -> u64 {
    (ps * from_khz + to_khz / 2) / to_khz
}

/// `ps` at trn2's vector clock, in trn1's and trn3's.
const fn dve_trn1(ps: u64) -> u64 {
    rescaled(ps, 960_000, 1_120_000)
}
const fn dve_trn3(ps: u64) -> u64 {
    rescaled(ps, 960_000, 1_200_000)
}
/// `ps` at trn2's scalar clock, in trn1's; trn3's is the same as trn2's.
const fn act_trn1(ps: u64) -> u64 {
    rescaled(ps, 1_200_000, 1_400_000)
}

macro_rules! targets {
    ($($(#[$doc:meta])* $name:ident: $kind:ty, $unit:literal,
        [$value1:expr, $grade1:ident, $source1:literal],
        [$value2:expr, $grade2:ident, $source2:literal],
        [$value3:expr, $grade3:ident, $source3:literal];)*) => {
        /// The numbers of one chip.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Target {
            pub name: TargetName,
            $($(#[$doc])* pub $name: $kind,)*
        }

        static TRN1: Target = Target { name: TargetName::Trn1, $($name: $value1,)* };
        static TRN2: Target = Target { name: TargetName::Trn2, $($name: $value2,)* };
        static TRN3: Target = Target { name: TargetName::Trn3, $($name: $value3,)* };

        impl Target {
            /// Every number with its grade and source, in declaration order.
            pub fn numbers(&self) -> Vec<Number> {
                vec![$({
                    let (grade, source) = match self.name {
                        TargetName::Trn1 => (Grade::$grade1, $source1),
                        TargetName::Trn2 => (Grade::$grade2, $source2),
                        TargetName::Trn3 => (Grade::$grade3, $source3),
                    };
                    Number { name: stringify!($name), value: self.$name as u64, unit: $unit, grade, source }
                },)*]
            }

            /// Replaces a number, for studies of timing; false where there is none of this name or
            /// it cannot take the value.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    $(stringify!($name) => {
                        let Some(value) = <$kind as Settable>::from_u64(value) else { return false };
                        self.$name = value;
                        true
                    })*
                    _ => false,
                }
            }
        }
    };
}

/// A type of the table's numbers.
trait Settable: Sized {
    fn from_u64(value: u64) -> Option<Self>;
}

impl Settable for u64 {
    fn from_u64(value: u64) -> Option<Self> {
        Some(value)
    }
}

impl Settable for u32 {
    fn from_u64(value: u64) -> Option<Self> {
        u32::try_from(value).ok()
    }
}

impl Settable for bool {
    fn from_u64(value: u64) -> Option<Self> {
        (value <= 1).then_some(value == 1)
    }
}

impl Target {
    pub(super) fn of(name: TargetName) -> &'static Target {
        match name {
            TargetName::Trn1 => &TRN1,
            TargetName::Trn2 => &TRN2,
            TargetName::Trn3 => &TRN3,
        }
    }

    /// Bytes per partition of all PSUM banks.
    pub fn psum_bytes(&self) -> u32 {
        self.psum_banks * self.psum_bank_bytes
    }
}

targets! {
    // Memories.
    /// Rows of SBUF and PSUM.
    partitions: u32, "partitions",
        [128, D, "arch guide v2"], [128, D, "arch guide v3"], [128, D, "arch guide v4"];
    /// What a program may use of an SBUF partition; the rest belongs to the runtime.
    sbuf_usable_bytes: u32, "B/partition",
        [180_224, L, "nkipy HardwareConstants.h: 192 KiB - 16 KiB"],
        [212_984, L, "nkipy HardwareConstants.h: 224 KiB - 16 KiB - 8 B"],
        [245_752, L, "nkipy HardwareConstants.h: 256 KiB - 16 KiB - 8 B"];
    /// Alignment of SBUF and PSUM tiles.
    tile_alignment_bytes: u32, "B",
        [4, L, "nki-library pads 16-bit tiles to 4 B"],
        [4, L, "nki-library pads 16-bit tiles to 4 B"],
        [4, L, "nki-library pads 16-bit tiles to 4 B"];
    psum_banks: u32, "banks",
        [8, D, "nl.tile_size"], [8, D, "nl.tile_size"], [8, D, "nl.tile_size"];
    psum_bank_bytes: u32, "B/partition",
        [2048, D, "nl.tile_size"], [2048, D, "nl.tile_size"], [2048, D, "nl.tile_size"];
    /// Scratchpads in HBM grow by pages; a tensor lies within one.
    scratchpad_page_bytes: u32, "B",
        [67_108_864, D, "device-memory page: 64 MB pages"],
        [67_108_864, D, "device-memory page: 64 MB pages"],
        [67_108_864, D, "device-memory page: 64 MB pages"];
    /// Rate of the HBM stack that serves the core, the neighbour idle.
    hbm_bytes_per_ns: u64, "B/ns",
        [410, I, "820 GB/s over 2 stacks"], [725, I, "2.9 TB/s over 4 stacks"], [1175, I, "4.7 TB/s over 4 stacks"];

    // Clocks.
    pe_khz: u64, "kHz",
        [2_800_000, D, "arch guide v2"], [2_400_000, D, "arch guide v3"], [2_400_000, D, "arch guide v4"];
    act_khz: u64, "kHz",
        [1_400_000, D, "arch guide v2"], [1_200_000, D, "arch guide v3"], [1_200_000, D, "arch guide v4"];
    dve_khz: u64, "kHz",
        [1_120_000, D, "arch guide v2"], [960_000, D, "arch guide v3"], [1_200_000, D, "arch guide v4"];
    pool_khz: u64, "kHz",
        [1_400_000, D, "arch guide v2"], [1_200_000, D, "arch guide v3"], [1_200_000, D, "arch guide v4"];

    // Features.
    /// The bias of an activation may be an immediate; otherwise only a vector.
    act_scalar_bias: bool, "flag",
        [false, D, "nki.isa activation"], [true, D, "nki.isa activation"], [true, D, "nki.isa activation"];
    /// ACT runs `tensor_copy`, and `tensor_scalar` for (multiply, add), (multiply) and (add).
    act_tensor_ops: bool, "flag",
        [false, D, "nki.isa tensor_copy"], [true, D, "nki.isa tensor_copy"], [true, D, "nki.isa tensor_copy"];
    /// ACT copies and scales 16-bit floats at two elements per cycle.
    act_wide_mode: bool, "flag",
        [false, D, "arch guide v2"], [false, D, "arch guide v3"], [true, D, "arch guide v4"];
    /// DVE copies and scales at two or four elements per cycle where operands allow.
    dve_perf_modes: bool, "flag",
        [false, D, "arch guide v2"], [true, D, "arch guide v3"], [true, D, "arch guide v4"];
    /// 8-bit floats count as wide types for the modes of DVE.
    dve_wide_fp8: bool, "flag",
        [false, D, "arch guide v2"], [false, D, "arch guide v3"], [true, D, "arch guide v4"];
    /// 32-bit `tensor_scalar` and `tensor_copy` within SBUF run at two elements per cycle.
    dve_double_rate_32bit: bool, "flag",
        [false, D26, "ISA26 tensor_scalar"], [true, M, "TM0026"], [true, I, "as trn2"];
    /// Descriptors can be generated by hardware on command of SP or ACT.
    hardware_dge: bool, "flag",
        [false, D, "DGE page"], [true, D, "DGE page"], [true, D, "DGE page"];
    /// A PE transpose moves bits; otherwise it multiplies and adds, so that NaN and infinity spread.
    pe_exact_transpose: bool, "flag",
        [false, D, "nki.isa nc_transpose"], [true, D, "nki.isa nc_transpose"], [true, D, "nki.isa nc_transpose"];
    /// A matmul may store bf16 to PSUM.
    psum_bf16_accumulate: bool, "flag",
        [false, D, "nki.isa nc_matmul"], [false, D, "nki.isa nc_matmul"], [true, D, "nki.isa nc_matmul"];
    /// One matmul may write several PSUM banks.
    matmul_spans_banks: bool, "flag",
        [false, D, "nki.isa nc_matmul"], [false, D, "nki.isa nc_matmul"], [true, D, "nki.isa nc_matmul"];
    /// DVE and Pool may use SBUF at the same time.
    dve_pool_parallel: bool, "flag",
        [false, D, "arch guide v2"], [true, D, "arch guide v3"], [true, D, "arch guide v4"];
    /// DVE and ACT may use PSUM at the same time.
    dve_act_parallel: bool, "flag",
        [false, D, "arch guide v2"], [true, D, "arch guide v3"], [true, D, "arch guide v4"];

    // Limits.
    /// Free elements of a matmul's moving operand, f32 result.
    matmul_moving_max: u32, "elements",
        [512, D, "nki.isa nc_matmul"], [512, D, "nki.isa nc_matmul"], [4096, D, "nki.isa nc_matmul"];
    matmul_stationary_max: u32, "elements",
        [128, D, "nki.isa nc_matmul"], [128, D, "nki.isa nc_matmul"], [128, D, "nki.isa nc_matmul"];
    /// Rows, and columns, that the smallest part of the array has which works by itself: operands and
    /// results start at a multiple of it.
    pe_tile_min: u32, "partitions",
        [64, D, "nki.isa nc_matmul: 2 x 64"], [32, D, "nki.isa nc_matmul: 4 x 32"], [32, D, "nki.isa nc_matmul: 4 x 32"];
    /// Largest side of a transpose on DVE.
    dve_transpose_max: u32, "elements",
        [32, D, "nki.isa nc_transpose"], [32, D, "nki.isa nc_transpose"], [32, D, "nki.isa nc_transpose"];
    bn_stats_max: u32, "elements",
        [512, D, "nl.tile_size"], [512, D, "nl.tile_size"], [512, D, "nl.tile_size"];
    /// Free elements of one operand in SBUF.
    sbuf_free_max: u32, "elements",
        [65_536, D, "arch guide v2"], [65_536, D, "arch guide v2"], [65_536, D, "arch guide v2"];
    /// Free elements of one operand in PSUM.
    psum_free_max: u32, "elements",
        [4096, D, "arch guide v2"], [4096, D, "arch guide v2"], [4096, D, "arch guide v2"];
    semaphores: u32, "semaphores",
        [256, A, "unpublished"], [256, A, "unpublished"], [256, A, "unpublished"];
    /// Largest value of a semaphore.
    semaphore_max: u32, "count",
        [65_535, A, "unpublished; 16 bits"], [65_535, A, "unpublished; 16 bits"], [65_535, A, "unpublished; 16 bits"];

    /// An operand whose innermost step is longer than this is read or written at half rate.
    port_stride_bytes: u32, "B",
        [16, D, "arch guide v2"], [16, A, "as trn1"], [16, A, "as trn1"];

    // Tensor engine.
    /// Least columns that a matmul is charged for.
    pe_min_columns: u64, "cycles",
        [64, D, "TM0690 MM_INIT_LATENCY"], [64, A, "as trn1"], [64, A, "as trn1"];
    /// Passes over the moving operand for f32.
    pe_f32_passes: u64, "passes",
        [4, D, "arch guide v2: 92 / 23 TFLOPS"], [4, M, "TM0005, 2 instructions of 2 passes"], [4, D, "arch guide v4: 79 / 20 TFLOPS"];
    /// Passes over an f32 transpose.
    pe_f32_transpose_passes: u64, "passes",
        [4, D26, "ISA26 nc_matmul"], [2, D, "arch guide v3: fp32 transposes twice as fast"], [2, D, "arch guide v4"];
    /// Time between two matmuls beyond their columns.
    pe_overhead_ps: u64, "ps",
        [1_714, I, "trn2 in cycles"], [2_000, M, "TM0001"], [2_000, I, "as trn2"];
    /// From the last column streamed to the result in PSUM.
    pe_pipeline_ps: u64, "ps",
        [142_000, P, "perf guide fig. 20-21: MATMUL 188 ns"], [163_000, M, "TM0009, TM0011, TM0012"], [163_000, I, "as trn2"];
    /// The part of `pe_pipeline_ps` that a cold engine stretches.
    pe_drain_ps: u64, "ps",
        [0, I, "no throttle"], [40_000, M, "TM0009, TM0011: 205 ns cold, 165 ns warm"], [40_000, I, "as trn2"];
    /// From the wake-up of an idle engine to its first column: LoadStationary. Behind a matmul it is hidden.
    pe_load_ps: u64, "ps",
        [13_000, I, "trn2 in cycles"], [15_000, M, "attention profiles: fast weight load, 32 columns"], [15_000, I, "as trn2"];
    pe_load_f32_ps: u64, "ps",
        [50_000, I, "trn2 in cycles"],
        [58_000, M, "attention profiles: 55 to 62 ns before a matmul of an idle engine"],
        [58_000, I, "as trn2"];
    /// The engine is throttled by this factor while it is cold.
    pe_cold_factor: u64, "factor",
        [1, D, "no throttle documented"], [2, M, "TM0002"], [2, D, "glossary: 50% at start"];
    /// Activity is judged over windows of this length.
    pe_window_ps: u64, "ps",
        [3_413_000, I, "unused: no throttle"], [3_413_000, M, "TM0052"], [3_413_000, I, "as trn2"];
    /// Least activity of a window, in columns at full rate, that leaves the next one warm.
    pe_warm_percent: u64, "%",
        [45, I, "unused: no throttle"],
        [fitted::TRN2_PE_WARM_PERCENT, F, "make fit"],
        [fitted::TRN2_PE_WARM_PERCENT, I, "as trn2"];

    // Scalar engine: interval = elements / clock + overhead, result after a further pipeline time.
    /// Overhead of `copy`, `square`, `relu`, `abs`, `sign` and of the tensor operations.
    act_overhead_ps: u64, "ps",
        [act_trn1(55_000), I, "trn2 in cycles"], [55_000, M, "TM0019"], [55_000, I, "as trn2"];
    /// Overhead of a table function that reads PSUM.
    act_table_overhead_psum_ps: u64, "ps",
        [act_trn1(143_000), I, "trn2 in cycles"], [143_000, M, "TM0017"], [143_000, I, "as trn2"];
    /// Overhead of a table function that reads SBUF.
    act_table_overhead_sbuf_ps: u64, "ps",
        [act_trn1(185_000), I, "trn2 in cycles"], [185_000, M, "TM0017's twin from SBUF: 612 ns"], [185_000, I, "as trn2"];
    act_pipeline_ps: u64, "ps",
        [106_000, I, "TM0473: 189 ns per dependent element"], [103_000, M, "TM0019, TM0020"], [103_000, I, "as trn2"];
    /// Reading the row sum out.
    act_accumulator_cycles: u64, "cycles",
        [64, D, "arch guide v2"], [64, D26, "ISA26 activation_reduce"], [64, I, "as trn2"];
    act_table_load_ps: u64, "ps",
        [1_283_000, I, "as trn2"], [1_283_000, M, "TM0023"], [1_283_000, I, "as trn2"];

    // Vector engine: interval = cycles + overhead, result after a further pipeline time.
    dve_overhead_ps: u64, "ps",
        [dve_trn1(67_000), I, "trn2 in cycles; TM0689 says 60"], [67_000, M, "TM0024, TM0025"], [dve_trn3(67_000), I, "trn2 in cycles"];
    dve_pipeline_ps: u64, "ps",
        [dve_trn1(86_000), I, "trn2 in cycles"], [86_000, M, "TM0025, TM0028, TM0033"], [dve_trn3(86_000), I, "trn2 in cycles"];
    /// Added where an operand is a per-partition vector.
    dve_vector_operand_ps: u64, "ps",
        [dve_trn1(62_000), I, "trn2 in cycles"], [62_000, M, "TM0026, TM0027"], [dve_trn3(62_000), I, "trn2 in cycles"];
    /// Reading a row reduction out.
    dve_accumulator_cycles: u64, "cycles",
        [64, D26, "ISA26 tensor_scalar_reduce"], [64, D26, "ISA26 tensor_scalar_reduce"], [64, I, "as trn2"];
    /// Instructions with two tensors as inputs.
    dve_two_tensors_cycles: u64, "cycles/element",
        [2, D26, "ISA26 tensor_tensor"], [1, M, "TM0519: 2.28 us for 2,000 elements; ISA26 says 2"], [1, I, "as trn2"];
    dve_reciprocal_cycles: u64, "cycles/element",
        [8, D26, "ISA26 reciprocal"], [6, M, "TM0031"], [8, D, "shared docs: 8 cycles per element"];

    // Pool engine.
    pool_overhead_cycles: u64, "cycles",
        [150, D26, "ISA26 iota"], [150, D26, "ISA26 iota"], [150, I, "as trn2"];
    /// Elementwise rate of two-operand integer and power instructions.
    pool_tensor_cycles: u64, "cycles/element",
        [1, A, "unpublished"], [1, A, "unpublished"], [1, A, "unpublished"];

    // Semaphores.
    /// From an update to the start of an instruction of ACT or DVE that waits for it.
    wake_ps: u64, "ps",
        [35_000, I, "as trn2"], [35_000, M, "TM0035, TM0036"], [35_000, I, "as trn2"];
    wake_pe_ps: u64, "ps",
        [52_000, I, "as trn2"], [52_000, M, "TM0038"], [52_000, I, "as trn2"];
    /// The same for Pool and SP.
    wake_other_ps: u64, "ps",
        [40_000, I, "as trn2"],
        [40_000, P, "exp [4, 4096] profile: ACT end to trigger"],
        [40_000, I, "as trn2"];
    /// From a result to the next instruction of the same engine that reads it.
    wake_same_engine_ps: u64, "ps",
        [35_000, I, "as trn2"], [35_000, M, "TM0039"], [35_000, I, "as trn2"];

    // DMA.
    dma_engines: u32, "engines",
        [16, D, "arch guide v2"], [16, D, "arch guide v3"], [16, D, "arch guide v4"];
    /// Bytes between HBM and SBUF that all engines together move at best.
    dma_peak_bytes_per_ns: u64, "B/ns",
        [262, I, "16 engines, fitted times of 4 KiB packets"],
        [415, M, "TM0040: 4 KiB in 158 ns on each of 16 engines"],
        [528, D, "TM0686: 33 B/ns on each of 16 engines"];
    /// Longest packet.
    dma_packet_bytes: u64, "B",
        [4096, D, "compute-comm-overlap page"], [4096, M, "TM0040"], [4096, D, "compute-comm-overlap page"];
    /// Fixed time of a packet on its engine.
    dma_packet_ps: u64, "ps",
        [fitted::TRN1_DMA_PACKET_PS, F, "make fit"],
        [fitted::TRN2_DMA_PACKET_PS, F, "make fit"],
        [fitted::TRN2_DMA_PACKET_PS, I, "as trn2"];
    /// Time of 1,024 bytes of a packet beyond the fixed part.
    dma_kib_ps: u64, "ps/KiB",
        [fitted::TRN1_DMA_KIB_PS, F, "make fit"],
        [fitted::TRN2_DMA_KIB_PS, F, "make fit"],
        [28_818, D, "TM0686: 33 B/ns with 4 KiB packets"];
    /// A packet that casts takes this many percent of a plain one of its output size.
    dma_cast_percent: u64, "%",
        [225, I, "as trn2"], [225, M, "41 ns for 256 B out, TM0043's twin"], [225, I, "as trn2"];
    /// An instruction of a sequencer: the trigger of a transfer, a wait, an update.
    control_ps: u64, "ps",
        [8_000, I, "as trn2"], [8_000, P, "DMA overview: DMA_DIRECT2D"], [8_000, I, "as trn2"];
    /// A hardware generator serves one transfer in this time; SP and ACT have one each.
    dma_hardware_issue_ps: u64, "ps",
        [570_000, I, "unused: no hardware generator"],
        [fitted::TRN2_DMA_HARDWARE_ISSUE_PS, F, "make fit"],
        [570_000, D, "DGE page: about 600 ns"];
    /// A hardware generator makes the descriptors of one row in this time: later rows start later.
    dma_hardware_row_ps: u64, "ps",
        [1_800, I, "unused: no hardware generator"],
        [1_800, M, "attention profiles: the last of 16 engines starts 430 ns after the first for 256 rows"],
        [1_800, I, "as trn2"];
    /// DMA engines can turn 2-byte elements on the way to SBUF.
    dma_transpose: bool, "flag",
        [false, D, "no hardware path documented"],
        [true, D, "nki.isa dma_transpose"],
        [true, D, "nki.isa dma_transpose"];
    /// A turning transfer from HBM takes this many percent of a copy in long packets.
    dma_transpose_percent: u64, "%",
        [111, I, "unused: no such mode"],
        [111, D, "DMA bandwidth guide: up to 90 % of a copy's"],
        [111, I, "as trn2"];
    /// A turning transfer between places on chip takes this many percent of a copy in long packets.
    dma_transpose_on_chip_percent: u64, "%",
        [200, I, "unused: no such mode"],
        [200, D, "DMA bandwidth guide: up to 50 % of a copy's"],
        [200, I, "as trn2"];
    /// Turning transfers write at multiples of this many bytes of a partition.
    dma_transpose_alignment_bytes: u32, "B",
        [32, I, "unused: no such mode"], [32, L, "tiles of vendor kernels"], [32, L, "tiles of vendor kernels"];
    /// Rows of one block that engines turn together; a turning transfer's rows are a multiple of it.
    dma_transpose_rows: u32, "rows",
        [16, I, "unused: no such mode"], [16, D, "nki.isa dma_transpose"], [16, D, "nki.isa dma_transpose"];
    /// Between the data of two transfers of one hardware queue.
    dma_hardware_gap_ps: u64, "ps",
        [0, I, "unused: no hardware generator"],
        [fitted::TRN2_DMA_HARDWARE_GAP_PS, F, "make fit"],
        [fitted::TRN2_DMA_HARDWARE_GAP_PS, I, "as trn2"];
    /// Trigger to first data.
    dma_hardware_load_ps: u64, "ps",
        [1_330_000, I, "unused: no hardware generator"], [1_330_000, M, "TM0046"], [1_330_000, I, "as trn2"];
    dma_hardware_store_ps: u64, "ps",
        [1_200_000, I, "unused: no hardware generator"],
        [fitted::TRN2_DMA_HARDWARE_STORE_PS, F, "make fit"],
        [fitted::TRN2_DMA_HARDWARE_STORE_PS, I, "as trn2"];
    dma_software_load_ps: u64, "ps",
        [761_000, I, "as trn2"], [761_000, M, "TM0047"], [761_000, I, "as trn2"];
    dma_software_store_ps: u64, "ps",
        [631_000, I, "as trn2"], [631_000, M, "TM0047's twin for stores"], [631_000, I, "as trn2"];
    /// Pool's work on the descriptors of a transfer, before the trigger.
    dma_software_issue_ps: u64, "ps",
        [fitted::TRN1_DMA_SOFTWARE_ISSUE_PS, F, "make fit"],
        [fitted::TRN2_DMA_SOFTWARE_ISSUE_PS, F, "make fit"],
        [fitted::TRN2_DMA_SOFTWARE_ISSUE_PS, I, "as trn2"];
    /// The same per row.
    dma_software_row_ps: u64, "ps",
        [fitted::TRN2_DMA_SOFTWARE_ROW_PS, I, "as trn2"],
        [fitted::TRN2_DMA_SOFTWARE_ROW_PS, F, "make fit"],
        [fitted::TRN2_DMA_SOFTWARE_ROW_PS, I, "as trn2"];
    /// Added where Pool does not come straight from another transfer's descriptors.
    dma_software_start_ps: u64, "ps",
        [fitted::TRN2_DMA_SOFTWARE_START_PS, I, "as trn2"],
        [fitted::TRN2_DMA_SOFTWARE_START_PS, F, "make fit"],
        [fitted::TRN2_DMA_SOFTWARE_START_PS, I, "as trn2"];
    /// Pool's work per row of a gather.
    dma_gather_row_ps: u64, "ps",
        [40_000, I, "as trn2"], [40_400, M, "TM0586"], [40_000, I, "as trn2"];
    /// Each further engine starts this much later where software makes the descriptors.
    dma_software_stagger_ps: u64, "ps",
        [18_000, I, "as trn2"], [18_000, I, "exp [128, 128] profile: 16 engines in 468 ns"], [18_000, I, "as trn2"];
    /// A queue of prepared descriptors starts one transfer in this time.
    dma_ring_issue_ps: u64, "ps",
        [fitted::TRN1_DMA_RING_ISSUE_PS, F, "make fit"],
        [200_000, I, "rope W=128 of NKIBench allows at most 227 ns a load"],
        [200_000, I, "as trn2"];
    dma_ring_load_ps: u64, "ps",
        [1_040_000, I, "as trn2"],
        [1_040_000, P, "exp [4, 4096] profile: 1,003 ns to the first byte"],
        [1_040_000, I, "as trn2"];
    dma_ring_store_ps: u64, "ps",
        [910_000, I, "as trn2"],
        [910_000, P, "exp [4, 4096] profile: 890 ns from the trigger of the store"],
        [910_000, I, "as trn2"];
    /// Each engine's completion write.
    dma_completion_write_ps: u64, "ps",
        [9_000, I, "as trn2"], [9_000, M, "TM0045"], [9_000, I, "as trn2"];
    /// From the last data to the start of an instruction that waits for it.
    dma_completion_ps: u64, "ps",
        [381_000, I, "as trn2"], [381_000, M, "TM0049"], [381_000, I, "as trn2"];

    // What surrounds the program.
    /// What the profiler counts as active outside the body, engine by engine, and for transfers.
    profile_pe_ps: u64, "ps",
        [4_235_000, I, "as trn2"], [4_235_000, M, "attention profiles: active time less the body's"], [4_235_000, I, "as trn2"];
    profile_act_ps: u64, "ps",
        [3_372_000, I, "as trn2"], [3_372_000, M, "attention profiles: active time less the body's"], [3_372_000, I, "as trn2"];
    profile_dve_ps: u64, "ps",
        [4_263_000, I, "as trn2"], [4_263_000, M, "attention profiles: active time less the body's"], [4_263_000, I, "as trn2"];
    profile_pool_ps: u64, "ps",
        [4_095_000, I, "as trn2"], [4_095_000, M, "attention profiles: active time less the body's"], [4_095_000, I, "as trn2"];
    profile_sp_ps: u64, "ps",
        [3_438_000, I, "as trn2"], [3_438_000, M, "attention profiles: active time less the body's"], [3_438_000, I, "as trn2"];
    profile_dma_ps: u64, "ps",
        [6_800_000, I, "as trn2"],
        [6_800_000, M, "attention profiles: static transfers, 6.6 to 7.0 us"],
        [6_800_000, I, "as trn2"];
    /// Device latency beyond the body.
    nc_overhead_ps: u64, "ps",
        [fitted::TRN1_NC_OVERHEAD_PS, F, "make fit"],
        [fitted::TRN2_NC_OVERHEAD_PS, F, "make fit"],
        [fitted::TRN2_NC_OVERHEAD_PS, I, "as trn2"];
    preamble_ps: u64, "ps",
        [13_400_000, I, "as trn2"], [13_400_000, M, "TM0050"], [13_400_000, I, "as trn2"];
    epilogue_ps: u64, "ps",
        [1_684_000, I, "as trn2"], [1_684_000, M, "TM0051"], [1_684_000, I, "as trn2"];
}
