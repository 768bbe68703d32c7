//! The changelog is sorted by what its points change for those who have traces, modules or expectations.

use std::fs;

use super::{assert_none, root};

/// The headings, in their order. A label begins with one of them.
const KINDS: [&str; 4] = ["Decisions", "Trace format", "Kernel ABI", "None of the three"];

/// The first release has few points, and no headings.
const UNSORTED: &str = "0.1.0";

/// The text of each version; it begins with the version.
fn sections() -> Vec<String> {
    let text = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    text.split("\n## ").skip(1).map(str::to_owned).collect()
}

/// What stands before the first heading, then each heading with what is under it.
fn parts(section: &str) -> Vec<&str> {
    section.split("\n### ").collect()
}

/// The points of a part, each on one line.
fn points(part: &str) -> impl Iterator<Item = String> {
    part.split("\n- ").skip(1).map(on_one_line)
}

fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The label of a point: what stands in italics at its end.
fn label(point: &str) -> Option<&str> {
    point.strip_suffix('*')?.rsplit_once(" *").map(|(_, label)| label)
}

/// The kind of a point: what its label names first, unless it says later on what changes of an earlier one.
fn kind(point: &str) -> Option<usize> {
    let label = label(point)?;
    let kind = KINDS.iter().position(|kind| label.starts_with(kind))?;
    let in_order = KINDS[..kind].iter().all(|earlier| !label.contains(&format!("{earlier}:")));
    in_order.then_some(kind)
}

fn beginnings(points: impl Iterator<Item = String>) -> Vec<String> {
    points.map(|point| point.chars().take(80).collect()).collect()
}

#[test]
fn each_point_of_the_changelog_ends_with_its_label() {
    let sections = sections();
    let all: Vec<String> = sections.iter().flat_map(|section| parts(section)).flat_map(points).collect();
    assert!(all.len() > 100, "only {} points were found", all.len());
    let bare = beginnings(all.into_iter().filter(|point| kind(point).is_none()));
    assert_none(
        &bare,
        "a point says in italics at its end which of the three it changes, in the order of the headings",
    );
}

#[test]
fn each_point_of_the_changelog_stands_under_what_it_changes() {
    for section in sections().iter().filter(|section| !section.starts_with(UNSORTED)) {
        let parts = parts(section);
        let (top, parts) = (parts[0], &parts[1..]);
        let headings: Vec<_> = parts.iter().filter_map(|part| part.lines().next()).collect();
        assert_eq!(headings, KINDS, "the headings of a version");
        let elsewhere =
            parts.iter().enumerate().flat_map(|(at, part)| points(part).filter(move |it| kind(it) != Some(at)));
        let misplaced = beginnings(points(top).chain(elsewhere));
        assert_none(&misplaced, "a point stands under the heading that its label begins with");

        let [decisions, format, abi, none] = [0, 1, 2, 3].map(|at| points(parts[at]).count());
        let counts = format!(
            "{decisions} points change decisions, {format} others the trace format, {abi} others the kernel ABI; \
             {none} change none of the three."
        );
        assert!(on_one_line(top).ends_with(&counts), "what stands before the headings ends with: {counts}");
    }
}
