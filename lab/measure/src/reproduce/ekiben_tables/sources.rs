//! Table 2 of papers/000, and the lines of each policy: how much code there is, beside the paper's.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use ekiden_bench::{Component, Judged, UnsafeTable, table};
use ekiden_build::{UnsafeCount, code_lines, count_tree};
use serde::Serialize;

use super::PAPER;
use crate::bench::count_unsafe;

/// What policies share that balance load as the kernel does.
const BALANCE: &str = "balance";

/// A row of the paper's table, and which folders of ours do the same.
struct Counterpart {
    name: &'static str,
    language: &'static str,
    lines: usize,
    /// Not told of C.
    unsafe_lines: Option<usize>,
    /// The folders, or what they are in.
    ours: &'static [&'static str],
}

/// Papers/000, table 2. `framework` also has the engine: what decides in Ekiben-C which function of a scheduler is called.
const TABLE_2: [Counterpart; 5] = [
    Counterpart {
        name: "Ekiben-C",
        language: "C",
        lines: 2_411,
        unsafe_lines: None,
        ours: &["hosts/kernel/module", "hosts/kernel/include", "hosts/kernel/bpf"],
    },
    Counterpart {
        name: "Scheduler libEkiben",
        language: "Rust",
        lines: 962,
        unsafe_lines: Some(94),
        ours: &[
            "framework/abi",
            "framework/ekiden",
            "framework/engine",
            "framework/hints",
            "framework/host",
            "framework/lock",
            "framework/macros",
        ],
    },
    Counterpart {
        name: "Other libEkiben",
        language: "Rust",
        lines: 5_870,
        unsafe_lines: Some(2_858),
        ours: &["hosts/kernel/core", "hosts/kernel/policy", "hosts/kernel/rt", "hosts/kernel/sysroot"],
    },
    Counterpart {
        name: "Userspace Record",
        language: "Rust",
        lines: 95,
        unsafe_lines: Some(10),
        ours: &["observe/recording"],
    },
    Counterpart { name: "Replay", language: "Rust", lines: 646, unsafe_lines: Some(0), ours: &["hosts/replay"] },
];

/// A row of table 2.
#[derive(Debug, Serialize)]
struct Part {
    name: &'static str,
    language: &'static str,
    paper_lines: usize,
    paper_unsafe_lines: Option<usize>,
    ours: &'static [&'static str],
    lines: usize,
    unsafe_lines: Option<usize>,
}

/// Lines of a policy.
#[derive(Debug, Serialize)]
struct PolicyLines {
    policy: String,
    lines: usize,
    /// Lines of what it shares with others, which `lines` leaves out.
    shared: Option<usize>,
    /// The paper's, and how many lines that has.
    paper: Option<(&'static str, u32)>,
}

/// Counts of lines.
#[derive(Debug, Serialize)]
pub(super) struct Sources {
    parts: Vec<Part>,
    policies: Vec<PolicyLines>,
    /// Where unsafe code may be.
    pub(super) limits: Vec<Judged>,
}

impl Sources {
    pub(super) fn count(root: &Path, policies: &[String]) -> Result<Self> {
        Self::of(count_unsafe::count(root)?, root, policies)
    }

    fn of(counted: UnsafeTable, root: &Path, policies: &[String]) -> Result<Self> {
        let parts = TABLE_2.iter().map(|row| part(row, &counted.components)).collect();
        let policies = policies.iter().map(|policy| lines(&root.join("policies/src"), policy));
        let policies = policies.filter_map(Result::transpose).collect::<Result<_>>()?;
        Ok(Self { parts, policies, limits: counted.limits })
    }

    pub(super) fn to_text(&self) -> String {
        let unsafe_part = |lines: usize, unsafe_lines: Option<usize>| {
            unsafe_lines
                .map_or_else(String::new, |it| format!("{it} ({:.0} %)", 100.0 * it as f64 / lines.max(1) as f64))
        };
        let parts = self.parts.iter().map(|part| {
            let paper = unsafe_part(part.paper_lines, part.paper_unsafe_lines);
            let ours = unsafe_part(part.lines, part.unsafe_lines);
            [
                part.name.to_owned(),
                part.language.to_owned(),
                part.paper_lines.to_string(),
                paper,
                part.lines.to_string(),
                ours,
            ]
        });
        let policies = self.policies.iter().map(|policy| {
            let (name, lines) = policy.paper.map_or_else(Default::default, |(name, lines)| (name, lines.to_string()));
            let shared = policy.shared.map_or_else(String::new, |lines| format!("and {lines} in {BALANCE}"));
            [policy.policy.clone(), policy.lines.to_string(), shared, name.to_owned(), lines]
        });
        let folders = self.parts.iter().map(|part| format!("  {}: {}\n", part.name, part.ours.join(", ")));
        format!(
            "Table 2: lines of code, without comments and unit tests, and unsafe ones\n{}\nwhere ours are\n{}\n\
             Lines of each policy\n{}\n\n{}",
            table(&["", "", "paper", "unsafe", "lines", "unsafe"], parts),
            folders.collect::<String>(),
            table(&["policy", "lines", "shared", "paper", "lines"], policies),
            table(&["limit", "figure", "at most", ""], self.limits.iter().map(Judged::cells)),
        )
    }
}

fn part(row: &Counterpart, components: &[Component]) -> Part {
    let Counterpart { name, language, lines, unsafe_lines, ours } = *row;
    // Some of the folders with C have Rust as well, which is a row of its own; `BPF C` is C.
    let is_it = |part: &&Component| ours.contains(&part.name.as_str()) && part.language.ends_with(language);
    let mut count = UnsafeCount::default();
    components.iter().filter(is_it).for_each(|part| count += part.count);
    Part {
        name,
        language,
        paper_lines: lines,
        paper_unsafe_lines: unsafe_lines,
        ours,
        lines: count.lines,
        unsafe_lines: unsafe_lines.map(|_| count.unsafe_lines),
    }
}

/// Counts the lines of a policy that comes with Ekiden; `None` for any other.
fn lines(directory: &Path, policy: &str) -> Result<Option<PolicyLines>> {
    let path = directory.join(policy.replace('-', "_")).with_extension("rs");
    let Ok(text) = fs::read_to_string(&path) else { return Ok(None) };
    let lines = code_lines(&text).map_err(|error| anyhow::anyhow!("cannot understand {}: {error}", path.display()))?;
    let shares = text.contains(&format!("crate::{BALANCE}"));
    let shared = shares.then(|| count_tree(&directory.join(BALANCE)).context("cannot count what policies share"));
    Ok(Some(PolicyLines {
        policy: policy.to_owned(),
        lines,
        shared: shared.transpose()?.map(|count| count.lines),
        paper: PAPER.iter().find(|paper| paper.scheduler == policy).map(|paper| (paper.name, paper.lines)),
    }))
}

#[cfg(test)]
mod tests {
    use ekiden_build::Checkout;

    use super::*;
    use count_unsafe::of_this_checkout;

    fn counted(policies: &[&str]) -> Sources {
        let policies: Vec<String> = policies.iter().map(|policy| (*policy).to_owned()).collect();
        Sources::of(of_this_checkout().clone(), Checkout::find().unwrap().root(), &policies).unwrap()
    }

    #[test]
    fn every_folder_of_table_2_has_code_of_its_language() {
        let components = &of_this_checkout().components;
        for row in &TABLE_2 {
            for folder in row.ours {
                let is_it = |part: &&Component| part.name == *folder && part.language.ends_with(row.language);
                let lines = components.iter().find(is_it).map_or(0, |part| part.count.lines);
                assert!(lines > 0, "{folder} has no {}", row.language);
            }
        }
        let sources = counted(&[]);
        let lines = sources.parts.iter().map(|part| part.lines).sum::<usize>();
        let counted: usize = components.iter().map(|part| part.count.lines).sum();
        assert!(lines > 10_000 && lines < counted, "{lines} of {counted}");
        assert!(sources.parts.iter().all(|part| part.unsafe_lines.is_none_or(|it| it < part.lines)), "{sources:?}");
    }

    #[test]
    fn a_policy_has_the_lines_of_its_file_and_what_it_shares_apart() {
        let sources = counted(&["locality", "cfs", "global-fifo", "of-a-project"]);
        let names: Vec<&str> = sources.policies.iter().map(|policy| policy.policy.as_str()).collect();
        assert_eq!(names, ["locality", "cfs", "global-fifo"]);
        let [locality, cfs, _] = &sources.policies[..] else { panic!("{sources:?}") };
        assert_eq!((locality.paper, locality.shared, cfs.paper), (Some(("Locality", 203)), None, None));
        let file = Checkout::find().unwrap().root().join("policies/src/locality.rs");
        assert_eq!(locality.lines, code_lines(&fs::read_to_string(file).unwrap()).unwrap());
        assert!(cfs.shared.unwrap() > 100, "{cfs:?}");
    }

    #[test]
    fn tables_show_the_papers_lines_and_where_ours_are() {
        let text = counted(&["wfq", "cfs"]).to_text();
        for expected in ["2411", "2858 (49 %)", "646", "Replay: hosts/replay", "in balance", "unsafe places"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}
