//! Queues of hints, from the program's side.

use std::{
    fmt, io,
    marker::PhantomData,
    ops::Deref,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::{self, NonNull},
    slice,
    sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed},
    time::Duration,
};

use ekiden_hints::{
    Consumer, Geometry, Plain, Producer, Side, State,
    layout::{VERSION, at},
};
use zerocopy::IntoBytes;

use crate::{Device, Error, Policy, Result, find, request};

/// Records of a ring unless something else is asked for.
pub const RECORDS: u32 = 64;

/// A queue to a policy: hints of type `Up` go to it, notices of type `Down` come back. `()` for nothing in that
/// direction.
///
/// The process that opens it owns it: any of its threads may use it, one at a time. A child does not have it after a
/// fork, and one that uses it there all the same is killed by the missing memory. It closes when it is dropped or the
/// process ends; the policy hears what was said until then.
///
/// ```no_run
/// use ekiden_user::{HintQueue, Policy};
///
/// let mut queue = HintQueue::<u64, ()>::open(Policy::Named("my-policy"))?;
/// queue.send(&17)?; // no system call: the policy hears it when this thread next sleeps, or at the tick
/// queue.ring()?;    // or now
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HintQueue<Up, Down> {
    bytes: BytesQueue,
    types: PhantomData<fn(Up) -> Down>,
}

/// A queue of raw bytes, for a program that learns only at run time how the policy's types look.
pub struct BytesQueue {
    fd: OwnedFd,
    memory: Memory,
    geometry: Geometry,
    number: u32,
    head: u64,
    tail: u64,
}

impl<Up, Down> fmt::Debug for HintQueue<Up, Down> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes.fmt(f)
    }
}

impl fmt::Debug for BytesQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BytesQueue").field("number", &self.number).field("state", &self.state()).finish_non_exhaustive()
    }
}

/// What both share, mapped.
struct Memory {
    at: NonNull<AtomicU64>,
    bytes: usize,
}

// SAFETY: it is memory that stays until it is dropped, and is only used as atomics.
unsafe impl Send for Memory {}
// SAFETY: several threads only use it as atomics.
unsafe impl Sync for Memory {}

impl Memory {
    fn map(fd: &OwnedFd, bytes: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, where the kernel finds room.
        let at = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        match NonNull::new(at) {
            Some(found) if at != libc::MAP_FAILED => Ok(Self { at: found.cast(), bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: so much is mapped, aligned to a page, until this is dropped; others use it as atomics too.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.bytes / 8) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and no reference into it is left.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// Why a hint was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// The policy has not heard enough of what was said before. Counted in the queue; nothing waits.
    #[error("the queue is full: the policy has not heard what was written before; ring, or leave it")]
    Full,
    /// The policy has ended.
    #[error("the policy has ended; open a queue to another one")]
    PolicyGone,
    /// A version of the policy has taken over that has other types.
    #[error("a version of the policy with other hints has taken over; open the queue anew")]
    OpenAnew,
}

impl<Up: Plain + IntoBytes, Down: Plain> HintQueue<Up, Down> {
    /// Opens a queue with room for [`RECORDS`] in each direction.
    ///
    /// # Errors
    /// If the policy does not run, is not open to the caller, has no queues or others than these, or if there are too
    /// many.
    pub fn open(policy: Policy<'_>) -> Result<Self> {
        Self::with_records(policy, RECORDS, RECORDS)
    }

    /// Opens a queue with room for this many hints and notices: powers of two, 4096 at most.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_records(policy: Policy<'_>, hints: u32, notices: u32) -> Result<Self> {
        let types = Geometry::of_types::<Up, Down>();
        let side = |side: Side, records| Side { records, ..side };
        let bytes = BytesQueue::open(policy, Geometry { up: side(types.up, hints), down: side(types.down, notices) })?;
        Ok(Self { bytes, types: PhantomData })
    }

    /// Writes a hint, without a system call. The policy hears it soon after this process next has to do with the
    /// scheduler: one of its threads sleeps, wakes another one up, or has used the CPU until a tick.
    ///
    /// # Errors
    /// If there is no room, or the policy is not there any more; neither waits.
    pub fn send(&mut self, hint: &Up) -> std::result::Result<(), NotSent> {
        self.bytes.send(hint.as_bytes())
    }

    /// Takes the oldest notice, if there is one. No system call. Notices that are no value of `Down` are passed over.
    pub fn receive(&mut self) -> Option<Down> {
        let mut room = vec![0; size_of::<Down>()];
        while self.bytes.receive(&mut room) {
            if let Ok(notice) = Down::try_read_from_bytes(&room) {
                return Some(notice);
            }
        }
        None
    }
}

impl BytesQueue {
    /// Opens a queue of these types, with this many records.
    ///
    /// # Errors
    /// As [`HintQueue::open`].
    pub fn open(policy: Policy<'_>, types: Geometry) -> Result<Self> {
        let slot = find(policy)?;
        let mut reason = [0_u8; 256];
        let mut open = request::Open {
            up_fingerprint: types.up.fingerprint,
            down_fingerprint: types.down.fingerprint,
            up_bytes: types.up.bytes,
            down_bytes: types.down.bytes,
            up_records: types.up.records,
            down_records: types.down.records,
            slot: slot.map_or(0, |slot| slot + 1),
            queue: 0,
            bytes: 0,
            error: reason.as_mut_ptr() as u64,
            error_len: reason.len() as u32,
            flags: 0,
        };
        let device = Device::open()?;
        // SAFETY: the request has the layout that the device expects, and names memory of this length.
        let fd = match unsafe { request::open(device.file.as_raw_fd(), &raw mut open) } {
            // SAFETY: the kernel has just made it for us.
            Ok(fd) => unsafe { OwnedFd::from_raw_fd(fd) },
            Err(errno) => return Err(why_not(errno.into(), &reason)),
        };
        let failed = |source| Error::Io { what: "cannot map a queue".into(), source };
        let memory = Memory::map(&fd, open.bytes as usize).map_err(failed)?;
        let geometry = Geometry::read(memory.words()).map_err(|error| failed(io::Error::other(error)))?;
        if geometry != types {
            return Err(failed(io::Error::other(format!(
                "it is not what was asked for (version {VERSION}): {geometry:?}"
            ))));
        }
        Ok(Self { fd, memory, geometry, number: open.queue, head: 0, tail: 0 })
    }

    /// Writes a hint: see [`HintQueue::send`].
    ///
    /// # Errors
    /// If there is no room, or the policy is not there any more; neither waits.
    pub fn send(&mut self, hint: &[u8]) -> std::result::Result<(), NotSent> {
        match self.state() {
            State::Open => {}
            State::OtherTypes => return Err(NotSent::OpenAnew),
            State::PolicyGone | State::Closed => return Err(NotSent::PolicyGone),
        }
        let ring = self.geometry.up(self.memory.words()).expect("the memory was compared with it");
        let mut hints = Producer::at(ring, self.head);
        let written = hints.push(hint);
        self.head = hints.head();
        written.map_err(|_| NotSent::Full)
    }

    /// Takes the oldest notice, if there is one. No system call.
    pub fn receive(&mut self, room: &mut [u8]) -> bool {
        let ring = self.geometry.down(self.memory.words()).expect("the memory was compared with it");
        let mut notices = Consumer::at(ring, self.tail);
        // After an index that makes no sense, nothing is there.
        let found = notices.pop(room) == Ok(true);
        self.tail = notices.tail();
        found
    }

    /// Has the policy hear now what was written: a system call.
    ///
    /// # Errors
    /// If the policy is not there any more.
    pub fn ring(&self) -> std::result::Result<(), NotSent> {
        // SAFETY: the request takes no argument, and the descriptor is open as long as `self`.
        match unsafe { request::ring(self.fd.as_raw_fd()) } {
            Ok(_) => Ok(()),
            Err(nix::errno::Errno::ESTALE) => Err(NotSent::OpenAnew),
            Err(_) => Err(NotSent::PolicyGone),
        }
    }

    /// Sleeps until there is a notice, the policy is gone, or so much time is over. Whether there is something to
    /// see.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn wait(&self, most: Duration) -> io::Result<bool> {
        let mut polled = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let most_ms = i32::try_from(most.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: `polled` is one entry, and outlives the call.
        match unsafe { libc::poll(&raw mut polled, 1, most_ms) } {
            -1 => Err(io::Error::last_os_error()),
            ready => Ok(ready > 0),
        }
    }

    /// How the queue stands.
    pub fn state(&self) -> State {
        State::from_number(self.memory.words()[at::STATE].load(Acquire))
    }

    /// The types, and how many records there is room for.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The queue's number, as the policy knows it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Counts of both sides.
    pub fn counts(&self) -> QueueCounts {
        let word = |at: usize| self.memory.words()[at].load(Relaxed);
        QueueCounts {
            taken: word(at::UP_TAIL),
            refused: word(at::REFUSED),
            full: word(at::UP_HEAD + 1),
            notices: word(at::DOWN_HEAD),
            lost: word(at::DOWN_HEAD + 1),
        }
    }

    /// The words of the memory, for tests that write nonsense there.
    #[doc(hidden)]
    pub fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }
}

impl<Up, Down> Deref for HintQueue<Up, Down> {
    type Target = BytesQueue;

    fn deref(&self) -> &BytesQueue {
        &self.bytes
    }
}

/// What a queue has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// Hints that were taken out of the ring.
    pub taken: u64,
    /// Hints that were no value of their type.
    pub refused: u64,
    /// How often there was no room for a hint.
    pub full: u64,
    /// Notices that were written.
    pub notices: u64,
    /// How often there was no room for a notice.
    pub lost: u64,
}

impl<Up, Down> AsFd for HintQueue<Up, Down> {
    /// As [`BytesQueue`]'s.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bytes.as_fd()
    }
}

impl AsFd for BytesQueue {
    /// Readable when there is a notice, hung up when the policy is gone; for epoll and the like.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn why_not(error: io::Error, reason: &[u8]) -> Error {
    let said = String::from_utf8_lossy(reason).trim_end_matches('\0').to_owned();
    match error.raw_os_error() {
        Some(libc::ENODEV) => Error::NothingRuns,
        Some(libc::EACCES) => Error::QueueNotOpen,
        _ if !said.is_empty() => Error::NoQueue(said),
        _ => Error::Io { what: "no queue can be opened".into(), source: error },
    }
}
