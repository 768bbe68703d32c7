//! Counts unsafe code: lines and places.
//!
//! It works on tokens, not on syntax trees, so that what stands in macros is counted too. Not counted: code in other
//! languages, and what macros of other crates expand to.

use std::{
    collections::BTreeSet,
    fs, io,
    ops::AddAssign,
    path::{Path, PathBuf},
};

use proc_macro2::{Delimiter, Group, LexError, TokenStream, TokenTree};
use serde::{Deserialize, Serialize};
use walkdir::WalkDir;

/// Why source could not be counted.
#[derive(Debug, thiserror::Error)]
pub enum CountError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}; check its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is no Rust.
    #[error("cannot understand {}: {reason}; does it compile?", path.display())]
    Lex {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// How much code there is, and how much of it is unsafe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsafeCount {
    /// Lines with code on them: neither blank nor only comment.
    pub lines: usize,
    /// Lines of these that are inside an unsafe block, function or implementation.
    pub unsafe_lines: usize,
    /// Unsafe blocks.
    pub blocks: usize,
    /// Unsafe functions.
    pub functions: usize,
    /// Unsafe implementations and traits, and declarations of foreign functions.
    pub items: usize,
    /// Unsafe attributes, such as `#[unsafe(no_mangle)]`.
    pub attributes: usize,
}

impl UnsafeCount {
    /// How many places there are that are unsafe.
    pub fn places(&self) -> usize {
        self.blocks + self.functions + self.items + self.attributes
    }
}

impl AddAssign for UnsafeCount {
    fn add_assign(&mut self, other: Self) {
        self.lines += other.lines;
        self.unsafe_lines += other.unsafe_lines;
        self.blocks += other.blocks;
        self.functions += other.functions;
        self.items += other.items;
        self.attributes += other.attributes;
    }
}

/// Counts in all `.rs` files under a directory, but for those that are modules of unit tests.
pub fn count_tree(directory: &Path) -> Result<UnsafeCount, CountError> {
    let mut texts = Vec::new();
    for entry in WalkDir::new(directory).sort_by_file_name() {
        let entry = entry.map_err(|error| CountError::Read {
            path: error.path().unwrap_or(directory).to_owned(),
            source: error.into(),
        })?;
        let path = entry.into_path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).map_err(|source| CountError::Read { path: path.clone(), source })?;
            texts.push((path, text));
        }
    }
    let tests: BTreeSet<PathBuf> = texts.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    let mut total = UnsafeCount::default();
    for (path, text) in texts.iter().filter(|(path, _)| !tests.contains(path)) {
        let lex = |error: LexError| CountError::Lex { path: path.clone(), reason: error.to_string() };
        total += count_text(text).map_err(lex)?;
    }
    Ok(total)
}

/// The files of the modules that a file declares for tests only.
fn test_modules(path: &Path, text: &str) -> Vec<PathBuf> {
    let parent = path.parent().unwrap_or(Path::new(""));
    let owns_directory = ["lib.rs", "main.rs", "mod.rs"].iter().any(|name| path.ends_with(name));
    let directory = if owns_directory { parent.to_owned() } else { path.with_extension("") };
    let declarations =
        text.split("#[cfg(test)]").skip(1).map(|rest| rest.lines().map(str::trim).find(|line| !line.is_empty()));
    declarations
        .flatten()
        .filter_map(|line| line.rsplit_once("mod ")?.1.strip_suffix(';'))
        .map(|module| directory.join(format!("{module}.rs")))
        .collect()
}

/// Counts in the text of a file. Unit tests (`#[cfg(test)]` modules) are left out.
pub fn count_text(text: &str) -> Result<UnsafeCount, LexError> {
    find_unsafe(text).map(|(count, _)| count)
}

/// Counts unsafe code, and returns the line of the first place, too.
pub fn find_unsafe(text: &str) -> Result<(UnsafeCount, Option<usize>), LexError> {
    let mut counter = Counter::default();
    counter.walk(text.parse()?);
    let unsafe_lines = counter.unsafe_lines.intersection(&counter.lines).count();
    Ok((UnsafeCount { lines: counter.lines.len(), unsafe_lines, ..counter.count }, counter.first))
}

#[derive(Default)]
struct Counter {
    lines: BTreeSet<usize>,
    unsafe_lines: BTreeSet<usize>,
    count: UnsafeCount,
    first: Option<usize>,
}

/// Attributes that are unsafe, without saying so before the edition of 2024.
const UNSAFE_ATTRIBUTES: [&str; 3] = ["no_mangle", "export_name", "link_section"];

impl Counter {
    fn walk(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            let rest = &tokens[at..];
            if let Some(skipped) = not_code(rest) {
                at += skipped;
                continue;
            }
            if is(&rest[0], "unsafe") {
                self.found(rest);
            } else if is_unsafe_attribute(rest) {
                self.count.attributes += 1;
                self.note(rest);
            } else if is(&rest[0], "global_asm") && rest.get(1).is_some_and(|token| is_punct(token, '!')) {
                self.count.items += 1;
                self.note(rest);
            }
            let span = rest[0].span();
            match &rest[0] {
                TokenTree::Group(group) => {
                    self.lines.extend([group.span_open().start().line, group.span_close().end().line]);
                    self.walk(group.stream());
                }
                _ => self.lines.extend(span.start().line..=span.end().line),
            }
            at += 1;
        }
    }

    fn note(&mut self, tokens: &[TokenTree]) {
        self.first = self.first.or(Some(tokens[0].span().start().line));
    }

    /// `tokens` begin with the word `unsafe`: what is it that is unsafe?
    fn found(&mut self, tokens: &[TokenTree]) {
        let mut next = 1;
        let foreign = tokens.get(next).is_some_and(|token| is(token, "extern"));
        if foreign {
            next += 1;
            next += usize::from(matches!(tokens.get(next), Some(TokenTree::Literal(_))));
        }
        let after = tokens.get(next + 1);
        let kind = match tokens.get(next) {
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace && foreign => &mut self.count.items,
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => &mut self.count.blocks,
            Some(TokenTree::Group(_)) => &mut self.count.attributes,
            // Without a name it is only the type of one.
            Some(token) if is(token, "fn") && matches!(after, Some(TokenTree::Ident(_) | TokenTree::Punct(_))) => {
                &mut self.count.functions
            }
            Some(token) if is(token, "impl") || is(token, "trait") => &mut self.count.items,
            _ => return,
        };
        *kind += 1;
        self.note(tokens);
        let end = tokens.iter().find(|token| brace(token).is_some() || is_punct(token, ';')).unwrap_or(&tokens[0]);
        let end = brace(end).map_or(end.span(), Group::span_close);
        // An attribute makes nothing unsafe but itself.
        if !matches!(tokens.get(next), Some(TokenTree::Group(group)) if group.delimiter() != Delimiter::Brace) {
            self.unsafe_lines.extend(tokens[0].span().start().line..=end.end().line);
        }
    }
}

/// Whether an attribute begins here that is unsafe, and does not say so.
fn is_unsafe_attribute(tokens: &[TokenTree]) -> bool {
    let [sign, TokenTree::Group(group), ..] = tokens else { return false };
    let first = group.stream().into_iter().next();
    is_punct(sign, '#') && first.is_some_and(|token| UNSAFE_ATTRIBUTES.iter().any(|word| is(&token, word)))
}

/// How many tokens at the beginning are documentation or a module of unit tests.
fn not_code(tokens: &[TokenTree]) -> Option<usize> {
    if !is_punct(&tokens[0], '#') {
        return None;
    }
    let inner = tokens.get(1).is_some_and(|token| is_punct(token, '!'));
    let attribute = 1 + usize::from(inner);
    let TokenTree::Group(group) = tokens.get(attribute)? else { return None };
    let text = group.stream().to_string().replace(' ', "");
    if text.starts_with("doc=") {
        return Some(attribute + 1);
    }
    if text != "cfg(test)" || !tokens.get(attribute + 1).is_some_and(|token| is(token, "mod")) {
        return None;
    }
    let end = tokens.iter().position(|token| brace(token).is_some() || is_punct(token, ';'))?;
    Some(end + 1)
}

fn is(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == word)
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

fn brace(token: &TokenTree) -> Option<&Group> {
    match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group),
        _ => None,
    }
}

/// The lines of code of a text, counted in the same way.
pub fn code_lines(text: &str) -> Result<usize, LexError> {
    count_text(text).map(|count| count.lines)
}

/// The lines of code of a text in C.
pub fn c_lines(text: &str) -> usize {
    let mut rest = text;
    let mut code = String::new();
    // A comment becomes the line breaks in it. That a string may contain what looks like one is left aside.
    while let Some(at) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        code += &rest[..at];
        let (comment, after) = if rest[at..].starts_with("/*") {
            let end = rest[at..].find("*/").map_or(rest.len(), |end| at + end + 2);
            (&rest[at..end], &rest[end..])
        } else {
            let end = rest[at..].find('\n').map_or(rest.len(), |end| at + end);
            ("", &rest[end..])
        };
        code.extend(comment.chars().filter(|character| *character == '\n'));
        rest = after;
    }
    code += rest;
    code.lines().filter(|line| !line.trim().is_empty()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> UnsafeCount {
        count_text(text).unwrap()
    }

    #[test]
    fn comments_blank_lines_and_unit_tests_are_no_code() {
        let text = "//! What it is.\n\n/// Doc.\nfn f() {\n    // Why.\n    g();\n}\n#[cfg(test)]\nmod tests {\n fn t() { unsafe { } }\n}\n";
        assert_eq!(count(text), UnsafeCount { lines: 3, ..UnsafeCount::default() });
    }

    #[test]
    fn blocks_functions_items_and_attributes_are_told_apart() {
        let text = "fn f() {\n unsafe {\n  g();\n }\n}\nunsafe fn h() {\n i()\n}\nunsafe impl Send for X {}\n\
                    unsafe extern \"C\" {\n fn j();\n}\n#[unsafe(no_mangle)]\nextern \"C\" fn k() {}\n";
        let found = count(text);
        assert_eq!((found.blocks, found.functions, found.items, found.attributes), (1, 1, 2, 1));
        assert_eq!((found.lines, found.unsafe_lines), (14, 3 + 3 + 1 + 3));
    }

    #[test]
    fn files_of_unit_tests_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write("lib.rs", "mod a;\n#[cfg(test)]\nmod tests;\n");
        write("a.rs", "fn f() {}\n");
        write("tests.rs", "fn t() {\n unsafe {}\n}\n");
        assert_eq!(count_tree(directory.path()).unwrap(), UnsafeCount { lines: 2, ..UnsafeCount::default() });
    }

    #[test]
    fn the_type_of_an_unsafe_function_is_not_unsafe() {
        assert_eq!(count("struct S { f: unsafe extern \"C\" fn(u32) }").functions, 0);
        assert_eq!(count("unsafe extern \"C\" fn f() {}").functions, 1);
    }

    #[test]
    fn what_is_unsafe_without_the_word_counts_and_the_first_line_is_told() {
        let text = "fn f() {}\n#[no_mangle]\npub fn g() {}\ncore::arch::global_asm!(\"cli\");\nfn h() { unsafe {} }\n";
        let (found, first) = find_unsafe(text).unwrap();
        assert_eq!((found.blocks, found.items, found.attributes, first), (1, 1, 1, Some(2)));
        assert_eq!(find_unsafe("#[must_use]\nfn f() {}\n").unwrap().1, None);
    }

    #[test]
    fn unsafe_in_a_macro_is_found() {
        assert_eq!(count("macro_rules! m { ($e:expr) => { unsafe { $e } }; }").blocks, 1);
    }

    #[test]
    fn comments_in_c_are_no_code() {
        assert_eq!(c_lines("/*\n * What it is.\n */\nint f(void) // why\n{\n\n}\n/* end */\n"), 3);
    }

    #[test]
    fn what_is_no_rust_is_refused_with_its_file() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.rs"), "fn f( {").unwrap();
        let message = count_tree(directory.path()).unwrap_err().to_string();
        assert!(message.contains("a.rs"), "{message}");
    }
}
