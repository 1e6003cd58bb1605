//! Ranges of 64-bit integers.
//!
//! PyTorch computes positions and indices in 64 bits, the device in 32. Every 64-bit result of a
//! graph must therefore fit 32 bits, or numbers would wrap without a word. Reductions and scans run
//! in f32: what they add up to must stay where f32 holds every integer. How large results get
//! depends on the inputs: each input of 64-bit integers is given the most bits under which no
//! result leaves its bounds, and whoever runs the program checks its elements against them. A node
//! whose result may leave them even for small inputs is refused. 32-bit integers wrap, as PyTorch's.

use ir::ops::{Constant, Full, Iota};
use ir::{Dtype, Graph, Node, Op, ValueId};

use crate::place::{Unsupported, combined_axes};

/// Bits that integers of an input may have, the sign included, from the most to the fewest.
const WIDTHS: [u32; 8] = [32, 31, 28, 24, 20, 16, 12, 8];

/// Smallest and largest number of a value.
type Range = (i64, i64);

const FULL: Range = (i32::MIN as i64, i32::MAX as i64);

/// f32 holds every integer up to here.
const EXACT: Range = (-(1 << 24), 1 << 24);

/// By position of each input the bits that its 64-bit integers may have; 32 for other types.
pub fn input_bits(graph: &Graph) -> Vec<u32> {
    analyse(graph).0
}

/// Nodes with integer results that may leave their bounds whatever the inputs.
pub(crate) fn refused(graph: &Graph) -> Vec<Unsupported> {
    analyse(graph).1
}

fn analyse(graph: &Graph) -> (Vec<u32>, Vec<Unsupported>) {
    let mut widths = vec![0; graph.inputs.len()];
    loop {
        match one_round(graph, &widths) {
            Err(culprit) => widths[culprit] += 1,
            Ok(refused) => return (widths.into_iter().map(|width| WIDTHS[width]).collect(), refused),
        }
    }
}

/// Nodes whose results leave their bounds whatever the inputs.
///
/// # Errors
/// The input whose numbers must be smaller before that can be told.
fn one_round(graph: &Graph, widths: &[usize]) -> Result<Vec<Unsupported>, usize> {
    let mut ranges: Vec<Range> = vec![FULL; graph.n_values()];
    // By value the inputs that its range depends on.
    let mut sources: Vec<Vec<usize>> = vec![Vec::new(); graph.n_values()];
    for (position, input) in graph.inputs.iter().enumerate() {
        if graph.ty(input.value).dtype == Dtype::I64 {
            let largest = (1i64 << (WIDTHS[widths[position]] - 1)) - 1;
            ranges[input.value.index()] = (-largest - 1, largest);
            sources[input.value.index()] = vec![position];
        }
    }
    let mut refused = Vec::new();
    for (id, node) in graph.nodes() {
        let is_wide = |dtype| matches!(dtype, Dtype::I64 | Dtype::I32);
        let Some(&result) = node.results.first().filter(|&&result| is_wide(graph.ty(result).dtype)) else {
            continue;
        };
        let mut inputs: Vec<usize> =
            node.operands.iter().flat_map(|operand| &sources[operand.index()]).copied().collect();
        inputs.sort_unstable();
        inputs.dedup();
        let range = result_range(graph, node, &ranges);
        let bounds = if runs_in_f32(&node.op) { EXACT } else { FULL };
        let is_within = range.0 >= bounds.0 && range.1 <= bounds.1;
        if is_within || bounds == FULL && graph.ty(result).dtype == Dtype::I32 {
            ranges[result.index()] = if is_within { range } else { FULL };
            sources[result.index()] = inputs;
            continue;
        }
        // The widest of them first: others may stay as they are.
        if let Some(&culprit) = inputs.iter().min_by_key(|&&input| widths[input])
            && widths[culprit] + 1 < WIDTHS.len()
        {
            return Err(culprit);
        }
        let beyond = if bounds == EXACT { "the integers that f32 holds" } else { "32 bits" };
        let dtype = graph.ty(result).dtype;
        let reason = format!("its {dtype} elements may lie between {} and {}, beyond {beyond}", range.0, range.1);
        refused.push(Unsupported { node: Some(id), reason });
    }
    Ok(refused)
}

/// True for ops that the device computes in f32 whatever the element type.
fn runs_in_f32(op: &Op) -> bool {
    matches!(op, Op::ReduceSum(_) | Op::ReduceMax(_) | Op::ReduceMin(_) | Op::Cumsum(_))
}

/// What a node's integer result may be.
fn result_range(graph: &Graph, node: &Node, ranges: &[Range]) -> Range {
    let of = |value: ValueId| match graph.ty(value).dtype {
        Dtype::Bool => (0, 1),
        Dtype::I8 => (i8::MIN.into(), i8::MAX.into()),
        Dtype::U8 => (0, u8::MAX.into()),
        Dtype::I16 => (i16::MIN.into(), i16::MAX.into()),
        Dtype::I64 | Dtype::I32 => ranges[value.index()],
        Dtype::F32 | Dtype::Bf16 | Dtype::F16 | Dtype::F64 | Dtype::F8E4m3 | Dtype::F8E5m2 => FULL,
    };
    let operand = |position: usize| of(node.operands[position]);
    let union = |values: &[ValueId]| {
        values.iter().map(|&value| of(value)).reduce(|(low, high), (lower, higher)| (low.min(lower), high.max(higher)))
    };
    match &node.op {
        Op::Add(_) => {
            let ((low, high), (lower, higher)) = (operand(0), operand(1));
            (low + lower, high + higher)
        }
        Op::Sub(_) => {
            let ((low, high), (lower, higher)) = (operand(0), operand(1));
            (low - higher, high - lower)
        }
        Op::Mul(_) => {
            let ((low, high), (lower, higher)) = (operand(0), operand(1));
            let corners = [low * lower, low * higher, high * lower, high * higher];
            corners
                .into_iter()
                .fold((i64::MAX, i64::MIN), |(least, most), corner| (least.min(corner), most.max(corner)))
        }
        Op::Neg(_) => {
            let (low, high) = operand(0);
            (-high, -low)
        }
        Op::Abs(_) => {
            let (low, high) = operand(0);
            (0, high.max(-low))
        }
        Op::ReduceSum(_) | Op::Cumsum(_) => {
            let shape = &graph.ty(node.operands[0]).shape;
            let n_summed: usize = combined_axes(graph, node).iter().map(|&axis| shape[axis]).product();
            let n_summed = i64::try_from(n_summed).unwrap_or(i64::MAX);
            let (low, high) = operand(0);
            // Partial sums count as well: they lie between 0 and the largest sum, or the first element.
            (low.min(0).saturating_mul(n_summed), high.max(0).saturating_mul(n_summed))
        }
        Op::ReduceMax(_) | Op::ReduceMin(_) => operand(0),
        Op::Where(_) => union(&node.operands[1..]).unwrap_or(FULL),
        Op::ScatterRows(_) => union(&[node.operands[0], node.operands[2]]).unwrap_or(FULL),
        Op::Concat(_) => union(&node.operands).unwrap_or(FULL),
        Op::Maximum(_) => (operand(0).0.max(operand(1).0), operand(0).1.max(operand(1).1)),
        Op::Minimum(_) => (operand(0).0.min(operand(1).0), operand(0).1.min(operand(1).1)),
        Op::Cast(_)
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Expand(_)
        | Op::Slice(_)
        | Op::Relayout(_)
        | Op::Gather(_)
        | Op::GatherRows(_)
        | Op::Index(_) => operand(0),
        Op::Full(Full { value, .. }) => (value.get() as i64, value.get() as i64),
        Op::Iota(Iota { length, start, step, .. }) => {
            let last = start.saturating_add(step.saturating_mul(length.saturating_sub(1) as i64));
            (*start.min(&last), *start.max(&last))
        }
        Op::Constant(Constant { data, .. }) => {
            let numbers = data.chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().expect("eight bytes")));
            numbers.fold((0, 0), |(least, most), number| (least.min(number), most.max(number)))
        }
        // Other ops with integer results have no lowering; where one gets one, it must be listed.
        _ => (i64::MIN, i64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use ir::Graph;

    use super::{input_bits, refused};

    fn graph(body: &str) -> Graph {
        let text =
            format!("graph @g {{\n  input %0 \"x\": i64[4] dynamic\n  input %1 \"i\": i64[4] dynamic\n{body}\n}}\n");
        ir::text::parse_graph("g", &text).unwrap_or_else(|_| panic!("parses: {text}"))
    }

    fn bits(body: &str) -> Vec<u32> {
        assert!(refused(&graph(body)).is_empty());
        input_bits(&graph(body))
    }

    #[test]
    fn inputs_are_as_wide_as_results_allow() {
        assert_eq!(bits("  %2 = lt %0, %1 : bool[4]\n  %3 = where %2, %0, %1 : i64[4]"), [32, 32]);
        assert_eq!(bits("  %2 = add %0, %1 : i64[4]\n  output %2 \"\""), [31, 31]);
        assert_eq!(bits("  %2 = mul %0, %0 : i64[4]\n  output %2 \"\""), [16, 32]);
        let clamped = "  %2 = full {value = 9.0, dtype = i64, shape = []} : i64[]\n  %3 = minimum %0, %2 : i64[4]\n  %4 = neg %2 : i64[]\n  %5 = maximum %3, %4 : i64[4]";
        assert_eq!(bits(&format!("{clamped}\n  %6 = mul %5, %5 : i64[4]")), [32, 32]);
        let scaled = "  %2 = full {value = 1000.0, dtype = i64, shape = []} : i64[]\n  %3 = mul %0, %2 : i64[4]";
        assert_eq!(bits(&format!("{scaled}\n  %4 = sub %3, %1 : i64[4]")), [20, 31]);
    }

    #[test]
    fn sums_stay_where_f32_holds_every_integer() {
        let sum = "  %2 = reduce_sum %0 {axes = [0]} : i64[1]\n  output %2 \"\"";
        // Four numbers of 24 bits reach 4 * 2^23.
        assert_eq!(bits(sum), [20, 32]);
        assert_eq!(bits("  %2 = reduce_max %0 {axes = [0]} : i64[1]\n  output %2 \"\""), [24, 32]);
        // A count needs no bound, nor does a comparison with what is summed.
        let count = "  %2 = lt %0, %1 : bool[4]\n  %3 = cast %2 {dtype = i64} : i64[4]";
        assert_eq!(bits(&format!("{count}\n  %4 = reduce_sum %3 {{axes = [0]}} : i64[1]")), [32, 32]);
        let narrow = "  %2 = cast %0 {dtype = i32} : i32[4]\n  %3 = cumsum %2 {axis = 0} : i32[4]";
        assert_eq!(bits(narrow), [20, 32]);
    }

    #[test]
    fn sums_of_32_bit_integers_of_any_size_are_refused() {
        let text = "graph @g {\n  input %0 \"x\": i32[4] dynamic\n  %1 = reduce_sum %0 {axes = [0]} : i32[1]\n}\n";
        let graph = ir::text::parse_graph("g", text).unwrap_or_else(|_| panic!("parses: {text}"));
        let found = refused(&graph);
        let reason = "its i32 elements may lie between -8589934592 and 8589934588, beyond the integers that f32 holds";
        assert_eq!(found[0].reason, reason);
    }

    #[test]
    fn results_that_no_input_bounds_are_refused() {
        let large = "  %2 = full {value = 2000000000.0, dtype = i64, shape = []} : i64[]\n  %3 = add %2, %2 : i64[]";
        let found = refused(&graph(large));
        assert_eq!(found.len(), 1);
        assert!(found[0].reason.contains("4000000000"), "{}", found[0].reason);
    }
}
