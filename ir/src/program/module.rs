//! Kernels and the calls that apply them: what a program becomes when repeated parts are compiled once.
//!
//! A kernel is a whole program of its own. Its inputs and outputs are bound anew in each call, its
//! constants and scratch are the same in all. Calls follow each other: one begins when everything that
//! the one before it does is complete, so that kernels share on-chip memory and semaphores.

use super::{HbmId, HbmKind, HbmTensor, Program};
use crate::graph::Location;
use crate::target::TargetName;

/// Kernels, their calls in order, and all device memory that they use.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    pub name: String,
    pub target: TargetName,
    /// Inputs, outputs, constants, values between calls, scratch of kernels.
    pub tensors: Vec<HbmTensor>,
    pub kernels: Vec<Kernel>,
    pub calls: Vec<Call>,
}

/// A synchronized program that calls apply.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    pub program: Program,
    /// What each tensor of the program stands for.
    pub places: Vec<KernelPlace>,
}

/// What a tensor of a kernel's program stands for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum KernelPlace {
    /// Another tensor of the module in each call: position in [`Call::bindings`].
    Bound(u32),
    /// The same tensor of the module in every call.
    Fixed(HbmId),
}

/// One application of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Position in [`Module::kernels`].
    pub kernel: usize,
    /// Tensors of the module.
    pub bindings: Vec<HbmId>,
    /// What the locations of the kernel's program are in this call, by position.
    pub locations: Vec<Location>,
}

impl Module {
    /// Calls of a kernel.
    pub fn n_calls(&self, kernel: usize) -> usize {
        self.calls.iter().filter(|call| call.kernel == kernel).count()
    }

    /// Everything that keeps calls from fitting their kernels; empty when nothing does.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (number, call) in self.calls.iter().enumerate() {
            match self.kernels.get(call.kernel) {
                Some(kernel) => {
                    self.call_faults(call, kernel, &mut |fault| faults.push(format!("call {number}: {fault}")))
                }
                None => faults.push(format!("call {number}: there is no kernel {}", call.kernel)),
            }
        }
        faults
    }

    fn call_faults(&self, call: &Call, kernel: &Kernel, report: &mut dyn FnMut(String)) {
        let mut written = Vec::new();
        let mut read = Vec::new();
        for (tensor, place) in kernel.program.tensors.iter().zip(&kernel.places) {
            let bound = match *place {
                KernelPlace::Bound(position) => call.bindings.get(position as usize).copied(),
                KernelPlace::Fixed(fixed) => Some(fixed),
            };
            let Some(bound) = bound.filter(|bound| bound.index() < self.tensors.len()) else {
                report(format!("nothing is bound to `{}`", tensor.name));
                continue;
            };
            let given = &self.tensors[bound.index()];
            if (given.size_bytes, given.dtype) != (tensor.size_bytes, tensor.dtype) {
                report(format!("`{}` does not fit `{}`", given.name, tensor.name));
            }
            match tensor.kind {
                HbmKind::Input(_) | HbmKind::Constant(_) => read.push(bound),
                HbmKind::Output(_) | HbmKind::Updated { .. } | HbmKind::Scratch => written.push(bound),
            }
        }
        let n_written = written.len();
        written.sort_unstable();
        written.dedup();
        if written.len() < n_written || read.iter().any(|tensor| written.binary_search(tensor).is_ok()) {
            report("a tensor that it writes is bound twice".to_owned());
        }
    }
}
