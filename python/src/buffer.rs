//! Memory of tensors that Python owns.
//!
//! A buffer is an address with a type and strides. It is valid while the call that carries it runs:
//! the caller keeps the tensors alive and changes none of them meanwhile.

use compiler::import::dtype_of;
use compiler::strided::{View, ViewMut, extent_bytes};
use ir::TensorType;
use pyo3::{FromPyObject, PyResult};

use crate::errors::InputError;

/// A tensor as the Python side describes it: address, element type, shape, strides in elements.
#[derive(FromPyObject)]
pub struct Description(usize, String, Vec<usize>, Vec<usize>);

/// Elements somewhere in memory.
pub struct Buffer {
    address: usize,
    ty: TensorType,
    strides: Vec<usize>,
    n_bytes: usize,
}

impl Buffer {
    /// Checks a description.
    ///
    /// # Errors
    /// An element type that is not known, or sizes that no memory can have.
    pub fn new(description: Description) -> PyResult<Buffer> {
        let Description(address, dtype, shape, strides) = description;
        let Some(dtype) = dtype_of(&dtype) else {
            return Err(InputError::new_err(format!("element type {dtype} is not supported")));
        };
        if shape.len() != strides.len() {
            let message = format!("{} dimensions but {} strides", shape.len(), strides.len());
            return Err(InputError::new_err(message));
        }
        let ty = TensorType::new(dtype, shape);
        let n_bytes = extent_bytes(&ty, &strides);
        let n_bytes = n_bytes.filter(|&bytes| isize::try_from(bytes).is_ok() && (bytes == 0 || address != 0));
        let Some(n_bytes) = n_bytes else {
            return Err(InputError::new_err(format!("no memory holds {ty} with strides {strides:?}")));
        };
        Ok(Buffer { address, ty, strides, n_bytes })
    }

    /// The tensor, for reading.
    ///
    /// # Safety
    /// It must be alive and unchanged while the view is.
    pub unsafe fn view(&self) -> View<'_> {
        let bytes = if self.n_bytes == 0 {
            &[]
        } else {
            // SAFETY: the address is not null and the extent fits `isize`; the caller vouches for the
            // tensor behind it.
            unsafe { std::slice::from_raw_parts(self.address as *const u8, self.n_bytes) }
        };
        View { ty: &self.ty, strides: &self.strides, bytes }
    }

    /// The tensor, for writing.
    ///
    /// # Safety
    /// It must be alive while the view is, and nothing else may read or write it.
    pub unsafe fn view_mut(&mut self) -> ViewMut<'_> {
        let bytes = if self.n_bytes == 0 {
            &mut []
        } else {
            // SAFETY: as in `view`; the caller vouches that the access is exclusive.
            unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.n_bytes) }
        };
        ViewMut { ty: &self.ty, strides: &self.strides, bytes }
    }
}
