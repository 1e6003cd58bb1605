//! In-place ops as functional ones: which tensors share memory, and what each shows now.
//!
//! Every tensor is a storage's base or a view of another tensor. A write gives the base a new
//! value, by undoing the view's steps one by one; views made before are taken again from the new
//! base where they are read next. Nodes are appended as they are needed, so that views that are
//! never read cost nothing.

use std::collections::BTreeMap;

use ir::graph::Location;

use super::views::Step;
use crate::import::captured::{Argument, CapturedNode, Recorded, RecordedTensor, Size};

/// Nodes that writes may add for each node of the file, and for any file.
const MAX_ADDED_PER_NODE: usize = 16;
const MAX_ADDED: usize = 4096;

/// Names a tensor.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TensorId(usize);

/// All tensors, and the nodes that compute them.
#[derive(Debug, Default)]
pub struct Memory {
    tensors: Vec<Tensor>,
    storages: Vec<Storage>,
    nodes: Vec<CapturedNode>,
    next_id: u64,
    max_nodes: usize,
}

#[derive(Debug)]
struct Tensor {
    storage: usize,
    /// What this is a view of, and how; `None` for the storage's base.
    view: Option<View>,
    recorded: RecordedTensor,
    /// The node that gave the elements as they were after `n_writes` writes.
    known: Option<Known>,
}

#[derive(Debug)]
struct View {
    parent: TensorId,
    step: Step,
    location: Location,
}

#[derive(Copy, Clone, Debug)]
struct Known {
    id: u64,
    n_writes: usize,
}

#[derive(Debug)]
struct Storage {
    base: TensorId,
    n_writes: usize,
    /// Why not all tensors on this storage are known.
    untracked: Option<String>,
}

impl Memory {
    /// For a file of so many nodes.
    pub fn new(n_nodes: usize) -> Self {
        let max_nodes = n_nodes.saturating_mul(MAX_ADDED_PER_NODE).saturating_add(MAX_ADDED);
        Memory { max_nodes, ..Memory::default() }
    }

    /// An id that no node has.
    pub fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// A tensor with memory of its own, computed by node or input `id`.
    pub fn base(&mut self, id: u64, recorded: RecordedTensor) -> TensorId {
        let tensor = TensorId(self.tensors.len());
        let storage = self.storages.len();
        self.storages.push(Storage { base: tensor, n_writes: 0, untracked: None });
        self.tensors.push(Tensor { storage, view: None, recorded, known: Some(Known { id, n_writes: 0 }) });
        tensor
    }

    /// A view of a tensor.
    pub fn view(&mut self, parent: TensorId, step: Step, recorded: RecordedTensor, location: Location) -> TensorId {
        let tensor = TensorId(self.tensors.len());
        let storage = self.tensors[parent.0].storage;
        let view = Some(View { parent, step, location });
        self.tensors.push(Tensor { storage, view, recorded, known: None });
        tensor
    }

    /// Type and strides of a tensor.
    pub fn recorded(&self, tensor: TensorId) -> &RecordedTensor {
        &self.tensors[tensor.0].recorded
    }

    /// Notes that tensors which are not known here may lie on this tensor's storage.
    pub fn untrack(&mut self, tensor: TensorId, reason: &str) {
        let storage = self.tensors[tensor.0].storage;
        self.storages[storage].untracked = Some(reason.to_owned());
    }

    /// True where the tensor's storage has been written to.
    pub fn is_written(&self, tensor: TensorId) -> bool {
        self.storages[self.tensors[tensor.0].storage].n_writes > 0
    }

    /// Adds a node.
    ///
    /// # Errors
    /// When there are too many.
    pub fn push(&mut self, node: CapturedNode) -> Result<(), String> {
        if self.nodes.len() >= self.max_nodes {
            return Err(format!("writes to views come apart into more than {} nodes", self.max_nodes));
        }
        self.nodes.push(node);
        Ok(())
    }

    /// All nodes in order.
    pub fn into_nodes(self) -> Vec<CapturedNode> {
        self.nodes
    }

    /// The node that gives a tensor's elements as they are now.
    ///
    /// # Errors
    /// When there are too many nodes.
    pub fn read(&mut self, tensor: TensorId) -> Result<u64, String> {
        // From the tensor up to the nearest one that is known, and down again.
        let mut stale = Vec::new();
        let mut at = tensor;
        let mut id = loop {
            let Tensor { storage, view, known, .. } = &self.tensors[at.0];
            let n_writes = self.storages[*storage].n_writes;
            match (known, view) {
                (Some(known), _) if known.n_writes == n_writes => break known.id,
                (_, Some(view)) => {
                    stale.push(at);
                    at = view.parent;
                }
                (_, None) => unreachable!("every write makes the base known"),
            }
        };
        for tensor in stale.into_iter().rev() {
            let Tensor { storage, view, recorded, .. } = &self.tensors[tensor.0];
            let n_writes = self.storages[*storage].n_writes;
            let view = view.as_ref().expect("only views become stale");
            let (recorded, location) = (recorded.clone(), view.location.clone());
            if let Some((target, keywords)) = taken(&view.step, id, &recorded) {
                id = self.call(target, keywords, recorded, location)?;
            }
            self.tensors[tensor.0].known = Some(Known { id, n_writes });
        }
        Ok(id)
    }

    /// Why a tensor cannot be written to, where that is so.
    pub fn refusal(&self, tensor: TensorId) -> Option<String> {
        let storage = &self.storages[self.tensors[tensor.0].storage];
        if let Some(reason) = &storage.untracked {
            return Some(format!("an update in place of memory that cannot be followed: {reason}"));
        }
        let mut at = tensor;
        while let Some(View { parent, step, .. }) = &self.tensors[at.0].view {
            if *step == Step::Expand && self.tensors[at.0].recorded.shape != self.tensors[parent.0].recorded.shape {
                return Some("an update in place of an expanded tensor, whose elements share memory".to_owned());
            }
            at = *parent;
        }
        None
    }

    /// Gives a tensor the elements of node `value`, for everything that shares its memory. Relies
    /// on [`Memory::refusal`] having given none.
    ///
    /// # Errors
    /// When there are too many nodes.
    pub fn write(&mut self, tensor: TensorId, value: u64, location: &Location) -> Result<(), String> {
        self.read(tensor)?;
        let storage = self.tensors[tensor.0].storage;
        let n_writes = self.storages[storage].n_writes + 1;
        let (mut at, mut id) = (tensor, value);
        while let Some(View { parent, step, .. }) = &self.tensors[at.0].view {
            let (parent, step) = (*parent, step.clone());
            let before = self.read(parent)?;
            self.tensors[at.0].known = Some(Known { id, n_writes });
            let recorded = self.tensors[parent.0].recorded.clone();
            if let Some((target, keywords)) = undone(&step, before, id, &recorded) {
                id = self.call(target, keywords, recorded, location.clone())?;
            }
            at = parent;
        }
        debug_assert_eq!(at, self.storages[storage].base, "views lead to the base");
        self.tensors[at.0].known = Some(Known { id, n_writes });
        self.storages[storage].n_writes = n_writes;
        Ok(())
    }

    fn call(
        &mut self,
        target: &str,
        keywords: Keywords,
        recorded: RecordedTensor,
        location: Location,
    ) -> Result<u64, String> {
        let id = self.new_id();
        self.push(CapturedNode {
            id,
            target: target.to_owned(),
            positional: Vec::new(),
            keywords: keywords.into_iter().map(|(name, argument)| (name.to_owned(), argument)).collect(),
            recorded: Recorded::Tensor(recorded),
            location,
            refusal: None,
        })?;
        Ok(id)
    }
}

type Keywords = BTreeMap<&'static str, Argument>;

fn number(size: usize) -> Argument {
    // Sizes were read from 64-bit integers.
    Argument::Int(size as i64)
}

fn shape_argument(recorded: &RecordedTensor) -> Argument {
    let size = |size: &Size| match size {
        Size::Known(size) => number(*size),
        Size::Symbol(expression) => Argument::Symbol(expression.clone()),
    };
    Argument::List(recorded.shape.iter().map(size).collect())
}

/// The call that shows a view of `base`; `None` where it is the base itself.
fn taken(step: &Step, base: u64, recorded: &RecordedTensor) -> Option<(&'static str, Keywords)> {
    let (target, mut keywords) = match step {
        Step::Same => return None,
        Step::Reshape => ("aten.view.default", Keywords::from([("size", shape_argument(recorded))])),
        Step::Expand => ("aten.expand.default", Keywords::from([("size", shape_argument(recorded))])),
        Step::Permute(axes) => {
            let axes = Argument::List(axes.iter().copied().map(number).collect());
            ("aten.permute.default", Keywords::from([("dims", axes)]))
        }
        Step::Slice { .. } => ("aten.slice.Tensor", place(step)),
        Step::Select { .. } => ("aten.select.int", place(step)),
    };
    keywords.insert("self", Argument::Reference(base));
    Some((target, keywords))
}

/// The call that gives the base after its view has become `value`; `None` where that is `value`
/// itself.
fn undone(step: &Step, base: u64, value: u64, recorded: &RecordedTensor) -> Option<(&'static str, Keywords)> {
    let (target, mut keywords) = match step {
        Step::Same | Step::Expand => return None,
        Step::Reshape => {
            let keywords = Keywords::from([("self", Argument::Reference(value)), ("size", shape_argument(recorded))]);
            return Some(("aten.view.default", keywords));
        }
        Step::Permute(axes) => {
            let mut inverse = vec![0; axes.len()];
            axes.iter().enumerate().for_each(|(position, &axis)| inverse[axis] = position);
            let axes = Argument::List(inverse.into_iter().map(number).collect());
            return Some((
                "aten.permute.default",
                Keywords::from([("self", Argument::Reference(value)), ("dims", axes)]),
            ));
        }
        Step::Slice { .. } => ("aten.slice_scatter.default", place(step)),
        Step::Select { .. } => ("aten.select_scatter.default", place(step)),
    };
    keywords.insert("self", Argument::Reference(base));
    keywords.insert("src", Argument::Reference(value));
    Some((target, keywords))
}

fn place(step: &Step) -> Keywords {
    match step {
        Step::Slice { axis, start, end, step } => Keywords::from([
            ("dim", number(*axis)),
            ("start", number(*start)),
            ("end", number(*end)),
            ("step", number(*step)),
        ]),
        Step::Select { axis, index } => Keywords::from([("dim", number(*axis)), ("index", number(*index))]),
        Step::Same | Step::Reshape | Step::Permute(_) | Step::Expand => Keywords::new(),
    }
}
