//! How a graph fails `check`, in a form that tells one fault from another.

use ir::Graph;

use crate::error::Error;
use crate::execute::Executable;
use crate::pipeline::{Options, Unwatched, compile};
use crate::samples::Samples;
use crate::verdict::Standard;

/// Why a graph does not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What is the same for two graphs that show one fault: the code, and the pass or the place of
    /// the panic where there is one.
    pub kind: String,
    /// The whole error.
    pub message: String,
}

impl Failure {
    /// The failure that an error is; `None` for errors of the input or the options, which say
    /// nothing about the compiler.
    pub fn of(error: &Error) -> Option<Failure> {
        let detail = match error {
            Error::Internal(message) => internal_kind(message),
            Error::Unsupported { nodes, .. } => {
                nodes.first().map(|node| without_digits(&node.reason)).unwrap_or_default()
            }
            Error::Mismatch(_) => String::new(),
            Error::Input(_) | Error::Usage(_) | Error::File(_) | Error::TooWide(_) | Error::Text(_) => return None,
        };
        let kind = format!("{} {detail}", error.code()).trim_end().to_owned();
        Some(Failure { kind, message: error.to_string() })
    }
}

/// Place of a panic, or what stands before the first colon: the pass and what it did.
fn internal_kind(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    match first.strip_prefix("panic at ") {
        Some(panic) => format!("panic at {}", panic.split(": ").next().unwrap_or_default()),
        None => without_digits(first.split(':').next().unwrap_or_default()),
    }
}

fn without_digits(text: &str) -> String {
    text.chars().filter(|character| !character.is_ascii_digit()).collect()
}

/// Compiles a graph, proves and runs the program and judges its results, all in memory; `None` when
/// it passes.
///
/// # Errors
/// What is wrong with the input or the options.
pub fn failure_of(
    graph: &Graph,
    options: &Options,
    samples: &Samples,
    standard: &Standard,
) -> Result<Option<Failure>, Error> {
    let checked = compile(graph, options, &mut Unwatched).and_then(|compiled| {
        let neff = compiled.neff.ok_or_else(|| Error::Usage("--stop-after leaves no NEFF".to_owned()))?;
        let executable = Executable::load(&neff)?;
        let outputs = executable.run_values(&samples.inputs)?;
        let failure = standard.judge(graph, &outputs).failure();
        failure.map_or(Ok(()), |failure| Err(Error::Mismatch(format!("{}: {failure}", graph.name))))
    });
    match checked {
        Ok(()) => Ok(None),
        Err(error) => match Failure::of(&error) {
            Some(failure) => Ok(Some(failure)),
            None => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::Failure;
    use crate::error::Error;

    fn kind(message: &str) -> String {
        Failure::of(&Error::Internal(message.to_owned())).unwrap().kind
    }

    #[test]
    fn numbers_do_not_make_another_kind_and_passes_do() {
        let broken = |node: usize| kind(&format!("pass `fuse` left a unit that is not fused: node {node} has no user"));
        assert_eq!(broken(3), broken(40));
        assert_eq!(broken(3), "internal pass `fuse` left a unit that is not fused");
        assert_ne!(broken(3), kind("pass `place` left a unit that is not placed: node 3"));
        assert_eq!(kind("panic at passes/src/x.rs:12:5: index 7"), "internal panic at passes/src/x.rs:12:5");
        assert_eq!(kind("the program fails 3 checks\n..."), kind("the program fails 12 checks\n..."));
        assert_eq!(Failure::of(&Error::Input("x".to_owned())), None);
    }
}
