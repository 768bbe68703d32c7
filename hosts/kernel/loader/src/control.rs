//! `/dev/ekiden`: what is asked of `ekiden.ko`. The C side is `hosts/kernel/include/ekiden_control.h`.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::AsRawFd,
};

use ekiden::{CpuMask, Topology};
use ekiden_engine::{Checks, Share};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Context, LoadError, Result},
    status::{Status, fault, known, running},
};

pub(crate) const DEVICE: &str = "/dev/ekiden";

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
    /// All of them are new to the successor, but it continues with what the old one saved for a version with another layout.
    Converted,
    /// All of them are new to the successor.
    StartedOver,
}

/// The policy that takes over, and its parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Succession<'a> {
    /// The policy slot of the one that runs; the default one if there is none.
    pub slot: Option<u32>,
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
    /// How long a CPU waited at once at most, in nanoseconds.
    pub wait_ns: u64,
    /// How many tasks there were.
    pub tasks: u64,
}

/// What a policy is to be made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) policy: &'a str,
    pub(crate) params: &'a str,
    pub(crate) saved: &'a [u8],
    pub(crate) max_tasks: u32,
    pub(crate) arena_bytes: u64,
    pub(crate) call_log_records: u64,
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

/// For how many bytes there is room in what a policy saves of itself; in hosts/kernel/module/upgrade.c as well.
pub fn saved_most(max_tasks: u32) -> usize {
    (64 << 10) + max_tasks as usize * 64
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
    call_log_records: u64,
    flags: u32,
    slot: u32,
    group: u32,
    saved_len: u32,
    saved: u64,
}

#[repr(C)]
struct SaveRequest {
    bytes: u64,
    len: u32,
    slot: u32,
}

#[repr(C)]
struct HintRequest {
    kind: u32,
    queue: u32,
    bytes: u64,
    len: u32,
    taken: u32,
    slot: u32,
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
    slot: u32,
    reserved: u32,
}

#[repr(C)]
struct OrderRequest {
    slots: [u8; 8],
    len: u32,
}

#[repr(C)]
struct ShareRequest {
    cpus: u64,
    cpus_len: u32,
    slot: u32,
    weight: u32,
    flags: u32,
}

nix::ioctl_readwrite!(ioctl_create, b'E', 1, CreateRequest);
nix::ioctl_readwrite!(ioctl_hint, b'E', 2, HintRequest);
nix::ioctl_readwrite!(ioctl_upgrade, b'E', 4, UpgradeRequest);
nix::ioctl_readwrite!(ioctl_save, b'E', 12, SaveRequest);
nix::ioctl_write_int_bad!(ioctl_call_log, nix::request_code_none!(b'E', 5));
nix::ioctl_write_int_bad!(ioctl_checks, nix::request_code_none!(b'E', 8));
nix::ioctl_write_ptr!(ioctl_order, b'E', 6, OrderRequest);
nix::ioctl_write_ptr!(ioctl_share, b'E', 9, ShareRequest);

impl Control {
    /// Opens the device.
    pub fn open() -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(DEVICE).context(format!("cannot open {DEVICE}"))?;
        Ok(Self { file })
    }

    /// Makes a policy ready, and says in which policy slot it is. `max_tasks` and `topology` count for the first one only.
    pub(crate) fn create(&self, wanted: &Wanted<'_>, topology: &Topology) -> Result<u32> {
        let mut name = [0; 32];
        let Wanted { policy, params, .. } = *wanted;
        if policy.len() >= name.len() {
            return Err(LoadError::NoPolicy(policy.into(), String::new()));
        }
        name[..policy.len()].copy_from_slice(policy.as_bytes());
        if wanted.saved.len() > saved_most(wanted.max_tasks) {
            return Err(LoadError::NoRoomToSave);
        }
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
            call_log_records: wanted.call_log_records,
            flags: u32::from(wanted.joins) | u32::from(wanted.is_default) << 1 | access,
            slot: 0,
            group,
            saved_len: wanted.saved.len() as u32,
            saved: wanted.saved.as_ptr() as u64,
        };
        // SAFETY: the request has the layout that the device expects, and its pointers are good for the call.
        match unsafe { ioctl_create(self.file.as_raw_fd(), &raw mut request) } {
            Ok(_) => Ok(request.slot),
            Err(nix::Error::EBUSY) => Err(LoadError::Busy(running())),
            Err(nix::Error::ENOENT) => Err(LoadError::NoPolicy(policy.into(), known())),
            Err(nix::Error::EUSERS) => Err(LoadError::NoPolicySlot),
            Err(nix::Error::ENOMEM) => Err(LoadError::NoMemory { mib: wanted.arena_bytes >> 20 }),
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

    /// What the policy in a policy slot saves for one of its name in an agent, if it saves anything; `max_tasks` is how many tasks there is room for.
    ///
    /// # Errors
    /// There is no room for it, or the policy panics, which takes it out.
    pub fn save(&self, slot: u32, max_tasks: u32) -> Result<Option<Vec<u8>>> {
        let mut room = vec![0_u8; saved_most(max_tasks)];
        let mut request = SaveRequest { bytes: room.as_mut_ptr() as u64, len: room.len() as u32, slot: slot + 1 };
        // SAFETY: the request has the layout that the device expects, and the room is as long as it says.
        match unsafe { ioctl_save(self.file.as_raw_fd(), &raw mut request) } {
            Ok(_) => {
                room.truncate(request.len as usize);
                Ok(Some(room))
            }
            Err(nix::Error::ENODATA) => Ok(None),
            Err(nix::Error::ENOSPC) => Err(LoadError::NoRoomToSave),
            Err(nix::Error::ENODEV) => Err(LoadError::NothingRuns),
            Err(nix::Error::EIO) => {
                let why = Status::read()?.and_then(|status| status.why(slot));
                Err(LoadError::TakenOut(why.unwrap_or_else(|| "no reason given".into())))
            }
            Err(errno) => Err(io::Error::from(errno)).context("the policy cannot be saved"),
        }
    }

    /// Asks policies in this order; `slots` names each that runs once.
    pub fn reorder(&self, slots: &[u32]) -> Result<()> {
        let mut request = OrderRequest { slots: [0; 8], len: slots.len() as u32 };
        for (place, slot) in request.slots.iter_mut().zip(slots) {
            *place = *slot as u8;
        }
        // SAFETY: the request has the layout that the device expects.
        match unsafe { ioctl_order(self.file.as_raw_fd(), &raw const request) } {
            Ok(_) => Ok(()),
            Err(nix::Error::ENODEV) => Err(LoadError::NothingRuns),
            Err(errno) => Err(io::Error::from(errno)).context("the policies cannot be put in this order"),
        }
    }

    /// Gives the policy in a policy slot CPUs, none for no set, and a weight, instead of what it had.
    ///
    /// # Errors
    /// If no such policy runs, if none of the CPUs exist, or if the weight is not in
    /// [`POLICY_WEIGHTS`](ekiden_engine::POLICY_WEIGHTS).
    pub fn share(&self, slot: u32, cpus: &CpuMask, share: Share) -> Result<()> {
        let words = cpus.as_words();
        let request = ShareRequest {
            cpus: words.as_ptr() as u64,
            cpus_len: if cpus.is_empty() { 0 } else { words.len() as u32 },
            slot,
            weight: share.weight,
            flags: u32::from(share.is_strict),
        };
        // SAFETY: the request has the layout that the device expects, and its pointer is good for the call.
        match unsafe { ioctl_share(self.file.as_raw_fd(), &raw const request) } {
            Ok(_) => Ok(()),
            Err(nix::Error::ENODEV) => Err(LoadError::NothingRuns),
            Err(errno) => Err(io::Error::from(errno)).context(
                "the policy cannot have this share: the set needs a CPU of this machine, and a weight is from 1 to 10000",
            ),
        }
    }

    /// Says something to the policy in a policy slot, or to the default one; true if it took the hint.
    pub fn hint(&self, slot: Option<u32>, hint: Hint<'_>) -> Result<bool> {
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
            slot: slot.map_or(0, |slot| slot + 1),
            reserved: 0,
        };
        // SAFETY: the request has the layout that the device expects, and `bytes` are good for the call.
        unsafe { ioctl_hint(self.file.as_raw_fd(), &raw mut request) }
            .map_err(io::Error::from)
            .context("the policy cannot be told")?;
        Ok(request.taken != 0)
    }

    /// Lets another policy take over, or a new instance of the one that runs. If that is refused, the old one continues.
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
            slot: succession.slot.map_or(0, |slot| slot + 1),
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
            nix::Error::EINTR => LoadError::Interrupted,
            nix::Error::EIO => LoadError::TakenOut(fault()),
            _ if !reason.is_empty() => LoadError::CannotTakeOver(reason.to_owned()),
            errno => return Err(io::Error::from(errno)).context("the policy cannot be replaced"),
        })
    }
}

impl Control {
    /// Starts or stops recording the calls of the policy in a policy slot.
    pub fn run_call_log(&self, slot: u32, on: bool) -> Result<()> {
        // SAFETY: the request takes a number, and the device gets at no memory of ours.
        match unsafe { ioctl_call_log(self.file.as_raw_fd(), slot as i32 * 2 + i32::from(on)) } {
            Ok(_) => Ok(()),
            Err(nix::Error::EINTR) => Err(LoadError::Interrupted),
            Err(errno) => Err(io::Error::from(errno))
                .context("the flight recorder cannot be switched: no policy runs, or it has none"),
        }
    }

    /// Chooses what is done about the policy in a policy slot when a task of its changes its state in an unexpected way.
    pub fn check(&self, slot: u32, checks: Checks) -> Result<()> {
        // SAFETY: the request takes a number, and the device gets at no memory of ours.
        unsafe { ioctl_checks(self.file.as_raw_fd(), slot as i32 * 4 + checks as i32) }
            .map_err(io::Error::from)
            .context("the checks of that policy cannot be switched")?;
        Ok(())
    }

    /// The device itself, to be mapped.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}
