//! Every atomic that is shared is in the table of docs/orderings.md: who writes it, who reads it, and why that is enough.

use std::{collections::BTreeSet, fs};

use super::{assert_none, files, lines_without_tests, root};

/// Where memory is shared.
const PLACES: [&str; 3] = ["framework/", "hosts/", "observe/"];

/// An atomic: its file, its name, and the type that it is a field of; of a static none, and of a type that is nothing else no name.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Shared {
    file: String,
    of: String,
    name: String,
}

impl Shared {
    /// Whether a row of the table names it, of which these are the words: `Type::field`, the type as a whole, or the bare name beside its
    /// file or another field of the type. A row that names files is about no others.
    fn is_in(&self, row: &[&str]) -> bool {
        let Self { file, of, name } = self;
        let is_file = |word: &str| file.ends_with(word) && word.ends_with(".rs");
        let has = |wanted: &str| row.contains(&wanted);
        if row.iter().any(|word| word.ends_with(".rs")) && !row.iter().any(|word| is_file(word)) {
            return false;
        }
        let is_beside =
            || row.iter().any(|word| is_file(word) || word.split_once("::").is_some_and(|(of_it, _)| of_it == of));
        !of.is_empty() && (has(of) || has(&format!("{of}::{name}"))) || has(name) && is_beside()
    }
}

/// The atomics in a source file without its tests, as `cargo fmt` leaves it.
fn shared(file: &str, text: &str) -> Vec<Shared> {
    let mut found = Vec::new();
    let mut of: Option<&str> = None;
    for line in text.lines().take(lines_without_tests(file, text)) {
        let code = line.trim_start();
        if code.starts_with("//") {
            continue;
        }
        let rest = code.strip_prefix("pub").map_or(code, |rest| match rest.strip_prefix('(') {
            Some(rest) => rest.split_once(") ").map_or(rest, |(_, rest)| rest),
            None => rest.trim_start(),
        });
        let name_of = |rest: &'_ str| {
            rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default().to_owned()
        };
        let mut add = |of: &str, name: String| found.push(Shared { file: file.into(), of: of.into(), name });
        if let Some(name) = rest.strip_prefix("static ") {
            if name.split(" = ").next().is_some_and(is_atomic) {
                add("", name_of(name));
            }
        } else if let Some(name) = rest.strip_prefix("struct ") {
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
            if name.ends_with('{') {
                of = Some(&name[..end]);
            } else if is_atomic(name) {
                add(&name[..end], String::new());
            }
        } else if code.starts_with('}') {
            of = None;
        } else if let (Some(of), Some((name, type_))) = (of, rest.split_once(": ")) {
            if is_atomic(type_) {
                add(of, name_of(name));
            }
        }
    }
    found
}

fn is_atomic(type_: &str) -> bool {
    let atomics = ["Bool", "Ptr", "U8", "U16", "U32", "U64", "Usize", "I32", "I64"];
    atomics.iter().any(|atomic| type_.contains(&format!("Atomic{atomic}")))
}

/// The words in `code` of the first column of each row.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let cells = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    cells.map(|cell| cell.split('`').skip(1).step_by(2).collect()).collect()
}

#[test]
fn every_shared_atomic_is_in_the_table_of_orderings() {
    let text = fs::read_to_string(root().join("docs/orderings.md")).unwrap();
    let rows = rows(&text);
    let files = files("rs").into_iter().filter(|(name, _)| PLACES.iter().any(|place| name.starts_with(place)));
    let all: Vec<Shared> = files.flat_map(|(name, text)| shared(&name, &text)).collect();
    assert!(all.len() > 100, "only {} atomics were found", all.len());
    let missing = all.iter().filter(|shared| !rows.iter().any(|row| shared.is_in(row)));
    let missing: Vec<String> =
        missing.map(|shared| format!("{}: {}::{}", shared.file, shared.of, shared.name)).collect();
    assert_none(&missing, "docs/orderings.md says of every atomic why its orderings are enough");
    let known: BTreeSet<String> = all.iter().map(|shared| format!("{}::{}", shared.of, shared.name)).collect();
    let named = rows.iter().flatten().filter(|word| word.contains("::"));
    let gone: Vec<String> = named.filter(|word| !known.contains(**word)).map(|word| (*word).to_owned()).collect();
    assert_none(&gone, "docs/orderings.md names fields that are there");
}

#[test]
fn atomics_are_told_from_other_fields() {
    let text = "\
//! One.
static ON: AtomicBool = AtomicBool::new(false);
pub(crate) struct Told(AtomicU8);
pub struct Slot {
    /// Beside an AtomicU32.
    state: AtomicU64,
    pub(crate) pid: u32,
    pub(crate) ran: Vec<(AtomicU64, AtomicU64)>,
}

fn count(counter: &AtomicU64) {
    let one: AtomicU64 = AtomicU64::new(1);
}
#[cfg(test)]
mod tests {
    static OFF: AtomicBool = AtomicBool::new(true);
}
";
    let found = shared("a/src/b.rs", text);
    let names: Vec<_> = found.iter().map(|shared| (shared.of.as_str(), shared.name.as_str())).collect();
    assert_eq!(names, [("", "ON"), ("Told", ""), ("Slot", "state"), ("Slot", "ran")]);
    let table = "\n### Orderings\n\n| field | written by |\n| --- | --- |\n| `ON` (`b.rs`), `Told` | a |\n| `Slot::state`, `pid` | `ran` |\n";
    let rows = rows(table);
    let is_named = |shared: &Shared| rows.iter().any(|row| shared.is_in(row));
    assert_eq!(found.iter().map(is_named).collect::<Vec<_>>(), [true, true, true, false]);
}
