//! Each point of the changelog says what it changes for those who have traces, modules or expectations.

use std::fs;

use super::{assert_none, root};

/// What a label names.
const NAMED: [&str; 4] = ["None of the three", "ecisions", "race format", "ernel ABI"];

/// The points under a heading, each on one line.
fn points(section: &str) -> impl Iterator<Item = String> {
    section.split("\n- ").skip(1).map(|point| point.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The label of a point: what stands in italics at its end.
fn label(point: &str) -> Option<&str> {
    point.strip_suffix('*')?.rsplit_once(" *").map(|(_, label)| label)
}

#[test]
fn each_point_of_the_changelog_ends_with_its_label() {
    let text = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let all: Vec<String> = text.split("\n## ").skip(1).flat_map(points).collect();
    assert!(all.len() > 100, "only {} points were found", all.len());
    let is_labelled = |point: &String| label(point).is_some_and(|label| NAMED.iter().any(|name| label.contains(name)));
    let bare = all.iter().filter(|point| !is_labelled(point)).map(|point| point.chars().take(80).collect());
    assert_none(&bare.collect::<Vec<String>>(), "a point says in italics at its end which of the three it changes");
}
