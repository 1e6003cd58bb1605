//! Placement: which dimensions of each value lie on partitions.
//!
//! Producers and consumers agree on a layout where they can; where they cannot, lowering moves the
//! value by DMA inside SBUF. Values of movement ops have no layout of their own unless a reshape
//! keeps their operand's. Afterwards every node is known to have a lowering: all that have none
//! are reported at once.

use ir::graph::{Layout, NodeId};
use ir::ops::{AttentionExtents, OpClass};
use ir::types::Shape;
use ir::{Dtype, Graph, Node, Op, ValueId};
use smallvec::SmallVec;

use crate::integers;
use crate::lower::ROW_ELEMENTS;
use crate::map::N_PARTITIONS;
use crate::weights::request_layouts;

/// A node without a lowering, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// `None` where it is the graph as a whole.
    pub node: Option<NodeId>,
    pub reason: String,
}

/// Largest result in elements. No transfer moves more, and no chip's memory holds many such values.
const MAX_ELEMENTS: usize = 1 << 30;

/// Largest `iota` in bytes: it is stored in the NEFF.
const MAX_IOTA_BYTES: usize = 16 << 20;

/// Tiles that one node, and that all nodes together, may be cut into. Programs are unrolled: a few
/// bytes of a graph's text can ask for more instructions than any memory holds.
const MAX_NODE_TILES: usize = 1 << 18;
const MAX_GRAPH_TILES: usize = 1 << 22;

/// Columns of a product that one PSUM bank holds.
const PRODUCT_COLUMNS: usize = 512;

/// Gives every value its layout.
///
/// # Errors
/// Every node that has no lowering, with its reason.
pub fn place(graph: &Graph) -> Result<Graph, Vec<Unsupported>> {
    let mut faults: Vec<Unsupported> = graph
        .nodes()
        .filter_map(|(id, node)| unsupported_reason(graph, node).map(|reason| Unsupported { node: Some(id), reason }))
        .collect();
    let n_tiles = graph.nodes().fold(0usize, |sum, (_, node)| sum.saturating_add(tile_estimate(graph, node)));
    if faults.is_empty() && n_tiles > MAX_GRAPH_TILES {
        let reason = format!("about {n_tiles} tiles in all, more than {MAX_GRAPH_TILES}");
        faults.push(Unsupported { node: None, reason });
    }
    if faults.is_empty() {
        faults = integers::refused(graph);
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let mut placed = graph.clone();
    let mut layouts: Vec<Option<Layout>> = vec![None; graph.n_values()];
    for (_, node) in graph.nodes() {
        let layout = result_layout(graph, node, &layouts);
        for &result in &node.results {
            layouts[result.index()] = layout;
        }
    }
    placed.layouts = layouts;
    request_layouts(&mut placed);
    Ok(placed)
}

/// Shape that a row-wise node iterates over: the operand of a reduction, else the result.
pub fn frame_shape<'g>(graph: &'g Graph, node: &Node) -> &'g Shape {
    match node.op.class() {
        OpClass::Reduction => &graph.ty(node.operands[0]).shape,
        OpClass::Pointwise
        | OpClass::Scan
        | OpClass::Movement
        | OpClass::Indexing
        | OpClass::Creation
        | OpClass::Contraction
        | OpClass::Fused => &graph.ty(node.results[0]).shape,
    }
}

/// The axes that a node combines; empty for pointwise ops.
pub fn combined_axes(graph: &Graph, node: &Node) -> SmallVec<[usize; 6]> {
    let last = || graph.ty(node.operands[0]).rank().saturating_sub(1);
    match &node.op {
        Op::ReduceSum(op) => op.axes.iter().copied().collect(),
        Op::ReduceMean(op) => op.axes.iter().copied().collect(),
        Op::ReduceMax(op) => op.axes.iter().copied().collect(),
        Op::ReduceMin(op) => op.axes.iter().copied().collect(),
        Op::Any(op) => op.axes.iter().copied().collect(),
        Op::All(op) => op.axes.iter().copied().collect(),
        Op::Cumsum(op) => SmallVec::from_slice(&[op.axis]),
        Op::Softmax(_) | Op::LogSoftmax(_) | Op::RmsNorm(_) | Op::LayerNorm(_) => SmallVec::from_slice(&[last()]),
        _ => SmallVec::new(),
    }
}

/// True when the axes are the last ones of a tensor of this rank.
pub fn is_suffix(axes: &[usize], rank: usize) -> bool {
    axes.iter().rev().enumerate().all(|(back, &axis)| axis + back + 1 == rank)
}

/// Splits a shape such that the groups have these extents (O, P, F); `None` where no split does.
pub fn layout_with_extents(shape: &[usize], (outer, rows, free): (usize, usize, usize)) -> Option<Layout> {
    let take = |from: usize, wanted: usize| {
        let mut count = 1;
        (from..=shape.len()).find(|&end| {
            count = shape[from..end].iter().product();
            count == wanted
        })
    };
    let outer_end = take(0, outer)?;
    let rows_end = take(outer_end, rows)?;
    let rest: usize = shape[rows_end..].iter().product();
    (rest == free).then(|| Layout { n_outer: outer_end as u8, n_partition: (rows_end - outer_end) as u8 })
}

fn result_layout(graph: &Graph, node: &Node, layouts: &[Option<Layout>]) -> Option<Layout> {
    let result = graph.ty(*node.results.first()?);
    match node.op.class() {
        OpClass::Pointwise | OpClass::Reduction | OpClass::Scan | OpClass::Fused => row_layout(graph, node, layouts),
        // Heads lie side by side, as the next product wants them.
        OpClass::Contraction if matches!(node.op, Op::Attention(_)) => None,
        OpClass::Contraction => {
            let shared = graph.ty(node.operands[1]).rank() == 2;
            let n_batch = if shared { 0 } else { result.rank() - 2 };
            Some(Layout { n_outer: n_batch as u8, n_partition: (result.rank() - 1 - n_batch) as u8 })
        }
        OpClass::Movement => {
            let operand = node.operands[0];
            let layout = layouts[operand.index()]?;
            moved_layout(node, layout, &graph.ty(operand).shape, &result.shape)
        }
        // It lies in device memory.
        OpClass::Indexing if matches!(node.op, Op::ScatterRows(_)) => None,
        OpClass::Indexing => {
            let n_rows = match node.op {
                Op::GatherRows(_) => graph.ty(node.operands[1]).rank(),
                _ => result.rank(),
            };
            Some(Layout { n_outer: 0, n_partition: n_rows as u8 })
        }
        OpClass::Creation => None,
    }
}

/// The layout under which a moved value's elements stay on their partitions, if there is one.
fn moved_layout(node: &Node, layout: Layout, operand: &[usize], result: &[usize]) -> Option<Layout> {
    let (split, rows_end) = (usize::from(layout.n_outer), usize::from(layout.n_outer + layout.n_partition));
    let is_row = |axis: usize| (split..rows_end).contains(&axis);
    match &node.op {
        Op::Reshape(_) => {
            let extents = layout.extents(operand);
            layout_with_extents(result, extents).or_else(|| split_free(result, extents))
        }
        Op::Transpose(op) => {
            // Rows must stay neighbours in their order; what comes before them is outer.
            let long = |axis: &usize| operand[*axis] != 1 && is_row(*axis);
            let rows: Vec<usize> = op.perm.iter().copied().filter(long).collect();
            if rows.is_empty() || !rows.is_sorted() {
                return None;
            }
            let position = |axis: usize| op.perm.iter().position(|&from| from == axis);
            let (first, last) = (position(rows[0])?, position(*rows.last()?)?);
            let between = op.perm[first..=last].iter().all(|&axis| operand[axis] == 1 || is_row(axis));
            between.then(|| Layout { n_outer: first as u8, n_partition: (last + 1 - first) as u8 })
        }
        Op::Slice(op) => (!is_row(op.axis)).then_some(layout),
        Op::Concat(op) => (!is_row(op.axis)).then_some(layout),
        _ => None,
    }
}

/// A layout of rows and free elements only, for a shape whose leading dimensions are the rows.
fn split_free(shape: &[usize], (n_outer, n_rows, _): (usize, usize, usize)) -> Option<Layout> {
    if n_outer != 1 {
        return None;
    }
    let mut count = 1;
    let rows_end = (0..=shape.len()).find(|&end| {
        count = shape[..end].iter().product();
        count == n_rows
    })?;
    Some(Layout { n_outer: 0, n_partition: rows_end as u8 })
}

fn row_layout(graph: &Graph, node: &Node, layouts: &[Option<Layout>]) -> Option<Layout> {
    let shape = frame_shape(graph, node);
    let axes = combined_axes(graph, node);
    if !is_suffix(&axes, shape.len()) {
        return None;
    }
    let rows_end_limit = axes.first().copied().unwrap_or(shape.len());
    let fits = |layout: &Layout| usize::from(layout.n_outer + layout.n_partition) <= rows_end_limit;
    let same_shape = |operand: &&ValueId| graph.ty(**operand).shape == *shape;
    let inherited = node.operands.iter().filter(same_shape).find_map(|operand| layouts[operand.index()].filter(fits));
    let default = Layout { n_outer: 0, n_partition: shape.len().saturating_sub(1).min(rows_end_limit) as u8 };
    Some(inherited.unwrap_or(default))
}

/// About how many tiles a node is computed in, never far below.
fn tile_estimate(graph: &Graph, node: &Node) -> usize {
    let blocks = |value: ValueId| {
        let shape = &graph.ty(value).shape;
        let n_columns = shape.last().copied().unwrap_or(1).max(1);
        let n_rows = graph.ty(value).n_elements() / n_columns;
        (n_rows.div_ceil(N_PARTITIONS), n_columns)
    };
    let of_value = |value: ValueId| {
        let (n_blocks, n_columns) = blocks(value);
        n_blocks.saturating_mul(n_columns.div_ceil(ROW_ELEMENTS))
    };
    let largest = |values: &[ValueId]| values.iter().map(|&value| of_value(value)).max().unwrap_or(0);
    match node.op.class() {
        OpClass::Movement | OpClass::Creation => 0,
        OpClass::Pointwise | OpClass::Reduction | OpClass::Scan | OpClass::Fused => {
            largest(&node.results).max(largest(&node.operands))
        }
        // The table itself stays where it is.
        OpClass::Indexing => largest(&node.results).max(largest(&node.operands[1..])),
        OpClass::Contraction if matches!(node.op, Op::Attention(_)) => {
            let ty = |position: usize| graph.ty(node.operands[position]);
            let extents = AttentionExtents::of(ty(0), ty(1), ty(2));
            let of_head =
                extents.n_queries.div_ceil(N_PARTITIONS).saturating_mul(extents.n_keys.div_ceil(N_PARTITIONS));
            extents.n_heads.saturating_mul(of_head)
        }
        OpClass::Contraction => {
            let (n_blocks, n_columns) = blocks(node.results[0]);
            let n_summed = graph.ty(node.operands[0]).shape.last().map_or(1, |&dim| dim.div_ceil(N_PARTITIONS));
            n_blocks.saturating_mul(n_columns.div_ceil(PRODUCT_COLUMNS)).saturating_mul(n_summed.max(1))
        }
    }
}

fn unsupported_reason(graph: &Graph, node: &Node) -> Option<String> {
    let operand = |position: usize| graph.ty(node.operands[position]);
    let result = graph.ty(*node.results.first()?);
    if let Some(ty) = node.results.iter().map(|&value| graph.ty(value)).find(|ty| ty.n_elements() > MAX_ELEMENTS) {
        return Some(format!("a result of {} elements, more than {MAX_ELEMENTS}", ty.n_elements()));
    }
    if matches!(node.op, Op::Iota(_)) && result.size_bytes() > MAX_IOTA_BYTES {
        let n_bytes = result.size_bytes();
        return Some(format!("{n_bytes} bytes would be stored in the NEFF, more than {MAX_IOTA_BYTES}"));
    }
    let n_tiles = tile_estimate(graph, node);
    if n_tiles > MAX_NODE_TILES {
        return Some(format!("about {n_tiles} tiles, more than {MAX_NODE_TILES}"));
    }
    let types = node.operands.iter().chain(&node.results).map(|&value| graph.ty(value));
    for ty in types {
        match ty.dtype {
            Dtype::F64 => return Some("the device has no f64 arithmetic".to_string()),
            Dtype::F8E4m3 | Dtype::F8E5m2 => return Some(format!("{} is not lowered", ty.dtype)),
            Dtype::F32 | Dtype::Bf16 | Dtype::F16 | Dtype::I64 | Dtype::I32 | Dtype::Bool => {}
            Dtype::I16 | Dtype::I8 | Dtype::U8 => match node.op.class() {
                OpClass::Movement | OpClass::Creation => {}
                _ => return Some(format!("arithmetic in {} is not lowered", ty.dtype)),
            },
        }
    }
    match &node.op {
        Op::Full(op) if op.dtype == Dtype::I64 && i32::try_from(op.value.get() as i64).is_err() => {
            Some(format!("{} does not fit the device's 32-bit integers", op.value.get()))
        }
        Op::Cast(op) if operand(0).dtype.is_float() && op.dtype.is_integer() => {
            Some(format!("a cast from {} to {} is not lowered", operand(0).dtype, op.dtype))
        }
        Op::Cumsum(op) if op.axis + 1 != result.rank() => Some("cumsum over an axis that is not the last".to_string()),
        Op::Matmul(_) | Op::FusedMatmul(_) if operand(0).rank() < 2 || operand(1).rank() < 2 => {
            Some("a contraction of vectors is not lowered".to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{layout_with_extents, place};
    use ir::graph::Layout;

    /// Why a graph of these statements, all on one input `%0`, has no placement.
    fn refusal(statements: &str) -> String {
        let text = format!("graph @g {{\n{statements}}}\n");
        let graph = ir::text::parse_graph("g.ir", &text).unwrap_or_else(|faults| panic!("{faults}"));
        place(&graph).err().and_then(|faults| faults.into_iter().next()).map(|fault| fault.reason).unwrap_or_default()
    }

    #[test]
    fn what_would_be_unrolled_without_end_is_refused() {
        let exp = |shape: &str| {
            refusal(&format!("input %0 \"x\": f32{shape} dynamic\n%1 = exp %0 : f32{shape}\noutput %1 \"\"\n"))
        };
        assert_eq!(exp("[1048576, 1048575]"), "a result of 1099510579200 elements, more than 1073741824");
        assert_eq!(exp("[1073741824, 1]"), "about 8388608 tiles, more than 262144");
        assert_eq!(exp("[16384, 65536]"), "");
        let iota =
            "%0 = iota {dtype = i32, length = 2147483000, start = 0, step = 1} : i32[2147483000]\noutput %0 \"\"\n";
        assert_eq!(refusal(iota), "a result of 2147483000 elements, more than 1073741824");
        let iota = "%0 = iota {dtype = i32, length = 4194305, start = 0, step = 1} : i32[4194305]\noutput %0 \"\"\n";
        assert_eq!(refusal(iota), "16777220 bytes would be stored in the NEFF, more than 16777216");
    }

    #[test]
    fn a_reshape_keeps_a_layout_where_groups_stay_aligned() {
        let found = layout_with_extents(&[2, 16, 4, 8], (1, 32, 32));
        assert_eq!(found, Some(Layout { n_outer: 0, n_partition: 2 }));
        assert_eq!(layout_with_extents(&[2, 16, 32], (1, 64, 16)), None);
        assert_eq!(layout_with_extents(&[8, 16, 4], (8, 16, 4)), Some(Layout { n_outer: 1, n_partition: 1 }));
    }
}
