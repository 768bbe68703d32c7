//! Runs programs of this machine and turns their failure into an [`Error`].

use crate::{Error, Result};
use std::{
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};
use wait_timeout::ChildExt;

/// Lines of a program's output that are worth showing.
const SHOWN_LINES: usize = 60;

/// Where programs may be that only root has in `PATH`.
const SYSTEM_PATHS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Where a program is, in `PATH` or where root's programs are.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_PATHS.map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// Runs to the end, with the outputs captured.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| cannot_start(command, &error))?;
    if output.status.success() { Ok(output) } else { Err(failed(command, &output)) }
}

/// Runs to the end and returns the standard output.
pub(crate) fn stdout(command: &mut Command) -> Result<String> {
    output(command).map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs until the end or the limit, at which the program is stopped.
pub(crate) fn stdout_within(command: &mut Command, limit: Duration) -> Result<String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| cannot_start(command, &error))?;
    let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
    let status = child.wait_timeout(limit).map_err(|error| cannot_start(command, &error))?;
    let Some(status) = status else {
        // It may have ended by itself meanwhile; either way it is over.
        let _ = child.kill();
        let _ = child.wait();
        return Err(Error::TimedOut { command: line(command), limit });
    };
    let output =
        Output { status, stdout: stdout.join().unwrap_or_default(), stderr: stderr.join().unwrap_or_default() };
    if !status.success() {
        return Err(failed(command, &output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs to the end, with the outputs captured, and tells of each line of the standard error as it comes.
pub(crate) fn watched(command: &mut Command, told: &mut dyn FnMut(&str)) -> Result<Output> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| cannot_start(command, &error))?;
    let stdout = collect(child.stdout.take());
    let mut stderr = Vec::new();
    for line in
        child.stderr.take().into_iter().flat_map(|pipe| BufReader::new(pipe).split(b'\n')).map_while(|line| line.ok())
    {
        told(&String::from_utf8_lossy(&line));
        stderr.extend(line);
        stderr.push(b'\n');
    }
    let status = child.wait().map_err(|error| cannot_start(command, &error))?;
    Ok(Output { status, stdout: stdout.join().unwrap_or_default(), stderr })
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What could be read is kept.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

pub(crate) fn cannot_start(command: &Command, error: &std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::NotFound {
        return Error::MissingProgram(command.get_program().to_string_lossy().into_owned());
    }
    Error::Program { command: line(command), status: error.to_string(), output: String::new() }
}

pub(crate) fn failed(command: &Command, output: &Output) -> Error {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Error::Program { command: line(command), status: output.status.to_string(), output: last_lines(&text, SHOWN_LINES) }
}

/// A command as it would be typed.
pub(crate) fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The end of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_stopped() {
        let start = std::time::Instant::now();
        let error = stdout_within(Command::new("sleep").arg("60"), Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_program_that_fails_shows_the_end_of_its_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "seq 100; echo broken >&2; exit 3"]);
        let message = output(&mut command).unwrap_err().to_string();
        assert!(message.contains("exit status: 3") && message.contains("100\nbroken"), "{message}");
        assert!(!message.contains("\n9\n"), "{message}");
    }

    #[test]
    fn somebody_who_watches_is_told_every_line() {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one >&2; echo out; echo two >&2; exit 3"]);
        let output = watched(&mut command, &mut |line| lines.push(line.to_owned())).unwrap();
        assert_eq!((lines, output.status.code()), (vec!["one".to_owned(), "two".to_owned()], Some(3)));
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"one\ntwo\n"[..]));
    }

    #[test]
    fn a_missing_program_is_called_missing() {
        let error = stdout(&mut Command::new("no-such-program-of-ekiden")).unwrap_err();
        assert!(matches!(error, Error::MissingProgram(_)), "{error}");
    }
}
