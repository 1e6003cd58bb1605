//! A position in one line of program text, and the errors that point at it.

use std::fmt::Display;
use std::str::FromStr;

/// Why a text is no program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// Counted from 1.
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
    /// Lower case, no final dot.
    pub message: String,
}

/// Reads one line from left to right.
pub(super) struct Cursor<'a> {
    line: usize,
    text: &'a str,
    at_byte: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(line: usize, text: &'a str) -> Self {
        Cursor { line, text, at_byte: 0 }
    }

    /// An error at the current position.
    pub(super) fn error(&self, message: impl Into<String>) -> ParseError {
        self.error_at(self.at_byte, message)
    }

    /// An error at a position that [`Cursor::position`] gave.
    pub(super) fn error_at(&self, at_byte: usize, message: impl Into<String>) -> ParseError {
        let column = self.text[..at_byte].chars().count() + 1;
        ParseError { line: self.line, column, message: message.into() }
    }

    pub(super) fn position(&self) -> usize {
        self.at_byte
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at_byte..]
    }

    pub(super) fn skip_spaces(&mut self) {
        let rest = self.rest();
        self.at_byte += rest.len() - rest.trim_start_matches(' ').len();
    }

    pub(super) fn at_end(&mut self) -> bool {
        self.skip_spaces();
        self.rest().is_empty()
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// Takes `expected` if it comes next.
    pub(super) fn eat(&mut self, expected: &str) -> bool {
        let found = self.rest().starts_with(expected);
        if found {
            self.at_byte += expected.len();
        }
        found
    }

    pub(super) fn expect(&mut self, expected: &str) -> Result<(), ParseError> {
        if self.eat(expected) { Ok(()) } else { Err(self.error(format!("`{expected}` expected"))) }
    }

    /// Takes `expected` as a whole word after spaces.
    pub(super) fn eat_word(&mut self, expected: &str) -> bool {
        let start = self.at_byte;
        self.skip_spaces();
        let ends = |rest: &str| !rest.chars().next().is_some_and(is_word_character);
        if self.eat(expected) && ends(self.rest()) {
            return true;
        }
        self.at_byte = start;
        false
    }

    pub(super) fn expect_word(&mut self, expected: &str) -> Result<(), ParseError> {
        if self.eat_word(expected) {
            return Ok(());
        }
        self.skip_spaces();
        Err(self.error(format!("`{expected}` expected")))
    }

    /// Takes `key=` after spaces.
    pub(super) fn eat_key(&mut self, key: &str) -> bool {
        let start = self.at_byte;
        self.skip_spaces();
        if self.eat(key) && self.eat("=") {
            return true;
        }
        self.at_byte = start;
        false
    }

    pub(super) fn expect_key(&mut self, key: &str) -> Result<(), ParseError> {
        if self.eat_key(key) {
            return Ok(());
        }
        self.skip_spaces();
        Err(self.error(format!("`{key}=` expected")))
    }

    fn take_while(&mut self, accept: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|character| !accept(character)).unwrap_or(rest.len());
        self.at_byte += end;
        &rest[..end]
    }

    /// A word of letters, digits and underscores, after spaces; empty if none comes.
    pub(super) fn word(&mut self) -> &'a str {
        self.skip_spaces();
        self.take_while(is_word_character)
    }

    /// A word that names a value of an enum.
    pub(super) fn named<T: FromStr<Err: Display>>(&mut self) -> Result<T, ParseError> {
        self.skip_spaces();
        let start = self.at_byte;
        let word = self.word();
        word.parse().map_err(|error: T::Err| self.error_at(start, error.to_string()))
    }

    /// A decimal integer with an optional sign, which must fit the type.
    pub(super) fn integer<T: TryFrom<i128>>(&mut self) -> Result<T, ParseError> {
        self.skip_spaces();
        let start = self.at_byte;
        let sign = if self.eat("-") {
            -1
        } else {
            self.eat("+");
            1
        };
        let digits = self.take_while(|character| character.is_ascii_digit());
        if digits.is_empty() {
            return Err(self.error("number expected"));
        }
        let value = digits.parse::<i128>().ok().and_then(|value| T::try_from(sign * value).ok());
        value.ok_or_else(|| self.error_at(start, format!("`{}` is out of range", &self.text[start..self.at_byte])))
    }

    /// An f32: a decimal, `inf`, `-inf`, or `nan:` and its bits in hexadecimal.
    pub(super) fn float(&mut self) -> Result<f32, ParseError> {
        let start = self.at_byte;
        if self.eat("nan:") {
            let digits = self.take_while(|character| character.is_ascii_hexdigit());
            let value = u32::from_str_radix(digits, 16).map(f32::from_bits).ok().filter(|value| value.is_nan());
            return value.ok_or_else(|| self.error_at(start, "bits of a NaN in hexadecimal expected"));
        }
        let word = self.take_while(|character| character.is_ascii_alphanumeric() || "+-.".contains(character));
        let value = word.parse::<f32>().ok().filter(|value| !value.is_nan());
        value.ok_or_else(|| self.error_at(start, "number expected"))
    }

    /// A quoted string with its escapes resolved.
    pub(super) fn string(&mut self) -> Result<String, ParseError> {
        self.skip_spaces();
        self.expect("\"")?;
        let mut value = String::new();
        loop {
            value.push_str(self.take_while(|character| character != '"' && character != '\\'));
            if self.eat("\"") {
                return Ok(value);
            }
            let start = self.at_byte;
            if self.eat("\\n") {
                value.push('\n');
            } else if self.eat("\\\"") {
                value.push('"');
            } else if self.eat("\\\\") {
                value.push('\\');
            } else if self.eat("\\u{") {
                let digits = self.take_while(|character| character.is_ascii_hexdigit());
                let character = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
                value.push(character.ok_or_else(|| self.error_at(start, "no character has this number"))?);
                self.expect("}")?;
            } else if self.eat("\\") {
                return Err(self.error_at(start, "unknown escape"));
            } else {
                return Err(self.error("`\"` expected"));
            }
        }
    }

    /// Bytes in hexadecimal between quotes.
    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, ParseError> {
        self.expect("x\"")?;
        let start = self.at_byte;
        let digits = self.take_while(|character| character.is_ascii_hexdigit());
        self.expect("\"")?;
        if !digits.len().is_multiple_of(2) {
            return Err(self.error_at(start, "two hexadecimal digits per byte expected"));
        }
        let digit = |digit: u8| char::from(digit).to_digit(16).expect("only hexadecimal digits were taken");
        let byte = |pair: &[u8]| u8::try_from(digit(pair[0]) * 16 + digit(pair[1])).expect("two digits make a byte");
        Ok(digits.as_bytes().chunks_exact(2).map(byte).collect())
    }
}

fn is_word_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}
