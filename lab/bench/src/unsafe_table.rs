//! How much unsafe code there is in each part, as table 2 of papers/000 has it.

use ekiden_build::UnsafeCount;
use serde::{Deserialize, Serialize};

use crate::{Judged, Limit, table};

/// One part of the project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Component {
    /// Where it is.
    pub name: String,
    /// `Rust`, `C` or `BPF C`; what is not Rust is all unsafe.
    pub language: String,
    /// Whether unsafe code may be there.
    pub may_be_unsafe: bool,
    /// How much there is.
    #[serde(flatten)]
    pub count: UnsafeCount,
}

/// Table 2 of papers/000 for this project.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnsafeTable {
    /// Always `count-unsafe`.
    pub bench: String,
    /// Its parts.
    pub components: Vec<Component>,
    /// What must be reached.
    pub limits: Vec<Judged>,
    /// Whether it is.
    pub passed: bool,
}

impl UnsafeTable {
    /// How much unsafe code there may be where none may be.
    pub const LIMIT: Limit = Limit { name: "unsafe places outside the hosts and the wire", at_most: 0.0 };

    /// Judges.
    pub fn new(components: Vec<Component>) -> Self {
        let strays = components
            .iter()
            .filter(|component| !component.may_be_unsafe)
            .map(|part| part.count.places())
            .sum::<usize>();
        let judged = Self::LIMIT.judge((!components.is_empty()).then_some(strays as f64));
        Self { bench: "count-unsafe".into(), components, passed: judged.met, limits: vec![judged] }
    }

    /// As tables.
    pub fn to_text(&self) -> String {
        let cells = |name: &str, language: &str, count: &UnsafeCount| {
            let share = 100.0 * count.unsafe_lines as f64 / count.lines.max(1) as f64;
            let numbers = [count.lines, count.unsafe_lines].map(|number| number.to_string());
            let places =
                [count.blocks, count.functions, count.items, count.attributes].map(|number| number.to_string());
            let mut row = vec![name.to_owned(), language.to_owned()];
            row.extend(numbers);
            row.push(format!("{share:.1} %"));
            row.extend(places);
            row
        };
        let mut rust = UnsafeCount::default();
        let rows: Vec<_> = self
            .components
            .iter()
            .map(|part| {
                if part.language == "Rust" {
                    rust += part.count;
                }
                cells(&part.name, &part.language, &part.count)
            })
            .collect();
        let heading =
            ["component", "language", "lines", "unsafe", "part", "blocks", "functions", "items", "attributes"];
        let rows = rows.into_iter().chain([cells("all Rust", "Rust", &rust)]);
        format!(
            "lines of code, unit tests and comments left out\n{}\n\n{}",
            table(&heading, rows),
            table(&["limit", "figure", "at most", "verdict"], self.limits.iter().map(Judged::cells)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_where_none_may_be_is_found() {
        let part = |may_be_unsafe, blocks| Component {
            name: "lab/x".into(),
            language: "Rust".into(),
            may_be_unsafe,
            count: UnsafeCount { lines: 9, unsafe_lines: 3 * blocks, blocks, ..UnsafeCount::default() },
        };
        assert!(UnsafeTable::new(vec![part(true, 1), part(false, 0)]).passed);
        assert!(!UnsafeTable::new(vec![part(true, 1), part(false, 1)]).passed);
        assert!(!UnsafeTable::new(Vec::new()).passed);
    }
}
