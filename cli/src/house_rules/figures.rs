//! Figures in documents come from commands, and the commands are there.

use std::fs;

use clap::{CommandFactory, error::ErrorKind};

use super::{assert_none, root};
use crate::Cli;

/// The documents that have commands and figures, by name.
fn documents() -> Vec<(String, String)> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let docs = docs.map(|path| format!("docs/{}", path.file_name().unwrap().to_str().unwrap()));
    let names = ["README.md", "DEVELOPING.md", "SECURITY.md"].into_iter().map(str::to_owned).chain(docs);
    names.map(|name| (name.clone(), fs::read_to_string(root().join(name)).unwrap())).collect()
}

/// The commands in a text, one a line or in `code`: `ekiden`, perhaps by its path or as root, and what follows up to what a shell ends it at.
fn commands(text: &str) -> Vec<Vec<String>> {
    let lines = text.lines().filter(|line| !line.contains('`'));
    let code = text.split('`').skip(1).step_by(2).filter(|code| code.matches('\n').count() < 2);
    let mut commands = Vec::new();
    for line in lines.chain(code).flat_map(|code| code.split(['|', ';', '>', '&'])) {
        // A remark beside a command stands a little apart.
        let line = line.trim_start().trim_start_matches("$ ").split("  ").next().unwrap_or_default();
        let line = line.split(" #").next().unwrap_or_default().trim_end_matches([',', '.', ':', '\\']);
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        if words.first().is_some_and(|word| word == "sudo") {
            words.remove(0);
        }
        if words.first().is_some_and(|word| word == "ekiden" || word == "./ekiden") {
            commands.push(words);
        }
    }
    commands
}

/// Why a command is none. A part of a command, or one with N for a number, counts as one.
fn refused(words: &[String]) -> Option<String> {
    let error = Cli::command().try_get_matches_from(words).err()?;
    match error.kind() {
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand | ErrorKind::ArgumentConflict => {
            Some(format!("{}: {}", words.join(" "), error.to_string().lines().next().unwrap_or_default()))
        }
        _ => None,
    }
}

#[test]
fn every_command_that_the_documents_give_is_one() {
    let (mut broken, mut seen) = (Vec::new(), 0);
    for (name, text) in documents() {
        let commands = commands(&text);
        seen += commands.len();
        broken.extend(commands.iter().filter_map(|words| Some(format!("{name}: {}", refused(words)?))));
    }
    assert!(seen > 100, "only {seen} commands were found");
    assert_none(&broken, "a command in a document can be run");
}

/// How many figures a text has: numbers with a unit behind them.
fn figures(text: &str) -> usize {
    const UNITS: [&str; 10] = ["%", "ns", "us", "ms", "s", "seconds", "times", "instructions", "million", "per"];
    let words: Vec<&str> =
        text.split_whitespace().map(|word| word.trim_matches(|c: char| "()*,.:;|+-".contains(c))).collect();
    let is_number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
    words.windows(2).filter(|pair| is_number(pair[0]) && UNITS.contains(&pair[1])).count()
}

/// Is about the figures of the section before it.
const SHOWN_ABOVE: &str = "docs/fidelity.md: What is off, and why";

/// One figure may be a limit, or a property of the machine; where there are more, some were measured.
#[test]
fn sections_with_figures_name_a_command_that_shows_them() {
    let (mut broken, mut seen) = (Vec::new(), 0);
    for (name, text) in documents() {
        for section in text.split("\n## ").filter(|section| figures(section) > 1) {
            seen += 1;
            let place = format!("{name}: {}", section.lines().next().unwrap_or_default());
            if commands(section).is_empty() && place != SHOWN_ABOVE {
                broken.push(place);
            }
        }
    }
    assert!(seen > 8, "only {seen} sections with figures were found");
    assert_none(&broken, "a reader can run what figures come from");
}

#[test]
fn commands_and_figures_are_told_from_other_words() {
    let text = "See `./ekiden sim make | less`, `make` and `sudo ekiden status`.\n    ekiden top  shows 3 % of 20 ms, 4 tasks\n";
    let found: Vec<String> = commands(text).iter().map(|words| words.join(" ")).collect();
    assert_eq!(
        (found, figures(text)),
        (["ekiden top", "./ekiden sim make", "ekiden status"].map(str::to_owned).to_vec(), 2)
    );
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    assert!(refused(&words("ekiden sim --no-such-option")).is_some() && refused(&words("ekiden simulate")).is_some());
    assert_eq!(refused(&words("ekiden replay")), None);
}
