//! docs/ir.md against the op table: its list of ops is generated, its example is a real graph.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use ir::Op;
use ir::ops::{Arity, AttrKind, OpClass};
use ir::text::parse_graph;

const BEGIN: &str = "<!-- ops: begin -->\n";
const END: &str = "<!-- ops: end -->\n";

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn document_path() -> PathBuf {
    crate_folder().join("../docs/ir.md")
}

fn document() -> String {
    std::fs::read_to_string(document_path()).expect("docs/ir.md lies in the repository")
}

/// Text before, inside and after the generated part.
fn parts(document: &str) -> (&str, &str, &str) {
    let (before, rest) = document.split_once(BEGIN).expect("the list begins with its mark");
    let (list, after) = rest.split_once(END).expect("the list ends with its mark");
    (before, list, after)
}

#[test]
fn the_op_list_is_current() {
    let document = document();
    let command = "`cargo test -p ir --test docs -- --ignored`";
    assert!(parts(&document).1 == op_list(), "the op list of docs/ir.md is stale: run {command}");
}

/// Not a test: writes the list.
#[test]
#[ignore = "writes docs/ir.md"]
fn write_the_op_list() {
    let document = document();
    let (before, _, after) = parts(&document);
    let written = format!("{before}{BEGIN}{}{END}{after}", op_list());
    std::fs::write(document_path(), written).expect("docs/ir.md is writable");
}

#[test]
fn the_example_is_canonical() {
    let document = document();
    let (_, rest) = document.split_once("```ir\n").expect("an example in a fence");
    let (example, _) = rest.split_once("```").expect("the fence is closed");
    let graph = parse_graph("docs/ir.md", example).expect("the example is well-formed");
    assert_eq!(graph.to_string(), example);
}

fn op_list() -> String {
    let mut list = String::new();
    let ops: Vec<Op> = Op::examples().into_iter().map(|example| example.op).collect();
    for class in OpClass::ALL {
        let names = Op::NAMES.iter().filter_map(|name| ops.iter().find(|op| op.name() == *name));
        let members: Vec<&Op> = names.filter(|op| op.class() == class).collect();
        write!(list, "\n### {}\n\n", class_title(class)).expect("a string takes any text");
        for op in members {
            write_op(&mut list, op);
        }
    }
    list.push('\n');
    list
}

fn write_op(list: &mut String, op: &Op) {
    let meaning = meaning(op.name());
    let mut paragraphs = meaning.split("\n\n");
    let formula = paragraphs.next().expect("a file has a head").replace('\n', " ");
    let operands = match op.arity() {
        Arity::Exactly(0) => "no operands".to_string(),
        Arity::Exactly(1) => "1 operand".to_string(),
        Arity::Exactly(count) => format!("{count} operands"),
        Arity::Between(low, high) => format!("{low} to {high} operands"),
        Arity::AtLeast(low) => format!("{low} or more operands"),
    };
    let kinds = Op::attr_kinds(op.name()).expect("a name from the table");
    let attrs: Vec<String> = kinds.iter().map(|(name, kind)| format!("`{name}` {}", kind_name(*kind))).collect();
    let attrs = if attrs.is_empty() { String::new() } else { format!("; {}", attrs.join(", ")) };
    writeln!(list, "- {formula} *{operands}{attrs}*").expect("a string takes any text");
    for paragraph in paragraphs {
        writeln!(list, "  {}", paragraph.replace('\n', " ")).expect("a string takes any text");
    }
}

/// The head of an op's file.
fn meaning(name: &str) -> String {
    let path = crate_folder().join("src/ops").join(format!("{name}.rs"));
    let source = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let head = source.lines().map_while(|line| line.strip_prefix("//!"));
    let meaning = head.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n");
    assert!(meaning.starts_with(&format!("`{name}(")), "{name}.rs begins with its signature");
    meaning
}

fn class_title(class: OpClass) -> &'static str {
    match class {
        OpClass::Pointwise => "Pointwise",
        OpClass::Reduction => "Reductions",
        OpClass::Scan => "Scans",
        OpClass::Movement => "Movement",
        OpClass::Indexing => "Indexing",
        OpClass::Creation => "Creation",
        OpClass::Contraction => "Contractions",
        OpClass::Fused => "Fused",
    }
}

fn kind_name(kind: AttrKind) -> &'static str {
    match kind {
        AttrKind::Int => "integer",
        AttrKind::Ints => "integers",
        AttrKind::F32 => "f32",
        AttrKind::F64 => "f64",
        AttrKind::Dtype => "element type",
        AttrKind::Word => "word",
        AttrKind::Bytes => "bytes",
    }
}
