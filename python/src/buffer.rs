//! Memory of tensors that Python owns.
//!
//! A layout says how tensors lie in memory, and is checked once; an address joins it for each call.
//! Memory is valid while the call that carries its address runs: the caller keeps the tensors alive
//! and changes none of them meanwhile.

use compiler::import::dtype_of;
use compiler::strided::{View, ViewMut, extent_bytes};
use ir::TensorType;
use pyo3::{FromPyObject, PyResult, pyclass, pymethods};

use crate::errors::InputError;

/// A tensor's layout as the Python side describes it: element type, shape, strides in elements.
#[derive(FromPyObject)]
pub struct Description(String, Vec<usize>, Vec<usize>);

/// How the tensors of a call lie in memory.
#[pyclass(frozen, module = "neffuse")]
pub struct Layouts(Vec<Layout>);

#[pymethods]
impl Layouts {
    /// Checks layouts, each given as (element type, shape, strides in elements).
    ///
    /// Raises InputError for an element type that is not known and sizes that no memory can have.
    #[new]
    fn new(descriptions: Vec<Description>) -> PyResult<Layouts> {
        Ok(Layouts(descriptions.into_iter().map(Layout::new).collect::<PyResult<_>>()?))
    }
}

impl Layouts {
    /// Tensors at these addresses.
    ///
    /// # Errors
    /// Another number of addresses, or none where there must be elements.
    pub fn at(&self, addresses: &[usize]) -> PyResult<Vec<Buffer<'_>>> {
        if addresses.len() != self.0.len() {
            let message = format!("{} addresses of {} tensors", addresses.len(), self.0.len());
            return Err(InputError::new_err(message));
        }
        let mut buffers = Vec::with_capacity(addresses.len());
        for (layout, &address) in self.0.iter().zip(addresses) {
            if address == 0 && layout.n_bytes > 0 {
                return Err(InputError::new_err(format!("a tensor {} has no memory", layout.ty)));
            }
            buffers.push(Buffer { address, layout });
        }
        Ok(buffers)
    }
}

/// How one tensor lies in memory.
struct Layout {
    ty: TensorType,
    strides: Vec<usize>,
    /// From the first element to the end of the last.
    n_bytes: usize,
}

impl Layout {
    fn new(Description(dtype, shape, strides): Description) -> PyResult<Layout> {
        let Some(dtype) = dtype_of(&dtype) else {
            return Err(InputError::new_err(format!("element type {dtype} is not supported")));
        };
        if shape.len() != strides.len() {
            let message = format!("{} dimensions but {} strides", shape.len(), strides.len());
            return Err(InputError::new_err(message));
        }
        let ty = TensorType::new(dtype, shape);
        let n_bytes = extent_bytes(&ty, &strides).filter(|&bytes| isize::try_from(bytes).is_ok());
        let Some(n_bytes) = n_bytes else {
            return Err(InputError::new_err(format!("no memory holds {ty} with strides {strides:?}")));
        };
        Ok(Layout { ty, strides, n_bytes })
    }
}

/// Elements somewhere in memory.
pub struct Buffer<'a> {
    address: usize,
    layout: &'a Layout,
}

impl Buffer<'_> {
    /// The tensor, for reading.
    ///
    /// # Safety
    /// It must be alive and unchanged while the view is.
    pub unsafe fn view(&self) -> View<'_> {
        let Layout { ty, strides, n_bytes } = self.layout;
        let bytes = if *n_bytes == 0 {
            &[]
        } else {
            // SAFETY: the address is not null and the extent fits `isize`; the caller vouches for the
            // tensor behind it.
            unsafe { std::slice::from_raw_parts(self.address as *const u8, *n_bytes) }
        };
        View { ty, strides, bytes }
    }

    /// The tensor, for writing.
    ///
    /// # Safety
    /// It must be alive while the view is, and nothing else may read or write it.
    pub unsafe fn view_mut(&mut self) -> ViewMut<'_> {
        let Layout { ty, strides, n_bytes } = self.layout;
        let bytes = if *n_bytes == 0 {
            &mut []
        } else {
            // SAFETY: as in `view`; the caller vouches that the access is exclusive.
            unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, *n_bytes) }
        };
        ViewMut { ty, strides, bytes }
    }
}
