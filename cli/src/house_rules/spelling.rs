//! Comments and documents are in British English.

use super::{assert_none, files};

/// Parts of words that British English spells otherwise.
const AMERICAN: &[&str] = &[
    "analyz",
    "behavior",
    "canceled",
    "canceling",
    "center",
    "color",
    "defense",
    "emphasiz",
    "favor",
    "finaliz",
    "gray",
    "honor",
    "initializ",
    "labeled",
    "labeling",
    "learned",
    "minimiz",
    "modeled",
    "modeling",
    "neighbor",
    "normaliz",
    "optimiz",
    "organiz",
    "prioritiz",
    "recogniz",
    "serializ",
    "signaled",
    "summariz",
    "synchroniz",
    "utiliz",
];

/// The comments that begin a line of a source file, or all lines of a document, with their numbers; without blocks of code.
fn prose(text: &str, is_document: bool) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let lines = (1..).zip(text.lines()).filter_map(|(number, line)| {
        let line = line.trim_start();
        let comment = || ["//", "/*", "* "].iter().find_map(|begin| line.strip_prefix(begin));
        let prose = if is_document { line } else { comment()?.trim_start_matches(['/', '!', '*', ' ']) };
        let is_fence = prose.starts_with("```");
        in_code ^= is_fence;
        (!in_code && !is_fence).then_some((number, prose))
    });
    lines.collect()
}

/// The American spellings in a line. Names in `code`, paths and "quotations" are as others spell them.
fn american(line: &str) -> Vec<&str> {
    let own = line.split('`').step_by(2).flat_map(|text| text.split('"').step_by(2));
    let words = own.flat_map(str::split_whitespace).filter(|word| !word.contains(['/', '_']) && !word.contains("::"));
    words.filter(|word| AMERICAN.iter().any(|part| word.to_lowercase().contains(part))).collect()
}

#[test]
fn comments_and_documents_are_in_british_english() {
    let (mut broken, mut seen) = (Vec::new(), 0);
    for extension in ["rs", "c", "h", "ts", "md"] {
        for (name, text) in files(extension) {
            let lines = prose(&text, extension == "md");
            seen += lines.len();
            let found =
                lines.into_iter().flat_map(|(number, line)| american(line).into_iter().map(move |it| (number, it)));
            broken.extend(found.map(|(number, word)| format!("{name}:{number}: {word}")));
        }
    }
    assert!(seen > 10_000, "only {seen} lines were found");
    assert_none(&broken, "a word is spelt as in British English, but for names in `code`");
}

#[test]
fn american_spellings_are_told_from_names_and_quotations() {
    let text =
        "/// Optimizes.\n/// ```\n/// serializes();\n/// ```\nlet color = 1; // colors\n    // Neighbors, grayed.\n";
    let lines = prose(text, false);
    assert_eq!(lines, [(1, "Optimizes."), (6, "Neighbors, grayed.")]);
    assert_eq!(american(lines[1].1), ["Neighbors,", "grayed."]);
    assert!(
        american("`color`, \"optimization modules\", a/color.rs, serde::Serializer and neighbours' size").is_empty()
    );
    assert_eq!(prose("# A\n```\ncolor\n```\nCenter\n", true), [(1, "# A"), (5, "Center")]);
}
