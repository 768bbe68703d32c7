//! Every command has help, which fits a terminal of 80 columns and begins its examples with the command itself.

use std::fmt::Write as _;

use clap::{Command, CommandFactory};
use expect_test::expect_file;

use super::assert_none;
use crate::{Cli, flights::OF_ROOT};

/// Columns of a usual terminal.
const COLUMNS: usize = 80;

/// Each command that people may have in a script. Who renames one leaves the old name here, and as a hidden alias (clap's `alias`) for one
/// release: then it is taken out of both. No release has had another name.
const NAMES: &[&str] = &[
    "agent",
    "attach",
    "bench",
    "bench applications",
    "bench count-unsafe",
    "bench edit",
    "bench fairness",
    "bench hints",
    "bench idle",
    "bench memory",
    "bench messaging",
    "bench pipe",
    "bench policies",
    "bench record",
    "bench share",
    "bench sim",
    "bench sleeper",
    "bench upgrade",
    "bench watch",
    "build",
    "check",
    "checks",
    "transitions",
    "demo",
    "detach",
    "doctor",
    "exec",
    "explain",
    "explore",
    "faults",
    "fidelity",
    "hint",
    "hints",
    "hints header",
    "new",
    "order",
    "record",
    "replay",
    "reproduce",
    "reproduce arbiter",
    "reproduce cos",
    "reproduce dispersive",
    "reproduce ekiben-tables",
    "reproduce locality",
    "reproduce missing-domains",
    "reproduce nginx",
    "reproduce wasted-cores",
    "run",
    "runqlat",
    "share",
    "sim",
    "soak",
    "status",
    "top",
    "trace",
    "trace cat",
    "trace considered",
    "trace cut",
    "trace export",
    "trace info",
    "trace notes",
    "trace record",
    "upgrade",
    "view",
    "vm",
    "vm agent",
    "vm exec",
    "vm list",
    "vm run",
    "vm start",
    "vm status",
    "vm stop",
];

/// All commands that people are shown, each with the words that call it: `ekiden trace cut`.
fn commands() -> Vec<(String, Command)> {
    fn add(command: Command, all: &mut Vec<(String, Command)>) {
        let words = command.get_bin_name().unwrap_or("ekiden").to_owned();
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help" && !sub.is_hide_set()) {
            add(sub.clone().bin_name(format!("{words} {}", sub.get_name())), all);
        }
        all.push((words, command));
    }
    let mut all = Vec::new();
    add(Cli::command(), &mut all);
    assert!(all.len() > 60, "only {} commands were found", all.len());
    all
}

#[test]
fn every_command_has_an_example_of_itself() {
    let mut broken = Vec::new();
    for (words, command) in commands() {
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples = after.split_once("Example").map_or("", |(_, examples)| examples);
        let is_called = |line: &str| {
            line.match_indices(&words).any(|(at, _)| {
                !line[at + words.len()..].starts_with(|next: char| next.is_alphanumeric() || next == '-')
            })
        };
        if !examples.lines().any(is_called) {
            broken.push(words);
        }
    }
    assert_none(&broken, "the help of each command has examples, behind that word, and one of them is of the command");
}

#[test]
fn every_name_of_a_command_still_works() {
    let finds = |words: &&&str| {
        words.split(' ').try_fold(Cli::command(), |command, word| command.find_subcommand(word).cloned()).is_some()
    };
    let gone: Vec<String> = NAMES.iter().filter(|words| !finds(words)).map(|words| (*words).to_owned()).collect();
    assert_none(&gone, "the old name of a command stays as a hidden alias for one release");
    let all = commands();
    let names = all.iter().filter_map(|(words, _)| words.strip_prefix("ekiden "));
    let new: Vec<String> = names.filter(|words| !NAMES.contains(words)).map(str::to_owned).collect();
    assert_none(&new, "a new command is in NAMES, so that its name is kept");
}

#[test]
fn help_fits_a_terminal_of_80_columns() {
    let mut broken = Vec::new();
    for (words, mut command) in commands() {
        // As it is written, since what is wrapped is no table any more; and as it is shown.
        let written = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        command = command.term_width(COLUMNS);
        let shown = command.render_long_help().to_string();
        let short = command.render_help().to_string();
        for line in [&written, &shown, &short].into_iter().flat_map(|text| text.lines()) {
            if line.chars().count() > COLUMNS {
                broken.push(format!("{words}: {line}"));
            }
        }
    }
    assert_none(&broken, &format!("help has lines of {COLUMNS} columns at most"));
}

/// All that `--help` says to root, in the order of the commands' names.
fn reference() -> String {
    let mut text = String::from(
        "# Commands\n\nWhat `--help` says of each command. A test compares it; \
         `UPDATE_EXPECT=1 cargo test -p ekiden-cli --lib reference` writes it anew.\n",
    );
    let mut all = commands();
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (words, mut command) in all {
        // Another user's are at home.
        if command.get_arguments().any(|argument| argument.get_id() == "flights") {
            command = command.mut_arg("flights", |argument| argument.default_value(OF_ROOT));
        }
        let help = command.term_width(COLUMNS).render_long_help().to_string();
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        write!(text, "\n## `{words}`\n\n```text\n{}\n```\n", help.join("\n").trim()).unwrap();
    }
    text
}

#[test]
fn the_reference_says_what_help_says() {
    expect_file!["../../../docs/commands.md"].assert_eq(&reference());
}
