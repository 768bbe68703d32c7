//! Chooses a policy for threads, from the program that they are in, and talks to it by a [`HintQueue`]. For C there is `framework/include/ekiden.h`.
//!
//! ```no_run
//! use ekiden_user::{Inherit, Policy, Thread, choose};
//!
//! // This thread, and those that it starts from now on, are scheduled by wfq.
//! choose(Thread::Current, Policy::Named("wfq"), Inherit::Yes)?;
//! # Ok::<(), ekiden_user::Error>(())
//! ```
//!
//! A choice takes effect when the thread next waits for a CPU. It needs no privilege for one's own threads, and CAP_SYS_NICE for those
//! of others, or for a policy that root has not opened. If the policy ends, the thread gets the default one.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read},
    os::fd::AsRawFd,
    path::Path,
};

use ekiden_hints::{Geometry, Side};
use serde::Deserialize;

mod queue;

pub use ekiden_hints as hints;
pub use queue::{BytesQueue, HintQueue, NotSent, QueueCounts, RECORDS};

const DEVICE: &str = "/dev/ekiden";
/// More than `ekiden.ko` has to say, so that there is room for all of it.
const STATUS_LEN: usize = 64 << 10;
const SWITCH_ALL: &str = "/sys/kernel/sched_ext/switch_all";

/// The thread for which a policy is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// The calling one.
    Current,
    /// One by its thread id; a process has as many as it has threads.
    Id(i32),
}

/// Which policy is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy<'a> {
    /// The default one; beside policies that have only what is given to them, that is the kernel's
    /// own scheduler.
    Default,
    /// The first that runs by this name.
    Named(&'a str),
    /// The policy with the number that `ekiden status` shows. Numbers are not used again.
    Number(u32),
}

impl fmt::Display for Policy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the default policy"),
            Self::Named(name) => f.write_str(name),
            Self::Number(number) => write!(f, "policy number {number}"),
        }
    }
}

/// Whether children that are started from now on get the same policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherit {
    /// They get the default one.
    No,
    /// They get the same.
    Yes,
}

/// How a thread is to be scheduled by its policy, besides the policy's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChooseOptions<'a> {
    /// Whether its children get the same.
    pub inherit: Inherit,
    /// Parameters for it, as `name=number` separated by blanks or commas, of what the policy has for a task; the rest is as by
    /// default.
    pub params: &'a str,
}

impl From<Inherit> for ChooseOptions<'_> {
    fn from(inherit: Inherit) -> Self {
        Self { inherit, params: "" }
    }
}

/// Why nothing was chosen. The thread is scheduled as before.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `ekiden.ko` is not loaded.
    #[error("Ekiden is not loaded: there is no {DEVICE}; start a policy with `ekiden run`")]
    NotLoaded,
    /// No policy runs.
    #[error("no policy runs; start one with `ekiden run`")]
    NothingRuns,
    /// No such policy runs.
    #[error("{0} does not run; running are: {1}")]
    NotRunning(String, String),
    /// There is no such thread, or it is none of ours.
    #[error(
        "thread {0} is not there, or not scheduled by a policy: real-time tasks are not, nor is a task for which there is no \
         room (`ekiden status` says how many), and beside policies that have only what is given to them only tasks in class \
         SCHED_EXT are"
    )]
    NotATask(i32),
    /// Another user's thread.
    #[error("thread {0} is somebody else's; that takes CAP_SYS_NICE, run it with sudo")]
    NotYours(i32),
    /// The policy is for root, or for a group of users; or root has chosen for this thread.
    #[error(
        "not for you: the policy is not open to every user, or root has chosen one for thread {0}; `ekiden status` shows who may choose it, and \
         root opens one with `ekiden run --beside --open` or `--group`"
    )]
    NotOpen(i32),
    /// The policy does not take what is to be set for the thread.
    #[error("the policy refuses it: {0}")]
    Refused(String),
    /// The policy has no such queue, or there are too many.
    #[error("no queue was opened: {0}")]
    NoQueue(String),
    /// The policy is for root, or for a group of users.
    #[error(
        "no queue was opened: the policy is not open to every user; `ekiden status` shows who may choose it, and root opens one with \
         `ekiden run --beside --open` or `--group`"
    )]
    QueueNotOpen,
    /// Something else that the kernel says.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed.
        what: String,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Chooses the policy of a thread. To do so for many, keep a [`Device`].
///
/// # Errors
/// If there is no such policy, it refuses what is to be set, or the thread is another user's or cannot be scheduled by Ekiden.
pub fn choose<'a>(thread: Thread, policy: Policy<'_>, options: impl Into<ChooseOptions<'a>>) -> Result<()> {
    let device = Device::open()?;
    device.choose(thread, find(policy)?, options)
}

/// Where a policy is; `None` for the default one. Good for as long as the policy runs: another one may be there later.
///
/// # Errors
/// If it does not run.
pub fn find(policy: Policy<'_>) -> Result<Option<PolicySlot>> {
    match policy {
        Policy::Default => Ok(None),
        _ => find_in(&status()?, policy).map(Some),
    }
}

fn find_in(status: &str, policy: Policy<'_>) -> Result<PolicySlot> {
    Ok(found(&running(status)?, policy)?.slot)
}

fn running(status: &str) -> Result<Vec<Running>> {
    let failed = |error: serde_json::Error| Error::Io { what: format!("cannot read {DEVICE}"), source: error.into() };
    Ok(serde_json::from_str::<Status>(status).map_err(failed)?.policies)
}

fn found<'a>(policies: &'a [Running], policy: Policy<'_>) -> Result<&'a Running> {
    let is_it = |running: &&Running| match policy {
        Policy::Default => running.default,
        Policy::Named(name) => running.policy == name,
        Policy::Number(number) => running.instance == number,
    };
    match policies.iter().find(is_it) {
        Some(running) => Ok(running),
        None if policies.is_empty() => Err(Error::NothingRuns),
        None => {
            let known: Vec<&str> = policies.iter().map(|running| running.policy.as_str()).collect();
            Err(Error::NotRunning(policy.to_string(), known.join(", ")))
        }
    }
}

/// The types of a policy's queues, without records: for a program that learns only at run time what it may say.
///
/// # Errors
/// If it does not run, or has no queues.
pub fn types(policy: Policy<'_>) -> Result<Geometry> {
    types_in(&status()?, policy)
}

fn types_in(status: &str, policy: Policy<'_>) -> Result<Geometry> {
    let running = running(status)?;
    let types = found(&running, policy)?.types.as_ref();
    let types = types.ok_or_else(|| Error::NoQueue(format!("{policy} takes hints one by one, or none")))?;
    let side = |of: &Type| Side { fingerprint: of.fingerprint, bytes: of.bytes, records: 0 };
    Ok(Geometry { up: side(&types.hint), down: side(&types.notice) })
}

/// What runs and how it fares, at one moment, as JSON.
///
/// # Errors
/// If `ekiden.ko` is not loaded.
pub fn status() -> Result<String> {
    let mut text = Vec::with_capacity(STATUS_LEN);
    let read = open(DEVICE.as_ref())?.read_to_end(&mut text);
    read.map_err(|source| Error::Io { what: format!("cannot read {DEVICE}"), source })?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Error::NotLoaded,
        _ => Error::Io { what: format!("cannot open {}", path.display()), source },
    })
}

/// `/dev/ekiden`, open for reading only.
#[derive(Debug)]
pub struct Device {
    file: File,
    has_all_tasks: bool,
}

/// Where a policy is while it runs.
pub type PolicySlot = u32;

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    policies: Vec<Running>,
}

#[derive(Deserialize)]
struct Running {
    policy: String,
    slot: PolicySlot,
    instance: u32,
    #[serde(default)]
    default: bool,
    types: Option<Types>,
}

#[derive(Deserialize)]
struct Types {
    hint: Type,
    notice: Type,
}

#[derive(Deserialize)]
struct Type {
    fingerprint: u64,
    bytes: u32,
}

impl Device {
    /// Opens it.
    ///
    /// # Errors
    /// If `ekiden.ko` is not loaded.
    pub fn open() -> Result<Self> {
        Self::open_at(DEVICE.as_ref())
    }

    fn open_at(path: &Path) -> Result<Self> {
        let has_all_tasks = fs::read_to_string(SWITCH_ALL).is_ok_and(|value| value.trim() == "1");
        Ok(Self { file: open(path)?, has_all_tasks })
    }

    /// Chooses the policy of a thread, by where it is. A thread that has to be in class SCHED_EXT for that is put there, and back
    /// into SCHED_OTHER when it leaves.
    ///
    /// # Errors
    /// If the thread is another user's, cannot be scheduled by Ekiden, or the policy refuses what is to be set.
    pub fn choose<'a>(
        &self,
        thread: Thread,
        slot: Option<PolicySlot>,
        options: impl Into<ChooseOptions<'a>>,
    ) -> Result<()> {
        let ChooseOptions { inherit, params } = options.into();
        let tid = match thread {
            Thread::Current => 0,
            Thread::Id(tid) => tid,
        };
        if !self.has_all_tasks {
            set_class(tid, slot.is_some()).map_err(|error| explain(error, tid))?;
            if slot.is_none() {
                // A thread that leaves us for the kernel's own scheduler has no policy of ours.
                return Ok(());
            }
        }
        let mut reason = [0_u8; 256];
        let request = request::Request {
            tid,
            slot: slot.map_or(0, |slot| slot + 1),
            flags: u32::from(inherit == Inherit::Yes),
            params_len: params.len() as u32,
            params: params.as_ptr() as u64,
            error: reason.as_mut_ptr() as u64,
            error_len: reason.len() as u32,
            reserved: 0,
        };
        // SAFETY: the request has the layout that the device expects, and names memory of these lengths.
        match unsafe { request::choose(self.file.as_raw_fd(), &raw const request) } {
            Ok(_) => Ok(()),
            Err(_) if reason[0] != 0 => {
                Err(Error::Refused(String::from_utf8_lossy(&reason).trim_end_matches('\0').to_owned()))
            }
            Err(errno) => Err(explain(errno.into(), tid)),
        }
    }
}

mod request {
    //! As in `hosts/kernel/include/ekiden_control.h`.

    #[repr(C)]
    pub(crate) struct Request {
        pub(crate) tid: i32,
        /// Counted from 1; 0 for the default policy.
        pub(crate) slot: u32,
        /// 1: children inherit it.
        pub(crate) flags: u32,
        pub(crate) params_len: u32,
        /// Text.
        pub(crate) params: u64,
        /// Room for the reason of a refusal.
        pub(crate) error: u64,
        pub(crate) error_len: u32,
        pub(crate) reserved: u32,
    }

    nix::ioctl_write_ptr!(choose, b'E', 7, Request);

    #[repr(C)]
    pub(crate) struct Open {
        pub(crate) up_fingerprint: u64,
        pub(crate) down_fingerprint: u64,
        pub(crate) up_bytes: u32,
        pub(crate) down_bytes: u32,
        pub(crate) up_records: u32,
        pub(crate) down_records: u32,
        /// Counted from 1; 0 for the default policy.
        pub(crate) slot: u32,
        /// Written.
        pub(crate) queue: u32,
        /// Written: how much to map.
        pub(crate) bytes: u64,
        /// Room for the reason of a refusal.
        pub(crate) error: u64,
        pub(crate) error_len: u32,
        pub(crate) flags: u32,
    }

    nix::ioctl_readwrite!(open, b'E', 10, Open);
    nix::ioctl_none!(ring, b'E', 11);
}

/// Puts a thread into class SCHED_EXT, or back.
fn set_class(tid: i32, ext: bool) -> io::Result<()> {
    const SCHED_EXT: i32 = 7;
    let parameters = libc::sched_param { sched_priority: 0 };
    let class = if ext { SCHED_EXT } else { libc::SCHED_OTHER };
    // SAFETY: the parameters are good for the call.
    match unsafe { libc::sched_setscheduler(tid, class, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn explain(error: io::Error, tid: i32) -> Error {
    match error.raw_os_error() {
        Some(libc::ENODEV) => Error::NothingRuns,
        Some(libc::ESRCH) => Error::NotATask(tid),
        Some(libc::EPERM) => Error::NotYours(tid),
        Some(libc::EACCES) => Error::NotOpen(tid),
        _ => Error::Io { what: format!("no policy can be chosen for thread {tid}"), source: error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the device says, with parameters that try to smuggle in a name.
    const STATUS: &str = include_str!("../tests/status.json");

    #[test]
    fn a_policy_is_found_by_its_name_and_by_its_number() {
        assert_eq!(find_in(STATUS, Policy::Named("fifo")).unwrap(), 2);
        assert_eq!(find_in(STATUS, Policy::Number(3)).unwrap(), 0);
        assert_eq!(find(Policy::Default).unwrap(), None);
    }

    #[test]
    fn the_types_of_a_policy_are_what_it_says_of_them() {
        let side = |fingerprint, bytes| Side { fingerprint, bytes, records: 0 };
        // More than what a double has room for.
        let expected = Geometry { up: side(u64::MAX - 1, 12), down: side(7, 8) };
        assert_eq!(types_in(STATUS, Policy::Named("fifo")).unwrap(), expected);
        let error = types_in(STATUS, Policy::Default).unwrap_err();
        assert!(matches!(error, Error::NoQueue(_)), "{error}");
    }

    #[test]
    fn a_policy_that_does_not_run_is_answered_with_those_that_do() {
        let error = find_in(STATUS, Policy::Named("evil")).unwrap_err().to_string();
        assert_eq!(error, "evil does not run; running are: wfq, fifo");
        assert!(matches!(find_in(r#"{"abi":9}"#, Policy::Number(1)), Err(Error::NothingRuns)));
        assert!(matches!(find_in("{", Policy::Number(1)), Err(Error::Io { .. })));
    }

    #[test]
    fn without_the_device_it_is_said_what_to_do() {
        let error = Device::open_at("/nonexistent/ekiden".as_ref()).unwrap_err();
        assert!(matches!(error, Error::NotLoaded));
        assert!(error.to_string().contains("ekiden run"), "{error}");
        if !Path::new(DEVICE).exists() {
            assert!(matches!(choose(Thread::Current, Policy::Named("wfq"), Inherit::Yes), Err(Error::NotLoaded)));
        }
    }

    #[test]
    fn what_is_not_the_device_takes_no_choice() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let device = Device { has_all_tasks: true, ..Device::open_at(file.path()).unwrap() };
        let error = device.choose(Thread::Current, Some(2), Inherit::Yes).unwrap_err();
        assert!(matches!(&error, Error::Io { source, .. } if source.raw_os_error() == Some(libc::ENOTTY)), "{error}");
    }
}
