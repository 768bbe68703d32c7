//! What of a command's options is not used together: a command that does several things says so here, and an option that would
//! change nothing is refused. Clap says the rest by itself (`requires`, `conflicts_with`).

use clap::{Arg, ArgMatches, Command, parser::ValueSource};

/// What a command does when it is asked in a certain way.
struct Mode {
    /// The command and, if it has some, its subcommand; nothing if the mode is of every command with these options.
    command: &'static [&'static str],
    when: When,
    what: Options,
}

enum When {
    /// This option is given.
    Given(&'static str),
    /// This argument has this value.
    Is(&'static str, &'static str),
    /// None of these is given.
    Without(&'static [&'static str]),
}

/// Which options mean something then.
enum Options {
    /// These, and no others.
    Only(&'static [&'static str]),
    /// All but these.
    Not(&'static [&'static str]),
}

/// Where promises are checked: `check::Bounds`.
const BOUNDS: &[&str] =
    &["every", "persists", "window", "waste", "patience", "wait", "kick", "lag", "call", "after_upgrade"];

/// The options of a virtual machine: `machine::Shape`.
const SHAPE: &[&str] = &["cpus", "memory", "nodes", "kernel", "kvm", "icount", "parallel", "shift"];

/// The options of building a policy, which is not done where modules are given: `modules::Allowed`.
const BUILDING: &[&str] = &["allow_unsafe", "as_root"];

/// What delegation, the judge server and RocksDB do not use each of what `reproduce cos` has for all of them.
const COS_WITHOUT: [&[&str]; 3] = [
    &["runs", "cpu_ms", "loads", "workers", "ms", "stretch", "others"],
    &["tasks", "times", "loads", "workers", "ms", "stretch", "others"],
    &["tasks", "times", "runs", "cpu_ms"],
];

/// Of every command that takes modules or builds them.
const MODULES: Mode = Mode { command: &[], when: When::Given("modules"), what: Options::Not(BUILDING) };

const MODES: &[Mode] = &[
    Mode {
        command: &["sim"],
        when: When::Given("sweep"),
        what: Options::Only(&["load", "sweep", "policies", "machines", "seeds", "model", "as_root"]),
    },
    Mode { command: &["sim"], when: When::Is("load", "list"), what: Options::Only(&["load", "cpus", "machine"]) },
    Mode { command: &["sim"], when: When::Is("load", "model"), what: Options::Only(&["load"]) },
    Mode { command: &["sim"], when: When::Without(&["invariants", "report"]), what: Options::Not(BOUNDS) },
    Mode {
        command: &["check"],
        when: When::Given("live"),
        what: Options::Not(&["trace", "wait", "kick", "lag", "call", "after_upgrade"]),
    },
    Mode { command: &["bench", "pipe"], when: When::Without(&["vm"]), what: Options::Not(SHAPE) },
    Mode {
        command: &["bench", "applications"],
        when: When::Given("from"),
        what: Options::Only(&["from", "report", "markdown", "json", "check"]),
    },
    Mode {
        command: &["bench", "applications"],
        when: When::Without(&["vm"]),
        what: Options::Not(&["cpus", "memory", "kernel", "kvm"]),
    },
    Mode { command: &["bench", "messaging"], when: When::Without(&["vm"]), what: Options::Not(SHAPE) },
    Mode { command: &["bench", "fairness"], when: When::Without(&["vm"]), what: Options::Not(SHAPE) },
    Mode { command: &["bench", "share"], when: When::Without(&["vm"]), what: Options::Not(SHAPE) },
    Mode { command: &["bench", "sleeper"], when: When::Without(&["vm"]), what: Options::Not(SHAPE) },
    Mode { command: &["bench", "memory"], when: When::Without(&["vm"]), what: Options::Not(SHAPE) },
    Mode { command: &["bench", "record"], when: When::Without(&["vm"]), what: Options::Not(SHAPE) },
    Mode { command: &["bench", "upgrade"], when: When::Without(&["vm"]), what: Options::Not(SHAPE) },
    Mode { command: &["bench", "policies"], when: When::Without(&["vm"]), what: Options::Not(SHAPE) },
    Mode { command: &["bench", "hints"], when: When::Without(&["vm"]), what: Options::Not(SHAPE) },
    Mode { command: &["bench", "watch"], when: When::Without(&["vm"]), what: Options::Not(SHAPE) },
    Mode { command: &["reproduce", "locality"], when: When::Given("here"), what: Options::Not(&["kernel"]) },
    Mode { command: &["reproduce", "cos"], when: When::Is("part", "delegation"), what: Options::Not(COS_WITHOUT[0]) },
    Mode { command: &["reproduce", "cos"], when: When::Is("part", "judge"), what: Options::Not(COS_WITHOUT[1]) },
    Mode { command: &["reproduce", "cos"], when: When::Is("part", "rocksdb"), what: Options::Not(COS_WITHOUT[2]) },
    Mode { command: &["reproduce", "ekiben-tables"], when: When::Given("here"), what: Options::Not(&["kernel"]) },
    Mode { command: &["fidelity"], when: When::Without(&["vm"]), what: Options::Not(SHAPE) },
    Mode { command: &["explore"], when: When::Given("schedule"), what: Options::Not(&["mode", "seed", "runs"]) },
    Mode { command: &["replay"], when: When::Given("stop_at"), what: Options::Not(&["until", "stop_on_diff"]) },
];

impl Mode {
    fn applies(&self, matches: &ArgMatches) -> bool {
        match self.when {
            When::Given(option) => is_given(matches, option),
            When::Is(argument, value) => {
                matches.get_raw(argument).is_some_and(|mut values| values.any(|is| is == value))
            }
            When::Without(options) => !options.iter().any(|option| is_given(matches, option)),
        }
    }

    fn uses(&self, option: &str) -> bool {
        match self.what {
            Options::Only(used) => used.contains(&option),
            Options::Not(unused) => !unused.contains(&option),
        }
    }

    /// Why an option is refused.
    fn refusal(&self, path: &[&str], option: &Arg) -> String {
        let name = |id: &str| format!("--{}", id.replace('_', "-"));
        let option = option.get_long().map_or_else(|| option.get_id().to_string(), |long| format!("--{long}"));
        let when = match self.when {
            When::Given(given) => format!("with {}", name(given)),
            When::Is(_, value) => format!("with `{value}`"),
            When::Without(needed) => {
                format!("without {}", needed.iter().map(|id| name(id)).collect::<Vec<_>>().join(" or "))
            }
        };
        format!("{option} has no effect {when}: leave it out; `ekiden {} --help` says more", path.join(" "))
    }
}

/// The modes of a command.
fn modes(path: &[&str], command: &Command) -> impl Iterator<Item = &'static Mode> {
    let has = |id: &str| command.get_arguments().any(|option| option.get_id() == id);
    // The command that simulates as well builds the policy for that all the same.
    let builds = path != ["fidelity"] && has("modules") && BUILDING.iter().all(|id| has(id));
    MODES.iter().filter(move |mode| mode.command == path).chain(builds.then_some(&MODULES))
}

fn is_given(matches: &ArgMatches, option: &str) -> bool {
    matches.value_source(option) == Some(ValueSource::CommandLine)
}

/// Why a command line is refused: an option is given and not used.
pub(crate) fn refuse(root: &Command, matches: &ArgMatches) -> Option<String> {
    let (mut command, mut matches, mut path) = (root, matches, Vec::new());
    while let Some((name, of_sub)) = matches.subcommand() {
        command = command.find_subcommand(name)?;
        (matches, path) = (of_sub, [path, vec![name]].concat());
    }
    modes(&path, command).filter(|mode| mode.applies(matches)).find_map(|mode| {
        let unused =
            |option: &&Arg| is_given(matches, option.get_id().as_str()) && !mode.uses(option.get_id().as_str());
        command.get_arguments().find(unused).map(|option| mode.refusal(&path, option))
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    /// Commands that do one thing, for which all that clap accepts is used. A new command has to be here or among the modes.
    const ONE_MODE: &[&str] = &[
        "new",
        "build",
        "trace info",
        "trace cat",
        "trace cut",
        "trace export",
        "trace considered",
        "trace notes",
        "trace record",
        "view",
        "reproduce wasted-cores",
        "reproduce dispersive",
        "reproduce arbiter",
        "reproduce missing-domains",
        "reproduce nginx",
        "record",
        "status",
        "explain",
        "run",
        "upgrade",
        "runqlat",
        "top",
        "exec",
        "agent",
        "hint",
        "hints header",
        "attach",
        "detach",
        "transitions",
        "order",
        "share",
        "vm run",
        "vm agent",
        "vm start",
        "vm exec",
        "vm stop",
        "vm status",
        "vm list",
        "demo",
        "bench sim",
        "bench count-unsafe",
        "bench edit",
        "bench idle",
        "measure-request",
        "sleepers",
        "faults",
        "soak",
        "doctor",
    ];

    fn leaves(command: &Command, path: &[String], all: &mut Vec<(Vec<String>, Command)>) {
        if !command.has_subcommands() {
            all.push((path.to_vec(), command.clone()));
        }
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            leaves(sub, &[path, &[sub.get_name().to_owned()]].concat(), all);
        }
    }

    /// The command line of an option, with a value that it takes.
    fn given(option: &Arg) -> Vec<String> {
        let id = option.get_id().as_str();
        let value = match id {
            "machine" | "machines" => "laptop".to_owned(),
            "upgrade" => "5=wfq".to_owned(),
            "seeds" => "1-2".to_owned(),
            "schedule" => "01".to_owned(),
            _ => {
                let first = option.get_possible_values().first().map(|value| value.get_name().to_owned());
                let default = option.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
                default.or(first).unwrap_or_else(|| "7".to_owned())
            }
        };
        let is_flag = !option.get_action().takes_values();
        match option.get_long() {
            Some(long) if is_flag => vec![format!("--{long}")],
            Some(long) => vec![format!("--{long}={value}")],
            None => vec![value],
        }
    }

    #[test]
    fn every_command_says_which_of_its_options_go_together() {
        let mut all = Vec::new();
        leaves(&Cli::command(), &[], &mut all);
        assert!(all.len() > 40, "{}", all.len());
        for (path, _) in &all {
            let has_modes = MODES.iter().any(|mode| mode.command == path);
            let has_one = ONE_MODE.contains(&path.join(" ").as_str());
            assert!(has_modes != has_one, "`{}` is in neither list, or in both", path.join(" "));
        }
        let paths: Vec<String> = all.iter().map(|(path, _)| path.join(" ")).collect();
        ONE_MODE
            .iter()
            .for_each(|command| assert!(paths.iter().any(|path| path == command), "there is no `{command}`"));
    }

    #[test]
    fn no_command_takes_an_option_that_it_does_not_use() {
        let mut all = Vec::new();
        leaves(&Cli::command(), &[], &mut all);
        let mut tried = 0;
        for mode in MODES {
            assert!(all.iter().any(|(path, _)| path == mode.command), "there is no `{}`", mode.command.join(" "));
        }
        let of_commands = all.iter().flat_map(|(path, command)| {
            let words: Vec<&str> = path.iter().map(String::as_str).collect();
            modes(&words, command).map(move |mode| (path, command, mode)).collect::<Vec<_>>()
        });
        for (path, command, mode) in of_commands {
            let find = |id: &str| {
                let found = command.get_arguments().find(|option| option.get_id() == id);
                found.unwrap_or_else(|| panic!("`{}` has no `{id}`", path.join(" "))).clone()
            };
            let positionals =
                || command.get_arguments().filter(|option| option.is_positional() && option.is_required_set());
            let mut line = vec!["ekiden".to_owned()];
            line.extend(path.clone());
            match mode.when {
                When::Is(_, value) => line.push(value.to_owned()),
                // An option makes another one needless, as `--live` the trace.
                When::Given("live") => {}
                _ => line.extend(positionals().map(|_| "pipe".to_owned())),
            }
            if let When::Given(option) = mode.when {
                line.extend(given(&find(option)));
            }
            if let When::Given("schedule") = mode.when {
                line.push("--case=wake".into());
            }
            match mode.what {
                Options::Only(ids) | Options::Not(ids) => ids.iter().for_each(|id| drop(find(id))),
            }
            for option in command.get_arguments() {
                let id = option.get_id().as_str();
                let is_trigger = matches!(mode.when, When::Given(given) if given == id);
                if is_trigger || option.is_positional() || id == "help" || mode.uses(id) {
                    continue;
                }
                let line = [line.clone(), given(option)].concat();
                let matches = match Cli::command().try_get_matches_from(&line) {
                    // Clap itself knows that the two do not go together, or that a third is missing.
                    Err(error) => {
                        use clap::error::ErrorKind::{ArgumentConflict, MissingRequiredArgument};
                        assert!(
                            matches!(error.kind(), ArgumentConflict | MissingRequiredArgument),
                            "{line:?}: {error}"
                        );
                        continue;
                    }
                    Ok(matches) => matches,
                };
                let refusal = refuse(&Cli::command(), &matches);
                assert!(refusal.is_some_and(|why| why.contains("has no effect")), "{line:?}");
                tried += 1;
            }
        }
        assert!(tried > 80, "{tried} combinations");
    }
}
