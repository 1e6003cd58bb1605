//! What a graph's results come from: the reference evaluator, or a compilation with some options.

use ir::Graph;
use ir::reference::{Rounding, Value, evaluate};

use crate::error::Error;
use crate::execute::Executable;
use crate::pipeline::{Options, Outlining, PASSES, Unwatched, compile};

/// What sides are called on the command line, for help and errors.
pub const SIDES: &str = "reference, eager, simulator, or options as numerics=CLASS (mode=CLASS), target=CHIP, \
                         fuel=N, disable=RULE, stop=PASS, joined by commas";

/// Passes that leave a graph, which the reference evaluates.
const GRAPH_PASSES: std::ops::Range<usize> = 1..6;

/// Results of a graph for inputs, by position of the outputs.
pub type Run = dyn Fn(&Graph, &[Value]) -> Result<Vec<Option<Value>>, Error>;

/// One of two sides that are compared.
pub struct Side {
    /// As it is written on the command line.
    pub name: String,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    /// The graph in f64 without roundings.
    Reference,
    /// The graph with one rounding per op.
    Eager,
    /// Anything else.
    Run(Box<Run>),
}

impl Side {
    /// Reads a side as the command line names it; `base` gives the options that it does not name.
    ///
    /// # Errors
    /// Unknown words, options and values.
    pub fn parse(text: &str, base: &Options) -> Result<Side, Error> {
        let kind = match text {
            "reference" => Kind::Reference,
            "eager" => Kind::Eager,
            "simulator" => compiled(base.clone()),
            _ => compiled(options(text, base)?),
        };
        Ok(Side { name: text.to_owned(), kind })
    }

    /// A side whose results a function gives.
    pub fn running(name: &str, run: impl Fn(&Graph, &[Value]) -> Result<Vec<Option<Value>>, Error> + 'static) -> Side {
        Side { name: name.to_owned(), kind: Kind::Run(Box::new(run)) }
    }

    /// Whether the reference evaluator gives the results.
    pub fn is_evaluated(&self) -> bool {
        match self.kind {
            Kind::Reference | Kind::Eager => true,
            Kind::Run(_) => false,
        }
    }

    pub(super) fn outputs(&self, graph: &Graph, inputs: &[Value]) -> Result<Vec<Option<Value>>, Error> {
        match &self.kind {
            Kind::Reference => evaluated(graph, inputs, Rounding::None),
            Kind::Eager => evaluated(graph, inputs, Rounding::PerOp),
            Kind::Run(run) => run(graph, inputs),
        }
    }
}

pub(super) fn evaluated(graph: &Graph, inputs: &[Value], rounding: Rounding) -> Result<Vec<Option<Value>>, Error> {
    evaluate(graph, inputs, rounding).map_err(|error| Error::Input(format!("the graph: {error}")))
}

fn compiled(options: Options) -> Kind {
    Kind::Run(Box::new(move |graph, inputs| run_compiled(graph, &options, inputs)))
}

/// Compiles and runs a graph; where a graph pass is the last, the reference evaluates what it left.
fn run_compiled(graph: &Graph, options: &Options, inputs: &[Value]) -> Result<Vec<Option<Value>>, Error> {
    // What a graph pass leaves is compared as a whole.
    let outline = if options.stop_after.is_some() { Outlining::Off } else { options.outline };
    let compiled = compile(graph, &Options { outline, ..options.clone() }, &mut Unwatched)?;
    let Some(neff) = compiled.neff else { return evaluated(&compiled.graph, inputs, Rounding::PerOp) };
    let executable = Executable::load(&neff)?;
    executable.run_values(inputs)
}

fn options(text: &str, base: &Options) -> Result<Options, Error> {
    let mut options = base.clone();
    for part in text.split(',') {
        let fail = |reason: &str| Error::Usage(format!("`{part}`: {reason}")).with_help(&format!("a side is {SIDES}"));
        let (key, value) = part.split_once('=').ok_or_else(|| fail("no side and no option is named so"))?;
        match key {
            "numerics" | "mode" => {
                options.numerics = value.parse().map_err(|error: ir::types::TypeError| fail(&error.message))?
            }
            "target" => options.target = value.parse().map_err(|error: ir::types::TypeError| fail(&error.message))?,
            "fuel" => options.fuel = Some(value.parse().map_err(|_| fail("fuel is a number of changes"))?),
            "outline" => options.outline = value.parse().map_err(|error: String| fail(&error))?,
            "disable" => options.disabled_rules.push(value.to_owned()),
            "stop" => {
                let passes = &PASSES[GRAPH_PASSES];
                if !passes.contains(&value) {
                    return Err(Error::unknown_name("stop", "pass that leaves a graph", value, passes));
                }
                options.stop_after = Some(value.to_owned());
            }
            _ => return Err(fail("no option is named so")),
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use ir::target::TargetName;
    use passes::Numerics;

    use super::{Options, options};

    #[test]
    fn options_are_read_and_faults_are_named() {
        let base = Options { target: TargetName::Trn3, ..Options::default() };
        let read = options("mode=exact,fuel=7,disable=rms-norm,stop=fuse", &base).unwrap();
        let expected = Options {
            target: TargetName::Trn3,
            numerics: Numerics::Exact,
            fuel: Some(7),
            disabled_rules: vec!["rms-norm".to_owned()],
            stop_after: Some("fuse".to_owned()),
            ..Options::default()
        };
        assert_eq!(read, expected);
        assert_eq!(options("target=trn1", &base).unwrap().target, TargetName::Trn1);
        for wrong in ["refrence", "mode=fast", "target=trn9", "fuel=x", "stop=allocate", "speed=1", ""] {
            let error = options(wrong, &base).unwrap_err().to_string();
            assert!(error.starts_with("error[usage]: "), "{wrong}: {error}");
        }
    }
}
