//! Views as steps that can be taken and undone: what a view shows of its base, and how the base
//! looks after the view has been written to.

use std::collections::BTreeMap;

use crate::import::captured::{Argument, RecordedTensor};

/// How a view lies in what it is a view of.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The same tensor under another name.
    Same,
    /// The same elements in the same order under another shape.
    Reshape,
    Permute(Vec<usize>),
    Slice {
        axis: usize,
        start: usize,
        end: usize,
        step: usize,
    },
    Select {
        axis: usize,
        index: usize,
    },
    /// Elements repeat: it can be read only.
    Expand,
}

/// What the results of an overload have to do with the memory of its first operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Relation {
    /// Memory of their own.
    Fresh,
    /// Views, one step for each result.
    Views(Vec<Step>),
    /// Perhaps the same memory: neither may be written to.
    Unknown,
}

/// A call as far as views depend on it.
pub struct ViewCall<'a> {
    pub target: &'a str,
    pub keywords: &'a BTreeMap<String, Argument>,
    pub operand: &'a RecordedTensor,
    pub results: &'a [RecordedTensor],
    /// Whether the first result lies on another device.
    pub changes_device: bool,
}

impl ViewCall<'_> {
    /// The relation; `Unknown` where arguments make no sense, which the overload's row will tell.
    pub fn relation(&self) -> Relation {
        let steps = match self.target {
            "aten.alias.default" | "aten.detach.default" | "aten.lift_fresh.default" | "aten.lift.default" => {
                self.one(Step::Same)
            }
            "aten.dropout.default" => self.dropout(),
            "aten.contiguous.default" => return self.contiguous(),
            "aten.to.dtype" | "aten.to.dtype_layout" | "aten.to.device" | "aten.to.other" | "aten.type_as.default" => {
                return self.converted();
            }
            "aten.reshape.default" | "aten.flatten.using_ints" | "aten.reshape_as.default" => return self.reshaped(),
            "aten.view.default"
            | "aten._unsafe_view.default"
            | "aten.view_as.default"
            | "aten.unflatten.int"
            | "aten.unsqueeze.default"
            | "aten.squeeze.default"
            | "aten.squeeze.dim"
            | "aten.squeeze.dims" => self.one(Step::Reshape),
            "aten.expand.default" | "aten.expand_as.default" | "aten.broadcast_to.default" => self.one(Step::Expand),
            "aten.permute.default" => self.permuted(),
            "aten.transpose.int" | "aten.swapaxes.default" | "aten.swapdims.default" => self.swapped(),
            "aten.t.default" | "aten.numpy_T.default" => {
                self.one(Step::Permute((0..self.operand.shape.len()).rev().collect()))
            }
            "aten.mT.default" => self.matrix_transposed(),
            "aten.slice.Tensor" => self.sliced(),
            "aten.narrow.default" => self.narrowed(),
            "aten.select.int" => self.selected(),
            "aten.unbind.int" => self.unbound(),
            "aten.split.Tensor"
            | "aten.split_with_sizes.default"
            | "aten.split.sizes"
            | "aten.chunk.default"
            | "aten.tensor_split.sections"
            | "aten.tensor_split.indices" => self.split(),
            // One operand may come back as it is, or the result may be a view of one of them.
            "aten.einsum.default" | "aten.broadcast_tensors.default" | "aten.native_dropout.default" => None,
            _ => return Relation::Fresh,
        };
        match steps {
            Some(steps) if steps.len() == self.results.len() => Relation::Views(steps),
            Some(_) | None => Relation::Unknown,
        }
    }

    fn one(&self, step: Step) -> Option<Vec<Step>> {
        Some(vec![step])
    }

    fn dropout(&self) -> Option<Vec<Step>> {
        match (self.keywords.get("train"), self.keywords.get("p")) {
            (Some(Argument::Bool(false)), _) | (_, Some(Argument::Float(0.0) | Argument::Int(0))) => {
                self.one(Step::Same)
            }
            (_, _) => None,
        }
    }

    /// A conversion gives the tensor itself where it changes nothing.
    fn converted(&self) -> Relation {
        let is_copy = matches!(self.keywords.get("copy"), Some(Argument::Bool(true)));
        let [result] = self.results else { return Relation::Unknown };
        let keeps_format = match self.keywords.get("memory_format") {
            None | Some(Argument::Nothing) => true,
            Some(Argument::MemoryFormat(format)) => format == "preserve_format",
            Some(_) => false,
        };
        match (is_copy || self.changes_device || result.dtype != self.operand.dtype, keeps_format) {
            (true, _) => Relation::Fresh,
            (false, true) => Relation::Views(vec![Step::Same]),
            (false, false) => Relation::Unknown,
        }
    }

    fn contiguous(&self) -> Relation {
        let is_plain = match self.keywords.get("memory_format") {
            None | Some(Argument::Nothing) => true,
            Some(Argument::MemoryFormat(format)) => format == "contiguous_format",
            Some(_) => false,
        };
        match (is_plain, self.operand.known_shape(), self.operand.known_strides()) {
            (true, Some(shape), Some(strides)) if is_packed(&shape, &strides) => Relation::Views(vec![Step::Same]),
            (true, Some(_), Some(_)) => Relation::Fresh,
            (_, _, _) => Relation::Unknown,
        }
    }

    /// A reshape is a view wherever strides allow one.
    fn reshaped(&self) -> Relation {
        let [result] = self.results else { return Relation::Unknown };
        let (shape, strides) = (self.operand.known_shape(), self.operand.known_strides());
        let (Some(shape), Some(strides), Some(target)) = (shape, strides, result.known_shape()) else {
            return Relation::Unknown;
        };
        if can_view(&shape, &strides, &target) { Relation::Views(vec![Step::Reshape]) } else { Relation::Fresh }
    }

    fn permuted(&self) -> Option<Vec<Step>> {
        let Some(Argument::List(dims)) = self.keywords.get("dims") else { return None };
        let dims = dims.iter().map(|dim| self.axis_in(dim)).collect::<Option<Vec<_>>>()?;
        let mut sorted = dims.clone();
        sorted.sort_unstable();
        if sorted.into_iter().eq(0..self.operand.shape.len()) { self.one(Step::Permute(dims)) } else { None }
    }

    fn swapped(&self) -> Option<Vec<Step>> {
        let names = if self.target == "aten.swapaxes.default" { ["axis0", "axis1"] } else { ["dim0", "dim1"] };
        let mut dims: Vec<usize> = (0..self.operand.shape.len()).collect();
        if dims.is_empty() {
            return self.one(Step::Same);
        }
        dims.swap(self.axis_in(self.keywords.get(names[0])?)?, self.axis_in(self.keywords.get(names[1])?)?);
        self.one(Step::Permute(dims))
    }

    fn matrix_transposed(&self) -> Option<Vec<Step>> {
        let mut dims: Vec<usize> = (0..self.operand.shape.len()).collect();
        let last = dims.len().checked_sub(1)?;
        dims.swap(last, last.checked_sub(1)?);
        self.one(Step::Permute(dims))
    }

    fn sliced(&self) -> Option<Vec<Step>> {
        let (axis, size) = self.axis_and_size()?;
        let bound = |name: &str, default: i64| Some(clamped(self.optional_int(name)?.unwrap_or(default), size));
        let (start, end) = (bound("start", 0)?, bound("end", i64::MAX)?);
        let step = usize::try_from(self.optional_int("step")?.unwrap_or(1)).ok().filter(|&step| step > 0)?;
        self.one(Step::Slice { axis, start, end: end.max(start), step })
    }

    fn narrowed(&self) -> Option<Vec<Step>> {
        let (axis, size) = self.axis_and_size()?;
        let start = position(self.optional_int("start")??, size, size)?;
        let length = usize::try_from(self.optional_int("length")??).ok()?;
        let end = start.checked_add(length).filter(|&end| end <= size)?;
        self.one(Step::Slice { axis, start, end, step: 1 })
    }

    fn selected(&self) -> Option<Vec<Step>> {
        let (axis, size) = self.axis_and_size()?;
        let index = position(self.optional_int("index")??, size, size.checked_sub(1)?)?;
        self.one(Step::Select { axis, index })
    }

    fn unbound(&self) -> Option<Vec<Step>> {
        let (axis, size) = self.axis_and_size()?;
        if size != self.results.len() {
            return None;
        }
        Some((0..size).map(|index| Step::Select { axis, index }).collect())
    }

    /// Parts follow each other along an axis, each as long as its result.
    fn split(&self) -> Option<Vec<Step>> {
        let (axis, size) = self.axis_and_size()?;
        let mut start = 0;
        let mut steps = Vec::new();
        for result in self.results {
            let end = result.known_shape()?.get(axis).and_then(|length| length.checked_add(start))?;
            if end > size {
                return None;
            }
            steps.push(Step::Slice { axis, start, end, step: 1 });
            start = end;
        }
        Some(steps)
    }

    /// The axis that `dim` names, by default the first, and its size.
    fn axis_and_size(&self) -> Option<(usize, usize)> {
        let axis = self.axis_of(self.optional_int("dim")?.unwrap_or(0))?;
        Some((axis, self.operand.shape.get(axis)?.known()?))
    }

    fn axis_in(&self, argument: &Argument) -> Option<usize> {
        match argument {
            Argument::Int(dim) => self.axis_of(*dim),
            _ => None,
        }
    }

    fn axis_of(&self, dim: i64) -> Option<usize> {
        let rank = self.operand.shape.len();
        position(dim, rank, rank.checked_sub(1)?)
    }

    /// `None` where the argument is no integer, `Some(None)` where it is not given.
    fn optional_int(&self, name: &str) -> Option<Option<i64>> {
        match self.keywords.get(name) {
            None | Some(Argument::Nothing) => Some(None),
            Some(Argument::Int(int)) => Some(Some(*int)),
            Some(_) => None,
        }
    }
}

/// A position that counts from the end where it is negative.
fn position(int: i64, size: usize, largest: usize) -> Option<usize> {
    let from_start = if int < 0 { int.checked_add(i64::try_from(size).ok()?)? } else { int };
    usize::try_from(from_start).ok().filter(|&position| position <= largest)
}

fn clamped(int: i64, size: usize) -> usize {
    let limit = i64::try_from(size).unwrap_or(i64::MAX);
    let from_start = if int < 0 { int.saturating_add(limit) } else { int };
    from_start.clamp(0, limit) as usize
}

fn is_packed(shape: &[usize], strides: &[usize]) -> bool {
    let packed = ir::types::packed_strides(shape);
    shape.contains(&0) || (0..shape.len()).all(|axis| shape[axis] == 1 || strides[axis] == packed[axis])
}

/// True where a tensor of these strides can be seen under another shape without moving elements.
///
/// Axes that follow each other in memory form a run; each run must be filled by axes of the target.
fn can_view(shape: &[usize], strides: &[usize], target: &[usize]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let axes: Vec<(usize, usize)> =
        shape.iter().copied().zip(strides.iter().copied()).filter(|&(size, _)| size != 1).collect();
    let mut left: Vec<usize> = target.iter().copied().filter(|&size| size != 1).collect();
    let mut axis = axes.len();
    while axis > 0 {
        let mut run = axes[axis - 1].0;
        let mut reach = axes[axis - 1].0.saturating_mul(axes[axis - 1].1);
        axis -= 1;
        while axis > 0 && axes[axis - 1].1 == reach {
            run = run.saturating_mul(axes[axis - 1].0);
            reach = reach.saturating_mul(axes[axis - 1].0);
            axis -= 1;
        }
        let mut filled = 1usize;
        while filled < run {
            let Some(size) = left.pop() else { return false };
            filled = filled.saturating_mul(size);
        }
        if filled != run {
            return false;
        }
    }
    left.is_empty()
}

#[cfg(test)]
mod tests {
    use super::can_view;

    #[test]
    fn reshapes_that_need_no_copy_are_told_from_those_that_do() {
        assert!(can_view(&[2, 3], &[3, 1], &[6]));
        assert!(!can_view(&[3, 2], &[1, 3], &[6]));
        assert!(can_view(&[2, 3, 4], &[24, 4, 1], &[2, 12]));
        assert!(!can_view(&[2, 3, 4], &[24, 4, 1], &[6, 4]));
        assert!(can_view(&[4, 8], &[1, 4], &[4, 2, 4]));
        assert!(can_view(&[1, 5], &[77, 1], &[5, 1]));
        assert!(can_view(&[], &[], &[1, 1]));
        assert!(can_view(&[2, 3], &[0, 1], &[2, 3, 1]));
        assert!(!can_view(&[2, 3], &[0, 1], &[6]));
    }
}
