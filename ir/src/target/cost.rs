//! How long instructions and transfers take: pure functions of the target's numbers, used by the
//! scheduler's estimates and by the simulator alike.
//!
//! A cost says nothing about waiting: semaphores, busy engines, shared DMA engines and the warm-up
//! of the tensor engine are the business of whoever adds costs up.

use smallvec::SmallVec;

use super::Target;
use crate::program::{
    ActivationFunction, AluOp, DmaAccess, DmaDim, DmaPlace, DmaQueue, Engine, Gather, Instruction, InstructionKind,
    Space, Tile, TileView,
};
use crate::types::Dtype;

/// Times of one instruction on its engine.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct InstructionCost {
    /// From readiness to the start; hidden while the engine still streams the instruction before.
    pub setup_ps: u64,
    /// From the start until the engine may start its next instruction.
    pub interval_ps: u64,
    /// From the start until results are visible and the semaphore is updated.
    pub latency_ps: u64,
    /// The part of the interval that a cold tensor engine stretches; 0 on other engines.
    pub stream_ps: u64,
    /// The part of the latency beyond the interval that a cold tensor engine stretches too.
    pub drain_ps: u64,
}

/// Times of one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmaCost {
    /// The trigger's engine works this long before it hands the transfer over.
    pub prepare_ps: u64,
    /// The queue's descriptors are taken for this long from the trigger on; 0 where Pool makes them.
    pub generator_ps: u64,
    /// From the trigger to the first data.
    pub first_packet_ps: u64,
    /// Each used engine starts this much after the one before it.
    pub stagger_ps: u64,
    /// Least time on each engine after the data of the transfer before on the same queue.
    pub gap_ps: u64,
    /// Work of each DMA engine; 0 for unused ones.
    pub engine_ps: Vec<u64>,
    /// From the last data to the start of an instruction that waits for the transfer.
    pub completion_ps: u64,
    /// Bytes read from HBM; repeated reads count.
    pub hbm_read_bytes: u64,
    pub hbm_write_bytes: u64,
}

impl DmaCost {
    /// Trigger to the last data when nothing else runs.
    pub fn alone_ps(&self, target: &Target) -> u64 {
        let used = self.engine_ps.iter().filter(|&&busy_ps| busy_ps > 0).enumerate();
        let last_ps = used.map(|(rank, busy_ps)| rank as u64 * self.stagger_ps + busy_ps).max().unwrap_or(0);
        self.first_packet_ps + last_ps.max(self.hbm_ps(target))
    }

    /// Least time that the traffic of HBM takes.
    pub fn hbm_ps(&self, target: &Target) -> u64 {
        (self.hbm_read_bytes + self.hbm_write_bytes) * 1000 / target.hbm_bytes_per_ns
    }
}

/// Picoseconds of `cycles * numerator / denominator` cycles of a clock.
fn cycles_ps(cycles: u64, numerator: u64, denominator: u64, khz: u64) -> u64 {
    // Nearly all products fit into 64 bits, whose division is much cheaper.
    match cycles.checked_mul(numerator).and_then(|product| product.checked_mul(1_000_000_000)) {
        Some(product) => product / (denominator * khz),
        None => {
            let product = u128::from(cycles) * u128::from(numerator) * 1_000_000_000;
            (product / (u128::from(denominator) * u128::from(khz))) as u64
        }
    }
}

/// What one instruction costs on its engine. `tiles` are the tiles its views name. For a transfer
/// this is the trigger alone; see [`dma_cost`].
pub fn instruction_cost(target: &Target, instruction: &Instruction, tiles: &[Tile]) -> InstructionCost {
    cost_on(target, instruction.engine, &instruction.kind, tiles)
}

/// What an instruction of this kind would cost on this engine, as [`instruction_cost`] says it.
pub fn cost_on(target: &Target, engine: Engine, kind: &InstructionKind, tiles: &[Tile]) -> InstructionCost {
    let control =
        InstructionCost { interval_ps: target.control_ps, latency_ps: target.control_ps, ..Default::default() };
    match kind {
        InstructionKind::Sync
        | InstructionKind::Call { .. }
        | InstructionKind::Return
        | InstructionKind::ClearSemaphores { .. } => control,
        InstructionKind::LoadTable { set: _ } => InstructionCost {
            interval_ps: target.act_table_load_ps,
            latency_ps: target.act_table_load_ps,
            ..Default::default()
        },
        InstructionKind::Dma { dst, src, queue, gather } => {
            let prepare_ps = prepare_ps(target, dst, src, *queue, gather.as_ref());
            let interval_ps = prepare_ps + target.control_ps;
            InstructionCost { interval_ps, latency_ps: interval_ps, ..Default::default() }
        }
        kind => match engine {
            Engine::Pe => pe_cost(target, kind),
            Engine::Act => act_cost(target, kind, tiles),
            Engine::Dve => dve_cost(target, kind, tiles),
            Engine::Pool => pool_cost(target, kind),
            Engine::Sp => control,
        },
    }
}

/// Names of the table's numbers that one instruction's cost rests on and that are assumed on some
/// chips; whether they are on this one, their grade says.
pub fn doubtful_numbers(target: &Target, instruction: &Instruction) -> SmallVec<[&'static str; 2]> {
    let mut names = SmallVec::new();
    if instruction.is_compute() && port_factor(target, &instruction.kind) > 1 {
        names.push("port_stride_bytes");
    }
    match &instruction.kind {
        InstructionKind::TensorTensor { .. } if instruction.engine == Engine::Pool => names.push("pool_tensor_cycles"),
        InstructionKind::Matmul { stationary, moving, .. } => {
            let columns = moving.n_elements() as u64;
            if columns < (stationary.n_elements() as u64).min(target.pe_min_columns) {
                names.push("pe_min_columns");
            }
        }
        _ => {}
    }
    names
}

fn pe_cost(target: &Target, kind: &InstructionKind) -> InstructionCost {
    let (columns, stationary, passes, is_f32) = match kind {
        InstructionKind::Matmul { stationary, moving, .. } => {
            let is_f32 = stationary.dtype == Dtype::F32 || moving.dtype == Dtype::F32;
            let passes = if is_f32 { target.pe_f32_passes } else { 1 };
            (moving.n_elements() as u64, stationary.n_elements() as u64, passes, is_f32)
        }
        // The data is the stationary operand; an identity with one column per partition moves.
        InstructionKind::Transpose { data, .. } => {
            let is_f32 = data.dtype.size_bytes() == 4;
            let passes = if is_f32 { target.pe_f32_transpose_passes } else { 1 };
            (u64::from(data.n_partitions), data.n_elements() as u64, passes, is_f32)
        }
        kind => (largest_view(kind) as u64, 1, 1, false),
    };
    let cycles = columns.max(stationary.min(target.pe_min_columns)) * passes;
    let stream_ps = cycles_ps(cycles, 1, 1, target.pe_khz);
    // Each hardware instruction streams at most twice.
    let overhead_ps = target.pe_overhead_ps * passes.div_ceil(2);
    InstructionCost {
        setup_ps: if is_f32 { target.pe_load_f32_ps } else { target.pe_load_ps },
        interval_ps: stream_ps + overhead_ps,
        latency_ps: stream_ps + overhead_ps - target.pe_overhead_ps + target.pe_pipeline_ps,
        stream_ps,
        drain_ps: target.pe_drain_ps,
    }
}

fn act_cost(target: &Target, kind: &InstructionKind, tiles: &[Tile]) -> InstructionCost {
    let (n_elements, overhead_ps, accumulator_cycles, halved) = match kind {
        InstructionKind::Activation { function, data, reduce_result, .. } => {
            let overhead_ps = match (is_simple(*function), space(tiles, data)) {
                (true, Space::Sbuf | Space::Psum) => target.act_overhead_ps,
                (false, Space::Psum) => target.act_table_overhead_psum_ps,
                (false, Space::Sbuf) => target.act_table_overhead_sbuf_ps,
            };
            let accumulator = if reduce_result.is_some() { target.act_accumulator_cycles } else { 0 };
            (data.n_elements(), overhead_ps, accumulator, false)
        }
        InstructionKind::TensorScalar { dst, data, .. } | InstructionKind::TensorCopy { dst, src: data } => {
            let halved = target.act_wide_mode && dst.dtype.is_half() && data.dtype.is_half();
            (data.n_elements(), target.act_overhead_ps, 0, halved)
        }
        kind => (largest_view(kind), target.act_overhead_ps, 0, false),
    };
    let denominator = if halved { 2 } else { 1 };
    let stream_ps = cycles_ps(n_elements as u64, port_factor(target, kind), denominator, target.act_khz);
    let interval_ps = stream_ps + overhead_ps + cycles_ps(accumulator_cycles, 1, 1, target.act_khz);
    InstructionCost { interval_ps, latency_ps: interval_ps + target.act_pipeline_ps, ..Default::default() }
}

/// Functions that need no table and cost as little as a copy.
fn is_simple(function: ActivationFunction) -> bool {
    function.table_sets().is_empty()
}

fn dve_cost(target: &Target, kind: &InstructionKind, tiles: &[Tile]) -> InstructionCost {
    let n_elements = largest_view(kind) as u64;
    let (numerator, denominator) = dve_rate(target, kind, tiles);
    let stream_ps = cycles_ps(n_elements, numerator * port_factor(target, kind), denominator, target.dve_khz);
    let reads_accumulator = matches!(kind, InstructionKind::TensorScalarReduce { .. });
    let accumulator_cycles = if reads_accumulator { target.dve_accumulator_cycles } else { 0 };
    let accumulator = cycles_ps(accumulator_cycles, 1, 1, target.dve_khz);
    let vector_ps = if has_vector_operand(kind) { target.dve_vector_operand_ps } else { 0 };
    let interval_ps = stream_ps + target.dve_overhead_ps + accumulator + vector_ps;
    InstructionCost { interval_ps, latency_ps: interval_ps + target.dve_pipeline_ps, ..Default::default() }
}

/// Cycles per element of a vector instruction as a fraction.
fn dve_rate(target: &Target, kind: &InstructionKind, tiles: &[Tile]) -> (u64, u64) {
    let in_psum = |view: &TileView| space(tiles, view) == Space::Psum;
    let bf16 = |view: &TileView| view.dtype == Dtype::Bf16;
    match kind {
        InstructionKind::TensorCopy { dst, src: data } | InstructionKind::TensorScalar { dst, data, .. } => {
            (1, copy_rate(target, tiles, dst, data))
        }
        InstructionKind::TensorTensor { dst, lhs, rhs, op } => {
            let all = [dst, lhs, rhs];
            let linear = matches!(op, AluOp::Add | AluOp::Subtract | AluOp::Multiply);
            let paired = linear && all.into_iter().all(|view| bf16(view) && is_contiguous(view));
            let wide = target.dve_perf_modes && all.into_iter().all(|view| is_wide(target, view.dtype));
            match () {
                () if in_psum(lhs) || in_psum(rhs) => (1, 1),
                // Twice the rate of other types.
                () if wide => (target.dve_two_tensors_cycles, 2),
                () if paired => (1, 1),
                () => (target.dve_two_tensors_cycles, 1),
            }
        }
        InstructionKind::ScalarTensorTensor { data, op0, op1, operand1, .. } => {
            let paired = bf16(data) && bf16(operand1) && data.n_elements() % 2 == 0;
            let special = paired && *op0 == AluOp::Subtract && *op1 == AluOp::Multiply;
            if in_psum(data) || in_psum(operand1) || special { (1, 1) } else { (target.dve_two_tensors_cycles, 1) }
        }
        InstructionKind::TensorTensorScan { .. } => (2, 1),
        InstructionKind::TensorReduce { dst, data, op, .. } => {
            let halved = bf16(dst) && bf16(data) && matches!(op, AluOp::Add | AluOp::Max);
            if halved { (1, 2) } else { (1, 1) }
        }
        InstructionKind::TensorCopyPredicated { src, predicate, .. } => {
            if in_psum(src) == in_psum(predicate) {
                (2, 1)
            } else {
                (1, 1)
            }
        }
        InstructionKind::Memset { dst, value } => {
            if value.to_bits() == 0 && dst.dtype.is_half() {
                (1, 2)
            } else {
                (1, 1)
            }
        }
        InstructionKind::Reciprocal { .. } => (target.dve_reciprocal_cycles, 1),
        InstructionKind::BnAggr { .. } => (13, 3),
        InstructionKind::Activation { .. }
        | InstructionKind::TensorScalarReduce { .. }
        | InstructionKind::Iota { .. }
        | InstructionKind::BnStats { .. }
        | InstructionKind::Matmul { .. }
        | InstructionKind::Transpose { .. }
        | InstructionKind::Dma { .. }
        | InstructionKind::LoadTable { .. }
        | InstructionKind::Sync
        | InstructionKind::Call { .. }
        | InstructionKind::Return
        | InstructionKind::ClearSemaphores { .. } => (1, 1),
    }
}

/// Elements per cycle of a copy or scale on DVE.
fn copy_rate(target: &Target, tiles: &[Tile], dst: &TileView, src: &TileView) -> u64 {
    if !target.dve_perf_modes {
        return 1;
    }
    let n_psum = [dst, src].into_iter().filter(|view| space(tiles, view) == Space::Psum).count();
    let contiguous = is_contiguous(dst) && is_contiguous(src);
    let wide = is_wide(target, dst.dtype) && is_wide(target, src.dtype);
    match (wide, n_psum, contiguous) {
        (true, 0, true) => 4,
        (true, 0, false) | (true, 1, true) => 2,
        (false, 0, true) if target.dve_double_rate_32bit => 2,
        (_, _, _) => 1,
    }
}

fn pool_cost(target: &Target, kind: &InstructionKind) -> InstructionCost {
    let is_tensor_tensor = matches!(kind, InstructionKind::TensorTensor { .. });
    let per_element = if is_tensor_tensor { target.pool_tensor_cycles } else { 1 };
    let cycles = target.pool_overhead_cycles + largest_view(kind) as u64 * per_element;
    let interval_ps = cycles_ps(cycles, 1, 1, target.pool_khz);
    InstructionCost { interval_ps, latency_ps: interval_ps, ..Default::default() }
}

/// What one transfer costs. `tiles` are the tiles that its sides name; a tile without an address
/// counts as starting at partition 0.
pub fn dma_cost(
    target: &Target,
    dst: &DmaAccess,
    src: &DmaAccess,
    queue: DmaQueue,
    gather: Option<&Gather>,
    tiles: &[Tile],
) -> DmaCost {
    let n_elements = dst.n_elements();
    let is_store = src.hbm().is_none();
    let first_packet_ps = match (queue, is_store) {
        (DmaQueue::Hardware | DmaQueue::HardwareTranspose, false) => target.dma_hardware_load_ps,
        (DmaQueue::Hardware | DmaQueue::HardwareTranspose, true) => target.dma_hardware_store_ps,
        (DmaQueue::Software, false) => target.dma_software_load_ps,
        (DmaQueue::Software, true) => target.dma_software_store_ps,
        (DmaQueue::Ring, false) => target.dma_ring_load_ps,
        (DmaQueue::Ring, true) => target.dma_ring_store_ps,
    };
    let engine_ps = if queue == DmaQueue::HardwareTranspose {
        vec![turning_ps(target, dst, src); target.dma_engines as usize]
    } else {
        let run = run_length(row_dims(dst, gather), row_dims(src, gather));
        let run_ps = run_ps(target, run, dst.dtype, src.dtype);
        elements_per_engine(target, dst, src, tiles).iter().map(|&n| n.div_ceil(run) * run_ps).collect()
    };
    let hbm_bytes = |side: &DmaAccess| side.hbm().map_or(0, |_| n_elements * side.dtype.size_bytes() as u64);
    DmaCost {
        prepare_ps: prepare_ps(target, dst, src, queue, gather),
        generator_ps: match queue {
            DmaQueue::Hardware | DmaQueue::HardwareTranspose => target.dma_hardware_issue_ps,
            DmaQueue::Ring => target.dma_ring_issue_ps,
            DmaQueue::Software => 0,
        },
        first_packet_ps,
        stagger_ps: match queue {
            DmaQueue::Software => target.dma_software_stagger_ps,
            DmaQueue::Hardware | DmaQueue::HardwareTranspose => {
                n_rows(dst, src) * target.dma_hardware_row_ps / u64::from(target.dma_engines)
            }
            DmaQueue::Ring => 0,
        },
        gap_ps: match queue {
            DmaQueue::Hardware | DmaQueue::HardwareTranspose => target.dma_hardware_gap_ps,
            DmaQueue::Software | DmaQueue::Ring => 0,
        },
        engine_ps,
        completion_ps: target.dma_completion_ps,
        hbm_read_bytes: hbm_bytes(src),
        hbm_write_bytes: hbm_bytes(dst),
    }
}

/// Dimensions of one side; indexed rows end at the outermost one.
fn row_dims<'a>(side: &'a DmaAccess, gather: Option<&Gather>) -> &'a [DmaDim] {
    let is_indexed = gather.is_some() && side.hbm().is_some();
    if is_indexed { side.dims.get(1..).unwrap_or(&[]) } else { &side.dims }
}

/// Pool's descriptor work before a software transfer: per row, which is the part that one
/// partition (or, within HBM, the outermost dimension's step) takes.
fn prepare_ps(target: &Target, dst: &DmaAccess, src: &DmaAccess, queue: DmaQueue, gather: Option<&Gather>) -> u64 {
    let outermost = |side: &DmaAccess| side.dims.first().map_or(1, |dim| u64::from(dim.count));
    match (queue, gather) {
        (DmaQueue::Hardware | DmaQueue::HardwareTranspose | DmaQueue::Ring, _) => 0,
        (DmaQueue::Software, Some(_)) => {
            outermost(if Gather::scatters(src) { dst } else { src }) * target.dma_gather_row_ps
        }
        (DmaQueue::Software, None) => target.dma_software_issue_ps + n_rows(dst, src) * target.dma_software_row_ps,
    }
}

/// Rows of a transfer: partitions of its side on chip, or steps of the outermost dimension in HBM.
fn n_rows(dst: &DmaAccess, src: &DmaAccess) -> u64 {
    let side = if src.hbm().is_none() { src } else { dst };
    match side.place {
        DmaPlace::Tile { .. } => partition_dims(side).map(u64::from).product(),
        DmaPlace::Hbm { .. } => side.dims.first().map_or(1, |dim| u64::from(dim.count)),
    }
}

fn partition_dims(side: &DmaAccess) -> impl Iterator<Item = u32> {
    side.dims.iter().filter(|dim| dim.partition_step != 0).map(|dim| dim.count)
}

/// Elements that lie together on both sides: the length of one descriptor element.
fn run_length(dst: &[DmaDim], src: &[DmaDim]) -> u64 {
    let (dst_run, src_run) = (side_run(dst), side_run(src));
    let (mut high, mut low) = (dst_run.max(src_run), dst_run.min(src_run));
    while low != 0 {
        (high, low) = (low, high % low);
    }
    high.max(1)
}

/// Innermost elements of one side at consecutive addresses.
fn side_run(dims: &[DmaDim]) -> u64 {
    let mut run: u64 = 1;
    for dim in dims.iter().rev().filter(|dim| dim.count != 1) {
        if dim.partition_step != 0 || dim.step != run as i64 {
            break;
        }
        run = run.saturating_mul(u64::from(dim.count));
    }
    run.max(1)
}

/// Time of one run on its engine: as many packets as it needs.
fn run_ps(target: &Target, run: u64, dst: Dtype, src: Dtype) -> u64 {
    let bytes = run * dst.size_bytes() as u64;
    let packets = bytes.div_ceil(target.dma_packet_bytes).max(1);
    let plain_ps = packets * target.dma_packet_ps + bytes * target.dma_kib_ps / 1024;
    if dst == src { plain_ps } else { plain_ps * target.dma_cast_percent / 100 }
}

/// Work of each engine in a turning transfer: all turn every block of rows together, at a part of the
/// speed of a copy in the longest packets.
fn turning_ps(target: &Target, dst: &DmaAccess, src: &DmaAccess) -> u64 {
    let is_load = src.hbm().is_some();
    let percent = if is_load { target.dma_transpose_percent } else { target.dma_transpose_on_chip_percent };
    let bytes = dst.n_elements() * dst.dtype.size_bytes() as u64 / u64::from(target.dma_engines);
    let copy_ps = bytes * target.dma_packet_ps / target.dma_packet_bytes + bytes * target.dma_kib_ps / 1024;
    copy_ps * percent / 100
}

/// Elements that each DMA engine moves: engine e serves an equal block of partitions; transfers
/// within HBM are spread evenly.
fn elements_per_engine(target: &Target, dst: &DmaAccess, src: &DmaAccess, tiles: &[Tile]) -> Vec<u64> {
    let n_engines = target.dma_engines as usize;
    let mut elements = vec![0u64; n_engines];
    let tile_side = [dst, src].into_iter().find_map(|side| match side.place {
        DmaPlace::Tile { tile, partition } => Some((side, tile, partition)),
        DmaPlace::Hbm { .. } => None,
    });
    let Some((side, tile, partition)) = tile_side else {
        let share = dst.n_elements().div_ceil(n_engines as u64);
        let mut left = dst.n_elements();
        for slot in &mut elements {
            *slot = share.min(left);
            left -= *slot;
        }
        return elements;
    };
    let base = tiles.get(tile.index()).and_then(|tile| tile.address).map_or(0, |address| i64::from(address.partition));
    let block = i64::from(target.partitions) / n_engines as i64;
    let first = base + i64::from(partition);
    // Nearly always: one dimension of consecutive partitions.
    let mut across = side.dims.iter().filter(|dim| dim.partition_step != 0);
    if let (Some(dim), None) = (across.next(), across.next())
        && dim.partition_step == 1
        && dim.count <= target.partitions
        && first >= 0
        && first + i64::from(dim.count) <= i64::from(target.partitions)
    {
        let end = first + i64::from(dim.count);
        let per_partition = dst.n_elements().div_ceil(u64::from(dim.count).max(1));
        for (engine, slot) in elements.iter_mut().enumerate() {
            let (low, high) = (engine as i64 * block, (engine as i64 + 1) * block);
            *slot = (end.min(high) - first.max(low)).max(0) as u64 * per_partition;
        }
        return elements;
    }
    let mut partitions = vec![first];
    for dim in side.dims.iter().filter(|dim| dim.partition_step != 0) {
        let steps = 0..i64::from(dim.count.min(target.partitions));
        partitions = steps
            .flat_map(|step| partitions.iter().map(move |start| start + step * i64::from(dim.partition_step)))
            .take(target.partitions as usize)
            .collect();
    }
    let per_partition = dst.n_elements().div_ceil(partitions.len().max(1) as u64);
    for partition in partitions {
        let engine = (partition / block).clamp(0, n_engines as i64 - 1) as usize;
        elements[engine] += per_partition;
    }
    elements
}

fn space(tiles: &[Tile], view: &TileView) -> Space {
    tiles.get(view.tile.index()).map_or(Space::Sbuf, |tile| tile.space)
}

/// Types that the fast modes of DVE move together.
fn is_wide(target: &Target, dtype: Dtype) -> bool {
    dtype.is_half() || (target.dve_wide_fp8 && matches!(dtype, Dtype::F8E4m3 | Dtype::F8E5m2))
}

/// True where the innermost dimension of more than one element has step 1.
fn is_contiguous(view: &TileView) -> bool {
    view.dims.iter().rev().find(|dim| dim.count > 1).is_none_or(|dim| dim.step == 1)
}

/// 2 where some operand's innermost step is too long for its port, else 1.
fn port_factor(target: &Target, kind: &InstructionKind) -> u64 {
    let accesses = kind.accesses();
    let is_slow = |view: &TileView| {
        let innermost = view.dims.iter().rev().find(|dim| dim.count > 1);
        innermost.is_some_and(|dim| {
            u32::from(dim.step.unsigned_abs()) * view.dtype.size_bytes() as u32 > target.port_stride_bytes
        })
    };
    let mut views = accesses.tile_reads.iter().chain(&accesses.tile_writes);
    if views.any(|view| is_slow(view)) { 2 } else { 1 }
}

fn has_vector_operand(kind: &InstructionKind) -> bool {
    match kind {
        InstructionKind::TensorScalar { operand0, second, .. } => {
            operand0.vector().is_some() || second.as_ref().is_some_and(|(_, operand, _)| operand.vector().is_some())
        }
        InstructionKind::TensorScalarReduce { operand0, .. } | InstructionKind::ScalarTensorTensor { operand0, .. } => {
            operand0.vector().is_some()
        }
        InstructionKind::TensorTensorScan { initial, .. } => initial.vector().is_some(),
        InstructionKind::Activation { .. }
        | InstructionKind::TensorTensor { .. }
        | InstructionKind::TensorReduce { .. }
        | InstructionKind::TensorCopy { .. }
        | InstructionKind::TensorCopyPredicated { .. }
        | InstructionKind::Reciprocal { .. }
        | InstructionKind::Memset { .. }
        | InstructionKind::Iota { .. }
        | InstructionKind::BnStats { .. }
        | InstructionKind::BnAggr { .. }
        | InstructionKind::Matmul { .. }
        | InstructionKind::Transpose { .. }
        | InstructionKind::Dma { .. }
        | InstructionKind::LoadTable { .. }
        | InstructionKind::Sync
        | InstructionKind::Call { .. }
        | InstructionKind::Return
        | InstructionKind::ClearSemaphores { .. } => false,
    }
}

/// Elements per partition of the longest operand.
fn largest_view(kind: &InstructionKind) -> usize {
    let accesses = kind.accesses();
    accesses.tile_reads.iter().chain(&accesses.tile_writes).map(|view| view.n_elements()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::program::{Dim, HbmId, ScalarOperand, TileId};
    use crate::target::TargetName;

    /// SBUF, PSUM.
    fn tiles() -> Vec<Tile> {
        [Space::Sbuf, Space::Psum]
            .into_iter()
            .map(|space| Tile {
                label: String::new(),
                space,
                dtype: Dtype::F32,
                n_partitions: 128,
                bytes_per_partition: 16_384,
                alignment_bytes: 4,
                address: None,
            })
            .collect()
    }

    fn view(tile: u32, dtype: Dtype, n: u16) -> TileView {
        TileView {
            tile: TileId(tile),
            partition: 0,
            n_partitions: 128,
            offset: 0,
            dims: smallvec![Dim { step: 1, count: n }],
            dtype,
        }
    }

    const SBUF: u32 = 0;
    const PSUM: u32 = 1;

    #[track_caller]
    fn expect_ns(engine: Engine, kind: InstructionKind, interval_ns: Option<f64>, latency_ns: Option<f64>) {
        let cost = instruction_cost(TargetName::Trn2.target(), &Instruction::new(engine, kind), &tiles());
        for (name, ps, expected) in
            [("interval", cost.interval_ps, interval_ns), ("latency", cost.latency_ps, latency_ns)]
        {
            let Some(expected) = expected else { continue };
            let error = (ps as f64 / 1000.0 - expected) / expected;
            assert!(error.abs() < 0.05, "{name} of {ps} ps against {expected} ns measured: {:.1}%", error * 100.0);
        }
    }

    fn activation(function: ActivationFunction, source: u32, n: u16) -> InstructionKind {
        InstructionKind::Activation {
            function,
            dst: view(SBUF, Dtype::F32, n),
            data: view(source, Dtype::F32, n),
            scale: ScalarOperand::Immediate(1.0),
            bias: ScalarOperand::Immediate(0.0),
            reduce: None,
            reduce_result: None,
        }
    }

    fn matmul(dtype: Dtype, n: u16) -> InstructionKind {
        InstructionKind::Matmul {
            dst: view(PSUM, Dtype::F32, n),
            stationary: view(SBUF, dtype, 128),
            moving: view(SBUF, dtype, n),
            accumulate: false,
        }
    }

    #[test]
    fn matmuls_cost_what_was_measured() {
        // TM0001, TM0009; f32 is two instructions of TM0005 and TM0011, TM0007 and TM0012.
        expect_ns(Engine::Pe, matmul(Dtype::Bf16, 512), Some(215.0), Some(376.0));
        expect_ns(Engine::Pe, matmul(Dtype::Bf16, 128), Some(56.0), Some(216.0));
        expect_ns(Engine::Pe, matmul(Dtype::F32, 512), Some(856.0), Some(428.0 + 593.0));
        expect_ns(Engine::Pe, matmul(Dtype::F32, 128), Some(224.0), Some(112.0 + 275.0));
        // TM0002: a cold engine stretches the stream.
        let cold = instruction_cost(
            TargetName::Trn2.target(),
            &Instruction::new(Engine::Pe, matmul(Dtype::Bf16, 512)),
            &tiles(),
        );
        let cold_ps = cold.interval_ps + cold.stream_ps * (TargetName::Trn2.target().pe_cold_factor - 1);
        assert!(cold_ps.abs_diff(427_000) < 10_000, "{cold_ps}");
        assert_eq!(cold.setup_ps, TargetName::Trn2.target().pe_load_ps);
    }

    #[test]
    fn activations_cost_what_was_measured() {
        // TM0017, its twin from SBUF, TM0019, TM0020.
        expect_ns(Engine::Act, activation(ActivationFunction::Exp, PSUM, 512), Some(570.0), Some(686.0));
        expect_ns(Engine::Act, activation(ActivationFunction::Exp, SBUF, 512), Some(612.0), Some(707.0));
        expect_ns(Engine::Act, activation(ActivationFunction::Copy, PSUM, 512), Some(482.0), Some(585.0));
        expect_ns(Engine::Act, activation(ActivationFunction::Copy, PSUM, 128), None, Some(265.0));
        // TM0023.
        let set = crate::program::TableSet::ExpAndOthers;
        expect_ns(Engine::Act, InstructionKind::LoadTable { set }, Some(1283.0), Some(1283.0));
    }

    #[test]
    fn a_dependent_scalar_on_trn1_takes_264_cycles() {
        let target = TargetName::Trn1.target();
        let instruction = Instruction::new(Engine::Act, activation(ActivationFunction::Copy, SBUF, 1));
        let chain_ps = instruction_cost(target, &instruction, &tiles()).latency_ps + target.wake_same_engine_ps;
        // TM0473: 189 ns.
        assert!(chain_ps.abs_diff(189_000) < 2_000, "{chain_ps}");
    }

    fn tensor_scalar(source: u32, n: u16) -> InstructionKind {
        InstructionKind::TensorScalar {
            dst: view(SBUF, Dtype::F32, n),
            data: view(source, Dtype::F32, n),
            op0: AluOp::Multiply,
            operand0: ScalarOperand::Vector(view(SBUF, Dtype::F32, 1)),
            reverse0: false,
            second: None,
        }
    }

    #[test]
    fn vector_instructions_cost_what_was_measured() {
        let reduce = |source, n| InstructionKind::TensorReduce {
            dst: view(SBUF, Dtype::F32, 1),
            data: view(source, Dtype::F32, n),
            op: AluOp::Add,
            n_reduced_dims: 1,
            negate: false,
        };
        let copy = |dtype, n| InstructionKind::TensorCopy { dst: view(SBUF, dtype, n), src: view(PSUM, Dtype::F32, n) };
        // TM0024, TM0025, TM0033.
        expect_ns(Engine::Dve, reduce(PSUM, 512), Some(598.0), Some(685.0));
        expect_ns(Engine::Dve, reduce(SBUF, 512), Some(604.0), Some(681.0));
        expect_ns(Engine::Dve, reduce(SBUF, 4), None, Some(157.0));
        // TM0026, TM0027.
        expect_ns(Engine::Dve, tensor_scalar(SBUF, 512), Some(396.0), Some(481.0));
        expect_ns(Engine::Dve, tensor_scalar(PSUM, 128), None, Some(349.0));
        // TM0028, TM0030.
        expect_ns(Engine::Dve, copy(Dtype::F32, 512), None, Some(690.0));
        expect_ns(Engine::Dve, copy(Dtype::Bf16, 128), None, Some(289.0));
        // TM0031.
        let reciprocal =
            InstructionKind::Reciprocal { dst: view(SBUF, Dtype::F32, 4), data: view(SBUF, Dtype::F32, 4) };
        expect_ns(Engine::Dve, reciprocal, None, Some(178.0));
    }

    fn row_load(n_rows: u32, row_elements: u32, dtype: Dtype, queue: DmaQueue) -> DmaCost {
        let side = |place, partition_step, step| DmaAccess {
            place,
            offset: 0,
            dims: smallvec![
                DmaDim { partition_step, step, count: n_rows },
                DmaDim { partition_step: 0, step: 1, count: row_elements }
            ],
            dtype,
        };
        let dst = side(DmaPlace::Tile { tile: TileId(SBUF), partition: 0 }, 1, 0);
        let src = side(DmaPlace::Hbm { tensor: HbmId(0) }, 0, i64::from(row_elements));
        dma_cost(TargetName::Trn2.target(), &dst, &src, queue, None, &tiles())
    }

    /// DMA bandwidth guide: a turning load reaches 90 % of a copy's bandwidth, on chip 50 %.
    #[test]
    fn turning_costs_more_than_a_copy() {
        let target = TargetName::Trn2.target();
        let dim = |partition_step, step, count| DmaDim { partition_step, step, count };
        let side = |place, dims: [DmaDim; 2]| DmaAccess {
            place,
            offset: 0,
            dims: SmallVec::from_slice(&dims),
            dtype: Dtype::Bf16,
        };
        let turned = side(DmaPlace::Tile { tile: TileId(SBUF), partition: 0 }, [dim(0, 1, 2048), dim(1, 0, 128)]);
        let row = side(DmaPlace::Tile { tile: TileId(SBUF), partition: 0 }, [dim(1, 0, 128), dim(0, 1, 2048)]);
        let rows = side(DmaPlace::Hbm { tensor: HbmId(0) }, [dim(0, 128, 2048), dim(0, 1, 128)]);
        let wide_rows = side(DmaPlace::Hbm { tensor: HbmId(0) }, [dim(0, 2048, 128), dim(0, 1, 2048)]);
        let cost = |dst, src, queue| dma_cost(target, dst, src, queue, None, &tiles()).engine_ps;
        let copy = cost(&row, &wide_rows, DmaQueue::Hardware);
        let from_memory = cost(&turned, &rows, DmaQueue::HardwareTranspose);
        let on_chip = cost(&turned, &row, DmaQueue::HardwareTranspose);
        let percent = |one: &[u64], other: &[u64]| one.iter().sum::<u64>() * 100 / other.iter().sum::<u64>();
        assert!(from_memory.iter().all(|&work_ps| work_ps == from_memory[0]), "all engines turn together");
        assert_eq!((percent(&copy, &from_memory), percent(&copy, &on_chip)), (90, 50));
    }

    #[test]
    fn packets_cost_what_was_measured() {
        // One row per engine would be 8 partitions apart; 8 rows on the first engine are 8 packets.
        for (bytes, expected_ns) in [(4096, 158.0), (2048, 83.0), (512, 27.0)] {
            let cost = row_load(8, bytes / 4, Dtype::F32, DmaQueue::Hardware);
            let packet_ns = cost.engine_ps[0] as f64 / 8000.0;
            assert!((packet_ns - expected_ns).abs() / expected_ns < 0.05, "{bytes} bytes: {packet_ns} ns");
            assert_eq!(cost.engine_ps[1], 0);
        }
        // TM0043 and TM0045 lie a nanosecond or two off the line through the others.
        let small = row_load(8, 64, Dtype::F32, DmaQueue::Hardware).engine_ps[0] / 8;
        assert!(small.abs_diff(17_000) < 2_000, "{small}");
        // A row of 32 KiB is eight packets.
        let target = TargetName::Trn2.target();
        let expected_ps = 8 * target.dma_packet_ps + 32 * target.dma_kib_ps;
        assert_eq!(row_load(1, 8192, Dtype::F32, DmaQueue::Ring).engine_ps[0], expected_ps);
    }

    #[test]
    fn transfers_use_the_engines_of_their_partitions() {
        let cost = row_load(128, 512, Dtype::Bf16, DmaQueue::Software);
        assert!(cost.engine_ps.iter().all(|&busy_ps| busy_ps == cost.engine_ps[0] && busy_ps > 0));
        assert_eq!((cost.hbm_read_bytes, cost.hbm_write_bytes), (128 * 1024, 0));
        // TM0498 and the attention profiles: 0.58 to 0.62 us of Pool for 128 rows.
        assert!(cost.prepare_ps.abs_diff(595_000) < 30_000, "{}", cost.prepare_ps);
        let few = row_load(12, 512, Dtype::Bf16, DmaQueue::Hardware);
        assert_eq!(few.engine_ps.iter().filter(|&&busy_ps| busy_ps > 0).count(), 2);
        assert_eq!((few.prepare_ps, few.generator_ps), (0, TargetName::Trn2.target().dma_hardware_issue_ps));
    }
}
