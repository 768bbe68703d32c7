//! `ekiden bench count-unsafe`: how much unsafe code there is, and where.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_bench::{Component, UnsafeTable};
use ekiden_build::{Checkout, UnsafeCount, c_lines, count_tree};

use super::{Output, Verdict};

/// Where unsafe Rust may be: in the hosts, in the lock under `SpinLock`, in what programs share with the kernel, and where coroutines change threads.
pub const MAY_BE_UNSAFE: &[&str] = &[
    "examples/two-level",
    "framework/lock",
    "framework/user",
    "hosts/agent",
    "hosts/kernel/core",
    "hosts/kernel/loader",
    "hosts/kernel/policy",
    "hosts/kernel/rt",
    "hosts/kernel/sysroot",
    "hosts/replay",
    "lab/explore",
    "lab/kernel-tests",
    "workload",
];

/// Where crates are; those without a folder of their own are in the root.
const PARENTS: &[&str] = &["", "framework", "examples", "machines", "observe", "hosts", KERNEL, "lab"];

/// The folder with the C code, too.
const KERNEL: &str = "hosts/kernel";

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  ekiden bench count-unsafe
  ekiden bench count-unsafe --check
      exits with 116 if there is unsafe code where none may be")]
pub(crate) struct CountUnsafe {
    #[command(flatten)]
    output: Output,
}

impl CountUnsafe {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let table = count(Checkout::find()?.root())?;
        self.output.show(&table, &table.to_text(), &Verdict::of_limits(&table.limits, true))
    }
}

/// The unsafe code in a checkout.
pub(crate) fn count(root: &Path) -> Result<UnsafeTable> {
    let mut components = Vec::new();
    for parent in PARENTS {
        for directory in directories(&root.join(parent))? {
            let name = directory.strip_prefix(root).unwrap_or(&directory).display().to_string();
            // What tests do is not part of what runs.
            let source = directory.join("src");
            let source = match (source.exists(), *parent == KERNEL) {
                (true, _) => source,
                (false, true) => directory.clone(),
                (false, false) => continue,
            };
            let rust = count_tree(&source)?;
            let may_be_unsafe = MAY_BE_UNSAFE.contains(&name.as_str());
            if rust.lines > 0 {
                components.push(Component { name: name.clone(), language: "Rust".into(), may_be_unsafe, count: rust });
            }
            let lines = count_c(&directory)?;
            if lines > 0 {
                let language = if name == "hosts/kernel/bpf" { "BPF C" } else { "C" };
                let count = UnsafeCount { lines, unsafe_lines: lines, ..UnsafeCount::default() };
                components.push(Component { name, language: language.into(), may_be_unsafe: true, count });
            }
        }
    }
    Ok(UnsafeTable::new(components))
}

fn count_c(directory: &Path) -> Result<usize> {
    let mut lines = 0;
    for entry in fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))? {
        let path = entry.with_context(|| format!("cannot list {}", directory.display()))?.path();
        let extension = path.extension().unwrap_or_default();
        if extension == "c" || extension == "h" || extension == "S" {
            lines += c_lines(&fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?);
        }
    }
    Ok(lines)
}

fn directories(parent: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(parent).with_context(|| format!("cannot list {}", parent.display()))?;
    let mut directories: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir() && !path.ends_with("target")).collect();
    directories.sort();
    Ok(directories)
}

/// The unsafe code in the checkout of a test, counted once for all of them.
#[cfg(test)]
pub(crate) fn of_this_checkout() -> &'static UnsafeTable {
    static TABLE: std::sync::OnceLock<UnsafeTable> = std::sync::OnceLock::new();
    TABLE.get_or_init(|| count(Checkout::find().unwrap().root()).unwrap())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_of_this_checkout_is_where_it_may_be() {
        let table = of_this_checkout();
        assert!(table.passed, "{}", table.to_text());
        let policies = table.components.iter().find(|component| component.name == "policies").unwrap();
        assert!(policies.count.lines > 100 && policies.count.unsafe_lines == 0);
        assert!(table.components.iter().any(|component| component.language == "Rust" && component.count.blocks > 0));
    }
}
