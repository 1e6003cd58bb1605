//! Values in wide arithmetic and the loops over them that ops share.

use std::borrow::Cow;
use std::cmp::Ordering;

use smallvec::SmallVec;

use super::EvalError;
use crate::types::{Shape, packed_strides};

/// Elements of a tensor in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub enum Lanes {
    Float(Vec<f64>),
    Int(Vec<i64>),
    Bool(Vec<bool>),
}

/// A tensor in wide arithmetic.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    pub shape: Shape,
    pub lanes: Lanes,
}

/// One dimension of a strided walk: how many steps, and elements per step.
pub(crate) type StridedDim = (usize, usize);

impl Lanes {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Lanes::Float(lanes) => lanes.len(),
            Lanes::Int(lanes) => lanes.len(),
            Lanes::Bool(lanes) => lanes.len(),
        }
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements at these positions, in that order.
    pub(crate) fn select(&self, positions: &[usize]) -> Lanes {
        match self {
            Lanes::Float(lanes) => Lanes::Float(positions.iter().map(|&at| lanes[at]).collect()),
            Lanes::Int(lanes) => Lanes::Int(positions.iter().map(|&at| lanes[at]).collect()),
            Lanes::Bool(lanes) => Lanes::Bool(positions.iter().map(|&at| lanes[at]).collect()),
        }
    }

    /// The elements that a strided walk meets, row-major over `dims`.
    pub(crate) fn strided(&self, offset: usize, dims: &[StridedDim]) -> Lanes {
        match self {
            Lanes::Float(lanes) => Lanes::Float(strided(lanes, offset, dims)),
            Lanes::Int(lanes) => Lanes::Int(strided(lanes, offset, dims)),
            Lanes::Bool(lanes) => Lanes::Bool(strided(lanes, offset, dims)),
        }
    }
}

impl Value {
    /// A tensor of floats.
    pub fn floats(shape: &[usize], lanes: impl Into<Vec<f64>>) -> Value {
        Value { shape: Shape::from_slice(shape), lanes: Lanes::Float(lanes.into()) }
    }

    /// A tensor of integers.
    pub fn ints(shape: &[usize], lanes: impl Into<Vec<i64>>) -> Value {
        Value { shape: Shape::from_slice(shape), lanes: Lanes::Int(lanes.into()) }
    }

    /// A tensor of booleans.
    pub fn bools(shape: &[usize], lanes: impl Into<Vec<bool>>) -> Value {
        Value { shape: Shape::from_slice(shape), lanes: Lanes::Bool(lanes.into()) }
    }

    /// The lanes, when they are floats.
    ///
    /// # Errors
    /// When they are not.
    pub fn as_floats(&self) -> Result<&[f64], EvalError> {
        let Lanes::Float(lanes) = &self.lanes else { return Err(EvalError::new("float lanes expected")) };
        Ok(lanes)
    }

    /// The lanes, when they are integers.
    ///
    /// # Errors
    /// When they are not.
    pub fn as_ints(&self) -> Result<&[i64], EvalError> {
        let Lanes::Int(lanes) = &self.lanes else { return Err(EvalError::new("integer lanes expected")) };
        Ok(lanes)
    }

    /// The lanes, when they are booleans.
    ///
    /// # Errors
    /// When they are not.
    pub fn as_bools(&self) -> Result<&[bool], EvalError> {
        let Lanes::Bool(lanes) = &self.lanes else { return Err(EvalError::new("boolean lanes expected")) };
        Ok(lanes)
    }

    /// Applies a function to every float lane.
    ///
    /// # Errors
    /// When the lanes are not floats.
    pub fn map_float(&self, function: impl Fn(f64) -> f64) -> Result<Value, EvalError> {
        let lanes: Vec<f64> = self.as_floats()?.iter().map(|&lane| function(lane)).collect();
        Ok(Value::floats(&self.shape, lanes))
    }

    /// Applies one function to float lanes or another to integer lanes.
    ///
    /// # Errors
    /// When the lanes are bool.
    pub fn map(&self, float: impl Fn(f64) -> f64, int: impl Fn(i64) -> i64) -> Result<Value, EvalError> {
        let lanes = match &self.lanes {
            Lanes::Float(lanes) => Lanes::Float(lanes.iter().map(|&lane| float(lane)).collect()),
            Lanes::Int(lanes) => Lanes::Int(lanes.iter().map(|&lane| int(lane)).collect()),
            Lanes::Bool(_) => return Err(EvalError::new("numeric lanes expected")),
        };
        Ok(Value { shape: self.shape.clone(), lanes })
    }

    /// Combines two broadcast operands lane by lane into `shape`.
    ///
    /// # Errors
    /// When the lanes are of different kinds or bool, or a shape does not broadcast to `shape`.
    pub fn zip(
        &self,
        other: &Value,
        shape: &[usize],
        float: impl Fn(f64, f64) -> f64,
        int: impl Fn(i64, i64) -> i64,
    ) -> Result<Value, EvalError> {
        let lanes = match (&self.lanes, &other.lanes) {
            (Lanes::Float(lhs), Lanes::Float(rhs)) => Lanes::Float(zip_lanes((self, lhs), (other, rhs), shape, float)?),
            (Lanes::Int(lhs), Lanes::Int(rhs)) => Lanes::Int(zip_lanes((self, lhs), (other, rhs), shape, int)?),
            (Lanes::Float(_) | Lanes::Int(_) | Lanes::Bool(_), _) => {
                return Err(EvalError::new("operands of one numeric kind expected"));
            }
        };
        Ok(Value { shape: Shape::from_slice(shape), lanes })
    }

    /// Combines two broadcast boolean operands lane by lane into `shape`.
    ///
    /// # Errors
    /// When the lanes are not bool, or a shape does not broadcast to `shape`.
    pub fn zip_bool(
        &self,
        other: &Value,
        shape: &[usize],
        function: impl Fn(bool, bool) -> bool,
    ) -> Result<Value, EvalError> {
        let lanes = zip_lanes((self, self.as_bools()?), (other, other.as_bools()?), shape, function)?;
        Ok(Value::bools(shape, lanes))
    }

    /// Compares two broadcast operands of one kind lane by lane; the order with a NaN is `None`.
    ///
    /// # Errors
    /// When the lanes are of different kinds, or a shape does not broadcast to `shape`.
    pub fn zip_order(
        &self,
        other: &Value,
        shape: &[usize],
        holds: impl Fn(Option<Ordering>) -> bool,
    ) -> Result<Value, EvalError> {
        let lanes = match (&self.lanes, &other.lanes) {
            (Lanes::Float(lhs), Lanes::Float(rhs)) => {
                zip_lanes((self, lhs), (other, rhs), shape, |x, y| holds(x.partial_cmp(&y)))?
            }
            (Lanes::Int(lhs), Lanes::Int(rhs)) => {
                zip_lanes((self, lhs), (other, rhs), shape, |x, y| holds(Some(x.cmp(&y))))?
            }
            (Lanes::Bool(lhs), Lanes::Bool(rhs)) => {
                zip_lanes((self, lhs), (other, rhs), shape, |x, y| holds(Some(x.cmp(&y))))?
            }
            (Lanes::Float(_) | Lanes::Int(_) | Lanes::Bool(_), _) => {
                return Err(EvalError::new("operands of one kind expected"));
            }
        };
        Ok(Value::bools(shape, lanes))
    }

    /// The value repeated to a shape that it broadcasts to.
    ///
    /// # Errors
    /// When it does not broadcast to `shape`.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Value, EvalError> {
        let lanes = match &self.lanes {
            Lanes::Float(lanes) => Lanes::Float(broadcast(&self.shape, lanes, shape)?.into_owned()),
            Lanes::Int(lanes) => Lanes::Int(broadcast(&self.shape, lanes, shape)?.into_owned()),
            Lanes::Bool(lanes) => Lanes::Bool(broadcast(&self.shape, lanes, shape)?.into_owned()),
        };
        Ok(Value { shape: Shape::from_slice(shape), lanes })
    }
}

fn zip_lanes<T: Copy, R>(
    (lhs_value, lhs): (&Value, &[T]),
    (rhs_value, rhs): (&Value, &[T]),
    shape: &[usize],
    function: impl Fn(T, T) -> R,
) -> Result<Vec<R>, EvalError> {
    let lhs = broadcast(&lhs_value.shape, lhs, shape)?;
    let rhs = broadcast(&rhs_value.shape, rhs, shape)?;
    Ok(lhs.iter().zip(rhs.iter()).map(|(&x, &y)| function(x, y)).collect())
}

/// The elements of `lanes` repeated to `shape`; borrowed where nothing repeats.
pub(crate) fn broadcast<'a, T: Copy>(
    from: &[usize],
    lanes: &'a [T],
    shape: &[usize],
) -> Result<Cow<'a, [T]>, EvalError> {
    if from == shape {
        return Ok(Cow::Borrowed(lanes));
    }
    let Some(n_added) = shape.len().checked_sub(from.len()) else {
        return Err(EvalError::new(format!("shape {from:?} does not broadcast to {shape:?}")));
    };
    let strides = packed_strides(from);
    let mut dims: SmallVec<[StridedDim; 6]> = shape[..n_added].iter().map(|&count| (count, 0)).collect();
    for (axis, &count) in shape[n_added..].iter().enumerate() {
        match from[axis] {
            dim if dim == count => dims.push((count, strides[axis])),
            1 => dims.push((count, 0)),
            _ => return Err(EvalError::new(format!("shape {from:?} does not broadcast to {shape:?}"))),
        }
    }
    Ok(Cow::Owned(strided(lanes, 0, &dims)))
}

/// The elements that a strided walk from `offset` meets, row-major over `dims`.
pub(crate) fn strided<T: Copy>(source: &[T], offset: usize, dims: &[StridedDim]) -> Vec<T> {
    let n_elements: usize = dims.iter().map(|&(count, _)| count).product();
    let mut elements = Vec::with_capacity(n_elements);
    if n_elements == 0 {
        return elements;
    }
    let mut dims = coalesce(dims);
    let (inner_count, inner_stride) = dims.pop().unwrap_or((1, 1));
    let mut coordinates: SmallVec<[usize; 6]> = SmallVec::from_elem(0, dims.len());
    let mut base = offset;
    loop {
        match inner_stride {
            0 => elements.extend(std::iter::repeat_n(source[base], inner_count)),
            1 => elements.extend_from_slice(&source[base..base + inner_count]),
            _ => elements.extend((0..inner_count).map(|step| source[base + step * inner_stride])),
        }
        let mut axis = dims.len();
        loop {
            if axis == 0 {
                return elements;
            }
            axis -= 1;
            let (count, stride) = dims[axis];
            coordinates[axis] += 1;
            base += stride;
            if coordinates[axis] < count {
                break;
            }
            base -= stride * count;
            coordinates[axis] = 0;
        }
    }
}

/// The same walk in fewer dimensions: those of one step vanish, those that continue each other merge.
fn coalesce(dims: &[StridedDim]) -> SmallVec<[StridedDim; 6]> {
    let mut merged: SmallVec<[StridedDim; 6]> = SmallVec::new();
    for &(count, stride) in dims.iter().filter(|(count, _)| *count != 1) {
        match merged.last_mut() {
            Some((outer_count, outer_stride)) if *outer_stride == count * stride => {
                *outer_count *= count;
                *outer_stride = stride;
            }
            Some(_) | None => merged.push((count, stride)),
        }
    }
    merged
}

/// Applies `function` to every line of elements along `axes` (sorted); results in row-major order
/// of the remaining axes.
pub(crate) fn reduce<T: Copy, R>(shape: &[usize], lanes: &[T], axes: &[usize], function: impl Fn(&[T]) -> R) -> Vec<R> {
    let (lines, line_length, n_lines) = lines(shape, lanes, axes);
    (0..n_lines).map(|line| function(&lines[line * line_length..(line + 1) * line_length])).collect()
}

/// Elements with `axes` (sorted) innermost, elements per line, and number of lines.
fn lines<'a, T: Copy>(shape: &[usize], lanes: &'a [T], axes: &[usize]) -> (Cow<'a, [T]>, usize, usize) {
    let strides = packed_strides(shape);
    let kept = (0..shape.len()).filter(|axis| !axes.contains(axis));
    let n_kept = shape.len() - axes.len();
    let order: SmallVec<[usize; 6]> = kept.chain(axes.iter().copied()).collect();
    let n_lines = order[..n_kept].iter().map(|&axis| shape[axis]).product();
    let line_length = order[n_kept..].iter().map(|&axis| shape[axis]).product();
    if order.iter().enumerate().all(|(position, &axis)| position == axis) {
        return (Cow::Borrowed(lanes), line_length, n_lines);
    }
    let dims: SmallVec<[StridedDim; 6]> = order.iter().map(|&axis| (shape[axis], strides[axis])).collect();
    (Cow::Owned(strided(lanes, 0, &dims)), line_length, n_lines)
}
