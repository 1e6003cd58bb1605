//! Kernel text: the program text form with parameters and loops, so that one page describes a
//! measured kernel at all its sizes.
//!
//! ```text
//! kernel copy
//! param N
//! param T
//! tensor x {T}[128, {N * 512}] input 0
//! tensor y {T}[128, {N * 512}] output 0
//! tile rows {2} sbuf {T} 128x{512 * size(T)}
//! for n in 0..N
//!   sp: dma_copy dst=$rows.{n % 2}[0, 0+1p+0x128+1x512] src=$x[{n * 512}+{N * 512}x128+1x512] queue=hardware
//! end
//! ```
//!
//! `{expression}` is replaced by its value (or a parameter that is an element type), `$x` by an
//! HBM tensor, `$rows.{k}` by copy k of a tile. Blocks are `for NAME in A..B`, `if A` with an
//! optional `else`, and `end`. Tiles are placed one after another in the order of declaration,
//! those in PSUM at the start of a bank. Waits and updates are put in by
//! [`passes::synchronize`] from what instructions read and write.

use std::collections::HashMap;
use std::fmt::Write as _;

use ir::Program;
use ir::target::TargetName;

use crate::expression::{Names, Value, evaluate};

/// Why a kernel could not be made into a program.
#[derive(Debug, thiserror::Error)]
#[error("{kernel} line {line}: {message}")]
pub struct KernelError {
    pub kernel: String,
    /// Counted from 1; 0 where the whole kernel is meant.
    pub line: usize,
    pub message: String,
}

/// A kernel's text, parsed into blocks.
pub struct Kernel {
    pub name: String,
    parameters: Vec<String>,
    body: Vec<Statement>,
}

enum Statement {
    Line { number: usize, text: String },
    Let { number: usize, name: String, expression: String },
    Loop { number: usize, name: String, from: String, to: String, body: Vec<Statement> },
    Choice { number: usize, condition: String, yes: Vec<Statement>, no: Vec<Statement> },
}

/// Most lines that one kernel may expand to.
const MOST_LINES: usize = 4_000_000;

impl Kernel {
    /// Reads the text form.
    ///
    /// # Errors
    /// The first line that is not understood.
    pub fn parse(text: &str) -> Result<Kernel, KernelError> {
        let mut kernel = Kernel { name: String::new(), parameters: Vec::new(), body: Vec::new() };
        let lines: Vec<(usize, &str)> = text
            .lines()
            .enumerate()
            .map(|(position, line)| (position + 1, line.trim()))
            .filter(|(_, line)| !line.is_empty() && !line.starts_with("//"))
            .collect();
        let mut position = 0;
        while let Some(&(number, line)) = lines.get(position) {
            if let Some(name) = line.strip_prefix("kernel ") {
                kernel.name = name.trim().to_string();
            } else if let Some(rest) = line.strip_prefix("param ") {
                let name = rest.split_whitespace().next().unwrap_or_default();
                kernel.parameters.push(name.to_string());
            } else {
                break;
            }
            if kernel.name.is_empty() {
                return Err(error("?", number, "a kernel starts with `kernel NAME`"));
            }
            position += 1;
        }
        let mut reader = Reader { name: &kernel.name, lines: &lines, position };
        let (body, ended_by) = reader.block()?;
        if let Some((number, word)) = ended_by {
            return Err(error(&kernel.name, number, format!("`{word}` without a block")));
        }
        kernel.body = body;
        Ok(kernel)
    }

    /// The synchronized program for given parameters.
    ///
    /// # Errors
    /// A missing or unknown parameter, a faulty expression, an illegal instruction, or tiles that
    /// do not fit.
    pub fn program(&self, target: TargetName, parameters: &Names) -> Result<Program, KernelError> {
        let whole = |message: String| error(&self.name, 0, message);
        if let Some(missing) = self.parameters.iter().find(|name| !parameters.contains_key(*name)) {
            return Err(whole(format!("parameter `{missing}` has no value")));
        }
        let names: Names = parameters
            .iter()
            .filter(|(name, _)| self.parameters.contains(name))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let mut expander = Expander::new(&self.name, target);
        expander.run(&self.body, &mut names.clone())?;
        let text = expander.finish();
        let program = ir::program::text::parse(&text).map_err(|failure| {
            let line = text.lines().nth(failure.line.saturating_sub(1)).unwrap_or_default();
            whole(format!("{}: {line}", failure.message))
        })?;
        if let Some(fault) = ir::program::verify::verify(&program).first() {
            return Err(whole(fault.to_string()));
        }
        let (program, _) = passes::synchronize::synchronize(program).map_err(|failure| whole(failure.to_string()))?;
        Ok(program)
    }
}

fn error(kernel: &str, line: usize, message: impl Into<String>) -> KernelError {
    KernelError { kernel: kernel.to_string(), line, message: message.into() }
}

struct Reader<'a> {
    name: &'a str,
    lines: &'a [(usize, &'a str)],
    position: usize,
}

type Block<'a> = (Vec<Statement>, Option<(usize, &'a str)>);

impl<'a> Reader<'a> {
    /// Statements up to `end`, `else` or the end of the text, and which of them it was.
    fn block(&mut self) -> Result<Block<'a>, KernelError> {
        let mut body = Vec::new();
        while let Some(&(number, line)) = self.lines.get(self.position) {
            self.position += 1;
            if line == "end" || line == "else" {
                return Ok((body, Some((number, line))));
            }
            body.push(self.statement(number, line)?);
        }
        Ok((body, None))
    }

    fn statement(&mut self, number: usize, line: &'a str) -> Result<Statement, KernelError> {
        let fail = |message: &str| error(self.name, number, message);
        if let Some(rest) = line.strip_prefix("for ") {
            let (name, range) = rest.split_once(" in ").ok_or_else(|| fail("a loop is `for NAME in A..B`"))?;
            let (from, to) = range.split_once("..").ok_or_else(|| fail("a loop is `for NAME in A..B`"))?;
            let (name, from, to) = (name.trim().to_string(), from.to_string(), to.to_string());
            let body = self.ended_block(number)?;
            return Ok(Statement::Loop { number, name, from, to, body });
        }
        if let Some(condition) = line.strip_prefix("if ") {
            let (yes, ended_by) = self.block()?;
            let no = match ended_by {
                Some((_, "end")) => Vec::new(),
                Some((other, _)) => self.ended_block(other)?,
                None => return Err(fail("`if` without `end`")),
            };
            return Ok(Statement::Choice { number, condition: condition.to_string(), yes, no });
        }
        if let Some(rest) = line.strip_prefix("let ") {
            let (name, expression) = rest.split_once('=').ok_or_else(|| fail("`let NAME = EXPRESSION`"))?;
            return Ok(Statement::Let { number, name: name.trim().to_string(), expression: expression.to_string() });
        }
        Ok(Statement::Line { number, text: line.to_string() })
    }

    fn ended_block(&mut self, number: usize) -> Result<Vec<Statement>, KernelError> {
        match self.block()? {
            (body, Some((_, "end"))) => Ok(body),
            (_, _) => Err(error(self.name, number, "the block is not closed by `end`")),
        }
    }
}

struct Expander<'a> {
    name: &'a str,
    target: TargetName,
    tensors: HashMap<String, usize>,
    tensor_lines: String,
    /// First position and number of copies.
    tiles: HashMap<String, (usize, usize)>,
    tile_lines: String,
    n_tiles: usize,
    sbuf_end: u32,
    psum_end: u32,
    instructions: String,
    n_lines: usize,
}

impl<'a> Expander<'a> {
    fn new(name: &'a str, target: TargetName) -> Expander<'a> {
        Expander {
            name,
            target,
            tensors: HashMap::new(),
            tensor_lines: String::new(),
            tiles: HashMap::new(),
            tile_lines: String::new(),
            n_tiles: 0,
            sbuf_end: 0,
            psum_end: 0,
            instructions: String::new(),
            n_lines: 0,
        }
    }

    fn finish(self) -> String {
        let Expander { name, target, tensor_lines, tile_lines, instructions, .. } = self;
        format!("program \"{name}\" target {target} phase allocated\n{tensor_lines}{tile_lines}{instructions}")
    }

    fn run(&mut self, body: &[Statement], names: &mut Names) -> Result<(), KernelError> {
        for statement in body {
            let number = statement.number();
            let value =
                |text: &str, names: &Names| evaluate(text, names).map_err(|message| error(self.name, number, message));
            match statement {
                Statement::Let { name, expression, .. } => {
                    let found = value(expression, names)?;
                    names.insert(name.clone(), Value::Integer(found));
                }
                Statement::Loop { name, from, to, body, .. } => {
                    let (from, to) = (value(from, names)?, value(to, names)?);
                    let outer = names.get(name).cloned();
                    for step in from..to {
                        names.insert(name.clone(), Value::Integer(step));
                        self.run(body, names)?;
                    }
                    match outer {
                        Some(outer) => names.insert(name.clone(), outer),
                        None => names.remove(name),
                    };
                }
                Statement::Choice { condition, yes, no, .. } => {
                    let taken = if value(condition, names)? != 0 { yes } else { no };
                    self.run(taken, names)?;
                }
                Statement::Line { text, .. } => self.line(number, text, names)?,
            }
        }
        Ok(())
    }

    fn line(&mut self, number: usize, text: &str, names: &Names) -> Result<(), KernelError> {
        self.n_lines += 1;
        if self.n_lines > MOST_LINES {
            return Err(error(self.name, number, format!("more than {MOST_LINES} lines")));
        }
        let fail = |message: String| error(self.name, number, message);
        let filled = fill(text, names).map_err(fail)?;
        if let Some(rest) = filled.strip_prefix("tensor ") {
            self.tensor(rest).map_err(fail)
        } else if let Some(rest) = filled.strip_prefix("tile ") {
            self.tile(rest).map_err(fail)
        } else {
            let named = self.resolve(&filled).map_err(fail)?;
            self.instructions.push_str(&named);
            self.instructions.push('\n');
            Ok(())
        }
    }

    /// `x f32[128, 512] input 0`
    fn tensor(&mut self, rest: &str) -> Result<(), String> {
        const FORM: &str = "a tensor is `tensor NAME DTYPE[DIMS] KIND`";
        let (name, rest) = rest.split_once(' ').ok_or(FORM)?;
        let (dtype, rest) = rest.split_once('[').ok_or(FORM)?;
        let (dims, kind) = rest.split_once(']').ok_or(FORM)?;
        let element: ir::Dtype = dtype.trim().parse().map_err(|_| format!("`{dtype}` is no element type"))?;
        let mut n_elements: u64 = 1;
        for dim in dims.split(',') {
            let dim: u64 = dim.trim().parse().map_err(|_| format!("`{dim}` is no size"))?;
            n_elements = n_elements.checked_mul(dim).ok_or("the tensor is too large")?;
        }
        let position = self.tensors.len();
        let bytes = n_elements * element.size_bytes() as u64;
        let _ = writeln!(
            self.tensor_lines,
            "tensor %h{position} \"{name}\" {}[{dims}] {bytes} bytes {}",
            dtype.trim(),
            kind.trim()
        );
        match self.tensors.insert(name.to_string(), position) {
            Some(_) => Err(format!("tensor `{name}` is declared twice")),
            None => Ok(()),
        }
    }

    /// `rows 2 sbuf f32 128x2048`
    fn tile(&mut self, rest: &str) -> Result<(), String> {
        const FORM: &str = "a tile is `tile NAME COPIES SPACE DTYPE PARTITIONSxBYTES`";
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let &[name, copies, space, dtype, size] = fields.as_slice() else { return Err(FORM.to_string()) };
        let copies: usize = copies.parse().map_err(|_| FORM)?;
        let (partitions, bytes) = size.split_once('x').ok_or(FORM)?;
        let bytes: u32 = bytes.parse().map_err(|_| FORM)?;
        let numbers = self.target.target();
        let (end, limit, step) = match space {
            "sbuf" => (&mut self.sbuf_end, numbers.sbuf_usable_bytes, 4),
            "psum" => (&mut self.psum_end, numbers.psum_bytes(), numbers.psum_bank_bytes),
            _ => return Err(format!("`{space}` is neither sbuf nor psum")),
        };
        let first = self.n_tiles;
        for copy in 0..copies {
            let start = *end;
            *end += bytes.next_multiple_of(step);
            if *end > limit {
                return Err(format!("tile `{name}` ends at byte {end} of {limit} in a partition of {space}"));
            }
            let label = if copies == 1 { name.to_string() } else { format!("{name}.{copy}") };
            let position = first + copy;
            let _ = writeln!(
                self.tile_lines,
                "tile %t{position} \"{label}\" {space} {dtype} {partitions}x{bytes} align 4 at 0+{start}"
            );
        }
        self.n_tiles += copies;
        match self.tiles.insert(name.to_string(), (first, copies)) {
            Some(_) => Err(format!("tile `{name}` is declared twice")),
            None => Ok(()),
        }
    }

    /// Replaces `$name` and `$name.copy`.
    fn resolve(&self, line: &str) -> Result<String, String> {
        let mut parts = line.split('$');
        let mut resolved = parts.next().unwrap_or_default().to_string();
        for part in parts {
            let end = part.find(|symbol: char| !symbol.is_ascii_alphanumeric() && symbol != '_');
            let (name, mut rest) = part.split_at(end.unwrap_or(part.len()));
            if let Some(&position) = self.tensors.get(name) {
                let _ = write!(resolved, "%h{position}");
            } else if let Some(&(first, copies)) = self.tiles.get(name) {
                let mut copy = 0;
                if let Some(after) = rest.strip_prefix('.') {
                    let end = after.find(|symbol: char| !symbol.is_ascii_digit()).unwrap_or(after.len());
                    copy = after[..end].parse().map_err(|_| format!("`${name}.` needs the number of a copy"))?;
                    rest = &after[end..];
                }
                if copy >= copies {
                    return Err(format!("`${name}.{copy}`: there are {copies} copies"));
                }
                let _ = write!(resolved, "%t{}", first + copy);
            } else {
                return Err(format!("`${name}` is not declared"));
            }
            resolved.push_str(rest);
        }
        Ok(resolved)
    }
}

impl Statement {
    fn number(&self) -> usize {
        match self {
            Statement::Line { number, .. }
            | Statement::Let { number, .. }
            | Statement::Loop { number, .. }
            | Statement::Choice { number, .. } => *number,
        }
    }
}

/// Replaces `{expression}`.
fn fill(text: &str, names: &Names) -> Result<String, String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (inner, after) = after.split_once('}').ok_or("`}` is missing")?;
        filled.push_str(before);
        match names.get(inner.trim()) {
            Some(Value::Dtype(dtype)) => {
                let _ = write!(filled, "{dtype}");
            }
            _ => {
                let _ = write!(filled, "{}", evaluate(inner, names)?);
            }
        }
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}
