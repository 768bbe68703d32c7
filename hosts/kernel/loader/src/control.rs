//! `/dev/ekiden`: what is asked of `ekiden.ko`. The C side is `hosts/kernel/include/ekiden_control.h`.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io,
    os::fd::AsRawFd,
    time::Duration,
};

use ekiden::{CpuMask, Topology};
use ekiden_engine::{Checks, Share};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Context, LoadError, Result},
    tape::now_ns,
};

const DEVICE: &str = "/dev/ekiden";

/// What `ekiden.ko` says when it is asked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Version of the interface.
    pub abi: u32,
    /// Whether the kernel calls the policies.
    #[serde(default)]
    pub attached: bool,
    /// The policies that run, in the order in which they are asked.
    #[serde(default)]
    pub policies: Vec<PolicyStatus>,
    /// Tasks that there is room for.
    #[serde(default)]
    pub capacity: u64,
    /// Tasks for which there was no room when they last waited: no policy has them, and they share a part of each CPU.
    #[serde(default)]
    pub beyond: u64,
    /// Tasks that wait for their control groups to have CPU time again.
    #[serde(default)]
    pub parked: u64,
    /// Control groups that share CPU time by themselves.
    #[serde(default)]
    pub groups: u64,
    /// How often there was no room for another one. It counts as part of the one above it.
    #[serde(default)]
    pub groups_without_room: u64,
    /// What was counted, for all policies together.
    #[serde(flatten)]
    pub counts: Counts,
    /// Why the last policy that was taken out was, if one was: a panic, with file and line.
    #[serde(default)]
    pub fault: Option<String>,
    /// How all CPUs were brought to stand still, where that was needed.
    #[serde(default)]
    pub stops: Stops,
    /// For how many nanoseconds interrupts were off at most because of each kind of event, if the parameter `times` of `ekiden.ko`
    /// is set. On a machine that loses its processors, that includes what they were away.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub off_ns_max: BTreeMap<String, u64>,
    /// The policies whose modules are loaded.
    #[serde(default)]
    pub loaded: Vec<String>,
}

/// How all CPUs were brought to stand still, since `ekiden.ko` was loaded.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub struct Stops {
    /// How often after a few meetings in an interrupt at most.
    pub quick: u64,
    /// How often after more, as a CPU did not come in time.
    pub slow: u64,
    /// How long a CPU stood still at most, the last time and the longest time, in nanoseconds.
    pub wait_ns: u64,
    /// See there.
    pub wait_ns_max: u64,
    /// How long it took from the wish until it was done, the last time and the longest time, in nanoseconds.
    pub took_ns: u64,
    /// See there.
    pub took_ns_max: u64,
    /// For which CPU a meeting was given up last; negative if none was.
    pub late_cpu: i32,
}

/// One of the policies that run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// Its name.
    pub policy: String,
    /// Its place in the engine.
    pub seat: u32,
    /// Whether it is called; if not, it was taken out.
    #[serde(default)]
    pub alive: bool,
    /// Whether tasks for which no policy was chosen have it.
    #[serde(default)]
    pub default: bool,
    /// Whether every user may choose it for their tasks; otherwise only root may, and the members of one group of users, if there is one.
    #[serde(default)]
    pub open: bool,
    /// That group.
    #[serde(default)]
    pub open_to_group: Option<u32>,
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
    pub module: String,
    /// How often a policy has taken over here from another one, or from itself.
    #[serde(default)]
    pub upgrades: u64,
    /// How long a CPU waited at most when the last one did, in nanoseconds.
    #[serde(default)]
    pub upgrade_wait_ns: u64,
    /// The longest of these.
    #[serde(default)]
    pub upgrade_wait_ns_max: u64,
    /// The types of its hints and notices, if it has queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<HintTypes>,
    /// What its queues of hints have counted, if programs have opened any.
    #[serde(default)]
    pub queues: Option<HintQueues>,
    /// What was counted.
    #[serde(flatten)]
    pub counts: Counts,
    /// The CPUs that are its, as a list; nothing if it has no set.
    #[serde(default)]
    pub cpus: Option<String>,
    /// Whether no other policy may use them, and it no others.
    #[serde(default)]
    pub strict: bool,
    /// What it weighs beside others, if anything; 100 is what those weigh that have no weight.
    #[serde(default)]
    pub weight: Option<u32>,
    /// What becomes of it when a task of its changes its state in an unexpected way: `off`, `report`, `remove`, `stop`.
    #[serde(default)]
    pub checks: String,
    /// The newest such change.
    #[serde(default)]
    pub last_surprise: Option<String>,
    /// Why it was taken out, if it was: a panic, with file and line.
    #[serde(default)]
    pub fault: Option<String>,
    /// And when, in nanoseconds of the monotonic clock; the times of the kernel's log are nearly the same.
    #[serde(default)]
    pub fell_ns: Option<u64>,
}

impl PolicyStatus {
    /// How long ago it was taken out, if it was.
    pub fn fell_ago(&self) -> Option<Duration> {
        self.fell_ns.map(|fell_ns| Duration::from_nanos(now_ns().saturating_sub(fell_ns)))
    }
}

/// What a policy and programs tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintTypes {
    /// What goes to the policy.
    pub hint: HintType,
    /// What comes from it.
    pub notice: HintType,
}

/// A type of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintType {
    /// Of its layout; that of a program has to be the same.
    pub fingerprint: u64,
    /// Its size; 0 for nothing.
    pub bytes: u32,
}

/// Queues of hints that programs have to a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintQueues {
    /// How many there were.
    #[serde(default)]
    pub opened: u64,
    /// How many are open.
    pub open: u64,
    /// Sums over all that there were.
    #[serde(flatten)]
    pub counts: HintCounts,
    /// Some that are open, the oldest first.
    #[serde(default)]
    pub list: Vec<OpenQueue>,
}

/// A queue that is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenQueue {
    /// Its number, as the policy knows it.
    pub queue: u32,
    /// The process that has opened it.
    pub owner: u32,
    /// What it has counted.
    #[serde(flatten)]
    pub counts: HintCounts,
}

/// What queues of hints count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintCounts {
    /// Hints that were taken out of their rings.
    pub hints: u64,
    /// Hints that were no values of their type.
    pub refused: u64,
    /// How often an index of a program's made no sense.
    pub nonsense: u64,
    /// How often a program says that it found no room.
    pub full: u64,
    /// Notices that were written.
    pub notices: u64,
    /// How often there was no room for one.
    pub lost: u64,
}

/// What the engine counts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Tasks under care or about to be.
    #[serde(default)]
    pub tasks: u64,
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
    /// Wishes of the policy beyond what it may have in a time: kicks that came later, timers that were too short, searches in vain.
    #[serde(default)]
    pub slowed: u64,
    /// Mistakes that were put right.
    #[serde(default)]
    pub mistakes: u64,
    /// The newest of them.
    #[serde(default)]
    pub last_mistake: Option<String>,
    /// Why the engine took the policy out: too many mistakes.
    #[serde(default)]
    pub engine_fault: Option<String>,
}

impl Status {
    /// Asks the kernel; `None` if `ekiden.ko` is not loaded.
    pub fn read() -> Result<Option<Self>> {
        let text = match ekiden_user::status() {
            Ok(text) => text,
            Err(ekiden_user::Error::NotLoaded) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| LoadError::Other(format!("{DEVICE} says something strange ({error}): {text}")))
    }

    /// The policy that gets the tasks for which no policy was chosen; `None` if none runs.
    pub fn main(&self) -> Option<&PolicyStatus> {
        self.policies.iter().find(|policy| policy.default).or(self.policies.first())
    }

    /// The policy of this name or in the instance of this number, or the [main](Self::main) one if nothing is named.
    ///
    /// # Errors
    /// If there is no such policy.
    pub fn find(&self, name: Option<&str>) -> Result<&PolicyStatus> {
        let Some(name) = name else { return self.main().ok_or(LoadError::NothingRuns) };
        let is_it = |policy: &&PolicyStatus| policy.policy == name || policy.instance.to_string() == name;
        let known = || self.policies.iter().map(|policy| policy.policy.as_str()).collect::<Vec<_>>().join(", ");
        self.policies.iter().find(is_it).ok_or_else(|| LoadError::NotRunning(name.to_owned(), known()))
    }

    /// Why a policy was taken out, in words: this one's reason, or the newest one.
    pub fn why(&self, seat: u32) -> Option<String> {
        self.own_reason(seat).or_else(|| self.fault.clone()).or_else(|| self.counts.engine_fault.clone())
    }

    /// Why this very policy was taken out.
    pub(crate) fn own_reason(&self, seat: u32) -> Option<String> {
        let own = self.policies.iter().find(|policy| policy.seat == seat)?;
        own.fault.clone().or(own.counts.engine_fault.clone())
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
    /// The seat of the one that runs; the default one if there is none.
    pub seat: Option<u32>,
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

/// What a policy is to be made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) policy: &'a str,
    pub(crate) params: &'a str,
    pub(crate) max_tasks: u32,
    pub(crate) arena_bytes: u64,
    pub(crate) tape_records: u64,
    /// It comes to those that run, if any do.
    pub(crate) joins: bool,
    pub(crate) is_default: bool,
    pub(crate) access: Access,
}

/// Who may choose a policy for their tasks, besides processes with CAP_SYS_NICE. The default policy is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Access {
    /// No other user.
    #[default]
    Root,
    /// The members of a group of users, by its number.
    Group(u32),
    /// Every user.
    Open,
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
    flags: u32,
    seat: u32,
    group: u32,
    reserved: u32,
}

#[repr(C)]
struct HintRequest {
    kind: u32,
    queue: u32,
    bytes: u64,
    len: u32,
    taken: u32,
    seat: u32,
    reserved: u32,
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
    seat: u32,
    reserved: u32,
}

#[repr(C)]
struct OrderRequest {
    seats: [u8; 8],
    len: u32,
}

#[repr(C)]
struct ShareRequest {
    cpus: u64,
    cpus_len: u32,
    seat: u32,
    weight: u32,
    flags: u32,
}

nix::ioctl_readwrite!(ioctl_create, b'E', 1, CreateRequest);
nix::ioctl_readwrite!(ioctl_hint, b'E', 2, HintRequest);
nix::ioctl_readwrite!(ioctl_upgrade, b'E', 4, UpgradeRequest);
nix::ioctl_write_int_bad!(ioctl_tape, nix::request_code_none!(b'E', 5));
nix::ioctl_write_int_bad!(ioctl_checks, nix::request_code_none!(b'E', 8));
nix::ioctl_write_ptr!(ioctl_order, b'E', 6, OrderRequest);
nix::ioctl_write_ptr!(ioctl_share, b'E', 9, ShareRequest);

impl Control {
    /// Opens the device.
    pub fn open() -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(DEVICE).context(format!("cannot open {DEVICE}"))?;
        Ok(Self { file })
    }

    /// Makes a policy ready, and says in which seat it is. `max_tasks` and `topology` count for the first one only.
    pub(crate) fn create(&self, wanted: &Wanted<'_>, topology: &Topology) -> Result<u32> {
        let mut name = [0; 32];
        let Wanted { policy, params, .. } = *wanted;
        if policy.len() >= name.len() {
            return Err(LoadError::NoPolicy(policy.into(), String::new()));
        }
        name[..policy.len()].copy_from_slice(policy.as_bytes());
        let words = topology.to_words();
        let mut error = [0_u8; 256];
        let (access, group) = match wanted.access {
            Access::Root => (0, 0),
            Access::Open => (4, 0),
            Access::Group(group) => (8, group),
        };
        let mut request = CreateRequest {
            policy: name,
            params: params.as_ptr() as u64,
            topology: words.as_ptr() as u64,
            error: error.as_mut_ptr() as u64,
            params_len: params.len() as u32,
            topology_len: words.len() as u32,
            error_len: error.len() as u32,
            max_tasks: wanted.max_tasks,
            arena_bytes: wanted.arena_bytes,
            tape_records: wanted.tape_records,
            flags: u32::from(wanted.joins) | u32::from(wanted.is_default) << 1 | access,
            seat: 0,
            group,
            reserved: 0,
        };
        // SAFETY: the request has the layout that the device expects, and its pointers are good for the call.
        match unsafe { ioctl_create(self.file.as_raw_fd(), &raw mut request) } {
            Ok(_) => Ok(request.seat),
            Err(nix::Error::EBUSY) => Err(LoadError::Busy(running())),
            Err(nix::Error::ENOENT) => Err(LoadError::NoPolicy(policy.into(), known())),
            Err(nix::Error::EUSERS) => Err(LoadError::NoSeat),
            Err(nix::Error::ENOMEM) => Err(LoadError::NoMemory { mib: wanted.arena_bytes >> 20 }),
            Err(nix::Error::EALREADY) => Err(LoadError::UpgradeUnderWay),
            Err(nix::Error::ETIME) => Err(LoadError::NeverQuiet),
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

    /// Asks policies in this order; `seats` names each that runs once.
    pub fn reorder(&self, seats: &[u32]) -> Result<()> {
        let mut request = OrderRequest { seats: [0; 8], len: seats.len() as u32 };
        for (place, seat) in request.seats.iter_mut().zip(seats) {
            *place = *seat as u8;
        }
        // SAFETY: the request has the layout that the device expects.
        match unsafe { ioctl_order(self.file.as_raw_fd(), &raw const request) } {
            Ok(_) => Ok(()),
            Err(nix::Error::ENODEV) => Err(LoadError::NothingRuns),
            Err(nix::Error::EALREADY) => Err(LoadError::UpgradeUnderWay),
            Err(errno) => Err(io::Error::from(errno)).context("the policies cannot be put in this order"),
        }
    }

    /// Gives the policy in a seat CPUs, none for no set, and a weight, instead of what it had.
    ///
    /// # Errors
    /// If no such policy runs, if none of the CPUs exist, or if the weight is not in
    /// [`POLICY_WEIGHTS`](ekiden_engine::POLICY_WEIGHTS).
    pub fn share(&self, seat: u32, cpus: &CpuMask, share: Share) -> Result<()> {
        let words = cpus.as_words();
        let request = ShareRequest {
            cpus: words.as_ptr() as u64,
            cpus_len: if cpus.is_empty() { 0 } else { words.len() as u32 },
            seat,
            weight: share.weight,
            flags: u32::from(share.is_strict),
        };
        // SAFETY: the request has the layout that the device expects, and its pointer is good for the call.
        match unsafe { ioctl_share(self.file.as_raw_fd(), &raw const request) } {
            Ok(_) => Ok(()),
            Err(nix::Error::ENODEV) => Err(LoadError::NothingRuns),
            Err(nix::Error::EALREADY) => Err(LoadError::UpgradeUnderWay),
            Err(errno) => Err(io::Error::from(errno)).context(
                "the policy cannot have this share: the set needs a CPU of this machine, and a weight is from 1 to 10000",
            ),
        }
    }

    /// Says something to the policy in a seat, or to the default one; true if it took the hint.
    pub fn hint(&self, seat: Option<u32>, hint: Hint<'_>) -> Result<bool> {
        let (kind, queue, bytes): (u32, u32, &[u8]) = match hint {
            Hint::Now(bytes) => (17, 0, bytes),
            Hint::Open(queue) => (18, queue, &[]),
            Hint::Ready(queue, bytes) => (19, queue, bytes),
            Hint::Close(queue) => (20, queue, &[]),
        };
        let mut request = HintRequest {
            kind,
            queue,
            bytes: bytes.as_ptr() as u64,
            len: bytes.len() as u32,
            taken: 0,
            seat: seat.map_or(0, |seat| seat + 1),
            reserved: 0,
        };
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
            seat: succession.seat.map_or(0, |seat| seat + 1),
            reserved: 0,
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
    /// Starts or stops recording the calls of the policy in a seat.
    pub fn run_tape(&self, seat: u32, on: bool) -> Result<()> {
        // SAFETY: takes a number.
        unsafe { ioctl_tape(self.file.as_raw_fd(), seat as i32 * 2 + i32::from(on)) }
            .map_err(io::Error::from)
            .context("the flight recorder cannot be switched: no policy runs, or it has none")?;
        Ok(())
    }

    /// Chooses what becomes of the policy in a seat when a task of its changes its state in an unexpected way.
    pub fn check(&self, seat: u32, checks: Checks) -> Result<()> {
        // SAFETY: takes a number.
        unsafe { ioctl_checks(self.file.as_raw_fd(), seat as i32 * 4 + checks as i32) }
            .map_err(io::Error::from)
            .context("the checks of that policy cannot be switched")?;
        Ok(())
    }

    /// The device itself, to be mapped.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

fn fault() -> String {
    let status = Status::read().ok().flatten().unwrap_or_default();
    status.fault.or(status.counts.engine_fault).unwrap_or_else(|| "no reason given".into())
}

fn running() -> String {
    let status = Status::read().ok().flatten().unwrap_or_default();
    status.main().map_or_else(|| "unknown".into(), |policy| policy.policy.clone())
}

fn known() -> String {
    Status::read().ok().flatten().map(|status| status.loaded.join(", ")).unwrap_or_default()
}
