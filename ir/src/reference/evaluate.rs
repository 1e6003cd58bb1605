//! Evaluation of whole graphs.

use std::borrow::Cow;

use super::{EvalError, Lanes, Value};
use crate::graph::{Graph, NodeId, ValueId};
use crate::types::TensorType;

/// Largest result that is evaluated, in elements: 2 GiB of f64 lanes.
const MAX_ELEMENTS: usize = 1 << 28;

/// What happens to float results between ops.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Every result is rounded to its element type once, and contractions sum in f32: what an eager
    /// run gives.
    PerOp,
    /// Floats stay f64 throughout, casts among floats included: the truth. Integers still wrap and
    /// casts to integer or bool still apply.
    None,
}

/// The outputs of a graph for these inputs, by position; `None` where an output has no value.
///
/// Inputs are taken as given, not rounded. The graph is one that the verifier passes.
///
/// # Errors
/// When the inputs are not those of the graph, when an op has no result for its operands (an index
/// out of range), or when a result is too large to evaluate.
pub fn evaluate(graph: &Graph, inputs: &[Value], rounding: Rounding) -> Result<Vec<Option<Value>>, EvalError> {
    check_inputs(graph, inputs)?;
    let mut slots: Vec<Option<Cow<'_, Value>>> = vec![None; graph.n_values()];
    for (input, value) in graph.inputs.iter().zip(inputs) {
        slots[input.value.index()] = Some(Cow::Borrowed(value));
    }
    let mut uses = graph.use_counts();
    for (node_id, node) in graph.nodes() {
        let results = evaluate_node(graph, node_id, &slots, rounding)?;
        for (&result, value) in node.results.iter().zip(results) {
            slots[result.index()] = Some(Cow::Owned(value));
        }
        for &operand in &node.operands {
            uses[operand.index()] -= 1;
            if uses[operand.index()] == 0 {
                slots[operand.index()] = None;
            }
        }
    }
    let of_output = |value: ValueId| slots[value.index()].as_deref().cloned();
    Ok(graph.outputs.iter().map(|output| output.value.and_then(of_output)).collect())
}

/// Bytes that [`evaluate`] holds at most at one time, inputs included.
pub fn evaluation_bytes(graph: &Graph) -> u64 {
    let lane_bytes = |value: ValueId| {
        let ty = graph.ty(value);
        // Floats are f64 lanes and integers i64 lanes, whatever their own width.
        let size = if ty.dtype == crate::types::Dtype::Bool { 1 } else { 8 };
        (ty.n_elements() as u64).saturating_mul(size)
    };
    let mut held = graph.inputs.iter().fold(0u64, |sum, input| sum.saturating_add(lane_bytes(input.value)));
    let mut most = held;
    let mut uses = graph.use_counts();
    for (_, node) in graph.nodes() {
        held = node.results.iter().fold(held, |sum, &result| sum.saturating_add(lane_bytes(result)));
        most = most.max(held);
        for &operand in &node.operands {
            uses[operand.index()] -= 1;
            if uses[operand.index()] == 0 && graph.producer(operand).is_some() {
                held = held.saturating_sub(lane_bytes(operand));
            }
        }
    }
    // Outputs are copied out.
    let outputs = graph.outputs.iter().filter_map(|output| output.value);
    most.max(outputs.fold(held, |sum, value| sum.saturating_add(lane_bytes(value))))
}

fn evaluate_node(
    graph: &Graph,
    node_id: NodeId,
    slots: &[Option<Cow<'_, Value>>],
    rounding: Rounding,
) -> Result<Vec<Value>, EvalError> {
    let node = graph.node(node_id);
    let name = node.op.name();
    let at_node = |message: String| EvalError::new(format!("%{} = {name}: {message}", first_result(&node.results)));
    let types: Vec<TensorType> = node.results.iter().map(|&result| graph.ty(result).clone()).collect();
    if let Some(ty) = types.iter().find(|ty| ty.n_elements() > MAX_ELEMENTS) {
        return Err(at_node(format!("{ty} has more than {MAX_ELEMENTS} elements")));
    }
    let operands: Option<Vec<&Value>> = node.operands.iter().map(|operand| slots[operand.index()].as_deref()).collect();
    let operands = operands.ok_or_else(|| at_node("an operand is defined after its use".to_string()))?;
    let evaluated = match rounding {
        Rounding::PerOp => node.op.eval_eager(&operands, &types),
        Rounding::None => node.op.eval(&operands, &types),
    };
    let results = evaluated.map_err(|error| at_node(error.message))?;
    Ok(results.into_iter().zip(&types).map(|(value, ty)| finish(value, ty, rounding)).collect())
}

fn finish(value: Value, ty: &TensorType, rounding: Rounding) -> Value {
    match (&value.lanes, rounding) {
        (Lanes::Float(_), Rounding::None) => value,
        (Lanes::Float(_) | Lanes::Int(_) | Lanes::Bool(_), Rounding::PerOp | Rounding::None) => value.rounded(ty.dtype),
    }
}

fn first_result(results: &[ValueId]) -> u32 {
    results.first().map_or(0, |result| result.0)
}

fn check_inputs(graph: &Graph, inputs: &[Value]) -> Result<(), EvalError> {
    if graph.inputs.len() != inputs.len() {
        return Err(EvalError::new(format!("{} inputs for a graph of {}", inputs.len(), graph.inputs.len())));
    }
    for (position, (input, value)) in graph.inputs.iter().zip(inputs).enumerate() {
        let ty = graph.ty(input.value);
        if !value.is_of(ty) {
            let message = format!("input {position} (`{}`) of shape {:?} is no {ty}", input.name, value.shape);
            return Err(EvalError::new(message));
        }
    }
    Ok(())
}

impl Value {
    /// Whether shape, number of lanes and kind of lanes are those of a tensor type.
    pub fn is_of(&self, ty: &TensorType) -> bool {
        let kind_fits = match self.lanes {
            Lanes::Float(_) => ty.dtype.is_float(),
            Lanes::Int(_) => ty.dtype.is_integer(),
            Lanes::Bool(_) => ty.dtype == crate::types::Dtype::Bool,
        };
        kind_fits && self.shape == ty.shape && self.lanes.len() == ty.n_elements()
    }
}
