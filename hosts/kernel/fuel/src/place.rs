//! Which place of the source a place in a program is of.

use super::line::Line;
use std::{collections::HashMap, ops::Range};

/// The place of the source that some lines of a function are of: in the author's own files if possible, be it a place
/// before them, rather than in what they use.
pub(super) fn place(files: &HashMap<u32, String>, lines: Range<usize>, function: &[&str]) -> String {
    let sources = |lines: Range<usize>| function[lines].iter().filter_map(|line| source(files, line));
    let inside = sources(lines.clone()).min_by_key(|(file, _)| distance(file));
    let before = || sources(0..lines.start).rev().find(|(file, _)| distance(file) == 0);
    let place = inside.filter(|(file, _)| distance(file) == 0).or_else(before).or(inside);
    let place = place.or_else(|| sources(0..function.len()).min_by_key(|(file, _)| distance(file)));
    place.map_or("a place that the compiler does not tell".to_owned(), |(file, line)| format!("{file}:{line}"))
}

/// File and line, of a line that tells them.
pub(super) fn source<'f>(files: &'f HashMap<u32, String>, line: &str) -> Option<(&'f str, u32)> {
    let Line::Directive("loc", rest) = Line::read(line) else { return None };
    let mut numbers = rest.split_whitespace().map_while(|number| number.parse().ok());
    let (file, line) = (numbers.next()?, numbers.next()?);
    files.get(&file).filter(|_| line > 0).map(|file| (file.as_str(), line))
}

/// How far from a policy's author a source file is.
pub(super) fn distance(file: &str) -> u32 {
    if ["library/", "registry/", "/"].iter().any(|start| file.starts_with(start)) {
        2
    } else {
        u32::from(
            [
                "framework/ekiden/",
                "framework/abi/",
                "framework/hints/",
                "framework/lock/",
                "observe/recording/",
                "hosts/kernel/",
            ]
            .iter()
            .any(|start| file.starts_with(start)),
        )
    }
}
