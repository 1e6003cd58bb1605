//! Compiling a graph function by function: each distinct layer goes through all passes once, and the
//! NEFF calls its kernel as often as it occurs.

use ir::Graph;
use ir::Program;
use ir::program::Module;
use passes::manager::{Fuel, Observer, PassReport, Phase, Progress, Statistics};
use passes::outline::{Outline, Source};

use super::assembly::Assembly;
use super::{Compiled, FusionEntry, Notes, PACKAGE, Pipeline, Stage, converted_weight_bytes, fusion_entry};
use crate::error::Error;
use crate::import::UnsupportedNode;

/// A graph as kernels and calls.
#[derive(Clone, Debug)]
pub struct Outlined {
    /// The graphs of the distinct functions, as the last graph pass left them.
    pub functions: Vec<Graph>,
    /// Their programs, as the last pass left them; none where a graph pass was the last.
    pub programs: Vec<Program>,
    /// The kernels and all calls, where every pass has run.
    pub module: Option<Module>,
    /// Function of each call.
    pub calls: Vec<usize>,
    /// Of all calls.
    pub spill_bytes: u64,
}

impl Outlined {
    /// How often a function is called.
    pub fn n_calls(&self, function: usize) -> usize {
        self.calls.iter().filter(|&&called| called == function).count()
    }
}

/// What the compilation of all functions has made.
pub(super) struct Made {
    graph: Graph,
    outlined: Outlined,
    neff: Option<Vec<u8>>,
    fusions: Vec<FusionEntry>,
}

impl Pipeline<'_> {
    /// Reports what outlining found.
    pub(super) fn note_outline(&mut self, imported: &Graph, outline: Option<&Outline>, seconds: f64) {
        let mut statistics = Statistics::new();
        if let Some(outline) = outline {
            statistics.add("functions", outline.functions.len() as u64);
            statistics.add("calls", outline.calls.len() as u64);
            statistics.add("between", outline.between.len() as u64);
            let n_nodes: usize = outline.functions.iter().map(Graph::n_nodes).sum();
            statistics.add("distinct_nodes", n_nodes as u64);
        }
        let functions = outline.map_or(std::slice::from_ref(imported), |outline| &outline.functions);
        let report = PassReport { name: passes::outline::NAME, phase: Phase::Imported, seconds, statistics };
        self.recorder.reports.push(report.clone());
        let largest = functions.iter().max_by_key(|function| function.n_nodes()).unwrap_or(imported);
        self.recorder.watcher.after(&report, Stage::Graph(largest));
        if self.run_options.print_after.iter().any(|name| name == passes::outline::NAME || name == "all") {
            for function in functions {
                self.recorder.watcher.print(passes::outline::NAME, Stage::Graph(function));
            }
        }
    }

    /// Compiles every function and writes the calls; `None` where the graph must be compiled as one.
    pub(super) fn run_outlined(&mut self, imported: &Graph, outline: &Outline) -> Result<Option<Made>, Error> {
        let calls: Vec<usize> = outline.calls.iter().map(|call| call.function).collect();
        let mut outlined =
            Outlined { functions: Vec::new(), programs: Vec::new(), module: None, calls, spill_bytes: 0 };
        let mut fusions = Vec::new();
        let mut is_stopped = false;
        for (number, function) in outline.functions.iter().enumerate() {
            let compiled = self.function(function);
            let compiled = compiled.map_err(|error| in_every_call(error, imported, outline, number))?;
            let (graph, program, progress) = compiled;
            is_stopped |= progress == Progress::Stopped;
            let fuse = self.notes.fuse.take();
            fusions.extend(fuse.fusions.iter().map(|fusion| fusion_entry(&graph, fusion)));
            outlined.spill_bytes += self.notes.allocate.borrow().spill_bytes * outlined.n_calls(number) as u64;
            outlined.functions.push(graph);
            outlined.programs.extend(program);
        }
        let graph = with_device_steps(imported, outline, &outlined.functions);
        self.notes.converted_weight_bytes.set(converted_weight_bytes(imported, &graph));
        if is_stopped {
            return Ok(Some(Made { graph, outlined, neff: None, fusions }));
        }
        let Some(integer_bits) = integer_bits(imported, outline, &outlined.functions) else { return Ok(None) };
        let module = Assembly::new(imported, outline, self.options.target).module(&outlined.programs);
        let faults = module.faults();
        if !faults.is_empty() {
            return Err(Error::Internal(format!("pass `{}`: {}", passes::outline::NAME, faults.join("; "))));
        }
        let neff = self.package_outlined(&graph, &module, integer_bits)?;
        outlined.module = Some(module);
        Ok(Some(Made { graph, outlined, neff: Some(neff), fusions }))
    }

    /// One function's graph, and its program unless an earlier pass is the last.
    fn function(&mut self, function: &Graph) -> Result<(Graph, Option<Program>, Progress), Error> {
        let (graph, progress) = self.graph_passes(function)?;
        if progress == Progress::Stopped {
            return Ok((graph, None, progress));
        }
        let (program, progress) = self.lower(&graph)?;
        if progress == Progress::Stopped {
            return Ok((graph, Some(program), progress));
        }
        let semaphores = codegen::kernel_semaphores(self.options.target);
        let (program, progress) = self.program_passes(program, usize::from(semaphores))?;
        Ok((graph, Some(program), progress))
    }

    fn package_outlined(&mut self, graph: &Graph, module: &Module, bits: Vec<u32>) -> Result<Vec<u8>, Error> {
        let start = self.clock.0.elapsed();
        let internal = |error: String| Error::Internal(format!("pass `{PACKAGE}`: {error}"));
        let kernel = codegen::link_module(module).map_err(|error| internal(error.to_string()))?;
        let neff = codegen::package_module(graph, module, &kernel, bits);
        let neff = neff.map_err(|error| internal(error.to_string()))?;
        let mut statistics = Statistics::new();
        statistics.add("bytes", neff.len() as u64);
        let seconds = (self.clock.0.elapsed() - start).as_secs_f64();
        let report = PassReport { name: PACKAGE, phase: Phase::Synchronized, seconds, statistics };
        if let Some(kernel) = module.kernels.last() {
            self.recorder.after(&report, &kernel.program);
        }
        Ok(neff)
    }

    /// Takes back what compiling functions has reported and spent.
    pub(super) fn forget_functions(&mut self, fuel: Fuel) {
        self.recorder.reports.truncate(1);
        self.recorder.reports[0].statistics = Statistics::new();
        self.context.fuel = fuel;
        self.notes = Notes::default();
    }

    pub(super) fn finish_outlined(mut self, made: Made) -> Compiled {
        self.recorder.reports = merged(std::mem::take(&mut self.recorder.reports));
        let Made { graph, outlined, neff, fusions } = made;
        let compiled = self.finish(graph, None, neff);
        Compiled { fusions, outlined: Some(outlined), ..compiled }
    }
}

/// One report for each pass: what it took and counted for all functions. Peaks are the highest.
fn merged(reports: Vec<PassReport>) -> Vec<PassReport> {
    let mut merged: Vec<PassReport> = Vec::new();
    for report in reports {
        let Some(known) = merged.iter_mut().find(|known| known.name == report.name) else {
            merged.push(report);
            continue;
        };
        known.seconds += report.seconds;
        for (name, count) in report.statistics.iter() {
            let before = known.statistics.get(name);
            let more = if name.contains("peak") { count.saturating_sub(before) } else { count };
            known.statistics.add(name, more);
        }
    }
    merged
}

/// A refusal of a function's node as refusals in all of its calls, each with its own place in the model.
fn in_every_call(error: Error, imported: &Graph, outline: &Outline, function: usize) -> Error {
    let Error::Unsupported { graph: _, nodes } = error else { return error };
    let own = &outline.functions[function].locations;
    let mut all: Vec<UnsupportedNode> = Vec::new();
    for call in outline.calls.iter().filter(|call| call.function == function) {
        for node in &nodes {
            let position = own.iter().position(|location| *location == node.location);
            let location = position.and_then(|position| call.locations.get(position)).unwrap_or(&node.location);
            let moved = UnsupportedNode { location: location.clone(), ..node.clone() };
            if !all.contains(&moved) {
                all.push(moved);
            }
        }
    }
    Error::Unsupported { graph: imported.name.clone(), nodes: all }
}

/// The graph with the steps that functions ask of its inputs.
fn with_device_steps(imported: &Graph, outline: &Outline, functions: &[Graph]) -> Graph {
    let mut graph = imported.clone();
    for call in &outline.calls {
        for (input, source) in functions[call.function].inputs.iter().zip(&call.inputs) {
            if let Source::Input(position) = *source {
                graph.inputs[position as usize].strides = input.strides.clone();
            }
        }
    }
    graph
}

/// By input of the graph how many bits its 64-bit integers may have; `None` where a function needs to
/// know more of a value that another one computes, which nothing checks.
fn integer_bits(imported: &Graph, outline: &Outline, functions: &[Graph]) -> Option<Vec<u32>> {
    let mut bits = vec![32; imported.inputs.len()];
    let of_functions: Vec<Vec<u32>> = functions.iter().map(codegen::input_bits).collect();
    for call in &outline.calls {
        for (&source, &needed) in call.inputs.iter().zip(&of_functions[call.function]) {
            match source {
                Source::Input(position) => bits[position as usize] = needed.min(bits[position as usize]),
                Source::Output(_) | Source::Between(_) | Source::Constant(_) if needed < 32 => return None,
                Source::Output(_) | Source::Between(_) | Source::Constant(_) => {}
            }
        }
    }
    Some(bits)
}
