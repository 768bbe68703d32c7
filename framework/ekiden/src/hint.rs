//! Hints: what applications tell a policy, and what it tells them (papers/000, section 3.3).

use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;

use ekiden_abi::{Call, Calls};
use ekiden_hints::Plain;
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

use crate::{Cx, Task};

/// A policy that applications tell something, or that tells them something.
///
/// `#[policy]` belongs here, too: it says which of the calls are implemented, and has `()` stand for a type that is left out.
///
/// ```
/// use ekiden::{Call, HintRefused, prelude::*};
///
/// /// A program asks for a CPU to be kicked; there are two.
/// struct Asked;
///
/// #[policy(HintQueues)]
/// impl Scheduler for Asked {
/// #     fn new(_: &Env) -> Self { Self }
/// #     fn enqueue(&self, _: &Cx, _: &Task, _: Schedulable<Self>) {}
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { None }
/// }
///
/// #[policy]
/// impl HintQueues for Asked {
///     type Hint = u32;
///
///     fn parse_hint(&self, cx: &Cx, _: Option<&Task>, cpu: u32) -> Result<(), HintRefused> {
///         if cpu >= cx.topology().nr_cpus() {
///             return Err(HintRefused);
///         }
///         cx.resched(cpu);
///         Ok(())
///     }
/// }
///
/// assert!(Asked::CALLS.has(Call::ParseHint) && !Asked::CALLS.has(Call::RegisterQueue));
/// let mut machine = ekiden_example_host::Machine::<Asked>::flat(2);
/// assert!(machine.call_with(Call::ParseHint, 3, &1_u32.to_ne_bytes()).kicks.contains(1));
/// assert_eq!(machine.call_with(Call::ParseHint, 3, &2_u32.to_ne_bytes()).cpu, ekiden::host::abi::NO_CPU);
/// ```
pub trait HintQueues: Sized {
    /// What applications tell it; `()` for nothing.
    type Hint: Plain;
    /// What it tells applications, by [`Cx::notify`]; `()` for nothing.
    type Notice: Plain + IntoBytes;

    /// The calls of this trait that it implements itself; filled in by `#[policy]`.
    const HINT_CALLS: Calls =
        Calls::NONE.with(Call::RegisterQueue).with(Call::EnterQueue).with(Call::UnregisterQueue).with(Call::ParseHint);

    /// An application opened a queue for hints; `owner` is the process, so that what its hints say of threads can be held against
    /// [`Cx::process`]. Comes again after another version has taken over that knows nothing of queues.
    fn register_queue(&self, cx: &Cx<'_>, queue: QueueId, owner: ProcessId) {
        let _ = (cx, queue, owner);
    }

    /// An application put hints into its queue: some time ago, as this comes with the next event of a thread of the application, at a
    /// tick of one, or when it rings. Take them by `hints.pop()`; the rest is gone after the call. A call has 4 KiB at most, and more are in
    /// another call. Other calls may be under way.
    fn enter_queue(&self, cx: &Cx<'_>, queue: QueueId, hints: Hints<'_, Self::Hint>) {
        let _ = queue;
        for hint in hints {
            let _ = self.parse_hint(cx, None, hint);
        }
    }

    /// An application closed its queue, or has ended. What it said is the policy's to undo; nothing can be told it any more.
    fn unregister_queue(&self, cx: &Cx<'_>, queue: QueueId) {
        let _ = (cx, queue);
    }

    /// An application tells something, and waits for the answer. `task` is the one that tells, if it is ours.
    fn parse_hint(&self, cx: &Cx<'_>, task: Option<&Task>, hint: Self::Hint) -> Result<(), HintRefused> {
        let _ = (cx, task, hint);
        Err(HintRefused)
    }
}

/// Names one hint queue of an application, unique while the policy runs.
///
/// ```
/// use ekiden::{Call, ProcessId, QueueId, prelude::*};
///
/// /// Counts the queues that are open, and kicks the CPU of that number to show it.
/// struct Counting(Shared<u32>);
///
/// # #[policy(HintQueues)]
/// # impl Scheduler for Counting {
/// #     fn new(_: &Env) -> Self { Self(Shared::new(0)) }
/// #     fn enqueue(&self, _: &Cx, _: &Task, _: Schedulable<Self>) {}
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { None }
/// # }
/// #[policy]
/// impl HintQueues for Counting {
///     fn register_queue(&self, cx: &Cx, _: QueueId, _: ProcessId) {
///         cx.resched(self.0.fetch_add(1) + 1);
///     }
///
///     fn unregister_queue(&self, cx: &Cx, _: QueueId) {
///         cx.resched(self.0.fetch_sub(1) - 1);
///     }
/// }
///
/// let mut machine = ekiden_example_host::Machine::<Counting>::flat(4);
/// assert!(machine.call(Call::RegisterQueue, 0, 0).kicks.contains(1));
/// assert!(machine.call(Call::UnregisterQueue, 0, 0).kicks.contains(0));
/// ```
pub type QueueId = u32;

/// Names a process by its PID, while it lives: the number is another one's later.
///
/// ```
/// use ekiden::{ProcessId, prelude::*};
///
/// /// Keeps the threads of process 103 on CPU 1.
/// struct Together(ProcessId);
///
/// #[policy]
/// impl Scheduler for Together {
/// #     fn new(_: &Env) -> Self { Self(103) }
/// #     fn enqueue(&self, cx: &Cx, task: &Task, _: Schedulable<Self>) { cx.resched(self.select_task_rq(cx, task, 0, 0, Default::default())) }
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { None }
///     fn select_task_rq(&self, cx: &Cx, task: &Task, _: CpuId, suggested: CpuId, _: WakeFlags) -> CpuId {
///         if cx.process(task.id) == Some(self.0) { 1 } else { suggested }
///     }
/// }
///
/// let mut machine = ekiden_example_host::Machine::<Together>::flat(2);
/// assert_eq!((machine.wake(3, 0), machine.wake(4, 0)), (vec![1], vec![0]));
/// ```
pub type ProcessId = u32;

/// A policy does not take a hint: see [`HintQueues::parse_hint`].
///
/// ```
/// use ekiden::HintRefused;
///
/// fn cpu_of(hint: u32) -> Result<u32, HintRefused> {
///     if hint < 8 { Ok(hint) } else { Err(HintRefused) }
/// }
/// assert_eq!(cpu_of(9), Err(HintRefused));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HintRefused;

/// Why a program is not told: see [`Cx::notify`](crate::Cx::notify). The numbers are those on the wire.
///
/// ```
/// use ekiden::{Call, NotTold, prelude::*};
///
/// /// Tells the process that has opened queue 5 which CPU ticks.
/// struct Talking;
///
/// #[policy(HintQueues)]
/// impl Scheduler for Talking {
/// #     fn new(_: &Env) -> Self { Self }
/// #     fn enqueue(&self, _: &Cx, _: &Task, _: Schedulable<Self>) {}
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { None }
///     fn task_tick(&self, cx: &Cx, _: &Task) {
///         assert_eq!(cx.notify::<Self>(5, &cx.cpu()), Ok(()));
///         assert_eq!(cx.notify::<Self>(6, &cx.cpu()), Err(NotTold::Closed));
///     }
/// }
///
/// #[policy]
/// impl HintQueues for Talking {
///     type Notice = u32;
/// }
///
/// ekiden_example_host::Machine::<Talking>::flat(2).call(Call::TaskTick, 3, 1);
/// assert_eq!(NotTold::from_number(1).to_string(), "the program has not read what it was told before");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotTold {
    /// It has not read enough of what it was told before. Counted in its queue.
    Full = 1,
    /// There is no such queue, or it has no room for notices of this type.
    Closed = 2,
}

impl NotTold {
    /// The reason with this number; an unknown one reads as [`NotTold::Closed`].
    pub const fn from_number(number: u32) -> Self {
        if number == Self::Full as u32 { Self::Full } else { Self::Closed }
    }
}

impl fmt::Display for NotTold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the program has not read what it was told before",
            Self::Closed => "the queue is closed",
        })
    }
}

/// Hints that waited in a queue, oldest first. Bytes that are no value of `H` are passed over and counted.
///
/// ```
/// use ekiden::{Call, Hints, QueueId, prelude::*};
///
/// /// Programs name CPUs that should look for work.
/// struct Asked;
///
/// # #[policy(HintQueues)]
/// # impl Scheduler for Asked {
/// #     fn new(_: &Env) -> Self { Self }
/// #     fn enqueue(&self, _: &Cx, _: &Task, _: Schedulable<Self>) {}
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { None }
/// # }
/// #[policy]
/// impl HintQueues for Asked {
///     type Hint = u32;
///
///     fn enter_queue(&self, cx: &Cx, _: QueueId, mut hints: Hints<u32>) {
///         // The oldest first. Hints that are left after the call are gone.
///         while let Some(cpu) = hints.pop() {
///             cx.resched(cpu);
///         }
///     }
/// }
///
/// let mut machine = ekiden_example_host::Machine::<Asked>::flat(4);
/// let bytes = [2_u32, 3].map(u32::to_ne_bytes).concat();
/// assert!(machine.call_with(Call::EnterQueue, 0, &bytes).kicks.iter().eq([2, 3]));
/// ```
#[derive(Debug)]
pub struct Hints<'a, H> {
    bytes: &'a [u8],
    refused: &'a Cell<u32>,
    hint: PhantomData<H>,
}

impl<'a, H: TryFromBytes + KnownLayout + Immutable> Hints<'a, H> {
    pub(crate) fn new(bytes: &'a [u8], refused: &'a Cell<u32>) -> Self {
        Self { bytes, refused, hint: PhantomData }
    }

    /// Takes the oldest hint; the same as `next`.
    pub fn pop(&mut self) -> Option<H> {
        let size = size_of::<H>();
        // A policy without hints has `()` here, and would otherwise see infinitely many of them.
        if size == 0 {
            return None;
        }
        while self.bytes.len() >= size {
            let (head, rest) = self.bytes.split_at(size);
            self.bytes = rest;
            if let Ok(hint) = H::try_read_from_bytes(head) {
                return Some(hint);
            }
            self.refused.set(self.refused.get().saturating_add(1));
        }
        None
    }
}

impl<H: TryFromBytes + KnownLayout + Immutable> Iterator for Hints<'_, H> {
    type Item = H;

    fn next(&mut self) -> Option<H> {
        self.pop()
    }
}
