//! Converted copies of weights, kept from one run to the next.
//!
//! A weight whose device layout is not the caller's is converted once for each content that it has.
//! The content is told by a fingerprint of all its bytes, taken on every run: addresses are used
//! again after tensors are freed, and frameworks have ways to change a tensor without counting it as
//! a new version. A fingerprint reads memory at its full rate; a conversion takes several times as
//! long.

use std::sync::{Arc, Mutex, PoisonError};

use twox_hash::XxHash3_128;

use crate::strided::View;

/// The latest converted copy of one weight.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Option<Arc<Copy>>>);

/// A converted weight and what it was made of.
#[derive(Debug)]
pub(crate) struct Copy {
    fingerprint: u128,
    strides: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Kept {
    /// The weight in device layout; `convert` makes it where there is no copy of this content.
    pub fn of(&self, view: View<'_>, convert: impl FnOnce() -> Vec<u8>) -> Arc<Copy> {
        let fingerprint = XxHash3_128::oneshot(view.bytes);
        {
            let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(copy) = kept.as_ref()
                && copy.fingerprint == fingerprint
                && copy.strides == view.strides
            {
                return Arc::clone(copy);
            }
        }
        // Others may run meanwhile, with the same weight or another.
        let copy = Arc::new(Copy { fingerprint, strides: view.strides.to_vec(), bytes: convert() });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&copy));
        copy
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use ir::{Dtype, TensorType};

    use super::Kept;
    use crate::strided::View;

    #[test]
    fn a_copy_is_made_once_for_each_content_and_layout() {
        let ty = TensorType::new(Dtype::U8, [2, 2]);
        let kept = Kept::default();
        let n_conversions = Cell::new(0);
        let get = |strides: &[usize], bytes: &[u8]| {
            let convert = || {
                n_conversions.set(n_conversions.get() + 1);
                bytes.iter().rev().copied().collect()
            };
            kept.of(View { ty: &ty, strides, bytes }, convert).bytes.clone()
        };
        assert_eq!(get(&[2, 1], &[1, 2, 3, 4]), [4, 3, 2, 1]);
        assert_eq!(get(&[2, 1], &[1, 2, 3, 4]), [4, 3, 2, 1]);
        assert_eq!(n_conversions.get(), 1);
        assert_eq!(get(&[2, 1], &[1, 2, 3, 5]), [5, 3, 2, 1]);
        assert_eq!(get(&[1, 2], &[1, 2, 3, 5]), [5, 3, 2, 1]);
        assert_eq!(n_conversions.get(), 3);
    }
}
