//! Splitting text into tokens.

use std::ops::Range;

/// One token. Names come without their sigils.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token<'t> {
    /// Letters, digits, `_`, `.`, `-` and `$`, beginning with a letter or `_`.
    Word(&'t str),
    /// A number as written: `12`, `-3`, `1e-5`, `0x7fc00000`, `-inf`.
    Number(&'t str),
    /// The content of a string, escapes resolved.
    Text(String),
    /// `%name`.
    Value(&'t str),
    /// `#name`.
    Location(&'t str),
    /// `@name` or `@"name"`.
    Symbol(String),
    Mark(char),
    End,
}

/// A token and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Spanned<'t> {
    pub token: Token<'t>,
    pub span: Range<usize>,
    /// No other token stands before it on its line.
    pub starts_line: bool,
}

/// A fault of one token: what is wrong, and where.
pub(super) type LexFault = (String, Range<usize>);

/// Characters of words and names.
pub(super) fn is_word_char(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '.' | '-' | '$')
}

/// Faults after which a text is given up.
pub(super) const MAX_FAULTS: usize = 100;

/// All tokens, the last one `End`, and the faults. Faulty text is left out of the tokens; after
/// [`MAX_FAULTS`] the rest of the text is.
pub(super) fn tokenize(text: &str) -> (Vec<Spanned<'_>>, Vec<LexFault>) {
    let mut lexer = Lexer { text, at: 0, starts_line: true, tokens: Vec::new(), faults: Vec::new() };
    while let Some(character) = lexer.peek().filter(|_| lexer.faults.len() < MAX_FAULTS) {
        lexer.next_token(character);
    }
    lexer.push(Token::End, text.len());
    (lexer.tokens, lexer.faults)
}

struct Lexer<'t> {
    text: &'t str,
    at: usize,
    starts_line: bool,
    tokens: Vec<Spanned<'t>>,
    faults: Vec<LexFault>,
}

impl<'t> Lexer<'t> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    /// Adds the token that began at `start` and ends here.
    fn push(&mut self, token: Token<'t>, start: usize) {
        self.tokens.push(Spanned { token, span: start..self.at, starts_line: self.starts_line });
        self.starts_line = false;
    }

    fn next_token(&mut self, character: char) {
        let start = self.at;
        match character {
            '\n' => {
                self.at += 1;
                self.starts_line = true;
            }
            _ if character.is_whitespace() => self.at += character.len_utf8(),
            '/' if self.text[start..].starts_with("//") => {
                self.at += self.text[start..].find('\n').unwrap_or(self.text.len() - start);
            }
            '"' => {
                let content = self.string();
                self.push(Token::Text(content), start);
            }
            '%' | '#' | '@' => self.sigil(character),
            '{' | '}' | '[' | ']' | '(' | ')' | ',' | ':' | '=' => {
                self.at += 1;
                self.push(Token::Mark(character), start);
            }
            _ if character.is_ascii_digit() || character == '-' || character == '+' => {
                self.at += 1;
                self.skip_word();
                let number = self.number_end(start);
                self.at = number;
                self.push(Token::Number(&self.text[start..number]), start);
            }
            _ if character.is_ascii_alphabetic() || character == '_' => {
                self.skip_word();
                self.push(Token::Word(&self.text[start..self.at]), start);
            }
            _ => {
                self.at += character.len_utf8();
                self.faults.push((format!("unexpected character {character:?}"), start..self.at));
            }
        }
    }

    fn skip_word(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.find(|character| !is_word_char(character)).unwrap_or(rest.len());
    }

    /// `1e+5` goes on after the sign, which is no character of words.
    fn number_end(&self, start: usize) -> usize {
        let (written, rest) = (&self.text[start..self.at], &self.text[self.at..]);
        if written.ends_with(['e', 'E']) && rest.starts_with('+') {
            let digits = &rest[1..];
            return self.at + 1 + digits.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(digits.len());
        }
        self.at
    }

    fn sigil(&mut self, sigil: char) {
        let start = self.at;
        self.at += 1;
        if sigil == '@' && self.peek() == Some('"') {
            let content = self.string();
            return self.push(Token::Symbol(content), start);
        }
        self.skip_word();
        let name = &self.text[start + 1..self.at];
        match sigil {
            // A layout is written `@(outer, partition)`.
            '@' if name.is_empty() && self.peek() == Some('(') => self.push(Token::Mark('@'), start),
            _ if name.is_empty() => self.faults.push((format!("a name is missing after `{sigil}`"), start..self.at)),
            '%' => self.push(Token::Value(name), start),
            '#' => self.push(Token::Location(name), start),
            _ => self.push(Token::Symbol(name.to_string()), start),
        }
    }

    /// The content of the string that begins here; a fault when it does not end on its line.
    fn string(&mut self) -> String {
        let start = self.at;
        self.at += 1;
        let mut content = String::new();
        while let Some(character) = self.peek().filter(|&character| character != '\n') {
            let at = self.at;
            self.at += character.len_utf8();
            match character {
                '"' => return content,
                '\\' => match self.escape() {
                    Some(escaped) => content.push(escaped),
                    None => self.faults.push(("unknown escape in a string".to_string(), at..self.at)),
                },
                plain => content.push(plain),
            }
        }
        self.faults.push(("a string does not end on its line".to_string(), start..self.at));
        content
    }

    /// The character that an escape stands for; reads what follows the backslash.
    fn escape(&mut self) -> Option<char> {
        let character = self.peek().filter(|&character| character != '\n')?;
        self.at += character.len_utf8();
        match character {
            '"' | '\\' => Some(character),
            'n' => Some('\n'),
            't' => Some('\t'),
            'u' => {
                let digits = self.text[self.at..].strip_prefix('{')?;
                let n_digits = digits.find(|digit: char| !digit.is_ascii_hexdigit())?;
                if n_digits > 6 || !digits[n_digits..].starts_with('}') {
                    return None;
                }
                let code = u32::from_str_radix(&digits[..n_digits], 16).ok()?;
                self.at += n_digits + 2;
                char::from_u32(code)
            }
            _ => None,
        }
    }
}
