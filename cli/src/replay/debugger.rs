//! Runs this program under a debugger, which stops in the policy.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result};

use crate::failure::{Exit, Failure};

/// Where the program says that the policy comes next, and in which of its two methods.
const STOP: &str = "ekiden_replay_stop";
const METHODS: &str = "EKIDEN_REPLAY_METHODS";

/// What each debugger is told: to run up to the call, and then up to the policy's method.
fn arguments(debugger: &str) -> Vec<String> {
    let commands: Vec<String> = match debugger {
        "gdb" => vec![
            format!("break {STOP}"),
            "run".into(),
            "delete".into(),
            "set language c".into(),
            format!("tbreak *(*(void**)&{METHODS})"),
            format!("tbreak *(*((void**)&{METHODS} + 1))"),
            "set language auto".into(),
            "continue".into(),
        ],
        _ => vec![
            format!("breakpoint set --name {STOP}"),
            "run".into(),
            "breakpoint delete --force".into(),
            format!("breakpoint set --one-shot true --address `*(void**)&{METHODS}`"),
            format!("breakpoint set --one-shot true --address `*((void**)&{METHODS} + 1)`"),
            "continue".into(),
        ],
    };
    let (flag, ends) = if debugger == "gdb" { ("-ex", ["-q", "--args"]) } else { ("-o", ["--no-use-colors", "--"]) };
    let middle = commands.into_iter().flat_map(|command| [flag.to_owned(), command]);
    [ends[0].to_owned()].into_iter().chain(middle).chain([ends[1].to_owned()]).collect()
}

/// Becomes a debugger that stops in the policy's method for this call.
pub(super) fn run(recording: &Path, call: u64, set: &[String]) -> Result<ExitCode> {
    let this = std::env::current_exe().context("cannot tell where this program is")?;
    let set = set.iter().flat_map(|value| ["--set".to_owned(), value.clone()]);
    let arguments_of_this: Vec<OsString> = [this.into_os_string(), "replay".into(), recording.into()]
        .into_iter()
        .chain(["--debugged".into(), "--stop-at".into(), call.to_string().into()])
        .chain(set.map(OsString::from))
        .collect();
    for debugger in ["gdb", "lldb"] {
        if is_there(debugger) {
            let error = Command::new(debugger).args(arguments(debugger)).args(&arguments_of_this).exec();
            return Err(error).with_context(|| format!("cannot run {debugger}"));
        }
    }
    let quoted: Vec<String> = arguments("gdb").iter().map(|word| quoted(word)).collect();
    let this: Vec<String> = arguments_of_this.iter().map(quoted_os).collect();
    let message = format!(
        "there is neither gdb nor lldb; install one (on Debian: apt-get install gdb), or where there is one, give it\n  gdb {} {}",
        quoted.join(" "),
        this.join(" ")
    );
    Err(Failure::new(Exit::Missing, message).into())
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn quoted_os(word: &OsString) -> String {
    quoted(&word.to_string_lossy())
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let is_plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=".contains(c));
    if is_plain { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("--stop-at"), "--stop-at");
        assert_eq!(quoted("break it's"), r"'break it'\''s'");
    }
}
