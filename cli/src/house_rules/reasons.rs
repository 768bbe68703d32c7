//! What stands after `SAFETY:` is why the code is sound, and not where else that is said.

use super::{assert_none, files};

/// The fewest words that can be a reason.
const WORDS_LEAST: usize = 5;

/// How a reason begins that is another one's.
const OTHERS: &[&str] =
    &["as above", "as at", "as for", "as in", "like", "same", "see", "the caller's promise", "the promise of"];

/// Each reason in a text, with the number of its first line. It may go on in further lines.
fn reasons(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let reason = |(at, line): (usize, &&str)| {
        let first = line.strip_prefix("// SAFETY:")?;
        let further = lines[at + 1..].iter().map_while(|line| line.strip_prefix("// "));
        Some((at + 1, further.fold(first.trim().to_owned(), |reason, line| reason + " " + line)))
    };
    lines.iter().enumerate().filter_map(reason).collect()
}

/// Whether something is left of a reason without what is another one's.
fn is_its_own(reason: &str) -> bool {
    let of_another =
        |begin: &&str| reason.strip_prefix(*begin).is_some_and(|rest| !rest.starts_with(char::is_alphabetic));
    let own = match OTHERS.iter().any(of_another) || reason.starts_with("as `") {
        true => reason.split_once([';', ':', '.']).map_or("", |(_, own)| own),
        false => reason,
    };
    own.split_whitespace().count() >= WORDS_LEAST
}

#[test]
fn each_reason_for_unsafe_code_is_one_of_its_own() {
    let (mut broken, mut seen) = (Vec::new(), 0);
    for (name, text) in files("rs") {
        let reasons = reasons(&text);
        seen += reasons.len();
        let bad = reasons.into_iter().filter(|(_, reason)| !is_its_own(reason));
        broken.extend(bad.map(|(line, reason)| format!("{name}:{line}: {reason}")));
    }
    assert!(seen > 300, "only {seen} reasons were found");
    assert_none(&broken, "what is after SAFETY: is why this is sound, in five words at least");
}

#[test]
fn reasons_are_told_from_words_that_are_none() {
    let text = "fn f() {\n    // SAFETY: the map has\n    // a stride for each CPU.\n    unsafe {}\n}\n// SAFETY: as in `f`.\n";
    let found = reasons(text);
    assert_eq!(found, [(2, "the map has a stride for each CPU.".to_owned()), (6, "as in `f`.".to_owned())]);
    assert!(is_its_own(&found[0].1) && is_its_own("no other CPU sees it until it is published."));
    assert!(is_its_own("as in `place`; aligned, because the map and the stride are."));
    let none = [
        "as in `f`.",
        "as `f` says; it is so.",
        "the caller's promise.",
        "the promise of `new`; it is so.",
        "as for `create`, which is made in the same way.",
        "see above",
        "a new map.",
        "",
    ];
    for reason in none {
        assert!(!is_its_own(reason), "{reason}");
    }
}
