//! What several ops ask of their operands' types.

use super::OpDef;
use crate::types::{Axes, Shape, TensorType, TypeError, broadcast_shapes};

/// Element types that an op accepts.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Accepts {
    Float,
    Numeric,
    Integer,
    Bool,
}

/// Checks the element type of one operand.
pub(super) fn check_kind<O: OpDef>(accepts: Accepts, operand: &TensorType) -> Result<(), TypeError> {
    let dtype = operand.dtype;
    let (fits, wanted) = match accepts {
        Accepts::Float => (dtype.is_float(), "a float"),
        Accepts::Numeric => (dtype.is_float() || dtype.is_integer(), "a float or integer"),
        Accepts::Integer => (dtype.is_integer(), "an integer"),
        Accepts::Bool => (dtype == crate::types::Dtype::Bool, "a bool"),
    };
    if fits {
        return Ok(());
    }
    Err(TypeError::new(format!("`{}` takes {wanted} tensor, not {operand}", O::NAME)))
}

/// Checks that operands have one element type.
pub(super) fn check_same_dtype<O: OpDef>(operands: &[TensorType]) -> Result<(), TypeError> {
    let Some((first, rest)) = operands.split_first() else { return Ok(()) };
    let Some(other) = rest.iter().find(|other| other.dtype != first.dtype) else { return Ok(()) };
    Err(TypeError::new(format!("operand types of `{}` differ: {first} and {other}", O::NAME)))
}

/// The shape that all operands broadcast to.
pub(super) fn broadcast_all<O: OpDef>(operands: &[TensorType]) -> Result<Shape, TypeError> {
    let mut shape = Shape::new();
    for operand in operands {
        shape = broadcast_shapes(&shape, &operand.shape)
            .map_err(|error| TypeError::new(format!("operands of `{}`: {error}", O::NAME)))?;
    }
    Ok(shape)
}

/// Checks that an axis exists.
pub(super) fn check_axis<O: OpDef>(axis: usize, operand: &TensorType) -> Result<(), TypeError> {
    if axis < operand.rank() {
        return Ok(());
    }
    Err(TypeError::new(format!("`{}` has no axis {axis} in {operand}", O::NAME)))
}

/// Checks that axes exist and strictly ascend.
pub(super) fn check_axes<O: OpDef>(axes: &Axes, operand: &TensorType) -> Result<(), TypeError> {
    if axes.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(TypeError::new(format!("axes {axes:?} of `{}` do not ascend", O::NAME)));
    }
    axes.iter().try_for_each(|&axis| check_axis::<O>(axis, operand))
}

/// Checks that a per-column operand is a vector as long as the last axis of `of`.
pub(super) fn check_last_axis_vector<O: OpDef>(vector: &TensorType, of: &TensorType) -> Result<(), TypeError> {
    if vector.rank() == 1 && vector.shape.last() == of.shape.last() {
        return Ok(());
    }
    Err(TypeError::new(format!("`{}` takes one element per column of {of}, not {vector}", O::NAME)))
}

/// The type of a reduction's result: the reduced axes have size 1.
pub(super) fn reduced<O: OpDef>(axes: &Axes, operand: &TensorType) -> Result<TensorType, TypeError> {
    check_axes::<O>(axes, operand)?;
    let mut ty = operand.clone();
    for &axis in axes {
        ty.shape[axis] = 1;
    }
    Ok(ty)
}

/// [`reduced`] for reductions that have no result over no elements.
pub(super) fn reduced_non_empty<O: OpDef>(axes: &Axes, operand: &TensorType) -> Result<TensorType, TypeError> {
    let ty = reduced::<O>(axes, operand)?;
    if let Some(axis) = axes.iter().find(|&&axis| operand.shape[axis] == 0) {
        return Err(TypeError::new(format!("`{}` over the empty axis {axis} of {operand}", O::NAME)));
    }
    Ok(ty)
}
