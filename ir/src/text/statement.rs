//! Statements of the text form: one line each where printed.

use std::ops::Range;

use smallvec::SmallVec;

use super::lexer::Token;
use super::parse::Parser;
use crate::graph::{InputRole, Layout, Location};
use crate::ops::{Attr, AttrKind, Op};
use crate::types::{Dtype, Shape, TensorType};

/// Dimensions that a type may have; no framework gives more.
const MAX_RANK: usize = 64;

/// A name and where it stands.
pub(super) type SpannedName = (String, Range<usize>);

pub(super) struct Statement {
    pub kind: StatementKind,
    pub span: Range<usize>,
}

pub(super) enum StatementKind {
    Location {
        name: SpannedName,
        location: Location,
    },
    Input {
        name: SpannedName,
        label: String,
        ty: Ty,
        role: InputRole,
        strides: Option<SmallVec<[i64; 6]>>,
    },
    Node {
        results: Vec<SpannedName>,
        op: Op,
        operands: Vec<SpannedName>,
        types: Vec<Ty>,
        locations: Vec<SpannedName>,
    },
    Output {
        value: Option<SpannedName>,
        description: String,
        strides: Option<SmallVec<[i64; 6]>>,
        updated: Option<SpannedName>,
    },
}

/// A type with its layout.
pub(super) struct Ty {
    pub ty: TensorType,
    pub layout: Option<Layout>,
}

impl<'t> Parser<'_, 't> {
    /// One statement; `None` after recording a fault.
    pub(super) fn statement(&mut self) -> Option<Statement> {
        let start = self.start();
        let kind = match self.peek() {
            Token::Word("loc") => self.location()?,
            Token::Word("input") => self.input()?,
            Token::Word("output") => self.output()?,
            Token::Value(_) => self.node()?,
            _ => return self.fail("`loc`, `input`, `output`, `%` or `}`"),
        };
        Some(Statement { kind, span: start..self.end() })
    }

    /// `loc #1 = "node" "target" "module" "line"`
    fn location(&mut self) -> Option<StatementKind> {
        self.take();
        let Token::Location(name) = *self.peek() else { return self.fail("`#` and a name") };
        let span = self.take().1;
        self.mark('=')?;
        let (node, target) = (self.text("the node's name")?, self.text("the node's target")?);
        let (module, line) = (self.text("the module path")?, self.text("the source line")?);
        let location = Location { node, target, module, line };
        Some(StatementKind::Location { name: (name.to_string(), span), location })
    }

    /// `input %0 "x": bf16[4, 512] dynamic strides [512, 1]`
    fn input(&mut self) -> Option<StatementKind> {
        self.take();
        let name = self.value()?;
        let label = self.text("the input's name")?;
        self.mark(':')?;
        let ty = self.ty()?;
        let (word, span) = self.word("the input's role")?;
        let role = match word {
            "dynamic" => InputRole::Dynamic,
            "static" => InputRole::Static,
            "saved" => InputRole::Saved,
            "tangent" => InputRole::Tangent,
            _ => return self.report(format!("no role is named `{word}`"), span),
        };
        let strides = self.strides()?;
        Some(StatementKind::Input { name, label, ty, role, strides })
    }

    /// `output %7 "description" strides [8, 1] updates %0`, with `none` for an output without a value.
    fn output(&mut self) -> Option<StatementKind> {
        self.take();
        let value = match self.peek() {
            Token::Word("none") => {
                self.take();
                None
            }
            _ => Some(self.value()?),
        };
        let description = self.text("the output's description")?;
        let strides = self.strides()?;
        let updated = match self.peek() {
            Token::Word("updates") => {
                self.take();
                Some(self.value()?)
            }
            _ => None,
        };
        Some(StatementKind::Output { value, description, strides, updated })
    }

    /// `%3, %4 = op %0, %1 {name = value} : (f32[4], f32[1]) #1 #2`
    fn node(&mut self) -> Option<StatementKind> {
        let mut results = vec![self.value()?];
        while self.takes_mark(',') {
            results.push(self.value()?);
        }
        self.mark('=')?;
        let (op_name, op_span) = self.word("the name of an op")?;
        let Some(kinds) = Op::attr_kinds(op_name) else {
            return self.report(format!("no op is named `{op_name}`"), op_span);
        };
        let mut operands = Vec::new();
        if matches!(self.peek(), Token::Value(_)) {
            operands.push(self.value()?);
            while self.takes_mark(',') {
                operands.push(self.value()?);
            }
        }
        let attrs_start = self.start();
        let attrs = self.attrs(op_name, kinds)?;
        if let Some((missing, _)) = kinds.iter().find(|(name, _)| attrs.iter().all(|(given, _)| given != name)) {
            return self.report(format!("`{op_name}` needs the attribute `{missing}`"), op_span);
        }
        let Some(op) = Op::from_parts(op_name, &attrs) else {
            let span = attrs_start..self.end();
            return self.report(format!("`{op_name}` does not take these attribute values"), span);
        };
        self.mark(':')?;
        let types = self.types()?;
        if types.len() != results.len() {
            let message = format!("{} results have {} types", results.len(), types.len());
            return self.report(message, results[0].1.start..self.end());
        }
        let mut locations = Vec::new();
        while let Token::Location(name) = *self.peek() {
            locations.push((name.to_string(), self.take().1));
        }
        Some(StatementKind::Node { results, op, operands, types, locations })
    }

    fn types(&mut self) -> Option<Vec<Ty>> {
        if !self.takes_mark('(') {
            return Some(vec![self.ty()?]);
        }
        let mut types = Vec::new();
        if self.takes_mark(')') {
            return Some(types);
        }
        loop {
            types.push(self.ty()?);
            if !self.takes_mark(',') {
                break;
            }
        }
        self.mark(')')?;
        Some(types)
    }

    /// `f32[4, 512]` or `f32[4, 512] @(0, 1)`
    fn ty(&mut self) -> Option<Ty> {
        let dtype = self.dtype()?;
        let start = self.start();
        let dims = self.numbers::<usize>("a dimension")?;
        if dims.len() > MAX_RANK {
            return self.report(format!("{} dimensions are more than {MAX_RANK}", dims.len()), start..self.end());
        }
        let ty = TensorType { dtype, shape: dims.into_iter().collect::<Shape>() };
        if !self.takes_mark('@') {
            return Some(Ty { ty, layout: None });
        }
        self.mark('(')?;
        let n_outer = self.number("the number of outer dimensions")?;
        self.mark(',')?;
        let n_partition = self.number("the number of partition dimensions")?;
        self.mark(')')?;
        Some(Ty { ty, layout: Some(Layout { n_outer, n_partition }) })
    }

    fn dtype(&mut self) -> Option<Dtype> {
        let (word, span) = self.word("an element type")?;
        match word.parse::<Dtype>() {
            Ok(dtype) => Some(dtype),
            Err(error) => self.report(error.message, span),
        }
    }

    fn strides(&mut self) -> Option<Option<SmallVec<[i64; 6]>>> {
        if *self.peek() != Token::Word("strides") {
            return Some(None);
        }
        self.take();
        Some(Some(self.numbers::<i64>("a stride")?.into_iter().collect()))
    }

    /// `{name = value, ...}`, or nothing.
    fn attrs(&mut self, op_name: &str, kinds: &[(&'static str, AttrKind)]) -> Option<Vec<(&'static str, Attr)>> {
        let mut attrs: Vec<(&'static str, Attr)> = Vec::new();
        if !self.takes_mark('{') {
            return Some(attrs);
        }
        loop {
            let (word, span) = self.word("the name of an attribute")?;
            let Some(&(name, kind)) = kinds.iter().find(|(name, _)| *name == word) else {
                let known: Vec<String> = kinds.iter().map(|(name, _)| format!("`{name}`")).collect();
                let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
                return self.report(format!("`{op_name}` has no attribute `{word}`; it has {known}"), span);
            };
            if attrs.iter().any(|(given, _)| *given == name) {
                return self.report(format!("attribute `{name}` is given twice"), span);
            }
            self.mark('=')?;
            attrs.push((name, self.attr(kind)?));
            if !self.takes_mark(',') {
                break;
            }
        }
        self.mark('}')?;
        Some(attrs)
    }

    fn attr(&mut self, kind: AttrKind) -> Option<Attr> {
        match kind {
            AttrKind::Int => Some(Attr::Int(self.number("an integer")?)),
            AttrKind::Ints => Some(Attr::Ints(self.numbers("an integer")?.into_iter().collect())),
            AttrKind::F32 => self.float(parse_f32).map(Attr::F32),
            AttrKind::F64 => self.float(parse_f64).map(Attr::F64),
            AttrKind::Dtype => Some(Attr::Dtype(self.dtype()?)),
            AttrKind::Word => Some(Attr::Word(self.word("a word")?.0.to_string())),
            AttrKind::Bytes => {
                let span = self.start();
                let digits = self.text("bytes as hexadecimal digits in quotes")?;
                match decode_hex(&digits) {
                    Some(bytes) => Some(Attr::Bytes(bytes.into())),
                    None => self.report("bytes are pairs of hexadecimal digits".to_string(), span..self.end()),
                }
            }
        }
    }

    fn float<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let found = match *self.peek() {
            Token::Number(written) | Token::Word(written) => parse(written),
            _ => None,
        };
        if found.is_none() {
            return self.fail("a number, `inf`, `-inf`, `nan` or the bits after `0x`");
        }
        self.take();
        found
    }

    fn number<T: std::str::FromStr>(&mut self, expected: &str) -> Option<T> {
        let Token::Number(written) = *self.peek() else { return self.fail(expected) };
        match written.parse() {
            Ok(number) => {
                self.take();
                Some(number)
            }
            Err(_) => self.fail(expected),
        }
    }

    /// `[1, 2]`
    fn numbers<T: std::str::FromStr>(&mut self, expected: &str) -> Option<Vec<T>> {
        self.mark('[')?;
        let mut numbers = Vec::new();
        if self.takes_mark(']') {
            return Some(numbers);
        }
        loop {
            numbers.push(self.number(expected)?);
            if !self.takes_mark(',') {
                break;
            }
        }
        self.mark(']')?;
        Some(numbers)
    }

    fn value(&mut self) -> Option<SpannedName> {
        let Token::Value(name) = *self.peek() else { return self.fail("`%` and a name") };
        Some((name.to_string(), self.take().1))
    }

    fn text(&mut self, expected: &str) -> Option<String> {
        let Token::Text(content) = self.peek() else { return self.fail(&format!("{expected} in quotes")) };
        let content = content.clone();
        self.take();
        Some(content)
    }
}

fn parse_f32(written: &str) -> Option<u32> {
    match written.strip_prefix("0x") {
        Some(digits) if digits.starts_with('+') => None,
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None if written == "nan" => Some(f32::NAN.to_bits()),
        None => finite_or_named(written).then(|| written.parse::<f32>().ok().map(f32::to_bits))?,
    }
}

fn parse_f64(written: &str) -> Option<u64> {
    match written.strip_prefix("0x") {
        Some(digits) if digits.starts_with('+') => None,
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if written == "nan" => Some(f64::NAN.to_bits()),
        None => finite_or_named(written).then(|| written.parse::<f64>().ok().map(f64::to_bits))?,
    }
}

/// Rust also reads `infinity` and `NaN`; one spelling is enough.
fn finite_or_named(written: &str) -> bool {
    matches!(written, "inf" | "-inf") || written.ends_with(|last: char| last.is_ascii_digit() || last == '.')
}

fn decode_hex(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok()).collect()
}
