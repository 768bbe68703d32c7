//! Queues of hints between the processes of a load and the default policy. Each process has its own, by the
//! numbers that the load has for them, and opens one when it first uses it.

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use ekiden_user::hints::{Geometry, Side, State};
use ekiden_user::{BytesQueue, Error, Policy};
use rustix::io::Errno;
use rustix::thread::gettid;

use crate::real::exec::ExecError;
use crate::spec::{HINT_BYTES_MAX, HintWord, Step, Workload};

/// Records of each ring, as in the simulator.
const RECORDS: u32 = 64;

/// From one look at whether the policy is still there to the next.
const LOOK: Duration = Duration::from_millis(500);

thread_local! {
    /// The queues of this process, which has one thread.
    static QUEUES: RefCell<Vec<Option<BytesQueue>>> = const { RefCell::new(Vec::new()) };
}

/// What the default policy and programs say to each other, if the load does.
pub(crate) fn types(load: &Workload) -> Result<Option<Geometry>, ExecError> {
    if load.queues() == 0 {
        return Ok(None);
    }
    let types = ekiden_user::types(Policy::Default)?;
    let mut wrong = None;
    load.each_step(|step| match step {
        Step::WriteHint { hint, .. } if hint.len() * 4 != types.up.bytes as usize => {
            wrong = Some(ExecError::OtherHints { bytes: hint.len() * 4, wanted: types.up.bytes });
        }
        Step::ReadNotice { .. } if types.down.bytes == 0 => wrong = Some(ExecError::NoNotices),
        _ => {}
    });
    let side = |side: Side| Side { records: RECORDS, ..side };
    wrong.map_or(Ok(Some(Geometry { up: side(types.up), down: side(types.down) })), Err)
}

/// A child has no queues: it would be killed in the memory of its parent's, which it has not.
pub(crate) fn begin_child() {
    QUEUES.take();
}

fn with<R>(types: &Geometry, number: u32, what: impl FnOnce(&mut BytesQueue) -> R) -> Result<R, Errno> {
    QUEUES.with_borrow_mut(|queues| {
        if queues.len() <= number as usize {
            queues.resize_with(number as usize + 1, || None);
        }
        let queue = &mut queues[number as usize];
        if queue.is_none() {
            *queue = Some(BytesQueue::open(Policy::Default, *types).map_err(|error| errno(&error))?);
        }
        Ok(what(queue.as_mut().expect("it was just opened")))
    })
}

fn errno(error: &Error) -> Errno {
    let of_io = |source: &io::Error| Errno::from_io_error(source).unwrap_or(Errno::IO);
    match error {
        Error::Io { source, .. } => of_io(source),
        Error::QueueNotOpen => Errno::ACCESS,
        Error::NoQueue(_) => Errno::PROTO,
        _ => Errno::NODEV,
    }
}

/// Writes a hint. One for which there is no room, or no policy any more, is lost.
pub(crate) fn write_hint(types: &Geometry, number: u32, hint: &[HintWord], ring: bool) -> Result<(), Errno> {
    let mut bytes = [0; HINT_BYTES_MAX];
    let bytes = &mut bytes[..hint.len() * 4];
    for (room, word) in bytes.chunks_exact_mut(4).zip(hint) {
        let word = match word {
            HintWord::Value(value) => *value,
            HintWord::OwnPid => gettid().as_raw_nonzero().get() as u32,
            HintWord::Held { .. } => unreachable!("a load with this word was refused"),
        };
        room.copy_from_slice(&word.to_ne_bytes());
    }
    with(types, number, |queue| {
        let written = queue.send(bytes);
        if ring && written.is_ok() {
            // That the policy is gone is no failure of the load: it runs on without.
            let _ = queue.ring();
        }
    })
}

/// Takes the oldest notice; sleeps while there is none, but not if the queue is closed.
pub(crate) fn read_notice(types: &Geometry, number: u32) -> Result<(), Errno> {
    let mut room = [0; HINT_BYTES_MAX];
    with(types, number, |queue| {
        while !queue.receive(&mut room[..types.down.bytes as usize]) && queue.state() == State::Open {
            queue.wait(LOOK).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        }
        Ok(())
    })?
}
