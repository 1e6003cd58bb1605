//! A NEFF in the open encoding as text: variables, then each engine's records in order.
//!
//! Instructions are printed in the text form of programs, where `%t0` is SBUF, `%t1` is PSUM and `%hN` is the variable
//! with id N. Source locations follow after `//` where the file has its debug member.

use crate::container::Container;
use crate::decoded;
use crate::isa::RECORD_BYTES;
use crate::{Error, members};
use ir::Program;
use ir::graph::Location;
use ir::program::{Engine, HbmKind, HbmTensor, Instruction};
use std::fmt::Write;

/// Model lines that are printed beside one instruction.
const MOST_SOURCES: usize = 8;

/// Prints a NEFF that this project made.
///
/// # Errors
/// As [`decoded::program`]: the streams of other NEFFs are opaque.
pub fn objdump(container: &Container) -> Result<String, Error> {
    let program = decoded::program(container)?;
    Ok(listing(&program))
}

fn listing(program: &Program) -> String {
    let mut text = format!("{} for {}\n\n%t0 sbuf\n%t1 psum\n", program.name.escape_debug(), program.target);
    for (id, tensor) in program.tensors.iter().enumerate().skip(1) {
        push_line(&mut text, format_args!("%h{id} {}", tensor_text(tensor)));
    }
    for engine in Engine::ALL {
        let n_records = program.stream(engine).count();
        let stem = members::engine_file_stem(engine);
        push_line(
            &mut text,
            format_args!("\n{stem} ({engine}), {} bytes, records: {n_records}", n_records * RECORD_BYTES),
        );
        for (position, (_, instruction)) in program.stream(engine).enumerate() {
            let line = instruction_text(program, instruction);
            push_line(&mut text, format_args!("{position:>6}  {line}"));
        }
    }
    text
}

fn push_line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a string cannot fail");
}

fn tensor_text(tensor: &HbmTensor) -> String {
    let kind = match &tensor.kind {
        HbmKind::Input(position) => format!("input {position}"),
        HbmKind::Output(position) => format!("output {position}"),
        HbmKind::Updated { input, output } => format!("input {input}, updated by output {output}"),
        HbmKind::Constant(_) => "constant".to_owned(),
        HbmKind::Scratch => "scratch".to_owned(),
    };
    let dims = tensor.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    format!("`{}` {kind} {}[{dims}] {} bytes", tensor.name.escape_debug(), tensor.dtype, tensor.size_bytes)
}

fn instruction_text(program: &Program, instruction: &Instruction) -> String {
    let without_locations = Instruction { locations: smallvec::SmallVec::new(), ..instruction.clone() };
    let text = program.instruction_text(&without_locations);
    // The heading of the section names the engine.
    let text = text.split_once(": ").map_or(text.as_str(), |(_, text)| text);
    let places = instruction.locations.iter().filter_map(|location| program.locations.get(location.index()));
    let sources: Vec<String> = places.take(MOST_SOURCES).map(source).collect();
    if sources.is_empty() { text.to_owned() } else { format!("{text}  // {}", sources.join("; ")) }
}

fn source(location: &Location) -> String {
    let parts = [&location.line, &location.node, &location.module];
    let parts: Vec<String> =
        parts.into_iter().filter(|part| !part.is_empty()).map(|part| part.escape_debug().to_string()).collect();
    parts.join(" ")
}
