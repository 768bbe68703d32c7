//! What a policy says of its decisions while it makes them: notes, which recordings and traces have, and lines of text, which
//! the simulator and replay alone show.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ekiden_abi::{Message, NOTE_NAME_MAX, NoteName, Noted};

use crate::{Cx, Fingerprint, Layout};

static ON: AtomicBool = AtomicBool::new(false);
static HEAR: spin::Once<fn(&Message, Noted)> = spin::Once::new();

/// From here on, while notes are [kept](keep_notes), `hear` is given those of every call in this program, with the message of the
/// call. The first one stays.
pub fn hear_notes(hear: fn(&Message, Noted)) {
    HEAR.call_once(|| hear);
}

/// Whether notes have a reader, for all calls in this program.
pub fn keep_notes(on: bool) {
    ON.store(on, Relaxed);
}

/// A name for values that a policy notes in its decisions. Made by [`Env::note`](crate::Env::note).
///
/// Notes stand in recordings of calls, of every host, and in traces of the simulator, at the call that made them: `ekiden trace cat`
/// and `export` show it, as does Perfetto. A note changes nothing, and a policy cannot read it. A replay compares those that are in the
/// recording; a policy may make others by now.
///
/// Costs a load and a branch while nothing is recorded, and else one or two records of 64 bytes in the ring that calls go to. The
/// flight recorder of kernel and agent records by default.
///
/// ```
/// use ekiden::prelude::*;
///
/// /// First come, first served, and notes how many tasks waited already.
/// #[derive(Layout)]
/// struct Noting {
///     queues: PerCpu<SpinLock<FifoQueue<Self>>>,
///     ahead: Note,
/// }
///
/// #[policy]
/// impl Scheduler for Noting {
///     fn new(env: &Env) -> Self {
///         Self { queues: PerCpu::new(env, |_| SpinLock::default()), ahead: env.note("ahead_tasks") }
///     }
///
///     fn enqueue(&self, cx: &Cx, _: &Task, token: Schedulable<Self>) {
///         let mut queue = self.queues[token.cpu()].lock();
///         self.ahead.write(cx, queue.len() as u64);
///         queue.push_back(token);
///     }
/// #
/// #     fn pick_next_task(&self, _: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> { self.queues[cpu].lock().pop_front() }
/// }
///
/// # use ekiden::Call;
/// let mut machine = ekiden_example_host::Machine::<Noting>::flat(2);
/// machine.wait(Call::TaskNew, 1, 0);
/// machine.wait(Call::TaskNew, 2, 0);
/// assert_eq!(machine.take_notes(), ["ahead_tasks 0", "ahead_tasks 1"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note(NoteName);

impl Note {
    pub(crate) fn named(name: &str) -> Self {
        let is_named = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
        let packed = NoteName::new(name).filter(|_| name.bytes().all(is_named));
        match packed {
            Some(packed) => Self(packed),
            None => panic!(
                "a note's name has 1 to {NOTE_NAME_MAX} lower-case letters, digits and underscores, and {name:?} has not"
            ),
        }
    }

    /// Notes a value in this call.
    #[inline]
    pub fn write(&self, cx: &Cx<'_>, value: u64) {
        if ON.load(Relaxed) {
            tell(cx.message(), Noted { name: self.0, value });
        }
    }
}

#[cold]
#[inline(never)]
fn tell(message: &Message, noted: Noted) {
    if let Some(hear) = HEAR.get() {
        hear(message, noted);
    }
}

impl Layout for Note {
    const FINGERPRINT: Fingerprint = Fingerprint::of::<Self>("Note");
}

/// Says something in a call, for those who develop the policy: the form and the values of `format!`, after the [`Cx`] of the call.
///
/// `ekiden sim --debug` and `ekiden replay --debug` show it, with time, CPU and call. The kernel host and the agent do not: nothing is formatted there, and
/// the values are not computed. So it has to do nothing that matters to the policy. What is to be known of a policy that runs in a
/// kernel is a [`Note`], and a replay of its recording shows the text too.
///
/// ```
/// use ekiden::prelude::*;
///
/// struct Telling(SpinLock<FifoQueue<Self>>);
///
/// #[policy]
/// impl Scheduler for Telling {
/// #     fn new(_: &Env) -> Self { Self(SpinLock::default()) }
///     fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
///         let mut queue = self.0.lock();
///         ekiden::debug!(cx, "{:?} has had {} ns, {} wait", task.id, task.runtime_ns, queue.len());
///         // A host that shows no text does not come to this.
///         ekiden::debug!(cx, "{}", unreachable!("a value is computed"));
///         queue.push_back(token);
///     }
/// #
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { self.0.lock().pop_front() }
/// }
///
/// let mut machine = ekiden_example_host::Machine::<Telling>::flat(1);
/// assert_eq!((machine.wake(3, 0), machine.pick(0)), (vec![], Some(3)));
/// ```
#[macro_export]
macro_rules! debug {
    ($cx:expr, $($text:tt)+) => {{
        let cx: &$crate::Cx<'_> = $cx;
        if cx.shows_text() {
            cx.show_text(::core::format_args!($($text)+));
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic = "and \"Steals\" has not"]
    fn a_note_has_a_name_like_that_of_a_figure() {
        Note::named("Steals");
    }

    #[test]
    #[should_panic = "1 to 32 lower-case letters"]
    fn a_note_has_a_name() {
        Note::named("");
    }
}
