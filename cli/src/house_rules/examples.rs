//! Every public item of the crate that policies are written against has an example that runs, and every method is in one.

use std::collections::BTreeMap;

use super::{assert_none, files};

/// Where the items are that the crate shows, in its own sources or in those that it takes them from.
const SOURCES: [&str; 4] =
    ["framework/ekiden/src/", "framework/abi/src/", "framework/hints/src/", "framework/macros/src/"];

/// What the crate calls by the same name and shows elsewhere: the derive macros stand at their traits.
const MACROS: [&str; 3] = ["policy", "policies", "debug"];

/// An item of the crate as its source declares it. The example of an attribute stands where the crate takes the attribute from its macros.
const KINDS: [&str; 8] = ["struct", "enum", "trait", "fn", "const", "type", "macro_rules!", "use ekiden_macros::"];

/// The names that the crate's root shows, but those for hosts.
fn shown(root: &str) -> Vec<String> {
    let root = root.split("#[doc(hidden)]\npub mod host").next().unwrap_or_default();
    let mut names: Vec<String> = Vec::new();
    for item in root.split("\npub use ").skip(1) {
        let item = item.split(';').next().unwrap_or_default();
        let list = item.rsplit("::").next().unwrap_or_default();
        names.extend(list.trim_matches(['{', '}']).split(',').map(|name| name.trim().to_owned()));
    }
    names.push("CpuId".into());
    names.extend(MACROS.map(str::to_owned));
    names.retain(|name| !name.is_empty());
    names
}

/// The name of the item that this line declares, if it is a public one.
fn declared(line: &str) -> Option<&str> {
    let rest = line.trim_start();
    // Some are declared by a macro, which has the name first.
    let rest = match rest.strip_prefix("pub ") {
        Some(rest) => {
            rest.strip_prefix("const fn ").or_else(|| KINDS.iter().find_map(|kind| rest.strip_prefix(kind)))?
        }
        None => rest.strip_prefix("macro_rules! ").or_else(|| rest.split_once(", ").map(|_| rest))?,
    };
    let name = rest.trim_start();
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// The lines of comments above a line, past its attributes.
fn comment_above<'a>(lines: &[&'a str], at: usize) -> Vec<&'a str> {
    let above = lines[..at].iter().rev().map(|line| line.trim_start());
    above.skip_while(|line| line.starts_with('#')).take_while(|line| line.starts_with("///")).collect()
}

/// The code in the comments of a file.
fn examples(text: &str) -> String {
    let mut is_code = false;
    let mut code = String::new();
    for line in text.lines().map(str::trim_start) {
        let Some(line) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else { continue };
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

/// The type whose methods follow, of what stands behind `impl`.
fn implemented(head: &str) -> &str {
    let (mut depth, mut begin) = (0, 0);
    if head.starts_with('<') {
        for (at, letter) in head.char_indices() {
            depth += i32::from(letter == '<') - i32::from(letter == '>');
            if depth == 0 {
                begin = at + 1;
                break;
            }
        }
    }
    let head = head[begin..].trim_start();
    head.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

#[test]
fn every_item_that_authors_are_shown_has_an_example() {
    let sources: BTreeMap<String, String> =
        files("rs").into_iter().filter(|(name, _)| SOURCES.iter().any(|place| name.starts_with(place))).collect();
    let names = shown(&sources["framework/ekiden/src/lib.rs"]);
    assert!(names.len() > 40, "only {names:?} were found");
    let mut broken = Vec::new();
    for name in names {
        let mut places = Vec::new();
        for (file, text) in &sources {
            let lines: Vec<&str> = text.lines().collect();
            for at in (0..lines.len()).filter(|at| declared(lines[*at]) == Some(&name)) {
                let comment = comment_above(&lines, at);
                if !comment.is_empty() {
                    places.push((format!("{file}:{}", at + 1), comment.iter().any(|line| line.contains("```"))));
                }
            }
        }
        if !places.iter().any(|(_, has_example)| *has_example) {
            broken.push(format!("{name}, {places:?}"));
        }
    }
    assert_none(&broken, "each item that framework/ekiden shows has an example in its documentation");
}

#[test]
fn every_method_that_authors_are_shown_is_in_an_example() {
    let sources: Vec<(String, String)> =
        files("rs").into_iter().filter(|(name, _)| SOURCES.iter().any(|place| name.starts_with(place))).collect();
    let code: String = sources.iter().map(|(_, text)| examples(text)).collect();
    let names = shown(&sources.iter().find(|(name, _)| name == "framework/ekiden/src/lib.rs").unwrap().1);
    let (mut broken, mut seen) = (Vec::new(), 0);
    for (file, text) in &sources {
        let lines: Vec<&str> = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().lines().collect();
        // The type whose block a line is in.
        let mut of = None;
        for (at, line) in lines.iter().enumerate() {
            if let Some(head) = line.strip_prefix("impl").filter(|head| !head.contains(" for ")) {
                of = names.iter().find(|name| *name == implemented(head));
            } else if line.starts_with('}') {
                of = None;
            }
            let (Some(of), Some(name)) = (of, declared(line).filter(|_| line.contains(" fn "))) else { continue };
            if lines[at.saturating_sub(3)..at].iter().any(|line| line.contains("#[doc(hidden)]"))
                || !line.starts_with("    pub ")
            {
                continue;
            }
            seen += 1;
            let calls = [
                format!(".{name}("),
                format!("::{name}("),
                format!("::{name}::<"),
                format!(".{name}::<"),
                format!("::{name})"),
            ];
            if !calls.iter().any(|call| code.contains(call.as_str())) {
                broken.push(format!("{file}:{}: {of}::{name}", at + 1));
            }
        }
    }
    assert!(seen > 100, "only {seen} methods were found");
    assert_none(&broken, "each method of what framework/ekiden shows is called in an example");
}

#[test]
fn items_and_their_examples_are_read_as_they_are_meant() {
    assert_eq!(declared("pub struct CpuMask {"), Some("CpuMask"));
    assert_eq!(declared("    pub const fn number(self) -> u64 {"), Some("number"));
    assert_eq!(declared("    PerLlc, llcs, llc"), Some("PerLlc"));
    assert_eq!(declared("let x = 1;"), None);
    assert_eq!(
        shown("a\npub use x::{A, b};\npub use y::C;\n#[doc(hidden)]\npub mod host {\n    pub use z::D;"),
        ["A", "b", "C", "CpuId", "policy", "policies", "debug"]
    );
    assert_eq!(implemented("<P, K: Ord<u8>> OrderedQueue<P, K> {"), "OrderedQueue");
    assert_eq!(implemented(" CpuMask {"), "CpuMask");
    let lines = ["/// One.", "///", "/// ```", "#[derive(Debug)]", "pub struct A;"];
    assert_eq!(comment_above(&lines, 4).len(), 3);
    assert_eq!(examples("/// Text.\n/// ```\n/// a.b();\n/// ```\n/// c.d();\n").trim(), "a.b();");
}
