//! C as words: the functions of a file, what each calls, and with what. The kernel's compiler is not everywhere.

/// A function in C: its file and name, what stands before its body, and that.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) file: String,
    pub(super) name: String,
    pub(super) head: Vec<String>,
    pub(super) body: Vec<String>,
}

/// The words, numbers, strings and signs of C, without comments and lines for the preprocessor.
pub(super) fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut rest = text;
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    while let Some(c) = rest.chars().next() {
        let len = if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if c == '#' {
            let end = rest.match_indices('\n').find(|(at, _)| !rest[..*at].ends_with('\\'));
            end.map_or(rest.len(), |(at, _)| at)
        } else if c.is_whitespace() {
            1
        } else {
            let len = match c {
                '"' | '\'' => {
                    let mut is_escaped = false;
                    let end = rest.bytes().skip(1).position(|byte| {
                        let ends = byte == c as u8 && !is_escaped;
                        is_escaped = byte == b'\\' && !is_escaped;
                        ends
                    });
                    end.map_or(rest.len(), |at| at + 2)
                }
                _ if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                _ => {
                    let signs =
                        ["<<=", ">>=", "->", "++", "--", "==", "!=", "<=", ">=", "&&", "||", "+=", "-=", "|=", "&="];
                    signs.iter().find(|sign| rest.starts_with(**sign)).map_or(c.len_utf8(), |sign| sign.len())
                }
            };
            words.push(rest[..len].to_owned());
            len
        };
        rest = &rest[len..];
    }
    words
}

/// Where the bracket at `open` is closed.
fn closed(words: &[String], open: usize) -> usize {
    let mut depth = 0;
    for (at, word) in words.iter().enumerate().skip(open) {
        match word.as_str() {
            "(" | "{" | "[" => depth += 1,
            ")" | "}" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    panic!("a bracket stays open: {}", words[open..].join(" "));
}

/// The functions of a file, and what stands outside of them.
pub(super) fn parts(file: &str, text: &str) -> (Vec<Function>, Vec<String>) {
    let words = words(text);
    let (mut functions, mut outside, mut begin, mut at) = (Vec::new(), Vec::new(), 0, 0);
    while at < words.len() {
        match words[at].as_str() {
            "(" | "[" => at = closed(&words, at),
            "{" => {
                let end = closed(&words, at);
                let head = &words[begin..at];
                if head.last().is_some_and(|word| word == ")") && !head.iter().any(|word| word == "=") {
                    let open = (0..head.len()).find(|open| head[*open] == "(" && closed(head, *open) == head.len() - 1);
                    let open = open.expect("the parameters begin somewhere");
                    let name = if head[open - 1] == "BPF_PROG" { &head[open + 1] } else { &head[open - 1] };
                    let body = words[at + 1..end].to_vec();
                    functions.push(Function { file: file.into(), name: name.clone(), head: head.to_vec(), body });
                    begin = end + 1;
                }
                at = end;
            }
            ";" => {
                outside.extend_from_slice(&words[begin..=at]);
                begin = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    (functions, outside)
}

impl Function {
    /// What it calls, by name, with where that stands in its body.
    pub(super) fn calls(&self) -> impl Iterator<Item = (usize, &str)> {
        const NONE: [&str; 7] = ["if", "for", "while", "switch", "return", "sizeof", "typeof"];
        self.body.windows(2).enumerate().filter_map(|(at, pair)| {
            let is_member = at > 0 && ["->", "."].contains(&self.body[at - 1].as_str());
            let is_name = pair[0].starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            (pair[1] == "(" && is_name && !is_member && !NONE.contains(&pair[0].as_str()))
                .then_some((at, pair[0].as_str()))
        })
    }

    /// The arguments of the call at `at`.
    pub(super) fn args(&self, at: usize) -> Vec<&[String]> {
        let (mut args, mut begin, end) = (Vec::new(), at + 2, closed(&self.body, at + 1));
        let mut now = begin;
        while now < end {
            match self.body[now].as_str() {
                "(" | "{" | "[" => now = closed(&self.body, now),
                "," => {
                    args.push(&self.body[begin..now]);
                    begin = now + 1;
                }
                _ => {}
            }
            now += 1;
        }
        args.push(&self.body[begin..end]);
        args
    }

    pub(super) fn place(&self) -> String {
        format!("{}, {}", self.file, self.name)
    }
}

/// Whether these words stand there one after the other.
pub(super) fn said(body: &[String], text: &str) -> bool {
    let wanted = words(text);
    body.windows(wanted.len()).any(|found| found == wanted)
}
