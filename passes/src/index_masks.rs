//! Replaces masks of attention that depend on positions alone by a causal bound.
//!
//! A mask that is made from ranges and comparisons, or is a constant, says for each query up to which
//! key it sees; the bound says it in one number, so that no mask is stored and whole tiles of scores
//! are left out. What is known of a value is followed from the graph's constants on, across reshapes,
//! slices and broadcasts. Keeps the phase of its input. Leaves windows and document masks as they are.

use ir::ops::{Attention, Constant, Iota};
use ir::reference::{Lanes, Value};
use ir::{Graph, Node, Op, ValueId};
use smallvec::SmallVec;

use crate::manager::{FnPass, Pass, PassContext, PassError, Phase};

/// Name of this pass.
pub const NAME: &str = "index_masks";

/// Constants with more elements are not looked into.
const MAX_ELEMENTS: usize = 1 << 22;

/// What is known of a tensor whose elements depend on their last two indices alone: row i, column j.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Known {
    /// row * i + column * j + constant.
    Affine { row: i64, column: i64, constant: i64 },
    /// The same float everywhere.
    Number(f64),
    /// True everywhere, or false.
    All(bool),
    /// True where j <= i + offset.
    UpTo(i64),
    /// True where j > i + offset.
    After(i64),
    /// 0 where j <= i + offset, -inf elsewhere.
    Added(i64),
}

/// What replaces a mask.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Bound {
    Nothing,
    Causal(i64),
}

/// The graph with bounds for masks, and how many masks that were.
///
/// # Errors
/// A fault of the compiler: an ill-typed result.
pub fn index_masks(graph: &Graph) -> Result<(Graph, u64), PassError> {
    let known = known_values(graph);
    let mut bounded = graph.with_same_inputs();
    let mut map: Vec<Option<ValueId>> = vec![None; graph.n_values()];
    for input in &graph.inputs {
        map[input.value.index()] = Some(input.value);
    }
    let replaced: Vec<Option<Bound>> = graph.nodes().map(|(_, node)| bound_of(node, &known)).collect();
    let is_live = live_nodes(graph, &replaced);
    for (id, node) in graph.nodes().filter(|(id, _)| is_live[id.index()]) {
        let (op, operands) = with_bound(node, replaced[id.index()]);
        let operands: SmallVec<[ValueId; 4]> =
            operands.iter().map(|operand| map[operand.index()].expect("operands come first")).collect();
        let copy = bounded.push(op, &operands, &node.locations);
        let copy = copy.map_err(|error| PassError::Internal { pass: NAME, message: error.message })?;
        for (old, new) in node.results.iter().zip(bounded.node(copy).results.clone()) {
            map[old.index()] = Some(new);
        }
    }
    bounded.outputs = graph.outputs.clone();
    for output in &mut bounded.outputs {
        output.value = output.value.map(|value| map[value.index()].expect("outputs are defined"));
    }
    let n_replaced = replaced.iter().flatten().count() as u64;
    Ok((bounded, n_replaced))
}

/// This pass for a pass list.
pub fn pass() -> impl Pass<Graph> {
    FnPass {
        name: NAME,
        establishes: Phase::Fused,
        run: |graph: Graph, context: &mut PassContext| {
            let (graph, n_replaced) = index_masks(&graph)?;
            context.statistics.add("masks", n_replaced);
            Ok(graph)
        },
    }
}

fn bound_of(node: &Node, known: &[Option<Known>]) -> Option<Bound> {
    let (Op::Attention(Attention { causal: None, .. }), Some(mask)) = (&node.op, node.operands.get(3)) else {
        return None;
    };
    match known[mask.index()]? {
        Known::All(true) => Some(Bound::Nothing),
        Known::Number(0.0) => Some(Bound::Nothing),
        Known::UpTo(offset) | Known::Added(offset) => Some(Bound::Causal(offset)),
        Known::All(false) | Known::Number(_) | Known::Affine { .. } | Known::After(_) => None,
    }
}

fn with_bound(node: &Node, bound: Option<Bound>) -> (Op, SmallVec<[ValueId; 4]>) {
    let mut operands = node.operands.clone();
    let (Op::Attention(attention), Some(bound)) = (&node.op, bound) else { return (node.op.clone(), operands) };
    operands.truncate(3);
    let causal = match bound {
        Bound::Nothing => None,
        Bound::Causal(offset) => Some(offset),
    };
    (Attention { causal, ..attention.clone() }.into(), operands)
}

/// Nodes that outputs need once masks are replaced.
fn live_nodes(graph: &Graph, replaced: &[Option<Bound>]) -> Vec<bool> {
    let mut is_live = vec![false; graph.n_nodes()];
    let mark = |value: ValueId, is_live: &mut Vec<bool>| {
        if let Some((id, _)) = graph.producer(value) {
            is_live[id.index()] = true;
        }
    };
    graph.outputs.iter().filter_map(|output| output.value).for_each(|value| mark(value, &mut is_live));
    for (id, node) in graph.nodes().rev() {
        if is_live[id.index()] {
            let (_, operands) = with_bound(node, replaced[id.index()]);
            operands.iter().for_each(|&operand| mark(operand, &mut is_live));
        }
    }
    is_live
}

fn known_values(graph: &Graph) -> Vec<Option<Known>> {
    let mut known: Vec<Option<Known>> = vec![None; graph.n_values()];
    if graph.nodes().all(|(_, node)| !matches!(node.op, Op::Attention(_)) || node.operands.len() == 3) {
        return known;
    }
    for (_, node) in graph.nodes() {
        if let [result] = node.results[..] {
            known[result.index()] = known_result(graph, node, &known);
        }
    }
    known
}

fn known_result(graph: &Graph, node: &Node, known: &[Option<Known>]) -> Option<Known> {
    let operand = |position: usize| known[node.operands[position].index()];
    let shape = |position: usize| graph.ty(node.operands[position]).shape.as_slice();
    let result = graph.ty(node.results[0]);
    match &node.op {
        Op::Full(full) if full.dtype == ir::Dtype::Bool => Some(Known::All(full.value.get() != 0.0)),
        Op::Full(full) if full.dtype.is_integer() => Some(number(full.value.get() as i64)),
        Op::Full(full) => Some(Known::Number(full.value.get())),
        Op::Iota(Iota { start, step, .. }) => Some(Known::Affine { row: 0, column: *step, constant: *start }),
        Op::Constant(constant) => constant_of(constant),
        Op::Cast(cast) => match operand(0)? {
            affine @ Known::Affine { .. } if cast.dtype.is_integer() => Some(affine),
            same if cast.dtype == graph.ty(node.operands[0]).dtype => Some(same),
            float @ (Known::Number(_) | Known::Added(_)) if cast.dtype.is_float() => Some(float),
            _ => None,
        },
        Op::Expand(_) => operand(0),
        Op::Reshape(_) => reshaped(operand(0)?, shape(0), &result.shape),
        Op::Transpose(op) => {
            let rank = op.perm.len();
            let stays = |axis: usize| op.perm[axis] == axis || shape(0)[op.perm[axis]] == 1;
            let (last, before) = (rank.checked_sub(1)?, rank.checked_sub(2)?);
            match () {
                () if (0..rank).all(stays) && op.perm[last] == last && op.perm[before] == before => operand(0),
                () if op.perm[last] == before && op.perm[before] == last => turned(operand(0)?),
                () => None,
            }
        }
        Op::Slice(op) if op.step == 1 => {
            let from_end = result.rank() - op.axis;
            let start = op.start as i64;
            shifted(operand(0)?, if from_end == 2 { start } else { 0 }, if from_end == 1 { start } else { 0 })
        }
        Op::Add(_) => sum(operand(0)?, operand(1)?, 1),
        Op::Sub(_) => sum(operand(0)?, operand(1)?, -1),
        Op::Neg(_) => sum(number(0), operand(0)?, -1),
        Op::Le(_) => at_most(sum(operand(0)?, operand(1)?, -1)?, 0),
        Op::Lt(_) => at_most(sum(operand(0)?, operand(1)?, -1)?, -1),
        Op::Ge(_) => at_most(sum(operand(1)?, operand(0)?, -1)?, 0),
        Op::Gt(_) => at_most(sum(operand(1)?, operand(0)?, -1)?, -1),
        Op::LogicalNot(_) => match operand(0)? {
            Known::All(value) => Some(Known::All(!value)),
            Known::UpTo(offset) => Some(Known::After(offset)),
            Known::After(offset) => Some(Known::UpTo(offset)),
            Known::Affine { .. } | Known::Number(_) | Known::Added(_) => None,
        },
        Op::LogicalAnd(_) => match (operand(0)?, operand(1)?) {
            (Known::All(true), other) | (other, Known::All(true)) => Some(other),
            (Known::UpTo(one), Known::UpTo(other)) => Some(Known::UpTo(one.min(other))),
            (_, _) => None,
        },
        Op::LogicalOr(_) => match (operand(0)?, operand(1)?) {
            (Known::All(false), other) | (other, Known::All(false)) => Some(other),
            (Known::UpTo(one), Known::UpTo(other)) => Some(Known::UpTo(one.max(other))),
            (_, _) => None,
        },
        Op::Where(_) => match (operand(0)?, operand(1)?, operand(2)?) {
            (Known::UpTo(offset), Known::Number(kept), Known::Number(other))
            | (Known::After(offset), Known::Number(other), Known::Number(kept)) => added(offset, kept, other),
            (_, _, _) => None,
        },
        _ => None,
    }
}

fn number(constant: i64) -> Known {
    Known::Affine { row: 0, column: 0, constant }
}

fn added(offset: i64, kept: f64, other: f64) -> Option<Known> {
    (kept == 0.0 && other == f64::NEG_INFINITY).then_some(Known::Added(offset))
}

/// lhs + sign * rhs of integers.
fn sum(lhs: Known, rhs: Known, sign: i64) -> Option<Known> {
    let (Known::Affine { row, column, constant }, Known::Affine { row: r, column: c, constant: k }) = (lhs, rhs) else {
        return None;
    };
    Some(Known::Affine {
        row: row.checked_add(r.checked_mul(sign)?)?,
        column: column.checked_add(c.checked_mul(sign)?)?,
        constant: constant.checked_add(k.checked_mul(sign)?)?,
    })
}

/// Where an affine integer is at most a limit.
fn at_most(value: Known, limit: i64) -> Option<Known> {
    let Known::Affine { row, column, constant } = value else { return None };
    let rest = limit.checked_sub(constant)?;
    match (row, column) {
        (0, 0) => Some(Known::All(rest >= 0)),
        (-1, 1) => Some(Known::UpTo(rest)),
        // i - j <= rest is j >= i - rest.
        (1, -1) => Some(Known::After(rest.checked_neg()?.checked_sub(1)?)),
        (_, _) => None,
    }
}

/// The part from a row and a column on.
fn shifted(value: Known, row_start: i64, column_start: i64) -> Option<Known> {
    let moved = |offset: i64| offset.checked_add(row_start)?.checked_sub(column_start);
    Some(match value {
        Known::Affine { row, column, constant } => {
            let rows = row.checked_mul(row_start)?;
            let constant = constant.checked_add(rows)?.checked_add(column.checked_mul(column_start)?)?;
            Known::Affine { row, column, constant }
        }
        Known::UpTo(offset) => Known::UpTo(moved(offset)?),
        Known::After(offset) => Known::After(moved(offset)?),
        Known::Added(offset) => Known::Added(moved(offset)?),
        Known::Number(_) | Known::All(_) => value,
    })
}

/// Rows and columns exchanged.
fn turned(value: Known) -> Option<Known> {
    match value {
        Known::Affine { row, column, constant } => Some(Known::Affine { row: column, column: row, constant }),
        Known::Number(_) | Known::All(_) => Some(value),
        // j <= i + offset, seen from the other side, is j >= i - offset.
        Known::UpTo(offset) => Some(Known::After(offset.checked_neg()?.checked_sub(1)?)),
        Known::After(offset) => Some(Known::UpTo(offset.checked_neg()?.checked_sub(1)?)),
        Known::Added(_) => None,
    }
}

/// After a reshape that adds, drops or moves axes of size 1.
fn reshaped(value: Known, from: &[usize], to: &[usize]) -> Option<Known> {
    let long = |shape: &[usize]| -> SmallVec<[(usize, usize); 4]> {
        let rank = shape.len();
        let sized = shape.iter().enumerate().filter(|(_, extent)| **extent != 1);
        sized.map(|(axis, &extent)| (rank - axis, extent)).collect()
    };
    let (before, after) = (long(from), long(to));
    if let Known::Number(_) | Known::All(_) = value {
        return Some(value);
    }
    match (&before[..], &after[..]) {
        (before, after) if before == after => Some(value),
        // A range moves from columns to rows, or back.
        ([(1, n)], [(2, m)]) if n == m => match value {
            Known::Affine { row: _, column, constant } => Some(Known::Affine { row: column, column: 0, constant }),
            _ => None,
        },
        ([(2, n)], [(1, m)]) if n == m => match value {
            Known::Affine { row, column: _, constant } => Some(Known::Affine { row: 0, column: row, constant }),
            _ => None,
        },
        (_, _) => None,
    }
}

fn constant_of(constant: &Constant) -> Option<Known> {
    let rank = constant.shape.len();
    let n_elements: usize = constant.shape.iter().product();
    let (n_rows, n_columns) = match constant.shape[..] {
        [] => (1, 1),
        [n_columns] => (1, n_columns),
        [.., n_rows, n_columns] => (n_rows, n_columns),
    };
    let has_batches = rank > 2 && constant.shape[..rank - 2].iter().any(|&extent| extent != 1);
    if has_batches || n_elements == 0 || n_elements > MAX_ELEMENTS {
        return None;
    }
    let ty = ir::TensorType::new(constant.dtype, constant.shape.iter().copied());
    let value = Value::from_bytes(&ty, &constant.data).ok()?;
    match &value.lanes {
        Lanes::Int(lanes) => affine_of(lanes, n_rows, n_columns),
        Lanes::Bool(lanes) => {
            let offset = last_kept(n_rows, n_columns, |at| lanes[at])?;
            lanes
                .iter()
                .enumerate()
                .all(|(at, &lane)| lane == is_up_to(at, n_columns, offset))
                .then_some(Known::UpTo(offset))
        }
        Lanes::Float(lanes) => {
            let offset = last_kept(n_rows, n_columns, |at| lanes[at] == 0.0)?;
            let fits = |(at, &lane): (usize, &f64)| {
                let wanted = if is_up_to(at, n_columns, offset) { 0.0 } else { f64::NEG_INFINITY };
                lane == wanted
            };
            lanes.iter().enumerate().all(fits).then_some(Known::Added(offset))
        }
    }
}

fn is_up_to(at: usize, n_columns: usize, offset: i64) -> bool {
    (at % n_columns) as i64 <= (at / n_columns) as i64 + offset
}

/// The offset that the first row which keeps some columns, but not all, would have; 0 keeps the
/// diagonal. `None` where no row tells.
fn last_kept(n_rows: usize, n_columns: usize, is_kept: impl Fn(usize) -> bool) -> Option<i64> {
    (0..n_rows).find_map(|row| {
        let n_kept = (0..n_columns).take_while(|column| is_kept(row * n_columns + column)).count();
        (n_kept > 0 && n_kept < n_columns).then(|| n_kept as i64 - 1 - row as i64)
    })
}

fn affine_of(lanes: &[i64], n_rows: usize, n_columns: usize) -> Option<Known> {
    let constant = lanes[0];
    let step = |count: usize, at: usize| if count > 1 { lanes[at].checked_sub(constant) } else { Some(0) };
    let (row, column) = (step(n_rows, n_columns)?, step(n_columns, 1)?);
    let fits = |(at, &lane): (usize, &i64)| {
        let (i, j) = ((at / n_columns) as i64, (at % n_columns) as i64);
        let moved = row.checked_mul(i)?.checked_add(column.checked_mul(j)?)?.checked_add(constant)?;
        (moved == lane).then_some(())
    };
    lanes.iter().enumerate().all(|lane| fits(lane).is_some()).then_some(Known::Affine { row, column, constant })
}

#[cfg(test)]
mod tests {
    use super::index_masks;

    /// The attention line of a graph whose mask is `%9`, after the pass.
    fn attention_with(mask: &str) -> String {
        let text = format!(
            "graph @g {{\n\
             input %0 \"q\": f32[2, 3, 4, 8] dynamic\n\
             input %1 \"k\": f32[2, 3, 5, 8] dynamic\n\
             input %2 \"v\": f32[2, 3, 5, 8] dynamic\n\
             {mask}\n\
             %10 = attention %0, %1, %2, %9 {{scale = 1.0, causal = [], empty = zero, logsumexp = 0, dtype = f32}} : f32[2, 3, 4, 8]\n\
             output %10 \"\"\n}}\n"
        );
        let graph = ir::text::parse_graph("g.ir", &text).unwrap_or_else(|faults| panic!("{faults}"));
        let (graph, _) = index_masks(&graph).expect("the pass runs");
        let printed = graph.to_string();
        let line = printed.lines().find(|line| line.contains("attention")).expect("attention stays");
        let causal = line.split("causal = ").nth(1).and_then(|rest| rest.split(']').next()).expect("an attribute");
        format!("{causal}], {} nodes", graph.n_nodes())
    }

    const RANGES: &str = "%3 = iota {dtype = i32, length = 5, start = 0, step = 1} : i32[5]\n\
         %4 = iota {dtype = i32, length = 4, start = 0, step = 1} : i32[4]\n\
         %5 = reshape %4 {shape = [4, 1]} : i32[4, 1]\n";

    #[test]
    fn comparisons_of_ranges_are_bounds() {
        let compared = |line: &str| attention_with(&format!("{RANGES}%9 = {line} : bool[4, 5]"));
        assert_eq!(compared("le %3, %5"), "[0], 1 nodes");
        assert_eq!(compared("lt %3, %5"), "[-1], 1 nodes");
        assert_eq!(compared("ge %5, %3"), "[0], 1 nodes");
        assert_eq!(compared("gt %5, %3"), "[-1], 1 nodes");
    }

    #[test]
    fn additive_masks_from_negated_comparisons_are_bounds() {
        let mask = format!(
            "{RANGES}%6 = gt %3, %5 : bool[4, 5]\n\
             %7 = full {{value = 0.0, dtype = f32, shape = []}} : f32[]\n\
             %8 = full {{value = -inf, dtype = f32, shape = []}} : f32[]\n\
             %9 = where %6, %8, %7 : f32[4, 5]"
        );
        assert_eq!(attention_with(&mask), "[0], 1 nodes");
    }

    #[test]
    fn constants_that_are_triangles_are_bounds() {
        let rows = [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]];
        let constant = |rows: &[[u8; 5]; 4]| {
            let data: String = rows.iter().flatten().map(|bit| format!("{bit:02x}")).collect();
            format!("%9 = constant {{dtype = bool, shape = [4, 5], data = \"{data}\"}} : bool[4, 5]")
        };
        assert_eq!(attention_with(&constant(&rows)), "[1], 1 nodes");
        let mut holed = rows;
        holed[3][0] = 0;
        assert_eq!(attention_with(&constant(&holed)), "[], 2 nodes");
    }

    #[test]
    fn windows_and_inputs_stay_masks() {
        let window = format!(
            "{RANGES}%6 = le %3, %5 : bool[4, 5]\n%7 = ge %3, %5 : bool[4, 5]\n%9 = logical_and %6, %7 : bool[4, 5]"
        );
        assert_eq!(attention_with(&window), "[], 7 nodes");
        assert_eq!(attention_with("input %9 \"m\": bool[4, 5] dynamic"), "[], 1 nodes");
    }
}
