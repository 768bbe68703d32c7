//! `/dev/ekiden`: what is asked of `ekiden.ko`. The C side is `kernel/include/ekiden_control.h`.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::fd::AsRawFd,
};

use ekiden::{Calls, Topology};
use serde::{Deserialize, Serialize};

use crate::error::{Context, LoadError, Result};

const DEVICE: &str = "/dev/ekiden";

/// What `ekiden.ko` says when it is asked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Version of the interface.
    pub abi: u32,
    /// The policy that runs.
    pub policy: Option<String>,
    /// Whether the kernel calls it.
    #[serde(default)]
    pub attached: bool,
    /// The calls that it implements.
    #[serde(default)]
    pub calls: u64,
    /// Its parameters, as they were given.
    #[serde(default)]
    pub params: String,
    /// Which instance of a policy it is, since `ekiden.ko` was loaded.
    #[serde(default)]
    pub instance: u32,
    /// How often the counter counts in a millisecond that the times of calls are of; 0 if they are of the monotonic clock.
    #[serde(default)]
    pub ticks_khz: u32,
    /// Records that the ring of each CPU has room for; 0 if calls are not recorded.
    #[serde(default)]
    pub tape_records: u64,
    /// How many rings there are.
    #[serde(default)]
    pub tape_cpus: u32,
    /// Whether calls are recorded at the moment.
    #[serde(default)]
    pub tape_runs: bool,
    /// The module that it is in.
    #[serde(default)]
    pub module: Option<String>,
    /// How often a policy has taken over from another one, or from itself, since the kernel was given the first.
    #[serde(default)]
    pub upgrades: u64,
    /// How long a CPU waited at most when the last one did, in nanoseconds.
    #[serde(default)]
    pub upgrade_wait_ns: u64,
    /// The longest of these.
    #[serde(default)]
    pub upgrade_wait_ns_max: u64,
    /// Tasks under its care or about to be.
    #[serde(default)]
    pub tasks: u64,
    /// Tasks that there is room for.
    #[serde(default)]
    pub capacity: u64,
    /// Tasks picked so far.
    #[serde(default)]
    pub picks: u64,
    /// Searches for work that found none.
    #[serde(default)]
    pub idles: u64,
    /// Waiting tasks moved to another CPU.
    #[serde(default)]
    pub migrations: u64,
    /// Tokens handed back.
    #[serde(default)]
    pub refusals: u64,
    /// Unexpected transitions of tasks.
    #[serde(default)]
    pub surprises: u64,
    /// Mistakes that were put right.
    #[serde(default)]
    pub mistakes: u64,
    /// The newest of them.
    #[serde(default)]
    pub last_mistake: Option<String>,
    /// Why the last policy was taken out, if it was: a panic, with file and line.
    #[serde(default)]
    pub fault: Option<String>,
    /// Why the engine took the policy out: too many mistakes.
    #[serde(default)]
    pub engine_fault: Option<String>,
    /// The policies whose modules are loaded.
    #[serde(default)]
    pub loaded: Vec<String>,
}

impl Status {
    /// Asks the kernel; `None` if `ekiden.ko` is not loaded.
    pub fn read() -> Result<Option<Self>> {
        let mut text = String::new();
        match File::open(DEVICE) {
            Ok(mut file) => file.read_to_string(&mut text).context(format!("cannot read {DEVICE}"))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context(format!("cannot open {DEVICE}")),
        };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| LoadError::Other(format!("{DEVICE} says something strange ({error}): {text}")))
    }
}

/// Something to say to the policy that runs.
#[derive(Clone, Copy, Debug)]
pub enum Hint<'a> {
    /// A hint that is answered at once.
    Now(&'a [u8]),
    /// Opens a queue.
    Open(u32),
    /// Hints in a queue.
    Ready(u32, &'a [u8]),
    /// Closes a queue.
    Close(u32),
}

/// How tasks come over from one policy to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moved {
    /// With the whole state, which stays where it is in memory.
    ByPointer,
    /// All of them are new to the successor, but it goes on with what the old one saved for a version with another layout.
    Converted,
    /// All of them are new to the successor.
    StartedOver,
}

/// Who is to take over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Succession<'a> {
    /// The name of its module; the one that runs if there is none.
    pub module: Option<&'a str>,
    /// The policy that has to be in it; any if there is none.
    pub policy: Option<&'a str>,
    /// Its parameters, `name=number` separated by blanks.
    pub params: &'a str,
    /// Takes over no state, even if it could.
    pub start_over: bool,
    /// Memory for it, in bytes; 0 for as much as the old one has.
    pub arena_bytes: u64,
}

/// A policy has taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgrade {
    /// How the tasks came over.
    pub moved: Moved,
    /// How long a CPU waited at most, in nanoseconds.
    pub wait_ns: u64,
    /// How many tasks there were.
    pub tasks: u64,
}

/// An open `/dev/ekiden`. The policy that it created ends when it is closed.
#[derive(Debug)]
pub struct Control {
    file: File,
}

#[repr(C)]
struct CreateRequest {
    policy: [u8; 32],
    params: u64,
    topology: u64,
    error: u64,
    params_len: u32,
    topology_len: u32,
    error_len: u32,
    max_tasks: u32,
    arena_bytes: u64,
    tape_records: u64,
}

#[repr(C)]
struct HintRequest {
    kind: u32,
    queue: u32,
    bytes: u64,
    len: u32,
    taken: u32,
}

#[repr(C)]
struct UpgradeRequest {
    module: [u8; 64],
    policy: [u8; 32],
    params: u64,
    error: u64,
    params_len: u32,
    error_len: u32,
    arena_bytes: u64,
    flags: u32,
    moved: u32,
    wait_ns: u64,
    tasks: u64,
}

nix::ioctl_write_ptr!(ioctl_create, b'E', 1, CreateRequest);
nix::ioctl_readwrite!(ioctl_hint, b'E', 2, HintRequest);
nix::ioctl_readwrite!(ioctl_upgrade, b'E', 4, UpgradeRequest);
nix::ioctl_write_int_bad!(ioctl_tape, nix::request_code_none!(b'E', 5));

impl Control {
    /// Opens the device.
    pub fn open() -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(DEVICE).context(format!("cannot open {DEVICE}"))?;
        Ok(Self { file })
    }

    /// Makes a policy ready.
    pub fn create(
        &self,
        policy: &str,
        params: &str,
        topology: &Topology,
        max_tasks: u32,
        arena_bytes: u64,
        tape_records: u64,
    ) -> Result<()> {
        let mut name = [0; 32];
        if policy.len() >= name.len() {
            return Err(LoadError::NoPolicy(policy.into(), String::new()));
        }
        name[..policy.len()].copy_from_slice(policy.as_bytes());
        let words = topology.to_words();
        let mut error = [0_u8; 256];
        let request = CreateRequest {
            policy: name,
            params: params.as_ptr() as u64,
            topology: words.as_ptr() as u64,
            error: error.as_mut_ptr() as u64,
            params_len: params.len() as u32,
            topology_len: words.len() as u32,
            error_len: error.len() as u32,
            max_tasks,
            arena_bytes,
            tape_records,
        };
        // SAFETY: the request has the layout that the device expects, and its pointers are good for the call.
        match unsafe { ioctl_create(self.file.as_raw_fd(), &raw const request) } {
            Ok(_) => Ok(()),
            Err(nix::Error::EBUSY) => Err(LoadError::Busy(running())),
            Err(nix::Error::ENOENT) => Err(LoadError::NoPolicy(policy.into(), known())),
            Err(errno) => {
                let text = String::from_utf8_lossy(&error);
                let reason = text.trim_end_matches('\0');
                if reason.is_empty() {
                    Err(io::Error::from(errno)).context("ekiden.ko cannot make the policy ready")
                } else {
                    Err(LoadError::Refused(reason.to_owned()))
                }
            }
        }
    }

    /// Says something to the policy; true if it took the hint.
    pub fn hint(&self, hint: Hint<'_>) -> Result<bool> {
        let (kind, queue, bytes): (u32, u32, &[u8]) = match hint {
            Hint::Now(bytes) => (17, 0, bytes),
            Hint::Open(queue) => (18, queue, &[]),
            Hint::Ready(queue, bytes) => (19, queue, bytes),
            Hint::Close(queue) => (20, queue, &[]),
        };
        let mut request = HintRequest { kind, queue, bytes: bytes.as_ptr() as u64, len: bytes.len() as u32, taken: 0 };
        // SAFETY: as for `create`.
        unsafe { ioctl_hint(self.file.as_raw_fd(), &raw mut request) }
            .map_err(io::Error::from)
            .context("the policy cannot be told")?;
        Ok(request.taken != 0)
    }

    /// Lets another policy take over, or a new instance of the one that runs. If that is refused, the old one goes on.
    pub fn upgrade(&self, succession: &Succession<'_>) -> Result<Upgrade> {
        let mut module = [0; 64];
        let name = succession.module.unwrap_or_default();
        if name.len() >= module.len() {
            return Err(LoadError::NoPolicy(name.into(), known()));
        }
        module[..name.len()].copy_from_slice(name.as_bytes());
        let mut policy = [0; 32];
        for (place, byte) in policy.iter_mut().zip(succession.policy.unwrap_or_default().bytes()) {
            *place = byte;
        }
        let mut error = [0_u8; 256];
        let mut request = UpgradeRequest {
            module,
            policy,
            params: succession.params.as_ptr() as u64,
            error: error.as_mut_ptr() as u64,
            params_len: succession.params.len() as u32,
            error_len: error.len() as u32,
            arena_bytes: succession.arena_bytes,
            flags: u32::from(succession.start_over),
            moved: 0,
            wait_ns: 0,
            tasks: 0,
        };
        // SAFETY: the request has the layout that the device expects, and its pointers are good for the call.
        let Err(errno) = (unsafe { ioctl_upgrade(self.file.as_raw_fd(), &raw mut request) }) else {
            let moved = match request.moved {
                1 => Moved::ByPointer,
                2 => Moved::Converted,
                _ => Moved::StartedOver,
            };
            return Ok(Upgrade { moved, wait_ns: request.wait_ns, tasks: request.tasks });
        };
        let text = String::from_utf8_lossy(&error);
        let reason = text.trim_end_matches('\0');
        Err(match errno {
            nix::Error::ENODEV => LoadError::NothingRuns,
            nix::Error::ENOENT => LoadError::NoPolicy(name.into(), known()),
            nix::Error::EALREADY => LoadError::UpgradeUnderWay,
            nix::Error::ETIME => LoadError::NeverQuiet,
            nix::Error::EIO => LoadError::ThrownOut(fault()),
            _ if !reason.is_empty() => LoadError::CannotTakeOver(reason.to_owned()),
            errno => return Err(io::Error::from(errno)).context("the policy cannot be replaced"),
        })
    }
}

impl Control {
    /// Starts or stops recording the policy's calls.
    pub fn run_tape(&self, on: bool) -> Result<()> {
        // SAFETY: takes a number.
        unsafe { ioctl_tape(self.file.as_raw_fd(), i32::from(on)) }
            .map_err(io::Error::from)
            .context("the flight recorder cannot be switched: no policy runs, or it has none")?;
        Ok(())
    }

    /// The device itself, to be mapped.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

fn fault() -> String {
    let status = Status::read().ok().flatten().unwrap_or_default();
    status.fault.or(status.engine_fault).unwrap_or_else(|| "no reason given".into())
}

/// The calls that the running policy implements.
pub(crate) fn calls() -> Result<Calls> {
    Ok(Calls(Status::read()?.unwrap_or_default().calls))
}

fn running() -> String {
    Status::read().ok().flatten().and_then(|status| status.policy).unwrap_or_else(|| "unknown".into())
}

fn known() -> String {
    Status::read().ok().flatten().map(|status| status.loaded.join(", ")).unwrap_or_default()
}
