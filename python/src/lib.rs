//! The torch.compile backend: a thin PyO3 module over the compiler crate.
//!
//! Graphs come in as bytes, tensors as addresses; what goes back is a handle that runs the binary.
//! Everything that knows about PyTorch is Python.

mod buffer;
mod errors;

use std::ffi::CString;

use compiler::Error;
use compiler::cache::{Built, COMPILER_VERSION, Cache, build};
use compiler::commands::report_folder;
use compiler::execute::Executable;
use compiler::fault::{Circumstances, reported};
use compiler::import;
use compiler::pipeline::{self, Options, Watcher};
use ir::graph::InputRole;
use ir::types::TypeError;
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::{
    Bound, PyErr, PyModule, PyModuleMethods, PyResult, Python, pyclass, pyfunction, pymethods, pymodule,
};
use pyo3::types::PyBytes;
use pyo3::wrap_pyfunction;

use buffer::{Buffer, Layouts};
use errors::{InputError, exception};

/// A compiled graph, loaded and ready to run.
#[pyclass(frozen, module = "neffuse")]
struct Compiled {
    neff: Vec<u8>,
    report: String,
    executable: Executable,
}

#[pymethods]
impl Compiled {
    /// The binary.
    #[getter]
    fn neff<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.neff)
    }

    /// The compilation's report: a JSON object with the keys of `neffuse compile --report json`.
    #[getter]
    fn report(&self) -> &str {
        &self.report
    }

    /// Runs the binary on the simulator.
    ///
    /// Tensors are given by address, with how they lie in memory, in the order of the graph's inputs
    /// and outputs. They must stay alive and unchanged until the call returns; an output may share
    /// memory with an input.
    fn run(
        &self,
        py: Python<'_>,
        inputs: Vec<usize>,
        input_layouts: &Layouts,
        outputs: Vec<usize>,
        output_layouts: &Layouts,
    ) -> PyResult<()> {
        let inputs = input_layouts.at(&inputs)?;
        let mut outputs = output_layouts.at(&outputs)?;
        py.detach(|| run(&self.executable, &inputs, &mut outputs)).map_err(|error| exception(py, &error))
    }

    /// Whether a call may raise TooWideError because of its floats.
    #[getter]
    fn may_leave_ranges(&self) -> bool {
        self.executable.may_leave_ranges()
    }

    /// How long the simulator has been running in all calls, in nanoseconds.
    #[getter]
    fn simulated_ns(&self) -> u64 {
        self.executable.simulated_ns()
    }
}

/// Loads a binary; `weights` are the positions of inputs that seldom change, `report` is the report
/// on its compilation.
///
/// Raises InputError for what is no NEFF of neffuse.
#[pyfunction]
#[pyo3(signature = (neff, *, weights, report = "{}"))]
fn load(py: Python<'_>, neff: &[u8], weights: Vec<usize>, report: &str) -> PyResult<Compiled> {
    let load = || pipeline::guarded(|| Compiled::load(neff.to_vec(), report.to_owned(), weights));
    py.detach(load).map_err(|error| exception(py, &error))
}

impl Compiled {
    fn load(neff: Vec<u8>, report: String, weights: impl IntoIterator<Item = usize>) -> Result<Compiled, Error> {
        let mut executable = Executable::load(&neff)?;
        executable.keep_converted(weights);
        Ok(Compiled { neff, report, executable })
    }
}

/// Compiles an fxg-json/1 document; errors call it by `name`.
///
/// With `cache`, what an earlier compilation gave is taken from the compile cache, which
/// NEFFUSE_CACHE_DIR and NEFFUSE_CACHE_SIZE describe. A cache that cannot be used is a RuntimeWarning.
///
/// Raises InputError, UnsupportedError (all nodes at once) or InternalError.
#[pyfunction]
#[pyo3(signature = (document, *, target = "trn2", numerics = "contract", name = "the graph", cache = true))]
fn compile(
    py: Python<'_>,
    document: &[u8],
    target: &str,
    numerics: &str,
    name: &str,
    cache: bool,
) -> PyResult<Compiled> {
    let options = options(target, numerics)?;
    let cache = if cache { Cache::from_variables(&|name| std::env::var_os(name)) } else { Ok(None) };
    let cache = cache.map_err(|error| exception(py, &error))?;
    let mut notices = Notices::default();
    let compiled = py.detach(|| compile_document(document, &options, name, cache.as_ref(), &mut notices));
    for notice in notices.0 {
        let notice = CString::new(notice.replace('\0', " ")).expect("zeros are replaced");
        PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &notice, 2)?;
    }
    compiled.map_err(|error| exception(py, &error))
}

/// Keeps notices and ignores everything else.
#[derive(Default)]
struct Notices(Vec<String>);

impl Watcher for Notices {
    fn notice(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }
}

/// Version of the compiler with the fingerprint of its sources.
#[pyfunction]
fn compiler_version() -> &'static str {
    COMPILER_VERSION
}

/// Targets of all ATen overloads that can be imported, for example `aten.add.Tensor`.
#[pyfunction]
fn supported_overloads() -> Vec<&'static str> {
    compiler::import::supported_overloads().collect()
}

#[pymodule]
fn _neffuse(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Panics become InternalError; nothing of theirs goes to standard error.
    pipeline::silence_panics();
    errors::register(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Compiled>()?;
    module.add_class::<Layouts>()?;
    module.add_function(wrap_pyfunction!(compile, module)?)?;
    module.add_function(wrap_pyfunction!(load, module)?)?;
    module.add_function(wrap_pyfunction!(compiler_version, module)?)?;
    module.add_function(wrap_pyfunction!(supported_overloads, module)?)
}

fn options(target: &str, numerics: &str) -> PyResult<Options> {
    let refused = |error: TypeError| InputError::new_err(error.message);
    let (target, numerics) = (target.parse().map_err(refused)?, numerics.parse().map_err(refused)?);
    Ok(Options { target, numerics, ..Options::default() })
}

fn compile_document(
    document: &[u8],
    options: &Options,
    name: &str,
    cache: Option<&Cache>,
    watcher: &mut dyn Watcher,
) -> Result<Compiled, Error> {
    let graph = pipeline::guarded(|| import::parse_json(document).map_err(|error| Error::import(name, error)))?;
    let built = build(&graph, options, cache, watcher);
    let circumstances = Circumstances { command: "compile", graph: &graph, options };
    let Built { neff, report } = built.map_err(|error| reported(error, circumstances, &report_folder()))?;
    let inputs = graph.inputs.iter().enumerate();
    let weights = inputs.filter(|(_, input)| input.role == InputRole::Static).map(|(position, _)| position);
    Compiled::load(neff, report.to_json(), weights)
}

fn run(executable: &Executable, inputs: &[Buffer<'_>], outputs: &mut [Buffer<'_>]) -> Result<(), Error> {
    pipeline::guarded(|| {
        // SAFETY: Python's caller keeps all tensors alive and unchanged until the call returns.
        let views: Vec<_> = inputs.iter().map(|input| Some(unsafe { input.view() })).collect();
        let results = executable.run_views(&views)?;
        // From here on no input is read: an output may lie in the memory of one.
        drop(views);
        for (position, output) in outputs.iter_mut().enumerate() {
            // SAFETY: as above, and outputs are written one after the other.
            results.write(position, &mut unsafe { output.view_mut() })?;
        }
        Ok(())
    })
}
