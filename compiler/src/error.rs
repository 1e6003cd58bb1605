//! What can go wrong, with the exit code of each kind.
//!
//! The first line of a message stands alone: a caller that shows only one line shows that one.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use crate::import::{ImportError, UnsupportedNode};

/// Why a command did not succeed.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// The input is wrong. Exit code 1.
    Input(String),
    /// An option, argument or variable is wrong. Exit code 1.
    Usage(String),
    /// A file cannot be read or written. Exit code 1.
    File(String),
    /// The device cannot compute with values of an input: a 64-bit integer does not fit its 32 bits, or a
    /// number leads out of an activation function's range. Exit code 1.
    TooWide(String),
    /// The input is a text with faults, each already rendered with the text around it. Exit code 1.
    Text(String),
    /// These nodes of the graph cannot be compiled. Exit code 2.
    Unsupported { graph: String, nodes: Vec<UnsupportedNode> },
    /// A fault of the compiler or the simulator. Exit code 3.
    Internal(String),
    /// Results differ from what they must be. Exit code 4.
    Mismatch(String),
}

impl Error {
    /// Exit code of the command.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Input(_) | Error::Usage(_) | Error::File(_) | Error::TooWide(_) | Error::Text(_) => 1,
            Error::Unsupported { .. } => 2,
            Error::Internal(_) => 3,
            Error::Mismatch(_) => 4,
        }
    }

    /// Word for the kind of error.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Input(_) | Error::TooWide(_) | Error::Text(_) => "bad-input",
            Error::Usage(_) => "usage",
            Error::File(_) => "file",
            Error::Unsupported { .. } => "unsupported",
            Error::Internal(_) => "internal",
            Error::Mismatch(_) => "mismatch",
        }
    }

    /// The nodes that cannot be compiled; empty for other errors.
    pub fn unsupported(&self) -> &[UnsupportedNode] {
        match self {
            Error::Unsupported { nodes, .. } => nodes,
            Error::Input(_)
            | Error::Usage(_)
            | Error::File(_)
            | Error::TooWide(_)
            | Error::Text(_)
            | Error::Internal(_)
            | Error::Mismatch(_) => &[],
        }
    }

    /// This error with a last line that says what to do. Unsupported nodes have one already.
    pub fn with_help(mut self, help: &str) -> Error {
        match &mut self {
            Error::Input(message)
            | Error::Usage(message)
            | Error::File(message)
            | Error::TooWide(message)
            | Error::Text(message)
            | Error::Internal(message)
            | Error::Mismatch(message) => {
                message.truncate(message.trim_end().len());
                message.push_str("\n  help: ");
                message.push_str(help);
            }
            Error::Unsupported { .. } => {}
        }
        self
    }

    /// This error with the file that it is about as its place.
    pub fn in_file(mut self, path: &Path) -> Error {
        match &mut self {
            Error::Input(message) | Error::TooWide(message) | Error::Internal(message) | Error::Mismatch(message) => {
                *message = format!("{}: {message}", path.display());
            }
            // These name their place, or have it rendered.
            Error::Usage(_) | Error::File(_) | Error::Text(_) | Error::Unsupported { .. } => {}
        }
        self
    }

    /// A name that is not known, with the nearest of those that are.
    pub fn unknown_name(place: &str, kind: &str, name: &str, known: &[&str]) -> Error {
        let nearest = known.iter().map(|known| (strsim::damerau_levenshtein(name, known), *known)).min();
        let help = match nearest {
            Some((distance, nearest)) if 3 * distance <= nearest.len().max(3) => format!("did you mean `{nearest}`?"),
            Some(_) | None => format!("there are {}", known.join(", ")),
        };
        Error::Usage(format!("{place}: no {kind} is named `{name}`")).with_help(&help)
    }

    /// An import error of this file.
    pub fn import(name: &str, error: ImportError) -> Error {
        match error {
            ImportError::Malformed(reason) => Error::Input(format!("{name}: {reason}")),
            ImportError::Unsupported(nodes) => Error::Unsupported { graph: name.to_owned(), nodes },
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Error::Text(rendered) = self {
            return formatter.write_str(rendered.trim_end());
        }
        write!(formatter, "error[{}]: ", self.code())?;
        match self {
            Error::Text(message)
            | Error::Input(message)
            | Error::Usage(message)
            | Error::File(message)
            | Error::TooWide(message)
            | Error::Internal(message)
            | Error::Mismatch(message) => formatter.write_str(message),
            Error::Unsupported { graph, nodes } => write_unsupported(formatter, graph, nodes),
        }
    }
}

fn write_unsupported(formatter: &mut fmt::Formatter<'_>, graph: &str, nodes: &[UnsupportedNode]) -> fmt::Result {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for node in nodes {
        *counts.entry(&node.location.target).or_default() += 1;
    }
    let ops: Vec<String> = counts.iter().map(|(target, count)| format!("{target} ({count})")).collect();
    let noun = if nodes.len() == 1 { "node" } else { "nodes" };
    write!(formatter, "{graph}: {} {noun} cannot be compiled: {}", nodes.len(), ops.join(", "))?;
    for node in nodes {
        let UnsupportedNode { location, result, reason } = node;
        write!(formatter, "\n  {} = {}", location.node, location.target)?;
        if !result.is_empty() {
            write!(formatter, " -> {result}")?;
        }
        for place in [&location.module, &location.line] {
            if !place.is_empty() {
                write!(formatter, ", {place}")?;
            }
        }
        write!(formatter, "\n      {reason}")?;
    }
    formatter.write_str(
        "\n  help: a graph file is compiled whole or not at all; under torch.compile, PyTorch runs such nodes",
    )
}

#[cfg(test)]
mod tests {
    use ir::graph::Location;

    use super::Error;
    use crate::import::UnsupportedNode;

    #[test]
    fn an_unknown_name_comes_with_the_nearest_or_all() {
        let error = |name| Error::unknown_name("--why-not", "fused op", name, &["rms_norm", "softmax"]).to_string();
        let first = "error[usage]: --why-not: no fused op is named";
        assert_eq!(error("rmsnorm"), format!("{first} `rmsnorm`\n  help: did you mean `rms_norm`?"));
        assert_eq!(error("conv"), format!("{first} `conv`\n  help: there are rms_norm, softmax"));
    }

    #[test]
    fn unsupported_nodes_are_all_listed_under_a_line_that_stands_alone() {
        let node = |node: &str, target: &str| UnsupportedNode {
            location: Location {
                node: node.to_owned(),
                target: target.to_owned(),
                module: "layers.0".to_owned(),
                line: "model.py:12".to_owned(),
            },
            result: "float32[2]".to_owned(),
            reason: "this overload is not supported".to_owned(),
        };
        let nodes = vec![node("sort", "aten.sort.default"), node("topk", "aten.topk.default")];
        let error = Error::Unsupported { graph: "g".to_owned(), nodes };
        let text = error.to_string();
        let mut lines = text.lines();
        let first = "error[unsupported]: g: 2 nodes cannot be compiled: aten.sort.default (1), aten.topk.default (1)";
        assert_eq!(lines.next(), Some(first));
        assert_eq!(lines.next(), Some("  sort = aten.sort.default -> float32[2], layers.0, model.py:12"));
        assert_eq!(error.exit_code(), 2);
    }
}
