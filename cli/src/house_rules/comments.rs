//! A comment on a declaration says what that is.

use super::{assert_none, files};

/// Begins something that belongs to a noun, which a reader has to guess where it is missing.
const PREPOSITIONS: [&str; 5] = ["Of", "By", "In", "At", "From"];

/// So short a comment that begins with one of [`PREPOSITIONS`] is no sentence.
const WORDS_MOST: usize = 6;

/// Begins something that says nothing without the line before it, which a page of documentation does not show beside it.
const POINTERS: [&str; 18] = [
    "See there",
    "Which.",
    "The same,",
    "The same;",
    "The same.",
    "The same as",
    "The same at",
    "The same for",
    "The same in",
    "The same of",
    "The same when",
    "The same while",
    "The same with",
    "That of",
    "Those",
    "So many",
    "The one",
    "This one",
];

/// A comment that begins with one of [`POINTERS`] and is longer than this says by its end what it points to.
const POINTER_WORDS_MOST: usize = 8;

/// The comments on declarations in a text, each with the number of its first line.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut comments: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (line, number) in text.lines().zip(1..) {
        let comment = line.trim_start().strip_prefix("///");
        match (comment, comments.last_mut()) {
            (Some(more), Some((_, before))) if goes_on => *before += more,
            (Some(first), _) => comments.push((number, first.trim().to_owned())),
            (None, _) => {}
        }
        goes_on = comment.is_some();
    }
    comments
}

fn begins_with(comment: &str, words: &str) -> bool {
    comment.strip_prefix(words).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
}

#[test]
fn a_comment_on_a_declaration_has_a_subject() {
    let has_none = |comment: &str| {
        let words: Vec<&str> = comment.split_whitespace().collect();
        let points_elsewhere = POINTERS.iter().any(|pointer| begins_with(comment, pointer));
        (words.len() <= POINTER_WORDS_MOST && points_elsewhere)
            || (words.len() <= WORDS_MOST && words.first().is_some_and(|first| PREPOSITIONS.contains(first)))
    };
    let (mut broken, mut seen) = (Vec::new(), 0);
    for (name, text) in files("rs") {
        let comments = comments(&text);
        seen += comments.len();
        let bad = comments.into_iter().filter(|(_, comment)| has_none(comment));
        broken.extend(bad.map(|(line, comment)| format!("{name}:{line}: {comment}")));
    }
    assert!(seen > 1000, "only {seen} comments were found");
    assert_none(
        &broken,
        "a comment says what a thing is, and not only of what, by what or in what, nor points to the line before it",
    );
}
