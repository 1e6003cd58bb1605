//! Parsing graphs.
//!
//! A text is read into statements, then names are resolved: values are numbered in the order of
//! their definitions. After a fault, reading goes on at the next line that begins a statement.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

use super::lexer::{LexFault, MAX_FAULTS, Spanned, Token, tokenize};
use super::statement::{Statement, StatementKind, Ty};
use crate::diagnostic::{Diagnostic, Diagnostics, SourceText};
use crate::graph::{Graph, GraphOutput, Layout, LocationId, NodeId, ValueId};
use crate::types::TensorType;
use crate::verify::{Element, Fault, GraphPhase, faults};

/// A graph and where its parts stand in the text that it was read from.
#[derive(Clone, Debug)]
pub struct ParsedGraph {
    pub graph: Graph,
    /// Bytes of the name in the first line.
    pub name_span: Range<usize>,
    /// By position in [`Graph::inputs`].
    pub input_spans: Vec<Range<usize>>,
    /// By node.
    pub node_spans: Vec<Range<usize>>,
    /// By position in [`Graph::outputs`].
    pub output_spans: Vec<Range<usize>>,
}

impl ParsedGraph {
    /// Where the element of a fault stands.
    pub fn span(&self, element: Element) -> Range<usize> {
        match element {
            Element::Graph => self.name_span.clone(),
            Element::Input(position) => self.input_spans[position].clone(),
            Element::Node(NodeId(node)) => self.node_spans[node as usize].clone(),
            Element::Output(position) => self.output_spans[position].clone(),
        }
    }
}

/// The graph of a text, verified; `name` is the file's name in diagnostics.
///
/// # Errors
/// The faults of syntax, or where there are none those of the graph; at most 100.
pub fn parse_graph(name: &str, text: &str) -> Result<Graph, Diagnostics> {
    let parsed = parse_graph_unverified(name, text)?;
    let phase = if parsed.graph.layouts.is_empty() { GraphPhase::Imported } else { GraphPhase::Placed };
    let source = SourceText::new(name, text);
    let describe = |Fault { code, message, element }: Fault| {
        Diagnostic::error(code, message).at(source.place(parsed.span(element)))
    };
    // A column is counted from the start of its line, which may be the whole text.
    let faults = faults(&parsed.graph, phase).into_iter().take(MAX_FAULTS);
    faults.map(describe).collect::<Diagnostics>().into_result()?;
    Ok(parsed.graph)
}

/// The graph of a text as it stands there: operands may be of any type and be defined after their
/// uses.
///
/// # Errors
/// Every fault of syntax and every name without a definition.
pub fn parse_graph_unverified(name: &str, text: &str) -> Result<ParsedGraph, Diagnostics> {
    let (tokens, lex_faults) = tokenize(text);
    let mut parser = Parser { tokens: &tokens, at: 0, faults: lex_faults };
    let header = parser.header();
    let statements = if header.is_some() { parser.statements() } else { Vec::new() };
    let mut all_faults = parser.faults;
    if let (Some(header), true) = (header, all_faults.is_empty()) {
        match resolve(header, statements) {
            Ok(parsed) => return Ok(parsed),
            Err(faults) => all_faults = faults,
        }
    }
    all_faults.sort_by_key(|(_, span)| span.start);
    all_faults.truncate(MAX_FAULTS);
    let source = SourceText::new(name, text);
    let describe = |(message, span)| Diagnostic::error("syntax", message).at(source.place(span));
    Err(all_faults.into_iter().map(describe).collect())
}

/// The first line.
pub(super) struct Header {
    name: String,
    name_span: Range<usize>,
    placed: bool,
}

/// Reads tokens; `None` from a method means that a fault has been recorded.
pub(super) struct Parser<'p, 't> {
    tokens: &'p [Spanned<'t>],
    at: usize,
    faults: Vec<LexFault>,
}

impl<'t> Parser<'_, 't> {
    fn header(&mut self) -> Option<Header> {
        self.word_of("graph")?;
        let (token, name_span) = self.take();
        let Token::Symbol(name) = token else { return self.fail_at("`@` and the graph's name", name_span) };
        let placed = *self.peek() == Token::Word("placed");
        if placed {
            self.take();
        }
        self.mark('{')?;
        Some(Header { name, name_span, placed })
    }

    /// Statements up to the closing brace and the end of the text.
    fn statements(&mut self) -> Vec<Statement> {
        let mut statements = Vec::new();
        while !matches!(self.peek(), Token::End | Token::Mark('}')) && self.faults.len() < MAX_FAULTS {
            match self.statement() {
                Some(statement) => statements.push(statement),
                None => self.skip_statement(),
            }
        }
        if self.faults.is_empty() && self.mark('}').is_some() && *self.peek() != Token::End {
            self.fail::<()>("the end of the text after `}`");
        }
        statements
    }

    /// Goes to the next token that begins both a line and a statement.
    fn skip_statement(&mut self) {
        while *self.peek() != Token::End {
            let Spanned { token, span: _, starts_line } = &self.tokens[self.at];
            let begins = matches!(token, Token::Value(_) | Token::Mark('}') | Token::Word("loc" | "input" | "output"));
            if *starts_line && begins {
                return;
            }
            self.at += 1;
        }
    }

    pub(super) fn peek(&self) -> &Token<'t> {
        &self.tokens[self.at].token
    }

    /// The next token; the last one, `End`, again and again.
    pub(super) fn take(&mut self) -> (Token<'t>, Range<usize>) {
        let Spanned { token, span, starts_line: _ } = self.tokens[self.at].clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        (token, span)
    }

    /// First byte of the next token.
    pub(super) fn start(&self) -> usize {
        self.tokens[self.at].span.start
    }

    /// One past the last byte of the token before the next.
    pub(super) fn end(&self) -> usize {
        self.tokens[self.at.saturating_sub(1)].span.end
    }

    /// Whether the next token is this mark; takes it if so.
    pub(super) fn takes_mark(&mut self, mark: char) -> bool {
        let found = *self.peek() == Token::Mark(mark);
        if found {
            self.take();
        }
        found
    }

    pub(super) fn mark(&mut self, mark: char) -> Option<()> {
        if self.takes_mark(mark) { Some(()) } else { self.fail(&format!("`{mark}`")) }
    }

    pub(super) fn word(&mut self, expected: &str) -> Option<(&'t str, Range<usize>)> {
        match self.peek() {
            &Token::Word(word) => Some((word, self.take().1)),
            _ => self.fail(expected),
        }
    }

    fn word_of(&mut self, word: &str) -> Option<()> {
        if *self.peek() != Token::Word(word) {
            return self.fail(&format!("`{word}`"));
        }
        self.take();
        Some(())
    }

    /// Records that something else than the next token was expected.
    pub(super) fn fail<T>(&mut self, expected: &str) -> Option<T> {
        let span = self.tokens[self.at].span.clone();
        self.fail_at(expected, span)
    }

    fn fail_at<T>(&mut self, expected: &str, span: Range<usize>) -> Option<T> {
        self.report(format!("{expected} expected"), span)
    }

    /// Records a fault.
    pub(super) fn report<T>(&mut self, message: String, span: Range<usize>) -> Option<T> {
        self.faults.push((message, span));
        None
    }
}

/// Names of one kind in the order of their definitions.
#[derive(Default)]
struct Names {
    ids: BTreeMap<String, u32>,
}

impl Names {
    fn define(&mut self, name: &str, span: &Range<usize>, sigil: char, faults: &mut Vec<LexFault>) {
        let id = u32::try_from(self.ids.len()).unwrap_or(u32::MAX);
        if self.ids.insert(name.to_string(), id).is_some() {
            faults.push((format!("{sigil}{name} is defined twice"), span.clone()));
        }
    }

    fn resolve(&self, name: &str, span: &Range<usize>, sigil: char, faults: &mut Vec<LexFault>) -> u32 {
        match self.ids.get(name) {
            Some(&id) => id,
            None => {
                faults.push((format!("{sigil}{name} is not defined"), span.clone()));
                0
            }
        }
    }
}

fn resolve(header: Header, statements: Vec<Statement>) -> Result<ParsedGraph, Vec<LexFault>> {
    let mut faults = Vec::new();
    let (mut values, mut locations) = (Names::default(), Names::default());
    for Statement { kind, span: _ } in &statements {
        match kind {
            StatementKind::Location { name: (name, span), location: _ } => {
                locations.define(name, span, '#', &mut faults);
            }
            StatementKind::Input { name: (name, span), .. } => values.define(name, span, '%', &mut faults),
            StatementKind::Node { results, .. } => {
                results.iter().for_each(|(name, span)| values.define(name, span, '%', &mut faults));
            }
            StatementKind::Output { .. } => {}
        }
    }
    let mut parsed = ParsedGraph {
        graph: Graph::new(header.name),
        name_span: header.name_span,
        input_spans: Vec::new(),
        node_spans: Vec::new(),
        output_spans: Vec::new(),
    };
    let mut layouts = Vec::new();
    for statement in statements {
        add(statement, &values, &locations, &mut parsed, &mut layouts, &mut faults);
    }
    if header.placed {
        parsed.graph.layouts = layouts;
    } else if layouts.iter().any(Option::is_some) {
        let message = "layouts stand in a graph that is not `placed`".to_string();
        faults.push((message, parsed.name_span.clone()));
    }
    if faults.is_empty() { Ok(parsed) } else { Err(faults) }
}

fn add(
    Statement { kind, span }: Statement,
    values: &Names,
    locations: &Names,
    parsed: &mut ParsedGraph,
    layouts: &mut Vec<Option<Layout>>,
    faults: &mut Vec<LexFault>,
) {
    let graph = &mut parsed.graph;
    match kind {
        StatementKind::Location { name: _, location } => {
            graph.push_location(location);
        }
        StatementKind::Input { name: _, label, ty: Ty { ty, layout }, role, strides } => {
            graph.push_input(label, ty, role);
            if let Some(input) = graph.inputs.last_mut() {
                input.strides = strides;
            }
            layouts.push(layout);
            parsed.input_spans.push(span);
        }
        StatementKind::Node { results: _, op, operands, types, locations: names } => {
            let operands: SmallVec<[ValueId; 4]> =
                operands.iter().map(|(name, span)| ValueId(values.resolve(name, span, '%', faults))).collect();
            let locations: SmallVec<[LocationId; 2]> =
                names.iter().map(|(name, span)| LocationId(locations.resolve(name, span, '#', faults))).collect();
            layouts.extend(types.iter().map(|ty| ty.layout));
            let types: SmallVec<[TensorType; 1]> = types.into_iter().map(|ty| ty.ty).collect();
            graph.push_unchecked(op, &operands, types, &locations);
            parsed.node_spans.push(span);
        }
        StatementKind::Output { value, description, strides, updated } => {
            let value = value.map(|(name, span)| ValueId(values.resolve(&name, &span, '%', faults)));
            let alias = updated.and_then(|(name, span)| {
                let updated = ValueId(values.resolve(&name, &span, '%', faults));
                let position = graph.inputs.iter().position(|input| input.value == updated);
                if position.is_none() {
                    faults.push((format!("`%{name}` is no input: only inputs are updated"), span));
                }
                position.and_then(|position| u32::try_from(position).ok())
            });
            graph.outputs.push(GraphOutput { value, strides, alias, description });
            parsed.output_spans.push(span);
        }
    }
}
