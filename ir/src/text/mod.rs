//! The text form of graphs: what snapshots, case files and bug reports use.
//!
//! Printing is canonical, and parsing what was printed gives an equal graph. The parser also takes
//! text that people write: any names for values and locations, comments, any white space. It
//! reports every fault that it can tell from the others, each with its line and column.
//!
//! The grammar stands in docs/ir.md.

mod lexer;
mod parse;
mod print;
mod statement;

pub use parse::{ParsedGraph, parse_graph, parse_graph_unverified};
pub use print::{input_line, node_line, output_line};
