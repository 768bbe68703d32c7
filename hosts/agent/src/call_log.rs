//! The newest calls of the policy, which the agent's thread writes down in memory. Others read them there, so that the thread
//! does no input or output, and does not wait.

use std::cell::RefCell;
use std::fs::File;
use std::sync::Arc;

use ekiden_host::{Policy, Surrounded};
use ekiden_loader::{CALL_LOG_PAGE, LoadError, Result, len_of_ring};
use ekiden_recording::{CallWriter, Mark, Record, RingHeader, Writes, WritesDown, call_log_of_thread, notes_of_thread};
use memmap2::{MmapMut, MmapOptions};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::host::now_ns;

/// The number of an agent's first policy; those that take over have the next ones.
pub(crate) const FIRST_INSTANCE: u64 = 1;

thread_local! {
    static WRITES_TO: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

/// Memory for calls, as the kernel host has it for each CPU.
pub(crate) struct Ring {
    map: MmapMut,
    records: usize,
    instance: u64,
}

impl Ring {
    /// Room for this many records, a power of two; and the file that it is, for its readers.
    pub(crate) fn new(records: u64) -> Result<(Self, Arc<File>)> {
        let failed = |source| LoadError::Io { what: "cannot make the flight recorder".into(), source };
        let file: File = memfd_create(c"ekiden-call_log", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)
            .map_err(|error| failed(error.into()))?
            .into();
        let len = len_of_ring(records);
        file.set_len(len as u64).map_err(failed)?;
        // Its readers, in other processes too, rely on that.
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).map_err(|error| failed(error.into()))?;
        // SAFETY: memory of this process's own, which is sealed against being made shorter.
        let map = unsafe { MmapOptions::new().len(len).map_mut(&file) }.map_err(failed)?;
        Ok((Self { map, records: records as usize, instance: FIRST_INSTANCE }, Arc::new(file)))
    }

    fn call_writer(&mut self) -> CallWriter<'_> {
        let (place, ring) = self.map.split_at_mut(CALL_LOG_PAGE);
        debug_assert!(ring.len() == self.records * size_of::<Record>());
        // SAFETY: both are aligned to pages, long enough, and any bytes are of these types. Others only read, and look at
        // the count, which is atomic, before and after.
        unsafe {
            let ring = std::slice::from_raw_parts_mut(ring.as_mut_ptr().cast::<Record>(), self.records);
            CallWriter::new(&mut *place.as_mut_ptr().cast::<RingHeader>(), ring)
        }
    }

    /// From here on, what this thread's calls are goes there.
    pub(crate) fn begin(self, mark: Mark) {
        WRITES_TO.set(Some(self));
        listen();
        OfAgent.write(|call_writer| call_writer.mark(now_ns(), mark, FIRST_INSTANCE));
    }
}

/// Has written down what hosts tell the policy during calls on this thread.
fn listen() {
    call_log_of_thread(Some(|value| {
        OfAgent.write(|call_writer| call_writer.note(value));
        value
    }));
    notes_of_thread(Some(|_, noted| OfAgent.write(|call_writer| call_writer.noted(&noted))));
}

/// Runs `act` with the recording of this thread off.
pub(crate) fn paused<R>(act: impl FnOnce() -> R) -> R {
    call_log_of_thread(None);
    notes_of_thread(None);
    let result = act();
    if WRITES_TO.with_borrow(Option::is_some) {
        listen();
    }
    result
}

/// `policy`, each call of which is written down on a thread that [records](Ring::begin).
pub(crate) fn recorded(policy: Box<dyn Policy>) -> Box<dyn Policy> {
    Box::new(Surrounded::new(policy, WritesDown(OfAgent)))
}

/// What follows are calls of the instance of this number, of which `mark` says what it knows. For a thread that [records](Ring::begin).
pub(crate) fn next_instance(mark: Mark, instance: u64) {
    WRITES_TO.with_borrow_mut(|ring| {
        if let Some(ring) = ring {
            ring.instance = instance;
            ring.call_writer().mark(now_ns(), mark, instance);
        }
    });
}

/// How the calls of an agent's policy are written down.
struct OfAgent;

impl Writes for OfAgent {
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn thread(&self) -> u32 {
        // No thread makes a call of the policy but the agent's.
        0
    }

    fn instance(&self) -> u64 {
        WRITES_TO.with_borrow(|ring| ring.as_ref().map_or(FIRST_INSTANCE, |ring| ring.instance))
    }

    fn write(&self, act: impl FnOnce(&mut CallWriter<'_>)) {
        WRITES_TO.with_borrow_mut(|ring| {
            if let Some(ring) = ring {
                act(&mut ring.call_writer());
            }
        });
    }
}
