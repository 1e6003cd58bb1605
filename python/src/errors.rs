//! Errors of the compiler as Python exceptions.

use compiler::Error;
use pyo3::exceptions::{PyRuntimeError, PyUserWarning};
use pyo3::prelude::{Bound, PyAnyMethods, PyDictMethods, PyErr, PyModule, PyModuleMethods, PyResult, Python};
use pyo3::types::{PyDict, PyList};
use pyo3::{PyTypeInfo, create_exception};

create_exception!(neffuse, NeffuseError, PyRuntimeError, "Any error of neffuse.");
create_exception!(neffuse, InputError, NeffuseError, "A graph, tensor or option is wrong.");
create_exception!(
    neffuse,
    TooWideError,
    InputError,
    "The device cannot compute with values of an input: PyTorch must run this call."
);
create_exception!(
    neffuse,
    UnsupportedError,
    NeffuseError,
    "A graph has nodes that cannot be compiled.\n\n`nodes` lists them all: dictionaries with the keys node, op, \
     module, line, type and reason."
);
create_exception!(neffuse, InternalError, NeffuseError, "A fault of neffuse itself.");
create_exception!(neffuse, FallbackWarning, PyUserWarning, "Part of a graph runs on the host, by PyTorch.");

/// Adds the exceptions to the module.
///
/// # Errors
/// Those of Python.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("NeffuseError", NeffuseError::type_object(py))?;
    module.add("InputError", InputError::type_object(py))?;
    module.add("UnsupportedError", UnsupportedError::type_object(py))?;
    module.add("TooWideError", TooWideError::type_object(py))?;
    module.add("InternalError", InternalError::type_object(py))?;
    module.add("FallbackWarning", FallbackWarning::type_object(py))
}

/// The exception of an error. Its message begins with a line that stands alone.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Input(_) | Error::Usage(_) | Error::File(_) | Error::Text(_) => InputError::new_err(message),
        Error::TooWide(_) => TooWideError::new_err(message),
        Error::Unsupported { .. } => {
            let exception = UnsupportedError::new_err(message);
            match nodes(py, error).and_then(|nodes| exception.value(py).setattr("nodes", nodes)) {
                Ok(()) => exception,
                Err(failure) => failure,
            }
        }
        Error::Internal(_) | Error::Mismatch(_) => InternalError::new_err(message),
    }
}

fn nodes<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyList>> {
    let entries = error.unsupported().iter().map(|node| {
        let entry = PyDict::new(py);
        let location = &node.location;
        let texts = [
            ("node", &location.node),
            ("op", &location.target),
            ("module", &location.module),
            ("line", &location.line),
            ("type", &node.result),
            ("reason", &node.reason),
        ];
        for (key, text) in texts {
            entry.set_item(key, text)?;
        }
        Ok(entry)
    });
    PyList::new(py, entries.collect::<PyResult<Vec<_>>>()?)
}
