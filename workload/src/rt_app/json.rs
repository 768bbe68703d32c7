//! JSON as rt-app's own parser (json-c, not strict) and the script that prepares files for it take it: with comments of
//! both kinds, commas behind the last entry, strings in single quotes, keywords in any case, keys given several times, and
//! values left out. A common reader of JSON takes none of these, and forgets where it read what.

use super::{Place, RtAppError};

/// Deepest nesting, as in json-c.
const DEPTH_MAX: usize = 32;

/// A value, and where it begins.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Value {
    pub(crate) at: Position,
    pub(crate) data: Data,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Data {
    /// Left out, as in `"suspend",` and `"suspend" : ,`.
    Missing,
    Null,
    Bool(bool),
    Integer(i64),
    /// Any other number. Nothing in the grammar takes one.
    Fraction,
    Text(String),
    List(Vec<Value>),
    /// In the order of the file, keys that are given several times included.
    Object(Vec<Entry>),
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) at: Position,
    pub(crate) value: Value,
}

/// Line and column, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

impl Data {
    /// A description for people.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Data::Missing => "nothing",
            Data::Null => "null",
            Data::Bool(_) => "true or false",
            Data::Integer(_) => "an integer",
            Data::Fraction => "a number that is no integer",
            Data::Text(_) => "a string",
            Data::List(_) => "a list",
            Data::Object(_) => "an object",
        }
    }
}

/// The first value of `text`, and where something follows it, if it does.
pub(crate) fn parse(text: &str) -> Result<(Value, Option<Position>), RtAppError> {
    let mut parser = Parser { rest: text, at: Position { line: 1, column: 1 } };
    parser.blanks()?;
    let value = parser.value(0)?;
    // json-c does not look at what follows, which may therefore be anything.
    let more = parser.blanks().is_err() || !parser.rest.is_empty();
    Ok((value, more.then_some(parser.at)))
}

struct Parser<'a> {
    rest: &'a str,
    at: Position,
}

impl Parser<'_> {
    fn fail<T>(&self, why: impl Into<String>) -> Result<T, RtAppError> {
        Err(RtAppError::new(Place::new(self.at, ""), why))
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next()?;
        self.rest = chars.as_str();
        if next == '\n' {
            self.at = Position { line: self.at.line.saturating_add(1), column: 1 };
        } else {
            self.at.column = self.at.column.saturating_add(1);
        }
        Some(next)
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.next();
        }
        found
    }

    /// Skips blanks and comments.
    fn blanks(&mut self) -> Result<(), RtAppError> {
        loop {
            if self.rest.starts_with("//") {
                while self.peek().is_some_and(|next| next != '\n') {
                    self.next();
                }
            } else if self.rest.starts_with("/*") {
                let Some(length) = self.rest[2..].find("*/") else {
                    return self.fail("this comment has no end: close it with `*/`");
                };
                let end = self.rest.len() - (2 + length + 2);
                while self.rest.len() > end {
                    self.next();
                }
            } else if self.peek().is_some_and(|next| next.is_ascii_whitespace() || next == '\u{b}') {
                self.next();
            } else {
                return Ok(());
            }
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, RtAppError> {
        let at = self.at;
        if depth >= DEPTH_MAX {
            return self.fail(format!("nested deeper than {DEPTH_MAX}: flatten it"));
        }
        let data = match self.peek() {
            Some('{') => self.object(depth)?,
            Some('[') => self.list(depth)?,
            Some(quote @ ('"' | '\'')) => Data::Text(self.text(quote)?),
            Some(next) if next == '-' || next.is_ascii_digit() => self.number()?,
            Some(next) if next.is_ascii_alphabetic() => self.word()?,
            Some(next) => return self.fail(format!("`{next}` where a value should be")),
            None => return self.fail("the file ends where a value should be"),
        };
        Ok(Value { at, data })
    }

    fn object(&mut self, depth: usize) -> Result<Data, RtAppError> {
        self.next();
        let mut entries = Vec::new();
        loop {
            self.blanks()?;
            if self.take('}') {
                return Ok(Data::Object(entries));
            }
            let at = self.at;
            let Some(quote @ ('"' | '\'')) = self.peek() else {
                return self.fail("a key should be here, in quotes, or `}`");
            };
            let key = self.text(quote)?;
            self.blanks()?;
            let is_alone = matches!(self.peek(), Some(',' | '}'));
            if !is_alone && !self.take(':') {
                return self.fail(format!("`:` should follow the key `{key}`"));
            }
            self.blanks()?;
            let value = match self.peek() {
                Some(',' | '}') => Value { at: self.at, data: Data::Missing },
                _ => self.value(depth + 1)?,
            };
            entries.push(Entry { key, at, value });
            self.blanks()?;
            if !self.take(',') && self.peek() != Some('}') {
                return self.fail("`,` or `}` should follow a value");
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Data, RtAppError> {
        self.next();
        let mut values = Vec::new();
        loop {
            self.blanks()?;
            if self.take(']') {
                return Ok(Data::List(values));
            }
            values.push(self.value(depth + 1)?);
            self.blanks()?;
            if !self.take(',') && self.peek() != Some(']') {
                return self.fail("`,` or `]` should follow a value");
            }
        }
    }

    fn text(&mut self, quote: char) -> Result<String, RtAppError> {
        let begin = Place::new(self.at, "");
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                None => return Err(RtAppError::new(begin, format!("this string has no end: close it with {quote}"))),
                Some(next) if next == quote => return Ok(text),
                Some('\\') => text.push(self.escaped()?),
                Some(next) => text.push(next),
            }
        }
    }

    fn escaped(&mut self) -> Result<char, RtAppError> {
        Ok(match self.next() {
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some(same @ ('"' | '\\' | '/' | '\'')) => same,
            Some('u') => {
                let first = self.hex()?;
                let mut ahead = Parser { rest: self.rest, at: self.at };
                if (0xd800..0xdc00).contains(&first) && ahead.take('\\') && ahead.take('u') {
                    let second = ahead.hex()?;
                    if (0xdc00..0xe000).contains(&second) {
                        (self.rest, self.at) = (ahead.rest, ahead.at);
                        let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                        return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                }
                // As json-c does with half a pair.
                char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return self.fail("no such escape: the known ones are \\b \\f \\n \\r \\t \\\" \\\\ \\/ \\u"),
        })
    }

    fn hex(&mut self) -> Result<u32, RtAppError> {
        let mut code = 0;
        for _ in 0..4 {
            let Some(digit) = self.next().and_then(|next| next.to_digit(16)) else {
                return self.fail("four hexadecimal digits should follow \\u");
            };
            code = code * 16 + digit;
        }
        Ok(code)
    }

    fn number(&mut self) -> Result<Data, RtAppError> {
        let begin = self.rest;
        let at = self.at;
        while self.peek().is_some_and(|next| next.is_ascii_alphanumeric() || matches!(next, '-' | '+' | '.')) {
            self.next();
        }
        let text = &begin[..begin.len() - self.rest.len()];
        if let Ok(integer) = text.parse::<i64>() {
            return Ok(Data::Integer(integer));
        }
        if text.parse::<f64>().is_ok() || text.eq_ignore_ascii_case("-infinity") {
            return Ok(Data::Fraction);
        }
        Err(RtAppError::new(Place::new(at, ""), format!("`{text}` is no number")))
    }

    fn word(&mut self) -> Result<Data, RtAppError> {
        let begin = self.rest;
        let at = self.at;
        while self.peek().is_some_and(|next| next.is_ascii_alphanumeric()) {
            self.next();
        }
        let word = &begin[..begin.len() - self.rest.len()];
        match word.to_ascii_lowercase().as_str() {
            "true" => Ok(Data::Bool(true)),
            "false" => Ok(Data::Bool(false)),
            "null" => Ok(Data::Null),
            "nan" | "infinity" => Ok(Data::Fraction),
            _ => Err(RtAppError::new(Place::new(at, ""), format!("`{word}` is no value; strings stand in quotes"))),
        }
    }
}
