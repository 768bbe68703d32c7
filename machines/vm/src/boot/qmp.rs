//! Commands to QEMU itself: stop the machine's time, let it go on, and say how many instructions that were.

use super::daemon::connect_to;
use std::{
    io::{BufRead, BufReader, Error, Write},
    path::Path,
    time::Duration,
};

/// How long QEMU may take to obey.
const PATIENCE: Duration = Duration::from_secs(10);

/// Gives one command without arguments, waits until it has been carried out, and returns what it returns.
pub(crate) fn execute(socket: &Path, command: &str) -> std::io::Result<serde_json::Value> {
    let stream = connect_to(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    // The protocol begins with a greeting and wants it answered.
    lines.next();
    let mut returned = serde_json::Value::Null;
    for command in ["qmp_capabilities", command] {
        writeln!(&stream, "{}", serde_json::json!({ "execute": command }))?;
        loop {
            let line = lines.next().ok_or_else(|| Error::other("QEMU hung up"))??;
            let answer: serde_json::Value = serde_json::from_str(&line)?;
            if let Some(error) = answer.get("error") {
                return Err(Error::other(error.to_string()));
            }
            // Anything else tells of an event.
            if let Some(value) = answer.get("return") {
                returned = value.clone();
                break;
            }
        }
    }
    Ok(returned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::net::UnixListener, thread};

    fn converse(answers: &'static [&'static str]) -> std::io::Result<serde_json::Value> {
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("qmp.sock");
        let listener = UnixListener::bind(&socket)?;
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            writeln!(&stream, "{{\"QMP\": {{}}}}").unwrap();
            for answer in answers {
                lines.next().unwrap().unwrap();
                writeln!(&stream, "{answer}").unwrap();
            }
        });
        let result = execute(&socket, "stop");
        server.join().unwrap();
        result
    }

    #[test]
    fn events_between_command_and_answer_are_passed_over() {
        converse(&["{\"return\": {}}", "{\"event\": \"STOP\"}\n{\"return\": {}}"]).unwrap();
    }

    #[test]
    fn a_refusal_and_a_lost_connection_are_errors() {
        let error = converse(&["{\"return\": {}}", "{\"error\": {\"desc\": \"no\"}}"]).unwrap_err();
        assert!(error.to_string().contains("no"));
        assert!(converse(&["{\"return\": {}}"]).is_err());
    }
}
