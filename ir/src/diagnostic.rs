//! Diagnostics: what is wrong, where, and what to do about it.
//!
//! The first line stands alone, so that one line of a log is enough: `error[code]: place: message`.
//! Where the place is in a text, [`Diagnostic::render`] adds the text around it through `miette`.

use std::fmt;
use std::ops::Range;

/// How bad it is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is produced.
    Error,
    /// Something is produced, and the user should know this about it.
    Warning,
    Note,
}

impl Severity {
    /// First word of the first line.
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// Where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Bytes of a text; prints as `name:line:column`.
    Text {
        /// File name, or what stands for one.
        name: String,
        /// Counted from 1.
        line: usize,
        /// Counted from 1, in characters.
        column: usize,
        span: Range<usize>,
    },
    /// Anything else, in its own words: a node, a module path with a source line, a member of an archive.
    Named(String),
}

/// A text that diagnostics point into.
#[derive(Clone, Debug)]
pub struct SourceText<'t> {
    name: String,
    text: &'t str,
    /// First byte of each line.
    line_starts: Vec<usize>,
}

/// Most text that is drawn around a place: machine-made lines can be as long as their file.
const MAX_DRAWN_BYTES: usize = 4096;

impl<'t> SourceText<'t> {
    /// A text and its file name, or what stands for one.
    pub fn new(name: impl Into<String>, text: &'t str) -> Self {
        let newlines = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
        let line_starts = std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect();
        SourceText { name: name.into(), text, line_starts }
    }

    /// The place of these bytes. A span beyond the text or inside a character is widened to what is there.
    pub fn place(&self, span: Range<usize>) -> Place {
        let end = span.end.min(self.text.len());
        let mut start = span.start.min(end);
        while !self.text.is_char_boundary(start) {
            start -= 1;
        }
        let line = self.line_starts.partition_point(|&line_start| line_start <= start);
        let before = &self.text[self.line_starts[line - 1]..start];
        Place::Text { name: self.name.clone(), line, column: before.chars().count() + 1, span: start..end }
    }

    /// Bytes of the lines of a span and of one line on either side.
    fn n_bytes_around(&self, span: &Range<usize>) -> usize {
        let first = self.line_starts.partition_point(|&line_start| line_start <= span.start).saturating_sub(2);
        let after_last = self.line_starts.partition_point(|&line_start| line_start <= span.end) + 1;
        let end = self.line_starts.get(after_last).copied().unwrap_or(self.text.len());
        end.saturating_sub(self.line_starts[first])
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Text { name, line, column, span: _ } => write!(formatter, "{name}:{line}:{column}"),
            Place::Named(words) => formatter.write_str(words),
        }
    }
}

/// One thing to tell the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Stable name of the kind of fault, for example `type-mismatch`.
    pub code: &'static str,
    pub severity: Severity,
    /// One sentence: lower case, the values that clash, no final dot.
    pub message: String,
    pub place: Option<Place>,
    /// Lines that show the fault, for example the printed node.
    pub context: Vec<String>,
    /// What the user can do.
    pub help: Option<String>,
}

/// Whether rendered text may carry terminal colours.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RenderStyle {
    Plain,
    Colored,
}

impl Diagnostic {
    /// An error.
    pub fn error(code: &'static str, message: impl Into<String>) -> Self {
        Diagnostic {
            code,
            severity: Severity::Error,
            message: message.into(),
            place: None,
            context: Vec::new(),
            help: None,
        }
    }

    /// A warning.
    pub fn warning(code: &'static str, message: impl Into<String>) -> Self {
        Diagnostic { severity: Severity::Warning, ..Diagnostic::error(code, message) }
    }

    /// A note.
    pub fn note(code: &'static str, message: impl Into<String>) -> Self {
        Diagnostic { severity: Severity::Note, ..Diagnostic::error(code, message) }
    }

    /// This diagnostic at a place.
    pub fn at(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// This diagnostic at a place in its own words.
    pub fn at_named(self, place: impl Into<String>) -> Self {
        self.at(Place::Named(place.into()))
    }

    /// This diagnostic with one more line of context.
    pub fn with_context(mut self, line: impl Into<String>) -> Self {
        self.context.push(line.into());
        self
    }

    /// This diagnostic with advice.
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The first line: `error[code]: place: message`.
    pub fn headline(&self) -> String {
        let place = self.place.as_ref().map(|place| format!("{place}: ")).unwrap_or_default();
        format!("{}[{}]: {place}{}", self.severity.name(), self.code, self.message)
    }

    /// The diagnostic with the lines of the text around its place, ending in a newline. Without a
    /// place in a text it is what `Display` gives.
    pub fn render(&self, source: &SourceText<'_>, style: RenderStyle) -> String {
        let Some(Place::Text { name, span, line: _, column: _ }) = &self.place else { return format!("{self}\n") };
        if source.n_bytes_around(span) > MAX_DRAWN_BYTES {
            return format!("{self}\n");
        }
        let snippet = Snippet { name, text: source.text, span: span.clone() };
        let theme = match style {
            RenderStyle::Plain => miette::GraphicalTheme::unicode_nocolor(),
            RenderStyle::Colored => miette::GraphicalTheme::unicode(),
        };
        let handler = miette::GraphicalReportHandler::new_themed(theme).with_links(false).with_width(120);
        let mut drawn = String::new();
        if handler.render_report(&mut drawn, &snippet).is_err() {
            return format!("{self}\n");
        }
        let mut rendered = self.headline();
        rendered.push('\n');
        // The headline says everything that stands above the snippet's frame.
        for line in drawn.lines().skip_while(|line| !line.contains('╭')).filter(|line| !line.trim().is_empty()) {
            rendered.push_str(line.trim_end());
            rendered.push('\n');
        }
        self.tail(&mut rendered).expect("a string takes any text");
        rendered
    }

    fn tail(&self, target: &mut impl fmt::Write) -> fmt::Result {
        for line in &self.context {
            writeln!(target, "    {line}")?;
        }
        match &self.help {
            Some(help) => writeln!(target, "  help: {help}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tail = String::new();
        self.tail(&mut tail)?;
        formatter.write_str(&self.headline())?;
        if tail.is_empty() { Ok(()) } else { write!(formatter, "\n{}", tail.trim_end_matches('\n')) }
    }
}

impl std::error::Error for Diagnostic {}

/// What `miette` draws: a marked range of a text.
#[derive(Debug)]
struct Snippet<'t> {
    name: &'t str,
    text: &'t str,
    span: Range<usize>,
}

impl fmt::Display for Snippet<'_> {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl std::error::Error for Snippet<'_> {}

impl miette::SourceCode for Snippet<'_> {
    fn read_span<'a>(
        &'a self,
        span: &miette::SourceSpan,
        lines_before: usize,
        lines_after: usize,
    ) -> Result<Box<dyn miette::SpanContents<'a> + 'a>, miette::MietteError> {
        let contents = self.text.read_span(span, lines_before, lines_after)?;
        Ok(Box::new(miette::MietteSpanContents::new_named(
            self.name.to_string(),
            contents.data(),
            *contents.span(),
            contents.line(),
            contents.column(),
            contents.line_count(),
        )))
    }
}

impl miette::Diagnostic for Snippet<'_> {
    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        Some(self)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = miette::LabeledSpan> + '_>> {
        Some(Box::new(std::iter::once(miette::LabeledSpan::underline(self.span.clone()))))
    }
}

/// Diagnostics in the order in which they were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
}

impl Diagnostics {
    /// No diagnostics.
    pub fn new() -> Self {
        Diagnostics::default()
    }

    /// Adds one.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.list.push(diagnostic);
    }

    /// True without any.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether one of them is an error.
    pub fn has_errors(&self) -> bool {
        self.list.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// In order.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.list.iter()
    }

    /// `Ok` without errors.
    ///
    /// # Errors
    /// These diagnostics, where one of them is an error.
    pub fn into_result(self) -> Result<(), Diagnostics> {
        if self.has_errors() { Err(self) } else { Ok(()) }
    }

    /// Every diagnostic rendered with the text that it is about.
    pub fn render(&self, source: &SourceText<'_>, style: RenderStyle) -> String {
        self.iter().map(|diagnostic| diagnostic.render(source, style)).collect()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, diagnostic) in self.iter().enumerate() {
            let separator = if position == 0 { "" } else { "\n" };
            write!(formatter, "{separator}{diagnostic}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

impl From<Diagnostic> for Diagnostics {
    fn from(diagnostic: Diagnostic) -> Self {
        Diagnostics { list: vec![diagnostic] }
    }
}

impl FromIterator<Diagnostic> for Diagnostics {
    fn from_iter<I: IntoIterator<Item = Diagnostic>>(diagnostics: I) -> Self {
        Diagnostics { list: diagnostics.into_iter().collect() }
    }
}

impl Extend<Diagnostic> for Diagnostics {
    fn extend<I: IntoIterator<Item = Diagnostic>>(&mut self, diagnostics: I) {
        self.list.extend(diagnostics);
    }
}

impl IntoIterator for Diagnostics {
    type Item = Diagnostic;
    type IntoIter = std::vec::IntoIter<Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a Diagnostic;
    type IntoIter = std::slice::Iter<'a, Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
