//! What other commands ask of the process that has started a policy: of an agent, how the policy fares, and to let another one take over; of an agent and
//! of an `ekiden run`, to let one take over in the other place. Each asks in a line of JSON, on a socket that only root can open, and has a line as the answer.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    os::fd::RawFd,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use ekiden_agent::Counts;
use ekiden_loader::{
    CallLog, Moved, NumberedInstance, PolicyStatus, Result as LoadResult, Status, Upgrade, header_of, sysfs,
};
use ekiden_recording::{Header, Host};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::failure::{self, Exit, Failure};

/// Only root may look into the directory.
const DIRECTORY: &str = "/run/ekiden/agent";
const SOCKET: &str = "/run/ekiden/agent/socket";

/// A longer line is none of ours.
const LINE_MOST: u64 = 1 << 20;

/// How long the other side of the socket may take with a line, and an agent until it answers.
const PATIENCE: Duration = Duration::from_secs(2);
const ANSWERS_IN: Duration = Duration::from_secs(15);

/// How long it may take until a policy has taken over in the other place, with modules that come and go.
const MOVES_IN: Duration = Duration::from_secs(120);

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// How the policy fares.
    Status,
    /// This policy takes over, with these parameters.
    Upgrade { policy: String, params: String, start_over: bool },
    /// A policy takes over in the kernel, with modules from this directory.
    ToKernel { policy: String, params: String, start_over: bool, modules: PathBuf },
    /// A policy takes over in that process.
    ToAgent { policy: String, params: String, start_over: bool },
}

/// An agent that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Running {
    /// Its process.
    pub(crate) pid: u32,
    #[serde(flatten)]
    pub(crate) counts: Counts,
    /// What `ekiden.ko` says of policies in the kernel, of this one.
    pub(crate) status: Status,
    /// The file of that process with its policy's newest calls.
    pub(crate) call_log: Option<RawFd>,
}

impl Running {
    /// What this policy, which it says it has, was asked last, and the header of a recording of that.
    pub(crate) fn call_log(&self, policy: &PolicyStatus, workload: &str) -> Result<(CallLog, Header)> {
        let nothing = || Failure::new(Exit::Other, "the agent has no flight recorder; start it without --flight-kib 0");
        let path = format!("/proc/{}/fd/{}", self.pid, self.call_log.ok_or_else(nothing)?);
        let file = File::open(&path).with_context(|| format!("cannot open {path}"))?;
        let header = header_of(Host::Agent, policy.of_now(), self.status.capacity as u32, workload)?;
        Ok((CallLog::of_process(&file, policy.call_log_records)?, header))
    }
}

/// Says of each policy that the agent has had once what it is.
pub(crate) fn tells_instances() -> impl FnMut() -> LoadResult<Vec<NumberedInstance>> + Send {
    let mut known = 0;
    move || {
        // When the agent has gone, what its policy was asked last is still to come.
        let policies = running().map(|running| running.status.policies).unwrap_or_default();
        Ok(policies.first().map(|policy| policy.newer_than(&mut known)).unwrap_or_default())
    }
}

/// A policy has taken over in an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Upgraded {
    pub(crate) from: String,
    pub(crate) done: Upgrade,
    /// The calls that the new one implements.
    pub(crate) calls: u64,
}

/// A policy has taken over in the other place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MovedTo {
    pub(crate) from: String,
    pub(crate) moved: Moved,
    /// All of them are new to it.
    pub(crate) tasks: u64,
    /// For so long the kernel's own scheduler had them.
    pub(crate) between_ns: u64,
}

/// Why an agent does not do what it is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Refused {
    exit: Exit,
    message: String,
}

/// Where an agent is asked, until this is dropped.
pub(crate) struct Listening {
    /// The socket's device and inode: another process may have put its own there since.
    socket: Option<(u64, u64)>,
}

/// Which file the socket is.
fn socket() -> Option<(u64, u64)> {
    fs::symlink_metadata(SOCKET).ok().map(|file| (file.dev(), file.ino()))
}

impl Listening {
    /// Has `asked` called for each connection, on a thread of its own.
    pub(crate) fn begin(asked: impl Fn(UnixStream) -> bool + Send + 'static) -> Result<Self> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(DIRECTORY);
        made.with_context(|| format!("cannot create {DIRECTORY}"))?;
        // One of an agent that was killed; another agent that runs there is not.
        match fs::remove_file(SOCKET) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).context("an old socket stays"),
            _ => {}
        }
        let listener = UnixListener::bind(SOCKET).with_context(|| format!("cannot listen at {SOCKET}"))?;
        let socket = socket();
        let accept = move || {
            for stream in listener.incoming().flatten() {
                if !asked(stream) {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("ekiden-asked".into()).spawn(accept).context("cannot start a thread")?;
        Ok(Self { socket })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // The thread ends with the process.
        if socket() == self.socket {
            let _ = fs::remove_file(SOCKET);
        }
    }
}

/// Reads a request and writes the answer. That the other side has gone is no trouble of the agent's.
pub(crate) fn answer<T: Serialize>(stream: UnixStream, answer: impl FnOnce(Request) -> Result<T>) {
    let result = receive(&stream, PATIENCE)
        .and_then(answer)
        .map_err(|error| Refused { exit: Exit::of(&error), message: failure::explain(&error) });
    let _ = send(&stream, &result);
}

/// Asks the agent that runs; `None` if none does that this user may ask.
fn ask<T: DeserializeOwned>(request: &Request, answers_in: Duration) -> Result<Option<T>> {
    if !Path::new(SOCKET).exists() {
        return Ok(None);
    }
    let stream = match UnixStream::connect(SOCKET) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused || error.kind() == ErrorKind::NotFound => {
            return Ok(None);
        }
        Err(error) => return Err(error).context("cannot ask the agent that runs"),
    };
    send(&stream, request).context("cannot ask the agent that runs")?;
    let answer: Result<T, Refused> = receive(&stream, answers_in).context("the agent does not answer")?;
    answer.map(Some).map_err(|Refused { exit, message }| Failure::new(exit, message).into())
}

/// The agent that runs, if one does that this user may ask, and that answers.
pub(crate) fn running() -> Option<Running> {
    // An `ekiden run` listens too, but has nothing to say of a policy in the kernel, and may be stopped.
    if !has_the_tasks() {
        return None;
    }
    ask::<Option<Running>>(&Request::Status, ANSWERS_IN).ok().flatten().flatten()
}

/// Whether the policy of now is one of an agent.
pub(crate) fn has_the_tasks() -> bool {
    sysfs::scheduler().is_some_and(|name| name.starts_with("ekiden_agent"))
}

/// Has a policy take over in the agent that runs.
pub(crate) fn upgrade(policy: &str, params: &str, start_over: bool) -> Result<Upgraded> {
    let request = Request::Upgrade { policy: policy.to_owned(), params: params.to_owned(), start_over };
    let nothing = "an agent has the tasks, and cannot be asked; end it, and start `ekiden agent` with the other policy";
    ask(&request, ANSWERS_IN)?.ok_or_else(|| Failure::new(Exit::OldGoesOn, nothing).into())
}

/// Has a policy take over in the other place, of that process.
pub(crate) fn move_to(request: &Request) -> Result<MovedTo> {
    let nothing = "the process that started the policy of now is gone, or does not answer; end the policy, and start the other one there";
    ask(request, MOVES_IN)?.ok_or_else(|| Failure::new(Exit::OldGoesOn, nothing).into())
}

fn send(mut stream: &UnixStream, what: &impl Serialize) -> Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    Ok(stream.write_all(&line)?)
}

fn receive<T: DeserializeOwned>(stream: &UnixStream, patience: Duration) -> Result<T> {
    stream.set_read_timeout(Some(patience))?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_MOST)).read_line(&mut line)?;
    if !line.ends_with('\n') {
        return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
    }
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is asked on one end, and what the other answers.
    fn asked(line: &[u8], answers: fn(Request) -> Result<u32>) -> Result<u32, Refused> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&ours).write_all(line).unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        answer(theirs, answers);
        receive(&ours, PATIENCE).unwrap()
    }

    #[test]
    fn a_request_is_answered_or_refused_with_the_exit_code_of_the_error() {
        let yes = |request| {
            assert_eq!(request, Request::Upgrade { policy: "wfq".into(), params: "a=1".into(), start_over: true });
            Ok(7)
        };
        let line = br#"{"upgrade":{"policy":"wfq","params":"a=1","start_over":true}}"#;
        assert_eq!(asked(&[line, &b"\n"[..]].concat(), yes), Ok(7));
        let no = |_| Err(Failure::new(Exit::NoPolicy, "there is none").into());
        let refused = asked(b"\"status\"\n", no).unwrap_err();
        assert_eq!((refused.exit, refused.message.as_str()), (Exit::NoPolicy, "there is none"));
    }

    #[test]
    fn nonsense_is_refused_and_not_answered() {
        let never = |request| panic!("{request:?}");
        let endless = vec![b'x'; 2 << 20];
        for line in
            [&b"\"status\""[..], b"\n", b"{\"upgrade\":{}}\n", b"\xff\n", b"", b"{\"status\":1}\n", &endless[..4096]]
        {
            assert!(asked(line, never).is_err(), "{line:?}");
        }
    }
}
