//! Printing graphs.

use std::fmt::{self, Write};

use crate::graph::{Graph, GraphInput, GraphOutput, InputRole, Layout, NodeId, ValueId};
use crate::ops::Attr;

/// The canonical text of a graph.
impl fmt::Display for Graph {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let placed = if self.layouts.is_empty() { "" } else { " placed" };
        writeln!(formatter, "graph @{}{placed} {{", Name(&self.name))?;
        for (position, location) in self.locations.iter().enumerate() {
            let [node, target, module, line] =
                [&location.node, &location.target, &location.module, &location.line].map(|text| Quoted(text));
            writeln!(formatter, "  loc #{position} = {node} {target} {module} {line}")?;
        }
        let mut inputs = self.inputs.iter().peekable();
        for (id, node) in self.nodes() {
            // Inputs stand where their values come in the arena, so that names stay the same.
            let first_result = node.results.first().copied();
            while let Some(input) = inputs.next_if(|input| first_result.is_some_and(|result| input.value < result)) {
                writeln!(formatter, "  {}", input_line(self, input))?;
            }
            writeln!(formatter, "  {}", node_line(self, id))?;
        }
        for input in inputs {
            writeln!(formatter, "  {}", input_line(self, input))?;
        }
        for output in &self.outputs {
            writeln!(formatter, "  {}", output_line(self, output))?;
        }
        formatter.write_str("}\n")
    }
}

/// The line of one node, without indentation.
pub fn node_line(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    let mut line = String::new();
    let written: fmt::Result = (|| {
        write_list(&mut line, &node.results, |line, result| write!(line, "%{}", result.0))?;
        write!(line, " = {}", node.op.name())?;
        if !node.operands.is_empty() {
            line.push(' ');
            write_list(&mut line, &node.operands, |line, operand| write!(line, "%{}", operand.0))?;
        }
        let attrs = node.op.attrs();
        if !attrs.is_empty() {
            line.push_str(" {");
            write_list(&mut line, &attrs, |line, (name, value)| {
                write!(line, "{name} = ")?;
                write_attr(line, value)
            })?;
            line.push('}');
        }
        line.push_str(" : ");
        let in_brackets = node.results.len() != 1;
        line.push_str(if in_brackets { "(" } else { "" });
        write_list(&mut line, &node.results, |line, &result| write_type(line, graph, result))?;
        line.push_str(if in_brackets { ")" } else { "" });
        node.locations.iter().try_for_each(|location| write!(line, " #{}", location.0))
    })();
    written.expect("a string takes any text");
    line
}

/// The line of one output, without indentation.
pub fn output_line(graph: &Graph, output: &GraphOutput) -> String {
    let value = output.value.map_or("none".to_string(), |value| format!("%{}", value.0));
    let mut line = format!("output {value} {}", Quoted(&output.description));
    let written: fmt::Result = (|| {
        write_strides(&mut line, output.strides.as_deref())?;
        let Some(position) = output.alias else { return Ok(()) };
        match graph.inputs.get(position as usize) {
            Some(input) => write!(line, " updates %{}", input.value.0),
            None => line.write_str(" updates ?"),
        }
    })();
    written.expect("a string takes any text");
    line
}

/// The line of one input, without indentation.
pub fn input_line(graph: &Graph, input: &GraphInput) -> String {
    let mut line = format!("input %{} {}: ", input.value.0, Quoted(&input.name));
    let written: fmt::Result = (|| {
        write_type(&mut line, graph, input.value)?;
        write!(line, " {}", role_name(input.role))?;
        write_strides(&mut line, input.strides.as_deref())
    })();
    written.expect("a string takes any text");
    line
}

fn write_strides(target: &mut impl Write, strides: Option<&[i64]>) -> fmt::Result {
    let Some(strides) = strides else { return Ok(()) };
    target.write_str(" strides [")?;
    write_list(target, strides, |target, stride| write!(target, "{stride}"))?;
    target.write_char(']')
}

fn write_type(target: &mut impl Write, graph: &Graph, value: ValueId) -> fmt::Result {
    if value.index() >= graph.n_values() {
        return target.write_str("?");
    }
    write!(target, "{}", graph.ty(value))?;
    match graph.layouts.get(value.index()) {
        Some(Some(Layout { n_outer, n_partition })) => write!(target, " @({n_outer}, {n_partition})"),
        Some(None) | None => Ok(()),
    }
}

/// Word of an input's role.
pub(super) fn role_name(role: InputRole) -> &'static str {
    match role {
        InputRole::Dynamic => "dynamic",
        InputRole::Static => "static",
        InputRole::Saved => "saved",
        InputRole::Tangent => "tangent",
    }
}

fn write_attr(target: &mut impl Write, value: &Attr) -> fmt::Result {
    match value {
        Attr::Int(number) => write!(target, "{number}"),
        Attr::Ints(numbers) => {
            target.write_char('[')?;
            write_list(target, numbers, |target, number| write!(target, "{number}"))?;
            target.write_char(']')
        }
        Attr::F32(bits) => match f32::from_bits(*bits) {
            number if number.is_nan() && *bits == f32::NAN.to_bits() => target.write_str("nan"),
            number if number.is_nan() => write!(target, "{bits:#010x}"),
            number => write!(target, "{number:?}"),
        },
        Attr::F64(bits) => match f64::from_bits(*bits) {
            number if number.is_nan() && *bits == f64::NAN.to_bits() => target.write_str("nan"),
            number if number.is_nan() => write!(target, "{bits:#018x}"),
            number => write!(target, "{number:?}"),
        },
        Attr::Dtype(dtype) => write!(target, "{dtype}"),
        Attr::Word(word) => target.write_str(word),
        Attr::Bytes(bytes) => {
            target.write_char('"')?;
            bytes.iter().try_for_each(|byte| write!(target, "{byte:02x}"))?;
            target.write_char('"')
        }
    }
}

fn write_list<T, W: Write>(
    target: &mut W,
    items: &[T],
    mut write_item: impl FnMut(&mut W, &T) -> fmt::Result,
) -> fmt::Result {
    for (position, item) in items.iter().enumerate() {
        if position > 0 {
            target.write_str(", ")?;
        }
        write_item(target, item)?;
    }
    Ok(())
}

/// A name after `@`: bare where it is a word, else in quotes.
struct Name<'a>(&'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.is_empty() && self.0.chars().all(super::lexer::is_word_char) {
            return formatter.write_str(self.0);
        }
        write!(formatter, "{}", Quoted(self.0))
    }
}

/// A string in quotes, with escapes.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' => formatter.write_str("\\\"")?,
                '\\' => formatter.write_str("\\\\")?,
                '\n' => formatter.write_str("\\n")?,
                '\t' => formatter.write_str("\\t")?,
                control if control.is_control() => write!(formatter, "\\u{{{:x}}}", u32::from(control))?,
                plain => formatter.write_char(plain)?,
            }
        }
        formatter.write_char('"')
    }
}
