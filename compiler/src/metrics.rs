//! Bytes that a graph cannot do without, and bytes and records that a program has.

use ir::program::{DmaPlace, InstructionKind};
use ir::{Graph, Op, Program, ValueId};

/// Bytes that any program for this graph moves: every used input and stored constant read once,
/// every output written once. Of a tensor that only gathers read, the rows they read count.
pub fn compulsory_bytes(graph: &Graph) -> u64 {
    let reads = Reads::of(graph);
    let inputs = graph.inputs.iter().map(|input| input.value);
    let constants = graph.nodes().filter(|(_, node)| matches!(node.op, Op::Constant(_)));
    let stored = inputs.chain(constants.map(|(_, node)| node.results[0]));
    let read: u64 = stored.map(|value| reads.bytes(graph, value)).sum();
    let outputs = graph.outputs.iter().filter_map(|output| output.value);
    let written: u64 = outputs.map(|value| graph.ty(value).size_bytes() as u64).sum();
    read + written
}

/// How values are read, by value.
struct Reads {
    is_read: Vec<bool>,
    /// By something that takes more than rows.
    is_read_whole: Vec<bool>,
    /// Bytes of the rows that gathers take.
    gathered: Vec<u64>,
}

impl Reads {
    fn of(graph: &Graph) -> Reads {
        let n_values = graph.n_values();
        let mut reads =
            Reads { is_read: vec![false; n_values], is_read_whole: vec![false; n_values], gathered: vec![0; n_values] };
        for output in graph.outputs.iter().filter_map(|output| output.value) {
            // An input that is an output is copied.
            reads.is_read[output.index()] = true;
        }
        for (_, node) in graph.nodes() {
            for (position, operand) in node.operands.iter().enumerate() {
                let operand = operand.index();
                let takes_rows = position == 0 && matches!(node.op, Op::GatherRows(_) | Op::Gather(_) | Op::Index(_));
                reads.is_read[operand] = true;
                if takes_rows {
                    let rows = graph.ty(node.results[0]).size_bytes() as u64;
                    reads.gathered[operand] = reads.gathered[operand].saturating_add(rows);
                } else {
                    reads.is_read_whole[operand] = true;
                }
            }
        }
        reads
    }

    /// Bytes of a value in device memory that the graph reads at least once.
    fn bytes(&self, graph: &Graph, value: ValueId) -> u64 {
        let size = graph.ty(value).size_bytes() as u64;
        match (self.is_read[value.index()], self.gathered[value.index()]) {
            (false, _) => 0,
            (true, gathered) if gathered == 0 || self.is_read_whole[value.index()] => size,
            (true, gathered) => gathered.min(size),
        }
    }
}

/// What a program's records move and do.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramMetrics {
    pub n_instructions: usize,
    pub n_compute_instructions: usize,
    /// Bytes that transfers read from device memory; repeated reads count.
    pub hbm_read_bytes: u64,
    pub hbm_write_bytes: u64,
}

/// Counts a program.
pub fn program_metrics(program: &Program) -> ProgramMetrics {
    let mut metrics = ProgramMetrics::default();
    for instruction in &program.instructions {
        metrics.n_instructions += 1;
        metrics.n_compute_instructions += usize::from(instruction.is_compute());
        let InstructionKind::Dma { dst, src, .. } = &instruction.kind else { continue };
        let bytes = |access: &ir::program::DmaAccess| match access.place {
            DmaPlace::Hbm { .. } => access.n_elements() * access.dtype.size_bytes() as u64,
            DmaPlace::Tile { .. } => 0,
        };
        metrics.hbm_read_bytes += bytes(src);
        metrics.hbm_write_bytes += bytes(dst);
    }
    metrics
}

#[cfg(test)]
mod tests {
    use ir::graph::InputRole;
    use ir::ops::{Abs, GatherRows};
    use ir::{Dtype, Graph, TensorType};

    use super::compulsory_bytes;

    #[test]
    fn gathers_count_the_rows_they_read_and_unused_inputs_nothing() {
        let mut graph = Graph::new("g");
        let table = graph.push_input("table", TensorType::new(Dtype::F32, [1000, 4]), InputRole::Static);
        let ids = graph.push_input("ids", TensorType::new(Dtype::I64, [3]), InputRole::Dynamic);
        graph.push_input("unused", TensorType::new(Dtype::F32, [1000]), InputRole::Dynamic);
        let rows = graph.push_value_of(GatherRows.into(), &[table, ids], &[]).unwrap();
        graph.push_output(rows);
        // Three rows, three ids, three rows written.
        assert_eq!(compulsory_bytes(&graph), 3 * 16 + 3 * 8 + 3 * 16);
        let all = graph.push_value_of(Abs.into(), &[table], &[]).unwrap();
        graph.push_output(all);
        assert_eq!(compulsory_bytes(&graph), 16_000 + 24 + 48 + 16_000);
    }
}
