//! Runs what is checked before a change lands (`make test`), the part of it that needs no kernel (`make quick`), and what takes a
//! night (`make nightly`). A part is a command. Two parts run at a time, those that take longest first, and at the end the slowest
//! parts are listed, and whatever the run has left behind on the machine.

#![forbid(unsafe_code)]

mod leftovers;
mod nightly;
mod parts;
mod runner;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};

use leftovers::Before;
use parts::Part;
use runner::Runner;

/// Which parts are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    /// Formatting, lints, documentation: what `make check` checks
    Check,
    /// The same, and all tests that need no kernel
    Quick,
    /// All that, and the tests that boot kernels
    Test,
    /// What takes hours; resumes where it was interrupted
    Nightly,
}

#[derive(Parser)]
#[command(
    about = "Runs the checks and tests of this project",
    after_help = "\
Examples:
  ekiden-suite quick                     everything without a kernel
  ekiden-suite test --only guests        the parts with this in their names
  ekiden-suite nightly --list            what a night would run, and what has been run for this commit

What a part prints is in target/suite, in a file of its name; of one that fails, the end is shown. Exits with 1 if a part fails
or if something is left behind on the machine."
)]
struct Arguments {
    which: Which,
    /// Only parts whose names have this in them
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
    /// Name the parts, and run none
    #[arg(long)]
    list: bool,
    /// With nightly: run everything, also what has passed for this commit
    #[arg(long)]
    again: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ekiden-suite: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The checkout that this is run in. Two that share a target directory share this program.
fn root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("cannot tell the current directory")?;
    let root = here.ancestors().find(|directory| directory.join("lab/suite").is_dir());
    root.map(Path::to_owned)
        .with_context(|| format!("{} is in no checkout of Ekiden; run `make test` in one", here.display()))
}

/// A part that has not ended by then hangs. Not where all is done that otherwise takes turns.
const PART_MAX: Duration = Duration::from_secs(40 * 60);

/// A whole run that takes longer is a defect of the tests.
const RUN_MINUTES_MAX: f64 = 45.0;

/// Which turn it is of what is done in turns: that of the day of the last commit, so that a commit has the same tests wherever and whenever it
/// is tried. Where no git tells, it is today's.
fn turn(root: &Path) -> String {
    let day = || {
        let git = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root).output().ok()?;
        String::from_utf8_lossy(&git.stdout).trim().parse().ok()
    };
    let today = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    std::env::var("EKIDEN_TURN").unwrap_or_else(|_| (day().unwrap_or_else(today) / 86_400).to_string())
}

fn run(arguments: &Arguments) -> Result<bool> {
    let root = root()?;
    if arguments.which == Which::Nightly {
        return nightly::run(&root, arguments);
    }
    let wanted = |name: &str| arguments.only.as_ref().is_none_or(|word| name.contains(word.as_str()));
    let start = Instant::now();
    let mut runner = Runner::new(&root, start)?;
    let turn = turn(&root);
    if turn != "all" {
        runner.end_parts_after(PART_MAX);
    }
    let of = |parts: Vec<Part>| -> Vec<Part> { parts.into_iter().filter(|part| wanted(&part.name)).collect() };
    let (formats, lints) = (of(parts::formats(&root)), of(parts::lints(&root)));
    if arguments.list {
        formats.iter().chain(&lints).for_each(|part| println!("{}", part.name));
        if arguments.which != Which::Check {
            println!("and, when they are built, the programs of `cargo test --workspace --no-run`");
        }
        return Ok(true);
    }
    let before = Before::now(&root, runner.temporary())?;
    runner.run(formats);
    let mut parts = lints;
    if arguments.which != Which::Check && runner.run_one(parts::build(&root)) {
        let needs_kernel = arguments.which == Which::Test;
        parts.extend(of(parts::tests(&root)?).into_iter().filter(|part| needs_kernel || !part.boots));
    }
    parts::build_modules_once(&mut parts);
    // A part that is asked for by name is not left for another day, nor is one that needs no kernel where only such are run.
    let is_all = arguments.only.is_some() || arguments.which == Which::Quick;
    let parts_turn = if is_all { "all" } else { &turn };
    let other_days = parts::leave_for_other_days(&mut parts, parts_turn)?;
    parts.iter_mut().for_each(|part| part.environment.push(("EKIDEN_TURN".into(), turn.clone())));
    runner.run(parts);
    runner.keep_seconds();
    let left = before.compare();
    println!("\n{}", runner.slowest(10));
    for thing in &left {
        eprintln!("left behind: {thing}");
    }
    let totals = runner.totals();
    for name in &totals.failed_parts {
        eprintln!("failed: {name} (target/suite/{})", runner::file_name(name));
    }
    for reason in &totals.reasons {
        eprintln!("{reason}\n");
    }
    for name in &other_days {
        println!("at another turn than {turn}: {name} (EKIDEN_TURN=all runs it now)");
    }
    println!("{:.1} min on this machine, nothing left behind: {}", runner.minutes(), left.is_empty());
    if runner.minutes() > RUN_MINUTES_MAX {
        println!("more than {RUN_MINUTES_MAX} min are a defect: see the slowest parts");
    }
    println!("{} passed, {} failed, {} skipped", totals.passed, totals.failed, totals.ignored);
    Ok(totals.failed_parts.is_empty() && left.is_empty())
}
